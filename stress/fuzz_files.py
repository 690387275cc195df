"""
Files as strangers or a bad disk might produce them: descriptions of comparisons, zoo entries, folders of results and
models, each changed at random. Each is read, or refused with an error that says what is wrong; nothing in them is run, and
nothing outside their folder is read.

    python -m stress.fuzz_files --files 10000
"""

import base64
import copy
import io
import json
import os
import pickle
import random
import shutil
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from sb3_grpo import DAPO, make_group_env
from sb3_grpo.classroom.compare.build import check
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.definition import make_experiment, read_experiment
from sb3_grpo.classroom.compare.experiment import Experiment
from sb3_grpo.classroom.compare.training import train
from sb3_grpo.console import UsageError
from sb3_grpo.utils.entries import read_entry
from stress.common import Tally, parse

# Created by anything that runs what is written in a file, and by the module when it is imported
CANARY, IMPORTED = "executed", "imported"
CANARY_MODULE = "strangers_module"
TOUCH = f"__import__('pathlib').Path('{CANARY}').touch()"
# Here callbacks, wrappers and functions are given by name, and are imported
MAY_IMPORT = ("description of a comparison", "entry of the zoo")


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
    *(None, True, -1, 0, 1, 10**12, 10**400, 0.5, 1e400, float("nan"), "", "x" * 10_000),
    *(
        "../..",
        "/etc/passwd",
        "a/../../b",
        "\0",
        "..",
        ".",
        "CartPole-v1",
        "ppo",
        "dapo",
        "ALE/../..",
        "lin_0.1",
        "lin_x",
        "cuda",
    ),
    *([], {}, [[]], {"": None}, [1] * 50, {"a": {"b": {"c": []}}}, "<script>alert(1)</script>", "\ud800", "{{7*7}}"),
    *(TOUCH, f"dict(net_arch=[{TOUCH}])", f"!!python/object/apply:os.system ['touch {CANARY}']", "os.system"),
    *("subprocess.Popen", {"os.system": {"command": f"touch {CANARY}"}}, {"$class": "os.system"}),
    *({"$object": "os.system", "with": {"command": f"touch {CANARY}"}}, PICKLE, *IMPORTS),
)
DESCRIPTION = {
    "name": "tiny",
    "envs": ["CartPole-v1", "Acrobot-v1"],
    "variants": [
        "ppo",
        {"name": "mine", "algo": "dapo", "hyperparams": {"group_size": 4, "policy_kwargs": "dict(net_arch=[8])"}},
    ],
    "seeds": [0, 1],
    "timesteps": {"CartPole-v1": 100, "Acrobot-v1": 1e3},
    "n_evaluations": 2,
}
ENTRY = {
    "n_envs": 4,
    "n_timesteps": 1e5,
    "policy": "MlpPolicy",
    "normalize": "dict(norm_obs=True)",
    "policy_kwargs": "dict(net_arch=[8], activation_fn=nn.ReLU)",
    "callback": {"stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes": {"max_episodes": 3}},
    "env_wrapper": ["gymnasium.wrappers.TimeAwareObservation"],
}
# What other readers report for a file that is not theirs
REFUSALS = (UsageError, ValueError)


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


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")


def make_results(folder: Path) -> Path:
    """
    :param folder: where to write
    :return: the same folder, with the results of a minimal comparison
    """
    content = {"name": "tiny", "envs": ["CartPole-v1"], "variants": ["ppo", "dapo"], "seeds": 1, "timesteps": 300}
    numbers = {"n_evaluations": 2, "n_eval_episodes": 2, "n_final_episodes": 2}
    experiment = make_experiment(content | numbers, "tiny")
    check(experiment, iter)
    for job in experiment.jobs():
        job.folder(folder).mkdir(parents=True)
        train(experiment.settings(job), job.folder(folder), lambda _: None)
    experiment.save(folder)
    return folder


