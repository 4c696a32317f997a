"""Impacts: the velocities and impulses of a robot whose constraints close at once.

In no time nothing but impulses acts, so that the equations are those of forward dynamics at rest and without gravity,
with changes of velocities for accelerations and impulses for wrenches: the same solver gives them. RBDA section 11.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.contact.operational_space import operational_space
from sysdyn.errors import InvalidInput, ProblemError, check_among
from sysdyn.measurements.classical import torque_freedoms
from sysdyn.measurements.constraints import Stabilised, stabilised
from sysdyn.model.quantities import WRENCHES
from sysdyn.online.compile import compile
from sysdyn.online.solver import Solver
from sysdyn.problem import Problem
from sysdyn.program.arrays import float_array
from sysdyn.program.groups import slices
from sysdyn.reference.robot_functions import Kinematics


@dataclass(frozen=True, eq=False)
class Impulses:
    """The state after an impact.

    qd (…, nv): velocities. impulses: {constraint: (…, m)} of the components of its wrench [N m s, N s]. before, after:
    {constraint: (…, m)} J q̇ of its rows [rad/s, m/s].
    """

    qd: np.ndarray
    impulses: Mapping[str, np.ndarray]
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]

    @property
    def energy(self) -> np.ndarray:
        """Kinetic energy (…) that the constraints bring in [J], Σ p^T (v⁻ + v⁺) / 2: of an impact alone it is ≤ 0."""
        shares = [np.sum(p * (self.before[x] + self.after[x]), axis=-1) / 2.0 for x, p in self.impulses.items()]
        return np.sum(shares, axis=0)


class Impact:
    """Impacts of a robot on its constraints; `impact(q, qd)` gives `Impulses`. Made by `sysdyn.impact`."""

    def __init__(self, problem: Problem, solver: Solver, velocity: Kinematics):
        self.problem, self.solver, self._velocity = problem, solver, velocity

    def __repr__(self) -> str:
        model = self.problem.model
        return f"Impact of {model.name!r} on {', '.join(m.name for m in self.problem.constraints)}; {self.solver.flops}"

    def __call__(
        self, q: ArrayLike, qd: ArrayLike, restitution: float | Mapping[str, ArrayLike] = 0.0,
        tau: ArrayLike | None = None, fx: ArrayLike | None = None,
    ) -> Impulses:  # fmt: skip
        """Velocities and impulses; leading axes are batch axes and broadcast.

            H (q̇⁺ − q̇⁻) = τ + Σ J_i^T fx_i + J^T p,    J q̇⁺ = −e J q̇⁻

        q (…, nq), qd (…, nv): the state before. restitution: e of all rows (Newton's, 0 ≤ e ≤ 1), or {constraint: e or
        (m,)} and 0 for the others. tau (…, nv), fx (…, nb, 6) body i: further impulses [N m s, N s], as of a hammer.

        Raises InvalidInput, UnknownName, and SingularState as a Solver does.
        """
        if self.problem.couplings:
            q = self.problem.model.imposed(q)[0]
        before = self._velocity(q, qd)
        wanted = -self._restitution(restitution) * before
        model, rows = self.problem.model, self._parts
        nothing = np.zeros(model.nv)
        push = np.zeros((model.nb, 6)) if fx is None else fx
        y = {name: (wanted - before)[..., part] for name, part in rows.items()}
        found = self.solver(q, nothing, nothing if tau is None else tau, fx=push, y=y)
        return Impulses(
            float_array("qd", qd) + found.qdd,
            {name: found[WRENCHES.name, name] for name in rows},
            {name: before[..., part] for name, part in rows.items()},
            {name: wanted[..., part] for name, part in rows.items()},
        )

    @property
    def _parts(self) -> dict[str, slice]:
        """{constraint: its rows}."""
        sizes = {m.name: len(m.components(self.problem.model)) for m in self.problem.constraints}
        return dict(zip(sizes, slices(sizes.values()), strict=True))

    def _restitution(self, given: float | Mapping[str, ArrayLike]) -> np.ndarray:
        """e of each row. Raises InvalidInput, UnknownName."""
        parts = self._parts
        named = given if isinstance(given, Mapping) else dict.fromkeys(parts, given)
        found = np.zeros(max(part.stop for part in parts.values()))
        for name, x in named.items():
            check_among("constraint with a restitution", name, parts)
            own, size = float_array(f"restitution of {name!r}", x), parts[name].stop - parts[name].start
            if own.shape not in ((), (size,)) or not np.all((own >= 0.0) & (own <= 1.0)):
                raise InvalidInput(
                    f"restitution of {name!r} is {x!r}, but numbers from 0 to 1 are needed: one, or {size}"
                )
            found[parts[name]] = own
        return found


def impact(problem: Problem) -> Impact:
    """Impacts of a robot on the constraints of a problem, compiled.

        land = sd.impact(sd.forward_dynamics(robot) + sd.Contact("l_foot", "point", name="left"))
        hit = land(q, qd, restitution=0.2)
        hit.qd, hit.impulses["left"], hit.energy

    problem: forward dynamics with contacts, loops or couplings, all of which hold after the impact: a foot that was on
    the ground before and may leave it is left out. What `stabilise=` asks for does not count.

    Raises ProblemError for other problems, and those that `compile` raises.
    """
    model = constrained(problem, "impact").model
    held = [stabilised(m, None) if isinstance(m, Stabilised) else m for m in problem.constraints]
    others = [m for m in problem.measurements if m not in problem.constraints]
    still = Problem(model.replace(gravity=np.zeros(3)), [*others, *held])
    velocity = operational_space(model.replace(closures=()), held, "velocity")
    return Impact(problem, compile(still, outputs=["qdd", WRENCHES.name]), velocity)


def constrained(problem: Problem, taker: str) -> Problem:
    """The same problem. Raises InvalidInput, and ProblemError unless it is forward dynamics with constraints alone."""
    if not isinstance(problem, Problem):
        raise InvalidInput(
            f"{taker} needs a Problem, such as sysdyn.forward_dynamics(model) + contacts, not {problem!r}"
        )
    every = frozenset(range(problem.model.nv))
    if problem.noisy or set(problem.custom) != set(problem.constraints) or torque_freedoms(problem) != every:
        raise ProblemError(f"{taker} needs forward dynamics with contacts, loops or couplings and nothing else")
    if not problem.constraints:
        raise ProblemError("the problem has no constraint to meet: add a sysdyn.Contact(…) or a LoopJoint")
    return problem
