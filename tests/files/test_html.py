"""Tables and text as HTML: nothing of a name is markup, and long tables are folded and cut."""

from __future__ import annotations

import lxml.html

from sysdyn.files import html
from sysdyn.files.html import BAD, GOOD, LONG, ROWS_SHOWN, Table


def parsed(text: str):
    return lxml.html.fromstring(html.whole(text))


def test_names_are_no_markup():
    found = parsed(html.table(Table("<b>", ("<i>", "x & y"), [("<script>", "1 < 2")])) + html.text("<u>\n  <s>  a & b"))
    assert not found.xpath(".//b[.!='<u>'] | .//i | .//script | .//u | .//s")
    assert [x.text_content() for x in found.xpath(".//th | .//td")] == ["<i>", "x & y", "<script>", "1 < 2"]
    assert found.xpath(".//summary")[0].text == "<b>"


def test_words_are_left_and_numbers_right():
    found = parsed(html.table(Table("t", ("a", "b", "c"), [("1", "2", "3")], left=2)))
    assert [x.get("class") for x in found.xpath(".//td")] == ["word", "word", None]


def test_long_tables_are_folded_and_cut():
    def opened(rows: int, folded: bool | None = None) -> bool:
        shown = parsed(html.table(Table("t", ("a", "b"), [("1", "2")] * rows), folded))
        return shown.xpath(".//details")[0].get("open") is not None

    assert opened(LONG) and not opened(LONG + 1) and opened(LONG + 1, False) and not opened(1, True)
    rows = parsed(html.table(Table("t", ("a", "b"), [("1", "2")] * (ROWS_SHOWN + 1000)))).xpath(".//tbody/tr")
    assert len(rows) == ROWS_SHOWN + 1 and rows[-1].text_content() == "… (1,200 in all)"


def test_text_has_a_head_and_keeps_its_indents():
    found = parsed(html.text("head\n  mass     3 kg\n    deep  er words", GOOD))
    head, mass, deep = found.xpath("//div[@class='sysdyn']/div")
    assert head.text_content() == "✓ head" and head.xpath("./b")[0].text == "head"
    assert [x.text_content() for x in (mass, deep)] == ["mass 3 kg", "deep er words"]
    assert [x.get("style") for x in (mass, deep)] == ["padding-left: 1.5em", "padding-left: 2.5em"]
    assert "✗" in html.text("head", BAD)
