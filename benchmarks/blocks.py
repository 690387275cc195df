"""
Pages whose tables and pictures are written by scripts. A page says where, and keeps the text around it:

    <!-- write: finals mujoco -->
    ... replaced by what the writer "finals" returns for the argument "mujoco" ...
    <!-- end -->
"""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Writers = Mapping[str, Callable[..., str]]
_BLOCK = re.compile(r"<!-- write: (\w+)(.*?) -->\n.*?<!-- end -->", re.DOTALL)
_INTERVAL = re.compile(r"\(([-\d.,]+) to ([-\d.,]+)\)")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    :param columns: Column titles
    :param rows: Cells
    :return: A table in Markdown
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def picture(name: str, alt: str, caption: str) -> str:
    """
    :param name: Name of a picture in ``docs/images``
    :param alt: What it shows, for those who do not see it
    :param caption: Its caption
    :return: The picture in Markdown
    """
    return f"![{alt}](../images/{name}.svg){{.picture}}\n\n*{caption}*"


def task_name(env_id: str) -> str:
    """
    :param env_id: Id of an environment
    :return: The same; of Atari games, only the game
    """
    return env_id.removesuffix("NoFrameskip-v4")


def steps_text(steps: int) -> str:
    """
    :param steps: Number of steps
    :return: The same in thousands or millions
    """
    return f"{steps // 1000}k" if steps < 1_000_000 else f"{steps / 1_000_000:g}M"


def wrap(text: str) -> str:
    """
    :param text: Markdown
    :return: The same with sentences in lines of at most 100 characters
    """
    lines = [
        textwrap.fill(line, 100, break_long_words=False, break_on_hyphens=False) if line[:1] not in ("|", "!", ":") else line
        for line in text.splitlines()
    ]
    return "\n".join(lines)


def unbroken(text: str) -> str:
    """
    :param text: Markdown
    :return: The same, with tables whose intervals do not break over lines
    """
    lines = [_INTERVAL.sub("(\\1\u00a0to\u00a0\\2)", line) if line[:1] == "|" else line for line in text.splitlines()]
    return "\n".join(lines)


def refresh(text: str, writers: Writers) -> str:
    """
    :param text: A page
    :param writers: Functions by name
    :return: The page with the blocks of these writers written again
    """

    def write(block: re.Match[str]) -> str:
        name, arguments = block[1], block[2].split()
        if name not in writers:
            return block[0]
        return f"<!-- write: {name}{block[2]} -->\n\n{unbroken(wrap(writers[name](*arguments).strip()))}\n\n<!-- end -->"

    return _BLOCK.sub(write, text)


def refresh_page(page: Path, writers: Writers) -> None:
    """
    :param page: A page
    :param writers: Functions by name
    """
    print(page.name, flush=True)
    page.write_text(refresh(page.read_text(encoding="utf-8"), writers), encoding="utf-8")
