"""Static pivots of least cost, with or without looking ahead, and orthogonal columns if no entry is safe.

Markowitz (1957); Duff, Erisman and Reid (2017), section 7.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.sampled import Option, Pivot, Sampled, SampledElimination

CANDIDATES = 24  # Number of pivots whose exact cost is compared at each step of `markowitz` (chosen).


def markowitz(a: Sampled, width: int = 1, depth: int = 0) -> Pivots:
    """Greedy: at each step the safe pivot whose elimination costs the fewest operations. After Markowitz (1957).

    Look-ahead: each of the `width` cheapest is tried, and the one taken that costs least together with the `depth`
    greedy steps after it.
    """
    return with_pivots(SampledElimination(a), range(a.n), lambda state, left: foreseen(state, left, width, depth))


def choose_pivots(a: Sampled, columns: Iterable[int]) -> Pivots:
    """Static pivots: the columns in the given order, each with its cheapest safe row.

    A column without a safe entry waits until elimination has given it one; if no column has one, the column of least
    cost is made orthogonal.
    """
    return with_pivots(SampledElimination(a), columns, _first)


def with_pivots(
    state: SampledElimination, columns: Iterable[int], choose: Callable[[SampledElimination, list[int]], Pivot | None],
    first: Iterable[Pivot] = (),
) -> Pivots:  # fmt: skip
    """Elimination with the pivots that are chosen from the columns left, after the first ones.

    If none is chosen, the safest entry is the pivot; if that is not nearly safe, an orthogonal column.
    """
    taken = list(first)
    for pivot in taken:
        state.eliminate(pivot.row, pivot.column)
    return order_of([*taken, *eliminated(state, list(columns), choose)])


def eliminated(
    state: SampledElimination, left: list[int],
    choose: Callable[[SampledElimination, list[int]], Pivot | None], wait: bool = False,
) -> list[Pivot]:  # fmt: skip
    """The pivots chosen from the columns left, one after the other; wait: columns without a choice are left."""
    taken: list[Pivot] = []
    while left:
        pivot = choose(state, left)
        if pivot is None and wait:
            break
        pivot = pivot or state.safest(left) or state.turned(left)
        state.eliminate(pivot.row, pivot.column)
        taken.append(pivot)
        left.remove(pivot.column)
    return taken


def order_of(taken: Sequence[Pivot]) -> Pivots:
    """The order in which these pivots were taken."""
    rows, columns = [p.row for p in taken], [p.column for p in taken]
    return Pivots(rows, columns, {k: p.joined for k, p in enumerate(taken) if p.joined})


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
        if state.trials < 0.0:
            break
        total = _outlook(state, left, option, depth, least)
        if total < least:
            best, least = option, total
    return Pivot(*best[2:])


def cheapest(state: SampledElimination, left: list[int]) -> Pivot | None:
    """The cheapest safe pivot; None if no entry is safe."""
    return foreseen(state, left, 1, 0)


def _outlook(state: SampledElimination, left: list[int], option: Option, depth: int, limit: float) -> float:
    """Operations of a pivot and of the greedy steps after it; infinite if they come to a dead end."""
    total, _, i, j = option
    with state.trial():
        while True:
            state.eliminate(i, j)
            left = [c for c in left if c != j]
            if not (depth and left and total < limit):
                return total
            options = _cheapest(state, left)
            if not options:
                return math.inf
            operations, _, i, j = options[0]
            total += operations
            depth -= 1


def _cheapest(state: SampledElimination, left: list[int]) -> list[Option]:
    """Safe pivots among those with the least Markowitz product, the one of least exact cost first."""
    by_count = sorted(left, key=[len(x) for x in state.columns].__getitem__)
    options: list[tuple[int, int, int]] = []
    least: list[int] = []  # products of the first CANDIDATES
    for j in by_count:
        n_col = len(state.columns[j]) - 1
        if len(least) == CANDIDATES and n_col * n_col > least[-1]:
            break
        own = [((len(state.rows[i]) - 1) * n_col, i, j) for i in state.columns[j]]
        options += own
        least += [x[0] for x in own]
        least.sort()
        del least[CANDIDATES:]
    options.sort()
    for product, i, j in options:  # alone in its row or column: nothing is updated
        if product > 0:
            break
        if state.safe(i, j):
            return [(*state.cost(i, j), i, j)]
    for start in range(0, len(options), CANDIDATES):
        safe = [(*state.cost(i, j), i, j) for _, i, j in options[start : start + CANDIDATES] if state.safe(i, j)]
        if safe:
            return sorted(safe)
    anywhere = ((i, j) for j in by_count for i in sorted(state.columns[j]) if state.safe(i, j))
    return [(*state.cost(i, j), i, j) for i, j in itertools.islice(anywhere, 1)]
