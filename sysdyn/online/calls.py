"""Calls of a compiled program: with checks, and prepared ones without."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.backends.backend import Argument, Direct
from sysdyn.backends.executable import Executable, Step, checked_threads, reject_shared
from sysdyn.diagnosis.diagnose import undetermined_at
from sysdyn.diagnosis.switches import Switches
from sysdyn.errors import InvalidInput, SingularState, SysdynError, UnknownName
from sysdyn.measurements.groups import label_of
from sysdyn.online.arguments import Arguments, Inputs, Named
from sysdyn.online.batches import Batches
from sysdyn.program.groups import Arrays, is_plain
from sysdyn.program.status import BAD_INPUT, BAD_PIVOT
from sysdyn.reference.generic import reject_large_angles

# Calls by so many different names are arranged to go the shortest way.
MOST_LAYOUTS = 64
# Numbers from this one on stand for entries of arguments.
LABEL = 2.0**52
# Looked up once, as a call of one state takes a microsecond.
_empty = np.empty

Key = TypeVar("Key", bound=Hashable)


class Run(NamedTuple):
    """What a checked call computed at N states.

    arrays   {group of inputs: (size,) or (N, size)}
    lead     batch axes of the call, of product N
    outputs  {group of outputs: (N, size)}
    status   (N,) bits of `sysdyn.program.status`, zero where all went well
    """

    arrays: Arrays
    lead: tuple[int, ...]
    outputs: Arrays
    status: np.ndarray

    def at(self, states: np.ndarray) -> Arrays:
        """Inputs {group: (n, size)} of some of the states, by number."""
        n = len(self.status)
        return {name: np.broadcast_to(x, (n, x.shape[-1]))[states] for name, x in self.arrays.items()}


class Results(NamedTuple, Generic[Key]):
    """Outputs of a call with its axes; see `sysdyn.online.solution.Found`."""

    inputs: Arrays
    lead: tuple[int, ...]
    values: dict[Key, np.ndarray]
    ok: np.ndarray

    def value(self, key: Key) -> np.ndarray:
        return self.values[key]


class Row(Generic[Key]):
    """Results at one state that was solved: a row of outputs, then inputs, taken apart when it is looked at."""

    __slots__ = ("_layout", "_row")
    lead: tuple[int, ...] = ()
    ok = np.True_

    def __init__(self, layout: Layout[Key], row: np.ndarray):
        self._layout, self._row = layout, row

    def value(self, key: Key) -> np.ndarray:
        part, shape = self._layout.places[key]
        return self._row[part] if shape is None else self._row[part].reshape(shape)

    @property
    def values(self) -> dict[Key, np.ndarray]:
        row, places, alike = self._row, self._layout.places, self._layout.alike
        if alike is None:
            return {key: self.value(key) for key in places}
        part, shape = alike
        blocks, found = row[part].reshape(shape), {}
        for k, key in enumerate(places):  # faster than a comprehension, which is a call of its own
            found[key] = blocks[k]
        return found

    @property
    def inputs(self) -> Arrays:
        row = np.concatenate([self._row, self._layout.rest])
        return {name: row[part] for name, part in self._layout.input_places}

    def __reduce__(self):
        return Results, (self.inputs, self.lead, self.values, self.ok)


class Layout(NamedTuple, Generic[Key]):
    """How calls with the same names go the shortest way, at one state and at many.

    places: by output, where it is in a row of results, and its shape if it has several axes; input_places: where inputs
    are in such a row and `rest`, those after the last one that is given, put together. alike: where all outputs
    are, and the shape of the array that has them all, if their shapes are equal.
    """

    direct: Direct | None
    batches: Batches
    places: dict[Key, tuple[slice, tuple[int, ...] | None]]
    input_places: list[tuple[str, slice]]
    rest: np.ndarray
    alike: tuple[slice, tuple[int, ...]] | None

    def at(self, row: np.ndarray) -> Row[Key]:
        return Row(self, row)


class Many(Generic[Key]):
    """Results at many states, all of which were solved; inputs are looked at when they are asked for."""

    __slots__ = ("_arguments", "_calls", "_outputs", "lead")

    def __init__(self, calls: Calls[Key], arguments: tuple, n: int, outputs: Mapping[str, np.ndarray]):
        self._calls, self._arguments, self._outputs, self.lead = calls, arguments, outputs, (n,)

    @property
    def ok(self) -> np.ndarray:
        return np.ones(self.lead, dtype=bool)

    @property
    def values(self) -> dict[Key, np.ndarray]:
        return {key: self.value(key) for key in self._calls.groups}

    def value(self, key: Key) -> np.ndarray:
        group, shape = self._calls.groups[key]
        x = self._outputs[group]
        return x if len(shape) == 1 else x.reshape(self.lead + shape)

    @property
    def inputs(self) -> Arrays:
        return self._calls.inputs.checked(Arguments(*self._arguments))[0]

    def __reduce__(self):
        return Results, (self.inputs, self.lead, self.values, self.ok)


class Calls(Generic[Key]):
    """A program and the arguments that it takes.

    results: {group of outputs: (what it is called in results, its shape at one state)}.
    """

    def __init__(self, inputs: Inputs, executable: Executable, results: Mapping[str, tuple[Key, tuple[int, ...]]]):
        self.inputs, self._executable, self._results = inputs, executable, dict(results)
        self.groups = {key: (group, shape) for group, (key, shape) in self._results.items()}
        self._layouts: dict[Hashable, Layout[Key] | None] = {}  # by the names of a call's arguments
        # calls of one state, with the length of a row and the layout: by the number of known quantities where there are
        # no others; with y in a dict, by both numbers
        self.plain: dict[Hashable, tuple[Callable[..., bool | None], int, Layout[Key]]] = {}
        program = executable.program
        begins = np.cumsum([0, *(size for _, size in (*program.output_groups, *program.input_groups))]).tolist()
        parts = [*itertools.starmap(slice, itertools.pairwise(begins))]
        n = len(program.output_groups)
        shown = (self._results[name] for name, _ in program.output_groups)
        self._places = {
            key: (part, shape if len(shape) > 1 else None) for (key, shape), part in zip(shown, parts[:n], strict=True)
        }
        shapes = [shape for _, shape in self._results.values()]
        same = all(shape == shapes[0] for shape in shapes)
        self._alike = (slice(program.n_outputs), (len(shapes), *shapes[0])) if same else None
        self._input_places = [(name, part) for (name, _), part in zip(program.input_groups, parts[n:], strict=True)]

    # ---- one state ------------------------------------------------------------------------------------------------

    def shortest(
        self, q: ArrayLike, qd: ArrayLike, known: tuple[ArrayLike, ...], quantities: Named, y: Named | ArrayLike | None,
        threads: int | None,
    ) -> Row[Key] | Many[Key] | None:  # fmt: skip
        """Results by the shortest way; None where a call takes another: lists to convert, states to look at.

        Calls with the same names are arranged once. Raises InvalidInput where `threads` is no number of threads.
        """
        if threads is not None:
            checked_threads(threads)
        key: Hashable
        if y is None and not quantities:
            key, arrays = len(known), (q, qd, *known)
        elif type(y) is dict:
            key, arrays = (len(known), *quantities, None, *y), (q, qd, *known, *quantities.values(), *y.values())
        else:
            key = (len(known), *quantities, y is None)
            arrays = (q, qd, *known, *quantities.values(), *(() if y is None else (y,)))
        try:
            layout = self._layouts[key]
        except KeyError:
            layout = self._arranged(key, arrays, len(known), quantities, y)
        if layout is None or layout.direct is None:
            return None
        solved = None
        if type(q) is not np.ndarray or q.ndim == 1:
            call, length, _ = layout.direct
            row = _empty(length)
            solved = call(row, arrays, None)
            if solved:
                return Row(layout, row)
        if solved is None and (found := layout.batches.solved(arrays, threads)) is not None:
            return Many(self, (q, qd, known, quantities, y), *found)
        return None

    def _arranged(
        self, key: Hashable, arrays: tuple[ArrayLike, ...], known: int, quantities: Named, y: Named | ArrayLike | None
    ) -> Layout[Key] | None:
        """How calls with the names of this one go the shortest way; None where they do not.

        arrays: q, q̇, `known` quantities by position, those by keyword, and y.
        """
        program = self._executable.program
        shapes = self._shapes(arrays, known, quantities, y)
        if len(self._layouts) >= MOST_LAYOUTS or shapes is None:
            return None
        self._layouts[key] = None
        # every entry is a number of its own: where it is found says where it goes
        sizes = [math.prod(shape) for shape in shapes]
        labels, ends = LABEL + np.arange(sum(sizes)), np.cumsum(sizes)[:-1]
        x = [part.reshape(shape) for part, shape in zip(np.split(labels, ends), shapes, strict=True)]
        first, last = 2 + known, 2 + known + len(quantities)
        named = dict(zip(quantities, x[first:last], strict=True))
        values = dict(zip(y, x[last:], strict=True)) if isinstance(y, dict) else x[last] if x[last:] else None
        try:
            found, _ = self.inputs.arranged(Arguments(x[0], x[1], tuple(x[2:first]), named, values))
        except SysdynError:
            return None  # the call itself says why
        flat = np.concatenate([found[name].reshape(-1) for name, _ in program.input_groups])
        places = np.argsort(flat, kind="stable")[-len(labels) :]
        if not np.array_equal(flat[places], labels):
            return None
        begin = next(part.start for name, part in self._input_places if name == "q") - program.n_outputs
        keys = [None] * last + [*y] if isinstance(y, dict) else [None] * len(shapes)
        arguments = [*map(Argument, shapes, np.split(places, ends), keys)]
        constants, quaternions = np.where(flat < LABEL, flat, 0.0), [begin + x.start for x in self.inputs.quaternions]
        direct = self._executable.backend.direct(arguments, constants, quaternions)
        batches = Batches(self._executable, arguments, constants, quaternions, self.inputs.model.normalise)
        rest = constants[direct.length - program.n_outputs :] if direct else constants
        self._layouts[key] = layout = Layout(direct, batches, self._places, self._input_places, rest, self._alike)
        if direct and not quantities and (y is None or isinstance(y, dict)):
            self.plain[known if y is None else (known, len(y))] = direct.call, direct.length, layout
        return layout

    def _shapes(
        self, arrays: tuple[ArrayLike, ...], known: int, quantities: Named, y: Named | ArrayLike | None
    ) -> list[tuple[int, ...]] | None:
        """The shapes of these arguments at one state; None where they are of others or not known."""
        inputs = self.inputs
        names = ["q", "qd", *inputs.positional[:known], *quantities]
        expected = [inputs.groups[name].shape for name in names if name in inputs.groups]
        if isinstance(y, dict):
            expected += [(inputs.measurements[name][1],) for name in y if name in inputs.measurements]
        elif y is not None:
            expected.append((sum(size for _, size in inputs.measurements.values()),))
        if len(expected) != len(arrays):
            return None
        found = []
        for x, shape in zip(arrays, expected, strict=True):
            flat = (math.prod(shape),)
            if type(x) is not np.ndarray or not x.size:
                return None
            fitting = [own for own in (shape, flat) if own in (x.shape, x.shape[1:])]
            if not fitting:
                return None
            found.append(fitting[0])
        return found

    # ---- any number of states -------------------------------------------------------------------------------------

    def run(self, arguments: Arguments, threads: int | None) -> Run:
        """The program at the states of a call. Raises InvalidInput naming the argument."""
        if threads is not None:
            checked_threads(threads)
        arrays, lead = self.inputs.checked(arguments)
        run = Run(arrays, lead, *self._executable.results(arrays, math.prod(lead), threads))
        if self.inputs.switches:
            run.status[self._switches.lacking(arrays, len(run.status))] |= BAD_PIVOT
        return run

    @cached_property
    def _switches(self) -> Switches:
        return Switches(self.inputs.problem.system())

    def reject_bad_inputs(self, run: Run) -> None:
        """Raise InvalidInput where an input is why states were not solved."""
        if (run.status & BAD_INPUT).any():
            self.inputs.groups.reject_not_finite(run.arrays)
        reject_large_angles(self.inputs.model, run.at(np.flatnonzero(run.status))["q"])

    def results(self, run: Run) -> dict[Key, np.ndarray]:
        """Outputs with the axes of the call and of the quantity."""
        return self._shaped(run.outputs, run.lead)

    def bind(self, arguments: Arguments, threads: int, out: object = None) -> Step:
        """A prepared call that reads the arrays of the arguments, and writes `out` or arrays of its own."""
        self._executable.require_binding()
        checked_threads(threads)
        arrays, lead = self.inputs.in_place(arguments)
        self._require_switches(arrays, math.prod(lead))
        shown, n = self._outputs(out, lead), math.prod(lead)
        reject_shared({label_of(x): a for x, a in arrays.items()} | {f"out[{x!r}]": a for x, a in shown.items()})
        flat = {group: shown[key].reshape(n, math.prod(shape)) for group, (key, shape) in self._results.items()}
        return self._executable.step(arrays, flat, np.zeros(n, dtype=np.int64), shown, single=not lead, threads=threads)

    def _require_switches(self, arrays: Arrays, n: int) -> None:
        """Raise SingularState where something is undetermined with what is switched off."""
        if not self.inputs.switches:
            return
        lacking = np.flatnonzero(self._switches.lacking(arrays, n))
        if len(lacking):
            found = {name: np.broadcast_to(x, (n, x.shape[-1]))[lacking[:1]] for name, x in arrays.items()}
            free = undetermined_at(self.inputs.problem.system(), found)
            raise SingularState(f"{free}: switch some of them on", states=tuple(lacking.tolist()))

    def _outputs(self, out: object, lead: tuple[int, ...]) -> dict[Key, np.ndarray]:
        """Arrays of the results: of those of `out`, and new ones."""
        shapes = {key: lead + shape for key, shape in self._results.values()}
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
            if not is_plain(x) or not x.flags.writeable or x.shape != shapes[name]:
                raise InvalidInput(
                    f"out[{name!r}] must be a writeable C-contiguous float64 array of shape {shapes[name]}, not masked"
                )
        return {key: given[key] if key in given else np.zeros(shape) for key, shape in shapes.items()}

    def _shaped(self, outputs: Arrays, lead: tuple[int, ...]) -> dict[Key, np.ndarray]:
        return {self._results[group][0]: x.reshape(lead + self._results[group][1]) for group, x in outputs.items()}
