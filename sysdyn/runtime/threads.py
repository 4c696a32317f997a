"""Threads that wait for work: handing it over costs less than to a pool of futures."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, RLock, Thread
from time import perf_counter, thread_time

# Ratio of a call's time to its caller's processor time above which the cores are oversubscribed (chosen).
OVERSUBSCRIBED = 1.5
# Most calls that go without threads before one tries again whether threads get cores (chosen).
LONGEST_PAUSE = 63
# Most threads that share the work of a call, whatever it asks for: more than a processor has cores (chosen).
MOST_THREADS = 256
# Limits of groups of processes are files below this folder; this file says which groups this process is in.
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class ThreadPool:
    """Runs functions side by side; the caller's thread does its share of the work.

    Threads are started when they are first needed and wait for more from then on. Any number of callers may share them.
    Where other programs use the cores, `has_idle_cores` is False for one call, and for twice as many each further time.
    clock, own_clock [s]: the time, and the processor time of the calling thread. thread: their kind.
    """

    def __init__(
        self, clock: Callable[[], float] = perf_counter, own_clock: Callable[[], float] = thread_time,
        thread: type[Thread] = Thread,
    ) -> None:  # fmt: skip
        self._clock, self._own_clock, self._thread = clock, own_clock, thread
        self.reset()

    def reset(self) -> None:
        """Forget all threads, for in a forked process there are none."""
        self._lock = Lock()
        self._todo: SimpleQueue[tuple[deque[Callable[[], object]], Callable[[BaseException | None], object]]] = (
            SimpleQueue()
        )
        self._size = self._pause = self._resting = 0

    def has_idle_cores(self) -> bool:
        """True if threads are expected to get cores."""
        if self._resting:
            self._resting -= 1
            return False
        return True

    def run(self, parts: Sequence[Callable[[], object]], threads: int | None = None) -> None:
        """Call all parts and return when the last one is done. Raises the error of a part.

        threads: that call them, each the next one as soon as it is free; one for each part if None, and never more than
        parts or `MOST_THREADS`. A thread that comes too late finds nothing left to do, and nobody waits for it; threads
        that cannot be started are done without.
        """
        others = min(len(parts), MOST_THREADS, len(parts) if threads is None else threads) - 1
        if self._size < others:
            self._grow(others)
        pending, own = deque(parts), list[BaseException | None]()
        done: SimpleQueue[BaseException | None] = SimpleQueue()  # of this call alone, should it be interrupted
        for _ in range(min(others, self._size)):
            self._todo.put((pending, done.put))
        began, used = self._clock(), self._own_clock()
        _drain(pending, own.append)
        theirs = [done.get() for _ in range(len(parts) - len(own))]
        if others > 0:
            oversubscribed = self._clock() - began > OVERSUBSCRIBED * (self._own_clock() - used)
            self._pause = self._resting = min(2 * self._pause + 1, LONGEST_PAUSE) if oversubscribed else 0
        for error in (*own, *theirs):
            if error is not None:
                raise error

    def _grow(self, size: int) -> None:
        with self._lock, contextlib.suppress(RuntimeError, MemoryError):  # that a thread cannot be started
            while self._size < size:
                self._thread(target=_work, args=(self._todo,), name=f"sysdyn_{self._size + 1}", daemon=True).start()
                self._size += 1


def _work(todo: SimpleQueue) -> None:
    while True:
        _drain(*todo.get())


def _drain(pending: deque[Callable[[], object]], done: Callable[[BaseException | None], object]) -> None:
    """Call one part after another until none is left; `done` is told of each."""
    with contextlib.suppress(IndexError):
        while True:
            done(_outcome(pending.popleft()))


def _outcome(part: Callable[[], object]) -> BaseException | None:
    try:
        part()
    except BaseException as error:
        return error
    return None


def cores(cgroups: Path = CGROUPS, own: Path = OWN_CGROUP, available: int | None = None) -> int:
    """Number of threads that can run at a time: cores that the process may use, within its cgroup's share of cores.

    available: the former, as the system says if None.
    """
    if available is None:
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(available, _quota(cgroups, own))))


def _quota(root: Path, own: Path) -> float:
    """The least number of cores that the cgroup of this process, or one that it is in, may use; ∞ without a limit."""
    least = math.inf
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return least
    for line in lines:
        controllers, _, place = line.partition(":")[2].partition(":")
        version_1 = "cpu" in controllers.split(",")
        if version_1 or not controllers:
            inside = (root / "cpu" if version_1 else root) / place.lstrip("/")
            for group in (inside, *inside.parents):
                if not group.is_relative_to(root):
                    break
                with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                    if version_1:
                        quota, period = ((group / f"cpu.cfs_{x}_us").read_text() for x in ("quota", "period"))
                    else:
                        quota, period = (group / "cpu.max").read_text().split()
                    if quota != "max" and int(quota) > 0:
                        least = min(least, int(quota) / int(period))
    return least


def _forked() -> None:
    """Start anew in a forked process, which has no other threads, and nobody to release their locks."""
    THREADS.reset()
    for module in [x for name, x in sys.modules.items() if name.startswith("sysdyn.")]:
        for kind in vars(module).values():
            for x in vars(kind).values() if isinstance(kind, type) else ():
                if isinstance(x, cached_property) and hasattr(x, "lock"):  # before Python 3.12
                    x.lock = RLock()


# The pool that all batches of this process share.
THREADS = ThreadPool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
