"""Any algorithm that runs on `Expr`, compiled by a back end."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.codegen.c99 import Description
from sysdyn.codegen.registry import backend_named
from sysdyn.errors import InvalidInput, SingularState
from sysdyn.frameworks.export import SAMPLED_STATES, Differentiable, ExportedProgram
from sysdyn.frameworks.traced import FrameworkFunction, fill_nan
from sysdyn.program.autodiff import (
    COTANGENTS,
    TANGENTS,
    ProgramDerivatives,
    TangentBasis,
    split_vector_argument,
    unit_directions,
    vector_group,
)
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.groups import Group, Groups, bind_arguments, select_names
from sysdyn.program.opcodes import BAD_PIVOT, Flops
from sysdyn.program.program import Program
from sysdyn.program.reproducible import LARGEST_ANGLE
from sysdyn.runtime.backend import Arrays, Backend
from sysdyn.runtime.native.extension import Called
from sysdyn.runtime.native_calls import Argument, Names, Shown, entry, one_state
from sysdyn.runtime.runner import BoundCall, Runner, require_disjoint

_RESULT = "result"  # Output groups of results without names are called result, result1, …


def compile_function(
    function: Callable,
    inputs: Mapping[str, tuple[int, ...] | Group],
    *,
    sharing: str = "algebraic",
    level: int = 2,
    backend: str = "llvm",
) -> Function:
    """Machine code of function(*inputs): an array, a tuple of arrays, or a dict of arrays, of `Expr` and numbers.

        mass_matrix = compile_function(partial(crba, model), {"q": (model.nq,)})
        H = mass_matrix(q)                                      # leading axes of q are batch axes

    inputs: name → shape, or a `Group` of that name, in the order of the function's arguments. The function is called
    once, with object arrays of `Expr`; its decisions are made then. sharing: which equal results are computed
    once, see `Graph`. level: of code generation, 0 (fast to compile) to 3. backend: "llvm" (machine code, cached on
    disk) or "python" (NumPy, which has no `bind`).

    Raises InvalidInput if the results are not made of `Expr` and numbers, UnknownName and BackendUnavailable for the
    back end.
    """
    make = backend_named(backend)
    graph = Graph(sharing)
    groups = Groups(x if isinstance(x, Group) else Group(name, tuple(x)) for name, x in inputs.items())
    arguments = {name: graph.inputs(name, group.size) for name, group in groups.items()}
    result = function(*(np.reshape(np.array(x, dtype=object), groups[name].shape) for name, x in arguments.items()))
    layout, arrays = _layout(result)
    for k, array in enumerate(arrays):
        for x in array.flat:
            if x.graph is not graph if type(x) is Expr else not isinstance(x, (int, float, np.number)):
                label = f"result {layout.groups[k]!r}" if isinstance(result, Mapping) else f"result {k}"
                where = label if isinstance(result, (tuple, Mapping)) else "the result"
                raise InvalidInput(
                    f"{where} of {_name(function)} holds {x!r}: only what comes from its arguments, and real numbers, "
                    "can be compiled"
                )
    results = [(group, list(array.flat)) for group, array in zip(layout.groups, arrays, strict=True)]
    program = Program.from_graph(graph, [(name, list(x)) for name, x in arguments.items()], results)
    return Function(_name(function), make(program, level, zeros=False), groups, layout)


class Layout(NamedTuple):
    """The results of a function: names and shapes of the output groups of its program, and how they are handed over.

    make: dict, tuple, or None if the function gives a single array.
    """

    groups: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    make: type | None

    def handed_over(self, arrays: dict[str, np.ndarray]) -> Any:
        """Arrays by group as the function gives them."""
        if self.make is dict:
            return arrays
        return next(iter(arrays.values())) if self.make is None else tuple(arrays.values())


class Function(Differentiable["Function"], Called):
    """A compiled function; `function(*arrays)` runs it, `bind` prepares a call without checks. Safe from many threads.

    inputs: name → shape, in the order of the arguments; shapes: those of the results. flops: exact counts of the
    program. executable: the program on a back end. vectors: groups of the tangents and cotangents that a product takes,
    by these words and by name.
    """

    def __init__(
        self, name: str, backend: Backend, inputs: Groups, results: Layout,
        vectors: Mapping[str, Mapping[str, Group]] = MappingProxyType({}),
    ):  # fmt: skip
        self.name, self.program, self._results = name, backend.program, results
        self.inputs, self.vectors = {x: group.shape for x, group in inputs.items()}, dict(vectors)
        self.shapes = dict(zip(results.groups, results.shapes, strict=True))
        self.groups = Groups([*inputs.values(), *(x for own in vectors.values() for x in own.values())])
        self.executable = Runner(backend)
        backend.kernel(True)
        self._plain = self.plain(Names(len(inputs)))  # which `entry` tries first

    @property
    def flops(self) -> Flops:
        return self.program.flops

    def __reduce__(self):
        own = Groups(self.groups[x] for x in self.inputs)
        return Function, (self.name, self.executable.backend, own, self._results, self.vectors)

    def __repr__(self) -> str:
        takes = ", ".join(f"{group.display_name} {group.shape}" for group in self.groups.values())
        return f"Function {self.name}: {takes} → {', '.join(map(str, self._results.shapes))}; {self.program.flops}"

    @entry
    def __call__(self, *arrays: ArrayLike, threads: int | None = None, **by_name: ArrayLike) -> Any:
        """The results as float arrays; leading axes are batch axes and broadcast.

        Arrays go by position or by name; those of float64 of one state take the shortest way. Raises InvalidInput for
        missing values, wrong shapes and values that are not finite, SingularState where a result is not.
        """
        rows, head = self.groups.normalise_inputs(self.collected(*arrays, **by_name))
        outputs, status = self.executable.results(rows, math.prod(head), threads)
        if status.any():
            self._fail(rows, status)
        return self._results.handed_over(self._shaped(outputs, head))

    def plain(self, names: Names, quaternions: Sequence[int] = ()) -> list:
        """Calls of one state by arguments of these names, and vectors; see `entries.calls.one_state`."""
        ends = np.cumsum([group.size for group in self.groups.values()]).tolist()
        numbers = np.split(np.arange(self.program.n_inputs), ends[:-1])
        arguments = [Argument(group.shape, x) for group, x in zip(self.groups.values(), numbers, strict=True)]
        shown = Shown(self._results.make, self._results.groups, self._results.shapes)
        constants, found = np.zeros(self.program.n_inputs), []
        ways: list[dict[str, Any]] = [{role: dict.fromkeys(own, ...) for role, own in self.vectors.items()}]
        if self.vectors and all(len(own) == 1 for own in self.vectors.values()):
            ways.append(dict.fromkeys(self.vectors, ...))
        for vectors in ways:
            own = names._replace(keywords=(*names.keywords, *vectors.items()))
            found.append(one_state(self.executable.backend, arguments, constants, quaternions, own, shown))
        return [call for call in found if call is not None]

    def bind(self, *arrays: np.ndarray, **by_name: np.ndarray) -> BoundCall:
        """A prepared call: `step()` reads these arrays as they are then and writes `step.out`.

        out: one array, a tuple or a dict. Arrays are C-contiguous float64, each of its full shape (one state); they
        are kept. `step.status` is not zero if a value was not finite. Raises InvalidInput for other arrays,
        ProblemError where the back end has no prepared calls.
        """
        rows, head = self.groups.check_in_place(self.collected(*arrays, **by_name))
        if head:
            raise InvalidInput(f"{self.name} is bound to one state, but the arrays hold {head[0]}")
        require_disjoint(rows)
        return self._step(rows, self._results.handed_over)

    def exported_program(self, name: str | None = None) -> ExportedProgram:
        """The program for translators, at standard normal states. name: by default the function's."""
        name = self.name if name is None else name
        title = f"{name}, from {', '.join(f'{group.display_name} {group.shape}' for group in self.groups.values())}"

        def states() -> dict[str, np.ndarray]:
            rng = np.random.default_rng(2)
            sizes = self.program.inputs.sizes
            return {group: rng.standard_normal((SAMPLED_STATES, size)) for group, size in sizes.items()}

        return ExportedProgram(name, self.executable, Description(title, self.groups), states)

    def framework_function(self, on_singular: str) -> FrameworkFunction:
        def on_failure(program: Program, inputs: Arrays, outputs: Arrays, status: np.ndarray) -> None:
            if on_singular == "raise":
                self._fail(dict(inputs), status)
            fill_nan(outputs, status != 0)

        return FrameworkFunction(
            self.name, self.program, self.groups, self.collected, self.shapes, self._results.handed_over, on_failure,
            on_failure, self, cache_tag=on_singular,
        )  # fmt: skip

    def product(
        self, kind: str, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None,
        outputs: Mapping[str, str] | None = None, along: TangentBasis = unit_directions,
    ) -> Function:  # fmt: skip
        """See `Differentiable`. outputs: groups of the results by name, if it is not their own; along: see there."""
        outputs = outputs or {x: x for x in self.shapes}
        of = select_names("result", of, tuple(outputs), outputs)
        wrt = select_names("argument to differentiate by", wrt, tuple(self.inputs), self.inputs)
        if self.vectors:
            raise InvalidInput(f"{self.name} is a product already: hvp gives second derivatives, and to_jax any order")
        backend, before = self.executable.backend, len(self.groups)
        found = ProgramDerivatives(self.program, [outputs[x] for x in of], wrt, along)
        program = found.product(kind)
        further = iter(list(program.inputs)[before:])
        by = {name: _along(self.groups[name], len(found.directions[name])) for name in wrt}
        vectors: dict[str, dict[str, Group]] = {}
        if kind != "jvp":
            like = {name: Group(name, self.shapes[outputs[name]]) for name in of}
            vectors[COTANGENTS] = {name: vector_group(COTANGENTS, name, next(further), x) for name, x in like.items()}
        if kind != "vjp":
            vectors[TANGENTS] = {name: vector_group(TANGENTS, name, next(further), x) for name, x in by.items()}
        results = Layout(wrt, tuple(x.shape for x in by.values()), dict)
        if kind == "jvp":
            groups = tuple(outputs[x] for x in of)
            results = Layout(groups, tuple(self.shapes[x] for x in groups), self._results.make)
        made = type(backend)(program, backend.level, zeros=backend.zeros, real=backend.real)
        return Function(f"{self.name}_{kind}", made, self.groups, results, vectors)

    def collected(self, *arrays: Any, **by_name: Any) -> dict[str, Any]:
        """{group: value} of the arguments of a call."""
        vectors = [split_vector_argument(role, own, by_name.pop(role, None)) for role, own in self.vectors.items()]
        found = bind_arguments(self.name, tuple(self.inputs), tuple(self.inputs), arrays, by_name)
        return functools.reduce(operator.or_, vectors, found)

    def _step(self, rows: dict[str, np.ndarray], handed_over: Callable[[dict[str, np.ndarray]], Any]) -> BoundCall:
        """The run at one state, of rows that are kept, with new arrays for its results."""
        outputs = {name: np.zeros((1, size)) for name, size in self.program.outputs.sizes.items()}
        out = handed_over(self._shaped(outputs, ()))
        return self.executable.bind(rows, outputs, np.zeros(1, dtype=np.int64), out, single=True)

    def _shaped(self, outputs: dict[str, np.ndarray], head: tuple[int, ...]) -> dict[str, np.ndarray]:
        shapes = self._results.shapes
        return {name: x.reshape(head + shape) for (name, x), shape in zip(outputs.items(), shapes, strict=True)}

    def _fail(self, rows: dict, status: np.ndarray) -> None:
        self.groups.reject_not_finite(rows)
        states = tuple(int(k) for k in np.flatnonzero(status))
        where = f"at {len(states)} of {len(status)} states, the first being {states[0]}"
        if status[states[0]] & BAD_PIVOT and self.program.guards:
            first = {name: np.atleast_2d(x) for name, x in rows.items()}
            first = {name: x[min(states[0], len(x) - 1)][None] for name, x in first.items()}
            values = np.abs(self.executable.guarded(first)[0])
            failed = [g.label for g, x in zip(self.program.guards, values, strict=True) if not x >= g.threshold]
            if failed:
                raise SingularState(f"{self.name} has no value {where}: {failed[0]}", states=states)
        raise SingularState(
            f"{self.name} has no finite value {where}: it divides by zero, takes the root of a negative number, or an "
            f"angle is beyond {LARGEST_ANGLE:.3g} rad",
            states=states,
        )


def _along(group: Group, n: int) -> Group:
    """The group of tangents of another one, of n directions."""
    return group if n == group.size else replace(group, shape=(n,), labels=())


def _name(function: Callable) -> str:
    function = getattr(inspect.unwrap(function), "func", function)
    return getattr(function, "__name__", repr(function))


def _layout(result: object) -> tuple[Layout, list[np.ndarray]]:
    """(layout, arrays) of a function's result."""
    if isinstance(result, Mapping):
        arrays = [np.asarray(x) for x in result.values()]
        return Layout(tuple(result), tuple(x.shape for x in arrays), dict), arrays
    arrays = [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]
    groups = tuple(f"{_RESULT}{k or ''}" for k in range(len(arrays)))
    return Layout(groups, tuple(x.shape for x in arrays), tuple if isinstance(result, tuple) else None), arrays
