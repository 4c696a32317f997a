"""From raw logs to states, torques and wrenches: `smooth`, over whole trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.measurement import Output, output_name
from sysdyn.measurements.state_sensors import Stance
from sysdyn.problem import Problem
from sysdyn.trajectories import chain, densities
from sysdyn.trajectories.equations import DENSE_NUMBERS, EXACT_SHARE, Readings
from sysdyn.trajectories.filtering import Belief, Event
from sysdyn.trajectories.path import Path, dofs
from sysdyn.trajectories.readings import read
from sysdyn.trajectories.run import Run
from sysdyn.trajectories.smoothing import Smoothed, Smoother
from sysdyn.trajectories.statement import Trajectory

# Most numbers of the blocks of a window: 256 MB an array (chosen).
WINDOW_NUMBERS = 2**25
# Least rows of a window, and overlap of windows as a share of their length (chosen).
LEAST_WINDOW, OVERLAP = 100, 0.1


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
    options   of `sysdyn.Log`, such as columns= and values=

    Raises ProblemError if no sensor tells the states or q̈ is known, FileError and InvalidInput for the log.
    See docs/trajectories.md.
    """
    wanted = (outputs,) if not isinstance(outputs, Sequence) or isinstance(outputs, str) else tuple(outputs)
    for x in wanted:
        if isinstance(x, str) and x not in problem.quantities:
            raise UnknownName("output", x, problem.quantities)
    readings = read(problem, log, **options)
    if len(readings.t) < 2:
        raise InvalidInput(f"the log has {len(readings.t)} rows: a trajectory needs two or more")
    first = None if start is None else problem.model.normalise(np.asarray(start, dtype=float))
    if window is not None and not (isinstance(window, int) and window >= 2):
        raise InvalidInput(f"window is {window!r}, but a number of rows ≥ 2 is needed")
    trajectory, kappa = _with_motion(problem, wanted, coupled, order, density, first, readings)
    return _run(trajectory, kappa, first, readings, robust, window)


def _with_motion(
    problem: Problem, outputs: Sequence[Output], coupled: bool, order: int | None, density: Any,
    first: np.ndarray | None, readings: Readings,
) -> tuple[Trajectory, np.ndarray]:  # fmt: skip
    """(trajectory, κ (nv,)), of the order that the encoders find likelier and with densities of the log."""
    tried = {p: Trajectory.encoders(problem, readings, p) for p in ((3, 4) if order is None else (order,))}
    order = max(tried, key=lambda p: tried[p][2])
    kappa, known, _ = tried[order]
    trajectory = Trajectory(problem, outputs, float(readings.t[-1] - readings.t[0]), order, coupled)
    if density is not None:
        given = densities.by_joint(problem.model, density)
        stated = np.isfinite(given)
        if not (given[stated] > 0.0).all():
            raise InvalidInput("densities of motion must be positive")
        kappa, known = np.where(stated, given, kappa), known | stated
    return trajectory, trajectory.learnt(readings, first, kappa, ~known)


class _Piece(NamedTuple):
    """Results of the instants of a window: path, standard deviations of the unknowns, outputs with theirs, switches."""

    path: Path
    std: np.ndarray
    values: dict[str, tuple[np.ndarray, np.ndarray]]
    active: Mapping[str, np.ndarray]


