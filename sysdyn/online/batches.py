"""Calls at many states: by a kernel that reads the arrays as they are, or in blocks of values that are converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.online.arguments import Slot
from sysdyn.online.double_double import DoubleDoubleFallback
from sysdyn.program.groups import Arrays
from sysdyn.runtime.native_calls import Argument, Batch, IndexedRows, batch
from sysdyn.runtime.runner import Runner
from sysdyn.runtime.threads import THREADS

# Most bytes of the values of a block: they stay in the cache until the kernel has read them (chosen).
BLOCK = 2**18


class _StateGroup(NamedTuple):
    """A group of inputs that arguments give. pieces: (number of an argument, its entries, the columns they are)."""

    columns: np.ndarray  # their numbers among the inputs
    turning: bool  # it has quaternions
    pieces: list[tuple[int, slice | np.ndarray, slice | np.ndarray]]


class Batches:
    """Calls of a program at many states, by arguments of the same names.

    normalised: gives q (n, nq) with unit quaternions, or raises InvalidInput.
    """

    def __init__(
        self, executable: Runner, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int],
        normalised: Callable[[np.ndarray], np.ndarray],
    ):  # fmt: skip
        self._executable, self._arguments = executable, arguments
        self._constants = constants.astype(executable.backend.real.dtype)
        self._quaternions, self._normalised = quaternions, normalised
        self._axes = [len(x.shape) for x in arguments]
        self._places = [_part(x.inputs) for x in arguments]

    @cached_property
    def _as_given(self) -> Batch | None:
        return batch(self._executable.backend, self._arguments, self._constants, self._quaternions)

    def solved(self, arrays: Sequence, threads: int | None) -> tuple[bool, Arrays, np.ndarray] | None:
        """(every status is 0, outputs, status (N,)); None if another way has to be taken: for one state, or errors.

        threads: as many as the batch is worth if None.
        """
        for x, axes in zip(arrays, self._axes, strict=True):
            if type(x) is np.ndarray and x.ndim > axes:
                n = len(x)
                break
        else:
            return None
        if n < 2:
            return None
        executable = self._executable
        outputs, status = executable.backend.allocate_results(n)
        threads = executable.choose_threads(n, threads)
        solved = None
        if self._as_given is not None:
            call = partial(self._as_given, outputs, status, tuple(arrays))
            solved = call() if threads == 1 else executable.run_work_stealing(n, threads, call)
        if solved is None and self._fit(n, arrays) and self._by_group is not None:
            solved = self._in_blocks(self._by_group, outputs, status, arrays, threads)
        return None if solved is None else (solved, outputs, status)

    def rows(self, arrays: Sequence, states: np.ndarray, turned: bool = False) -> np.ndarray:
        """All inputs (n, n_inputs) of some of the states that were computed, by number.

        turned: quaternions are normalised to the last bits.
        """
        found = np.empty((len(states), len(self._constants)))
        found[:] = self._constants
        for x, (shape, numbers, _), places in zip(arrays, self._arguments, self._places, strict=True):
            found[:, places] = (x if x.shape == shape else x[states]).reshape(-1, len(numbers))
        if len(self._quaternions) and not turned:
            q = self._executable.program.inputs.slices["q"]
            found[:, q] = self._normalised(found[:, q])
        return found

    def spread(
        self, slots: Sequence[Slot], columns: Mapping[str, Columns | None], again: DoubleDoubleFallback
    ) -> Spreading | None:  # fmt: skip
        """The call at rows of larger arrays; None if kernels do not read these as they are.

        slots: of the arguments. columns: {group of outputs: where its entries go}; None for one that is not wanted.
        again: solves states whose status is not 0.
        """
        if self._as_given is None:
            return None
        return Spreading(self._executable, self._as_given, self.rows, slots, columns, again)

    # ---- in blocks ------------------------------------------------------------------------------------------------

    def _fit(self, n: int, arrays: Sequence) -> bool:
        """True if these are arrays of real numbers, of one state or of n."""
        return all(
            type(x) is np.ndarray and x.dtype.kind in "fiu" and x.shape in (shape, (n, *shape))
            for x, (shape, *_) in zip(arrays, self._arguments, strict=True)
        )

    @cached_property
    def _groups(self) -> list[_StateGroup]:
        groups, begin = [], 0
        for size in self._executable.program.inputs.sizes.values():
            end, pieces = begin + size, []
            for k, argument in enumerate(self._arguments):
                numbers = argument.inputs
                entries = np.flatnonzero((begin <= numbers) & (numbers < end))
                if len(entries):
                    pieces.append((k, _part(entries), _part(numbers[entries] - begin)))
            if pieces:
                turning = any(begin <= x < end for x in self._quaternions)
                groups.append(_StateGroup(np.arange(begin, end), turning, pieces))
            begin = end
        return groups

    @cached_property
    def _by_group(self) -> Batch | None:
        whole = [Argument(group.columns.shape, group.columns) for group in self._groups]
        return batch(self._executable.backend, whole, self._constants, self._quaternions)

    def _in_blocks(
        self, call: Batch, outputs: Arrays, status: np.ndarray, arrays: Sequence, threads: int
    ) -> bool | None:  # fmt: skip
        """Solve states block by block, by values put together and converted.

        True if every status is 0, None for errors.
        """
        n, width, groups = len(status), self._executable.backend.width, self._groups
        many = [x.shape != argument.shape for x, argument in zip(arrays, self._arguments, strict=True)]
        varying = [any(many[k] for k, *_ in group.pieces) for group in groups]
        row = sum(
            self._constants.itemsize * len(x.columns) for x, varies in zip(groups, varying, strict=True) if varies
        )
        most = max(1, min(BLOCK // row, n // threads) // width) * width

        def space(rows: int) -> list[np.ndarray]:
            return [np.tile(self._constants[group.columns], (rows, 1)) for group in groups]

        def filled(group: _StateGroup, x: np.ndarray, own: slice) -> np.ndarray:
            for k, entries, columns in group.pieces:
                rows = arrays[k][own] if many[k] else arrays[k][None]
                x[:, columns] = rows.reshape(len(rows), -1)[:, entries]
            return self._normalised(x).astype(x.dtype, copy=False) if group.turning else x

        def solve() -> None:
            kept = space(most)
            for start in starts:  # that no thread has taken
                own = slice(start, min(start + most, n))
                given = tuple(
                    filled(group, x[: own.stop - start], own) if varies else one
                    for group, x, varies, one in zip(groups, kept, varying, shared, strict=True)
                )
                solved.append(call({name: x[own] for name, x in outputs.items()}, status[own], given))

        solved, starts = list[bool | None](), iter(range(0, n, most))
        try:
            shared = [filled(group, x, slice(1))[0] for group, x in zip(groups, space(1), strict=True)]
            THREADS.run([solve] * threads)
        except InvalidInput:
            return None  # the call itself says at which state
        return None if None in solved else all(solved)


class Columns(NamedTuple):
    """The columns of an array of `width` columns to which the entries of an output go."""

    of: str
    numbers: np.ndarray
    width: int


class Spreading:
    """Calls of a program at rows of larger arrays, whose results go to these rows of others."""

    def __init__(
        self, executable: Runner, call: Batch, inputs: Callable[[Sequence, np.ndarray, bool], np.ndarray],
        slots: Sequence[Slot], columns: Mapping[str, Columns | None], again: DoubleDoubleFallback,
    ):  # fmt: skip
        """columns: {group of outputs: the array that its entries go to, and where}; None for one that is left out.

        inputs: all of them at some of the states, see `Batches.rows`.
        """
        self._executable, self._call, self._inputs, self._again = executable, call, inputs, again
        self._slots = tuple(slots)
        self._places = {x: own for x, own in columns.items() if own is not None}
        program = executable.program
        groups = program.outputs.sizes.items()
        found = {x: columns[x] or Columns("", np.zeros(size, dtype=np.int64), 0) for x, size in groups}
        self._into = {x: own.of for x, own in found.items()}
        self._widths = np.array([own.width for own in found.values()], dtype=np.int64)
        self._columns = np.concatenate([own.numbers for own in found.values()])
        self._empty = np.empty((0, 0), executable.backend.real.dtype)

    def __call__(
        self, arrays: Mapping[Slot, np.ndarray], rows: np.ndarray, n: int, into: Mapping[str, np.ndarray],
        threads: int | None = None,
    ) -> np.ndarray | None:  # fmt: skip
        """The status of the states of these rows (k,) int64, out of n; None if another way has to be taken.

        arrays: by slot, of n states or of one. into: (n, columns) by name. Rows of states whose status is not 0, or
        that another way has to be taken for, may be written.
        """
        where = IndexedRows(n, rows, self._widths, self._columns)
        status = np.empty(len(rows), dtype=np.int64)
        outputs = {x: into[of] if of else self._empty for x, of in self._into.items()}
        threads = self._executable.choose_threads(len(rows), threads)
        given = tuple([arrays[x] for x in self._slots])
        call = partial(self._call, outputs, status, given, indexed=where)
        done = call() if threads == 1 else self._executable.run_work_stealing(len(rows), threads, call)
        if done is None:
            return None
        if not done and len(self._places) == len(self._into):
            self._solve_again(given, rows, into, status)
        return status

    def _solve_again(
        self, arrays: Sequence, rows: np.ndarray, into: Mapping[str, np.ndarray], status: np.ndarray
    ) -> None:  # fmt: skip
        """Solve states whose status is not 0 with more digits: results and status of these that count are replaced."""
        failed = (status != 0).nonzero()[0]
        states, bits = rows[failed], status[failed]
        places = {x: (into[own.of], (states[:, None], own.numbers)) for x, own in self._places.items()}
        outputs = {x: array[at] for x, (array, at) in places.items()}
        self._again.solve(self._inputs(arrays, states, True), outputs, bits, np.arange(len(failed)))
        for x, (array, at) in places.items():
            array[at] = outputs[x]
        status[failed] = bits


def _part(numbers: np.ndarray) -> slice | np.ndarray:
    """The numbers as a slice if they follow one another."""
    first = int(numbers[0]) if len(numbers) else 0
    end = first + len(numbers)
    return slice(first, end) if np.array_equal(numbers, np.arange(first, end)) else numbers
