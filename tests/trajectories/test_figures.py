"""The committed table of trajectories: the rows of its script, and the cheap ones measured again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysdyn.papers.nori.experiments import read_csv

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "trajectories"))
    import figures

STALE = "run python experiments/trajectories/figures.py, and commit what it writes"
# Figures that are measured again may differ by this share: libraries round sums in orders of their own.
SAME = 0.02


def stored() -> dict[tuple[str, str], dict]:
    return {(row["what"], row["level"]): row for row in read_csv(figures.RESULT)}


def test_the_table_has_all_that_is_wanted():
    rows = stored()
    assert set(figures.WANTED) <= set(rows), STALE
    for key, wanted in figures.WANTED.items():
        assert rows[key]["wanted"] == pytest.approx(float(wanted)), STALE
    for row in rows.values():
        assert float(row["rms"]) > 0.0 and (row["within 2 sigma"] == "" or 0.0 <= row["within 2 sigma"] <= 100.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [lambda table: figures.arm_rows(table, 1.0, 0), lambda table: figures.draw_rows(table, 20)]
)
def test_rows_are_current(make, capsys):
    table = figures.Table()
    make(table)
    rows = stored()
    for row in table.rows:
        same = rows[row["what"], row["level"]]
        for key in ("rms", "nees", "within 2 sigma"):
            if row[key] != "":
                assert float(same[key]) == pytest.approx(float(row[key]), rel=SAME), STALE
    assert "rms" in capsys.readouterr().out
