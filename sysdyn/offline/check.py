"""Accuracy check of a program (elimination, recursion or estimate) at sampled states.

It computes backward errors at all states, thresholds and sign changes of the pivots, and differences from pivoted
solves at the worst states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sysdyn.equations.system import System
from sysdyn.measurements.input_names import NOISE, SWITCH, group_of
from sysdyn.model import Model
from sysdyn.offline.pivoted_lu import reference
from sysdyn.offline.report import DIFFERENCE, FEW_FALLBACKS, GOOD_ERROR, INACCURATE, StabilityReport
from sysdyn.offline.sampling import (
    CHECK_SEED,
    FARTHEST,
    NEAR,
    is_singular,
    reach,
    require_regular,
    sample_states,
    travelled,
)
from sysdyn.program.program import Program

# Number of states at which programs are checked. If they have more than EQUATIONS equations in total, fewer states are
# checked, at least FEWEST (CPU time).
CHECKED_STATES, FEWEST, EQUATIONS = 1024, 64, 2_000_000
# Greatest number of values of a chunk of states; a chunk has at least FEWEST states (80 MB).
CHUNK_VALUES = 10_000_000
# Share of its typical size below which a pivot triggers the fallback: three digits.
FALLBACK = 1e-3
# The same share for an estimate, whose pivots scale with covariances: 10⁴ as documented.
FALLBACK_OF_ESTIMATES = 1e-4
# Share of its typical size up to which a pivot explains a large error. Its threshold is then raised to MARGIN times the
# pivot at that state (trial and error).
EXPLAINS, MARGIN = 0.1, 2.0
# Share of the typical size below which a pivot counts as zero: rounding errors.
ZERO = 1e-11
# A quantity counts as zero below this share of the other unknowns, or of its own size at other states (units differ).
VANISHING = 1e-6
# Least limit on the backward error of far states; the greatest error of near states is allowed if it is larger (few far
# states are sampled per decade).
FAR_ERROR = 1e-12
# Candidates for the verified range of joints without limits, m; the greatest with small errors is used (decades).
RANGES = (FARTHEST, 100.0, NEAR)
# Number of states that are compared or tested for singularity by each criterion, of the worst ones that guide the next
# search, and of rounds that replace singular states (CPU time).
COMPARED, GUIDING, ROUNDS = 16, 6, 4

StateArrays = dict[str, np.ndarray]  # {group of inputs: (N, size)}


class Results(NamedTuple):
    """Unknowns d (N, full layout), state-dependent pivots (N, p) and backward errors (N,) at N states."""

    d: np.ndarray
    pivots: np.ndarray
    backward_error: np.ndarray


@dataclass(frozen=True, kw_only=True)
class CheckedProgram:
    """A program to be checked.

    run: computes results for inputs. labels: equation and unknown of each pivot. structural (p,): True for pivots that
    vanish only if the matrix is singular; None: all False. chunk: number of states per run.
    """

    run: Callable[[StateArrays], Results]
    labels: Sequence[str]
    structural: np.ndarray | None = None
    chunk: int = CHECKED_STATES

    @property
    def may_vanish(self) -> np.ndarray:
        """(p,) bool: True for pivots that can vanish at regular states."""
        return np.ones(len(self.labels), dtype=bool) if self.structural is None else ~self.structural


class SampledStates:
    """The states at which all programs of a system are checked. Singularity is computed on demand and cached."""

    def __init__(self, system: System, inputs: StateArrays):
        """inputs: (N, size) by group. Raises StructurallySingular if the system is singular at every state."""
        self.system, self.inputs, self.n = system, inputs, len(inputs["q"])
        self.lengths = travelled(system, inputs["q"])
        self.declared = np.ones(self.n, dtype=bool)
        for name, group in system.problem.inputs.items():
            if group_of(name).role in (NOISE, SWITCH):
                self.declared &= (inputs[name] == group.require_default()).all(axis=1)
        self._singular: dict[int, bool] = {}
        self._some_regular = True
        spread = np.linspace(0, self.n - 1, COMPARED).astype(int)
        if all(self.singular(spread[k : k + 1])[0] for k in range(COMPARED)):
            require_regular(system)
            self._some_regular = False  # condition numbers are large at every state and carry no information

    @staticmethod
    def of(system: System, n: int | None = None, external_wrenches: bool = True) -> SampledStates:
        """Sample n states of a system (default CHECKED_STATES, fewer if the system is large)."""
        n = max(FEWEST, min(CHECKED_STATES, EQUATIONS // system.shape[0])) if n is None else n
        inputs = sample_states(system.problem, n, CHECK_SEED, ranges=True)
        if not external_wrenches:
            inputs["fx"] = np.zeros_like(inputs["fx"])
        return SampledStates(system, inputs)

    def at(self, states: np.ndarray | slice) -> StateArrays:
        return {name: x[states] for name, x in self.inputs.items()}

    def singular(self, states: np.ndarray) -> np.ndarray:
        """(len(states),) bool: True where the system is singular. states: indices of sampled states."""
        if not self._some_regular:
            return np.zeros(len(states), dtype=bool)
        new = np.array([k for k in states.tolist() if k not in self._singular], dtype=int)
        if len(new):
            self._singular.update(zip(new.tolist(), is_singular(self.system, self.at(new)).tolist(), strict=True))
        return np.array([self._singular[k] for k in states.tolist()], dtype=bool)


def chunk_of(program: Program) -> int:
    """Number of states per run in a check."""
    return max(FEWEST, min(512, CHUNK_VALUES // max(1, len(program))))


class Check(NamedTuple):
    """Result of a check.

    thresholds: (zero, fallback) of each pivot: sizes below which it counts as zero, and below which calls use the
    fallback. worst: inputs at the states of the largest errors and the smallest pivots.
    """

    report: StabilityReport
    thresholds: list[tuple[float, float]]
    worst: StateArrays


def check(program: CheckedProgram, states: SampledStates) -> Check:
    """Check a program at sampled states.

    Errors do not count at singular states and at states with a pivot below its threshold, which calls solve by the
    fallback.
    """
    system, results = states.system, _run(program, states)
    error, sizes = results.backward_error, np.abs(results.pivots)
    near = states.lengths <= NEAR
    # the median over random angles: half of the states have right angles, where pivots can vanish
    typical = np.quantile(sizes[near & states.declared], 0.75, axis=0)
    threshold = (FALLBACK_OF_ESTIMATES if system.problem.noisy else FALLBACK) * typical
    with np.errstate(over="ignore"):
        shares = sizes / np.where(typical > 0.0, typical, 1.0)
    flagged = (sizes < threshold).any(axis=1)
    limit = max(FAR_ERROR, error[near & ~flagged].max(initial=0.0))
    verified = next((x for x in RANGES if (error[(states.lengths <= x) & ~flagged] <= limit).all()), NEAR)
    within = states.lengths <= verified
    order = np.argsort(shares.min(axis=1, initial=math.inf), kind="stable")  # by least pivot
    for _ in range(ROUNDS):
        counted, errors, inaccurate = _compare(states, results, within & ~flagged, order)
        higher = _higher_thresholds(threshold, sizes[inaccurate], shares[inaccurate])
        below = (sizes < higher).any(axis=1)
        if (higher == threshold).all() or below[within].mean() > FEW_FALLBACKS:
            break
        threshold, flagged = higher, below
    # pivots of estimates change size with other covariances and with switched-off measurements
    within &= states.declared | ~flagged
    regular, fallback = _regular(states, order[(within & flagged)[order]])

    changing, rarer = sign_changes(results.pivots[counted], program.may_vanish)
    close = np.union1d(counted, regular)
    least, name = _least(np.where(program.may_vanish, shares[close], math.inf), program.labels)
    report = StabilityReport(
        **errors._asdict(), states=len(counted), least_pivot=least, least_pivot_name=name, sign_changes=changing,
        singular=int(within.sum()) - len(counted) - fallback, fallback=fallback,
        verified_range=verified,
    )  # fmt: skip
    worst = [_worst(error, counted, GUIDING), order[np.isin(order, close)][:GUIDING], counted[rarer]]
    thresholds = zip((ZERO * typical).tolist(), threshold.tolist(), strict=True)
    return Check(report, list(thresholds), states.at(np.unique(np.concatenate(worst))))


def _run(program: CheckedProgram, states: SampledStates) -> Results:
    """The results at all states; NaN errors become infinite."""
    parts = [program.run(states.at(slice(k, k + program.chunk))) for k in range(0, states.n, program.chunk)]
    d, pivots, error = (np.concatenate(x) for x in zip(*parts, strict=True))
    return Results(d, np.nan_to_num(pivots, nan=0.0), np.where(np.isfinite(error), error, math.inf))


class _Errors(NamedTuple):
    """The errors of a report."""

    compared: int = 0
    backward_error: float = math.inf
    difference: float = math.inf
    pivoted_backward_error: float = math.inf
    pivoted_difference: float = math.inf


def _higher_thresholds(threshold: np.ndarray, sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Fallback thresholds (p,), raised so that calls use the fallback at inaccurate states with a small pivot.

    Each such state raises the threshold of its least pivot. sizes, shares (states, p): of the pivots at inaccurate
    states, absolute and relative to typical sizes.
    """
    threshold = threshold.copy()
    explained = shares.min(axis=1, initial=math.inf) < EXPLAINS
    if explained.any():
        least = np.argmin(shares[explained], axis=1)
        np.maximum.at(threshold, least, MARGIN * sizes[explained, least])
    return threshold


