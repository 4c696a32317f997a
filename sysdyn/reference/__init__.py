"""Textbook algorithms as printed, generic over float, Expr and batches: references to check the solvers against."""

from __future__ import annotations

from sysdyn.reference.aba import aba
from sysdyn.reference.crba import crba, forward_dynamics_crba
from sysdyn.reference.ik import IKResult, inverse_kinematics, pinv
from sysdyn.reference.ltdl import Factor, Sparsity, expanded_parent, ltdl, ltl, mul_H, sparsity
from sysdyn.reference.mujoco_layout import MujocoLayout, csr_layout
from sysdyn.reference.operators import SKOModel, task_frames
from sysdyn.reference.regressor import compile_regressor, joint_torque_regressor
from sysdyn.reference.rnea import NewtonEuler, newton_euler, rnea
from sysdyn.reference.rnea_derivatives import RNEADerivatives, rnea_derivatives

__all__ = [
    "Factor", "IKResult", "MujocoLayout", "NewtonEuler", "RNEADerivatives", "SKOModel", "Sparsity", "aba",
    "compile_regressor", "crba", "csr_layout", "expanded_parent", "forward_dynamics_crba", "inverse_kinematics",
    "joint_torque_regressor", "ltdl", "ltl", "mul_H", "newton_euler", "pinv", "rnea",
    "rnea_derivatives", "sparsity", "task_frames",
]  # fmt: skip
