"""Console behaviour: errors, warnings, exit codes, and output streams that cannot be written."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import typer
from typer.core import TyperGroup

from sysdyn.app.terminal import NOT_SOLVED, UNREAD, WRONG, print_labelled
from sysdyn.errors import SingularState, SysdynError


class Commands(TyperGroup):
    """Command group that prints sysdyn errors and warnings as single lines on standard error."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *place, **options: print_labelled("warning:", "yellow", message)
            try:
                return super().invoke(ctx)
            except SysdynError as error:
                print_labelled("error:", "red", error)
                raise typer.Exit(NOT_SOLVED if isinstance(error, SingularState) else WRONG) from error
            except (MemoryError, RecursionError) as error:
                print_labelled("error:", "red", f"out of memory: {error or type(error).__name__}")
                raise typer.Exit(WRONG) from error


def run(program: Callable[[], object]) -> None:
    """Run a console script. Handles SIGTERM, ASCII-only output, full disks and closed pipes."""
    sys.stdout, sys.stderr = sys.stdout or open(os.devnull, "w"), sys.stderr or open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # removes half-written files
    try:
        try:
            program()
        finally:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the remaining output at exit
        if isinstance(error, BrokenPipeError):
            sys.exit(UNREAD)
        with suppress(OSError):
            print_labelled("error:", "red", f"standard output cannot be written: {error.strerror or error}")
        sys.exit(WRONG)
