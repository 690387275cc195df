"""
Models as strangers or a bad disk might produce them, changed at random, and loaded with ``trusted=False``: each is read, or
refused with an error that says what is wrong; nothing in them is run.

    python -m stress.fuzz_files --files 2000
"""

import base64
import copy
import io
import json
import os
import pickle
import random
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sb3_grpo import DAPO, make_group_env
from stress.common import Tally, parse

# Created by anything that runs what is written in a file, and by the module when it is imported
CANARY, IMPORTED = "executed", "imported"
CANARY_MODULE = "strangers_module"
TOUCH = f"__import__('pathlib').Path('{CANARY}').touch()"


class _Touch:
    def __reduce__(self) -> Any:
        return Path.touch, (Path(CANARY),)


PICKLE = {":type:": "x", ":serialized:": base64.b64encode(pickle.dumps(_Touch())).decode()}
# What imports the module if it is taken for an environment, a function, a class or an object
IMPORTS: tuple[Any, ...] = (
    f"{CANARY_MODULE}:Name-v0",
    f"{CANARY_MODULE}.function",
    {"$class": f"{CANARY_MODULE}.Class"},
    {"$object": f"{CANARY_MODULE}.Class", "with": {}},
)
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 10**12, 10**400, 0.5, 1e400, float("nan"), "", "x" * 10_000, "\0", "\ud800"),
    *("../..", "/etc/passwd", "CartPole-v1", "ppo", "dapo", "lin_0.1", "cuda"),
    *([], {}, [[]], {"": None}, [1] * 50, {"a": {"b": {"c": []}}}),
    *(TOUCH, f"dict(net_arch=[{TOUCH}])", f"!!python/object/apply:os.system ['touch {CANARY}']", "os.system"),
    *("subprocess.Popen", {"os.system": {"command": f"touch {CANARY}"}}, {"$class": "os.system"}),
    *({"$object": "os.system", "with": {"command": f"touch {CANARY}"}}, PICKLE, *IMPORTS),
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        found += _paths(each, (*path, key))
    return found


def changed_value(rng: random.Random, value: Any) -> Any:
    """
    :param rng: random generator
    :param value: from JSON or YAML
    :return: the same with one or two parts replaced, missing or duplicated
    """
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2))):
        path = rng.choice(_paths(value)[:2000])
        if not path:
            return copy.deepcopy(rng.choice(HOSTILE)) if rng.random() < 0.3 else value
        owner = value
        for key in path[:-1]:
            owner = owner[key]
        how = rng.random()
        if how < 0.65:
            owner[path[-1]] = copy.deepcopy(rng.choice(HOSTILE))
        elif how < 0.75:
            del owner[path[-1]]
        elif isinstance(owner, dict):
            owner[str(rng.choice(HOSTILE))[:300]] = owner[path[-1]]
        else:
            owner.append(owner[path[-1]])
    return value


def changed_bytes(rng: random.Random, content: bytes) -> bytes:
    """
    :param rng: random generator
    :param content: content of a file
    :return: the same cut off, with other bytes, or with a part duplicated
    """
    content = bytearray(content)
    how = rng.random()
    if how < 0.2 or not content:
        return bytes(content[: rng.randrange(len(content) + 1)])
    if how < 0.3:
        begin, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        return bytes(content[:end] + content[begin:])
    for _ in range(rng.choice((1, 1, 2, 5, 50))):
        content[rng.randrange(len(content))] = rng.choice((0, 255, 10, 34, 58, 91, 123, rng.randrange(256)))
    return bytes(content)


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()


class Files:
    """
    Valid files, and how they are changed and read.

    :param folder: where they are
    """

    def __init__(self, folder: Path):
        self.kinds: dict[str, Callable[[random.Random], None]] = {
            "safe model": self._safe_model,
            "safe model with one more attribute": self._one_more_attribute,
            "model of SB3": self._sb3_model,
        }
        model = DAPO("MlpPolicy", make_group_env("CartPole-v1", 2), policy_kwargs={"net_arch": [4]}, seed=0, device="cpu")
        model.learn(100)
        for kind in ("safe", "sb3"):
            model.save(folder / kind, format=kind)
        self.models = {kind: (folder / f"{kind}.zip").read_bytes() for kind in ("safe", "sb3")}
        # What is kept out of files, and everything in a model
        self.names = (sorted(model._excluded_save_params()), dir(model))
        (folder / f"{CANARY_MODULE}.py").write_text(f"open('{IMPORTED}', 'w').close()")

    def _safe_model(self, rng: random.Random) -> None:
        content = self.models["safe"]
        if rng.random() < 0.4:
            content = changed_bytes(rng, content)
        else:
            members = self._members()
            name = rng.choice([*members])
            if name.endswith(".json") and rng.random() < 0.9:
                members[name] = _text(changed_value(rng, json.loads(members[name])))
            else:
                members[name] = changed_bytes(rng, members[name])
            content = _zipped(members)
        _load_safe(content)

    def _one_more_attribute(self, rng: random.Random) -> None:
        members = self._members()
        content = json.loads(members["data.json"])
        content["attributes"][rng.choice(rng.choice(self.names))] = rng.choice(rng.choice((IMPORTS, HOSTILE)))
        members["data.json"] = _text(content)
        _load_safe(_zipped(members))

    def _members(self) -> dict[str, bytes]:
        with zipfile.ZipFile(io.BytesIO(self.models["safe"])) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def _sb3_model(self, rng: random.Random) -> None:
        """All of these are refused: pickles are inspected, not loaded."""
        DAPO.load(io.BytesIO(changed_bytes(rng, self.models["sb3"])), device="cpu", trusted=False)  # type: ignore[arg-type]
        raise RuntimeError("a file with pickles was loaded")


def _load_safe(content: bytes) -> None:
    """
    :param content: content of a file
    :raises RuntimeError: if it was loaded and changed something in the class
    """
    model = DAPO.load(io.BytesIO(content), device="cpu", trusted=False)  # type: ignore[arg-type]
    if replaced := vars(model).keys() & {*dir(DAPO)}:
        raise RuntimeError(f"{replaced} of the class were replaced")


def _zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, each in members.items():
            archive.writestr(name, each)
    return file.getvalue()


def try_file(files: Files, kind: str, rng: random.Random) -> str:
    """
    :param files: the files
    :param kind: the kind of file that is changed
    :param rng: random generator
    :return: ``"read"`` or ``"refused"``, as promised; otherwise what went wrong
    """
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files.kinds[kind](rng)
        outcome = "read"
    except ValueError as error:
        outcome = "refused" if str(error).strip() else f"an error without words: {type(error).__name__}"
    except Exception as error:
        outcome = f"no clear error: {type(error).__name__}: {error}"
    # The next import runs it again
    sys.modules.pop(CANARY_MODULE, None)
    for mark, wrong in ((CANARY, "executed what was in it"), (IMPORTED, "imported what it names")):
        if Path(mark).exists():
            Path(mark).unlink()
            return wrong
    return outcome if time.perf_counter() - begin < 30.0 else "took more than half a minute"


def main() -> None:
    """Change and read the files, and save the results."""
    n_files, seed = parse(__doc__, "--files", 2_000)
    rng, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        files = Files(Path(folder))
        for number in range(n_files):
            kind = rng.choice([*files.kinds])
            tally.add(kind, try_file(files, kind, rng), number=number)
        sys.path.remove(folder)
        os.chdir("/")
    tally.write(
        "files",
        "changed files of models, loaded with `trusted=False`",
        "read, or rejected by an error that says what is wrong; nothing in them is run",
    )


if __name__ == "__main__":
    main()
