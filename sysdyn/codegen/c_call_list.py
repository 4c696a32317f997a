"""C99 of call lists: the calls of one time step and the routines that they need. Only math.h is required.

Arrays become static arrays of the file; runs of programs become calls of their C99 (`sysdyn.codegen.c99`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from importlib.resources import files

import numpy as np

from sysdyn.codegen.c99 import CSource, Description
from sysdyn.runtime.call_list import CallList, ProgramCall, StridedArray
from sysdyn.runtime.kernel import address
from sysdyn.runtime.real import Real

# dpotrf returns its failure flag; in LAPACK the flag is the last argument.
_RETURNS_STATUS = "dpotrf_L"


@functools.cache
def _routine_texts() -> dict[str, str]:
    """{routine: its C source in runtime/native/routines.h}. The entry "ROUTINE" is common to all routines."""
    text = files("sysdyn.runtime.native").joinpath("routines.h").read_text(encoding="ascii")
    parts = re.split(r"^(?=/\* \w+(?::| is) )", text, flags=re.MULTILINE)[1:]
    return {re.match(r"/\* (\w+)", part)[1]: part.strip() for part in parts}  # type: ignore[index]


class CallListSource:
    """C99 source of call lists.

    name: prefix of the exported programs. initialised: arrays whose initial values are part of the source; all others
    start at 0. real: floating-point type. programs: C99 of the programs that the lists run.
    """

    def __init__(self, name: str, initialised: Collection[np.ndarray], real: Real):
        self.name, self.real, self.programs = name, real, list[CSource]()
        self._indices: dict[int, int] = {}
        self._arrays: dict[int, tuple[str, np.ndarray]] = {}
        self._used: dict[str, None] = {}
        self._initialised = {id(_root(x)) for x in initialised}

    def place(self, x: np.ndarray) -> str:
        """C expression for the address of the first entry of a nonempty array."""
        root = _root(x)
        name, _ = self._arrays.setdefault(id(root), (f"a{len(self._arrays)}", root))
        offset = (address(x) - address(root)) // root.itemsize
        return f"{name} + {offset}" if offset else name

    def function(self, head: str, call_list: CallList, failed: str) -> str:
        """C function with the declaration `head` that makes the calls and returns the status bits of its programs.

        failed: C name of the status bit for a matrix without Cholesky factor.
        """
        lines = []
        for call in call_list.calls:
            if isinstance(call, ProgramCall):
                lines += self._run(call)
                continue
            name, arguments = call
            if any(isinstance(x, np.ndarray) and not x.size for x in arguments):
                continue
            name = "_".join([name, *(x for x in arguments if isinstance(x, str))])
            self._used[name] = None
            passed = arguments[:-1] if name == _RETURNS_STATUS else arguments
            text = ", ".join(self._argument(x) for x in passed if not isinstance(x, str))
            lines.append(f"status |= {name}({text}) ? {failed} : 0;" if name == _RETURNS_STATUS else f"{name}({text});")
        body = "\n".join(f"    {line}" for line in lines)
        return f"{head}\n{{\n    int status = 0;\n{body}\n    return status;\n}}"

    def _argument(self, x: np.ndarray | StridedArray | float) -> str:
        if isinstance(x, StridedArray):
            raise TypeError("a call list of one time step has no strided arrays")
        return self.place(x) if isinstance(x, np.ndarray) else self.real.literal(x) if isinstance(x, float) else str(x)

    def _run(self, run: ProgramCall) -> list[str]:
        k = self._indices.setdefault(id(run.program), len(self.programs))
        if k == len(self.programs):
            description = Description(f"part {k} of {self.name}")
            self.programs.append(CSource(f"{self.name}_{k}", run.program, description, self.real))
        code, lines = self.programs[k], []
        for m in code.inputs:
            lines.append(f"memcpy(in_{k}.{m.name}, {self.place(run.inputs[m.group])}, sizeof in_{k}.{m.name});")
        lines.append(f"status |= {code.name}_run(&in_{k}, &out_{k}, &work_{k});")
        for m in code.outputs:
            lines.append(f"memcpy({self.place(run.outputs[m.group])}, out_{k}.{m.name}, sizeof out_{k}.{m.name});")
        return lines

    def memory(self) -> str:
        """C declarations of all arrays that the functions use."""
        lines = [f"static {x.name}_{what} {short}_{k};" for k, x in enumerate(self.programs)
                 for what, short in (("inputs", "in"), ("outputs", "out"), ("work", "work"))]  # fmt: skip
        for name, x in self._arrays.values():
            integers = x.dtype.kind == "i"
            kind = "const int" if integers else self.real.name
            if integers or id(x) in self._initialised:
                values = ", ".join(map(str, x.reshape(-1).tolist())) if integers else self.real.literals(x)
                lines.append(f"static {kind} {name}[{x.size}] = {{{values}}};")
            else:
                lines.append(f"static {kind} {name}[{x.size}];")
        return "\n".join(lines)

    def routines(self) -> str:
        """C source of the routines that the functions call."""
        texts = _routine_texts()
        return self.real.specialise_c_source("\n\n".join(texts[name] for name in ("ROUTINE", *self._used)))

    @property
    def bytes(self) -> int:
        """Total size of the arrays in bytes."""
        size = self.real.size
        return sum((4 if x.dtype.kind == "i" else size) * x.size for _, x in self._arrays.values()) + sum(
            size * (x.program.n_inputs + x.program.n_outputs + max(1, x.workspace_size)) for x in self.programs
        )


def _root(x: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x
