"""sysdyn compiles dynamics problems of articulated robots into short straight-line programs of known, exact cost.

model = sysdyn.load("robot.urdf")
solver = sysdyn.compile(sysdyn.forward_dynamics(model))
solution = solver(q, qd, tau)
"""

__version__ = "0.1.0"

from sysdyn.elimination import Choice, Safety
from sysdyn.errors import (
    BackendUnavailable,
    CacheWarning,
    FileError,
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
from sysdyn.model import Frame, Model, auto_tree, chain, from_dh, load, load_urdf, random_tree
from sysdyn.reference import aba, rnea
from sysdyn.solution import Solution
from sysdyn.solver import Solver, compile, load_solver
from sysdyn.system import (
    BlockSystem,
    BodyAcceleration,
    Diagnosis,
    ExternalWrench,
    JointAcceleration,
    JointTorque,
    JointWrench,
    Measurement,
    Problem,
    forward_dynamics,
    hybrid_dynamics,
    inverse_dynamics,
)

__all__ = [
    "BackendUnavailable", "BlockSystem", "BodyAcceleration", "CacheWarning", "Choice", "Diagnosis", "Expr",
    "ExternalWrench", "FileError", "Flops", "Frame", "Graph", "InvalidInput", "JointAcceleration", "JointTorque",
    "JointWrench", "Measurement", "Model", "ModelError", "NoSafeOrdering", "PlausibilityWarning", "Problem",
    "ProblemError", "Safety", "SingularState", "Solution", "Solver", "StructurallySingular", "SysdynError",
    "UnknownName", "aba", "auto_tree", "chain", "compile", "count_flops", "forward_dynamics", "from_dh",
    "hybrid_dynamics", "inverse_dynamics", "load", "load_solver", "load_urdf", "random_tree", "rnea",
]  # fmt: skip
