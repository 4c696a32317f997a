"""One recursion, three kinds of states: floats, `Expr`, and batches of floats.

A recursion is written for one state: it takes q (nq,), q̇ (nv,), a third vector (nv,) and fx (nb, 6) or None, and
returns a tuple of arrays. `run` checks what the caller gave and calls it on float arrays for one state, on object
arrays of Expr for symbolic states, and on object arrays whose entries hold one number a state for a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.expr import Expr
from sysdyn.model import Model

BATCH = 1024  # states carried through a recursion at once: keeps its intermediate results near the processor


def run(recursion: Callable, model: Model, arguments: Mapping[str, object]) -> tuple[np.ndarray, ...]:
    """recursion(model, *arguments) for one state or for each state of a batch.

    arguments: name → value, in the recursion's order; names are among "q" (…, nq), "qd", "qdd", "tau" (…, nv) and
        "fx" (…, nb, 6), where None stands for no external wrench. Leading axes are broadcast against each other.
    Raises InvalidInput where a shape, a dtype, a value or the norm of a quaternion is wrong.
    """
    sizes = {"q": (model.nq,), "qd": (model.nv,), "qdd": (model.nv,), "tau": (model.nv,), "fx": (model.nb, 6)}
    values = {name: _checked(name, value, sizes[name]) for name, value in arguments.items() if value is not None}
    if any(value.dtype == object for value in values.values()):
        return recursion(model, *_symbolic(values, sizes, arguments))

    values["q"] = model.normalise(values["q"])
    heads = {name: value.shape[: value.ndim - len(sizes[name])] for name, value in values.items()}
    try:
        head = np.broadcast_shapes(*heads.values())
    except ValueError:
        shown = ", ".join(f"{name} {heads[name] + sizes[name]}" for name in heads)
        raise InvalidInput(f"the leading (batch) axes do not broadcast against each other: {shown}") from None
    if head == ():
        return recursion(model, *(values.get(name) for name in arguments))

    count = math.prod(head)
    rows = {name: np.broadcast_to(v, head + sizes[name]).reshape((count,) + sizes[name]) for name, v in values.items()}
    pieces = []
    for start in range(0, max(count, 1), BATCH):
        piece = {name: _entries(value[start : start + BATCH]) for name, value in rows.items()}
        try:
            results = recursion(model, *(piece.get(name) for name in arguments))
        except SingularState as error:
            error.states = tuple(start + s for s in error.states)
            raise
        pieces.append([_states(result, min(BATCH, count - start)) for result in results])
    return tuple(np.concatenate(results).reshape(head + results[0].shape[1:]) for results in zip(*pieces, strict=True))


def _checked(name: str, value, shape: tuple[int, ...]) -> np.ndarray:
    """`value` as an array of finite floats or, where it holds an Expr, of objects."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidInput(f"{name} is not an array of numbers: {error}") from None
    symbolic = array.dtype == object and any(type(x) is Expr for x in array.flat)
    if not symbolic:
        if array.dtype.kind not in "iufO":
            raise InvalidInput(f"{name} has dtype {array.dtype}; expected real numbers")
        try:
            array = array.astype(float, copy=False)
        except (TypeError, ValueError):
            raise InvalidInput(f"{name} holds something that is not a real number: {array!r}") from None
    if array.shape[max(0, array.ndim - len(shape)) :] != shape:
        wanted = ", ".join(str(n) for n in shape)
        raise InvalidInput(f"{name} has shape {array.shape}; expected (…, {wanted}), leading axes being batch axes")
    if not symbolic and not np.isfinite(array).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(array))[0])
        raise InvalidInput(f"{name}{list(where)} is {array[where]}; every entry has to be finite")
    return array


def _symbolic(values: dict, sizes: dict, arguments: Mapping[str, object]) -> list:
    for name, value in values.items():
        if value.shape != sizes[name]:
            raise InvalidInput(
                f"{name} has shape {value.shape}; expected {sizes[name]}: states of Expr have no batch axes"
            )
    return [values[name].astype(object) if name in values else None for name in arguments]


def _entries(rows: np.ndarray) -> np.ndarray:
    """(n, …) floats → (…) objects, each an array (n,): one number a state."""
    entries = np.empty(rows.shape[1:], dtype=object)
    for index in np.ndindex(entries.shape):
        entries[index] = np.ascontiguousarray(rows[(slice(None), *index)])
    return entries


def _states(result: np.ndarray, count: int) -> np.ndarray:
    """(…) objects, each a number or an array (n,) → (n, …) floats."""
    rows = np.empty((count, *result.shape))
    for index in np.ndindex(result.shape):
        rows[(slice(None), *index)] = result[index]
    return rows
