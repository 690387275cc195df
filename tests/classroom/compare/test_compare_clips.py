"""Clips in the report of a comparison: which episodes, how large, and in a browser."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rliable")

from compare_data import curve_to, write_experiment
from PIL import Image

from sb3_grpo.classroom.clips.episodes import Episode, Reply, Shot
from sb3_grpo.classroom.clips.recording import Exchanges, Pair
from sb3_grpo.classroom.clips.stored import save_played
from sb3_grpo.classroom.compare import statistics
from sb3_grpo.classroom.compare.clips import env_clip, median_seeds, pack_clips
from sb3_grpo.classroom.compare.collect import collect
from sb3_grpo.classroom.compare.packed import pack
from sb3_grpo.classroom.compare.reading import Name
from sb3_grpo.classroom.compare.report import make_report
from tests.browser import Opened, serious_findings, until

HOSTILE = "<img src=x onerror=window.hacked=1>"
TEXTS, MUTE = "sb3_grpo:sb3_grpo/VerifierText-v0", "Mute-v0"
ENVS = ("CartPole-v1", TEXTS, MUTE)
VARIANTS = {"ppo": "ppo", f'"{HOSTILE}': "grpo", "dapo": "dapo"}
# Seed 2 is in the middle
ENDS = {0: 300.0, 1: 100.0, 2: 200.0}
LIMIT = 300_000


def episode(seed: int, length: int) -> Episode:
    rng = np.random.default_rng(seed)
    shots = [
        Shot(step, float(step + seed), Image.fromarray(rng.integers(0, 256, (160, 240, 3), np.uint8)))
        for step in range(0, length + 1, 4)
    ]
    return Episode(shots, 4, True)


def played(env: str, variant: str, seed: int) -> Pair | Exchanges | str:
    if env == MUTE:
        return f"no renderer {HOSTILE}"
    if env == TEXTS:
        return Exchanges([Reply(f"1+1={HOSTILE}", "7", 0.0)], [Reply(f"1+1={HOSTILE}", f"{variant} {seed}", 1.0)])
    return Pair(episode(seed, 8), episode(seed, 120 + 4 * list(VARIANTS).index(variant)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    write_experiment(folder, lambda env, variant, seed: curve_to(ENDS[seed]), envs=ENVS, variants=VARIANTS, seeds=3)
    for env in ENVS:
        for variant in VARIANTS:
            for seed in ENDS:
                save_played(played(env, variant, seed), folder / "runs" / env / variant / str(seed))
    return folder


@pytest.fixture(scope="module")
def any_name() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 200)
        # Which compare refuses: this page is the second line of defence
        patch.setattr(Name, "check", lambda self, name, value: value)
        yield


@pytest.fixture(scope="module")
def report(folder: Path, any_name: None) -> Path:
    return make_report(folder)


def sources(page: Any) -> list[str]:
    """What each picture shows, once it has been loaded."""
    until(page, "[...document.querySelectorAll('.clip img')].every((each) => each.complete && each.currentSrc)")
    return page.locator(".clip img").evaluate_all("all => all.map((each) => each.currentSrc)")


def test_the_run_in_the_middle_is_shown(folder: Path, any_name: None) -> None:
    results = collect(folder)
    assert median_seeds(results, "CartPole-v1") == dict.fromkeys(VARIANTS, 2)
    clip = env_clip(results, "CartPole-v1")
    assert clip is not None and [panel.name for panel in clip.panels] == ["untrained", *VARIANTS]
    said = [panel.alt for panel in clip.panels]
    assert said[0] == "CartPole-v1, untrained, seed 2: return 10 after 8 steps, the episode is over."
    assert said[3] == "CartPole-v1, dapo, seed 2: return 130 after 128 steps, the episode is over."
    texts = env_clip(results, TEXTS)
    assert texts is not None and [name for name, _ in texts.exchanges[0][1]] == ["untrained", *VARIANTS]
    assert [reply.answer for _, reply in texts.exchanges[0][1]] == ["7", *(f"{name} 2" for name in VARIANTS)]


def test_clips_of_an_environment_have_a_size(report: Path) -> None:
    html = report.read_text()
    found = re.findall(r'"(data:image/webp;base64,[^"]+)"', html)
    assert len(found) == 2 * (1 + len(VARIANTS))
    # Noise, which would take megabytes
    assert LIMIT / 4 < sum(map(len, found)) <= LIMIT
    assert len(html) - sum(map(len, found)) < 1_000_000


def test_packed_results_have_the_same_clips(folder: Path, any_name: None, tmp_path: Path) -> None:
    results = collect(folder)
    pack(results, tmp_path)
    pack_clips(results, tmp_path)
    packed = collect(tmp_path)
    for env in ENVS:
        clip = env_clip(packed, env)
        assert clip is not None and clip == env_clip(results, env)
    assert len([*tmp_path.rglob("clip.webp")]) == len(VARIANTS), "those that are shown"


def test_packing_again_takes_nothing_else_away(folder: Path, any_name: None, tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "holiday.mp4").write_bytes(b"")
    results = collect(folder)
    for _ in range(2):
        pack(results, tmp_path)
        pack_clips(results, tmp_path)
    assert (tmp_path / "clips" / "holiday.mp4").exists()
    pack_clips(replace(results, runs=results.runs[results.runs.env == TEXTS]), tmp_path)
    left = [str(path.relative_to(tmp_path / "clips")) for path in tmp_path.rglob("clip.*")]
    assert left and all(name.startswith(f"{TEXTS}/") for name in left), "those of before are no part of it"


def test_variants_without_room_are_said(tmp_path: Path) -> None:
    variants = {f"dapo {number}": "dapo" for number in range(12)}
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(100.0), variants=variants, seeds=1)
    for variant in variants:
        save_played(Pair(episode(0, 8), episode(0, 8)), tmp_path / "runs" / "CartPole-v1" / variant / "0")
    clip = env_clip(collect(tmp_path), "CartPole-v1")
    assert clip is not None and len(clip.panels) == 12
    assert "of each of the first 11 of 12 variants, the run whose final return is the median" in clip.caption


def test_clips_made_before_stay_beside_runs_without(tmp_path: Path) -> None:
    # The run in the middle of all has left none, as those of compare --no-clip
    ends = {0: 100.0, 1: 200.0, 2: 300.0, 3: 400.0, 4: 500.0}
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(ends[seed]), seeds=5)
    for variant in ("ppo", "dapo"):
        for seed in (0, 1, 4):
            save_played(played("CartPole-v1", variant, seed), tmp_path / "runs" / "CartPole-v1" / variant / str(seed))
    # As that of the last command is
    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"clips": False}))
    results = collect(tmp_path)
    clip = env_clip(results, "CartPole-v1")
    assert clip is not None and [(panel.name, panel.seed) for panel in clip.panels[1:]] == [("ppo", 1), ("dapo", 1)]
    assert "the run whose final return is the median of those with a clip" in clip.caption
    pack(results, tmp_path / "packed")
    pack_clips(results, tmp_path / "packed")
    assert env_clip(collect(tmp_path / "packed"), "CartPole-v1") == clip


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("clip.json", b""),
        ("clip.json", b'{"episodes": 3}'),
        ("clip.json", b'{"none": "\\ud800"}'),
        ("clip.webp", b"%PDF"),
        ("clip.webp", b"RIFF"),
        ("clip.webp", None),
    ],
)
def test_a_damaged_clip_is_left_out_and_named(file: str, content: bytes | None, tmp_path: Path) -> None:
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(100.0), seeds=1)
    for variant in ("ppo", "dapo"):
        save_played(Pair(episode(0, 8), episode(0, 8)), tmp_path / "runs" / "CartPole-v1" / variant / "0")
    results = collect(tmp_path)
    clip = env_clip(results, "CartPole-v1")
    assert clip is not None and [panel.name for panel in clip.panels] == ["untrained", "ppo", "dapo"]
    damaged = tmp_path / "runs" / "CartPole-v1" / "dapo" / "0" / file
    damaged.write_bytes(damaged.read_bytes()[:-100] if content is None else content)
    with pytest.warns(UserWarning, match=f"{re.escape(str(damaged))} is damaged.* This clip is left out"):
        clip = env_clip(results, "CartPole-v1")
    assert clip is not None and [panel.name for panel in clip.panels] == ["untrained", "ppo"]
    with pytest.warns(UserWarning, match=re.escape(str(damaged))):
        pack_clips(results, tmp_path / "packed")
    assert [path.parent.parent.name for path in tmp_path.glob("packed/**/clip.json")] == ["ppo"]


def test_a_report_is_whole_without_its_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 200)
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(100.0), seeds=1)
    run = tmp_path / "runs" / "CartPole-v1" / "dapo" / "0"
    save_played(Pair(episode(0, 8), episode(0, 8)), run)
    (run / "clip.json").write_text("{")
    with pytest.warns(UserWarning, match=r"clip\.json is damaged"):
        html = make_report(tmp_path).read_text()
    assert "</html>" in html and "data:image/webp" not in html


def test_a_variant_without_a_clip_is_left_out(tmp_path: Path) -> None:
    write_experiment(tmp_path, lambda env, variant, seed: curve_to(100.0), seeds=1)
    save_played(Pair(episode(0, 8), episode(0, 8)), tmp_path / "runs" / "CartPole-v1" / "dapo" / "0")
    clip = env_clip(collect(tmp_path), "CartPole-v1")
    assert clip is not None and [panel.name for panel in clip.panels] == ["untrained", "dapo"]


def test_names_and_texts_are_only_text(opened: Any) -> None:
    page = opened.page
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 1 + len(VARIANTS)
    assert page.locator(".clip .panel-title").all_inner_texts() == ["untrained", *VARIANTS]
    assert f'"{HOSTILE}' in page.locator(".clip img").nth(2).get_attribute("alt")
    assert page.locator(".said").first.inner_text() == f"1+1={HOSTILE}"
    assert f"No moving picture: no renderer {HOSTILE}" in page.locator("#env3").inner_text()


def test_pictures_move_and_stop(opened: Any) -> None:
    page = opened.page
    # Far below the first screen
    assert page.locator(".clip").bounding_box()["y"] > 800
    moving = sources(page)
    first = page.locator(".clip .panels").screenshot()
    while page.locator(".clip .panels").screenshot() == first:
        page.wait_for_timeout(50)
    page.get_by_role("button", name="Stop: CartPole-v1: what the agents do").click()
    still = sources(page)
    assert all(before != after for before, after in zip(moving, still, strict=True))
    page.get_by_role("button", name="Play: CartPole-v1: what the agents do").click()
    assert sources(page) == moving


def test_where_motion_is_not_wanted_it_waits(browser: Any, report: Path) -> None:
    page = Opened(browser, report, reduced_motion="reduce").page
    still = sources(page)
    page.get_by_role("button", name="Play: CartPole-v1: what the agents do").click()
    moving = sources(page)
    assert all(before != after for before, after in zip(still, moving, strict=True))
    # On paper it stands still, and moves again afterwards
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert sources(page) == still
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert sources(page) == moving
    page.close()
    without = browser.new_context(java_script_enabled=False, reduced_motion="reduce").new_page()
    without.goto(report.as_uri())
    assert not without.get_by_role("button").count()
    without.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_no_sideways_scrolling_with_clips(browser: Any, report: Path, width: int) -> None:
    page = Opened(browser, report, viewport={"width": width, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".clip img").first.bounding_box()["width"] > 130
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_clips(browser: Any, report: Path, scheme: str) -> None:
    assert serious_findings(browser, report, color_scheme=scheme) == []
