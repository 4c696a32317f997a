"""Decisions that a formulation leaves open, and a search for those that cost least."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

Key = tuple[Hashable, ...]
Decision = tuple[Key, int]  # and how many forms there are
Cost = Callable[["Plan"], int]
More = Callable[[], bool]
ROUNDS = 3  # through all decisions
KICK = 4  # decisions drawn anew to leave a local optimum: from 2 to 1 more than this


@dataclass
class Plan:
    """Which of several equivalent forms is taken at each decision; the first where nothing is said.

    bound: operations that are to be beaten; what is clearly dearer need not be finished.
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
    search = tuning(cost, starts)
    for plan, best in search:
        budget -= best
        if budget < 0:
            break
    if more:
        for plan, best in itertools.chain(search, perturbed(cost, plan, best, seed)):
            if not more():
                break
    return plan, best


def tuning(cost: Cost, starts: Iterable[Plan]) -> Iterator[tuple[Plan, int]]:
    """The best of `starts` and its cost, and again after each change of a decision; ends where none saves anything."""
    best, _, plan = min(((cost(plan), k, plan) for k, plan in enumerate(starts)), key=lambda x: x[:2])
    yield plan, best
    yield from _descent(cost, plan, best, lambda keys: sorted(keys, key=lambda x: ORDER.index(x[0][0])))


def perturbed(cost: Cost, plan: Plan, best: int, seed: int) -> Iterator[tuple[Plan, int]]:
    """Iterated local search: the best plan so far, again and again after each plan written, without an end.

    A few decisions of the best plan are drawn anew, and then changed one at a time in random order.
    """
    rng = np.random.default_rng(seed)

    def shuffled(keys: Iterable[Decision]) -> list[Decision]:
        keys = list(keys)
        return [keys[k] for k in rng.permutation(len(keys))]

    while len(plan.open) > 1:
        drawn = shuffled(plan.open.items())[: 2 + rng.integers(KICK)]
        trial = Plan({**plan.choices, **{key: int(rng.integers(of)) for key, of in drawn}})
        for trial, count in _descent(cost, trial, cost(trial), shuffled):
            if count < best:
                plan, best = trial, count
            yield plan, best
        if count == best:
            plan = trial  # another one of the same cost: the next kick is from there


def _descent(
    cost: Cost, plan: Plan, best: int, in_order: Callable[[Iterable[Decision]], list[Decision]]
) -> Iterator[tuple[Plan, int]]:
    """The plan and its cost after each change that was tried; changes that save are kept."""
    for _ in range(ROUNDS):
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


ORDER = ("frames", "unit", "meeting", "turn", "left", "moment", "acceleration", "inertia", "force", "motion", "wait")
