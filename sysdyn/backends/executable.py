"""A program ready to run: on one state or on many, by any back end, from several threads at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import numpy as np

from sysdyn.backends.backend import Arrays, Backend, Results
from sysdyn.backends.team import TEAM
from sysdyn.errors import InvalidInput, ProblemError

THREAD_STATES = 2048  # A further thread is worth its while from so many states on.
CORES = os.cpu_count() or 1  # The cores of this machine, counted once: counting costs more than a small kernel.


class Executable:
    """Runs a program on states, with arrays as `sysdyn.backends.backend` says."""

    def __init__(self, backend: Backend):
        self.backend, self.program = backend, backend.program

    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, threads: int | None = None) -> None:
        """threads: as many as the batch is worth, up to the number of cores, where it is None."""
        n = len(status)
        if threads is None:
            threads = min(CORES, -(-n // THREAD_STATES))
        backend = self.backend
        if threads <= 1 or n <= 1 or not backend.shares:
            if n:
                backend.run(inputs, outputs, status, 0, n)
        else:
            TEAM.run([partial(backend.run, inputs, outputs, status, *x) for x in _shares(n, threads, backend.width)])

    def results(self, inputs: Arrays, n: int, threads: int | None = None) -> Results:
        """({output: (n, size)}, status (n,)) at n states, in new arrays; threads as for `run`."""
        if n == 1:
            return self.backend.one(inputs)
        outputs, status = self.backend.new(n)
        self.run(inputs, outputs, status, threads)
        return outputs, status

    def step(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, out, single: bool, threads: int = 1) -> Step:
        """The run with these arrays as a call without arguments; `out` is what it shows as its results.

        single: of one state, by the kernel of one state. Raises ProblemError where the back end has no prepared calls.
        """
        backend = self.backend
        self.require_binding()
        calls = [
            backend.prepared(inputs, outputs, status, *share, single)
            for share in _shares(len(status), threads, backend.width)
        ]
        keep = calls, inputs, outputs, status
        if len(calls) == 1:
            return Step(calls[0][0], out, status, keep)
        # each part keeps the arrays: a call that is interrupted goes on in its threads
        return Step(partial(TEAM.run, [partial(_run, call, keep) for call, _ in calls]), out, status, keep)

    def require_binding(self) -> None:
        """Raise ProblemError unless the back end has prepared calls."""
        if not self.backend.binds:
            raise ProblemError("bind needs machine code: compile with backend='llvm'")

    def guarded(self, inputs: Arrays) -> np.ndarray:
        """(N, guards): the values that the program guards."""
        return self.backend.guarded(inputs)


class Step:
    """A prepared call: `step()` computes the results for the values that the bound arrays hold then.

    out: where it writes them; status (N,) int64: bits of `sysdyn.program.status`, zero where all went well.
    """

    __slots__ = ("_keep", "_run", "out", "status")

    def __init__(self, run: Callable[[], None], out, status: np.ndarray, keep: object):
        self._run, self.out, self.status, self._keep = run, out, status, keep

    def __call__(self) -> None:
        self._run()


def checked_threads(threads: object) -> None:
    """Raise InvalidInput unless `threads` is a number of threads."""
    if not (isinstance(threads, int) and threads >= 1):
        raise InvalidInput(f"threads is {threads!r}, but an integer ≥ 1 is needed")


def _shares(n: int, threads: int, width: int) -> list[tuple[int, int]]:
    """(first state, number of states) of the part of each thread: whole registers, but for the last."""
    share = -(-n // (threads * width)) * width
    return [(start, min(share, n - start)) for start in range(0, n, share)] if threads > 1 and n else [(0, n)]


def _run(call: Callable[[], None], keep: object) -> None:
    call()
