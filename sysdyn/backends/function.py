"""Any algorithm that runs on `Expr`, compiled by a back end."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from sysdyn.backends.backend import Backend
from sysdyn.backends.c import project
from sysdyn.backends.c.code import Description
from sysdyn.backends.executable import Executable, Step
from sysdyn.backends.registry import backend_named
from sysdyn.errors import InvalidInput, SingularState
from sysdyn.program.expr import Expr, Graph
from sysdyn.program.operations import Flops
from sysdyn.program.program import Program
from sysdyn.program.status import LARGEST_ANGLE

_RESULT = "result"  # output groups are result, result1, …
_EXPORT_STATES = 64  # among which the test vectors of an export are found


def compile_function(
    function: Callable,
    inputs: Mapping[str, tuple[int, ...]],
    *,
    sharing: str = "algebraic",
    level: int = 2,
    backend: str = "llvm",
) -> Function:
    """Machine code of function(*inputs): an array, or a tuple of arrays, of `Expr` and numbers.

        mass_matrix = compile_function(partial(crba, model), {"q": (model.nq,)})
        H = mass_matrix(q)                                      # leading axes of q are batch axes

    inputs: name → shape, in the order of the function's arguments. The function is called once, with object arrays of
    `Expr`; what it decides, it decides then. sharing: which equal results are computed once, see `Graph`. level: of
    code generation, 0 (fast to compile) to 3. backend: "llvm" (machine code, cached on disk) or "python" (NumPy, which
    has no `bind`).

    Raises InvalidInput where the result is no array or tuple of arrays of `Expr` and numbers, UnknownName and
    BackendUnavailable for the back end.
    """
    chosen = backend_named(backend)
    graph = Graph(sharing)
    shapes = {name: tuple(shape) for name, shape in inputs.items()}
    arguments = {name: graph.inputs(name, math.prod(shape)) for name, shape in shapes.items()}
    result = function(*(np.reshape(np.array(x, dtype=object), shapes[name]) for name, x in arguments.items()))
    several = isinstance(result, tuple)
    results = [np.asarray(x) for x in (result if several else (result,))]
    for k, array in enumerate(results):
        for x in array.flat:
            if x.graph is not graph if type(x) is Expr else not isinstance(x, (int, float, np.number)):
                where = f"result {k}" if several else "the result"
                raise InvalidInput(
                    f"{where} of {_name(function)} holds {x!r}: only what comes from its arguments, and real numbers, "
                    "can be compiled"
                )
    groups = [(f"{_RESULT}{k or ''}", list(array.flat)) for k, array in enumerate(results)]
    program = Program.from_graph(graph, list(arguments.items()), groups)
    ready = chosen(program, level, zeros=False)
    return Function(_name(function), ready, shapes, [x.shape for x in results], several)


class Function:
    """A compiled function; `function(*arrays)` runs it, `bind` prepares a call without checks. Safe from many threads.

    flops: exact counts of the program.
    """

    def __init__(self, name: str, backend: Backend, inputs: dict, results: list[tuple], several: bool):
        self.name, self.program = name, backend.program
        self._inputs, self._results, self._several = inputs, results, several
        self._executable = Executable(backend)

    @property
    def flops(self) -> Flops:
        return self.program.flops

    def __repr__(self) -> str:
        takes = ", ".join(f"{name} {shape}" for name, shape in self._inputs.items())
        return f"Function {self.name}: {takes} → {', '.join(map(str, self._results))}; {self.program.flops}"

    def __call__(self, *arrays, threads: int | None = None):
        """What the function gives, as float arrays; leading axes are batch axes and broadcast.

        Raises InvalidInput for wrong shapes or values that are not finite, SingularState where a result is not.
        """
        values, heads = {}, []
        for (name, shape), x in zip(self._inputs.items(), self._matched(arrays), strict=True):
            try:
                x = np.asarray(x, dtype=float)
            except (TypeError, ValueError):
                raise InvalidInput(f"{name} is not an array of real numbers") from None
            split = x.ndim - len(shape)
            if split < 0 or x.shape[split:] != shape:
                wanted = ", ".join(("…", *map(str, shape)))
                raise InvalidInput(f"{name} has shape {x.shape}; expected ({wanted}), leading axes being batch axes")
            values[name] = x
            heads.append(x.shape[:split])
        try:
            head = np.broadcast_shapes(*heads)
        except ValueError:
            shown = ", ".join(f"{name} {x.shape}" for name, x in values.items())
            raise InvalidInput(f"the leading (batch) axes do not broadcast against each other: {shown}") from None
        count = math.prod(head)
        rows = {}
        for name, shape in self._inputs.items():
            x, size = values[name], math.prod(shape)
            shared = x.shape == shape
            rows[name] = np.ascontiguousarray(
                x.reshape(size) if shared else np.broadcast_to(x, head + shape).reshape(count, size)
            )
        outputs, status = self._executable.results(rows, count, threads)
        if status.any():
            self._fail(rows, status)
        return self._shaped(outputs, head)

    def bind(self, *arrays: np.ndarray) -> Step:
        """A prepared call: `step()` reads these arrays as they are then and writes `step.out`, one array or a tuple.

        Arrays are C-contiguous float64, each of its full shape (one state); they are kept. `step.status` is not zero
        where a value was not finite.
        """
        rows = {}
        for (name, shape), x in zip(self._inputs.items(), self._matched(arrays), strict=True):
            if not isinstance(x, np.ndarray) or x.dtype != np.float64 or x.shape != shape or not x.flags.c_contiguous:
                raise InvalidInput(f"{name} must be a C-contiguous float64 array of shape {shape}")
            rows[name] = x.reshape(-1)
        outputs = {name: np.zeros((1, size)) for name, size in self.program.output_groups}
        status = np.zeros(1, dtype=np.int64)
        return self._executable.step(rows, outputs, status, self._shaped(outputs, ()), single=True)

    def export_c(self, folder: str | os.PathLike, name: str | None = None) -> Path:
        """Write a C99 project that needs nothing but math.h, as `Solver.export_c` does.

        name: by default the function's. The test vectors are at standard normal inputs. Raises InvalidInput for the
        name, FileError where the folder cannot be written, SingularState where no test vector has a finite result.
        """
        name = self.name if name is None else name
        title = f"{name}, from {', '.join(f'{group} {shape}' for group, shape in self._inputs.items())}"
        rng = np.random.default_rng(2)
        states = {group: rng.standard_normal((_EXPORT_STATES, size)) for group, size in self.program.input_groups}
        return project.export(folder, name, self._executable, Description(title), states)

    def _matched(self, arrays: tuple) -> tuple:
        if len(arrays) != len(self._inputs):
            raise InvalidInput(f"{self.name} takes {', '.join(self._inputs) or 'nothing'}; {len(arrays)} arrays given")
        return arrays

    def _shaped(self, outputs: dict, head: tuple[int, ...]):
        shaped = tuple(x.reshape(head + shape) for x, shape in zip(outputs.values(), self._results, strict=True))
        return shaped if self._several else shaped[0]

    def _fail(self, rows: dict, status: np.ndarray) -> None:
        for name, x in rows.items():
            bad = np.argwhere(~np.isfinite(x))
            if len(bad):
                raise InvalidInput(f"{name} is {x[tuple(bad[0])]} at {bad[0].tolist()}; every entry has to be finite")
        states = tuple(int(k) for k in np.flatnonzero(status))
        raise SingularState(
            f"{self.name} has no finite value at {len(states)} of {len(status)} states, the first being {states[0]}: "
            "it divides by zero, takes the root of a negative number, or an angle is beyond "
            f"{LARGEST_ANGLE:.3g} rad",
            states=states,
        )


def _name(function: Callable) -> str:
    function = getattr(inspect.unwrap(function), "func", function)
    return getattr(function, "__name__", repr(function))
