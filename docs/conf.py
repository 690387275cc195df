"""The documentation site: ``make docs``."""

from typing import Any

import latex2mathml.converter
from docutils import nodes

import sb3_grpo

project = "sb3-grpo"
author = copyright = "The sb3-grpo authors"
version = release = sb3_grpo.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton", "sphinx_design"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
# Notebooks are shown as they are committed, without outputs; tests/docs/test_notebooks.py runs them
nb_execution_mode = "off"

html_theme = "furo"
html_title = f"sb3-grpo {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False

autodoc_typehints = "none"  # the docstrings say what a parameter is
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = True


def visit_math(translator: Any, node: nodes.Element) -> None:
    """MathML: every browser of today draws it, without a script and without a network."""
    is_block = isinstance(node, nodes.math_block)
    mathml = latex2mathml.converter.convert(node.astext(), display="block" if is_block else "inline")
    translator.body.append(f'<div class="math">{mathml}</div>' if is_block else mathml)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """
    :param app: Sphinx
    """
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))


html_math_renderer = "mathml"
