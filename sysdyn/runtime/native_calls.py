"""Kernel calls through the C extension: bound calls, single-state calls, batch calls, and double-double reruns."""

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
from sysdyn.sparse.double_double import DoubleDouble

# Longest program, in operations, whose single-state calls keep the GIL: about 0.1 ms.
MAX_OPS_UNDER_GIL = 400_000
# Number of states per check of quaternion norms: the states stay in the cache for the kernel (chosen).
STATES_PER_QUATERNION_CHECK = 1024
AXES = 4  # Most axes of an array, as in native.h.
INDEXED, BROADCAST_SCALAR = 1, 2  # How an argument is read, as in native.h.

CallableT = TypeVar("CallableT", bound=Callable)


class Argument(NamedTuple):
    """An array argument: its shape at one state, and the index of the program input for each entry.

    std_bounds: for standard deviations, (lower, upper) bounds, each of the size of the argument. The program reads
    variances, so the call squares the argument. It also accepts a float for an array of equal entries.
    """

    shape: tuple[int, ...]
    inputs: np.ndarray
    std_bounds: tuple[np.ndarray, np.ndarray] | None = None


class ResultLayout(NamedTuple):
    """How a single-state call returns its results.

    make: dict, tuple or ndarray (for a single array), or a subclass of RowResult. keys, shapes: keys and shapes of the
    arrays. about: None unless `make` is a subclass of RowResult. Then `about` becomes the attribute `_about` of the
    result, and the row of all outputs and inputs its attribute `_row`; the first `n_attributes` outputs become
    attributes too.
    """

    make: type
    keys: tuple[Hashable, ...]
    shapes: tuple[tuple[int, ...], ...]
    about: object = None
    n_attributes: int = 0


class CallPattern(NamedTuple):
    """Form of the arguments that a single-state call accepts: arrays by position, then keywords.

    n_positional: number of positional arguments. by_name: {keyword: required value}. Ellipsis as a value accepts an
    array (or a list or tuple of numbers), which is the next array argument. Dicts are compared key by key, strings by
    value, other objects by identity. defaults: values of keywords that may be omitted.
    """

    n_positional: int
    by_name: dict[str, Any]
    defaults: dict[str, Any]


def fast_call(general: CallableT) -> CallableT:
    """Decorator of `__call__`: tries the native calls in the list `self.fast_calls`, then the decorated function."""

    @functools.wraps(general)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        result = extension.run_single_state(self.fast_calls, arguments, named)
        return general(self, *arguments, **named) if result is None else result

    return cast(CallableT, call)


def runs_under_gil(program: Program) -> bool:
    """True if single-state calls keep the GIL: the program is short enough not to delay other threads."""
    return len(program) <= MAX_OPS_UNDER_GIL


# ---- bound calls ---------------------------------------------------------------------------------------------------


def prepared(
    backend: Backend, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int, single: bool
) -> tuple[Callable[[], None], object]:
    """Native call of states start … start + size − 1: (function without arguments, objects that must outlive it).

    single: use the kernel of one state; its call keeps the GIL if `runs_under_gil`.
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
    quaternions: index of the first input of each unit quaternion; norms within 1e-6 of 1 are normalised.
    nan_to_zero: indices of the inputs that are replaced by 0 if they are not finite.

    The call returns None if an argument does not match, a quaternion is not normalised, or the status is not 0.
    """
    program, kernel = backend.program, backend.kernel(True) if backend.real is DOUBLE else None
    if (
        not kernel
        or not runs_under_gil(program)
        or any(len(x) > AXES for x in (*results.shapes, *(y.shape for y in arguments)))
    ):
        return None
    array, work = kernel.shared_work
    row = np.zeros(program.n_outputs + program.n_inputs)  # only its layout matters
    outputs, inputs = np.split(row, [program.n_outputs])
    own = words(program, work, _parts(program.inputs.slices, inputs), _parts(program.outputs.slices, outputs),
                np.zeros(1, dtype=np.int64))  # fmt: skip
    pointers = [(2 + 2 * k, (own[2 + 2 * k] - address(row)) // row.itemsize) for k in range(len(own) // 2 - 1)]
    # the kernel reads the inputs after the last group with an argument from the constants
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
        n_outputs=program.n_outputs, n_inputs=n_inputs, n_positional=pattern.n_positional, by_name=pattern.by_name,
        defaults=pattern.defaults, keys=results.keys, n_attributes=results.n_attributes, make=results.make,
        about=results.about, owner=(kernel, array),
    )  # fmt: skip


# ---- many states --------------------------------------------------------------------------------------------------


class Batch:
    """Native batch call of N states that reads the caller's arrays in place.

    words: arguments of the kernel, see `sysdyn.runtime.kernel`; inputs without an argument point to constants. targets:
    for each argument, its shape and the index of the word that receives its address. quaternions: for each quaternion,
    the index of the word of its array, and its first entry in a row. keep: object that must outlive the batch.
    """

    def __init__(self, kernel: Kernel, words: np.ndarray, targets: np.ndarray, quaternions: np.ndarray, keep: object):
        most = STATES_PER_QUATERNION_CHECK if len(quaternions) else 2**62
        self._kernel, self._keep = kernel, keep
        self._call = partial(extension.batch, kernel.address, words, targets, quaternions, most)

    def __call__(
        self, outputs: Arrays, status: np.ndarray, arrays: tuple, queue: np.ndarray | None = None,
        rows: np.ndarray | None = None,
    ) -> bool | None:  # fmt: skip
        """Run the batch. Returns True if every status is 0, else False; None if the arrays do not qualify.

        After None, the caller must copy and convert the arrays.

        outputs, status
            {group: (N, size) array with contiguous rows} and (N,) array, to be written.
        arrays
            One array per argument, of the shape of the argument, or with N entries of this shape along the first axis.
            An entry must be C-contiguous, of float64 or of the kernel's type; a float32 kernel rounds float64.
            Quaternions must be normalised to machine precision.
        queue
            Work-stealing queue that all threads of the call share: int64 array [0, states per region, states per chunk,
            0, 0, …] with one region, and one last 0, per thread. Default: this call runs all states.
        rows
            (k,) int64: run only the states of these rows of the arrays and outputs; then status is (k,).
        """
        outputs_list = tuple(outputs.values())
        total = len(status) if rows is None else len(outputs_list[0])
        return self._call(self._kernel.own_work(), outputs_list, status, arrays, queue, total, rows)


def batch(
    backend: Backend, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int]
) -> Batch | None:
    """Native batch call that reads the arguments in place.

    Returns None for a back end without kernels, or if an argument is not one whole group of inputs, in its order.
    constants, quaternions: as for `single_state_call`.
    """
    places, turning, begin = {}, [], 0
    for k, size in enumerate(backend.program.inputs.sizes.values()):
        places[tuple(range(begin, begin + size))] = 2 + 2 * k
        turning += [(2 + 2 * k, x - begin) for x in quaternions if begin <= x < begin + size]
        begin += size
    whole = [None if x.std_bounds else places.get(tuple(x.inputs.tolist())) for x in arguments]
    kernel = backend.kernel(False) if None not in whole else None  # otherwise values must be gathered into groups
    if not kernel:
        return None
    outputs, status = backend.allocate_results(1)
    own = words(backend.program, 0, _parts(backend.program.inputs.slices, constants), outputs, status)
    targets = [(*_axes(x.shape), x.inputs.size, word, 0) for x, word in zip(arguments, whole, strict=True)]
    return Batch(kernel, own, _table(targets, AXES + 4), _table(turning, 2), constants)


