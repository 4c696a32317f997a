"""Progress of the offline phase as a bar on a terminal or in a notebook, if somebody looks."""

from __future__ import annotations

import sys
import threading
from html import escape
from types import TracebackType
from typing import Any

from sysdyn.offline.stages import Progress

# Seconds after which a bar is shown (chosen).
PATIENCE = 1.0


def shown(progress: Progress | bool | None) -> Progress | None:
    """The function that compiling calls: the caller's own, a bar if True and somebody looks, or None."""
    if progress is True:
        if "ipykernel" in sys.modules:
            return Bar("compiling", Notebook())
        return Bar("compiling") if sys.stderr is not None and sys.stderr.isatty() else None
    return progress or None


class Bar:
    """A progress bar on a terminal's standard error for work of more than a second; hand it to sysdyn.compile.

    with Bar("compiling") as bar: solver = sysdyn.compile(problem, progress=bar)

    It is shown again while the solver makes programs that are first asked for later. cached: nothing was done within.
    patience [s]: work that takes less is not shown; a second if None.
    """

    def __init__(self, title: str, drawn: Terminal | Notebook | None = None, patience: float | None = None):
        self.title, self.cached = title, True
        self._patience = PATIENCE if patience is None else patience
        self._drawn = drawn or Terminal(title)
        self._timer: threading.Timer | None = None

    def __call__(self, what: str, share: float) -> None:
        if share >= 1.0:
            self._stop()
            return
        self.cached = False
        self._start()
        self._drawn.draw(f"{self.title}: {what}", share)

    def __enter__(self) -> Bar:
        self._start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        """Show the bar before long, unless work is going on already."""
        if self._timer is None:
            self._timer = threading.Timer(self._patience, self._drawn.start)
            self._timer.daemon = True
            self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None
            self._drawn.stop()


class Terminal:
    """A bar of rich on standard error; none if that is no terminal."""

    def __init__(self, title: str):
        # rich takes 50 ms to import, which programs without a terminal save
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=1.0)

    def start(self) -> None:
        self._progress.reset(self._task)
        self._progress.start()

    def draw(self, what: str, share: float) -> None:
        self._progress.update(self._task, description=what, completed=share)

    def stop(self) -> None:
        self._progress.stop()


class Notebook:
    """A bar of HTML below a notebook's cell, which goes when the work is done."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._said = ""

    def start(self) -> None:
        from IPython.display import display  # there where a notebook runs

        self._handle = display({"text/html": self._said}, raw=True, display_id=True)

    def draw(self, what: str, share: float) -> None:
        self._said = f'<progress max="1" value="{share:.3f}"></progress> {escape(what)}'
        if self._handle is not None:
            self._handle.update({"text/html": self._said}, raw=True)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/html": ""}, raw=True)
            self._handle = None
