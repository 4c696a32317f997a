"""A solver taken elsewhere: what its C project says and is tested with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sysdyn.backends.c import code, project
from sysdyn.backends.executable import Executable
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.problem import Problem

# Test vectors are found among so many sampled states.
STATES = 64
# A header says this of each group of inputs and outputs.
_MEANINGS = {
    "q": "joint positions [rad, m]; quaternions (x, y, z, w) must have unit norm",
    "qd": "joint velocities [rad/s, m/s]",
    "tau": "joint torques and forces [N m, N]",
    "qdd": "joint accelerations [rad/s^2, m/s^2]",
    "fx": "external wrenches on the bodies, at their origins and in their coordinates: moment [N m], force [N]",
    "a": "proper spatial accelerations of the bodies, gravity folded in, in their coordinates [rad/s^2, m/s^2]",
    "f": "wrenches across the joints on their bodies, in their coordinates: moment [N m], force [N]",
    "w": "components of the wrenches of contacts and loop joints, in the axes of each: moments [N m], forces [N]",
}


def problem_name(problem: Problem) -> str:
    """A name for exported code, from the robot and what is known, such as `panda_forward_dynamics`."""
    known = problem.known_quantities
    if problem.custom or not set(known) <= {"tau", "qdd", "fx"}:
        kind = "dynamics"
    elif "tau" not in known:
        kind = "inverse_dynamics"
    else:
        kind = "hybrid_dynamics" if "qdd" in known else "forward_dynamics"
    robot = code.identifier(problem.model.name).strip("_")
    return f"{robot if robot[:1].isalpha() else f'robot_{robot}'.rstrip('_')}_{kind}"


def export_c(
    folder: str | os.PathLike, name: str | None, problem: Problem, outputs: Sequence[str], executable: Executable
) -> Path:
    """Write the C project of a compiled problem; see `Solver.export_c`."""
    name = problem_name(problem) if name is None else name
    groups = ", ".join(group for group, _ in executable.program.input_groups)
    title = f"{', '.join(outputs)} of {problem.model.name}, from {groups}"
    description = code.Description(title, _meanings(problem), _entries(problem))
    return project.export(folder, name, executable, description, sample_states(problem, STATES, seed=EXAMPLE_SEED))


def _meanings(problem: Problem) -> dict[str, str]:
    return _MEANINGS | {
        f"y:{m.name}": f"values of {m.name} [{', '.join(dict.fromkeys(m.units))}]" for m in problem.custom
    }


def _entries(problem: Problem) -> dict[str, list[str]]:
    """The name of every scalar of each group, as `sysdyn.system` and the diagnosis use it."""
    model, layout = problem.model, problem.layout()
    entries = {x: [layout.names[k] for k in layout.quantity_columns(x)] for x in problem.quantities}
    entries["qd"] = list(model.dof_names)
    entries["q"] = [
        name if joint.nq == 1 else f"{name}[{k}]"
        for name, joint in zip(model.joint_names, model.joints, strict=True)
        for k in range(joint.nq)
    ]
    return entries | {f"y:{m.name}": list(m.components(model)) for m in problem.custom}
