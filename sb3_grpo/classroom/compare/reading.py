"""
Reading files of comparisons that others may have written: checks that they are data only, refer to nothing outside of their
folder, and have the expected size and structure.
"""

import json
import lzma
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sb3_grpo.console import UsageError
from sb3_grpo.utils.parameters import Choice, Instance, Kind, Number, Whole, short_repr

if TYPE_CHECKING:
    import pandas as pd

# How actions are chosen in evaluations
MODES = ("deterministic", "stochastic")
# Larger seeds are used for evaluations
MAX_SEED = 2**31 - 1
# Maximum number of environments x variants x seeds
MAX_RUNS = 100_000
MAX_VARIANTS = 1000
MAX_TIMESTEPS = 10**12
MAX_EVALUATIONS = 100_000
# In bytes, after decompression
_MAX_SIZE = 2**29
# Maximum length of a folder name in most file systems
_MAX_NAME = 255
_MAX_YAML_SIZE = 2**20
# A few lines of YAML can expand to more than fits into memory
_MAX_YAML_VALUES = 100_000


@dataclass(frozen=True)
class Name(Kind):
    """
    Text that becomes the name of a folder.

    :param pattern: pattern that it must match
    :param wanted: description of the pattern
    """

    pattern: str
    wanted: str

    def check(self, name: str, value: Any) -> str:
        where = f"{name}: the name {short_repr(value)} becomes the name of a folder"
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value) or {".", ".."} & {*value.split("/")}:
            raise ValueError(f"{where}: {self.wanted}")
        if (size := len(value.encode())) > _MAX_NAME:
            raise ValueError(f"{where}: it has {size} bytes, use at most {_MAX_NAME}")
        return value


VARIANT_NAME = Name(r"[\w+-][\w .,;=+()-]*", "use letters, digits, blanks and . , ; = + - ( )")
ENV_ID = Name(r"([\w.:-]{1,100}/)?[\w.:-]{1,100}", "the id of an environment, such as CartPole-v1 or ALE/Pong-v5")

# A type, a kind, a list with the shape of its entries, or a dictionary ("*": the shape of all values)
_EXPERIMENT = {
    "name": str,
    "envs": [ENV_ID],
    "variants": [{"name": VARIANT_NAME, "algo": Instance(str, "a string"), "hyperparams": dict}],
    "seeds": [Whole(0, MAX_SEED)],
    "timesteps": {"*": Whole(high=MAX_TIMESTEPS)},
    "n_evaluations": Whole(high=MAX_EVALUATIONS),
    "n_eval_episodes": Whole(high=MAX_EVALUATIONS),
    "n_final_episodes": Whole(high=MAX_EVALUATIONS),
    "device": str,
    "command": str,
    "versions": {"*": str},
    "machine": dict,
    "hyperparams": {"*": {"*": {"*": str}}},
    "networks": {"*": {"*": str}},
    "main_modes": {"*": Choice(MODES)},
}
_MAX_DIGITS = 31
_NUMBER = Number(-1e30, 1e30, none="not known")
_RESULT = {
    **dict.fromkeys(("env", "variant", "algo", "status", "net_arch", "provenance"), str),
    "seed": Whole(0, MAX_SEED),
    **dict.fromkeys(("steps", "n_parameters", "n_critic_parameters"), Whole(0, MAX_TIMESTEPS)),
    **dict.fromkeys(("seconds", "steps_per_second", "peak_memory_mib", "discarded_fraction"), _NUMBER),
    **dict.fromkeys(("n_policies_in_memory", "samples_per_start"), _NUMBER),
}
_CONFIG = {"machine": dict, "versions": {"*": str}}
_TEXTS = ("env", "variant", "algo", "mode", "key", "status", "net_arch", "provenance", "error")


def _check(where: str, value: Any, shape: Any) -> None:
    if isinstance(shape, Kind):
        shape.check(where, value)
    elif isinstance(shape, type):
        if not isinstance(value, shape):
            raise ValueError(f"{where} must be {_in_words(shape)}, got {short_repr(value)}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list, got {short_repr(value)}")
        for index, each in enumerate(value):
            _check(f"{where}[{index}]", each, shape[0])
    else:
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be {_in_words(dict)}, got {short_repr(value)}")
        for key, each in value.items():
            if (inner := shape.get("*", shape.get(key))) is not None:
                _check(f"{where}.{key}"[:200], each, inner)


def _in_words(kind: type) -> str:
    return "text" if kind is str else "a mapping {...}"


def _read(path: Path, shape: Any) -> Any:
    """
    :param path: a JSON file
    :param shape: required shape of its content
    :return: its content
    """
    try:
        content = json.loads(_bytes(path), parse_int=_whole_number)
        _check(path.stem, content, shape)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is damaged, or was not written by compare ({error}). Delete it and run the comparison again"
        ) from error
    return content


def _whole_number(text: str) -> int:
    # No count has this many digits, and numbers not covered by the shape go into tables of floats
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:20]}... is too large a number")
    return int(text)


def _bytes(path: Path) -> bytes:
    try:
        with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise UsageError(f"Cannot read {path}: {error}") from error
    if len(content) > _MAX_SIZE:
        raise UsageError(f"{path} holds more than {_MAX_SIZE // 2**20} MiB, which no comparison has written")
    return content


