"""Packed results: a few small files that say the same."""

import resource
from pathlib import Path

import pytest

pytest.importorskip("rliable")

import pandas as pd
from compare_data import curve_to, write_experiment

from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.packed import pack
from sb3_grpo.classroom.compare.report import make_report
from sb3_grpo.cli.main import main
from sb3_grpo.console import UsageError


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


def test_packed_results_are_not_continued(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["compare", "pack", str(folder), str(tmp_path / "packed")])
    command = [
        "compare",
        "--env",
        "CartPole-v1",
        "--algo",
        "ppo",
        "dapo",
        "--seeds",
        "1",
        "--output",
        str(tmp_path / "packed"),
    ]
    assert main(command) == 2
    assert "holds packed results, which cannot be continued" in " ".join(capsys.readouterr().err.split())


def test_runs_are_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "pack", str(folder), str(folder)]) == 2
    assert "holds the runs themselves" in " ".join(capsys.readouterr().err.split())
    make_report(folder)


def test_packed_results_are_not_packed_onto_themselves(folder: Path, tmp_path: Path) -> None:
    pack(collect(folder), tmp_path / "packed")
    before = {path: path.read_bytes() for path in (tmp_path / "packed").iterdir()}
    with pytest.raises(UsageError, match=r"packed is what is to be packed: choose another folder"):
        pack(collect(tmp_path / "packed"), tmp_path / "packed")
    assert {path: path.read_bytes() for path in (tmp_path / "packed").iterdir()} == before


def test_packed_results_are_renewed_and_not_replaced_by_others(folder: Path, tmp_path: Path) -> None:
    pack(collect(folder), tmp_path / "packed")
    more = write_experiment(tmp_path / "more", lambda env, variant, seed: curve_to(100.0), seeds=4)
    pack(collect(more), tmp_path / "packed")
    assert len(collect(tmp_path / "packed").experiment["seeds"]) == 4
    # Fewer would lose runs, and this also says that it is another comparison
    with pytest.raises(
        UsageError, match=r"packed, the folder to write to, holds packed results, 2 runs of which are not in .*full"
    ):
        pack(collect(folder), tmp_path / "packed")
    assert len(collect(tmp_path / "packed").experiment["seeds"]) == 4


def test_a_finished_run_without_its_return_is_named(folder: Path, tmp_path: Path) -> None:
    pack(collect(folder), tmp_path / "packed")
    path = tmp_path / "packed" / "evaluations.csv.xz"
    table = pd.read_csv(path)
    of_one = (table.variant == "dapo") & (table.seed == 1) & (table["mode"] == "stochastic") & (table.final == 1)
    assert of_one.sum() == 1
    table.loc[of_one, "return_mean"] = float("nan")
    table.to_csv(path, index=False)
    with pytest.raises(UsageError, match=r"CartPole-v1, dapo, seed 1 has finished, but there is no final stochastic return"):
        collect(tmp_path / "packed")
    table.drop(columns="return_mean").to_csv(path, index=False)
    with pytest.raises(UsageError, match=r"evaluations.csv.xz has no column return_mean"):
        collect(tmp_path / "packed")


@pytest.mark.parametrize("seeds", [[0, 1, 2, 2], [0, 1, 2, 3], [0, 1]])
def test_packed_runs_that_are_not_the_planned_ones(seeds: list[int], folder: Path, tmp_path: Path) -> None:
    pack(collect(folder), tmp_path / "packed")
    path = tmp_path / "packed" / "runs.csv"
    runs = pd.read_csv(path)
    rows = [runs[runs.seed == min(seed, 2)].assign(seed=seed, status="missing" if seed > 2 else "done") for seed in seeds]
    pd.concat(rows).to_csv(path, index=False)
    with pytest.raises(UsageError, match=r"packed is damaged: its runs.csv does not have one row for each run"):
        collect(tmp_path / "packed")


def test_a_full_disk_leaves_the_earlier_files(folder: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack(collect(folder), packed)
    before = (packed / "runs.csv").read_bytes()
    more = collect(write_experiment(tmp_path / "more", lambda env, variant, seed: curve_to(100.0), seeds=30))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((packed / "experiment.json").stat().st_size + 1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            pack(more, packed)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (packed / "runs.csv").read_bytes() == before
    pack(more, packed)
    assert len(collect(packed).runs) == 60
