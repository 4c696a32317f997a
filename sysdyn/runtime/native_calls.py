"""Calls of compiled kernels on NumPy arrays by the C extension: bound, of one state, and of a batch.

The module also runs programs in double-double arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from sysdyn.program.groups import Arrays
from sysdyn.program.program import Program
from sysdyn.runtime.backend import Backend
from sysdyn.runtime.kernel import Kernel, address, words
from sysdyn.runtime.native import extension
from sysdyn.runtime.real import DOUBLE
from sysdyn.sparse.twice import Twice

# Most operations of a program whose calls at one state hold the interpreter's lock: some 0.1 ms.
MAX_OPS_UNDER_GIL = 400_000
# States whose quaternions are checked before these states are computed, while they are in the cache (chosen).
STATES_PER_QUATERNION_CHECK = 1024
AXES = 4  # Most axes of an array, as in native.h.
INDEXED, BROADCAST_SCALAR = 1, 2  # How an argument is read, as in native.h.

Function = TypeVar("Function", bound=Callable)


class Argument(NamedTuple):
    """An array argument: its shape at one state, and the number of the program's input for each entry.

    std_bounds: for standard deviations, whose squares are the inputs: their (lower, upper) bounds, each of the array's
    size. One float may replace the array.
    """

    shape: tuple[int, ...]
    inputs: np.ndarray
    std_bounds: tuple[np.ndarray, np.ndarray] | None = None


class ResultLayout(NamedTuple):
    """Form of the results of a call of one state.

    make: dict or tuple of arrays with these keys and shapes, ndarray for the only one of them; or, if `about` is not
    None, a subclass of RowResult, which gets it as `_about`, and as `_row` all outputs and then inputs.
    """

    make: type
    keys: tuple[Hashable, ...]
    shapes: tuple[tuple[int, ...], ...]
    about: object = None


class CallPattern(NamedTuple):
    """Positional and keyword arguments of a call of one state; defaults: values of further keywords.

    Ellipsis represents the next array argument (also lists and tuples of numbers). Dicts are matched name by name,
    texts by value, other objects by identity.
    """

    by_position: tuple[Any, ...]
    by_name: dict[str, Any]
    defaults: dict[str, Any]


def fast_call(general: Function) -> Function:
    """Decorate `__call__`: it first tries the native calls of one state in the list `fast_calls`."""

    @functools.wraps(general)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        result = extension.run_single_state(self.fast_calls, arguments, named)
        return general(self, *arguments, **named) if result is None else result

    return cast(Function, call)


def runs_under_gil(program: Program) -> bool:
    """True if calls of one state keep the GIL: the program is so short that other threads do not wait long."""
    return len(program) <= MAX_OPS_UNDER_GIL


# ---- prepared -----------------------------------------------------------------------------------------------------


def prepared(
    backend: Backend, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int, single: bool
) -> tuple[Callable[[], None], object]:
    """(call without arguments that runs these states, objects that must live as long as the call).

    single: one state; the call then keeps the GIL if `runs_under_gil`.
    """
    kernel = backend.kernel(single)
    assert kernel, "the back end has machine code"
    alone = single and runs_under_gil(backend.program)
    array, work = kernel.shared_work if alone else kernel.work()
    own = words(backend.program, work, inputs, outputs, status, start)
    call: Callable[[], None]
    if alone:
        call = extension.prepared(kernel.address, address(own), size)
    else:
        call = partial(kernel.run, own, size)
    return call, (kernel, array, own)


# ---- one state ----------------------------------------------------------------------------------------------------


def single_state_call(
    backend: Backend, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int],
    pattern: CallPattern, results: ResultLayout, nan_to_zero: Sequence[int] = (),
) -> extension.SingleStateCall | None:  # fmt: skip
    """Native call of one state for arguments that match a pattern; None for a back end without kernels.

    arguments: array arguments in the order of the pattern. constants (n_inputs,): values of all other inputs.
    quaternions: numbers of the inputs at which unit quaternions begin; norms within 1e-6 of 1 are normalised.
    nan_to_zero: numbers of the inputs that are replaced by 0 if they are not finite.

    The call returns None if an object does not match, a quaternion has another norm, or the status is not 0.
    """
    program, kernel = backend.program, backend.kernel(True) if backend.real is DOUBLE else None
    if (
        not kernel
        or not runs_under_gil(program)
        or any(len(x) > AXES for x in (*results.shapes, *(y.shape for y in arguments)))
    ):
        return None
    array, work = kernel.shared_work
    row = np.zeros(program.n_outputs + program.n_inputs)  # of which only the layout matters
    outputs, inputs = np.split(row, [program.n_outputs])
    own = words(program, work, _parts(program.inputs.slices, inputs), _parts(program.outputs.slices, outputs),
                np.zeros(1, dtype=np.int64))  # fmt: skip
    pointers = [(2 + 2 * k, (own[2 + 2 * k] - address(row)) // row.itemsize) for k in range(len(own) // 2 - 1)]
    # inputs behind the last group that a call writes stay in the constants
    last = max((0, *(int(x.inputs.max()) for x in arguments if x.inputs.size), *quaternions, *nan_to_zero))
    n_inputs = max((x.stop for x in program.inputs.slices.values() if x.start <= last), default=0)
    constants = np.ascontiguousarray(constants, dtype=float)
    for word, place in pointers:
        if place >= program.n_outputs + n_inputs:
            own[word] = address(constants) + (place - program.n_outputs) * constants.itemsize
    pointers = [(word, place) for word, place in pointers if place < program.n_outputs + n_inputs]
    records, places, squared = [], list[int](), list[tuple[float, ...]]()
    for shape, numbers, bounds in arguments:
        how = bool((np.diff(numbers) != 1).any()) * INDEXED + bool(bounds) * BROADCAST_SCALAR
        records.append((*_axes(shape), numbers.size, len(places), how))
        places += numbers.tolist()
        squared += zip(numbers, *bounds, strict=True) if bounds else ()
    begins = [part.start for part in program.outputs.slices.values()]
    return extension.SingleStateCall(
        kernel=kernel.address, words=own, pointers=_table(pointers, 2), arguments=_table(records, AXES + 4),
        places=_table([*places, 0], 1), constants=constants, quaternions=_table(quaternions, 1),
        nan_to_zero=_table(nan_to_zero, 1), squared=np.array(squared, dtype=float).reshape(-1, 3),
        outputs=_table([(*_axes(x), begin) for x, begin in zip(results.shapes, begins, strict=True)], AXES + 2),
        n_outputs=program.n_outputs, n_inputs=n_inputs, by_position=pattern.by_position, by_name=pattern.by_name,
        defaults=pattern.defaults, keys=results.keys, make=results.make, about=results.about, owner=(kernel, array),
    )  # fmt: skip


# ---- many states --------------------------------------------------------------------------------------------------


class IndexedRows(NamedTuple):
    """Rows and columns of larger arrays that a batch reads and writes.

    total: number of rows of the arrays. rows (n,): rows of the batch. widths: number of columns of each output array, 0
    if it is not written. columns: column of each output, output by output.
    """

    total: int
    rows: np.ndarray
    widths: np.ndarray
    columns: np.ndarray


class Batch:
    """Native call of N states that reads the caller's arrays in place.

    words: of the kernel; inputs without an argument point to constants. quaternions: (word, first entry in a row) of
    each. keep: object that must live as long.
    """

    def __init__(self, kernel: Kernel, words: np.ndarray, targets: np.ndarray, quaternions: np.ndarray, keep: object):
        most = STATES_PER_QUATERNION_CHECK if len(quaternions) else 2**62
        self._kernel, self._keep = kernel, keep
        self._call = partial(extension.batch, kernel.address, words, targets, quaternions, most)

    def __call__(
        self, outputs: Arrays, status: np.ndarray, arrays: tuple, queue: np.ndarray | None = None,
        indexed: IndexedRows | None = None,
    ) -> bool | None:  # fmt: skip
        """True if every status is 0; outputs by group (N, size), status (N,).

        None if the call has to go the general way: unless the arrays are of the kernel's type, or float64, which a
        kernel of float32 rounds, and of their argument's shape, C-contiguous, or of N times that, with states that are;
        or if a quaternion is not normalised to the last bits. queue: shared by the threads that share the states,
        int64: 0, states of a region, states of a chunk, and a 0 for each region, one a thread.
        """
        return self._call(self._kernel.own_work(), tuple(outputs.values()), status, arrays, queue, indexed)


def batch(
    backend: Backend, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int]
) -> Batch | None:
    """Native call of many states without copies of the arguments; None for a back end without kernels.

    constants and quaternions as for `single_state_call`.
    """
    places, turning, begin = {}, [], 0
    for k, size in enumerate(backend.program.inputs.sizes.values()):
        places[tuple(range(begin, begin + size))] = 2 + 2 * k
        turning += [(2 + 2 * k, x - begin) for x in quaternions if begin <= x < begin + size]
        begin += size
    whole = [None if x.std_bounds else places.get(tuple(x.inputs.tolist())) for x in arguments]
    kernel = backend.kernel(False) if None not in whole else None  # values may have to be put together
    if not kernel:
        return None
    outputs, status = backend.allocate_results(1)
    own = words(backend.program, 0, _parts(backend.program.inputs.slices, constants), outputs, status)
    targets = [(*_axes(x.shape), x.inputs.size, word, 0) for x, word in zip(arguments, whole, strict=True)]
    return Batch(kernel, own, _table(targets, AXES + 4), _table(turning, 2), constants)


# ---- twice the precision ------------------------------------------------------------------------------------------


def twice(program: Program, inputs: np.ndarray, wanted: np.ndarray, constants: np.ndarray | None = None) -> Twice:
    """Values (n, wanted) of a program, operation by operation in double-double arithmetic.

    inputs (n, n_inputs). wanted: numbers of values. constants: in place of the program's.
    """
    n = len(inputs)
    found = Twice(np.empty((n, len(wanted))), np.empty((n, len(wanted))))
    if n:
        constants = program.constants if constants is None else constants
        extension.twice(
            program.kind, program.lhs, program.rhs, constants, wanted, n, np.ascontiguousarray(inputs), *found
        )
    return found


class Doubt(NamedTuple):
    """Acceptance test for results in double-double arithmetic, see `sysdyn.online.again`.

    others: constants of a second run, as many as the program's, or none. guards: numbers of the guarded values. ends:
    of the outputs in a row of all. units: group of each number of the row, below the number of these. settings,
    declared: numbers of inputs, and the values that they have to have. limits: of the verdict. able: bits that the
    status of a state may have.
    """

    others: np.ndarray
    guards: np.ndarray
    ends: np.ndarray
    units: np.ndarray
    settings: np.ndarray
    declared: np.ndarray
    limits: np.ndarray
    able: int


def again(
    program: Program, doubt: Doubt, inputs: np.ndarray, states: np.ndarray, outputs: Arrays, status: np.ndarray
) -> int:
    """Rerun states in double-double arithmetic; return how many are accepted (outputs written, status 0).

    states (n,): their numbers among all N; inputs (n, n_inputs). outputs {group: (N, size)}, status (N,).
    """
    *found, able = doubt
    return extension.again(
        program.kind, program.lhs, program.rhs, program.constants, found[0], program.output_values, *found[1:], inputs,
        states, tuple(outputs.values()), status, able,
    )  # fmt: skip


def _parts(places: Mapping[str, slice], row: np.ndarray) -> Mapping[str, np.ndarray]:
    """Spans of numbers in a row."""
    return {name: row[part] for name, part in places.items()}


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return len(shape), *shape, *[0] * (AXES - len(shape))


def _table(rows: Sequence, columns: int) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
