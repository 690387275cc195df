"""Changed models, as many as there is time for."""

import random
from pathlib import Path

import pytest

from stress.fuzz_files import Files, try_file


def test_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    files, rng = Files(tmp_path), random.Random(7)
    for kind in files.kinds:
        outcomes = [try_file(files, kind, rng) for _ in range(25)]
        assert {*outcomes} <= {"read", "refused"} and "refused" in outcomes, (kind, outcomes)