def _compare(
    states: SampledStates, results: Results, counted: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, _Errors, np.ndarray]:
    """Compare some states with pivoted solves: (indices of counted states, errors of the report, inaccurate states).

    counted (N,): mask of states that count. Singular states with large errors are excluded, and others are compared
    instead. order: all states by least pivot.
    """
    counted, error = counted.copy(), results.backward_error
    for _ in range(ROUNDS):
        numbers, ordered = np.flatnonzero(counted), order[counted[order]]
        if not len(numbers):
            break
        spread = ordered[np.linspace(0, len(ordered) - 1, COMPARED).astype(int)]
        compared = np.unique([*_worst(error, numbers, COMPARED), *ordered[:COMPARED], *spread])
        with np.errstate(all="ignore"):
            plain, refined, pivoted_error = reference(states.system, states.at(compared))
            difference, pivoted = (
                relative_differences(states.system, x, refined) for x in (results.d[compared], plain)
            )
        large = compared[(difference > DIFFERENCE) | (error[compared] > GOOD_ERROR)]
        singular = large[states.singular(large)]
        if not len(singular):
            greatest = (float(x.max()) for x in (error[numbers], difference, pivoted_error, pivoted))
            return numbers, _Errors(len(compared), *greatest), compared[difference > INACCURATE]
        counted[singular] = False
    return np.flatnonzero(counted)[:0], _Errors(), np.zeros(0, dtype=int)


