"""`sysdyn reproduce`: reduced runs of the experiments on orders and on numerical behaviour, and what they must find."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sysdyn.cli import app
from sysdyn.experiment import names, read_csv, reproduce


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    page = reproduce(["orderings", "numerics"], folder, quick=True)
    return folder, page.read_text(encoding="utf-8")


def test_the_page_has_a_section_for_each(results):
    folder, page = results
    assert page.count("\n## ") == 2 and "## orderings: " in page and "## numerics: " in page
    assert page.count("The paper: ") == page.count("Found: ") == 2
    assert {path.stem.split("_")[0] for path in folder.glob("*.png")} == {"orderings", "numerics"}


def test_safe_orders_have_no_zero_pivot_and_those_of_one_state_have(results):
    folder, page = results
    rows = [row for row in read_csv(folder / "numerics.csv") if row["problem"].startswith("forward")]
    assert {row["order"] for row in rows} == {"umfpack", "aba", "paper", "pivoted"}
    for order in ("umfpack", "aba"):
        assert all(row["zero_pivot"] == row["crossing"] == 0 for row in rows if row["order"] == order)
        assert all(row["error"] < 1e-13 for row in rows if row["order"] == order)
    paper = [row for row in rows if row["order"] == "paper"]
    assert all(row["crossing"] > 0 for row in paper) and max(row["zero_pivot"] for row in paper) > 0


def test_every_order_that_counts_as_safe_is_accurate(results):
    folder, _ = results
    rows = read_csv(folder / "orderings.csv")
    safe = [row for row in rows if row["status"] == "safe"]
    assert len(safe) > 20 and all(row["backward_error"] < 1e-11 and row["end_to_end"] > 0 for row in safe)
    inverse = {row["order"]: row["fill_in"] for row in safe if row["kind"] == "inverse"}
    assert inverse["rnea"] == 0


def test_unknown_experiments_are_named():
    result = CliRunner().invoke(app, ["reproduce", "fig3"])
    assert result.exit_code == 2 and "experiment" in result.output and "fig2" in result.output
    assert {"costs", "fig1", "fig2", "numerics", "orderings", "property1", "property2", "property3"} <= set(names())
