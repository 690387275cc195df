"""The lecture in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sb3_grpo.classroom.lecture.page import write_lecture
from tests.browser import Opened


@pytest.fixture(scope="session")
def lecture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lecture(tmp_path_factory.mktemp("lecture") / "lecture.html")


@pytest.fixture
def lesson(browser: Any, lecture: Path) -> Iterator[Opened]:
    opened = Opened(browser, lecture)
    yield opened
    assert opened.complaints == []
    opened.page.close()


@pytest.fixture
def opened(lesson: Opened) -> Any:
    return lesson.page
