"""Operation counts as functions of the chain length: rows of a file, spread over states, comparisons as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

# Values of the column "counter".
PUBLISHED, SOLVE, END_TO_END = "published", "exact, solve", "exact, end to end"
COUNTERS = (PUBLISHED, SOLVE, END_TO_END)
# Values of the column "shared": no sharing, equal results count once, the same after algebraic rewriting.
NOTHING, EQUAL, REWRITTEN = "nothing", "equal results", "equal results, rewritten"
# Amounts as sums of columns.
AMOUNTS = {"add": ("add",), "mul": ("mul", "div", "sqrt"), "total": ("add", "mul", "div", "sqrt")}
# Replaces the findings about UMFPACK if it is not installed.
LEFT_OUT = "UMFPACK is not installed: its order, and what is compared with it, are left out."
# Caption of a figure.
CAPTION = (
    "Curves are medians over {states} random states, each with permutations of its own, bands their range.\n"
    "Exact counts compute equal results once{besides}; {others} nothing."
)


def row(
    bodies: int, counter: str, algorithm: str, outputs: str, shared: str, cost: Any, state: int | str = "",
    note: str = "",
) -> dict[str, Any]:  # fmt: skip
    """One CSV row. cost: a Cost or Flops. state: number of the state, if the count depends on it."""
    parts = {x: getattr(cost, x, 0) for x in ("mul", "add", "div", "sqrt")}
    return {
        "bodies": bodies, "counter": counter, "algorithm": algorithm, "outputs": outputs, "shared": shared,
        "state": state, **parts, "note": note,
    }  # fmt: skip


class Spread(NamedTuple):
    """Median and range of an amount over the states of a file."""

    median: float
    least: float
    greatest: float


Curve = Mapping[int, Spread]  # bodies → amount


def curve(rows: Iterable[Mapping[str, Any]], amount: str = "total", **where: str) -> dict[int, Spread]:
    """{bodies: spread of an amount of AMOUNTS}, over the rows whose columns equal `where`."""
    found: dict[int, list[int]] = {}
    for x in rows:
        if all(x[key] == value for key, value in where.items()):
            found.setdefault(x["bodies"], []).append(sum(x[part] for part in AMOUNTS[amount]))
    return {n: Spread(median(values), min(values), max(values)) for n, values in sorted(found.items())}


def draw(ax: Any, drawn: Curve, colour: str, scale: Mapping[int, float] | None = None, **style: Any) -> None:
    """Draw medians as a line and ranges as a band on Matplotlib axes, divided by `scale` if given."""
    if drawn:
        n = list(drawn)
        middle, least, greatest = np.array(list(drawn.values())).T / [scale[k] if scale else 1.0 for k in n]
        ax.fill_between(n, least, greatest, color=colour, alpha=0.25, linewidth=0.0)
        ax.plot(n, middle, color=colour, linewidth=1.4, **style)


# ---- verdicts ------------------------------------------------------------------------------------------------------


def ratios(a: Curve, b: Curve) -> list[float]:
    """Ratios of the medians of a and b, at their common sizes."""
    return [a[n].median / b[n].median for n in a if n in b]


def between(values: Collection[float]) -> str:
    """Range as text, like "0.26 to 0.63"; "–" for no values."""
    if not values:
        return "–"
    least, greatest = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == greatest else f"{least} to {greatest}"


def fewer(a: Curve, b: Curve) -> list[int]:
    """Sizes at which every count of curve a is below every count of curve b."""
    return [n for n in a if n in b and a[n].greatest < b[n].least]


def sizes(found: Sequence[int], known: Sequence[int]) -> str:
    """Sizes in words: "for every n", "for no n", "for n = 2 … 5, 9"; ranges run over neighbours in `known`."""
    if len(found) == len(known):
        return "for every n"
    if not found:
        return "for no n"
    runs: list[list[int]] = []
    for n in found:
        if runs and known.index(n) == known.index(runs[-1][-1]) + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return "for n = " + ", ".join(f"{run[0]} … {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def holds(found: Sequence[int], known: Sequence[int]) -> str:
    """One of "holds for every n", "does not hold for any n", "holds for n = 2 … 5 only"."""
    if not found:
        return "does not hold for any n"
    return f"holds {sizes(found, known)}" + ("" if len(found) == len(known) else " only")
