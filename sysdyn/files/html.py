"""Tables, text and pages as self-contained HTML, readable on light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

# Tables with more than LONG rows are folded; rows beyond ROWS_SHOWN are omitted: tuned to a screen.
LONG, ROWS_SHOWN = 12, 200
# Success and failure marks, in colours that are readable on light and dark backgrounds.
GOOD, BAD = '<span style="color: #009E73">✓</span> ', '<span style="color: #D55E00">✗</span> '
# Style of tables and text: colours of the notebook, or transparent.
STYLE = (
    "<style>.sysdyn table {border-collapse: collapse; margin: 0.3em 0 0.6em; font-size: inherit; "
    "display: block; width: max-content; max-width: 100%; overflow-x: auto} "
    ".sysdyn th, .sysdyn td {padding: 0.1em 0.8em 0.1em 0; text-align: right; background: none; border: none; "
    "color: inherit; vertical-align: top} "
    ".sysdyn th {font-weight: 600; border-bottom: 1px solid rgba(128, 128, 128, 0.5)} "
    ".sysdyn .word {text-align: left} .sysdyn summary {cursor: pointer; opacity: 0.8} "
    ".sysdyn pre {white-space: pre-wrap; margin: 0.2em 0; padding: 0; background: none}</style>"
)
# Page template with a print style. The mouse wheel zooms pictures, dragging pans them.
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin-bottom: 0.2rem; }}
h2 {{ font-size: 1.15rem; margin: 1.8rem 0 0.4rem; border-bottom: 1px solid rgba(128, 128, 128, 0.5); }}
p {{ margin: 0.4rem 0; }} .quiet {{ opacity: 0.75; }}
figure {{ width: 47% !important; }} figure.wide {{ width: 100% !important; margin: 0.4rem 0; }}
figure svg {{ width: 100%; height: auto; cursor: zoom-in; touch-action: none;
  outline: 1px solid rgba(128, 128, 128, 0.4); }}
@media (max-width: 40rem) {{ body {{ margin: 0.6rem auto; padding: 0 0.6rem; }}
  figure {{ width: 100% !important; margin: 0.4rem 0; }} }}
@media print {{ body {{ margin: 0; max-width: none; font-size: 10pt; }} h2 {{ break-after: avoid; }}
  figure, tr {{ break-inside: avoid; }} .screen {{ display: none; }} }}
</style></head><body>
{body}
<script>
for (const svg of document.querySelectorAll("figure svg")) {{
  const all = svg.viewBox.baseVal, whole = [all.x, all.y, all.width, all.height];
  const place = e => {{
    const r = svg.getBoundingClientRect();
    return [all.x + all.width * (e.clientX - r.left) / r.width, all.y + all.height * (e.clientY - r.top) / r.height];
  }};
  svg.addEventListener("wheel", e => {{
    e.preventDefault();
    const [x, y] = place(e), s = Math.min(Math.exp(0.002 * e.deltaY), whole[2] / all.width);
    [all.x, all.y, all.width, all.height] = [x + (all.x - x) * s, y + (all.y - y) * s, all.width * s, all.height * s];
  }}, {{ passive: false }});
  let held = null;
  svg.addEventListener("pointerdown", e => {{ held = place(e); svg.setPointerCapture(e.pointerId); }});
  svg.addEventListener("pointerup", () => {{ held = null; }});
  svg.addEventListener("pointermove", e => {{
    if (held) {{ const [x, y] = place(e); all.x += held[0] - x; all.y += held[1] - y; }}
  }});
  svg.addEventListener("dblclick", () => {{ [all.x, all.y, all.width, all.height] = whole; }});
}}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => {{ d.open = true; }}));
</script></body></html>
"""


class TextTable(NamedTuple):
    """A table of strings. The first `left` columns are left-aligned text, the others right-aligned numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


def fragment(*parts: str) -> str:
    """HTML parts as one styled element for notebooks."""
    return f'{STYLE}<div class="sysdyn">{"".join(parts)}</div>'


def text(lines: str, mark: str = "") -> str:
    """Text as HTML: `mark` and the first line as a heading, the other lines verbatim."""
    head, _, rest = lines.partition("\n")
    body = f"<pre>{escape(rest)}</pre>" if rest else ""
    return f"<div>{mark}<b>{escape(head)}</b></div>{body}"


def table(x: TextTable, folded: bool | None = None) -> str:
    """A table with its title. folded: collapse the rows; default: only if there are many."""

    def row(cells: Sequence[str], tag: str) -> str:
        kinds = (' class="word"' if k < x.left else "" for k in range(len(cells)))
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    rows = [f"<tr>{row(cells, 'td')}</tr>" for cells in x.rows[:ROWS_SHOWN]]
    if len(x.rows) > ROWS_SHOWN:
        rows.append(f'<tr><td class="word" colspan="{len(x.columns)}">… ({len(x.rows):,} in all)</td></tr>')
    body = f"<table><thead><tr>{row(x.columns, 'th')}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    opened = "" if (len(x.rows) > LONG if folded is None else folded) else " open"
    return f"<details{opened}><summary>{escape(x.title)}</summary>{body}</details>"


def page(title: str, *parts: str) -> str:
    """HTML parts as a self-contained document."""
    return _PAGE.format(title=escape(title), body=fragment(*parts))


def section(title: str, *parts: str) -> str:
    """A section: a heading and HTML parts."""
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"
