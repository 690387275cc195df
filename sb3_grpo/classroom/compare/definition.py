"""Definition of a comparison as written by the user: all mistakes are found before anything runs."""

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from sb3_grpo import presets
from sb3_grpo.classroom.compare.experiment import Experiment, Variant
from sb3_grpo.classroom.compare.runs import ENV_ID, MAX_SEED, VARIANT_NAME
from sb3_grpo.common.arguments import REFUSED_ARGUMENTS
from sb3_grpo.console import ALGORITHMS, UsageError, close_matches, find_env
from sb3_grpo.utils.entries import read_entry
from sb3_grpo.utils.parameters import Check, short_repr
from sb3_grpo.zoo.hyperparams import config_path, entry_name

# Keys of an entry in the RL Zoo's files other than the parameters of the algorithm
_ZOO_KEYS = {
    *("callback", "env_kwargs", "env_wrapper", "frame_stack", "monitor_kwargs", "n_envs", "noise_std", "noise_type"),
    *("normalize", "vec_env_wrapper"),
}
# Parameters that are set by the comparison, or do not affect the algorithm
NOT_SETTABLE = {"self", "args", "kwargs", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"}
# Variants of PPO in SB3-Contrib that readers know by another name than the RL Zoo's
_CONTRIB_NAMES = {"ppo_lstm": "RecurrentPPO", "ppo_mask": "MaskablePPO"}
# With smaller budgets, as many evaluations of a good policy would take longer than the training
_LARGE_BUDGET = 100_000
_MAX_SEEDS = 10_000
# What ``main_mode`` does, in the words of the page
MODE_RULE = (
    "sampled actions in Atari games and MiniGrid, where the RL Zoo evaluates with them, too, and the most likely actions "
    "everywhere else"
)
_NEEDED = ("name", "envs", "variants", "timesteps")
_KEYS = (
    *_NEEDED,
    *("seeds", "n_evaluations", "n_eval_episodes", "n_final_episodes", "device"),
    # For readers
    *("about", "minutes", "extras"),
)


def read_experiment(path: Path) -> dict[str, Any]:
    """
    :param path: a YAML file
    :return: its content, named after the file if it does not name the experiment
    """
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}") from error
    # Invalid dates, numbers and keys raise other errors than YAMLError
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must have the keys {', '.join(_NEEDED[1:])}, see docs/classroom.md")
    return {"name": path.stem, **content}


def make_experiment(content: Mapping[str, Any], source: str) -> Experiment:
    """
    Check everything before anything runs.

    :param content: content of a YAML file, or the same from the command line
    :param source: where it comes from, for error messages
    :return: the experiment
    :raises UsageError: if something in it is wrong
    """
    _check_names(content, _KEYS, source, "key")
    for key in _NEEDED:
        if content.get(key) in (None, "", [], {}):
            raise UsageError(f"{source}: {key} is missing")
    # Importing the RL Zoo also registers environments
    algorithms = known_algorithms()
    envs = [_checked(ENV_ID, env, f"{source}: envs") for env in _as_list(content["envs"], f"{source}: envs")]
    for env in envs:
        find_env(env)
    variants = list(_expand(_as_list(content["variants"], f"{source}: variants"), source))
    _check_unique(envs, f"{source}: envs")
    _check_unique([variant.name for variant in variants], f"{source}: variants", "give each a name of its own")
    for variant in variants:
        _check_variant(variant, envs, algorithms, source)
    timesteps = _timesteps(content["timesteps"], envs, source)
    n_evaluations, n_episodes = (20, 10) if max(timesteps.values()) >= _LARGE_BUDGET else (10, 5)
    defaults = {"n_evaluations": n_evaluations, "n_eval_episodes": n_episodes, "n_final_episodes": 20}
    numbers: dict[str, Any] = {
        key: _whole_number(content.get(key, default), f"{source}: {key}") for key, default in defaults.items()
    }
    return Experiment(
        name=_checked(VARIANT_NAME, str(content["name"]), f"{source}: name"),
        envs=envs,
        variants=variants,
        seeds=_seeds(content.get("seeds", 10), source),
        timesteps=timesteps,
        device=str(content.get("device", "cpu")),
        main_modes={env: main_mode(env) for env in envs},
        **numbers,
    )


def main_mode(env: str) -> str:
    """
    Decide whether runs are scored by their sampled or by their most likely actions, with the rule of the RL Zoo.

    A policy that learns from sampled actions relies on chance to get out of a loop. An emulator has no randomness of its own,
    so most likely actions play the same game again and again. With continuous actions, samples contain exploration noise. The
    rule only depends on the environment, so all variants are treated alike; it is recorded before anything runs, so no
    result can influence it.

    :param env: an environment
    :return: the kind of evaluation whose returns are the scores
    """
    from rl_zoo3.exp_manager import ExperimentManager

    env_id = find_env(env).id
    sampled = ExperimentManager.is_atari(env_id) or ExperimentManager.is_minigrid(env_id)
    return "stochastic" if sampled else "deterministic"


def known_algorithms() -> dict[str, type]:
    """
    :return: the algorithms of the RL Zoo and of this package
    """
    import rl_zoo3

    # Registers grpo and dapo
    import sb3_grpo.zoo  # noqa: F401

    return rl_zoo3.ALGOS


