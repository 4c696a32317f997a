"""Problems of dynamics as one block-sparse linear system D(q) d + b(q, q̇) = 0."""

from sysdyn.system.assemble import BlockSystem
<<<<<<< HEAD
from sysdyn.system.constraints import CONSTRAINTS, Contact, LoopJoint
=======
from sysdyn.system.declared import declared_sensors, sensor
>>>>>>> c0c101d (Read every measurement from problem files, sensors of the robot description, and logs)
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
<<<<<<< HEAD
    "CONSTRAINTS", "SENSORS", "Accelerometer", "AngularAccelerometer", "BlockSystem", "BodyAcceleration",
    "CentreOfMassAcceleration", "Constraint", "Contact", "Diagnosis", "ExternalWrench", "ForceDirection",
    "ForceTorqueSensor", "FrameAcceleration", "JointAcceleration", "JointTorque", "JointWrench", "Linear",
    "LoadCells", "LoopJoint", "Measurement", "ModelNoise", "MomentumRate", "MotorTorque", "NetWrench",
    "PointContact", "Prior", "Problem", "RawMeasurement", "Switchable", "forward_dynamics", "hybrid_dynamics",
    "inverse_dynamics",
=======
    "SENSORS", "Accelerometer", "AngularAccelerometer", "BlockSystem", "BodyAcceleration",
    "CentreOfMassAcceleration", "Diagnosis", "ExternalWrench", "ForceDirection", "ForceTorqueSensor",
    "FrameAcceleration", "JointAcceleration", "JointTorque", "JointWrench", "Linear", "LoadCells", "Measurement",
    "ModelNoise", "MomentumRate", "MotorTorque", "NetWrench", "PointContact", "Prior", "Problem", "RawMeasurement",
    "Switchable", "declared_sensors", "forward_dynamics", "hybrid_dynamics", "inverse_dynamics", "sensor",
>>>>>>> c0c101d (Read every measurement from problem files, sensors of the robot description, and logs)
]  # fmt: skip
