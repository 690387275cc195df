"""The notebooks: every solution is right, nothing is before it is written, and both run from top to bottom."""

import json
from pathlib import Path

import numpy as np
import pytest

from sb3_grpo.cli.main import main
from sb3_grpo.cli.notebooks import fill_in

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# What a cell that trains, or reads what was trained, has in it
TRAINING = ("learn(", "train(", "teach(", "subprocess.run(", "results.")
# These train for more than a minute
LONG = ("reading_a_comparison", "your_environment_and_verifier")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def execute(text: str, folder: Path):
    """The notebook as it is after *Run all*, in a kernel of this Python."""
    notebook = nbformat.reads(text, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    return nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()


def printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []) if output.get("name") == "stdout")


def cells(path: Path, tag: str) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if tag in cell["metadata"].get("tags", [])]


@each_notebook
def test_every_exercise_has_a_check_and_a_solution(path: Path) -> None:
    tagged = [
        ("exercise" in tags) - ("solution" in tags)
        for cell in json.loads(path.read_text())["cells"]
        if {"exercise", "solution"} & set(tags := cell["metadata"].get("tags", []))
    ]
    assert tagged == [1, -1] * (len(tagged) // 2)
    assert fill_in(path.read_text()).count("NotImplementedError") < path.read_text().count("NotImplementedError")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=pytest.mark.long if path.stem in LONG else pytest.mark.slow)
        for path in NOTEBOOKS
    ],
)
def test_solutions_are_right(path: Path, tmp_path: Path) -> None:
    notebook = execute(fill_in(path.read_text()), tmp_path)
    report = printed(notebook.cells[-1])
    right, of, n_exercises = report.split()[:3]
    assert (right, of) == (n_exercises, "of")
    assert "passed" in report


@pytest.mark.slow
@each_notebook
def test_unsolved_exercises_say_so(path: Path, tmp_path: Path) -> None:
    """Whoever presses *Run all* before anything is written reads no traceback but where the trainings begin."""
    notebook = nbformat.reads(path.read_text(), as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not any(word in cell.source for word in TRAINING)]
    said = [printed(cell) for cell in execute(nbformat.writes(notebook), tmp_path).cells]
    n_exercises = int(said[-1].split()[2])
    assert said[-1].startswith("0 of ")
    assert sum(text.count("not written yet") + text.count("no answer yet") for text in said) == n_exercises


def test_data_are_those_of_the_results() -> None:
    """What the notebook about comparisons has been given is what was measured."""
    collecting = pytest.importorskip("sb3_grpo.classroom.compare.collect")
    pytest.importorskip("rliable")
    measured = collecting.collect(ROOT / "benchmarks" / "results" / "classroom")
    source = next(
        "".join(cell["source"])
        for cell in json.loads((ROOT / "docs" / "notebooks" / "reading_a_comparison.ipynb").read_text())["cells"]
        if "SCORES = {" in "".join(cell["source"])
    )
    names: dict = {"np": np}
    exec(source.split("figure, ax")[0], names)
    assert list(names["SCORES"]) == measured.variants
    for name, scores in names["SCORES"].items():
        np.testing.assert_allclose(scores, measured.final_scores("LunarLander-v3", name, "deterministic").round(1), atol=0.051)


def test_command_copies_and_keeps_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "lesson"
    assert main(["notebooks", "--output", str(folder), "--copy-only"]) == 0
    assert capsys.readouterr().out.count("Copied") == len(NOTEBOOKS)
    work = folder / NOTEBOOKS[0].name
    work.write_text("a student's work")
    assert main(["notebooks", "--output", str(folder), "--copy-only"]) == 0
    assert work.read_text() == "a student's work"
    assert "Copied" not in capsys.readouterr().out
    assert main(["notebooks", "--output", str(folder), "--copy-only", "--solutions"]) == 0
    solved = folder / NOTEBOOKS[0].name.replace(".ipynb", "_solutions.ipynb")
    assert "raise NotImplementedError" not in "".join("".join(cell["source"]) for cell in cells(solved, "exercise"))
