"""Compiled problems for frameworks that trace functions: binding of arguments, and handling of failed states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.frameworks.traced import FailureHandler, FrameworkFunction
from sysdyn.model.se3 import with_normalised_quaternions
from sysdyn.online.arguments import Arguments
from sysdyn.online.calls import Calls, Result
from sysdyn.program.groups import Arrays
from sysdyn.program.program import Program
from sysdyn.runtime.real import DOUBLE, Real

# As `FailureHandler`, of a run.
RunFailureHandler = Callable[[Program, Result], None]


def framework_function(
    name: str, calls: Calls, program: Program, on_failure: RunFailureHandler, on_derivative_failure: RunFailureHandler,
    eager_call: Callable[..., Any], cache_tag: str, level: int,
    derivative: Callable[[str, tuple[str, ...]], Program] | None = None, real: Real = DOUBLE,
) -> FrameworkFunction:  # fmt: skip
    """The program of these calls; see `FrameworkFunction`."""
    inputs = calls.inputs

    def bind_arguments(q: Any, qd: Any, *known: Any, **keywords: Any) -> dict[str, Any]:
        if keywords.get("noise") is not None:
            raise InvalidInput(
                "noise is as declared where functions are traced and differentiated: compile a problem for each"
            )
        return inputs.collected(Arguments.of(q, qd, known, keywords), keep=True)

    return FrameworkFunction(
        name, with_normalised_quaternions(program, inputs.quaternions), inputs.groups, bind_arguments,
        {group: shape for group, shape in calls.groups.values()},
        lambda results: {key: results[group] for key, (group, _) in calls.groups.items()},
        _of_arrays(on_failure), _of_arrays(on_derivative_failure), eager_call, derivative, cache_tag, level, real,
    )  # fmt: skip


def _of_arrays(handler: RunFailureHandler) -> FailureHandler:
    def on_failure(program: Program, inputs: Arrays, outputs: Arrays, status: np.ndarray) -> None:
        arrays = {name: x.astype(float, copy=False) for name, x in inputs.items()}
        handler(program, Result(arrays, (len(status),), dict(outputs), status))

    return on_failure
