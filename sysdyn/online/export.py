"""A solver for translators: its name, the comments on its groups, and its test vectors."""

from __future__ import annotations

from functools import partial

from sysdyn.backends.c.code import Description, identifier
from sysdyn.backends.executable import Executable
from sysdyn.backends.translate import Source
from sysdyn.measurements.classical import dynamics_name
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.problem import Problem
from sysdyn.program.groups import Groups

# Sampled states among which test vectors are found (chosen).
VECTOR_STATES = 64


def problem_name(problem: Problem) -> str:
    """A name for exported code, from the robot and the known quantities, such as `panda_forward_dynamics`."""
    robot = identifier(problem.model.name).strip("_")
    return f"{robot if robot[:1].isalpha() else f'robot_{robot}'.rstrip('_')}_{dynamics_name(problem)}"


def source(name: str, problem: Problem, outputs: Groups, executable: Executable) -> Source:
    """A compiled problem for translators. outputs: its groups of outputs."""
    title = f"{', '.join(outputs)} of {problem.model.name}, from {', '.join(problem.inputs)}"
    description = Description(title, {**problem.inputs, **outputs})
    return Source(name, executable, description, partial(sample_states, problem, VECTOR_STATES, seed=EXAMPLE_SEED))