class Files:
    """
    Valid files, and how they are changed and read.

    :param folder: where they are
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.kinds: dict[str, tuple[float, Callable[[random.Random], None]]] = {
            "description of a comparison": (0.25, self._description),
            "entry of the zoo": (0.15, self._entry),
            "experiment.json": (0.2, self._experiment),
            "other files of results": (0.15, self._results),
            "safe model": (0.15, self._safe_model),
            "safe model with one more attribute": (0.15, self._one_more_attribute),
            "model of SB3": (0.1, self._sb3_model),
        }
        self.results = make_results(folder / "results")
        # What must not be read: a folder as a run leaves it
        shutil.copytree(self.results / "runs" / "CartPole-v1" / "ppo", folder / "outside" / "0")
        model = DAPO("MlpPolicy", make_group_env("CartPole-v1", 2), policy_kwargs={"net_arch": [4]}, seed=0, device="cpu")
        model.learn(100)
        for kind in ("safe", "sb3"):
            model.save(folder / kind, format=kind)
        self.models = {kind: (folder / f"{kind}.zip").read_bytes() for kind in ("safe", "sb3")}
        # What is kept out of files, and everything in a model
        self.names = (sorted(model._excluded_save_params()), dir(model))
        (folder / f"{CANARY_MODULE}.py").write_text(f"open('{IMPORTED}', 'w').close()")

    def _description(self, rng: random.Random) -> None:
        path = self.folder / "mine.yml"
        content = _yaml(changed_value(rng, DESCRIPTION))
        path.write_bytes(changed_bytes(rng, content) if rng.random() < 0.3 else content)
        make_experiment(read_experiment(path), str(path))

    def _entry(self, rng: random.Random) -> None:
        entry = changed_value(rng, ENTRY)
        if not isinstance(entry, dict):
            raise ValueError("no entry")
        read_entry(entry)

    def _experiment(self, rng: random.Random) -> None:
        path = self.results / "experiment.json"
        before = path.read_bytes()
        content = _text(changed_value(rng, json.loads(before)))
        try:
            path.write_bytes(changed_bytes(rng, content) if rng.random() < 0.2 else content)
            Experiment.load(self.results)
            names = [variant["name"] for variant in collect(self.results).experiment["variants"]]
            assert not any("outside" in name or ".." in name for name in names), names
        finally:
            path.write_bytes(before)

    def _results(self, rng: random.Random) -> None:
        run = self.results / "runs" / "CartPole-v1" / rng.choice(("ppo", "dapo")) / "0"
        path = run / rng.choice(("result.json", "config.json", "evaluations.csv", "diagnostics.csv"))
        before = path.read_bytes()
        try:
            if path.suffix == ".json" and rng.random() < 0.7:
                path.write_bytes(_text(changed_value(rng, json.loads(before))))
            else:
                path.write_bytes(changed_bytes(rng, before))
            collect(self.results)
        finally:
            path.write_bytes(before)

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
            files.kinds[kind][1](rng)
        outcome = "read"
    except REFUSALS as error:
        outcome = "refused" if str(error).strip() else f"an error without words: {type(error).__name__}"
    except Exception as error:
        outcome = f"no clear error: {type(error).__name__}: {error}"
    # The next import runs it again
    sys.modules.pop(CANARY_MODULE, None)
    for mark, wrong in ((CANARY, "executed what was in it"), (IMPORTED, "imported what it names")):
        if Path(mark).exists():
            Path(mark).unlink()
            if mark == CANARY or kind not in MAY_IMPORT:
                return wrong
    return outcome if time.perf_counter() - begin < 30.0 else "took more than half a minute"


def main() -> None:
    """Change and read the files, and save the results."""
    n_files, seed = parse(__doc__, "--files", 10_000)
    rng, tally = random.Random(seed), Tally()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        files = Files(Path(folder))
        for number in range(n_files):
            kind = rng.choices([*files.kinds], [share for share, _ in files.kinds.values()])[0]
            tally.add(kind, try_file(files, kind, rng), number=number)
        sys.path.remove(folder)
        os.chdir("/")
    tally.write(
        "files",
        "changed files: comparison descriptions, zoo entries, results, models",
        "read, or rejected by an error that says what is wrong; nothing in them is run",
    )


if __name__ == "__main__":
    main()
