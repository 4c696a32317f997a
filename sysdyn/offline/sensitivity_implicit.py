"""Derivatives of any solution by its elimination: D ∂d = −(∂D d + ∂b)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysdyn.offline.elimination import Elimination
from sysdyn.offline.sensitivity import Blocks, Expressions
from sysdyn.program.evaluate import derivative, evaluate
from sysdyn.program.expr import Graph, is_zero
from sysdyn.sparse.lu import solve, solve_transposed


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
