"""Folders of results: as the runs leave them, packed, combined from several machines, or made by strangers."""

import json
import lzma
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rliable")

import pandas as pd
from compare_data import curve_to, write_experiment

from sb3_grpo.classroom.compare.collect import collect, combine, pack
from sb3_grpo.classroom.compare.experiment import Experiment
from sb3_grpo.classroom.compare.report import make_report
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.cli.main import main
from sb3_grpo.console import UsageError

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")

ENVS = ("CartPole-v1", "Acrobot-v1")
TABLES = ("runs", "evaluations", "diagnostics")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_experiment(tmp_path / "full", lambda env, variant, seed: curve_to(100.0 + seed / 3), seeds=3)


@pytest.mark.slow
def test_the_report_is_the_same(folder: Path, tmp_path: Path) -> None:
    assert main(["compare", "pack", str(folder), str(tmp_path / "packed")]) == 0
    pages = []
    for each in (folder, tmp_path / "packed"):
        assert main(["compare", "report", str(each)]) == 0
        pages.append((each / "report.html").read_text().replace(str(each), "FOLDER"))
    assert pages[0] == pages[1]
    assert not (tmp_path / "packed" / "runs").exists()
    # The packed results can be packed again, and say the same
    assert main(["compare", "pack", str(tmp_path / "packed"), str(tmp_path / "again")]) == 0
    for table in ("runs", "evaluations", "diagnostics"):
        ours, theirs = (getattr(collect(each), table).fillna("") for each in (folder, tmp_path / "again"))
        pd.testing.assert_frame_equal(ours, theirs, check_dtype=False, rtol=0, atol=0)


def test_names_that_look_like_something_else(tmp_path: Path) -> None:
    variants = {"NA": "ppo", "1.0": "dapo", "True": "grpo"}
    folder = write_experiment(tmp_path / "full", lambda env, variant, seed: curve_to(100.0), variants=variants, seeds=2)
    pack(collect(folder), tmp_path / "packed")
    results = collect(tmp_path / "packed")
    for name in variants:
        assert results.final_scores("CartPole-v1", name, "deterministic").tolist() == [100.0, 100.0]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("count", "found"), [(0, "there is no"), (1, "there is no"), (2, "there are 2")])
def test_a_finished_run_without_one_final_return_is_named(
    count: int, found: str, packed: bool, folder: Path, tmp_path: Path
) -> None:
    path = folder / "runs" / "CartPole-v1" / "dapo" / "1" / "evaluations.csv"
    if packed:
        pack(collect(folder), tmp_path / "packed")
        folder, path = tmp_path / "packed", tmp_path / "packed" / "evaluations.csv.xz"
    table = pd.read_csv(path)
    of_one = (table.variant == "dapo") & (table.seed == 1) & (table["mode"] == "stochastic") & (table.final == 1)
    assert of_one.sum() == 1
    if count == 1:
        table.loc[of_one, "return_mean"] = float("nan")
    else:
        table = pd.concat([table[~of_one], *[table[of_one]] * count])
    table.to_csv(path, index=False)
    with pytest.raises(UsageError, match=rf"CartPole-v1, dapo, seed 1 has finished, but {found} final stochastic return"):
        collect(folder)


