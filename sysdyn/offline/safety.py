"""Whether a program is safe: one judge of eliminations and recursions.

Samples → run → residuals, row by row → singular states apart → worst states → pivoted solve → verdict with guards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sysdyn.equations.augmented import System
from sysdyn.offline.sampling import FARTHEST, REFINED, is_far, is_singular, pivoted_solve, require_regular, travelled

# States at which a program is judged.
SAFETY_SAMPLES = 2048
# A program with a larger backward error is accepted only where a pivoted solve with refinement does no better.
BACKWARD_ERROR = 1e-9
# The search for an order goes on where the backward error is larger than this.
FIRM_ERROR = 1e-11
# Small pivots become weak ones where the backward error is larger than the least of these that few states exceed.
LOSING = (1e-9, 1e-10, 1e-11)
# A program whose result differs from a pivoted solve by more is accepted only where that solve is no better.
DIFFERENCE = 3e-10
# A program may lose this many times what a pivoted solve loses.
WORSE_THAN_PIVOTED = 1e2
# A pivot that falls below this fraction of its greatest size at some state may vanish at another.
LEAST_PIVOT = 1e-4
# A quantity smaller than this fraction of the other unknowns, or of itself at other states, counts as zero.
VANISHING = 1e-6
# The states of a pivoted solve have this many unknowns in all.
JUDGED_UNKNOWNS = 10_000
# A backward error beyond this one ends the check of an order, and no refinement mends it.
HOPELESS = 1e-3
# This many states that are worst in a respect guide the next search.
WORST_STATES = 6
# A state at which a pivot is this fraction of its typical size, or typical is this fraction of it, may be singular.
SUSPECT = 1e-8
# A pivot below this fraction of its greatest sampled size counts as zero online.
GUARD = 1e-11
# A pivot below this fraction of its greatest sampled size loses digits online, and its state is solved with pivoting.
WEAK = 1e-3
# Pivots down to this fraction of the least sampled one were seen to lose none.
HARMLESS = 0.1
# Pivots are weak below so many times the size that they had where digits were lost, if that is at few of the states.
MARGIN, FEW = 2.0, 0.25
# The search for an order goes on where pivots are weak at more of the states.
RARE = 0.01
# A result that differs from a pivoted solve by more is not accurate: compiling warns of it, as of larger residuals.
SMALL_DIFFERENCE = 1e-6
# Where lengths without limits make residuals large, a program is judged out to one of these only [m]: beyond it a call
# solves with pivoting.
REACHES = (FARTHEST, 100.0, 10.0)
# Where the worst states turn out to be singular, the next worst are looked at, this many times.
ROUNDS = 4
# The system counts as singular at every state where it is so at this many of them.
EVERYWHERE = 24

Inputs = dict[str, np.ndarray]  # {group of inputs: (N, size)}


class Behaviour(NamedTuple):
    """What a program does at N states.

    d (N, full layout): all unknowns; pivots (N, p): those that are not constant; growth (N,): greatest entry of the
    factors over that of the matrix, equilibrated.
    """

    d: np.ndarray
    pivots: np.ndarray
    growth: np.ndarray


class Verdict(NamedTuple):
    """Safety; for each pivot, below which size it counts as zero and below which it loses digits; the worst states."""

    safety: Safety
    guards: list[tuple[float, float]]
    worst: Inputs


@dataclass(frozen=True)
class Safety:
    """How a fixed order behaved over sampled states.

    backward_error: the greatest, row by row, see `sysdyn.equations.linear_system.Residual`; pivoted: the same of a
    pivoted solve with iterative refinement at the worst of the states; difference: greatest relative difference of a
    quantity (∞-norms) to that solve there; pivoted_difference: the same of a pivoted solve without refinement, large
    where the system is ill-conditioned; growth: greatest entry of D U over the greatest of D, both equilibrated;
    least_pivot: least |pivot| over its greatest value at any state; crossing: how many pivots take both signs and so
    vanish somewhere in between, 0 where the determinant takes both signs itself. Only states at which the system is
    regular count; singular: how many of those drawn were not. Nor do states count at which pivots are weak, as calls
    solve them with pivoting; weak: how many. Pivots grow with lengths: of joints that travel far they count where all
    are below `NEAR`. reach [m]: lengths without limits were judged out to this; calls pivot at states beyond.
    """

    states: int
    backward_error: float
    pivoted: float
    difference: float
    pivoted_difference: float
    growth: float
    least_pivot: float
    least_pivot_name: str
    crossing: int
    singular: int = 0
    weak: int = 0
    reach: float = FARTHEST

    @property
    def ok(self) -> bool:
        """As accurate as a pivoted solve can be expected to be."""
        return self.stable and self.difference <= max(DIFFERENCE, WORSE_THAN_PIVOTED * self.pivoted_difference)

    @property
    def stable(self) -> bool:
        """Backward stable: the exact solution of a system whose entries are nearly the given ones."""
        small = self.backward_error <= max(BACKWARD_ERROR, WORSE_THAN_PIVOTED * self.pivoted)
        return math.isfinite(self.growth) and small and self.least_pivot > 0.0

    @property
    def firm(self) -> bool:
        """Safe with digits to spare, and no pivot came near zero or passed through it."""
        steady = self.least_pivot >= LEAST_PIVOT and self.weak <= RARE * self.states and not self.crossing
        return self.ok and self.exact and steady

    @property
    def exact(self) -> bool:
        """Backward stable with digits to spare."""
        return self.backward_error <= max(FIRM_ERROR, WORSE_THAN_PIVOTED * self.pivoted)

    @property
    def small(self) -> bool:
        """The judged errors are small, whatever a pivoted solve loses."""
        return self.backward_error <= BACKWARD_ERROR and self.difference <= SMALL_DIFFERENCE

    @property
    def improvable(self) -> bool:
        """Not exact though no pivot failed: iterative refinement will help."""
        return not self.exact and not self.crossing and self.backward_error <= HOPELESS

    def __str__(self) -> str:
        through = f"{self.crossing} pivots pass through zero, " if self.crossing else ""
        through += f"{self.weak} states to be solved with pivoting, " if self.weak else ""
        return (
            f"{through}backward error {self.backward_error:.1e}, difference to a pivoted solve {self.difference:.1e}, "
            f"growth {self.growth:.1e}, least pivot {self.least_pivot:.1e} ({self.least_pivot_name})"
        )


def judge(
    run: Callable[[Inputs], Behaviour], system: System, inputs: Inputs, labels: Sequence[str],
    chunk: int | None = None, singular: dict[int, bool] | None = None, strict: bool = False,
    certain: np.ndarray | None = None,
) -> Verdict:  # fmt: skip
    """How a program behaves at sampled states: against the system's residual, and at the worst against a pivoted solve.

    run: the program at some of the states. inputs: at all of them. labels: of the pivots. chunk: states that run at a
    time. singular: which states, by number, are known to make the system itself singular; these are left out, and what
    is found is added. strict: stop where a pivot passes through zero. certain (p,): pivots that vanish only where the
    matrix is singular; how small they are says nothing against the order.

    Raises StructurallySingular where the system is singular at every state.
    """
    apart = _Singular(system, inputs, {} if singular is None else singular)
    doubtful = np.ones(len(labels), dtype=bool) if certain is None else ~certain
    near = ~is_far(system.model, inputs["q"])
    seen = _observed(run, system, inputs, chunk or len(inputs["q"]), apart, near, doubtful if strict else None)
    regular = apart.regular(seen)
    near = regular & seen.near if (regular & seen.near).any() else regular
    lengths = travelled(system, inputs["q"][: len(regular)])
    reach = _reach(seen, regular, lengths)
    beyond = int((regular & (lengths > reach)).sum())
    regular = regular & (lengths <= reach)
    noisy = bool(system.problem.noisy)
    weak = np.zeros(len(labels)) if noisy else _weak(seen, regular, near)
    found = regular & (np.abs(seen.pivots) < weak).any(axis=1)
    regular &= ~found
    while True:
        judged = seen.judged(regular, max(1, JUDGED_UNKNOWNS // max(1, system.layout.n)))
        compared = _compared(run, system, _at(inputs, judged))
        if compared.difference <= SMALL_DIFFERENCE or not apart.among(judged, regular):
            break
    kept, close = np.flatnonzero(regular), np.flatnonzero(near)
    pivots, guards = seen.pivots[close], _guards(seen.pivots[close], weak, noisy, doubtful)
    size = np.abs(pivots)
    worst, (least, name), through = kept[seen.worst(kept)], (1.0, "none can vanish at a regular state"), 0
    if doubtful.any():
        largest = size.max(axis=0)
        ratio = np.where(doubtful, size / np.where(largest > 0.0, largest, 1.0), 1.0)
        k = int(np.argmin(ratio.min(axis=0)))
        least, name = float(ratio[:, k].min()), labels[k]
        through, rare = crossing(seen.pivots[kept], doubtful)
        worst = np.unique([*worst, *close[np.argsort(ratio.min(axis=1))[:WORST_STATES]], *kept[rare]])
    safety = Safety(
        len(kept), float(seen.error[kept].max()), compared.pivoted, compared.difference, compared.pivoted_difference,
        float(seen.growth[kept].max()), least, name, through, len(regular) - len(kept) - int(found.sum()) - beyond,
        int(found.sum()), reach,
    )  # fmt: skip
    return Verdict(safety, guards, _at(inputs, worst))


def _at(inputs: Inputs, states: np.ndarray) -> Inputs:
    return {name: x[states] for name, x in inputs.items()}


class _Observed(NamedTuple):
    """Errors and behaviour at each state: backward error, pivots (N, p), growth, inf for NaN; whether it is near."""

    error: np.ndarray
    pivots: np.ndarray
    growth: np.ndarray
    near: np.ndarray

    def worst(self, kept: np.ndarray, most: int = WORST_STATES) -> np.ndarray:
        """Places in `kept` of the states with the largest residuals."""
        return np.argsort(self.error[kept])[-most:]

    def judged(self, regular: np.ndarray, most: int) -> np.ndarray:
        """Numbers of the regular states that are solved with pivoting, too."""
        kept = np.flatnonzero(regular)
        return kept[self.worst(kept, most)]


def _observed(
    run: Callable[[Inputs], Behaviour], system: System, inputs: Inputs, chunk: int, apart: _Singular,
    near: np.ndarray, strict: np.ndarray | None,
) -> _Observed:  # fmt: skip
    """The program at all states, or at those up to a hopeless one, or one of `strict` pivots that crosses zero."""
    parts: list[_Observed] = []
    for start in range(0, len(inputs["q"]), chunk):
        part = {name: x[start : start + chunk] for name, x in inputs.items()}
        found = run(part)
        with np.errstate(all="ignore"):
            error = system.residual(part, found.d).backward_error
        error, growth = (np.where(np.isfinite(x), x, math.inf) for x in (error, found.growth))
        pivots = np.nan_to_num(found.pivots, nan=0.0)
        parts.append(_Observed(error, pivots, growth, near[start : start + chunk]))
        hopeless = start + np.flatnonzero((error > HOPELESS) & near[start : start + chunk])
        if not all(apart.at(hopeless)) or (strict is not None and crossing(parts[-1].pivots, strict)[0]):
            break
    return _Observed(*(np.concatenate(x) for x in zip(*parts, strict=True)))


class _Singular:
    """Which of the sampled states make the system itself singular; looked at where something goes wrong."""

    def __init__(self, system: System, inputs: Inputs, known: dict[int, bool]):
        self._system, self._inputs, self._known, self._rounds = system, inputs, known, ROUNDS

    def at(self, states: np.ndarray) -> list[bool]:
        """Whether the system is singular at the states of these numbers."""
        new = np.array([k for k in states.tolist() if k not in self._known], dtype=int)
        if len(new):
            found = is_singular(self._system, _at(self._inputs, new))
            self._known.update(zip(new.tolist(), found.tolist(), strict=True))
        return [self._known[k] for k in states.tolist()]

    def regular(self, seen: _Observed) -> np.ndarray:
        """(N,) bool: the states to judge by. Those where something goes wrong count where there is a solution."""
        suspect, size = seen.error > FIRM_ERROR, np.abs(seen.pivots)
        if size.shape[1]:
            typical = np.median(size[seen.near] if seen.near.any() else size, axis=0)
            small, large = size <= SUSPECT * typical, size * SUSPECT > typical
            suspect |= small.any(axis=1) | (large.any(axis=1) & seen.near)
        suspects = np.flatnonzero(suspect)
        regular = np.ones(len(suspect), dtype=bool)
        regular[suspects] = ~np.array(self.at(suspects), dtype=bool)
        if not regular.any() and len(regular) == len(self._inputs["q"]):
            require_regular(self._system)
        return regular if regular.any() else np.ones(len(suspect), dtype=bool)

    def among(self, judged: np.ndarray, regular: np.ndarray) -> bool:
        """Whether some of the judged states were singular and others are left; `regular` loses the singular ones."""
        found = np.array(self.at(judged), dtype=bool)
        self._rounds -= 1
        if not found.any() or self._rounds < 0:
            return False
        regular[judged[found]] = False
        if found.all():
            others = np.flatnonzero(regular)
            others = others[:: max(1, len(others) // EVERYWHERE)]
            also = np.array(self.at(others), dtype=bool)
            if also.all():
                require_regular(self._system)
                regular[judged] = True
                return False
            regular[others[also]] = False
        return True


class _Compared(NamedTuple):
    """The program beside a refined pivoted solve: that one's backward error, the differences of both to it."""

    pivoted: float
    difference: float
    pivoted_difference: float


