"""Animations of episodes side by side, with a limited file size. The only place where the package creates them."""

import io
from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw, ImageFont

from sb3_grpo.classroom.clips.episodes import HEAD, Episode

# Maximum size of a file in bytes
MAX_BYTES = 300_000
# Duration of an image, and of the last one
MILLISECONDS, HOLD = 100, 1500
QUALITY = 75
_GAP = 6
_TEXT, _GROUND, _OVER = (255, 255, 255), (38, 41, 46), (128, 128, 128)
_FONT_SIZE, _LINE = 13, 19

Picture = Image.Image


def format_return(total: float) -> str:
    """
    :param total: a return
    :return: the return with a readable number of digits
    """
    return f"{total:.0f}" if abs(total) >= 100 or total == int(total) else f"{total:.1f}"


def timeline(episodes: Sequence[Episode]) -> list[int]:
    """
    :param episodes: episodes shown side by side
    :return: the steps to show, the same for all episodes: every step until the shortest episode is over, if that is soon
    """
    lengths = [episode.length for episode in episodes]
    stride = max(episode.stride for episode in episodes)
    begin = range(min(lengths) + 1) if min(lengths) <= HEAD else range(0)
    return sorted({*begin, *range(0, max(lengths) + 1, stride), max(lengths)})


def _panel(episode: Episode, step: int, scale: float, name: str = "") -> Picture:
    """
    :param episode: an episode
    :param step: the step to show
    :param scale: scale of the image
    :param name: a line above the image, if not empty
    :return: the image, with step and return below it
    """
    shot = episode.at(step)
    size = (max(8, round(scale * shot.picture.width)), max(8, round(scale * shot.picture.height)))
    picture = shot.picture.resize(size, Image.Resampling.LANCZOS) if scale < 1.0 else shot.picture
    over = step >= episode.length and episode.ended
    if over:
        picture = Image.blend(picture, Image.new("RGB", picture.size, _OVER), 0.35)
    # Two lines if one is too long
    font = ImageFont.load_default(_FONT_SIZE)
    words = [f"over after {episode.length}" if over else f"step {shot.step}", f"return {format_return(shot.total)}"]
    one = "   ".join(words)
    lines = [one] if font.getlength(one) + 8 <= picture.width else words
    n_lines = 1 if font.getlength(f"over after {episode.length}   return {format_return(-1e4)}") + 8 <= picture.width else 2
    above = _LINE if name else 0
    panel = Image.new("RGB", (picture.width, above + picture.height + n_lines * _LINE), _GROUND)
    panel.paste(picture, (0, above))
    draw = ImageDraw.Draw(panel)
    if name:
        draw.text((4, 2), name, _TEXT, font)
    for place, line in enumerate(lines):
        draw.text((4, above + picture.height + 2 + place * _LINE), line, _TEXT, font)
    return panel


def _joined(panels: Sequence[Picture]) -> Picture:
    width = sum(panel.width for panel in panels) + _GAP * (len(panels) - 1)
    whole = Image.new("RGB", (width, max(panel.height for panel in panels)), _GROUND)
    left = 0
    for panel in panels:
        whole.paste(panel, (left, 0))
        left += panel.width + _GAP
    return whole


def _encode(pictures: Sequence[Picture]) -> bytes:
    # WebP: a third of the bytes of a GIF with the same dimensions, and all colours
    file = io.BytesIO()
    durations = [MILLISECONDS] * (len(pictures) - 1) + [HOLD]
    options = {"quality": QUALITY, "method": 2, "allow_mixed": True}
    if len(pictures) == 1:
        pictures[0].save(file, "WEBP", quality=QUALITY, method=2)
    else:
        pictures[0].save(file, "WEBP", save_all=True, append_images=pictures[1:], duration=durations, loop=0, **options)
    return file.getvalue()


def _within(limit: int, make: Callable[[Sequence[int], float], list[bytes]], steps: list[int]) -> list[bytes]:
    """
    :param limit: maximum total size of all files in bytes
    :param make: takes the steps to show and the scale, returns files
    :param steps: all steps that could be shown
    :return: the files, with fewer or smaller images if they would be too large
    """
    scale, fewer = 1.0, True
    files = make(steps, scale)
    while sum(map(len, files)) > limit and (len(steps) > 1 or scale > 0.02):
        # Alternate between fewer and smaller images
        if fewer and len(steps) > 12:
            steps = sorted({*steps[::2], steps[-1]})
        elif scale > 0.1:
            scale *= 0.75
        else:
            scale, steps = scale * 0.75, steps[-1:]
        fewer = not fewer
        files = make(steps, scale)
    return files


def one_picture(episodes: Sequence[Episode], names: Sequence[str], limit: int = MAX_BYTES) -> bytes:
    """
    :param episodes: episodes from the same start
    :param names: names of the agents that play them
    :param limit: maximum size in bytes
    :return: a WebP file that shows them side by side
    """

    def make(steps: Sequence[int], scale: float) -> list[bytes]:
        named = list(zip(episodes, names, strict=True))
        return [_encode([_joined([_panel(each, step, scale, name) for each, name in named]) for step in steps])]

    return _within(limit, make, timeline(episodes))[0]


def separate_pictures(episodes: Sequence[Episode], limit: int) -> tuple[list[bytes], list[bytes]]:
    """
    :param episodes: episodes from the same start
    :param limit: maximum total size of all files in bytes
    :return: one WebP file per episode, all at the same pace; and the last image of each
    """
    n = len(episodes)

    def make(steps: Sequence[int], scale: float) -> list[bytes]:
        panels = [[_panel(each, step, scale) for step in steps] for each in episodes]
        return [_encode(each) for each in panels] + [_encode(each[-1:]) for each in panels]

    files = _within(limit, make, timeline(episodes))
    return files[:n], files[n:]
