"""Derivatives of solved quantities as expressions; positions are differentiated in the tangent space.

`analytic` differentiates the dynamics of trees. `implicit` differentiates any system D d + b = 0 with the factors of D.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sysdyn.equations.assembly import Assembly
from sysdyn.equations.system import System
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.problem import Problem
from sysdyn.model.constants import clean
from sysdyn.model.kinematics import path
from sysdyn.model.normal_form import normal_form
from sysdyn.model.quantities import tangents
from sysdyn.offline import recursion
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.inverse_inertia import SPACE, InverseInertia, Load
from sysdyn.offline.recursion_constraints import ConstraintRows
from sysdyn.program.autodiff import derivative, evaluate
from sysdyn.program.graph import SHARING, Graph, is_zero
from sysdyn.recursions.transforms import constant_steps, force_to_child
from sysdyn.reference import expanded_parent
from sysdyn.reference.rnea_derivatives import Bodies
from sysdyn.sparse.lu import solve, solve_transposed

# Derivatives of robots with at least this number of degrees of freedom are written in segments (measured: one segment
# takes two thirds of the time for a chain of 7, twice the time for a chain of 12).
SEGMENTED = 10

# {(quantity, input): derivative (scalars of the quantity, directions of the input)}.
DerivativeBlocks = dict[tuple[str, str], np.ndarray]


@dataclass(frozen=True)
class SymbolicDerivatives:
    """Derivatives of outputs with respect to inputs, as expressions of `graph`; see `DerivativeBlocks`.

    method: "analytic", "implicit" or "implicit, transposed". inputs: groups of inputs. guards: of a Program. pivots:
    (value, index in `recursion.pivot_labels`) of pivots whose thresholds a check has to set. qdd, w: accelerations and
    constraint wrenches for that check.
    """

    method: str
    graph: Graph
    inputs: tuple[tuple[str, np.ndarray], ...]
    blocks: DerivativeBlocks
    guards: tuple = ()
    pivots: tuple = ()
    qdd: tuple = ()
    w: tuple = ()

    @property
    def operations(self) -> int:
        """Number of operations of a program that computes all blocks."""
        return self.graph.count(x for block in self.blocks.values() for x in block.flat).total


# ---- implicit differentiation ----------------------------------------------------------------------------------------


def affine(terms: Mapping[int, Any], constant: Any, x: Any) -> Any:
    """Σ terms[j] x[j] + constant."""
    for j, entry in terms.items():
        constant = constant + entry * x[j]
    return constant


def implicit(
    elimination: Elimination, guards: Sequence[tuple], of: Sequence[str], wrt: Sequence[str], transposed: bool
) -> SymbolicDerivatives:
    """Derivatives of quantities and measured outputs y = Y d + b_Y of D d + b = 0 with the factors of D.

        D ∂d = −(∂D d + ∂b),    ∂y = Y ∂d + (∂Y d + ∂b_Y)

    transposed: solve Dᵀ once for each output scalar, instead of D once for each input direction. guards: of the
    elimination's program.
    """
    system, assembly, factors = elimination.system, elimination.assembly, elimination.factors
    n, measured = len(system.columns), [x for x in of if x in assembly.outputs]
    terms = {x: assembly.outputs[x].rows if x in measured else system.output_terms(x) for x in of}
    changes: dict[str, list[dict[int, Any]]] = {}
    blocks: DerivativeBlocks = {}
    for name in wrt:
        changes[name], fixed = rates(system, assembly, elimination.solution, name, measured)
        for x in of:
            block = blocks[x, name] = np.full((len(terms[x]), len(fixed)), 0.0, dtype=object)
            for c, by_output in enumerate(fixed):
                if x in measured:
                    block[:, c] = by_output[x]
            if x == name:  # scalars that are known are inputs
                block[np.diag_indices(len(block))] = [0.0 if row else 1.0 for row in terms[x]]
    if transposed:
        for x, rows in terms.items():
            for k, row in enumerate(rows):
                y = solve_transposed(factors, [row.get(c, 0.0) for c in range(n)]) if row else []
                for name, columns in changes.items() if row else ():
                    for c, change in enumerate(columns):
                        blocks[x, name][k, c] = affine({i: -e for i, e in change.items()}, blocks[x, name][k, c], y)
    else:
        for name, columns in changes.items():
            for c, change in enumerate(columns):
                rate = solve(factors, [change.get(i, 0.0) for i in range(n)])
                for x, rows in terms.items():
                    blocks[x, name][:, c] = [affine(row, blocks[x, name][k, c], rate) for k, row in enumerate(rows)]
    method = "implicit, transposed" if transposed else "implicit"
    return SymbolicDerivatives(method, elimination.graph, assembly.inputs, blocks, tuple(guards))


class FixedSolution:
    """The residual D d + b and the outputs Y d + b_Y of a system, in a graph of their own with the solution d as input.

    inputs: groups of inputs of that graph. state: {scalar input: its expression in the graph of `assembled`}.
    """

    def __init__(self, system: System, assembled: Assembly, solution: Sequence):
        self.graph = Graph("structural")
        copy, d = system.build(self.graph), self.graph.inputs("d", len(solution))
        self.inputs = dict(copy.inputs)
        self.residual = _values(copy.rows, copy.b, d)
        self.outputs = {x: _values(*y, d) for x, y in copy.outputs.items()}
        self.state = _named("d", solution)
        for group, values in assembled.inputs:
            self.state |= _named(group, values)


def _values(rows: Sequence[Mapping[int, Any]], b: Sequence, d: Sequence | np.ndarray) -> list:
    """Values of affine functions with these rows and constants b."""
    return [affine(row, right, d) for row, right in zip(rows, b, strict=True)]


def rates(
    system: System, assembled: Assembly, solution: Sequence, name: str, outputs: Collection[str] = ()
) -> tuple[list[dict[int, Any]], list[dict[str, list]]]:
    """Directional derivatives at a fixed solution d, along each direction of the input `name`.

    Returns (∂D d + ∂b as {equation: entry}, ∂Y d + ∂b_Y as {output: entries}), one of each per direction, in the graph
    of `assembled`. solution: d of that system.
    """
    fixed_solution = FixedSolution(system, assembled, solution)
    tables = [fixed_solution.residual, *(fixed_solution.outputs[x] for x in outputs)]
    directions = tangents(system.model, name, fixed_solution.inputs[name])
    slopes = [derivative([*itertools.chain(*tables)], direction) for direction in directions]
    values = iter(evaluate(np.array([*itertools.chain(*slopes), None], dtype=object)[:-1], fixed_solution.state))
    changes: list[dict[int, Any]] = []
    fixed: list[dict[str, list]] = []
    for _ in directions:
        equations = [next(values) for _ in fixed_solution.residual]
        changes.append({i: x for i, x in enumerate(equations) if not is_zero(x)})
        fixed.append({x: [next(values) for _ in fixed_solution.outputs[x]] for x in outputs})
    return changes, fixed


# ---- rigid-body dynamics ---------------------------------------------------------------------------------------------


def has_analytic(problem: Problem, of: Sequence[str], wrt: Sequence[str]) -> bool:
    """True if `analytic` supports these derivatives: of τ, q̈ and w of problems that recursions solve."""
    if recursion.torque_driven(problem) is None:
        return False
    known = {"q", "qd", "tau", "qdd", "fx", *(value_group(m.name) for m in problem.constraints)}
    return {*of} <= {"tau", "qdd", *([problem.wrenches.name] if problem.constraints else [])} and {*wrt} <= known


def analytic(
    problem: Problem, of: Sequence[str], wrt: Sequence[str], external_wrenches: bool = True
) -> SymbolicDerivatives:
    """Derivatives of τ and q̈ in inverse, forward and hybrid dynamics, and of constraint wrenches w.

    U are the degrees of freedom with known τ, K those with known q̈. ID(q, q̇, q̈) is inverse dynamics, and the rows
    ρ = J q̈ + b − y = 0 of constraints act by torques J^T w. For any input x of ID and ρ, with q̈ and w fixed in the
    derivatives on the right,

        H_UU ∂q̈_U/∂x − J_U^T ∂w/∂x = −∂(ID − J^T w)_U/∂x,   J_U ∂q̈_U/∂x = −∂ρ/∂x
        ∂τ_K/∂x = ∂(ID − J^T w)_K/∂x + H_KU ∂q̈_U/∂x − J_K^T ∂w/∂x

    For x = τ_U the derivative of ID_U is replaced by −1. The results do not depend on the choice of body frames or on
    unidentifiable parameters. external_wrenches: True if they are inputs, else they are zero.
    J. Carpentier, N. Mansard, Analytical derivatives of rigid body dynamics algorithms, RSS (2018).
    """
    requested, wrt = wrt, [*wrt, *(["qd"] if problem.couplings and "q" in wrt and "qd" not in wrt else [])]
    dynamics = _Dynamics(problem, external_wrenches, frames="fx" in wrt)
    blocks = {key: block for key, block in dynamics.blocks(wrt).items() if key[0] in of}
    if problem.model.nv < SEGMENTED:
        dynamics.graph.cuts.clear()
    pivots = tuple(zip(dynamics.inverse.pivots, [*dynamics.U, *range(problem.model.nv, problem.model.nv + dynamics.m)],
                       strict=True))  # fmt: skip
    derivatives = SymbolicDerivatives(
        "analytic", dynamics.graph, dynamics.inputs, blocks, (), pivots, tuple(dynamics.qdd), tuple(dynamics.w)
    )
    return _by_leaders(problem, derivatives, of, requested) if problem.couplings else derivatives


def _by_leaders(
    problem: Problem, derivatives: SymbolicDerivatives, of: Sequence[str], wrt: Sequence[str]
) -> SymbolicDerivatives:
    """Apply the chain rule of couplings q_f = p(q_l), q̇_f = p' q̇_l to leaders; derivatives by followers become 0."""
    inputs, blocks = dict(derivatives.inputs), {key: block.copy() for key, block in derivatives.blocks.items()}
    q, qd = problem.imposed(inputs["q"], inputs["qd"])
    for link, x in itertools.product(reversed(problem.couplings), of):
        f, l = link.v, link.leader_v
        by_q, by_qd = (blocks.get((x, name)) for name in ("q", "qd"))
        if l >= 0:
            _, slope, curve = link.coupling.derivatives(q[link.leader_q])
            if by_q is not None and by_qd is not None:
                by_q[:, l] = by_q[:, l] + slope * by_q[:, f] + curve * qd[l] * by_qd[:, f]
            if by_qd is not None:
                by_qd[:, l] = by_qd[:, l] + slope * by_qd[:, f]
        for block in (by_q, by_qd):
            if block is not None:
                block[:, f] = 0.0
    return replace(derivatives, blocks={key: block for key, block in blocks.items() if key[1] in wrt})


