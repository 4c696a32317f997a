"""Ways to write the dynamics of a robot: of τ and q̈ alone, read from a foot, or with every unknown of the system.

Each writes the outputs with one method and the decisions of one plan, `write(method, outputs, plan)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from sysdyn.model import Model
from sysdyn.model.constants import clean, unify
from sysdyn.model.frames import Frame
from sysdyn.model.inertia import first_moment, inertia
from sysdyn.model.joints import Free, Revolute, Spherical
from sysdyn.model.kinematics import path
from sysdyn.model.normal_form import (
    RETAINED_CHOICES,
    axes_to_z,
    canonical_frames,
    placements,
    regroup,
    rescale_length,
    weld_fixed_joints,
)
from sysdyn.model.se3 import rotation
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import CONST, MUL, Flops
from sysdyn.program.reproducible import matmul
from sysdyn.recursions.constraints import Constraint, Foothold, Held, Seen
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
from sysdyn.recursions.links import Scalar, Tree, Vector, cross, dot, plus
from sysdyn.recursions.plan import Key, Plan
from sysdyn.recursions.rows import NO_ROWS, Rows
from sysdyn.recursions.turned import Carried, Turned, can_turn, turned
from sysdyn.recursions.unknowns import accelerations, own_wrenches, velocity_terms

SAME = 1e-9  # Relative difference below which lengths are the same (chosen).
ROWS = "rows"  # The output by which constraints say how far accelerations are from the given ones.
# Outputs of the m rows J q̈ of constraints: J (m, nv), Ω = J H⁻¹ J^T and its inverse (m, m), J̄ = H⁻¹ J^T Ω⁻¹ (nv, m),
# 1 − J̄ J (nv, nv), J q̇ (m), and J q̈ − κ (m) if the constraints exert nothing.
RESPONSES = ("jacobian", "delassus", "inertia", "inverse", "projection", "velocity", "acceleration")
SPOKEN = "constrained body "  # Beginning of the names of frames, with the number of the body.
UNITS = 60  # Lengths that are tried as the unit of length (chosen).


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
    body, None if there are none. velocity: q̇ by which linear velocities are told; a recursion takes qd. given, seen: if
    the tree was turned, the inputs that these were made of, and bodies at them. length: the unit of length [m] of q̇,
    q̈ and τ, that of mass being such that moments have the same numbers.
    """

    def __init__(
        self, model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str], length: float = 1.0
    ):
        self.free, self.passes, self.length = free, passes, length
        self.graph = Graph("algebraic" if "symmetric_elimination" in passes else "structural")
        self.q, self.qd = (self.graph.inputs(x, n).tolist() for x, n in (("q", model.nq), ("qd", model.nv)))
        self.tau: Vector = [0.0] * model.nv
        self.qdd: Vector = [0.0] * model.nv
        for k in range(model.nv):
            (self.tau if k in free else self.qdd)[k] = self.graph.input(f"{'tau' if k in free else 'qdd'}[{k}]")
        for k in _linear(model):
            self.qd[k], self.qdd[k] = self.qd[k] * (1.0 / length), self.qdd[k] * (1.0 / length)
            self.tau[k] = self.tau[k] * length
        self.fx = None
        if external_wrenches:
            fx = self.graph.inputs("fx", 6 * model.nb).tolist()
            self.fx = [fx[6 * i : 6 * i + 6] for i in range(model.nb)]
        self.velocity = self.qd
        self.given: Inputs | None = None
        self.seen: Seen | None = None

    def tree(self, model: Model, plan: Plan, may_hold: bool = False) -> Tree:
        may_hold = may_hold and "parallel_axes" in self.passes
        return Tree(model, plan, self.graph.cut, may_hold, "double_angle" in self.passes).at(self.q)


