"""Export of programs as CasADi functions, for optimal control (an extra)."""

from __future__ import annotations

from sysdyn.codegen import interpreter
from sysdyn.codegen.c99 import identifier, identifiers
from sysdyn.errors import install, optional
from sysdyn.program.opcodes import OPERATIONS
from sysdyn.program.program import Program


def function(program: Program, name: str):
    """Convert a program to a casadi.Function of SX. Each input and output group is a column.

    An input with the name of an output is renamed to known_NAME. Raises BackendUnavailable.
    """
    casadi = optional("casadi", f"CasADi is not installed: pip install casadi, or {install('casadi')}")
    functions = {kind: getattr(casadi, x.casadi) if x.casadi else x.number for kind, x in OPERATIONS.items()}
    inputs = [casadi.SX.sym(identifier(group), size) for group, size in program.inputs.sizes.items()]
    scalars = [x for column in inputs for x in casadi.vertsplit(column)]
    values = interpreter.run(program, scalars, functions, constant=casadi.SX)
    outputs = [casadi.vertcat(*values[part]) for part in program.outputs.slices.values()]
    results = identifiers(program.outputs)
    arguments = [f"known_{x}" if x in results else x for x in map(identifier, program.inputs)]
    return casadi.Function(name, inputs, outputs, arguments, results)
