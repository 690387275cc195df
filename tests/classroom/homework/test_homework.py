"""A homework sheet, from the stubs to the points, also for submissions that are wrong, hang, or want to harm."""

import csv
import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch as th

from sb3_grpo.classroom.homework import equality, exercises, sheets, student
from sb3_grpo.classroom.homework.exercises import EXERCISES
from sb3_grpo.classroom.homework.grading import check
from sb3_grpo.cli.main import _make_parser, main

SOLUTION = (Path(sheets.__file__).parent / "handouts" / "solution.py").read_text()
MINIMUM = "-th.min(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)"
OUTCOMES = "(outcomes != outcomes[:, :1]).any(1)"
KL = "log_r.exp() - 1 - log_r"
ALL_STEPS = "th.full(episode.shape, 1 / len(episode))"


def written(path: Path, right: str = "", wrong: str = "") -> Path:
    """The solution with a change."""
    assert right in SOLUTION
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SOLUTION.replace(right, wrong) if right else SOLUTION)
    return path


def problems(path: Path) -> dict[str, str]:
    return {each.name: each.problem for each in check(path) if each.problem}


def test_solution_is_right(tmp_path: Path) -> None:
    assert problems(written(tmp_path / "student.py")) == {}


@pytest.mark.parametrize(
    "right, wrong, test, idea",
    [
        ("outcomes.std(1, keepdim=True)", "outcomes.var(1, keepdim=True)", "group_advantage", "square root"),
        (
            "std(1, keepdim=True)",
            "std(1, keepdim=True, correction=0)",
            "group_advantage",
            "the sample deviation divides by G - 1",
        ),
        ("-th.min(", "-th.max(", "dapo_loss", "you took the maximum"),
        ("1 - clip_low, 1 + clip_high", "1 + clip_high, 1 - clip_low", "ppo_loss", "the bounds are swapped"),
        ("log_ratio.exp()", "log_ratio.exp().detach()", "dapo_loss, gradient", "there is no gradient"),
        ("ref_log_prob - log_prob", "log_prob - ref_log_prob", "k3", "the sign of the log ratio"),
        (ALL_STEPS, "1 / (n_episodes * episode.bincount())[episode]", "token_average", "you kept 1/|o|"),
        (ALL_STEPS, "th.full(episode.shape, 1 / (n_episodes * episode.bincount().max()))", "token_average", "padded steps"),
        (OUTCOMES, "th.ones(len(outcomes), dtype=th.bool)", "live", "dead groups are kept"),
        (OUTCOMES, "outcomes.std(1) > 0", "live", "depends on rounding"),
        (
            "th.where(is_last, rewards + penalty, rewards)",
            "rewards + penalty * mask",
            "overlong",
            "the penalty is on all steps",
        ),
        (f"return {KL}", KL, "k3", "it returns nothing"),
        (KL, "log_r.exp() - 1 - th.log_r", "k3", "AttributeError: module 'torch' has no attribute 'log_r' (line "),
    ],
)
def test_mistakes_are_named(tmp_path: Path, right: str, wrong: str, test: str, idea: str) -> None:
    assert idea in problems(written(tmp_path / "student.py", right, wrong))[test]


@pytest.mark.parametrize(
    "right, wrong, said",
    [
        (KL, "[0 for _ in iter(int, 1)]", "did not finish"),
        (KL, "__import__('os')._exit(0)", "it ended its process"),
        (KL, "exit()", "it ended its process"),
        (KL, "th.ones(2**34)", "alloc"),
        (KL, "__import__('sb3_grpo')", "write the functions with PyTorch alone"),
        # Writes into the connection what is no message
        (KL, "__import__('os').write(int(__import__('sys').argv[1]), b'[' * 10**6)", "it sent what cannot be read"),
    ],
)
def test_hostile_functions_only_harm_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, said: str
) -> None:
    monkeypatch.setattr(student, "_CALL", 3.0)
    found = problems(written(tmp_path / "student.py", right, wrong))
    assert {*found} == {"k3", "k3, gradient"}
    assert said in found["k3"]


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    path = written(tmp_path / "student.py", "import torch as th", "import torch as th\nthat is no Python")
    assert all(
        problem.startswith("StudentError: student.py cannot be imported: SyntaxError") for problem in problems(path).values()
    )


def test_values_in_the_process_of_the_functions(tmp_path: Path) -> None:
    """There is nothing of this package in it."""
    spy = (
        "th.tensor([float(each.startswith('sb3_grpo')) for each, module in __import__('sys').modules.items() if module]).sum()"
    )
    with student.Student(written(tmp_path / "student.py", KL, spy)) as functions:
        assert functions.call("k3", th.zeros(2), th.zeros(2))[0] == 0


