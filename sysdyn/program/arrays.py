"""Input validation: arguments must be real, finite and of the required shape.

Integers and floats are real numbers. Dates, durations, booleans, strings and objects are rejected, although NumPy
converts most of them: a date becomes 1.7e18 nanoseconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np

from sysdyn.errors import InvalidInput, SysdynError

DOUBLES = np.dtype(np.float64)
# NumPy dtype kinds: real numbers; numbers or times (time columns); numbers or booleans (switches).
NUMBERS, TIMES, BOOLEANS = "fiu", "fiumM", "fiub"
# Types that can be multiplied with floats but are not real numbers.
_NOT_SCALAR = (bool, complex, str, bytes, timedelta, np.generic, Decimal)


def dtype_problem(dtype: Any, allowed: str = NUMBERS) -> str:
    """Reason why a NumPy or pandas dtype is rejected; "" if its kind is allowed."""
    return "" if getattr(dtype, "kind", "O") in allowed else f"type {dtype}, but real numbers are needed"


def finite_array(
    name: str, x: Any, shape: tuple, error: type[SysdynError] = InvalidInput, infinite: bool = False
) -> np.ndarray:
    """Convert x to a float64 array and check its shape and entries.

    Parameters
    ----------
    name : str
        Name in messages.
    x : array_like
    shape : tuple
        Required shape. None accepts any length except 0. A leading `...` accepts batch axes; the other axes may then
        be flattened.
    error : type
        Class of the exception.
    infinite : bool
        Accept infinite entries. NaN is always rejected.
    """
    try:
        A = float_array(name, x)
        if shape[:1] == (...,):
            A = A.reshape(batch_axes(name, A, shape[1:]) + shape[1:])
        elif A.size == 0 and 0 in shape:
            A = A.reshape(shape)
        elif A.ndim != len(shape) or any(n == 0 if k is None else n != k for k, n in zip(shape, A.shape, strict=True)):
            raise InvalidInput(f"{name} has shape {A.shape}, but {format_shape(shape)} is needed")
        reject_not_finite(name, np.where(np.isinf(A), 0.0, A) if infinite else A, len(shape) - (shape[:1] == (...,)))
    except InvalidInput as problem:
        raise error(str(problem)) from problem.__cause__
    return A


def float_array(name: str, x: Any) -> np.ndarray:
    """Convert x to a float64 array. Raises InvalidInput unless its entries are real numbers."""
    array = as_array(name, x)
    if array.dtype.kind == "O" and type(x) in (list, tuple, int) and all(type(y) in (int, float) for y in array.flat):
        array = array.astype(np.float64)  # Python integers beyond int64
    if problem := dtype_problem(array.dtype) or (dtype_problem(np.dtype(bool)) if _has_booleans(x) else ""):
        raise InvalidInput(f"{name} has {problem}")
    return array.astype(np.float64, copy=False)


def _has_booleans(x: Any) -> bool:
    """True if a nested list has booleans. NumPy would convert them if the list also has numbers."""
    if isinstance(x, (list, tuple)):
        return any(_has_booleans(y) for y in x)
    return isinstance(x, (bool, np.bool_)) or (isinstance(x, np.ndarray) and x.dtype.kind == "b")


def as_array(name: str, x: Any) -> np.ndarray:
    """Convert x to an array. Raises InvalidInput for None, ragged lists, masked entries and symbols of libraries."""
    if x is None:
        raise InvalidInput(f"{name} is None: an array is needed")
    try:
        return np.asarray(reject_masked(name, x))
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{name} is not a regular array of numbers: {error}") from error
    except Exception as error:  # libraries raise different classes for symbols and tracers without a value
        raise InvalidInput(
            f"{name} is a {type(x).__module__}.{type(x).__name__} without numbers of its own: calls need values. "
            "Use solver.to_jax() inside jax.jit, grad and similar, and solver.to_casadi() for symbols. "
            "Kinematic functions have both methods, too: sd.kinematics(model, 'integrate').to_jax() "
            f"({type(error).__name__})"
        ) from error


def is_masked_array(x: object) -> bool:
    """True if x is a masked array."""
    return "numpy.ma" in sys.modules and isinstance(x, np.ma.MaskedArray)  # 6 ms to import; without it there is none


def is_masked(x: object) -> bool:
    """True if entries of x are masked."""
    return is_masked_array(x) and bool(np.ma.is_masked(x))


def reject_masked(name: str, x: Any) -> Any:
    """Return x. Raises InvalidInput if entries are masked."""
    if is_masked(x):
        raise InvalidInput(
            f"{name} has masked entries, which are missing: only values of Switchable measurements may be, by name in y"
        )
    return x


def reject_not_finite(name: str, x: np.ndarray, axes: int) -> None:
    """Raise InvalidInput with the first infinite or NaN entry of x. axes: number of trailing axes of one state."""
    finite = np.isfinite(x)
    if finite.all():
        return
    where = tuple(int(k) for k in np.argwhere(~finite)[0])
    split = len(where) - axes
    parts = [("state", where[:split]), ("entry", where[split:])]
    place = ", ".join(f"{what} {k[0] if len(k) == 1 else k}" for what, k in parts if k)
    raise InvalidInput(f"{name} is {x[where]}{place and f' at {place}'}: every input must be finite")


def is_readable_in_place(x: object, dtype: np.dtype = DOUBLES) -> TypeGuard[np.ndarray]:
    """True if a kernel can read x without a copy: a C-contiguous, aligned, unmasked array of `dtype`."""
    if not isinstance(x, np.ndarray) or is_masked_array(x):
        return False
    return x.dtype == dtype and x.flags.c_contiguous and x.flags.aligned


def to_plain(x: Any) -> Any:
    """Convert arrays and tuples to lists, as in JSON and TOML."""
    if isinstance(x, np.ndarray):
        return x.tolist()
    return [to_plain(part) for part in x] if isinstance(x, (tuple, list)) else x


# ---- shapes ------------------------------------------------------------------------------------------------------


def batch_axes(name: str, x: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Batch axes of x (…, *shape) or (…, size). Raises InvalidInput with both shapes."""
    lead = x.shape[: max(x.ndim - len(shape), 0)]
    if lead + shape == x.shape:
        return lead
    if len(shape) > 1 and x.shape[-1:] == (math.prod(shape),):
        return x.shape[:-1]
    raise InvalidInput(f"{name} has shape {x.shape}, but {format_shape((..., *shape))} is needed")


