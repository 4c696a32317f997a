"""Time stepping with unilateral contacts: forces of points with Coulomb friction over one time step.

With σ = J (q̇ + h q̈), the point velocities at the end of a step h, Signorini's conditions and Coulomb's law are a
problem in the forces λ with the Delassus matrix Ω = J H⁻¹ J^T and the accelerations q̈₀ without forces:

    σ / h = Ω λ + J (q̇ / h + q̈₀),    q̈ = q̈₀ + H⁻¹ J^T λ

Impacts are included; for a robot at rest it is the problem of accelerations. J is evaluated at the start of the step
(J̇ q̇ is dropped): for several contact points on a rotating foot the acceleration-level conditions would be
inconsistent. Loops and couplings are bilateral. J. J. Moreau, Unilateral contact and dry friction in finite freedom
dynamics (1988).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.contact.friction_cone import RANK_TOL, Coulomb, PointForces
from sysdyn.contact.impact import require_constrained_fd, unstabilised
from sysdyn.contact.operational_space import operational_space
from sysdyn.errors import InvalidInput, ProblemError, UnknownName, check_among
from sysdyn.measurements.classical import forward_dynamics
from sysdyn.measurements.constraints import Contact
from sysdyn.measurements.problem import Problem
from sysdyn.online.compile import compile
from sysdyn.online.derivatives import Derivatives
from sysdyn.online.robot_functions import Kinematics, kinematics
from sysdyn.program.arrays import broadcast_shapes, finite_array, is_number
from sysdyn.program.groups import slices

# Shortest and longest step [s]: their squares do not overflow (chosen).
STEP_RANGE = 1e-12, 1e12
# Inputs with respect to which contact forces can be differentiated.
INPUTS = ("q", "qd", "tau")


@dataclass(frozen=True, eq=False)
class ContactForces:
    """Forces of contact points over a time step h, and the resulting motion.

    Attributes
    ----------
    forces : dict
        {contact: (…, m) array, N}. Forces on the robot in the axes of the contact; the normal z is last.
    velocities : dict
        {contact: (…, m) array, m/s}. Velocities of the points at the end of the step in the same axes.
    qdd, qd : (…, nv) arrays
        Accelerations over the step, and q̇ + h q̈ at its end.
    signorini : (…) array, m/s
        Residual |min(σ_n, c λ_n)| of 0 ≤ λ_n ⟂ σ_n ≥ 0 at the worst point; c follows from h Ω, see `PointForces`.
    friction : (…) array, m/s
        Residual of Coulomb's law at the worst point, see `PointForces`.
    ok : (…) bool array
        True if both residuals are within the tolerance.
    """

    forces: Mapping[str, np.ndarray]
    velocities: Mapping[str, np.ndarray]
    qdd: np.ndarray
    qd: np.ndarray
    signorini: np.ndarray
    friction: np.ndarray
    ok: np.ndarray
    step: StepData = field(repr=False)

    @cached_property
    def mode(self) -> Mapping[str, np.ndarray]:
        """{contact: (…) array of "open", "slides" or "sticks"}."""
        modes = self.step.law.modes(self.step.omega, self.step.mu, self.step.solution)
        return {name: modes[..., k] for k, name in enumerate(self.forces)}


class StepData(NamedTuple):
    """Intermediate values of a step for `Unilateral.derivatives`; omega, mu, solution: of the contact points only."""

    law: Coulomb
    q: np.ndarray
    qd: np.ndarray
    fx: np.ndarray | None
    generalised_force: np.ndarray  # (…, nv): τ + Σ J_i^T fx_i + J^T λ
    rows: Mapping[str, np.ndarray]  # results of `operational_space`
    omega: np.ndarray
    mu: np.ndarray
    solution: PointForces
    all_multipliers: np.ndarray  # of points, loops and couplings
    weights: np.ndarray  # (…, rows): factors of J q̇ in σ / h


class Unilateral:
    """Contacts that open and slide; `ground(q, qd, tau, step=h)` gives `ContactForces`. Made by `sysdyn.unilateral`.

    Attributes
    ----------
    law : Coulomb
        Coulomb's law for the contact points.
    tolerance : float
        Tolerance of the residuals in m/s.
    """

    def __init__(
        self, problem: Problem, friction: float | Mapping[str, ArrayLike], method: str, iterations: int,
        newton_steps: int, tolerance: float,
    ):  # fmt: skip
        self.problem, self.tolerance = problem, tolerance
        self.model = problem.model.replace(closures=())
        points = [_require_point(m) for m in problem.constraints if isinstance(m, Contact)]
        loops = [m for m in problem.constraints if not isinstance(m, Contact)]
        if not points:
            raise ProblemError("the problem has no contact that may open: add a sysdyn.Contact(frame, 'point')")
        self.law = Coulomb([len(m.chosen) for m in points], method, iterations, newton_steps)
        self._constraints = unstabilised([*points, *loops])
        self._parts = dict(zip([m.name for m in points], slices(self.law.rows), strict=True))
        self._normals = [part.stop - 1 for part in self._parts.values()]
        self._friction = self._per_point("friction", friction, 0.0)
        self._dynamics = compile(forward_dynamics(self.model), outputs=["qdd"], external_wrenches=False)
        self._space = operational_space(self.model, self._constraints, ["jacobian", "delassus", "velocity"])

    def __repr__(self) -> str:
        return f"Unilateral contacts of {self.model.name!r} on {', '.join(self._parts)}; {self.law!r}"

    def __call__(
        self, q: ArrayLike, qd: ArrayLike, tau: ArrayLike | None = None, fx: ArrayLike | None = None, *, step: float,
        gap: float | Mapping[str, ArrayLike] = 0.0, restitution: float | Mapping[str, ArrayLike] = 0.0,
        friction: float | Mapping[str, ArrayLike] | None = None, forces: Mapping[str, ArrayLike] | None = None,
    ) -> ContactForces:  # fmt: skip
        """Solve for the forces over a time step. Leading axes are batch axes and broadcast.

        Parameters
        ----------
        q, qd : (…, nq), (…, nv) arrays
            State at the start of the step.
        tau : (…, nv) array, N m or N
            Default: zero.
        fx : (…, nb, 6) array, N m and N
            External wrenches in the axes of the bodies. Default: zero.
        step
            h in s.
        gap
            Distance of the points from the ground in m, or {contact: (…)} and 0 for the others: σ_n ≥ −gap / h. A
            negative gap, or a fraction of it, is corrected within the step.
        restitution
            Newton's coefficient 0 ≤ e ≤ 1 of all points, or {contact: (…)} and 0 for the others.
        friction
            μ ≥ 0 of all points or {contact: (…)}. Default: as declared.
        forces
            {contact: (…, m)} initial forces, such as `.forces` of the previous step.

        Raises
        ------
        InvalidInput, UnknownName
        SingularState
            As for a Solver.
        """
        if not (is_number(step) and STEP_RANGE[0] <= float(step) <= STEP_RANGE[1]):
            raise InvalidInput(
                f"step is {step!r}, but a number of seconds from {STEP_RANGE[0]:g} to {STEP_RANGE[1]:g} is needed"
            )
        if self.problem.couplings:
            q, qd, _ = self.problem.model.imposed(q, qd)
        h, normals, rows = float(step), self._normals, self._space(q, qd)
        force = np.zeros(self.model.nv) if tau is None else finite_array("tau", tau, (..., self.model.nv))
        if fx is not None:
            force = force + self._external(q, fx=fx)
        gaps, e = self._per_point("gap", gap), self._per_point("restitution", restitution, 0.0, 1.0)
        mu = self._friction if friction is None else self._per_point("friction", friction, 0.0, default=self._friction)
        velocity, J = rows["velocity"], rows["jacobian"]
        lead = broadcast_shapes({"the state": velocity.shape[:-1], "gap": gaps.shape[:-1], "restitution": e.shape[:-1]})
        weights = np.full((*lead, velocity.shape[-1]), 1.0 / h)
        weights[..., normals] += e * (velocity[..., normals] < 0.0) / h
        free = weights * velocity + _times(J, self._dynamics(q, qd, force).qdd)
        free[..., normals] += gaps / h**2
        omega, b, all_multipliers = self._schur_complement(rows["delassus"], free)
        solution = self.law(omega, b, mu, None if forces is None else self._stack(forces), self.tolerance / h)
        multipliers = all_multipliers(solution.forces)
        force = force + _times(np.swapaxes(J, -1, -2), multipliers)
        qdd = self._dynamics(q, qd, force).qdd
        start_q, start_qd = np.array(q, dtype=float), np.array(qd, dtype=float)  # copies: callers may change theirs
        wrenches = None if fx is None else np.array(fx, dtype=float)
        after = start_qd + h * qdd
        velocities = _times(J, after)
        return ContactForces(
            {name: solution.forces[..., part] for name, part in self._parts.items()},
            {name: velocities[..., part] for name, part in self._parts.items()},
            qdd, after, h * solution.signorini, h * solution.friction, h * solution.worst <= self.tolerance,
            StepData(self.law, start_q, start_qd, wrenches, force, rows, omega, mu, solution, multipliers, weights),
        )  # fmt: skip

    def derivatives(self, result: ContactForces, wrt: Sequence[str] = INPUTS) -> dict[tuple[str, str], np.ndarray]:
        """Differentiate a result by the implicit function theorem, while no point changes its mode.

        Parameters
        ----------
        result
            Result of a call.
        wrt
            "q" (in the tangent space, see `Model.integrate`), "qd", "tau".

        Returns
        -------
        dict
            {("forces", x): (…, rows, nv), ("qdd", x): (…, nv, nv)} for x in `wrt`. Rows are those of the contacts, one
            after the other. Columns are those of the tree; multiply by `Model.coupling_matrix` for coupled joints.

        Raises
        ------
        UnknownName

        Notes
        -----
        Gaps and coefficients are constants. For redundant points the derivatives of forces have minimum norm.
        """
        wrt = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        for name in wrt:
            check_among("input to differentiate by", name, INPUTS)
        at, nv = result.step, self.model.nv
        J, sensitivity = at.rows["jacobian"], at.law.sensitivity(at.omega, at.mu, at.solution)
        smooth = self._unconstrained_slopes(at.q, at.qd, at.generalised_force)
        # partial derivatives of σ / h and of the generalised force at constant λ and q̈
        motion = {"q": self._motion_by_q(at, result.qdd), "qd": at.weights[..., None] * J, "tau": np.zeros(())}
        force = {"q": self._force_by_q(at), "qd": np.zeros((nv, nv)), "tau": np.eye(nv)}
        results = {}
        for name in wrt:
            direct = smooth["qdd", "tau"] @ force[name] + (0.0 if name == "tau" else smooth["qdd", name])
            free = np.moveaxis(motion[name] + J @ direct, -1, 0)
            _, b, all_multipliers = self._schur_complement(at.rows["delassus"], free)
            forces = _times(sensitivity, b)
            multipliers = np.moveaxis(all_multipliers(forces), 0, -1)
            results["forces", name] = np.moveaxis(forces, 0, -1)
            results["qdd", name] = direct + smooth["qdd", "tau"] @ np.swapaxes(J, -1, -2) @ multipliers
        return results

    def _schur_complement(
        self, omega: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Eliminate the multipliers of loops l, which stay at rest: the problem of the contact points p alone.

        Returns (Ω_pp − Ω_pl Ω_ll⁺ Ω_lp, b of the points, function from λ_p to the multipliers of points and loops).
        """
        p = slice(sum(self.law.rows))
        l = slice(p.stop, None)
        if omega.shape[-1] == p.stop:
            return omega, free, lambda forces: forces
        inverse = np.linalg.pinv(omega[..., l, l], rcond=RANK_TOL, hermitian=True)
        gain = omega[..., p, l] @ inverse

        def all_multipliers(forces: np.ndarray) -> np.ndarray:
            loop_forces = -_times(inverse, free[..., l] + _times(omega[..., l, p], forces))
            return np.concatenate([forces, loop_forces], axis=-1)

        return omega[..., p, p] - gain @ omega[..., l, p], free[..., p] - _times(gain, free[..., l]), all_multipliers

    # ---- programs --------------------------------------------------------------------------------------------------

    @cached_property
    def _external(self) -> Kinematics:
        """Compiled Σ J_i^T fx_i."""
        return kinematics(self.model, "external")

    @cached_property
    def _unconstrained_slopes(self) -> Derivatives:
        """Compiled ∂q̈/∂(q, q̇, τ) without constraints."""
        return self._dynamics.derivatives("qdd", INPUTS)

    @cached_property
    def _velocity_vjp(self) -> Kinematics:
        """Compiled ∂(w^T J q̇)/∂q."""
        return operational_space(self.model, self._constraints, "velocity").product("vjp", wrt="q")

    @cached_property
    def _external_jvp(self) -> Kinematics:
        return self._external.product("jvp", wrt="q")

    def _motion_by_q(self, at: StepData, qdd: np.ndarray) -> np.ndarray:
        """Derivative ∂(σ / h)/∂q (…, rows, nv) at constant q̇ and q̈.

        (σ / h)_i = J_i (w_i q̇ + q̈) with `weights` w_i: row i is the gradient of J_i v for a constant v = w_i q̇ + q̈.
        """
        velocity = at.weights[..., None] * at.qd[..., None, :] + qdd[..., None, :]
        return self._velocity_vjp(at.q[..., None, :], velocity, cotangents=np.eye(at.weights.shape[-1]))["q"]

    def _force_by_q(self, at: StepData) -> np.ndarray:
        """Derivative ∂(J^T λ + Σ J_i^T fx_i)/∂q (…, nv, nv) at constant λ and fx.

        Row k of the first term is the gradient of λ^T J e_k.
        """
        q, axes = at.q[..., None, :], np.eye(self.model.nv)
        slope = self._velocity_vjp(q, axes, cotangents=at.all_multipliers[..., None, :])["q"]
        if at.fx is None:
            return slope
        return slope + np.swapaxes(self._external_jvp(q, fx=at.fx[..., None, :, :], tangents=axes), -1, -2)

    # ---- arguments -------------------------------------------------------------------------------------------------

    def _per_point(
        self, what: str, value: float | Mapping[str, ArrayLike], least: float = -np.inf, most: float = np.inf,
        default: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Convert an argument to (…, points): a number for all points, or {contact: (…)}.

        what: name of the argument in messages. least, most: limits of its values. default (…, points): values of the
        contacts that the dict does not name; None: 0. Raises InvalidInput, UnknownName.
        """
        if is_number(value) and least <= float(value) <= most and np.isfinite(value):  # fast path
            return np.full(len(self._parts), float(value))
        columns = np.zeros(len(self._parts)) if default is None else default
        values = {name: columns[..., k] for k, name in enumerate(self._parts)}
        for name, x in (value if isinstance(value, Mapping) else dict.fromkeys(self._parts, value)).items():
            check_among(f"contact with a {what}", name, self._parts)
            values[name] = finite_array(f"{what} of {name!r}", x, (...,))
            if np.any((values[name] < least) | (values[name] > most)):
                limits = f"from {least:g} to {most:g}" if np.isfinite(most) else f"≥ {least:g}"
                raise InvalidInput(f"{what} of {name!r} is {x!r}, but numbers {limits} are needed")
        return _stacked(values)

    def _stack(self, forces: Mapping[str, ArrayLike]) -> np.ndarray:
        """Stack {contact: (…, m)} to (…, rows). Raises InvalidInput, UnknownName."""
        if not isinstance(forces, Mapping):
            raise InvalidInput("forces are {contact: (…, m)}, such as `.forces` of an earlier result")
        for name in (*forces, *self._parts):
            if name not in self._parts or name not in forces:
                raise UnknownName("contact with forces", name, tuple(self._parts))
        columns = dict[str, np.ndarray]()
        for name, part in self._parts.items():
            values = finite_array(f"forces of {name!r}", forces[name], (..., part.stop - part.start))
            columns |= {f"{name}[{k}]": values[..., k] for k in range(values.shape[-1])}
        return _stacked(columns)


def unilateral(
    problem: Problem, friction: float | Mapping[str, ArrayLike], *, method: str = "admm", iterations: int = 100,
    newton_steps: int = 3, tolerance: float = 1e-6,
) -> Unilateral:  # fmt: skip
    """Compile unilateral contacts: points that push, slide and open.

        feet = [sd.Contact(foot, "point", reference="world", name=foot) for foot in ("lf_foot", "rf_foot")]
        ground = sd.unilateral(sd.forward_dynamics(robot) + feet, friction=0.7)
        result = ground(q, qd, tau, step=1e-3, gap={"rf_foot": 0.02})
        result.forces["lf_foot"], result.mode["lf_foot"], result.qd, result.ok

    Parameters
    ----------
    problem
        Forward dynamics with contacts of kind "point" (two tangents), "line" (one) or "normal" (without friction).
        Their normals are z of the frame, or of the world with reference="world". There is no collision detection: calls
        take the distance of the points from the ground as `gap`. Loops and couplings are bilateral. `stabilise=` of
        constraints is ignored.
    friction
        μ of all contacts, or {contact: μ} and 0 for the others.
    method, iterations, newton_steps
        See `Coulomb`.
    tolerance
        Tolerance of the residuals in m/s.

    Raises
    ------
    ProblemError
        For other problems.
    InvalidInput, UnknownName
        Also errors of `compile`.

    Notes
    -----
    Rigid bodies do not determine the forces of redundant points, such as four of a foot that sticks: the result is one
    of the solutions. If such points slide while the foot rotates, the motion is not unique either. Redundant points
    with restitution need many more iterations.
    """
    if isinstance(problem, Problem) and problem.switchable_constraints:
        raise ProblemError(
            f"{problem.switchable_constraints[0].name!r} is Switchable, but contacts open by themselves here: state it "
            "without, and give the distance of open points by gap="
        )
    if not (is_number(tolerance) and tolerance > 0.0):
        raise InvalidInput(f"tolerance is {tolerance!r}, but a positive number of m/s is needed")
    require_constrained_fd(problem, "unilateral")
    return Unilateral(problem, friction, method, iterations, newton_steps, float(tolerance))


def _require_point(m: Contact) -> Contact:
    """Return the contact. Raises ProblemError unless it has a normal a_z and at most the tangents a_x and a_y."""
    if m.chosen[-1:] != ("a_z",) or any(x not in ("a_x", "a_y", "a_z") for x in m.chosen):
        raise ProblemError(
            f"{m.name!r} holds {', '.join(m.chosen)}, but a contact that may open holds its normal a_z, and a_x and "
            "a_y if it has friction: take Contact(frame, 'point') or 'normal', and several points of a sole"
        )
    return m


def _stacked(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Stack arrays (…) to (…, columns). Raises InvalidInput if they do not broadcast."""
    broadcast_shapes({name: x.shape for name, x in columns.items()})
    return np.stack(np.broadcast_arrays(*columns.values()), axis=-1)


def _times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Matrices (…, m, n) times vectors (…, n)."""
    return (matrix @ vector[..., None])[..., 0]
