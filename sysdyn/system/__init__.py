"""Problems of dynamics as one block-sparse linear system D(q) d + b(q, q̇) = 0."""

from sysdyn.system.assemble import BlockSystem
from sysdyn.system.diagnose import Diagnosis
from sysdyn.system.measurements import (
    BodyAcceleration,
    ExternalWrench,
    JointAcceleration,
    JointTorque,
    JointWrench,
    Measurement,
    RawMeasurement,
)
from sysdyn.system.problem import Problem, forward_dynamics, hybrid_dynamics, inverse_dynamics

__all__ = [
    "BlockSystem", "BodyAcceleration", "Diagnosis", "ExternalWrench", "JointAcceleration", "JointTorque", "JointWrench",
    "Measurement", "Problem", "RawMeasurement", "forward_dynamics", "hybrid_dynamics", "inverse_dynamics",
]  # fmt: skip
