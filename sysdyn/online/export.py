"""A solver as a C project: its name, the comments on its groups, and its test vectors."""

from __future__ import annotations

import os
from pathlib import Path

from sysdyn.backends.c import code, project
from sysdyn.backends.executable import Executable
from sysdyn.measurements.classical import dynamics_name
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.problem import Problem
from sysdyn.program.groups import Group, Groups

# Sampled states among which test vectors are found (chosen).
STATES = 64


def problem_name(problem: Problem) -> str:
    """A name for exported code, from the robot and the known quantities, such as `panda_forward_dynamics`."""
    robot = code.identifier(problem.model.name).strip("_")
    return f"{robot if robot[:1].isalpha() else f'robot_{robot}'.rstrip('_')}_{dynamics_name(problem)}"


def export_c(
    folder: str | os.PathLike, name: str | None, problem: Problem, outputs: Groups, executable: Executable
) -> Path:
    """Write the C project of a compiled problem; see `Solver.export_c`. outputs: its groups of outputs."""
    name = problem_name(problem) if name is None else name
    groups = {**problem.inputs, **outputs}
    title = f"{', '.join(outputs)} of {problem.model.name}, from {', '.join(problem.inputs)}"
    meanings = {x: _meaning(group) for x, group in groups.items() if group.meaning}
    description = code.Description(title, meanings, {x: group.labels for x, group in groups.items()})
    return project.export(folder, name, executable, description, sample_states(problem, STATES, seed=EXAMPLE_SEED))


def _meaning(group: Group) -> str:
    """Meaning of a group, with its units, as a comment in C."""
    units = ", ".join(dict.fromkeys(filter(None, group.units))).replace("²", "^2")
    return f"{group.meaning} [{units}]" if units else group.meaning
