"""The page of `sysdyn report --out`: what it holds, that it loads nothing, and what a browser makes of it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from browser import found, picture
from commands import error, run

from sysdyn.online.compile import compile

PROBLEMS = Path(__file__).parents[2] / "problems"


def written(out: Path, *arguments: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sysdyn.app.jobs.compile", functools.partial(compile, level="fast"))
        run("report", *arguments, "--out", out)
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def leg(tmp_path_factory) -> str:
    """The page of an estimation."""
    return written(tmp_path_factory.mktemp("leg") / "leg.html", str(PROBLEMS / "hopping_leg.toml"))


@pytest.mark.slow
def test_the_page_of_an_estimate(leg, tmp_path):
    for title in ("The robot", "The matrix", "Operations", "Orders considered", "Time on this machine"):
        assert f"<h2>{title}</h2>" in leg
    assert "RNEA of this robot" in leg and "ABA of this robot" in leg
    assert "a bound call" in leg and "leverage" in leg
    rows = re.findall(
        r'<td class="word">(encoders|imu|stance|flight)</td><td>\d+</td><td>[^<]+</td><td>([\d.]+)</td>', leg
    )
    assert len(rows) == 4 and all(0.0 <= float(leverage) <= 1.0 for _, leverage in rows)
    assert re.search(r"× [\d.e+]+ \(median of tau\), × [\d.e+]+ \(tau:\w+", leg)
    assert not re.search(r'(?:src|href)="(?!data:)|https?://(?!www.w3.org)', leg)  # it loads nothing


@pytest.mark.slow
def test_a_browser_draws_it_and_zooms(leg, tmp_path):
    zoomed = """(() => { const svg = document.querySelector("figure svg"), before = svg.viewBox.baseVal.width;
        svg.dispatchEvent(new WheelEvent("wheel", {deltaY: -300, clientX: 100, clientY: 300}));
        dispatchEvent(new Event("beforeprint"));
        return [svg.viewBox.baseVal.width / before, document.querySelectorAll("details:not([open])").length]; })()"""
    ratio, closed = found(leg, zoomed, tmp_path)
    assert ratio == pytest.approx(0.5488, rel=1e-3) and closed == 0
    assert picture(leg, tmp_path).stat().st_size > 10_000


def test_the_page_of_a_recursion_shows_the_matrix_of_the_paper(tmp_path):
    page = written(tmp_path / "arm.html", "chain:3", "--problem", "forward")
    assert "forms no matrix" in page and "P D Q in the order of its pivots" in page
    assert "difference from ABA" in page and "ABA of this robot" in page


def test_what_exists_is_kept(tmp_path):
    (tmp_path / "there.html").write_text("mine")
    assert "--force" in error("report", "chain:2", "--out", tmp_path / "there.html")
    assert ".html" in error("report", "chain:2", "--out", tmp_path / "page.pdf")
    assert (tmp_path / "there.html").read_text() == "mine"
