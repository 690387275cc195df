"""The report of a comparison in a browser."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rliable")

from compare_data import write_experiment
from matplotlib.figure import Figure

from sb3_grpo.classroom.compare.report import make_report
from sb3_grpo.classroom.compare.runs import Name
from tests.browser import serious_findings

HOSTILE = "</style><script>window.hacked=1</script><img src=x onerror=window.hacked=1>$_{x"
ENVS = ("CartPole-v1", f"{HOSTILE}-v1")  # which compare refuses: this page is the second line of defence
VARIANTS = {"ppo": "ppo", f'"{HOSTILE}': "grpo", "dapo": "dapo"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PPO ends at 100 to 118 on CartPole, the others above it; none learns on the other environment."""

    def curve(env: str, variant: str, seed: int) -> list[float]:
        if env != "CartPole-v1":
            return [-1000.0 - seed] * 6
        return np.linspace(10.0, {"ppo": 100.0, "dapo": 400.0}.get(variant, 300.0) + 2 * seed, 6).tolist()

    folder, savefig = tmp_path_factory.mktemp("hostile"), Figure.savefig
    write_experiment(folder, curve, envs=ENVS, variants=VARIANTS)
    experiment = json.loads((folder / "experiment.json").read_text())
    (folder / "experiment.json").write_text(json.dumps(experiment | {"name": HOSTILE}))
    with pytest.MonkeyPatch.context() as patch:
        # The page has those in SVG in it
        patch.setattr(Figure, "savefig", lambda figure, path, **how: path.suffix == ".svg" and savefig(figure, path, **how))
        patch.setattr(Name, "check", lambda self, name, value: value)
        return make_report(folder)


def test_names_are_only_names(opened: Any) -> None:
    page = opened.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0 and page.locator("script").count() == 0
    assert page.locator("h1").inner_text() == HOSTILE and page.title() == f"{HOSTILE}: comparison"
    assert page.locator("figcaption strong").nth(1).inner_text() == ENVS[1]


def test_the_finding_comes_first_and_the_final_returns_stand_below_the_curves(opened: Any) -> None:
    page = opened.page
    headline = page.locator(".headline")
    assert headline.inner_text().startswith("On CartPole-v1, ")
    figure = page.locator(".curves figure").first
    finals, drawn = figure.locator(".finals"), figure.locator(".steps svg")
    assert headline.bounding_box()["y"] < drawn.bounding_box()["y"] < finals.bounding_box()["y"]
    assert "ppo\t109 (" in finals.inner_text()
    assert "Final returns: ppo 109 (" in figure.get_by_role("img").first.get_attribute("aria-label")


def test_curves_against_steps_or_time(opened: Any) -> None:
    page = opened.page
    steps, time = (page.locator(f".curves figure:first-child .{kind} svg") for kind in ("steps", "time"))
    assert steps.is_visible() and not time.is_visible()
    page.get_by_role("radio", name="against training time").check()
    assert time.is_visible() and not steps.is_visible()
    assert "Training time (seconds)" in time.text_content()


def test_pictures_are_dark_on_a_dark_page(opened: Any) -> None:
    page, colours = opened.page, {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        text = page.locator(".curves svg text").first
        colours[scheme] = [text.evaluate("each => getComputedStyle(each).fill")]
        colours[scheme] += [page.evaluate("getComputedStyle(document.body).backgroundColor")]
    assert not {*colours["light"]} & {*colours["dark"]}


def test_no_sideways_scrolling_and_the_claim_is_in_sight(opened: Any) -> None:
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    for width in (390, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        claim = page.locator(".pairs .difference strong").first.bounding_box()
        assert claim["x"] >= 0 and claim["x"] + claim["width"] <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(browser: Any, report: Path, scheme: str) -> None:
    assert serious_findings(browser, report, color_scheme=scheme) == []


def test_what_is_folded_is_printed(opened: Any) -> None:
    page = opened.page
    rule = page.locator("#numbers table").first
    assert not rule.is_visible()
    page.emulate_media(media="print")
    assert rule.bounding_box()["height"] > 50
