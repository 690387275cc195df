"""
The page of what was tried to break: ``python -m benchmarks.trust`` writes ``docs/results/trust.md``.

A row for each file of ``benchmarks/results/trust``, in which the script that made it says what was tried, what is promised,
how often it was kept, and by which command it is made again.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "trust.md"
_BEFORE = """# Trust

What was tried to break the package, and how often it kept what it promises. Each row is a committed script that can be run
again.

"""
_AFTER = """
- *Changed* means: a value put in the place of another, left out or written twice, or bytes of the file cut off,
  repeated or replaced. Parts of safe models were also changed together with their hashes.
- *Arguments.* An error counts as clear if it is raised when the model is made and names one of the arguments that
  were strange. `group_metric` is the exception: which keys the environment's `info` has is known at the end of the
  first episode.
- *Functions of your own* (`advantage=`, `policy_loss=`, ...) are checked for how they can be called; what they return
  is checked in training.
- *Files with pickles* were tried with `trusted=False` only. With `trusted=True`, the default, [a file runs what its
  maker has written](../guide/saving.md).
- *Answers.* What is right follows from how an answer was made; the list of [what is accepted](../text_tasks.md) is
  stricter than mathematics.
"""


def _row(result: dict[str, Any]) -> str:
    share = result["as_promised"] / result["n"]
    shown = "100%" if result["as_promised"] == result["n"] else f"{100 * share:.2f}%"
    script = result["command"].removeprefix("python -m ")
    return f"| {result['what']} | {result['promise']} | {result['n']:,} | {shown} | `{script}` |"


def page(folder: Path) -> str:
    """
    :param folder: with a JSON file for each row: ``what``, ``promise``, ``n``, ``as_promised``, ``command``
    :return: the page
    """
    rows = [_row(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    head = "| what was tried | what is promised | tried | kept | made by `python -m` |\n|---|---|---|---|---|\n"
    return _BEFORE + head + "\n".join(rows) + "\n" + _AFTER


if __name__ == "__main__":
    PAGE.write_text(page(RESULTS / "trust"))
