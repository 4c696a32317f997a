"""Formulas as MathML, which browsers typeset by themselves: no script, no fonts, and nothing from the network."""

from __future__ import annotations

from docutils.nodes import Node, SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def inline(page: HTML5Translator, node: Node) -> None:
    page.body.append(convert(node.astext()))
    raise SkipNode


def block(page: HTML5Translator, node: Node) -> None:
    page.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>\n')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
