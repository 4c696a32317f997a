"""Formulas as MathML, which browsers typeset by themselves: no script, no fonts, and nothing from the network."""

from __future__ import annotations

import re

from docutils.nodes import Node, SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

# A matrix in brackets, whose lines the style sheet draws.
MATRIX = re.compile("<mo>&#x0005B;</mo><mtable>(.*?)</mtable><mo>&#x0005D;</mo>")


def mathml(formula: str, display: str) -> str:
    return MATRIX.sub(r'<mtable class="bracketed">\1</mtable>', convert(formula, display=display))


def inline(page: HTML5Translator, node: Node) -> None:
    page.body.append(mathml(node.astext(), "inline"))
    raise SkipNode


def block(page: HTML5Translator, node: Node) -> None:
    page.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>\n')
    raise SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True}
