"""Velocities and gaps of contacts, loops and couplings at a state, and warnings of states that contradict them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from sysdyn.errors import PlausibilityWarning, few, warn
from sysdyn.frameworks.function import compile_function
from sysdyn.measurements.constraints import Contact, FrameConstraint, JointCoupling, LoopJoint, Stabilised
from sysdyn.measurements.measurement import Constraint, Context
from sysdyn.measurements.statement import Statement

# Speed [m/s, rad/s] of a constraint above which a motion does not go on as it says (chosen).
MOVES = 1e-3
# Gap [m, rad] of a loop or coupling above which it counts as open (chosen: files round anchors to 1e-4 or less).
OPEN = 1e-3
# Random starts of the search for a position that closes all loops, in addition to the given one (chosen).
SEARCHES = 8


class _Errors(NamedTuple):
    """Errors of one constraint: gap [m, rad] (N, m), its rate (N, m), and angular (m,), True for rotations."""

    gap: np.ndarray
    rate: np.ndarray
    angular: np.ndarray

    def greatest(self, x: np.ndarray) -> list[tuple[float, str, int]]:
        """(greatest norm over the states, unit, state) of x (N, m), for each unit."""
        found = []
        for unit, own in (("m", ~self.angular), ("rad", self.angular)):
            size = np.linalg.norm(x[:, own], axis=1)
            worst = int(np.argmax(size))
            found.append((float(size[worst]), unit, worst))
        return found


def _errors(
    problem: Statement, q: np.ndarray, qd: np.ndarray, idle: Sequence[Constraint] = ()
) -> dict[Stabilised, _Errors]:
    """Errors of the constraints at q (N, nq), q̇ (N, nv); idle: redundant constraints that the problem omits.

    Errors of couplings use q and q̇ verbatim; all others use followers that are computed from their leaders.
    """
    stated = [m for m in (*problem.constraints, *idle) if isinstance(m, Stabilised) and m.noise is None]
    if not stated:
        return {}
    model = problem.model
    angular = [np.array([x.startswith(("n", "torque")) for x in m.wrench(model)]) for m in stated]

    def errors(q: np.ndarray, qd: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        given, imposed = Context.at(model, q, qd), Context.at(model, *problem.imposed(q, qd))
        found = [m.error(given if isinstance(m, JointCoupling) else imposed) for m in stated]
        cosines = [m.cosine(imposed) if isinstance(m, FrameConstraint) else 1.0 for m in stated]
        e, rates = (np.concatenate(x) for x in zip(*found, strict=True))
        return e, rates, np.array(cosines, dtype=object)

    sizes = {"q": (model.nq,), "qd": (model.nv,)}
    names = tuple(m.name for m in stated)
    e, rates, cosines = problem.cached(("errors", names), lambda: compile_function(errors, sizes, level=1))(q, qd)
    ends = np.cumsum([len(x) for x in angular])[:-1]
    found = {}
    for m, x, rate, cosine, own in zip(
        stated, np.split(e, ends, axis=-1), np.split(rates, ends, axis=-1), cosines.T, angular, strict=True
    ):
        if isinstance(m, FrameConstraint):  # from sines of angles to angles
            sine = np.linalg.norm(x[:, own], axis=-1)
            angle = np.arctan2(sine, cosine)
            x = x.copy()
            x[:, own] *= (angle / np.where(sine > 0.0, sine, 1.0))[:, None]
            if own.any():  # half a turn: the sine is zero, the axis arbitrary
                x[:, np.argmax(own)] += np.where(sine > 0.0, 0.0, angle)
        found[m] = _Errors(x, rate, own)
    return found


def speeds(problem: Statement, q: np.ndarray, qd: np.ndarray, idle: Sequence[Constraint] = ()) -> dict[str, np.ndarray]:
    """{constraint: (N, m)} velocities [m/s, rad/s] of its components at q (N, nq), q̇ (N, nv)."""
    return {m.name: x.rate for m, x in _errors(problem, q, qd, idle).items()}


def gaps(problem: Statement, q: np.ndarray, idle: Sequence[Constraint] = ()) -> dict[str, np.ndarray]:
    """{constraint: (N, m)} gaps [m, rad] of its components at q (N, nq); contacts without `at=` have none."""
    found = _errors(problem, q, np.zeros((len(q), problem.model.nv)), idle)
    return {m.name: x.gap for m, x in found.items() if not (isinstance(m, Contact) and m.at is None)}


def warn_if_moving(
    problem: Statement, q: np.ndarray, qd: np.ndarray, driven: Collection[str] = (), what: str = "state"
) -> None:
    """Warn of constraints that move although they hold the robot, with their greatest speed.

    q (N, nq), qd (N, nv); driven: some that are to move. what: a state in the words.
    """
    if not qd.any():
        return
    words = []
    followers = {link.coupling for link in problem.couplings}
    for m, x in _errors(problem, q, qd).items():
        if m.name in driven or getattr(m, "coupling", None) in followers:
            continue
        for speed, unit, worst in x.greatest(x.rate):
            if speed > MOVES:
                words.append(f"{m.name!r} by {speed:.3g} {unit}/s{_at(what, worst, len(q))}")
    if words:
        warn(
            f"constraints move that hold the robot: {few(words)}. They hold accelerations, so that it goes on "
            "until stabilise= has taken it out; sd.impact(problem)(q, qd).qd are velocities that they allow",
            PlausibilityWarning,
        )


def warn_of_gaps(
    problem: Statement, q: np.ndarray, what: str = "state", numbers: np.ndarray | None = None
) -> str:  # fmt: skip
    """Warn of loops and couplings that are open at q (N, nq), and return the message; empty if all are closed.

    Couplings of the model are always closed, as their followers are computed. what, numbers: name and numbers of the
    states in the message.
    """
    if not (stated := _closures(problem)):
        return ""
    found = _errors(problem, q, np.zeros((len(q), problem.model.nv)))
    words, worst = [], (0.0, 0)
    for m in stated:
        for gap, unit, state in found[m].greatest(found[m].gap):
            if gap > OPEN:
                number = state if numbers is None else int(numbers[state])
                words.append(f"{m.name!r} by {gap:.3g} {unit}{_at(what, number, len(q))}")
                worst = max(worst, (gap, state))
    if not words:
        return ""
    least = _least_gap(problem, stated, q[worst[1]])
    message = f"closures are open: {few(words)}"
    if least > OPEN:
        message += f". They cannot close: no position was found at which their gap is less than {least:.3g} (m, rad)"
    else:
        message += ", and the problem fixes their accelerations only. Start from a q at which solution.gaps() is zero"
    warn(message, PlausibilityWarning)
    return message


def warn_of_followers(problem: Statement, q: np.ndarray, qd: np.ndarray, what: str = "state") -> bool:
    """Warn of followers whose entries of q (…, nq) and q̇ (…, nv) contradict their leaders; True if there are any.

    Entries that are zero count as omitted.
    """
    if not problem.couplings:
        return False
    words, imposed = [], problem.imposed(q, qd)
    for link in problem.couplings:
        for name, x, y, k in zip(("q", "qd"), (q, qd), imposed, (link.q, link.v), strict=True):
            given, demanded = (z.ravel() for z in np.broadcast_arrays(x[..., k], y[..., k]))
            off = np.where(given != 0.0, np.abs(given - demanded), 0.0)
            worst = int(np.argmax(off))
            if off[worst] > OPEN:
                of = f"that of {link.coupling.leader!r}" if link.coupling.leader else "its coupling"
                words.append(
                    f"{name} of {link.coupling.joint!r} is {given[worst]:.4g}{_at(what, worst, off.size)}, but {of} "
                    f"demands {demanded[worst]:.4g}"
                )
    if words:
        warn(
            f"{few(words, between='; ')}: the demanded values are used; model.imposed(q, qd) returns them",
            PlausibilityWarning,
        )
    return bool(words)


def warn_if_opened(problem: Statement, q: np.ndarray, t: np.ndarray) -> None:
    """Warn of loops and couplings without stabilise= whose gap has grown along recorded states q (K, N, nq) at t (K,).

    States may be NaN.
    """
    loose = [m for m in _closures(problem) if m.stabilise is None]
    if not loose:
        return
    flat = q.reshape(-1, q.shape[-1])
    fine = np.isfinite(flat).all(axis=1)
    if not fine.any():
        return
    flat = np.where(fine[:, None], flat, flat[np.argmax(fine)])
    found, words = _errors(problem, flat, np.zeros((len(flat), problem.model.nv))), []
    for m in loose:
        for unit, own in (("m", ~found[m].angular), ("rad", found[m].angular)):
            size = np.where(fine, np.linalg.norm(found[m].gap[:, own], axis=1), 0.0).reshape(q.shape[:2])
            grown = size - size[0]
            k, robot = np.unravel_index(int(np.argmax(grown)), grown.shape)
            if size[k, robot] > OPEN and grown[k, robot] > OPEN:
                at = _at("robot", int(robot), q.shape[1])
                words.append(
                    f"{m.name!r} from {size[0, robot]:.3g} to {size[k, robot]:.3g} {unit} at t = {t[k]:.4g} s{at}"
                )
    if words:
        warn(
            f"closures have opened: {few(words)}. Nothing corrects the drift: set stabilise=, or take a smaller step",
            PlausibilityWarning,
        )


def _closures(problem: Statement) -> list[Stabilised]:
    """Loops, and couplings that are no closures of the model: these may be open."""
    followers = {link.coupling for link in problem.couplings}
    return [
        m for m in problem.constraints
        if isinstance(m, LoopJoint) or (isinstance(m, JointCoupling) and m.coupling not in followers)
    ]  # fmt: skip


def _least_gap(problem: Statement, stated: Sequence[Stabilised], q: np.ndarray) -> float:
    """Least norm of all gaps by nonlinear least squares, started from q (nq,) and from random states."""
    from scipy.optimize import least_squares  # slow to import, and rarely needed

    model = problem.model

    def gap(v: np.ndarray, start: np.ndarray) -> np.ndarray:
        found = _errors(problem, model.integrate(start, v)[None], np.zeros((1, model.nv)))
        return np.concatenate([found[m].gap[0] for m in stated])

    least = np.inf
    for start in (q, *model.random_state(seed=0, batch=SEARCHES)[0]):
        found = least_squares(gap, np.zeros(model.nv), args=(start,))
        least = min(least, float(np.linalg.norm(found.fun)))
        if least <= OPEN:
            break
    return least


def _at(what: str, state: int, n: int) -> str:
    return f" ({what} {state})" if n > 1 else ""
