"""The judge of programs, eliminations and recursions: their safety over sampled states.

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

# Number of states at which a program is judged (chosen).
SAFETY_SAMPLES = 2048
# Greatest backward error of a safe program, unless a pivoted solve with refinement does no better (chosen).
BACKWARD_ERROR = 1e-9
# Backward error beyond which the search for an order goes on (chosen).
FIRM_ERROR = 1e-11
# Backward errors, the least of which that few states exceed makes small pivots weak (chosen).
LOSING = (1e-9, 1e-10, 1e-11)
# Greatest difference of a safe program's result to a pivoted solve, unless that solve is no better (chosen).
DIFFERENCE = 3e-10
# Multiple of the loss of a pivoted solve that a program may lose (chosen).
WORSE_THAN_PIVOTED = 1e2
# Share of its greatest size below which a pivot at some state may vanish at another (chosen).
LEAST_PIVOT = 1e-4
# Share of the other unknowns, or of itself at other states, below which a quantity counts as zero (chosen).
VANISHING = 1e-6
# Most unknowns of all states of a pivoted solve (chosen).
JUDGED_UNKNOWNS = 10_000
# Backward error that ends the check of an order: no refinement mends it (chosen).
HOPELESS = 1e-3
# Number of the states worst in a respect that guide the next search (chosen).
WORST_STATES = 6
# Share of its typical size, or inverse of it, at which a single pivot makes a state suspect of being singular (chosen).
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
# Share of the least sampled size down to which a pivot was seen to lose no digits.
HARMLESS = 0.1
# Share of its typical size above which a pivot of an estimate, which scales with covariances, loses no digits (chosen).
STEADY = 1e-8
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
# Share of states with weak pivots beyond which the search for an order goes on (chosen).
RARE = 0.01
# Difference to a pivoted solve beyond which compiling warns of inaccurate results, as of large residuals (chosen).
SMALL_DIFFERENCE = 1e-6
# Lengths [m], the greatest one of small residuals of which limits the judged lengths if these have no limits of their
# own; calls solve with pivoting beyond (chosen).
REACHES = (FARTHEST, 100.0, 10.0)
# Number of times that the next worst states are checked if the worst ones turn out to be singular (chosen).
ROUNDS = 4
# Number of states, spread over all, at which a system that counts as singular at every state is singular (chosen).
EVERYWHERE = 24
# Number of states that are checked first: one alone may be singular by chance (chosen).
PROBES = 2

Inputs = dict[str, np.ndarray]  # {group of inputs: (N, size)}


class Behaviour(NamedTuple):
    """Results of a program at N states.

    d (N, full layout): all unknowns; pivots (N, p): the ones that are not constant; growth (N,): greatest entry of the
    factors over that of the matrix, equilibrated; error (N,): the backward error of d, None if it is not known.
    """

    d: np.ndarray
    pivots: np.ndarray
    growth: np.ndarray
    error: np.ndarray | None = None


class Verdict(NamedTuple):
    """Safety; (size below which it counts as zero, size below which it loses digits) of each pivot; worst states."""

    safety: Safety
    guards: list[tuple[float, float]]
    worst: Inputs


@dataclass(frozen=True)
class Safety:
    """Behaviour of a fixed order over sampled states.

    states: number of states that count.
    backward_error: the greatest, row by row, see `sysdyn.equations.linear_system.Residual`.
    pivoted: the same of a pivoted solve with iterative refinement at the worst of the states.
    difference: greatest relative difference of a quantity (∞-norms) to that solve there.
    pivoted_difference: the same of a pivoted solve without refinement, large if the system is ill-conditioned.
    growth: greatest entry of D U over the greatest of D, both equilibrated.
    least_pivot, least_pivot_name: least |pivot| over its greatest value at any state, and its equation and unknown.
    crossing: number of pivots that take both signs and so vanish somewhere in between, 0 if the determinant takes both
        signs itself.
    singular: number of singular states among those drawn. Only regular ones count.
    weak: number of states with weak pivots. These do not count, either, as calls solve them with pivoting.
    reach [m]: lengths without limits were judged out to this; calls pivot at states beyond.

    Pivots grow with lengths: for joints that travel far they count at states with all lengths below `NEAR`.
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
        """True if results are as accurate as a pivoted solve can be expected to be."""
        return self.stable and self.difference <= max(DIFFERENCE, WORSE_THAN_PIVOTED * self.pivoted_difference)

    @property
    def stable(self) -> bool:
        """True if backward stable: results solve exactly a system whose entries are nearly the given ones."""
        small = self.backward_error <= max(BACKWARD_ERROR, WORSE_THAN_PIVOTED * self.pivoted)
        return math.isfinite(self.growth) and small and self.least_pivot > 0.0

    @property
    def firm(self) -> bool:
        """True if safe with digits to spare, and no pivot came near zero or passed through it."""
        steady = self.least_pivot >= LEAST_PIVOT and self.weak <= RARE * self.states and not self.crossing
        return self.ok and self.exact and steady

    @property
    def exact(self) -> bool:
        """True if backward stable with digits to spare."""
        return self.backward_error <= max(FIRM_ERROR, WORSE_THAN_PIVOTED * self.pivoted)

    @property
    def small(self) -> bool:
        """True if the judged errors are small, whatever a pivoted solve loses."""
        return self.backward_error <= BACKWARD_ERROR and self.difference <= SMALL_DIFFERENCE

    @property
    def improvable(self) -> bool:
        """True if not exact though no pivot failed: iterative refinement will help."""
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
    """Judge a program at sampled states: by the system's residual, and at the worst ones beside a pivoted solve.

    run: the program at some of the states. inputs: at all of them. labels: of the pivots. chunk: states that run at a
    time. singular: {number of a state: it makes the system itself singular}; such states are left out, and new findings
    are added. strict: stop if a pivot passes through zero. certain (p,): pivots that vanish only if the matrix is
    singular; their size says nothing against the order. again: states with weak pivots are solved with pivoting and do
    not count; None for all but means of estimates, whose orders do without. whole: never stop early. Otherwise a
    verdict of some of the states alone is one against the order, or has pivots that pass through zero.

    Raises StructurallySingular if the system is singular at every state.
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
    weak = np.maximum(weak, (STEADY if noisy else CANCELLED_PIVOT) * small.low)
    guards = _guards(seen.pivots[close], weak, doubtful, small.typical if noisy else None)
    return Verdict(safety, guards, _at(inputs, worst))


def _at(inputs: Inputs, states: np.ndarray) -> Inputs:
    return {name: x[states] for name, x in inputs.items()}


class _Observed(NamedTuple):
    """Behaviour at each state: d, backward error, pivots (N, p), growth, inf for NaN; near: its lengths are small."""

    d: np.ndarray
    error: np.ndarray
    pivots: np.ndarray
    growth: np.ndarray
    near: np.ndarray

    def worst(self, kept: np.ndarray, most: int = WORST_STATES) -> np.ndarray:
        """Places in `kept` of the states with the largest residuals."""
        return np.argsort(self.error[kept])[-most:]

    def judged(self, regular: np.ndarray, most: int) -> np.ndarray:
        """Numbers of the regular states, `most` of largest residuals, that are solved with pivoting, too."""
        kept = np.flatnonzero(regular)
        return kept[self.worst(kept, most)]


def _observed(
    run: Callable[[Inputs], Behaviour], system: System, inputs: Inputs, chunk: int, apart: _Singular,
    near: np.ndarray, stop: np.ndarray | None,
) -> _Observed:  # fmt: skip
    """The program at all states; with `stop` only up to a hopeless one, or until one of these pivots crosses zero."""
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
    """Sampled states at which the system itself is singular, each checked once, and only if something goes wrong."""

    def __init__(self, system: System, inputs: Inputs, known: dict[int, bool]):
        self._system, self._inputs, self._known, self._rounds = system, inputs, known, ROUNDS

    def at(self, states: np.ndarray) -> list[bool]:
        """True or False for the states of these numbers: the system is singular there."""
        new = np.array([k for k in states.tolist() if k not in self._known], dtype=int)
        if len(new):
            found = is_singular(self._system, _at(self._inputs, new))
            self._known.update(zip(new.tolist(), found.tolist(), strict=True))
        return [self._known[k] for k in states.tolist()]

    def known(self, n: int) -> np.ndarray:
        """(n,) bool: True for known singular states among the first n."""
        return np.array([self._known.get(k, False) for k in range(n)], dtype=bool)

    def regular(self, seen: _Observed) -> np.ndarray:
        """(N,) bool: True for states to judge by. A state at which something goes wrong counts if it has a solution.

        Pivots that are rounding errors everywhere look alike, and a backward stable program is not wrong then: some
        states are checked whatever was seen. Raises StructurallySingular.
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
        """(N,) bool: True for states with DOUBTFUL pivots that are no suspects, if some of them are singular."""
        ratio = _least_share(size, near)
        doubtful = np.flatnonzero((ratio <= DOUBTFUL) & near & ~suspect)
        doubtful = doubtful[np.argsort(ratio[doubtful], kind="stable")]
        some = np.unique(np.linspace(0, len(doubtful) - 1, min(len(doubtful), LOOKED_AT)).astype(int))
        found = np.zeros(len(ratio), dtype=bool)
        if any(self.at(doubtful[some])):
            found[doubtful] = True
        return found

    def share(self, seen: _Observed) -> float:
        """Share of typical sizes below which pivots may be a singular state's; 0 if no such state is known."""
        singular = self.known(len(seen.error)) & seen.near
        ratio = _least_share(np.abs(seen.pivots), seen.near)[singular]
        return min(DOUBTFUL, ROOM * float(ratio.max(initial=0.0)))

    def among(self, judged: np.ndarray, regular: np.ndarray) -> bool:
        """Clear singular ones of the judged states in `regular`; True if some were cleared and others remain."""
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
    """(N,): least size of a pivot (N, p) at each state over its typical size at near states."""
    if not size.shape[1]:
        return np.ones(len(size))
    typical = np.median(size[near] if near.any() else size, axis=0)
    with np.errstate(over="ignore"):
        return np.asarray((size / np.where(typical > 0.0, typical, 1.0)).min(axis=1))


