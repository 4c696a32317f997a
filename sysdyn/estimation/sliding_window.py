"""Smoothing window by window: the first state of a window condenses the log before it; windows overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sysdyn.errors import LogWarning, warn
from sysdyn.estimation.contact_detection import proposed
from sysdyn.estimation.ekf import GaussianState
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.gauss_newton import Smoothed, Smoother
from sysdyn.estimation.linearization import Linearised
from sysdyn.estimation.outliers import Event, residuals
from sysdyn.estimation.outputs import Piece, carried, missing, pieces_of, with_biases
from sysdyn.estimation.process_noise import BY_MEDIAN
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.offline.stages import Stages

# Most numbers of the blocks of a window in memory: 256 MB an array, and of one that is written: 32 MB (chosen).
WINDOW_NUMBERS, WRITTEN_NUMBERS = 2**25, 2**22
# Least rows of a window, and overlap of windows as a share of their length (chosen).
LEAST_WINDOW, OVERLAP = 100, 0.1
# Share of the work that is done when smoothing begins (chosen).
COMPILED = 0.3


class Stage(NamedTuple):
    """Stage of smoothing: a row, its state without its readings, and χ² of the rows before with its freedoms."""

    row: int
    belief: GaussianState
    squares: float = 0.0
    freedoms: int = 0


class Window(NamedTuple):
    """Results of successive rows, events and missing values of these, and where smoothing goes on.

    residuals {sensor of the state: (N, m)}: in standard deviations of its noise, NaN at outliers. scales
    {sensor of the state: (m,)}: robust standard deviations of all its residuals, in the same units.
    """

    pieces: list[Piece]
    events: list[Event]
    missing: dict[str, int]
    residuals: dict[str, np.ndarray]
    scales: dict[str, np.ndarray]
    after: Stage


def window_rows(estimation: EstimationProblem, numbers: int = WINDOW_NUMBERS) -> int:
    """Number of rows of a window, by the most numbers of an array of its blocks."""
    return max(LEAST_WINDOW, numbers // estimation.layout.size**2)


def windows(
    estimation: EstimationProblem,
    kappa: np.ndarray,
    begin: Stage,
    rows: int,
    part: Callable[[int, int], MeasurementData],
    n: int,
    robust: bool,
    told: Stages,
    learnt: StateTrajectory | None = None,
) -> Iterator[Window]:
    """The windows of n rows of a log from a stage on, one after the other.

    part(at, end): readings of rows at ≤ row < end, both growing. learnt: a path of the first rows, with which the first
    window begins if they are all of it.
    """
    own, at, last = estimation.layout, begin.row, slice(-1, None)
    belief, squares, freedoms = begin.belief, begin.squares, begin.freedoms
    while at < rows:
        end = min(at + n, rows)
        told.report(f"smoothing rows {at + 1} to {end} of {rows}", COMPILED + (1.0 - COMPILED) * at / rows)
        read = estimation.timed(part(at, min(end + max(1, int(OVERLAP * n)), rows)))
        read = proposed(estimation, belief, kappa, read)
        equations = Linearised(own, estimation.kinematic, kappa, belief, estimation.gauge_directions)
        smoother = Smoother(equations, robust, None if estimation.impacts else [])
        if learnt is None or len(learnt) != len(read.t):
            learnt = estimation.initial_trajectory(belief, read, kappa)
        found, left = smoother.run(learnt, read)
        learnt = None
        if estimation.coupled:
            smoother = smoother.coupled(estimation.sources)
            found, left = smoother.run(found.path, read)
        if not found.converged:
            warn(
                f"rows {at + 1} to {end} have not converged: values are near the right ones at best, and standard "
                "deviations do not hold. Give start= near the first position, density=, or sensors of more",
                LogWarning,
            )  # fmt: skip
        kept, dropped = slice(0, end - at), [e for e in smoother.events if e.instant < end - at]
        path, P, left_here = found.path.part(kept), found.covariances.part(kept), left.part(kept)
        known, slow = (path.part(last), P.part(last).dense()[0]), None
        if len(estimation.slow_biases):
            path, P, slow = with_biases(estimation, path, P, left_here, robust)
        pieces = pieces_of(estimation, path, P, left_here, robust, dropped, slow)
        freedoms += smoother.equations.count(left_here) - (0 if at else _begun(belief, found))
        if end == rows:
            squares += found.objective
        else:
            belief, before = _condensed(smoother.equations, found, left, end - at)
            squares += before
            if slow is not None:
                belief = carried(belief, known, (path.part(last), P.part(last).dense()[0]), estimation.slow_biases)
        events = [e._replace(instant=e.instant + at) for e in dropped]
        all_here = read.part(kept)
        whole = _left_over(estimation, path, all_here)
        scales = {name: _scale(x, all_here.active[name]) for name, x in whole.items()}
        left_over = {name: np.where(left_here.active[name], x, np.nan) for name, x in whole.items()}
        gaps = missing(estimation, all_here)
        yield Window(pieces, events, gaps, left_over, scales, Stage(end, belief, squares, freedoms))
        at = end


def _left_over(
    estimation: EstimationProblem, path: StateTrajectory, readings: MeasurementData
) -> dict[str, np.ndarray]:
    """{sensor of the state: (N, m)} residuals along a path in standard deviations."""
    parts = [found for _, found in residuals(estimation.states, path, readings)]
    return {name: np.concatenate([x[name] for x in parts]) for name in (parts[0] if parts else ())}


def _scale(x: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Robust standard deviations (m,) of residuals (N, m), from the median of |e|; 0 of components without readings."""
    return np.array([BY_MEDIAN * np.median(np.abs(e[k])) if k.any() else 0.0 for e, k in zip(x.T, on.T, strict=True)])


def _begun(belief: GaussianState, found: Smoothed) -> int:
    """Number of readings that the first state takes, of which next to nothing was known before."""
    before, after = np.diagonal(belief.P), found.covariances.part(slice(0, 1)).diagonal()[0]
    anew = np.concatenate([np.ones(belief.path.layout.n_states), belief.path.layout.unknown_starts])
    return round(float(anew @ np.clip(1.0 - after / before, 0.0, 1.0)))


def _condensed(
    equations: Linearised, found: Smoothed, readings: MeasurementData, at: int
) -> tuple[GaussianState, float]:
    """(the state of instant `at` from all before it, without what it reads itself; the squares of those before)."""
    part, before = slice(0, at + 1), np.arange(at + 1)[:, None] < at
    some = readings.part(part)
    some = replace(some, active={name: x & before for name, x in some.active.items()})
    least = equations.about(found.path.part(part), some)
    solved = equations.sweep(least, last=True)
    P, path = solved.covariances.dense()[0], equations.moved(least, solved.step, some)
    return GaussianState(path.part(slice(at, at + 1)), P), equations.about(path, some).objective
