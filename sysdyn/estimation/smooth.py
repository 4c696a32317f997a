"""Smoothing of whole trajectories: `smooth`, from raw logs to states, torques and wrenches."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path as File
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
from sysdyn.estimation.measurement_data import Rolling, Survey, opened, read, surveyed
from sysdyn.estimation.outliers import MOTION, Event
from sysdyn.estimation.outputs import Piece, joined
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.run import Run
from sysdyn.estimation.sliding_window import WRITTEN_NUMBERS, Stage, window_rows, windows
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.estimation.streamed_result import Begin, Store, StoredRun
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
from sysdyn.offline.options import described
from sysdyn.offline.stages import Progress, Stages
from sysdyn.program.arrays import float_array, is_count

# Shares of the work that is done when a log is surveyed, and when compiling, learning and writing begin (chosen).
SURVEYED, COMPILING, LEARNING, WRITING = 0.01, 0.05, 0.15, 0.99
# Instants over which densities are learnt, at least; most iterations, and gain of the log-likelihood by the number of
# instants that ends them (chosen).
LEAST_LEARNT_FROM, ITERATIONS, GAIN_LEFT = 3, 15, 1e-2


class OneThread:
    """A context in which BLAS has one thread.

    Blocks of a chain are too small for more, which wait for each other ten times as long (measured).
    """

    def __enter__(self) -> None:
        self._before = [(x, x.get_num_threads()) for x in _libraries()]
        for x, threads in self._before:
            if threads > 1:
                x.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        for x, threads in self._before:
            if threads > 1:
                x.set_num_threads(threads)


@functools.cache
def _libraries() -> list[Any]:
    """Controllers of the threads of BLAS."""
    import_module("scipy.linalg.cython_blas")  # whose library may not be there yet
    return list(threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers)


@overload
def smooth(
    problem: Problem, log: Any, outputs: str | Output | Sequence[Output] = ..., *, out: str | File, **options: Any
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
    out: str | File | None = None,
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
    out       a .csv, .parquet, .npz or .h5 file for the run, of a log of any length: rows are read and smoothed in
              turn, and memory does not grow with them. A call that was interrupted has left what it did in a folder
              beside the file, OUT.parts; the same call goes on from there. Gives a `StoredRun` in place of a `Run`
    progress  called with a text and the share of the work that is done
    options   of `sysdyn.Log`, such as columns= and values=

    Raises ProblemError if no sensor tells the states or q̈ is known, FileError and InvalidInput for the log, FileError
    if `out` cannot be written or has a folder of parts of another run. See docs/trajectories.md.
    """
    wanted = checked_outputs(problem, outputs)
    if window is not None and not is_count(window, 2):
        raise InvalidInput(f"window is {window!r}, but a number of rows ≥ 2 is needed")
    order, window = (x.item() if isinstance(x, np.generic) else x for x in (order, window))
    impacts = None if impacts is None else bool(impacts)
    first = first_position(problem, start)
    asked = Request(wanted, bool(coupled), order, density, first, bool(robust), window, impacts)
    if out is not None:
        return smooth_into(problem, opened(problem, log, **options), out, asked, progress)
    told, readings = Stages(progress), read(problem, log, **options)
    with OneThread():
        survey = Survey.of(readings)
        run, scales, estimation = _smoothed(problem, readings, survey, asked, told)
        shares = dropped_shares(problem, len(run), run.events, run.missing)
        if noise := raised_noise(problem, shares, scales):
            warn_of_raised(problem, shares, noise)
            problem = with_noise(problem, noise)
            run, _, _ = _smoothed(problem, readings, survey, asked, told)
            shares = dropped_shares(problem, len(run), run.events, run.missing)
        sample = without_stale(survey.sample, estimation.still)
        warn_of_stale(survey.sample, estimation.still)
        warn_of_jitter(run.jitter, survey.sample.t)
        if density is None:
            warn_of_noise(problem, with_jitter(problem, sample, run.jitter), run.order, shares)
        warn_of_biases(problem, {m.name: run.bias(m.name)[0] for m in problem.biased})
        impacts_found = sum(e.measurement == MOTION for e in run.events)
        warn_of_run(problem, shares, run.fit, impacts_found, estimation.has_contacts)
        return run


