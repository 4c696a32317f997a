"""Candidate elimination orders of a system, and the search for the cheapest one that passes its check."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sysdyn.diagnosis.diagnose import diagnose
from sysdyn.equations.problem_system import assemble
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import System
from sysdyn.errors import (
    BackendUnavailable,
    InvalidInput,
    NoSafeOrdering,
    ProblemError,
    SingularState,
    UnknownName,
    few,
)
from sysdyn.measurements.problem import Problem
from sysdyn.offline.check import SampledStates, StateArrays
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import CUSTOM, Equations, Options
from sysdyn.offline.report import INACCURATE, Choice, StabilityReport
from sysdyn.offline.sampling import order_samples, sample_matrix, stacked
from sysdyn.offline.stages import Stages
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.markowitz import orthogonal
from sysdyn.sparse.orderings import ORDERINGS
from sysdyn.sparse.quasidefinite import LAST_RESORT
from sysdyn.sparse.sampled import PivotSearch

# Number of states in the first search, and in later ones if no order was good (CPU time).
ORDER_SAMPLES, RETRY_SAMPLES = 48, 512
# Greatest number of searches; each adds the states at which previous orders failed (CPU time).
ATTEMPTS = 4
# An order is abandoned at MAX_RELATIVE_COST times the cost of the cheapest order (CPU time). If both first starts of an
# order cost more than MAX_START_COST times as much, its other starts are skipped (they saved up to 16 %).
MAX_RELATIVE_COST, MAX_START_COST = 1.5, 1.2
# The order in which every column is eliminated by rotations, the last resort.
ALL_ORTHOGONAL = "orthogonal"
# Orders that "auto" tries in addition to the recursive ones.
AUTO = ("tearing", "umfpack", "markowitz", "colamd")
# Orders that are tried in addition to symmetric ones for estimates of wrenches with exactly known motion, because
# quantities that depend only on accelerations need no multipliers (iCub on two feet: 8,537 and 8,960 operations instead
# of 13,377).
KNOWN_MOTION = ("umfpack", "tearing")
# Beyond FEW_LIMIT unknowns only the first FEW_STARTS starts of the symmetric order are tried at first (CPU time).
FEW_LIMIT, FEW_STARTS = 1000, 3

NamedSearches = Iterator[tuple[str, PivotSearch]]


class OrderSelection:
    """The search for the cheapest order of a system that passes its check.

    considered: (name, cost or reason of rejection) of each order.
    """

    def __init__(self, system: System, options: Options, stages: Stages):
        self.system, self.options, self.stages = system, options, stages
        self.considered: list[tuple[str, str]] = []
        self._checked: list[tuple[Choice, dict]] = []  # orders with their reports, and the thresholds of their pivots
        self._tried: list[tuple[Pivots, int]] = []  # orders with their costs
        with stages.stage("candidates"):
            self._sampled = order_samples(system, ORDER_SAMPLES)
        with stages.stage("check"):
            self._states = SampledStates.of(system)

    def run(self) -> tuple[Choice, Elimination]:
        """(the order with its report, its elimination). Raises NoSafeOrdering."""
        for attempt in range(ATTEMPTS):
            with self.stages.stage("candidates"):
                choices = self._eliminate_new_orders(attempt)
            if not choices and attempt:
                break  # more states lead to the same orders
            with self.stages.stage("check"):
                failing = self._check(choices)
                if self._sampled.tree and self._checked and self._best() is None and not attempt:
                    self._refine()  # all orders of an estimate lose the same digits of the mean
            if self._is_over(attempt):
                break
            with self.stages.stage("candidates"):
                self._add_failing_states(failing)
        if self._best() is None and self.options.ordering in ("auto", "symmetric" if self._sampled.tree else "tearing"):
            with self.stages.stage("check"):
                self._try_all_orthogonal()
        if self._best() is None and self._checked:
            with self.stages.stage("check"):
                self._refine()
        best = self._best()
        if best is None and self.options.allow_unsafe:
            best = min(self._checked, key=lambda x: x[0].total, default=None)
        if best is None:
            raise self._failure()
        choice, thresholds = best
        return choice, Elimination(self.system, *choice.pivots, thresholds=thresholds, refined=choice.refined)

    def _is_over(self, attempt: int) -> bool:
        """True if no further search is needed."""
        best = self._best()
        if self.options.ordering in (*RECURSIVE, CUSTOM):
            return True
        if best is None or not (report := best[0].report).acceptable or report.often_falls_back:
            return False
        return self._ends_search(report) or attempt > 0 or not report.sign_changes

    def _ends_search(self, report: StabilityReport) -> bool:
        """True if an order with this report ends the search: other orders need not be checked.

        The report has to be good. For an estimate, acceptable without sign changes is enough: other flaws are
        tolerated, because covariances change the size of its pivots.
        """
        return report.good or (bool(self.system.problem.noisy) and report.acceptable and not report.sign_changes)

    def _best(self) -> tuple[Choice, dict] | None:
        """The acceptable order with fewest flaws, the cheapest of these; else the most accurate backward stable one."""
        acceptable = [x for x in self._checked if x[0].report.acceptable]
        if acceptable:
            return min(acceptable, key=lambda x: (x[0].report.flaws, x[0].total))
        stable = [x for x in self._checked if x[0].report.backward_stable]
        return min(stable, key=lambda x: x[0].report.difference, default=None)

    def _refine(self) -> None:
        """Check the cheapest order with half of the digits (else the most accurate one) with a refinement step."""
        orders = [choice for choice, _ in self._checked if not choice.refined]
        accurate = [x for x in orders if x.report.backward_error <= INACCURATE and not x.report.often_falls_back]
        choice = min(accurate or orders, key=lambda x: x.total if accurate else x.report.backward_error)
        refined = Elimination(self.system, *choice.pivots, refined=True)
        with refined.graph:
            choice = refined.choice(choice.ordering, self.options.outputs)
        self.considered.append((choice.ordering, f"refined: {choice.total} operations"))
        self._check([choice])

    def _eliminate_new_orders(self, attempt: int) -> list[Choice]:
        """New orders with their costs, the cheapest first."""
        choices: list[Choice] = []
        costs: dict[str, int] = {}
        for name, search in self._candidates(attempt > 0, costs):
            limit = MAX_RELATIVE_COST * min(costs.values(), default=math.inf)
            self.stages.report(f"ordering {name}", min(0.6, 0.1 + 0.04 * len(self.considered)))
            try:
                pivots = search(replace(self._sampled, budget=min(limit, self._sampled.budget)))
                if (cost := next((x for tried, x in self._tried if tried == pivots), None)) is not None:
                    costs[name] = cost
                    continue
                elimination = Elimination(self.system, *pivots, cap=limit)
            except (NoSafeOrdering, SingularState, BackendUnavailable) as error:
                if isinstance(error, BackendUnavailable) and self.options.ordering != "auto":
                    raise
                self.considered.append((name, str(error)))
                continue
            with elimination.graph:
                choices.append(elimination.choice(name, self.options.outputs))
            costs[name] = choices[-1].total
            self._tried.append((pivots, costs[name]))
            self.considered.append((name, f"{costs[name]} operations"))
        return sorted(choices, key=lambda choice: choice.total)

    def _candidates(self, last_resort: bool, costs: Mapping[str, int]) -> NamedSearches:
        """(name, search algorithm) of every order to try, and of its variants (starts). Raises UnknownName.

        last_resort: include expensive orders that are structurally safe. costs: {name: operations}; the caller adds
        entries while it iterates.
        """
        ordering, system, fast = self.options.ordering, self.system, self.options.level == "fast"
        starts = partial(self._starts, last_resort=last_resort, costs=costs)
        if ordering == CUSTOM:
            yield ordering, _fixed(self.options.custom_order)
        elif ordering in RECURSIVE:
            yield ordering, _fixed(RECURSIVE[ordering](system))
        elif ordering in ORDERINGS:
            yield from starts(ordering)
        elif ordering != "auto":
            raise UnknownName("ordering", ordering, ("auto", *RECURSIVE, *ORDERINGS))
        elif self._sampled.tree:
            yield from starts("symmetric")
            if len(system.problem.knows("qdd")) == system.model.nv:
                for name in KNOWN_MOTION:
                    yield from starts(name)
            elif last_resort:  # orthogonal columns
                yield from starts("tearing", two=True)
        else:
            for name, order in RECURSIVE.items():
                with contextlib.suppress(ProblemError):
                    yield name, _fixed(order(system))
            if fast and costs:
                return
            for name in AUTO:
                yield from starts(name)

    def _starts(self, name: str, last_resort: bool, costs: Mapping[str, int], two: bool = False) -> NamedSearches:
        """(name, search algorithm) of each variant (start) of the order `name`. Arguments as for `_candidates`.

        two: only the first two variants; the fast level sets it until a last resort is needed.
        """
        two = two or self.options.level == "fast" and (not last_resort or self._best() is not None)
        starts = ORDERINGS[name]
        if name == "symmetric":
            few = self._sampled.n > FEW_LIMIT
            starts = (*starts, *LAST_RESORT) if last_resort else starts[:FEW_STARTS] if few else starts
        names = [name, *(f"{name} (start {k})" for k in range(2, len(starts) + 1))]
        for k, (label, search) in enumerate(zip(names, starts[:2] if two else starts, strict=False)):
            cost = min(costs.get(x, math.inf) for x in names[:2])
            if k == 2 and not last_resort and cost > MAX_START_COST * min(costs.values(), default=math.inf):
                return
            yield label, search

    def _check(self, choices: list[Choice]) -> list[StateArrays]:
        """Check orders in sequence until one is good; return the worst states of the others."""
        failing = []
        for choice in choices:
            self.stages.report(f"checking {choice.ordering}", 0.7)
            elimination = Elimination(self.system, *choice.pivots, refined=choice.refined)
            with elimination.graph:
                checked = elimination.check(self._states)
            report = checked.report
            self._checked.append((replace(choice, stability=report), elimination.thresholds))
            if self._ends_search(report):
                break
            reason = "not good" if report.acceptable else "not acceptable"
            self.considered.append((choice.ordering, f"{reason}: {report}"))
            failing.append(checked.worst)
        return failing

    def _try_all_orthogonal(self) -> None:
        """Check the order that orthogonalises every column: expensive, but stable."""
        try:
            elimination = Elimination(self.system, *orthogonal(self._sampled))
        except (NoSafeOrdering, SingularState) as error:
            self.considered.append((ALL_ORTHOGONAL, str(error)))
            return
        with elimination.graph:
            choice = elimination.choice(ALL_ORTHOGONAL, self.options.outputs)
        self.considered.append((choice.ordering, f"{choice.total} operations"))
        self._check([choice])

    def _add_failing_states(self, failing: list[StateArrays]) -> None:
        """Sample more states for the next search, including those at which orders failed."""
        if len(self._sampled.values) < RETRY_SAMPLES:
            self._sampled = order_samples(self.system, RETRY_SAMPLES)
        if failing:
            self._sampled = self._sampled.with_values(sample_matrix(self.system, stacked(failing)).values)

    def _failure(self) -> NoSafeOrdering:
        """The error with a list of the orders; checked orders come first."""
        named = sorted(self.considered, key=lambda x: not x[1].startswith("not "))
        tried = tuple(dict.fromkeys(f"{name}: {what}" for name, what in named))
        tried_lines = few(tried, between="\n  ")
        lines = [f"no elimination order is safe at every sampled state (error.tried):\n  {tried_lines}"]
        diagnosis = diagnose(self.system.problem)
        if not diagnosis.well_posed:
            lines.append(str(diagnosis))
        if self._checked:
            lines.append(
                "allow_unsafe=True compiles the cheapest checked one: states at which it fails get other pivots"
            )
        return NoSafeOrdering("\n".join(lines), tried)


def _fixed(order: Sequence[Sequence[int]]) -> PivotSearch:
    """The search whose result is a given order, (rows, columns) of the pivots."""
    rows, columns = order
    return lambda sampled: Pivots(rows, columns)


def custom_permutations(problem: Problem, order: object, equations: Equations) -> tuple[tuple[int, ...], ...]:
    """Validated permutations (row_perm, col_perm) of the pivots of `problem.system`. Raises InvalidInput.

    order: (row_perm, col_perm), or a function that computes them from the pattern (CSR of ones).
    """
    system = assemble(problem, equations.layout, equations.known)
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
            "that makes them of the pattern of sd.assemble(problem)"
        )
    return permutations
