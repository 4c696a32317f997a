"""The time that a search may take, and its progress."""

from __future__ import annotations

import time
from collections.abc import Callable

clock: Callable[[], float] = time.monotonic
SEARCH = 0.9  # share of the progress that is search


class Allowance:
    """The time a search may take, and what has passed of it, which it reports.

    seconds: from now on; None: as long as it takes. progress(what, share): called with what is being done.
    """

    def __init__(self, seconds: float | None, progress: Callable[[str, float], None] | None):
        self.seconds, self._progress = seconds, progress
        self._began, self._furthest = clock(), 0.0

    def say(self, what: str, share: float = 0.0) -> None:
        """Report; share: of the usual work that is done. Where a time is given the share of that is reported."""
        if self.seconds is not None:
            passed = (clock() - self._began) / self.seconds
            share = SEARCH * passed if passed < 1.0 else max(share, SEARCH)
        self._furthest = max(self._furthest, share)  # a second search begins again, its progress does not
        if self._progress:
            self._progress(what, self._furthest)

    def left(self) -> bool:
        """Whether there is time beyond the usual search."""
        return self.seconds is not None and clock() - self._began < self.seconds
