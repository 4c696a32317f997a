"""Values and derivatives of expressions: walks over the graph that `sysdyn.program.graph` records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sysdyn.errors import check_among
from sysdyn.program.graph import Expr, Graph, is_zero
from sysdyn.program.opcodes import CONST, INPUT, OPERATIONS


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
    value: dict[int, Any] = {}
    for i in graph.live(flat).tolist():
        kind = graph.kind[i]
        if kind == INPUT:
            name = graph.input_names[i]
            check_among("value for input", name, inputs)
            value[i] = inputs[name]
        elif kind == CONST:
            value[i] = graph.constants[i]
        else:
            value[i] = OPERATIONS[kind].number(*(value[k] for k in graph.operands(i)))
    result = np.empty(flat.size, dtype=object)
    for k, x in enumerate(flat):
        result[k] = value[x.id] if type(x) is Expr else x
    if array.ndim == 0:
        return result[0]
    if all(isinstance(x, (float, int, np.floating)) for x in result):
        return result.astype(float).reshape(array.shape)
    return result.reshape(array.shape)


def _partials(graph: Graph, i: int) -> tuple:
    """The partial derivatives of node i by its operands, as Expr or float."""
    operands = (graph.at(k) if graph.kind[k] != CONST else graph.constants[k] for k in graph.operands(i))
    return OPERATIONS[graph.kind[i]].partials(graph.at(i), *operands)


def derivative(outputs: Sequence, direction: Mapping[str, object]) -> list:
    """Forward derivative of `outputs` along `direction`.

    direction: input name → rate (float or Expr); inputs that it does not name are constant.
    """
    graph = _graph_of(outputs)
    if graph is None:
        return [0.0 for _ in outputs]
    kinds, lhs, rhs = graph.kind, graph.lhs, graph.rhs
    rate: dict[int, Any] = {}  # of nodes at which it is not 0
    for i in graph.live(outputs).tolist():
        found: object = 0.0
        if kinds[i] == INPUT:
            found = direction.get(graph.input_names[i], 0.0)
        elif lhs[i] in rate or rhs[i] in rate:
            pairs = zip(_partials(graph, i), graph.operands(i), strict=True)
            terms = [partial * rate[k] for partial, k in pairs if k in rate]
            found = sum(terms[1:], terms[0])
        if not is_zero(found):
            rate[i] = found
    return [rate.get(x.id, 0.0) if type(x) is Expr else 0.0 for x in outputs]


def gradient(outputs: Sequence, weights: Sequence, inputs: Sequence[Expr]) -> list:
    """Reverse derivative Σ w_k ∂y_k/∂x of `outputs` y by each of `inputs` x; weights w: floats or Expr."""
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
