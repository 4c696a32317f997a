"""The stages of the offline phase: progress, time that each took, and time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Callback of progress: a text, and the share of the work that is done.
Progress = Callable[[str, float], None]

# Clock of the time that searches may take [s].
clock: Callable[[], float] = time.monotonic
# Share of the progress that is search, if a time is given for it (chosen).
SEARCH = 0.9


class Stages:
    """The running stages, which report progress, and the time that searches may take.

    seconds: from now on; None for the usual search alone. progress(what, share): called with a text and the share done.
    """

    def __init__(self, seconds: float | None, progress: Progress | None):
        self.seconds, self._progress = seconds, progress
        self._began, self._furthest = clock(), 0.0
        self._spent: dict[str, float] = {}
        self._running: list[str] = []

    def say(self, what: str, share: float = 0.0) -> None:
        """Report `what` and the share of the usual work that is done, or of the time if one is given."""
        if self.seconds is not None:
            passed = (clock() - self._began) / self.seconds
            share = SEARCH * passed if passed < 1.0 else max(share, SEARCH)
        self._furthest = max(self._furthest, share)  # a second search begins again, its progress does not
        if self._progress:
            self._progress(what, self._furthest)

    def left(self) -> bool:
        """True if there is time beyond the usual search."""
        return self.seconds is not None and clock() - self._began < self.seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Context whose time counts for the stage of that name, and not for an outer stage."""
        began = time.perf_counter()
        self._running.append(name)
        self._spent.setdefault(name, 0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self._running.pop()
            self._spent[name] += took
            if self._running:
                self._spent[self._running[-1]] -= took

    @property
    def spent(self) -> tuple[tuple[str, float], ...]:
        """(name, seconds) of each stage, in the order in which they began."""
        return tuple(self._spent.items())
