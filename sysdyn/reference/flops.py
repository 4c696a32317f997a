"""Operation counts of algorithms, obtained by running them on `Expr`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITIES, QUANTITY
from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import Flops


def count_flops(algorithm: Callable, model: Model, sharing: str = "structural", fx: bool = False, **options) -> Flops:
    """The operations that algorithm(model, q, …) executes, counted by running it once on symbolic inputs.

    algorithm: `rnea`, `aba`, or any function whose first argument is the model and whose other arguments are among
        q, qd, qdd, tau and fx. It returns an array, or nested tuples, lists and dicts of arrays.
    sharing: which equal subexpressions count once, see `Graph`; "none" counts every live operation.
    fx: True makes external wrenches an input; else there are none.
    options: passed to the algorithm.

    Dead operations do not count. Products with 0 and ±1, additions of 0 and sign changes are free; sin/cos pairs are
    counted separately. Raises InvalidInput for an algorithm with other arguments.
    """
    graph = Graph(sharing)
    inputs = dict(options)
    names = list(inspect.signature(algorithm).parameters.values())[1:]
    for parameter in names:
        if parameter.name in inputs or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in QUANTITY:
            shape = QUANTITY[parameter.name].shape(model)
            symbols = graph.inputs(parameter.name, math.prod(shape))
            inputs[parameter.name] = None if parameter.name == "fx" and not fx else np.reshape(symbols, shape)
        elif parameter.default is parameter.empty:
            raise InvalidInput(
                f"{_name(algorithm)} needs the argument {parameter.name!r}, which count_flops cannot supply "
                f"(it knows q, qd, {', '.join(QUANTITIES)}); give it as an option: count_flops(…, {parameter.name}=…)"
            )
    if fx and "fx" not in {parameter.name for parameter in names}:
        raise InvalidInput(f"{_name(algorithm)} takes no external wrenches: leave fx=True out")
    return graph.count(_scalars(algorithm(model, **inputs)))


def _name(algorithm: Callable) -> str:
    return getattr(algorithm, "__name__", repr(algorithm))


def _scalars(result) -> Iterator:
    """Iterate over the scalars in nested arrays, tuples, lists and dicts."""
    if isinstance(result, np.ndarray):
        yield from result.flat
    elif isinstance(result, dict):
        for value in result.values():
            yield from _scalars(value)
    elif isinstance(result, (tuple, list)):
        for value in result:
            yield from _scalars(value)
    else:
        yield result
