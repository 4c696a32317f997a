"""Peers of the benchmarks, built from source where a compiler is there, and the robots that both sides use."""

from peers.build import CannotBuild
from peers.generated import Generated
from peers.native import Native, Wheel, native_or_wheel
from peers.robots import ROBOTS, Robot

__all__ = ["CannotBuild", "Generated", "Native", "ROBOTS", "Robot", "Wheel", "native_or_wheel"]
