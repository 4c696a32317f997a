"""Tables and text as HTML: names are no markup, and long tables are folded and cut."""

from __future__ import annotations

import lxml.html

from sysdyn.files import html
from sysdyn.files.html import LONG, ROWS_SHOWN, TextTable


def parsed(text: str):
    return lxml.html.fromstring(html.fragment(text))


def test_names_are_no_markup():
    table = html.table(TextTable("<b>", ("<i>", "x & y"), [("<script>", "1 < 2")]))
    found = parsed(table + html.text("<u>\n  <s>  a & b"))
    assert not found.xpath(".//b[.!='<u>'] | .//i | .//script | .//u | .//s")
    assert [x.text_content() for x in found.xpath(".//th | .//td")] == ["<i>", "x & y", "<script>", "1 < 2"]
    assert [x.text_content() for x in found.xpath(".//summary | .//pre")] == ["<b>", "  <s>  a & b"]


def test_long_tables_are_folded_and_cut():
    def opened(rows: int, folded: bool | None = None) -> bool:
        shown = parsed(html.table(TextTable("t", ("a", "b"), [("1", "2")] * rows), folded))
        return shown.xpath(".//details")[0].get("open") is not None

    assert opened(LONG) and not opened(LONG + 1) and opened(LONG + 1, False) and not opened(1, True)
    rows = parsed(html.table(TextTable("t", ("a", "b"), [("1", "2")] * (ROWS_SHOWN + 1000)))).xpath(".//tbody/tr")
    assert len(rows) == ROWS_SHOWN + 1 and "1,200" in rows[-1].text_content()
