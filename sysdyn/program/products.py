"""Products of a program's derivatives with vectors, by forward and reverse mode through its operations, and Jacobians.

A further group of inputs holds a vector: `tangents:NAME` of an input, `cotangents:NAME` of an output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sysdyn.program.evaluate import derivative, gradient
from sysdyn.program.expr import Graph, is_zero
from sysdyn.program.operations import OPERATIONS
from sysdyn.program.program import Guard, Program
from sysdyn.program.rewrite import REWRITE_LIMIT, rewritten

# Roles of the groups that hold vectors.
TANGENTS, COTANGENTS = "tangents", "cotangents"
# Sharing of equal results in the graphs of products.
SHARING = "algebraic"

# Scalars by group.
Scalars = dict[str, list]


@dataclass(frozen=True)
class Replay:
    """A program's operations on symbols.

    inputs, outputs: by group. values: (value, guard) of what it guards.
    """

    graph: Graph
    inputs: Scalars
    outputs: Scalars
    guarded: list[tuple[Any, Guard]]

    def vectors(self, role: str, sizes: Mapping[str, int]) -> tuple[Scalars, Scalars]:
        """New inputs of these sizes, by name, and by group: `role:NAME`, with further colons if there is such a one."""
        mark = role
        while any(f"{mark}:{name}" in self.inputs for name in sizes):
            mark += ":"
        groups = {f"{mark}:{name}": list(self.graph.inputs(f"{mark}:{name}", size)) for name, size in sizes.items()}
        return dict(zip(sizes, groups.values(), strict=True)), groups

    def program(
        self, further: Scalars, results: Scalars, ranges: tuple[tuple[int, float], ...], rewriting: bool = True
    ) -> Program:
        """The program of these results, with the guards of the first one; further: inputs after its own, by group.

        rewriting: to fewer operations, if there are not too many.
        """
        groups = {name: len(x) for name, x in (self.inputs | further).items()}
        values = [*(x for column in results.values() for x in column), *(x for x, _ in self.guarded)]
        graph = self.graph
        if rewriting and graph.count(values).total <= REWRITE_LIMIT:
            graph, values = rewritten(graph, values)
        rest = iter(values)
        outputs = [(name, [next(rest) for _ in column]) for name, column in results.items()]
        guards = [
            (x, guard.threshold, guard.label, guard.weak) for x, (_, guard) in zip(rest, self.guarded, strict=True)
        ]
        inputs = [(name, graph.inputs(name, size)) for name, size in groups.items()]
        return replace(Program.from_graph(graph, inputs, outputs, guards), ranges=ranges)


def replayed(program: Program, graph: Graph, inputs: Scalars | None = None) -> Replay:
    """The program in a graph: of new inputs by the names of its groups, and computed from `inputs` where given."""
    own = {name: list(graph.inputs(name, size)) for name, size in program.input_groups}
    values = [x for name, column in own.items() for x in (inputs or {}).get(name, column)]
    values += program.constants.tolist()
    for kind, a, b in zip(program.kind.tolist(), program.lhs.tolist(), program.rhs.tolist(), strict=True):
        number = OPERATIONS[kind].number
        values.append(number(values[a]) if b < 0 else number(values[a], values[b]))
    found = [values[i] for i in program.outputs.tolist()]
    outputs = {name: found[part] for name, part in program.output_places.items()}
    return Replay(graph, own, outputs, [(values[g.value], g) for g in program.guards])


def pushforward(program: Program, wrt: Sequence[str]) -> Program:
    """The program of J v: rates of all outputs, by group, along tangents of the inputs `wrt`."""
    own = replayed(program, Graph(SHARING))
    sizes = dict(program.input_groups)
    tangents, further = own.vectors(TANGENTS, {name: sizes[name] for name in wrt})
    direction = {f"{name}[{k}]": x for name, column in tangents.items() for k, x in enumerate(column)}
    rates = iter(derivative([x for column in own.outputs.values() for x in column], direction))
    results = {name: [next(rates) for _ in column] for name, column in own.outputs.items()}
    return own.program(further, results, program.ranges)


def pullback(program: Program, wrt: Sequence[str]) -> Program:
    """The program of wᵀ J: by group of the inputs `wrt`, from cotangents w of all outputs."""
    own = replayed(program, Graph(SHARING))
    cotangents, further = own.vectors(COTANGENTS, dict(program.output_groups))
    outputs, weights = ([x for column in part.values() for x in column] for part in (own.outputs, cotangents))
    found = iter(gradient(outputs, weights, [x for name in wrt for x in own.inputs[name]]))
    results = {name: [next(found) for _ in own.inputs[name]] for name in wrt}
    return own.program(further, results, program.ranges)


# Nonzero entries of a block of a Jacobian: (row, column), by columns.
Places = list[tuple[int, int]]


def jacobian(program: Program, product: Program, kind: str) -> tuple[Program, dict[tuple[str, str], Places]]:
    """(the program of ∂y/∂x of all outputs y by all inputs x, places of its entries by (y, x)).

    product: of J v along all inputs (kind "jvp"), or of wᵀ J with all outputs ("vjp"). It is repeated for each unit
    vector in one graph, where most of it is shared or zero. Output groups are the blocks, y after y, without entries
    that are always zero.
    """
    graph, before = Graph(SHARING), len(program.input_groups)
    own = {name: list(graph.inputs(name, size)) for name, size in program.input_groups}
    inputs, outputs = program.input_groups, program.output_groups
    seeds = inputs if kind == "jvp" else outputs
    blocks: dict[tuple[str, str], dict[tuple[int, int], Any]] = {(y, x): {} for y, _ in outputs for x, _ in inputs}
    vectors = [name for name, _ in product.input_groups[before:]]
    zeros = {name: [0.0] * size for name, size in product.input_groups[before:]}
    for (name, size), vector in zip(seeds, vectors, strict=True):
        for k in range(size):
            unit = [float(j == k) for j in range(size)]
            again = replayed(product, graph, own | zeros | {vector: unit})
            for other, column in again.outputs.items():
                block = blocks[(other, name) if kind == "jvp" else (name, other)]
                for j, x in enumerate(column):
                    if not is_zero(x):
                        block[(j, k) if kind == "jvp" else (k, j)] = x
    places = {key: sorted(block, key=lambda at: at[::-1]) for key, block in blocks.items()}
    results = {f"{y} by {x}": [block[at] for at in places[y, x]] for (y, x), block in blocks.items()}
    whole = Replay(graph, own, {}, again.guarded)
    return whole.program({}, results, program.ranges), places
