"""Smoothing of whole trajectories: `smooth`, from raw logs to states, torques and wrenches."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import threadpoolctl
from numpy.typing import ArrayLike

from sysdyn.data.sensor_log import Log
from sysdyn.errors import InvalidInput, LogWarning, UnknownName, warn
from sysdyn.estimation import process_noise
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.learning import Learning, with_noise
from sysdyn.estimation.log_checks import (
    dropped_shares,
    raised_noise,
    warn_of_biases,
    warn_of_noise,
    warn_of_raised,
    warn_of_run,
)
from sysdyn.estimation.measurement_data import LogStatistics, Parts, SlidingReader, log_parts, open_log, read_log
from sysdyn.estimation.outliers import Event
from sysdyn.estimation.outputs import Piece, joined
from sysdyn.estimation.process_model import covariance
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.run import Run
from sysdyn.estimation.sliding_window import WINDOW_NUMBERS, WRITTEN_NUMBERS, Window, window_rows, windows
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.estimation.streamed_result import RunWriter, StoredRun
from sysdyn.estimation.timing import (
    jitter_of,
    stillness,
    warn_of_jitter,
    warn_of_stale,
    with_jitter,
    without_stale,
)
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.problem import Problem
from sysdyn.offline.stages import Progress, Stages
from sysdyn.program.arrays import float_array, is_count

# Shares of the progress when a log is read, and when compiling and learning begin.
SURVEYED, COMPILING, LEARNING = 0.01, 0.05, 0.15
# Least time steps from which process noise is learnt; most iterations, and gain of the log-likelihood per time step
# that ends them (chosen).
MIN_LEARNT_FROM, ITERATIONS, GAIN_LEFT = 3, 15, 1e-2


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """A context in which BLAS has one thread: small blocks of a chain are ten times slower with more (measured)."""
    libraries = [
        (x, x.get_num_threads()) for x in _blas_libraries()
    ]  # their `limit` takes 25 µs, too long for a filter
    for library, threads in libraries:
        if threads > 1:
            library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in libraries:
            if threads > 1:
                library.set_num_threads(threads)


@functools.cache
def _blas_libraries() -> list[Any]:
    import_module("scipy.linalg.cython_blas")  # loads the library whose threads are limited
    return list(threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers)


class SmoothOptions(NamedTuple):
    """Options of `smooth`, checked."""

    outputs: tuple[Output, ...]
    coupled: bool = False
    order: int | None = None
    density: Any = None
    start: np.ndarray | None = None
    robust: bool = True
    window: int | None = None
    impacts: bool | None = None


@overload
def smooth(
    problem: Problem, log: Any, outputs: str | Output | Sequence[Output] = ..., *, out: str | Path, **options: Any
) -> StoredRun: ...
@overload
def smooth(
    problem: Problem, log: Any, outputs: str | Output | Sequence[Output] = ..., *, out: None = None, **options: Any
) -> Run: ...
def smooth(
    problem: Problem,
    log: Any,
    outputs: str | Output | Sequence[Output] = ("tau",),
    *,
    coupled: bool = False,
    order: int | None = None,
    density: float | Mapping[str, float] | ArrayLike | None = None,
    start: ArrayLike | None = None,
    robust: bool = True,
    impacts: bool | None = None,
    window: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run | StoredRun:
    """States, biases and outputs of a log at all of its rows, from readings before and after each.

    problem   with sensors of the state (`JointPosition`, `Gyroscope`, `Stance`, …) beside all others; q and q̇ are
              unknown, and q̈ follows
    log       a file, pattern, DataFrame (of Dask, too), dict of arrays with t [s], or list of such parts, as of
              `sysdyn.Log`; values may be missing
    outputs   quantities and measurements, as of `sysdyn.compile`
    coupled   False: first the states, from sensors of motion, then the outputs at each instant with what is known of
              its state; True: all at once, so that torques and wrenches tell of the states, too
    order     of the motion of each degree of freedom: white noise on jerk (3) or snap (4); None: as the encoders are
              more likely
    density   of that noise: a number, (nv,), or by joint; None: learnt from the log, for those that are not named
    start     q (nq,) near the first position; None: as the first readings say at rest
    robust    components whose residuals are beyond 99.9 % are dropped at their instant, and listed in `Run.events`;
              stances have Student's distribution
    impacts   detect jumps of velocities, such as collisions, and raise the density of the motion there; None: if the
              problem states a stance or a contact. Not with robust=False
    window    rows that are smoothed at a time, with a tenth of overlap; None: as memory allows
    out       a .csv, .parquet, .npz or .h5 file for the run, of a log of any length: rows are read, smoothed and
              written in turn, and memory does not grow with them. The file is replaced when it is complete. Gives a
              `StoredRun` in place of a `Run`
    progress  called with a text and the share of the work that is done
    options   of `sysdyn.Log`, such as columns= and values=

    Raises ProblemError if no sensor observes the states or q̈ is known, FileError and InvalidInput for the log, and
    FileError if `out` cannot be written. See docs/trajectories.md.
    """
    if window is not None and not is_count(window, 2):
        raise InvalidInput(f"window is {window!r}, but a number of rows ≥ 2 is needed")
    settings = SmoothOptions(
        checked_outputs(problem, outputs), coupled, order, density, first_position(problem, start), robust, window,
        impacts,
    )  # fmt: skip
    if out is None:
        return smooth_log(problem, open_log(problem, log, **options), settings, progress)
    with RunWriter(out) as writer:
        return smooth_log(problem, open_log(problem, log, **options), settings, progress, writer)


@overload
def smooth_log(
    problem: Problem, log: Log, options: SmoothOptions, progress: Progress | None = ..., writer: None = ...
) -> Run: ...
@overload
def smooth_log(
    problem: Problem, log: Log, options: SmoothOptions, progress: Progress | None, writer: RunWriter
) -> StoredRun: ...
def smooth_log(
    problem: Problem, log: Log, options: SmoothOptions, progress: Progress | None = None,
    writer: RunWriter | None = None,
) -> Run | StoredRun:  # fmt: skip
    """`smooth` of a log that is held in memory, or read in turn and written."""
    stages = Stages(progress)
    stages.report("reading the log", SURVEYED)
    data = [read_log(problem, log)] if writer is None else []
    parts = partial(log_parts, problem, log) if writer is not None else partial(iter, data)
    with single_blas_thread():
        statistics = LogStatistics.of(parts)
        estimation, run, scales = _smoothed(problem, parts, statistics, options, stages, writer)
        summary = run.statistics if writer is None else writer.statistics
        shares = dropped_shares(problem, summary)
        if noise := raised_noise(problem, shares, scales):
            warn_of_raised(problem, shares, noise)
            problem = with_noise(problem, noise)
            estimation, run, _ = _smoothed(problem, parts, statistics, options, stages, writer)
            summary = run.statistics if writer is None else writer.statistics
            shares = dropped_shares(problem, summary)
        sample = without_stale(statistics.sample, estimation.still)
        warn_of_stale(statistics.sample, estimation.still)
        warn_of_jitter(estimation.jitter, statistics.sample.t)
        if options.density is None:
            sample = with_jitter(problem, sample, estimation.jitter)
            warn_of_noise(problem, sample, estimation.motion.order, shares)
        warn_of_biases(problem, summary.first_biases)
        warn_of_run(problem, shares, summary, estimation.has_contacts)
        return run if writer is None else writer.close()


def _smoothed(
    problem: Problem, parts: Parts, statistics: LogStatistics, options: SmoothOptions, stages: Stages,
    writer: RunWriter | None,
) -> tuple[EstimationProblem, Run, list[dict[str, np.ndarray]]]:  # fmt: skip
    """Smooth a log: (estimation problem, run, `Window.scales` of all windows).

    With a writer, each window is written and the run is that of the last window only.
    """
    if writer is not None:
        writer.clear()
    stages.report("compiling the equations of an instant", COMPILING)
    estimation, kappa, determined = with_motion(
        problem, options.outputs, options.coupled, options.order, options.density, statistics, options.impacts
    )  # fmt: skip
    stages.report("learning how the robot moves", LEARNING)
    kappa, initial = _learned(estimation, kappa, statistics.first, options, determined)
    _warn_of_gap(estimation, kappa, statistics.gap)
    state, fixed = estimation.initial_state(statistics.first, options.start, kappa)
    n = options.window or window_rows(estimation, WINDOW_NUMBERS if writer is None else WRITTEN_NUMBERS)
    reader, collected, scales = SlidingReader(parts()), list[Window](), list[dict[str, np.ndarray]]()
    for window in windows(estimation, kappa, state, statistics.rows, reader, n, options.robust, stages, initial):
        scales.append(window.scales)
        if writer is None:
            collected.append(window)
        else:
            collected = [window]
            writer.add(_run(estimation, collected, fixed, kappa))
    return estimation, _run(estimation, collected, fixed, kappa), scales


def _run(
    estimation: EstimationProblem, windows: Sequence[Window], gauge_fixed: tuple[str, ...], kappa: np.ndarray
) -> Run:
    """The run of successive windows."""
    pieces, events, gaps = list[Piece](), list[Event](), Counter[str]()
    residuals = dict[str, list[np.ndarray]]()
    for window in windows:
        pieces += window.pieces
        events += window.events
        gaps.update(window.missing)
        for name, e in window.residuals.items():
            residuals.setdefault(name, []).append(e)
    run = joined(estimation, pieces, events, gauge_fixed, kappa, gaps, windows[-1].fit)
    return replace(run, _residuals={name: np.concatenate(e) for name, e in residuals.items()})


def first_position(problem: Problem, start: ArrayLike | None) -> np.ndarray | None:
    """The position near which a trajectory begins, if it is given. Raises InvalidInput."""
    if start is None:
        return None
    q = float_array("start", start)
    if q.ndim > 1:
        raise InvalidInput(f"start has shape {q.shape}, but one position, ({problem.model.nq},), is needed")
    if not np.isfinite(q).all():
        raise InvalidInput(f"start has an entry that is {q[~np.isfinite(q)][0]}: positions must be finite")
    return problem.model.normalise(q)


def checked_outputs(problem: Problem, outputs: str | Output | Sequence[Output]) -> tuple[Output, ...]:
    """The outputs that are asked for. Raises UnknownName."""
    wanted = (outputs,) if not isinstance(outputs, Sequence) or isinstance(outputs, str) else tuple(outputs)
    for x in wanted:
        if isinstance(x, str) and x not in problem.quantities:
            raise UnknownName("output", x, problem.quantities)
    return wanted


def with_motion(
    problem: Problem,
    outputs: Sequence[Output],
    coupled: bool,
    order: int | None,
    density: Any,
    log: LogStatistics,
    impacts: bool | None = None,
) -> tuple[EstimationProblem, np.ndarray, np.ndarray]:
    """Choose order and densities of the process model by the likelihood of the encoder readings.

    Returns (estimation problem, densities κ (nv,), (nv,) bool: stated or determined by an encoder). Degrees of
    freedom without an encoder have initial densities for learning. order, density, impacts: as for `smooth`.
    """
    given = np.full(problem.model.nv, np.nan) if density is None else process_noise.by_joint(problem.model, density)
    stated = np.isfinite(given)
    wanted = ~stated | (order is None)  # likelihoods of all encoders tell the order
    still = stillness(problem, log.sample)
    sample = without_stale(log.sample, still)
    jitter = jitter_of(problem, sample)
    sample = with_jitter(problem, sample, jitter)
    tried = {p: EstimationProblem.encoders(problem, sample, p, wanted) for p in ((3, 4) if order is None else (order,))}
    order = max(tried, key=lambda p: tried[p][2])
    kappa, known, _ = tried[order]
    estimation = EstimationProblem(
        problem, outputs, log.end - log.begin, order, coupled, log.measured, jitter, impacts, still
    )
    return estimation, np.where(stated, given, kappa), known | stated


def _learned(
    estimation: EstimationProblem, kappa: np.ndarray, data: MeasurementData, options: SmoothOptions,
    determined: np.ndarray,
) -> tuple[np.ndarray, StateTrajectory | None]:  # fmt: skip
    """(densities κ (nv,), the others learnt from the first rows of a log; the trajectory of these, None without it)."""
    if determined.all() or len(data.t) < MIN_LEARNT_FROM:
        return kappa, None
    learning = Learning(estimation, kappa, data, options.start, options.robust, (), determined)
    point, _, _ = learning.run(ITERATIONS, GAIN_LEFT)
    return learning.motion(point.x), point.path


def _warn_of_gap(estimation: EstimationProblem, kappa: np.ndarray, gap: tuple[float, float] | None) -> None:
    """Warn of the longest gap of a log that the process model does not bridge."""
    if gap is None:
        return
    # half of the gap from either side
    std = kappa * np.sqrt(0.5 * covariance(np.array(0.5 * (gap[1] - gap[0])), estimation.motion.order)[0, 0])
    worst = int(np.argmax(std))
    warn(
        f"no readings from {gap[0]:.6g} to {gap[1]:.6g} s: in the middle, the position of "
        f"{estimation.model.dof_names[worst]!r} is known to ± {std[worst]:.2g} at most", LogWarning,
    )  # fmt: skip
