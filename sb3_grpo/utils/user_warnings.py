"""Warnings that point to the user's own code."""

import sys
import warnings
from types import FrameType

from sb3_grpo.utils.ranks import rank

_PACKAGES = ("sb3_grpo", "stable_baselines3", "rl_zoo3", "gymnasium")


def warn_user(message: str) -> None:
    """
    Warn at the user's line that called ``learn`` if it is running, or else this package.
    If there is no such line (``python -m sb3_grpo``), warn at the outermost line of the package.

    :param message: Text of the warning
    """
    if rank() > 0:
        return  # the first one warns
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    ours = [_package(each) in _PACKAGES for each in frames]
    learns = [our and each.f_code.co_name == "learn" for each, our in zip(frames, ours, strict=True)]
    begin = learns.index(True) if True in learns else 0
    end = ours.index(False, begin) if False in ours[begin:] else len(frames)
    if end == len(frames) or _package(frames[end]) == "runpy":
        end -= 1
    place = frames[end]
    registry = place.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, UserWarning, place.f_code.co_filename, place.f_lineno, place.f_globals.get("__name__"), registry
    )


def _package(frame: FrameType) -> str:
    # With python -m, __name__ is __main__
    name = frame.f_globals.get("__package__") or frame.f_globals.get("__name__") or ""
    return name.partition(".")[0]
