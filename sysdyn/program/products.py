"""Products of a program's derivatives with vectors, by forward and reverse mode through its operations.

A further group of inputs holds a vector: `tangents:NAME` of an input, `cotangents:NAME` of an output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sysdyn.program.evaluate import derivative, gradient
from sysdyn.program.expr import Graph
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
