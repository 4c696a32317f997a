"""Robots whose contact points push on the plane z = 0, slide and open: Euler's semi-implicit method, step by step.

Each step is one call of `Unilateral` for all robots, with the heights of the points as gaps, and begins with the forces
of the step before. J. J. Moreau's time-stepping, with impacts as part of the steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sysdyn.contact.time_stepping import ContactForces, Unilateral
from sysdyn.errors import AccuracyWarning, InvalidInput, ProblemError, SingularState, warn
from sysdyn.measurements.constraints import Contact
from sysdyn.measurements.measurement import find_frame
from sysdyn.model.se3 import translation
from sysdyn.online.robot_functions import kinematics
from sysdyn.simulation.control import Law, fed_back
from sysdyn.simulation.events import CONTACT, Margins, SimulationEvent
from sysdyn.simulation.fixed import Controller, lost, told

# Outputs that can be recorded.
RECORDED = ("qdd", "tau", "w")


class Heights:
    """Heights [m] of contact points above the plane z = 0: {contact: (N,)} of q (N, nq). Raises ProblemError."""

    def __init__(self, ground: Unilateral):
        model = ground.model
        points = [m for m in ground.problem.constraints if isinstance(m, Contact)]
        if turning := [m.name for m in points if m.reference != "world"]:
            raise ProblemError(
                f"the normal of {turning[0]!r} is that of its frame, but that of the plane z = 0 is the world's: give "
                "the Contact reference='world', or write the loop around a call of the contacts with gaps of your own"
            )
        frames = {m.name: find_frame(model, m.frame) for m in points}
        self._places = {name: (f"pose:{model.body_names[x.body]}", translation(x.X)) for name, x in frames.items()}
        self._poses = kinematics(model, list(dict.fromkeys(name for name, _ in self._places.values())))

    def __call__(self, q: np.ndarray) -> dict[str, np.ndarray]:
        poses = self._poses(q)
        return {name: poses[x][..., 2, :3] @ place + poses[x][..., 2, 3] for name, (x, place) in self._places.items()}


def simulated(
    ground: Unilateral, start: tuple[np.ndarray, np.ndarray], law: Law, controller: Controller | None, step: float,
    count: int, every: int, wanted: tuple[str, ...], stabilise: float | None, given: Mapping[str, Any],
) -> tuple[dict[str, np.ndarray], list[SimulationEvent]]:  # fmt: skip
    """({name: (records, N, size)} of q, q̇ and the wanted outputs, events) of N robots on the ground.

    start: q (N, nq), q̇ (N, nv); of one robot without the axis, as of the results, which takes less time. stabilise
    [s]: time constant by which points come out of the ground.

    Raises SingularState with the time and the robots.
    """
    (q, qd), model = start, ground.model
    heights, turn = Heights(ground), kinematics(model, "integrate")
    margins = Margins.of(ground.problem, ())
    share = 1.0 if stabilise is None else min(1.0, step / stabilise)
    events, records, worst = list[SimulationEvent](), list[dict[str, np.ndarray]](), 0.0
    before: ContactForces | None = None
    signs = None
    for k in range(count + 1):
        t = k * step
        tau = _torques(ground, law, controller, min(k, count - 1), t, q, qd)
        gaps = {name: np.where(z < 0.0, share * z, z) for name, z in heights(q).items()}
        try:
            forces = None if before is None else before.forces
            now = ground(q, qd, tau, step=step, gap=gaps, forces=forces, **given)
        except SingularState as error:
            raise told(error, t, np.arange(len(np.atleast_2d(q)))) from error
        if k % every == 0:
            state = {"q": q, "qd": qd, "qdd": now.qdd, "tau": np.broadcast_to(tau, qd.shape)}
            if "w" in wanted:
                state["w"] = _ordered(ground, now)
            records.append({name: x for name, x in state.items() if name in ("q", "qd", *wanted)})
        events += _touched(before, now, t)
        rows, rates = np.atleast_2d(q), np.atleast_2d(qd)
        new = np.array(margins.signs(rows.T, None)).T if margins.words else None
        if signs is not None and new is not None:
            none = np.zeros((len(rows), 0))
            events += margins.changes(signs, new, rows, rates, none, none, t, step)
        signs, before = new, now
        worst = max(worst, float(np.max(np.maximum(now.signorini, now.friction))))
        if k < count:
            qd = now.qd
            if not np.isfinite(qd).all():
                raise lost(t, np.flatnonzero(~np.isfinite(np.atleast_2d(qd)).all(axis=1)))
            q = turn(q, step * qd)
    if worst > ground.tolerance:
        warn(
            f"at some step the laws of contact are met within {worst:.1e} m/s alone, beyond the tolerance of "
            f"{ground.tolerance:.0e} m/s: take more iterations, or fewer points that are redundant",
            AccuracyWarning,
        )  # fmt: skip
    return {name: np.stack([x[name] for x in records]) for name in records[0]}, events


def _torques(
    ground: Unilateral, law: Law, controller: Controller | None, k: int, t: float, q: np.ndarray, qd: np.ndarray
) -> np.ndarray:
    """τ (1 or N, nv) of step k; (nv,) of one robot without an axis."""
    if controller is not None:
        tau = controller(t, np.array(q, ndmin=2), np.array(qd, ndmin=2))
        return tau[0] if q.ndim == 1 else tau
    tau = law.u[min(k, len(law.u) - 1)]
    if q.ndim == 1:
        tau = tau[0]
    if law.kp is not None and law.kd is not None:
        tau = np.array(np.broadcast_to(tau, qd.shape))
        fed_back(ground.model, tau, law.kp, law.kd, q, qd)
    return tau


def _ordered(ground: Unilateral, now: ContactForces) -> np.ndarray:
    """Forces of all constraints (N, rows) in the order of the problem."""
    every, parts, begin = now.step.all_multipliers, {}, 0
    constraints = ground.problem.constraints
    for m in sorted(constraints, key=lambda m: not isinstance(m, Contact)):
        size = len(m.wrench(ground.model))
        parts[m.name], begin = every[..., begin : begin + size], begin + size
    return np.concatenate([parts[m.name] for m in constraints], axis=-1)


def _touched(before: ContactForces | None, now: ContactForces, t: float) -> list[SimulationEvent]:
    """Points that begin or end to press in the step at t."""
    found: list[SimulationEvent] = []
    for name, new in now.forces.items() if before is not None else ():
        assert before is not None
        presses, pressed = (np.atleast_1d(x[..., -1]) > 0.0 for x in (new, before.forces[name]))
        changed = np.flatnonzero(presses != pressed).tolist()
        found += [SimulationEvent(t, robot, CONTACT, name, bool(presses[robot])) for robot in changed]
    return found


def checked(integrator: str, on_singular: str, wanted: tuple[str, ...], given: Mapping[str, Any]) -> None:
    """Raise InvalidInput for arguments of `simulate` that contacts which open do not have."""
    if integrator != "euler":
        raise InvalidInput(f"contacts that open are simulated by 'euler', not by {integrator!r}: impacts are its steps")
    if on_singular != "raise":
        raise InvalidInput(f"on_singular is {on_singular!r}, but contacts that open are simulated with 'raise' alone")
    for name in wanted:
        if name not in RECORDED:
            raise InvalidInput(f"outputs are {', '.join(RECORDED)} with contacts that open, not {name!r}")
    for name in given:
        if name not in ("fx", "friction", "restitution"):
            raise InvalidInput(f"a simulation of contacts that open takes fx, friction and restitution, not {name!r}")
