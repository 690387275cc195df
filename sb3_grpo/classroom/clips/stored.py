"""Stores recorded episodes in two small files, for later clips. They may come from others, so they are only read as data."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from sb3_grpo.classroom.clips.episodes import BODY, HEAD, MAX_STEPS, MAX_TEXT, N_EXCHANGES, SIZE, Episode, Reply, Shot
from sb3_grpo.classroom.clips.recording import Exchanges, Pair
from sb3_grpo.utils.files import replace_file
from sb3_grpo.utils.parameters import Number, Whole

# Files in the folder of a run
SHEET, DESCRIPTION = "clip.webp", "clip.json"
_COLUMNS = 12
_MAX_SHOTS = HEAD + BODY + 2
# Maximum sizes in bytes, which no clip reaches
_MAX_SHEET, _MAX_DESCRIPTION = 2**23, 2**18
_RETURN = Number(-1e30, 1e30)


def save_played(played: Pair | Exchanges | str, folder: Path) -> None:
    """
    :param played: recorded episodes, or the reason why there are none
    :param folder: folder to write to
    """
    description: dict[str, Any]
    if isinstance(played, str):
        description = {"none": played}
    elif isinstance(played, Exchanges):
        description = {"exchanges": [[reply._asdict() for reply in replies] for replies in played]}
    else:
        pictures = [shot.picture for episode in played for shot in episode.shots]
        width, height = pictures[0].size
        sheet = Image.new("RGB", (_COLUMNS * width, -(-len(pictures) // _COLUMNS) * height))
        for place, picture in enumerate(pictures):
            sheet.paste(picture, (place % _COLUMNS * width, place // _COLUMNS * height))
        encoded = io.BytesIO()
        sheet.save(encoded, "WEBP", quality=90, method=2)
        with replace_file(folder / SHEET) as file:
            file.write(encoded.getvalue())
        description = {"size": [width, height], "episodes": [_describe(episode) for episode in played]}
    # A report created meanwhile, or after this process was killed here, finds a complete clip or none
    with replace_file(folder / DESCRIPTION) as file:
        file.write(f"{json.dumps(description)}\n".encode())


def _describe(episode: Episode) -> dict[str, Any]:
    return {
        "steps": [shot.step for shot in episode.shots],
        "returns": [round(shot.total, 4) for shot in episode.shots],
        "stride": episode.stride,
        "ended": episode.ended,
    }


def load_played(folder: Path) -> Pair | Exchanges | str | None:
    """
    :param folder: folder of a run
    :return: the data written by ``save_played``, None if there is none
    :raises ValueError: if a file was not written by ``save_played`` or is damaged; the message names the file
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    with _naming(path):
        if path.stat().st_size > _MAX_DESCRIPTION:
            raise ValueError("it is too large")
        content = json.loads(path.read_text("utf-8"))
        if "none" in content:
            return _text(content["none"])
        if "exchanges" in content:
            return Exchanges(*([_reply(each) for each in replies[:N_EXCHANGES]] for replies in content["exchanges"]))
        width, height = (Whole(1, SIZE).check("size", side) for side in content["size"])
        described = content["episodes"]
        counts = [len(each["steps"]) for each in described]
        if len(counts) != 2 or not all(1 <= count <= _MAX_SHOTS for count in counts):
            raise ValueError(f"there are {counts} pictures")
    with _naming(folder / SHEET):
        pictures = _pictures(folder / SHEET, sum(counts), width, height)
    with _naming(path):
        first, second = described
        return Pair(_episode(first, pictures[: counts[0]]), _episode(second, pictures[counts[0] :]))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """
    :param path: the file to name in the error if the ``with`` block fails
    """
    try:
        yield
    # The errors that Pillow raises for damaged images differ between versions
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        RecursionError,
        SyntaxError,
        Image.DecompressionBombError,
    ) as error:
        raise ValueError(f"{path} is damaged, or was not written by compare ({type(error).__name__}: {error})") from error


def _text(content: Any) -> str:
    text = str(content)[:MAX_TEXT]
    # Raises an error if the text cannot be written into a page
    text.encode()
    return text


def _reply(content: dict[str, Any]) -> Reply:
    question, answer = (_text(content[key]) for key in ("question", "answer"))
    return Reply(question, answer, _RETURN.check("reward", content["reward"]))


def _pictures(path: Path, count: int, width: int, height: int) -> list[Image.Image]:
    """
    :param path: path of the sheet
    :param count: number of images on it
    :param width: width of each image
    :param height: height of each image
    :return: the images
    """
    if path.stat().st_size > _MAX_SHEET:
        raise ValueError("it is too large")
    file = Image.open(io.BytesIO(path.read_bytes()), formats=["WEBP"])
    # Check the size before anything is decoded
    if file.size != (_COLUMNS * width, -(-count // _COLUMNS) * height):
        raise ValueError(f"it has {file.width} x {file.height} pixels")
    sheet = file.convert("RGB")
    corners = ((place % _COLUMNS * width, place // _COLUMNS * height) for place in range(count))
    return [sheet.crop((left, top, left + width, top + height)) for left, top in corners]


def _episode(content: dict[str, Any], pictures: list[Image.Image]) -> Episode:
    steps = [Whole(0, MAX_STEPS).check("steps", step) for step in content["steps"]]
    if steps[0] != 0 or steps != sorted(set(steps)):
        raise ValueError("steps must begin with 0 and rise")
    totals = [_RETURN.check("returns", total) for total in content["returns"]]
    shots = [Shot(*each) for each in zip(steps, totals, pictures, strict=True)]
    return Episode(shots, Whole(1, MAX_STEPS).check("stride", content["stride"]), content["ended"] is True)
