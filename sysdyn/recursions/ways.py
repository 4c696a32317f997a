"""Ways to write the dynamics of a robot: of τ and q̈ alone, read from a foot, or with every unknown of the system.

Each writes the outputs with one method and the decisions of one plan, `write(method, outputs, plan)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from sysdyn.model import Model
from sysdyn.model.frames import Frame
from sysdyn.model.normal_form import (
    axes_to_z,
    canonical_frames,
    regroup,
    weld_fixed_joints,
)
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import Flops
from sysdyn.recursions.constraints import Constraint, Held, Seen
from sysdyn.recursions.forward_dynamics import (
    Solved,
    articulated,
    constrained,
    delassus,
    inward,
    jacobian,
    mass_matrix,
    reaction,
    spread,
)
from sysdyn.recursions.frames import motion_back, wrench_back, wrench_to
from sysdyn.recursions.inverse_dynamics import Motion, bodies, torques, wrenches
from sysdyn.recursions.links import Scalar, Tree, Vector, dot
from sysdyn.recursions.plan import Plan
from sysdyn.recursions.rows import NO_ROWS, Rows
from sysdyn.recursions.unknowns import accelerations, own_wrenches, velocity_terms

ROWS = "rows"  # The output by which constraints say how far accelerations are from the given ones.
# Outputs of the m rows J q̈ of constraints: J (m, nv), Ω = J H⁻¹ J^T and its inverse (m, m), J̄ = H⁻¹ J^T Ω⁻¹ (nv, m),
# 1 − J̄ J (nv, nv), J q̇ (m), and J q̈ − κ (m) if the constraints exert nothing.
RESPONSES = ("jacobian", "delassus", "inertia", "inverse", "projection", "velocity", "acceleration")
SPOKEN = "constrained body "  # Beginning of the names of frames, with the number of the body.


@dataclass(frozen=True)
class Written:
    """Expressions of the outputs, by quantity at full size.

    method: "newton-euler", "composite" or "articulated", or one of these " from NAME", a contact that is the root.
    pivots: (D, degree of freedom, or nv and the number of the row of a constraint) of each divisor that depends on the
    state. given: operations if X, v, c and ν were given, where the formulation knows them. considered: (method,
    operations) of the plans that were tried; far dearer ones are not rewritten.
    """

    method: str
    graph: Graph
    outputs: dict[str, list]
    pivots: list[tuple[Scalar, int]]
    given: Flops | None = None
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


class Inputs:
    """The inputs of one graph, and trees at them.

    tau (nv), qdd (nv): the known ones, 0 for the others. free: degrees of freedom of which τ is known. fx: of each
    body, None if there are none.
    """

    def __init__(self, model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str]):
        self.free, self.passes = free, passes
        self.graph = Graph("algebraic" if "symmetric_elimination" in passes else "structural")
        self.q, self.qd = (self.graph.inputs(x, n).tolist() for x, n in (("q", model.nq), ("qd", model.nv)))
        self.tau: Vector = [0.0] * model.nv
        self.qdd: Vector = [0.0] * model.nv
        for k in range(model.nv):
            (self.tau if k in free else self.qdd)[k] = self.graph.input(f"{'tau' if k in free else 'qdd'}[{k}]")
        self.fx = None
        if external_wrenches:
            fx = self.graph.inputs("fx", 6 * model.nb).tolist()
            self.fx = [fx[6 * i : 6 * i + 6] for i in range(model.nb)]

    def tree(self, model: Model, plan: Plan, may_hold: bool = False) -> Tree:
        may_hold = may_hold and "parallel_axes" in self.passes
        return Tree(model, plan, self.graph.cut, may_hold, "double_angle" in self.passes).at(self.q)


class Reduced:
    """τ and q̈ alone: every pass applies."""

    def __init__(
        self, source: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str],
        constraints: Sequence[Constraint] = (), readings: Sequence[Constraint] = (),
    ):  # fmt: skip
        self.source, self.constraints, self.readings = source, constraints, readings
        self.free, self.external, self.passes = free, external_wrenches, passes
        self.frames = cache(lambda number: (canonical_frames, axes_to_z)[number](self.source))
        self.regrouped = cache(regroup)

    @staticmethod
    def of(
        model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str],
        constraints: Sequence[Constraint], readings: Sequence[Constraint] = (),
    ) -> Reduced:  # fmt: skip
        """Of the tree of a model alone, with frames for the bodies that constraints and readings speak of."""
        spoken = {i for x in (*constraints, *readings) for i in x.bodies} | ({0} if constraints else set())
        model = model.replace(frames={f"{SPOKEN}{i}": Frame(f"{SPOKEN}{i}", i, np.eye(6)) for i in spoken}, closures=())
        if "base_parameters" in passes and not external_wrenches:  # else each body takes a wrench of its own
            model = weld_fixed_joints(model)
        return Reduced(model, free, external_wrenches, passes, constraints, readings)

    def model(self, plan: Plan) -> tuple[Model, np.ndarray]:
        """(the model that the plan makes of the given one, X (nb, 6, 6) from the given frames to its own)."""
        model, X = self.source, np.tile(np.eye(6), (self.source.nb, 1, 1))
        if "canonical_frames" in self.passes:
            model, X = self.frames(plan.pick("frames"))
        if "base_parameters" not in self.passes:
            return model, X
        return self.regrouped(model), X

    def given(self, method: str, outputs: Sequence[str], plan: Plan) -> Written | None:
        """None: X, v, c and ν do not occur here."""
        return None

    def write(self, method: str, outputs: Sequence[str], plan: Plan) -> Written:
        model, X = self.model(plan)
        inputs = Inputs(self.source, self.free, self.external, self.passes)
        tree = inputs.tree(model, plan, may_hold=True)
        fx = None if inputs.fx is None else [tree.links[i].wrench(wrench_to(X[i], w)) for i, w in enumerate(inputs.fx)]
        pivots: list[tuple[Scalar, int]] = []
        motion = self._motion(tree, inputs, fx)
        seen = Seen(tree, _places(model), inputs.qd, motion)
        if not self.free and self.constraints:
            return self._pushed(method, tree, inputs, seen, outputs)
        if {*RESPONSES} & {*outputs}:
            return self._responses(method, tree, inputs, seen, outputs)
        held = Held(inputs.graph, self.constraints, seen)
        solved = _solved(method, tree, inputs, motion.qdd, motion.own, pivots, held.rows, bool(self.readings))
        values = self._values(inputs, seen, solved, held)
        values |= {x.name: seen.read(x, inputs.graph, solved.missing, solved.qdd) for x in self.readings}
        return Written(method, inputs.graph, _full(self.source, values, outputs), _varying(pivots))

    def _pushed(self, method: str, tree: Tree, inputs: Inputs, seen: Seen, outputs: Sequence[str]) -> Written:
        """Inverse dynamics, the wrenches of constraints being inputs w, too; the output ROWS is their rows less κ."""
        rows = Held(inputs.graph, self.constraints, seen, simplified=False).rows
        w, own = inputs.graph.inputs("w", len(rows.targets)).tolist(), list(seen.motion.own)
        for j, carried in rows.bodies.items():
            for e, row in carried.items():
                own[j] = [x - w[e] * c for x, c in zip(own[j], row, strict=True)]
        tau = torques(tree, wrenches(tree, own), inputs.qdd)
        for k, column in rows.freedoms.items():
            tau[k] = tau[k] - dot([*column.values()], [w[e] for e in column])
        values = {"tau": tau, "qdd": inputs.qdd, "w": w, ROWS: [-x for x in rows.targets]}
        return Written(method, inputs.graph, {name: values[name] for name in outputs}, [])

    def _responses(self, method: str, tree: Tree, inputs: Inputs, seen: Seen, outputs: Sequence[str]) -> Written:
        """RESPONSES: to the torques at hand, and of the robot at rest to an acceleration of 1 of each row."""
        rows = Held(inputs.graph, self.constraints, seen, simplified=False).rows
        m, nv, motion = len(rows.targets), self.source.nv, seen.motion
        J = jacobian(tree, rows)
        values: dict[str, list] = {"jacobian": [J[k].get(e, 0.0) for e in range(m) for k in range(nv)]}
        pivots: list[tuple[Scalar, int]] = []
        if "velocity" in outputs:
            values["velocity"] = [
                sum((dot(own[e], seen.swept(j)) for j, own in rows.bodies.items() if e in own), start=0.0)
                + sum((own[e] * inputs.qd[k] for k, own in rows.freedoms.items() if e in own), start=0.0)
                for e in range(m)
            ]
        if "acceleration" in outputs:
            found = _solved(method, tree, inputs, motion.qdd, motion.own, pivots)
            missing = [x - y for x, y in zip(found.qdd, motion.qdd, strict=True)]
            values["acceleration"] = [
                dot([J[k].get(e, 0.0) for k in range(nv)], missing) - x for e, x in enumerate(rows.targets)
            ]
        still = copy(inputs)
        still.tau, rest = [0.0] * nv, [[0.0] * 6 for _ in motion.own]
        if {"inertia", "inverse", "projection"} & {*outputs}:
            units = [
                _solved(method, tree, still, [0.0] * nv, rest, pivots, replace(rows, targets=[*unit]))
                for unit in np.eye(m).tolist()
            ]
            values["inertia"] = [unit.w[e] for e in range(m) for unit in units]
            values["inverse"] = [unit.qdd[k] for k in range(nv) for unit in units]
            values["projection"] = [
                float(k == c) - sum((unit.qdd[k] * J[c][e] for e, unit in enumerate(units) if e in J[c]), start=0.0)
                for k in range(nv) for c in range(nv)
            ]  # fmt: skip
        if "delassus" in outputs:
            symmetric = "symmetric_elimination" in self.passes
            if method == "articulated":
                omega = inward(tree, still.tau, [0.0] * nv, rest, self.free, pivots, rows, meeting=False).rows.omega
            else:
                omega = delassus(mass_matrix(tree), J, m, nv, self.free, symmetric)
            values["delassus"] = [omega.get((min(r, c), max(r, c)), 0.0) for r in range(m) for c in range(m)]
        return Written(method, inputs.graph, {x: values[x] for x in outputs}, _varying(pivots))

    def _values(self, inputs: Inputs, seen: Seen, solved: Solved, held: Held) -> dict[str, list]:
        """{quantity: its scalars}."""
        fx = [x for w in inputs.fx or [] for x in w]
        return {"tau": solved.tau, "qdd": solved.qdd, "fx": fx, "w": [x for w in held.wrenches(solved.w) for x in w]}

    def _motion(self, tree: Tree, inputs: Inputs, fx: list[Vector] | None) -> Motion:
        """A motion with the known q̈."""
        if "classical_accelerations" in self.passes:
            return bodies(tree, inputs.qd, inputs.qdd, fx, self.free)
        c, nu = velocity_terms(tree, inputs.qd)
        a = accelerations(tree, c, inputs.qdd)
        return Motion(inputs.qdd, own_wrenches(tree, a, nu, fx), a)


def _places(model: Model) -> dict[int, tuple[int, np.ndarray]]:
    """{body of the given model that is spoken of: (the body that carries it, X from the frame of that to its own)}."""
    frames = ((name.removeprefix(SPOKEN), f) for name, f in model.frames.items() if name.startswith(SPOKEN))
    return {int(number): (f.body, f.X) for number, f in frames}


class Unknowns:
    """Any quantities: spatial accelerations and wrenches in the frames of the bodies, but for a turn onto z."""

    def __init__(self, model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str]):
        self.source, self.free, self.external, self.passes = model, free, external_wrenches, passes
        self.upright, self.X = model, np.tile(np.eye(6), (model.nb, 1, 1))
        if "canonical_frames" in passes:
            self.upright, self.X = axes_to_z(model)
        self.base = regroup(self.upright) if "base_parameters" in passes else self.upright

    def write(self, method: str, outputs: Sequence[str], plan: Plan) -> Written:
        inputs = self._inputs()
        tree = inputs.tree(self.upright, plan)
        return self._rest(inputs, tree, *velocity_terms(tree, inputs.qd), method, outputs)

    def given(self, method: str, outputs: Sequence[str], plan: Plan) -> Written:
        """The program if X, v, c and ν were given."""
        inputs, other = self._inputs(), self._inputs()
        c, nu = velocity_terms(inputs.tree(self.upright, plan), inputs.qd)
        terms = _as_inputs(other.graph, "c", c), _as_inputs(other.graph, "nu", nu)
        return self._rest(other, other.tree(self.upright, plan), *terms, method, outputs)

    def _inputs(self) -> Inputs:
        return Inputs(self.source, self.free, self.external, self.passes)

    def _rest(
        self, inputs: Inputs, tree: Tree, c: list[Vector], nu: list[Vector], method: str, outputs: Sequence[str]
    ) -> Written:
        """The outputs from c and ν."""
        fx = None if inputs.fx is None else [wrench_to(self.X[i], w) for i, w in enumerate(inputs.fx)]
        qdd = inputs.qdd
        pivots: list[tuple[Scalar, int]] = []
        if self.free:
            own = own_wrenches(tree, accelerations(tree, c, qdd), nu, fx)
            qdd = _solved(method, inputs.tree(self.base, tree.plan), inputs, qdd, own, pivots).qdd
        a = accelerations(tree, c, qdd)
        f = wrenches(tree, own_wrenches(tree, a, nu, fx))
        tau = [inputs.tau[k] if k in self.free else x for k, x in enumerate(torques(tree, f, qdd))]
        values = {
            "tau": tau, "qdd": qdd, "fx": [x for w in inputs.fx or [] for x in w],
            "a": [x for i, v in enumerate(a) for x in motion_back(self.X[i], v)],
            "f": [x for i, v in enumerate(f) for x in wrench_back(self.X[i], v)],
        }  # fmt: skip
        return Written(method, inputs.graph, _full(self.source, values, outputs), _varying(pivots))


def _solved(
    method: str, tree: Tree, inputs: Inputs, qdd: Vector, own: list[Vector], pivots: list[tuple[Scalar, int]],
    rows: Rows = NO_ROWS, moving: bool = False,
) -> Solved:  # fmt: skip
    """The dynamics, given τ and q̈, from a motion with the known q̈: qdd, and own, the wrench of each body alone.

    moving: `missing` is needed; else it is left out where it would leave decisions to the plan.
    """
    free, symmetric = inputs.free, "symmetric_elimination" in inputs.passes
    if method == "articulated":
        return articulated(tree, inputs.tau, qdd, own, free, pivots, rows, symmetric)
    tau = torques(tree, wrenches(tree, own), qdd)
    if not free:
        return Solved(tau, qdd, [[0.0] * 6 for _ in own], [])
    H = mass_matrix(tree)
    u = [inputs.tau[k] - x if k in free else 0.0 for k, x in enumerate(tau)]
    J = jacobian(tree, rows) if rows.targets else {}
    missing, w = constrained(H, J, u, rows.targets, free, pivots, symmetric)
    rest = reaction(H, missing, free)
    for k in set(J) - free:
        rest[k] = rest[k] - dot([*J[k].values()], [w[e] for e in J[k]])
    tau = [inputs.tau[k] if k in free else x + rest[k] for k, x in enumerate(tau)]
    a = spread(tree, missing) if moving else []
    return Solved(tau, [x + y for x, y in zip(qdd, missing, strict=True)], a, w)


def _as_inputs(graph: Graph, name: str, vectors: list[Vector]) -> list[Vector]:
    """Inputs in place of the entries that are not constant."""
    return [
        [graph.input(f"{name}[{i}][{k}]") if type(x) is Expr else x for k, x in enumerate(v)]
        for i, v in enumerate(vectors)
    ]


def _full(model: Model, values: dict[str, list], outputs: Sequence[str]) -> dict[str, list]:
    sizes = {"fx": 6 * model.nb}
    return {name: values[name] or [0.0] * sizes.get(name, 0) for name in outputs}


def _varying(pivots: list[tuple[Scalar, int]]) -> list[tuple[Scalar, int]]:
    return [(x, k) for x, k in pivots if type(x) is Expr]
