"""Real numbers, and nothing else: the one gate for arrays that are handed in and for columns of files.

Integers and floats are numbers. Dates, spans of time, booleans, texts and objects are not, though NumPy makes numbers
of most: a date is 1.7e18 nanoseconds. Times have a column of their own, switches are booleans.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeGuard

import numpy as np

from sysdyn.errors import InvalidInput

# Kinds of NumPy's types: numbers; numbers and times, for the column of time; numbers and booleans, for switches.
NUMBERS, TIMES, SWITCHES = "fiu", "fiumM", "fiub"
# Types that are no real numbers, although products with floats are defined for them or seem to be.
_NO_SCALARS = (bool, complex, str, bytes, timedelta, np.generic, Decimal)


def refused(dtype: Any, allowed: str = NUMBERS) -> str:
    """The reason, in words, why entries of a NumPy or pandas type are refused; "" if their kind is allowed."""
    kind = getattr(dtype, "kind", "O")
    return "" if kind in allowed else f"type {dtype}, but real numbers are needed"


def real(name: str, x: Any) -> np.ndarray:
    """x as float64. Raises InvalidInput unless it is an array of real numbers."""
    array = array_of(name, x)
    if array.dtype.kind == "O" and type(x) in (list, tuple, int) and all(type(y) in (int, float) for y in array.flat):
        array = array.astype(np.float64)  # integers of more digits than NumPy has
    if why := refused(array.dtype) or (refused(np.dtype(bool)) if _holds_booleans(x) else ""):
        raise InvalidInput(f"{name} has {why}")
    return array.astype(np.float64, copy=False)


def is_number(x: object) -> TypeGuard[int | float]:
    """True if x is an integer or a float, of Python or of NumPy."""
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def is_integer(x: object) -> TypeGuard[int]:
    """True for integers of Python and NumPy, but no booleans."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def is_count(x: object, least: int) -> TypeGuard[int]:
    """An integer of at least this."""
    return is_integer(x) and x >= least


def is_scalar(x: object) -> bool:
    """True if x can be computed with like a float: a number, an array of numbers, or a symbol of any library."""
    return is_number(x) or (hasattr(type(x), "__mul__") and not isinstance(x, _NO_SCALARS))


def _holds_booleans(x: Any) -> bool:
    """True if a list holds booleans, which NumPy takes for numbers if numbers are beside them."""
    if isinstance(x, (list, tuple)):
        return any(_holds_booleans(y) for y in x)
    return isinstance(x, (bool, np.bool_)) or (isinstance(x, np.ndarray) and x.dtype.kind == "b")


def array_of(name: str, x: Any) -> np.ndarray:
    """x as an array of whatever type. Raises InvalidInput for None, ragged lists, masks and symbols of libraries."""
    if x is None:
        raise InvalidInput(f"{name} is None: an array is needed")
    try:
        return np.asarray(unmasked(name, x))
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{name} is not a regular array of numbers: {error}") from error
    except Exception as error:  # each library raises its own where a symbol or tracer has no value
        raise InvalidInput(
            f"{name} is a {type(x).__module__}.{type(x).__name__} without numbers of its own: calls take values. "
            "Inside jax.jit, grad and the like call solver.to_jax(), which is a function of JAX; solver.to_casadi() is "
            "for symbols. Steps, poses and the like have both, too: sd.kinematics(model, 'integrate').to_jax() "
            f"({type(error).__name__})"
        ) from error


def unmasked(name: str, x: Any) -> Any:
    """x itself. Raises InvalidInput if entries are masked."""
    if np.ma.is_masked(x):
        raise InvalidInput(
            f"{name} has masked entries, which are missing: only values of Switchable measurements may be, by name in y"
        )
    return x
