"""The results of benchmarks: where they come from, and that their counts are those of this code."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from nori.harness import read_csv

import sysdyn as sd
from sysdyn.errors import VERSION, BackendUnavailable

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
# Files that were measured with changes that were not committed, or tell no commit: to be measured again. The list only
# becomes shorter.
DIRTY = {"sensor_problems"}
# Files with rows "ROBOT, inverse …" and "ROBOT, forward …", and their operations.
BESIDE_PEERS = ("kernels", "generated", "python_calls")


def origin(name: str) -> str:
    """Version and commit that a file was measured with."""
    first = (RESULTS / f"{name}.csv").read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("# sysdyn: ") if first.startswith("# sysdyn: ") else ""


def test_results_are_of_committed_trees():
    names = {path.stem for path in RESULTS.glob("*.csv")}
    assert names >= DIRTY
    assert {name for name in names if "(" not in origin(name) or "dirty" in origin(name)} <= DIRTY


@cache
def operations(robot: str, problem: str) -> int:
    """Of the default search, without external wrenches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RESULTS.parent / "benchmarks"))
        robots = pytest.importorskip("rivals.robots")
    known = robots.ROBOTS | robots.FLOATING
    try:
        model = known[robot].model
    except (robots.CannotBuild, BackendUnavailable) as error:
        pytest.skip(str(error))
    make, output = {"inverse": (sd.inverse_dynamics, "tau"), "forward": (sd.forward_dynamics, "qdd")}[problem]
    solver = sd.compile(make(model), outputs=[output], external_wrenches=False, backend="python")
    return solver.flops.end_to_end.total


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["inverse", "forward"])
@pytest.mark.parametrize("name", BESIDE_PEERS)
def test_counts_beside_peers_are_those_of_the_code(name, problem):
    """Of the iCub, in files of this version; those of earlier versions are of the programs that these had."""
    if not origin(name).startswith(f"{VERSION} "):
        pytest.skip(f"{name}.csv is of {origin(name)}")
    rows = [row for row in read_csv(RESULTS / f"{name}.csv") if row["what"].startswith(f"icub, {problem}, ")]
    assert rows and {row["operations"] for row in rows} - {""} == {operations("icub", problem)}  # none: ours alone


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("fixed",), ("fixed", "point"), ("fixed", "fixed")], ids=" + ".join)
def test_counts_of_contacts_are_those_of_the_code(kinds):
    (row,) = (
        row
        for row in read_csv(RESULTS / "contacts.csv")
        if (row["robot"], row["contacts"]) == ("iCub", " + ".join(kinds))
    )
    pytest.importorskip("icub_models")
    feet = zip(("l_sole", "r_sole"), kinds, strict=False)
    problem = sd.forward_dynamics(sd.load("icub", base="floating")) + [sd.Contact(x, kind, name=x) for x, kind in feet]
    solver = sd.compile(problem, outputs=["qdd", "w"], external_wrenches=False, backend="python")
    assert solver.flops.end_to_end.total == row["operations"]
    assert operations("icub_floating", "forward") == row["operations_free"]
