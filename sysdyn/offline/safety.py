"""The judge of programs, eliminations and recursions: their safety over sampled states.

Candidate → run → residuals, row by row → singular states apart → worst states → pivoted solve → verdict with guards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from sysdyn.equations.backward_error import residual_at
from sysdyn.equations.system import System
from sysdyn.measurements.groups import NOISE, SWITCH, group_of
from sysdyn.model import Model
from sysdyn.offline.pivoted_solves import reference
from sysdyn.offline.sampling import FARTHEST, NEAREST, is_far, is_singular, reach, require_regular, travelled
from sysdyn.offline.verdict import (
    BACKWARD_ERROR,
    FIRM_ERROR,
    HOPELESS,
    RARE,
    SMALL_DIFFERENCE,
    TAIL,
    Candidate,
    Inputs,
    Safety,
    Verdict,
)
from sysdyn.program.program import Program

# Number of states at which a program is judged (chosen).
SAFETY_SAMPLES = 2048
# Backward errors, the least of which that few states exceed makes small pivots weak (chosen).
LOSING = (1e-9, 1e-10, 1e-11)
# Share of the other unknowns, or of itself at other states, below which a quantity counts as zero (chosen).
VANISHING = 1e-6
# Number of the states worst in a respect that guide the next search (chosen).
WORST_STATES = 6
# Share of its typical size, or inverse of it, at which a single pivot makes a state suspect of being singular; one of
# exact equations is weak there (chosen).
SUSPECT = 1e-8
# Share of their typical sizes at which two or three pivots together may be a singular state's: the last of them is the
# difference of terms with the rounding errors of the ones before. LOOKED_AT such states are checked, and all of them if
# one is singular (chosen).
DOUBTFUL, LOOKED_AT = 1e-4, 48
# Multiple of the least share of its typical size that some pivot has at every sampled singular state: below it, and at
# most below DOUBTFUL, calls solve with pivoting and so see whether a state is singular (chosen).
ROOM = 100.0
# Share of its greatest sampled size below which a pivot, if far below its least, too, counts as zero online (chosen).
GUARD = 1e-11
# Share of its greatest sampled size below which a pivot loses digits: calls solve its state with pivoting (chosen).
WEAK = 1e-3
# Shares of the least sampled size down to which a pivot is taken to lose no digits: one of exact equations, which is a
# difference of rounded terms and of which nothing smaller is known (a little less, as machine code rounds otherwise);
# and one that scales with covariances (chosen).
KNOWN, HARMLESS = 0.99, 0.1
# Share of its typical size above which a pivot of an estimate, which scales with covariances, loses no digits (chosen:
# several at once of 1e-8 to 1e-6 cost bipeds at right angles all of them).
STEADY = 1e-6
# The same of a pivot that vanishes at some sampled state: near there others are small, too, and each costs digits. At
# most the share EXPECTED of the states go below (chosen: two of 1e-5 to 1e-3 cost bipeds nine digits).
TOGETHER = 1e-3
# Share of its low size below which a pivot of exact equations is weak, whatever errors were seen: a difference of terms
# that lost five digits, which no residual tells (chosen); STEADY is that of estimates. LOW_SHARE: share of the states
# at which a pivot is smaller than its low size, for some range over many decades (chosen).
CANCELLED_PIVOT, LOW_SHARE = 1e-5, 0.25
# Multiple of the size of a pivot at which digits were lost, below which it is weak; used while at most the share FEW of
# the states have weak pivots (chosen).
MARGIN, FEW = 2.0, 0.25
# Backward error beyond which errors tell the loss of smaller pivots: 450 rounding units (chosen).
LOST = 1e-13
# Greatest share of states with pivots that are expected to lose digits though none were seen to (chosen).
EXPECTED = 1e-3
# Lengths [m], the greatest one of small residuals of which limits the judged lengths if these have no limits of their
# own; calls solve with pivoting beyond (chosen). FAR_ERROR: residual that is small there, of the few states that are
# sampled in a decade of lengths, as others leave ten times as much (chosen).
REACHES, FAR_ERROR = (FARTHEST, 100.0, 10.0), 1e-12
# Number of times that the next worst states are checked if the worst ones turn out to be singular (chosen).
ROUNDS = 4
# Number of states, spread over all, at which a system that counts as singular at every state is singular, and of those
# spread over the sizes of pivots that are compared with pivoted solves whatever their residuals (chosen).
EVERYWHERE = 24
# Number of states that are checked first: one alone may be singular by chance (chosen).
PROBES = 2


def judge(
    candidate: Candidate, inputs: Inputs, singular: dict[int, bool] | None = None, strict: bool = False
) -> Verdict:
    """Judge a program at sampled states: by the system's residual, and at the worst ones beside a pivoted solve.

    inputs: at all states. singular: {number of a state: it makes the system itself singular}; such states are left out,
    and new findings are added. strict: stop if a pivot passes through zero. A verdict of some of the states alone is
    one against the order, or has pivots that pass through zero.

    Raises StructurallySingular if the system is singular at every state.
    """
    until = candidate.doubtful if strict else np.zeros(len(candidate.labels), dtype=bool)
    seen, verdict = _judged(candidate, inputs, singular, until)
    if seen < len(inputs["q"]) and verdict.safety.ok and not verdict.safety.crossing:
        return _judged(candidate, inputs, singular, None)[1]
    return verdict


def _judged(
    candidate: Candidate, inputs: Inputs, singular: dict[int, bool] | None, until: np.ndarray | None
) -> tuple[int, Verdict]:
    """(number of the states seen, verdict on these); see `_observed` for `until`."""
    system, doubtful = candidate.system, candidate.doubtful
    known = _Singular(system, inputs, {} if singular is None else singular)
    seen = _observed(candidate, inputs, known, until)
    counted = _counted(system, inputs, seen, known)
    noisy, most = bool(system.problem.noisy), max(1, candidate.compared // system.layout.n)
    lost = np.zeros(len(seen.error))
    for _ in range(2):  # once more if answers lose digits that no residual shows
        small = _SmallPivots(seen, _some(counted.near & counted.usual, counted.near), lost)
        weak = small.weak(counted.regular & counted.usual)
        # of a pivot that is rounding at many states, where axes nearly coincide, the low size is such a state's
        rounding = np.zeros_like(weak) if noisy else SUSPECT * small.typical
        marked = counted.regular & (seen.sizes < np.maximum(weak, rounding)).any(axis=1) & candidate.again
        marked &= bool((counted.regular & ~marked).any())
        checked = _checked(system, inputs, seen, known, counted.regular & ~marked, most)
        if checked.difference <= SMALL_DIFFERENCE or not candidate.again:
            break
        lost = checked.lost
    kept, close = np.flatnonzero(checked.regular), np.flatnonzero(counted.near & ~known.among(len(seen.error)))
    least, name, through, worst = _least(seen, kept, close, candidate.labels, doubtful)
    told = small.small | (counted.lengths > NEAREST)  # by guards, or by how far lengths were judged
    safety = Safety(
        states=len(kept), backward_error=float(seen.error[kept].max()), pivoted=checked.pivoted,
        tail=float(np.quantile(np.where(told, 0.0, seen.error)[kept], 1.0 - TAIL, method="higher")),
        difference=checked.difference, pivoted_difference=checked.pivoted_difference,
        least_pivot=least, least_pivot_name=name,
        crossing=through, singular=len(seen.error) - len(kept) - int(marked.sum()) - counted.beyond,
        weak=int(marked.sum()), reach=counted.reach,
    )  # fmt: skip
    lossy = np.max([
        small.expected(counted.usual, checked.regular, weak), known.share(seen) * small.typical,
        small.steady(counted.usual, checked.regular) if noisy else CANCELLED_PIVOT * small.low,
        rounding,
    ], axis=0)  # fmt: skip
    guards = _guards(seen.pivots[close], lossy, doubtful, small.typical if noisy else None)
    return len(seen.error), Verdict(safety, guards, _at(inputs, worst))


def _at(inputs: Inputs, states: np.ndarray | slice) -> Inputs:
    return {name: x[states] for name, x in inputs.items()}


def _some(states: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The states (N,) bool; the others if there are none."""
    return states if states.any() else others


