"""From raw logs to states, torques and wrenches: `smooth`, over whole trajectories."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import threadpoolctl
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, LogWarning, UnknownName, warn
from sysdyn.measurements.measurement import Output
from sysdyn.offline.stages import Progress, Stages
from sysdyn.problem import Problem
from sysdyn.program.reals import is_count, real
from sysdyn.trajectories import densities
from sysdyn.trajectories.believed import Event
from sysdyn.trajectories.equations import Readings
from sysdyn.trajectories.filtering import Belief
from sysdyn.trajectories.learning import Learning
from sysdyn.trajectories.linearised import Linearised
from sysdyn.trajectories.path import Path
from sysdyn.trajectories.pieces import Piece, carried, joined, pieces_of, with_biases
from sysdyn.trajectories.readings import read
from sysdyn.trajectories.run import Run
from sysdyn.trajectories.smoothing import Smoothed, Smoother
from sysdyn.trajectories.statement import Trajectory

# Most numbers of the blocks of a window: 256 MB an array (chosen).
WINDOW_NUMBERS = 2**25
# Share of the work that is done when learning begins, and when smoothing does (chosen).
LEARNING, COMPILED = 0.15, 0.3
# Instants over which densities are learnt, at least and at most; most iterations, and gain of the log-likelihood by the
# number of instants that ends them (chosen).
LEAST_LEARNT_FROM, LEARNT_OVER, ITERATIONS, GAIN_LEFT = 3, 600, 15, 1e-2
# Least rows of a window, and overlap of windows as a share of their length (chosen).
LEAST_WINDOW, OVERLAP = 100, 0.1


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
    window: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run:
    """States, biases and outputs of a log at all of its rows, from readings before and after each.

    problem   with sensors of the state (`JointPosition`, `Gyroscope`, `Stance`, …) beside all others; q and q̇ are
              unknown, and q̈ follows
    log       a file, pattern, DataFrame, or dict of arrays with t [s], as of `sysdyn.Log`; values may be missing
    outputs   quantities and measurements, as of `sysdyn.compile`
    coupled   False: first the states, from sensors of motion, then the outputs at each instant with what is known of
              its state; True: all at once, so that torques and wrenches tell of the states, too
    order     of the motion of each degree of freedom: white noise on jerk (3) or snap (4); None: as the encoders are
              more likely
    density   of that noise: a number, (nv,), or by joint; None: learnt from the log, for those that are not named
    start     q (nq,) near the first position; None: as the first readings say at rest
    robust    components whose residuals are beyond 99.9 % are dropped at their instant, and listed in `Run.events`;
              stances have Student's distribution
    window    rows that are smoothed at a time, with a tenth of overlap; None: as memory allows
    progress  called with a text and the share of the work that is done
    options   of `sysdyn.Log`, such as columns= and values=

    Raises ProblemError if no sensor tells the states or q̈ is known, FileError and InvalidInput for the log.
    See docs/trajectories.md.
    """
    wanted = checked_outputs(problem, outputs)
    readings = read(problem, log, **options)
    first = first_position(problem, start)
    if window is not None and not is_count(window, 2):
        raise InvalidInput(f"window is {window!r}, but a number of rows ≥ 2 is needed")
    told = Stages(None, progress)
    with OneThread():
        told.say("compiling the equations of an instant", 0.05)
        trajectory, kappa, known = with_motion(problem, wanted, coupled, order, density, readings)
        told.say("learning how the robot moves", LEARNING)
        kappa, path = _learnt(trajectory, kappa, readings, first, known)
        return _run(trajectory, kappa, first, readings, robust, window, told, path)


def first_position(problem: Problem, start: ArrayLike | None) -> np.ndarray | None:
    """The position near which a trajectory begins, if it is given. Raises InvalidInput."""
    if start is None:
        return None
    q = real("start", start)
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
    problem: Problem, outputs: Sequence[Output], coupled: bool, order: int | None, density: Any, readings: Readings
) -> tuple[Trajectory, np.ndarray, np.ndarray]:
    """(trajectory, κ (nv,), (nv,) bool: known), of the order and the densities that the encoders find likelier.

    order, density: as of `smooth`. Degrees of freedom without an encoder have densities to begin learning with.
    """
    given = np.full(problem.model.nv, np.nan) if density is None else densities.by_joint(problem.model, density)
    stated = np.isfinite(given)
    wanted = ~stated | (order is None)  # likelihoods of all encoders tell the order
    tried = {p: Trajectory.encoders(problem, readings, p, wanted) for p in ((3, 4) if order is None else (order,))}
    order = max(tried, key=lambda p: tried[p][2])
    kappa, known, _ = tried[order]
    measured = {name: np.asarray(on.any(axis=0)) for name, on in readings.active.items()}
    trajectory = Trajectory(problem, outputs, float(readings.t[-1] - readings.t[0]), order, coupled, measured)
    return trajectory, np.where(stated, given, kappa), known | stated


def _learnt(
    trajectory: Trajectory, kappa: np.ndarray, readings: Readings, first: np.ndarray | None, known: np.ndarray
) -> tuple[np.ndarray, Path | None]:
    """(κ (nv,) with those that are not known learnt from the first instants of a log, their path if there is one)."""
    part = readings.part(slice(0, LEARNT_OVER))
    if known.all() or len(part.t) < LEAST_LEARNT_FROM:
        return kappa, None
    learning = Learning(trajectory, kappa, part, first, True, (), known)
    found, _, _ = learning.run(ITERATIONS, GAIN_LEFT)
    return learning.motion(found.x), found.path


def _run(
    trajectory: Trajectory, kappa: np.ndarray, first: np.ndarray | None, readings: Readings, robust: bool,
    window: int | None, told: Stages, learnt: Path | None,
) -> Run:  # fmt: skip
    """The run, window by window; learnt: a path of the first rows, with which it begins if they are all."""
    own, rows, last = trajectory.unknowns, len(readings.t), slice(-1, None)
    _tell_gaps(trajectory, kappa, readings.t)
    belief, chosen = trajectory.belief(readings, first, kappa)
    n = window or window_rows(trajectory)
    pieces, events, at, squares, freedoms = list[Piece](), list[Event](), 0, 0.0, 0
    while at < rows:
        end = min(at + n, rows)
        told.say(f"smoothing rows {at + 1} to {end} of {rows}", COMPILED + (1.0 - COMPILED) * at / rows)
        part = readings.part(slice(at, min(end + max(1, int(OVERLAP * n)), rows)))
        smoother = Smoother(Linearised(own, trajectory.kinematic, kappa, belief), robust)
        if learnt is None or len(learnt) < len(part.t):
            learnt = trajectory.first_path(belief, part, kappa)
        found, left = smoother.run(learnt, part)
        learnt = None
        if trajectory.coupled:
            smoother = Smoother(Linearised(own, trajectory.sources, kappa, belief), robust)
            found, left = smoother.run(found.path, part)
        if not found.converged:
            warn(
                f"rows {at + 1} to {end} have not converged: values are near the right ones at best, and standard "
                "deviations do not hold. Give start= near the first position, density=, or sensors of more",
                LogWarning,
            )  # fmt: skip
        kept, dropped = slice(0, end - at), [e for e in smoother.events if e.instant < end - at]
        path, P, left_here = found.path.part(kept), found.covariances.part(kept), left.part(kept)
        known, slow = (path.part(last), P.part(last).dense()[0]), None
        if len(trajectory.slow):
            path, P, slow = with_biases(trajectory, path, P, left_here, robust)
        pieces += pieces_of(trajectory, path, P, left_here, robust, dropped, slow)
        events += [e._replace(instant=e.instant + at) for e in dropped]
        freedoms += smoother.equations.counted(left_here) - (0 if at else _begun(belief, found))
        if end == rows:
            squares += found.objective
        else:
            belief, before = _condensed(smoother.equations, found, left, end - at)
            squares += before
            if slow is not None:
                belief = carried(belief, known, (path.part(last), P.part(last).dense()[0]), trajectory.slow)
        at = end
    return joined(trajectory, pieces, events, chosen, kappa, readings, (squares, freedoms))


def _begun(belief: Belief, found: Smoothed) -> int:
    """Number of readings that the first state takes, of which next to nothing was known before."""
    before, after = np.diagonal(belief.P), found.covariances.part(slice(0, 1)).diagonal()[0]
    anew = np.concatenate([np.ones(belief.path.unknowns.n_states), belief.path.unknowns.unknown_starts])
    return round(float(anew @ np.clip(1.0 - after / before, 0.0, 1.0)))


def window_rows(trajectory: Trajectory) -> int:
    """Rows of a window that memory allows."""
    return max(LEAST_WINDOW, WINDOW_NUMBERS // trajectory.unknowns.size**2)


def _tell_gaps(trajectory: Trajectory, kappa: np.ndarray, t: np.ndarray) -> None:
    """Warn of the longest gap of a log that the motion does not bridge."""
    dt = np.diff(t)
    k = int(np.argmax(dt))
    if dt[k] <= densities.LONGEST_STEP * np.median(dt):
        return
    nv = trajectory.model.nv
    # half of the gap from either side
    std = np.sqrt(0.5 * np.diagonal(trajectory.motion.noise(dt[k : k + 1] / 2.0, kappa)[0])[:nv])
    worst = int(np.argmax(std))
    warn(
        f"no readings from {t[k]:.6g} to {t[k + 1]:.6g} s: in the middle, the position of "
        f"{trajectory.model.dof_names[worst]!r} is known to ± {std[worst]:.2g} at most", LogWarning,
    )  # fmt: skip


def _condensed(equations: Linearised, found: Smoothed, readings: Readings, at: int) -> tuple[Belief, float]:
    """(the state of instant `at` from all before it, without what it reads itself; the squares of those before)."""
    part, before = slice(0, at + 1), np.arange(at + 1)[:, None] < at
    some = readings.part(part)
    some = replace(some, active={name: x & before for name, x in some.active.items()})
    solved = equations.sweep(equations.about(found.path.part(part), some), covariances=True)
    P, path = solved.covariances.part(slice(-1, None)).dense()[0], found.path.part(part).moved(solved.step)
    return Belief(path.part(slice(at, at + 1)), P), equations.about(path, some).objective
