"""The program on the console: its errors, warnings and exit codes, and output that cannot be written."""

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
    """Print errors of sysdyn as one line and warnings as a note, both on standard error."""

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
                print_labelled("error:", "red", f"more memory is needed than there is: {error or type(error).__name__}")
                raise typer.Exit(WRONG) from error


def run(program: Callable[[], object]) -> None:
    """Run the program as a console script: output may be ASCII only, full or closed, and SIGTERM may come."""
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest goes nowhere at the exit
        if isinstance(error, BrokenPipeError):
            sys.exit(UNREAD)
        with suppress(OSError):
            print_labelled("error:", "red", f"standard output cannot be written: {error.strerror or error}")
        sys.exit(WRONG)
