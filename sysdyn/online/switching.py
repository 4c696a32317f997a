"""Exact problems with switchable contacts: one solver per active set (mode), and batches grouped by mode.

A mode is the problem with exactly the constraints that are on. Its solver is compiled at its first use. The states of a
batch are sorted by mode, each mode is solved as one batch, and the results are scattered to the states. Wrenches of
constraints that are off are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
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
    check_among,
    few,
)
from sysdyn.files import html
from sysdyn.measurements.input_names import VALUE, group_of, value_group
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.problem import Problem, switches
from sysdyn.model.positions import reject_large_angles
from sysdyn.offline.options import Options
from sysdyn.offline.stages import Progress
from sysdyn.online.arguments import Arguments, Inputs, Named
from sysdyn.online.calls import Result
from sysdyn.online.solution import Solution, SolutionContext
from sysdyn.online.solver import ON_SINGULAR, Solver
from sysdyn.program.arrays import as_array
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


class ModeSolution(NamedTuple):
    """The states of a call in one mode: their numbers (k,), and their solution."""

    states: np.ndarray
    solution: Solution


class ByMode(ProblemError):
    """A solution over several modes was asked for a result that is defined for a single mode only."""


class SwitchedSolution(Solution):
    """Solution at states of several modes; w of constraints that are off is zero.

    parts: {names of the constraints that are on: (flat numbers (k,) of the states, their Solution)}. Only these
    solutions have residuals and inconsistencies, because equations differ by mode.
    """

    parts: dict[Mode, ModeSolution]

    @cached_property
    def undetermined(self) -> tuple[str, ...]:
        """Undetermined constraint wrenches of all modes; see `Solution.undetermined`."""
        return tuple(dict.fromkeys(name for part in self.parts.values() for name in part.solution.undetermined))

    def speeds(self) -> dict[str, np.ndarray]:
        """{constraint: (…, m)} velocities of constraints; NaN where they are off. See `Solution.speeds`."""
        speeds: dict[str, np.ndarray] = {}
        for states, solution in self.parts.values():
            for name, x in solution.speeds().items():
                speeds.setdefault(name, np.full((self._n, x.shape[-1]), np.nan))[states] = x
        return {name: x.reshape(*self._lead, x.shape[-1]) for name, x in speeds.items()}

    def residual(self) -> np.ndarray:
        """Not available: raises ProblemError, because equations differ by mode."""
        raise ByMode("equations differ by mode: solution.parts has the solution of each, with its residual()")

    def inconsistency(self) -> dict[str, np.ndarray]:
        """Not available: raises ProblemError, because redundant equations differ by mode."""
        raise ByMode("redundant equations differ by mode: solution.parts has the solution of each, with its own")

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

    problem, whole: the problem with its switches. modes: the compiled modes.
    """

    def __init__(
        self, problem: Problem, options: Options, compile_mode: Callable[[Problem, Options, Progress | bool], Solver],
        on_singular: str = "raise", progress: Progress | bool = True, check_limits: bool = False,
    ):  # fmt: skip
        """compile_mode: compiles the problem of a mode. options: for the outputs of the whole problem."""
        check_among("on_singular", on_singular, ON_SINGULAR)
        self.problem = self.whole = problem
        self.model, self.options, self.on_singular = problem.model, options, on_singular
        self._compile_mode, self._progress = compile_mode, progress
        self._names = tuple(m.name for m in problem.switchable_constraints)
        self._sizes = {m.name: len(m.components(self.model)) for m in problem.switchable_constraints}
        self._inputs = Inputs(problem, options.external_wrenches, check_limits)
        self._solvers: dict[Mode, Solver] = {}
        self._columns: dict[Mode, dict[str, np.ndarray]] = {}  # {mode: {output: its columns in that of the problem}}
        self._buffers, self._lock = BufferPool(), RLock()
        self.fast_calls = []
        outputs = problem.outputs(options.outputs)
        self._about = SolutionContext(problem, outputs, refuse=on_singular == "raise", measured=options.measured)

    # ---- modes --------------------------------------------------------------------------------------------------

    @property
    def modes(self) -> dict[Mode, Solver]:
        """{names of the constraints that are on: the Solver} of the compiled modes."""
        return dict(self._solvers)

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
            if mode not in self._solvers:
                self._check_room([mode])
                self._compile(mode, problem)
            return self._solvers[mode]

    def _check_room(self, modes: Iterable[Mode]) -> None:
        """Raise InvalidInput if the solver would have more than `MAX_MODES` modes with these."""
        count = len({*self._solvers, *modes})
        if count > MAX_MODES:
            raise InvalidInput(
                f"{count} modes are asked for, in this call and before, but a solver holds {MAX_MODES} at most, each "
                "with a kernel of its own: let fewer contacts switch, or compile the problem.mode(…) that are needed"
            )

    def _compile(self, mode: Mode, problem: Problem) -> None:
        """Compile a mode. Raises errors of `sysdyn.compile` with a prefix that names the mode."""
        outputs = tuple(x for x in self.options.outputs if isinstance(x, Measurement) or x in problem.quantities)
        options = replace(self.options, outputs=outputs or (PLACEHOLDER,))
        try:
            solver = self._compile_mode(problem.instant, options, self._progress)
        except SysdynError as error:
            error.args = (f"{self._words(mode)}: {error}", *error.args[1:])
            raise
        self._columns[mode] = {}
        for name, group in solver.problem.outputs(solver.options.outputs).items():
            if name in self._about.outputs:
                column = {label: k for k, label in enumerate(self._about.outputs[name].labels)}
                self._columns[mode][name] = np.array([column[label] for label in group.labels], dtype=np.int64)
        self._solvers[mode] = solver

    def _words(self, mode: Mode) -> str:
        """Description of a mode for messages."""
        groups = (("on", mode), ("off", tuple(name for name in self._names if name not in mode)))
        words = [f"{few(map(repr, names))} {what}" for what, names in groups if names]
        return f"with {' and '.join(words)}"

    # ---- calls --------------------------------------------------------------------------------------------------

    def solve(
        self, arguments: Arguments, on_singular: str | None = None, threads: int | None = None, owned: bool = False
    ) -> SwitchedSolution:
        """Implement calls: solve each state in its mode.

        Raises InvalidInput for switches of single components, and for more than `MAX_MODES` modes. Errors of a state
        name its mode. A mode that is singular at every state raises StructurallySingular.
        """
        self._policy(on_singular)
        arrays, lead = self._inputs.checked(arguments._replace(active=None))
        by_mode = self._sorted(arguments.active, lead)
        self._check_room(by_mode)
        for mode in by_mode:
            self._of(mode)  # compile all before solving any
        parts = {}
        for mode, states in by_mode.items():
            parts[mode] = ModeSolution(states, self._solve_mode(mode, states, arrays, lead, on_singular, threads))
        solution = SwitchedSolution(self._about, self._gathered(parts, lead))
        solution.parts = parts
        return solution

    def bind(self, *arrays: np.ndarray, active: Named | None = None, **arguments: Any) -> BoundCall:
        """Prepare a call of one mode; see `Solver.bind`. active: {name: bool}."""
        return self.mode(active).bind(*arrays, **arguments)

    def _gathered(self, parts: Mapping[Mode, ModeSolution], lead: tuple[int, ...]) -> Result:
        """Gather the solutions of the modes into one result."""
        n, groups = math.prod(lead), self._about.outputs
        shapes = {name: (n, group.size) for name, group in groups.items()}
        outputs = self._buffers.arrays(shapes, self.options.kernel_real.dtype)
        for name, group in groups.items():
            if any(len(self._columns[mode].get(name, ())) < group.size for mode in parts):
                outputs[name][:] = 0.0
        status = np.zeros(n, dtype=np.int64)
        for mode, (states, solution) in parts.items():
            rows = _range(states)
            for name, columns in self._columns[mode].items():
                whole = len(columns) == groups[name].size
                place = rows if whole else np.ix_(states, columns)
                outputs[name][place] = solution[name].reshape(len(states), len(columns))
            if not np.all(solution.ok):
                status[rows] = np.where(np.ravel(solution.ok), 0, BAD_OUTPUT)
        return Result(partial(self._inputs_of, parts, lead), lead, outputs, status)

    def _inputs_of(self, parts: Mapping[Mode, ModeSolution], lead: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Inputs of all states, gathered from the modes; default values where a mode takes none."""
        inputs = {}
        for name, group in self._inputs.groups.items():
            default = np.zeros(group.size) if group.default is None else group.default
            inputs[name] = x = np.tile(default, (math.prod(lead), 1))
            for states, solution in parts.values():
                if name in solution.inputs:
                    x[states] = solution.inputs[name]
        return inputs if lead else {name: x[0] for name, x in inputs.items()}

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

    def _of(self, mode: Mode) -> Solver:
        """Solver of a mode, compiled at its first use."""
        return self._solvers.get(mode) or self.mode({name: name in mode for name in self._names})

    def _solve_mode(
        self, mode: Mode, states: np.ndarray, arrays: Mapping[str, np.ndarray], lead: tuple[int, ...],
        on_singular: str | None, threads: int | None,
    ) -> Solution:  # fmt: skip
        """Solve the states of one mode. Errors name the mode, and number its states as in the whole call."""
        n = math.prod(lead)
        taken = {name: x for name, x in arrays.items() if self._takes(mode, name)}
        try:
            return self._of(mode).solve(self._arguments(taken, states, lead), on_singular, threads, owned=True)
        except (SingularState, Inconsistent) as error:
            bad = states[list(error.states)] if error.states else states[:1]
            try:
                self._of(mode).solve(self._arguments(taken, bad[:1], lead), "raise")
            except (SingularState, Inconsistent) as alone:
                at = f", state{at_states(bad, n)}" if n > 1 else ""
                alone.args, alone.states = (f"{self._words(mode)}{at}: {alone}",), tuple(bad.tolist())
                raise alone from None
            raise
        except InvalidInput:
            others = np.setdiff1d(np.arange(n), states)
            for name, x in taken.items():
                if x.ndim == 2:
                    taken[name] = x.copy()
                    taken[name][others] = 0.0
            self._inputs.groups.reject_not_finite(taken)
            reject_large_angles(self.model, np.atleast_2d(taken["q"]))
            raise

    def _takes(self, mode: Mode, group: str) -> bool:
        """True if a mode takes a group of inputs: all but values of constraints that are off."""
        role, name = group_of(group)
        return role != VALUE or name not in self._names or name in mode

    def _arguments(self, arrays: Mapping[str, np.ndarray], states: np.ndarray, lead: tuple[int, ...]) -> Arguments:
        """Arguments of a call at some of the states: copies of their rows, without default values."""
        rows = {
            name: np.take(x, states, axis=0) if x.ndim == 2 else x.copy()
            for name, x in arrays.items() if x is not self._inputs.groups[name].default
        }  # fmt: skip
        if lead and not any(x.ndim == 2 for x in rows.values()):
            rows["q"] = np.tile(rows["q"], (len(states), 1))
        q, qd = rows.pop("q"), rows.pop("qd")
        parameters = {name: rows.pop(name) for name in self._inputs.parameters if name in rows}
        y = {m.name: rows.pop(value_group(m.name)) for m in self.problem.valued if value_group(m.name) in rows}
        return Arguments(q, qd, (), rows, y=y or None, parameters=parameters or None)

    # ---- text ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        known = ", ".join((*self._inputs.known, *(m.name for m in self.problem.custom))) or "nothing"
        compiled = "; ".join(
            f"{self._words(mode)} {x.program.flops.total} operations" for mode, x in self.modes.items()
        )
        return (
            f"SwitchingSolver for {self.model.name!r} ({self.model.nb} bodies, {self.model.nv} degrees of freedom): "
            f"{', '.join(self.outputs)} from {known}; {', '.join(self._names)} switch; modes compiled: "
            f"{compiled or 'none'}"
        )

    def report(self) -> str:
        """Text of the offline decisions and their reasons, mode by mode."""
        return "\n".join([repr(self), *(f"\n{self._words(mode)}:\n{x.report()}" for mode, x in self.modes.items())])

    def _repr_html_(self) -> str:
        return html.fragment(html.text(repr(self)))

    def __reduce__(self):
        arguments = self.problem, self.options, self._compile_mode, self.on_singular, True, self._inputs.check_limits
        return _restored, (arguments, self.modes, self._columns)


def _of_all_on(name: str) -> property:
    """A member of Solver that needs a single program: that of `mode()`, in which every constraint is on."""
    return property(lambda solver: getattr(solver.mode(), name), doc=f"`{name}` of `mode()`.")


for _name in (
    "choice", "compiled", "considered", "derivatives", "executable", "exported_program", "fill_in", "flops",
    "framework_function", "ordering", "passes", "posterior", "product", "program", "save", "stability", "triangular",
):  # fmt: skip
    setattr(SwitchingSolver, _name, _of_all_on(_name))


def _range(states: np.ndarray) -> slice | np.ndarray:
    """Ascending numbers of states, as a slice if they are consecutive."""
    first, last = int(states[0]), int(states[-1])
    return slice(first, last + 1) if last - first + 1 == len(states) else states


def _restored(arguments: tuple, solvers: Mapping[Mode, Solver], columns: Mapping[Mode, Any]) -> SwitchingSolver:
    solver = SwitchingSolver(*arguments)
    solver._solvers.update(solvers)
    solver._columns.update(columns)
    return solver
