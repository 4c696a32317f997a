# The public names, and the modules that have them.

from sysdyn import errors as errors
from sysdyn import measurements as measurements
from sysdyn import model as model
from sysdyn import offline as offline
from sysdyn import online as online
from sysdyn import papers as papers
from sysdyn import problem as problem
from sysdyn import program as program
from sysdyn import reference as reference
from sysdyn.data.estimates import estimate_log as estimate_log
from sysdyn.data.sensor_log import Log as Log
from sysdyn.diagnosis.observability import Observability as Observability
from sysdyn.diagnosis.report import Diagnosis as Diagnosis
from sysdyn.equations.system import BlockSystem as BlockSystem
from sysdyn.errors import AccuracyWarning as AccuracyWarning
from sysdyn.errors import BackendUnavailable as BackendUnavailable
from sysdyn.errors import CacheWarning as CacheWarning
from sysdyn.errors import FileError as FileError
from sysdyn.errors import FormatWarning as FormatWarning
from sysdyn.errors import IgnoredWarning as IgnoredWarning
from sysdyn.errors import Inconsistent as Inconsistent
from sysdyn.errors import InvalidInput as InvalidInput
from sysdyn.errors import LogWarning as LogWarning
from sysdyn.errors import LostDigits as LostDigits
from sysdyn.errors import ModelError as ModelError
from sysdyn.errors import NoSafeOrdering as NoSafeOrdering
from sysdyn.errors import PlausibilityWarning as PlausibilityWarning
from sysdyn.errors import ProblemError as ProblemError
from sysdyn.errors import SingularState as SingularState
from sysdyn.errors import StructurallySingular as StructurallySingular
from sysdyn.errors import SysdynError as SysdynError
from sysdyn.errors import UnknownName as UnknownName
from sysdyn.frameworks.function import Function as Function
from sysdyn.frameworks.function import compile_function as compile_function
from sysdyn.measurements.acceleration_sensors import Accelerometer as Accelerometer
from sysdyn.measurements.acceleration_sensors import AngularAccelerometer as AngularAccelerometer
from sysdyn.measurements.acceleration_sensors import FrameAcceleration as FrameAcceleration
from sysdyn.measurements.constraints import Contact as Contact
from sysdyn.measurements.constraints import ContactWrench as ContactWrench
from sysdyn.measurements.constraints import JointCoupling as JointCoupling
from sysdyn.measurements.constraints import LoopJoint as LoopJoint
from sysdyn.measurements.constraints import closures as closures
from sysdyn.measurements.declared import declared_sensors as declared_sensors
from sysdyn.measurements.declared import sensor as sensor
from sysdyn.measurements.drifts import Constant as Constant
from sysdyn.measurements.drifts import GaussMarkov as GaussMarkov
from sysdyn.measurements.drifts import RandomWalk as RandomWalk
from sysdyn.measurements.linear import Linear as Linear
from sysdyn.measurements.linear import MotorTorque as MotorTorque
from sysdyn.measurements.measurement import Constraint as Constraint
from sysdyn.measurements.measurement import Measurement as Measurement
from sysdyn.measurements.momentum_sensors import CentreOfMassAcceleration as CentreOfMassAcceleration
from sysdyn.measurements.momentum_sensors import MomentumRate as MomentumRate
from sysdyn.measurements.noise import ModelNoise as ModelNoise
from sysdyn.measurements.noise import Prior as Prior
from sysdyn.measurements.noise import Switchable as Switchable
from sysdyn.measurements.predict import predict as predict
from sysdyn.measurements.raw import BodyAcceleration as BodyAcceleration
from sysdyn.measurements.raw import ExternalWrench as ExternalWrench
from sysdyn.measurements.raw import JointAcceleration as JointAcceleration
from sysdyn.measurements.raw import JointTorque as JointTorque
from sysdyn.measurements.raw import JointWrench as JointWrench
from sysdyn.measurements.raw import Known as Known
from sysdyn.measurements.state_sensors import Direction as Direction
from sysdyn.measurements.state_sensors import FrameAttitude as FrameAttitude
from sysdyn.measurements.state_sensors import FrameDistance as FrameDistance
from sysdyn.measurements.state_sensors import FramePose as FramePose
from sysdyn.measurements.state_sensors import FramePosition as FramePosition
from sysdyn.measurements.state_sensors import Gyroscope as Gyroscope
from sysdyn.measurements.state_sensors import JointPosition as JointPosition
from sysdyn.measurements.state_sensors import JointVelocity as JointVelocity
from sysdyn.measurements.state_sensors import Stance as Stance
from sysdyn.measurements.state_sensors import StateFunction as StateFunction
from sysdyn.measurements.state_sensors import StateMeasurement as StateMeasurement
from sysdyn.measurements.state_sensors import Velocimeter as Velocimeter
from sysdyn.measurements.wrench_sensors import ForceDirection as ForceDirection
from sysdyn.measurements.wrench_sensors import ForceTorqueSensor as ForceTorqueSensor
from sysdyn.measurements.wrench_sensors import LoadCells as LoadCells
from sysdyn.measurements.wrench_sensors import NetWrench as NetWrench
from sysdyn.measurements.wrench_sensors import PointContact as PointContact
from sysdyn.model import Frame as Frame
from sysdyn.model import Model as Model
from sysdyn.model import MujocoState as MujocoState
from sysdyn.model import PinocchioState as PinocchioState
from sysdyn.model import auto_tree as auto_tree
from sysdyn.model import chain as chain
from sysdyn.model import frame_jacobian as frame_jacobian
from sysdyn.model import frame_pose as frame_pose
from sysdyn.model import from_dh as from_dh
from sysdyn.model import from_mujoco as from_mujoco
from sysdyn.model import from_pinocchio as from_pinocchio
from sysdyn.model import from_screws as from_screws
from sysdyn.model import inertial_parameters as inertial_parameters
from sysdyn.model import load as load
from sysdyn.model import load_mjcf as load_mjcf
from sysdyn.model import load_urdf as load_urdf
from sysdyn.model import random_tree as random_tree
from sysdyn.model import robots as robots
from sysdyn.offline.choice import Choice as Choice
from sysdyn.offline.report import StabilityReport as StabilityReport
from sysdyn.online.compile import compile as compile
from sysdyn.online.compile import load_solver as load_solver
from sysdyn.online.coulomb import Coulomb as Coulomb
from sysdyn.online.coulomb import PointForces as PointForces
from sysdyn.online.derivatives import Derivatives as Derivatives
from sysdyn.online.estimate import Estimate as Estimate
from sysdyn.online.identify import Identified as Identified
from sysdyn.online.identify import identify as identify
from sysdyn.online.impact import Impact as Impact
from sysdyn.online.impact import Impulses as Impulses
from sysdyn.online.impact import impact as impact
from sysdyn.online.learn_noise import Learned as Learned
from sysdyn.online.least_norm import least_norm as least_norm
from sysdyn.online.operational_space import delassus as delassus
from sysdyn.online.operational_space import operational_space as operational_space
from sysdyn.online.operational_space import operational_space_inertia as operational_space_inertia
from sysdyn.online.products import DerivativeProduct as DerivativeProduct
from sysdyn.online.solution import Solution as Solution
from sysdyn.online.solver import Solver as Solver
from sysdyn.online.switching import SwitchingSolver as SwitchingSolver
from sysdyn.online.unilateral import ContactForces as ContactForces
from sysdyn.online.unilateral import Unilateral as Unilateral
from sysdyn.online.unilateral import unilateral as unilateral
from sysdyn.passes import PASSES as PASSES
from sysdyn.problem import Problem as Problem
from sysdyn.problem import forward_dynamics as forward_dynamics
from sysdyn.problem import hybrid_dynamics as hybrid_dynamics
from sysdyn.problem import inverse_dynamics as inverse_dynamics
from sysdyn.program.graph import Expr as Expr
from sysdyn.program.graph import Graph as Graph
from sysdyn.program.opcodes import Flops as Flops
from sysdyn.reference import Factor as Factor
from sysdyn.reference import IKResult as IKResult
from sysdyn.reference import Kinematics as Kinematics
from sysdyn.reference import RNEADerivatives as RNEADerivatives
from sysdyn.reference import Sparsity as Sparsity
from sysdyn.reference import aba as aba
from sysdyn.reference import compile_regressor as compile_regressor
from sysdyn.reference import crba as crba
from sysdyn.reference import forward_dynamics_crba as forward_dynamics_crba
from sysdyn.reference import inverse_kinematics as inverse_kinematics
from sysdyn.reference import joint_torque_regressor as joint_torque_regressor
from sysdyn.reference import kinematics as kinematics
from sysdyn.reference import ltdl as ltdl
from sysdyn.reference import rnea as rnea
from sysdyn.reference import rnea_derivatives as rnea_derivatives
from sysdyn.reference import sparsity as sparsity
from sysdyn.reference.flops import count_flops as count_flops
from sysdyn.simulation.result import Simulation as Simulation
from sysdyn.simulation.simulate import simulate as simulate
from sysdyn.simulation.torques import Feedback as Feedback
from sysdyn.trajectories.believed import Event as Event
from sysdyn.trajectories.learn_noise import LearnedMotion as LearnedMotion
from sysdyn.trajectories.learn_noise import learn_noise as learn_noise
from sysdyn.trajectories.live import Live as Live
from sysdyn.trajectories.live import filter as filter
from sysdyn.trajectories.observability import observability as observability
from sysdyn.trajectories.run import Run as Run
from sysdyn.trajectories.smooth import smooth as smooth
from sysdyn.trajectories.stored import StoredRun as StoredRun
from sysdyn.views.show import View as View
from sysdyn.views.show import show as show

