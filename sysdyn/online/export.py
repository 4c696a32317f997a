"""Compiled problems for code generators and for frameworks that trace functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sysdyn.codegen.c99 import Description, identifier
from sysdyn.errors import InvalidInput
from sysdyn.frameworks.export import SAMPLED_STATES, ExportedProgram
from sysdyn.frameworks.traced import FailureHandler, FrameworkFunction
from sysdyn.measurements.classical import dynamics_name
from sysdyn.measurements.problem import Problem
from sysdyn.model.se3 import with_normalised_quaternions
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.online.arguments import Arguments
from sysdyn.online.calls import Calls, Result
from sysdyn.program.groups import Arrays, Groups
from sysdyn.program.program import Program
from sysdyn.runtime.real import DOUBLE, Real
from sysdyn.runtime.runner import Runner

# A `FailureHandler` that takes a result.
ResultFailureHandler = Callable[[Program, Result], None]


def problem_name(problem: Problem) -> str:
    """A name for exported code, from the robot and the known quantities, such as `panda_forward_dynamics`."""
    robot = identifier(problem.model.name).strip("_")
    return f"{robot if robot[:1].isalpha() else f'robot_{robot}'.rstrip('_')}_{dynamics_name(problem)}"


def exported_program(
    name: str, problem: Problem, inputs: Groups, outputs: Groups, executable: Runner
) -> ExportedProgram:
    """Export a compiled problem; example values of inputs that the problem lacks, such as tangents, are random."""
    title = f"{', '.join(outputs)} of {problem.model.name}, from {', '.join(inputs)}"

    def states() -> Mapping[str, np.ndarray]:
        rng = np.random.default_rng(EXAMPLE_SEED)
        further = {
            x: rng.standard_normal((SAMPLED_STATES, g.size)) for x, g in inputs.items() if x not in problem.inputs
        }
        return sample_states(problem, SAMPLED_STATES, seed=EXAMPLE_SEED) | further

    return ExportedProgram(name, executable, Description(title, {**inputs, **outputs}), states)


def framework_function(
    name: str, calls: Calls, program: Program, on_failure: ResultFailureHandler,
    on_derivative_failure: ResultFailureHandler,
    eager_call: Callable[..., Any], cache_tag: str, level: int,
    derivative: Callable[[str, tuple[str, ...]], Program] | None = None, real: Real = DOUBLE,
) -> FrameworkFunction:  # fmt: skip
    """`FrameworkFunction` of the program of these calls."""
    inputs = calls.inputs

    def bind_arguments(q: Any, qd: Any, *known: Any, **keywords: Any) -> dict[str, Any]:
        if keywords.get("noise") is not None:
            raise InvalidInput(
                "noise is as declared where functions are traced and differentiated: compile a problem for each"
            )
        return inputs.collected(Arguments.of(q, qd, known, keywords), zero_copy=True)

    return FrameworkFunction(
        name, with_normalised_quaternions(program, inputs.quaternions), inputs.groups, bind_arguments,
        {group: shape for group, shape in calls.groups.values()},
        lambda results: {key: results[group] for key, (group, _) in calls.groups.items()},
        _of_arrays(on_failure), _of_arrays(on_derivative_failure), eager_call, derivative, cache_tag, level, real,
    )  # fmt: skip


def _of_arrays(handler: ResultFailureHandler) -> FailureHandler:
    def on_failure(program: Program, inputs: Arrays, outputs: Arrays, status: np.ndarray) -> None:
        arrays = {name: x.astype(float, copy=False) for name, x in inputs.items()}
        handler(program, Result(arrays, (len(status),), dict(outputs), status))

    return on_failure
