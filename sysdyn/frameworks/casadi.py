"""A program as a CasADi function, for optimal control and automatic differentiation there (an extra)."""

from __future__ import annotations

from sysdyn.codegen.c99 import identifier
from sysdyn.errors import install, optional
from sysdyn.program.opcodes import OPERATIONS
from sysdyn.program.program import Program


def function(program: Program, name: str):
    """casadi.Function `name` of SX: the same operations, inputs and outputs by group, each a column.

    An input that is an output, too, as what is partly known, is called known_…. CasADi has no status: it gives inf or
    nan where the program would say that a pivot is zero. Raises BackendUnavailable.
    """
    casadi = optional("casadi", f"CasADi is not installed: pip install casadi, or {install('casadi')}")
    functions = {kind: getattr(casadi, x.casadi) if x.casadi else x.number for kind, x in OPERATIONS.items()}
    inputs = [casadi.SX.sym(identifier(group), size) for group, size in program.inputs.sizes.items()]
    value = [x for column in inputs for x in casadi.vertsplit(column)]
    value += [casadi.SX(x) for x in program.constants.tolist()]
    for kind, a, b in zip(program.kind.tolist(), program.lhs.tolist(), program.rhs.tolist(), strict=True):
        value.append(functions[kind](value[a]) if b < 0 else functions[kind](value[a], value[b]))
    outputs, at = [], 0
    for size in program.outputs.sizes.values():
        outputs.append(casadi.vertcat(*(value[k] for k in program.output_values[at : at + size].tolist())))
        at += size
    results: list[str] = []
    for group in program.outputs:
        result = identifier(group)
        while result in results:
            result += "_"
        results.append(result)
    given = [identifier(group) for group in program.inputs]
    return casadi.Function(name, inputs, outputs, [f"known_{x}" if x in results else x for x in given], results)
