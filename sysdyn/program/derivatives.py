"""Products of a program's derivatives with vectors, by forward and reverse mode through its operations.

A further group of inputs holds a vector: `tangents:NAME` of an input, `cotangents:NAME` of an output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, check_among
from sysdyn.program.evaluate import derivative, evaluate, gradient
from sysdyn.program.graph import SHARING, Graph
from sysdyn.program.groups import Group
from sysdyn.program.opcodes import OPERATIONS
from sysdyn.program.program import Guard, Program
from sysdyn.program.simplify import REWRITE_LIMIT, rewritten

# Roles of the groups that hold vectors.
TANGENTS, COTANGENTS = "tangents", "cotangents"

# Kinds of products: forward, reverse, and forward of reverse.
KINDS = ("jvp", "vjp", "hvp")

# Scalars by group.
Scalars = dict[str, list]
# Scalars by the names of single inputs, as q[0].
Slopes = dict[str, Any]
# Gives, of the name and scalars of an input, the rates of these along each of its directions.
Directions = Callable[[str, np.ndarray], list[Slopes]]


def units(name: str, values: np.ndarray) -> list[Slopes]:
    """Each scalar alone."""
    return [{f"{name}[{k}]": 1.0} for k in range(len(values))]


def flat(columns: Mapping[str, Iterable]) -> list:
    """Scalars of all groups."""
    return [x for column in columns.values() for x in column]


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
    own = {name: list(graph.inputs(name, size)) for name, size in program.inputs.sizes.items()}
    values = [x for name, column in own.items() for x in (inputs or {}).get(name, column)]
    values += program.constants.tolist()
    for kind, a, b in zip(program.kind.tolist(), program.lhs.tolist(), program.rhs.tolist(), strict=True):
        number = OPERATIONS[kind].number
        values.append(number(values[a]) if b < 0 else number(values[a], values[b]))
    found = [values[i] for i in program.output_values.tolist()]
    outputs = {name: found[part] for name, part in program.outputs.slices.items()}
    return Replay(graph, own, outputs, [(values[g.value], g) for g in program.guards])


class ByProgram:
    """Products of the derivatives of the outputs `of` by the inputs `wrt`, by forward and reverse mode.

    along: see Directions. own: the program in a graph; at: the value of each single input, by name.
    """

    method = "program"

    def __init__(self, program: Program, of: Sequence[str], wrt: Sequence[str], along: Directions = units):
        self.wrt, self.along = wrt, along
        self.graph, self.ranges = Graph(SHARING), program.ranges
        self.own = replayed(program, self.graph)
        self.at = {f"{name}[{k}]": x for name, column in self.own.inputs.items() for k, x in enumerate(column)}
        self.outputs = {name: self.own.outputs[name] for name in of}

    def product(self, kind: str) -> Program:
        """J v ("jvp"), w^T J ("vjp"), or the derivative of w^T J along v ("hvp"), by output or by input.

        Groups of inputs after its own are cotangents of the outputs, then tangents of the inputs, as the kind needs.
        """
        further: Scalars = {}
        if kind != "jvp":
            weights, groups = self.own.vectors(COTANGENTS, {name: len(x) for name, x in self.outputs.items()})
            further |= groups
        if kind == "vjp":
            results = self.gathered(self.slopes(weights))
        if kind != "vjp":
            vectors, groups = self.own.vectors(TANGENTS, {name: len(self.directions[name]) for name in self.wrt})
            further |= groups
            direction = self._combined(vectors)
            results = self.rates(direction) if kind == "jvp" else self.changes(weights, direction)
        return self.own.program(further, results, self.ranges)

    def rates(self, direction: Slopes) -> Scalars:
        """Rates of the outputs along rates of single inputs."""
        found = iter(derivative(flat(self.outputs), direction))
        return {name: [next(found) for _ in column] for name, column in self.outputs.items()}

    def slopes(self, weights: Scalars) -> Slopes:
        """Slopes of the weighted sum of the outputs by single inputs."""
        names = self.single()
        inputs = [self.graph.input(name) for name in names]
        return dict(zip(names, gradient(flat(self.outputs), flat(weights), inputs), strict=True))

    def changes(self, weights: Scalars, direction: Slopes) -> Scalars:
        """Rates of the slopes along each direction of the inputs, along rates of single inputs."""
        slopes = self.gathered(self.slopes(weights))
        rates = iter(derivative(flat(slopes), direction))
        return {name: [next(rates) for _ in column] for name, column in slopes.items()}

    # ---- spaces --------------------------------------------------------------------------------------------------

    @cached_property
    def directions(self) -> dict[str, list[Slopes]]:
        """Rates of single inputs along each direction of an input."""
        columns = {name: self.own.inputs[name] for name in self.wrt}
        return {name: self.along(name, np.array(column, dtype=object)) for name, column in columns.items()}

    def here(self, scalars: Sequence, further: Slopes) -> list:
        """Scalars of another graph at this state; further: values of inputs that it has beside ours."""
        return list(evaluate(np.array([*scalars, None], dtype=object)[:-1], self.at | further))

    def single(self) -> list[str]:
        """The single inputs that are differentiated by."""
        return [f"{name}[{k}]" for name in self.wrt for k in range(len(self.own.inputs[name]))]

    def gathered(self, slopes: Slopes, of: Callable[[Any], Any] = lambda rate: rate) -> Scalars:
        """Slopes along each direction of the inputs. of: the counted part of the rate of a single input."""
        return {
            name: [
                sum((of(rate) * slopes.get(scalar, 0.0) for scalar, rate in x.items()), 0.0)
                for x in self.directions[name]
            ]
            for name in self.wrt
        }

    def _combined(self, vectors: Scalars) -> Slopes:
        """Rates of single inputs along vectors."""
        found: Slopes = {}
        for name, vector in vectors.items():
            for x, direction in zip(vector, self.directions[name], strict=True):
                for scalar, rate in direction.items():
                    found[scalar] = found.get(scalar, 0.0) + rate * x
        return found


# ---- vectors in calls ----------------------------------------------------------------------------------------------


def vector(role: str, name: str, group: str, of: Group) -> Group:
    """The group of inputs of this name for tangents or cotangents (role) of `name`, of the shape of another group."""
    label = f"{role}[{name!r}]"
    return replace(
        of, name=group, units=(), default=None, meaning=f"{role} of {name}", label=label,
        pass_as=f"{role}={{{name!r}: …}}",
    )  # fmt: skip


def taken(role: str, own: Mapping[str, Group], values: Any) -> dict[str, Any]:
    """{group: value} of tangents or cotangents {name: value}, of the array alone if there is one, or of None.

    own: the groups by name. Raises InvalidInput, UnknownName.
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        if len(own) != 1:
            valid = ", ".join(map(repr, own))
            raise InvalidInput(f"{role} is {{name: value}}, of {valid}" if own else f"no {role} are taken here")
        values = {next(iter(own)): values}
    for name in values:
        check_among(f"name in {role}:", name, own)
    return {own[name].name: x for name, x in values.items()}
