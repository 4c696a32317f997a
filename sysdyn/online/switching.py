"""Exact problems with switchable contacts: one solver per active set (mode), and batches grouped by mode.

A mode is the problem with exactly the constraints that are on. Its solver is compiled at its first use. The states of a
batch are sorted by mode, and the kernel of each mode reads and writes the rows of its states. Wrenches of constraints
that are off are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import (
    Inconsistent,
    InvalidInput,
    ProblemError,
    SingularState,
    SysdynError,
    UnknownName,
    at_states,
    few,
)
from sysdyn.files import html
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.problem import Problem, switches
from sysdyn.model.positions import normalise_positions, reject_large_angles
from sysdyn.offline.options import Options
from sysdyn.offline.stages import Progress
from sysdyn.online.arguments import Arguments, Inputs, Named
from sysdyn.online.calls import Result, copied, unchanged
from sysdyn.online.solution import Solution
from sysdyn.online.solver import Solver
from sysdyn.program.arrays import as_array
from sysdyn.program.groups import Arrays
from sysdyn.program.opcodes import BAD_OUTPUT
from sysdyn.runtime.buffer_pool import BufferPool
from sysdyn.runtime.runner import BoundCall

# Most modes of a solver: compiling one takes seconds, and its machine code megabytes (chosen).
MAX_MODES = 64
# Switches that fit into an integer.
BITS = 64
# Output of modes in which no requested output exists: their states are solved and checked all the same.
PLACEHOLDER = "qdd"

# A mode: the names of the constraints that are on, in the order of the problem.
Mode = tuple[str, ...]


class CompiledMode(NamedTuple):
    """A compiled mode.

    columns: {output: columns of the whole problem's output that this mode computes}. name: its name in messages, such
    as "with 'l_foot' on and 'r_foot' off".
    """

    solver: Solver
    columns: dict[str, slice | np.ndarray]
    name: str


class ModeSolution(NamedTuple):
    """The states of a call in one mode: their numbers (k,), and their solution."""

    states: np.ndarray
    solution: Solution


class SwitchedSolution(Solution):
    """Solution of a `SwitchingSolver` at states of several modes; wrenches of constraints that are off are zero."""

    _solve_parts: Callable[[Arrays], dict[Mode, ModeSolution]]

    @cached_property
    def parts(self) -> dict[Mode, ModeSolution]:
        """{names of the constraints that are on: (flat numbers (k,) of the states, their Solution)}.

        Only these solutions have residuals and inconsistencies, because equations differ by mode.
        """
        return self._solve_parts(self.inputs)

    def __reduce__(self):
        state = {**self.__dict__, "parts": self.parts}
        state.pop("_solve_parts", None)
        return type(self), (self._about, self._result), state

    def speeds(self) -> dict[str, np.ndarray]:
        """{constraint: (…, m)} velocities of constraints; NaN where they are off. See `Solution.speeds`."""
        speeds: dict[str, np.ndarray] = {}
        for states, solution in self.parts.values():
            for name, x in solution.speeds().items():
                speeds.setdefault(name, np.full((self._n, x.shape[-1]), np.nan))[states] = x
        return {name: x.reshape(*self._lead, x.shape[-1]) for name, x in speeds.items()}

    def residual(self) -> np.ndarray:
        """Not available: raises ProblemError, because equations differ by mode."""
        raise ProblemError("equations differ by mode: solution.parts has the solution of each, with its residual()")

    def inconsistency(self) -> dict[str, np.ndarray]:
        """Not available: raises ProblemError, because redundant equations differ by mode."""
        raise ProblemError("redundant equations differ by mode: solution.parts has the solution of each, with its own")

    def backward_error(self) -> np.ndarray:
        return self._scattered(Solution.backward_error)

    def reciprocal_condition(self) -> np.ndarray:
        return self._scattered(Solution.reciprocal_condition)

    def forward_error(self) -> dict[str, np.ndarray]:
        errors = {name: np.zeros(self._n) for name in self._values}  # exact where a mode lacks the output
        for states, solution in self.parts.values():
            for name, error in solution.forward_error().items():
                if name in errors:
                    errors[name][states] = error
        return {name: x.reshape(self._lead) for name, x in errors.items()}

    def _scattered(self, number: Callable[[Solution], np.ndarray]) -> np.ndarray:
        """Array (…) of one number per state, computed by the solution of its mode."""
        numbers = np.zeros(self._n)
        for states, solution in self.parts.values():
            numbers[states] = number(solution)
        return numbers.reshape(self._lead)


def check_switches(problem: Problem, ordering: object) -> None:
    """Raise ProblemError for a problem with noise, and for permutations as `ordering`: they suit one mode only."""
    name = problem.switchable_constraints[0].name
    if problem.noisy:
        raise ProblemError(
            f"{name!r} is exact and switches in problems without noise alone, but {problem.noisy[0].name!r} has some: "
            "state the contact by two measurements, Switchable(FrameAcceleration(…, noise=…)) for its motion and "
            "Switchable(ExternalWrench(…, noise=…)) for its wrench, or compile problem.mode(active)"
        )
    if not (isinstance(ordering, str) or callable(ordering)):
        raise ProblemError(
            f"the matrix depends on whether {name!r} is on, so that permutations are those of one mode: give a "
            "function that makes them, or compile problem.mode(active) with them"
        )


class SwitchingSolver(Solver):
    """Solver of an exact problem with `Switchable` contacts, loops, couplings or other constraints.

        problem = sd.forward_dynamics(model) + [sd.Switchable(sd.Contact(x, name=x)) for x in ("l_foot", "r_foot")]
        solver = sd.compile(problem, outputs=["qdd", "w"])
        solver(q, qd, tau, active={"l_foot": True, "r_foot": False}).wrench("r_foot")       # zero: it is off

    active: {name: bool, or (…) bool by state}; constraints that it does not name are on. Each combination, a mode, has
    a separate kernel, compiled at its first call or by `mode`. Bound calls take one `active` for all states.
    Derivatives, export, files and counts are those of `mode()`, in which every constraint is on; `mode(active)` is the
    Solver of another mode.

    problem, whole: the problem with its switches. modes: the compiled modes. tolerance: that of all modes in calls.
    """

    def __init__(
        self, problem: Problem, options: Options, compile_mode: Callable[[Problem, Options, Progress | bool], Solver],
        on_singular: str = "raise", progress: Progress | bool = True, check_limits: bool = False,
    ):  # fmt: skip
        """compile_mode: compiles the problem of a mode. options: for the outputs of the whole problem."""
        super().__init__(problem, options, None, on_singular, check_limits=check_limits)
        self._compile_mode, self._progress = compile_mode, progress
        self._names = tuple(m.name for m in problem.switchable_constraints)
        self._sizes = {m.name: len(m.components(self.model)) for m in problem.switchable_constraints}
        self._modes: dict[Mode, CompiledMode] = {}
        self._buffers, self._lock = BufferPool(), RLock()

    # ---- modes --------------------------------------------------------------------------------------------------

    @property
    def modes(self) -> dict[Mode, Solver]:
        """Solvers of the compiled modes: {names of the constraints that are on: Solver}."""
        return {mode: compiled.solver for mode, compiled in self._modes.items()}

    def mode(self, active: Named | None = None) -> Solver:
        """The Solver of one mode: of the problem with exactly the constraints that are on; compiled at its first use.

        active: {name: bool}; constraints that it does not name are on. Its output w has only the constraints that are
        on.

        Raises UnknownName, InvalidInput for more than `MAX_MODES` modes, and errors of `compile`, which name the mode.
        """
        problem = self.problem.mode(active)
        constraints = {m.name for m in problem.constraints}
        mode = tuple(name for name in self._names if name in constraints)
        with self._lock:
            if mode not in self._modes:
                self._check_room([mode])
                self._modes[mode] = self._compile(mode, problem)
            return self._modes[mode].solver

    def _check_room(self, modes: Iterable[Mode]) -> None:
        """Raise InvalidInput if the solver would have more than `MAX_MODES` modes with these."""
        count = len({*self._modes, *modes})
        if count > MAX_MODES:
            raise InvalidInput(
                f"{count} modes are asked for, in this call and before, but a solver holds {MAX_MODES} at most, each "
                "with a kernel of its own: let fewer contacts switch, or compile the problem.mode(…) that are needed"
            )

    def _compile(self, mode: Mode, problem: Problem) -> CompiledMode:
        """Compile a mode. Raises errors of `sysdyn.compile` with a prefix that names the mode."""
        outputs = tuple(x for x in self.options.outputs if isinstance(x, Measurement) or x in problem.quantities)
        options = replace(self.options, outputs=outputs or (PLACEHOLDER,))
        groups = (("on", mode), ("off", tuple(name for name in self._names if name not in mode)))
        name = f"with {' and '.join(f'{few(map(repr, names))} {what}' for what, names in groups if names)}"
        try:
            solver = self._compile_mode(problem.instant, options, self._progress)
        except SysdynError as error:
            error.args = (f"{name}: {error}", *error.args[1:])
            raise
        columns = {}
        for output, group in solver.problem.outputs(solver.options.outputs).items():
            if output in self._about.outputs:
                place = {label: k for k, label in enumerate(self._about.outputs[output].labels)}
                columns[output] = _as_slice(np.array([place[label] for label in group.labels], dtype=np.int64))
        return CompiledMode(solver, columns, name)

    # ---- calls --------------------------------------------------------------------------------------------------

    def solve(
        self, arguments: Arguments, on_singular: str | None = None, threads: int | None = None
    ) -> SwitchedSolution:
        """Implement calls: solve each state in its mode.

        Raises InvalidInput for switches of single components, and for more than `MAX_MODES` modes. Errors of a state
        name its mode. A mode that is singular at every state raises StructurallySingular.
        """
        self._policy(on_singular)
        arrays, lead = self._inputs.arranged(arguments._replace(active=None))
        by_mode = self._sorted(arguments.active, lead)
        self._check_room(by_mode)
        for mode in by_mode:  # compile all before solving any
            if mode not in self._modes:
                self.mode({name: name in mode for name in self._names})
            self._modes[mode].solver.tolerance = self.tolerance
        modes = {mode: (states, self._modes[mode]) for mode, states in by_mode.items()}
        call = ModesCall(self._inputs, modes, lead, self._output_arrays, on_singular, threads)
        arrays = {name: x for name, x in arrays.items() if x is not self._inputs.groups[name].default}
        solution = SwitchedSolution(self._about, call.run(arrays))
        solution._solve_parts = call.solve_parts
        return solution

    def _output_arrays(self, modes: Iterable[CompiledMode], n: int) -> dict[str, np.ndarray]:
        """Arrays for the outputs of n states, with zeros where a mode lacks an entry."""
        groups = self._about.outputs
        outputs = self._buffers.arrays(
            {name: (n, x.size) for name, x in groups.items()}, self.options.kernel_real.dtype
        )
        for name, group in groups.items():
            if any(not _is_whole(mode.columns.get(name), group.size) for mode in modes):
                outputs[name][:] = 0.0
        return outputs

    def bind(self, *arrays: np.ndarray, active: Named | None = None, **arguments: Any) -> BoundCall:
        """Prepare a call of one mode; see `Solver.bind`. active: {name: bool}."""
        return self.mode(active).bind(*arrays, **arguments)

    def _sorted(self, active: Named | None, lead: tuple[int, ...]) -> dict[Mode, np.ndarray]:
        """Group the states of a call by mode: {mode: ascending numbers of its states}."""
        n = math.prod(lead)
        on: dict[str, np.ndarray | bool] = dict.fromkeys(self._names, True)
        for name, value in switches(active):
            if name not in on:
                raise UnknownName("switchable constraint", name, self._names)
            on[name] = value if isinstance(value, bool) else self._switch(name, value, lead)
        varying = [x for x in on.values() if isinstance(x, np.ndarray)]
        if not varying or not n:
            return {tuple(name for name, x in on.items() if x is True): np.arange(n)} if n else {}
        if len(varying) <= BITS:
            # NumPy sorts short integers by radix sort
            number = varying[0].astype(np.min_scalar_type(2 ** len(varying) - 1))
            for x in varying[1:]:
                number = 2 * number + x
        else:
            number = np.unique(np.array(varying), axis=1, return_inverse=True)[1].reshape(-1)
        order = np.argsort(number, kind="stable")
        ordered = number[order]
        cuts = (np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()
        parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
        return {
            tuple(name for name, x in on.items() if (x[part[0]] if isinstance(x, np.ndarray) else x)): part
            for part in parts
        }

    def _switch(self, name: str, value: ArrayLike, lead: tuple[int, ...]) -> np.ndarray:
        """Switch (n,) of a constraint, 0 or 1 per state. Raises InvalidInput."""
        if type(value) is np.ndarray and value.dtype == bool and value.shape == lead:
            return value.reshape(-1)
        x = as_array(f"active[{name!r}]", value)
        if x.dtype.kind != "b" and (x.dtype.kind not in "iuf" or not np.isin(x, (0, 1)).all()):
            raise InvalidInput(f"active[{name!r}] must be made of true and false (or 1 and 0)")
        whole, size = x, self._sizes[name]
        if x.shape == (*lead, size) and (x == x[..., :1]).all():  # one switch per component, as in files of states
            whole = x[..., 0]
        try:
            return np.broadcast_to(whole, lead).reshape(-1).astype(bool)
        except ValueError:
            states = f", or of shape {lead}, one for each state" if lead else ""
            raise InvalidInput(
                f"active[{name!r}] has shape {x.shape}, but {name!r} is exact and switches as a whole: one value is "
                f"needed{states}"
            ) from None

    # ---- text ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        compiled = [f"{name} {solver.program.flops.total} operations" for solver, _, name in self._modes.values()]
        modes = "; ".join(compiled) or "none"
        return f"{self._title()}; {', '.join(self._names)} switch; modes compiled: {modes}"

    def report(self) -> str:
        """Text of the offline decisions and their reasons, mode by mode."""
        return "\n".join([repr(self), *(f"\n{x.name}:\n{x.solver.report()}" for x in self._modes.values())])

    def _repr_html_(self) -> str:
        return html.fragment(html.text(repr(self)))

    def __reduce__(self):
        arguments = self.problem, self.options, self._compile_mode, self.on_singular, True, self._inputs.check_limits
        return _restored, (arguments, self._modes)


class ModesCall:
    """A call of a `SwitchingSolver`: the states of each mode, and the options of the call.

    modes: {mode: (ascending numbers (k,) of its states, its solver)}. lead: batch axes. output_arrays: allocates the
    outputs of these modes at n states.
    """

    def __init__(
        self, inputs: Inputs, modes: Mapping[Mode, tuple[np.ndarray, CompiledMode]], lead: tuple[int, ...],
        output_arrays: Callable[[Iterable[CompiledMode], int], dict[str, np.ndarray]], on_singular: str | None,
        threads: int | None,
    ):  # fmt: skip
        self._inputs, self._modes, self._lead, self._n = inputs, modes, lead, math.prod(lead)
        self._output_arrays, self._on_singular, self._threads = output_arrays, on_singular, threads
        self._names = {m.name for m in inputs.problem.switchable_constraints}
        self._value_names = {value_group(m.name): m.name for m in inputs.problem.valued}

    def run(self, arrays: Arrays) -> Result:
        """Solve all states. arrays: {group: (size,) or (N, size)}, without default values."""
        outputs, rest = self._run_kernels(arrays)
        status, undetermined = np.zeros(self._n, dtype=np.int64), dict[str, None]()
        for mode, states in rest.items():
            solution = self._solve(mode, states, arrays)
            status[states] = np.where(np.ravel(solution.ok), 0, BAD_OUTPUT)
            undetermined |= dict.fromkeys(solution.undetermined)
            for name, columns in self._modes[mode][1].columns.items():
                _put(outputs[name], states, columns, solution[name].reshape(len(states), -1))
        copies = copied(arrays) if rest else None

        def inputs() -> Arrays:
            arguments = copies or unchanged(arrays, outputs, lambda x: self._run_kernels(x)[0])
            arguments["q"] = normalise_positions(self._inputs.model, arguments["q"])
            defaults = {name: x.default for name, x in self._inputs.groups.items() if x.default is not None}
            return defaults | arguments

        result = Result(inputs, self._lead, outputs, status)
        result.undetermined = tuple(undetermined)
        return result

    def solve_parts(self, arrays: Arrays) -> dict[Mode, ModeSolution]:
        """Solve the states of each mode separately: {mode: its states and their solution}."""
        return {
            mode: ModeSolution(states, self._solve(mode, states, arrays)) for mode, (states, _) in self._modes.items()
        }

    def _run_kernels(self, arrays: Arrays) -> tuple[dict[str, np.ndarray], dict[Mode, np.ndarray]]:
        """(outputs, {mode: its states that its kernel did not solve})."""
        outputs, rest = self._output_arrays([compiled for _, compiled in self._modes.values()], self._n), {}
        for mode, (states, _) in self._modes.items():
            unsolved = self._run_kernel(mode, states, arrays, outputs)
            if len(unsolved):
                rest[mode] = unsolved
        return outputs, rest

    def _run_kernel(self, mode: Mode, states: np.ndarray, arrays: Arrays, outputs: Arrays) -> np.ndarray:
        """Run the kernel of a mode on the rows of its states. Returns the numbers of the states that it did not solve.

        It reads and writes the rows in place, but for outputs with scattered columns.
        """
        solver, columns, _ = self._modes[mode][1]
        arguments = self._arguments(mode, arrays)
        call = solver.batch_call(arguments)
        if call is None:
            return states
        parts = {
            name: outputs[name][:, columns[name]] if isinstance(columns.get(name), slice)
            else np.empty((self._n, size), solver.options.kernel_real.dtype)
            for name, size in solver.program.outputs.sizes.items()
        }  # fmt: skip
        run = call(tuple(arguments.arrays().values()), self._threads, parts, states)
        if run is None:
            return states
        for name, place in columns.items():
            if not isinstance(place, slice):
                _put(outputs[name], states, place, parts[name][states])
        solved, _, status = run
        return states[:0] if solved else states[status != 0]

    def _solve(self, mode: Mode, states: np.ndarray, arrays: Arrays) -> Solution:
        """Solve copies of some states in one mode. Errors name the mode, and number its states as in the whole call."""
        try:
            return self._solve_rows(mode, states, arrays, self._on_singular)
        except (SingularState, Inconsistent) as error:
            bad = states[list(error.states)] if error.states else states[:1]
            try:
                self._solve_rows(mode, bad[:1], arrays, "raise")
            except (SingularState, Inconsistent) as alone:
                at = f", state{at_states(bad, self._n)}" if self._n > 1 else ""
                name = self._modes[mode][1].name
                alone.args, alone.states = (f"{name}{at}: {alone}",), tuple(bad.tolist())
                raise alone from None
            raise
        except InvalidInput:  # name the state as in the whole call
            in_mode = np.isin(np.arange(self._n), states)[:, None]
            rows = {name: np.where(in_mode, x, 0.0) if x.ndim == 2 else x for name, x in arrays.items()}
            self._inputs.groups.reject_not_finite(rows)
            reject_large_angles(self._inputs.model, np.atleast_2d(rows["q"]))
            normalise_positions(self._inputs.model, arrays["q"])
            raise

    def _solve_rows(self, mode: Mode, states: np.ndarray, arrays: Arrays, on_singular: str | None) -> Solution:
        rows = {name: x[states] if x.ndim == 2 else x.copy() for name, x in arrays.items()}
        if self._lead and not any(x.ndim == 2 for x in rows.values()):
            rows["q"] = np.tile(rows["q"], (len(states), 1))
        return self._modes[mode][1].solver.solve(self._arguments(mode, rows), on_singular, self._threads)

    def _arguments(self, mode: Mode, arrays: Arrays) -> Arguments:
        """Arguments of a call in one mode, without values of constraints that are off."""
        rest = dict(arrays)
        q, qd = rest.pop("q"), rest.pop("qd")
        parameters = {name: rest.pop(name) for name in self._inputs.parameters if name in rest}
        values = {name: rest.pop(group) for group, name in self._value_names.items() if group in rest}
        y = {name: x for name, x in values.items() if name not in self._names or name in mode}
        return Arguments(q, qd, (), rest, y=y or None, parameters=parameters or None)


def _put(outputs: np.ndarray, states: np.ndarray, columns: slice | np.ndarray, values: np.ndarray) -> None:
    """Write values (k, m) to rows and columns of the outputs."""
    outputs[states if isinstance(columns, slice) else states[:, None], columns] = values


def _is_whole(columns: slice | np.ndarray | None, size: int) -> bool:
    return isinstance(columns, slice) and columns == slice(0, size)


def _as_slice(numbers: np.ndarray) -> slice | np.ndarray:
    """Numbers as a slice if they are consecutive."""
    first = int(numbers[0]) if len(numbers) else 0
    part = slice(first, first + len(numbers))
    return part if np.array_equal(numbers, np.arange(part.start, part.stop)) else numbers


def _of_all_on(name: str) -> property:
    """A member of Solver that needs a single program: that of `mode()`, in which every constraint is on."""
    return property(lambda solver: getattr(solver.mode(), name), doc=f"`{name}` of `mode()`.")


for _name in (
    "compiled", "executable", "exported_program", "framework_function", "save", "_compile_derivatives", "_solve_scope",
):  # fmt: skip
    setattr(SwitchingSolver, _name, _of_all_on(_name))


def _restored(arguments: tuple, modes: Mapping[Mode, CompiledMode]) -> SwitchingSolver:
    solver = SwitchingSolver(*arguments)
    solver._modes.update(modes)
    return solver
