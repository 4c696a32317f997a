"""The back ends by the names that users give them."""

from __future__ import annotations

from sysdyn.codegen.interpreter import Interpreter
from sysdyn.codegen.llvm.machine_code import MachineCode
from sysdyn.errors import BackendUnavailable, check_among
from sysdyn.runtime.backend import Backend

# All back ends by name, the fastest one first.
BACKENDS: dict[str, type[Backend]] = {backend.name: backend for backend in (MachineCode, Interpreter)}


def backend_named(name: str) -> type[Backend]:
    """The back end of that name. Raises UnknownName, and BackendUnavailable if something it needs is not installed."""
    check_among("backend", name, BACKENDS)
    BACKENDS[name].require()
    return BACKENDS[name]


def fastest_installed() -> str:
    """Name of the fastest back end that has all it needs."""
    for name, backend in BACKENDS.items():
        try:
            backend.require()
        except BackendUnavailable:
            continue
        return name
    raise BackendUnavailable(f"none of the back ends {', '.join(BACKENDS)} is installed: pip install llvmlite")
