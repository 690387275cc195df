"""A homework sheet, from the stubs to the points, also for submissions that are wrong, hang, or want to harm."""

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch as th

from sb3_grpo.classroom.homework import equality, exercises, grading, sheets, student
from sb3_grpo.classroom.homework.exercises import EXERCISES
from sb3_grpo.classroom.homework.grading import check
from sb3_grpo.classroom.homework.sandbox import evaluate
from sb3_grpo.cli.main import _make_parser, main

SOLUTION = (Path(sheets.__file__).parent / "handouts" / "solution.py").read_text()
OUTCOMES = "(outcomes != outcomes[:, :1]).any(1)"
KL = "log_r.exp() - 1 - log_r"
ALL_STEPS = "th.full(episode.shape, 1 / len(episode))"


def written(path: Path, *changes: tuple[str, str]) -> Path:
    """The solution with changes."""
    text = SOLUTION
    for right, wrong in changes:
        assert right in text
        text = text.replace(right, wrong)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problems(path: Path) -> dict[str, str]:
    with student.Student(path) as functions:
        return {each.name: each.problem for each in check(functions, hidden=False) if each.problem}


def test_solution_is_right(tmp_path: Path) -> None:
    assert problems(written(tmp_path / "student.py")) == {}


# What is replaced by what, the test that notices it, and what it says
MISTAKES = [
    [
        ("outcomes.std(1, keepdim=True)", "outcomes.var(1, keepdim=True)", "group_advantage", "square root"),
        ("-th.min(", "-th.max(", "dapo_loss", "you took the maximum"),
        ("ref_log_prob - log_prob", "log_prob - ref_log_prob", "k3", "the sign of the log ratio"),
        (ALL_STEPS, "1 / (n_episodes * episode.bincount())[episode]", "token_average", "you kept 1/|o|"),
        (OUTCOMES, "th.ones(len(outcomes), dtype=th.bool)", "live", "dead groups are kept"),
        (
            "th.where(is_last, rewards + penalty, rewards)",
            "rewards + penalty * mask",
            "overlong",
            "the penalty is on all steps",
        ),
    ],
    [
        (
            "std(1, keepdim=True)",
            "std(1, keepdim=True, correction=0)",
            "group_advantage",
            "the sample deviation divides by G - 1",
        ),
        ("1 - clip_low, 1 + clip_high", "1 + clip_high, 1 - clip_low", "ppo_loss", "the bounds are swapped"),
        (ALL_STEPS, "th.ones(len(episode)) / (n_episodes * episode.bincount().max())", "token_average", "padded steps"),
        (OUTCOMES, "outcomes.std(1) > 0", "live", "depends on rounding"),
        (f"return {KL}", KL, "k3", "it returns nothing"),
    ],
    [
        ("log_ratio.exp()", "log_ratio.exp().detach()", "dapo_loss, gradient", "there is no gradient"),
        (KL, "log_r.exp() - 1 - th.log_r", "k3", "AttributeError: module 'torch' has no attribute 'log_r' (line "),
        (
            "outcomes.std(1, keepdim=True) + 1e-8",
            "outcomes.std(1, keepdim=True)",
            "group_advantage",
            "is something divided by 0?",
        ),
        (ALL_STEPS, "th.full_like(episode, 1 / len(episode))", "token_average", "holds whole numbers"),
    ],
    [
        (
            "th.where(mask, advantages, 0.0)",
            "advantages.expand_as(rewards)",
            "group_advantage",
            "padded steps have an advantage",
        ),
    ],
]


@pytest.mark.parametrize("mistakes", MISTAKES)
def test_mistakes_are_named(tmp_path: Path, mistakes: list[tuple[str, str, str, str]]) -> None:
    found = problems(written(tmp_path / "student.py", *((right, wrong) for right, wrong, *_ in mistakes)))
    for *_, test, idea in mistakes:
        assert idea in found[test]