def _worst(error: np.ndarray, states: np.ndarray, most: int) -> np.ndarray:
    """The subset of `states` (indices) with the largest errors; at most `most`."""
    return states[np.argsort(error[states], kind="stable")[-most:]]


def _regular(states: SampledStates, flagged: np.ndarray) -> tuple[np.ndarray, int]:
    """(regular states in a sample of flagged states, estimated number of all regular flagged states)."""
    tested = flagged[np.unique(np.linspace(0, len(flagged) - 1, min(len(flagged), COMPARED)).astype(int))]
    regular = tested[~states.singular(tested)]
    return regular, round(len(flagged) * len(regular) / max(1, len(tested)))


def _least(shares: np.ndarray, labels: Sequence[str]) -> tuple[float, str]:
    """(least ratio of a pivot to its typical size, label of that pivot); shares (states, pivots)."""
    if not np.isfinite(shares).any():
        return 1.0, "none can vanish at a regular state"
    k = int(np.argmin(shares.min(axis=0)))
    return float(shares[:, k].min()), labels[k]


def sign_changes(pivots: np.ndarray, may_vanish: np.ndarray) -> tuple[int, np.ndarray]:
    """(number of sign-changing pivots, for each of them the state of its greatest size with the rarer sign).

    pivots: (states, pivots). If the determinant (the product of all pivots up to sign) also changes its sign, one sign
    change is due to the matrix and does not count.
    """

    def both(x: np.ndarray) -> np.ndarray:
        return np.asarray((x < 0.0).any(axis=0) & (x > 0.0).any(axis=0))

    changing = both(pivots)
    explained = bool(both(np.prod(np.sign(pivots), axis=1))) and not (changing & ~may_vanish).any()
    changing &= may_vanish
    columns = pivots[:, changing]
    rarer = np.where(np.sign(columns).sum(axis=0) > 0.0, -1.0, 1.0)
    count = max(0, int(changing.sum()) - int(explained))
    return count, np.asarray(np.argmax(columns * rarer, axis=0)) if count else np.zeros(0, dtype=int)


def relative_differences(system: System, d: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """(N,): greatest relative difference of an unknown quantity (∞-norms) at each state; d (N, full layout)."""
    worst = np.zeros(len(d))
    for quantity in system.problem.quantities:
        columns = system.layout.quantity_columns(quantity)
        if len(columns) > len(system.problem.knows(quantity)):
            # near singular states, a small quantity is compared with the greatest unknown
            size = np.maximum(np.abs(expected[:, columns]).max(axis=1), VANISHING * np.abs(expected).max(axis=1))
            worst = np.maximum(worst, relative_difference(d[:, columns], expected[:, columns], size))
    return worst


def relative_difference(
    x: np.ndarray, expected: np.ndarray, size: np.ndarray | None = None, vanishing: float = VANISHING
) -> np.ndarray:
    """(N,): greatest difference of values (N, m) at each state relative to their size (N,); inf if not finite.

    size: default is the greatest |expected|. It is at least `vanishing` times its median over the states, so that
    rounding errors of a value near zero are not relative errors.
    """
    if not expected.size:
        return np.zeros(len(expected))
    with np.errstate(all="ignore"):
        difference = np.abs(x - expected).max(axis=1)
        size = np.abs(expected).max(axis=1) if size is None else size
        size = np.maximum(size, vanishing * np.nan_to_num(np.nanmedian(size)))
        relative = np.where(difference == 0.0, 0.0, difference / np.where(size > 0.0, size, 1.0))
    return np.where(np.isfinite(relative), relative, math.inf)


def with_ranges(program: Program, model: Model, report: StabilityReport) -> Program:
    """The program with ranges of its position inputs; calls beyond them use the fallback."""
    start = program.inputs.slices["q"].start
    most = enumerate(reach(model, report.verified_range).tolist(), start)
    return replace(program, ranges=tuple((k, x) for k, x in most if math.isfinite(x) and program.used_inputs[k]))
