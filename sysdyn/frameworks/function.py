"""Compiled functions: algorithms that run on `Expr` are compiled to machine code."""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

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
from sysdyn.program.groups import Arrays, Group, Groups, bind_arguments, select_names
from sysdyn.program.opcodes import BAD_PIVOT, Flops
from sysdyn.program.program import Program
from sysdyn.program.reproducible import LARGEST_ANGLE
from sysdyn.runtime.backend import Backend
from sysdyn.runtime.native import extension
from sysdyn.runtime.native_calls import Argument, CallPattern, ResultLayout, fast_call, single_state_call
from sysdyn.runtime.runner import BoundCall, Runner, require_disjoint


def compile_function(
    function: Callable,
    inputs: Mapping[str, tuple[int, ...] | Group],
    *,
    sharing: str = "algebraic",
    level: int = 2,
    backend: str = "llvm",
) -> Function:
    """Compile an algorithm that runs on symbolic scalars.

        mass_matrix = compile_function(partial(crba, model), {"q": (model.nq,)})
        H = mass_matrix(q)                                      # leading axes of q are batch axes

    Parameters
    ----------
    function
        Python function, called once with object arrays of `Expr`; branches are evaluated in this call. It returns an
        array, a tuple of arrays or a dict of arrays, with entries `Expr` and numbers.
    inputs
        {argument name: shape or `Group`}, in the order of the arguments.
    sharing
        Common subexpression elimination: "algebraic", "structural" or "none"; see `Graph`.
    level
        Optimisation level of code generation, 0 (fast compilation) to 3.
    backend
        "llvm" (machine code, cached on disk) or "python" (NumPy; without `bind`).

    Raises
    ------
    InvalidInput
        If a result contains anything except numbers and `Expr` of the arguments.
    UnknownName, BackendUnavailable
        For an unknown or unavailable back end.
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
                labels: dict[type, str] = {dict: f"result {layout.keys[k]!r}", tuple: f"result {k}"}
                raise InvalidInput(
                    f"{labels.get(layout.make, 'the result')} of {_name(function)} holds {x!r}: only what comes from "
                    "its arguments, and real numbers, can be compiled"
                )
    results = [(str(key), list(array.flat)) for key, array in zip(layout.keys, arrays, strict=True)]
    program = Program.from_graph(graph, [(name, list(x)) for name, x in arguments.items()], results)
    return Function(_name(function), make(program, level), groups, layout)


class Function(Differentiable["Function"]):
    """A compiled function. `function(*arrays)` calls it, `bind` prepares calls without checks. Thread-safe.

    Attributes
    ----------
    inputs : dict
        {argument: shape}, in the order of the arguments.
    shapes : dict
        {result: shape}.
    flops : Flops
        Exact operation counts of the program.
    executable : Runner
        The program on a back end.
    vectors : dict
        {"tangents" or "cotangents": {name: Group}} of a derivative product.
    """

    def __init__(
        self, name: str, backend: Backend, inputs: Groups, results: ResultLayout,
        vectors: Mapping[str, Mapping[str, Group]] = MappingProxyType({}),
    ):  # fmt: skip
        self.name, self.program, self._results = name, backend.program, results
        self.inputs, self.vectors = {x: group.shape for x, group in inputs.items()}, dict(vectors)
        self.shapes = dict(zip(self.program.outputs, results.shapes, strict=True))
        self.groups = Groups([*inputs.values(), *(x for own in vectors.values() for x in own.values())])
        self.executable = Runner(backend)
        backend.kernel(True)
        self.fast_calls = self.single_state(tuple(inputs), {})

    @property
    def flops(self) -> Flops:
        return self.program.flops

    def __reduce__(self):
        own = Groups(self.groups[x] for x in self.inputs)
        return Function, (self.name, self.executable.backend, own, self._results, self.vectors)

    def __repr__(self) -> str:
        takes = ", ".join(f"{group.display_name} {group.shape}" for group in self.groups.values())
        return f"Function {self.name}: {takes} → {', '.join(map(str, self._results.shapes))}; {self.program.flops}"

    @fast_call
    def __call__(self, *arrays: ArrayLike, threads: int | None = None, **by_name: ArrayLike) -> Any:
        """Evaluate the function. Arguments are positional or keyword; leading axes are batch axes and broadcast.

        Returns the results as float arrays. Raises InvalidInput for missing values, wrong shapes and values that are
        not finite, SingularState if a result is not finite.
        """
        rows, head = self.groups.normalise_inputs(self.bind_arguments(*arrays, **by_name))
        outputs, status = self.executable.results(rows, math.prod(head), threads)
        if status.any():
            self._raise_failure(rows, status)
        return self._pack(self._reshape(outputs, head))

    def single_state(
        self, by_position: Sequence[str], defaults: Mapping[str, Any], quaternions: Sequence[int] = ()
    ) -> list[extension.SingleStateCall]:
        """Native single-state calls with the inputs `by_position` and all others by name; see `single_state_call`."""
        by_name = [x for x in self.inputs if x not in by_position]
        names = [*by_position, *by_name, *list(self.groups)[len(self.inputs) :]]
        places, numbers = self.groups.slices, np.arange(self.program.n_inputs)
        arguments = [Argument(self.groups[x].shape, numbers[places[x]]) for x in names]
        constants = np.zeros(len(numbers))
        vectors: list[dict[str, Any]] = [{role: dict.fromkeys(own, ...) for role, own in self.vectors.items()}]
        if self.vectors and all(len(own) == 1 for own in self.vectors.values()):
            vectors.append(dict.fromkeys(self.vectors, ...))
        calls = []
        for own in vectors:
            named = dict.fromkeys(by_name, ...) | own
            pattern = CallPattern(len(by_position), named, {**defaults, "threads": None})
            backend = self.executable.backend
            calls.append(single_state_call(backend, arguments, constants, quaternions, pattern, self._results))
        return [call for call in calls if call is not None]

    def bind(self, *arrays: np.ndarray, **by_name: np.ndarray) -> BoundCall:
        """Bind a call to the arrays of one state: `step()` reads them in place and writes `step.out`.

        Parameters
        ----------
        *arrays, **by_name : C-contiguous float64 arrays
            The arguments with their full shapes.

        Returns
        -------
        BoundCall
            `out` has the structure of the results. `status` is nonzero if a value was not finite.

        Raises
        ------
        InvalidInput
            For arrays of another type, shape or memory layout.
        ProblemError
            If the back end does not support bound calls.
        """
        rows, head = self.groups.check_in_place(self.bind_arguments(*arrays, **by_name))
        if head:
            raise InvalidInput(f"{self.name} is bound to one state, but the arrays have {head[0]} states")
        require_disjoint(rows)
        outputs = {name: np.zeros((1, size)) for name, size in self.program.outputs.sizes.items()}
        out = self._pack(self._reshape(outputs, ()))
        return self.executable.bind(rows, outputs, np.zeros(1, dtype=np.int64), out, single=True)

    def exported_program(self, name: str | None = None) -> ExportedProgram:
        """Program for exporters, see `Exportable`. Sample states are standard normal."""
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
                self._raise_failure(dict(inputs), status)
            fill_nan(outputs, status != 0)

        return FrameworkFunction(
            self.name, self.program, self.groups, self.bind_arguments, self.shapes, self._pack, on_failure,
            on_failure, self, cache_tag=on_singular,
        )  # fmt: skip

    def product(
        self, kind: str, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None,
        outputs: Mapping[str, str] | None = None, along: TangentBasis = unit_directions,
    ) -> Function:  # fmt: skip
        """Compile a derivative product. kind: "jvp", "vjp" or "hvp", see the methods of these names for `of` and `wrt`.

        outputs: {name of a result in `of` and in calls of the product: output group of the program}; default: all
        output groups under their own names. along: directions of the tangents of an input; default: its scalars.
        """
        outputs = outputs or {x: x for x in self.shapes}
        of = select_names("result", of, tuple(outputs), outputs)
        wrt = select_names("argument to differentiate by", wrt, tuple(self.inputs), self.inputs)
        if self.vectors:
            raise InvalidInput(
                f"{self.name} is a product already: use hvp for second derivatives, to_jax for higher orders"
            )
        backend, before = self.executable.backend, len(self.groups)
        derivatives = ProgramDerivatives(self.program, [outputs[x] for x in of], wrt, along)
        program = derivatives.product(kind)
        names = iter(list(program.inputs)[before:])
        results = {name: Group(name, self.shapes[outputs[name]]) for name in of}
        tangents = {name: _tangent_group(self.groups[name], len(derivatives.directions[name])) for name in wrt}
        vectors: dict[str, dict[str, Group]] = {}
        if kind != "jvp":
            vectors[COTANGENTS] = {name: vector_group(COTANGENTS, name, next(names), x) for name, x in results.items()}
        if kind != "vjp":
            vectors[TANGENTS] = {name: vector_group(TANGENTS, name, next(names), x) for name, x in tangents.items()}
        layout = ResultLayout(dict, wrt, tuple(x.shape for x in tangents.values()))
        if kind == "jvp":
            shapes = tuple(x.shape for x in results.values())
            layout = ResultLayout(self._results.make, tuple(outputs[x] for x in of), shapes)
        compiled = type(backend)(program, backend.level, real=backend.real)
        return Function(f"{self.name}_{kind}", compiled, self.groups, layout, vectors)

    def bind_arguments(self, *arrays: Any, **by_name: Any) -> dict[str, Any]:
        """Bind the arguments of a call. Returns {group: value}."""
        vectors = [split_vector_argument(role, x, by_name.pop(role, None)) for role, x in self.vectors.items()]
        bound = bind_arguments(self.name, tuple(self.inputs), tuple(self.inputs), arrays, by_name)
        return functools.reduce(operator.or_, vectors, bound)

    def _pack(self, arrays: dict[str, np.ndarray]) -> Any:
        """Pack the outputs {output: array} into the return value: dict, tuple or array."""
        make = self._results.make
        return arrays if make is dict else tuple(arrays.values()) if make is tuple else next(iter(arrays.values()))

    def _reshape(self, outputs: dict[str, np.ndarray], head: tuple[int, ...]) -> dict[str, np.ndarray]:
        shapes = self._results.shapes
        return {name: x.reshape(head + shape) for (name, x), shape in zip(outputs.items(), shapes, strict=True)}

    def _raise_failure(self, rows: dict, status: np.ndarray) -> None:
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


def _tangent_group(group: Group, n: int) -> Group:
    """Group of the tangents of an input with n tangent directions."""
    return group if n == group.size else replace(group, shape=(n,), labels=())


def _name(function: Callable) -> str:
    function = getattr(inspect.unwrap(function), "func", function)
    return getattr(function, "__name__", repr(function))


def _layout(result: object) -> tuple[ResultLayout, list[np.ndarray]]:
    """(layout, arrays) of a return value; outputs without names are called result, result1 and so on."""
    make: type = dict if isinstance(result, Mapping) else tuple if isinstance(result, tuple) else np.ndarray
    unnamed: Any = (result,) if make is np.ndarray else result
    named = dict(unnamed) if make is dict else {f"result{k or ''}": x for k, x in enumerate(unnamed)}
    arrays = [np.asarray(x) for x in named.values()]
    return ResultLayout(make, tuple(named), tuple(x.shape for x in arrays)), arrays
