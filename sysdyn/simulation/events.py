"""Events of a simulation: joints that reach their limits, and contacts whose normal force changes its sign.

Each has a margin, which is positive while all is well. The program of a step has their signs as the bits of few
numbers, so that a change is seen without a look at each margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sysdyn.measurements.constraints import Contact
from sysdyn.model.quantities import WRENCHES
from sysdyn.problem import Problem
from sysdyn.program.graph import copysign
from sysdyn.simulation.control import single

# Signs in one number: doubles hold sums of powers of two up to the 53rd exactly, and one is kept for their own sign.
SIGNS = 52
# Kinds of events: limits of joints, normal forces that would pull, contacts that close.
LOWER, UPPER, NORMAL, CONTACT = "lower limit", "upper limit", "normal force", "contact"


class SimulationEvent(NamedTuple):
    """A margin that changes its sign: t [s], the number of the robot in a batch, its kind, and what it is of.

    kind: "lower limit" or "upper limit" of the joint `name`, "normal force" of the contact `name`, or "contact" of one
    that may open. inside: True if the joint comes back, or the contact presses again; False if the limit is reached, or
    the contact pulls from now on, or opens.
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


@dataclass(frozen=True)
class Margins:
    """Limits of joints with one degree of freedom, (name, q, q̇, lower, upper), and normal forces, (name, entry of w).

    The margin of a joint is (upper − q)(q − lower), by finite limits alone.
    """

    limits: tuple[tuple[str, int, int, float, float], ...]
    normals: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, problem: Problem, outputs: Sequence[str]) -> Margins:
        """The margins of a problem; normal forces if w is among the outputs of its solver."""
        model, names = problem.model, dict[int, str]()
        for i, name in enumerate(model.joint_names):
            names[model.v_slice(i).start] = name
        limits = [
            (names[k], place, k, float(model.lower[k]), float(model.upper[k])) for k, place in single(model).items()
            if np.isfinite([model.lower[k], model.upper[k]]).any()
        ]  # fmt: skip
        normals, begin = [], 0
        for m in problem.constraints:
            components = m.wrench(model)
            if isinstance(m, Contact) and "fz" in components and WRENCHES.name in outputs:
                normals.append((m.name, begin + components.index("fz")))
            begin += len(components)
        return cls(tuple(limits), tuple(normals))

    @property
    def words(self) -> int:
        """Numbers that hold the signs."""
        return -(-(len(self.limits) + len(self.normals)) // SIGNS)

    def normal_forces(self, w: Any) -> list:
        return [w[k] for _, k in self.normals]

    def signs(self, q: Any, w: Any) -> list:
        """The signs of the margins as bits of numbers: Σ ± 2^k. q, w: expressions."""
        margins = []
        for _, place, _, lower, upper in self.limits:
            if np.isfinite([lower, upper]).all():
                half, off = 0.5 * (upper - lower), q[place] - 0.5 * (upper + lower)
                margins.append(half * half - off * off)
            else:
                margins.append(upper - q[place] if np.isfinite(upper) else q[place] - lower)
        margins += self.normal_forces(w)
        parts = [margins[k : k + SIGNS] for k in range(0, len(margins), SIGNS)]
        return [sum(copysign(2.0**k, x) for k, x in enumerate(part)) for part in parts]

    def changes(
        self, old: np.ndarray, new: np.ndarray, q: np.ndarray, qd: np.ndarray, before: np.ndarray, normal: np.ndarray,
        t: float, step: float,
    ) -> list[SimulationEvent]:  # fmt: skip
        """Events of the step that ends at t, of n robots.

        old, new (n, words): the signs before and now. q (n, nq), qd (n, nv): states at t. before, normal (n, normals):
        normal forces. Times follow by straight lines.
        """
        found = []
        count = len(self.limits)
        for robot in np.flatnonzero((old != new).any(axis=1)).tolist():
            then, now = (_bits(x[robot], count + len(self.normals)) for x in (old, new))
            for k in np.flatnonzero(then != now).tolist():
                if k < count:
                    name, place, velocity, lower, upper = self.limits[k]
                    x, v = q[robot, place], qd[robot, velocity]
                    beyond = [lower - x, x - upper]
                    kind, at = (LOWER, lower) if beyond[0] > beyond[1] else (UPPER, upper)
                    ago = (x - at) / v if v else 0.0
                else:
                    kind, name = NORMAL, self.normals[k - count][0]
                    a, b = before[robot, k - count], normal[robot, k - count]
                    ago = step * b / (b - a)
                found.append(SimulationEvent(t - min(max(ago, 0.0), step), robot, kind, name, bool(now[k])))
        return found


def _bits(words: np.ndarray, count: int) -> np.ndarray:
    """(count,) bool: the margin is positive."""
    found: list[bool] = []
    for x in words.tolist():
        n = min(SIGNS, count - len(found))
        bits = (int(x) + 2**n - 1) // 2
        found += [bool(bits >> k & 1) for k in range(n)]
    return np.array(found, dtype=bool)
