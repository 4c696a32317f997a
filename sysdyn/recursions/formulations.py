"""Expressions of the dynamics. `TauQdd`: τ, q̈ and constraint wrenches; `AllUnknowns`: also a and f of each body."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np

from sysdyn.model import Model
from sysdyn.model.frames import Frame
from sysdyn.model.normal_form import axes_to_z, canonical_frames, regroup, weld_fixed_joints
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import Flops
from sysdyn.recursions.aba import articulated_dynamics, backward_pass
from sysdyn.recursions.constraints import AccelerationRows, OriginalBodies, place_rows
from sysdyn.recursions.crba import ForwardDynamics, JointPivots, composite_dynamics, delassus, jacobian, mass_matrix
from sysdyn.recursions.reference_motion import (
    ReferenceMotion,
    accumulate,
    classical_motion,
    joint_torques,
    spatial_motion,
    velocity_terms,
)
from sysdyn.recursions.row_propagation import NO_ROWS, LinkRows
from sysdyn.recursions.transforms import (
    Choose,
    LinkTree,
    Scalar,
    Vector,
    constant_steps,
    dot,
    force_to_child,
    force_to_parent,
    motion_to_parent,
    scalars,
    scale,
    subtract,
)

METHODS = {"composite": composite_dynamics, "articulated": articulated_dynamics}  # of forward dynamics
ROWS = "rows"  # output of inverse dynamics with constraints: residuals of the constraint rows
# Outputs for m rows J q̈ of constraints: J (m, nv), Ω = J H⁻¹ J^T and its inverse (m, m), J̄ = H⁻¹ J^T Ω⁻¹ (nv, m),
# 1 − J̄ J (nv, nv), J q̇ (m), and J q̈ − κ (m) without constraint forces.
OPERATIONAL_SPACE = ("jacobian", "delassus", "inertia", "inverse", "projection", "velocity", "acceleration")
FRAME_PREFIX = "constrained body "  # of frames that mark the bodies of constraints while the model is transformed

ChoiceKey = tuple  # name of a choice, as ("absorb rotation", body)


@dataclass
class Plan:
    """Choices among algebraically equivalent forms of expressions; form 0 by default.

    choices: {key: form}. available: {key: number of forms}, recorded while a program is generated.
    """

    choices: dict[ChoiceKey, int] = field(default_factory=dict)
    available: dict[ChoiceKey, int] = field(default_factory=dict)

    def choose(self, *key, of: int = 2) -> int:
        """The form, 0 … of − 1, for the choice `key`."""
        self.available[key] = of
        return min(self.choices.get(key, 0), of - 1)


@dataclass(frozen=True)
class GeneratedDynamics:
    """Generated program: outputs {quantity: expressions of all its components}.

    method: "newton-euler", "composite" or "articulated". pivots: (D, degree of freedom or nv + constraint row) of each
    divisor D that depends on the state. flops_given_kinematics: operation count with X, v, c and ν as inputs, None if
    the formulation lacks them. considered: (method, operation count) of each method.
    """

    method: str
    graph: Graph
    outputs: dict[str, list]
    pivots: JointPivots
    flops_given_kinematics: Flops | None = None
    considered: tuple[tuple[str, int], ...] = ()

    @property
    def scalars(self) -> list:
        return [x for values in self.outputs.values() for x in values]

    @cached_property
    def flops(self) -> Flops:
        return self.graph.count(self.scalars)

    @property
    def total(self) -> int:
        return self.flops.total


class RecursionInputs:
    """Input nodes of a new graph.

    tau, qdd (nv): 0 if unknown. free: degrees of freedom with known τ. fx: external wrench (6) on each body, or None.
    """

    def __init__(self, model: Model, free: Collection[int], external_wrenches: bool, passes: Collection[str]):
        self.free, self.passes = free, passes
        self.graph = Graph("algebraic" if "symmetric_elimination" in passes else "structural")
        self.q, self.qd = (self.graph.inputs(x, n).tolist() for x, n in (("q", model.nq), ("qd", model.nv)))
        self.tau: Vector = [0.0] * model.nv
        self.qdd: Vector = [0.0] * model.nv
        for k in range(model.nv):
            (self.tau if k in free else self.qdd)[k] = self.graph.input(f"{'tau' if k in free else 'qdd'}[{k}]")
        fx = self.graph.inputs("fx", 6 * model.nb).tolist() if external_wrenches else []
        self.fx = [fx[6 * i : 6 * i + 6] for i in range(model.nb)] if external_wrenches else None

    def tree(self, model: Model, choose: Choose, absorb: bool = False) -> LinkTree:
        absorb = absorb and "parallel_axes" in self.passes
        return LinkTree(model, self.q, choose, self.graph.cut, absorb, "double_angle" in self.passes)

    def solve(
        self, method: str, tree: LinkTree, motion: ReferenceMotion, rows: LinkRows = NO_ROWS, tau: Vector | None = None
    ) -> ForwardDynamics:
        """Dynamics relative to a reference motion with the known q̈. tau: replaces the input τ."""
        tau, symmetric = self.tau if tau is None else tau, "symmetric_elimination" in self.passes
        if self.free:
            return METHODS[method](tree, motion, tau, self.free, rows, symmetric)
        tau = joint_torques(tree, accumulate(tree, motion.wrenches), motion.qdd)
        return ForwardDynamics(tau, motion.qdd, [], [[0.0] * 6] * tree.model.nb, [])


class TauQdd:
    """Formulation for τ, q̈ and constraint wrenches; all passes apply."""

    def __init__(
        self, model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str],
        constraints: Sequence[AccelerationRows] = (), measured: Sequence[AccelerationRows] = (),
    ):  # fmt: skip
        self.free, self.external_wrenches, self.passes = free, external_wrenches, passes
        self.constraints, self.measured, self._nb = constraints, measured, model.nb
        bodies = {i for x in (*constraints, *measured) for i in x.bodies}
        frames = {f"{FRAME_PREFIX}{i}": Frame(f"{FRAME_PREFIX}{i}", i, np.eye(6)) for i in bodies}
        model = model.replace(frames=frames, closures=())
        if "base_parameters" in passes and not external_wrenches:  # external wrenches act on every body
            model = weld_fixed_joints(model)
        self.model, self._normal_form = model, cache(self._make_normal_form)

    def _make_normal_form(self, choice: int) -> tuple[Model, np.ndarray]:
        """(model in the chosen body frames, X (nb, 6, 6) from the original frames)."""
        model, X = self.model, np.tile(np.eye(6), (self.model.nb, 1, 1))
        if "canonical_frames" in self.passes:
            model, X = (canonical_frames, axes_to_z)[choice](model)
        return (regroup(model) if "base_parameters" in self.passes else model), X

    def write(self, method: str, outputs: Sequence[str], choose: Choose) -> GeneratedDynamics:
        model, X = self._normal_form(choose("frames") if "canonical_frames" in self.passes else 0)
        inputs = RecursionInputs(self.model, self.free, self.external_wrenches, self.passes)
        tree = inputs.tree(model, choose, absorb=True)
        fx = None
        if inputs.fx is not None:
            fx = [tree.links[i].from_body(force_to_child(constant_steps(X[i]), w)) for i, w in enumerate(inputs.fx)]
        if "classical_accelerations" in self.passes:
            motion = classical_motion(tree, inputs.qd, inputs.qdd, fx, self.free)
        else:
            motion = spatial_motion(tree, inputs.qdd, fx, *velocity_terms(tree, inputs.qd))
        frames = ((name.removeprefix(FRAME_PREFIX), f) for name, f in model.frames.items() if FRAME_PREFIX in name)
        places = {int(number): (f.body, f.X) for number, f in frames}
        bodies = OriginalBodies(tree, places, inputs.qd, motion)
        if not self.free and self.constraints:
            values, pivots = self._inverse_dynamics(inputs, bodies), JointPivots()
        elif {*OPERATIONAL_SPACE} & {*outputs}:
            values, pivots = self._operational_space(method, inputs, bodies, outputs)
        else:
            rows = place_rows(inputs.graph, self.constraints, bodies)
            dynamics = inputs.solve(method, tree, motion, rows)
            values, pivots = {"tau": dynamics.tau, "qdd": dynamics.qdd}, dynamics.pivots
            values["w"] = rows.constraint_wrenches(dynamics.w)
            for x in self.measured:
                values[x.name] = bodies.evaluate(x, inputs.graph, dynamics.corrections, dynamics.qdd)
        return _generated(method, inputs, self._nb, values, outputs, pivots)

    def _inverse_dynamics(self, inputs: RecursionInputs, bodies: OriginalBodies) -> dict[str, list]:
        """τ by inverse dynamics; the constraint multipliers w are inputs."""
        tree, motion = bodies.tree, bodies.motion
        rows = place_rows(inputs.graph, self.constraints, bodies, reduce=False)
        w, wrenches = inputs.graph.inputs("w", len(rows.targets)).tolist(), list(motion.wrenches)
        for j, at_link in rows.bodies.items():
            for e, row in at_link.items():
                wrenches[j] = subtract(wrenches[j], scale(w[e], row))
        tau = joint_torques(tree, accumulate(tree, wrenches), inputs.qdd)
        for k, column in rows.freedoms.items():
            tau[k] = tau[k] - dot([*column.values()], [w[e] for e in column])
        return {"tau": tau, "qdd": inputs.qdd, "w": w, ROWS: [-x for x in rows.targets]}

    def _operational_space(
        self, method: str, inputs: RecursionInputs, bodies: OriginalBodies, outputs: Sequence[str]
    ) -> tuple[dict[str, list], JointPivots]:
        """({quantity of OPERATIONAL_SPACE: values}, pivots).

        Λ and J̄ by one solution per row, for the robot at rest with unit acceleration of that row.
        """
        tree, motion = bodies.tree, bodies.motion
        rows = place_rows(inputs.graph, self.constraints, bodies, reduce=False)
        m, nv = len(rows.targets), self.model.nv
        J = jacobian(tree, rows)
        values: dict[str, list] = {"jacobian": [J[k].get(e, 0.0) for e in range(m) for k in range(nv)]}
        pivots: JointPivots = []
        if "velocity" in outputs:
            values["velocity"] = [
                sum((dot(x[e], bodies.link_velocity(j)) for j, x in rows.bodies.items() if e in x), start=0.0)
                + sum((x[e] * inputs.qd[k] for k, x in rows.freedoms.items() if e in x), start=0.0)
                for e in range(m)
            ]
        if "acceleration" in outputs:
            dynamics = inputs.solve(method, tree, motion)
            pivots += dynamics.pivots
            change = subtract(dynamics.qdd, motion.qdd)
            values["acceleration"] = [
                dot([J[k].get(e, 0.0) for k in range(nv)], change) - x for e, x in enumerate(rows.targets)
            ]
        rest = ReferenceMotion([0.0] * nv, [[0.0] * 6] * tree.model.nb, [])
        if {"inertia", "inverse", "projection"} & {*outputs}:
            units = [
                inputs.solve(method, tree, rest, replace(rows, targets=scalars(unit)), [0.0] * nv) for unit in np.eye(m)
            ]
            pivots += [pivot for unit in units for pivot in unit.pivots]
            values["inertia"] = [unit.w[e] for e in range(m) for unit in units]
            values["inverse"] = [unit.qdd[k] for k in range(nv) for unit in units]
            values["projection"] = [
                float(k == c) - sum((unit.qdd[k] * J[c][e] for e, unit in enumerate(units) if e in J[c]), start=0.0)
                for k in range(nv) for c in range(nv)
            ]  # fmt: skip
        if "delassus" in outputs:
            if method == "articulated":
                _, propagator, eliminated = backward_pass(tree, rest, [0.0] * nv, self.free, rows, early=False)
                omega = propagator.omega
            else:
                symmetric = "symmetric_elimination" in self.passes
                omega, eliminated = delassus(mass_matrix(tree), J, m, nv, self.free, symmetric)
            pivots += eliminated
            values["delassus"] = [omega.get((min(r, c), max(r, c)), 0.0) for r in range(m) for c in range(m)]
        return values, pivots

    def given_kinematics(self, method: str, outputs: Sequence[str], choose: Choose) -> None:
        """Return None: only `AllUnknowns` can take the velocity terms c and ν as inputs."""


class AllUnknowns:
    """Formulation for τ, q̈, a and f: spatial vectors in the body frames, rotated so that joint axes are z."""

    def __init__(self, model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str]):
        self.model, self.free, self.external_wrenches, self.passes = model, free, external_wrenches, passes
        self._rotated, self._X = model, np.tile(np.eye(6), (model.nb, 1, 1))
        if "canonical_frames" in passes:
            self._rotated, self._X = axes_to_z(model)
        self._regrouped = regroup(self._rotated) if "base_parameters" in passes else self._rotated

    def write(self, method: str, outputs: Sequence[str], choose: Choose) -> GeneratedDynamics:
        inputs = self._inputs()
        terms = velocity_terms(inputs.tree(self._rotated, choose), inputs.qd)
        return self._from_velocity_terms(inputs, *terms, method, outputs, choose)

    def given_kinematics(self, method: str, outputs: Sequence[str], choose: Choose) -> GeneratedDynamics:
        """Program with the velocity terms c and ν as inputs: its operations are those beyond X, v, c and ν."""
        source, inputs = self._inputs(), self._inputs()
        terms = velocity_terms(source.tree(self._rotated, choose), source.qd)
        c, nu = (
            [
                [inputs.graph.input(f"{name}[{i}][{k}]") if type(x) is Expr else x for k, x in enumerate(v)]
                for i, v in enumerate(vectors)
            ]
            for name, vectors in zip(("c", "nu"), terms, strict=True)
        )
        return self._from_velocity_terms(inputs, c, nu, method, outputs, choose)

    def _inputs(self) -> RecursionInputs:
        return RecursionInputs(self.model, self.free, self.external_wrenches, self.passes)

    def _from_velocity_terms(
        self,
        inputs: RecursionInputs,
        c: list[Vector],
        nu: list[Vector],
        method: str,
        outputs: Sequence[str],
        choose: Choose,
    ) -> GeneratedDynamics:
        tree = inputs.tree(self._rotated, choose)
        steps = [constant_steps(X) for X in self._X]
        fx = None if inputs.fx is None else [force_to_child(*pair) for pair in zip(steps, inputs.fx, strict=True)]
        qdd, pivots = inputs.qdd, JointPivots()
        if self.free:
            reference = spatial_motion(tree, qdd, fx, c, nu)
            dynamics = inputs.solve(method, inputs.tree(self._regrouped, choose), reference)
            qdd, pivots = dynamics.qdd, dynamics.pivots
        motion = spatial_motion(tree, qdd, fx, c, nu)
        f = accumulate(tree, motion.wrenches)
        tau = [inputs.tau[k] if k in self.free else x for k, x in enumerate(joint_torques(tree, f, qdd))]
        values = {
            "tau": tau,
            "qdd": qdd,
            "a": [x for i, a in enumerate(motion.a) for x in motion_to_parent(steps[i], a)],
            "f": [x for i, w in enumerate(f) for x in force_to_parent(steps[i], w)],
        }
        return _generated(method, inputs, self.model.nb, values, outputs, pivots)


def _generated(
    method: str,
    inputs: RecursionInputs,
    nb: int,
    values: dict[str, list[Scalar]],
    outputs: Sequence[str],
    pivots: JointPivots,
) -> GeneratedDynamics:
    """Collect the outputs, and the pivots that depend on the state."""
    fx = [[0.0] * 6] * nb if inputs.fx is None else inputs.fx
    values = values | {"fx": [x for w in fx for x in w]}
    return GeneratedDynamics(
        method, inputs.graph, {x: values[x] for x in outputs}, [(D, k) for D, k in pivots if type(D) is Expr]
    )