def _run(
    trajectory: Trajectory, kappa: np.ndarray, first: np.ndarray | None, readings: Readings, robust: bool,
    window: int | None,
) -> Run:  # fmt: skip
    """The run, window by window."""
    own, rows = trajectory.unknowns, len(readings.t)
    belief, chosen = trajectory.belief(readings, first, kappa)
    n = window or max(LEAST_WINDOW, WINDOW_NUMBERS // own.size**2)
    pieces, events, at = [], list[Event](), 0
    while at < rows:
        end = min(at + n, rows)
        part = readings.part(slice(at, min(end + max(1, int(OVERLAP * n)), rows)))
        smoother = Smoother(own, trajectory.kinematic, kappa, belief, robust)
        found, left = smoother.run(trajectory.first_path(belief, part, kappa), part)
        if trajectory.coupled:
            smoother = Smoother(own, trajectory.sources, kappa, belief, robust)
            found, left = smoother.run(found.path, part)
        pieces += _pieces(trajectory, found, left, end - at)
        events += [e._replace(instant=e.instant + at) for e in smoother.events if e.instant < end - at]
        if end < rows:
            belief = _condensed(smoother, found, left, end - at)
        at = end
    return _joined(trajectory, readings.t, pieces, events, chosen, kappa)


def _condensed(smoother: Smoother, found: Smoothed, readings: Readings, at: int) -> Belief:
    """The state of instant `at` from all before it, without what it reads itself."""
    part, before = slice(0, at + 1), np.arange(at + 1)[:, None] < at
    some = readings.part(part)
    some = replace(some, active={name: x & before for name, x in some.active.items()})
    solved = chain.solve(smoother.linear(found.path.part(part), some)[0], covariances=True)
    return Belief(found.path.part(slice(at, at + 1)).moved(solved.step[-1:]), solved.P[-1])


def _pieces(trajectory: Trajectory, found: Smoothed, readings: Readings, n: int) -> list[_Piece]:
    """Results at the first n instants of a window, as many at a time as memory is made for."""
    own, pieces = trajectory.unknowns, []
    size = max(1, DENSE_NUMBERS // (own.size * max(len(trajectory.dynamics.exact), own.size)))
    for at in range(0, n, size):
        part = slice(at, min(at + size, n))
        path, P, read_ = found.path.part(part), found.P[part], readings.part(part)
        if not trajectory.coupled:
            path, P = _informed(trajectory, path, P, read_)
        std = np.sqrt(np.maximum(np.einsum("nii->ni", P), 0.0))
        pieces.append(_Piece(path, std, trajectory.dynamics.results(path, read_, P), read_.active))
    return pieces


def _informed(trajectory: Trajectory, path: Path, P: np.ndarray, readings: Readings) -> tuple[Path, np.ndarray]:
    """The states of single instants after what the dynamic variables say of them."""
    lines = trajectory.dynamics.at(path, readings)
    told = (lines.J != 0.0).any(axis=(0, 2))
    J, r = lines.J[:, told], lines.r[:, told]
    if not J.shape[1]:
        return path, P
    PJ = P @ J.swapaxes(1, 2)
    S = J @ PJ
    j = np.arange(S.shape[1])
    own = S[:, j, j]
    S[:, j, j] += np.where(lines.exact[told], EXACT_SHARE**2 * own, 1.0) + (own == 0.0)
    K = np.linalg.solve(S, PJ.swapaxes(1, 2)).swapaxes(1, 2)
    after = P - K @ PJ.swapaxes(1, 2)
    return path.moved(-(K @ r[..., None])[..., 0]), 0.5 * (after + after.swapaxes(1, 2))


def _joined(
    trajectory: Trajectory, t: np.ndarray, pieces: Sequence[_Piece], events: Sequence[Event], chosen: tuple[str, ...],
    kappa: np.ndarray,
) -> Run:  # fmt: skip
    problem, own = trajectory.problem, trajectory.unknowns
    q, rates, biases = (np.concatenate([getattr(x.path, name) for x in pieces]) for name in ("q", "rates", "biases"))
    std = np.concatenate([x.std for x in pieces])
    deviations = dict(zip(("q", "qd", "qdd"), np.split(std[:, : 3 * own.model.nv], 3, axis=1), strict=True))
    groups = {x.name: x for x in problem.outputs(trajectory.dynamics.outputs).values()}
    values = {}
    for name in map(output_name, trajectory.dynamics.outputs):
        both = (np.concatenate([x.values[name][k] for x in pieces]) for k in (0, 1))
        values[name], deviations[name] = (x.reshape(len(t), *groups[name].shape) for x in both)
    of_biases = std[:, own.n_states :]
    components = {m.name: m.components(problem.model) for m in problem.measurements}
    named = [e._replace(component=components[e.measurement][int(e.component)]) for e in events]
    contacts = {
        m.name: np.concatenate([x.active[m.name].any(axis=1) for x in pieces])
        for m in problem.state_sensors if isinstance(m.of, Stance)
    }  # fmt: skip
    return Run(
        problem=problem, t=t, q=q, qd=rates[:, 0], qdd=rates[:, 1],
        events=tuple(sorted(named, key=lambda e: e.instant)), contacts=contacts, chosen=chosen,
        motion=dict(zip(dofs(problem.model), kappa.tolist(), strict=True)), order=trajectory.motion.order,
        coupled=trajectory.coupled, _values=values, _std=deviations, _groups=groups,
        _biases={name: (biases[:, b.place], of_biases[:, b.place]) for name, b in own.biases.items()},
    )  # fmt: skip
