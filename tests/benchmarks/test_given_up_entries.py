"""Which comparisons of an entry with the defaults go on, and which are shown."""

import json
from pathlib import Path

import pytest

pytest.importorskip("optuna")
pytest.importorskip("rliable")

from benchmarks import entries

TASK, ALGO = "HalfCheetah-v5", "dapo"


@pytest.mark.parametrize(
    ("entry", "defaults", "ended", "shown"),
    [
        ([9, 8], [1, 2], False, None),
        ([9, 8, 7], [1, 2, 3], False, None),
        ([1, 2, 3], [9, 8, 7], True, "3"),
        ([5, 5, 5], [5, 5, 5], True, "3"),
        ([1, 2, 3], [9, 8], False, None),
        # What comes later neither ends nor saves it
        ([9, 8, 7, 1], [1, 2, 3, 9], False, None),
        ([9, 8, 7, 0, 0], [1, 2, 3, 9, 9], False, "5"),
        ([9, 8, 7, 9], [1, 2, 3], False, None),
    ],
)
def test_an_entry_that_does_not_lead_after_three_seeds_is_given_up(
    entry: list[float],
    defaults: list[float],
    ended: bool,
    shown: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        {"task": TASK, "algo": ALGO, "arm": arm, "seed": seed, "mean_return": value}
        for arm, values in zip(entries.ARMS, (entry, defaults), strict=True)
        for seed, value in zip(entries.SEEDS, values, strict=False)
    ]
    monkeypatch.setattr(entries, "RESULTS", tmp_path / "rows.jsonl")
    # As they come: in any order
    entries.RESULTS.write_text("".join(json.dumps(row) + "\n" for row in reversed(rows)))
    assert entries.has_ended(TASK, ALGO) == ended
    lines = entries.table().splitlines()[2:]
    assert [line.split("|")[2].strip() for line in lines] == ([] if shown is None else [shown])
