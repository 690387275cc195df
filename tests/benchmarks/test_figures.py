"""What pictures of several tasks show."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rliable")

from benchmarks import figures
from sb3_grpo.classroom.compare.statistics import Band


def test_curves_that_the_first_axes_lack_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "IMAGES", tmp_path)
    steps = np.arange(3.0)
    curve = steps, Band(steps, steps, steps)
    figures.draw_curves("curves", ["Hopper-v5", "Ant-v5"], {"grpo": [curve, curve], "with an entry": [None, curve]})
    picture = (tmp_path / "curves.svg").read_text()
    assert ">GRPO<" in picture and ">with an entry<" in picture
