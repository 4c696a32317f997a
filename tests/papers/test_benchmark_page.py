"""The page of the benchmarks shows what the files of results hold."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments" / "benchmarks"))
    page = pytest.importorskip("page")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python experiments/benchmarks/page.py"
    assert page.time("1.5e-06") == "1.5 µs" and page.nanoseconds("12") == "12 ns" and page.number("12345") == "12,345"
