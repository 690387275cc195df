"""The documentation site: ``make docs``."""

import logging
from pathlib import Path
from typing import Any

from docutils import nodes

import sb3_grpo
from sb3_grpo.classroom.lecture.formulas import math
from sb3_grpo.classroom.lecture.page import write_lecture

project = "sb3-grpo"
author = copyright = "The sb3-grpo authors"
version = release = sb3_grpo.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "rl_zoo3_patches"]
# Notebooks are shown as they are committed, without outputs; tests/docs/test_notebooks.py runs them
nb_execution_mode = "off"

# {py:class}`torch.Tensor` is a link; without a network, it is the name alone
intersphinx_mapping = {
    "gymnasium": ("https://gymnasium.farama.org", None),
    "numpy": ("https://numpy.org/doc/stable", None),
    "stable_baselines3": ("https://stable-baselines3.readthedocs.io/en/master", None),
    "torch": ("https://docs.pytorch.org/docs/stable", None),
}
intersphinx_timeout = 5

html_theme = "furo"
html_baseurl = "https://sb3-grpo.readthedocs.io/en/latest/"
html_title = f"sb3-grpo {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False

autodoc_typehints = "none"  # the docstrings say what a parameter is
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = True


def expect_no_network(record: logging.LogRecord) -> bool:
    """An inventory that cannot be fetched is a note, not a warning, with which the build would fail."""
    if str(record.msg).startswith("failed to reach any of the inventories"):
        record.levelno, record.levelname = logging.INFO, "INFO"
    return True


def visit_math(translator: Any, node: nodes.Element) -> None:
    """MathML: every browser of today draws it, without a script and without a network."""
    is_block = isinstance(node, nodes.math_block)
    mathml = math(node.astext(), display=is_block)
    translator.body.append(f'<div class="math">{mathml}</div>' if is_block else mathml)
    raise nodes.SkipNode


def add_lecture(app: Any, exception: Exception | None) -> None:
    """
    :param app: Sphinx
    :param exception: What went wrong, if anything
    """
    if exception is None:
        write_lecture(Path(app.outdir) / "lecture_page.html", home="index.html")


def setup(app: Any) -> None:
    """
    :param app: Sphinx
    """
    logging.getLogger("sphinx.sphinx.ext.intersphinx").addFilter(expect_no_network)
    app.connect("build-finished", add_lecture)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))


html_math_renderer = "mathml"
