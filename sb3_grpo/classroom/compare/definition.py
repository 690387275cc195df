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
from sb3_grpo.classroom.compare.reading import (
    ENV_ID,
    MAX_EVALUATIONS,
    MAX_RUNS,
    MAX_SEED,
    MAX_TIMESTEPS,
    MAX_VARIANTS,
    VARIANT_NAME,
    check_size,
    read_yaml,
)
from sb3_grpo.console import ALGORITHMS, UsageError, close_matches, find_env
from sb3_grpo.starts.start_queue import MAX_ENVS
from sb3_grpo.utils.entries import read_entry
from sb3_grpo.utils.parameters import Kind, short_repr
from sb3_grpo.zoo.hyperparams import config_path, entry_name

# Keys of an entry in the RL Zoo's files other than the parameters of the algorithm
_ZOO_KEYS = (
    "callback",
    "env_kwargs",
    "env_wrapper",
    "frame_stack",
    "monitor_kwargs",
    "n_envs",
    "noise_std",
    "noise_type",
    "normalize",
    "vec_env_wrapper",
)
# Parameters that are set by the comparison, or do not affect the algorithm
NOT_SETTABLE = ("self", "args", "kwargs", "env", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model")
# With smaller budgets, as many evaluations of a good policy would take longer than the training
_LARGE_BUDGET = 100_000
# What ``main_mode`` does, in the words of the page
MODE_RULE = (
    "sampled actions in Atari games and MiniGrid, where the RL Zoo evaluates with them, too, and the most likely actions "
    "everywhere else"
)
_KEYS = (
    "name",
    "envs",
    "variants",
    "seeds",
    "timesteps",
    "n_evaluations",
    "n_eval_episodes",
    "n_final_episodes",
    "device",
    # For readers, and for the list of ready comparisons
    "about",
    "minutes",
    "extras",
)


def read_experiment(path: Path) -> dict[str, Any]:
    """
    :param path: a YAML file
    :return: its content, named after the file if it does not name the experiment
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} must have the keys envs and variants, see docs/classroom.md")
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
    for key in ("name", "envs", "variants", "timesteps"):
        if content.get(key) in (None, "", [], {}):
            raise UsageError(f"{source}: {key} is missing")
    # Importing the RL Zoo also registers environments
    algorithms = known_algorithms()
    envs = _as_list(content["envs"], f"{source}: envs")
    for env in envs:
        if not isinstance(env, str):
            raise _wrong_value(env, f"{source}: each of the envs", "the id of an environment, such as CartPole-v1")
        _checked(ENV_ID, env, f"{source}: envs")
        find_env(env)
    variants = list(itertools.islice(_expand(_as_list(content["variants"], f"{source}: variants"), source), MAX_VARIANTS + 1))
    seeds = _seeds(content.get("seeds", 10), source)
    check_size(envs, variants, seeds, source)
    _check_unique(envs, f"{source}: envs")
    _check_unique([variant.name for variant in variants], f"{source}: variants", "give each a name of its own")
    for variant in variants:
        _check_variant(variant, envs, algorithms, source)
    timesteps = _timesteps(content["timesteps"], envs, source)
    numbers: dict[str, Any] = {
        key: _whole_number(content[key], f"{source}: {key}") if key in content else default
        for key, default in _evaluation(max(timesteps.values())).items()
    }
    return Experiment(
        name=_safe_name(content["name"], f"{source}: name"),
        envs=envs,
        variants=variants,
        seeds=seeds,
        timesteps=timesteps,
        device=str(content.get("device", "cpu")),
        main_modes={env: main_mode(env) for env in envs},
        **numbers,
    )


def _evaluation(timesteps: int) -> dict[str, int]:
    """Default evaluation of a comparison: no more than is worthwhile for its largest budget."""
    n_evaluations, n_episodes = (20, 10) if timesteps >= _LARGE_BUDGET else (10, 5)
    return {"n_evaluations": n_evaluations, "n_eval_episodes": n_episodes, "n_final_episodes": 20}


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


def known_hyperparams(algorithm: type) -> set[str]:
    """
    :param algorithm: class of an algorithm
    :return: keys that an entry for it can set
    """
    # Constructors pass on arguments that they do not name
    names = {name for cls in algorithm.__mro__ for name in inspect.signature(cls).parameters}
    return (names - set(NOT_SETTABLE)) | set(_ZOO_KEYS)


def default_settings(algorithm: type) -> dict[str, Any]:
    """
    :param algorithm: class of an algorithm
    :return: the defaults of all parameters of its constructors
    """
    defaults: dict[str, Any] = {}
    # Constructors pass on arguments that they do not name
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
                raise _wrong_value(entry[key], f"{where}: {key}", "text")
        preset = _preset(entry, where)
        name = _safe_name(entry.get("name", entry.get("preset", entry["algo"])), where)
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
            if "n_envs" in hyperparams:
                hyperparams["n_envs"] = _whole_number(hyperparams["n_envs"], f"{where}: n_envs", MAX_ENVS)
            yield Variant(_safe_name(label, where), str(entry["algo"]), hyperparams)


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


def _number(value: Any) -> Any:
    """Convert numbers such as 3e-4, which YAML 1.1 reads as text (PyYAML requires 3.0e-4)."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    return value


def _numbers(value: Any) -> Any:
    """Apply ``_number`` to a value and everything inside it."""
    if isinstance(value, dict):
        return {key: _numbers(each) for key, each in value.items()}
    return [_numbers(each) for each in value] if isinstance(value, list) else _number(value)


def _check_variant(variant: Variant, envs: list[str], algorithms: Mapping[str, type], source: str) -> None:
    where = f"{source}: variant {variant.name!r}"
    _check_names([variant.algo], algorithms, where, "algorithm")
    try:
        entries = yaml.safe_load(config_path(variant.algo).read_text())
        for env in envs:
            entry_name(entries, env)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    if "n_timesteps" in variant.hyperparams:
        raise UsageError(f"{where}: the budget is the same for all variants: set timesteps instead of n_timesteps")
    _check_names(variant.hyperparams, known_hyperparams(algorithms[variant.algo]), where, "hyperparameter")
    try:
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
    written: dict[str, str] = {}
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"{where}: {name!r} is there {count} times: {advice}")
        other = written.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(f"{where}: {other!r} and {name!r} would have one folder where capitals do not count: {advice}")


