"""Calls of compiled kernels on NumPy arrays by the C extension (extension.c): prepared, of one state, and of a batch.

The module also runs programs in double-double arithmetic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sysdyn.program.program import Program
from sysdyn.runtime.backend import Arrays, Backend
from sysdyn.runtime.kernel import Kernel, address, words
from sysdyn.runtime.native import extension
from sysdyn.runtime.real import DOUBLE
from sysdyn.sparse.twice import Twice

# Most operations of a program with calls of one state, some 0.1 ms, as these hold the interpreter's lock.
LONGEST_PLAIN = 400_000
# States whose quaternions are looked at before these states are computed, while they are in the cache (chosen).
TURNED = 1024
# Most axes of an array and most results of a call; the same numbers as in extension.c.
AXES, OUTPUTS = 4, 64
# Distance of two outputs that are 0 up to which those between them are set to 0, too: the numbers of a cache line, as
# more take longer than one more call of memset (measured on derivatives of the iCub).
NEAR_ZEROS = 8
SCATTERED, FOR_ALL = 1, 2  # ways to take an array, as in extension.c

Function = TypeVar("Function", bound=Callable)


class Argument(NamedTuple):
    """An array that a call takes: its shape at one state, and for each entry the number of the program's input.

    deviations: (least, greatest), each of the array's size, if inputs are squares of its entries, which lie between
    these; a float may stand for all of them.
    """

    shape: tuple[int, ...]
    inputs: np.ndarray
    deviations: tuple[np.ndarray, np.ndarray] | None = None


class Names(NamedTuple):
    """Names of arguments: the first `positional` ones are given by position, the others by keyword.

    keywords: ((name, …, for the next argument; a dict of names for arguments; or the object that is given), …).
    """

    positional: int
    keywords: tuple[tuple[str, Any], ...] = ()


class Shown(NamedTuple):
    """The results of a call of one state: `make` of its outputs, which have these keys and shapes.

    make: dict, tuple, None (the array of a single output), or a subclass of `extension.Result`, which receives `about`.
    """

    make: type | None
    keys: tuple[Hashable, ...]
    shapes: tuple[tuple[int, ...], ...]
    about: object = None
    layout: object = None


def entry(general: Function) -> Function:
    """`__call__` of a `extension.Called`: the prepared calls in its list `_plain` are tried first, then `general`."""
    return extension.Entry(general)  # type: ignore[return-value]


def quantity(name: str, general: Any) -> Any:
    """Attribute of an `extension.Result` read from its row; general: the descriptor if it has none."""
    return extension.Quantity(sys.intern(name), lambda result: general.__get__(result, type(result)))


def held(program: Program) -> bool:
    """True if calls of one state hold the interpreter's lock: of programs so short that none waits long for it."""
    return len(program) <= LONGEST_PLAIN


# ---- prepared -----------------------------------------------------------------------------------------------------


def prepared(
    backend: Backend, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int, single: bool
) -> tuple[Callable[[], None], object]:
    """(a call without arguments that runs these states, the objects that have to live as long as the call).

    single: the state is the only one; the call is one of least latency, and holds the interpreter's lock if `held`.
    """
    kernel = backend.kernel(single, clears=False)
    assert kernel, "the back end has machine code"
    if not backend.zeros:
        for x in outputs.values():
            x[start : start + size] = 0.0
    alone = single and held(backend.program)
    array, work = kernel.shared_work if alone else kernel.work()
    own = words(backend.program, work, inputs, outputs, status, start)
    call: Callable[[], None]
    if alone:
        call = extension.prepared(kernel.address, address(own), size)
    else:
        call = partial(kernel.run, address(own), size)
    return call, (kernel, array, own)


