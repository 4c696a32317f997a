"""Names of the release before this one: they work, and warn with DeprecationWarning."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sysdyn.errors import warn

P = ParamSpec("P")
R = TypeVar("R")

# Old names of the top level: the module that has the new one, and the new one. They go with version 0.4.
NAMES = {
    "InverseDynamics": ("sysdyn", "RNEADerivatives"),
    "regressor": ("sysdyn", "compile_regressor"),
    "expanded_parent": ("sysdyn.reference", "expanded_parent"),
    "ltl": ("sysdyn.reference", "ltl"),
    "mul_H": ("sysdyn.reference", "mul_H"),
    "pinv": ("sysdyn.reference", "pinv"),
    "SKOModel": ("sysdyn.papers.jain", "SKOModel"),
}


def warn_of_name(old: str) -> tuple[str, str]:
    """(module, name) that replace the name `old` of the top level; the warning points at the caller's caller."""
    place, name = NAMES[old]
    warn(f"sysdyn.{old} is now {place}.{name}", DeprecationWarning)
    return place, name


def renamed(**keywords: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: old=new keywords of a function. Both at once raise TypeError."""

    def of(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: Any, **given: Any) -> R:
            for old, new in keywords.items():
                if old in given:
                    if new in given:
                        raise TypeError(f"{function.__name__}() got {old}= and {new}=, which are the same: drop {old}=")
                    warn(f"{old}= of {function.__name__} is now {new}=", DeprecationWarning)
                    given[new] = given.pop(old)
            return function(*args, **given)

        return call

    return of
