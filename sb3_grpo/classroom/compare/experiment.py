"""Runs of a comparison: environments x variants of algorithms x seeds."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sb3_grpo.classroom.compare.reading import read_experiment_json
from sb3_grpo.classroom.compare.runs import is_done, run_folder
from sb3_grpo.console import UsageError
from sb3_grpo.utils.files import replace_text


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

    def save(self, folder: Path) -> None:
        """
        :param folder: folder of the experiment
        """
        content = asdict(self) | {"variants": [variant._asdict() for variant in self.variants]}
        replace_text(folder / "experiment.json", json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Experiment":
        """
        :param folder: folder of an experiment
        :return: the experiment
        """
        content = read_experiment_json(folder)
        try:
            return cls(**content | {"variants": [Variant(**variant) for variant in content["variants"]]})
        except TypeError as error:
            path = folder / "experiment.json"
            raise UsageError(
                f"{path} cannot be used ({error}): it is damaged, or a newer version of this package has written it. "
                "Update this package, or choose another folder"
            ) from error


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


def differences(
    before: Experiment, now: Experiment, done: Collection[tuple[str, str]], defaults: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, Any, Any]]:
    """
    Find differences that prevent comparing the runs of two experiments. Additional environments, variants or seeds do not,
    nor do changes that no finished run depends on, nor parameters added by a later version with their default value.

    :param before: an experiment with results
    :param now: another experiment
    :param done: environment and variant of the finished runs of the first
    :param defaults: default parameters of each variant's algorithm
    :return: for each difference, what it is about, and its value in the first and in the second
    """
    found: list[tuple[str, Any, Any]] = []
    for key in ("n_evaluations", "n_eval_episodes", "n_final_episodes", "device"):
        if done and getattr(before, key) != getattr(now, key):
            found.append((key, getattr(before, key), getattr(now, key)))
    for env in now.envs:
        if any(env == other for other, _ in done) and before.timesteps[env] != now.timesteps[env]:
            found.append((f"timesteps of {env}", f"{before.timesteps[env]:,}", f"{now.timesteps[env]:,}"))
    former = {variant.name: variant for variant in before.variants}
    for variant in now.variants:
        envs = [env for env, name in done if name == variant.name]
        if not envs:
            continue
        if (algo := former[variant.name].algo) != variant.algo:
            found.append((f"algorithm of {variant.name!r}", algo, variant.algo))
            continue
        changes: list[tuple[str, Any, Any]] = []
        for env in now.envs:
            if env in envs:
                old, new = (each.hyperparams.get(env, {}).get(variant.name) for each in (before, now))
                if old is None or new is None:  # Written by an early version
                    continue
                # All parameters were recorded: one that was not did not exist
                known = {key: str(value) for key, value in defaults[variant.name].items() if key in {*old, *new}}
                old, new = known | old, known | new
                changes += [
                    (f"{key} of {variant.name!r} on {env}", old.get(key, "not set"), new.get(key, "not set"))
                    # The budget has been compared above
                    for key in sorted({*old, *new} - {"n_timesteps"})
                    if old.get(key) != new.get(key)
                ]
        if not changes and (hyperparams := former[variant.name].hyperparams) != variant.hyperparams:
            # The finished runs are on other environments, but a name must stand for the same variant everywhere
            changes.append((f"hyperparams of {variant.name!r}", hyperparams, variant.hyperparams))
        found += changes
    return found


def merge(before: Experiment, now: Experiment) -> Experiment:
    """
    :param before: an experiment with results
    :param now: another experiment, without ``differences`` from it
    :return: the combined experiment
    """
    variants = {variant.name: variant for variant in [*before.variants, *now.variants]}
    hyperparams = {env: before.hyperparams.get(env, {}) | now.hyperparams.get(env, {}) for env in [*before.envs, *now.envs]}
    commands = now.command.splitlines()
    return replace(
        now,
        name=before.name,
        command="\n".join([*(line for line in before.command.splitlines() if line not in commands), *commands]),
        envs=list(dict.fromkeys([*before.envs, *now.envs])),
        variants=list(variants.values()),
        seeds=sorted({*before.seeds, *now.seeds}),
        timesteps=before.timesteps | now.timesteps,
        # Existing runs keep the rule by which they were scored, even in folders older than any rule
        main_modes={env: mode for env, mode in now.main_modes.items() if env not in before.envs} | before.main_modes,
        hyperparams=hyperparams,
        networks={env: before.networks.get(env, {}) | now.networks.get(env, {}) for env in hyperparams},
    )