def _without(states: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The states (N,) bool without those of these numbers."""
    return states & ~np.isin(np.arange(len(states)), numbers)


def _shares(sizes: np.ndarray, typical: np.ndarray) -> np.ndarray:
    """Sizes (N, p) of pivots over their typical ones (p,)."""
    with np.errstate(over="ignore"):
        return np.asarray(sizes / np.where(typical > 0.0, typical, 1.0))


@dataclass(frozen=True)
class _Observed:
    """Behaviour at each state: d, backward error, pivots (N, p), inf for NaN; near: its lengths are small."""

    d: np.ndarray
    error: np.ndarray
    pivots: np.ndarray
    near: np.ndarray

    @cached_property
    def sizes(self) -> np.ndarray:
        """Absolute values (N, p) of the pivots."""
        return np.abs(self.pivots)

    @cached_property
    def typical(self) -> np.ndarray:
        """Typical sizes (p,) of the pivots, at near states."""
        return np.median(self.sizes[_some(self.near, np.ones(len(self.near), dtype=bool))], axis=0)

    @cached_property
    def least_share(self) -> np.ndarray:
        """(N,): least size of a pivot at each state over its typical size."""
        return _shares(self.sizes, self.typical).min(axis=1) if self.pivots.shape[1] else np.ones(len(self.pivots))

    def worst(self, states: np.ndarray, most: int) -> np.ndarray:
        """Numbers of the states of largest residuals among these."""
        return states[np.argsort(self.error[states])[-most:]]

    def by_pivots(self, states: np.ndarray, most: int) -> np.ndarray:
        """Numbers of at most so many of these states, spread over the sizes of their least pivots."""
        ordered = states[np.argsort(self.least_share[states], kind="stable")]
        return ordered[np.unique(np.linspace(0, len(states) - 1, min(len(states), most)).astype(int))]

    def fails(self, until: np.ndarray, known: _Singular, start: int) -> bool:
        """True if one of the states, numbered from `start`, is hopeless, or a pivot of `until` passes through zero."""
        hopeless = start + np.flatnonzero((self.error > HOPELESS) & self.near)
        return not all(known.at(hopeless)) or bool(crossing(self.pivots, until)[0])


def _observed(candidate: Candidate, inputs: Inputs, known: _Singular, until: np.ndarray | None) -> _Observed:
    """The program at all states; with `until` only up to a hopeless one, or until one of these pivots crosses zero."""
    parts: list[_Observed] = []
    n, near = len(inputs["q"]), ~is_far(candidate.system.model, inputs["q"])
    for start in range(0, n, candidate.chunk or n):
        states = slice(start, start + (candidate.chunk or n))
        part = _at(inputs, states)
        found = candidate.run(part)
        with np.errstate(all="ignore"):
            told = residual_at(candidate.system, part, found.d).backward_error if found.error is None else found.error
        error = np.where(np.isfinite(told), told, math.inf)
        parts.append(_Observed(found.d, error, np.nan_to_num(found.pivots, nan=0.0), near[states]))
        if until is not None and parts[-1].fails(until, known, start):
            break
    return _Observed(*(np.concatenate([getattr(x, field.name) for x in parts]) for field in fields(_Observed)))


class _Singular:
    """Sampled states at which the system itself is singular, each checked once, and only if something goes wrong."""

    def __init__(self, system: System, inputs: Inputs, known: dict[int, bool]):
        self._system, self._inputs, self._known = system, inputs, known

    def at(self, states: np.ndarray) -> list[bool]:
        """True or False for the states of these numbers: the system is singular there."""
        new = np.array([k for k in states.tolist() if k not in self._known], dtype=int)
        if len(new):
            found = is_singular(self._system, _at(self._inputs, new))
            self._known.update(zip(new.tolist(), found.tolist(), strict=True))
        return [self._known[k] for k in states.tolist()]

    def of(self, states: np.ndarray) -> np.ndarray:
        """Numbers of the singular ones of these states."""
        return states[np.array(self.at(states), dtype=bool)]

    def among(self, n: int) -> np.ndarray:
        """(n,) bool: True for known singular states among the first n."""
        return np.array([self._known.get(k, False) for k in range(n)], dtype=bool)

    def regular(self, seen: _Observed) -> np.ndarray:
        """(N,) bool: True for states to judge by. A state at which something goes wrong counts if it has a solution.

        Some states are checked whatever was seen: in a system that is singular everywhere all pivots are rounding
        errors of one size, and a backward stable program shows no residual. Raises StructurallySingular.
        """
        every = np.ones(len(seen.error), dtype=bool)
        spread = np.linspace(0, len(every) - 1, EVERYWHERE).astype(int)
        if all(self.at(spread[:PROBES])) and all(self.at(spread)):
            require_regular(self._system)
        suspect = _suspect(seen)
        regular = _without(every, self.of(np.flatnonzero(suspect | self._doubtful(seen, suspect))))
        return _some(regular, every)

    def _doubtful(self, seen: _Observed, suspect: np.ndarray) -> np.ndarray:
        """(N,) bool: True for states with DOUBTFUL pivots that are no suspects, if some of them are singular."""
        doubtful = (seen.least_share <= DOUBTFUL) & seen.near & ~suspect
        return doubtful & any(self.at(seen.by_pivots(np.flatnonzero(doubtful), LOOKED_AT)))

    def share(self, seen: _Observed) -> float:
        """Share of typical sizes below which pivots may be a singular state's; 0 if no such state is known."""
        singular = self.among(len(seen.error)) & seen.near
        return min(DOUBTFUL, ROOM * float(seen.least_share[singular].max(initial=0.0)))

    def rest(self, regular: np.ndarray, singular: np.ndarray) -> np.ndarray:
        """Regular states without the given singular ones and others found to be; all of them if none would remain.

        Raises StructurallySingular.
        """
        states = np.flatnonzero(_without(regular, singular))
        others = states[:: max(1, len(states) // EVERYWHERE)]
        also = self.of(others)
        if len(also) == len(others):
            require_regular(self._system)
            return regular
        return _without(regular, np.concatenate([singular, also]))


def _suspect(seen: _Observed) -> np.ndarray:
    """(N,) bool: True for states with an error, or a pivot far from its typical size; far states have large ones."""
    lossy = seen.error > FIRM_ERROR
    if not seen.pivots.shape[1]:
        return lossy
    small, large = seen.sizes <= SUSPECT * seen.typical, seen.sizes * SUSPECT > seen.typical
    return np.asarray(lossy | small.any(axis=1) | (large.any(axis=1) & seen.near))


class _Counted(NamedTuple):
    """Masks (N,) of the states that count.

    regular: regular and within reach [m]. near: near ones, or all if all regular ones are far. usual: with declared
    covariances, within reach. beyond: number of regular states out of reach. lengths (N,): see `travelled`.
    """

    regular: np.ndarray
    near: np.ndarray
    usual: np.ndarray
    reach: float
    beyond: int
    lengths: np.ndarray


def _counted(system: System, inputs: Inputs, seen: _Observed, known: _Singular) -> _Counted:
    """The states to judge by, within the lengths that the residuals allow. Raises StructurallySingular."""
    regular = known.regular(seen)
    lengths = travelled(system, inputs["q"][: len(regular)])
    reach = _reach(seen, regular, lengths)
    within = lengths <= reach
    usual = _as_declared(system, inputs)[: len(regular)] & within
    near = _some(regular & seen.near, regular)
    return _Counted(regular & within, near, usual, reach, int((regular & ~within).sum()), lengths)


class _Checked(NamedTuple):
    """Comparison with pivoted solves.

    regular (N,): mask of regular states. lost (N,): differences to refined pivoted solves, 0 where not compared.
    pivoted: greatest error of these solves. difference, pivoted_difference: greatest difference to them of the program
    and of solves without refinement.
    """

    regular: np.ndarray
    lost: np.ndarray
    pivoted: float
    difference: float
    pivoted_difference: float


def _checked(
    system: System,
    inputs: Inputs,
    seen: _Observed,
    known: _Singular,
    regular: np.ndarray,
    most: int,
    rounds: int = ROUNDS,
) -> _Checked:
    """Compare the `most` worst regular states with pivoted solves; if they turn out to be singular, the next worst.

    So are some spread over the sizes of pivots: equations that barely determine an unknown lose its digits without a
    residual.
    """
    kept = np.flatnonzero(regular)
    states = np.union1d(seen.worst(kept, most), seen.by_pivots(kept, min(most, EVERYWHERE)))
    part, d = _at(inputs, states), seen.d[states]
    with np.errstate(all="ignore"):
        plain, refined, error = reference(system, part)
        differences, pivoted = (relative_differences(system, x, refined) for x in (d, plain))
    lost = np.zeros(len(regular))
    lost[states] = differences
    checked = _Checked(regular, lost, float(error.max()), float(differences.max()), float(pivoted.max()))
    if checked.difference <= SMALL_DIFFERENCE:
        return checked
    singular = known.of(states)
    if not len(singular) or not rounds:
        return checked
    rest = known.rest(regular, singular) if len(singular) == len(states) else _without(regular, singular)
    return checked if rest is regular else _checked(system, inputs, seen, known, rest, most, rounds - 1)


def _least(
    seen: _Observed, kept: np.ndarray, close: np.ndarray, labels: Sequence[str], doubtful: np.ndarray
) -> tuple[float, str, int, np.ndarray]:
    """(smallest ratio, its label, number of pivots that change sign at the kept states, numbers of the worst states).

    The ratio is |pivot| over its greatest value, of the flagged pivots at the close states.
    """
    worst = seen.worst(kept, WORST_STATES)
    if not doubtful.any():
        return 1.0, "none can vanish at a regular state", 0, worst
    sizes = seen.sizes[close]
    ratio = np.where(doubtful, _shares(sizes, sizes.max(axis=0)), 1.0)
    k = int(np.argmin(ratio.min(axis=0)))
    through, rare = crossing(seen.pivots[kept], doubtful)
    smallest = close[np.argsort(ratio.min(axis=1))[:WORST_STATES]]
    return float(ratio[:, k].min()), labels[k], through, np.unique([*worst, *smallest, *kept[rare]])


def _reach(seen: _Observed, regular: np.ndarray, lengths: np.ndarray) -> float:
    """The greatest of REACHES within which residuals are small; FARTHEST if there is none."""
    for limit in (FAR_ERROR, FIRM_ERROR, BACKWARD_ERROR):
        for farthest in REACHES:
            within = regular & (lengths <= farthest)
            if (seen.error[within] <= limit).all() and within.any():
                return farthest
    return FARTHEST


def _as_declared(system: System, inputs: Inputs) -> np.ndarray:
    """(N,) bool: True for states with the declared covariances and nothing switched off."""
    changed = np.zeros(len(inputs["q"]), dtype=bool)
    for name, group in system.problem.inputs.items():
        if group_of(name).role in (NOISE, SWITCH):
            changed |= (inputs[name] != group.require_default()).any(axis=1)
    return ~changed


class _SmallPivots:
    """The pivot at each state that is smallest beside its typical size, and the digits that it may have lost."""

    def __init__(self, seen: _Observed, usual: np.ndarray, lost: np.ndarray):
        """usual (N,) bool: states at which pivots have their typical sizes. lost (N,): errors that residuals hide."""
        self.error, self.sizes = np.minimum(np.maximum(seen.error, lost), 1.0), seen.sizes
        usually = self.sizes[usual]
        self.low, self.typical = np.quantile(usually, LOW_SHARE, axis=0), np.median(usually, axis=0)
        shares = np.column_stack([_shares(self.sizes, self.typical), np.full(len(self.sizes), math.inf)])
        self.pivot = np.argmin(shares, axis=1)
        self.small = shares.min(axis=1) < WEAK

    def weak(self, states: np.ndarray) -> np.ndarray:
        """Sizes (p,) of pivots below which errors were seen at the states: calls solve such states with pivoting.

        Errors count beyond the least of LOSING that leaves few of the states with weak pivots.
        """

        def few(weak: np.ndarray) -> bool:
            return int(((self.sizes < weak).any(axis=1) & states).sum()) <= FEW * int(states.sum())

        lost = (states & self.small & (self.error > limit) for limit in LOSING)
        found = (self._greatest(x, np.full(len(states), MARGIN)) for x in lost)
        return [np.zeros(self.sizes.shape[1]), *takewhile(few, found)][-1]

    def expected(self, states: np.ndarray, kept: np.ndarray, weak: np.ndarray) -> np.ndarray:
        """Extrapolated sizes (p,) of pivots below which errors exceed the least of LOSING, error ≈ c / size².

        c follows from the errors at `states`. Pivots that were seen to lose digits (`weak`) are taken to do so up to
        the geometric mean of that size and the one that few of the states `kept` go below.
        """
        found = self._greatest(states & self.small & (self.error > LOST), np.sqrt(self.error / LOSING[-1]))
        few, rare = np.quantile(self.sizes[kept], (EXPECTED, RARE), axis=0, method="lower")
        return np.max([weak, np.minimum(found, few), np.sqrt(weak * rare)], axis=0)

    def steady(self, usual: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Sizes (p,) below which pivots of an estimate lose digits: one alone, or several that vanish at usual ones."""
        vanish = (self.sizes[usual] < STEADY * self.low).any(axis=0)
        few = np.quantile(self.sizes[kept], EXPECTED, axis=0, method="lower")
        return np.maximum(STEADY * self.low, np.where(vanish, np.minimum(TOGETHER * self.low, few), 0.0))

    def _greatest(self, states: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """(p,): greatest size times factor (N,) of each pivot over the states at which it is the smallest."""
        result, k = np.zeros(self.sizes.shape[1]), np.flatnonzero(states)
        np.maximum.at(result, self.pivot[k], factors[k] * self.sizes[k, self.pivot[k]])
        return result


def _guards(
    pivots: np.ndarray, weak: np.ndarray, doubtful: np.ndarray, typical: np.ndarray | None
) -> list[tuple[float, float]]:
    """(size below which it counts as zero, size below which it loses digits) of each of the pivots (states, pivots).

    weak (pivots): sizes below which they were seen to lose digits. typical (pivots): sizes of pivots that scale with
    covariances, which may be others than those sampled.
    """
    size = np.abs(pivots)
    least, largest = size.min(axis=0), size.max(axis=0)
    if typical is not None:
        zero, harmless = GUARD * least, np.minimum(STEADY * typical, HARMLESS * least)
    else:
        through = passes_through_zero(pivots) & doubtful
        zero = np.minimum(GUARD * largest, WEAK * least)
        harmless = np.where(through, WEAK * largest, np.minimum(WEAK * largest, KNOWN * least))
    return list(zip(zero.tolist(), np.maximum(harmless, weak).tolist(), strict=True))


def ranged(program: Program, model: Model, safety: Safety) -> Program:
    """The program with ranges of the positions it reads, beyond which it was not judged."""
    start = program.inputs.slices["q"].start
    most = enumerate(reach(model, safety.reach).tolist(), start)
    return replace(program, ranges=tuple((k, x) for k, x in most if math.isfinite(x) and program.used_inputs[k]))


def relative_differences(system: System, d: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """(N,): greatest relative difference of an unknown quantity (∞-norms) at each of the states; d (N, full layout)."""
    worst = np.zeros(len(d))
    for quantity in system.problem.quantities:
        columns = system.layout.quantity_columns(quantity)
        if len(columns) > len(system.problem.knows(quantity)):
            size = np.abs(reference[:, columns]).max(axis=1)
            difference = np.abs(d[:, columns] - reference[:, columns]).max(axis=1)
            # if a quantity vanishes, its rounding errors are no error of the order; near singular states it is so large
            # that it tells nothing of others
            size = np.maximum(size, VANISHING * np.maximum(np.median(size), np.abs(reference).max(axis=1)))
            worst = np.maximum(worst, difference / np.where(size > 0.0, size, 1.0))
    return np.where(np.isfinite(worst), worst, math.inf)


def relative_difference(system: System, d: np.ndarray, reference: np.ndarray) -> float:
    """The greatest of `relative_differences`."""
    return float(relative_differences(system, d, reference).max())


def crossing(pivots: np.ndarray, doubtful: np.ndarray) -> tuple[int, np.ndarray]:
    """(number of doubtful pivots that take both signs, the state at which each is farthest on its rarer side).

    pivots: (states, pivots). None counts if their product, the determinant but for a constant, takes both signs.
    """
    if passes_through_zero(np.prod(np.sign(pivots), axis=1)):
        return 0, np.array([], dtype=int)
    both = pivots[:, passes_through_zero(pivots) & doubtful]
    rarer = np.where(np.sign(both).sum(axis=0) > 0.0, -1.0, 1.0)
    return both.shape[1], np.argmax(both * rarer, axis=0)


def passes_through_zero(values: np.ndarray) -> np.ndarray:
    """True for values (states, …) that take both signs: they pass through zero in between."""
    return np.asarray((values < 0.0).any(axis=0) & (values > 0.0).any(axis=0))
