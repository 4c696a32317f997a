"""A program ready to run: on one state or on many, by any back end, from several threads at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import NoReturn

import numpy as np

from sysdyn.backends.backend import Arrays, Backend, Results
from sysdyn.backends.entries import calls
from sysdyn.backends.team import MOST_THREADS, TEAM, cores
from sysdyn.errors import InvalidInput, ProblemError, SysdynError

# Operations of a batch for each thread, some tens of microseconds of work: fewer are not worth another thread (chosen).
THREAD_OPERATIONS = 2_500_000
# Parts of a batch for each thread, so that one that begins late or is interrupted leaves some to the others (chosen).
SHARES = 4
# Parts for each thread of machine code, which takes the next part by itself, so that parts may be smaller (chosen).
KERNEL_PARTS = 8
CORES = cores()  # Counted once: counting costs more than a small kernel.


class Executable:
    """Runs a program on states, with arrays as `sysdyn.backends.backend` says."""

    def __init__(self, backend: Backend):
        self.backend, self.program = backend, backend.program

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, threads: int | None = None) -> None:
        """Run all states. threads: as many as the batch is worth if None, at most `cores`. Raises InvalidInput."""
        n, backend = len(status), self.backend
        threads = self.threads(n, threads)
        run = partial(backend.run, inputs, outputs, status)
        if threads > 1 and backend.shares:
            TEAM.run([partial(run, *x) for x in _shares(n, SHARES * threads, backend.width)], threads)
        elif n:
            run(0, n)

    def together(self, n: int, threads: int, call: Callable[[np.ndarray], bool | None]) -> bool | None:
        """`call(counter)` of a `Batch` of n states on each thread: None if one gives None, else True if all do."""
        _, share = _shares(n, KERNEL_PARTS * threads, self.backend.width)[0]
        counter, found = np.array([0, KERNEL_PARTS * share, share, *[0] * threads]), list[bool | None]()
        TEAM.run([lambda: found.append(call(counter))] * threads)
        return None if None in found else all(found)

    def threads(self, n: int, asked: int | None = None) -> int:
        """Number of threads for n states: as asked for, at most one for each register of states, or as they are worth.

        Raises InvalidInput unless `asked` is a number of threads.
        """
        if asked is not None:
            checked_threads(asked)
            return max(1, min(asked, -(-n // self.backend.width), MOST_THREADS))
        worth = min(CORES, n * len(self.program) // THREAD_OPERATIONS)
        return worth if worth > 1 and TEAM.ready() else 1

    def results(self, inputs: Arrays, n: int, threads: int | None = None) -> Results:
        """({output: (n, size)}, status (n,)) at n states, in new arrays; threads as for `run`."""
        outputs, status = self.backend.new(n)
        self.run(inputs, outputs, status, threads)
        return outputs, status

    def step(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, out, single: bool, threads: int = 1) -> Step:
        """The run with these arrays as a call without arguments; `out` is shown as its results.

        single: of one state, by the kernel of one state. Raises ProblemError if the back end has no prepared calls.
        """
        self.require_binding()
        made = [
            calls.prepared(self.backend, inputs, outputs, status, *share, single)
            for share in _shares(len(status), self.threads(len(status), threads), self.backend.width)
        ]
        keep = made, inputs, outputs, status
        if single:  # holds the interpreter's lock
            return Step(made[0][0], out, status, keep)
        # each part keeps the arrays: a call that is interrupted goes on in its threads
        parts = [partial(_alone, Lock(), call, keep) for call, _ in made]
        return Step(parts[0] if len(parts) == 1 else partial(TEAM.run, parts), out, status, keep)

    def require_binding(self) -> None:
        """Raise ProblemError unless the back end has prepared calls."""
        if self.backend.kernel(True) is None:
            raise ProblemError("bind needs machine code: compile with backend='llvm'")

    def guarded(self, inputs: Arrays) -> np.ndarray:
        """(N, guards): the values that the program guards."""
        return self.backend.guarded(inputs)


class Step:
    """A prepared call: `step()` computes the results for the values that the bound arrays hold then.

    out: the arrays that it writes; status (N,) int64: bits of `sysdyn.program.status`, zero if all went well. Its
    arrays belong to one thread at a time: threads that work side by side bind a step each. Raises SysdynError if it is
    running on another thread.
    """

    __slots__ = ("_keep", "_run", "out", "status")

    def __init__(self, run: Callable[[], None], out, status: np.ndarray, keep: object):
        self._run, self.out, self.status, self._keep = run, out, status, keep

    def __call__(self) -> None:
        self._run()

    def __reduce__(self) -> NoReturn:
        raise SysdynError(
            "a bound step cannot be copied or pickled, as it is tied to its arrays: pickle the solver, and bind it "
            "where it is needed"
        )


def reject_shared(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidInput if two plain arrays share memory. arrays: {name in messages: array}."""
    places = sorted((x.__array_interface__["data"][0], name) for name, x in arrays.items() if x.size)
    for (start, first), (next_start, second) in itertools.pairwise(places):
        if next_start < start + arrays[first].nbytes:
            raise InvalidInput(
                f"{first} and {second} share memory: bind reads and writes in place, and needs an array for each"
            )


def checked_threads(threads: object) -> None:
    """Raise InvalidInput unless `threads` is a number of threads."""
    if not (isinstance(threads, int) and not isinstance(threads, bool) and threads >= 1):
        raise InvalidInput(f"threads is {threads!r}, but an integer ≥ 1 is needed")


def _shares(n: int, parts: int, width: int) -> list[tuple[int, int]]:
    """(first state, number of states) of each part: whole registers, but for the last."""
    share = -(-n // (parts * width)) * width
    return [(start, min(share, n - start)) for start in range(0, n, share)] if parts > 1 and n else [(0, n)]


def _alone(lock: Lock, call: Callable[[], None], keep: object) -> None:
    """Run a part of a step, unless another thread does: they would share its workspace."""
    if not lock.acquire(blocking=False):
        raise SysdynError("this step is running on another thread: bind one for each thread")
    try:
        call()
    finally:
        lock.release()
