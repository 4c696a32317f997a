"""Tables and text as HTML for notebooks: readable on light and on dark, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

# Rows beyond which a table is folded away, and the most rows that are shown (chosen).
LONG, ROWS_SHOWN = 12, 200
# Marks of success and of failure, in colours that are read on light and on dark.
GOOD, BAD = '<span style="color: #009E73">✓</span> ', '<span style="color: #D55E00">✗</span> '
# The look of everything that is shown: colours are those of the notebook, or transparent.
STYLE = (
    "<style>.sysdyn table {border-collapse: collapse; margin: 0.3em 0 0.6em; font-size: inherit} "
    ".sysdyn th, .sysdyn td {padding: 0.1em 0.8em 0.1em 0; text-align: right; background: none; border: none; "
    "color: inherit; vertical-align: top} "
    ".sysdyn th {font-weight: 600; border-bottom: 1px solid rgba(128, 128, 128, 0.5)} "
    ".sysdyn .word {text-align: left} .sysdyn summary {cursor: pointer; opacity: 0.8}</style>"
)
# A word and its meaning, with blanks between, as in `repr`s.
_LABEL = re.compile(r"(\S{1,14})\s{2,}(\S.*)")


class Table(NamedTuple):
    """A table of text; its first `left` columns are words, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


def whole(*parts: str) -> str:
    """The HTML that a notebook shows of these parts, each HTML."""
    return f'{STYLE}<div class="sysdyn">{"".join(parts)}</div>'


def text(said: str, mark: str = "") -> str:
    """Lines of text: the first one as a heading behind the mark, the others indented as they are."""
    head, *lines = said.splitlines()
    shown = [f"<div>{mark}<b>{escape(head)}</b></div>"]
    for line in lines:
        label = _LABEL.fullmatch(line.strip())
        words = f'<span style="opacity: 0.7">{escape(label[1])}</span> {escape(label[2])}' if label else escape(line)
        shown.append(f'<div style="padding-left: {(len(line) - len(line.lstrip())) / 2 + 0.5}em">{words}</div>')
    return "".join(shown)


def table(x: Table, folded: bool | None = None) -> str:
    """The table below its title; folded away if it is long, unless told otherwise."""

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = (' class="word"' if k < x.left else "" for k in range(len(cells)))
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    rows = [f"<tr>{row(cells, 'td')}</tr>" for cells in x.rows[:ROWS_SHOWN]]
    if len(x.rows) > ROWS_SHOWN:
        rows.append(f'<tr><td class="word" colspan="{len(x.columns)}">… ({len(x.rows):,} in all)</td></tr>')
    body = f"<table><thead><tr>{row(x.columns, 'th')}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    opened = "" if (len(x.rows) > LONG if folded is None else folded) else " open"
    return f"<details{opened}><summary>{escape(x.title)}</summary>{body}</details>"
