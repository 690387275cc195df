"""Clips in reports and in packed results."""

import io
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("rliable")

from compare_data import curve_to, write_experiment

from sb3_grpo.classroom.compare.clips import env_clip, median_seeds, pack_clips
from sb3_grpo.classroom.compare.collect import collect, pack
from sb3_grpo.cli.main import main

ENDS = {0: 100.0, 1: 200.0, 2: 300.0, 3: 400.0, 4: 500.0}


def picture(shade: int) -> bytes:
    """Two images, of which the last has this shade of grey."""
    images = [Image.new("RGB", (60, 40), (each,) * 3) for each in (0, shade)]
    file = io.BytesIO()
    images[0].save(file, "WEBP", save_all=True, append_images=images[1:], duration=[100, 100])
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A comparison whose run in the middle has left no clip."""
    folder = write_experiment(tmp_path / "full", lambda env, variant, seed: curve_to(ENDS[seed]), seeds=5)
    for variant in ("ppo", "dapo"):
        for seed in (0, 1, 4):
            (folder / "runs" / "CartPole-v1" / variant / str(seed) / "clip.webp").write_bytes(picture(100 + seed))
    return folder


def test_the_run_in_the_middle_of_those_with_a_clip(folder: Path) -> None:
    results = collect(folder)
    assert median_seeds(results, "CartPole-v1") == {"ppo": 1, "dapo": 1}
    clip = env_clip(results, "CartPole-v1")
    assert clip is not None and [(panel.name, panel.seed) for panel in clip.panels] == [("ppo", 1), ("dapo", 1)]


def test_packed_results_have_the_same_clips(folder: Path, tmp_path: Path) -> None:
    results, target = collect(folder), tmp_path / "packed"
    (target / "clips").mkdir(parents=True)
    (target / "clips" / "holiday.mp4").write_bytes(b"")
    for _ in range(2):
        pack(results, target)
        pack_clips(results, target)
    assert env_clip(collect(target), "CartPole-v1") == env_clip(results, "CartPole-v1")
    assert len([*target.rglob("clip.webp")]) == 2, "those that are shown"
    assert (target / "clips" / "holiday.mp4").exists(), "nothing else is taken away"


def test_packing_onto_a_source_keeps_its_clips(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, more = tmp_path / "packed", write_experiment(tmp_path / "more", lambda *run: curve_to(9.0), ("Acrobot-v1",))
    assert main(["compare", "pack", str(folder), str(packed)]) == 0
    assert main(["compare", "pack", str(more), str(packed), str(packed)]) == 0
    assert env_clip(collect(packed), "CartPole-v1") == env_clip(collect(folder), "CartPole-v1")
    assert env_clip(collect(packed), "Acrobot-v1") is None, "the runs recorded none"
    assert main(["compare", "pack", str(packed), f"{packed}/../packed"]) == 2
    assert "is what is to be packed: choose another folder" in " ".join(capsys.readouterr().err.split())
    assert len([*packed.rglob("clip.webp")]) == 2


@pytest.mark.parametrize("content", [b"%PDF", b"RIFF", picture(9)[:-20]])
def test_a_damaged_clip_is_left_out_and_named(content: bytes, folder: Path) -> None:
    (folder / "runs" / "CartPole-v1" / "dapo" / "1" / "clip.webp").write_bytes(content)
    with pytest.warns(UserWarning, match=r"dapo/1/clip.webp is damaged.* This clip is left out"):
        clip = env_clip(collect(folder), "CartPole-v1")
    assert clip is not None and [panel.name for panel in clip.panels] == ["ppo"]
