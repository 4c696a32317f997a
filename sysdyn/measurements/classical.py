"""Inverse, forward and hybrid dynamics: their problems, and tests whether a problem is one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.errors import IgnoredWarning, InvalidInput, check_among, few, warn
from sysdyn.measurements.constraints import Contact, ContactWrench, JointCoupling, as_contact_wrench, closures
from sysdyn.measurements.known_quantities import ExternalWrench, JointAcceleration, JointTorque
from sysdyn.measurements.linear import MotorTorque
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.model.closures import Loop


def inverse_dynamics(model: Model, contacts: Sequence[ContactWrench | Contact] = ()) -> Problem:
    """Inverse dynamics: τ from q̈ and fx. Nori eq. (7).

    Parameters
    ----------
    model : Model
        The robot. Only independent joints have known q̈, and their τ includes the load of the dependent (coupled)
        joints, whose own τ is zero or given as ``y={"followers": …}``. Loops (`sysdyn.closures`) stay open, with an
        IgnoredWarning, because τ is not unique with them: for motor torques use `hybrid_dynamics` with τ = 0 at the
        joints without a motor.
    contacts : sequence of Contact and ContactWrench, optional
        Contacts of a floating robot with the world, in addition to fx. The base is unactuated. The result has the
        contact wrenches of least norm among those that agree with q̈, and the corresponding joint torques. The norm is
        weighted by the noise of the contacts (components of a Contact have equal weights in N and N m). q̈ has to keep
        standing feet at rest; this is not checked.

    Raises
    ------
    InvalidInput
        If there are contacts and the base is fixed.
    """
    if loops := [c.name for c in model.closures if isinstance(c, Loop)]:
        warn(
            f"the loops of {model.name!r} are left open: {few(map(repr, loops))}. The torques are those of the tree. "
            "For motor torques use sd.hybrid_dynamics(model, torque=[…]) with the joints without a motor, and tau = 0 "
            "there",
            IgnoredWarning,
        )
    couplings = [m for m in closures(model) if isinstance(m, JointCoupling)]
    independent = tuple(x for x in model.joint_names if x not in model.followers) if couplings else "all"
    wrenches = [as_contact_wrench(m, model) for m in contacts]
    floating = [name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv == 6]
    if wrenches and not floating:
        raise InvalidInput(
            "contacts of inverse dynamics need a floating base, as of load(…, base='floating'): "
            "a fixed base bears every load, so that nothing determines their wrenches"
        )
    base = [MotorTorque(floating, np.eye(6 * len(floating)), name="base", optional=True)] if wrenches else []
    known = [JointAcceleration(independent, name="qdd"), ExternalWrench("all", name="fx")]
    return Problem(model, [*known, *_zero_motor_torque(model.followers), *couplings, *base, *wrenches])


def forward_dynamics(model: Model) -> Problem:
    """Forward dynamics: q̈ from τ and fx. Nori eq. (13).

    Couplings and loops of the model (`sysdyn.closures`) are constraints.
    """
    return Problem(model, [JointTorque("all", name="tau"), ExternalWrench("all", name="fx"), *closures(model)])


def hybrid_dynamics(model: Model, torque: Sequence[str]) -> Problem:
    """Hybrid dynamics: known τ of the joints in `torque`, known q̈ of all others, and known fx. RBDA section 9.2.

    Coupled joints are treated as in `inverse_dynamics`. Loops of the model are constraints.

    Raises
    ------
    UnknownName
        If the model does not have a joint of that name.
    """
    torque = (torque,) if isinstance(torque, str) else tuple(torque)
    for name in torque:
        check_among("joint", name, model.joint_names)
    accelerated = tuple(name for name in model.joint_names if name not in (*torque, *model.followers))
    known: list[Measurement] = [JointAcceleration(accelerated, name="qdd")] if accelerated else []
    known += [JointTorque(torque, name="tau")] if torque else []
    dependent = [name for name in model.followers if name not in torque]
    fx = ExternalWrench("all", name="fx")
    return Problem(model, [*known, fx, *_zero_motor_torque(dependent), *closures(model)])


def _zero_motor_torque(joints: Sequence[str]) -> list[Measurement]:
    """A measurement of zero motor torque at these joints; empty without joints."""
    return [MotorTorque(joints, name="followers", optional=True)] if joints else []


# ---- tests ---------------------------------------------------------------------------------------------------------


def driven_freedoms(problem: Problem) -> frozenset[int] | None:
    """Degrees of freedom with known τ, if q̈ is known exactly at all others and only there; None otherwise."""
    model = problem.model
    tau, qdd = ({model.v_slice(i).start + k for i, k in problem.knows(x)} for x in ("tau", "qdd"))
    return None if len(tau) + len(qdd) != model.nv or tau & qdd else frozenset(tau)


def torque_freedoms(problem: Problem) -> frozenset[int] | None:
    """`driven_freedoms` of inverse, forward or hybrid dynamics; None unless all fx, τ and q̈ alone are known.

    RBDA section 9.2. The problem may have more, such as constraints and sensors: see `is_classical`.
    """
    every = len(problem.knows("fx")) == 6 * problem.model.nb
    return driven_freedoms(problem) if every and _of_joints(problem) else None


def is_classical(problem: Problem) -> bool:
    """True for inverse, forward or hybrid dynamics and nothing else: no sensor, constraint, noise or parameter."""
    alone = not (problem.custom or problem.noisy or problem.parameters)
    return alone and torque_freedoms(problem) is not None


def dynamics_name(problem: Problem) -> str:
    """Name of the dynamics by quantities known wholly or in part, such as "inverse_dynamics"; "dynamics" for others."""
    known = problem.known_quantities
    if problem.custom or not _of_joints(problem):
        return "dynamics"
    if "tau" not in known:
        return "inverse_dynamics"
    return "hybrid_dynamics" if "qdd" in known else "forward_dynamics"


def _of_joints(problem: Problem) -> bool:
    """True if nothing is known exactly but τ, q̈ and fx."""
    return set(problem.known_quantities) <= {"tau", "qdd", "fx"}
