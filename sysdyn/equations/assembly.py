"""Rows D(q) d + b(q, q̇) = 0 over a graph of expressions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.program.expr import Expr, Graph, constant_value, is_constant, is_zero


@dataclass(frozen=True)
class Assembly:
    """The system in one graph: A d + b = 0 with rows as {column: entry}, and the input groups it was built from."""

    graph: Graph
    inputs: tuple[tuple[str, np.ndarray], ...]
    rows: list[dict[int, object]]
    b: list


def generic(assembly: Assembly, graph: Graph) -> Assembly:
    """The same system over `graph` with every entry that depends on the state an input of its own.

    Entries that are equal (or opposite) stay equal, as X occurs twice; constants stay constants. What an elimination of
    it costs is the *solve* scope of the counts: X, v, c, ν given.
    """
    signed: dict[int, Expr] = {}
    created: list[Expr] = []

    def entry(x):
        if is_constant(x):
            return graph.exact(constant_value(x))
        negative = assembly.graph._is_neg(x)
        key = (-x).id if negative else x.id
        if key not in signed:
            signed[key] = graph.input(f"entry[{len(signed)}]")
            created.append(signed[key])
        return -signed[key] if negative else signed[key]

    rows = [{c: entry(x) for c, x in row.items()} for row in assembly.rows]
    b = [x if is_zero(x) else entry(x) for x in assembly.b]
    return Assembly(graph, (("entries", np.array([*created, None], dtype=object)[:-1]),), rows, b)
