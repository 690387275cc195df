"""One comparison from the folders of several machines."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rliable")

import pandas as pd
from compare_data import BUDGET, curve_to, write_experiment, write_run

from sb3_grpo.classroom.clips.episodes import Reply
from sb3_grpo.classroom.clips.recording import Exchanges
from sb3_grpo.classroom.clips.stored import save_played
from sb3_grpo.classroom.compare.clips import median_seeds
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.combine import combine
from sb3_grpo.classroom.compare.experiment import seeds_in_words
from sb3_grpo.classroom.compare.packed import pack
from sb3_grpo.classroom.compare.report import make_report
from sb3_grpo.classroom.compare.results import Results
from sb3_grpo.cli.main import main
from sb3_grpo.console import UsageError

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")

ENVS = ("CartPole-v1", "Acrobot-v1")
TABLES = ("runs", "evaluations", "diagnostics")


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


@pytest.mark.parametrize("modes", [{}, {"main_modes": {"CartPole-v1": "deterministic"}}])
def test_the_report_is_that_of_the_whole(modes: dict[str, Any], tmp_path: Path) -> None:
    whole = write_experiment(tmp_path / "whole", lambda env, variant, seed: curve_to(100.0 + seed), seeds=2)
    path = whole / "experiment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | modes))
    folders = [part_of(whole, name, seeds=[seed]) for seed, name in enumerate(("ada", "grace"))]
    assert main(["compare", "pack", *map(str, folders), str(tmp_path / "all")]) == 0
    ours, expected = (make_report(each).read_text().replace(str(each), "FOLDER") for each in (tmp_path / "all", whole))
    assert ours == expected
    assert ("The rule: sampled actions in Atari games" in ours) == bool(modes)


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
        ({"timesteps": dict.fromkeys(ENVS, 5)}, "timesteps of CartPole-v1: 10,000 and 5"),
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


@pytest.mark.parametrize("older_first", [False, True])
def test_parameters_that_an_earlier_version_did_not_have(older_first: bool, whole: Path) -> None:
    older, newer = part_of(whole, "older", seeds=[0, 1]), part_of(whole, "newer", seeds=[2, 3])
    experiment = json.loads((older / "experiment.json").read_text())
    for env in ENVS:
        del experiment["hyperparams"][env]["ppo"]["gae_lambda"], experiment["hyperparams"][env]["dapo"]["leave_one_out"]
    (older / "experiment.json").write_text(json.dumps(experiment))
    assert_same(combine([collect(folder) for folder in ([older, newer] if older_first else [newer, older])]), collect(whole))


def test_more_runs_than_a_comparison_has(whole: Path) -> None:
    variants = json.loads((whole / "experiment.json").read_text())["variants"]
    many = variants + [{"name": f"ppo {index}", "algo": "ppo", "hyperparams": {}} for index in range(60)]
    folders = [part_of(whole, "seeds", seeds=[*range(1000)]), part_of(whole, "variants", variants=many, seeds=[3])]
    with pytest.raises(UsageError, match=r"all folders together: 124,000 runs are more than can be made"):
        combine([collect(folder) for folder in folders])


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
    path = grace / "runs" / "CartPole-v1" / "dapo" / "2" / "evaluations.csv"
    rows.to_csv(path, index=False)
    assert main(["compare", "pack", str(ada), str(grace), str(tmp_path / "all")]) == 2
    assert "(CartPole-v1, dapo, seed 2) and 1 more: leave" in " ".join(capsys.readouterr().err.split())
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


def test_the_clip_of_the_run_in_the_middle(whole: Path, tmp_path: Path) -> None:
    """Of all runs, whichever folder it comes from, and no other is packed."""
    folders = split(whole, "seeds")
    for run in (run for folder in folders for run in folder.glob("runs/CartPole-v1/*/*")):
        save_played(Exchanges([Reply("1+1=", "7", 0.0)], [Reply("1+1=", run.name, 1.0)]), run)
    assert main(["compare", "pack", *map(str, folders), str(tmp_path / "all")]) == 0
    assert median_seeds(collect(tmp_path / "all"), "CartPole-v1") == {"ppo": 1, "dapo": 1}
    assert {path.parent.name for path in (tmp_path / "all").rglob("clip.json")} == {"1"}
    assert main(["compare", "pack", str(tmp_path / "all"), *map(str, folders[1:]), str(tmp_path / "again")]) == 0
    assert {path.parent.name for path in (tmp_path / "again").rglob("clip.json")} == {"1"}


def test_a_part_is_not_overwritten(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ada, grace = part_of(whole, "ada", seeds=[0, 1]), part_of(whole, "grace", seeds=[2, 3])
    pack(collect(grace), tmp_path / "packed")
    assert main(["compare", "pack", str(ada), str(tmp_path / "packed"), str(tmp_path / "packed")]) == 2
    assert "is what is to be packed: choose another folder" in " ".join(capsys.readouterr().err.split())
    assert collect(tmp_path / "packed").experiment["seeds"] == [2, 3]
    assert main(["compare", "pack", str(ada), str(part_of(whole, "lin", seeds=[2])), str(tmp_path / "packed")]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert f"4 runs of which are not in {ada}, {tmp_path / 'lin'}: name another folder, as the last one" in message


def test_how_all_of_it_came_about(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every machine's commands, what all machines have in common, and a note that seconds on one are not those on another."""
    ada, grace = (
        part_of(whole, "ada", seeds=[0, 1], command="compare --seeds 0-1"),
        part_of(
            whole,
            "grace",
            seeds=[2, 3],
            command="compare --seeds 0-1\ncompare --seeds 2-3",
            machine={"platform": "macOS", "cpu_count": 2},
            versions={"sb3_grpo": "0.1.0", "torch": "2.8.0"},
        ),
    )
    for path in grace.rglob("config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": {"platform": "macOS"}}))
    assert main(["compare", "pack", str(ada), str(grace), str(tmp_path / "all")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{ada}: seeds 0, 1, 8 of 8 runs finished {grace}: seeds 2, 3, 8 of 8 runs finished Packed: " in printed
    assert printed.endswith("KiB, 16 of 16 runs finished")
    text = make_report(tmp_path / "all").read_text()
    assert "8 runs on platform Linux; 8 runs on platform macOS" in text
    assert "The runs were made on 2 machines, whose seconds do not compare." in text
    results = collect(tmp_path / "all")
    assert results.experiment["command"] == "compare --seeds 0-1\ncompare --seeds 2-3"
    assert results.experiment["machine"] == {"cpu_count": 2}
    assert results.experiment["versions"] == {"sb3_grpo": "0.1.0"}
    assert results.notes == ["The runs were made on 2 different machines: their seconds and speeds do not compare."]


def test_runs_of_the_same_seed_with_another_budget_do_not_slip_in(whole: Path) -> None:
    """Even where ``experiment.json`` does not say so."""
    grace = part_of(whole, "grace", seeds=[3])
    shutil.rmtree(grace / "runs")
    for env in ENVS:
        for name in ("ppo", "dapo"):
            run = write_run(grace, env, name, name, 3, curve_to(1.0), BUDGET)
            (run / "config.json").write_text(json.dumps({"algo": name, "timesteps": 77, "machine": {"platform": "Linux"}}))
    results = combine([collect(part_of(whole, "ada", seeds=[0])), collect(grace)])
    pack(results, whole.parent / "all")
    assert any("timesteps 77 instead of 10000" in note for note in collect(whole.parent / "all").notes)


def test_what_is_no_folder_of_a_comparison(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "ada.zip").write_bytes(b"PK")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "report.html").write_text("<html>")
    for name, message in (
        ("ada.zip", r"it is a file\. Unpack it first"),
        ("page", r"it has no experiment\.json, only a report, which does not hold the results"),
        (".", r"it has no experiment\.json\. Did you mean .*whole\?"),
        ("nowhere", r"it has no experiment\.json$"),
    ):
        with pytest.raises(UsageError, match=message):
            collect(tmp_path / name)


@pytest.mark.parametrize(
    ("seeds", "words"), [([4], "seed 4"), ([0, 1], "seeds 0, 1"), ([7, 8, 9], "seeds 7 to 9"), ([1, 3, 7], "seeds 1, 3, 7")]
)
def test_seeds_in_words(seeds: list[int], words: str) -> None:
    assert seeds_in_words(seeds) == words
