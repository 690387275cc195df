"""
The recording that the lecture shows before a visitor starts training: ``python -m benchmarks.lecture_live``.

Chromium runs the page's own code for each example of the widget, and the learning curves, thinned out, are written to
``sb3_grpo/classroom/lecture/data/live.json``.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.lecture_data import write
from sb3_grpo.classroom.lecture.page import write_lecture

MAX_POINTS = 40
WIDGET = "window.lecture.WIDGETS.live"


def thinned(run: dict[str, Any]) -> dict[str, Any]:
    """
    :param run: Algorithm, seed, and points of a learning curve
    :return: The same with no more points than can be told apart, including the last one
    """
    points = run["points"]
    stride = -(-len(points) // MAX_POINTS)
    kept = points[::-1][::stride][::-1]
    return {**run, "points": [[steps, *(each if each is None else round(each, 2) for each in rest)] for steps, *rest in kept]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        page_file = write_lecture(Path(folder) / "lecture.html")
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(0)
        page.goto(page_file.as_uri())
        recorded = []
        for state in page.evaluate(f"{WIDGET}.examples").values():
            runs = page.evaluate(f"(state) => {WIDGET}.record(state)", state)
            recorded.append({"state": state, "runs": [thinned(run) for run in runs]})
        browser.close()
    write("live", recorded)
