"""Thread pool with less overhead per task than `concurrent.futures`."""

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

# Ratio of wall time to CPU time of the caller above which the cores count as oversubscribed (chosen).
OVERSUBSCRIBED = 1.5
# Largest number of single-threaded calls until the next trial of several threads (chosen).
LONGEST_PAUSE = 63
# Upper bound of the threads per call: more than a processor has cores (chosen).
MOST_THREADS = 256
# Root folder of the cgroup limits, and the file that lists the cgroups of this process.
CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class ThreadPool:
    """Runs functions in parallel; the calling thread takes part.

    Threads start on first use and then wait for work. Several callers may share the pool. If other programs occupy the
    cores during a run, the next call of `has_idle_cores` returns False; after consecutive such runs 3, 7, … calls do.
    clock, own_clock [s]: wall time, and CPU time of the calling thread. thread: class of the threads.
    """

    def __init__(
        self, clock: Callable[[], float] = perf_counter, own_clock: Callable[[], float] = thread_time,
        thread: type[Thread] = Thread,
    ) -> None:  # fmt: skip
        self._clock, self._own_clock, self._thread = clock, own_clock, thread
        self.reset()

    def reset(self) -> None:
        """Drop all threads (they do not exist in a forked process)."""
        self._lock = Lock()
        self._todo: SimpleQueue[tuple[deque[Callable[[], object]], Callable[[BaseException | None], object]]] = (
            SimpleQueue()
        )
        self._size = self._pause = self._resting = 0

    def has_idle_cores(self) -> bool:
        """True if idle cores are expected."""
        if self._resting:
            self._resting -= 1
            return False
        return True

    def run(self, parts: Sequence[Callable[[], object]], threads: int | None = None) -> None:
        """Call all parts and return when the last one has finished. Raises the error of a part.

        threads: number of threads, by default one per part, at most `MOST_THREADS`; each takes the next part when it is
        free. A late thread finds no work, and the call does not wait for it. Threads that fail to start are omitted.
        """
        others = min(len(parts), MOST_THREADS, len(parts) if threads is None else threads) - 1
        if self._size < others:
            self._grow(others)
        pending, own = deque(parts), list[BaseException | None]()
        done: SimpleQueue[BaseException | None] = SimpleQueue()  # per call: an interrupted call leaves entries
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
        with self._lock, contextlib.suppress(RuntimeError, MemoryError):  # if a thread cannot be started
            while self._size < size:
                self._thread(target=_work, args=(self._todo,), name=f"sysdyn_{self._size + 1}", daemon=True).start()
                self._size += 1


def _work(todo: SimpleQueue) -> None:
    while True:
        _drain(*todo.get())


def _drain(pending: deque[Callable[[], object]], done: Callable[[BaseException | None], object]) -> None:
    """Call the pending parts one after another; call `done` with the error of each, or None."""
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
    """Number of threads that can run in parallel: available cores, limited by the CPU quota of the cgroup.

    available: by default the cores of the process's CPU affinity.
    """
    if available is None:
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(available, _quota(cgroups, own))))


def _quota(root: Path, own: Path) -> float:
    """Smallest CPU quota, in cores, of the cgroup of this process and its parents; ∞ without a limit."""
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
    """Replace threads and locks in a forked process: its threads are gone and never release their locks."""
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
