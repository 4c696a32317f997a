"""Derivatives of solved quantities as expressions: analytic for rigid-body dynamics, implicit for every other problem.

Both give {(quantity, input): entries}, a row for each scalar of the quantity and a column for each scalar of the input;
positions are differentiated in the tangent space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.elimination import SHARING, Elimination
from sysdyn.evaluate import derivative, evaluate
from sysdyn.expr import Graph, is_zero
from sysdyn.reference import expanded_parent, rnea_derivatives
from sysdyn.sparse.lu import solve, solve_transposed
from sysdyn.system.problem import Problem

Blocks = dict[tuple[str, str], np.ndarray]


@dataclass(frozen=True)
class Expressions:
    """Derivatives in a graph: how they were found, the input groups, the blocks, and guards as of a Program."""

    method: str
    graph: Graph
    inputs: tuple[tuple[str, np.ndarray], ...]
    blocks: Blocks
    guards: tuple = ()

    @property
    def operations(self) -> int:
        """Exact count of a program that computes all blocks."""
        return self.graph.count(x for block in self.blocks.values() for x in block.flat).total


# ---- rigid-body dynamics -------------------------------------------------------------------------------------------


def has_analytic(problem: Problem, of: Sequence[str]) -> bool:
    """τ and q̈ where one of both is known of each freedom, beside every external wrench, and nothing else is."""
    known = {(i, k) for i, joint in enumerate(problem.model.joints) for k in range(joint.nv)}
    tau, qdd = problem.knows("tau"), problem.knows("qdd")
    wrenches = problem.knows("fx") == {(i, k) for i in range(problem.model.nb) for k in range(6)}
    constant = not (problem.custom or problem.noisy or problem.parameters)
    only = constant and set(problem.known_quantities) <= {"tau", "qdd", "fx"}
    return only and wrenches and set(of) <= {"tau", "qdd"} and tau | qdd == known and not tau & qdd


def analytic(problem: Problem, of: Sequence[str], wrt: Sequence[str]) -> Expressions:
    """Derivatives of τ and q̈ in inverse, forward and hybrid dynamics.

    With freedoms U of which τ is known and K of which q̈ is, and the derivatives of ID at (q, q̇, q̈), for any
    parameter x of ID

        ∂q̈_U/∂x = −H_UU⁻¹ ∂ID_U/∂x,   ∂τ_K/∂x = ∂ID_K/∂x + H_KU ∂q̈_U/∂x

    and the same with −1 for ∂ID_U/∂τ_U. H_UU has no fill-in when it is factored from the tips.
    J. Carpentier, N. Mansard, Analytical derivatives of rigid body dynamics algorithms, RSS (2018).
    """
    model, graph = problem.model, Graph(SHARING)
    groups = {name: graph.inputs(name, size) for name, size in problem.input_sizes}
    U = sorted(model.v_slice(i).start + k for i, k in problem.knows("tau"))
    K = [k for k in range(model.nv) if k not in set(U)]
    q, qd, fx = groups["q"], groups["qd"], groups["fx"].reshape(model.nb, 6)
    qdd = np.full(model.nv, 0.0, dtype=object)
    if K:
        qdd[K] = groups["qdd"][K]
    if U:
        still = rnea_derivatives(model, q, qd, qdd, fx)
        qdd[U] = _Factors(still.H, expanded_parent(model), U).solve(groups["tau"][U] - still.tau[U])
    motion = rnea_derivatives(model, q, qd, qdd, fx)
    factors = _Factors(motion.H, expanded_parent(model), U)
    H_KU = motion.H[np.ix_(K, U)]
    zero = np.full((model.nv, model.nv), 0.0, dtype=object)
    blocks: Blocks = {}
    for name in wrt:
        own_qdd, own_tau = zero.copy(), zero.copy()  # ∂q̈/∂q̈_K and ∂τ/∂τ_U are the identity
        if name == "tau":
            change = zero.copy()
            change[U, U], own_tau[U, U] = -1.0, 1.0
        elif name == "qdd":
            change = zero.copy()
            change[:, K] = motion.H[:, K]
            own_qdd[K, K] = 1.0
        else:
            change = {"q": motion.dtau_dq, "qd": motion.dtau_dqd, "fx": motion.dtau_dfx}[name].reshape(model.nv, -1)
        dqdd, dtau = (np.full(change.shape, 0.0, dtype=object) for _ in range(2))
        for column in range(change.shape[1]):
            if U:
                dqdd[U, column] = -factors.solve(change[U, column])
            if K:
                dtau[K, column] = change[K, column] + (H_KU @ dqdd[U, column] if U else 0.0)
        if name == "qdd":
            dqdd = dqdd + own_qdd
        if name == "tau":
            dtau = dtau + own_tau
        blocks |= {(x, name): block for x, block in (("tau", dtau), ("qdd", dqdd)) if x in of}
    return Expressions("analytic", graph, tuple(groups.items()), blocks)


class _Factors:
    """H_UU = L^T D L of the freedoms U, from the tips, with one reciprocal a pivot."""

    def __init__(self, H: np.ndarray, parent: Sequence[int], U: Sequence[int]):
        number = {k: n for n, k in enumerate(U)}
        self.paths: list[list[int]] = []
        for k in U:
            path, j = [], parent[k]
            while j >= 0:
                if j in number:
                    path.append(number[j])
                j = parent[j]
            self.paths.append(path)
        self.L = L = H[np.ix_(U, U)]
        self.inverse: list = [0.0] * len(U)
        for k in reversed(range(len(U))):
            self.inverse[k] = 1.0 / L[k, k]
            for n, i in enumerate(self.paths[k]):
                l = L[k, i] * self.inverse[k]
                for j in self.paths[k][n:]:
                    L[i, j] = L[i, j] - l * L[k, j]
                L[k, i] = l

    def solve(self, b: np.ndarray) -> np.ndarray:
        """H_UU⁻¹ b."""
        x = b.copy()
        for i in reversed(range(len(x))):
            for j in self.paths[i]:
                x[j] = x[j] - self.L[i, j] * x[i]
        for i, path in enumerate(self.paths):
            x[i] = x[i] * self.inverse[i]
            for j in path:
                x[i] = x[i] - self.L[i, j] * x[j]
        return x


# ---- every problem -------------------------------------------------------------------------------------------------


def implicit(
    elimination: Elimination, guards: Sequence[tuple], of: Sequence[str], wrt: Sequence[str], transposed: bool
) -> Expressions:
    """Derivatives of any quantity of D d + b = 0 with the factors of D that solved it: D ∂d = −(∂D d + ∂b).

    transposed: one solution of D^T y = e for each scalar wanted, ∂d = −y·(∂D d + ∂b), instead of one of D for each
    scalar that is differentiated by. guards: those of the elimination's program.
    """
    system, graph, factors = elimination.system, elimination.graph, elimination.factors
    n = len(system.columns)
    changes = {name: _changes(elimination, name) for name in wrt}
    blocks: Blocks = {}
    reported = {x: system.reported(x) for x in of}
    for x, scalars in reported.items():
        for name, change in changes.items():
            blocks[x, name] = np.full((len(scalars), len(change)), 0.0, dtype=object)
            if x == name:
                for k, terms in enumerate(scalars):
                    blocks[x, name][k, k] = 0.0 if terms else 1.0  # known and substituted
        if transposed:
            for k, terms in enumerate(scalars):
                if terms:
                    y = solve_transposed(factors, [terms.get(c, 0.0) for c in range(n)])
                    for name, change in changes.items():
                        for column, entries in enumerate(change):
                            total = 0.0
                            for i, value in entries.items():
                                total = total - y[i] * value
                            blocks[x, name][k, column] = total
    if not transposed:
        for name, change in changes.items():
            for column, entries in enumerate(change):
                d = solve(factors, [entries.get(i, 0.0) for i in range(n)])
                for x, scalars in reported.items():
                    for k, terms in enumerate(scalars):
                        if terms:
                            blocks[x, name][k, column] = sum((s * d[c] for c, s in terms.items()), 0.0)
    method = "implicit, transposed" if transposed else "implicit"
    return Expressions(method, graph, elimination.assembly.inputs, blocks, tuple(guards))


def _changes(elimination: Elimination, name: str) -> list[dict[int, object]]:
    """∂D d + ∂b along each direction of the input `name`: {equation: entry} in the graph of the elimination."""
    system, solution = elimination.system, elimination.solution
    scratch = Graph("structural")
    assembly = system.assemble(scratch)
    d = scratch.inputs("d", len(solution))  # held fixed
    residual = []
    for row, rest in zip(assembly.rows, assembly.b, strict=True):
        for column, entry in row.items():
            rest = rest + entry * d[column]
        residual.append(rest)
    given = {f"{group}[{k}]": x for group, values in elimination.assembly.inputs for k, x in enumerate(values)}
    given |= {f"d[{k}]": x for k, x in enumerate(solution)}
    groups = dict(assembly.inputs)
    places, rates = [], []
    directions = _directions(system.model, name, groups[name])
    for column, direction in enumerate(directions):
        for i, rate in enumerate(derivative(residual, direction)):
            if not is_zero(rate):
                places.append((column, i))
                rates.append(rate)
    values = evaluate(np.array([*rates, None], dtype=object)[:-1], given)
    result: list[dict[int, object]] = [{} for _ in directions]
    for (column, i), value in zip(places, values, strict=True):
        if not is_zero(value):
            result[column][i] = value
    return result


def _directions(model, name: str, values: np.ndarray) -> list[dict[str, object]]:
    """Rates of the scalars of an input, for each scalar that it is differentiated by."""
    if name != "q":
        return [{f"{name}[{k}]": 1.0} for k in range(len(values))]
    directions = []
    for i, joint in enumerate(model.joints):
        part = model.q_slice(i)
        for column in joint.rates(values[part]).T:
            directions.append({f"q[{k}]": x for k, x in enumerate(column, start=part.start) if not is_zero(x)})
    return directions
