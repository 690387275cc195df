"""Folders of comparisons that strangers have made: data, and nothing outside of them."""

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from compare_data import curve_to, write_experiment

pytest.importorskip("rliable")

from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.definition import make_experiment, read_experiment
from sb3_grpo.classroom.compare.experiment import Experiment
from sb3_grpo.cli.main import main
from sb3_grpo.console import UsageError

TINY = {"envs": ["CartPole-v1"], "variants": ["ppo"], "timesteps": 100, "seeds": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_experiment(tmp_path / "comparison", lambda *_: curve_to(100.0), seeds=2)


def tamper(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", ["../../stranger", "..", ".", "/etc", "a/b", "ppo\0", "x" * 300, "", 5, None, ["ppo"]])
def test_a_variant_names_nothing_outside_of_the_folder(name: Any, folder: Path) -> None:
    # There would be something to read
    shutil.copytree(folder / "runs" / "CartPole-v1" / "ppo", folder.parent / "stranger")
    tamper(folder / "experiment.json", variants=[{"name": name, "algo": "ppo", "hyperparams": {}}])
    for read in (collect, Experiment.load):
        with pytest.raises(
            UsageError, match=r"experiment.json is damaged, or was not written by compare .*variants\[0\].name"
        ):
            read(folder)


@pytest.mark.parametrize("env", ["../../..", "/etc/passwd", "ALE/../Pong-v5", "ALE//Pong-v5", "..", 5])
def test_an_environment_names_nothing_outside_of_the_folder(env: Any, folder: Path) -> None:
    tamper(folder / "experiment.json", envs=[env], timesteps={str(env): 100})
    with pytest.raises(UsageError, match=r"experiment.json is damaged.*envs\[0\].* the name of a folder"):
        collect(folder)


@pytest.mark.parametrize("name", ["runs.csv", "figures", "runs/CartPole-v1/ppo/1/error.txt"])
@pytest.mark.parametrize("command", ["report", "pack"])
def test_no_link_leads_outside_of_the_folder(
    command: str, name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("a file of my own")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(mine)
    assert main(["compare", command, str(folder), *([str(tmp_path / "packed")] if command == "pack" else [])]) == 2
    # Long lines are broken anywhere
    assert f"{folder / name}isalinkto{mine},outsideof" in "".join(capsys.readouterr().err.split())
    assert mine.read_text() == "a file of my own"


def test_links_within_a_folder_and_to_it(folder: Path, tmp_path: Path) -> None:
    (folder / "latest").symlink_to(Path("runs") / "CartPole-v1")
    (tmp_path / "link").symlink_to(folder)
    assert main(["compare", "pack", str(tmp_path / "link"), str(tmp_path / "packed")]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ["../.."]}, r"seeds\[0\] must be a whole number"),
        ({"seeds": list(range(60_000))}, "120,000 runs are more than can be made"),
        ({"seeds": 3}, "seeds must be a list"),
        ({"timesteps": {"CartPole-v1": 1e400}}, "timesteps.CartPole-v1 must be a whole number, got inf"),
        ({"timesteps": {}}, "there is no timesteps"),
        ({"timesteps": {"Other-v0": 3}}, "there is no CartPole-v1"),
        ({"variants": [{"name": "ppo"}]}, "there is no algo"),
        ({"variants": "ppo"}, "variants must be a list"),
        ({"n_evaluations": 10**12}, "n_evaluations must be"),
        ({"hyperparams": {"CartPole-v1": {"ppo": {"gamma": [1]}}}}, "hyperparams.CartPole-v1.ppo.gamma must be text"),
        ({"versions": "none"}, "versions must be a mapping"),
        ({"main_modes": {"CartPole-v1": "best"}}, "main_modes.CartPole-v1='best', must be one of deterministic, stochastic"),
    ],
)
def test_a_tampered_experiment_is_an_error(changes: dict[str, Any], message: str, folder: Path) -> None:
    tamper(folder / "experiment.json", **changes)
    with pytest.raises(UsageError, match=message):
        collect(folder)


@pytest.mark.parametrize("key", ["seeds", "n_evaluations", "n_eval_episodes", "n_final_episodes"])
def test_an_experiment_that_has_lost_a_key(key: str, folder: Path) -> None:
    path = folder / "experiment.json"
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != key}))
    with pytest.raises(UsageError, match=f"there is no {key}"):
        collect(folder)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{", "", "[" * 100_000, '{"steps": ' + "9" * 5000 + "}", "\xff"])
@pytest.mark.parametrize("name", ["result.json", "config.json", "experiment.json"])
def test_files_that_are_something_else(name: str, text: str, folder: Path) -> None:
    path = folder / name if name == "experiment.json" else folder / "runs" / "CartPole-v1" / "ppo" / "0" / name
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=f"{name} is damaged, or was not written by compare"):
        collect(folder)


