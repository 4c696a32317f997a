"""Decisions that a formulation leaves open, and a search for the ones that cost least."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

Key = tuple[Hashable, ...]  # The name of a decision, as ("turn", body).
Cost = Callable[["Plan"], int]  # The operations of a program that is written with a plan.
PLAN_ROUNDS = 3  # Most times that a search goes through all decisions (chosen).
LEAST_PROGRAM = 400  # Least operations that a program takes from the budget: shorter ones take as long (chosen).


@dataclass
class Plan:
    """The form taken at each decision, one of several equal ones; the first if nothing is said.

    Forms are equal in exact arithmetic. `pick` is called while a program is written, and notes what there was to pick.
    """

    choices: dict[Key, int] = field(default_factory=dict)
    open: dict[Key, int] = field(default_factory=dict)

    def pick(self, *key: Hashable, of: int = 2) -> int:
        """The form, 0 … of − 1, to take at the decision `key`."""
        self.open[key] = of
        return min(self.choices.get(key, 0), of - 1)


def tuned(cost: Cost, start: Plan, budget: float) -> tuple[Plan, int]:
    """(plan, its cost): decisions of `start` changed one at a time as long as that saves operations.

    cost: operations of the program that is written with a plan. budget: operations written in all, beyond those of the
    start; neither the extent of the search nor its result depends on the machine.
    """
    plan, best = start, cost(start)
    for _ in range(PLAN_ROUNDS):
        before = best
        for key, of in plan.open.items():
            for form in range(of):
                if form == plan.choices.get(key, 0):
                    continue
                if budget < max(best, LEAST_PROGRAM):
                    return plan, best
                budget -= max(best, LEAST_PROGRAM)
                trial = Plan({**plan.choices, key: form})
                if (count := cost(trial)) < best:
                    plan, best = trial, count
        if best == before:
            break
    return plan, best
