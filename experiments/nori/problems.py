"""The problems of the paper's section VI: a chain that stands on load cells, as the text and as its script have it.

The text (18) … (24): a robot floats on its two feet, bodies 1 and N_B. All q̈ are known, that of the base too, all
external wrenches but those of the feet, and nothing else holds the base: six zeros in (21). Of the wrench of a foot,
f^x = Y y + H h, the sensors give y and leave h. The matrices stand here as they are printed, with the force first,
where section II, and this library, have the couple first.

The script of Figure 2 (`load_cells`): the base of the same chain is fixed, so that the cells of the first foot read
f_1, what the ground sends through joint 1; and q̈_1, q̈_2, q̈_{n−1}, q̈_n are unknown. That makes a square system: 7 n
known scalars. The text's has four equations more than unknowns, which hold at every state of a motion: all n + 6 rows
of (21) for n torques and two n_z, where the script gives up four accelerations instead.
"""

from __future__ import annotations

import numpy as np

from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.raw import ExternalWrench, JointAcceleration, JointTorque, JointWrench
from sysdyn.model import Free, Model, auto_tree
from sysdyn.problem import Problem

# Order of the components in the rows of the matrices below.
FORCE_FIRST = ("fx", "fy", "fz", "nx", "ny", "nz")
# Eq. (19b): four load cells under a foot give n_x, n_y and f_z.
LOAD_CELLS = np.eye(6)[:, [3, 4, 2]], np.eye(6)[:, [0, 1, 5]]
# Eq. (24b): on a slippery floor f_x and f_y are known as well.
SLIPPERY_FLOOR = np.eye(6)[:, :5], np.eye(6)[:, 5:]


def components(matrix: np.ndarray) -> tuple[str, ...]:
    """The components that the columns of Y or H (6, m) stand for."""
    return tuple(FORCE_FIRST[int(row)] for row in np.argmax(matrix, axis=0))


def floating_chain(n: int, skew: float = 1.5) -> Model:
    """The chain of Figure 2, n ≥ 2 bodies, with body 1 as a floating base. skew [rad]: between neighbouring joints."""
    chain = auto_tree(n, 1, skew, 1)
    return Model(
        f"floating {chain.name}", chain.body_names, chain.joint_names, (Free(), *chain.joints[1:]), chain.parent,
        chain.X_tree, chain.inertias, gravity=chain.gravity, base="floating",
    )  # fmt: skip


def feet(model: Model, sensors: tuple[np.ndarray, np.ndarray]) -> Problem:
    """Problem (20) of a floating model with its feet at the first and the last body; sensors: (Y, H).

    Known are all q̈, fx_2 … fx_{N−1}, the measured components of fx_1 and fx_N, and that no force holds the base.
    """
    measured = components(sensors[0])
    known: list[Measurement] = [JointAcceleration("all")]
    if inner := model.body_names[1:-1]:
        known.append(ExternalWrench(inner, name="no contact"))
    known += [
        ExternalWrench(model.body_names[0], measured, name="right foot"),
        ExternalWrench(model.body_names[-1], measured, name="left foot"),
        JointTorque(model.joint_names[0], name="free base"),
    ]
    return Problem(model, known)


def load_cells(n: int, skew: float = 1.5) -> Problem:
    """The problem of Figure 2: a chain of n ≥ 4 bodies whose first joint and last body are on slippery load cells.

    Known are fx_1 … fx_{n−1}, q̈_3 … q̈_{n−2} and n_x, n_y, f_x, f_y, f_z of f_1 and of fx_n. skew [rad]: between the
    axes of neighbouring joints; 0 makes the problem singular.
    """
    model = auto_tree(n, 1, skew, 1)
    joints, five = model.joint_names[2:-2], components(SLIPPERY_FLOOR[0])
    known: list[Measurement] = [JointAcceleration(joints, name="accelerations")] if joints else []
    known += [
        ExternalWrench(model.body_names[:-1], name="no contact"),
        JointWrench(model.body_names[0], five, name="cells at the base"),
        ExternalWrench(model.body_names[-1], five, name="cells at the tip"),
    ]
    return Problem(model, known)
