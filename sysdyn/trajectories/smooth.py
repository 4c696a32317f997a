"""From raw logs to states, torques and wrenches: `smooth`, over whole trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.measurement import Output, output_name
from sysdyn.model.quantities import QUANTITY
from sysdyn.problem import Problem
from sysdyn.trajectories import chain, densities
from sysdyn.trajectories.equations import MOST_NUMBERS, Readings
from sysdyn.trajectories.filtering import Belief, Event
from sysdyn.trajectories.path import Path, dofs
from sysdyn.trajectories.readings import read
from sysdyn.trajectories.run import Run
from sysdyn.trajectories.smoothing import Smoothed, Smoother, Start
from sysdyn.trajectories.statement import Trajectory

# Most numbers of the blocks of a window: 512 MB an array (chosen).
WINDOW_NUMBERS = 2**26
# Overlap of windows, as a share of their length (chosen).
OVERLAP = 0.1


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
    robust    components whose residuals are beyond 99.9 % are dropped at their instant, and listed in `Run.events`
    window    rows that are smoothed at a time, with a tenth of overlap; None: as memory allows
    options   of `sysdyn.Log`, such as columns= and values=

    Raises ProblemError if no sensor tells the states or q̈ is known, FileError and InvalidInput for the log.
    See docs/trajectories.md.
    """
    outputs = (outputs,) if not isinstance(outputs, Sequence) or isinstance(outputs, str) else tuple(outputs)
    _check_outputs(problem, outputs)
    t, readings = read(problem, log, **options)
    if len(t) < 2:
        raise InvalidInput(f"the log has {len(t)} rows: a trajectory needs two or more")
    span = float(t[-1] - t[0])
    trajectory, kappa, free = _with_motion(problem, outputs, span, coupled, order, density, t, readings)
    kappa = trajectory.learnt(t, readings, _position(problem, start), kappa, free)
    belief, chosen = trajectory.belief(float(t[0]), readings.part(slice(0, 1)), _position(problem, start), kappa)
    own = trajectory.unknowns
    n = window or max(100, WINDOW_NUMBERS // own.size**2)
    pieces, events = [], list[Event]()
    first = Start(belief.path, belief.P)
    at = 0
    while at < len(t):
        end = min(at + n, len(t))
        more = min(end + int(OVERLAP * n), len(t))
        part = slice(at, more)
        found, left, smoother = _smoothed(trajectory, kappa, first, t[part], readings.part(part), robust)
        kept = slice(0, end - at)
        pieces.append(_piece(trajectory, found, left, kept))
        events += [e._replace(instant=e.instant + at) for e in smoother.events if e.instant < end - at]
        if end < len(t):
            # what is before the next window, without what it reads itself
            first = _between(smoother, found, left, end - at)
        at = end
    return _run(trajectory, problem, t, pieces, events, readings, chosen, kappa)


def _with_motion(problem, outputs, span, coupled, order, density, t, readings):
    """(trajectory, κ (nv,), (nv,) bool: the ones that are to be learnt), of the order that encoders find likelier."""
    tried = {p: Trajectory.encoders(problem, t, readings, p) for p in ((3, 4) if order is None else (order,))}
    order = max(tried, key=lambda p: tried[p][2])
    kappa, known, _ = tried[order]
    trajectory = Trajectory(problem, outputs, span, order, coupled)
    free = ~known
    if density is not None:
        given = densities.by_joint(problem.model, density)
        stated = np.isfinite(given)
        if not (given[stated] > 0.0).all():
            raise InvalidInput("densities of motion must be positive")
        kappa, free = np.where(stated, given, kappa), free & ~stated
    return trajectory, kappa, free


def _smoothed(
    trajectory: Trajectory, kappa: np.ndarray, first: Start, t: np.ndarray, readings: Readings, robust: bool
) -> tuple[Smoothed, Readings, Smoother]:
    path = trajectory.first_guess(Belief(first.path, first.covariance), readings, t, kappa)
    smoother = Smoother(trajectory.unknowns, trajectory.kinematic, kappa, first, robust)
    found, left = smoother.run(path, readings)
    if trajectory.coupled:
        smoother = Smoother(trajectory.unknowns, trajectory.sources, kappa, first, robust)
        found, left = smoother.run(found.path, readings)
    return found, left, smoother


def _between(smoother: Smoother, found: Smoothed, readings: Readings, at: int) -> Start:
    """The prior of instant `at` from all before it, without what it reads itself."""
    part = slice(0, at + 1)
    before = np.arange(at + 1)[:, None] < at
    some = readings.part(part)
    some = Readings(some.y, {name: x & before for name, x in some.active.items()}, some.known)
    linear, _ = smoother.linear(found.path.part(part), some)
    solved = chain.solve(linear, covariances=True)
    assert solved.P is not None
    last = found.path.part(slice(at, at + 1)).moved(solved.step[-1:])
    return Start(last, solved.P[-1])


def _piece(trajectory: Trajectory, found: Smoothed, readings: Readings, kept: slice) -> dict[str, Any]:
    """Arrays of the instants of a window that are kept."""
    path, P, readings = found.path.part(kept), found.P[kept], readings.part(kept)
    own = trajectory.unknowns
    values: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    size = max(1, MOST_NUMBERS // (own.size * max(len(trajectory.dynamics.exact), own.size)))
    parts = [slice(a, min(a + size, len(path))) for a in range(0, len(path), size)]
    pieces, paths, covariances = [], [], []
    for part in parts:
        some, cov, read_ = path.part(part), P[part], readings.part(part)
        if not trajectory.coupled:
            some, cov = _informed(trajectory, some, cov, read_)
        pieces.append(trajectory.dynamics.results(some, read_, cov))
        paths.append(some)
        covariances.append(np.sqrt(np.maximum(np.einsum("nii->ni", cov), 0.0)))
    for name in pieces[0]:
        values[name] = tuple(np.concatenate([x[name][k] for x in pieces]) for k in (0, 1))  # type: ignore[assignment]
    std = np.concatenate(covariances)
    joined = [np.concatenate([getattr(x, name) for x in paths]) for name in ("q", "rates", "biases")]
    return {"q": joined[0], "rates": joined[1], "biases": joined[2], "std": std, "values": values, "active": readings.active}  # fmt: skip


def _informed(trajectory: Trajectory, path: Path, P: np.ndarray, readings: Readings) -> tuple[Path, np.ndarray]:
    """The states of single instants after what the dynamic variables say of them."""
    lines = trajectory.dynamics.at(path, readings)
    J, r = lines.J, lines.r
    if not J.shape[1]:
        return path, P
    PJ = P @ J.swapaxes(1, 2)
    S = J @ PJ
    j = np.arange(S.shape[1])
    S[:, j, j] += np.where(lines.exact, 1e-6 * S[:, j, j], 1.0)
    S[:, j, j] = np.where(S[:, j, j] > 0.0, S[:, j, j], 1.0)
    K = np.linalg.solve(S, PJ.swapaxes(1, 2)).swapaxes(1, 2)
    step = -(K @ r[..., None])[..., 0]
    after = P - K @ PJ.swapaxes(1, 2)
    return path.moved(step), 0.5 * (after + after.swapaxes(1, 2))


def _run(trajectory, problem, t, pieces, events: list[Event], readings, chosen, kappa) -> Run:
    model, own = problem.model, trajectory.unknowns
    nv = model.nv

    def joined(name: str) -> np.ndarray:
        return np.concatenate([x[name] for x in pieces])

    std, rates, biases = joined("std"), joined("rates"), joined("biases")
    groups = {x.name: x for x in problem.outputs(trajectory.dynamics.outputs).values()}
    values, deviations = {}, {"q": std[:, :nv], "qd": std[:, nv : 2 * nv], "qdd": std[:, 2 * nv : 3 * nv]}
    for output in trajectory.dynamics.outputs:
        name = output_name(output)
        shape = (len(t), *groups[name].shape)
        values[name] = np.concatenate([x["values"][name][0] for x in pieces]).reshape(shape)
        deviations[name] = np.concatenate([x["values"][name][1] for x in pieces]).reshape(shape)
    found = {
        name: (biases[:, b.place], std[:, own.n_states :][:, b.place]) for name, b in own.biases.items()
    }
    named = {name: m.components(model) for m in problem.measurements for name in [m.name]}
    events = [e._replace(component=named[e.measurement][int(e.component)]) if e.measurement in named else e
              for e in events]  # fmt: skip
    contacts = {
        m.name: np.concatenate([x["active"][m.name].any(axis=1) for x in pieces]) for m in problem.state_sensors
        if type(m.of).__name__ == "Stance"
    }  # fmt: skip
    return Run(
        problem=problem, t=t, q=joined("q"), qd=rates[:, 0], qdd=rates[:, 1],
        events=tuple(sorted(events, key=lambda e: e.instant)), contacts=contacts, chosen=chosen,
        motion=dict(zip(dofs(model), kappa.tolist(), strict=True)), order=trajectory.motion.order,
        coupled=trajectory.coupled, _values=values, _std=deviations, _biases=found, _groups=groups,
    )  # fmt: skip


def _check_outputs(problem: Problem, outputs: Sequence[Output]) -> None:
    for x in outputs:
        if isinstance(x, str) and x not in problem.quantities:
            raise UnknownName("output", x, problem.quantities)


def _position(problem: Problem, start: ArrayLike | None) -> np.ndarray | None:
    return None if start is None else problem.model.normalise(np.asarray(start, dtype=float))


__all__ = ["QUANTITY", "smooth"]