class Reduced:
    """τ and q̈ alone: every pass applies."""

    def __init__(
        self, source: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str],
        constraints: Sequence[Constraint] = (), readings: Sequence[Constraint] = (), units: bool = True,
    ):  # fmt: skip
        self.source, self.constraints, self.readings = source, constraints, readings
        self.free, self.external, self.passes = free, external_wrenches, passes
        self.frames = cache(lambda number: (canonical_frames, axes_to_z)[number](self.source))
        self.regrouped = cache(lambda model, left: regroup(model, dict(left)))
        self.in_units = cache(rescale_length)
        linear = _linear(source)
        turning = all(isinstance(x, (Revolute, Spherical)) for x in self.source.joints[1 if linear else 0 :])
        moved = source.armature[linear].any() or (linear and any(0 in x.joints for x in (*constraints, *readings)))
        held = bool(constraints) or (linear and isinstance(source.joints[0], Carried))
        fit = held if linear else not (held or readings)  # else products would share less with it
        self.units = units and turning and fit and not (external_wrenches or moved)

    @staticmethod
    def of(
        model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str],
        constraints: Sequence[Constraint], readings: Sequence[Constraint] = (), units: bool = True,
    ) -> Reduced:  # fmt: skip
        """Of the tree of a model alone, with frames for the bodies that constraints and readings speak of.

        units: the unit of length is open.
        """
        spoken = {i for x in (*constraints, *readings) for i in x.bodies} | ({0} if constraints else set())
        model = model.replace(frames={f"{SPOKEN}{i}": Frame(f"{SPOKEN}{i}", i, np.eye(6)) for i in spoken}, closures=())
        if "base_parameters" in passes and not external_wrenches:  # else each body takes a wrench of its own
            model = weld_fixed_joints(model)
        return Reduced(model, free, external_wrenches, passes, constraints, readings, units)

    def model(self, plan: Plan) -> tuple[Model, np.ndarray]:
        """(the model that the plan makes of the given one, X (nb, 6, 6) from the given frames to its own)."""
        model, X = self.source, np.tile(np.eye(6), (self.source.nb, 1, 1))
        if "canonical_frames" in self.passes:
            model, X = self.frames(plan.pick("frames"))
        if "base_parameters" not in self.passes:
            return model, X
        revolute = (i for i, joint in enumerate(model.joints) if isinstance(joint, Revolute))
        retained = tuple((i, plan.pick("left", i, of=RETAINED_CHOICES)) for i in revolute)
        return self.regrouped(model, retained), X

    def unit(self, plan: Plan, model: Model) -> float:
        """The unit of length [m] of the plan, for the model that it makes."""
        if not self.units or "base_parameters" not in self.passes:
            return 1.0
        units = [1.0, *_units(model)]
        return units[plan.pick("unit", of=len(units))]

    def likely_units(self, written: Written, plan: Plan) -> list[int]:
        """Forms of the decision on the unit of length, those first that seem to save most multiplications.

        That is where they are by this length, or by the inverse of it: of a first moment.
        """
        if ("unit",) not in plan.open:
            return []
        graph = written.graph
        factors = Counter(
            graph.constants[k]
            for i in graph.live(written.scalars).tolist()
            if graph.kind[i] == MUL
            for k in graph.operands(i)
            if graph.kind[k] == CONST
        )
        model, by = self.model(plan)[0], np.array(list(factors))
        units = np.array(_units(model)) / self.unit(plan, model)
        found = np.isclose(by, units[:, None], SAME, 0.0) | np.isclose(by * units[:, None], 1.0, SAME, 0.0)
        saved = found @ np.array(list(factors.values()))
        return [int(k) + 1 for k in np.argsort(-saved, kind="stable") if saved[k]]

    def given(self, method: str, outputs: Sequence[str], plan: Plan) -> Written | None:
        """None: X, v, c and ν do not occur here."""
        return None

    def write(self, method: str, outputs: Sequence[str], plan: Plan) -> Written:
        model, X = self.model(plan)
        inputs = self._inputs(length := self.unit(plan, model))
        if length != 1.0:
            model, X = self.in_units(model, length), _in_units(X, length)
        tree = inputs.tree(model, plan, may_hold=True)
        fx = None if inputs.fx is None else [tree.links[i].wrench(wrench_to(X[i], w)) for i, w in enumerate(inputs.fx)]
        pivots: list[tuple[Scalar, int]] = []
        motion = self._motion(tree, inputs, fx)
        seen = Seen(tree, _places(model), inputs.velocity, motion, self._freedoms(), length)
        if not self.free and self.constraints:
            return self._pushed(method, tree, inputs, seen, outputs)
        if {*RESPONSES} & {*outputs}:
            return self._responses(method, tree, inputs, seen, outputs)
        held = Held(inputs.graph, self.constraints, seen)
        solved = _solved(method, tree, inputs, motion.qdd, motion.own, pivots, held.rows, bool(self.readings))
        values = self._values(inputs, seen, solved, held)
        values |= {x.name: seen.read(x, inputs.graph, solved.missing, solved.qdd) for x in self.readings}
        return Written(method, inputs.graph, _full(self.source, values, outputs), _varying(self._numbered(pivots)))

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

    def _inputs(self, length: float) -> Inputs:
        return Inputs(self.source, self.free, self.external, self.passes, length)

    def _values(self, inputs: Inputs, seen: Seen, solved: Solved, held: Held) -> dict[str, list]:
        """{quantity: its scalars}."""
        fx = [x for w in inputs.fx or [] for x in w]
        tau, qdd = self._in_metres(inputs, solved.tau, solved.qdd)
        return {"tau": tau, "qdd": qdd, "fx": fx, "w": [x for w in held.wrenches(solved.w) for x in w]}

    def _in_metres(self, inputs: Inputs, tau: Vector, qdd: Vector) -> tuple[Vector, Vector]:
        """τ and q̈ (nv) of the unit of length in SI units, the known ones as they were given."""
        tau, qdd = list(tau), list(qdd)
        for k in _linear(self.source):
            if k in self.free:
                tau[k], qdd[k] = inputs.graph.input(f"tau[{k}]"), qdd[k] * inputs.length
            else:
                tau[k], qdd[k] = tau[k] * (1.0 / inputs.length), inputs.graph.input(f"qdd[{k}]")
        return tau, qdd

    def _numbered(self, pivots: list[tuple[Scalar, int]]) -> list[tuple[Scalar, int]]:
        return pivots

    def _freedoms(self) -> dict[int, int]:
        """{degree of freedom of the given model: that of the tree}."""
        return {k: k for k in range(self.source.nv)}

    def _motion(self, tree: Tree, inputs: Inputs, fx: list[Vector] | None) -> Motion:
        """A motion with the known q̈."""
        if "classical_accelerations" in self.passes:
            return bodies(tree, inputs.qd, inputs.qdd, fx, self.free)
        c, nu = velocity_terms(tree, inputs.qd)
        a = accelerations(tree, c, inputs.qdd)
        return Motion(inputs.qdd, own_wrenches(tree, a, nu, fx), a)


