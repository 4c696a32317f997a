"""Decisions that a formulation leaves open, and a search for those that cost least."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

Key = tuple[Hashable, ...]


@dataclass
class Plan:
    """Which of several equivalent forms is taken at each decision; the first where nothing is said.

    Forms are equal in exact arithmetic. `pick` is called while a program is written, and notes what there was to pick.
    """

    choices: dict[Key, int] = field(default_factory=dict)
    open: dict[Key, int] = field(default_factory=dict)

    def pick(self, *key: Hashable, of: int = 2) -> int:
        """The form, 0 … of − 1, to take at the decision `key`."""
        self.open[key] = of
        return min(self.choices.get(key, 0), of - 1)


def tuned(cost: Callable[[Plan], int], plan: Plan, seconds: float, rounds: int = 3) -> tuple[Plan, int]:
    """(a plan no dearer than `plan`, its cost): decisions changed one at a time for as long as that saves operations.

    cost: builds with a plan and gives the operations. Deterministic as long as the time, `seconds`, suffices.
    """
    began = time.perf_counter()
    best = cost(plan)
    for _ in range(rounds):
        before = best
        for key, of in list(plan.open.items()):
            for form in range(of):
                if form == plan.choices.get(key, 0):
                    continue
                if time.perf_counter() - began > seconds:
                    return plan, best
                trial = Plan({**plan.choices, key: form})
                count = cost(trial)
                if count < best:
                    plan, best = trial, count
        if best == before:
            break
    return plan, best