class Chains:
    """Calls of one state of programs that read what another one writes, which runs once for the same inputs.

    limits: {input of the first program: (least, greatest)} of values beyond which calls go the general way.
    """

    def __init__(self, backend: Backend, limits: Mapping[int, tuple[float, float]]):
        program = backend.program
        self.inputs, self.outputs = np.zeros(program.n_inputs), np.zeros((1, program.n_outputs))
        # of the first program, of the one behind it, and whether the first has run for its inputs
        self.status = np.zeros(3, dtype=np.int64)
        self._limits = np.array([(k, *pair) for k, pair in limits.items()], dtype=float).reshape(-1, 3)
        self._first = self._prepared(backend, self.inputs, self.outputs, 0)

    def _prepared(self, backend: Backend, inputs: np.ndarray, outputs: np.ndarray, place: int) -> tuple:
        groups = (_parts(backend.program.inputs.slices, inputs), _parts(backend.program.outputs.slices, outputs[0]))
        shown = {name: x[None] for name, x in groups[1].items()}
        return prepared(backend, groups[0], shown, self.status[place:], 0, 1, True)

    def behind(self, backend: Backend) -> Callable[[np.ndarray, int, np.ndarray], np.ndarray | None]:
        """The call (values, begin, rest) → outputs (1, n) for the inputs values[begin:] and then rest; None if there
        are none, or they have to be looked at."""
        outputs = np.zeros((1, backend.program.n_outputs))
        second = self._prepared(backend, self.outputs[0], outputs, 1)
        return extension.Chain(
            self._first[0], second[0], self.inputs, self._limits, self.status, outputs, (self, self._first, second)
        )


def chains(backend: Backend, limits: Mapping[int, tuple[float, float]]) -> Chains | None:
    """The chains that begin with this program; None if its calls do not hold the interpreter's lock."""
    whole = backend.kernels and backend.real is DOUBLE and held(backend.program)
    return Chains(backend, limits) if whole else None


# ---- one state ----------------------------------------------------------------------------------------------------


def one_state(
    backend: Backend, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int], names: Names,
    shown: Shown, muted: Sequence[int] = (),
) -> Any:  # fmt: skip
    """The call of one state for a list `_plain`; None if there is none.

    constants (n_inputs,): inputs that no argument gives. quaternions: numbers of the inputs at which unit quaternions
    begin; those of norm 1 within 1e-6 are normalised. muted: numbers of the inputs that are 0 unless they are finite.
    Calls go the general way if a quaternion is of another norm, arrays do not fit, or the status is not zero, and all
    of them unless numbers are doubles.
    """
    program, kernel = backend.program, backend.kernel(True) if backend.real is DOUBLE else None
    shapes = [*(x.shape for x in arguments), *shown.shapes]
    if not kernel or not held(program) or len(shown.keys) > OUTPUTS or any(len(x) > AXES for x in shapes):
        return None
    inputs, outputs = constants.copy(), np.zeros(program.n_outputs)
    array, work = kernel.shared_work
    own = words(program, work, _parts(program.inputs.slices, inputs), _parts(program.outputs.slices, outputs),
                np.zeros(1, dtype=np.int64))  # fmt: skip
    last = max((int(x.inputs.max()) for x in arguments if x.inputs.size), default=-1) + 1
    targets, places = [], np.empty(0, dtype=np.int64)
    squared: list[tuple[float, ...]] = []
    for shape, numbers, deviations in arguments:
        scattered = deviations is not None or bool((np.diff(numbers) != 1).any())
        first = len(places) if scattered else int(numbers[0]) if numbers.size else 0
        targets.append((*_axes(shape), numbers.size, first, scattered * SCATTERED + bool(deviations) * FOR_ALL))
        squared += zip(numbers, *deviations, strict=True) if deviations else ()
        places = np.concatenate([places, numbers.astype(np.int64)]) if scattered else places
    begins = [part.start for part in program.outputs.slices.values()]
    first_word = len(own) - 2 * len(program.outputs)
    rows = [(*_axes(shape), first_word + 2 * k, begins[k]) for k, shape in enumerate(shown.shapes)]
    keys = tuple(sys.intern(key) if isinstance(key, str) else key for key in shown.keys)  # compared as objects
    keywords, following = [], names.positional
    for name, what in names.keywords:
        keywords.append((name, what, following))
        following += sum(x is ... for x in (what.values() if isinstance(what, dict) else (what,)))
    limits = np.array(squared, dtype=float).reshape(-1, 3)
    left_out = [] if backend.zeros else _spans(np.flatnonzero(program.zero_outputs))
    return extension.Plain(
        kernel.address, own, inputs, program.n_outputs, last, _table(targets, AXES + 4), places,
        _table(quaternions, 1), _table(muted, 1), limits, _table(rows, AXES + 3), _table(left_out, 2), keys,
        names.positional, tuple(keywords), shown.make, shown.about, shown.layout, (kernel, array, outputs),
    )  # fmt: skip