class _Compared(NamedTuple):
    """A refined pivoted solve: its backward error, the differences of the program and of a plain solve to it."""

    pivoted: float
    difference: float
    pivoted_difference: float


def _compared(system: System, inputs: Inputs, d: np.ndarray) -> _Compared:
    """Compare the program's unknowns d (N, full layout) at N states with pivoted solves."""
    with np.errstate(all="ignore"):
        plain, refined = (pivoted_solve(system, inputs, refine=k) for k in (0, REFINED))
        return _Compared(
            float(np.max(system.residual(inputs, refined).backward_error)),
            relative_difference(system, d, refined),
            relative_difference(system, plain, refined),
        )


def _reach(seen: _Observed, regular: np.ndarray, lengths: np.ndarray) -> float:
    """The greatest of REACHES within which residuals are small; FARTHEST if there is none."""
    for limit in (FIRM_ERROR, BACKWARD_ERROR):
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
            changed |= (inputs[name] != group.required()).any(axis=1)
    return ~changed


class _SmallPivots:
    """The pivot at each state that is smallest beside its typical size, and the digits that it may have lost."""

    def __init__(self, seen: _Observed, usual: np.ndarray):
        """usual (N,) bool: states at which pivots have their typical sizes."""
        size = np.abs(seen.pivots)
        self.error, self.sizes = np.minimum(seen.error, 1.0), size
        self.low, self.typical = np.quantile(size[usual], LOW_SHARE, axis=0), np.median(size[usual], axis=0)
        with np.errstate(over="ignore"):
            ratio = size / np.where(self.typical > 0.0, self.typical, 1.0)
        self.pivot = np.argmin(ratio, axis=1) if size.shape[1] else np.zeros(len(size), dtype=int)
        places = np.arange(len(size))
        self.small = ratio[places, self.pivot] < WEAK if size.shape[1] else np.zeros(len(size), dtype=bool)

    def weak(self, states: np.ndarray) -> np.ndarray:
        """Sizes (p,) of pivots below which errors were seen at the states: calls solve such states with pivoting.

        Errors count beyond the least of LOSING that leaves few of the states with weak pivots.
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
        """Extrapolated sizes (p,) of pivots below which errors exceed the least of LOSING, error ≈ c / size².

        c is from errors at the states; pivots that were seen to be weak are so up to halfway (in decades) to the size
        that few of the states `kept` are below.
        """
        found = self._greatest(states & self.small & (self.error > LOST), np.sqrt(self.error / LOSING[-1]))
        few, rare = np.quantile(self.sizes[kept], (EXPECTED, RARE), axis=0, method="lower")
        return np.max([weak, np.minimum(found, few), np.sqrt(weak * rare)], axis=0)

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
        zero, harmless = np.minimum(GUARD * largest, WEAK * least), np.minimum(WEAK * largest, HARMLESS * least)
        harmless = np.where(passes_through_zero(pivots) & doubtful, WEAK * largest, harmless)
    return list(zip(zero.tolist(), np.maximum(harmless, weak).tolist(), strict=True))


def ranged(program: Program, model: Model, safety: Safety) -> Program:
    """The program with ranges of the positions it reads, beyond which it was not judged."""
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
            # if a quantity vanishes, its rounding errors are no error of the order
            size = np.maximum(size, VANISHING * np.maximum(size.max(), np.abs(reference).max(axis=1)))
            worst = max(worst, float(np.max(difference / np.where(size > 0.0, size, 1.0))))
    return worst if math.isfinite(worst) else math.inf


def crossing(pivots: np.ndarray, doubtful: np.ndarray) -> tuple[int, np.ndarray]:
    """(number of doubtful pivots that take both signs, the state at which each is farthest on its rarer side).

    pivots: (states, pivots). None counts if their product, the determinant but for a constant, takes both signs.
    """
    if passes_through_zero(np.prod(np.sign(pivots), axis=1)):
        return 0, np.array([], dtype=int)
    both = pivots[:, passes_through_zero(pivots) & doubtful]
    rarer = np.where((both < 0.0).sum(axis=0) < (both > 0.0).sum(axis=0), -1.0, 1.0)
    return both.shape[1], np.argmax(both * rarer, axis=0)


def passes_through_zero(values: np.ndarray) -> np.ndarray:
    """True for values (states, …) that take both signs: they pass through zero in between."""
    return np.asarray((values < 0.0).any(axis=0) & (values > 0.0).any(axis=0))