class _Change(NamedTuple):
    """Derivative of ID and of the constraints along one direction of an input, at fixed q̈ and w.

    forces (nv): derivative of ID − Jᵀ w. at: a degree of freedom; forces are nonzero only on its subtree and its path
    to the base; −1 if all are zero. wrench (6): total wrench on the subtree, whose components along S are the forces on
    the path. rows (m): derivative of the constraint rows; None for zero. acceleration (nv): a term that is subtracted
    from the derivative of q̈, not included in the other fields.
    """

    forces: np.ndarray
    at: int = -1
    wrench: np.ndarray | None = None
    rows: np.ndarray | None = None
    acceleration: np.ndarray | None = None


class _Dynamics:
    """Inverse dynamics (ID) and constraints of a problem at its solution, with the derivatives of both.

    frames: True to keep the body frames, because fx is given in them.
    """

    def __init__(self, problem: Problem, external_wrenches: bool, frames: bool):
        graph = self.graph = Graph(SHARING)
        groups = {name: graph.inputs(name, size) for name, size in problem.input_sizes}
        self.inputs = tuple(groups.items())
        if problem.couplings:
            groups["q"], groups["qd"] = problem.imposed(groups["q"], groups["qd"])
        self._X: np.ndarray | None
        model, self._X = (problem.model, None) if frames else normal_form(problem.model)
        self.model, self._groups, self.nv = model, groups, model.nv
        self._fx = np.full((model.nb, 6), 0.0, dtype=object)
        if external_wrenches:
            for i, w in enumerate(groups["fx"].reshape(model.nb, 6)):
                self._fx[i] = self._framed(i, w)
        self.U = U = sorted(model.v_slice(i).start + k for i, k in problem.knows("tau"))
        self.K = [k for k in range(self.nv) if k not in U]
        self.bodies = bodies = Bodies(model, groups["q"], groups["qd"])
        self._rows = ConstraintRows(problem) if problem.constraints else None
        self.m = self._rows.m if self._rows else 0
        self._values = {f"{name}[{k}]": x for name, values in groups.items() for k, x in enumerate(values)}
        self.J = self._jacobian()
        number = {k: n for n, k in enumerate(U)}
        paths: list[tuple[int, ...]] = []  # to the base, itself included
        for k, j in enumerate(expanded_parent(model)):
            paths.append((k, *(paths[j] if j >= 0 else ())))
        self._paths = paths
        self._torque_paths = [[number[j] for j in path if j in number] for path in paths]
        S, IS = (np.array([getattr(bodies.sides[k], x) for k in U], dtype=object).reshape(-1, 6) for x in ("s", "Is"))
        hinges = [model.joints[bodies.sides[k].body].nv == 1 and not model.armature[k] for k in U]
        self.inverse = InverseInertia(
            bodies.H[np.ix_(U, U)], self.J[:, U], [self._torque_paths[k][1:] for k in U], S, IS, hinges
        )
        self._solve()

    # ---- at the state ----------------------------------------------------------------------------------------------

    def _framed(self, i: int, wrench: np.ndarray) -> np.ndarray:
        """Transform a wrench (6) on body i from the body frame to the frame of `model`."""
        if self._X is None:
            return wrench
        return np.array(force_to_child(constant_steps(self._X[i]), wrench.tolist()), dtype=object)

    def _jacobian(self) -> np.ndarray:
        """Jacobian J (m, nv) of the constraints; sets `_loads`, their wrenches on bodies."""
        self._loads: dict[int, np.ndarray] = {}
        if self._rows is None:
            return np.empty((0, self.nv), dtype=object)
        loads, torques = self._rows.loads(self._values)
        for i, L in loads.items():
            self._loads[i] = np.array([self._framed(i, x) for x in L.T], dtype=object).T
            for e, x in enumerate(self._loads[i].T):
                torques[:, e] = torques[:, e] + self._forces(i, self.bodies.motion.placed_wrench(i, x))
        return torques.T

    def _forces(self, i: int, wrench: np.ndarray) -> np.ndarray:
        """Generalised forces (nv) of a wrench (6) on body i, given in coordinates of its tree."""
        forces = np.full(self.nv, 0.0, dtype=object)
        for j in path(self.model, i):
            part = self.model.v_slice(j)
            forces[part] = self.bodies.motion.S[j] @ wrench if part.stop > part.start else forces[part]
        return forces

    def _solve(self) -> None:
        """Solve for q̈ and w, and evaluate ID at the solution."""
        groups, U, K = self._groups, self.U, self.K
        self.qdd, fx, kappa = np.full(self.nv, 0.0, dtype=object), self._fx, None
        self.qdd[K] = groups["qdd"][K] if K else []
        if self._rows is not None:
            kappa = -self._rows.residual(self._values | _named("qdd", self.qdd))
        forces = groups["tau"][U] - self.bodies.torques(self.qdd, fx)[U] if U else np.zeros(0)
        solution = self.inverse.solve([Load(forces, kappa=kappa)])[:, 0]
        self.qdd[U], self.w = solution[: len(U)], solution[len(U) :]
        self._values |= _named("qdd", self.qdd)
        for i, L in self._loads.items():
            fx[i] = fx[i] + L @ self.w
        self.motion = self.bodies.inverse_dynamics(self.qdd, fx)

    # ---- changes ---------------------------------------------------------------------------------------------------

    def _changes(self, name: str) -> Iterator[_Change]:
        """The changes along each direction of an input other than τ."""
        bodies, motion, nv, rows = self.bodies, self.motion, self.nv, self._rows
        nothing = np.full(nv, 0.0, dtype=object)
        if name == "qdd":
            for k in range(nv):
                rate = self.J[:, k] if self.m else None
                yield _Change(bodies.H[:, k], k, bodies.sides[k].Is, rate) if k in self.K else _Change(nothing)
        elif name == "fx":
            for i, e in itertools.product(range(self.model.nb), range(6)):
                dofs = [k for j in path(self.model, i) for k in range(nv)[self.model.v_slice(j)]]
                wrench = bodies.motion.placed_wrench(i, -np.eye(6)[e])
                yield _Change(motion.dtau_dfx[:, i, e], max(dofs, default=-1), wrench)
        elif name in ("q", "qd"):
            rates = rows.rates(name, self._values) if rows is not None else [None] * nv
            loads = self._load_rates() if name == "q" and rows is not None else [None] * nv
            for k, rate, load in zip(range(nv), rates, loads, strict=True):
                change = self._change(name, k)._replace(rows=rate)
                yield change if load is None else change._replace(forces=change.forces - load, wrench=None)
        else:  # values y of a constraint
            assert rows is not None
            for k in rows.names[name]:
                yield _Change(nothing, rows=np.array([-float(e == k) for e in range(self.m)]))

    def _change(self, name: str, k: int) -> _Change:
        """The derivative of ID by the position (name "q") or velocity of degree of freedom k.

        For a free root, `_Change.acceleration` has the common acceleration of all bodies, and `forces` the remaining
        terms.
        """
        side, by_q, model = self.bodies.sides[k], name == "q", self.model
        part, dofs = model.v_slice(side.body), {*range(self.nv)[model.v_slice(side.body)]}
        if model.parent[side.body] < 0 and len(dofs) == SPACE and dofs <= {*self.U} and not any(model.armature[part]):
            acceleration, angular = np.full(self.nv, 0.0, dtype=object), (side.psi_d if by_q else side.s)[:3]
            S_inverse = clean(np.linalg.inv(model.joints[side.body].S)).astype(object)
            acceleration[part] = S_inverse @ (self.bodies.psi_dd[k] if by_q else side.psi_d_plus_s_d)
            forces = [other.Bs @ angular if part.start in way else 0.0
                      for other, way in zip(self.bodies.sides, self._paths, strict=True)]  # fmt: skip
            return _Change(np.array(forces, dtype=object), acceleration=acceleration)
        if by_q:
            return _Change(self.motion.dtau_dq[:, k], k, self.bodies.B_psi_d[k])
        return _Change(self.motion.dtau_dqd[:, k], k, side.dtau_dqd_column)

    def _load_rates(self) -> Iterator[np.ndarray | None]:
        """Derivatives (nv) of Jᵀ w along each direction of q at fixed w; None for a zero derivative."""
        assert self._rows is not None
        for on_bodies, torques in self._rows.load_rates(self._values, self.w):
            for i, x in on_bodies.items():
                torques = torques + self._forces(i, self.bodies.motion.placed_wrench(i, self._framed(i, x)))
            yield None if all(map(is_zero, torques)) else torques

    def blocks(self, wrt: Sequence[str]) -> DerivativeBlocks:
        """The derivatives of τ, q̈ and w by each input."""
        U, K, nv, m = self.U, self.K, self.nv, self.m
        changes = {name: [*self._changes(name)] for name in wrt if name != "tau"}
        solutions = self.inverse.solve([self._load(x) for columns in changes.values() for x in columns]).T
        columns_of_solution, blocks = iter(solutions), DerivativeBlocks()
        for name in wrt:
            columns = nv if name == "tau" else len(changes[name])
            dtau, dqdd, dw = (np.full((n, columns), 0.0, dtype=object) for n in (nv, nv, m))
            if name == "tau":
                dtau[U, U] = 1.0
                dqdd[np.ix_(U, U)], dw[:, U] = np.split(self.inverse.response, [len(U)])
            for c, change in enumerate(changes.get(name, ())):
                x = next(columns_of_solution)
                dqdd[U, c], dw[:, c] = -x[: len(U)], -x[len(U) :]
                dtau[K, c] = change.forces[K]
            dtau[K] = dtau[K] + self.bodies.H[np.ix_(K, U)] @ dqdd[U] - self.J[:, K].T @ dw
            for c, change in enumerate(changes.get(name, ())):
                if change.acceleration is not None:
                    dqdd[:, c] = dqdd[:, c] - change.acceleration
            if name == "qdd":
                dqdd[K, K] = 1.0
            blocks |= {("tau", name): dtau, ("qdd", name): dqdd, ("w", name): dw}
        return blocks

    def _load(self, change: _Change) -> Load:
        rows = change.rows
        if change.acceleration is not None and self.m:
            rows = (0.0 if rows is None else rows) - self.J @ change.acceleration
        way = self._torque_paths[change.at] if change.at >= 0 else []
        return Load(change.forces[self.U], way[0] if way else None, change.wrench, rows)


def _named(name: str, values: Sequence | np.ndarray) -> dict[str, object]:
    return {f"{name}[{k}]": x for k, x in enumerate(values)}
