"""``python -m sb3_grpo compare``: algorithms side by side, on several environments and seeds."""

import argparse
import importlib.util
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import track
from rich.text import Text

from sb3_grpo import presets
from sb3_grpo.cli.runs import add_save_freq, positive, say_table
from sb3_grpo.console import ALGORITHMS, INTERRUPTED, OK, UsageError, missing_extra, say
from sb3_grpo.utils.files import no_room

if TYPE_CHECKING:
    from sb3_grpo.classroom.compare.experiment import Experiment, Job

FAILED = 1
_TIMESTEPS = 100_000
_SEEDS = 10


def add_compare(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    parser = commands.add_parser(
        "compare",
        help="train several algorithms on several environments and seeds, and report the results",
        description="Train several algorithms on several environments and seeds, and report the results.\n"
        "Run the same command again to continue where it stopped, or with more seeds, environments or algorithms to add them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--env", nargs="+", help="ids of Gymnasium environments")
    parser.add_argument("--algo", nargs="+", help="algorithms of the RL Zoo, including grpo and dapo")
    parser.add_argument(
        "--seeds",
        type=_seeds,
        help=f"how many, for the seeds 0, 1, ... (default: {_SEEDS}), or a range such as 10-19; 4-4 is seed 4 alone",
    )
    parser.add_argument("--timesteps", type=positive, help=f"environment steps per run (default: {_TIMESTEPS:,})")
    parser.add_argument(
        "--config", type=Path, help="YAML file that describes the experiment, instead of --env, --algo and --timesteps"
    )
    parser.add_argument("--preset", metavar="NAME", help="run a ready-made comparison instead: see --list-presets")
    parser.add_argument("--list-presets", action="store_true", help="list the ready-made comparisons and what they need")
    parser.add_argument("--name", help="name of the experiment (default: built from environments and algorithms)")
    parser.add_argument("--output", type=Path, help="folder for the results (default: comparisons/NAME)")
    parser.add_argument(
        "--workers", type=positive, help="number of parallel runs (default: one per CPU core, or as many as fit on Ray)"
    )
    parser.add_argument(
        "--no-clip", action="store_true", help="make no animations of the trained agents next to an untrained one"
    )
    add_save_freq(parser)
    parser.add_argument("--ray", metavar="ADDRESS", help="run on this Ray cluster; auto: the one this machine belongs to")
    parser.set_defaults(run=_compare)

    reports = parser.add_subparsers(title="commands", metavar="")
    report = reports.add_parser("report", help="regenerate the report of a comparison")
    report.add_argument("folder", type=Path, help="folder of the comparison")
    report.set_defaults(run=_report)
    pack = reports.add_parser(
        "pack",
        help="pack all results of a comparison into a few small files, or those of several folders into one comparison",
        description="Pack all results of a comparison into a few small files, for reports elsewhere.\n"
        "Several folders become one comparison: the seeds, environments and algorithms that different machines have run.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pack.add_argument("folders", metavar="folder", nargs="+", type=Path, help="folder of a comparison, packed or not")
    pack.add_argument("target", type=Path, help="folder to write to")
    pack.set_defaults(run=_pack)


def _seeds(text: str) -> int | range:
    """
    Parse a command-line argument.

    :param text: the argument
    :return: a number of seeds, or a range of them
    """
    first, is_range, last = text.partition("-")
    if is_range and first.isdecimal() and last.isdecimal() and int(first) <= int(last):
        return range(int(first), int(last) + 1)
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a number of seeds, or a range such as 10-19 or 4-4, not {text!r}")
    return int(text)


def _check_extra() -> None:
    for package in ("rl_zoo3", "yaml", "rliable"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra("compare", "compare")


def _refuse_options_of_runs(args: argparse.Namespace, command: str) -> None:
    given = args.argv[1 : args.argv.index(command)]
    if given:
        raise UsageError(f"compare {command} runs nothing, so that {' '.join(given)} has no effect: leave it out")


def _report(args: argparse.Namespace) -> int:
    _refuse_options_of_runs(args, "report")
    return _make_report(args.folder)


def _make_report(folder: Path) -> int:
    _check_extra()
    from sb3_grpo.classroom.compare.reading import check_links
    from sb3_grpo.classroom.compare.report import make_report

    check_links(folder)
    with _no_room_is_said(folder):
        say(Text("Report: ", "bold"), str(make_report(folder)))
    return OK


def _pack(args: argparse.Namespace) -> int:
    _refuse_options_of_runs(args, "pack")
    _check_extra()
    from sb3_grpo.classroom.compare.clips import pack_clips
    from sb3_grpo.classroom.compare.collect import collect
    from sb3_grpo.classroom.compare.combine import combine
    from sb3_grpo.classroom.compare.experiment import seeds_in_words
    from sb3_grpo.classroom.compare.packed import pack
    from sb3_grpo.classroom.compare.reading import check_links

    for folder in args.folders:
        check_links(folder)
    with _no_room_is_said(args.target):
        parts = [collect(folder) for folder in args.folders]
        results = combine(parts)
        pack(results, args.target)
        pack_clips(results, args.target)
    if len(parts) > 1:
        for part in parts:
            say(f"{part.folder}: {seeds_in_words(part.experiment['seeds'])}, {part.progress()}")
    size = sum(path.stat().st_size for path in args.target.rglob("*") if path.is_file()) / 1024
    say(Text("Packed: ", "bold"), f"{args.target}, {size:,.0f} KiB, {results.progress()}")
    return OK


def _compare(args: argparse.Namespace) -> int:
    _check_extra()
    if args.list_presets:
        return _list_presets()
    from sb3_grpo.classroom.compare.worker import prepare_runs

    experiment = _experiment(args)
    if args.save_freq is not None and not any(variant.algo in ALGORITHMS for variant in experiment.variants):
        raise UsageError(
            f"--save-freq has no effect here: of all algorithms, only {' and '.join(ALGORITHMS)} write checkpoints"
        )
    experiment.clips = not args.no_clip
    folder: Path = args.output or Path("comparisons") / experiment.name
    if args.ray is None:
        prepare_runs()
    _check(experiment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Two comparisons would remove each other's runs. However this process ends, the system releases the lock
        locked = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"Another comparison is at work in {folder}: wait for it, or choose another --output") from error
    except OSError as error:
        raise UsageError(f"Cannot write to {folder}: {error}") from error
    with locked, _no_room_is_said(folder):
        return _run(args, experiment, folder)


@contextmanager
def _no_room_is_said(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if (code := no_room(error)) is None:
            raise
        raise UsageError(
            f"{folder}: {os.strerror(code)}. Finished runs are kept: make room, and give the same command again"
        ) from error


def _run(args: argparse.Namespace, experiment: "Experiment", folder: Path) -> int:
    # Imported here, because other commands do not need these packages
    from sb3_grpo.classroom.compare.experiment import seeds_in_words
    from sb3_grpo.classroom.compare.pools import LocalPool
    from sb3_grpo.classroom.compare.schedule import Board, make_clips, run_jobs, without_clip
    from sb3_grpo.classroom.compare.worker import is_under_way

    pool = _make_pool(args, experiment)
    _begin(experiment, folder, args.argv)
    n_done = sum(job.is_done(folder) for job in experiment.jobs())
    n_under_way = sum(is_under_way(job.folder(folder)) for job in experiment.jobs())
    resumed = f", {n_done} of them already finished" if n_done else ""
    resumed += f", {n_under_way} in progress" if n_under_way else ""
    planned = f"{len(experiment.jobs())} runs ({seeds_in_words(experiment.seeds)})"
    say(Text(experiment.name, "bold"), f": {planned}{resumed}, results in {folder}")
    missing = without_clip(experiment, folder) if experiment.clips else []
    try:
        if missing:
            say(f"Making the missing clips of {len(missing)} finished runs")
            make_clips(missing, experiment, folder, pool if args.ray is None else LocalPool(os.cpu_count() or 1))
        n_failed = run_jobs(experiment, folder, pool, Board(experiment, folder, Console()))
    except KeyboardInterrupt:
        n_done = sum(job.is_done(folder) for job in experiment.jobs())
        say(Text("Interrupted. ", "bold yellow"), f"{n_done} runs are finished. The same command continues the others, and")
        say(f"sb3-grpo compare report {shlex.quote(str(folder))}", " shows the results so far.")
        return INTERRUPTED
    if n_failed:
        say(Text(f"{n_failed} runs failed. ", "bold red"), "Run the same command again to retry them.")
    if any(job.is_done(folder) for job in experiment.jobs()):
        _make_report(folder)
    return FAILED if n_failed else OK


def _list_presets() -> int:
    from sb3_grpo.classroom.compare.ready import ready_comparisons

    rows = [("--preset", "minutes on two cores", "extras", "shows")]
    rows += [(each.name, str(each.minutes), ", ".join(each.extras), each.about) for each in ready_comparisons()]
    say_table([tuple(Text(cell, "" if i else "bold", overflow="fold") for cell in row) for i, row in enumerate(rows)])
    return OK


def _experiment(args: argparse.Namespace) -> "Experiment":
    from sb3_grpo.classroom.compare.definition import make_experiment, read_experiment

    content: dict[str, Any]
    path = _given_file(args)
    if path is not None:
        content, source = read_experiment(path), str(path)
    else:
        for option in ("env", "algo"):
            if getattr(args, option) is None:
                raise UsageError(f"--{option} is missing, or --config with a YAML file, or --preset")
        name = re.sub(r"[^\w.-]+", "-", "_".join([*args.env, *args.algo]))[:150]
        timesteps = args.timesteps or _TIMESTEPS
        content = {"name": name, "envs": args.env, "variants": args.algo, "timesteps": timesteps, "seeds": _SEEDS}
        source = "compare"
    given = {"name": args.name, "seeds": args.seeds}
    return make_experiment(content | {key: value for key, value in given.items() if value is not None}, source)


def _given_file(args: argparse.Namespace) -> Path | None:
    """The YAML file that describes the experiment, if there is one."""
    if args.preset is None:
        path, given, instead = args.config, "--config", f"write it in {args.config}"
    else:
        path = _ready_file(args.preset)
        given, instead = "--preset", f"copy {path}, change it, and give it as --config"
    if path is not None:
        for option in ("env", "algo", "timesteps", *(["config"] if args.preset is not None else [])):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option} and {given} exclude each other: {instead}")
    return path


def _ready_file(name: str) -> Path:
    from sb3_grpo.classroom.compare.ready import ready_comparisons, ready_path

    path = ready_path(name)
    if path is None:
        known = ", ".join(each.name for each in ready_comparisons())
        hint = ""
        if name in presets.PRESETS:
            hint = f". {name} is one of an algorithm: write {{algo: grpo, preset: {name}}} in a file for --config"
        raise UsageError(f"--preset {name}: comparisons that are ready are {known}{hint}")
    return path


def _check(experiment: "Experiment") -> None:
    from sb3_grpo.classroom.compare.build import check

    console = Console()

    def progress(jobs: "list[Job]") -> "Iterable[Job]":
        return track(jobs, "Checking", console=console, transient=True, disable=not console.is_terminal)

    check(experiment, progress)
    for env, networks in experiment.networks.items():
        if len(set(networks.values())) > 1:
            described = "; ".join(f"{name}: {network}" for name, network in networks.items())
            say(
                Text("Warning: ", "bold yellow"),
                f"the networks on {env} differ, so that not only the algorithms are compared: {described}. "
                "Set policy_kwargs in the hyperparams of the variants to make them equal.",
            )


def _begin(experiment: "Experiment", folder: Path, argv: Sequence[str]) -> None:
    """Write ``experiment.json``, merged with the existing one."""
    from sb3_grpo.classroom.compare.definition import default_settings, known_algorithms
    from sb3_grpo.classroom.compare.experiment import Experiment, differences, merge
    from sb3_grpo.classroom.compare.packed import is_packed
    from sb3_grpo.utils.machine import describe_machine, versions

    if is_packed(folder):
        raise UsageError(f"{folder} holds packed results, which cannot be continued: choose another folder with --output")
    experiment.command = shlex.join(["python", "-m", "sb3_grpo", *argv])
    experiment.versions = versions("rl_zoo3", "sb3_contrib")
    experiment.machine = describe_machine()
    everything = experiment
    if not (folder / "experiment.json").exists() and any((folder / "runs").rglob("result.json")):
        raise UsageError(
            f"{folder} has finished runs, but no experiment.json that says what they are: "
            "choose another folder with --name or --output."
        )
    if (folder / "experiment.json").exists():
        before = Experiment.load(folder)
        algorithms = known_algorithms()
        defaults = {variant.name: default_settings(algorithms[variant.algo]) for variant in experiment.variants}
        done = {(job.env, job.variant.name) for job in before.jobs() if job.is_done(folder)}
        found = differences(before, experiment, done, defaults)
        if found:
            listed = "\n".join(f"- {what}: {old} before, {new} now" for what, old, new in found)
            raise UsageError(
                f"{folder} has finished runs of another experiment:\n{listed}\n"
                "Choose another folder with --name or --output, or go on with the same settings."
            )
        everything = merge(before, experiment)
        updated = [
            f"{name} {experiment.versions.get(name)}"
            for name, old in before.versions.items()
            if experiment.versions.get(name) != old
        ]
        if updated:
            say(
                Text("Warning: ", "bold yellow"),
                f"earlier runs were made with other versions, now there is {', '.join(updated)}.",
            )
    everything.save(folder)


def _make_pool(args: argparse.Namespace, experiment: "Experiment") -> Any:
    from sb3_grpo.classroom.compare.pools import LocalPool, RayPool

    if args.ray is not None:
        if args.save_freq is not None:
            raise UsageError("--save-freq and --ray exclude each other: runs on a cluster do not go on from checkpoints")
        return RayPool(args.ray, args.workers, experiment.device)
    return LocalPool(args.workers or os.cpu_count() or 1, args.save_freq)
