# The public names, and the modules that have them.

from sysdyn import errors as errors
from sysdyn import measurements as measurements
from sysdyn import model as model
from sysdyn import offline as offline
from sysdyn import online as online
from sysdyn import problem as problem
from sysdyn import program as program
from sysdyn import reference as reference
from sysdyn.backends.function import Function, compile_function
from sysdyn.diagnosis.diagnose import Diagnosis
from sysdyn.equations.block_system import BlockSystem
from sysdyn.errors import (
    AccuracyWarning,
    BackendUnavailable,
    CacheWarning,
    FileError,
    FormatWarning,
    IgnoredWarning,
    Inconsistent,
    InvalidInput,
    LogWarning,
    LostDigits,
    ModelError,
    NoSafeOrdering,
    PlausibilityWarning,
    ProblemError,
    SingularState,
    StructurallySingular,
    SysdynError,
    UnknownName,
)
from sysdyn.measurements.acceleration_sensors import Accelerometer, AngularAccelerometer, FrameAcceleration
from sysdyn.measurements.constraints import Contact, JointCoupling, LoopJoint, closures
from sysdyn.measurements.declared import declared_sensors, sensor
from sysdyn.measurements.linear import Linear, MotorTorque
from sysdyn.measurements.measurement import Constraint, Measurement
from sysdyn.measurements.momentum_sensors import CentreOfMassAcceleration, MomentumRate
from sysdyn.measurements.noise import ModelNoise, Prior, Switchable
from sysdyn.measurements.predict import predict
from sysdyn.measurements.raw import BodyAcceleration, ExternalWrench, JointAcceleration, JointTorque, JointWrench
from sysdyn.measurements.wrench_sensors import ForceDirection, ForceTorqueSensor, LoadCells, NetWrench, PointContact
from sysdyn.model import (
    Frame,
    Model,
    MujocoState,
    auto_tree,
    chain,
    frame_jacobian,
    frame_pose,
    from_dh,
    from_mujoco,
    from_screws,
    inertial_parameters,
    load,
    load_mjcf,
    load_urdf,
    random_tree,
    robots,
)
from sysdyn.offline.choice import Choice
from sysdyn.offline.safety import Safety
from sysdyn.online.compile import compile
from sysdyn.online.derivatives import Derivatives
from sysdyn.online.estimate import Estimate
from sysdyn.online.identify import Identified, identify
from sysdyn.online.learn_noise import Learned, learn_noise
from sysdyn.online.least_norm import least_norm
from sysdyn.online.solution import Solution
from sysdyn.online.solver import Solver, load_solver
from sysdyn.passes import PASSES
from sysdyn.problem import Problem, forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.program.expr import Expr, Graph
from sysdyn.program.operations import Flops
from sysdyn.reference import (
    Factor,
    IKResult,
    InverseDynamics,
    Kinematics,
    SKOModel,
    Sparsity,
    aba,
    crba,
    expanded_parent,
    forward_dynamics_crba,
    inverse_kinematics,
    joint_torque_regressor,
    kinematics,
    ltdl,
    ltl,
    mul_H,
    pinv,
    regressor,
    rnea,
    rnea_derivatives,
    sparsity,
)
from sysdyn.reference.flops import count_flops
from sysdyn.views.show import View, show

__version__: str

__all__ = [
    "Accelerometer", "AccuracyWarning", "AngularAccelerometer",
    "BackendUnavailable", "BlockSystem", "BodyAcceleration", "CacheWarning",
    "CentreOfMassAcceleration", "Choice", "Constraint", "Contact", "Derivatives", "Diagnosis", "Estimate", "Expr",
    "ExternalWrench", "Factor", "FileError", "Flops", "ForceDirection", "ForceTorqueSensor", "FormatWarning", "Frame",
    "FrameAcceleration", "Function", "Graph", "IKResult", "Identified", "IgnoredWarning", "Inconsistent",
    "InvalidInput", "InverseDynamics", "JointAcceleration", "JointCoupling", "JointTorque", "JointWrench",
    "Kinematics", "Learned", "Linear", "LoadCells", "LogWarning", "LoopJoint", "LostDigits",
    "Measurement", "Model", "ModelError", "ModelNoise", "MomentumRate", "MotorTorque", "MujocoState", "NetWrench",
    "NoSafeOrdering", "PASSES", "PlausibilityWarning", "PointContact", "Prior", "Problem", "ProblemError", "SKOModel",
    "Safety", "SingularState", "Solution", "Solver", "Sparsity", "StructurallySingular", "Switchable", "SysdynError",
    "UnknownName", "View", "aba", "auto_tree", "chain", "closures", "compile", "compile_function", "count_flops",
    "crba", "declared_sensors", "expanded_parent", "forward_dynamics", "forward_dynamics_crba", "frame_jacobian",
    "frame_pose", "from_dh", "from_mujoco", "from_screws", "hybrid_dynamics", "identify", "inertial_parameters",
    "inverse_dynamics", "inverse_kinematics", "joint_torque_regressor", "kinematics", "learn_noise", "least_norm",
    "load", "load_mjcf", "load_solver", "load_urdf", "ltdl", "ltl", "mul_H", "pinv", "predict", "random_tree",
    "regressor", "rnea", "rnea_derivatives", "robots", "sensor", "show", "sparsity",
]  # fmt: skip
