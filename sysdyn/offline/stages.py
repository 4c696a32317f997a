"""Progress and timings of the stages of the offline phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Progress callback: a text, and the completed fraction of the work.
Progress = Callable[[str, float], None]


class Stages:
    """Calls progress(text, completed fraction), and measures the time of each stage."""

    def __init__(self, progress: Progress | None = None):
        self._progress = progress
        self._furthest = 0.0
        self._timings: dict[str, float] = {}
        self._running: list[str] = []

    def report(self, what: str, share: float = 0.0) -> None:
        """Report a text and the completed fraction, which never decreases, even if a search restarts."""
        self._furthest = max(self._furthest, share)
        if self._progress:
            self._progress(what, self._furthest)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Context manager whose time counts for the stage `name`, and not for an enclosing stage."""
        began = time.perf_counter()
        self._running.append(name)
        self._timings.setdefault(name, 0.0)
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self._running.pop()
            self._timings[name] += took
            if self._running:
                self._timings[self._running[-1]] -= took

    @property
    def timings(self) -> tuple[tuple[str, float], ...]:
        """(name, seconds) of each stage, in the order in which they began."""
        return tuple(self._timings.items())