def _compared(run: Callable[[Inputs], Behaviour], system: System, inputs: Inputs) -> _Compared:
    d = run(inputs).d
    with np.errstate(all="ignore"):
        plain, refined = (pivoted_solve(system, inputs, refine=k) for k in (0, REFINED))
        return _Compared(
            float(np.max(system.residual(inputs, refined).backward_error)),
            relative_difference(system, d, refined),
            relative_difference(system, plain, refined),
        )


def _reach(seen: _Observed, regular: np.ndarray, lengths: np.ndarray) -> float:
    """The greatest of REACHES within which residuals are small, FARTHEST where there is none."""
    for limit in (FIRM_ERROR, BACKWARD_ERROR):
        for reach in REACHES:
            if (seen.error[regular & (lengths <= reach)] <= limit).all() and (regular & (lengths <= reach)).any():
                return reach
    return FARTHEST


def _weak(seen: _Observed, regular: np.ndarray, near: np.ndarray) -> np.ndarray:
    """(p,) sizes of pivots below which errors were seen: a call solves such states with pivoting.

    Errors beyond the least of LOSING for which these are few of the states.
    """
    size = np.abs(seen.pivots)
    best = np.zeros(size.shape[1])
    if not len(best):
        return best
    typical = np.median(size[near], axis=0)
    with np.errstate(over="ignore"):
        ratio = size / np.where(typical > 0.0, typical, 1.0)
    least = np.argmin(ratio, axis=1)
    for limit in LOSING:
        weak = np.zeros(len(best))
        for k in np.flatnonzero(regular & (seen.error > limit)):
            if ratio[k, least[k]] < WEAK:
                weak[least[k]] = max(weak[least[k]], MARGIN * size[k, least[k]])
        if np.count_nonzero((size < weak).any(axis=1) & regular) > FEW * np.count_nonzero(regular):
            break
        best = weak
    return best


