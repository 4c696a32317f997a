"""Threads that wait for work: handing it over costs less than to a pool of futures."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread


class Team:
    """Runs functions side by side; the caller's thread is one of those that do the work.

    Threads are started when they are first needed and wait for more from then on. Any number of callers may share them.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all threads, for in a forked process there are none."""
        self._lock = Lock()
        self._todo: SimpleQueue[tuple[Callable[[], object], SimpleQueue[BaseException | None]]] = SimpleQueue()
        self._size = 0

    def run(self, parts: Sequence[Callable[[], object]]) -> None:
        """Call all parts and return when the last one is done. Raises what a part raised."""
        if self._size < len(parts) - 1:
            self._grow(len(parts) - 1)
        done: SimpleQueue[BaseException | None] = SimpleQueue()  # of this call alone, should it be interrupted
        for part in parts[1:]:
            self._todo.put((part, done))
        errors = [_outcome(parts[0]), *(done.get() for _ in parts[1:])]
        for error in errors:
            if error is not None:
                raise error

    def _grow(self, size: int) -> None:
        with self._lock:
            while self._size < size:
                self._size += 1
                Thread(target=_work, args=(self._todo,), name=f"sysdyn_{self._size}", daemon=True).start()


def _work(todo: SimpleQueue) -> None:
    while True:
        part, done = todo.get()
        done.put(_outcome(part))
        del part, done  # not to be kept while waiting


def _outcome(part: Callable[[], object]) -> BaseException | None:
    try:
        part()
    except BaseException as error:
        return error
    return None


# The threads that all batches of this process share.
TEAM = Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TEAM.reset)
