"""A solver taken elsewhere: what its C project says and is tested with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sysdyn.backends.c import code, project
from sysdyn.backends.executable import Executable
from sysdyn.measurements.classical import dynamics_name
from sysdyn.measurements.groups import value_group
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.variables import PARTS
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.problem import Problem

# Test vectors are found among so many sampled states.
STATES = 64


def _ascii_units(quantity: str) -> str:
    """Units of the angular and of the linear part, as a comment in C has them."""
    return ", ".join(PARTS[quantity]).replace("²", "^2")


# A header says this of each group of inputs and outputs.
_MEANINGS = {
    "q": f"joint positions [{_ascii_units('q')}]; quaternions (x, y, z, w) must have unit norm",
    "qd": f"joint velocities [{_ascii_units('qd')}]",
    "tau": f"joint torques and forces [{_ascii_units('tau')}]",
    "qdd": f"joint accelerations [{_ascii_units('qdd')}]",
    "fx": "external wrenches on the bodies, at their origins and in their coordinates: moment [N m], force [N]",
    "a": f"proper spatial accelerations of the bodies, gravity folded in, in their coordinates [{_ascii_units('a')}]",
    "f": "wrenches across the joints on their bodies, in their coordinates: moment [N m], force [N]",
    "w": "components of the wrenches of contacts and loop joints, in the axes of each: moments [N m], forces [N]",
}


def problem_name(problem: Problem) -> str:
    """A name for exported code, from the robot and what is known, such as `panda_forward_dynamics`."""
    robot = code.identifier(problem.model.name).strip("_")
    return f"{robot if robot[:1].isalpha() else f'robot_{robot}'.rstrip('_')}_{dynamics_name(problem)}"


def export_c(
    folder: str | os.PathLike, name: str | None, problem: Problem, outputs: Sequence[str], executable: Executable,
    measured: Sequence[Measurement] = (),
) -> Path:  # fmt: skip
    """Write the C project of a compiled problem; see `Solver.export_c`. measured: measurements among the outputs."""
    name = problem_name(problem) if name is None else name
    groups = ", ".join(group for group, _ in executable.program.input_groups)
    title = f"{', '.join(outputs)} of {problem.model.name}, from {groups}"
    description = code.Description(title, _meanings(problem, measured), _entries(problem, measured))
    return project.export(folder, name, executable, description, sample_states(problem, STATES, seed=EXAMPLE_SEED))


def _meanings(problem: Problem, measured: Sequence[Measurement]) -> dict[str, str]:
    named = [(value_group(m.name), m) for m in problem.custom] + [(m.name, m) for m in measured]
    return _MEANINGS | {group: f"values of {m.name} [{', '.join(dict.fromkeys(m.units))}]" for group, m in named}


def _entries(problem: Problem, measured: Sequence[Measurement]) -> dict[str, list[str]]:
    """The name of every scalar of each group, as `sysdyn.system` and the diagnosis use it."""
    model, layout = problem.model, problem.layout()
    entries = {x: [layout.names[k] for k in layout.quantity_columns(x)] for x in problem.quantities}
    entries["qd"] = list(model.dof_names)
    entries["q"] = [
        name if joint.nq == 1 else f"{name}[{k}]"
        for name, joint in zip(model.joint_names, model.joints, strict=True)
        for k in range(joint.nq)
    ]
    entries |= {value_group(m.name): list(m.components(model)) for m in problem.custom}
    return entries | {m.name: list(m.components(model)) for m in measured}
