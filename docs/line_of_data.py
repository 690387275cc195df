"""
The picture of CONTRIBUTING.md: how a start becomes a loss, with names, files and docstrings as they are in the code.
``python -m docs.line_of_data`` draws it anew.
"""

import inspect
import textwrap
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from sb3_grpo import GRPO, StartSampler
from sb3_grpo.common.advantages import group_advantages
from sb3_grpo.common.batch import GroupBatch, Minibatch, minibatches
from sb3_grpo.common.buffers import GroupRolloutBuffer
from sb3_grpo.common.losses import policy_losses
from sb3_grpo.groups.collector import GroupCollector
from sb3_grpo.groups.group import Episode, Group
from sb3_grpo.groups.queue import GroupQueue

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "line_of_data.svg"


class Stage(NamedTuple):
    """
    A box of the picture.

    :param name: what it is called
    :param what: the class or function whose docstring says what it is
    :param made_by: the function that makes it of the one before, on the arrow to it
    """

    name: str
    what: Any
    made_by: Callable[..., Any] | None


STAGES = [
    Stage("start", StartSampler, None),
    Stage("episode", Episode, GroupCollector.step),
    Stage("group", Group, GroupQueue.take),
    Stage("batch", GroupBatch, GroupRolloutBuffer.batch),
    Stage("advantages", group_advantages, GRPO._judge),
    Stage("minibatches", Minibatch, minibatches),
    Stage("loss", policy_losses, GRPO._loss),
]

# In a narrow column, so that it can be read on a phone
WIDTH, LINE, GAP = 480, 18, 40
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.name { font-weight: 700 } .code { font: 12px ui-monospace, monospace; fill: #57606a }
.box { fill: #f6f8fa; stroke: #8c959f } .arrow { stroke: #8c959f; stroke-width: 1.5; fill: none }
"""


def draw() -> str:
    """
    :return: The picture as SVG
    """
    parts, y = [], 1
    for stage in STAGES:
        if stage.made_by is not None:
            parts.append(f'<path class="arrow" d="M24 {y}v{GAP - 2}m-5 -7l5 7l5 -7"/>')
            parts.append(_text(40, y + 25, f"{stage.made_by.__qualname__}   {_file(stage.made_by)}", "code"))
            y += GAP
        sentence = textwrap.wrap(_first_sentence(stage.what), 68)
        height = LINE * (1 + len(sentence)) + 12
        parts.append(f'<rect class="box" x="1" y="{y}" width="{WIDTH - 2}" height="{height}" rx="6"/>')
        parts.append(_text(12, y + LINE, stage.name, "name"))
        parts.append(_text(118, y + LINE, f"{stage.what.__qualname__}   {_file(stage.what)}", "code"))
        parts += [_text(12, y + LINE * (row + 2), line) for row, line in enumerate(sentence)]
        y += height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 1}" width="{WIDTH}" height="{y + 1}">'
    # Readable on any page
    paper = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", paper, *parts, "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, css_class: str = "") -> str:
    attribute = f' class="{css_class}"' if css_class else ""
    return f'<text x="{x}" y="{y}"{attribute} xml:space="preserve">{escape(text)}</text>'


def _file(part: Any) -> str:
    return str(Path(inspect.getsourcefile(part) or "").resolve().relative_to(ROOT / "sb3_grpo"))


def _first_sentence(part: Any) -> str:
    paragraph = (inspect.getdoc(part) or "").split("\n\n")[0].replace("``", "").replace("\n", " ")
    return paragraph.split(". ")[0].removesuffix(".") + "."


if __name__ == "__main__":
    PICTURE.write_text(draw())