@pytest.mark.parametrize(
    "wrong, said",
    [
        # The beginning of a message, and then nothing
        ("[os.write(int(sys.argv[1]), bytes(4)), [0 for _ in iter(int, 1)]]", "did not finish"),
        ("os._exit(0)", "it ended its process"),
        ("exit()", "it ended its process"),
        ("th.ones(2**34)", "alloc"),
        ("__import__('sb3_grpo')", "write the functions with PyTorch alone"),
        # Its parent, all processes, and children that would outlive it. Signal 0 would do no harm
        ("os.kill(os.getppid(), 0)", "Operation not permitted"),
        ("os.kill(-1, 0)", "Operation not permitted"),
        ("__import__('subprocess').run(['sleep', '60'], start_new_session=True)", "Operation not permitted"),
        # Limits of its parent, a tracer, and a second number of getpid on x86-64
        ("__import__('resource').prlimit(os.getppid(), 0)", "Operation not permitted"),
        ("{0: 0}[ctypes.CDLL(None).ptrace(0, 0, 0, 0)]", "KeyError: -1"),
        ("{0: 0}[[ctypes.CDLL(None, use_errno=True).syscall(0x40000027), ctypes.get_errno()][1]]", "KeyError: 1"),
        # Writes into the connection what is no message
        ("os.write(int(sys.argv[1]), b'[' * 10**6)", "it sent what cannot be read"),
        # Nothing of this package is in the process
        ("{each: 0 for each, module in sys.modules.items() if module and 'sb3_grpo' in each}[0]", "KeyError: 0"),
    ],
)
def test_functions_only_harm_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, said: str) -> None:
    monkeypatch.setattr(student, "_CALL", 3.0)
    path = written(tmp_path / "student.py", (KL, wrong), ("import torch as th", "import ctypes, os, sys\nimport torch as th"))
    with student.Student(path) as functions:
        with pytest.raises(student.StudentError, match=re.escape(said)):
            functions.call("k3", th.zeros(2), th.zeros(2))
        assert functions.call("live", th.eye(2))["values"].tolist() == [True, True]


def test_limits_do_not_depend_on_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -t 60\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with student.Student(written(tmp_path / "student.py", (KL, "th.empty(2**30)"))) as functions:
        with pytest.raises(student.StudentError, match="alloc"):
            functions.call("k3", th.zeros(2), th.zeros(2))


def test_functions_end_with_what_calls_them(tmp_path: Path) -> None:
    stays = "print('called', flush=True), sleep(20), print('still here', flush=True)"
    path = written(tmp_path / "student.py", (KL, stays), ("import torch as th", "from time import sleep\nimport torch as th"))
    program = (
        "import pathlib, sys, torch as th; from sb3_grpo.classroom.homework import student; student._CALL = 60.0;"
        "student.Student(pathlib.Path(sys.argv[1]), quiet=False).call('k3', th.zeros(2), th.zeros(2))"
    )
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "called\n"
        caller.kill()
        assert caller.stdout.read() == ""


def test_the_environment_is_not_for_students(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "abc")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    names = "{'SECRET', 'PATH', 'HOME', 'OPENBLAS_CORETYPE'} & {*os.environ}"
    path = written(
        tmp_path / "student.py", (KL, f"th.zeros(len({names}))"), ("import torch as th", "import os\nimport torch as th")
    )
    with student.Student(path) as functions:
        assert len(functions.call("k3", th.zeros(2), th.zeros(2))["values"]) == 3


