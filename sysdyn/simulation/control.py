"""Control laws of a simulation: torques over time, and joint feedback as part of the compiled steps.

τ = u − Kp q − Kd q̇ with u = τ_ff + Kp q_des + Kd q̇_des, which is known before the simulation; without feedback u = τ.
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
    """Joint feedback τ = tau + kp (q − q(t)) + kd (qd − q̇(t)), computed inside the steps of a simulation.

    Parameters
    ----------
    kp, kd : float, (nv,) or (…, nv) array_like
        Gains [N m/rad, N m s/rad; N/m, N s/m]; (…, nv) for each robot of a batch. A number is the gain of all joints
        with one degree of freedom that do not follow others. Gains of joints with more must be zero.
    q : (nq,) array_like
        Desired positions; entries of joints without gains are ignored.
    qd : (nv,) array_like, optional
        Desired velocities, by default zero.
    tau : (nv,) array_like, optional
        Feedforward torques, by default zero.

    Notes
    -----
    q, qd and tau may have leading axes of steps and robots, like the torques of `sysdyn.simulate`.
    """

    kp: ArrayLike
    kd: ArrayLike
    q: ArrayLike
    qd: ArrayLike | None = None
    tau: ArrayLike | None = None


@dataclass(frozen=True)
class ControlLaw:
    """τ = u − kp q − kd q̇. u (1 or steps, 1 or robots, nv); kp, kd (nv,) or (robots, nv), None without feedback."""

    u: np.ndarray
    kp: np.ndarray | None = None
    kd: np.ndarray | None = None

    @property
    def gains(self) -> dict[str, np.ndarray]:
        """The groups of inputs that feedback has."""
        return {} if self.kp is None or self.kd is None else {"kp": self.kp, "kd": self.kd}


def one_dof_joints(model: Model) -> dict[int, int]:
    """{index in q̇: index in q} of joints with one degree of freedom."""
    return {
        model.v_slice(i).start: model.q_slice(i).start for i, x in enumerate(model.joints) if x.nv == 1 and x.nq == 1
    }


def apply_feedback(model: Model, tau: Any, kp: Any, kd: Any, q: Any, qd: Any) -> None:
    """τ ← τ − Kp q − Kd q̇ in place; (…, nv) and (…, nq) arrays of numbers or expressions."""
    for v, p in one_dof_joints(model).items():
        tau[..., v] = tau[..., v] - kp[..., v] * q[..., p] - kd[..., v] * qd[..., v]


def control_law(model: Model, tau: ArrayLike | Feedback | None, steps: int, lead: tuple[int, ...]) -> ControlLaw:
    """The control law of an argument tau. lead: batch axes of the robots. Raises InvalidInput naming the array."""
    if not isinstance(tau, Feedback):
        return ControlLaw(over_time("tau", 0.0 if tau is None else tau, model.nv, steps, lead))
    kp, kd = (_gains(model, name, x, lead) for name, x in (("kp", tau.kp), ("kd", tau.kd)))
    q = over_time("q of the feedback", tau.q, model.nq, steps, lead)
    qd, feedforward = (
        over_time(f"{name} of the feedback", 0.0 if x is None else x, model.nv, steps, lead)
        for name, x in (("qd", tau.qd), ("tau", tau.tau))
    )
    u = np.array(np.broadcast_arrays(feedforward, q[..., :1], qd)[0])
    apply_feedback(model, u, -kp, -kd, q, qd)
    return ControlLaw(u, kp, kd)


def over_time(name: str, value: ArrayLike, size: int, steps: int, lead: tuple[int, ...]) -> np.ndarray:
    """Convert 0 or an array (size,), (…, size), (steps, size) or (steps, …, size) to (1 or steps, 1 or robots, size).

    Raises InvalidInput for other shapes, and for one that may mean steps or robots.
    """
    x = float_array(name, value)
    reject_not_finite(name, x, 1 if x.ndim else 0)
    if x.ndim == 0 and not x.any():
        x = np.zeros(size)
    robots, axes = int(np.prod(lead)), x.shape[:-1]
    if x.ndim and x.shape[-1] == size:
        if axes == lead == (steps,) and steps > 1:
            raise InvalidInput(
                f"{name} has shape {x.shape}, which may mean {steps} steps or {steps} robots: hand it in as "
                f"{(steps, 1, size)} or {(1, steps, size)}"
            )
        if axes in ((), lead):
            return np.ascontiguousarray(x.reshape(1, robots if axes else 1, size))
        if axes == (steps,):
            return np.ascontiguousarray(x.reshape(steps, 1, size))
        if len(axes) == 1 + len(lead) and axes[0] in (1, steps) and axes[1:] in (lead, (1,) * len(lead)):
            return np.ascontiguousarray(x.reshape(axes[0], -1, size))
    batch = f", {(*lead, size)} for each robot, {(steps, *lead, size)} for both" if lead else ""
    raise InvalidInput(f"{name} has shape {x.shape}, but {(size,)} is needed, {(steps, size)} for each step{batch}")


def _gains(model: Model, name: str, value: ArrayLike, lead: tuple[int, ...]) -> np.ndarray:
    """Gains (nv,) or (robots, nv). Raises InvalidInput for other shapes, and for gains of joints with several q̇."""
    x, joints = float_array(name, value), one_dof_joints(model)
    reject_not_finite(name, x, 1 if x.ndim else 0)
    if x.ndim == 0:
        followers = {model.v_slice(model.joint_index(joint)).start for joint in model.followers}
        x = np.where([k in joints and k not in followers for k in range(model.nv)], x, 0.0)
    if x.shape not in ((model.nv,), (*lead, model.nv)):
        raise InvalidInput(f"{name} has shape {x.shape}, but a number, {(model.nv,)} or {(*lead, model.nv)} is needed")
    for i, joint in enumerate(model.joints):
        if model.v_slice(i).start not in joints and joint.nv and x[..., model.v_slice(i)].any():
            raise InvalidInput(
                f"{name} of joint {model.joint_names[i]!r} is not zero, but it has no single position to feed back: "
                "give a gain of 0, or a controller as a function of (t, q, qd)"
            )
    return np.ascontiguousarray(x.reshape(-1, model.nv)) if x.ndim > 1 else x
