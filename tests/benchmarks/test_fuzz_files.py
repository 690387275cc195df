"""Changed files, as many as there is time for, and the results of more of them."""

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("rliable")

from benchmarks.common import RESULTS
from benchmarks.fuzz_files import Files, try_file


def test_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files, rng = Files(tmp_path), random.Random(7)
    for kind in files.kinds:
        outcomes = [try_file(files, kind, rng) for _ in range(25)]
        assert {*outcomes} <= {"read", "refused"} and "refused" in outcomes, (kind, outcomes)


def test_the_committed_results() -> None:
    result = json.loads((RESULTS / "trust" / "files.json").read_text())
    assert result["n"] >= 10_000 and result["as_promised"] == result["n"]
