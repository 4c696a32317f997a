"""Torques of a simulation: constant ones, ones for each step, and joint feedback, which the program of a step has.

τ = u − Kp q − Kd q̇ with u = τ_ff + Kp q_des + Kd q̇_des, which is known before the simulation; u = τ without feedback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.program.arrays import float_array, reject_not_finite


@dataclass(frozen=True, eq=False)
class Feedback:
    """Joint feedback, τ = tau + kp (q − q(t)) + kd (q̇ − q̇(t)), computed inside the steps of a simulation.

    kp, kd  gains [N m/rad, N m s/rad; N/m, N s/m], (nv,), (…, nv) for each robot of a batch, or one number for all
            joints with one degree of freedom that do not follow others; zero for all other joints
    q       wanted positions (nq,), of which those of these joints count
    qd      wanted velocities (nv,), by default zero
    tau     torques beside them (nv,), by default zero

    q, qd and tau may have axes of steps and robots before, as torques of `sysdyn.simulate` have.
    """

    kp: ArrayLike
    kd: ArrayLike
    q: ArrayLike
    qd: ArrayLike | None = None
    tau: ArrayLike | None = None


@dataclass(frozen=True)
class Law:
    """τ = u − kp q − kd q̇. u (1 or steps, 1 or robots, nv); kp, kd (nv,) or (robots, nv), None without feedback."""

    u: np.ndarray
    kp: np.ndarray | None = None
    kd: np.ndarray | None = None

    @property
    def gains(self) -> dict[str, np.ndarray]:
        """The groups of inputs that feedback has."""
        return {} if self.kp is None or self.kd is None else {"kp": self.kp, "kd": self.kd}


def single(model: Model) -> dict[int, int]:
    """{number of a velocity: number of its position} of joints with one degree of freedom."""
    return {
        model.v_slice(i).start: model.q_slice(i).start for i, x in enumerate(model.joints) if x.nv == 1 and x.nq == 1
    }


def fed_back(model: Model, tau: Any, kp: Any, kd: Any, q: Any, qd: Any) -> None:
    """τ ← τ − Kp q − Kd q̇, in arrays of numbers or of expressions, whose last axis is that of joints."""
    for v, place in single(model).items():
        tau[..., v] = tau[..., v] - kp[..., v] * q[..., place] - kd[..., v] * qd[..., v]


def law_of(model: Model, tau: ArrayLike | Feedback | None, steps: int, lead: tuple[int, ...]) -> Law:
    """The torques as a law. lead: batch axes of the robots. Raises InvalidInput naming the array."""
    if not isinstance(tau, Feedback):
        return Law(over_time("tau", 0.0 if tau is None else tau, model.nv, steps, lead))
    joints = single(model)
    kp, kd = (_gains(model, name, x, lead) for name, x in (("kp", tau.kp), ("kd", tau.kd)))
    wanted = over_time("q of the feedback", tau.q, model.nq, steps, lead)
    columns = np.zeros((*wanted.shape[:2], model.nv))
    for k, place in joints.items():
        columns[..., k] = wanted[..., place]
    rates, more = (
        over_time(f"{name} of the feedback", 0.0 if x is None else x, model.nv, steps, lead)
        for name, x in (("qd", tau.qd), ("tau", tau.tau))
    )
    return Law(more + kp * columns + kd * rates, kp, kd)


def over_time(name: str, value: ArrayLike, size: int, steps: int, lead: tuple[int, ...]) -> np.ndarray:
    """A value (1 or steps, 1 or robots, size) of (size,), (…, size), (steps, size) or (steps, …, size), or a number.

    Raises InvalidInput for other shapes, and for one that may mean steps or robots.
    """
    x = float_array(name, value)
    reject_not_finite(name, x, 1 if x.ndim else 0)
    if x.ndim == 0 and not x.any():
        x = np.zeros(size)
    count, own = int(np.prod(lead)), x.shape[:-1]
    if x.ndim and x.shape[-1] == size:
        if own == lead == (steps,) and steps > 1:
            raise InvalidInput(
                f"{name} has shape {x.shape}, which may mean {steps} steps or {steps} robots: hand it in as "
                f"{(steps, 1, size)} or {(1, steps, size)}"
            )
        if own in ((), lead):
            return np.ascontiguousarray(x.reshape(1, count if own else 1, size))
        if own == (steps,):
            return np.ascontiguousarray(x.reshape(steps, 1, size))
        if len(own) == 1 + len(lead) and own[0] in (1, steps) and own[1:] in (lead, (1,) * len(lead)):
            return np.ascontiguousarray(x.reshape(own[0], -1, size))
    batch = f", {(*lead, size)} for each robot, {(steps, *lead, size)} for both" if lead else ""
    raise InvalidInput(f"{name} has shape {x.shape}, but {(size,)} is needed, {(steps, size)} for each step{batch}")


def _gains(model: Model, name: str, value: ArrayLike, lead: tuple[int, ...]) -> np.ndarray:
    """(nv,) or (robots, nv). Raises InvalidInput for other shapes and for gains of joints that have no angle."""
    x, joints = float_array(name, value), single(model)
    reject_not_finite(name, x, 1 if x.ndim else 0)
    if x.ndim == 0:
        led = {model.v_slice(model.joint_index(joint)).start for joint in model.followers}
        x = np.where([k in joints and k not in led for k in range(model.nv)], x, 0.0)
    if x.shape not in ((model.nv,), (*lead, model.nv)):
        raise InvalidInput(f"{name} has shape {x.shape}, but a number, {(model.nv,)} or {(*lead, model.nv)} is needed")
    for i, joint in enumerate(model.joints):
        if model.v_slice(i).start not in joints and joint.nv and x[..., model.v_slice(i)].any():
            raise InvalidInput(
                f"{name} of joint {model.joint_names[i]!r} is not zero, but it has no single position to feed back: "
                "give a gain of 0, or a controller as a function of (t, q, qd)"
            )
    return np.ascontiguousarray(x.reshape(-1, model.nv)) if x.ndim > 1 else x
