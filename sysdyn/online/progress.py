"""Progress bar of the offline phase on a terminal or in a notebook."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from sysdyn.offline.stages import Progress

# Time in seconds after which a bar appears (chosen: short work shows none).
DELAY = 1.0


def progress_callback(progress: Progress | bool | None) -> Progress | None:
    """Progress callback: that of the caller; for True a bar on a terminal or in a notebook; else None."""
    if progress is True:
        visible = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
        return Bar("compiling") if visible else None
    return progress or None


class Bar:
    """Progress bar that appears after a delay; a callback for `sysdyn.compile(…, progress=)`.

        with Bar("compiling") as bar: solver = sysdyn.compile(problem, progress=bar)

    It reappears when the solver compiles further programs. cached: True if no work was reported. delay: in s, `DELAY`
    by default.
    """

    def __init__(self, title: str, delay: float | None = None):
        # rich takes 50 ms to import and is not needed without a terminal
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.title, self.cached = title, True
        self._delay = DELAY if delay is None else delay
        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self.renderer = Progress(*columns, console=console, transient=True, disable=not _can_draw(console))
        self._task = self.renderer.add_task(title, total=1.0)
        self._timer: threading.Timer | None = None

    def __call__(self, what: str, share: float) -> None:
        if share >= 1.0:
            self._stop()
            return
        self.cached = False
        self._start()
        self.renderer.update(self._task, description=f"{self.title}: {what}", completed=share)

    def __enter__(self) -> Bar:
        self._start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        """Show the bar after the delay, unless work is already in progress."""
        if self._timer is None:
            self.renderer.reset(self._task)
            self._timer = threading.Timer(self._delay, self.renderer.start)
            self._timer.daemon = True
            self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None
            self.renderer.stop()


def _can_draw(console) -> bool:
    """True for a terminal, and for a notebook with ipywidgets, which rich needs there."""
    if not console.is_jupyter:
        return console.is_terminal
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False
    return True
