"""Where solvers pickled by version 0.1 look for their class; to go with version 0.3."""

from sysdyn.online.solver import Solver, load_solver
from sysdyn.online.solver import restored as _restored

__all__ = ["Solver", "_restored", "load_solver"]
