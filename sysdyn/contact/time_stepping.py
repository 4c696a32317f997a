"""Contacts that push, slide and open: forces of points with Coulomb friction over a step of time.

With the velocities of the points at the end of a step h, σ = J (q̇ + h q̈), Signorini's conditions and Coulomb's law are
a problem in the forces λ alone, by the Delassus matrix Ω = J H⁻¹ J^T and the accelerations q̈₀ without them:

    σ / h = Ω λ + J (q̇ / h + q̈₀),    q̈ = q̈₀ + H⁻¹ J^T λ

Impacts are part of it, and of a robot at rest it is the problem of accelerations. J is that of the beginning, so that
what moves rigidly can stop: the accelerations J̇ q̇ of several points of a turning sole cannot all be met. Loops and
couplings hold both ways. J. J. Moreau, Unilateral contact and dry friction in finite freedom dynamics (1988).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.codegen.registry import backend_named
from sysdyn.contact.friction_cone import Coulomb, PointForces
from sysdyn.contact.impact import constrained
from sysdyn.contact.operational_space import operational_space
from sysdyn.errors import InvalidInput, ProblemError, UnknownName, check_among
from sysdyn.measurements.constraints import Contact, Stabilised, stabilised
from sysdyn.measurements.measurement import Constraint
from sysdyn.model import Model
from sysdyn.online.compile import compile
from sysdyn.online.derivatives import Derivatives
from sysdyn.problem import Problem, forward_dynamics
from sysdyn.program.arrays import broadcast_shapes, finite_array, is_number
from sysdyn.program.autodiff import TANGENTS, ProgramDerivatives, to_graph
from sysdyn.program.graph import SHARING, Graph
from sysdyn.program.groups import Group, Groups, slices
from sysdyn.reference.robot_functions import Kinematics, kinematics
from sysdyn.runtime.runner import Runner

# Singular values of Ω of loops and couplings below this share of the greatest are of rows that repeat others (chosen).
REPEATED = 1e-10
# Least and greatest step [s]: their squares times any motion keep all digits in double precision (chosen).
STEP_RANGE = 1e-12, 1e12
# Results of `operational_space` that forces are computed from.
ROWS = ("jacobian", "delassus", "velocity")
# Inputs by which contact forces can be differentiated.
BY = ("q", "qd", "tau")


@dataclass(frozen=True, eq=False)
class ContactForces:
    """Forces of contact points over a step h, and what they make of the motion.

    forces      {contact: (…, m)} [N] on the robot, in the axes of the contact, the normal z last
    velocities  {contact: (…, m)} [m/s] of the points at the end of the step, in the same axes
    qdd, qd     (…, nv) accelerations over the step, and q̇ + h q̈ at its end
    signorini   (…) [m/s] residual of 0 ≤ λ_n ⟂ σ_n ≥ 0 at the worst point: |min(σ_n, c λ_n)|, with c from h Ω
    friction    (…) [m/s] residual of Coulomb's law there: c ‖λ_t − λ'‖, λ' = λ_t − σ_t / c in the disk of radius μ λ_n
    ok          (…) True if both are within the tolerance
    """

    forces: Mapping[str, np.ndarray]
    velocities: Mapping[str, np.ndarray]
    qdd: np.ndarray
    qd: np.ndarray
    signorini: np.ndarray
    friction: np.ndarray
    ok: np.ndarray
    solved: Solved = field(repr=False)

    @cached_property
    def mode(self) -> Mapping[str, np.ndarray]:
        """{contact: (…)} "open", "slides" or "sticks"."""
        at = self.solved
        found = at.law.modes(at.omega, at.mu, at.found)
        return {name: found[..., k] for k, name in enumerate(self.forces)}


@dataclass(frozen=True, eq=False)
class Solved:
    """A solution with what it followed from, for `Unilateral.derivatives`.

    law: of the points, with its arguments omega and mu and its result found. loads (…, nv): τ + Σ J_i^T fx_i + J^T λ.
    rows: results of `ROWS`. every (…, rows): forces of all constraints. weights (…, rows): σ / h by J q̇.
    """

    law: Coulomb
    q: np.ndarray
    qd: np.ndarray
    fx: np.ndarray | None
    loads: np.ndarray
    rows: Mapping[str, np.ndarray]
    omega: np.ndarray
    mu: np.ndarray
    found: PointForces
    every: np.ndarray
    weights: np.ndarray


class Unilateral:
    """Contacts that open and slide; `ground(q, qd, tau, step=h)` gives `ContactForces`. Made by `sysdyn.unilateral`.

    law: the `Coulomb` of its points. tolerance [m/s]: of residuals.
    """

    def __init__(
        self, problem: Problem, friction: float | Mapping[str, ArrayLike], method: str, iterations: int, polish: int,
        tolerance: float,
    ):  # fmt: skip
        self.problem, self.tolerance = problem, tolerance
        self.model = problem.model.replace(closures=())
        points = [_checked(m) for m in problem.constraints if isinstance(m, Contact)]
        loops = [m for m in problem.constraints if not isinstance(m, Contact)]
        if not points:
            raise ProblemError("the problem has no contact that may open: add a sysdyn.Contact(frame, 'point')")
        self.law = Coulomb([len(m.chosen) for m in points], method, iterations, polish)
        self._held: list[Constraint] = [
            stabilised(m, None) if isinstance(m, Stabilised) else m for m in (*points, *loops)
        ]
        self._parts = dict(zip([m.name for m in points], slices(self.law.rows), strict=True))
        self._normals = [part.stop - 1 for part in self._parts.values()]
        self._own = slice(sum(self.law.rows))
        self._friction = self._of_points("friction", friction, 0.0, np.inf)
        self._dynamics = compile(forward_dynamics(self.model), outputs=["qdd"], external_wrenches=False)
        self._space = operational_space(self.model, self._held, ROWS)

    def __repr__(self) -> str:
        return f"Unilateral contacts of {self.model.name!r} on {', '.join(self._parts)}; {self.law!r}"

    def __call__(
        self, q: ArrayLike, qd: ArrayLike, tau: ArrayLike | None = None, fx: ArrayLike | None = None, *, step: float,
        gap: float | Mapping[str, ArrayLike] = 0.0, restitution: float | Mapping[str, ArrayLike] = 0.0,
        friction: float | Mapping[str, ArrayLike] | None = None, forces: Mapping[str, ArrayLike] | None = None,
    ) -> ContactForces:  # fmt: skip
        """Forces over a step of time; leading axes are batch axes and broadcast.

        q (…, nq), qd (…, nv): the state at its beginning. tau (…, nv), fx (…, nb, 6) body i: torques and external
            wrenches, zero if None. step: h [s].
        gap: distances [m] of the points from the ground, or {contact: (…)} and 0 for the others: a point comes as near
            as that, σ_n ≥ −gap / h. A negative one is taken out within the step; a fraction of it does so gently.
        restitution: e of all points (Newton's, 0 ≤ e ≤ 1), or {contact: (…)} and 0 for the others.
        friction: μ ≥ 0 in place of what was stated, for all points or {contact: (…)}.
        forces: {contact: (…, m)} to begin with, such as `.forces` of the step before.

        Raises InvalidInput, UnknownName, and SingularState as a Solver does.
        """
        if not (is_number(step) and STEP_RANGE[0] <= float(step) <= STEP_RANGE[1]):
            raise InvalidInput(
                f"step is {step!r}, but a number of seconds from {STEP_RANGE[0]:g} to {STEP_RANGE[1]:g} is needed"
            )
        if self.problem.couplings:
            q, qd, _ = self.problem.model.imposed(q, qd)
        h, normals, rows = float(step), self._normals, self._space(q, qd)
        loads = np.zeros(self.model.nv) if tau is None else finite_array("tau", tau, (..., self.model.nv))
        if fx is not None:
            loads = loads + self._external(q, fx=fx)
        gaps, e = self._of_points("gap", gap), self._of_points("restitution", restitution, 0.0, 1.0)
        mu = self._friction if friction is None else self._of_points("friction", friction, 0.0, np.inf, self._friction)
        velocity = rows["velocity"]
        lead = broadcast_shapes({"the state": velocity.shape[:-1], "gap": gaps.shape[:-1], "restitution": e.shape[:-1]})
        weights = np.full((*lead, velocity.shape[-1]), 1.0 / h)
        weights[..., normals] += e * (velocity[..., normals] < 0.0) / h
        J, omega = rows["jacobian"], rows["delassus"]
        free = weights * velocity + _times(J, self._dynamics(q, qd, loads).qdd)
        free[..., normals] += gaps / h**2
        own, b = self._reduced(omega, free)
        law = self.law(own, b, mu, None if forces is None else self._stacked(forces), tolerance=self.tolerance / h)
        every = np.concatenate([law.forces, self._held_by(omega, free, law.forces)], axis=-1)
        loads = loads + _times(np.swapaxes(J, -1, -2), every)
        qdd = self._dynamics(q, qd, loads).qdd
        own_q, own_qd = (np.array(x, dtype=float) for x in (q, qd))  # which callers may change
        own_fx = None if fx is None else np.array(fx, dtype=float)
        after = own_qd + h * qdd
        ends = _times(J, after)
        signorini, slip = h * law.signorini, h * law.friction
        return ContactForces(
            {name: law.forces[..., part] for name, part in self._parts.items()},
            {name: ends[..., part] for name, part in self._parts.items()},
            qdd, after, signorini, slip, np.maximum(signorini, slip) <= self.tolerance,
            Solved(self.law, own_q, own_qd, own_fx, loads, rows, own, mu, law, every, weights),
        )  # fmt: skip

    def derivatives(self, found: ContactForces, wrt: Sequence[str] = BY) -> dict[tuple[str, str], np.ndarray]:
        """{("forces", x): (…, rows, nv), ("qdd", x): (…, nv, nv)} of a result, x of "q", "qd" and "tau".

        By the implicit function theorem, while no point opens, closes, begins or ends to slide. Rows are those of the
        contacts one after the other; columns by q are in the tangent space, as `Model.integrate` steps. Gaps and
        coefficients are constants. If points are redundant, the changes of forces have least norm. Columns are those of
        the tree; their product with `Model.coupling_matrix` has the columns of a robot with coupled joints.

        Raises UnknownName.
        """
        wrt = (wrt,) if isinstance(wrt, str) else tuple(wrt)
        for name in wrt:
            check_among("input to differentiate by", name, BY)
        at, model, own = found.solved, self.model, self._own
        J, omega = at.rows["jacobian"], at.rows["delassus"]
        smooth = self._slopes(at.q, at.qd, at.loads)
        inverse, change, nothing = smooth["qdd", "tau"], self.law.sensitivity(at.omega, at.mu, at.found), np.zeros(())
        rates = self._rates(at, found.qdd) | {"tau": (nothing, np.eye(model.nv))}
        results = {}
        for name in wrt:
            motion, load = rates[name]  # at constant forces, and motion at constant accelerations, too
            direct = (nothing if name == "tau" else smooth["qdd", name]) + inverse @ load
            free = np.moveaxis(motion + J @ direct, -1, 0)
            forces = change @ np.moveaxis(self._reduced(omega, free)[1], 0, -1)
            held = self._held_by(omega, free, np.moveaxis(forces, -1, 0))
            every = np.concatenate([forces, np.moveaxis(held, 0, -1)], axis=-2)
            results["forces", name] = every[..., own, :]
            results["qdd", name] = direct + inverse @ np.swapaxes(J, -1, -2) @ every
        return results

    # ---- loops and couplings ---------------------------------------------------------------------------------------

    def _reduced(self, omega: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Ω, b) of the points, with loops and couplings at rest: Ω_cc − Ω_cl Ω_ll⁺ Ω_lc."""
        own = self._own
        if omega.shape[-1] == own.stop:
            return omega, free
        other = slice(own.stop, None)
        solved = omega[..., own, other] @ np.linalg.pinv(omega[..., other, other], rcond=REPEATED, hermitian=True)
        return omega[..., own, own] - solved @ omega[..., other, own], free[..., own] - _times(solved, free[..., other])

    def _held_by(self, omega: np.ndarray, free: np.ndarray, forces: np.ndarray) -> np.ndarray:
        """Forces of loops and couplings at these forces of the points, least-norm."""
        own = self._own
        if omega.shape[-1] == own.stop:
            return forces[..., :0]
        other = slice(own.stop, None)
        inverse = np.linalg.pinv(omega[..., other, other], rcond=REPEATED, hermitian=True)
        return -_times(inverse, free[..., other] + _times(omega[..., other, own], forces))

    # ---- programs --------------------------------------------------------------------------------------------------

    @cached_property
    def _external(self) -> Kinematics:
        """Σ J_i^T fx_i."""
        return kinematics(self.model, "external")

    @cached_property
    def _slopes(self) -> Derivatives:
        """∂q̈/∂(q, q̇, τ) without constraints."""
        return self._dynamics.derivatives("qdd", BY)

    def _rates(self, at: Solved, qdd: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{"q", "qd": (∂(σ / h) (…, rows, nv), ∂(Σ J^T fx + J^T λ) (…, nv, nv))} at constant forces and q̈."""
        model, nv, nq = self.model, self.model.nv, self.model.nq
        rates = self._moving(at.fx is not None)
        given = {"q": at.q, "qd": at.qd, "qdd": qdd, "forces": at.every, "weights": at.weights}
        given |= {} if at.fx is None else {"fx": np.reshape(at.fx, (*np.shape(at.fx)[:-2], 6 * model.nb))}
        sizes = {name: size for name, size in rates.program.inputs.sizes.items() if not name.startswith(TANGENTS)}
        arrays, lead = Groups(Group(name, (size,)) for name, size in sizes.items()).normalise_inputs(given)
        n = int(np.prod(lead, dtype=int))
        many = {name: np.repeat(np.broadcast_to(x, (n, x.shape[-1])), nv, axis=0) for name, x in arrays.items()}
        turned = np.tile(_tangents(model, model.neutral()), (n, 1, 1))
        if model.quaternions:
            for k, q in enumerate(np.broadcast_to(arrays["q"], (n, nq))):
                turned[k] = _tangents(model, q)
        found, outputs = {}, rates.program.outputs.sizes
        for name in ("q", "qd"):
            along = {"q": np.zeros((n * nv, nq)), "qd": np.zeros((n * nv, nv))}
            along[name] = turned.reshape(n * nv, nq) if name == "q" else np.tile(np.eye(nv), (n, 1))
            results, _ = rates.results(many | {f"{TANGENTS}:{x}": y for x, y in along.items()}, n * nv)
            motion, loads = (
                np.swapaxes(results[x].reshape(*lead, nv, outputs[x]), -1, -2) for x in ("motion", "loads")
            )
            found[name] = motion, loads
        return found

    def _moving(self, wrenches: bool) -> Runner:
        """Rates of "motion", σ / h, and "loads", Σ J^T fx + J^T λ, along tangents of q and q̇."""
        return self.problem.cached(("rates of contacts", wrenches), lambda: self._written(wrenches))

    def _written(self, wrenches: bool) -> Runner:
        model, graph = self.model, Graph(SHARING)
        own = to_graph(self._space.program, graph)
        x = {name: np.array(y, dtype=object) for name, y in own.outputs.items()}
        m = len(x["velocity"])
        given = {name: graph.inputs(name, size) for name, size in (("forces", m), ("weights", m), ("qdd", model.nv))}
        J = x["jacobian"].reshape(m, model.nv)
        motion, loads = given["weights"] * x["velocity"] + J @ given["qdd"], J.T @ given["forces"]
        if wrenches:
            outer = to_graph(self._external.program, graph)
            (pushed,) = outer.outputs.values()
            loads = loads + np.array(pushed, dtype=object)
            given["fx"] = np.array(outer.inputs["fx"], dtype=object)
        results = {"motion": list(motion), "loads": list(loads)}
        program = own.to_program({name: list(y) for name, y in given.items()}, results, (), simplified=False)
        return Runner(backend_named("llvm")(ProgramDerivatives(program, [*results], ["q", "qd"]).product("jvp"), 2))

    # ---- arguments -------------------------------------------------------------------------------------------------

    def _of_points(
        self, what: str, given: float | Mapping[str, ArrayLike], least: float = -np.inf, most: float = np.inf,
        others: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """(…, points) of a number, or of {contact: (…)} and `others` or 0. Raises InvalidInput, UnknownName."""
        if is_number(given) and least <= float(given) <= most and np.isfinite(given):  # the usual, at once
            return np.full(len(self._parts), float(given))
        named = given if isinstance(given, Mapping) else dict.fromkeys(self._parts, given)
        values = {}
        for name, x in named.items():
            check_among(f"contact with a {what}", name, self._parts)
            values[name] = finite_array(f"{what} of {name!r}", x, (...,))
            if np.any((values[name] < least) | (values[name] > most)):
                limits = f"from {least:g} to {most:g}" if np.isfinite(most) else f"≥ {least:g}"
                raise InvalidInput(f"{what} of {name!r} is {x!r}, but numbers {limits} are needed")
        rest = np.zeros(len(self._parts)) if others is None else others
        lead = broadcast_shapes({name: x.shape for name, x in values.items()} | {"the others": rest.shape[:-1]})
        found = np.array(np.broadcast_to(rest, (*lead, len(self._parts))))
        for k, name in enumerate(self._parts):
            if name in values:
                found[..., k] = values[name]
        return found

    def _stacked(self, forces: Mapping[str, ArrayLike]) -> np.ndarray:
        """(…, rows) of {contact: (…, m)}. Raises InvalidInput, UnknownName."""
        if not isinstance(forces, Mapping):
            raise InvalidInput("forces are {contact: (…, m)}, such as `.forces` of an earlier result")
        for name in (*forces, *self._parts):
            if name not in self._parts or name not in forces:
                raise UnknownName("contact with forces", name, tuple(self._parts))
        values = [finite_array(f"forces of {x!r}", forces[x], (..., y.stop - y.start)) for x, y in self._parts.items()]
        lead = broadcast_shapes({name: x.shape[:-1] for name, x in zip(self._parts, values, strict=True)})
        return np.concatenate([np.broadcast_to(x, (*lead, x.shape[-1])) for x in values], axis=-1)


def unilateral(
    problem: Problem, friction: float | Mapping[str, ArrayLike], *, method: str = "admm", iterations: int = 100,
    polish: int = 3, tolerance: float = 1e-6,
) -> Unilateral:  # fmt: skip
    """Forces of contact points that push, slide and open, compiled.

        feet = [sd.Contact(foot, "point", reference="world", name=foot) for foot in ("lf_foot", "rf_foot")]
        ground = sd.unilateral(sd.forward_dynamics(robot) + feet, friction=0.7)
        now = ground(q, qd, tau, step=1e-3, gap={"rf_foot": 0.02})
        now.forces["lf_foot"], now.mode["lf_foot"], now.qd, now.ok

    problem: forward dynamics with contacts of kind "point", of "line" for one tangent, or of "normal" without friction,
        whose normals are their z: that of the frame, or of the world with reference="world". Where the points are, and
        how near the ground, is told by the caller. Loops and couplings hold both ways. What `stabilise=` asks for does
        not count. friction: μ of all contacts, or {contact: μ}, and 0 for the others.
    method, iterations: "admm" or "pgs" (projected Gauss-Seidel), so many steps at every state. polish: steps of
        Newton's method at most, at states whose residual is above `tolerance` [m/s] then, where they do not do in turns
        with steps of both methods; 0: none of it. See `Coulomb`.

    Forces of redundant points, such as four of a foot that sticks, are not determined by rigid bodies: some are given
    that obey the law, and where they slide while the sole turns the motion is not unique either. Such points that
    rebound (restitution) take many more steps.

    Raises ProblemError for other problems, InvalidInput, UnknownName, and those that `compile` raises.
    """
    if isinstance(problem, Problem) and problem.switchable_constraints:
        raise ProblemError(
            f"{problem.switchable_constraints[0].name!r} is Switchable, but contacts open by themselves here: state it "
            "without, and tell points that are off the ground by gap="
        )
    if not (is_number(tolerance) and tolerance > 0.0):
        raise InvalidInput(f"tolerance is {tolerance!r}, but a positive number of m/s is needed")
    return Unilateral(constrained(problem, "unilateral"), friction, method, iterations, polish, float(tolerance))


def _checked(m: Contact) -> Contact:
    """The contact of a point. Raises ProblemError."""
    if m.chosen[-1:] != ("a_z",) or any(x not in ("a_x", "a_y", "a_z") for x in m.chosen):
        raise ProblemError(
            f"{m.name!r} holds {', '.join(m.chosen)}, but a contact that may open holds its normal a_z, and a_x and "
            "a_y if it has friction: take Contact(frame, 'point') or 'normal', and several points of a sole"
        )
    return m


def _tangents(model: Model, q: np.ndarray) -> np.ndarray:
    """(nv, nq): dq/dt at unit velocities."""
    found = np.zeros((model.nv, model.nq))
    for i, joint in enumerate(model.joints):
        if joint.nq:
            own = model.q_slice(i)
            found[model.v_slice(i), own] = np.asarray(joint.rates(q[own]), dtype=float).T
    return found


def _times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Matrices (…, m, n) times vectors (…, n)."""
    return (matrix @ vector[..., None])[..., 0]
