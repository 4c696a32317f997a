"""The search for cheaper elimination orders beyond the usual one, until its time is over.

Candidates come from several streams in turn: the searched orders with rows and columns renumbered at random, mixed
orders with some bodies changed, and the best order so far with a few pivots chosen anew. A seed fixes all of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sysdyn.equations.recursive_orders import mixed
from sysdyn.equations.system import System
from sysdyn.errors import BackendUnavailable, NoSafeOrdering, ProblemError, SingularState
from sysdyn.measurements.measurement import Output
from sysdyn.offline.choice import Choice
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.sampling import sample_matrix
from sysdyn.offline.stages import Stages
from sysdyn.offline.verdict import Safety, may_replace
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.orderings import reordered, restarts
from sysdyn.sparse.sampled import Order, Sampled

# Multiple of the best order's operations above which an order is given up, and its stream asked less often (chosen).
GIVEN_UP = 1.1
# Most rounds that such a stream is left out (chosen).
MOST_PASSED = 8
# Most states at which the matrix guides the search (chosen).
MOST_SAMPLES = 256
# Most bodies at which a mixed order is changed (chosen).
FLIPPED = 3
# Numbers of consecutive pivots that are chosen anew (chosen).
WINDOWS = (4, 8, 16, 32)
# Suffix of the name of an order with a window chosen anew.
REORDERED = ", reordered"

Stream = Iterator[float]  # Operations of one order after the other; inf if an order is too dear or not safe.


@dataclass
class Search:
    """The search for cheaper orders of one system.

    sampled: the matrix at the states that guide it. starts: {name: starts of a searched order}; the names "mixed" and
    "reordered" have streams of their own. stages: the time it may take. seed: of its draws.
    """

    system: System
    sampled: Sampled
    outputs: Sequence[Output]
    starts: Mapping[str, Sequence[Order]]
    stages: Stages
    seed: int

    def __post_init__(self):
        self.elimination: Elimination | None = None
        self.considered: list[tuple[str, str]] = []
        self._singular: dict[int, bool] = {}

    def improve(self, choice: Choice) -> Choice:
        """The cheapest safe order found, `choice` if none is cheaper.

        Afterwards `elimination` is that of the order found, None for `choice` itself, and `considered` has each order
        that was the cheapest so far.
        """
        self.best = choice
        streams = self._streams()
        passed = dict.fromkeys(streams, 0)
        tried = turn = 0
        while streams and self.stages.left():
            for name, stream in list(streams.items()):
                if turn % (1 + passed[name]) or not self.stages.left():
                    continue
                self.stages.say(f"{self.least} operations, searching {name}")
                try:
                    total = next(stream)
                except (StopIteration, BackendUnavailable):
                    del streams[name]
                    continue
                tried += 1
                passed[name] = 0 if total <= GIVEN_UP * self.least else min(MOST_PASSED, passed[name] + 1)
            turn += 1
        self.considered.append(("search", f"{tried} more orders in {self.stages.seconds:g} s, seed {self.seed}"))
        return self.best

    @property
    def least(self) -> int:
        """Operations of the best order so far."""
        return self.best.end_to_end.total

    def attempt(self, name: str, order: Pivots) -> float:
        """Operations of the order, which becomes the best one if it is; infinite if it is too dear or not safe."""
        try:
            trial = Elimination(self.system, *order, cap=GIVEN_UP * self.least)
        except (NoSafeOrdering, SingularState):
            return math.inf
        choice = trial.choice(name, self.outputs)
        total = choice.end_to_end.total
        if total >= self.least:
            return total
        safety, worst = trial.assess(singular=self._singular, strict=True)
        if not self._safe(safety) and safety.improvable:
            trial = Elimination(self.system, *order, refined=True)
            choice = trial.choice(name, self.outputs)
            if choice.end_to_end.total >= self.least:
                return math.inf
            safety, worst = trial.assess(singular=self._singular, strict=True)
        if self._safe(safety):
            self.best, self.elimination = replace(choice, safety=safety), trial
            self.considered.append((name, f"{self.least} operations"))
            return self.least
        if len(self.sampled.values) < MOST_SAMPLES:
            self.sampled = self.sampled.with_values(sample_matrix(self.system, worst).values)
        self.considered.append((name, f"{total} operations, not safe: {safety}"))
        return math.inf

    def _safe(self, safety: Safety) -> bool:
        """True if as safe as the best order so far."""
        return may_replace(safety, self.best.judged, definite=self.sampled.tree is not None)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def _streams(self) -> dict[str, Stream]:
        own = {"mixed": self._mixed, "reordered": self._reordered}
        return {
            name: own[name]() if name in own else self._restarted(name, starts) for name, starts in self.starts.items()
        }

    def _restarted(self, name: str, starts: Sequence[Order]) -> Stream:
        """Searched orders with rows and columns renumbered, one start after the other."""
        for order in restarts(starts, self.seed):
            limited = replace(self.sampled, budget=GIVEN_UP * self.least, going=self.stages.left)
            try:
                permutations = order(limited)
            except NoSafeOrdering:
                yield math.inf
            else:
                yield self.attempt(f"{name} (restart)", permutations)

    def _mixed(self) -> Stream:
        """Mixed orders, from the ABA on: a few bodies changed each time, the change kept if it costs no more."""
        rng = np.random.default_rng(self.seed)
        nb = self.system.model.nb
        waits = trial = np.zeros(nb, dtype=bool)
        least = math.inf
        while True:
            try:
                order = Pivots(*mixed(self.system, trial.tolist()))
            except ProblemError:
                return  # there are none of this problem
            total = self.attempt("mixed", order)
            if total <= least:
                waits, least = trial, total
            yield total
            flipped = rng.choice(nb, size=min(nb, 1 + int(rng.integers(FLIPPED))), replace=False)
            trial = waits.copy()
            trial[flipped] ^= True

    def _reordered(self) -> Stream:
        """The best order so far with a window of pivots chosen anew, the change kept if it costs no more."""
        rng = np.random.default_rng(self.seed)
        best, least, order = None, math.inf, Pivots((), ())
        while True:
            if best is not self.best:
                best, least = self.best, float(self.least)
                rows, columns, joined = best.pivots
                order = Pivots([*rows], [*columns], joined)  # lists, as in the result of `reordered`, compared below
            size = int(rng.choice(WINDOWS))
            first = int(rng.integers(max(1, self.sampled.n - size + 1)))
            trial, total = order, least
            with contextlib.suppress(NoSafeOrdering):
                trial = reordered(self.sampled, order, slice(first, first + size), rng)
            if trial != order:
                total = self.attempt(f"{best.ordering.removesuffix(REORDERED)}{REORDERED}", trial)
            if total <= least:
                order, least = trial, total
            yield total
