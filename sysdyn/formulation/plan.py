"""Decisions that a formulation leaves open, and a search for those that cost least."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

Key = tuple[Hashable, ...]


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


def tuned(cost: Callable[[Plan], int], starts: Iterable[Plan], budget: float, rounds: int = 3) -> tuple[Plan, int]:
    """(the plan found, its cost): the best of `starts`, then decisions changed one at a time for as long as that saves.

    cost: writes with a plan and gives the operations. budget: operations written in all, beyond the starts: what a
    search may cost does not depend on the machine, and neither does its result.
    """
    best, _, plan = min(((cost(plan), k, plan) for k, plan in enumerate(starts)), key=lambda x: x[:2])
    for _ in range(rounds):
        before = best
        for key, of in sorted(plan.open.items(), key=lambda x: ORDER.index(x[0][0])):
            for form in range(of):
                if form == plan.choices.get(key, 0):
                    continue
                budget -= best
                if budget < 0:
                    return plan, best
                trial = Plan({**plan.choices, key: form}, bound=best)
                count = cost(trial)
                if count < best:
                    plan, best = trial, count
        if best == before:
            break
    return plan, best


ORDER = ("frames", "unit", "meeting", "turn", "left", "moment", "acceleration", "inertia", "force", "motion", "wait")
