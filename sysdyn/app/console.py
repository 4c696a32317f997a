"""A program on the console: its errors and warnings, its exit codes, and output that cannot be written."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from sysdyn.app.terminal import UNREAD, errors, print_labelled
from sysdyn.errors import SingularState, SysdynError

# Exit codes of the program: some state could not be solved; the input is wrong.
NOT_SOLVED, WRONG = 1, 2


class Commands(TyperGroup):
    """Shows errors of sysdyn as one line and warnings as a note, both on standard error."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except SysdynError as error:
                _show_error(error)
                raise typer.Exit(NOT_SOLVED if isinstance(error, SingularState) else WRONG) from error
            except (MemoryError, RecursionError) as error:
                _show_error(f"more memory is needed than there is: {error or type(error).__name__}")
                raise typer.Exit(WRONG) from error


def _show_error(error: object) -> None:
    print_labelled(errors(), "error:", "red", error)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
    line: str | None = None,
) -> None:  # fmt: skip
    """A warning as a note; the arguments are those of `warnings.showwarning`."""
    print_labelled(errors(), "warning:", "yellow", message)


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
            _show_error(f"standard output cannot be written: {error.strerror or error}")
        sys.exit(WRONG)
