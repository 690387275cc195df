from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Opened


class Clock:
    """In the place of the module ``time``. Each look takes a millisecond; a test may let more go by."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-3
        return self.now


@pytest.fixture(autouse=True, scope="module")
def few_resamples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sb3_grpo.classroom.compare.statistics.RESAMPLES", 200)
        yield


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than all the rest of a report."""
    monkeypatch.setattr("sb3_grpo.classroom.compare.figures.save", lambda *arguments: "<svg></svg>")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    """A module's report in the browser: it must ask for nothing, and complain of nothing."""
    opened = Opened(browser, report, viewport={"width": 1280, "height": 800})
    yield opened
    assert opened.complaints == []
    # Moving pictures are in the page
    assert [request for request in opened.requests if not request.startswith("data:image/webp")] == [report.as_uri()]
    opened.page.close()