def _smoothed(
    problem: Problem, readings: MeasurementData, survey: Survey, asked: Request, told: Stages
) -> tuple[Run, list[dict[str, np.ndarray]], EstimationProblem]:  # fmt: skip
    """(the run of readings, `Window.scales` of its windows, its trajectory)."""
    estimation, kappa, learnt = _begun(problem, survey, asked, told)
    belief, chosen = estimation.initial_state(readings, asked.start, kappa)
    after, n = Stage(0, belief), asked.window or window_rows(estimation)
    pieces, events, gaps = list[Piece](), list[Event](), Counter[str]()
    left, scales = dict[str, list[np.ndarray]](), list[dict[str, np.ndarray]]()
    for x in windows(estimation, kappa, after, survey.rows, readings.rows, n, asked.robust, told, learnt):
        pieces, events, after = [*pieces, *x.pieces], [*events, *x.events], x.after
        gaps.update(x.missing)
        scales.append(x.scales)
        for name, e in x.residuals.items():
            left.setdefault(name, []).append(e)
    run = joined(estimation, pieces, events, chosen, kappa, gaps, (after.squares, after.freedoms))
    run = replace(run, _residuals={name: np.concatenate(e) for name, e in left.items()})
    return run, scales, estimation


class Request(NamedTuple):
    """Options of `smooth` that decide the run of a log."""

    outputs: tuple[Output, ...]
    coupled: bool = False
    order: int | None = None
    density: Any = None
    start: np.ndarray | None = None
    robust: bool = True
    window: int | None = None
    impacts: bool | None = None

    def identity(self, problem: Problem) -> dict[str, str | None]:
        """{what: identity} of a request to a problem; None if an output or a measurement has no description."""
        about = described(self.outputs, problem.model, placed=True)
        density = None if self.density is None else process_noise.by_joint(problem.model, self.density).tolist()
        start = None if self.start is None else self.start.tolist()
        return {
            "problem": problem.digest, "list of outputs": None if about is None else json.dumps(about),
            "choice of options": json.dumps(
                [self.coupled, self.order, density, start, self.robust, self.window, self.impacts]
            ),
        }  # fmt: skip


def smooth_into(
    problem: Problem, log: Log, out: str | File, asked: Request, progress: Progress | None = None,
    seen: Callable[[Mapping[str, np.ndarray]], None] | None = None,
) -> StoredRun:  # fmt: skip
    """`smooth` of a log that is not held in memory, into a file. seen: told of the arrays of successive rows."""
    told = Stages(progress)
    told.report("reading the log", SURVEYED)
    survey = surveyed(problem, log)
    store = Store(out, {"log": survey.digest, **asked.identity(problem)})
    try:
        with OneThread():
            noise = store.motion.noise if store.motion is not None else {}
            own = with_noise(problem, noise) if noise else problem
            estimation, resumed = _written(own, log, survey, store, asked, told, noise)
            shares, scales, fit, impacts, biases = store.checked(own, asked.coupled)
            if not noise and (noise := raised_noise(problem, shares, scales)):
                warn_of_raised(problem, shares, noise)
                store.remove()
                own = with_noise(problem, noise)
                estimation, resumed = _written(own, log, survey, store, asked, told, noise)
                shares, _, fit, impacts, biases = store.checked(own, asked.coupled)
            warn_of_stale(survey.sample, estimation.still)
            warn_of_jitter(estimation.jitter, survey.sample.t)
            sample = without_stale(survey.sample, estimation.still)
            if asked.density is None:
                warn_of_noise(own, with_jitter(own, sample, estimation.jitter), estimation.motion.order, shares)
            warn_of_biases(own, biases)
            warn_of_run(own, shares, fit, impacts, estimation.has_contacts)
        told.report("writing the file", WRITING)
        return store.finish(own, asked.coupled, resumed, seen, estimation.jitter)
    except BaseException:
        if not store.kept:
            store.remove()
        raise