class Rooted(Reduced):
    """The same of a floating robot, read from a frame that a constraint holds: that one costs nothing then."""

    def __init__(self, given: Reduced, root: Constraint, foothold: Foothold, turned: Turned):
        driven = {k for k, old in enumerate(turned.freedoms, start=6) if old in given.free}
        free = frozenset(driven | set(range(6)) - set(foothold.held))  # no torque where the root is not held
        rest = [x for x in given.constraints if x is not root]
        super().__init__(turned.model, free, given.external, given.passes, rest, given.readings)
        self.unturned, self.turned, self.number = given, turned, given.constraints.index(root)
        self.root, self.foothold = root, foothold
        self._way, X = canonical_frames(_towards(given.source, turned))
        self._to_way = [rotation(x) for x in X]

    @staticmethod
    def read_from(given: Reduced, root: Constraint) -> Rooted | None:
        """Read from the frame that `root` holds; None if this cannot be."""
        foothold = root.foothold
        if foothold is None or "classical_accelerations" not in given.passes or not given.free >= set(range(6)):
            return None
        body, X = _places(given.source)[foothold.body]
        base = any(0 in x.joints for x in (*given.constraints, *given.readings))  # q̈ of the free joint, which leaves
        if base or not can_turn(given.source, body):
            return None
        return Rooted(given, root, foothold, turned(given.source, body, matmul(foothold.X, X)))

    def model(self, plan: Plan) -> tuple[Model, np.ndarray]:
        model, X = super().model(plan)
        return model, matmul(X, self.turned.X)

    def _inputs(self, length: float) -> Inputs:
        given, foothold = self.unturned._inputs(length), self.foothold
        model = self._way if length == 1.0 else self.in_units(self._way, length)
        places, X = placements(model), _in_units(foothold.X, length)
        way = path(model, self.turned.bodies[0])
        parallel: dict[Key, int] = {
            ("turn", i): 1 for j, i in zip(way, way[1:], strict=False) if places[j].alpha[1] == 0.0
        }
        tree = Tree(model, Plan(parallel), given.graph.cut, "parallel_axes" in self.passes, double_angle=False)
        tree.at(given.q)
        seen = Seen(tree, _places(model), given.qd, Motion([], [], []), {})
        E = rotation(X).astype(object) @ seen.rotation(foothold.body)
        v = (X.astype(object) @ seen.velocity(foothold.body, uniform=False)).tolist()
        inputs, joints, bodies = copy(given), self.turned.freedoms, self.turned.bodies
        inputs.given, inputs.seen, inputs.free = given, seen, self.free
        inputs.q = [*E.flat, *(given.q[k] for k in self.turned.positions)]
        inputs.velocity = [*v, *(given.qd[k] for k in joints)]
        inputs.qd = [*v[:3], 0.0, 0.0, 0.0, *inputs.velocity[6:]]
        inputs.qdd = [0.0] * 6 + [given.qdd[k] for k in joints]
        for k, x in zip(foothold.held, foothold.acceleration(given.graph), strict=True):
            inputs.qdd[k] = x * (1.0 / length) if k in _linear(self.source) else x
        inputs.tau = [0.0] * 6 + [given.tau[k] for k in joints]
        inputs.fx = [[0.0] * 6 for _ in bodies] if given.fx is None else [given.fx[i] for i in bodies]
        old = bodies.index(0)
        inputs.fx[old] = plus(inputs.fx[old], given.tau[:6])
        return inputs

    def _motion(self, tree: Tree, inputs: Inputs, fx: list[Vector] | None) -> Motion:
        assert inputs.seen is not None
        upward = rotation(self.foothold.X).astype(object) @ inputs.seen.upward(self.foothold.body)
        return bodies(tree, inputs.qd, inputs.qdd, fx, self.free, self._spinning(tree, inputs), upward.tolist())

    def _spinning(self, tree: Tree, inputs: Inputs) -> dict[int, Vector]:
        """ω of the bodies on the way from the old root to the new one, if it has the same entries in their frames.

        The way to the foot has found them. Other frames would cost a rotation, which is no less than to turn ω anew.
        """
        assert inputs.seen is not None
        X, found = self.model(tree.plan)[1], {}
        for k, i in enumerate(path(self.unturned.source, self.turned.bodies[0])):
            R = clean(matmul(rotation(X[k]), self._to_way[i].T))
            if inputs.seen.tree.links[i].held is None and np.isin(R, (-1.0, 0.0, 1.0)).all():
                found[k] = (R.astype(object) @ inputs.seen.swept(i)[:3]).tolist()
        return found

    def _values(self, inputs: Inputs, seen: Seen, solved: Solved, held: Held) -> dict[str, list]:
        given = inputs.given
        assert given is not None and inputs.seen is not None
        tau, qdd = list(given.tau), list(given.qdd)
        for k, old in enumerate(self.turned.freedoms, start=6):
            tau[old], qdd[old] = solved.tau[k], solved.qdd[k]
        # q̈ of the free joint: its acceleration is that of the body, relative to one that does not turn with it
        a, omega = seen.carried(0, solved.missing), given.qd[:3]
        gravity = [-x for x in inputs.seen.upward(0)]
        drift = cross(omega, [x - y for x, y in zip(cross(omega, seen.offset(0)), given.qd[3:6], strict=True)])
        qdd[:6] = [*a[:3], *plus(plus(list(a[3:]), gravity), drift)]
        w = held.wrenches(solved.w)
        metres = [1.0 / given.length if k in _linear(self.source) else 1.0 for k in self.foothold.held]
        w.insert(self.number, [solved.tau[k] * x for k, x in zip(self.foothold.held, metres, strict=True)])
        fx = [x for w in given.fx or [] for x in w]
        tau, qdd = self.unturned._in_metres(given, tau, qdd)
        return {"tau": tau, "qdd": qdd, "fx": fx, "w": [x for own in w for x in own]}

    def _freedoms(self) -> dict[int, int]:
        return {old: k for k, old in enumerate(self.turned.freedoms, start=6)}

    def _numbered(self, pivots: list[tuple[Scalar, int]]) -> list[tuple[Scalar, int]]:
        freedoms = [*range(6), *self.turned.freedoms]  # free ones of the root stand for those of the free joint
        nv, starts = self.source.nv, np.cumsum([0, *(x.size for x in self.unturned.constraints)])
        rows = [k for i, x in enumerate(self.unturned.constraints) if x is not self.root
                for k in range(starts[i], starts[i] + x.size)]  # fmt: skip
        return [(x, freedoms[k] if k < nv else nv + rows[k - nv]) for x, k in pivots]


