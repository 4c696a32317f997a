"""Table of back ends."""

from __future__ import annotations

from sysdyn.codegen.interpreter import Interpreter
from sysdyn.codegen.llvm.machine_code import MachineCode
from sysdyn.errors import check_among
from sysdyn.runtime.backend import Backend

BACKENDS: dict[str, type[Backend]] = {backend.name: backend for backend in (MachineCode, Interpreter)}


def backend_named(name: str) -> type[Backend]:
    """Class of a back end. Raises UnknownName, or BackendUnavailable if a package that it needs is not installed."""
    check_among("backend", name, BACKENDS)
    BACKENDS[name].require()
    return BACKENDS[name]