__version__: str

__all__ = [
    "Accelerometer", "AccuracyWarning", "AngularAccelerometer", "BackendUnavailable", "BlockSystem", "BodyAcceleration",
    "CacheWarning", "CentreOfMassAcceleration", "Choice", "Constant", "Constraint", "Contact", "ContactForces",
    "ContactWrench", "Coulomb", "DerivativeProduct", "Derivatives", "Diagnosis", "Direction", "Estimate", "Event",
    "Expr", "ExternalWrench", "Factor", "Feedback", "FileError", "Flops", "ForceDirection", "ForceTorqueSensor",
    "FormatWarning", "Frame", "FrameAcceleration", "FrameAttitude", "FrameDistance", "FramePose", "FramePosition",
    "Function", "GaussMarkov", "Graph", "Gyroscope", "IKResult", "Identified", "IgnoredWarning", "Impact", "Impulses",
    "Inconsistent", "InvalidInput", "JointAcceleration", "JointCoupling", "JointPosition", "JointTorque",
    "JointVelocity", "JointWrench", "Kinematics", "Known", "Learned", "LearnedMotion", "Linear", "Live", "LoadCells",
    "Log", "LogWarning", "LoopJoint", "LostDigits", "Measurement", "Model", "ModelError", "ModelNoise", "MomentumRate",
    "MotorTorque", "MujocoState", "NetWrench", "NoSafeOrdering", "Observability", "PASSES", "PinocchioState",
    "PlausibilityWarning", "PointContact", "PointForces", "Prior", "Problem", "ProblemError", "RNEADerivatives",
    "RandomWalk", "Run", "Simulation", "SingularState", "Solution", "Solver", "Sparsity", "StabilityReport",
    "Stance", "StateFunction", "StateMeasurement", "StoredRun", "StructurallySingular", "Switchable", "SwitchingSolver",
    "SysdynError", "Unilateral", "UnknownName", "Velocimeter", "View", "aba", "auto_tree", "chain", "closures",
    "compile", "compile_function", "compile_regressor", "count_flops", "crba", "declared_sensors", "delassus",
    "estimate_log",
    "filter", "forward_dynamics", "forward_dynamics_crba", "frame_jacobian", "frame_pose", "from_dh", "from_mujoco",
    "from_pinocchio", "from_screws", "hybrid_dynamics", "identify", "impact", "inertial_parameters", "inverse_dynamics",
    "inverse_kinematics", "joint_torque_regressor", "kinematics", "learn_noise", "least_norm", "load", "load_mjcf",
    "load_solver", "load_urdf", "ltdl", "observability", "operational_space", "operational_space_inertia", "predict",
    "random_tree", "rnea", "rnea_derivatives", "robots", "sensor", "show", "simulate", "smooth", "sparsity",
    "unilateral",
]  # fmt: skip
