"""Events of a simulation: joints that reach their limits, and contacts whose normal force changes its sign.

Each has an event function, which is positive within the limits and while the contact pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sysdyn.measurements.constraints import Contact
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import WRENCHES
from sysdyn.program.graph import copysign
from sysdyn.simulation.control import one_dof_joints

# Signs in one number: a double holds sums of ±2^k, k < 52, exactly.
SIGNS_PER_WORD = 52
# Kinds of events: limits of joints, normal forces that would pull, contacts that close.
LOWER, UPPER, NORMAL, CONTACT = "lower limit", "upper limit", "normal force", "contact"


class SimulationEvent(NamedTuple):
    """A joint limit that is reached or left, or a contact whose normal force changes its sign.

    Attributes
    ----------
    t : float
        Time [s].
    robot : int
        Index of the robot in a batch.
    kind : str
        "lower limit" or "upper limit" of a joint; "normal force" of a contact that cannot open in the problem;
        "contact" of one that can.
    name : str
        The joint or contact.
    inside : bool
        True if the joint comes back within its limits, or the contact pushes from now on. False if the joint reaches
        its limit, or the contact pulls from now on, or opens.
    """

    t: float
    robot: int
    kind: str
    name: str
    inside: bool

    def __str__(self) -> str:
        if self.kind == CONTACT:
            return f"{self.t:.6g} s: {self.name} {'closes' if self.inside else 'opens'}"
        if self.kind == NORMAL:
            return f"{self.t:.6g} s: {self.name} {'presses' if self.inside else 'pulls: it would open'}"
        return f"{self.t:.6g} s: {self.name} {'comes back within' if self.inside else 'reaches'} its {self.kind}"


class JointLimit(NamedTuple):
    """Limits of a joint with one degree of freedom: indices of its position in q and of its velocity in q̇."""

    name: str
    q: int
    v: int
    lower: float
    upper: float

    def value(self, q: Any) -> Any:
        """(upper − q)(q − lower), by the finite limits alone, of q (nq, …), numbers or expressions."""
        x = q[self.q]
        if np.isfinite([self.lower, self.upper]).all():
            half, offset = 0.5 * (self.upper - self.lower), x - 0.5 * (self.upper + self.lower)
            return half * half - offset * offset
        return self.upper - x if np.isfinite(self.upper) else x - self.lower


@dataclass(frozen=True)
class EventFunctions:
    """Functions that change their sign at an event: of joint limits, then of normal forces (contact, index in w)."""

    limits: tuple[JointLimit, ...]
    normals: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, problem: Problem, outputs: Sequence[str]) -> EventFunctions:
        """The event functions of a problem; normal forces if w is among the outputs of its solver."""
        model, names = problem.model, dict[int, str]()
        for i, name in enumerate(model.joint_names):
            names[model.v_slice(i).start] = name
        limits = [
            JointLimit(names[v], q, v, float(model.lower[v]), float(model.upper[v]))
            for v, q in one_dof_joints(model).items() if np.isfinite([model.lower[v], model.upper[v]]).any()
        ]  # fmt: skip
        normals, begin = [], 0
        for m in problem.constraints:
            components = m.wrench(model)
            if isinstance(m, Contact) and "fz" in components and WRENCHES.name in outputs:
                normals.append((m.name, begin + components.index("fz")))
            begin += len(components)
        return cls(tuple(limits), tuple(normals))

    @property
    def count(self) -> int:
        return len(self.limits) + len(self.normals)

    def normal_forces(self, w: Any) -> list:
        return [w[k] for _, k in self.normals]

    @property
    def words(self) -> int:
        """Count of the numbers that encode the signs."""
        return -(-self.count // SIGNS_PER_WORD)

    def signs(self, q: Any, w: Any) -> list:
        """Signs of the event functions at q (nq, …) and constraint forces w, encoded as sums Σ ±2^k in few numbers.

        q and w are numbers or expressions.
        """
        values = [*(limit.value(q) for limit in self.limits), *self.normal_forces(w)]
        parts = [values[k : k + SIGNS_PER_WORD] for k in range(0, len(values), SIGNS_PER_WORD)]
        return [sum(copysign(2.0**k, x) for k, x in enumerate(part)) for part in parts]

    def _positive(self, signs: np.ndarray) -> np.ndarray:
        """Which event functions are positive (n, count), of their signs (n, words)."""
        word, place = np.divmod(np.arange(self.count), SIGNS_PER_WORD)
        bits = ((signs + 2.0 ** np.bincount(word) - 1.0) / 2.0).astype(np.int64)
        return (bits[:, word] >> place & 1).astype(bool)

    def event(self, k: int, t: float, robot: int, q: np.ndarray, inside: bool) -> SimulationEvent:
        """The event of function k at q (nq,): of the limit that is nearer."""
        if k >= len(self.limits):
            return SimulationEvent(t, robot, NORMAL, self.normals[k - len(self.limits)][0], inside)
        limit = self.limits[k]
        kind = LOWER if limit.lower - q[limit.q] > q[limit.q] - limit.upper else UPPER
        return SimulationEvent(t, robot, kind, limit.name, inside)

    def changes(
        self, old: np.ndarray, new: np.ndarray, q: np.ndarray, qd: np.ndarray, before: np.ndarray, normal: np.ndarray,
        t: float, step: float,
    ) -> list[SimulationEvent]:  # fmt: skip
        """Events of n robots in the step that ends at t, with linearly interpolated times.

        old, new (n, words): signs at both ends of the step. q (n, nq), qd (n, nv): states at t. before, normal
        (n, normals): normal forces at both ends.
        """
        events = []
        changed = np.flatnonzero((old != new).any(axis=1))
        positive, inside = self._positive(old[changed]), self._positive(new[changed])
        for i, k in np.argwhere(positive != inside).tolist():
            robot = int(changed[i])
            event = self.event(k, t, robot, q[robot], bool(inside[i, k]))
            if k < len(self.limits):
                limit = self.limits[k]
                bound = limit.lower if event.kind == LOWER else limit.upper
                x, v = q[robot, limit.q], qd[robot, limit.v]
                ago = (x - bound) / v if v else 0.0
            else:
                a, b = before[robot, k - len(self.limits)], normal[robot, k - len(self.limits)]
                ago = step * b / (b - a)
            events.append(event._replace(t=t - min(max(ago, 0.0), step)))
        return events
