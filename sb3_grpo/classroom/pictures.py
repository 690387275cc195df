"""What pictures in a page share: drawn once by matplotlib, in the colours of the page's stylesheet."""

import re
from contextlib import AbstractContextManager
from typing import Any

from matplotlib import rc_context

# Stylesheets know these, white and the colours of what is drawn, and have others for dark pages
TEXT, GRID = "#444444", "#DDDDDD"
_COLOUR, _DECIMALS = re.compile(r"#([0-9a-f]{6})\b"), re.compile(r"(\d\.\d\d)\d+")
_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 11,
    "lines.linewidth": 1.9,
    "lines.markersize": 5.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), TEXT),
    # Names are only names
    "text.parse_math": False,
    "svg.fonttype": "none",
}
# The same data gives the same file
NO_DATE = {"Date": None, "Creator": None}


def drawing() -> AbstractContextManager[None]:
    """
    :return: context in which figures must be drawn and saved
    """
    return rc_context(_RC)


def inline(svg: str) -> str:
    """
    :param svg: an SVG file. Files in the same page must have been saved with different ``svg.hashsalt``
    :return: the same as a part of a page, whose stylesheet defines a variable ``--c`` and six digits for each colour
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", svg, count=2)
    # Only paths are referred to by their identifiers; those of groups are in every figure
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    # Fewer decimals and colours of the stylesheet, in tags only: texts remain as they are
    return re.sub(r"<[^>]+>", lambda tag: _COLOUR.sub(r"var(--c\1)", _DECIMALS.sub(r"\1", tag[0])), svg)
