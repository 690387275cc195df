"""The picture of CONTRIBUTING.md is that of the code."""

import sys
from types import FrameType
from typing import Any

from docs.line_of_data import PICTURE, STAGES, draw
from sb3_grpo import GRPO


def test_picture_is_current() -> None:
    assert PICTURE.read_text() == draw(), "python -m docs.line_of_data draws it anew"


def test_stages_follow_each_other_in_training() -> None:
    codes = [stage.made_by.__code__ for stage in STAGES if stage.made_by is not None]
    called = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in codes and frame.f_code not in called:
            called.append(frame.f_code)

    model = GRPO("MlpPolicy", "CartPole-v1", n_envs=2, n_steps=32, seed=0, device="cpu")
    sys.setprofile(note)
    try:
        model.learn(64)
    finally:
        sys.setprofile(None)
    assert called == codes
