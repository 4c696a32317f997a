"""Problems of section VI of the paper, a chain on load cells: `feet` follows the text, `load_cells` the script.

Text, eqs. (18) … (24): a floating-base robot stands on two feet, bodies 1 and N_B. All q̈ are known, including the base,
and all external wrenches except those of the feet; no force acts on the base joint (six zeros in eq. (21)). The sensors
measure y of a foot wrench f^x = Y y + H h; h is unknown. Y and H are as printed, force first; section II and this
library put the couple first. The system has four more equations than unknowns, consistent at every state of a motion.

Script of Figure 2: the base of the chain is fixed, so the cells of the first foot measure f_1, the wrench across joint
1. q̈_1, q̈_2, q̈_{n−1} and q̈_n are unknown. With 7 n known scalars the system is square.
"""

from __future__ import annotations

import numpy as np

from sysdyn.measurements.known_quantities import ExternalWrench, JointAcceleration, JointTorque, JointWrench
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.problem import Problem
from sysdyn.model import Free, Model, auto_tree

# Order of the rows of Y and H.
FORCE_FIRST = ("fx", "fy", "fz", "nx", "ny", "nz")
# Eq. (19b): four load cells under a foot measure n_x, n_y and f_z; (Y, H).
LOAD_CELLS = np.eye(6)[:, [3, 4, 2]], np.eye(6)[:, [0, 1, 5]]
# Eq. (24b): on a slippery floor f_x and f_y are known as well.
SLIPPERY_FLOOR = np.eye(6)[:, :5], np.eye(6)[:, 5:]


def components(matrix: np.ndarray) -> tuple[str, ...]:
    """Names of the components selected by the columns of Y or H (6, m)."""
    return tuple(FORCE_FIRST[int(row)] for row in np.argmax(matrix, axis=0))


def floating_chain(n: int, skew: float = 1.5) -> Model:
    """The chain of Figure 2, n ≥ 2 bodies, body 1 as floating base. skew [rad]: angle between neighbouring axes."""
    chain = auto_tree(n, 1, skew, 1)
    return Model(
        f"floating {chain.name}", chain.body_names, chain.joint_names, (Free(), *chain.joints[1:]), chain.parent,
        chain.X_tree, chain.inertias, gravity=chain.gravity, base="floating",
    )  # fmt: skip


def feet(model: Model, sensors: tuple[np.ndarray, np.ndarray]) -> Problem:
    """Problem (20) of a floating model with feet at the first and the last body; sensors: (Y, H).

    Known: all q̈, fx_2 … fx_{N−1}, the measured components of fx_1 and fx_N, and zero force at the base joint.
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

    Known: fx_1 … fx_{n−1}, q̈_3 … q̈_{n−2}, and n_x, n_y, f_x, f_y, f_z of f_1 and fx_n. skew [rad]: angle between
    neighbouring joint axes; 0 makes the problem singular.
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