def tamper(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name", ["../../stranger", "..", ".", "/etc", "a/b", "ppo\0", "x" * 300, "", 5, None, ["ppo"]])
def test_a_variant_names_nothing_outside_of_the_folder(name: Any, folder: Path) -> None:
    # There would be something to read
    shutil.copytree(folder / "runs" / "CartPole-v1" / "ppo", folder.parent / "stranger")
    tamper(folder / "experiment.json", variants=[{"name": name, "algo": "ppo", "hyperparams": {}}])
    for read in (collect, Experiment.load):
        with pytest.raises(UsageError, match=r"experiment.json is damaged, or was not written by .*variants"):
            read(folder)


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
    ("name", "changes", "message"),
    [
        ("experiment.json", {"seeds": ["../.."]}, "seeds must be a whole number"),
        ("experiment.json", {"seeds": 3}, "TypeError"),
        ("experiment.json", {"timesteps": {"CartPole-v1": 1e400}}, "timesteps.CartPole-v1 must be a whole number, got inf"),
        ("experiment.json", {"timesteps": {}}, "there are no timesteps"),
        ("experiment.json", {"timesteps": {"Other-v0": 3}}, "CartPole-v1"),
        ("experiment.json", {"envs": ["../../.."]}, "the name of a folder"),
        ("experiment.json", {"variants": [{"name": "ppo"}]}, "algo"),
        ("experiment.json", {"variants": "ppo"}, "TypeError"),
        ("experiment.json", {"n_evaluations": 0}, "n_evaluations must be"),
        ("experiment.json", {"versions": "none"}, "versions must be a mapping"),
        ("experiment.json", {"curriculum": "hard"}, "or was not written by this version of compare .*curriculum"),
        ("experiment.json", {"main_modes": {"CartPole-v1": "best"}}, "must be one of deterministic, stochastic"),
        ("experiment.json", {"name": 3}, "name must be a string, got 3"),
        ("experiment.json", {"name": "\ud800"}, "surrogates not allowed"),
        ("experiment.json", {"command": ["compare"]}, "command must be a string"),
        ("experiment.json", {"hyperparams": {"CartPole-v1": ["ppo"]}}, "hyperparams.CartPole-v1 must be a mapping"),
        ("experiment.json", {"hyperparams": {"CartPole-v1": {"ppo": 3}}}, "hyperparams.CartPole-v1.ppo must be a mapping"),
        (
            "experiment.json",
            {"variants": [{"name": "ppo", "algo": "ppo", "hyperparams": {}}] * 2},
            "one of the variants is there twice",
        ),
        ("config.json", {"machine": "mine"}, "machine must be a mapping"),
        ("config.json", {"versions": ["torch"]}, "versions must be a mapping"),
        ("config.json", {"versions": {"torch": 2.9}}, "versions.torch must be a string"),
        ("config.json", {"versions": {"torch": "\ud800"}}, "surrogates not allowed"),
        ("config.json", {"hyperparameters": "none"}, "hyperparameters must be a mapping"),
        ("result.json", {"peak_memory_mib": "much"}, "peak_memory_mib must be a finite number"),
        ("result.json", {"n_parameters": [3]}, "n_parameters must be a finite number"),
        ("result.json", {"provenance": {}}, "provenance must be a string"),
        ("result.json", {"net_arch": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_what_was_tampered_with_is_an_error(name: str, changes: dict[str, Any], message: str, folder: Path) -> None:
    tamper(next(folder.rglob(name)), **changes)
    with pytest.raises(UsageError, match=rf"{name} is damaged.*{message}") as error:
        collect(folder)
    assert "\n" not in str(error.value)
    str(error.value).encode()


@pytest.mark.parametrize("changes", [{"machine": "mine"}, {"versions": {"torch": "\ud800"}}])
def test_a_packed_config_that_was_tampered_with_is_an_error(changes: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    pack(collect(folder), tmp_path / "packed")
    path = tmp_path / "packed" / "configs.json.xz"
    configs = json.loads(lzma.decompress(path.read_bytes()))
    configs[0]["config"] |= changes
    path.write_bytes(lzma.compress(json.dumps(configs).encode()))
    with pytest.raises(UsageError, match=r"configs.json.xz is damaged"):
        collect(tmp_path / "packed")


@pytest.mark.parametrize(("name", "column"), [("runs.csv", "steps"), ("evaluations.csv.xz", "target_steps")])
def test_packed_tables_with_a_gap_are_an_error(name: str, column: str, folder: Path, tmp_path: Path) -> None:
    pack(collect(folder), tmp_path / "packed")
    path = tmp_path / "packed" / name
    pd.read_csv(path).assign(**{column: None}).to_csv(path, index=False)
    with pytest.raises(UsageError, match=rf"{name} is damaged.*{column} is missing in a row"):
        collect(tmp_path / "packed")


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{", "", "[" * 100_000, "\xff"])
@pytest.mark.parametrize("name", ["result.json", "config.json", "experiment.json", "evaluations.csv"])
def test_files_that_are_something_else(name: str, text: str, folder: Path) -> None:
    path = folder / name if name == "experiment.json" else folder / "runs" / "CartPole-v1" / "ppo" / "0" / name
    path.write_bytes(text.encode("latin-1"))
    if name == "config.json" and text == "[]":
        return  # as good as an empty one
    with pytest.raises(UsageError, match=f"{name} is damaged, or was not written by this version of compare"):
        collect(folder)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_experiment(tmp_path / "whole", lambda env, variant, seed: curve_to(100.0 + seed / 3), envs=ENVS, seeds=4)


def part_of(whole: Path, name: str, **changes: Any) -> Path:
    """The folder of a machine that made only the runs which ``changes`` of ``experiment.json`` leave."""
    folder = whole.parent / name
    shutil.copytree(whole, folder)
    experiment = json.loads((folder / "experiment.json").read_text()) | changes
    (folder / "experiment.json").write_text(json.dumps(experiment))
    names = [variant["name"] for variant in experiment["variants"]]
    for run in folder.glob("runs/*/*/*"):
        env, variant, seed = run.parts[-3:]
        if env not in experiment["envs"] or variant not in names or int(seed) not in experiment["seeds"]:
            shutil.rmtree(run)
    return folder


def assert_same(ours: Results, theirs: Results) -> None:
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(ours, table), getattr(theirs, table), check_dtype=False, rtol=0, atol=0)
    assert ours.configs == theirs.configs


def split(whole: Path, what: str) -> list[Path]:
    variants = json.loads((whole / "experiment.json").read_text())["variants"]
    changes: Sequence[dict[str, Any]] = {
        "seeds": [{"seeds": [1, 3]}, {"seeds": [0]}, {"seeds": [2]}],
        "variants": [{"variants": variants[:1]}, {"variants": variants[1:]}],
        "envs": [{"envs": ENVS[:1]}, {"envs": ENVS[1:]}],
    }[what]
    return [part_of(whole, f"part {index}", **each) for index, each in enumerate(changes)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("what", ["seeds", "variants", "envs"])
def test_parts_make_the_whole(what: str, packed: bool, whole: Path, tmp_path: Path) -> None:
    folders = split(whole, what)
    if packed:
        pack(collect(folders[0]), tmp_path / "packed")
        folders[0] = tmp_path / "packed"
    assert main(["compare", "pack", *map(str, folders), str(tmp_path / "all")]) == 0
    found = collect(tmp_path / "all")
    assert found.notes == []
    pack(collect(whole), tmp_path / "expected")
    assert_same(found, collect(tmp_path / "expected"))
    ours, expected = (json.loads((tmp_path / each / "experiment.json").read_text()) for each in ("all", "whole"))
    assert {key: ours[key] for key in expected} == expected


@pytest.mark.usefixtures("no_pictures")
def test_runs_that_no_machine_has_made(whole: Path, tmp_path: Path) -> None:
    variants = json.loads((whole / "experiment.json").read_text())["variants"]
    folders = [part_of(whole, "a", variants=variants[:1], seeds=[0, 1]), part_of(whole, "b", variants=variants[1:], seeds=[2])]
    results = combine([collect(folder) for folder in folders])
    status = results.runs.set_index(["env", "variant", "seed"]).status.sort_index()
    assert status["CartPole-v1", "ppo"].tolist() == ["done", "done", "unplanned"]
    assert status["CartPole-v1", "dapo"].tolist() == ["unplanned", "unplanned", "done"]
    assert set(results.runs.algo) == {"ppo", "dapo"} and results.progress() == "6 of 6 runs finished"
    pack(results, tmp_path / "all")
    packed = collect(tmp_path / "all")
    assert packed.final_scores("CartPole-v1", "ppo", "deterministic").round(3).tolist() == [100.0, 100.333]
    text = make_report(tmp_path / "all").read_text()
    assert "1 to 2 finished seeds each. All 6 runs finished." in text
    assert "3 (0, 1, 2), not all of them for every variant and environment" in text
    # Asked for by a third folder, where it has not been made
    third = part_of(whole, "c", variants=variants[:1], seeds=[2, 3])
    shutil.rmtree(third / "runs" / "CartPole-v1" / "ppo" / "2")
    results = combine([packed, collect(third)])
    status = results.runs.set_index(["env", "variant", "seed"]).status.sort_index()
    assert status["CartPole-v1", "ppo"].tolist() == ["done", "done", "missing", "done"]
    assert results.progress() == "9 of 10 runs finished, 1 missing"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timesteps": dict.fromkeys(ENVS, 5)}, "timesteps of CartPole-v1: 10000 and 5"),
        ({"n_eval_episodes": 3}, "n_eval_episodes: 10 and 3"),
        ({"variants": [{"name": "dapo", "algo": "grpo", "hyperparams": {}}]}, "algorithm of 'dapo': dapo and grpo"),
        ({"hyperparams": {env: {"dapo": {"gamma": "0.5"}} for env in ENVS}}, "gamma of 'dapo' on CartPole-v1: 0.99 and 0.5"),
        ({"main_modes": dict.fromkeys(ENVS, "stochastic")}, "main_modes of CartPole-v1: deterministic and stochastic"),
    ],
)
def test_runs_that_do_not_compare(changes: dict[str, Any], message: str, whole: Path, tmp_path: Path) -> None:
    ada, grace = part_of(whole, "ada", seeds=[0, 1]), part_of(whole, "grace", seeds=[2, 3])
    experiment = json.loads((grace / "experiment.json").read_text()) | changes
    (grace / "experiment.json").write_text(json.dumps(experiment))
    for folders in ([ada, grace], [part_of(whole, "first", seeds=[0]), part_of(whole, "second", seeds=[1]), grace]):
        with pytest.raises(UsageError, match=r"have runs that do not compare, made with different settings") as error:
            combine([collect(folder) for folder in folders])
        assert message in str(error.value)
        assert str(grace) in str(error.value) and str(folders[0]) in str(error.value)


def test_the_same_run_twice(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = whole / "runs" / "Acrobot-v1" / "dapo" / "2" / "evaluations.csv"
    rows = pd.read_csv(path)
    rows.loc[2, "return_mean"] = float("nan")
    rows.to_csv(path, index=False)
    ada, grace = part_of(whole, "ada", seeds=[0, 1, 2]), part_of(whole, "grace", seeds=[2, 3])
    assert_same(combine([collect(ada), collect(grace)]), collect(whole))
    # As on another processor
    path = grace / "runs" / "Acrobot-v1" / "dapo" / "2" / "evaluations.csv"
    rows = pd.read_csv(path)
    rows.loc[3, "return_mean"] += 0.001
    rows.to_csv(path, index=False)
    assert main(["compare", "pack", str(ada), str(grace), str(tmp_path / "all")]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "have different results of the same run (Acrobot-v1, dapo, seed 2): leave one of the two out" in message
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("failed_first", [False, True])
def test_a_run_that_failed_elsewhere(failed_first: bool, whole: Path) -> None:
    failed, finished = part_of(whole, "failed", seeds=[0, 1]), part_of(whole, "finished", seeds=[1, 2, 3])
    run = failed / "runs" / "CartPole-v1" / "ppo" / "1"
    shutil.rmtree(run)
    run.mkdir()
    (run / "error.txt").write_text("MemoryError")
    folders = [failed, finished] if failed_first else [finished, failed]
    assert_same(combine([collect(folder) for folder in folders]), collect(whole))


def test_a_part_is_not_overwritten(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last folder is the one to write to, which is easily forgotten."""
    ada, grace = part_of(whole, "ada", seeds=[0, 1]), part_of(whole, "grace", seeds=[2, 3])
    pack(collect(grace), tmp_path / "packed")
    for target, message in (
        (grace, "holds the runs themselves: name another folder to write to"),
        (tmp_path / "packed", "packed results, and 8 of its runs would be lost: name another folder, as the last one"),
    ):
        assert main(["compare", "pack", str(ada), str(target)]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert collect(tmp_path / "packed").experiment["seeds"] == [2, 3]
    # More runs are welcome
    pack(collect(whole), tmp_path / "packed")
    assert collect(tmp_path / "packed").experiment["seeds"] == [0, 1, 2, 3]


def test_what_is_no_folder_of_a_comparison(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "ada.zip").write_bytes(b"PK")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "report.html").write_text("<html>")
    for name, message in (
        ("ada.zip", r"it is a file\. Unpack it first"),
        ("page", r"it has no experiment\.json, only a report"),
        (".", r"it has no experiment\.json\. Did you mean .*whole\?"),
        ("nowhere", r"it has no experiment\.json$"),
    ):
        with pytest.raises(UsageError, match=message):
            collect(tmp_path / name)
