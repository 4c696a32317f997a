"""The cheapest elimination order that the judge accepts."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

from sysdyn.diagnosis.diagnose import diagnose
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import BackendUnavailable, NoSafeOrdering, SingularState
from sysdyn.offline.choice import Choice
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import GIVEN, Options
from sysdyn.offline.orders import AUTO_LIMIT, FAST_STARTS, candidates
from sysdyn.offline.sampling import order_samples, sample_matrix, stacked
from sysdyn.offline.stages import Stages
from sysdyn.offline.verdict import LEAST_PIVOT, Inputs, Safety
from sysdyn.sparse.least_squares import orthogonal
from sysdyn.sparse.lu import Pivots

# States at which orders are searched first (chosen).
ORDER_SAMPLES = 48
# States of the next search if the first one finds no safe order (chosen).
RETRY_SAMPLES = 512
# Most searches: one that fails is made again with the states at which it failed (chosen).
ATTEMPTS = 4
# Cost at which an order is given up, as a multiple of the cheapest one known (chosen).
AUTO_CAP = 1.5
# The order in which every column is turned. Its errors are small beside the greatest unknowns, whatever rows show.
TURNED = "orthogonal"
# Starts in a row after which a searched order is left, if all fail or cost DEAR times the cheapest one known (chosen).
MOST_VAIN, DEAR = 4, 1.2
# Most orders that a message names (chosen).
MOST_TRIED = 3


class AcceptedOrder:
    """The search for the cheapest safe order of a system.

    considered: (name, cost or reason against it) of each order. accepted: the best order that the judge accepts;
    stable: the best backward stable one, though near singular states it loses digits that pivoting keeps; None if there
    is none.
    """

    def __init__(self, system: System, options: Options, stages: Stages):
        self.system, self.options, self.stages = system, options, stages
        self.considered: list[tuple[str, str]] = []
        self._unsafe: list[tuple[str, str]] = []  # those that were checked and rejected
        self.accepted: Choice | None = None
        self.stable: Choice | None = None
        self._singular: dict[int, bool] = {}
        self._tried_before: list[tuple[Pivots, int]] = []  # orders of earlier attempts, and their cost
        self._kept: tuple[Choice, Elimination] | None = None  # the one order whose graph is open, by `_open`
        self._open = ExitStack()
        with stages.stage("candidates"):
            self._sampled = order_samples(system, ORDER_SAMPLES)

    def find(self) -> tuple[Choice, Elimination]:
        """(the order with its safety, its elimination). Raises NoSafeOrdering."""
        for attempt in range(ATTEMPTS):
            with self.stages.stage("candidates"):
                choices = self._tried(attempt)
            if attempt and not choices:
                break  # more states lead to the orders that are known
            with self.stages.stage("judge"):
                failing = self._judged(choices)
            if (choices and not failing) or self.options.ordering in (*RECURSIVE, GIVEN):
                break
            if self.accepted and self.accepted.judged.seldom and (attempt or not self.accepted.judged.crossing):
                break
            with self.stages.stage("candidates"):
                self._learn(failing)
        turning = ("auto", "symmetric") if self._sampled.tree else ("auto", "torn")
        if not (self.accepted or self.stable) and self.options.ordering in turning:
            self._turn()
        choice = self.accepted or self.stable or next(iter(choices if self.options.unsafe else ()), None)
        if choice is None:
            raise self._failure()
        if self._kept and choice is self._kept[0]:
            return self._kept
        with self.stages.stage("judge"):
            elimination = self._eliminated(choice)
            safety, _ = elimination.assess(singular=self._singular)
            return replace(choice, safety=safety), elimination

    def _turn(self) -> None:
        """Judge the order in which every column is turned, the dearest one and a stable one."""
        try:
            elimination = Elimination(self.system, *orthogonal(self._sampled))
        except (NoSafeOrdering, SingularState) as error:
            self.considered.append((TURNED, str(error)))
            return
        choice = elimination.choice(TURNED, self.options.outputs)
        self.considered.append((choice.ordering, f"{choice.total} operations"))
        self._keep(choice, elimination)
        self._judged([choice])

    def _tried(self, attempt: int) -> list[Choice]:
        """New orders that can be eliminated; the cheapest one's graph is kept if no old one costs less."""
        most = FAST_STARTS if self.options.level == "fast" and (attempt == 0 or self.accepted) else None
        orders = candidates(self.system, self._sampled, self.options, plain=attempt == 0, most=most)
        choices: list[Choice] = []
        seen: list[Pivots] = []
        known = self._tried_before.copy()
        least = math.inf
        vain: Counter[str] = Counter()  # starts in a row that led to nothing, by the name of the order
        for name, order in orders:
            family = name.partition(" (")[0]
            if self.options.ordering == "auto" and attempt == 0 and vain[family] >= MOST_VAIN:
                continue
            vain[family] += 1
            self.stages.say(f"ordering {name}", min(0.6, 0.1 + 0.04 * len(self.considered)))
            try:
                permutations = order(AUTO_CAP * least)
                if permutations in seen:
                    continue
                seen.append(permutations)
                before = next((total for order, total in known if order == permutations), None)
                if before is not None:
                    least = min(least, before)
                    continue
                elimination = Elimination(self.system, *permutations, cap=AUTO_CAP * least)
            except (NoSafeOrdering, SingularState, BackendUnavailable) as error:
                if isinstance(error, BackendUnavailable) and self.options.ordering != "auto":
                    raise
                self.considered.append((name, str(error)))
                continue
            with ExitStack() as graph:
                graph.enter_context(elimination.graph)
                choice = elimination.choice(name, self.options.outputs)
                if choice.total < least:
                    self._keep(choice, elimination)
                    graph.pop_all()
            self.considered.append((name, f"{choice.total} operations"))
            choices.append(choice)
            self._tried_before.append((permutations, choice.total))
            if choice.total <= DEAR * least:
                vain[family] = 0
            least = min(least, choice.total)
        return choices

    def _judged(self, choices: list[Choice]) -> list[Inputs]:
        """Judge the orders, the cheapest first, until one is safe beyond doubt; returns states of failures before."""
        failing: list[Inputs] = []
        queue = choices.copy()
        while queue:
            queue.sort(key=self._rank, reverse=True)
            choice = queue.pop()
            self.stages.say(f"checking {choice.ordering}", 0.7)
            elimination = self._eliminated(choice)
            safety, worst = elimination.assess(singular=self._singular, strict=True)
            if self._refinable(choice, safety):
                self.considered.append((choice.ordering, f"to be refined: {safety}"))
                refined = Elimination(self.system, *choice.pivots, refined=True)
                queue.append(refined.choice(choice.ordering, self.options.outputs))
                self._keep(queue[-1], refined)
                continue
            if safety.crossing and (self._firmer(safety) or self._stabler(safety)):  # judged at some of the states
                safety, worst = elimination.assess(singular=self._singular)
            choice = replace(choice, safety=safety)
            self._kept = choice, elimination
            if self._stabler(safety):
                self.stable = choice
            if self._firmer(safety):
                self.accepted = choice
            if safety.firm or self._definite(choice, safety):
                break
            what = "a pivot may vanish" if safety.seldom else "pivots often vanish"
            what = "not safe" if not safety.ok else what if safety.small else "loses digits at some states"
            self.considered.append((choice.ordering, f"{what}: {safety}"))
            if not safety.ok:
                self._unsafe.append(self.considered[-1])
            if safety.crossing or not (safety.ok and safety.seldom):
                failing.append(worst)
        return failing

    def _rank(self, choice: Choice) -> tuple[int, bool]:
        """Sort key: its operations; of equal orders the kept one first."""
        return choice.total, self._kept is None or choice is not self._kept[0]

    def _keep(self, choice: Choice, elimination: Elimination) -> None:
        """Close the graph of the order kept before."""
        self._open.close()
        self._open.enter_context(elimination.graph)
        self._kept = choice, elimination

    def _eliminated(self, choice: Choice) -> Elimination:
        """The elimination of an order, the kept one or one to be kept."""
        if self._kept and choice is self._kept[0]:
            return self._kept[1]
        self._keep(choice, elimination := Elimination(self.system, *choice.pivots, refined=choice.refined))
        return elimination

    def _stabler(self, safety: Safety) -> bool:
        """True if an order is backward stable, and more accurate than all such orders before."""
        return safety.stable and (self.stable is None or safety.difference < self.stable.judged.difference)

    def _firmer(self, safety: Safety) -> bool:
        """True if an order is safe, and safer than all such orders before."""
        return safety.ok and (self.accepted is None or _firmness(safety) > _firmness(self.accepted.judged))

    def _refinable(self, choice: Choice, safety: Safety) -> bool:
        """True if a step of refinement may help; for an estimate, whose operations it doubles, only if not safe."""
        if self._sampled.tree is not None:
            hopeful = safety.improvable or safety.stable or choice.ordering == TURNED
            return not choice.refined and not safety.ok and hopeful
        return not choice.refined and safety.improvable

    def _definite(self, choice: Choice, safety: Safety) -> bool:
        """True if the pivots are as good as any though some are small.

        Covariances change the size of an estimate's pivots, singular constraints the size of theirs.
        """
        constrained = bool(self.system.problem.constraints) and choice.ordering in RECURSIVE
        if self._sampled.tree is not None:
            return safety.ok and not safety.crossing
        return constrained and safety.ok and safety.exact and safety.seldom and not safety.crossing

    def _learn(self, failing: list[Inputs]) -> None:
        """Let more states guide the next search, and the states at which orders failed."""
        if len(self._sampled.values) < RETRY_SAMPLES and self._sampled.n <= AUTO_LIMIT:
            self._sampled = order_samples(self.system, RETRY_SAMPLES)
        if failing:
            self._sampled = self._sampled.with_values(sample_matrix(self.system, stacked(failing)).values)

    def _failure(self) -> NoSafeOrdering:
        """The error, which lists the rejected orders: first those whose numerical check failed."""
        tried = tuple(dict.fromkeys(f"{name}: {what}" for name, what in (*self._unsafe, *self.considered)))
        shown = [f"  {line}" for line in tried[:MOST_TRIED]]
        if len(tried) > MOST_TRIED:
            shown.append(f"  … ({len(tried)} in all: error.tried)")
        diagnosis = diagnose(self.system.problem)
        if not diagnosis.well_posed:
            shown.append(str(diagnosis))
        if self.options.ordering == GIVEN:
            shown.append("on_singular='repivot' takes the order all the same: states at which it fails get new pivots")
        return NoSafeOrdering("\n".join(["no elimination order is safe at every sampled state:", *shown]), tried)


def _firmness(safety: Safety) -> tuple[bool, bool, int, float, float]:
    """Sort key of accurate orders, the best last.

    Small errors at all states that calls solve without pivoting, rarely weak pivots, few sign-changing pivots, a large
    least pivot, a small backward error.
    """
    return safety.small, safety.seldom, -safety.crossing, min(safety.least_pivot, LEAST_PIVOT), -safety.backward_error
