"""Runs of a comparison: environments x variants of algorithms x seeds."""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sb3_grpo.classroom.compare.runs import ENV_ID, MAX_SEED, MODES, VARIANT_NAME, is_done, run_folder
from sb3_grpo.console import UsageError
from sb3_grpo.utils.files import replace_text
from sb3_grpo.utils.parameters import Choice, Instance, Whole, short_repr

FILE = "experiment.json"
_MAPPING = Instance(dict, "a mapping")


class Variant(NamedTuple):
    """
    An algorithm with its hyperparameters.

    :param name: its name in tables and pictures
    :param algo: name of the algorithm
    :param hyperparams: hyperparameters that differ from the environment's entry in the algorithm's file
    """

    name: str
    algo: str
    hyperparams: dict[str, Any]


class Job(NamedTuple):
    """
    One run.

    :param env: id of the environment
    :param variant: the algorithm with its hyperparameters
    :param seed: seed of all random numbers
    """

    env: str
    variant: Variant
    seed: int

    def __str__(self) -> str:
        return f"{self.env} {self.variant.name} seed {self.seed}"

    def folder(self, root: Path) -> Path:
        """
        :param root: folder of the experiment
        :return: folder for the files of this run
        """
        return run_folder(root, self.env, self.variant.name, self.seed)

    def is_done(self, root: Path) -> bool:
        """
        :param root: folder of the experiment
        :return: whether this run has results
        """
        return is_done(self.folder(root))


