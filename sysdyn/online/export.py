"""A solver for translators: its name, the comments on its groups, and its test vectors."""

from __future__ import annotations

from functools import partial

from sysdyn.backends.c.code import Description, identifier
from sysdyn.backends.executable import Executable
from sysdyn.backends.translate import Source
from sysdyn.measurements.classical import dynamics_name
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.problem import Problem
from sysdyn.program.groups import Group, Groups

# Sampled states among which test vectors are found (chosen).
STATES = 64


def problem_name(problem: Problem) -> str:
    """A name for exported code, from the robot and the known quantities, such as `panda_forward_dynamics`."""
    robot = identifier(problem.model.name).strip("_")
    return f"{robot if robot[:1].isalpha() else f'robot_{robot}'.rstrip('_')}_{dynamics_name(problem)}"


def source(name: str, problem: Problem, outputs: Groups, executable: Executable) -> Source:
    """A compiled problem for translators. outputs: its groups of outputs."""
    groups = {**problem.inputs, **outputs}
    title = f"{', '.join(outputs)} of {problem.model.name}, from {', '.join(problem.inputs)}"
    meanings = {x: _meaning(group) for x, group in groups.items() if group.meaning}
    description = Description(title, meanings, {x: group.labels for x, group in groups.items()})
    return Source(name, executable, description, partial(sample_states, problem, STATES, seed=EXAMPLE_SEED))


def _meaning(group: Group) -> str:
    """Meaning of a group, with its units, as a comment in C."""
    units = ", ".join(dict.fromkeys(filter(None, group.units))).replace("²", "^2")
    return f"{group.meaning} [{units}]" if units else group.meaning
