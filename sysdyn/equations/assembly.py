"""Assembly of a system D d + b = 0: entries of D and b as expressions of one graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sysdyn.program.graph import Expr, Graph, constant_value, is_constant, is_zero
from sysdyn.sparse.lu import Row

Block = tuple[str, int]  # A block of rows or unknowns: kind (or quantity) and body.


class Combination(NamedTuple):
    """An affine function Y d + b_Y of the unknowns d: rows of Y, {column: entry}, and b_Y (m)."""

    rows: list[Row]
    b: list


@dataclass(frozen=True)
class Assembly:
    """A system D d + b = 0 in one graph.

    inputs: (name, scalars) of each group of inputs. rows and b: {column: entry} of D, and the entry of b, by row. names
    and blocks: the name and the (kind, body) of each row. outputs: {name: value of a measurement that is an output}.
    """

    graph: Graph
    inputs: tuple[tuple[str, np.ndarray], ...]
    rows: list[Row]
    b: list
    names: tuple[str, ...] = ()
    blocks: tuple[tuple[str, int], ...] = ()
    outputs: Mapping[str, Combination] = field(default_factory=dict)

    def copy(self) -> Assembly:
        """The same system over a copy of the graph."""
        graph = self.graph.copy()

        def rows(originals: list[Row]) -> list[Row]:
            return [{c: graph.rebind(x) for c, x in row.items()} for row in originals]

        inputs = tuple((name, graph.inputs(name, len(group))) for name, group in self.inputs)
        outputs = {name: Combination(rows(y.rows), [graph.rebind(x) for x in y.b]) for name, y in self.outputs.items()}
        return replace(
            self, graph=graph, inputs=inputs, rows=rows(self.rows), b=[graph.rebind(x) for x in self.b], outputs=outputs
        )


def with_entry_inputs(assembly: Assembly, graph: Graph) -> Assembly:
    """Copy of the system over `graph`, in which every entry that depends on the state is a separate input.

    Equal or opposite entries share an input, because X occurs in c(a) and in c(f). An elimination of this copy counts
    the operations of the *solve* scope, without the computation of X, v, c and ν.
    """
    inputs: dict[int, Expr] = {}  # by the node of the entry

    def entry(x):
        if is_constant(x):
            return graph.exact_constant(constant_value(x))
        if x.node not in inputs:
            inputs[x.node] = graph.input(f"entry[{len(inputs)}]")
        return -inputs[x.node] if x.negative else inputs[x.node]

    def entries(rows: list[Row], b: list) -> Combination:
        return Combination([{c: entry(x) for c, x in row.items()} for row in rows],
                           [x if is_zero(x) else entry(x) for x in b])  # fmt: skip

    rows, b = entries(assembly.rows, assembly.b)
    outputs = {name: entries(*x) for name, x in assembly.outputs.items()}
    group = "entries", np.array([*inputs.values(), None], dtype=object)[:-1]
    return Assembly(graph, (group,), rows, b, assembly.names, assembly.blocks, outputs)
