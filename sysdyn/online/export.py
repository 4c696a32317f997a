"""Export of compiled problems: names, comments, and samples for test vectors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.codegen.c99 import Description, identifier
from sysdyn.frameworks.export import SAMPLED_STATES, ExportedProgram
from sysdyn.measurements.classical import dynamics_name
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.problem import Problem
from sysdyn.program.groups import Groups
from sysdyn.runtime.runner import Runner


def problem_name(problem: Problem) -> str:
    """A name for exported code, from the robot and the known quantities, such as `panda_forward_dynamics`."""
    robot = identifier(problem.model.name).strip("_")
    return f"{robot if robot[:1].isalpha() else f'robot_{robot}'.rstrip('_')}_{dynamics_name(problem)}"


def exported_program(
    name: str, problem: Problem, inputs: Groups, outputs: Groups, executable: Runner
) -> ExportedProgram:
    """A compiled problem for translators. inputs, outputs: its groups. Inputs that the problem lacks are random."""
    title = f"{', '.join(outputs)} of {problem.model.name}, from {', '.join(inputs)}"

    def states() -> Mapping[str, np.ndarray]:
        rng = np.random.default_rng(EXAMPLE_SEED)
        further = {
            x: rng.standard_normal((SAMPLED_STATES, g.size)) for x, g in inputs.items() if x not in problem.inputs
        }
        return sample_states(problem, SAMPLED_STATES, seed=EXAMPLE_SEED) | further

    return ExportedProgram(name, executable, Description(title, {**inputs, **outputs}), states)
