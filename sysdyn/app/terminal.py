"""The terminal: its two consoles, tables, operation counts in them, and the progress bar of the offline phase."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from sysdyn.program.operations import Flops

# Output that goes to no terminal is this many characters wide.
PIPED_WIDTH = 120
# A bar is shown after this many seconds.
PATIENCE = 1.0
# The program exits with this code where nobody reads its output any more, as others do that SIGPIPE ends.
UNREAD = 141


def output() -> Console:
    """Standard output as it is now (tests replace it)."""
    return _console(stderr=False)


def errors() -> Console:
    """Standard error as it is now."""
    return _console(stderr=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(UNREAD) from None


def _console(stderr: bool) -> Console:
    console = _Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


class Bar:
    """A progress bar on a terminal's standard error for work of more than a second; hand it to sysdyn.compile.

    with Bar("compiling") as bar: solver = sysdyn.compile(problem, progress=bar)

    It is shown again while the solver makes programs that are first asked for later. cached: nothing was done within.
    """

    def __init__(self, title: str):
        self.title, self.cached = title, True
        console = errors()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=1.0)
        self._timer: threading.Timer | None = None

    def __call__(self, what: str, share: float) -> None:
        if share >= 1.0:
            self._stop()
            return
        self.cached = False
        self._start()
        self._progress.update(self._task, description=f"{self.title}: {what}", completed=share)

    def __enter__(self) -> Bar:
        self._start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        """Show the bar before long, unless work is going on already."""
        if self._timer is None:
            self._progress.reset(self._task)
            self._timer = threading.Timer(PATIENCE, self._progress.start)
            self._timer.daemon = True
            self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None
            self._progress.stop()


def new_table(*columns: str, left: int = 1) -> Table:
    """A table without lines whose first `left` columns are text and the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        table.add_column(name, justify="left" if k < left else "right", overflow="fold")
    return table


def count_cells(flops: Flops | None) -> list[str]:
    """mul, add, div, total and sin/cos pairs as cells of a table; a dash where it was not counted."""
    if flops is None:
        return ["–"] * 5
    div = f"{flops.div:,}" + (f" + {flops.sqrt:,} sqrt" if flops.sqrt else "")
    return [f"{flops.mul:,}", f"{flops.add:,}", div, f"{flops.total:,}", f"{flops.trig:,}"]
