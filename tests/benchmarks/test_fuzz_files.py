"""Changed models, as many as there is time for, and the results of more of them."""

import random
from pathlib import Path

import pytest

from sb3_grpo import DAPO
from stress.fuzz_files import Files, try_file


def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return Files(folder)


def test_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, rng = made(tmp_path, monkeypatch), random.Random(7)
    for kind in files.kinds:
        outcomes = [try_file(files, kind, rng) for _ in range(25)]
        assert {*outcomes} <= {"read", "refused"} and "refused" in outcomes, (kind, outcomes)


def test_without_the_check_safe_models_are_found_to_import_and_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, rng = made(tmp_path, monkeypatch), random.Random(7)
    assert "env" in files.names[0] and {"env", "learn"} <= {*files.names[1]}
    for name, wrong in (("env", "imported what it names"), ("learn", "no clear error: RuntimeError: {'learn'} of the class")):
        files.names = ([name], [name])
        outcomes = {try_file(files, "safe model with one more attribute", rng) for _ in range(50)}
        assert outcomes == {"refused"}
        with monkeypatch.context() as without:
            without.setattr(DAPO, "_never_in_safe_files", lambda model, names: set())
            # Each time: a module is imported once
            outcomes = [try_file(files, "safe model with one more attribute", rng) for _ in range(50)]
        assert sum(outcome.startswith(wrong) for outcome in outcomes) > 1, outcomes
