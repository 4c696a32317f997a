"""Runner of a program: one state or a batch, any back end, one or several threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any, NoReturn

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError, SysdynError
from sysdyn.program.arrays import is_count
from sysdyn.program.groups import Arrays
from sysdyn.runtime import native_calls
from sysdyn.runtime.backend import Backend, RunResults
from sysdyn.runtime.threads import MOST_THREADS, THREADS, cores

# Least operations per thread, tens of microseconds of work: smaller shares do not pay off (chosen).
THREAD_OPERATIONS = 2_500_000
# Parts of a batch per thread; other threads take the parts of a thread that is late or interrupted (chosen).
SHARES = 4
# Parts per thread for work stealing in machine code: its overhead is lower, so parts are smaller (chosen).
KERNEL_PARTS = 8
# Largest intermediate result in bytes between two programs; it stays in the second-level cache (measured: half a
# megabyte takes the same time, two megabytes twice the time).
INTERMEDIATE_BYTES = 2**18
CORES = cores()  # Counted once: counting costs more than a small kernel.


class Runner:
    """Runs a program on states; arrays as in `sysdyn.runtime.backend`, float64 inputs are converted."""

    def __init__(self, backend: Backend):
        self.backend, self.program = backend, backend.program

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, threads: int | None = None) -> None:
        """Run all states. threads: by default chosen from the amount of work, at most `cores`. Raises InvalidInput."""
        n, backend = len(status), self.backend
        threads, inputs = self.choose_threads(n, threads), self.backend.cast_inputs(inputs)
        run = partial(backend.run, inputs, outputs, status)
        if threads > 1 and backend.supports_threads:
            THREADS.run([partial(run, *x) for x in _shares(n, SHARES * threads, backend.width)], threads)
        elif n:
            run(0, n)

    def run_work_stealing(self, n: int, threads: int, call: Callable[[np.ndarray], bool | None]) -> bool | None:
        """Run n states on several threads. Each calls `call(queue)`, which runs a `Batch` on states from the queue.

        Returns None if a call returns None, else True if all calls return True.
        """
        _, share = _shares(n, KERNEL_PARTS * threads, self.backend.width)[0]
        queue, solved = np.array([0, KERNEL_PARTS * share, share, *[0] * threads]), list[bool | None]()
        THREADS.run([lambda: solved.append(call(queue))] * threads)
        return None if None in solved else all(solved)

    def choose_threads(self, n: int, asked: int | None = None) -> int:
        """Number of threads for n states: `asked`, but at most one per SIMD vector. Default: by the amount of work.

        Raises InvalidInput if `asked` is not an integer ≥ 1.
        """
        if asked is not None:
            check_threads(asked)
            return max(1, min(asked, -(-n // self.backend.width), MOST_THREADS))
        return self._worthwhile_threads(n, len(self.program))

    def _worthwhile_threads(self, n: int, operations: int) -> int:
        """Number of threads for n states, each of `operations` operations: at least THREAD_OPERATIONS per thread."""
        worth = min(CORES, n * operations // THREAD_OPERATIONS)
        return worth if worth > 1 and THREADS.has_idle_cores() else 1

    def results(self, inputs: Arrays, n: int, threads: int | None = None) -> RunResults:
        """Run n states and return ({output: (n, size)}, status (n,)); threads as for `run`."""
        outputs, status = self.backend.allocate_results(n)
        self.run(inputs, outputs, status, threads)
        return outputs, status

    def bind(
        self, inputs: Arrays, outputs: Arrays, status: np.ndarray, out, single: bool, threads: int = 1
    ) -> BoundCall:
        """Bind a run to its arrays; `out` becomes the results of the bound call.

        single: use the kernel of one state. Raises ProblemError if the back end has no bound calls.
        """
        self.require_binding()
        made = [
            native_calls.prepared(self.backend, inputs, outputs, status, *share, single)
            for share in _shares(len(status), self.choose_threads(len(status), threads), self.backend.width)
        ]
        keep = made, inputs, outputs, status
        if single and native_calls.runs_under_gil(self.program):
            return BoundCall(made[0][0], out, status, keep)
        # each part refers to the arrays: after an interruption, the threads of a call continue
        parts = [partial(_exclusive, Lock(), call, keep) for call, _ in made]
        return BoundCall(parts[0] if len(parts) == 1 else partial(THREADS.run, parts), out, status, keep)

    def require_binding(self) -> None:
        """Raise ProblemError if the back end has no bound calls."""
        if not self.backend.kernels:
            raise ProblemError("bind needs machine code: compile with backend='llvm'")

    def guarded(self, inputs: Arrays) -> np.ndarray:
        """Guarded pivots (N, guards): the pivots that the program compares with thresholds."""
        return self.backend.guarded(inputs)


class BoundCall:
    """A bound call: `step()` computes the results for the current contents of the bound arrays.

    out: the arrays that it writes. status (N,) int64: bits of `sysdyn.program.opcodes`, zero for success. Each of
    several threads needs its own bound call: SysdynError is raised if this one is running on another thread.
    """

    __slots__ = ("__call__", "_keep", "out", "status")  # with `__call__` a call needs no Python frame

    def __init__(self, run: Callable[[], None], out, status: np.ndarray, keep: object):
        self.__call__, self.out, self.status, self._keep = run, out, status, keep

    def __repr__(self) -> str:
        many = np.size(self.status)
        return f"Bound call of {many:,} state{'' if many == 1 else 's'}: step() writes {_shapes(self.out)}"

    def __reduce__(self) -> NoReturn:
        raise SysdynError(
            "a bound step cannot be copied or pickled, as it is tied to its arrays: pickle the solver, and bind it "
            "where it is needed"
        )


def _shapes(out: Any) -> str:
    """Shapes of the arrays that a bound call writes."""
    if isinstance(out, np.ndarray):
        return f"out {out.shape}"
    named = out.items() if isinstance(out, Mapping) else ((f"out[{k}]", x) for k, x in enumerate(out))
    return ", ".join(f"{name} {x.shape}" for name, x in named)


def require_disjoint(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidInput if two plain arrays share memory. arrays: {name in messages: array}."""
    places = sorted((x.__array_interface__["data"][0], name) for name, x in arrays.items() if x.size)
    for (start, first), (next_start, second) in itertools.pairwise(places):
        if next_start < start + arrays[first].nbytes:
            raise InvalidInput(
                f"{first} and {second} share memory: bind reads and writes in place, and needs an array for each"
            )


def check_threads(threads: object) -> None:
    """Raise InvalidInput unless `threads` is an integer ≥ 1."""
    if not is_count(threads, 1):
        raise InvalidInput(f"threads is {threads!r}, but an integer ≥ 1 is needed")


def _shares(n: int, parts: int, width: int) -> list[tuple[int, int]]:
    """Divide n states into parts: (first state, size) of each. All sizes but the last are multiples of `width`."""
    share = -(-n // (parts * width)) * width
    return [(start, min(share, n - start)) for start in range(0, n, share)] if parts > 1 and n else [(0, n)]


def _exclusive(lock: Lock, call: Callable[[], None], keep: object) -> None:
    """Run `call` under the lock. Raises SysdynError if another thread runs it: both would use the same workspace.

    call: the part of a bound call for one thread. keep: objects that must live as long as this function is bound.
    """
    if not lock.acquire(blocking=False):
        raise SysdynError("this step is running on another thread: bind one for each thread")
    try:
        call()
    finally:
        lock.release()
