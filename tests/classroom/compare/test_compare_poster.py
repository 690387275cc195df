"""Wall posters of finished comparisons."""

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("rliable")

from compare_data import curve_to, write_experiment

from sb3_grpo.classroom.compare.report import make_report
from sb3_grpo.cli.main import main
from tests.classroom.compare.test_compare_clips import picture


def text_of(poster: Path) -> str:
    """What a reader sees, line after line."""
    lines = re.findall(r"<text\b[^>]*>([^<]*)</text>", poster.read_text("utf-8"))
    return " ".join(lines)


def level(env: str, variant: str, seed: int) -> list[float]:
    return curve_to((100.0 if variant == "ppo" else 300.0) + seed)


def test_the_poster_says_what_the_report_says(tmp_path: Path, no_pictures: None) -> None:
    write_experiment(tmp_path, level, ("CartPole-v1", "Acrobot-v1"), seeds=4)
    clip = tmp_path / "runs" / "Acrobot-v1" / "ppo" / "0" / "clip.webp"
    clip.write_bytes(picture(200))
    assert main(["compare", "poster", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob("poster*")} == {
        f"poster-{size}.{suffix}" for size in ("16x9", "a3") for suffix in ("pdf", "svg")
    }
    headline = re.search(r'class="headline">([^<]*)<', make_report(tmp_path).read_text())
    assert headline is not None
    for size in ("16x9", "a3"):
        text = text_of(tmp_path / f"poster-{size}.svg")
        assert headline[1] in text
        assert "ppo and dapo on CartPole-v1 and Acrobot-v1" in text
        assert "4 seeds each, 10,000 steps" in text and "torch 2.9.0" in text
        # The fastest is DAPO, with 1500 steps per second and more
        assert "6.5 s" in text
        assert "Pictures: Acrobot-v1" in text and "<image" in (tmp_path / f"poster-{size}.svg").read_text()
        assert (tmp_path / f"poster-{size}.pdf").read_bytes().startswith(b"%PDF")


def test_one_seed_and_no_clips(tmp_path: Path) -> None:
    write_experiment(tmp_path, level, seeds=1)
    assert main(["compare", "poster", str(tmp_path)]) == 0
    text = text_of(tmp_path / "poster-a3.svg")
    assert "the seeds are too few for a claim" in text and "Pictures" not in text


def test_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "poster", str(tmp_path)]) == 2
    assert "is not the folder of a comparison" in capsys.readouterr().err
    write_experiment(tmp_path, level, seeds=4)
    shutil.rmtree(tmp_path / "runs" / "CartPole-v1" / "dapo" / "3")
    assert main(["compare", "poster", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "7 of 8 runs finished, 1 missing" in said and "CartPole-v1, dapo, seed 3 (missing)" in said
    assert not [*tmp_path.glob("poster*")]


def test_too_many_environments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path, level, [f"Env{i}-v0" for i in range(10)], seeds=1)
    assert main(["compare", "poster", str(tmp_path)]) == 2
    assert "a poster has room for 9" in " ".join(capsys.readouterr().err.split())