def read_experiment_json(folder: Path) -> dict[str, Any]:
    """
    :param folder: folder of a comparison
    :return: content of ``experiment.json``
    """
    path = folder / "experiment.json"
    content = _read(path, _EXPERIMENT)
    needed = ("name", "envs", "variants", "seeds", "timesteps", "n_evaluations", "n_eval_episodes", "n_final_episodes")
    missing = [key for key in needed if not content.get(key)]
    missing += [env for env in content.get("envs", ()) if env not in content.get("timesteps", ())]
    for variant in content.get("variants", ()):
        missing += [key for key in ("name", "algo", "hyperparams") if key not in variant]
    if missing:
        raise UsageError(f"{path} is damaged, or was not written by compare (there is no {missing[0]})")
    check_size(content["envs"], content["variants"], content["seeds"], str(path))
    return content


def check_links(folder: Path) -> None:
    """
    What reads and writes in the folder follows symbolic links.

    :param folder: folder of a comparison
    :raises UsageError: if a link in it leads outside
    """
    root = Path(os.path.realpath(folder))
    for path in folder.rglob("*"):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            raise UsageError(
                f"{path} is a link to {os.readlink(path)}, outside of {folder}: put the file or folder itself there"
            )


def check_size(envs: list[Any], variants: list[Any], seeds: list[int], where: str) -> None:
    """
    :param envs: ids of environments
    :param variants: the variants to compare
    :param seeds: seeds of the runs
    :param where: location for the error message
    """
    if len(variants) > MAX_VARIANTS:
        raise UsageError(f"{where}: there are more than {MAX_VARIANTS:,} variants, which no comparison shows")
    if (n_runs := len(envs) * len(variants) * len(seeds)) > MAX_RUNS:
        raise UsageError(f"{where}: {n_runs:,} runs are more than can be made: at most {MAX_RUNS:,} in a comparison")


def read_result(path: Path) -> dict[str, Any]:
    """
    :param path: a ``result.json``
    :return: its content
    """
    content = _read(path, _RESULT)
    missing = [key for key in ("steps", "seconds") if content.get(key) is None]
    if missing:
        raise UsageError(f"{path} is damaged, or was not written by compare (there is no {missing[0]})")
    return content


def read_config(path: Path) -> dict[str, Any]:
    """
    :param path: a ``config.json``
    :return: its content
    """
    return _read(path, _CONFIG)


def read_configs(path: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """
    :param path: file with all configurations of packed results
    :return: the configuration of each (environment, variant, seed)
    """
    content = _read(path, [{"env": ENV_ID, "variant": VARIANT_NAME, "seed": Whole(0, MAX_SEED), "config": _CONFIG}])
    try:
        return {(each["env"], each["variant"], each["seed"]): each["config"] for each in content}
    except KeyError as error:
        raise UsageError(f"{path} is damaged, or was not written by compare (there is no {error})") from error


def read_table(path: Path, columns: Iterable[str], **options: Any) -> "pd.DataFrame":
    """
    :param path: a CSV file
    :param columns: columns that it may have
    :param options: see ``pandas.read_csv``
    :return: its rows; empty if a run has only just created it
    """
    import io

    import pandas as pd

    try:
        # A variant may be named 1.0 or NA
        texts: dict[str, Any] = {"dtype": dict.fromkeys(_TEXTS, str), "keep_default_na": False, "na_values": [""]}
        table = pd.read_csv(io.BytesIO(_bytes(path)), **texts, **options)
        for column in table.columns.intersection(list(columns)).difference(_TEXTS):
            table[column] = pd.to_numeric(table[column])
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except (ValueError, TypeError, OverflowError, pd.errors.ParserError) as error:
        raise UsageError(f"Cannot read {path}: {error}. Delete the run's folder and run the comparison again") from error
    return table


class _StrictLoader(yaml.SafeLoader):
    """Refuse duplicate keys, of which the last would win, and merge keys (``<<: [*a, *a]``), which multiply their content."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        written = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in written:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                written.add((key.tag, key.value))
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
        parts = [each for value in merged for each in (value.value if isinstance(value, yaml.SequenceNode) else [value])]
        n_values = 0
        for part in parts:
            if isinstance(part, yaml.MappingNode):
                self.flatten_mapping(part)
                n_values += len(part.value)
            if n_values > _MAX_YAML_VALUES:
                raise ValueError(f"merge keys (<<) make more than {_MAX_YAML_VALUES:,} values of it")
        super().flatten_mapping(node)


def read_yaml(path: Path) -> Any:
    """
    :param path: a file written by a user
    :return: its content, without evaluating any of it
    """
    try:
        text = path.read_bytes()
        if len(text) > _MAX_YAML_SIZE:
            raise UsageError(f"{path} has more than {_MAX_YAML_SIZE // 2**20} MiB, which no description of an experiment has")
        content = yaml.load(text, Loader=_StrictLoader)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}") from error
    # Invalid dates, numbers and keys raise other errors than YAMLError
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from error
    n_values = sum(1 for _, _ in zip(_values(content), range(_MAX_YAML_VALUES), strict=False))
    if n_values == _MAX_YAML_VALUES:
        raise UsageError(f"{path} stands for more than {_MAX_YAML_VALUES:,} values: aliases (*name) multiply them")
    return content


def _values(content: Any) -> Iterator[Any]:
    waiting = [content]
    while waiting:
        value = waiting.pop()
        yield value
        waiting += (
            [*value.values(), *value] if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else []
        )
