"""Inverse kinematics: joint positions that bring a frame to a pose, by Newton's method, damped or as in the textbook.

The error is the twist V = log(T⁻¹ T_d) that takes the frame from its pose T to the target T_d in unit time, in
coordinates of the frame. A step δ of the joint velocities, applied as q ⊕ δ, solves J δ = V in some sense: that is the
method. Pose and Jacobian are compiled once for a model and a frame. Lynch & Park, Modern Robotics, section 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.frameworks.function import compile_function
from sysdyn.model import Model
from sysdyn.model.constants import UNIT_ERROR
from sysdyn.model.joints import Joint
from sysdyn.model.kinematics import path, pose_and_jacobian
from sysdyn.model.se3 import adjoint, checked_pose, interpolate, pose_inverse, rotation_error, se3_log, translation
from sysdyn.program.arrays import float_array, is_count

DAMPING = 0.1  # Least and first damping of the method "damped", in multiples of the squared error (chosen).
# Factors of the damping after a step that does not help, and after one that does (chosen).
GROWTH, DECAY = 4.0, 0.5
# Least fall of the squared error for a step to be taken, as a fraction of the fall by the step's linear model (chosen).
LEAST_GAIN = 0.1
# Limits of the damping, in multiples of the mean of the diagonal of A A^T (chosen).
LEAST_DAMPING, MOST_DAMPING = 1e-12, 1e6
STALL = 8  # Number of steps over which progress is measured (chosen).
# Most of the squared error that STALL steps may leave, with other starts to try and without (chosen).
PROGRESS, LAST_PROGRESS = 0.5, 0.999
LEAST_STEP = 1e-9  # Step [rad] below which steps that do not help are not made smaller (chosen).
CHAINS = 64  # Number of compiled chains of joints that are kept (chosen).
LARGEST_POSITION = 1e8  # Greatest angle [rad] and length [m] that is accepted (chosen).
TURN = 2.0 * math.pi  # A whole turn [rad].
# The reason of a search that ends without a solution.
STUCK = "the error stopped falling: a local minimum, or the target is out of reach"


@dataclass(frozen=True, eq=False, repr=False)
class IKResult:
    """Result of `inverse_kinematics`. True if the target is reached.

    frame: that was to be moved. q (nq,): the solution, or the best position found where there is none; angles without
        limits are within half a turn of those of q0.
    converged: at q, evaluated afresh, the errors are within the tolerances and all joints within their limits.
    reason: why there is no solution and what to try, and what else there is to know; empty if nothing.
    angle_error [rad], position_error [m]: angle of the rotation from the frame at q to the target, and distance of
        their origins.
    iterations: steps taken, of all starts and waypoints together. restarts: random starts made after q0.
    start_rank: rank of the Jacobian at q0; None for the damped method, which does not need it.
    at_limit: names of the joints that are at a limit in q.
    """

    frame: str
    q: np.ndarray
    converged: bool
    reason: str
    angle_error: float
    position_error: float
    iterations: int
    restarts: int
    start_rank: int | None
    at_limit: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.converged

    def __repr__(self) -> str:
        spent = _counted(self.iterations, "iteration")
        if self.restarts:
            spent += f" and {_counted(self.restarts, 'restart')}"
        lines = [
            f"frame {self.frame!r} {'reached' if self.converged else 'NOT reached'} after {spent}",
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
    method: str = "damped",
    angle_tol: float = 1e-8,
    position_tol: float = 1e-8,
    max_iter: int = 100,
    restarts: int = 0,
    seed: int = 0,
    waypoints: int = 1,
    length: float | None = None,
    pinv_tol: float = 1e-6,
    rotation_tol: float = UNIT_ERROR,
) -> IKResult:
    """Joint positions at which the frame called `frame` is at the pose `target`, searched from q0.

    target (4, 4): T_d = [R p; 0 1], the wanted placement of the frame in the world.
    q0 (nq,): the start. Joints that do not carry the frame stay as they are in it, or follow those that do; none that
        carries it may follow another.
    method "damped": Levenberg-Marquardt, from singular and far starts too, and within the limits of the joints. With
        r = [ω; p], the rotation vector and the displacement from the frame to the target, |W r| falls with every step,
        κ grows where one would not help, and a target out of reach is approached as near as this norm measures:

            min over δ of |W (J δ − r)|² + κ |W r|² |δ|²,  W = diag(l, l, l, 1, 1, 1), lower ≤ q ⊕ δ ≤ upper

    method "newton-body", "newton-space": δ = J† V with Jacobian and twist in coordinates of the frame or of the world,
        as in the textbook: nothing keeps the steps small or within the limits, which are looked at in the end.
    angle_tol [rad], position_tol [m]: errors up to which the target counts as reached.
    max_iter: steps for each start and waypoint.
    restarts: random starts within the limits (where there is none: ±π), drawn with `seed`, until one leads there.
    waypoints: so many poses, evenly spaced on the screw motion from the pose at the start to the target, are reached
        one after the other, each from the solution for the one before.
    length [m]: l, the distance that weighs as much as 1 rad; by default a third of the length of the chain.
    rotation_tol: the rotation R of a target that was written with few digits is replaced by the nearest one where
        |R^T R − 1| is not beyond this; `reason` says by how much it was off where that is more than 1e-6.
    pinv_tol: singular values of J below this fraction of the greatest count as zero (in J† and in `start_rank`).

    All joint types and floating bases: steps are taken in the tangent space. The target not being reached is no error,
    the result says it. Raises UnknownName and InvalidInput.
    Lynch & Park section 6.2.2; our position error is the distance of the origins, to which their |v| tends. Damping in
    proportion to the squared error as Sugihara (2011); its growth, limits and the end of hopeless searches are ours.
    """
    if not isinstance(frame, str) or frame not in model.frames:
        raise UnknownName("frame", frame, model.frames)
    check_among("method", method, METHODS)
    carrying = {model.joint_names[i] for i in path(model, model.frame(frame).body)}
    if led := [name for name in model.followers if name in carrying]:
        raise InvalidInput(
            f"frame {frame!r} is carried by {', '.join(map(repr, led))}, which follow other joints: inverse kinematics "
            "moves each by itself; uncouple them by model.replace(closures=())"
        )
    _check_sizes(rotation_tol=rotation_tol)
    given, target = target, checked_pose("target", target, rotation_tol, "rotation_tol=…")
    q0 = _checked_start(model, q0)
    _check_largest("target", target)
    chain = _chain(model, frame)
    length = chain.length if length is None else length
    _check_counts(max_iter=(max_iter, 1), restarts=(restarts, 0), waypoints=(waypoints, 1))
    _check_sizes(angle_tol=angle_tol, position_tol=position_tol, length=length)
    if not 0.0 <= pinv_tol < 1.0:
        raise InvalidInput(f"pinv_tol is {pinv_tol!r}; expected a fraction of the greatest singular value, ≥ 0 and < 1")

    progress = PROGRESS if restarts else LAST_PROGRESS
    search = _Search(
        chain, angle_tol=angle_tol, position_tol=position_tol, max_iter=max_iter, length=length, pinv_tol=pinv_tol,
        progress=progress,
    )  # fmt: skip
    best = search.attempt(METHODS[method], q0, target, waypoints, q0)
    rng, tried = np.random.default_rng(seed), 0
    while not best.solved and tried < restarts:
        tried += 1
        attempt = search.attempt(METHODS[method], chain.random(rng, q0), target, waypoints, q0)
        best = min(best, attempt, key=lambda found: found.size)

    notes = [best.reason] if best.reason else []
    if (off := rotation_error(np.asarray(given, dtype=float))) > UNIT_ERROR:
        notes.append(f"the rotation of target was off by {off:.2g}: the nearest one was taken")
    if method == "damped":
        start_rank, remedy = None, "another q0" if restarts else "restarts=20"
        if chain.outside(q0):
            notes.append(f"q0 was moved into the limits of {', '.join(chain.outside(q0))}")
    else:
        start_rank, remedy = search.rank_at(q0), 'method="damped"'
        if start_rank < min(6, chain.nv):
            notes.append(f"q0 is singular: the Jacobian has rank {start_rank} of {min(6, chain.nv)} there")
    if not best.solved:
        notes.append(f"try {remedy}")
    return IKResult(
        frame=frame,
        q=model.imposed(best.q)[0],
        converged=best.solved,
        reason="; ".join(notes),
        angle_error=best.angle,
        position_error=best.distance,
        iterations=search.iterations,
        restarts=tried,
        start_rank=start_rank,
        at_limit=chain.at_limit(best.q),
    )


def pinv(A: ArrayLike, tol: float = 1e-6) -> np.ndarray:
    """A† (…, n, m), the pseudo-inverse of A (…, m, n); singular values below `tol` times the greatest count as zero.

    A† b is the shortest of the vectors x that make |A x − b| least. Lynch & Park section 6.2.1. The text's tolerance is
    absolute, which makes the rank a matter of units.
    """
    U, s, Vt = np.linalg.svd(np.asarray(A, dtype=float), full_matrices=False)
    inverse = np.divide(1.0, s, out=np.zeros_like(s), where=s > tol * s[..., :1])
    return np.swapaxes(Vt, -1, -2) * inverse[..., None, :] @ np.swapaxes(U, -1, -2)


# ---- the methods: each moves `search` to its target and returns "", or why it cannot -------------------------------


def _newton(search: _Search, space: bool) -> str:
    """δ = J† V. Lynch & Park section 6.2.2."""
    search.evaluate()
    for _ in range(search.max_iter):
        if search.reached:
            return ""
        J, V = search.J, search.V
        if space:
            Ad = adjoint(search.target @ pose_inverse(search.error))
            J, V = Ad @ J, Ad @ V
        search.move(search.q.copy(), pinv(J, search.pinv_tol) @ V)
        search.evaluate()
        if not math.isfinite(search.angle + search.distance):
            return "diverged"
    return search.exhausted()


def _damped(search: _Search) -> str:
    """Levenberg-Marquardt with A = W J and e = W r, each degree of freedom in rad or in units of l.

    A^T e is the exact gradient of −|e|²/2, also far from the target, where J is not the Jacobian of log(T⁻¹ T_d): more
    damping, κ |e|², turns the step towards it and shortens it until it helps.
    """
    chain = search.chain
    W = np.array([search.length] * 3 + [1.0] * 3)
    unit = np.where(chain.angular, 1.0, search.length)
    weight = W[:, None] * unit
    chain.hold(search.q)
    search.evaluate()
    if search.reached:
        return ""
    growth, e = DAMPING, W * search.displacement()
    errors = [float(e @ e)]
    q, A = search.q.copy(), weight * search.J
    for _ in range(search.max_iter):
        low, high = chain.room(q)
        scale = float(np.vdot(A, A)) / 6
        step = _bounded_step(A, e, growth * errors[-1] + LEAST_DAMPING * scale, low / unit, high / unit)
        search.move(q, unit * step)
        chain.hold(search.q)
        search.evaluate()
        e_new, left = W * search.displacement(), e - A @ step
        error, expected = float(e_new @ e_new), max(0.0, errors[-1] - float(left @ left))
        if error < errors[-1] - LEAST_GAIN * expected:
            if search.reached:
                return ""
            errors.append(error)
            if len(errors) > STALL and error > search.progress * errors[-1 - STALL]:
                return STUCK
            growth = max(DECAY * growth, DAMPING)
            e, q, A = e_new, search.q.copy(), weight * search.J
        else:
            growth *= GROWTH
            search.q[:] = q
            if growth * errors[-1] > MOST_DAMPING * scale or np.abs(step).max() < LEAST_STEP:
                return STUCK
    return search.exhausted()


def _bounded_step(A: np.ndarray, e: np.ndarray, damping: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """δ (m,) that makes |A δ − e|² + damping |δ|² small within low ≤ δ ≤ high (which allow 0).

    Freedoms that the least of it would take out of the box stop at its side, and the others make up for them. It is
    the least within the box unless one that was stopped ought to come back.
    """
    step = _least_squares(A, e, damping)
    stopped = (step < low) | (step > high)
    if not stopped.any():
        return step
    step = np.minimum(np.maximum(step, low), high)
    while not stopped.all():
        free = np.flatnonzero(~stopped)
        part = _least_squares(A[:, free], e - A[:, stopped] @ step[stopped], damping)
        step[free] = np.minimum(np.maximum(part, low[free]), high[free])
        out = step[free] != part
        if not out.any():
            break
        stopped[free[out]] = True
    return step


def _least_squares(A: np.ndarray, e: np.ndarray, damping: float) -> np.ndarray:
    """(A^T A + damping 1)⁻¹ A^T e = A^T (A A^T + damping 1)⁻¹ e, by the smaller matrix."""
    rows, columns = A.shape
    N = A @ A.T if rows <= columns else A.T @ A
    N.ravel()[:: len(N) + 1] += damping
    return A.T @ np.linalg.solve(N, e) if rows <= columns else np.linalg.solve(N, A.T @ e)


# The methods of `inverse_kinematics`.
METHODS: dict[str, Callable[[_Search], str]] = {
    "damped": _damped,
    "newton-body": partial(_newton, space=False),
    "newton-space": partial(_newton, space=True),
}


# ---- one search and what it moves ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attempt:
    """The end of a search from one start: `size` is the error as a length, 0 if solved, infinite outside the limits."""

    q: np.ndarray
    solved: bool
    reason: str
    angle: float
    distance: float
    size: float


class _Search:
    """A position q of the model, the target, and the error between them.

    error (4, 4): T⁻¹ T_d; J (6, m): Jacobian of the chain's degrees of freedom, both rewritten by `evaluate`; V =
    log(error); angle [rad] and distance [m] of the error. iterations: calls of `move`.
    """

    def __init__(
        self,
        chain: _Chain,
        *,
        angle_tol: float,
        position_tol: float,
        max_iter: int,
        length: float,
        pinv_tol: float,
        progress: float,
    ):
        self.chain, self.length, self.pinv_tol, self.progress = chain, length, pinv_tol, progress
        self.angle_tol, self.position_tol, self.max_iter = angle_tol, position_tol, max_iter
        self.q, self.target = np.zeros(chain.nq), np.eye(4)
        self._step = chain.function.bind(self.q, self.target)
        self.error, self.J = self._step.out
        self.iterations = 0

    def evaluate(self) -> None:
        self._step()
        self.V = se3_log(self.error)
        self.angle = math.hypot(*self.V[:3].tolist())
        self.distance = math.hypot(*self.error[:3, 3].tolist())

    def displacement(self) -> np.ndarray:
        """r = [ω; p] (6,) from the frame to the target, in coordinates of the frame."""
        return np.concatenate([self.V[:3], self.error[:3, 3]])

    @property
    def reached(self) -> bool:
        return self.angle <= self.angle_tol and self.distance <= self.position_tol

    def move(self, q: np.ndarray, step: np.ndarray) -> None:
        self.iterations += 1
        self.chain.move(q, step, self.q)

    def rank_at(self, q: np.ndarray) -> int:
        self.q[:] = q
        self.evaluate()
        s = np.linalg.svd(self.J, compute_uv=False)
        return int(np.count_nonzero(s > self.pinv_tol * s[:1]))

    def exhausted(self) -> str:
        return f"no convergence within {_counted(self.max_iter, 'iteration')}"

    def attempt(
        self,
        descend: Callable[[_Search], str],
        start: np.ndarray,
        target: np.ndarray,
        waypoints: int,
        near: np.ndarray,
    ) -> _Attempt:
        """Follow the screw motion from the pose at `start` to the target, one waypoint after the other.

        near (nq,): angles that are found are those next to its own, but for whole turns.
        """
        self.q[:], self.target[:] = start, target
        self.evaluate()
        first, reason = target @ pose_inverse(self.error), ""
        for k in range(1, waypoints + 1):
            self.target[:] = target if k == waypoints else interpolate(first, target, k / waypoints)
            reason = descend(self) if self.chain.nv else "no joint carries the frame"
            if reason:
                reason = f"waypoint {k} of {waypoints}: {reason}" if waypoints > 1 else reason
                break
        self.target[:] = target
        self.chain.wrap(self.q, near)
        self.evaluate()
        outside = self.chain.outside(self.q)
        if self.reached and outside:
            reason = f"the pose is reached outside the limits of {', '.join(outside)}"
        solved = self.reached and not outside
        size = math.hypot(self.length * self.angle, self.distance)
        size = 0.0 if solved else math.inf if outside or math.isnan(size) else size
        return _Attempt(self.q.copy(), solved, "" if solved else reason, self.angle, self.distance, size)


class _Chain:
    """The joints that carry a frame, in the order of their m degrees of freedom, and the compiled error and Jacobian.

    function(q (nq,), target (4, 4)) → error T⁻¹ T_d (4, 4), J (6, m).
    """

    def __init__(self, model: Model, frame: str):
        bodies = [i for i in reversed(path(model, model.frame(frame).body)) if model.joints[i].nv]
        dofs = np.array([k for i in bodies for k in range(model.nv)[model.v_slice(i)]], dtype=int)
        self.nq, self.nv = model.nq, len(dofs)
        self.function = compile_function(partial(_error, model, frame, dofs), {"q": (model.nq,), "target": (4, 4)})
        self.names = [model.dof_names[k] for k in dofs]
        self.lower, self.upper = model.lower[dofs], model.upper[dofs]
        S = np.concatenate([np.zeros((6, 0)), *(model.joints[i].S for i in bodies)], axis=1)
        self.angular = np.any(S[:3] != 0.0, axis=0)
        self.turning = self.angular & ~np.any(S[3:] != 0.0, axis=0)
        offsets = [model.X_tree[i] for i in path(model, model.frame(frame).body)] + [model.frame(frame).X]
        self.reach = sum(float(np.linalg.norm(translation(X))) for X in offsets) or 1.0
        self.length = self.reach / 3
        self.joints: list[tuple[Joint, slice, slice]] = []  # joint, where in q, where in a step
        entry: list[int] = []  # of q, for each degree of freedom; any one of a joint with several, which has no limits
        for i in bodies:
            joint, part = model.joints[i], model.q_slice(i)
            self.joints.append((joint, part, slice(len(entry), len(entry) + joint.nv)))
            entry += range(part.start, part.start + joint.nv)
        self.entry = np.array(entry, dtype=int)
        self.curved = [x for x in self.joints if type(x[0]).integrate is not Joint.integrate]
        bent = [k for _, _, in_step in self.curved for k in range(self.nv)[in_step]]
        self.straight = np.setdiff1d(np.arange(self.nv), bent)  # degrees of freedom along which q ⊕ δ = q + δ
        self.straight_entry = self.entry[self.straight]
        infinite = np.isinf(self.lower) & np.isinf(self.upper)
        self.unlimited = np.intersect1d(self.straight, np.flatnonzero(infinite & self.turning))

    def move(self, q: np.ndarray, step: np.ndarray, out: np.ndarray) -> None:
        """out = q ⊕ step; other entries of `out` are left as they are."""
        out[self.straight_entry] = q[self.straight_entry] + step[self.straight]
        for joint, in_q, in_step in self.curved:
            out[in_q] = joint.integrate(q[in_q], step[in_step])

    def room(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), each (m,): the steps that reach the limits from q; infinite for joints without a limit."""
        x = q[self.entry]
        return self.lower - x, self.upper - x

    def hold(self, q: np.ndarray) -> None:
        """Put q onto the limits if it is outside."""
        q[self.entry] = np.minimum(np.maximum(q[self.entry], self.lower), self.upper)

    def wrap(self, q: np.ndarray, near: np.ndarray) -> None:
        """Take whole turns off: limited angles into their limits if possible, others to half a turn from `near`."""
        x = q[self.entry]
        turns = np.maximum(0.0, np.ceil((self.lower - x) / TURN)) - np.maximum(0.0, np.ceil((x - self.upper) / TURN))
        turns[self.unlimited] = -np.round((x - near[self.entry])[self.unlimited] / TURN)
        turns[~self.turning] = 0.0
        moved = np.flatnonzero(turns)
        q[self.entry[moved]] += TURN * turns[moved]

    def outside(self, q: np.ndarray) -> list[str]:
        """Names of the joints that are beyond a limit."""
        x = q[self.entry]
        return [self.names[k] for k in np.flatnonzero((x < self.lower) | (x > self.upper))]

    def at_limit(self, q: np.ndarray) -> tuple[str, ...]:
        x = q[self.entry]
        return tuple(self.names[k] for k in np.flatnonzero((x <= self.lower) | (x >= self.upper)))

    def random(self, rng: np.random.Generator, q: np.ndarray) -> np.ndarray:
        """q with the chain's joints anywhere within their limits; joints without limits as by `Joint.random`."""
        q = q.copy()
        for joint, in_q, in_step in self.joints:
            q[in_q] = joint.random(rng)
            if joint.nv == 1:
                q[in_q] = rng.uniform(*self._range(in_step.start))
        return q

    def _range(self, k: int) -> tuple[float, float]:
        low, high = float(self.lower[k]), float(self.upper[k])
        width = TURN if self.angular[k] else 2.0 * self.reach
        if math.isinf(low) and math.isinf(high):
            return -width / 2, width / 2
        return (high - width if math.isinf(low) else low, low + width if math.isinf(high) else high)


