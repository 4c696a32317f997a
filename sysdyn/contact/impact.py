"""Impacts: velocities and impulses of a robot whose constraints close instantaneously.

Only impulses act during an impact, so its equations are those of forward dynamics at rest and without gravity, with
changes of velocity for accelerations and impulses for wrenches. The same solver solves them. RBDA section 11.7.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.contact.operational_space import operational_space
from sysdyn.errors import InvalidInput, ProblemError, check_among
from sysdyn.measurements.classical import torque_freedoms
from sysdyn.measurements.constraints import Stabilised, stabilised
from sysdyn.measurements.measurement import Constraint
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import WRENCHES
from sysdyn.online.compile import compile
from sysdyn.online.robot_functions import Kinematics
from sysdyn.online.solver import Solver
from sysdyn.program.arrays import float_array
from sysdyn.program.groups import slices


@dataclass(frozen=True, eq=False)
class Impulses:
    """State after an impact.

    Attributes
    ----------
    qd : (…, nv) array
        Velocities after the impact.
    impulses : dict
        {constraint: (…, m) array, N m s and N s} in the components of its wrench.
    before, after : dict
        {constraint: (…, m) array, rad/s and m/s}: J q̇ of its rows.
    """

    qd: np.ndarray
    impulses: Mapping[str, np.ndarray]
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]

    @property
    def energy(self) -> np.ndarray:
        """Change of kinetic energy (…) in J by the constraints, Σ p^T (v⁻ + v⁺) / 2; ≤ 0 without other impulses."""
        shares = [np.sum(p * (self.before[x] + self.after[x]), axis=-1) / 2.0 for x, p in self.impulses.items()]
        return np.sum(shares, axis=0)


class Impact:
    """Impacts of a robot on its constraints; `impact(q, qd)` gives `Impulses`. Made by `sysdyn.impact`."""

    def __init__(self, problem: Problem, solver: Solver, velocity: Kinematics):
        self.problem, self.solver, self._velocity = problem, solver, velocity
        sizes = {m.name: len(m.components(problem.model)) for m in problem.constraints}
        self._parts = dict(zip(sizes, slices(sizes.values()), strict=True))

    def __repr__(self) -> str:
        return f"Impact of {self.problem.model.name!r} on {', '.join(self._parts)}; {self.solver.flops}"

    def __call__(
        self, q: ArrayLike, qd: ArrayLike, restitution: float | Mapping[str, ArrayLike] = 0.0,
        tau: ArrayLike | None = None, fx: ArrayLike | None = None,
    ) -> Impulses:  # fmt: skip
        """Solve for the velocities after the impact. Leading axes are batch axes and broadcast.

            H (q̇⁺ − q̇⁻) = τ + Σ J_i^T fx_i + J^T p,    J q̇⁺ = −e J q̇⁻

        Parameters
        ----------
        q, qd : (…, nq), (…, nv) arrays
            State before the impact.
        restitution
            Newton's coefficient 0 ≤ e ≤ 1 of all rows, or {constraint: e or (m,)} and 0 for the others.
        tau, fx : (…, nv), (…, nb, 6) arrays, N m s and N s
            Other impulses, such as those of a hammer; fx in the axes of the bodies. Default: zero.

        Raises
        ------
        InvalidInput, UnknownName
        SingularState
            As for a Solver.
        """
        model = self.problem.model
        if self.problem.couplings:
            q = model.imposed(q)[0]
        before = self._velocity(q, qd)
        after, zero = -self._restitution(restitution) * before, np.zeros(model.nv)
        change = {name: (after - before)[..., part] for name, part in self._parts.items()}
        tau, fx = zero if tau is None else tau, np.zeros((model.nb, 6)) if fx is None else fx
        solution = self.solver(q, zero, tau, fx=fx, y=change)
        return Impulses(
            float_array("qd", qd) + solution.qdd,
            {name: solution[WRENCHES.name, name] for name in self._parts},
            *({name: x[..., part] for name, part in self._parts.items()} for x in (before, after)),
        )

    def _restitution(self, value: float | Mapping[str, ArrayLike]) -> np.ndarray:
        """Coefficient of restitution e of each constraint row (m,). Raises InvalidInput, UnknownName."""
        coefficients = np.zeros(sum(part.stop - part.start for part in self._parts.values()))
        for name, x in (value if isinstance(value, Mapping) else dict.fromkeys(self._parts, value)).items():
            check_among("constraint with a restitution", name, self._parts)
            e, size = float_array(f"restitution of {name!r}", x), self._parts[name].stop - self._parts[name].start
            if e.shape not in ((), (size,)) or not np.all((e >= 0.0) & (e <= 1.0)):
                raise InvalidInput(
                    f"restitution of {name!r} is {x!r}, but numbers from 0 to 1 are needed: one, or {size}"
                )
            coefficients[self._parts[name]] = e
        return coefficients


def impact(problem: Problem) -> Impact:
    """Compile impacts of a robot on the constraints of a problem.

        land = sd.impact(sd.forward_dynamics(robot) + sd.Contact("l_foot", "point", name="left"))
        hit = land(q, qd, restitution=0.2)
        hit.qd, hit.impulses["left"], hit.energy

    Parameters
    ----------
    problem
        Forward dynamics with contacts, loops or couplings that are all active after the impact: omit a foot that may
        lift off. `stabilise=` of constraints is ignored.

    Raises
    ------
    ProblemError
        For other problems, and errors of `compile`.
    """
    require_constrained_fd(problem, "impact")
    model, constraints = problem.model, unstabilised(problem.constraints)
    others = [m for m in problem.measurements if m not in problem.constraints]
    impulse_problem = Problem(model.replace(gravity=np.zeros(3)), [*others, *constraints])
    velocity = operational_space(model.replace(closures=()), constraints, "velocity")
    return Impact(problem, compile(impulse_problem, outputs=["qdd", WRENCHES.name]), velocity)


def unstabilised(constraints: Iterable[Constraint]) -> list[Constraint]:
    """The constraints with their stabilisation removed."""
    return [stabilised(m, None) if isinstance(m, Stabilised) else m for m in constraints]


def require_constrained_fd(problem: Problem, caller: str) -> None:
    """Raise InvalidInput or ProblemError unless the problem is forward dynamics with constraints only."""
    if not isinstance(problem, Problem):
        raise InvalidInput(
            f"{caller} needs a Problem, such as sysdyn.forward_dynamics(model) + contacts, not {problem!r}"
        )
    if (
        problem.noisy
        or set(problem.custom) != set(problem.constraints)
        or torque_freedoms(problem) != frozenset(range(problem.model.nv))
    ):
        raise ProblemError(f"{caller} needs forward dynamics with contacts, loops or couplings and nothing else")
    if not problem.constraints:
        raise ProblemError("the problem has no constraint to meet: add a sysdyn.Contact(…) or a LoopJoint")
