"""Evaluation, substitution and differentiation of expressions and programs.

`derivative` is the forward mode on a graph, `gradient` the reverse mode. `ProgramDerivatives` builds programs for
Jacobian products. These have additional inputs for the vectors: `tangents:NAME` for the input NAME, `cotangents:NAME`
for the output NAME.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, check_among
from sysdyn.program.graph import SHARING, Expr, Graph, is_zero
from sysdyn.program.groups import Group
from sysdyn.program.opcodes import CONST, INPUT, OPERATIONS
from sysdyn.program.program import Guard, Program
from sysdyn.program.simplify import MAX_OPS, simplify

# Roles of vector inputs, the prefixes of their names.
TANGENTS, COTANGENTS = "tangents", "cotangents"

# {group: scalars}
ScalarsByGroup = dict[str, list]
# {input scalar, such as "q[0]": derivative with respect to it, or its rate}
PartialsByScalar = dict[str, Any]
# (input name, its scalars) → rates of the scalars along each tangent direction.
TangentBasis = Callable[[str, np.ndarray], list[PartialsByScalar]]


# ---- graphs ------------------------------------------------------------------------------------------------------


def _graph_of(values: Iterable) -> Graph | None:
    return next((x.graph for x in values if type(x) is Expr), None)


def evaluate(outputs, inputs: Mapping[str, object]):
    """Evaluate expressions, or substitute their inputs.

    Parameters
    ----------
    outputs : nested array of Expr and floats
    inputs : mapping
        {name: value}. The values are floats, arrays (a batch) or Expr. With Expr, inputs are substituted and the
        results belong to the graph of the values.

    Returns
    -------
    Values with the structure of `outputs`.
    """
    array = np.asarray(outputs, dtype=object)
    scalars = array.ravel()
    graph = _graph_of(scalars)
    if graph is None:
        return outputs
    value: dict[int, Any] = {}
    for i in graph.live(scalars).tolist():
        kind = graph.kind[i]
        if kind == INPUT:
            name = graph.input_names[i]
            check_among("value for input", name, inputs)
            value[i] = inputs[name]
        elif kind == CONST:
            value[i] = graph.constants[i]
        else:
            value[i] = OPERATIONS[kind].number(*(value[k] for k in graph.operands(i)))
    result = np.empty(scalars.size, dtype=object)
    for k, x in enumerate(scalars):
        result[k] = value[x.id] if type(x) is Expr else x
    if array.ndim == 0:
        return result[0]
    if all(isinstance(x, (float, int, np.floating)) for x in result):
        return result.astype(float).reshape(array.shape)
    return result.reshape(array.shape)


def _partials(graph: Graph, i: int) -> tuple:
    """Partial derivatives of node i with respect to its operands, as Expr or float."""
    operands = (graph.at(k) if graph.kind[k] != CONST else graph.constants[k] for k in graph.operands(i))
    return OPERATIONS[graph.kind[i]].partials(graph.at(i), *operands)


def derivative(outputs: Sequence, direction: Mapping[str, object]) -> list:
    """Forward mode: rates of `outputs` along `direction` {input: rate}; other inputs are constant."""
    graph = _graph_of(outputs)
    if graph is None:
        return [0.0 for _ in outputs]
    kinds, lhs, rhs = graph.kind, graph.lhs, graph.rhs
    rates: dict[int, Any] = {}  # nonzero rates
    for i in graph.live(outputs).tolist():
        rate: object = 0.0
        if kinds[i] == INPUT:
            rate = direction.get(graph.input_names[i], 0.0)
        elif lhs[i] in rates or rhs[i] in rates:
            pairs = zip(_partials(graph, i), graph.operands(i), strict=True)
            terms = [partial * rates[k] for partial, k in pairs if k in rates]
            rate = sum(terms[1:], terms[0])
        if not is_zero(rate):
            rates[i] = rate
    return [rates.get(x.id, 0.0) if type(x) is Expr else 0.0 for x in outputs]


def gradient(outputs: Sequence, weights: Sequence, inputs: Sequence[Expr]) -> list:
    """Reverse mode: Σ_k w_k ∂y_k/∂x for each of `inputs` x, with `outputs` y and `weights` w."""
    graph = _graph_of(outputs)
    adjoint: dict[int, Any] = {}
    for x, weight in zip(outputs, weights, strict=True):
        if type(x) is Expr:
            adjoint[x.id] = adjoint.get(x.id, 0.0) + weight
    if graph is None:
        return [0.0 for _ in inputs]
    for i in reversed(graph.live(outputs).tolist()):
        bar = adjoint.get(i, 0.0)
        if graph.kind[i] in (INPUT, CONST) or is_zero(bar):
            continue
        for operand, partial in zip(graph.operands(i), _partials(graph, i), strict=True):
            if graph.kind[operand] != CONST:
                adjoint[operand] = adjoint.get(operand, 0.0) + partial * bar
    return [adjoint.get(x.id, 0.0) for x in inputs]


# ---- programs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SymbolicProgram:
    """A program as expressions of a graph: input and output scalars, and (value, guard) of each guarded pivot."""

    graph: Graph
    inputs: ScalarsByGroup
    outputs: ScalarsByGroup
    guarded: list[tuple[Any, Guard]]

    def vector_inputs(self, role: str, sizes: Mapping[str, int]) -> tuple[ScalarsByGroup, ScalarsByGroup]:
        """Create the inputs `role:NAME` of `sizes` {NAME: size}. Returns their scalars by NAME and by input name.

        Colons are appended to the role until the input names are unused.
        """
        prefix = role
        while any(f"{prefix}:{name}" in self.inputs for name in sizes):
            prefix += ":"
        groups = {f"{prefix}:{name}": list(self.graph.inputs(f"{prefix}:{name}", n)) for name, n in sizes.items()}
        return dict(zip(sizes, groups.values(), strict=True)), groups

    def to_program(
        self, vectors: ScalarsByGroup, results: ScalarsByGroup, ranges: tuple[tuple[int, float], ...],
        simplified: bool = True,
    ) -> Program:  # fmt: skip
        """Program that computes `results`, with the same guards. Its inputs are those of this program, then `vectors`.

        simplified: apply `simplify` unless the graph is too large.
        """
        sizes = {name: len(x) for name, x in (self.inputs | vectors).items()}
        values = [*concatenated(results), *(x for x, _ in self.guarded)]
        graph = self.graph
        if simplified and graph.count(values).total <= MAX_OPS:
            graph, values = simplify(graph, values)
        rest = iter(values)
        outputs = [(name, [next(rest) for _ in column]) for name, column in results.items()]
        guards = [(x, g.threshold, g.label, g.weak) for x, (_, g) in zip(rest, self.guarded, strict=True)]
        inputs = [(name, graph.inputs(name, size)) for name, size in sizes.items()]
        return replace(Program.from_graph(graph, inputs, outputs, guards), ranges=ranges)


def to_graph(program: Program, graph: Graph, inputs: ScalarsByGroup | None = None) -> SymbolicProgram:
    """Record the program in a graph. `inputs` {group: scalars} are substituted; other inputs are created."""
    symbols = {name: list(graph.inputs(name, size)) for name, size in program.inputs.sizes.items()}
    values = [x for name, column in symbols.items() for x in (inputs or {}).get(name, column)]
    values += program.constants.tolist()
    for kind, a, b in zip(program.kind.tolist(), program.lhs.tolist(), program.rhs.tolist(), strict=True):
        number = OPERATIONS[kind].number
        values.append(number(values[a]) if b < 0 else number(values[a], values[b]))
    row = [values[i] for i in program.output_values.tolist()]
    outputs = {name: row[part] for name, part in program.outputs.slices.items()}
    return SymbolicProgram(graph, symbols, outputs, [(values[g.value], g) for g in program.guards])


def unit_directions(name: str, values: np.ndarray) -> list[PartialsByScalar]:
    """Tangent basis of a vector space: the unit vectors."""
    return [{f"{name}[{k}]": 1.0} for k in range(len(values))]


def concatenated(columns: Mapping[str, Iterable]) -> list:
    """Concatenate the scalars of all groups."""
    return [x for column in columns.values() for x in column]


class ProgramDerivatives:
    """Jacobian products of a program: outputs `of` differentiated with respect to the inputs `wrt`.

    Attributes
    ----------
    symbolic : SymbolicProgram
    state : dict
        {name of an input scalar: its Expr}.
    """

    method = "program"

    def __init__(
        self, program: Program, of: Sequence[str], wrt: Sequence[str], basis: TangentBasis = unit_directions
    ):  # fmt: skip
        self.wrt, self.basis = wrt, basis
        self.graph, self.ranges = Graph(SHARING), program.ranges
        self.symbolic = to_graph(program, self.graph)
        self.state = {f"{name}[{k}]": x for name, column in self.symbolic.inputs.items() for k, x in enumerate(column)}
        self.outputs = {name: self.symbolic.outputs[name] for name in of}

    def product(self, kind: str) -> Program:
        """Build the program of a product.

        Parameters
        ----------
        kind : {"jvp", "vjp", "hvp"}
            J v, w^T J, or the derivative of w^T J along v.

        Returns
        -------
        Program
            Inputs: those of the program, then cotangents w of the outputs and tangents v of the inputs, if the product
            needs them. Outputs: named like the outputs (jvp) or the inputs (vjp, hvp).
        """
        vectors: ScalarsByGroup = {}
        if kind != "jvp":
            sizes = {name: len(x) for name, x in self.outputs.items()}
            weights, groups = self.symbolic.vector_inputs(COTANGENTS, sizes)
            vectors |= groups
        if kind == "vjp":
            results = self.project(self.gradients(weights))
        if kind != "vjp":
            sizes = {name: len(self.directions[name]) for name in self.wrt}
            tangents, groups = self.symbolic.vector_inputs(TANGENTS, sizes)
            vectors |= groups
            direction = self._combine(tangents)
            results = self.rates(direction) if kind == "jvp" else self.hessian_products(weights, direction)
        return self.symbolic.to_program(vectors, results, self.ranges)

    def rates(self, direction: PartialsByScalar) -> ScalarsByGroup:
        """Forward mode: rates of the output scalars along `direction` {input scalar: rate}."""
        rates = iter(derivative(concatenated(self.outputs), direction))
        return {name: [next(rates) for _ in column] for name, column in self.outputs.items()}

    def gradients(self, weights: ScalarsByGroup) -> PartialsByScalar:
        """Reverse mode: gradient {input scalar: derivative} of Σ_k w_k y_k with weights w of the outputs y."""
        names = self.scalar_names()
        inputs = [self.graph.input(name) for name in names]
        return dict(zip(names, gradient(concatenated(self.outputs), concatenated(weights), inputs), strict=True))

    def hessian_products(self, weights: ScalarsByGroup, direction: PartialsByScalar) -> ScalarsByGroup:
        """Derivative of the projected gradient (see `project`) along `direction` {input scalar: rate}."""
        gradients = self.project(self.gradients(weights))
        rates = iter(derivative(concatenated(gradients), direction))
        return {name: [next(rates) for _ in column] for name, column in gradients.items()}

    @cached_property
    def directions(self) -> dict[str, list[PartialsByScalar]]:
        """Tangent basis {input: [{scalar: rate} per tangent direction]}."""
        columns = {name: self.symbolic.inputs[name] for name in self.wrt}
        return {name: self.basis(name, np.array(column, dtype=object)) for name, column in columns.items()}

    def evaluate_at_state(self, scalars: Sequence, inputs: PartialsByScalar) -> list:
        """Evaluate scalars of another graph at `state`. inputs: values of the inputs of that graph beyond `state`."""
        return list(evaluate(np.array([*scalars, None], dtype=object)[:-1], self.state | inputs))

    def scalar_names(self) -> list[str]:
        """Names of the scalars of the inputs `wrt`."""
        return [f"{name}[{k}]" for name in self.wrt for k in range(len(self.symbolic.inputs[name]))]

    def project(self, gradients: PartialsByScalar, weight: Callable[[Any], Any] = lambda rate: rate) -> ScalarsByGroup:
        """Project a gradient on the tangent directions: Σ weight(rate) · derivative, summed over the input scalars."""
        return {
            name: [
                sum((weight(rate) * gradients.get(scalar, 0.0) for scalar, rate in x.items()), 0.0)
                for x in self.directions[name]
            ]
            for name in self.wrt
        }

    def _combine(self, tangents: ScalarsByGroup) -> PartialsByScalar:
        """{input scalar: rate} along the tangent vectors {input: (n tangent directions)}."""
        rates: PartialsByScalar = {}
        for name, vector in tangents.items():
            for x, direction in zip(vector, self.directions[name], strict=True):
                for scalar, rate in direction.items():
                    rates[scalar] = rates.get(scalar, 0.0) + rate * x
        return rates


# ---- vectors as arguments ----------------------------------------------------------------------------------------


def vector_group(role: str, name: str, group: str, of: Group) -> Group:
    """Group of the tangents or cotangents (role) of `name`, with the shape and labels of the group `of`."""
    label = f"{role}[{name!r}]"
    hint = f"{role}={{{name!r}: …}}"
    return replace(of, name=group, units=(), default=None, meaning=f"{role} of {name}", label=label, argument_hint=hint)


def split_vector_argument(role: str, groups: Mapping[str, Group], values: Any) -> dict[str, Any]:
    """Split the argument `role` (tangents or cotangents) of a call by group.

    Parameters
    ----------
    role : str
    groups : mapping
        {name: Group}.
    values : mapping, array or None
        {name: value}; a single array if there is one group.

    Returns
    -------
    {group name: value}

    Raises
    ------
    InvalidInput, UnknownName
    """
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        if len(groups) != 1:
            valid = ", ".join(map(repr, groups))
            raise InvalidInput(f"{role} is {{name: value}}, of {valid}" if groups else f"no {role} are taken here")
        values = {next(iter(groups)): values}
    for name in values:
        check_among(f"name in {role}:", name, groups)
    return {groups[name].name: x for name, x in values.items()}