@lru_cache(maxsize=CHAINS)
def _chain(model: Model, frame: str) -> _Chain:
    return _Chain(model, frame)


def _error(model: Model, frame: str, dofs: np.ndarray, q: np.ndarray, target: np.ndarray):
    T, J = pose_and_jacobian(model, q, frame)
    return pose_inverse(T) @ target, J[:, dofs]


def _checked_start(model: Model, q0: ArrayLike) -> np.ndarray:
    q0 = np.array(float_array("q0", q0))
    if q0.shape != (model.nq,):
        raise InvalidInput(f"q0 has shape {q0.shape}, but the model needs ({model.nq},): one start, for all its joints")
    _check_largest("q0", q0)
    return model.normalise(q0)


def _check_largest(name: str, values: np.ndarray) -> None:
    usable = np.abs(values) <= LARGEST_POSITION
    if not np.all(usable):
        where = tuple(int(k) for k in np.argwhere(~usable)[0])
        shown = f"{name}{list(where)} is {values[where]}"
        raise InvalidInput(f"{shown}; every entry has to be finite, and at most {LARGEST_POSITION:g} in size")


def _check_counts(**counts: tuple[int, int]) -> None:
    """Each (value, least allowed)."""
    for name, (count, least) in counts.items():
        if not is_count(count, least):
            raise InvalidInput(f"{name} is {count!r}; expected an integer ≥ {least}")


def _check_sizes(**sizes: float) -> None:
    for name, size in sizes.items():
        if not 0.0 < size < math.inf:
            raise InvalidInput(f"{name} is {size!r}; expected a number > 0")


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
