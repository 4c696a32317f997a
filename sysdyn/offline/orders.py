"""Candidate elimination orders of a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sysdyn.equations.augmented import System
from sysdyn.equations.recursive_orders import RECURSIVE, mixed
from sysdyn.errors import NoSafeOrdering, ProblemError, SingularState, UnknownName
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import Options
from sysdyn.recursions.plan import Plan, tuned
from sysdyn.sparse.orderings import FORESIGHT, ORDERINGS, PLAIN
from sysdyn.sparse.quasidefinite import LAST_RESORT
from sysdyn.sparse.sampled import Permutations, Sampled

AUTO = ("umfpack", "colamd", "markowitz")  # tried by "auto" beside the recursive orders
NEVER = 10**15  # operations of an order that cannot be eliminated
MIXED_BUDGET = 1_000_000  # operations eliminated in search of a mixed order, at effort 1
AUTO_LIMIT = 3000  # unknowns beyond which it leaves the slower searches out
AUTO_LARGE = ("umfpack",)
FORESIGHT_LIMIT = 400  # unknowns beyond which looking ahead takes long and was not seen to save anything
CRBA_LIMIT = 60  # freedoms beyond which O(n³) is not tried beside O(n)
FAST_STARTS = 2  # starts of each searched order at the fast level
Order = Callable[[float], Permutations]


# ---- orders -------------------------------------------------------------------------------------------------------


def candidates(
    system: System, sampled: Sampled, options: Options, plain: bool, most: int | None
) -> Iterator[tuple[str, Order]]:
    """(name, function of the operation cap that gives the permutations) of every order to try.

    plain: those that do not heed the samples, too, else those of last resort. most: starts of a searched order, all if
    None.
    """
    ordering, level = options.ordering, options.level
    if ordering in RECURSIVE:
        yield ordering, lambda cap: RECURSIVE[ordering](system)
        return
    if ordering == "mixed":
        yield ordering, lambda cap: cheapest_mixed(system, options)
        return
    names: tuple[str, ...] = (ordering,)
    if ordering == "auto" and sampled.tree:
        names = ("symmetric",)
    elif ordering == "auto":
        for name, function in RECURSIVE.items():
            if name == "crba" and system.model.nv > CRBA_LIMIT:
                continue
            try:
                permutations = function(system)
            except ProblemError:
                continue
            yield name, lambda cap, permutations=permutations: permutations
            if level == "fast" and name in ("rnea", "aba"):
                return
            if name == "aba" and options.budget.effort > 1.0:
                yield "mixed", lambda cap: cheapest_mixed(system, options)
        names = AUTO if sampled.n <= AUTO_LIMIT else AUTO_LARGE
    elif ordering not in ORDERINGS:
        raise UnknownName("ordering", ordering, ("auto", *RECURSIVE, "mixed", *ORDERINGS))
    for name in names:
        blind, heeding = PLAIN.get(name, ())[:most], ORDERINGS[name][:most]
        if sampled.n > FORESIGHT_LIMIT:
            heeding = tuple(start for start in heeding if start not in FORESIGHT)
        if name == "symmetric" and not plain:
            heeding += LAST_RESORT
        for number, start in enumerate((*blind, *heeding)):
            if number < len(blind) and not plain:
                continue
            label = name if number == 0 else f"{name} (start {number + 1})"
            yield label, lambda cap, start=start: start(replace(sampled, budget=min(cap, sampled.budget)))


def streams(ordering: str, sampled: Sampled) -> dict[str, Sequence[Callable[[Sampled], Permutations]]]:
    """What to search in beyond the usual: the starts of each order by name, see `Search`."""
    names: tuple[str, ...] = (ordering,)
    if ordering == "auto":
        searched = AUTO if sampled.n <= AUTO_LIMIT else AUTO_LARGE
        names = ("symmetric",) if sampled.tree else (*searched, "mixed", "reordered")
    fixed = (*RECURSIVE, "natural")
    return {name: (*PLAIN.get(name, ()), *ORDERINGS.get(name, ())) for name in names if name not in fixed}


def cheapest_mixed(system: System, options: Options) -> Permutations:
    """The mixed order of fewest operations that changing one body at a time finds, from the ABA's and the CRBA's on."""
    bodies = range(system.model.nb)

    def order(plan: Plan) -> Permutations:
        return mixed(system, [plan.pick("wait", i) == 1 for i in bodies])

    def cost(plan: Plan) -> int:
        permutations = order(plan)
        try:
            return Elimination(system, *permutations, cap=plan.bound).choice("mixed", options.outputs).total
        except (NoSafeOrdering, SingularState):
            return NEVER

    starts = [Plan(), Plan({("wait", i): 1 for i in bodies})]
    plan, _ = tuned(cost, starts, MIXED_BUDGET * options.budget.effort)
    return order(plan)
