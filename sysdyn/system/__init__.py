"""Problems of dynamics as one block-sparse linear system D(q) d + b(q, q̇) = 0."""

from sysdyn.system.assemble import BlockSystem
from sysdyn.system.constraints import CONSTRAINTS, Contact, LoopJoint
from sysdyn.system.declared import declared_sensors, sensor
from sysdyn.system.diagnose import Diagnosis
from sysdyn.system.linear import Linear, MotorTorque
from sysdyn.system.measurements import (
    BodyAcceleration,
    Constraint,
    ExternalWrench,
    JointAcceleration,
    JointTorque,
    JointWrench,
    Measurement,
    RawMeasurement,
)
from sysdyn.system.noise import ModelNoise, Prior, Switchable
from sysdyn.system.problem import Problem, forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.system.sensors import (
    SENSORS,
    Accelerometer,
    AngularAccelerometer,
    CentreOfMassAcceleration,
    ForceDirection,
    ForceTorqueSensor,
    FrameAcceleration,
    LoadCells,
    MomentumRate,
    NetWrench,
    PointContact,
)

__all__ = [
    "Accelerometer", "AngularAccelerometer", "BlockSystem", "BodyAcceleration", "CONSTRAINTS",
    "CentreOfMassAcceleration", "Constraint", "Contact", "Diagnosis", "ExternalWrench", "ForceDirection",
    "ForceTorqueSensor", "FrameAcceleration", "JointAcceleration", "JointTorque", "JointWrench", "Linear",
    "LoadCells", "LoopJoint", "Measurement", "ModelNoise", "MomentumRate", "MotorTorque", "NetWrench",
    "PointContact", "Prior", "Problem", "RawMeasurement", "SENSORS", "Switchable", "declared_sensors",
    "forward_dynamics", "hybrid_dynamics", "inverse_dynamics", "sensor",
]  # fmt: skip
