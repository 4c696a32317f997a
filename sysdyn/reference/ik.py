"""Inverse kinematics by Newton-Raphson in body and space form (Lynch & Park, Modern Robotics, section 6.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.frameworks.function import Function, compile_function
from sysdyn.model import Model
from sysdyn.model.constants import UNIT_ERROR
from sysdyn.model.kinematics import path, pose_and_jacobian
from sysdyn.model.se3 import adjoint, checked_pose, pose_inverse, rotation_error, se3_log
from sysdyn.program.arrays import finite_array, is_count

CACHED_FRAMES = 64  # Size of the cache of compiled functions (chosen).
LARGEST_POSITION = 1e8  # Largest accepted angle [rad] and length [m] (chosen).
TURN = 2.0 * math.pi  # [rad]


@dataclass(frozen=True, eq=False, repr=False)
class IKResult:
    """Result of `inverse_kinematics`; its truth value is `converged`.

    Attributes
    ----------
    frame : str
        Name of the frame.
    q : (nq,) array
        The last iterate, angles reduced by whole turns.
    converged : bool
        True if the errors at q are within the tolerances and all joints within their limits.
    reason : str
        Cause of failure, and warnings about the input; may be empty.
    angle_error, position_error : float, rad and m
        Rotation angle and distance between the frame at q and the target.
    iterations : int
    start_rank : int
        Rank of the Jacobian at q0.
    at_limit : tuple of str
        Degrees of freedom at or beyond a limit.
    """

    frame: str
    q: np.ndarray
    converged: bool
    reason: str
    angle_error: float
    position_error: float
    iterations: int
    start_rank: int
    at_limit: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.converged

    def __repr__(self) -> str:
        steps = f"{self.iterations} iteration{'' if self.iterations == 1 else 's'}"
        lines = [
            f"frame {self.frame!r} {'reached' if self.converged else 'NOT reached'} after {steps}",
            f"  error   {self.angle_error:.2g} rad, {self.position_error:.2g} m",
            "  q       " + np.array2string(self.q, precision=5, suppress_small=True, prefix="  q       "),
        ]
        if self.at_limit:
            lines.append(f"  limits  {', '.join(self.at_limit)}")
        if self.reason:
            lines.insert(1, f"  {self.reason}")
        return "\n".join(lines)


def inverse_kinematics(
    model: Model,
    frame: str,
    target: ArrayLike,
    q0: ArrayLike,
    *,
    form: str = "body",
    angle_tol: float = 1e-8,
    position_tol: float = 1e-8,
    max_iter: int = 100,
    pinv_tol: float = 1e-6,
    rotation_tol: float = UNIT_ERROR,
) -> IKResult:
    """Joint positions near q0 at which a frame has a target pose.

    Parameters
    ----------
    frame : str
        Frame or body. No joint on its path to the base may be a follower of a coupling.
    target : (4, 4) array
        Pose T_d = [R p; 0 1] of the frame in the world, p in m.
    q0 : (nq,) array
        Initial guess, near a solution. Joints that do not move the frame stay at q0, except for followers.
    form : {"body", "space"}
        Coordinates of twist and Jacobian: frame or world.
    angle_tol, position_tol : float, rad and m
        Tolerances of the pose error.
    max_iter : int
    pinv_tol : float
        Singular values of J below this fraction of the largest are treated as zero.
    rotation_tol : float
        Tolerance of |R^T R − 1|: R is replaced by the nearest rotation; `reason` reports errors above 1e-6.

    Returns
    -------
    IKResult
        False if the target is not reached within the joint limits.

    Raises
    ------
    UnknownName, InvalidInput

    Notes
    -----
    Each step is q ← q ⊕ J† V in the tangent space, with the twist V = log(T⁻¹ T_d); all joint types and floating bases
    are supported. Joint limits do not restrict the steps; they are checked at the end. Angles are first shifted by
    multiples of 2π into their limits, or to within π of q0 if they have none.

    References
    ----------
    Lynch & Park, section 6.2.2; their position error |v| converges to the distance of the origins, which is used here.
    """
    if not isinstance(frame, str) or frame not in model.frames:
        raise UnknownName("frame", frame, model.frames)
    check_among("form", form, ("body", "space"))
    bodies = path(model, model.frame(frame).body)
    followers = [name for name in model.followers if model.joint_index(name) in bodies]
    if followers:
        raise InvalidInput(
            f"frame {frame!r} is carried by {', '.join(map(repr, followers))}, which follow other joints: inverse "
            "kinematics moves each by itself; uncouple them by model.replace(closures=())"
        )
    if not is_count(max_iter, 1):
        raise InvalidInput(f"max_iter is {max_iter!r}; expected an integer ≥ 1")
    for name, size in {"angle_tol": angle_tol, "position_tol": position_tol, "rotation_tol": rotation_tol}.items():
        if not 0.0 < size < math.inf:
            raise InvalidInput(f"{name} is {size!r}; expected a number > 0")
    if not 0.0 <= pinv_tol < 1.0:
        raise InvalidInput(f"pinv_tol is {pinv_tol!r}; expected a fraction of the greatest singular value, ≥ 0 and < 1")
    goal = checked_pose("target", target, rotation_tol, "rotation_tol=…")
    rotation_off = rotation_error(np.asarray(target, dtype=float))
    start = finite_array("q0", q0, (model.nq,))
    for name, values in (("target", goal), ("q0", start)):
        if np.abs(values).max(initial=0.0) > LARGEST_POSITION:
            raise InvalidInput(f"an entry of {name} is {np.abs(values).max()}; expected at most {LARGEST_POSITION:g}")

    dofs = [k for i in bodies for k in range(model.nv)[model.v_slice(i)]]
    evaluate = _error_and_jacobian(model, frame)
    start = model.normalise(start)
    q, iterations, reason = start, 0, ""
    while True:
        error, J = evaluate(q, goal)
        J, V = J[:, dofs], se3_log(error)
        angle, distance = math.hypot(*V[:3]), math.hypot(*error[:3, 3])
        if iterations == 0:
            s = np.linalg.svd(J, compute_uv=False)
            start_rank = int(np.count_nonzero(s > pinv_tol * s[:1]))
        if angle <= angle_tol and distance <= position_tol:
            break
        if not dofs or iterations == max_iter:
            reason = f"no convergence within {max_iter} iterations" if dofs else "no joint carries the frame"
            break
        if form == "space":
            Ad = adjoint(goal @ pose_inverse(error))
            J, V = Ad @ J, Ad @ V
        step = np.zeros(model.nv)
        step[dofs] = pinv(J, pinv_tol) @ V
        moved = _reduced(model, bodies, model.integrate(q, step), start)
        if not np.abs(moved).max(initial=0.0) <= LARGEST_POSITION:
            reason = "the iteration diverged"
            break
        q, iterations = moved, iterations + 1

    at_limit, outside = _limits(model, bodies, q)
    if not reason and outside:
        reason = f"the pose is reached outside the limits of {', '.join(outside)}"
    converged, notes = not reason, [reason] if reason else []
    if start_rank < min(6, len(dofs)):
        notes.append(f"q0 is singular: the Jacobian has rank {start_rank} of {min(6, len(dofs))} there")
    if rotation_off > UNIT_ERROR:
        notes.append(f"the rotation of target was off by {rotation_off:.2g}: the nearest one was taken")
    if not converged:
        notes.append("try another q0")
    q = model.imposed(q.copy())[0]
    return IKResult(frame, q, converged, "; ".join(notes), angle, distance, iterations, start_rank, at_limit)


def pinv(A: ArrayLike, tol: float = 1e-6) -> np.ndarray:
    """Pseudo-inverse A† (…, n, m) of A (…, m, n); singular values below `tol` times the largest are zero.

    References
    ----------
    Lynch & Park, section 6.2.1, with an absolute tolerance, for which the rank depends on the units.
    """
    U, s, Vt = np.linalg.svd(np.asarray(A, dtype=float), full_matrices=False)
    inverse = np.divide(1.0, s, out=np.zeros_like(s), where=s > tol * s[..., :1])
    return np.swapaxes(Vt, -1, -2) * inverse[..., None, :] @ np.swapaxes(U, -1, -2)


@lru_cache(maxsize=CACHED_FRAMES)
def _error_and_jacobian(model: Model, frame: str) -> Function:
    """Compiled function (q (nq,), target T_d (4, 4)) → (T⁻¹ T_d (4, 4), J (6, nv) in frame coordinates)."""
    return compile_function(partial(_pose_error, model, frame), {"q": (model.nq,), "target": (4, 4)})


def _pose_error(model: Model, frame: str, q: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    T, J = pose_and_jacobian(model, q, frame)
    return pose_inverse(T) @ target, J


def _reduced(model: Model, bodies: list[int], q: np.ndarray, q0: np.ndarray) -> np.ndarray:
    """Shift angles by multiples of 2π into their limits, or to within π of q0 if they have none."""
    for i in bodies:
        joint, place, dof = model.joints[i], model.q_slice(i).start, model.v_slice(i).start
        for k in joint.angles:
            lower, upper, x = model.lower[dof + k], model.upper[dof + k], q[place + k]
            if math.isinf(lower) and math.isinf(upper):
                turns = -round((x - q0[place + k]) / TURN)
            else:
                turns = max(0.0, math.ceil((lower - x) / TURN)) - max(0.0, math.ceil((x - upper) / TURN))
            q[place + k] += TURN * turns
    return q


def _limits(model: Model, bodies: list[int], q: np.ndarray) -> tuple[tuple[str, ...], list[str]]:
    """(names of the degrees of freedom at or beyond a limit, names of those beyond)."""
    at, outside = [], []
    for i in bodies:
        if model.joints[i].nv == model.joints[i].nq == 1:
            k, x = model.v_slice(i).start, q[model.q_slice(i).start]
            if x <= model.lower[k] or x >= model.upper[k]:
                at.append(model.dof_names[k])
            if x < model.lower[k] or x > model.upper[k]:
                outside.append(model.dof_names[k])
    return tuple(at), outside
