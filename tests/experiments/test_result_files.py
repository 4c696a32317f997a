"""Result files of benchmarks name the commit that they were measured with."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
# Files that were measured with changes that were not committed, or tell no commit: to be measured again. The list only
# becomes shorter.
DIRTY = {"sensor_problems"}


def origin(name: str) -> str:
    """Version and commit that a file was measured with."""
    first = (RESULTS / f"{name}.csv").read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("# sysdyn: ") if first.startswith("# sysdyn: ") else ""


def test_results_are_of_committed_trees():
    names = {path.stem for path in RESULTS.glob("*.csv")}
    assert names >= DIRTY
    assert {name for name in names if "(" not in origin(name) or "dirty" in origin(name)} <= DIRTY