def _safe_name(name: Any, where: str) -> str:
    return _checked(VARIANT_NAME, str(name), where)


def _checked(kind: Kind, value: Any, where: str) -> Any:
    try:
        return kind.check(where, value)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _as_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where} must be a list")
    return value


def _whole_number(value: Any, where: str, highest: int = MAX_EVALUATIONS) -> int:
    value = _number(value)
    if isinstance(value, float) and value.is_integer():  # 1e5 in YAML
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        bound = f", and not above {highest:,}" if isinstance(value, int) and value > highest else ""
        raise _wrong_value(value, where, f"a whole number above 0{bound}")
    return value


def _wrong_value(value: Any, where: str, expected: str) -> UsageError:
    return UsageError(f"{where} must be {expected}, not {short_repr(value)}")


def _seeds(value: Any, source: str) -> list[int]:
    if isinstance(value, range):
        _whole_number(value.stop - value.start, f"{source}: the number of seeds", MAX_RUNS)
    elif not isinstance(value, list):
        return list(range(_whole_number(value, f"{source}: seeds", MAX_RUNS)))
    for seed in value:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
            raise _wrong_value(seed, f"{source}: each of the seeds", f"a whole number from 0 to {MAX_SEED}")
    if not value:
        raise _wrong_value(value, f"{source}: seeds", "a number of seeds, or a list of them")
    return sorted(set(value))


def _timesteps(value: Any, envs: list[str], source: str) -> dict[str, int]:
    if not isinstance(value, dict):
        return dict.fromkeys(envs, _whole_number(value, f"{source}: timesteps", MAX_TIMESTEPS))
    _check_names(value, envs, f"{source}: timesteps", "environment")
    for env in envs:
        if env not in value:
            raise UsageError(f"{source}: timesteps has no number for {env}")
    return {env: _whole_number(value[env], f"{source}: timesteps of {env}", MAX_TIMESTEPS) for env in envs}
