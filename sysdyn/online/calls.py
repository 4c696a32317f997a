"""Calls of a compiled program: with checks, and prepared ones without."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from sysdyn.diagnosis.diagnose import undetermined_at
from sysdyn.diagnosis.switches import Switches
from sysdyn.errors import InvalidInput, SingularState, SysdynError, UnknownName
from sysdyn.measurements.groups import label_of, switch_group, value_group
from sysdyn.measurements.noise import FAR
from sysdyn.online.arguments import Arguments, Inputs, Slot, slots
from sysdyn.online.batches import Batches, Columns, Spreading
from sysdyn.online.double_double import DoubleDoubleFallback
from sysdyn.program.arrays import is_readable_in_place
from sysdyn.program.opcodes import BAD_INPUT, BAD_PIVOT, WEAK_PIVOT
from sysdyn.reference.generic import reject_large_angles
from sysdyn.runtime.native import extension
from sysdyn.runtime.native_calls import Argument, CallPattern, ResultLayout, single_state_call
from sysdyn.runtime.runner import BoundCall, Runner, check_threads, require_disjoint

# Most sets of names whose calls are arranged to go the shortest way (chosen).
MOST_LAYOUTS = 64
# Least number that stands for an entry of an argument, to find its place: doubles hold such integers exactly.
LABEL = 2.0**52

Key = TypeVar("Key", bound=Hashable)


class Run(NamedTuple):
    """Results of a checked call at N states.

    arrays   {group of inputs: (size,) or (N, size)}
    lead     batch axes of the call, of product N
    outputs  {group of outputs: (N, size)}
    status   (N,) bits of `sysdyn.program.opcodes`, zero if all went well
    """

    arrays: dict[str, np.ndarray]
    lead: tuple[int, ...]
    outputs: dict[str, np.ndarray]
    status: np.ndarray

    def at(self, states: np.ndarray) -> dict[str, np.ndarray]:
        """Inputs {group: (n, size)} of some of the states, by number."""
        return {name: self.of(name, states) for name in self.arrays}

    def of(self, name: str, states: np.ndarray) -> np.ndarray:
        """Inputs (n, size) of a group at some of the states, by number."""
        x = self.arrays[name]
        return x[states] if x.ndim == 2 else np.tile(x, (len(states), 1))


class Results(NamedTuple, Generic[Key]):
    """Outputs of a call with its axes; see `sysdyn.online.solution.Found`."""

    inputs: dict[str, np.ndarray]
    lead: tuple[int, ...]
    values: dict[Key, np.ndarray]
    ok: Any
    again: np.ndarray | None = None


def kept(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies of inputs, to be kept by a result: callers may overwrite their arrays."""
    return {name: x.copy() for name, x in inputs.items()}


class Many(Generic[Key]):
    """Results of a batch of states; its inputs are checked and converted when a request needs them.

    key: of the call, see `Calls._way`. arrays: its arguments, copied if `Calls.keeps` or if the program did not solve
    every state. Otherwise no copies are made, because they take up to a third of the time of a call: a request for the
    inputs then solves the batch once more, to check that the caller has not overwritten the arrays.
    """

    def __init__(
        self, calls: Calls[Key], key: tuple[Any, ...], batches: Batches, arrays: list[np.ndarray], n: int,
        outputs: Mapping[str, np.ndarray], again: np.ndarray | None = None,
    ):  # fmt: skip
        self._calls, self._key, self._batches = calls, key, batches
        self._copied = calls.keeps or again is not None
        self._arrays = [x.copy() for x in arrays] if self._copied else arrays
        self._inputs: dict[str, np.ndarray] | None = None
        self._outputs, self.lead, self.again = outputs, (n,), again

    @property
    def ok(self) -> np.ndarray:
        return np.ones(self.lead, dtype=bool)

    @cached_property
    def values(self) -> dict[Key, np.ndarray]:
        return {
            key: self._outputs[group].reshape(self.lead + shape) for key, (group, shape) in self._calls.groups.items()
        }

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        """The inputs of the call. Raises InvalidInput if the caller has overwritten arrays that were not copied."""
        if self._inputs is None:
            if not self._copied:
                self._require_unchanged()
            *_, names, active = self._key
            arguments = Arguments((), (), (), {}, active=dict(active) if active else None)
            arguments = arguments.replaced(zip(slots(names), self._arrays, strict=True))
            found, _ = self._calls.inputs.checked(arguments)
            self._inputs = found if self._copied else kept(found)
        return self._inputs

    def _require_unchanged(self) -> None:
        """Raise InvalidInput if solving the arrays once more gives other results."""
        solved = self._batches.solved(self._arrays, 1)
        if solved is None or not all(np.array_equal(x, self._outputs[name]) for name, x in solved[1].items()):
            raise InvalidInput(
                "arrays of this call, or of its results, have changed since, and this request needs both: make it "
                "before they change, pass copies, or compile with outputs='all', whose solutions keep copies"
            )

    def __reduce__(self):
        return Results, (self.inputs, self.lead, self.values, self.ok, self.again)


