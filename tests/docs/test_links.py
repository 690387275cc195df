"""The built site, as it lies in the folder: every link that stays inside leads somewhere. Needs ``make docs`` first."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "_build" / "html"


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors = {"", "top"}
        self.sources: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)
            elif name == "src" and value:
                self.sources.append(value)
            elif tag == "link" and name == "href" and value and ("rel", "canonical") not in attrs:
                self.sources.append(value)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    if not SITE.exists():
        pytest.skip("make docs has not run")
    return {path: Page(path) for path in SITE.rglob("*.html")}


def test_internal_links(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links + page.sources:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            # Behind a question mark: what a widget of the lecture shows
            anchor = unquote(url.fragment).partition("?")[0]
            if not target.exists() or (target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    assert not broken


def test_nothing_is_fetched_from_a_network(pages: dict[Path, Page]) -> None:
    remote = {source for page in pages.values() for source in page.sources if urlsplit(source).netloc}
    assert not remote


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"])
def test_links_to_files_outside_of_the_site(name: str) -> None:
    page = ROOT / name
    links = [urlsplit(link) for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    missing = [
        link.path for link in links if not link.scheme and link.path and not (page.parent / unquote(link.path)).exists()
    ]
    assert missing == []