def _guards(pivots: np.ndarray, seen: np.ndarray, noisy: bool, doubtful: np.ndarray) -> list[tuple[float, float]]:
    """(counts as zero, loses digits) below these, for each pivot (states, pivots); seen (pivots): to lose digits."""
    size = np.abs(pivots)
    if noisy:  # pivots scale with covariances, which may be others than those sampled
        return [(x, 0.0) for x in (GUARD * size.min(axis=0)).tolist()]
    largest = size.max(axis=0)
    harmless = np.minimum(WEAK * largest, HARMLESS * size.min(axis=0))
    weak = np.maximum(np.where(passes_through_zero(pivots) & doubtful, WEAK * largest, harmless), seen)
    return list(zip((GUARD * largest).tolist(), weak.tolist(), strict=True))


def relative_difference(system: System, d: np.ndarray, reference: np.ndarray) -> float:
    """Greatest relative difference of an unknown quantity (∞-norms) at any of the states; d (N, full layout)."""
    worst = 0.0
    for quantity in system.problem.quantities:
        columns = system.layout.quantity_columns(quantity)
        if len(columns) > len(system.problem.knows(quantity)):
            size = np.abs(reference[:, columns]).max(axis=1)
            difference = np.abs(d[:, columns] - reference[:, columns]).max(axis=1)
            # where a quantity vanishes, its rounding errors are no error of the order
            size = np.maximum(size, VANISHING * np.maximum(size.max(), np.abs(reference).max(axis=1)))
            worst = max(worst, float(np.max(difference / np.where(size > 0.0, size, 1.0))))
    return worst if math.isfinite(worst) else math.inf


def crossing(pivots: np.ndarray, doubtful: np.ndarray) -> tuple[int, np.ndarray]:
    """(doubtful pivots that take both signs, for each of them the state at which it is farthest on its rarer side).

    pivots: (states, pivots). None counts where their product, the determinant but for a constant, takes both signs.
    """
    if passes_through_zero(np.prod(np.sign(pivots), axis=1)):
        return 0, np.array([], dtype=int)
    both = pivots[:, passes_through_zero(pivots) & doubtful]
    rarer = np.where((both < 0.0).sum(axis=0) < (both > 0.0).sum(axis=0), -1.0, 1.0)
    return both.shape[1], np.argmax(both * rarer, axis=0)


def passes_through_zero(values: np.ndarray) -> np.ndarray:
    """Whether values (states, …) take both signs: then they pass through zero in between."""
    return np.asarray((values < 0.0).any(axis=0) & (values > 0.0).any(axis=0))
