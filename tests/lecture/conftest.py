"""The lecture in a browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sb3_grpo.lecture.page import write_lecture

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")


@pytest.fixture(scope="session")
def lecture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lecture(tmp_path_factory.mktemp("lecture") / "lecture.html")


@pytest.fixture(scope="session")
def browser() -> "Iterator[playwright.Browser]":
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Opened:
    """A page, and what went wrong on it."""

    def __init__(self, browser: "playwright.Browser", path: Path, fragment: str = "", **options: object):
        self.page = browser.new_page(**options)  # type: ignore[arg-type]
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri() + fragment)
        self.page.wait_for_function("window.lecture !== undefined")


@pytest.fixture
def opened(browser: "playwright.Browser", lecture: Path) -> "Iterator[playwright.Page]":
    opened = Opened(browser, lecture)
    yield opened.page
    assert opened.complaints == []
    opened.page.close()


def until(page: "playwright.Page", expression: str, seconds: float = 30) -> None:
    """
    Wait as ``wait_for_function`` does, which the page's policy forbids.

    :param page: A page
    :param expression: JavaScript
    :param seconds: How long it may take until it is true
    """
    for _ in range(int(seconds / 0.05)):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"Still not true: {expression}")
