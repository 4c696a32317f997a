"""The page of the benchmarks shows what the files of results hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from nori.harness import read_csv

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments" / "benchmarks"))


def test_the_page_is_that_of_the_results(benchmarks):
    page = pytest.importorskip("page")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python experiments/benchmarks/page.py"
    assert page.time("1.5e-06") == "1.5 µs" and page.nanoseconds("12") == "12 ns" and page.number("12345") == "12,345"


def test_the_chart_of_the_readme_is_that_of_the_results(benchmarks):
    """Three robots beside each peer, and the picture names the data that it was drawn from."""
    import chart
    from PIL import Image

    times, counts = chart.times(), chart.counts()
    assert {who for group in times.values() for who in group} | {"fewest known before"} == set(chart.COLOURS)
    assert (
        len(times) == 7 and len(counts) == 6 and all(len(group) >= 2 for group in (*times.values(), *counts.values()))
    )
    with Image.open(chart.PICTURE) as picture:
        assert picture.text[chart.KEY] == chart.digest(), "run python experiments/benchmarks/chart.py"
    name = chart.PICTURE.name
    for page in ("README.md", "docs/index.md"):
        assert f"{name})" in (ROOT / page).read_text(encoding="utf-8")


def counted_again():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "experiments" / "benchmarks"))
        import counts
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("number", range(14))
def test_counts_are_those_of_the_code(number):
    """Each row of counts.csv, so that a count that has grown is seen at once."""
    counts, rows = counted_again(), read_csv(ROOT / "experiments" / "results" / "counts.csv")
    assert len(counts.ROWS) == len(rows) == 14
    again = {name: str(x) for name, x in counts.measure(counts.ROWS[number], effort=4.0, states=10).items()}
    for name in ("robot", "problem", "scope", "method", "mul", "add", "div", "total", "best_known", "rbda", "textbook"):
        assert again[name] == str(rows[number][name]), f"{name}: run python experiments/benchmarks/counts.py"


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("number", range(20))
def test_no_count_has_grown_since_the_last_release(number):
    """Of the default search; what has grown is mended, or explained here by an exception."""
    counts, rows = counted_again(), read_csv(ROOT / "experiments" / "results" / "counts_released.csv")
    row, stored = counts.WATCHED[number], rows[number]
    assert len(counts.WATCHED) == len(rows) == 20 and (row.robot, row.problem) == (stored["robot"], stored["problem"])
    assert counts.compiled(row, row.model(), backend="python")[1].total <= stored["total"]


def test_the_fewest_known_are_the_least_of_all_columns():
    for row in read_csv(ROOT / "experiments" / "results" / "counts.csv"):
        known = [row[x] for x in ("published", "rbda", "textbook") if row[x] != ""]
        assert row["best_known"] == min(known) and row["total"] < row["best_known"]