def _towards(model: Model, turned: Turned) -> Model:
    """The model with a foot whose first moment is along an axis of its frame, so that canonical frames follow that."""
    foot, E = turned.bodies[0], rotation(turned.X[0])
    axis = getattr(model.joints[foot], "axis", (0.0, 0.0, 0.0))
    across = E[int(np.argmin(np.abs(E @ np.array(axis))))]
    inertias = model.inertias.copy()
    inertias[foot] = inertia(1.0, across, np.eye(3))
    return model.replace(inertias=inertias, strict=None)


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

    def likely_units(self, written: Written, plan: Plan) -> list[int]:
        """No units at all, for f has the units of the model."""
        return []

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
    a = spread(tree, missing) if moving or inputs.given is not None else []
    return Solved(tau, [x + y for x, y in zip(qdd, missing, strict=True)], a, w)


def _as_inputs(graph: Graph, name: str, vectors: list[Vector]) -> list[Vector]:
    """Inputs in place of the entries that are not constant."""
    return [
        [graph.input(f"{name}[{i}][{k}]") if type(x) is Expr else x for k, x in enumerate(v)]
        for i, v in enumerate(vectors)
    ]


def _units(model: Model) -> list[float]:
    """Lengths that save multiplications as the unit: displacements, the acceleration of gravity, and inverses of h."""
    found = {abs(x) for x in model.gravity}
    for place, I in zip(placements(model), model.inertias, strict=True):
        found |= {abs(x) for x in (*place.p, place.r)}
        found |= {1.0 / abs(h) for h in first_moment(I) if h}
    return np.unique(unify(np.array([x for x in found if 1e-3 < x < 1e3]))[0]).tolist()[:UNITS]


def _linear(model: Model) -> list[int]:
    """Degrees of freedom of the root that displace it as a whole."""
    floating = model.nb > 0 and isinstance(model.joints[0], (Free, Carried))
    return [3, 4, 5] if floating else []


def _in_units(X: np.ndarray, length: float) -> np.ndarray:
    """Transforms (…, 6, 6) with `length` [m] as the unit of length."""
    scale = np.array([1.0, 1.0, 1.0, length, length, length])
    return X * scale / scale[:, None]


def _full(model: Model, values: dict[str, list], outputs: Sequence[str]) -> dict[str, list]:
    sizes = {"fx": 6 * model.nb}
    return {name: values[name] or [0.0] * sizes.get(name, 0) for name in outputs}


def _varying(pivots: list[tuple[Scalar, int]]) -> list[tuple[Scalar, int]]:
    return [(x, k) for x, k in pivots if type(x) is Expr]
