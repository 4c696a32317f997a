"""Whether a program is safe: one judge of eliminations and recursions.

Samples → run → residuals, row by row → singular states apart → worst states → pivoted solve → verdict with guards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sysdyn.equations.augmented import System
from sysdyn.measurements.groups import NOISE, SWITCH, group_of
from sysdyn.model import Model
from sysdyn.offline.sampling import (
    FARTHEST,
    REFINED,
    is_far,
    is_singular,
    pivoted_solve,
    reach,
    require_regular,
    travelled,
)
from sysdyn.program.program import Program

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
# Two or three pivots that are each this fraction of their typical size may be those of a singular state: what is left
# of one is the difference of terms with the rounding errors of those before. So many such states are looked at, and
# all of them if one is singular.
DOUBTFUL, LOOKED_AT = 1e-4, 48
# Calls solve states with pivoting, and so see whether they are singular, where a pivot is below so many times the
# greatest share of its typical size that all pivots of a singular state exceeded; but not where it is above DOUBTFUL.
ROOM = 100.0
# A pivot below this fraction of its greatest sampled size, and far below its least, counts as zero online.
GUARD = 1e-11
# A pivot below this fraction of its greatest sampled size loses digits online, and its state is solved with pivoting.
WEAK = 1e-3
# Pivots down to this fraction of the least sampled one were seen to lose none.
HARMLESS = 0.1
# Pivots of an estimation, which scale with covariances, lose none above this fraction of their typical size.
STEADY = 1e-8
# Pivots are weak below so many times the size that they had where digits were lost, if that is at few of the states.
MARGIN, FEW = 2.0, 0.25
# What smaller pivots will lose is told from errors beyond this.
LOST = 1e-13
# Pivots that are expected to lose digits, though none were seen to, are so small at this fraction of the states.
EXPECTED = 1e-3
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
# This many states are looked at first: one alone may be singular by chance.
PROBES = 2

Inputs = dict[str, np.ndarray]  # {group of inputs: (N, size)}


class Behaviour(NamedTuple):
    """What a program does at N states.

    d (N, full layout): all unknowns; pivots (N, p): those that are not constant; growth (N,): greatest entry of the
    factors over that of the matrix, equilibrated; error (N,): the backward error of d, where it is known.
    """

    d: np.ndarray
    pivots: np.ndarray
    growth: np.ndarray
    error: np.ndarray | None = None


class Verdict(NamedTuple):
    """Safety; for each pivot, below which size it counts as zero and below which it loses digits; the worst states."""

    safety: Safety
    guards: list[tuple[float, float]]
    worst: Inputs


@dataclass(frozen=True)
class Safety:
    """How a fixed order behaved over sampled states.

    states: how many.
    backward_error: the greatest, row by row, see `sysdyn.equations.linear_system.Residual`.
    pivoted: the same of a pivoted solve with iterative refinement at the worst of the states.
    difference: greatest relative difference of a quantity (∞-norms) to that solve there.
    pivoted_difference: the same of a pivoted solve without refinement, large where the system is ill-conditioned.
    growth: greatest entry of D U over the greatest of D, both equilibrated.
    least_pivot, least_pivot_name: least |pivot| over its greatest value at any state, and which it is.
    crossing: how many pivots take both signs and so vanish somewhere in between, 0 where the determinant takes both
        signs itself.
    singular: how many of the states drawn were singular. Only regular ones count.
    weak: at how many states pivots are weak. These do not count, either, as calls solve them with pivoting.
    reach [m]: lengths without limits were judged out to this; calls pivot at states beyond.

    Pivots grow with lengths: of joints that travel far they count where all are below `NEAR`.
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
    certain: np.ndarray | None = None, whole: bool = False, again: bool | None = None,
) -> Verdict:  # fmt: skip
    """How a program behaves at sampled states: against the system's residual, and at the worst against a pivoted solve.

    run: the program at some of the states. inputs: at all of them. labels: of the pivots. chunk: states that run at a
    time. singular: which states, by number, are known to make the system itself singular; these are left out, and what
    is found is added. strict: stop where a pivot passes through zero. certain (p,): pivots that vanish only where the
    matrix is singular; how small they are says nothing against the order. again: states with weak pivots are solved
    with pivoting and do not count; by default but for means of estimates, whose orders do without. whole: stop nowhere.
    Otherwise a verdict of some of the states alone is one against the order, or has pivots that pass through zero.

    Raises StructurallySingular where the system is singular at every state.
    """
    apart = _Singular(system, inputs, {} if singular is None else singular)
    doubtful = np.ones(len(labels), dtype=bool) if certain is None else ~certain
    near = ~is_far(system.model, inputs["q"])
    chunk, crossed = chunk or len(near), doubtful if strict else np.zeros(len(labels), dtype=bool)
    seen = _observed(run, system, inputs, chunk, apart, near, None if whole else crossed)
    regular = apart.regular(seen)
    near = regular & seen.near if (regular & seen.near).any() else regular
    lengths = travelled(system, inputs["q"][: len(regular)])
    reach = _reach(seen, regular, lengths)
    beyond = int((regular & (lengths > reach)).sum())
    regular = regular & (lengths <= reach)
    noisy, usual = bool(system.problem.noisy), _as_declared(system, inputs)[: len(regular)] & (lengths <= reach)
    small = _SmallPivots(seen, near & usual if (near & usual).any() else near)
    weak = small.weak(regular & usual)
    again = not noisy if again is None else again
    found = regular & (np.abs(seen.pivots) < weak).any(axis=1) & again
    regular &= ~found
    while True:
        judged = seen.judged(regular, max(1, JUDGED_UNKNOWNS // max(1, system.layout.n)))
        compared = _compared(system, _at(inputs, judged), seen.d[judged])
        if compared.difference <= SMALL_DIFFERENCE or not apart.among(judged, regular):
            break
    kept, close = np.flatnonzero(regular), np.flatnonzero(near & ~apart.known(len(near)))
    size = np.abs(seen.pivots[close])
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
    if len(seen.error) < len(inputs["q"]) and safety.ok and not through:
        return judge(run, system, inputs, labels, chunk, singular, certain=certain, whole=True, again=again)
    weak = np.maximum(small.expected(usual, regular, weak), apart.share(seen) * small.typical)
    guards = _guards(seen.pivots[close], weak, doubtful, small.typical if noisy else None)
    return Verdict(safety, guards, _at(inputs, worst))


def _at(inputs: Inputs, states: np.ndarray) -> Inputs:
    return {name: x[states] for name, x in inputs.items()}


class _Observed(NamedTuple):
    """Behaviour and errors at each state: d, backward error, pivots (N, p), growth, inf for NaN; whether it is near."""

    d: np.ndarray
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
    near: np.ndarray, stop: np.ndarray | None,
) -> _Observed:  # fmt: skip
    """The program at all states, with `stop` up to a hopeless one, or one of these pivots (p,) that crosses zero."""
    parts: list[_Observed] = []
    for start in range(0, len(inputs["q"]), chunk):
        part = {name: x[start : start + chunk] for name, x in inputs.items()}
        found = run(part)
        with np.errstate(all="ignore"):
            error = system.residual(part, found.d).backward_error if found.error is None else found.error
        error, growth = (np.where(np.isfinite(x), x, math.inf) for x in (error, found.growth))
        pivots = np.nan_to_num(found.pivots, nan=0.0)
        parts.append(_Observed(found.d, error, pivots, growth, near[start : start + chunk]))
        if stop is None:
            continue
        hopeless = start + np.flatnonzero((error > HOPELESS) & near[start : start + chunk])
        if not all(apart.at(hopeless)) or crossing(pivots, stop)[0]:
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

    def known(self, n: int) -> np.ndarray:
        """(n,) bool: which of the first states are known to be singular."""
        return np.array([self._known.get(k, False) for k in range(n)], dtype=bool)

    def regular(self, seen: _Observed) -> np.ndarray:
        """(N,) bool: the states to judge by. Those where something goes wrong count where there is a solution.

        Pivots that are rounding errors everywhere look alike, and a backward stable program is not wrong then: some
        states are looked at whatever was seen.
        """
        spread = np.linspace(0, len(seen.error) - 1, EVERYWHERE).astype(int)
        if all(self.at(spread[:PROBES])) and all(self.at(spread)):
            require_regular(self._system)
        suspect, size = seen.error > FIRM_ERROR, np.abs(seen.pivots)
        if size.shape[1]:
            typical = np.median(size[seen.near] if seen.near.any() else size, axis=0)
            small, large = size <= SUSPECT * typical, size * SUSPECT > typical
            suspect |= small.any(axis=1) | (large.any(axis=1) & seen.near)
        suspect |= self._doubtful(size, seen.near, suspect)
        suspects = np.flatnonzero(suspect)
        regular = np.ones(len(suspect), dtype=bool)
        regular[suspects] = ~np.array(self.at(suspects), dtype=bool)
        if not regular.any() and len(regular) == len(self._inputs["q"]):
            require_regular(self._system)
        return regular if regular.any() else np.ones(len(suspect), dtype=bool)

    def _doubtful(self, size: np.ndarray, near: np.ndarray, suspect: np.ndarray) -> np.ndarray:
        """(N,) bool: states with DOUBTFUL pivots that are no suspects, if some of these are singular."""
        ratio = _least_share(size, near)
        doubtful = np.flatnonzero((ratio <= DOUBTFUL) & near & ~suspect)
        doubtful = doubtful[np.argsort(ratio[doubtful], kind="stable")]
        some = np.unique(np.linspace(0, len(doubtful) - 1, min(len(doubtful), LOOKED_AT)).astype(int))
        found = np.zeros(len(ratio), dtype=bool)
        if any(self.at(doubtful[some])):
            found[doubtful] = True
        return found

    def share(self, seen: _Observed) -> float:
        """Below this share of their typical sizes pivots may be those of a singular state; 0 if none is known."""
        singular = self.known(len(seen.error)) & seen.near
        ratio = _least_share(np.abs(seen.pivots), seen.near)[singular]
        return min(DOUBTFUL, ROOM * float(ratio.max(initial=0.0)))

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


def _least_share(size: np.ndarray, near: np.ndarray) -> np.ndarray:
    """(N,): the least of the sizes of pivots (N, p) beside the typical ones of near states."""
    if not size.shape[1]:
        return np.ones(len(size))
    typical = np.median(size[near] if near.any() else size, axis=0)
    with np.errstate(over="ignore"):
        return np.asarray((size / np.where(typical > 0.0, typical, 1.0)).min(axis=1))


class _Compared(NamedTuple):
    """The program beside a refined pivoted solve: that one's backward error, the differences of both to it."""

    pivoted: float
    difference: float
    pivoted_difference: float


def _compared(system: System, inputs: Inputs, d: np.ndarray) -> _Compared:
    """d (N, full layout): what the program gives at N states."""
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
        for farthest in REACHES:
            within = regular & (lengths <= farthest)
            if (seen.error[within] <= limit).all() and within.any():
                return farthest
    return FARTHEST


def _as_declared(system: System, inputs: Inputs) -> np.ndarray:
    """(N,) bool: covariances are the declared ones, and nothing is switched off."""
    changed = np.zeros(len(inputs["q"]), dtype=bool)
    for name, group in system.problem.inputs.items():
        if group_of(name).role in (NOISE, SWITCH):
            changed |= (inputs[name] != group.required()).any(axis=1)
    return ~changed


class _SmallPivots:
    """At each state the pivot that is smallest beside its typical size, and the digits that it may have lost."""

    def __init__(self, seen: _Observed, usual: np.ndarray):
        """usual (N,) bool: states at which pivots have their typical sizes."""
        size = np.abs(seen.pivots)
        self.error, self.sizes = np.minimum(seen.error, 1.0), size
        self.typical = np.median(size[usual], axis=0)
        with np.errstate(over="ignore"):
            ratio = size / np.where(self.typical > 0.0, self.typical, 1.0)
        self.pivot = np.argmin(ratio, axis=1) if size.shape[1] else np.zeros(len(size), dtype=int)
        places = np.arange(len(size))
        self.small = ratio[places, self.pivot] < WEAK if size.shape[1] else np.zeros(len(size), dtype=bool)

    def weak(self, states: np.ndarray) -> np.ndarray:
        """(p,) sizes of pivots below which errors were seen at the states: calls solve such states with pivoting.

        Errors beyond the least of LOSING for which these are few of the states.
        """
        best = np.zeros(self.sizes.shape[1])
        for limit in LOSING:
            lost = states & self.small & (self.error > limit)
            weak = self._greatest(lost, np.full(len(states), MARGIN))
            if np.count_nonzero((self.sizes < weak).any(axis=1) & states) > FEW * np.count_nonzero(states):
                break
            best = weak
        return best

    def expected(self, states: np.ndarray, kept: np.ndarray, weak: np.ndarray) -> np.ndarray:
        """(p,) sizes of pivots below which errors beyond the least of LOSING are to be expected, where not seen.

        From errors at the states, as if they grew with the inverse square of the size; of pivots that were seen to be
        weak, halfway (of decades) to those that few of the states kept are below.
        """
        found = self._greatest(states & self.small & (self.error > LOST), np.sqrt(self.error / LOSING[-1]))
        few, rare = np.quantile(self.sizes[kept], (EXPECTED, RARE), axis=0, method="lower")
        return np.max([weak, np.minimum(found, few), np.sqrt(weak * rare)], axis=0)

    def _greatest(self, states: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """(p,) the greatest size times factor (N,) of each pivot among the states at which it is the smallest."""
        result, k = np.zeros(self.sizes.shape[1]), np.flatnonzero(states)
        np.maximum.at(result, self.pivot[k], factors[k] * self.sizes[k, self.pivot[k]])
        return result


def _guards(
    pivots: np.ndarray, weak: np.ndarray, doubtful: np.ndarray, typical: np.ndarray | None
) -> list[tuple[float, float]]:
    """(counts as zero, loses digits) below these, for each pivot (states, pivots); weak (pivots): seen to lose digits.

    typical (pivots): sizes of those that scale with covariances, which may be others than those sampled.
    """
    size = np.abs(pivots)
    least, largest = size.min(axis=0), size.max(axis=0)
    if typical is not None:
        zero, harmless = GUARD * least, np.minimum(STEADY * typical, HARMLESS * least)
    else:
        zero, harmless = np.minimum(GUARD * largest, WEAK * least), np.minimum(WEAK * largest, HARMLESS * least)
        harmless = np.where(passes_through_zero(pivots) & doubtful, WEAK * largest, harmless)
    return list(zip(zero.tolist(), np.maximum(harmless, weak).tolist(), strict=True))


def ranged(program: Program, model: Model, safety: Safety) -> Program:
    """The program with the ranges of the positions that it reads: beyond them it was not judged."""
    groups = [name for name, _ in program.input_groups]
    start = sum(size for _, size in program.input_groups[: groups.index("q")])
    most = enumerate(reach(model, safety.reach).tolist(), start)
    return replace(program, ranges=tuple((k, x) for k, x in most if math.isfinite(x) and program.used_inputs[k]))


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
