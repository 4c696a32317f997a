"""C99 for call lists: the calls of one time step on static arrays, with the routines that they need and math.h alone.

Arrays of the calls become static arrays of the file, runs of programs calls of their C99 (`sysdyn.codegen.c99`).
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

# The routine that returns whether it failed, in place of its last argument.
_RETURNS_STATUS = "dpotrf_L"


@functools.cache
def _routine_texts() -> dict[str, str]:
    """Text of runtime/native/routines.h by routine: the name, with arguments that are characters, as of BLAS, added.

    What comes before all routines has the name "ROUTINE".
    """
    text = files("sysdyn.runtime.native").joinpath("routines.h").read_text()
    parts = re.split(r"^(?=/\* \w+(?::| is) )", text, flags=re.MULTILINE)[1:]
    return {re.match(r"/\* (\w+)", part)[1]: part.strip() for part in parts}  # type: ignore[index]


class CallListCode:
    """C99 of call lists. name: of the project; kept: arrays that begin with their values, all others with zeros.

    real: type of the numbers. programs: the code of the programs that they run.
    """

    def __init__(self, name: str, kept: Collection[np.ndarray], real: Real):
        self.name, self.real, self.programs = name, real, list[CSource]()
        self._numbers: dict[int, int] = {}
        self._arrays: dict[int, tuple[str, np.ndarray]] = {}
        self._used: dict[str, None] = {}
        self._kept = {id(_root(x)) for x in kept}

    def place(self, x: np.ndarray) -> str:
        """C for the address of the first entry of an array, which is not empty."""
        root = _root(x)
        name, _ = self._arrays.setdefault(id(root), (f"a{len(self._arrays)}", root))
        behind = (address(x) - address(root)) // root.itemsize
        return f"{name} + {behind}" if behind else name

    def function(self, head: str, call_list: CallList, failed: str) -> str:
        """A function of this head that makes the calls of a list, and returns the bits of the status of its programs.

        failed: the word of the bit if a matrix has no factor.
        """
        lines = []
        for call in call_list.calls:
            if isinstance(call, ProgramCall):
                lines += self._run(call)
                continue
            name, arguments = call
            if any(isinstance(x, np.ndarray) and not x.size for x in arguments):
                continue  # nothing is copied
            name = "_".join([name, *(x for x in arguments if isinstance(x, str))])
            self._used[name] = None
            kept = arguments[:-1] if name == _RETURNS_STATUS else arguments
            given = ", ".join(self._argument(x) for x in kept if not isinstance(x, str))
            lines.append(
                f"status |= {name}({given}) ? {failed} : 0;" if name == _RETURNS_STATUS else f"{name}({given});"
            )
        text = "\n".join(f"    {line}" for line in lines)
        return f"{head}\n{{\n    int status = 0;\n{text}\n    return status;\n}}"

    def _argument(self, x: np.ndarray | StridedArray | float) -> str:
        if isinstance(x, StridedArray):
            raise TypeError("a call list of one time step has no strided arrays")
        return self.place(x) if isinstance(x, np.ndarray) else self.real.literal(x) if isinstance(x, float) else str(x)

    def _run(self, run: ProgramCall) -> list[str]:
        k = self._numbers.setdefault(id(run.program), len(self.programs))
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
        """Declarations of all arrays that functions have used until now."""
        lines = [f"static {x.name}_{what} {short}_{k};" for k, x in enumerate(self.programs)
                 for what, short in (("inputs", "in"), ("outputs", "out"), ("work", "work"))]  # fmt: skip
        for name, x in self._arrays.values():
            numbers = x.dtype.kind == "i"
            kind = "const int" if numbers else self.real.name
            if numbers or id(x) in self._kept:
                values = ", ".join(map(str, x.reshape(-1).tolist())) if numbers else self.real.literals(x)
                lines.append(f"static {kind} {name}[{x.size}] = {{{values}}};")
            else:
                lines.append(f"static {kind} {name}[{x.size}];")
        return "\n".join(lines)

    def routines(self) -> str:
        """The routines that functions have used until now."""
        texts = _routine_texts()
        return self.real.specialise_c_source("\n\n".join(texts[name] for name in ("ROUTINE", *self._used)))

    @property
    def bytes(self) -> int:
        """Size of all arrays."""
        size = self.real.size
        return sum((4 if x.dtype.kind == "i" else size) * x.size for _, x in self._arrays.values()) + sum(
            size * (x.program.n_inputs + x.program.n_outputs + max(1, x.workspace_size)) for x in self.programs
        )


def _root(x: np.ndarray) -> np.ndarray:
    """The array that owns the memory."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x
