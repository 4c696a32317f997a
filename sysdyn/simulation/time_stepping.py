"""Moreau's time stepping for robots whose contact points push on the plane z = 0, slide and open.

Each step is one call of `Unilateral` for all robots, with the heights of the points as gaps; impacts are part of it.
The solution of a step starts from the forces of the step before.

References
----------
J. J. Moreau, "Unilateral contact and dry friction in finite freedom dynamics", in Nonsmooth Mechanics and Applications,
CISM 302, 1988.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sysdyn.contact.time_stepping import ContactForces, Unilateral
from sysdyn.errors import AccuracyWarning, InvalidInput, ProblemError, SingularState, warn
from sysdyn.measurements.constraints import Contact
from sysdyn.measurements.measurement import find_frame
from sysdyn.model import Model
from sysdyn.model.se3 import translation
from sysdyn.online.robot_functions import kinematics
from sysdyn.simulation.control import ControlLaw, apply_feedback
from sysdyn.simulation.events import CONTACT, EventFunctions, SimulationEvent
from sysdyn.simulation.fixed import Controller, diverged, with_time

# Outputs that can be recorded.
OUTPUTS = ("qdd", "tau", "w")


class ContactHeights:
    """Heights [m] of contact points above the plane z = 0: {contact: (N,)} of q (N, nq). Raises ProblemError."""

    def __init__(self, ground: Unilateral):
        model = ground.model
        points = [m for m in ground.problem.constraints if isinstance(m, Contact)]
        if local := [m.name for m in points if m.reference != "world"]:
            raise ProblemError(
                f"the normal of {local[0]!r} is that of its frame, but that of the plane z = 0 is the world's: give "
                "the Contact reference='world', or write the loop around a call of the contacts with gaps of your own"
            )
        frames = {m.name: find_frame(model, m.frame) for m in points}
        self._points = {name: (f"pose:{model.body_names[x.body]}", translation(x.X)) for name, x in frames.items()}
        self._poses = kinematics(model, list(dict.fromkeys(name for name, _ in self._points.values())))

    def __call__(self, q: np.ndarray) -> dict[str, np.ndarray]:
        poses = self._poses(q)
        return {name: poses[x][..., 2, :3] @ point + poses[x][..., 2, 3] for name, (x, point) in self._points.items()}


def run(
    ground: Unilateral, state: tuple[np.ndarray, np.ndarray], law: ControlLaw, controller: Controller | None,
    step: float, count: int, every: int, outputs: tuple[str, ...], stabilise: float | None, given: Mapping[str, Any],
) -> tuple[dict[str, np.ndarray], list[SimulationEvent]]:  # fmt: skip
    """Simulate `count` steps of N robots; return ({name: (records, N, size)} of q, q̇ and outputs, events).

    state: q (N, nq), q̇ (N, nv); for one robot the axis N may be left out, which is faster: results lack it, too.
    law: torques with feedback, unless `controller` computes them. every: steps from one record to the next. stabilise
    [s]: time constant with which penetrating points leave the ground. given: further arguments of `ground`.

    Raises SingularState with the time and the robots.
    """
    (q, qd), model = state, ground.model
    heights, integrate, functions = ContactHeights(ground), kinematics(model, "integrate"), _Events(ground)
    share = 1.0 if stabilise is None else min(1.0, step / stabilise)
    records, residual = list[dict[str, np.ndarray]](), 0.0
    forces = None
    for k in range(count + 1):
        t = k * step
        tau = _torques(model, law, controller, min(k, count - 1), t, q, qd)
        gaps = {name: np.where(z < 0.0, share * z, z) for name, z in heights(q).items()}
        try:
            result = ground(q, qd, tau, step=step, gap=gaps, forces=forces, **given)
        except SingularState as error:
            raise with_time(error, t, np.arange(len(np.atleast_2d(q)))) from error
        forces = result.forces
        if k % every == 0:
            record = {"q": q, "qd": qd, "qdd": result.qdd, "tau": np.broadcast_to(tau, qd.shape)}
            if "w" in outputs:
                record["w"] = _constraint_forces(ground, result)
            records.append({name: x for name, x in record.items() if name in ("q", "qd", *outputs)})
        functions.add(t, step, np.atleast_2d(q), np.atleast_2d(qd), forces)
        residual = max(residual, float(np.max(np.maximum(result.signorini, result.friction))))
        if k < count:
            qd = result.qd
            if not np.isfinite(qd).all():
                raise diverged(t, np.flatnonzero(~np.isfinite(np.atleast_2d(qd)).all(axis=1)))
            q = integrate(q, step * qd)
    if residual > ground.tolerance:
        warn(
            f"at some step the laws of contact are met within {residual:.1e} m/s alone, beyond the tolerance of "
            f"{ground.tolerance:.0e} m/s: take more iterations, or fewer points that are redundant",
            AccuracyWarning,
        )  # fmt: skip
    return {name: np.stack([x[name] for x in records]) for name in records[0]}, functions.events


class _Events:
    """Events of joint limits and of contact points, from step to step."""

    def __init__(self, ground: Unilateral):
        self.events: list[SimulationEvent] = []
        self._functions = EventFunctions.of(ground.problem, ())
        self._signs: np.ndarray | None = None
        self._pushing: dict[str, np.ndarray] = {}

    def add(self, t: float, step: float, q: np.ndarray, qd: np.ndarray, forces: Mapping[str, np.ndarray]) -> None:
        """Add the events of the step that ends at t; forces: {contact: (…, 3)} of the step that begins there."""
        pushing = {name: np.atleast_1d(x[..., -1]) > 0.0 for name, x in forces.items()}
        for name, before in self._pushing.items():
            for robot in np.flatnonzero(pushing[name] != before).tolist():
                self.events.append(SimulationEvent(t, robot, CONTACT, name, bool(pushing[name][robot])))
        signs = np.array(self._functions.signs(q.T, None)).reshape(-1, len(q)).T
        if self._signs is not None:
            none = np.zeros((len(q), 0))
            self.events += self._functions.changes(self._signs, signs, q, qd, none, none, t, step)
        self._signs, self._pushing = signs, pushing


def _torques(
    model: Model, law: ControlLaw, controller: Controller | None, k: int, t: float, q: np.ndarray, qd: np.ndarray
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
        apply_feedback(model, tau, law.kp, law.kd, q, qd)
    return tau


def _constraint_forces(ground: Unilateral, result: ContactForces) -> np.ndarray:
    """Forces of all constraints (N, rows) in the order of the problem; the multipliers have contacts first."""
    forces, parts, begin = result.step.all_multipliers, {}, 0
    constraints = ground.problem.constraints
    for m in sorted(constraints, key=lambda m: not isinstance(m, Contact)):
        size = len(m.wrench(ground.model))
        parts[m.name], begin = forces[..., begin : begin + size], begin + size
    return np.concatenate([parts[m.name] for m in constraints], axis=-1)


def check_arguments(integrator: str, on_singular: str, outputs: tuple[str, ...], given: Mapping[str, Any]) -> None:
    """Raise InvalidInput for arguments of `simulate` that `Unilateral` contacts do not support."""
    if integrator != "euler":
        raise InvalidInput(f"contacts that open are simulated by 'euler', not by {integrator!r}: impacts are its steps")
    if on_singular != "raise":
        raise InvalidInput(f"on_singular is {on_singular!r}, but contacts that open are simulated with 'raise' alone")
    for name in outputs:
        if name not in OUTPUTS:
            raise InvalidInput(f"outputs are {', '.join(OUTPUTS)} with contacts that open, not {name!r}")
    for name in given:
        if name not in ("fx", "friction", "restitution"):
            raise InvalidInput(f"a simulation of contacts that open takes fx, friction and restitution, not {name!r}")
