"""Pages in a real browser: whether they work, ask for nothing, and can be used by everybody."""

import multiprocessing
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


# For a busy machine: Playwright's own 30 seconds are not enough to start a browser next to other tests
PATIENCE = 300.0

# Letters are as wide in a font that is not there as in the one that takes its place
_HAS_FONT = """(font) => {
    const pen = document.createElement("canvas").getContext("2d");
    const width = (family) => { pen.font = `40px ${family}`; return pen.measureText("\u221axyz").width; };
    return width(`"${font}", monospace`) !== width("monospace");
}"""


@contextmanager
def chromium() -> "Iterator[Browser]":
    """A browser, or a skipped test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"], timeout=1000 * PATIENCE
        )
        yield browser
        browser.close()
        # Playwright waits for its pipes, which environments that tests left open may have inherited
        for process in multiprocessing.active_children():
            process.kill()


class Opened:
    """A page, and what went wrong on it."""

    def __init__(self, browser: "Browser", path: Path, fragment: str = "", **options: object):
        self.page = browser.new_page(**options)  # type: ignore[arg-type]
        self.page.set_default_timeout(1000 * PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri() + fragment)

    def go(self, fragment: str) -> None:
        """
        Go to another place of the page, as its links do.

        :param fragment: The place, and the state of a widget
        """
        self.page.evaluate("fragment => { location.hash = fragment; follow(); }", fragment)

    def add_style(self, css: str) -> None:
        """
        :param css: Rules to be added to the page
        """
        self.page.evaluate(
            "css => document.head.append(Object.assign(document.createElement('style'), {textContent: css}))", css
        )


def serious_findings(browser: "Browser", path: Path, **options: object) -> list[tuple[str, str]]:
    """
    :param browser: A browser
    :param path: Of a page
    :param options: Of the browser, such as its color scheme
    :return: What axe-core finds on the page that keeps somebody from using it, and where
    """
    from axe_playwright_python.sync_playwright import Axe

    # The page's own policy lets no other script in
    page = browser.new_context(bypass_csp=True, **options).new_page()  # type: ignore[arg-type]
    page.goto(path.as_uri())
    found = [each for each in Axe().run(page).response["violations"] if each["impact"] in ("serious", "critical")]
    page.close()
    return [(each["id"], each["nodes"][0]["html"][:200]) for each in found]


def needs_math_font(page: "Page") -> None:
    """
    Skip the test where none of the fonts that the style sheets name is installed.

    :param page: A page
    """
    fonts = "DejaVu Math TeX Gyre", "Latin Modern Math", "STIX Two Math", "Cambria Math"
    if not any(page.evaluate(_HAS_FONT, font) for font in fonts):
        pytest.skip("needs a font for mathematics: apt-get install fonts-dejavu-extra")


def draw_frames(page: "Page") -> None:
    """
    Wait until twenty frames have been drawn, in which all that moves would have moved, and what is off screen is noticed.

    :param page: A page
    """
    page.evaluate("async () => { for (let i = 0; i < 20; i++) await new Promise(requestAnimationFrame); }")


def until(page: "Page", expression: str, seconds: float = PATIENCE) -> None:
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
