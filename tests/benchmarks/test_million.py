"""What is kept of the log of a long training."""

import pytest

pytest.importorskip("optuna")
pytest.importorskip("rliable")

from benchmarks.million import tenths


def test_a_value_in_each_tenth_of_the_updates() -> None:
    tables = [
        f"| group/    |          |\n|    return_std | 617 |\n| train/ |  |\n|    std        | {n}e-1    |\n" for n in range(20)
    ]
    assert tenths("".join(tables), "std") == [0.05, 0.25, 0.45, 0.65, 0.85, 1.05, 1.25, 1.45, 1.65, 1.85]