@pytest.mark.parametrize("exercise", [each for each in EXERCISES if each.name in equality.POINTS], ids=lambda each: each.name)
def test_another_function_trains_another_policy(exercise: exercises.Exercise) -> None:
    wrong = next(iter(exercise.mistakes.values()))

    class Wrong:
        def call(self, function: str, *arguments, gradient_of: int | None = None):
            assert function == exercise.function
            gradient = None if gradient_of is None else exercises.gradient_of(wrong, gradient_of)
            return wrong(*arguments), None if gradient is None else equality._gradient(wrong, gradient_of, arguments)

    assert "it trains another policy" in equality.differences(Wrong(), [exercise.function])[exercise.function]


def test_points(tmp_path: Path) -> None:
    folders = [written(tmp_path / name / "student.py").parent for name in ("ada", "grace")]
    written(tmp_path / "lin" / "handed in" / "student.py", OUTCOMES, "th.ones(len(outcomes), dtype=th.bool)")
    (tmp_path / "nobody").mkdir()
    folders += [tmp_path / "lin", tmp_path / "nobody"]
    assert main(["homework", "grade", *map(str, folders), "--output", str(tmp_path / "grades"), "--workers", "2"]) == 0
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "grades" / "points.csv").open())}
    assert {name: (row["points"], row["of"]) for name, row in rows.items()} == {
        "ada": ("70", "70"),
        "grace": ("70", "70"),
        "lin": ("63", "70"),
        "nobody": ("0", "70"),
    }
    assert rows["lin"]["live"] == rows["lin"]["live, training"] == "0"
    results = json.loads((tmp_path / "grades" / "lin" / "results.json").read_text())
    assert results["score"] == 63
    assert results["score"] == sum(test["score"] for test in results["tests"])
    [test] = [test for test in results["tests"] if test["name"] == "live"]
    assert "dead groups are kept" in test["output"]


def test_a_sheet_has_stubs_and_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hw"
    assert main(["homework", "new", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {"README.md", "hw.yml", "student.py"}
    stubs = (folder / "student.py").read_text()
    assert stubs.count("raise NotImplementedError") == 7
    assert not any(line in stubs for line in (MINIMUM, OUTCOMES, KL, ALL_STEPS))
    assert main(["homework", "check", str(folder)]) == 1
    assert capsys.readouterr().out.count("not written yet") == len(EXERCISES)
    (folder / "student.py").write_text("mine")
    assert main(["homework", "new", str(folder)]) == 2
    assert (folder / "student.py").read_text() == "mine"
    assert main(["homework", "new", str(tmp_path / "mine"), "--solution"]) == 0
    assert (tmp_path / "mine" / "student.py").read_text() == SOLUTION


@pytest.mark.parametrize("sheet", sheets.SHEETS)
def test_answers_are_for_lecturers(tmp_path: Path, sheet: str) -> None:
    for folder, options in ((tmp_path / "student", []), (tmp_path / "lecturer", ["--solution"])):
        assert main(["homework", "new", str(folder), "--sheet", sheet, *options]) == 0
    names = {path.name for path in (tmp_path / "student").iterdir()}
    assert {path.name for path in (tmp_path / "lecturer").iterdir()} == {*names, "ANSWERS.md"}
    # The lines of the handout that tell what to type are understood
    for line in (tmp_path / "student" / "README.md").read_text().splitlines():
        if line.strip().startswith("sb3-grpo "):
            _make_parser().parse_args(shlex.split(line)[1:])


@pytest.mark.slow
def test_comparisons_of_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rliable")
    assert main(["homework", "new", str(tmp_path / "ada"), "--solution"]) == 0
    monkeypatch.chdir(tmp_path / "ada")
    sheet = Path("hw.yml").read_text().replace("20_000", "2_000").replace("seeds: 3", "seeds: 1")
    Path("hw.yml").write_text(sheet + "n_evaluations: 2\nn_eval_episodes: 1\nn_final_episodes: 2\n")
    assert main(["compare", "--config", "hw.yml", "--no-clip"]) == 0
    shutil.copytree(tmp_path / "ada", tmp_path / "grace")
    (tmp_path / "nobody").mkdir()
    capsys.readouterr()
    folders = [str(tmp_path / name) for name in ("ada", "grace", "nobody")]
    assert main(["homework", "collect", *folders, "--output", str(tmp_path / "class")]) == 0
    assert "Left out: nobody" in capsys.readouterr().out
    from sb3_grpo.classroom.compare.collect import collect

    results = collect(tmp_path / "class")
    assert {*results.variants} == {"ada", "grace", "DAPO", "GRPO", "ppo"}
    # The student's functions train the package's policy
    scores = [results.final_scores("CartPole-v1", name, "deterministic") for name in ("ada", "grace", "DAPO")]
    assert scores[0] == scores[1] == scores[2]