def default_settings(algorithm: type) -> dict[str, Any]:
    """
    :param algorithm: class of an algorithm
    :return: the defaults of all parameters of its constructors, which pass on arguments that they do not name
    """
    defaults: dict[str, Any] = {}
    for cls in reversed(algorithm.__mro__):
        parameters = inspect.signature(cls).parameters
        defaults |= {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    return defaults


def _expand(entries: Iterable[Any], source: str) -> Iterator[Variant]:
    """Expand the entries of a list to variants: one for each combination of an entry's factors."""
    for entry in entries:
        entry = {"algo": entry} if isinstance(entry, str) else entry
        where = f"{source}: variant {short_repr(entry)}"
        if not isinstance(entry, dict) or "algo" not in entry:
            raise UsageError(
                f"{where}: expected the name of an algorithm, or algo: with name:, preset:, hyperparams: and factors:"
            )
        _check_names(entry, ("name", "algo", "preset", "hyperparams", "factors"), where, "key")
        for key in ("name", "algo", "preset"):
            if isinstance(entry.get(key, ""), list | dict | None):
                raise UsageError(f"{where}: {key} must be text, not {short_repr(entry[key])}")
        preset = _preset(entry, where)
        name = str(entry.get("name", entry.get("preset", _CONTRIB_NAMES.get(entry["algo"], entry["algo"]))))
        fixed, factors = entry.get("hyperparams") or {}, entry.get("factors") or {}
        for key, value, example in (("hyperparams", fixed, "{group_size: 8}"), ("factors", factors, "{group_size: [4, 8]}")):
            if not isinstance(value, dict):
                raise UsageError(f"{where}: {key} must be a mapping such as {example}")
        for key, levels in factors.items():
            if not isinstance(levels, list) or not levels:
                raise UsageError(f"{where}: the factor {key} must be a list of values, such as {key}: [1, 2]")
        for levels in itertools.product(*factors.values()):
            chosen = dict(zip(factors, levels, strict=True))
            label = ", ".join([name, *(f"{key}={_label(value)}" for key, value in chosen.items())])
            hyperparams = {str(key): _numbers(value) for key, value in {**preset, **fixed, **chosen}.items()}
            yield Variant(_checked(VARIANT_NAME, label, where), str(entry["algo"]), hyperparams)


def _preset(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    if "preset" not in entry:
        return {}
    if entry["algo"] not in ALGORITHMS:
        raise UsageError(f"{where}: presets are for {' and '.join(sorted(ALGORITHMS))}, not for {entry['algo']}")
    try:
        return presets.preset(entry["preset"])
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _label(value: Any) -> str:
    # Used as the name of a folder
    return re.sub(r"[^\w.+-]+", "_", str(value)).strip("_") or "empty"


def _numbers(value: Any) -> Any:
    """Convert numbers such as 3e-4, which YAML 1.1 reads as text (PyYAML requires 3.0e-4)."""
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    is_number = isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value)
    return float(value) if is_number else value


def _check_variant(variant: Variant, envs: list[str], algorithms: Mapping[str, type], source: str) -> None:
    where = f"{source}: variant {variant.name!r}"
    _check_names([variant.algo], algorithms, where, "algorithm")
    if "n_timesteps" in variant.hyperparams:
        raise UsageError(f"{where}: the budget is the same for all variants: set timesteps instead of n_timesteps")
    if variant.algo in ALGORITHMS:
        for name in REFUSED_ARGUMENTS.keys() & variant.hyperparams:
            raise UsageError(f"{where}: {variant.algo} has no argument {name!r}: {REFUSED_ARGUMENTS[name]}")
    # Constructors pass on arguments that they do not name
    names = {name for cls in algorithms[variant.algo].__mro__ for name in inspect.signature(cls).parameters}
    _check_names(variant.hyperparams, (names - NOT_SETTABLE) | _ZOO_KEYS, where, "hyperparameter")
    if "n_envs" in variant.hyperparams:
        _whole_number(variant.hyperparams["n_envs"], f"{where}: n_envs")
    try:
        entries = yaml.safe_load(config_path(variant.algo).read_text())
        for env in envs:
            entry_name(entries, env)
        read_entry(variant.hyperparams)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _check_names(names: Iterable[Any], known: Iterable[str], where: str, what: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            close = close_matches(str(name), known)
            hint = f"Did you mean {' or '.join(close)}?" if close else f"Known are: {', '.join(sorted(known))}"
            raise UsageError(f"{where}: there is no {what} {name!r}. {hint}")


def _check_unique(names: list[str], where: str, advice: str = "name each once") -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"{where}: {name!r} is there {count} times: {advice}")


def _checked(kind: Check, value: Any, where: str) -> Any:
    try:
        return kind.check(where, value)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _as_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{where} must be a list")
    return value


def _whole_number(value: Any, where: str, highest: int = 10**12) -> int:
    value = _numbers(value)
    if isinstance(value, float) and value.is_integer():  # 1e5 in YAML
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise UsageError(f"{where} must be a whole number from 1 to {highest:,}, not {short_repr(value)}")
    return value


def _seeds(value: Any, source: str) -> list[int]:
    if isinstance(value, range):
        _whole_number(value.stop - value.start, f"{source}: the number of seeds", _MAX_SEEDS)
    elif not isinstance(value, list):
        return list(range(_whole_number(value, f"{source}: seeds", _MAX_SEEDS)))
    for seed in value:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
            raise UsageError(
                f"{source}: each of the seeds must be a whole number from 0 to {MAX_SEED}, not {short_repr(seed)}"
            )
    if not value:
        raise UsageError(f"{source}: seeds must be a number of seeds, or a list of them, not []")
    return sorted(set(value))


def _timesteps(value: Any, envs: list[str], source: str) -> dict[str, int]:
    if not isinstance(value, dict):
        return dict.fromkeys(envs, _whole_number(value, f"{source}: timesteps"))
    _check_names(value, envs, f"{source}: timesteps", "environment")
    for env in envs:
        if env not in value:
            raise UsageError(f"{source}: timesteps has no number for {env}")
    return {env: _whole_number(value[env], f"{source}: timesteps of {env}") for env in envs}
