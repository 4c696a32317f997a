"""Velocity and position errors of contacts, loops and couplings, and warnings of states that violate them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sysdyn.errors import PlausibilityWarning, few, warn
from sysdyn.frameworks.function import compile_function
from sysdyn.measurements.constraints import FrameConstraint, JointCoupling, LoopJoint, Stabilised
from sysdyn.measurements.measurement import Constraint, Context
from sysdyn.measurements.problem import Problem

# Speed [m/s, rad/s] of a constraint above which the motion violates it (chosen).
SPEED_TOL = 1e-3
# Gap [m, rad] of a loop or coupling above which it counts as open (files round anchors to 1e-4 or less).
GAP_TOL = 1e-3
# Random initial positions of the search for closed loops (chosen).
RANDOM_STARTS = 8


class ConstraintErrors(NamedTuple):
    """Errors of one constraint: gap [m, rad] (N, m), its rate (N, m), and angular (m,), True for rotations."""

    gap: np.ndarray
    rate: np.ndarray
    angular: np.ndarray

    def norms(self, x: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """(unit, (N,) norms) of the linear and the angular part of x (N, m)."""
        parts = ("m", ~self.angular), ("rad", self.angular)
        return [(unit, np.linalg.norm(x[:, part], axis=1)) for unit, part in parts]

    def violations(self, x: np.ndarray, tolerance: float) -> Iterator[tuple[float, str, int]]:
        """(greatest norm over the states, unit, state) of the parts of x (N, m) that exceed the tolerance."""
        for unit, norm in self.norms(x):
            worst = int(np.argmax(norm))
            if norm[worst] > tolerance:
                yield float(norm[worst]), unit, worst


def constraint_errors(
    problem: Problem, q: np.ndarray, qd: np.ndarray | None = None, inactive: Sequence[Constraint] = ()
) -> dict[Stabilised, ConstraintErrors]:
    """Errors of the constraints at q (N, nq), q̇ (N, nv; default zero); inactive: omitted redundant constraints.

    Errors of couplings use q and q̇ verbatim; all other errors use followers that are computed from their leaders.
    """
    qd = np.zeros((len(q), problem.model.nv)) if qd is None else qd
    constraints = [m for m in (*problem.constraints, *inactive) if isinstance(m, Stabilised) and m.noise is None]
    if not constraints:
        return {}
    model = problem.model
    angular = [np.array([x.startswith(("n", "torque")) for x in m.wrench(model)]) for m in constraints]

    def errors(q: np.ndarray, qd: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        verbatim, imposed = Context.at(model, q, qd), Context.at(model, *problem.imposed(q, qd))
        pairs = [m.error(verbatim if isinstance(m, JointCoupling) else imposed) for m in constraints]
        cosines = [m.cosine(imposed) if isinstance(m, FrameConstraint) else 1.0 for m in constraints]
        gaps, rates = (np.concatenate(x) for x in zip(*pairs, strict=True))
        return gaps, rates, np.array(cosines, dtype=object)

    sizes = {"q": (model.nq,), "qd": (model.nv,)}
    key = "errors", tuple(m.name for m in constraints)
    gaps, rates, cosines = problem.cached(key, lambda: compile_function(errors, sizes, level=1))(q, qd)
    ends = np.cumsum([len(x) for x in angular])[:-1]
    by_constraint = {}
    for m, gap, rate, cosine, part in zip(
        constraints, np.split(gaps, ends, axis=-1), np.split(rates, ends, axis=-1), cosines.T, angular, strict=True
    ):
        if isinstance(m, FrameConstraint):
            gap = _with_angles(gap, part, cosine)
        by_constraint[m] = ConstraintErrors(gap, rate, part)
    return by_constraint


def _with_angles(gap: np.ndarray, angular: np.ndarray, cosine: np.ndarray) -> np.ndarray:
    """Position errors (N, m) of a constraint with rotation vectors, angle · axis, instead of sine · axis.

    angular (m,) bool: angular components of `gap`. cosine (N,): of the rotation error.
    """
    gap, sine = gap.copy(), np.linalg.norm(gap[:, angular], axis=-1)
    angle = np.arctan2(sine, cosine)
    gap[:, angular] *= (angle / np.where(sine > 0.0, sine, 1.0))[:, None]
    if angular.any():  # at an angle of π the sine is zero and the axis arbitrary
        gap[:, np.argmax(angular)] += np.where(sine > 0.0, 0.0, angle)
    return gap


def warn_if_moving(
    problem: Problem, q: np.ndarray, qd: np.ndarray, driven: Collection[str] = (), what: str = "state"
) -> None:
    """Warn of constraints that the motion violates, with their greatest speed.

    q (N, nq), qd (N, nv); driven: names of constraints that may move. what: name of a state in the message.
    """
    if not qd.any():
        return
    followers = {link.coupling for link in problem.couplings}
    moving = [
        f"{m.name!r} by {speed:.3g} {unit}/s{_at(what, state, len(q))}"
        for m, x in constraint_errors(problem, q, qd).items()
        if m.name not in driven and getattr(m, "coupling", None) not in followers
        for speed, unit, state in x.violations(x.rate, SPEED_TOL)
    ]
    if moving:
        warn(
            f"the motion violates constraints: {few(moving)}. They fix accelerations only, so the velocity remains "
            "until stabilise= has removed it; sd.impact(problem)(q, qd).qd are velocities that they allow",
            PlausibilityWarning,
        )


def warn_of_gaps(problem: Problem, q: np.ndarray, what: str = "state", numbers: np.ndarray | None = None) -> str:
    """Warn of loops and couplings that are open at q (N, nq), and return the message; empty if all are closed.

    Couplings of the model are always closed, because their followers are computed. what, numbers: name and numbers of
    the states in the message.
    """
    if not (closures := _closures(problem)):
        return ""
    errors, gaps, widest = constraint_errors(problem, q), [], (0.0, 0)
    for m in closures:
        for gap, unit, state in errors[m].violations(errors[m].gap, GAP_TOL):
            number = state if numbers is None else int(numbers[state])
            gaps.append(f"{m.name!r} by {gap:.3g} {unit}{_at(what, number, len(q))}")
            widest = max(widest, (gap, state))
    if not gaps:
        return ""
    least = _least_gap(problem, closures, q[widest[1]])
    message = f"closures are open: {few(gaps)}"
    if least > GAP_TOL:
        message += f". They cannot close: no position was found at which their gap is less than {least:.3g} (m, rad)"
    else:
        message += ", and the problem fixes their accelerations only. Start from a q at which solution.gaps() is zero"
    warn(message, PlausibilityWarning)
    return message


def warn_of_followers(problem: Problem, q: np.ndarray, qd: np.ndarray, what: str = "state") -> bool:
    """Warn of followers whose entries of q (…, nq) and q̇ (…, nv) contradict their leaders; True if there are any.

    Entries that are zero count as omitted.
    """
    if not problem.couplings:
        return False
    contradictions, imposed = [], problem.imposed(q, qd)
    for link in problem.couplings:
        for name, x, y, k in zip(("q", "qd"), (q, qd), imposed, (link.q, link.v), strict=True):
            value, required = (z.ravel() for z in np.broadcast_arrays(x[..., k], y[..., k]))
            error = np.where(value != 0.0, np.abs(value - required), 0.0)
            worst = int(np.argmax(error))
            if error[worst] > GAP_TOL:
                source = f"that of {link.coupling.leader!r}" if link.coupling.leader else "its coupling"
                contradictions.append(
                    f"{name} of {link.coupling.joint!r} is {value[worst]:.4g}{_at(what, worst, error.size)}, but "
                    f"{source} requires {required[worst]:.4g}"
                )
    if contradictions:
        warn(
            f"{few(contradictions, between='; ')}: the required values are used; model.imposed(q, qd) returns them",
            PlausibilityWarning,
        )
    return bool(contradictions)


def warn_if_opened(problem: Problem, q: np.ndarray, t: np.ndarray) -> None:
    """Warn of loops and couplings without stabilise= whose gap has grown along recorded states q (K, N, nq) at t (K,).

    NaN states are ignored.
    """
    unstabilised = [m for m in _closures(problem) if m.stabilise is None]
    flat = q.reshape(-1, q.shape[-1])
    finite = np.isfinite(flat).all(axis=1)
    if not unstabilised or not finite.any():
        return
    errors, opened = constraint_errors(problem, np.where(finite[:, None], flat, flat[np.argmax(finite)])), []
    for m in unstabilised:
        for unit, norm in errors[m].norms(errors[m].gap):
            gap = np.where(finite, norm, 0.0).reshape(q.shape[:2])
            growth = gap - gap[0]
            k, robot = np.unravel_index(int(np.argmax(growth)), growth.shape)
            if min(gap[k, robot], growth[k, robot]) > GAP_TOL:
                where = f"at t = {t[k]:.4g} s{_at('robot', int(robot), q.shape[1])}"
                opened.append(f"{m.name!r} from {gap[0, robot]:.3g} to {gap[k, robot]:.3g} {unit} {where}")
    if opened:
        warn(
            f"closures have opened: {few(opened)}. Nothing corrects the drift: set stabilise=, or take a smaller step",
            PlausibilityWarning,
        )


def _closures(problem: Problem) -> list[Stabilised]:
    """Constraints that may be open: loops, and couplings that the model does not impose."""
    followers = {link.coupling for link in problem.couplings}
    return [
        m for m in problem.constraints
        if isinstance(m, LoopJoint) or (isinstance(m, JointCoupling) and m.coupling not in followers)
    ]  # fmt: skip


def _least_gap(problem: Problem, closures: Sequence[Stabilised], q: np.ndarray) -> float:
    """Least norm of all gaps by nonlinear least squares, started from q (nq,) and from random states."""
    from scipy.optimize import least_squares  # slow to import, and rarely needed

    model, least = problem.model, np.inf

    def gap(v: np.ndarray, start: np.ndarray) -> np.ndarray:
        errors = constraint_errors(problem, model.integrate(start, v)[None])
        return np.concatenate([errors[m].gap[0] for m in closures])

    for start in (q, *model.random_state(seed=0, batch=RANDOM_STARTS)[0]):
        least = min(least, float(np.linalg.norm(least_squares(gap, np.zeros(model.nv), args=(start,)).fun)))
        if least <= GAP_TOL:
            break
    return least


def _at(what: str, state: int, n: int) -> str:
    return f" ({what} {state})" if n > 1 else ""
