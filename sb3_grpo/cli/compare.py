"""``sb3-grpo compare``: algorithms side by side, on several environments and seeds."""

import argparse
import importlib.util
import os
import re
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import track
from rich.text import Text

from sb3_grpo.cli.runs import add_save_freq, positive
from sb3_grpo.console import INTERRUPTED, OK, UsageError, missing_extra, say

if TYPE_CHECKING:
    from sb3_grpo.classroom.compare.experiment import Experiment

FAILED = 1
_TIMESTEPS, _SEEDS = 100_000, 10


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """
    :param commands: where to add the command
    """
    parser = commands.add_parser(
        "compare",
        help="train several algorithms on several environments and seeds, and report the results",
        description="Train several algorithms on several environments and seeds, and report the results. The same command "
        "again continues where it stopped, or adds seeds, environments and algorithms.",
    )
    parser.add_argument("--env", nargs="+", help="ids of Gymnasium environments")
    parser.add_argument("--algo", nargs="+", help="algorithms of the RL Zoo, including grpo and dapo")
    parser.add_argument("--seeds", type=_seeds, help=f"how many, or a range such as 10-19 (default: {_SEEDS})")
    parser.add_argument("--timesteps", type=positive, help=f"environment steps per run (default: {_TIMESTEPS:,})")
    parser.add_argument(
        "--config",
        help="YAML file instead of --env, --algo and --timesteps, or a ready-made comparison: class, homework or lunch",
    )
    parser.add_argument("--name", help="name of the experiment (default: built from environments and algorithms)")
    parser.add_argument("--output", type=Path, help="folder for the results (default: comparisons/NAME)")
    parser.add_argument("--workers", type=positive, help="number of parallel runs (default: one per CPU core)")
    parser.add_argument("--no-clip", action="store_true", help="make no animations of the agents")
    add_save_freq(parser)
    parser.add_argument("--ray", metavar="ADDRESS", help="run on this Ray cluster; auto: the one this machine belongs to")
    parser.set_defaults(run=_compare)

    others = parser.add_subparsers(title="commands", metavar="")
    report = others.add_parser(
        "report",
        help="regenerate the report of a comparison",
        description="Write the report of a comparison again, from its results so far.",
    )
    report.add_argument("folder", type=Path, help="folder of the comparison")
    report.set_defaults(run=lambda args: write_report(args.folder))
    poster = others.add_parser(
        "poster",
        help="draw a wall poster of a finished comparison",
        description="Draw a wall poster of a finished comparison, as PDF and SVG.",
    )
    poster.add_argument("folder", type=Path, help="folder of the comparison")
    poster.set_defaults(run=_make_posters)
    pack = others.add_parser(
        "pack",
        help="pack the results of a comparison, or of several folders, into a few small files",
        description="Pack the results of a comparison into a few small files. Several folders, of other seeds, algorithms or "
        "machines, become one comparison.",
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


def check_extra() -> None:
    """
    :raises UsageError: if the packages for comparisons are not installed
    """
    for package in ("rl_zoo3", "rliable"):
        if importlib.util.find_spec(package) is None:
            raise missing_extra("compare", "compare")


def write_report(folder: Path) -> int:
    """
    :param folder: folder of a comparison
    :return: the exit code
    """
    check_extra()
    from sb3_grpo.classroom.compare.report import make_report

    say(Text("Report: ", "bold"), str(make_report(folder)))
    return OK


def _make_posters(args: argparse.Namespace) -> int:
    check_extra()
    from sb3_grpo.classroom.compare.poster import make_posters

    for path in make_posters(args.folder):
        say(Text("Poster: ", "bold"), str(path))
    return OK


def _pack(args: argparse.Namespace) -> int:
    check_extra()
    from sb3_grpo.classroom.compare.clips import pack_clips
    from sb3_grpo.classroom.compare.collect import collect, combine, pack
    from sb3_grpo.classroom.compare.experiment import seeds_in_words

    if {folder.resolve() for folder in args.folders} == {args.target.resolve()}:
        raise UsageError(f"{args.target} is what is to be packed: choose another folder to write to, as the last one")
    parts = [collect(folder) for folder in args.folders]
    results = combine(parts)
    pack(results, args.target)
    pack_clips(results, args.target)
    for part in parts:
        say(f"{part.folder}: {seeds_in_words(part.experiment['seeds'])}, {part.progress()}")
    say(Text("Packed: ", "bold"), f"{args.target}, {results.progress()}")
    return OK


def _compare(args: argparse.Namespace) -> int:
    check_extra()
    # Imported only here and below, because other commands do not need these packages
    from sb3_grpo.classroom.compare.running import prepare_runs

    experiment = _experiment(args)
    if args.save_freq is not None and args.ray is not None:
        raise UsageError("--save-freq and --ray exclude each other: runs on a cluster do not continue from checkpoints")
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
    with locked:
        return _run(args, experiment, folder)


def _run(args: argparse.Namespace, experiment: "Experiment", folder: Path) -> int:
    from sb3_grpo.classroom.compare.experiment import seeds_in_words
    from sb3_grpo.classroom.compare.running import Execute, is_under_way, run_here, run_jobs, run_on_ray

    execute: Execute = partial(run_here, n_workers=args.workers or os.cpu_count() or 1, save_freq=args.save_freq)
    if args.ray is not None:
        execute = partial(run_on_ray, address=args.ray, n_workers=args.workers, device=experiment.device)
    _begin(experiment, folder, shlex.join(["sb3-grpo", *args.argv]))
    jobs = experiment.jobs()

    def n_done() -> int:
        return sum(job.is_done(folder) for job in jobs)

    n_under_way = sum(is_under_way(job.folder(folder)) for job in jobs)
    resumed = f", {n_done()} of them already finished" if n_done() else ""
    resumed += f", {n_under_way} in progress" if n_under_way else ""
    planned = f"{len(jobs)} runs ({seeds_in_words(experiment.seeds)})"
    say(Text(experiment.name, "bold"), f": {planned}{resumed}, results in {folder}")
    try:
        n_failed = run_jobs(experiment, folder, execute, Console())
    except KeyboardInterrupt:
        say(Text("Interrupted. ", "bold yellow"), f"{n_done()} runs are finished. The same command continues the others, and")
        say(f"sb3-grpo compare report {shlex.quote(str(folder))}", " shows the results so far.")
        return INTERRUPTED
    if n_failed:
        say(Text(f"{n_failed} runs failed. ", "bold red"), "Run the same command again to retry them.")
    if n_done():
        write_report(folder)
    return FAILED if n_failed else OK


def _experiment(args: argparse.Namespace) -> "Experiment":
    from sb3_grpo.classroom.compare.definition import make_experiment, read_experiment
    from sb3_grpo.classroom.compare.ready import ready_comparisons, ready_path

    content: dict[str, Any]
    if args.config is not None:
        path = ready_path(args.config) or Path(args.config)
        if not (path.suffix or path.is_file()):
            raise UsageError(f"--config {args.config}: ready-made comparisons are {', '.join(ready_comparisons())}")
        for option in ("env", "algo", "timesteps"):
            if getattr(args, option) is not None:
                raise UsageError(
                    f"--{option} and --config exclude each other: change a copy of {path}, and give it as --config"
                )
        content, source = read_experiment(path), str(path)
    else:
        for option in ("env", "algo"):
            if getattr(args, option) is None:
                raise UsageError(f"--{option} is missing, or --config with a YAML file or the name of a comparison")
        name = re.sub(r"[^\w.-]+", "-", "_".join([*args.env, *args.algo]))[:100]
        timesteps = args.timesteps or _TIMESTEPS
        content = {"name": name, "envs": args.env, "variants": args.algo, "timesteps": timesteps, "seeds": _SEEDS}
        source = "compare"
    overrides = {"name": args.name, "seeds": args.seeds}
    return make_experiment(content | {key: value for key, value in overrides.items() if value is not None}, source)


def _check(experiment: "Experiment") -> None:
    from sb3_grpo.classroom.compare.build import check

    console = Console()
    check(experiment, partial(track, description="Checking", console=console, transient=True, disable=not console.is_terminal))
    for env, networks in experiment.networks.items():
        if len(set(networks.values())) > 1:
            described = "; ".join(f"{name}: {network}" for name, network in networks.items())
            say(
                Text("Warning: ", "bold yellow"),
                f"the networks on {env} differ, so that not only the algorithms are compared: {described}. "
                "Set policy_kwargs in the hyperparams of the variants to make them equal.",
            )


def _begin(experiment: "Experiment", folder: Path, command: str) -> None:
    """Write ``experiment.json``, merged with the existing one."""
    from sb3_grpo.classroom.compare.collect import is_packed
    from sb3_grpo.classroom.compare.experiment import FILE, Experiment, differences, merge
    from sb3_grpo.utils.machine import describe_machine, versions

    if is_packed(folder):
        raise UsageError(f"{folder} holds packed results, which cannot be continued: choose another folder with --output")
    experiment.command = command
    experiment.versions, experiment.machine = versions("rl_zoo3", "sb3_contrib"), describe_machine()
    everything = experiment
    if (folder / FILE).exists():
        before = Experiment.load(folder)
        done = {(job.env, job.variant.name) for job in before.jobs() if job.is_done(folder)}
        if found := differences(before, experiment, done):
            listed = "\n".join(f"- {what}: {old} before, {new} now" for what, old, new in found)
            raise UsageError(
                f"{folder} has finished runs of another experiment:\n{listed}\n"
                "Choose another folder with --name or --output, or go on with the same settings."
            )
        everything = merge(before, experiment)
    everything.save(folder)