def test_results_that_are_no_numbers(folder: Path) -> None:
    run = folder / "runs" / "CartPole-v1" / "ppo" / "0"
    before = (run / "result.json").read_text()
    damage = [{"steps": "many"}, {"seconds": "1e999"}, {"steps": 10**40}, {"steps": None}, {"env": 5}, {"unknown": 10**400}]
    for wrong in damage:
        tamper(run / "result.json", **wrong)
        with pytest.raises(UsageError, match=r"result.json is damaged"):
            collect(folder)
        (run / "result.json").write_text(before)
    table = (run / "evaluations.csv").read_text()
    (run / "evaluations.csv").write_text(table.replace("100.0", "'; DROP TABLE"))
    with pytest.raises(UsageError, match=r"Cannot read .*evaluations.csv"):
        collect(folder)


def test_packed_files_that_unpack_to_more_than_they_may(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder / "runs")
    (folder / "configs.json.xz").write_bytes(lzma.compress(b"[" + b" " * 2**22 + b"]"))
    monkeypatch.setattr("sb3_grpo.classroom.compare.reading._MAX_SIZE", 2**21)
    for name in ("runs.csv", "evaluations.csv.xz", "diagnostics.csv.xz"):
        content = b"env,seed\nCartPole-v1,0\n"
        (folder / name).write_bytes(lzma.compress(content) if name.endswith("xz") else content)
    with pytest.raises(UsageError, match=r"configs.json.xz holds more than 2 MiB"):
        collect(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 10**12}, "seeds must be a whole number above 0, and not above 100,000"),
        ({"seeds": float("nan")}, "seeds must be a whole number"),
        ({"timesteps": 10**30}, "timesteps must be a whole number above 0, and not above"),
        ({"n_evaluations": 10**9}, "n_evaluations must be a whole number above 0"),
        ({"n_eval_episodes": "10" * 3000}, "n_eval_episodes must be a whole number above 0"),
        (
            {"variants": [{"algo": "ppo", "factors": {f"k{i}": list(range(10)) for i in range(12)}}]},
            "more than 1,000 variants",
        ),
        ({"variants": ["ppo"] * 2000}, "more than 1,000 variants"),
        ({"variants": [{"algo": "ppo", "hyperparams": {"n_envs": 10**9}}]}, "n_envs must be a whole number above 0"),
        ({"envs": ["../CartPole-v1"]}, "becomes the name of a folder"),
        ({"name": "../x"}, "becomes the name of a folder"),
    ],
)
def test_huge_numbers_in_a_description(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_experiment({"name": "tiny", **TINY, **changes}, "mine.yml")


def test_a_key_that_is_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "twice.yml"
    path.write_text("envs: [CartPole-v1]\nseeds: 3\nenvs: [Acrobot-v1]\n")
    with pytest.raises(UsageError, match=r"(?s)twice.yml is not valid YAML: 'envs' is there twice.*line 3, column 1"):
        read_experiment(path)
    path.write_text("a: &a {x: 1}\nb: {<<: *a, x: 2}\nc: {1: 2, '1': 3}")
    assert read_experiment(path)["b"] == {"x": 2}


def test_yaml_that_stands_for_more_than_it_has(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    path = tmp_path / "laughs.yml"
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"stands for more than 100,000 values: aliases"):
        read_experiment(path)
    # Merged while it is read: before there is anything to count
    lines = ["a0: &a0 {" + ", ".join(f"x{i}: 1" for i in range(10)) + "}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 10)]
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"merge keys \(<<\) make more than 100,000 values"):
        read_experiment(path)
    for text in (
        "a: &a {<<: *a}",
        "[" * 100_000,
        "a: 2020-99-99",
        "? [1, {}]\n: 2",
        "a: !!python/object/apply:os.system ['true']",
        "\xff\xfe\x00",
        "a: " + "9" * 5000,
    ):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(UsageError):
            make_experiment(read_experiment(path), "laughs.yml")
    path.write_text(yaml.safe_dump(TINY))
    assert make_experiment(read_experiment(path), "laughs.yml").name == "laughs"
    path.write_text("a: &a {x: 1, y: 2}\nb: {<<: [*a, {z: 3}], x: 4}")
    assert read_experiment(path)["b"] == {"x": 4, "y": 2, "z": 3}
