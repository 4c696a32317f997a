"""Checks and normalisation of joint positions q."""

from __future__ import annotations

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model.model import Model
from sysdyn.program.reproducible import LARGEST_ANGLE

# Tolerance of joint limits, relative to 1 + |limit|: the error of nine-digit records.
LIMIT_ERROR = 1e-9
# A quaternion is not normalised if its squared norm differs from 1 by less: a few rounding units.
UNIT_NORM = 1e-15


def normalise_positions(model: Model, q: np.ndarray) -> np.ndarray:
    """q (…, nq) with unit quaternions; non-finite values stay, the kernel reports them."""
    if not model.quaternions:
        return q
    if q.ndim == 1:  # one state: plain floats are several times faster than array operations
        for _, part in model.quaternions:
            norm = sum([x * x for x in q[part].tolist()])
            if not (abs(norm - 1.0) < UNIT_NORM or norm != norm):
                break
        else:
            return q
    elif not np.isfinite(q).all():
        return q
    return model.normalise(q)


def reject_large_angles(model: Model, q: np.ndarray) -> None:
    """Raise InvalidInput naming a joint whose angle exceeds LARGEST_ANGLE, where sine loses all precision."""
    for i, joint in enumerate(model.joints):
        for k in joint.angles:
            largest = np.abs(q[..., model.q_slice(i).start + k]).max(initial=0.0)
            if largest > LARGEST_ANGLE:
                raise InvalidInput(
                    f"the angle of joint {model.joint_names[i]!r} is {largest:.3g} rad: beyond {LARGEST_ANGLE:.0e} its "
                    "sine has no meaning; reduce it modulo 2π"
                )


def reject_beyond_limits(model: Model, q: np.ndarray) -> None:
    """Raise InvalidInput naming the first joint whose position in q (…, nq) exceeds its limits."""
    for i, joint in enumerate(model.joints):
        if joint.nv != 1 or joint.nq != 1:
            continue
        x, k = q[..., model.q_slice(i).start], model.v_slice(i).start
        low, high = model.lower[k], model.upper[k]
        slack = [LIMIT_ERROR * (1.0 + abs(limit)) for limit in (low, high)]
        beyond = np.flatnonzero((x < low - slack[0]) | (x > high + slack[1]))
        if len(beyond):
            state = f" at state {beyond[0]}" if x.ndim else ""
            raise InvalidInput(
                f"joint {model.joint_names[i]!r} is at {np.reshape(x, -1)[beyond[0]]:.6g}{state}, beyond its limits "
                f"{low:.6g} to {high:.6g}: angles are in rad, lengths in m (np.deg2rad converts degrees)"
            )


def scalar_first_joint(model: Model, q: np.ndarray, qd: np.ndarray) -> str | None:
    """Joint with quaternion (1, 0, 0, 0) and q̇ = 0 at the first state, probably a scalar-first identity; else None."""
    first, still = (x.reshape(-1, x.shape[-1])[:1] for x in (q, qd))
    for name, part in model.quaternions:
        moving = still[:, model.v_slice(model.joint_index(name))]
        if len(first) and first[0, part].tolist() == [1.0, 0.0, 0.0, 0.0] and len(still) and not moving.any():
            return name
    return None
