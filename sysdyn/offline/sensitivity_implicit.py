"""Derivatives of any solution by its elimination: D ∂d = −(∂D d + ∂b)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from sysdyn.equations.assembly import Assembly
from sysdyn.equations.system import System
from sysdyn.model.quantities import tangents
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.sensitivity import Blocks, Expressions
from sysdyn.program.autodiff import derivative, evaluate
from sysdyn.program.graph import Graph, is_zero
from sysdyn.sparse.lu import Factors, solve, solve_transposed

Scalars = dict[str, Sequence[dict]]  # {quantity: each of its scalars as {unknown: coefficient}}.
Changes = dict[str, list[dict[int, object]]]  # {input: ∂D d + ∂b along each of its directions, by equation}.


def implicit(
    elimination: Elimination, guards: Sequence[tuple], of: Sequence[str], wrt: Sequence[str], transposed: bool
) -> Expressions:
    """Derivatives of any quantity of D d + b = 0 with the factors of D that solved it: D ∂d = −(∂D d + ∂b).

    A measured output y = Y d + b_Y has ∂y = Y ∂d + (∂Y d + ∂b_Y).

    transposed: one solution of D^T y = e for each wanted scalar, ∂d = −y·(∂D d + ∂b), instead of one of D for each
    scalar that is differentiated by. guards: of the elimination's program.
    """
    system, graph, factors = elimination.system, elimination.graph, elimination.factors
    n = len(system.columns)
    shown = {x: y for x, y in elimination.assembly.outputs.items() if x in of}
    changes: Changes = {}
    own: dict[str, list[dict[str, list]]] = {}  # rates of measured outputs with d held
    for name in wrt:
        changes[name], own[name] = rates(system, elimination.assembly, elimination.solution, name, shown)
    reported: Scalars = {x: shown[x].rows if x in shown else system.output_terms(x) for x in of}
    blocks: Blocks = {(x, name): _held(x, name, reported[x], own[name]) for x in of for name in changes}
    if transposed:
        _by_rows(blocks, factors, n, reported, changes)
    else:
        _by_columns(blocks, factors, n, reported, changes)
    method = "implicit, transposed" if transposed else "implicit"
    return Expressions(method, graph, elimination.assembly.inputs, blocks, tuple(guards))


def _held(x: str, name: str, scalars: Sequence[dict], own: Sequence[dict[str, list]]) -> np.ndarray:
    """∂x/∂name (scalars, directions) with d held: of measured outputs, and of known scalars that are substituted."""
    block = np.full((len(scalars), len(own)), 0.0, dtype=object)
    for column, values in enumerate(own):
        if x in values:
            block[:, column] = values[x]
    if x == name:
        for k, terms in enumerate(scalars):
            block[k, k] = 0.0 if terms else 1.0
    return block


def _by_rows(blocks: Blocks, factors: Factors, n: int, reported: Scalars, changes: Changes) -> None:
    """Add the part of ∂d to each scalar, by one solution of D^T for each of them."""
    for x, scalars in reported.items():
        for k, terms in enumerate(scalars):
            if not terms:
                continue
            y = solve_transposed(factors, [terms.get(c, 0.0) for c in range(n)])
            for name, change in changes.items():
                for column, entries in enumerate(change):
                    total = blocks[x, name][k, column]
                    for i, value in entries.items():
                        total = total - y[i] * value
                    blocks[x, name][k, column] = total


def _by_columns(blocks: Blocks, factors: Factors, n: int, reported: Scalars, changes: Changes) -> None:
    """Add the part of ∂d to each scalar, by one solution of D for each direction."""
    for name, change in changes.items():
        for column, entries in enumerate(change):
            d = solve(factors, [entries.get(i, 0.0) for i in range(n)])
            for x, scalars in reported.items():
                for k, terms in enumerate(scalars):
                    if terms:
                        total = blocks[x, name][k, column]
                        blocks[x, name][k, column] = sum((s * d[c] for c, s in terms.items()), total)


def rates(
    system: System, assembled: Assembly, solution: Sequence, name: str, outputs: Collection[str] = ()
) -> tuple[list[dict[int, object]], list[dict[str, list]]]:
    """∂D d + ∂b and, of measured outputs, ∂Y d + ∂b_Y along each direction of the input `name`.

    {equation: entry} and {output: entries} of each direction, in the graph of `assembled`, the system that `solution`
    is of.
    """
    scratch = Graph("structural")
    assembly = system.build(scratch)
    d = scratch.inputs("d", len(solution))  # held fixed
    residual = []
    places: list[tuple[str, int]] = []  # ("", equation), or (output, component)
    written = [("", (assembly.rows, assembly.b)), *((x, assembly.outputs[x]) for x in outputs)]
    for of, (rows, b) in written:
        for k, (row, rest) in enumerate(zip(rows, b, strict=True)):
            for column, entry in row.items():
                rest = rest + entry * d[column]
            residual.append(rest)
            places.append((of, k))
    given = {f"{group}[{k}]": x for group, values in assembled.inputs for k, x in enumerate(values)}
    given |= {f"d[{k}]": x for k, x in enumerate(solution)}
    groups = dict(assembly.inputs)
    found: list[tuple[int, int]] = []
    along = []
    directions = tangents(system.model, name, groups[name])
    for column, direction in enumerate(directions):
        for i, rate in enumerate(derivative(residual, direction)):
            if not is_zero(rate):
                found.append((column, i))
                along.append(rate)
    values = evaluate(np.array([*along, None], dtype=object)[:-1], given)
    changes: list[dict[int, object]] = [{} for _ in directions]
    own = [{x: [0.0] * len(assembly.outputs[x].b) for x in outputs} for _ in directions]
    for (column, i), value in zip(found, values, strict=True):
        of, k = places[i]
        if of:
            own[column][of][k] = value
        elif not is_zero(value):
            changes[column][k] = value
    return changes, own
