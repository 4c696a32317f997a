"""sysdyn compiles dynamics problems of articulated robots into short straight-line programs of known, exact cost.

model = sysdyn.load("robot.urdf")
solver = sysdyn.compile(sysdyn.forward_dynamics(model))
solution = solver(q, qd, tau)
"""

__version__ = "0.1.0"

from sysdyn.derivatives import Derivatives
from sysdyn.elimination import Choice, Safety
from sysdyn.errors import (
    BackendUnavailable,
    CacheWarning,
    FileError,
    IgnoredWarning,
    InvalidInput,
    ModelError,
    NoSafeOrdering,
    PlausibilityWarning,
    ProblemError,
    SingularState,
    StructurallySingular,
    SysdynError,
    UnknownName,
)
from sysdyn.expr import Expr, Flops, Graph
from sysdyn.flops import count_flops
from sysdyn.function import Function, compile_function
from sysdyn.learning import Learned, learn_noise
from sysdyn.least_norm import least_norm
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
)
from sysdyn.passes import PASSES
from sysdyn.reference import (
    Factor,
    IKResult,
    InverseDynamics,
    SKOModel,
    Sparsity,
    aba,
    crba,
    expanded_parent,
    forward_dynamics_crba,
    inverse_kinematics,
    joint_torque_regressor,
    ltdl,
    ltl,
    mul_H,
    pinv,
    regressor,
    rnea,
    rnea_derivatives,
    sparsity,
)
from sysdyn.sensing import predict
from sysdyn.solution import Solution
from sysdyn.solver import Solver, compile, load_solver
from sysdyn.system import (
    Accelerometer,
    AngularAccelerometer,
    BlockSystem,
    BodyAcceleration,
    CentreOfMassAcceleration,
    Constraint,
    Contact,
    Diagnosis,
    ExternalWrench,
    ForceDirection,
    ForceTorqueSensor,
    FrameAcceleration,
    JointAcceleration,
    JointTorque,
    JointWrench,
    Linear,
    LoadCells,
    LoopJoint,
    Measurement,
    ModelNoise,
    MomentumRate,
    MotorTorque,
    NetWrench,
    PointContact,
    Prior,
    Problem,
    Switchable,
    declared_sensors,
    forward_dynamics,
    hybrid_dynamics,
    inverse_dynamics,
    sensor,
)

__all__ = [
    "Accelerometer", "AngularAccelerometer", "BackendUnavailable", "BlockSystem", "BodyAcceleration",
    "CacheWarning", "CentreOfMassAcceleration", "Choice", "Constraint", "Contact", "Derivatives", "Diagnosis",
    "Expr", "ExternalWrench", "Factor", "FileError", "Flops", "ForceDirection", "ForceTorqueSensor", "Frame",
    "FrameAcceleration", "Function", "Graph", "IKResult", "IgnoredWarning", "InvalidInput", "InverseDynamics",
    "JointAcceleration", "JointTorque", "JointWrench", "Learned", "Linear", "LoadCells", "LoopJoint", "Measurement",
    "Model", "ModelError", "ModelNoise", "MomentumRate", "MotorTorque", "MujocoState", "NetWrench",
    "NoSafeOrdering", "PASSES", "PlausibilityWarning", "PointContact", "Prior", "Problem", "ProblemError", "SKOModel",
    "Safety", "SingularState", "Solution", "Solver", "Sparsity", "StructurallySingular", "Switchable",
    "SysdynError", "UnknownName", "aba", "auto_tree", "chain", "compile", "compile_function", "count_flops", "crba",
    "declared_sensors", "expanded_parent", "forward_dynamics", "forward_dynamics_crba", "frame_jacobian",
    "frame_pose", "from_dh", "from_mujoco", "from_screws", "hybrid_dynamics", "inertial_parameters",
    "inverse_dynamics", "inverse_kinematics", "joint_torque_regressor", "learn_noise", "least_norm", "load",
    "load_mjcf", "load_solver", "load_urdf", "ltdl", "ltl", "mul_H", "pinv", "predict", "random_tree", "regressor",
    "rnea", "rnea_derivatives", "sensor", "sparsity",
]  # fmt: skip