class Calls(Generic[Key]):
    """A program and the arguments that it takes.

    results: {group of outputs: (its key in results, its shape at one state)}. keeps: results of batches store copies of
    the arguments of their call. policy: `on_singular` of calls by default.
    """

    def __init__(
        self, inputs: Inputs, executable: Runner, results: Mapping[str, tuple[Key, tuple[int, ...]]],
        keeps: bool = False, policy: str | None = None,
    ):  # fmt: skip
        self.keeps, self._policy = keeps, policy
        self.inputs, self._executable, self._results = inputs, executable, dict(results)
        self.groups = {key: (group, shape) for group, (key, shape) in self._results.items()}
        self._batches: dict[Hashable, Batches | None] = {}
        self.single_state: list[extension.SingleStateCall] = []  # by objects like those of earlier calls

    # ---- the shortest way -----------------------------------------------------------------------------------------

    def shortest(
        self, given: Arguments, threads: int | None, on_singular: str | None, make: type, about: object = None,
        again: DoubleDoubleFallback | None = None,
    ) -> Many[Key] | None:  # fmt: skip
        """Results at many states by the shortest way; None if a call takes another: errors, values to convert.

        Calls with the same names are arranged once, and those of one state are in `single_state` from then on.
        make, about: of their results, see `ResultLayout`. again: solves states whose status is not 0; None: another way
        has to. Raises InvalidInput if `threads` is no number of threads.
        """
        batches, arrays, key = self._way(given, threads, on_singular, make, about)
        if batches is None or (solved := batches.solved(arrays, threads)) is None:
            return None
        every, outputs, status = solved
        if every:
            return Many(self, key, batches, arrays, len(status), outputs)
        failed = (status != 0).nonzero()[0]  # nine times as fast as that of integers
        if again is None or not again.solve(batches.rows(arrays, failed), outputs, status, failed):
            return None
        marked = np.zeros(len(status), dtype=bool)
        marked[failed] = True
        return Many(self, key, batches, arrays, len(status), outputs, marked)

    def spread(
        self, given: Arguments, columns: Mapping[Key, Columns], make: type, about: object, again: DoubleDoubleFallback
    ) -> Spreading | None:  # fmt: skip
        """The call by arrays like these, at rows of them; None if they have to be solved another way.

        columns: by what outputs are called in results; those that it lacks are left out. make, about, again: as of
        `shortest`.
        """
        batches, *_ = self._way(given, None, None, make, about)
        groups = {group: columns.get(key) for group, (key, _) in self._results.items()}
        return None if batches is None else batches.spread(slots(given.handed()[0]), groups, again)

    def _way(
        self, given: Arguments, threads: int | None, on_singular: str | None, make: type, about: object
    ) -> tuple[Batches | None, list[Any], tuple[Any, ...]]:
        """(prepared batch call, None if there is none; its arrays; its cache key (…, names of arrays, switches))."""
        if threads is not None:
            check_threads(threads)
        noise, active = given.noise, given.active
        if noise is not None:
            noises = self.inputs.noises
            if type(noise) is not dict or any(x not in noises or noises[x].full for x in noise):
                return None, [], ()
        if active is not None and (type(active) is not dict or any(type(x) is not bool for x in active.values())):
            return None, [], ()
        handed, arrays = given.handed()
        key = (threads, on_singular, handed, None if active is None else tuple(active.items()))
        try:
            batches = self._batches[key]
        except KeyError:
            values = dict(zip(slots(handed), arrays, strict=True))
            pattern = given.pattern(
                {"on_singular": on_singular, "threads": threads}, {"on_singular": self._policy, "threads": None}
            )
            batches = self._arranged(key, given, values, pattern, make, about)
        return batches, arrays, key

    def _arranged(
        self,
        key: Hashable,
        given: Arguments,
        arrays: Mapping[Slot, Any],
        pattern: CallPattern,
        make: type,
        about: object,
    ) -> Batches | None:
        """The shortest way for calls with the names of this one; None if there is none."""
        program = self._executable.program
        fitting = (_fitting(x, self.inputs.shape(slot)) for slot, x in arrays.items())
        shapes = [shape for shape in fitting if shape is not None]
        if len(self._batches) >= MOST_LAYOUTS or len(shapes) < len(arrays):
            return None
        self._batches[key] = None
        state = [np.asarray(x) for x in (given.q, given.qd)]
        self.inputs.look_at(*state)
        self.inputs.look_at_followers(*state)
        # every entry is a number of its own: where it is found says where it goes
        sizes = [math.prod(shape) for shape in shapes]
        labels, ends = LABEL + np.arange(sum(sizes)), np.cumsum(sizes)[:-1]
        parts = (part.reshape(shape) for part, shape in zip(np.split(labels, ends), shapes, strict=True))
        try:
            found, _ = self.inputs.arranged(given.replaced(zip(arrays, parts, strict=True)))
        except SysdynError:
            return None  # the call itself says why
        noises = [self.inputs.noises[name] for name in given.noise or ()]
        found |= {noise.group: np.sqrt(found[noise.group]) for noise in noises}  # exactly what was squared
        flat = np.concatenate([found[name].reshape(-1) for name in program.inputs])
        found_at = np.argsort(flat, kind="stable")[len(flat) - len(labels) :]
        deficient = given.active and self._switches.undetermined_mask(found, 1).any()
        if deficient or not np.array_equal(flat[found_at], labels):
            return None
        begins = {name: part.start for name, part in program.inputs.slices.items()}
        arguments = [*map(Argument, shapes, np.split(found_at, ends))]
        for k, (field, name) in enumerate(arrays):
            if field == "noise":
                declared = self.inputs.noises[name].declared  # far covariances are solved with pivoting
                arguments[k] = arguments[k]._replace(std_bounds=(np.sqrt(declared / FAR), np.sqrt(declared * FAR)))
        constants = np.where(flat < LABEL, flat, 0.0)
        quaternions = [begins["q"] + x.start for x in self.inputs.quaternions]
        nan_to_zero = [
            begins[value_group(name)] + k
            for name in self.inputs.switches for k in np.flatnonzero(found[switch_group(name)] == 0.0).tolist()
        ]  # fmt: skip
        keys, shapes_of_results = zip(*(self._results[group] for group in program.outputs), strict=True)
        n_quantities = sum(key in self.inputs.problem.quantities for key in keys)
        results = ResultLayout(make, keys, shapes_of_results, about, n_quantities)
        call = single_state_call(
            self._executable.backend, arguments, constants, quaternions, pattern, results, nan_to_zero
        )
        if call is not None:
            self.single_state.append(call)
        if noises:  # of many states variances are put together the general way
            return None
        self._batches[key] = batches = Batches(
            self._executable, arguments, constants, quaternions, self.inputs.model.normalise
        )
        return batches

    # ---- any number of states -------------------------------------------------------------------------------------

    def run(self, arguments: Arguments, threads: int | None) -> Run:
        """The program at the states of a call. Raises InvalidInput naming the argument."""
        if threads is not None:
            check_threads(threads)
        arrays, lead = self.inputs.checked(arguments)
        run = Run(arrays, lead, *self._executable.results(arrays, math.prod(lead), threads))
        for name in arguments.noise or ():
            noise = self.inputs.noises[name]
            run.status[np.broadcast_to(noise.is_far(arrays[noise.group]), len(run.status))] |= WEAK_PIVOT
        if self.inputs.switches:
            run.status[self._switches.undetermined_mask(arrays, len(run.status))] |= BAD_PIVOT
        return run

    @cached_property
    def _switches(self) -> Switches:
        return Switches(self.inputs.problem.system())

    def reject_bad_inputs(self, run: Run) -> None:
        """Raise InvalidInput if states were not solved because of an input."""
        if (run.status & BAD_INPUT).any():
            self.inputs.groups.reject_not_finite(run.arrays)
        reject_large_angles(self.inputs.model, run.of("q", np.flatnonzero(run.status)))

    def results(self, run: Run) -> dict[Key, np.ndarray]:
        """Outputs with the axes of the call and of the quantity."""
        return self._shaped(run.outputs, run.lead)

    def bind(self, arguments: Arguments, threads: int, out: object = None) -> BoundCall:
        """A prepared call that reads the arrays of the arguments, and writes `out` or arrays of its own."""
        self._executable.require_binding()
        check_threads(threads)
        arrays, lead = self.inputs.in_place(arguments, self._executable.backend.real.dtype)
        self._require_switches(arrays, math.prod(lead))
        shown, n = self._outputs(out, lead), math.prod(lead)
        require_disjoint({label_of(x): a for x, a in arrays.items()} | {f"out[{x!r}]": a for x, a in shown.items()})
        flat = {group: shown[key].reshape(n, math.prod(shape)) for group, (key, shape) in self._results.items()}
        return self._executable.bind(arrays, flat, np.zeros(n, dtype=np.int64), shown, single=not lead, threads=threads)

    def _require_switches(self, arrays: dict[str, np.ndarray], n: int) -> None:
        """Raise SingularState if something is undetermined with the components that are switched off."""
        if not self.inputs.switches:
            return
        lacking = np.flatnonzero(self._switches.undetermined_mask(arrays, n))
        if len(lacking):
            found = {name: np.broadcast_to(x, (n, x.shape[-1]))[lacking[:1]] for name, x in arrays.items()}
            free = undetermined_at(self.inputs.problem.system(), found)
            raise SingularState(
                f"{free or 'too few sensors are on'}: switch some of them on", states=tuple(lacking.tolist())
            )

    def _outputs(self, out: object, lead: tuple[int, ...]) -> dict[Key, np.ndarray]:
        """dict[str, np.ndarray] of the results: the given ones of `out`, new ones for all others."""
        shapes, dtype = (
            {key: lead + shape for key, shape in self._results.values()},
            self._executable.backend.real.dtype,
        )
        if out is None:
            given: Mapping = {}
        elif isinstance(out, Mapping):
            given = out
        elif len(shapes) == 1:
            given = {next(iter(shapes)): out}
        else:
            raise InvalidInput(f"out must be a dict with {', '.join(map(str, shapes))}: the solver has several outputs")
        for name, x in given.items():
            if name not in shapes:
                raise UnknownName("output", name, [str(key) for key in shapes])
            if not is_readable_in_place(x, dtype) or not x.flags.writeable or x.shape != shapes[name]:
                raise InvalidInput(
                    f"out[{name!r}] must be a writeable C-contiguous {dtype.name} array of shape {shapes[name]}, not "
                    "masked"
                )
        return {key: given[key] if key in given else np.zeros(shape, dtype) for key, shape in shapes.items()}

    def _shaped(self, outputs: dict[str, np.ndarray], lead: tuple[int, ...]) -> dict[Key, np.ndarray]:
        return {self._results[group][0]: x.reshape(lead + self._results[group][1]) for group, x in outputs.items()}


def _fitting(x: Any, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The shape of an argument at one state, flat if it was handed in so; None if it has another one."""
    if shape is None or type(x) is float:  # a standard deviation
        return shape
    if type(x) in (list, tuple):
        return shape if _dimensions(x) == shape else None
    if type(x) is not np.ndarray or not x.size:
        return None
    flat = (math.prod(shape),)
    return next((own for own in (shape, flat) if own in (x.shape, x.shape[1:])), None)


def _dimensions(x: Any) -> tuple[int, ...]:
    """Lengths of nested lists and tuples, those of their first entries."""
    return (len(x), *_dimensions(x[0])) if type(x) in (list, tuple) and len(x) else ()
