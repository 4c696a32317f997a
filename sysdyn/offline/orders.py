"""Candidate elimination orders of a problem."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.offline.options import GIVEN, Equations, Options
from sysdyn.problem import Problem
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.orderings import ORDERINGS
from sysdyn.sparse.quasidefinite import LAST_RESORT
from sysdyn.sparse.sampled import Sampled

# Orders that "auto" tries beside the recursive ones.
AUTO = ("torn", "umfpack", "markowitz")
# Orders that are tried beside the symmetric ones for estimates of wrenches of a motion that is known exactly: what the
# accelerations decide needs no multipliers, and these orders find that (iCub on two feet: 8,537 and 8,960 for 13,377).
KNOWN_MOTION = ("umfpack", "torn")
# Unknowns beyond which a symmetric system is first tried with FEW_STARTS starts only, the better ones there (CPU time).
FEW_LIMIT, FEW_STARTS = 1000, 3
# Cost of both first starts of an order, relative to the cheapest order, above which its other starts are skipped (they
# were seen to save up to 16 %).
MAX_RELATIVE_COST = 1.2

Order = Callable[[float], Pivots]  # An order, as a function of the operations at which it is given up.
Named = Iterator[tuple[str, Order]]


# ---- orders -------------------------------------------------------------------------------------------------------


def candidates(
    system: System, sampled: Sampled, options: Options, costs: Mapping[str, int], later: bool, fast: bool
) -> Named:
    """(name, order) of every order to try. Raises UnknownName.

    costs: {name: operations}, which the caller fills while it iterates. later: also orders of last resort. fast: only
    the first start of each searched order.
    """
    ordering = options.ordering
    if ordering == GIVEN:
        rows, columns = options.given
        yield ordering, _Found(Pivots(rows, columns))
    elif ordering in RECURSIVE:
        yield ordering, lambda cap: Pivots(*RECURSIVE[ordering](system))
    elif ordering in ORDERINGS:
        yield from _searched(ordering, sampled, costs, later, fast)
    elif ordering != "auto":
        raise UnknownName("ordering", ordering, ("auto", *RECURSIVE, *ORDERINGS))
    elif sampled.tree:
        yield from _searched("symmetric", sampled, costs, later, fast)
        if known_motion(system):
            for name in KNOWN_MOTION:
                yield from _searched(name, sampled, costs, later, fast)
        elif later:  # last resort: orthogonal columns
            yield from _searched("torn", sampled, costs, later, fast=True)
    else:
        yield from _recursive(system)
        if options.level == "fast" and costs:
            return
        for name in AUTO:
            yield from _searched(name, sampled, costs, later, fast)


def known_motion(system: System) -> bool:
    """True if all accelerations of joints are known exactly."""
    return len(system.problem.knows("qdd")) == system.model.nv


def _recursive(system: System) -> Named:
    """The recursive orders of the system."""
    for name, function in RECURSIVE.items():
        try:
            permutations = function(system)
        except ProblemError:
            continue
        yield name, _Found(Pivots(*permutations))


def _searched(name: str, sampled: Sampled, costs: Mapping[str, int], later: bool, fast: bool) -> Named:
    """The starts of a searched order; see `candidates`."""
    starts = ORDERINGS[name]
    if name == "symmetric":
        starts = (*starts, *LAST_RESORT) if later else starts[:FEW_STARTS] if sampled.n > FEW_LIMIT else starts
    names = [name, *(f"{name} (start {k})" for k in range(2, len(starts) + 1))]
    for k, (label, start) in enumerate(zip(names, starts[:1] if fast else starts, strict=False)):
        first = min(costs.get(x, math.inf) for x in names[:2])
        if k == 2 and not later and first > MAX_RELATIVE_COST * min(costs.values(), default=math.inf):
            return  # the further starts save a little compared with the first two
        yield label, _Capped(start, sampled)


@dataclass(frozen=True)
class _Found:
    """An order that is known."""

    pivots: Pivots

    def __call__(self, cap: float) -> Pivots:
        return self.pivots


@dataclass(frozen=True)
class _Capped:
    """A start of a searched order that is given up at a number of operations."""

    start: Callable[[Sampled], Pivots]
    sampled: Sampled

    def __call__(self, cap: float) -> Pivots:
        return self.start(replace(self.sampled, budget=min(cap, self.sampled.budget)))


def given_order(problem: Problem, order: object, equations: Equations) -> tuple[tuple[int, ...], ...]:
    """(rows, columns) of the pivots of `problem.system`. Raises InvalidInput.

    order: these permutations, or a function of the pattern (CSR of ones) that gives them.
    """
    system = problem.system(equations.layout, equations.known)
    if callable(order):
        order = order(system.pattern())
    try:
        found = tuple(tuple(operator.index(k) for k in permutation) for permutation in order)  # type: ignore[attr-defined]
    except TypeError:
        found = ()
    if len(found) != 2 or any(sorted(x) != list(range(n)) for x, n in zip(found, system.shape, strict=True)):
        raise InvalidInput(
            f"ordering must be the name of an order, or (row_perm, col_perm): the row and the column of each pivot, "
            f"permutations of 0 … {system.shape[0] - 1} and 0 … {system.shape[1] - 1}, counted from 0, or a function "
            "that makes them of the pattern of problem.system()"
        )
    return found
