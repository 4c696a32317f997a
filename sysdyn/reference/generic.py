"""One recursion, three kinds of states: floats, `Expr`, and batches of floats.

A recursion is written for one state: it takes arrays such as q (nq,), q̇ (nv,), τ (nv,) and fx (nb, 6) or None, and
returns a tuple of arrays. `run` (for a model) and `run_arrays` (for any arrays) check the arguments and call the
recursion on float arrays for one state, on object arrays of Expr for symbolic states, and for a batch on object arrays
whose entries are arrays with one number per state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.program import arrays
from sysdyn.program.arrays import batch_axes, broadcast_shapes, reject_not_finite
from sysdyn.program.graph import Expr

# States per recursion call: intermediate results stay in the cache (chosen).
BATCH = 1024


def run(recursion: Callable, model: Model, arguments: Mapping[str, object]) -> tuple[np.ndarray, ...]:
    """Call recursion(model, *arguments) for one state or a batch of states.

    arguments: name → value, in the recursion's order; names are "q" (…, nq), "qd", "qdd", "tau" (…, nv) and
        "fx" (…, nb, 6) or None for no external wrenches. Leading axes are broadcast.
    Raises InvalidInput if a shape, a dtype, a value or the norm of a quaternion is wrong.
    """
    sizes = {name: QUANTITY[name].shape(model) for name in arguments}

    def checked(name: str, value) -> np.ndarray:
        array = checked_array(name, value, sizes[name])
        return model.normalise(array) if name == "q" and array.dtype != object else array

    given = {name: x for name, x in arguments.items() if x is not None or not QUANTITY[name].zero}
    values = {name: checked(name, x) for name, x in given.items()}
    return _spread(partial(recursion, model), sizes, values, tuple(arguments))


def run_arrays(recursion: Callable, arguments: Mapping[str, tuple[object, tuple[int, ...]]]) -> tuple[np.ndarray, ...]:
    """Call recursion(*arrays) for one set of arrays or a batch, as `run` does for states.

    arguments: name → (value, shape without batch axes), in the recursion's order. Raises InvalidInput.
    """
    values = {name: checked_array(name, value, shape) for name, (value, shape) in arguments.items()}
    return _spread(recursion, {name: shape for name, (_, shape) in arguments.items()}, values, tuple(arguments))


def _spread(recursion: Callable, sizes: Mapping, values: dict, names: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Call a recursion at one state, a symbolic state or a batch of states; results have the batch axes of the values.

    sizes: {name: shape at one state}. values: {name: checked array (…, *shape)}. names: order of the arguments of the
    recursion; those without a value are None.
    """
    if any(value.dtype == object for value in values.values()):
        return recursion(*_symbolic(values, sizes, names))
    heads = {name: value.shape[: value.ndim - len(sizes[name])] for name, value in values.items()}
    head = broadcast_shapes(heads)
    if head == ():
        return recursion(*(values.get(name) for name in names))

    count = math.prod(head)
    rows = {name: np.broadcast_to(v, head + sizes[name]).reshape((count,) + sizes[name]) for name, v in values.items()}
    pieces = []
    for start in range(0, max(count, 1), BATCH):
        piece = {name: _to_object_rows(value[start : start + BATCH]) for name, value in rows.items()}
        try:
            results = recursion(*(piece.get(name) for name in names))
        except SingularState as error:
            error.states = tuple(start + s for s in error.states)
            raise
        pieces.append([_from_object_rows(result, min(BATCH, count - start)) for result in results])
    return tuple(np.concatenate(results).reshape(head + results[0].shape[1:]) for results in zip(*pieces, strict=True))


def checked_array(name: str, value, shape: tuple[int, ...]) -> np.ndarray:
    """Convert `value` (…, *shape) to an array of finite floats, or of Expr and floats if it contains an Expr.

    Raises InvalidInput.
    """
    array = arrays.as_array(name, value)
    if array.dtype != object:
        array = arrays.float_array(name, value)
    symbols = np.full(array.shape, False)
    if array.dtype == object:
        symbols = np.array([type(x) is Expr for x in array.flat], dtype=bool).reshape(array.shape)
        wrong = next((x for x in array.flat if type(x) is not Expr and not arrays.is_number(x)), None)
        if wrong is not None:
            raise InvalidInput(f"{name} holds something that is not a real number: {wrong!r}")
    try:
        numbers = np.where(symbols, 0.0, array).astype(float) if symbols.any() else array.astype(float, copy=False)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} holds something that is not a real number: {array!r}") from None
    array, numbers = (x.reshape(batch_axes(name, x, shape) + shape) for x in (array, numbers))
    reject_not_finite(name, numbers, len(shape))
    return np.where(symbols, array, numbers) if symbols.any() else numbers


def _symbolic(values: dict, sizes: Mapping, names: tuple[str, ...]) -> list:
    for name, value in values.items():
        if value.shape != sizes[name]:
            raise InvalidInput(
                f"{name} has shape {value.shape}; expected {sizes[name]}: states of Expr have no batch axes"
            )
    return [values[name].astype(object) if name in values else None for name in names]


def _to_object_rows(rows: np.ndarray) -> np.ndarray:
    """(n, …) floats → (…) objects, each an array (n,) over the states."""
    entries = np.empty(rows.shape[1:], dtype=object)
    for index in np.ndindex(entries.shape):
        entries[index] = np.ascontiguousarray(rows[(slice(None), *index)])
    return entries


def _from_object_rows(result: np.ndarray, count: int) -> np.ndarray:
    """(…) objects, each a number or an array (n,) → (n, …) floats."""
    rows = np.empty((count, *result.shape))
    for index in np.ndindex(result.shape):
        rows[(slice(None), *index)] = result[index]
    return rows


def symmetric(n: int, dtype: np.dtype, entry: Callable) -> np.ndarray:
    """Symmetric matrix (n, n) from entry(r, s), r ≥ s."""
    M = np.empty((n, n), dtype=dtype)
    for r in range(n):
        for s in range(r + 1):
            M[r, s] = M[s, r] = entry(r, s)
    return M


def is_number(x) -> bool:
    """True for a float or a batch of floats, False for an Expr."""
    return isinstance(x, (float, np.ndarray))


def mark_block(*arrays: np.ndarray) -> list[np.ndarray]:
    """Begin a new graph segment (`Graph.cut`) whose operands are `arrays` (`Graph.alias`).

    Nonzero entries of float arrays become constant nodes, so that equal computations give identical segments. Without
    any Expr the arrays are returned unchanged.
    """
    graph = next((y.graph for x in arrays if x.dtype == object for y in x.flat if type(y) is Expr), None)
    if graph is None:
        return list(arrays)
    graph.cut()
    aliases: dict[int, Expr] = {}
    results = []
    for x in arrays:
        result = x.astype(object)
        for at, y in np.ndenumerate(result):
            if x.dtype != object and y != 0.0:
                y = graph.constant(y)
            if type(y) is Expr:
                if y.id not in aliases:
                    aliases[y.id] = graph.alias(y)
                result[at] = aliases[y.id]
        results.append(result)
    return results
