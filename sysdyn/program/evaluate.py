"""Values and derivatives of expressions: walks over the graph that `sysdyn.program.expr` records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sysdyn.errors import UnknownName
from sysdyn.program.expr import Expr, Graph, cos, is_zero, sin, sqrt
from sysdyn.program.operations import ADD, CONST, COS, DIV, INPUT, MUL, NEG, OPAQUE, SIN, SQRT, SUB

_FUNCTIONS = {
    ADD: lambda a, b: a + b, SUB: lambda a, b: a - b, MUL: lambda a, b: a * b, DIV: lambda a, b: a / b,
    NEG: lambda a, b: -a, SIN: lambda a, b: sin(a), COS: lambda a, b: cos(a), SQRT: lambda a, b: sqrt(a),
    OPAQUE: lambda a, b: a,
}  # fmt: skip


def _graph_of(values: Iterable) -> Graph | None:
    return next((x.graph for x in values if type(x) is Expr), None)


def evaluate(outputs, inputs: Mapping[str, object]):
    """Values of `outputs` (nested array of Expr and floats) for the named `inputs`.

    inputs: floats, arrays (a batch), or Expr of another graph.

    Substitution is the same operation: inputs that are Expr give outputs in their graph.
    """
    array = np.asarray(outputs, dtype=object)
    flat = array.ravel()
    graph = _graph_of(flat)
    if graph is None:
        return outputs
    value: dict[int, object] = {}
    for i in graph.live(flat).tolist():
        kind = graph.kind[i]
        if kind == INPUT:
            name = graph.input_names[i]
            if name not in inputs:
                raise UnknownName("value for input", name, tuple(inputs))
            value[i] = inputs[name]
        elif kind == CONST:
            value[i] = graph.constants[i]
        else:
            value[i] = _FUNCTIONS[kind](value[graph.lhs[i]], value.get(graph.rhs[i]))
    result = np.empty(flat.size, dtype=object)
    for k, x in enumerate(flat):
        result[k] = value[x.id] if type(x) is Expr else x
    if array.ndim == 0:
        return result[0]
    if all(isinstance(x, (float, int, np.floating)) for x in result):
        return result.astype(float).reshape(array.shape)
    return result.reshape(array.shape)


def _partials(graph: Graph, i: int):
    """(∂node/∂lhs, ∂node/∂rhs) of node i, as Expr or float; None where there is no operand."""
    kind, a, b = graph.kind[i], graph.lhs[i], graph.rhs[i]
    left = Expr(graph, a) if graph.kind[a] != CONST else graph.constants[a]
    right = (Expr(graph, b) if graph.kind[b] != CONST else graph.constants[b]) if b >= 0 else None
    if kind == ADD:
        return 1.0, 1.0
    if kind == SUB:
        return 1.0, -1.0
    if kind == MUL:
        return right, left
    if kind == DIV:
        return 1.0 / right, -(Expr(graph, i) / right)
    if kind == NEG:
        return -1.0, None
    if kind == OPAQUE:
        return 1.0, None
    if kind == SIN:
        return cos(left), None
    if kind == COS:
        return -sin(left), None
    return 0.5 / Expr(graph, i), None  # sqrt


def derivative(outputs: Sequence, direction: Mapping[str, object]) -> list:
    """Forward derivative of `outputs` along `direction`.

    direction: input name → rate (float or Expr); inputs that it does not name are constant.
    """
    graph = _graph_of(outputs)
    if graph is None:
        return [0.0 for _ in outputs]
    rate: dict[int, object] = {}
    for i in graph.live(outputs).tolist():
        kind = graph.kind[i]
        if kind == INPUT:
            rate[i] = direction.get(graph.input_names[i], 0.0)
        elif kind == CONST:
            rate[i] = 0.0
        else:
            da, db = rate[graph.lhs[i]], rate.get(graph.rhs[i], 0.0)
            if is_zero(da) and is_zero(db):
                rate[i] = 0.0
                continue
            pa, pb = _partials(graph, i)
            total = pa * da
            rate[i] = total if pb is None else total + pb * db
    return [rate[x.id] if type(x) is Expr else 0.0 for x in outputs]


def gradient(output, inputs: Sequence[Expr]) -> list:
    """Reverse derivative of one output by each of `inputs`."""
    if type(output) is not Expr:
        return [0.0 for _ in inputs]
    graph = output.graph
    adjoint: dict[int, object] = {output.id: 1.0}
    for i in reversed(graph.live([output]).tolist()):
        bar = adjoint.get(i, 0.0)
        if graph.kind[i] in (INPUT, CONST) or is_zero(bar):
            continue
        pa, pb = _partials(graph, i)
        for operand, partial in ((graph.lhs[i], pa), (graph.rhs[i], pb)):
            if partial is not None and graph.kind[operand] != CONST:
                adjoint[operand] = adjoint.get(operand, 0.0) + partial * bar
    return [adjoint.get(x.id, 0.0) for x in inputs]