# ---- double-double rerun ------------------------------------------------------------------------------------------


def twice(
    program: Program, inputs: np.ndarray, wanted: np.ndarray, constants: np.ndarray | None = None
) -> DoubleDouble:
    """Evaluate a program in double-double arithmetic at n states. Returns values (n, m).

    inputs (n, n_inputs). wanted (m,): value numbers to return. constants: replace those of the program.
    """
    n = len(inputs)
    values = DoubleDouble(np.empty((n, len(wanted))), np.empty((n, len(wanted))))
    if n:
        constants = program.constants if constants is None else constants
        extension.twice(
            program.kind, program.lhs, program.rhs, constants, wanted, n, np.ascontiguousarray(inputs), *values
        )
    return values


class AcceptanceTest(NamedTuple):
    """Acceptance test of the double-double rerun, see `sysdyn.online.double_double`.

    Attributes
    ----------
    constants : array of float64
        Perturbed constants of the second run.
    guards : array of int32
        Value numbers of the guarded pivots.
    zeros : array of float64
        Sizes below which these pivots count as zero.
    ends : array of int64
        End of each output in the row of all outputs.
    units : array of int64
        Group of each entry of the row: differences are relative to the largest entry of the group.
    tolerance : float
        Largest accepted relative difference between both runs.
    least : float
        Least scale of a group, relative to the largest of all entries.
    """

    constants: np.ndarray
    guards: np.ndarray
    zeros: np.ndarray
    ends: np.ndarray
    units: np.ndarray
    tolerance: float
    least: float


def rerun(
    program: Program, test: AcceptanceTest, recoverable: int, inputs: np.ndarray, perturbed: np.ndarray,
    states: np.ndarray, outputs: Arrays, status: np.ndarray,
) -> int:  # fmt: skip
    """Rerun n states of a batch of N in double-double arithmetic. Returns the number of accepted states.

    Each state runs twice: with `inputs` (n, n_inputs), and with `perturbed` (n, n_inputs) and the perturbed constants
    of the test. It is accepted if both runs agree and no checked pivot counts as zero. Writes the outputs of the
    accepted states and sets their status to 0. recoverable: states with other status bits are skipped. states (n,):
    indices of the states in the batch. outputs {group: (N, size)}, status (N,): arrays of the batch.
    """
    constants, *rest = test
    return extension.rerun(
        program.kind, program.lhs, program.rhs, program.constants, constants, program.output_values, *rest, inputs,
        perturbed, states, tuple(outputs.values()), status, recoverable,
    )  # fmt: skip


def _parts(places: Mapping[str, slice], row: np.ndarray) -> Mapping[str, np.ndarray]:
    """{name: slice of the row}."""
    return {name: row[part] for name, part in places.items()}


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return len(shape), *shape, *[0] * (AXES - len(shape))


def _table(rows: Sequence, columns: int) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
