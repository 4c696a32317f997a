"""Candidate elimination orders of a problem."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sysdyn.equations.augmented import system as problem_system
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.measurements.statement import Statement
from sysdyn.offline.options import GIVEN, Equations, Options
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.orderings import FORESIGHT, ORDERINGS, PLAIN
from sysdyn.sparse.quasidefinite import LAST_RESORT
from sysdyn.sparse.sampled import Sampled

# Orders that "auto" tries beside the recursive ones.
AUTO = ("torn", "umfpack", "colamd", "markowitz", "fronts")
# Most unknowns of a system for which "auto" tries AUTO; larger ones are tried with AUTO_LARGE, in less time (chosen).
AUTO_LIMIT = 3000
AUTO_LARGE = ("torn", "umfpack")
# Orders that are tried beside the symmetric ones for estimates of wrenches of a motion that is known exactly: what the
# accelerations decide needs no multipliers, and these orders find that (iCub on two feet: 8,537 and 8,960 for 13,377).
KNOWN_MOTION = ("umfpack", "torn")
# Most unknowns of a system searched with look-ahead, which takes long in larger ones and was not seen to save there.
FORESIGHT_LIMIT = 400
# Unknowns beyond which a symmetric system is first tried with FEW_STARTS starts only, the better ones there (chosen).
FEW_LIMIT, FEW_STARTS = 1000, 3
# Most degrees of freedom of a robot for which the order of the CRBA, O(n³), is tried (chosen).
CRBA_LIMIT = 60
# Starts of each searched order that the fast level tries (chosen).
FAST_STARTS = 2

Order = Callable[[float], Pivots]  # An order, as a function of the operations at which it is given up.
Named = Iterator[tuple[str, Order]]


# ---- orders -------------------------------------------------------------------------------------------------------


def candidates(system: System, sampled: Sampled, options: Options, plain: bool, most: int | None) -> Named:
    """(name, order) of every order to try. Raises UnknownName.

    plain: also starts that do not heed the samples, else also the ones of last resort. most: number of starts of a
    searched order, None for all.
    """
    ordering = options.ordering
    if ordering == GIVEN:
        rows, columns = options.given
        yield ordering, _Found(Pivots(rows, columns))
    elif ordering in RECURSIVE:
        yield ordering, lambda cap: Pivots(*RECURSIVE[ordering](system))
    elif ordering in ORDERINGS:
        yield from _searched(ordering, sampled, plain, most)
    elif ordering != "auto":
        raise UnknownName("ordering", ordering, ("auto", *RECURSIVE, *ORDERINGS))
    elif sampled.tree:
        yield from _searched("symmetric", sampled, plain, most)
        if known_motion(system):
            for name in KNOWN_MOTION:
                yield from _searched(name, sampled, plain, most)
        elif not plain:  # last resort: orthogonal columns
            yield from _searched("torn", sampled, True, 1)
    else:
        for name, order in _recursive(system):
            yield name, order
            if options.level == "fast" and name in ("rnea", "aba"):
                return
        for name in AUTO if sampled.n <= AUTO_LIMIT else AUTO_LARGE:
            yield from _searched(name, sampled, plain, most)


def known_motion(system: System) -> bool:
    """True if all accelerations of joints are known exactly."""
    return len(system.problem.knows("qdd")) == system.model.nv


def _recursive(system: System) -> Named:
    """The recursive orders of the system."""
    for name, function in RECURSIVE.items():
        if name == "crba" and system.model.nv > CRBA_LIMIT:
            continue
        try:
            permutations = function(system)
        except ProblemError:
            continue
        yield name, _Found(Pivots(*permutations))


def _searched(name: str, sampled: Sampled, plain: bool, most: int | None) -> Named:
    """The starts of a searched order; see `candidates`."""
    blind, heeding = PLAIN.get(name, ())[:most], ORDERINGS[name][:most]
    if sampled.n > FORESIGHT_LIMIT:
        heeding = tuple(start for start in heeding if start not in FORESIGHT)
    if name == "symmetric":
        heeding = heeding[:FEW_STARTS] if plain and sampled.n > FEW_LIMIT else heeding
        heeding += () if plain else LAST_RESORT
    for number, start in enumerate((*blind, *heeding)):
        if number >= len(blind) or plain:
            yield name if number == 0 else f"{name} (start {number + 1})", _Capped(start, sampled)


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


def given_order(problem: Statement, order: object, equations: Equations) -> tuple[tuple[int, ...], ...]:
    """(rows, columns) of the pivots of `problem.system`. Raises InvalidInput.

    order: these permutations, or a function of the pattern (CSR of ones) that gives them.
    """
    system = problem_system(problem, equations.layout, equations.known)
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
