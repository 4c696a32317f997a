"""Results of instants whose states are estimated: outputs with standard deviations, put together to a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sysdyn.measurements.measurement import output_name
from sysdyn.measurements.state_sensors import Stance
from sysdyn.trajectories import chain
from sysdyn.trajectories.believed import Event, snooped
from sysdyn.trajectories.chain import Covariances
from sysdyn.trajectories.equations import EXACT_SHARE, Readings, in_parts
from sysdyn.trajectories.path import Path
from sysdyn.trajectories.run import Run
from sysdyn.trajectories.statement import Trajectory


class Piece(NamedTuple):
    """Results of the instants of a window: path, standard deviations of the unknowns, outputs with theirs, switches."""

    path: Path
    std: np.ndarray
    values: dict[str, tuple[np.ndarray, np.ndarray]]
    active: Mapping[str, np.ndarray]


def pieces_of(
    trajectory: Trajectory, whole: Path, of_path: Covariances, readings: Readings, robust: bool, events: list[Event]
) -> list[Piece]:
    """Results along a path with these covariances, as many instants at a time as memory is made for.

    robust: readings of dynamic variables that are beyond belief are dropped, and noted in `events`; those of a coupled
    path have been tested before.
    """
    pieces = []
    for part in in_parts(len(whole), trajectory.dynamics):
        path, P, read = whole.part(part), of_path.part(part).dense(), readings.part(part)
        if not trajectory.coupled:
            path, P, read, dropped = _tested(trajectory, path, P, read, robust)
            events += [e._replace(instant=e.instant + part.start) for e in dropped]
        std = np.sqrt(np.maximum(np.einsum("nii->ni", P), 0.0))
        pieces.append(Piece(path, std, trajectory.dynamics.results(path, read, P), read.active))
    return pieces


def _tested(
    trajectory: Trajectory, before: Path, of_before: np.ndarray, readings: Readings, robust: bool
) -> tuple[Path, np.ndarray, Readings, list[Event]]:
    """(states and covariances of single instants with their dynamic variables, readings that are left, the others)."""
    left, events = readings, list[Event]()
    if robust:
        left, events = snooped(trajectory.dynamics, before, readings, of_before)
    return *_informed(trajectory, before, of_before, left), left, events


def with_biases(
    trajectory: Trajectory, path: Path, covariances: Covariances, readings: Readings, robust: bool
) -> tuple[Path, Covariances]:  # fmt: skip
    """The path and covariances with the biases that dynamic variables alone show, estimated over time.

    What is not known of the states counts as noise of the rows, from instant to instant.
    """
    own, columns, n = trajectory.unknowns, trajectory.alone_columns, len(path)
    others = np.setdiff1d(np.arange(own.size), columns)
    H, h = np.zeros((n, len(columns), len(columns))), np.zeros((n, len(columns)))
    for part in in_parts(n, trajectory.dynamics):
        P = covariances.part(part).dense()
        *_, left, _ = _tested(trajectory, path.part(part), P, readings.part(part), robust)
        lines = trajectory.dynamics.at(path.part(part), left)
        J, shown = lines.J[:, ~lines.exact], lines.J[:, ~lines.exact][:, :, columns]
        S = J[:, :, others] @ P[:, others[:, None], others] @ J[:, :, others].swapaxes(1, 2)
        S += np.eye(S.shape[1])
        right = np.linalg.solve(S, np.concatenate([shown, lines.r[:, ~lines.exact, None]], axis=2))
        both = shown.swapaxes(1, 2) @ right
        H[part], h[part] = both[:, :, :-1], both[:, :, -1]
    one, places = np.eye(len(columns)), columns - own.n_states
    Phi, Q = (x[:, places, None] * one for x in own.walk(np.diff(path.t)))
    first = covariances.part(slice(0, 1)).dense()[0][columns[:, None], columns]
    solved = chain.solve(
        chain.Linear(H, h, Phi, np.zeros((n - 1, len(columns))), Q, np.zeros(len(columns)), first), covariances=True
    )
    biases = path.biases.copy()
    biases[:, places] += solved.step
    return replace(path, biases=biases), covariances.replaced(columns, solved.P)


def _missing(trajectory: Trajectory, read: Readings) -> dict[str, int]:
    """{measurement: values that a log does not have}; stances and priors aside."""
    found = {}
    for m in (*trajectory.problem.state_sensors, *trajectory.problem.custom):
        if m.noise is not None and not m.has_default:
            found[m.name] = int(np.sum(~read.active[m.name]))
    return {name: n for name, n in found.items() if n}


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


def joined(
    trajectory: Trajectory, pieces: Sequence[Piece], events: Sequence[Event], chosen: tuple[str, ...],
    kappa: np.ndarray, read: Readings, fit: tuple[float, int],
) -> Run:  # fmt: skip
    """The run of successive pieces; fit: χ² and its degrees of freedom."""
    problem, own = trajectory.problem, trajectory.unknowns
    q, rates, biases = (np.concatenate([getattr(x.path, name) for x in pieces]) for name in ("q", "rates", "biases"))
    t, std = np.concatenate([x.path.t for x in pieces]), np.concatenate([x.std for x in pieces])
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
        motion=dict(zip(problem.model.dof_names, kappa.tolist(), strict=True)), order=trajectory.motion.order,
        coupled=trajectory.coupled, missing=_missing(trajectory, read), _values=values, _std=deviations, _groups=groups,
        _biases={name: (biases[:, b.place], of_biases[:, b.place]) for name, b in own.biases.items()},
        _fit=fit,
    )  # fmt: skip
