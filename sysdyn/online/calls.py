"""Calls of a compiled program: with checks, and prepared ones without."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from sysdyn.backends.executable import Executable, Step, checked_threads
from sysdyn.diagnosis.diagnose import undetermined_at
from sysdyn.diagnosis.switches import Switches
from sysdyn.errors import InvalidInput, SingularState, UnknownName
from sysdyn.online.arguments import Arguments, Arrays, Inputs
from sysdyn.program.status import BAD_INPUT, BAD_PIVOT, LARGEST_ANGLE

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


class Calls(Generic[Key]):
    """A program and the arguments that it takes.

    results: {group of outputs: (what it is called in results, its shape at one state)}.
    """

    def __init__(self, inputs: Inputs, executable: Executable, results: Mapping[str, tuple[Key, tuple[int, ...]]]):
        self.inputs, self._executable, self._results = inputs, executable, dict(results)

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
            self.inputs.reject_not_finite(run.arrays)
        self.inputs.reject_large_angles(run.at(np.flatnonzero(run.status))["q"], LARGEST_ANGLE)

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
            fits = isinstance(x, np.ndarray) and x.dtype == np.float64 and x.shape == shapes[name]
            if not fits or not x.flags.c_contiguous or not x.flags.writeable:
                raise InvalidInput(
                    f"out[{name!r}] must be a writeable C-contiguous float64 array of shape {shapes[name]}"
                )
        return {key: given[key] if key in given else np.zeros(shape) for key, shape in shapes.items()}

    def _shaped(self, outputs: Arrays, lead: tuple[int, ...]) -> dict[Key, np.ndarray]:
        return {self._results[group][0]: x.reshape(lead + self._results[group][1]) for group, x in outputs.items()}
