"""
The page on what we tried to break: ``python -m benchmarks.trust`` writes ``docs/results/trust.md``.

One row for resumed training runs, one for killed processes, and one for each file in
``benchmarks/results/trust``, in which the script that wrote it says what was tried, what is promised, how often the promise
was kept, and which command repeats it. Below the table comes ``benchmarks/readings/trust.md``.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "trust.md"
READING = Path(__file__).resolve().parent / "readings" / "trust.md"
_BEFORE = """# Trust

Attempts to break the package, and how often it kept its promises. Each row comes from a committed script that can be
rerun.

"""


def resumed(results: Path) -> dict[str, Any]:
    """
    :param results: Results of ``benchmarks.resume``, a setting in each line
    :return: Its row
    """
    settings = [json.loads(line) for line in results.read_text().splitlines()]
    identical = [each for setting in settings for each in setting["identical"]]
    return {
        "what": f"training resumed in new processes, {len(settings)} settings",
        "promise": "parameters, optimizer and statistics bit-identical to those of uninterrupted training",
        "n": len(identical),
        "as_promised": sum(identical),
        "command": "python -m benchmarks.resume",
    }


def killed(results: Path) -> dict[str, Any]:
    """
    :param results: Results of ``benchmarks.kills``
    :return: Its row
    """
    found = json.loads(results.read_text())
    return {
        "what": f"processes killed with SIGKILL, {found['while_writing']} of them while a checkpoint was being written",
        "promise": "the newest checkpoint is intact, and the next process continues from it",
        "n": found["kills"],
        "as_promised": found["resumable"],
        "command": "python -m benchmarks.kills",
    }


def _row(result: dict[str, Any]) -> str:
    share = result["as_promised"] / result["n"]
    shown = "100%" if result["as_promised"] == result["n"] else f"{100 * share:.2f}%"
    script = result["command"].removeprefix("python -m ")
    return f"| {result['what']} | {result['promise']} | {result['n']:,} | {shown} | `{script}` |"


def page(results: Path, reading: Path) -> str:
    """
    :param results: Folder with the results of ``benchmarks.resume`` and ``benchmarks.kills``, and a folder ``trust`` with
        a JSON file for each other row: ``what``, ``promise``, ``n``, ``as_promised``, ``command``
    :param reading: Text below the table
    :return: The page
    """
    others = [json.loads(path.read_text()) for path in sorted((results / "trust").glob("*.json"))]
    rows = [_row(each) for each in (resumed(results / "resume.jsonl"), killed(results / "kills.json"), *others)]
    head = "| what was tried | promise | attempts | kept | measured by `python -m` |\n|---|---|---|---|---|\n"
    return _BEFORE + head + "\n".join(rows) + "\n\n" + reading.read_text()


if __name__ == "__main__":
    PAGE.write_text(page(RESULTS, READING))
