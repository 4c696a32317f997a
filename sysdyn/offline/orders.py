"""Candidate elimination orders of a problem."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.offline.options import CUSTOM, Equations, Options
from sysdyn.problem import Problem
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.orderings import ORDERINGS
from sysdyn.sparse.quasidefinite import LAST_RESORT
from sysdyn.sparse.sampled import SampledMatrix

# Orders that "auto" tries in addition to the recursive ones.
AUTO = ("tearing", "umfpack", "markowitz", "colamd")
# Orders that are tried in addition to symmetric ones for estimates of wrenches with exactly known motion, because
# quantities that depend only on accelerations need no multipliers (iCub on two feet: 8,537 and 8,960 operations instead
# of 13,377).
KNOWN_MOTION = ("umfpack", "tearing")
# Beyond FEW_LIMIT unknowns only the first FEW_STARTS starts of the symmetric order are tried at first (CPU time).
FEW_LIMIT, FEW_STARTS = 1000, 3
# If both first starts of an order cost more than this multiple of the cheapest order, its other starts are skipped
# (they saved up to 16 %).
MAX_RELATIVE_COST = 1.2

LimitedOrdering = Callable[[float], Pivots]  # A function of a limit on operations that computes an order.
NamedOrders = Iterator[tuple[str, LimitedOrdering]]


def candidates(
    system: System, sampled: SampledMatrix, options: Options, costs: Mapping[str, int], last_resort: bool, fast: bool
) -> NamedOrders:
    """(name, order) of every order to try. Raises UnknownName.

    costs: {name: operations}; the caller adds entries while it iterates. last_resort: include expensive orders that are
    structurally safe. fast: only the first two starts of each searched order.
    """
    searched = partial(_starts, sampled=sampled, costs=costs, last_resort=last_resort)
    ordering = options.ordering
    if ordering == CUSTOM:
        yield ordering, _fixed(*options.custom_order)
    elif ordering in RECURSIVE:
        yield ordering, _fixed(*RECURSIVE[ordering](system))
    elif ordering in ORDERINGS:
        yield from searched(ordering, fast=fast)
    elif ordering != "auto":
        raise UnknownName("ordering", ordering, ("auto", *RECURSIVE, *ORDERINGS))
    elif sampled.tree:
        yield from searched("symmetric", fast=fast)
        if len(system.problem.knows("qdd")) == system.model.nv:
            for name in KNOWN_MOTION:
                yield from searched(name, fast=fast)
        elif last_resort:  # orthogonal columns
            yield from searched("tearing", fast=True)
    else:
        for name, order in RECURSIVE.items():
            with contextlib.suppress(ProblemError):
                yield name, _fixed(*order(system))
        if options.level == "fast" and costs:
            return
        for name in AUTO:
            yield from searched(name, fast=fast)


def _starts(name: str, sampled: SampledMatrix, costs: Mapping[str, int], last_resort: bool, fast: bool) -> NamedOrders:
    """The starts of a searched order; see `candidates`."""
    starts = ORDERINGS[name]
    if name == "symmetric":
        starts = (*starts, *LAST_RESORT) if last_resort else starts[:FEW_STARTS] if sampled.n > FEW_LIMIT else starts
    names = [name, *(f"{name} (start {k})" for k in range(2, len(starts) + 1))]
    for k, (label, start) in enumerate(zip(names, starts[:2] if fast else starts, strict=False)):
        cost = min(costs.get(x, math.inf) for x in names[:2])
        if k == 2 and not last_resort and cost > MAX_RELATIVE_COST * min(costs.values(), default=math.inf):
            return
        yield label, partial(_limited, start, sampled)


def _fixed(rows: Sequence[int], columns: Sequence[int]) -> LimitedOrdering:
    return lambda limit: Pivots(rows, columns)


def _limited(start: Callable[[SampledMatrix], Pivots], sampled: SampledMatrix, limit: float) -> Pivots:
    return start(replace(sampled, budget=min(limit, sampled.budget)))


def custom_permutations(problem: Problem, order: object, equations: Equations) -> tuple[tuple[int, ...], ...]:
    """Validated permutations (row_perm, col_perm) of the pivots of `problem.system`. Raises InvalidInput.

    order: (row_perm, col_perm), or a function that computes them from the pattern (CSR of ones).
    """
    system = problem.system(equations.layout, equations.known)
    if callable(order):
        order = order(system.pattern())
    try:
        permutations = tuple(tuple(operator.index(k) for k in permutation) for permutation in order)  # type: ignore[attr-defined]
    except TypeError:
        permutations = ()
    if len(permutations) != 2 or any(
        sorted(x) != list(range(n)) for x, n in zip(permutations, system.shape, strict=True)
    ):
        raise InvalidInput(
            f"ordering must be the name of an order, or (row_perm, col_perm): the row and the column of each pivot, "
            f"permutations of 0 … {system.shape[0] - 1} and 0 … {system.shape[1] - 1}, counted from 0, or a function "
            "that makes them of the pattern of problem.system()"
        )
    return permutations