# ---- many states --------------------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """States of a call that are rows of larger arrays, and columns of larger arrays for their results.

    whole: states of the arrays; rows (n,): which of them. widths: columns of each array of outputs, 0 for one that is
    left out; columns: which one each entry of the outputs goes to, output by output.
    """

    whole: int
    rows: np.ndarray
    widths: np.ndarray
    columns: np.ndarray


class Batch:
    """A call of N states that takes arrays as they are.

    quaternions: (word of the pointer, first entry in a row) of each. by_number: rows of larger arrays can be taken.
    """

    def __init__(self, kernel: Kernel, words: np.ndarray, targets: np.ndarray, quaternions: np.ndarray, keep: object):
        most = TURNED if len(quaternions) else 2**62
        self._kernel, self._keep = kernel, keep
        shared = kernel.real.size, words, targets, quaternions, most
        self._call = partial(extension.batch, kernel.address, *shared)
        self._spreading, self.by_number = partial(extension.batch, kernel.by_number, *shared), bool(kernel.by_number)

    def __call__(
        self, outputs: Arrays, status: np.ndarray, arrays: tuple, counter: np.ndarray | None = None,
        spread: Spread | None = None,
    ) -> bool | None:  # fmt: skip
        """True if every status is 0; outputs by group (N, size), status (N,).

        None, with nothing done, unless the arrays are of the kernel's type and of their argument's shape, C-contiguous,
        or of N times that, with states that are; a kernel of float32 takes float64, too, and rounds it. None, too, if
        a quaternion is not normalised to the last bits. counter: None, or for threads that share the states an array of
        int64: 0, states of a region, states at a time, then a 0 for each region, of which there are as many as threads.
        spread: the arrays have more states than these, see there.
        """
        call = self._call if spread is None else self._spreading
        return call(self._kernel.own_work(), tuple(outputs.values()), status, arrays, counter, spread)


def batch(
    backend: Backend, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int]
) -> Batch | None:
    """The call of many states that takes these arrays as they are; None if there is none.

    constants and quaternions as for `one_state`.
    """
    places, turning, begin = {}, [], 0
    for k, size in enumerate(backend.program.inputs.sizes.values()):
        places[tuple(range(begin, begin + size))] = 2 + 2 * k
        turning += [(2 + 2 * k, x - begin) for x in quaternions if begin <= x < begin + size]
        begin += size
    whole = [None if x.deviations else places.get(tuple(x.inputs.tolist())) for x in arguments]
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
    """When results in double precision are replaced by those in twice the precision, see `sysdyn.online.again`.

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
    """Number of states that count in twice the precision, whose outputs are written and whose status is 0 then.

    states (n,): their numbers among all N; inputs (n, n_inputs). outputs {group: (N, size)}, status (N,).
    """
    *found, able = doubt
    return extension.again(
        program.kind, program.lhs, program.rhs, program.constants, found[0], program.output_values, *found[1:], inputs,
        states, tuple(outputs.values()), status, able,
    )  # fmt: skip


def _parts(places: Mapping[str, slice], row: np.ndarray) -> Mapping[str, np.ndarray]:
    """Groups of numbers in a row."""
    return {name: row[part] for name, part in places.items()}


def _spans(places: np.ndarray) -> list[tuple[int, int]]:
    """(first, length) of spans that hold these ascending places, and others only where few lie between."""
    parts = np.split(places, np.flatnonzero(np.diff(places) > NEAR_ZEROS) + 1)
    return [(int(part[0]), int(part[-1] - part[0]) + 1) for part in parts if len(part)]


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return len(shape), *shape, *[0] * (AXES - len(shape))


def _table(rows: Sequence, columns: int) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
