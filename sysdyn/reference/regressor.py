"""Joint-torque regressor: inverse dynamics as a linear function of the inertial parameters."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.frameworks.function import Function, compile_function
from sysdyn.model import Model
from sysdyn.model.kinematics import path
from sysdyn.model.se3 import cross
from sysdyn.reference.generic import run
from sysdyn.reference.root_frame import root_motion


def joint_torque_regressor(model: Model, q: ArrayLike, qd: ArrayLike, qdd: ArrayLike) -> np.ndarray:
    """Regressor Y (…, nv, 10 nb): τ = Y π + A q̈, with π from `inertial_parameters` and the armature A.

    Let s = [s_ω; s_v] be an axis, and ω, α and d the angular velocity, angular acceleration and acceleration of the
    origin of a body that it moves, all in body coordinates. The columns for mass, first moment and inertia I are

        s_v·d,   (α× + ω×ω×)^T s_v + d × s_ω,   ∂[s_ω^T I α + (s_ω × ω)^T I ω]/∂I

    q (…, nq), qd (…, nv), qdd (…, nv); leading axes are batch axes. Arrays of Expr give Expr. Entries for bodies that
    a degree of freedom does not move are 0.0. Raises InvalidInput.

    C. Atkeson, C. An, J. Hollerbach, Estimation of inertial parameters of manipulator loads and links, IJRR 5 (1986).
    """
    (Y,) = run(recursion, model, {"q": q, "qd": qd, "qdd": qdd})
    return Y


def compile_regressor(model: Model, backend: str = "llvm") -> Function:
    """Compile `joint_torque_regressor` to Y(q, q̇, q̈), for one state or a batch. Quaternions in q must have unit norm.

    backend: as in `compile_function`.
    """
    shapes = {"q": (model.nq,), "qd": (model.nv,), "qdd": (model.nv,)}
    return compile_function(partial(joint_torque_regressor, model), shapes, backend=backend)


def recursion(model: Model, q, qd, qdd) -> tuple[np.ndarray]:
    motion = root_motion(model, q, qd)
    accelerations = motion.accelerations(qdd)
    Y = np.full((model.nv, 10 * model.nb), 0.0, dtype=np.result_type(q, qd, qdd))
    for i in range(model.nb):
        v, a = motion.in_body(i, motion.v[i]), motion.in_body(i, accelerations[i])
        w, alpha = v[:3], a[:3]
        d = a[3:] + cross(w, v[3:])
        for j in path(model, i):
            for k, s in enumerate(motion.S[j], start=model.v_slice(j).start):
                t = motion.in_body(i, s)
                turn, move = t[:3], t[3:]
                pulled = cross(move, alpha) + cross(w, cross(w, move)) + cross(d, turn)
                spun, swept = _products(turn, alpha), _products(cross(turn, w), w)
                for n, x in enumerate([move @ d, *pulled, *(x + y for x, y in zip(spun, swept, strict=True))]):
                    Y[k, 10 * i + n] = x
    return (Y,)


def _products(x: np.ndarray, y: np.ndarray) -> list:
    """∂(x^T I y)/∂I_jk of the symmetric I, in the order xx, xy, yy, xz, yz, zz."""
    return [
        x[0] * y[0], x[0] * y[1] + x[1] * y[0], x[1] * y[1],
        x[0] * y[2] + x[2] * y[0], x[1] * y[2] + x[2] * y[1], x[2] * y[2],
    ]  # fmt: skip
