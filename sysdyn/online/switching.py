"""Exact problems whose contacts switch by state: a solver for each mode, and batches that are solved mode by mode.

A mode is a combination of switches, the problem with exactly the constraints that are on. Its solver is compiled when
it is first needed. States of a batch are sorted by their modes, each mode is solved as one batch, and the results go
back to the places of the states; wrenches of constraints that are off are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from sysdyn.measurements.groups import VALUE, group_of
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.statement import switches
from sysdyn.offline.options import Options
from sysdyn.offline.stages import Progress
from sysdyn.online.arguments import Arguments, Inputs, Named, Slot, slots
from sysdyn.online.batches import Columns, Spreading
from sysdyn.online.solution import About, Solution
from sysdyn.online.solver import ON_SINGULAR, Solver
from sysdyn.problem import Problem
from sysdyn.program.arrays import as_array, is_readable_in_place
from sysdyn.program.groups import Groups
from sysdyn.reference.generic import reject_large_angles
from sysdyn.runtime.buffer_pool import BufferPool

# Most modes that a solver holds: compiling one takes seconds, and its machine code megabytes (chosen).
MOST_MODES = 64
# Switches that an integer holds.
BITS = 64
# Output of modes in which nothing that is asked for exists: their states are solved and checked all the same.
PLACEHOLDER = "qdd"

# {output of a mode: the column of each of its entries, in the output of the whole problem}.
ColumnsByOutput = dict[str, np.ndarray]
# A mode: the names of the constraints that are on, in the order of the problem.
Mode = tuple[str, ...]


class Part(NamedTuple):
    """The states of a call in one mode: their numbers (k,), and their solution."""

    states: np.ndarray
    solution: Solution


class ByMode(ProblemError, AttributeError):
    """Error of a `SwitchingSolver`, or of a solution of it, asked for something that only one mode has."""


class SwitchedSolution(Solution):
    """Solved quantities at states of several modes, as of a Solution; w of constraints that are off is zero.

    parts: {names of the constraints that are on: (numbers (k,) of the states, flat; their Solution)}. Residuals and
    inconsistencies are those of the solutions in there, since equations differ by mode.
    """

    @property
    def parts(self) -> dict[Mode, Part]:
        return self._found.parts  # type: ignore[attr-defined]

    @cached_property
    def undetermined(self) -> tuple[str, ...]:
        """Forces that are open at some of the states, mode by mode; see `Solution.undetermined`."""
        return tuple(dict.fromkeys(name for part in self.parts.values() for name in part.solution.undetermined))

    def speeds(self) -> dict[str, np.ndarray]:
        """{constraint: (…, m)} velocities of what constraints hold; NaN where they are off. See `Solution.speeds`."""
        found: dict[str, np.ndarray] = {}
        for states, solution in self.parts.values():
            for name, x in solution.speeds().items():
                own = found.setdefault(name, np.full((self._n, x.shape[-1]), np.nan))
                own[states] = x
        return {name: x.reshape(*self._lead, x.shape[-1]) for name, x in found.items()}

    def residual(self) -> np.ndarray:
        """Raises ProblemError: every mode has equations of its own."""
        raise ByMode("equations differ by mode: solution.parts has the solution of each, with its residual()")

    def inconsistency(self) -> dict[str, np.ndarray]:
        """Raises ProblemError: every mode has redundant equations of its own."""
        raise ByMode("redundant equations differ by mode: solution.parts has the solution of each, with its own")

    def backward_error(self) -> np.ndarray:
        return self._scattered(lambda part: part.backward_error())

    def reciprocal_condition(self) -> np.ndarray:
        return self._scattered(lambda part: part.reciprocal_condition())

    def forward_error(self) -> dict[str, np.ndarray]:
        found = {name: np.zeros(self._n) for name in self._values}  # exact where a mode has none of it
        for states, solution in self.parts.values():
            for name, error in solution.forward_error().items():
                if name in found:
                    found[name][states] = error
        return {name: x.reshape(self._lead) for name, x in found.items()}

    def _scattered(self, of: Callable[[Solution], Any]) -> np.ndarray:
        """(…) a number of each state, of the solution of its mode."""
        found = np.zeros(self._n)
        for states, solution in self.parts.values():
            found[states] = of(solution)
        return found.reshape(self._lead)


class Rows(NamedTuple):
    """The arrays of a call, which have these batch axes, n states; those in `many` have an axis of states first."""

    arrays: dict[Slot, np.ndarray]
    many: frozenset[Slot]
    lead: tuple[int, ...]

    @property
    def n(self) -> int:
        return math.prod(self.lead)

    def at(self, states: np.ndarray) -> dict[Slot, np.ndarray]:
        """The arrays of some of the states, by their numbers in ascending order."""
        if len(states) == self.n:
            return self.arrays
        rows = _range(states)
        return {slot: x[rows] if slot in self.many else x for slot, x in self.arrays.items()}


class Gathered:
    """Results of a call out of its parts; see `sysdyn.online.solution.Found`.

    inputs, solved: calls that give the inputs of all states, and the parts, if these are asked for.
    """

    again = None

    def __init__(
        self, outputs: Groups, lead: tuple[int, ...], places: Sequence[ColumnsByOutput],
        inputs: Callable[[], dict[str, np.ndarray]],
        solved: Callable[[], dict[Mode, Part]], flat: dict[str, np.ndarray],
    ):  # fmt: skip
        """places: of the modes of the call. flat: arrays for the outputs (n, size), whose entries are arbitrary."""
        self._outputs, self.lead, self._inputs, self._solved, self.flat = outputs, lead, inputs, solved, flat
        for name, group in outputs.items():
            if any(len(x.get(name, ())) < group.size for x in places):
                flat[name][:] = 0.0
        self._ok = np.ones(math.prod(lead), dtype=bool)

    def put(self, states: np.ndarray, solution: Solution, places: ColumnsByOutput) -> None:
        """Take over the results of the states of a mode."""
        rows = _range(states)
        for name, columns in places.items():
            x = solution[name].reshape(len(states), -1)
            if len(columns) == self.flat[name].shape[1]:
                self.flat[name][rows] = x
            else:
                self.flat[name][np.ix_(states, columns)] = x
        if not np.all(solution.ok):
            self._ok[rows] = solution.ok

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        return self._inputs()

    @cached_property
    def parts(self) -> dict[Mode, Part]:
        return self._solved()

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        return {name: x.reshape(*self.lead, *self._outputs[name].shape) for name, x in self.flat.items()}

    def value(self, key: str) -> np.ndarray:
        return self.values[key]

    @property
    def ok(self) -> np.ndarray:
        return self._ok.reshape(self.lead)[()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "inputs": self.inputs, "parts": self.parts, "_inputs": None, "_solved": None}


def check_switches(problem: Problem, ordering: object) -> None:
    """Raise ProblemError if the constraints of a problem cannot switch, or have no order of elimination in common."""
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
    """The solver of an exact problem with `Switchable` contacts, loops, couplings or other constraints.

        problem = sd.forward_dynamics(model) + [sd.Switchable(sd.Contact(x, name=x)) for x in ("l_foot", "r_foot")]
        solver = sd.compile(problem, outputs=["qdd", "w"])
        solver(q, qd, tau, active={"l_foot": True, "r_foot": False}).wrench("r_foot")       # zero: it is off

    active: {name: bool, or (…) bool by state}; what is not named is on. Each combination, a mode, has a kernel of its
    own, compiled in the first call that has it, or by `mode`. Bound calls, derivatives, export and files are those of
    `mode(active)`, an ordinary Solver.

    problem, whole: the problem with its switches. modes: the compiled ones.
    """

    def __init__(
        self, problem: Problem, options: Options, made: Callable[..., Solver], on_singular: str = "raise",
        progress: Progress | bool = True, check_limits: bool = False,
    ):  # fmt: skip
        """made: compiles the problem of a mode, with options; options: with the outputs, as of the whole problem."""
        check_among("on_singular", on_singular, ON_SINGULAR)
        self.problem = self.whole = problem
        self.model, self.options, self.on_singular = problem.model, options, on_singular
        self._made, self._progress = made, progress
        self._names = tuple(m.name for m in problem.switchable_constraints)
        self._sizes = {m.name: len(m.components(self.model)) for m in problem.switchable_constraints}
        self._inputs = Inputs(problem, options.external_wrenches, check_limits)
        self._shown = problem.outputs(options.outputs)
        self._solvers: dict[Mode, Solver] = {}
        self._places: dict[Mode, ColumnsByOutput] = {}
        self._spreadings: dict[tuple[Mode, tuple[Slot, ...]], Spreading] = {}  # by names of arrays
        self._buffers, self._lock = BufferPool(), RLock()
        self._of_solutions = About(problem, self._shown, refuse=on_singular == "raise", measured=options.measured)

    # ---- modes --------------------------------------------------------------------------------------------------

    @property
    def modes(self) -> dict[Mode, Solver]:
        """{names of the constraints that are on: the Solver} of the compiled modes."""
        return dict(self._solvers)

    def mode(self, active: Named | None = None) -> Solver:
        """The Solver of one mode, compiled if it was not: of the problem with exactly the constraints that are on.

        active: {name: bool}; what is not named is on. Its outputs are those that the mode has: w of what is on.

        Raises UnknownName, InvalidInput if there are `MOST_MODES` already, and what compiling raises, with the mode.
        """
        stated = self.problem.mode(active)
        there = {m.name for m in stated.constraints}
        mode = tuple(name for name in self._names if name in there)
        with self._lock:
            if mode not in self._solvers:
                self._check_room([mode])
                self._compile(mode, stated)
            return self._solvers[mode]

    def _check_room(self, modes: Iterable[Mode]) -> None:
        """Raise InvalidInput if the solver would hold too many modes with these."""
        count = len({*self._solvers, *modes})
        if count > MOST_MODES:
            raise InvalidInput(
                f"{count} modes are asked for, in this call and before, but a solver holds {MOST_MODES} at most, each "
                "with a kernel of its own: let fewer contacts switch, or compile the problem.mode(…) that are needed"
            )

    def _compile(self, mode: Mode, stated: Problem) -> None:
        """Compile a mode. Raises what `sysdyn.compile` does, with the mode before it."""
        there = stated.quantities
        asked = tuple(x for x in self.options.outputs if isinstance(x, Measurement) or x in there)
        try:
            solver = self._made(stated.instant, replace(self.options, outputs=asked or (PLACEHOLDER,)), self._progress)
        except SysdynError as error:
            error.args = (f"{self._words(mode)}: {error}", *error.args[1:])
            raise
        self._places[mode] = {}
        for name, group in solver.problem.outputs(solver.options.outputs).items():
            if name in self._shown:
                column = {label: k for k, label in enumerate(self._shown[name].labels)}
                self._places[mode][name] = np.array([column[label] for label in group.labels], dtype=np.int64)
        self._solvers[mode] = solver

    def _words(self, mode: Mode) -> str:
        """A mode in words."""
        groups = (("on", mode), ("off", tuple(name for name in self._names if name not in mode)))
        words = [f"{few(map(repr, names))} {what}" for what, names in groups if names]
        return f"with {' and '.join(words)}"

    # ---- calling ------------------------------------------------------------------------------------------------

    def __call__(
        self, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, active: Named | None = None,
        on_singular: str | None = None, threads: int | None = None, **given: Any,
    ) -> SwitchedSolution:  # fmt: skip
        """Solve as a Solver does, each state in its mode.

        active: {name: bool or (…)}; leading axes are those of the other arguments. Values of what is off do not count.

        Raises InvalidInput for switches of components, and if more than `MOST_MODES` are asked for; errors of a state
        name its mode. A mode that is singular whatever the state raises StructurallySingular.
        """
        self._policy(on_singular)
        arguments = Arguments.of(q, qd, known, given)
        rows = self._as_given(arguments)
        as_given = rows is not None
        if rows is None:
            rows = self._by_group(*self._inputs.checked(arguments))
        # copies, because callers may overwrite their arrays
        rows = rows._replace(arrays={slot: x.copy() for slot, x in rows.arrays.items()})
        inputs = partial(_checked, self._inputs, rows.arrays)
        by_mode = self._sorted(active, rows.lead)
        self._check_room(by_mode)
        for mode in by_mode:
            self._of(mode)  # compiled before any is solved

        def solved() -> dict[Mode, Part]:
            return {mode: Part(x, self._solved(mode, x, rows, on_singular, threads)) for mode, x in by_mode.items()}

        shapes = {name: (rows.n, group.size) for name, group in self._shown.items()}
        flat = self._buffers.arrays(shapes, self.options.kernel_real.dtype)
        found = Gathered(self._shown, rows.lead, [self._places[mode] for mode in by_mode], inputs, solved, flat)
        for mode, states in by_mode.items():
            left = self._spread(mode, states, rows, found, threads) if len(by_mode) > 1 and as_given else states
            if len(left):
                found.put(left, self._solved(mode, left, rows, on_singular, threads), self._places[mode])
        return SwitchedSolution(self._of_solutions, found)

    def _as_given(self, arguments: Arguments) -> Rows | None:
        """The arrays of a call if a kernel reads them as they are, of one state or of n; None for other values."""
        handed, values = arguments.handed()
        arrays, many, lead = {}, set(), ()
        for slot, x in zip(slots(handed), values, strict=True):
            shape = self._inputs.shape(slot)
            if shape is None or not is_readable_in_place(x):
                return None
            if slot[0] == "known":
                slot = ("quantities", self._inputs.positional[slot[1]])
            arrays[slot] = x
            if x.shape != shape:
                if x.shape[1:] != shape or (lead and x.shape[:1] != lead):
                    return None
                lead = x.shape[:1]
                many.add(slot)
        return Rows(arrays, frozenset(many), lead) if len(arrays) == len(values) else None

    def _by_group(self, arrays: dict[str, np.ndarray], lead: tuple[int, ...]) -> Rows:
        """Checked arrays by group; those that are defaults are left out."""
        found: dict[Slot, np.ndarray] = {}
        parameters = {p.name for p in self.problem.parameters}
        for name, x in arrays.items():
            role, owner = group_of(name)
            if x is not self._inputs.groups[name].default:
                found[("y", owner) if role == VALUE else ("parameters", name) if name in parameters
                      else (name, None) if name in ("q", "qd") else ("quantities", name)] = x  # fmt: skip
        return Rows(found, frozenset(slot for slot, x in found.items() if x.ndim == 2), lead)

    def _sorted(self, active: Named | None, lead: tuple[int, ...]) -> dict[Mode, np.ndarray]:
        """{mode: numbers of its states, ascending} of the states of a call."""
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
            # short integers are sorted by their digits, in one pass
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
        """(n,) 0 or 1 of each state. Raises InvalidInput."""
        if type(value) is np.ndarray and value.dtype == bool and value.shape == lead:
            return value.reshape(-1)
        x = as_array(f"active[{name!r}]", value)
        if x.dtype.kind != "b" and (x.dtype.kind not in "iuf" or not np.isin(x, (0, 1)).all()):
            raise InvalidInput(f"active[{name!r}] must be made of true and false (or 1 and 0)")
        whole, size = x, self._sizes[name]
        if x.shape == (*lead, size) and (x == x[..., :1]).all():  # as files of states have them
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
        """The solver of a mode, by its name."""
        return self._solvers.get(mode) or self.mode({name: name in mode for name in self._names})

    def _spread(self, mode: Mode, states: np.ndarray, rows: Rows, found: Gathered, threads: int | None) -> np.ndarray:
        """Solve the states of a mode without copies of their rows; the numbers of states that stay unsolved."""
        key = mode, tuple(rows.arrays)
        spreading = self._spreadings.get(key)
        if spreading is None:
            columns = {x: Columns(x, own, self._shown[x].size) for x, own in self._places[mode].items()}
            spreading = self._of(mode).spread(self._call(mode, rows.arrays), columns)
            if spreading is None:
                return states
            self._spreadings[key] = spreading
        status = spreading(rows.arrays, states, rows.n, found.flat, threads)
        return states if status is None else states[status != 0]

    def _call(self, mode: Mode, arrays: Mapping[Slot, np.ndarray]) -> Arguments:
        """The arguments of a call of a mode: without values of what is off."""
        idle = self._idle(mode)
        return Arguments((), (), (), {}).replaced((slot, x) for slot, x in arrays.items() if slot not in idle)

    def _idle(self, mode: Mode) -> set[Slot]:
        """The slots of values of constraints that are off."""
        return {("y", name) for name in self._names if name not in mode}

    def _solved(
        self, mode: Mode, states: np.ndarray, rows: Rows, on_singular: str | None, threads: int | None
    ) -> Solution:
        """The solution of the states of a mode. Raises as a call does, by the numbers of all states."""

        def solved(states: np.ndarray, on_singular: str | None) -> Solution:
            given = self._call(mode, rows.at(states))
            others: dict[str, Any] = {**given.quantities, "y": given.y, "parameters": given.parameters}
            return self._of(mode)(given.q, given.qd, on_singular=on_singular, threads=threads, **others)

        try:
            return solved(states, on_singular)
        except (SingularState, Inconsistent) as error:
            bad = states[list(error.states)] if error.states else states[:1]
            try:
                solved(bad[:1], "raise")
            except (SingularState, Inconsistent) as alone:
                at = f", state{at_states(bad, rows.n)}" if rows.n > 1 else ""
                alone.args, alone.states = (f"{self._words(mode)}{at}: {alone}",), tuple(bad.tolist())
                raise alone from None
            raise
        except InvalidInput:  # by the numbers of all states if one of these has an entry that cannot be
            own = np.zeros((rows.n, 1), dtype=bool)
            own[states] = True
            looked_at = {slot: x for slot, x in rows.arrays.items() if slot not in self._idle(mode)}
            switched = rows.many & {("y", name) for name in mode}
            looked_at |= {slot: np.where(own, rows.arrays[slot], 0.0) for slot in switched}
            whole = _checked(self._inputs, looked_at)
            self._inputs.groups.reject_not_finite(whole)
            reject_large_angles(self.model, np.atleast_2d(whole["q"]))
            raise

    # ---- words --------------------------------------------------------------------------------------------------

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

    def __getattr__(self, name: str) -> Any:
        """Raises for everything that has to do with one program."""
        chosen = ", ".join(f"{x!r}: True" for x in self.__dict__.get("_names", ()))
        raise ByMode(
            "a solver with switchable contacts has a program for each mode; bound calls, derivatives, export, files "
            f"and counts are those of one: solver.mode({{{chosen}}}) is an ordinary Solver (no attribute {name!r} here)"
        )

    def __reduce__(self):
        limits = self._inputs.check_limits
        return _restored, (self.problem, self.options, self._made, self.on_singular, limits, self.modes, self._places)


def _checked(inputs: Inputs, arrays: Mapping[Slot, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a call by group, with defaults, checked."""
    return inputs.checked(Arguments((), (), (), {}).replaced(arrays.items()))[0]


def _range(states: np.ndarray) -> slice | np.ndarray:
    """Numbers of states in ascending order, as a slice if they follow one another."""
    first, last = int(states[0]), int(states[-1])
    return slice(first, last + 1) if last - first + 1 == len(states) else states


def _restored(problem, options, made, on_singular, check_limits, solvers, places) -> SwitchingSolver:
    solver = SwitchingSolver(problem, options, made, on_singular, check_limits=check_limits)
    solver._solvers.update(solvers)
    solver._places.update(places)
    return solver
