"""Decisions that a formulation leaves open, and a search for the ones that cost least."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

Key = tuple[Hashable, ...]  # The name of a decision, as ("turn", body).
Decision = tuple[Key, int]  # The name of a decision and the number of its forms.
Cost = Callable[["Plan"], int]  # The operations of a program that is written with a plan.
More = Callable[[], bool]  # True as long as the search may go on.
PLAN_ROUNDS = 3  # Most times that a search goes through all decisions (chosen).
LEAST_PROGRAM = 400  # Least operations that a program takes from the budget: shorter ones take as long (chosen).
KICK = 6  # Number of decisions drawn anew to leave a local optimum: from 2 to fewer than this (chosen).


@dataclass
class Plan:
    """The form taken at each decision, one of several equal ones; the first if nothing is said.

    bound: operations that are to be beaten; a clearly dearer program need not be finished.
    Forms are equal in exact arithmetic. `pick` is called while a program is written, and notes what there was to pick.
    """

    choices: dict[Key, int] = field(default_factory=dict)
    open: dict[Key, int] = field(default_factory=dict)
    bound: float = math.inf

    def pick(self, *key: Hashable, of: int = 2) -> int:
        """The form, 0 … of − 1, to take at the decision `key`."""
        self.open[key] = of
        return min(self.choices.get(key, 0), of - 1)


def tuned(
    cost: Cost, starts: Iterable[Plan], budget: float, more: More | None = None, seed: int = 0
) -> tuple[Plan, int]:
    """(the plan found, its cost): the best of `starts`, then decisions changed one at a time for as long as that saves.

    cost: writes with a plan and gives the operations. budget: operations written in all, beyond the starts: what a
    search may cost does not depend on the machine, and neither does its result. more: after that the search goes on
    for as long as this is true, from where it stopped and then from plans perturbed at random, as `seed` has it.
    """
    search = tuning(cost, starts, None if more is None else seed)
    best = next(search)
    while budget >= max(best[1], LEAST_PROGRAM) or (more and more()):
        budget -= max(best[1], LEAST_PROGRAM)
        found = next(search, None)
        if found is None:
            break
        best = found
    return best


def tuning(cost: Cost, starts: Iterable[Plan], seed: int | None = None) -> Iterator[tuple[Plan, int]]:
    """The best of `starts` and its cost, and again after each change of a decision.

    Ends when no change saves anything; with a seed the best plan is perturbed then, again and again: iterated local
    search, in which a few decisions are drawn anew and then all changed one at a time in random order.
    """
    best, _, plan = min(((cost(plan), k, plan) for k, plan in enumerate(starts)), key=lambda x: x[:2])
    yield plan, best
    for step in _descent(cost, plan, best, _by_kind):
        plan, best = step
        yield step
    if seed is None:
        return
    rng = np.random.default_rng(seed)

    def shuffled(decisions: Iterable[Decision]) -> list[Decision]:
        decisions = list(decisions)
        return [decisions[k] for k in rng.permutation(len(decisions))]

    while best and any(of > 1 for of in plan.open.values()):
        drawn = shuffled(plan.open.items())[: rng.integers(2, KICK)]
        start = Plan({**plan.choices, **{key: int(rng.integers(of)) for key, of in drawn}})
        local, least = start, best
        for local, least in _descent(cost, start, cost(start), shuffled):
            if least < best:
                plan, best = local, least
            yield plan, best
        if least == best:
            plan = local  # another one of the same cost: go on from there


def _by_kind(decisions: Iterable[Decision]) -> list[Decision]:
    return sorted(decisions, key=lambda x: ORDER.index(x[0][0]))


def _descent(
    cost: Cost, plan: Plan, best: int, in_order: Callable[[Iterable[Decision]], list[Decision]]
) -> Iterator[tuple[Plan, int]]:
    """The plan and its cost after each change that was tried; changes that save are kept."""
    for _ in range(PLAN_ROUNDS):
        before = best
        for key, of in in_order(plan.open.items()):
            for form in range(of):
                if form == plan.choices.get(key, 0):
                    continue
                trial = Plan({**plan.choices, key: form}, bound=best)
                count = cost(trial)
                if count < best:
                    plan, best = trial, count
                yield plan, best
        if best == before:
            return


# Order in which decisions are tried, by their kinds.
ORDER = ("frames", "meeting", "turn", "left", "moment", "acceleration", "inertia", "force", "motion", "wait", "unit")