def _written(
    problem: Problem, log: Log, survey: Survey, store: Store, asked: Request, told: Stages,
    noise: Mapping[str, np.ndarray],
) -> tuple[EstimationProblem, int]:  # fmt: skip
    """Complete the windows in the store; (trajectory, rows of an earlier call). noise: raised ones of `problem`."""
    before = store.motion
    if before is not None:
        asked = asked._replace(order=before.order, density=before.density)
    estimation, kappa, learnt = _begun(problem, survey, asked, told)
    if before is None:
        belief, chosen = estimation.initial_state(survey.first, asked.start, kappa)
        window = asked.window or window_rows(estimation, WRITTEN_NUMBERS)
        before = Begin(estimation.motion.order, kappa, window, chosen, noise)
        store.begin(before, Stage(0, belief))
    stage, part = store.stage(estimation.layout), Rolling(problem, log).part
    run = (before.window, asked.robust, told, learnt if not stage.row else None)
    for x in windows(estimation, kappa, stage, survey.rows, part, *run):
        fit = (x.after.squares, x.after.freedoms)
        found = joined(estimation, x.pieces, x.events, before.chosen, kappa, x.missing, fit)
        store.add(found, x.scales, x.after)
    return estimation, stage.row


def _begun(
    problem: Problem, survey: Survey, asked: Request, told: Stages
) -> tuple[EstimationProblem, np.ndarray, StateTrajectory | None]:  # fmt: skip
    """(trajectory, densities of its motion, path of the first instants from which they were learnt, if they were)."""
    told.report("compiling the equations of an instant", COMPILING)
    estimation, kappa, known = with_motion(
        problem, asked.outputs, asked.coupled, asked.order, asked.density, survey, asked.impacts
    )  # fmt: skip
    told.report("learning how the robot moves", LEARNING)
    kappa, learnt = _learnt(estimation, kappa, survey.first, asked.start, known)
    _tell_gap(estimation, kappa, survey.gap)
    return estimation, kappa, learnt


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
    log: Survey,
    impacts: bool | None = None,
) -> tuple[EstimationProblem, np.ndarray, np.ndarray]:
    """(trajectory, κ (nv,), (nv,) bool: known), of the order and the densities that the encoders find likelier.

    order, density, impacts: as of `smooth`. Degrees of freedom without an encoder have initial values of the
    densities, for learning.
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


def _learnt(
    estimation: EstimationProblem, kappa: np.ndarray, part: MeasurementData, first: np.ndarray | None, known: np.ndarray
) -> tuple[np.ndarray, StateTrajectory | None]:
    """(densities κ (nv,), unknown ones learnt from the first instants of a log; the path of these, None without it)."""
    if known.all() or len(part.t) < LEAST_LEARNT_FROM:
        return kappa, None
    learning = Learning(estimation, kappa, part, first, True, (), known)
    found, _, _ = learning.run(ITERATIONS, GAIN_LEFT)
    return learning.motion(found.x), found.path


def _tell_gap(estimation: EstimationProblem, kappa: np.ndarray, gap: tuple[float, float] | None) -> None:
    """Warn of the longest gap of a log that the motion does not bridge."""
    if gap is None:
        return
    nv, half = estimation.model.nv, np.array([0.5 * (gap[1] - gap[0])])
    # half of the gap from either side
    std = np.sqrt(0.5 * np.diagonal(estimation.motion.noise(half, kappa)[0])[:nv])
    worst = int(np.argmax(std))
    warn(
        f"no readings from {gap[0]:.6g} to {gap[1]:.6g} s: in the middle, the position of "
        f"{estimation.model.dof_names[worst]!r} is known to ± {std[worst]:.2g} at most", LogWarning,
    )  # fmt: skip
