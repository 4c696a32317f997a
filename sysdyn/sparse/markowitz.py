"""Static pivots of least cost, with or without looking ahead, and orthogonal columns if no entry is safe.

Markowitz (1957); Duff, Erisman and Reid (2017), section 7.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.sampled import Pivot, Sampled, SampledElimination

Option = tuple[int, int, int, int]  # A possible pivot, the cheapest first: operations, new entries, −row, −column.
Choose = Callable[[SampledElimination, list[int]], Pivot | None]  # (elimination, columns left) → pivot

CANDIDATES = 24  # Number of pivots whose exact cost is compared at each step of `markowitz` (chosen).


def markowitz(a: Sampled, width: int = 1, depth: int = 0) -> Pivots:
    """Greedy: at each step the safe pivot whose elimination costs the fewest operations. After Markowitz (1957).

    Look-ahead: each of the `width` cheapest is tried, and the one taken that costs least together with the `depth`
    greedy steps after it. Ties go to the last rows and columns, those of the leaves of a tree.
    """
    columns = range(a.n - 1, -1, -1)
    return choose_pivots(SampledElimination(a), columns, lambda state, left: foreseen(state, left, width, depth))


def choose_rows(a: Sampled, columns: Iterable[int]) -> Pivots:
    """Static pivots: the columns in the given order, each with its cheapest safe row.

    A column without a safe entry waits until elimination has given it one; if no column has one, the column of least
    cost is made orthogonal.
    """
    return choose_pivots(SampledElimination(a), columns, _first)


def choose_pivots(
    state: SampledElimination, columns: Iterable[int], choose: Choose, first: Iterable[Pivot] = ()
) -> Pivots:
    """Eliminate the pivots `first`, then those that choose(state, columns left) returns, until no column is left.

    If it returns none, the safest entry is the pivot; if that is not nearly safe, an orthogonal column.
    """
    taken, left = list(first), list(columns)
    for pivot in taken:
        state.eliminate(pivot.row, pivot.column)
    while left:
        pivot = choose(state, left) or state.safest(left) or state.turned(left)
        state.eliminate(pivot.row, pivot.column)
        taken.append(pivot)
        left.remove(pivot.column)
    return Pivots(
        [p.row for p in taken], [p.column for p in taken], {k: p.joined for k, p in enumerate(taken) if p.joined}
    )


def _first(state: SampledElimination, left: list[int]) -> Pivot | None:
    """The cheapest safe pivot, ±1 before others, of the first column that has one; None if no column has."""
    for j in left:
        if j in state.waiting:
            continue
        for i in sorted(state.columns[j], key=lambda i: (j not in state.unit[i], *state.cost(i, j), i)):
            if state.safe(i, j):
                return Pivot(i, j)
        state.waiting.add(j)
    return None


def foreseen(state: SampledElimination, left: list[int], width: int, depth: int) -> Pivot | None:
    """The one of the `width` cheapest safe pivots that costs least with the greedy steps after it; None without any."""
    options = _cheapest(state, left)[:width]
    if not options:
        return None
    best, least = options[0], math.inf
    for option in options if len(options) > 1 else ():
        total = _outlook(state, left, option, depth, least)
        if total < least:
            best, least = option, total
    return Pivot(-best[2], -best[3])


def cheapest(state: SampledElimination, left: list[int]) -> Pivot | None:
    """The cheapest safe pivot; None if no entry is safe."""
    return foreseen(state, left, 1, 0)


def _outlook(state: SampledElimination, left: list[int], option: Option, depth: int, limit: float) -> float:
    """Operations of a pivot and of the greedy steps after it; infinite if they come to a dead end."""
    total = option[0]
    with state.trial():
        while True:
            i, j = -option[2], -option[3]
            state.eliminate(i, j)
            left = [c for c in left if c != j]
            if not (depth and left and total < limit):
                return total
            options = _cheapest(state, left)
            if not options:
                return math.inf
            option = options[0]
            total += option[0]
            depth -= 1


def _cheapest(state: SampledElimination, left: list[int]) -> list[Option]:
    """Safe pivots among those with the least Markowitz product, the one of least exact cost first."""
    by_count = sorted(left, key=[len(x) for x in state.columns].__getitem__)
    products: list[tuple[int, int, int]] = []  # (Markowitz product, −row, −column)
    least: list[int] = []  # the CANDIDATES least products
    for j in by_count:
        n_col = len(state.columns[j]) - 1
        if len(least) == CANDIDATES and n_col * n_col > least[-1]:
            break
        of_column = [((len(state.rows[i]) - 1) * n_col, -i, -j) for i in state.columns[j]]
        products += of_column
        least = sorted([*least, *(x[0] for x in of_column)])[:CANDIDATES]
    products.sort()
    for product, i, j in products:  # alone in its row or column: nothing is updated
        if product > 0:
            break
        if state.safe(-i, -j):
            return [(*state.cost(-i, -j), i, j)]
    for start in range(0, len(products), CANDIDATES):
        part = products[start : start + CANDIDATES]
        if safe := [(*state.cost(-i, -j), i, j) for _, i, j in part if state.safe(-i, -j)]:
            return sorted(safe)
    others = ((i, j) for j in by_count for i in sorted(state.columns[j], reverse=True) if state.safe(i, j))
    return [(*state.cost(i, j), -i, -j) for i, j in itertools.islice(others, 1)]