def broadcast_shapes(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Common shape of the batch axes of several arrays {name: axes}. Raises InvalidInput if they do not broadcast."""
    try:
        return np.broadcast_shapes(*shapes.values())
    except ValueError:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InvalidInput(f"the leading (batch) axes do not fit together: {listed}") from None


def format_shape(shape: Sequence) -> str:
    """Format a shape for messages, such as "(…, 3)". A length of None is shown as n, m or k."""
    free = iter("nmk")
    axes = ["…" if k is ... else next(free) if k is None else str(k) for k in shape]
    return f"({axes[0]},)" if len(axes) == 1 else f"({', '.join(axes)})"


# ---- single numbers ----------------------------------------------------------------------------------------------


def is_number(x: object) -> TypeGuard[int | float]:
    """True for integers and floats of Python and NumPy, except booleans."""
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def is_integer(x: object) -> TypeGuard[int]:
    """True for integers of Python and NumPy, except booleans."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def is_count(x: object, least: int) -> TypeGuard[int]:
    """True for integers ≥ `least`."""
    return is_integer(x) and x >= least


def is_scalar(x: object) -> bool:
    """True if x supports float arithmetic: a number, an array of numbers, or a symbol of any library."""
    return is_number(x) or (hasattr(type(x), "__mul__") and not isinstance(x, _NOT_SCALAR))
