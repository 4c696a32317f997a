"""Velocity and position errors of contacts, loops and couplings, and warnings of states that violate them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from sysdyn.errors import PlausibilityWarning, few, warn
from sysdyn.frameworks.function import compile_function
from sysdyn.measurements.constraints import Contact, FrameConstraint, JointCoupling, LoopJoint, Stabilised
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

    def greatest(self, x: np.ndarray) -> list[tuple[float, str, int]]:
        """(greatest norm over the states, unit, state) of x (N, m), for each unit."""
        return [(float(norm.max()), unit, int(np.argmax(norm))) for unit, norm in self.norms(x)]


def constraint_errors(
    problem: Problem, q: np.ndarray, qd: np.ndarray | None = None, inactive: Sequence[Constraint] = ()
) -> dict[Stabilised, ConstraintErrors]:
    """Errors of the constraints at q (N, nq), q̇ (N, nv; default zero); inactive: omitted redundant constraints.

    Errors of couplings use q and q̇ verbatim; all other errors use followers that are computed from their leaders.
    """
    qd = np.zeros((len(q), problem.model.nv)) if qd is None else qd
    stated = [m for m in (*problem.constraints, *inactive) if isinstance(m, Stabilised) and m.noise is None]
    if not stated:
        return {}
    model = problem.model
    angular = [np.array([x.startswith(("n", "torque")) for x in m.wrench(model)]) for m in stated]

    def errors(q: np.ndarray, qd: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        verbatim, imposed = Context.at(model, q, qd), Context.at(model, *problem.imposed(q, qd))
        pairs = [m.error(verbatim if isinstance(m, JointCoupling) else imposed) for m in stated]
        cosines = [m.cosine(imposed) if isinstance(m, FrameConstraint) else 1.0 for m in stated]
        e, rates = (np.concatenate(x) for x in zip(*pairs, strict=True))
        return e, rates, np.array(cosines, dtype=object)

    sizes = {"q": (model.nq,), "qd": (model.nv,)}
    names = tuple(m.name for m in stated)
    e, rates, cosines = problem.cached(("errors", names), lambda: compile_function(errors, sizes, level=1))(q, qd)
    ends = np.cumsum([len(x) for x in angular])[:-1]
    by_constraint = {}
    for m, x, rate, cosine, part in zip(
        stated, np.split(e, ends, axis=-1), np.split(rates, ends, axis=-1), cosines.T, angular, strict=True
    ):
        if isinstance(m, FrameConstraint):  # from sines of angles to angles
            sine = np.linalg.norm(x[:, part], axis=-1)
            angle = np.arctan2(sine, cosine)
            x = x.copy()
            x[:, part] *= (angle / np.where(sine > 0.0, sine, 1.0))[:, None]
            if part.any():  # at an angle of π the sine is zero and the axis arbitrary
                x[:, np.argmax(part)] += np.where(sine > 0.0, 0.0, angle)
        by_constraint[m] = ConstraintErrors(x, rate, part)
    return by_constraint


def constraint_velocities(
    problem: Problem, q: np.ndarray, qd: np.ndarray, inactive: Sequence[Constraint] = ()
) -> dict[str, np.ndarray]:
    """{constraint: (N, m)} velocities [m/s, rad/s] of its components at q (N, nq), q̇ (N, nv)."""
    return {m.name: x.rate for m, x in constraint_errors(problem, q, qd, inactive).items()}


def constraint_gaps(
    problem: Problem, q: np.ndarray, inactive: Sequence[Constraint] = ()
) -> dict[str, np.ndarray]:  # fmt: skip
    """{constraint: (N, m)} gaps [m, rad] of its components at q (N, nq); contacts without `at=` have none."""
    errors = constraint_errors(problem, q, inactive=inactive).items()
    return {m.name: x.gap for m, x in errors if not (isinstance(m, Contact) and m.at is None)}


def warn_if_moving(
    problem: Problem, q: np.ndarray, qd: np.ndarray, driven: Collection[str] = (), what: str = "state"
) -> None:
    """Warn of constraints that the motion violates, with their greatest speed.

    q (N, nq), qd (N, nv); driven: names of constraints that may move. what: name of a state in the message.
    """
    if not qd.any():
        return
    words = []
    followers = {link.coupling for link in problem.couplings}
    for m, x in constraint_errors(problem, q, qd).items():
        if m.name in driven or getattr(m, "coupling", None) in followers:
            continue
        for speed, unit, worst in x.greatest(x.rate):
            if speed > SPEED_TOL:
                words.append(f"{m.name!r} by {speed:.3g} {unit}/s{_at(what, worst, len(q))}")
    if words:
        warn(
            f"constraints move that hold the robot: {few(words)}. They hold accelerations, so that it goes on "
            "until stabilise= has taken it out; sd.impact(problem)(q, qd).qd are velocities that they allow",
            PlausibilityWarning,
        )


def warn_of_gaps(
    problem: Problem, q: np.ndarray, what: str = "state", numbers: np.ndarray | None = None
) -> str:  # fmt: skip
    """Warn of loops and couplings that are open at q (N, nq), and return the message; empty if all are closed.

    Couplings of the model are always closed, because their followers are computed. what, numbers: name and numbers of
    the states in the message.
    """
    if not (stated := _closures(problem)):
        return ""
    errors = constraint_errors(problem, q)
    words, worst = [], (0.0, 0)
    for m in stated:
        for gap, unit, state in errors[m].greatest(errors[m].gap):
            if gap > GAP_TOL:
                number = state if numbers is None else int(numbers[state])
                words.append(f"{m.name!r} by {gap:.3g} {unit}{_at(what, number, len(q))}")
                worst = max(worst, (gap, state))
    if not words:
        return ""
    least = _least_gap(problem, stated, q[worst[1]])
    message = f"closures are open: {few(words)}"
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
    words, imposed = [], problem.imposed(q, qd)
    for link in problem.couplings:
        for name, x, y, k in zip(("q", "qd"), (q, qd), imposed, (link.q, link.v), strict=True):
            stated, demanded = (z.ravel() for z in np.broadcast_arrays(x[..., k], y[..., k]))
            off = np.where(stated != 0.0, np.abs(stated - demanded), 0.0)
            worst = int(np.argmax(off))
            if off[worst] > GAP_TOL:
                of = f"that of {link.coupling.leader!r}" if link.coupling.leader else "its coupling"
                words.append(
                    f"{name} of {link.coupling.joint!r} is {stated[worst]:.4g}{_at(what, worst, off.size)}, but {of} "
                    f"demands {demanded[worst]:.4g}"
                )
    if words:
        warn(
            f"{few(words, between='; ')}: the demanded values are used; model.imposed(q, qd) returns them",
            PlausibilityWarning,
        )
    return bool(words)


def warn_if_opened(problem: Problem, q: np.ndarray, t: np.ndarray) -> None:
    """Warn of loops and couplings without stabilise= whose gap has grown along recorded states q (K, N, nq) at t (K,).

    NaN states are ignored.
    """
    unstabilised = [m for m in _closures(problem) if m.stabilise is None]
    if not unstabilised:
        return
    flat = q.reshape(-1, q.shape[-1])
    fine = np.isfinite(flat).all(axis=1)
    if not fine.any():
        return
    flat = np.where(fine[:, None], flat, flat[np.argmax(fine)])
    errors, words = constraint_errors(problem, flat), []
    for m in unstabilised:
        for unit, norm in errors[m].norms(errors[m].gap):
            size = np.where(fine, norm, 0.0).reshape(q.shape[:2])
            grown = size - size[0]
            k, robot = np.unravel_index(int(np.argmax(grown)), grown.shape)
            if size[k, robot] > GAP_TOL and grown[k, robot] > GAP_TOL:
                at = _at("robot", int(robot), q.shape[1])
                words.append(
                    f"{m.name!r} from {size[0, robot]:.3g} to {size[k, robot]:.3g} {unit} at t = {t[k]:.4g} s{at}"
                )
    if words:
        warn(
            f"closures have opened: {few(words)}. Nothing corrects the drift: set stabilise=, or take a smaller step",
            PlausibilityWarning,
        )


def _closures(problem: Problem) -> list[Stabilised]:
    """Constraints that may be open: loops, and couplings that the model does not impose."""
    followers = {link.coupling for link in problem.couplings}
    return [
        m for m in problem.constraints
        if isinstance(m, LoopJoint) or (isinstance(m, JointCoupling) and m.coupling not in followers)
    ]  # fmt: skip


def _least_gap(problem: Problem, stated: Sequence[Stabilised], q: np.ndarray) -> float:
    """Least norm of all gaps by nonlinear least squares, started from q (nq,) and from random states."""
    from scipy.optimize import least_squares  # slow to import, and rarely needed

    model = problem.model

    def gap(v: np.ndarray, start: np.ndarray) -> np.ndarray:
        errors = constraint_errors(problem, model.integrate(start, v)[None])
        return np.concatenate([errors[m].gap[0] for m in stated])

    least = np.inf
    for start in (q, *model.random_state(seed=0, batch=RANDOM_STARTS)[0]):
        least = min(least, float(np.linalg.norm(least_squares(gap, np.zeros(model.nv), args=(start,)).fun)))
        if least <= GAP_TOL:
            break
    return least


def _at(what: str, state: int, n: int) -> str:
    return f" ({what} {state})" if n > 1 else ""
