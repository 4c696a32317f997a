"""Static pivots of least cost, with optional look-ahead; columns without a safe entry are orthogonalised.

Markowitz (1957); Duff, Erisman and Reid (2017), section 7.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial

from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.sampled import Pivot, SampledElimination, SampledMatrix

RankedPivot = tuple[int, int, int, int]  # A possible pivot, the cheapest first: operations, new entries, −row, −column.
PivotRule = Callable[[SampledElimination, list[int]], Pivot | None]  # (elimination, columns to eliminate) → pivot

N_CANDIDATES = 24  # Pivots whose exact cost is compared at each step (CPU time).


def markowitz(a: SampledMatrix, width: int = 1) -> Pivots:
    """Greedy: at each step the safe pivot whose elimination costs the fewest operations. After Markowitz (1957).

    Look-ahead minimises the cost of a pivot and of the cheapest next one, over the `width` cheapest pivots. Ties go to
    the last rows and columns, which belong to the leaves of a tree.
    """
    return choose_pivots(SampledElimination(a), reversed(range(a.n)), partial(cheapest_pivot, width=width))


def choose_rows(a: SampledMatrix, columns: Iterable[int]) -> Pivots:
    """Static pivots: the columns in the given order, each with its cheapest safe row.

    A column without a safe entry is deferred until fill-in gives it one. If no column has one, the cheapest column is
    orthogonalised.
    """
    return choose_pivots(SampledElimination(a), columns, _first_safe_pivot)


def choose_pivots(
    state: SampledElimination, columns: Iterable[int], choose: PivotRule, first: Iterable[Pivot] = ()
) -> Pivots:
    """Eliminate the pivots `first`, then repeatedly the pivot that choose(state, remaining columns) returns.

    If it returns None, the pivot is the entry of the best quality; if its quality is poor, a column is orthogonalised.
    """
    pivots, remaining = list(first), list(columns)
    for pivot in pivots:
        state.eliminate(pivot.row, pivot.column)
    while remaining:
        pivot = choose(state, remaining) or state.best_pivot(remaining) or state.orthogonal_pivot(remaining)
        state.eliminate(pivot.row, pivot.column)
        pivots.append(pivot)
        remaining.remove(pivot.column)
    rotated_with = {k: p.rotated_with for k, p in enumerate(pivots) if p.rotated_with}
    return Pivots([p.row for p in pivots], [p.column for p in pivots], rotated_with)


def least_squares(a: SampledMatrix, exact: Set[int], first: Sequence[Pivot] = ()) -> Pivots:
    """Order for min |W d + w| subject to E d + e = 0: pivots `first`, static pivots of E, then orthogonal columns of W.

    exact: the rows of E, equilibrated; the rows of W are divided by their standard deviations. Rows of E without a
    pivot at the end are linear combinations of others.
    """

    def choose(state: SampledElimination, columns: list[int]) -> Pivot:
        exact_columns = [j for j in columns if state.columns[j] & exact]
        if not exact_columns:
            return state.orthogonal_pivot(columns)
        if pivot := cheapest_pivot(state, exact_columns):
            return pivot
        norms = {j: state.norm_quality(j) for j in exact_columns}
        return state.orthogonal_pivot([j for j, x in norms.items() if x >= min(1.0, max(norms.values()))])

    columns = set(range(a.n)).difference(p.column for p in first)
    return choose_pivots(SampledElimination(a, exact), sorted(columns), choose, first)


def orthogonal(a: SampledMatrix) -> Pivots:
    """The order that orthogonalises every column of a square matrix: backward stable if the matrix is regular."""
    return choose_pivots(SampledElimination(a), range(a.n), SampledElimination.orthogonal_pivot)


def _first_safe_pivot(state: SampledElimination, columns: list[int]) -> Pivot | None:
    """The cheapest safe pivot, preferably ±1, of the first column with one; None if there is none."""
    for j in columns:
        if j in state.deferred_columns:
            continue
        for i in sorted(state.columns[j], key=lambda i: (j not in state.unit_columns[i], *state.cost(i, j), i)):
            if state.is_safe(i, j):
                return Pivot(i, j)
        state.deferred_columns.add(j)
    return None


def cheapest_pivot(state: SampledElimination, columns: list[int], width: int = 1) -> Pivot | None:
    """The cheapest safe pivot; None if no entry is safe. width: number of pivots that look-ahead compares."""
    options = _cheapest_options(state, columns)[:width]
    if not options:
        return None
    best, least = options[0], math.inf
    for option in options if len(options) > 1 else ():
        total = option[0] + (_next_cost(state, columns, option) if option[0] < least else 0)
        if total < least:
            best, least = option, total
    return Pivot(-best[2], -best[3])


def _next_cost(state: SampledElimination, columns: list[int], option: RankedPivot) -> float:
    """Operations of the cheapest pivot after this one; infinite if no safe pivot remains, 0 after the last column."""
    i, j = -option[2], -option[3]
    with state.trial():
        state.eliminate(i, j)
        columns = [c for c in columns if c != j]
        options = _cheapest_options(state, columns)
    return options[0][0] if options else math.inf if columns else 0.0


def _cheapest_options(state: SampledElimination, columns: list[int]) -> list[RankedPivot]:
    """Safe pivots among the least Markowitz products, sorted by exact cost."""
    by_count = sorted(columns, key=[len(x) for x in state.columns].__getitem__)
    products: list[tuple[int, int, int]] = []  # (Markowitz product, −row, −column)
    least: list[int] = []  # the N_CANDIDATES least products
    for j in by_count:
        n_col = len(state.columns[j]) - 1
        if len(least) == N_CANDIDATES and n_col * n_col > least[-1]:
            break
        of_column = [((len(state.rows[i]) - 1) * n_col, -i, -j) for i in state.eligible_rows(j)]
        products += of_column
        least = sorted([*least, *(x[0] for x in of_column)])[:N_CANDIDATES]
    products.sort()
    for product, i, j in products:  # product 0: nothing is updated
        if product > 0:
            break
        if state.is_safe(-i, -j):
            return [(*state.cost(-i, -j), i, j)]
    for start in range(0, len(products), N_CANDIDATES):
        part = products[start : start + N_CANDIDATES]
        if safe := [(*state.cost(-i, -j), i, j) for _, i, j in part if state.is_safe(-i, -j)]:
            return sorted(safe)
    others = ((i, j) for j in by_count for i in sorted(state.eligible_rows(j), reverse=True) if state.is_safe(i, j))
    return [(*state.cost(i, j), -i, -j) for i, j in itertools.islice(others, 1)]