@pytest.mark.parametrize("begin", [b"\xef\xbb\xbf", "# -*- coding: latin-1 -*-\nGr\xf6\xdfe = 1\n".encode("latin-1")])
def test_files_are_read_as_by_python(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "student.py"
    path.write_bytes(begin + SOLUTION.encode())
    with student.Student(path) as functions:
        assert functions.call("live", th.eye(2))["values"].tolist() == [True, True]


def end_early(connection: Any, name: str, path: Path, temporary: str) -> None:
    """In place of the grading of a student."""
    tempfile.mkdtemp(dir=temporary)
    connection.send(None)
    if name == "trent":
        os._exit(1)
    if name != "grace":
        os.kill(os.getpid(), signal.SIGKILL if name == "eve" else signal.SIGSTOP)
    connection.send(grading.Grade(name, [grading.Result("k3", 4, "")]))


@pytest.mark.slow
def test_a_process_that_ends_takes_its_own_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(grading, "_send_grade", end_early)
    monkeypatch.setattr(grading, "_SILENCE", 2.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    folders = [tmp_path / name for name in ("eve", "mallory", "grace", "trent")]
    for folder in folders:
        written(folder / "student.py")
    written(folders[2] / "old" / "student.py")
    assert main(["homework", "grade", *map(str, folders), "--output", str(tmp_path / "grades"), "--workers", "1"]) == 0
    points = {row["student"]: row["points"] for row in csv.DictReader((tmp_path / "grades" / "points.csv").open())}
    assert points == {"eve": "0", "mallory": "0", "grace": "4", "trent": "0"}
    said = capsys.readouterr().out
    whys = {"eve": "exit code -9", "mallory": "was stopped", "grace": "is graded, not", "trent": "exit code 1"}
    for name, why in whys.items():
        assert re.search(f"(?m)^{name}: .*{why}", said)
        output = json.loads((tmp_path / "grades" / name / "results.json").read_text())["output"]
        assert why in output
        assert ("killed" in output) == (name == "eve")
    assert not [*(tmp_path / "temporary").iterdir()]


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    found = problems(written(tmp_path / "student.py", ("import torch as th", "import torch as th\nthat is no Python")))
    assert found["live"].startswith("student.py cannot be imported: SyntaxError")


@pytest.mark.parametrize("exercise", [each for each in EXERCISES if each.name in equality.POINTS], ids=lambda each: each.name)
def test_another_function_trains_another_policy(exercise: exercises.Exercise) -> None:
    wrong = next(iter(exercise.mistakes.values()))

    class Wrong:
        def call(self, function: str, *arguments, gradient_of: int | None = None):
            assert function == exercise.function
            return evaluate(wrong, arguments, gradient_of)

    assert "it trains another policy" in equality.differences(Wrong(), [exercise.function])[exercise.function]


@pytest.mark.slow
def test_points(tmp_path: Path) -> None:
    written(tmp_path / "ada" / "student.py")
    written(tmp_path / "lin" / "handed in" / "student.py", (OUTCOMES, "th.ones(len(outcomes), dtype=th.bool)"))
    (tmp_path / "nobody").mkdir()
    folders = [tmp_path / name for name in ("ada", "lin", "nobody")]
    assert main(["homework", "grade", *map(str, folders), "--output", str(tmp_path / "grades"), "--workers", "2"]) == 0
    rows = {row["student"]: row for row in csv.DictReader((tmp_path / "grades" / "points.csv").open())}
    assert {name: (row["points"], row["of"]) for name, row in rows.items()} == {
        "ada": ("70", "70"),
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
    assert not any(line in stubs for line in ("th.min(", OUTCOMES, KL, ALL_STEPS))
    assert main(["homework", "check", str(folder)]) == 1
    assert capsys.readouterr().out.count("not written yet") == 7
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
    from sb3_grpo.classroom.compare.collect import collect

    assert main(["homework", "new", str(tmp_path / "ada"), "--solution"]) == 0
    monkeypatch.chdir(tmp_path / "ada")
    sheet = Path("hw.yml").read_text().replace("20_000", "2_000").replace("seeds: 3", "seeds: 1")
    Path("hw.yml").write_text(sheet + "n_evaluations: 2\nn_eval_episodes: 1\nn_final_episodes: 2\n")
    # As students do: the runs find student.py where the command was given
    command = [sys.executable, "-m", "sb3_grpo", "compare", "--config", "hw.yml", "--no-clip"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run(command, check=True, env=env)
    # The student's functions are still the same ones
    subprocess.run(command, check=True, env=env)
    shutil.copytree("comparisons", tmp_path / "grace" / "comparisons")
    shutil.copytree("comparisons", tmp_path / "lin" / "comparisons")
    evaluations = tmp_path / "lin" / "comparisons" / "hw" / "runs" / "CartPole-v1" / "my DAPO" / "0" / "evaluations.csv"
    with evaluations.open() as file:
        header, first, *rows = file.readlines()
    place = header.strip().split(",").index("return_mean")
    changed = first.split(",")
    changed[place] = "7.0"
    evaluations.write_text("".join([header, ",".join(changed), *rows]))
    (tmp_path / "nobody").mkdir()
    capsys.readouterr()
    folders = [str(tmp_path / name) for name in ("ada", "grace", "lin", "nobody")]
    assert main(["homework", "collect", *folders, "--output", str(tmp_path / "class")]) == 0
    said = capsys.readouterr().out
    assert "The same curve: ada, grace" in said
    assert "Left out: nobody" in said
    results = collect(tmp_path / "class")
    assert {*results.variants} == {"ada and 1 more", "lin", "DAPO", "GRPO", "ppo"}
    # The student's functions train the package's policy
    scores = [results.final_scores("CartPole-v1", name, "deterministic") for name in ("ada and 1 more", "DAPO")]
    assert scores[0] == scores[1]