@dataclass
class Experiment:
    """
    Environments x variants x seeds, and how they are evaluated.

    :param name: name of the experiment
    :param envs: ids of environments
    :param variants: the variants to compare
    :param seeds: the seeds of the runs, the same for all variants
    :param timesteps: number of training steps for each environment
    :param n_evaluations: number of evaluations of a run, in addition to the one before training
    :param n_eval_episodes: episodes per evaluation
    :param n_final_episodes: episodes of the final evaluation
    :param device: PyTorch device
    :param command: commands that started it, one line for each different one; the last line is the current one
    :param versions: versions of the packages
    :param machine: the machine it was started on
    :param hyperparams: for each environment and variant, the hyperparameters of its model
    :param networks: for each environment and variant, its network
    :param clips: whether runs record clips
    :param main_modes: for each environment, the kind of evaluation whose returns are the scores of its runs
    """

    name: str
    envs: list[str]
    variants: list[Variant]
    seeds: list[int]
    timesteps: dict[str, int]
    n_evaluations: int
    n_eval_episodes: int
    n_final_episodes: int
    device: str = "cpu"
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    hyperparams: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    networks: dict[str, dict[str, str]] = field(default_factory=dict)
    clips: bool = True
    main_modes: dict[str, str] = field(default_factory=dict)

    def jobs(self) -> list[Job]:
        """
        :return: all runs, seed by seed, so that all variants can already be compared after half of the time
        """
        return [Job(env, variant, seed) for seed in self.seeds for env in self.envs for variant in self.variants]

    def settings(self, job: Job) -> dict[str, Any]:
        """
        :param job: a run
        :return: settings for the process of this run, as data for JSON
        """
        return {
            "env": job.env,
            "variant": job.variant._asdict(),
            "seed": job.seed,
            "timesteps": self.timesteps[job.env],
            "n_evaluations": self.n_evaluations,
            "n_eval_episodes": self.n_eval_episodes,
            "n_final_episodes": self.n_final_episodes,
            "device": self.device,
            "clips": self.clips,
            "command": self.command.rpartition("\n")[2],
        }

    def content(self) -> dict[str, Any]:
        """
        :return: the experiment as data for JSON
        """
        return asdict(self) | {"variants": [variant._asdict() for variant in self.variants]}

    def save(self, folder: Path) -> None:
        """
        :param folder: folder of the experiment
        """
        replace_text(folder / FILE, json.dumps(self.content(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Experiment":
        """
        :param folder: folder of an experiment
        :return: the experiment
        """
        return cls.of(read_experiment_json(folder))

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Experiment":
        """
        :param content: what :meth:`content` returned
        :return: the experiment
        """
        return cls(**content | {"variants": [Variant(**variant) for variant in content["variants"]]})


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """
    :param path: the file to name in the error if the ``with`` block fails
    """
    try:
        yield
    except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{path} is damaged, or was not written by this version of compare ({type(error).__name__}: {error})"
        ) from error


def parse_json(text: str | bytes) -> Any:
    """
    :param text: JSON
    :return: its content
    :raises ValueError: also for half of a surrogate pair, such as ``"\\ud800"``, which no file and no page can hold
    """
    content = json.loads(text)
    json.dumps(content, ensure_ascii=False).encode()
    return content


def check_texts(name: str, value: Any, depth: int = 1) -> None:
    """
    :param name: name of the value
    :param value: mappings in mappings, with texts in the innermost ones
    :param depth: how many there are inside each other, 0 if the value itself is a text
    :raises ValueError: if it is something else
    """
    if depth:
        for key, each in _MAPPING.check(name, value).items():
            check_texts(f"{name}.{key}", each, depth - 1)
    elif not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {short_repr(value)}")


def check_config(config: dict[str, Any]) -> dict[str, Any]:
    """
    :param config: the configuration of a run, which others may have written
    :return: the same
    :raises ValueError: if what reports are made of has another type
    """
    _MAPPING.check("machine", config.get("machine", {}))
    for key in ("versions", "hyperparameters"):
        check_texts(key, config.get(key, {}))
    return config


def read_experiment_json(folder: Path) -> dict[str, Any]:
    """
    Others may have written the file: no name in it leads outside the folder, and what reports are made of has its type.

    :param folder: folder of a comparison
    :return: content of ``experiment.json``
    """
    path = folder / FILE
    with reading(path):
        content = parse_json(path.read_text("utf-8"))
        experiment = Experiment.of(content)
        for key in ("envs", "variants", "seeds", "timesteps"):
            if not content[key]:
                raise ValueError(f"there are no {key}")
        for env in experiment.envs:
            ENV_ID.check("envs", env)
            Whole().check(f"timesteps.{env}", experiment.timesteps[env])
        for variant in experiment.variants:
            VARIANT_NAME.check("variants", variant.name)
            check_texts("algo", variant.algo, 0)
            _MAPPING.check("hyperparams", variant.hyperparams)
        for seed in experiment.seeds:
            Whole(0, MAX_SEED).check("seeds", seed)
        for key in ("n_evaluations", "n_eval_episodes", "n_final_episodes"):
            Whole().check(key, content[key])
        _MAPPING.check("machine", experiment.machine)
        for key, depth in (("name", 0), ("command", 0), ("versions", 1), ("networks", 2), ("hyperparams", 3)):
            check_texts(key, getattr(experiment, key), depth)
        for env, mode in experiment.main_modes.items():
            Choice(MODES).check(f"main_modes.{env}", mode)
        names = [variant.name for variant in experiment.variants]
        for key, values in (("envs", experiment.envs), ("variants", names), ("seeds", experiment.seeds)):
            if len({*values}) < len(values):
                raise ValueError(f"one of the {key} is there twice")
    return content


def seeds_in_words(seeds: Sequence[int]) -> str:
    """
    :param seeds: seeds in ascending order
    :return: for example "seed 4", "seeds 0 to 9", "seeds 1, 3, 7"
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def differences(before: Experiment, now: Experiment, done: Collection[tuple[str, str]]) -> list[tuple[str, Any, Any]]:
    """
    Find differences that prevent comparing the runs of two experiments. Additional environments, variants or seeds do not,
    nor do changes that no finished run depends on.

    :param before: an experiment with results
    :param now: another experiment
    :param done: environment and variant of the finished runs of the first
    :return: for each difference, what it is about, and its value in the first and in the second
    """
    found: list[tuple[str, Any, Any]] = []
    if done:
        keys = ("n_evaluations", "n_eval_episodes", "n_final_episodes", "device")
        found += [(key, getattr(before, key), getattr(now, key)) for key in keys]
    for env in sorted({env for env, _ in done if env in now.envs}):
        found.append((f"timesteps of {env}", before.timesteps[env], now.timesteps[env]))
        modes = before.main_modes.get(env, "deterministic"), now.main_modes.get(env, "deterministic")
        found.append((f"main_modes of {env}", *modes))
    former = {variant.name: variant for variant in before.variants}
    for variant in now.variants:
        envs = [env for env, name in sorted(done) if name == variant.name]
        if not envs:
            continue
        algo, hyperparams = former[variant.name].algo, former[variant.name].hyperparams
        if algo != variant.algo:
            found.append((f"algorithm of {variant.name!r}", algo, variant.algo))
            continue
        shared = [env for env in envs if env in now.envs]
        if not shared:
            # A name must stand for the same variant everywhere
            found.append((f"hyperparams of {variant.name!r}", hyperparams, variant.hyperparams))
        for env in shared:
            old, new = (each.hyperparams.get(env, {}).get(variant.name, {}) for each in (before, now))
            # The budget has been compared above
            for key in sorted({*old, *new} - {"n_timesteps"}):
                found.append((f"{key} of {variant.name!r} on {env}", old.get(key, "not set"), new.get(key, "not set")))
    return [each for each in found if each[1] != each[2]]


def merge(before: Experiment, now: Experiment) -> Experiment:
    """
    :param before: an experiment with results
    :param now: another experiment, without ``differences`` from it
    :return: the combined experiment
    """
    envs = list(dict.fromkeys([*before.envs, *now.envs]))
    commands = now.command.splitlines()
    return replace(
        now,
        name=before.name,
        command="\n".join([*(line for line in before.command.splitlines() if line not in commands), *commands]),
        envs=envs,
        variants=list({variant.name: variant for variant in [*before.variants, *now.variants]}.values()),
        seeds=sorted({*before.seeds, *now.seeds}),
        timesteps=before.timesteps | now.timesteps,
        main_modes=before.main_modes | now.main_modes,
        hyperparams={env: before.hyperparams.get(env, {}) | now.hyperparams.get(env, {}) for env in envs},
        networks={env: before.networks.get(env, {}) | now.networks.get(env, {}) for env in envs},
    )
