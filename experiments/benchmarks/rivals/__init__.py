"""Other libraries beside us, compiled here or called in C as they come, and the robots that all sides use."""

from rivals.build import CannotBuild, compilers
from rivals.constrained import Constrained, Hold
from rivals.generated import Generated
from rivals.mujoco import Mujoco
from rivals.native import Native, Wheel, native_or_wheel
from rivals.robots import FLOATING, G1, ROBOTS, Robot
from rivals.turns import Call, Turns, in_turns, kernel_call, solver_calls

__all__ = [
    "FLOATING", "G1", "ROBOTS", "Call", "CannotBuild", "Constrained", "Generated", "Hold", "Mujoco", "Native", "Robot",
    "Turns", "Wheel", "compilers", "in_turns", "kernel_call", "native_or_wheel", "solver_calls",
]  # fmt: skip
