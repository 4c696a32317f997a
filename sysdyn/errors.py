"""Errors and warnings: one base class, and a class for each thing that a caller can act on.

Every message says what failed, the value, what is valid, and what to do next.
"""

from __future__ import annotations

import copyreg
import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Collection, Hashable, Iterable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

# Characters of a name and items of a list that a message shows: both fit on a line or two.
_MAX_NAME, MAX_ITEMS = 200, 6

# Name of sysdyn for pip: "sysdyn" there is another project, of system dynamics.
DISTRIBUTION = "sysdyn-robotics"
# Version of the package; its build takes it from here.
VERSION = "0.3.0"


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of this package that called into it."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def install(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def optional(module: str, message: str) -> ModuleType:
    """Import a module that may be missing. Raises BackendUnavailable: the message, with the cause for "{error}"."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendUnavailable(message.replace("{error}", str(error))) from error


def few(items: Iterable[object], most: int = MAX_ITEMS, between: str = ", ") -> str:
    """The first items, separated by `between`, and the number of all if there are more."""
    texts = [*map(str, items)]
    more = [f"… ({len(texts)} in all)"] if len(texts) > most else []
    return between.join([*texts[:most], *more])


def at_states(states: Collection[Any], n: int) -> str:
    """Text such as " 3 (and 4 more of 9)": the first state and how many follow; "" for a call of one state."""
    more = f" (and {len(states) - 1} more of {n})" if len(states) > 1 else ""
    return "" if n == 1 else f" {int(next(iter(states)))}{more}"


class SysdynError(Exception):
    """Base class of all errors raised on purpose by sysdyn."""


class InvalidInput(SysdynError, ValueError):
    """An argument has the wrong shape, type, range or name."""


class UnknownName(InvalidInput, KeyError):
    """A name that does not exist.

    kind: what the name should denote; valid: the valid names. The message lists near matches, or the note instead.
    """

    def __init__(self, kind: str, name: object, valid: Iterable[str], note: str = ""):
        self.kind, self.name, self.valid = kind, name, tuple(valid)
        if len(str(name)) > _MAX_NAME:
            name = f"{str(name)[:_MAX_NAME]}…"
        folded = {x.casefold(): x for x in reversed(self.valid)}
        close = difflib.get_close_matches(str(name).casefold(), folded, n=3, cutoff=0.5)
        near = [str(name).casefold()] if str(name).casefold() in folded else close
        advice = note or (f"Did you mean {' or '.join(repr(folded[x]) for x in near)}?" if near else "")
        names = few(self.valid, 12) or "(none)"
        super().__init__(" ".join(filter(None, (f"unknown {kind} {name!r}.", advice, f"Valid names: {names}."))))

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return self.args[0]

    def __reduce__(self):  # BaseException would call __init__ with the message alone
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def check_among(kind: str, name: object, valid: Collection[str]) -> None:
    """Raise UnknownName unless the name is a valid one."""
    if not isinstance(name, Hashable) or name not in valid:
        raise UnknownName(kind, name, valid)


def checked_path(what: str, path: object) -> Path:
    """The path as a Path. Raises InvalidInput unless it is a str or os.PathLike: file descriptors are refused."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise InvalidInput(f"{what} must be a path, not {path!r}")
    return Path(path)


class ModelError(SysdynError, ValueError):
    """A robot description that cannot be read or is not a valid model; names file, line and element if known."""


class ProblemError(SysdynError, ValueError):
    """A problem whose measurements do not fit together: too few equations, too many, or two of one name."""


class StructurallySingular(ProblemError):
    """A system that is singular at every state. `undetermined`: names of unknowns; `equations`: redundant ones."""

    def __init__(self, message: str, undetermined: tuple[str, ...] = (), equations: tuple[str, ...] = ()):
        self.undetermined, self.equations = undetermined, equations
        super().__init__(message)


class SingularState(SysdynError, ArithmeticError):
    """The system cannot be solved at a state. `equation`, `unknown`: of the failed pivot; `states`: of a batch."""

    def __init__(self, message: str, equation: str = "", unknown: str = "", states: tuple[int, ...] = ()):
        self.equation, self.unknown, self.states = equation, unknown, states
        super().__init__(message)


class Inconsistent(SysdynError, ValueError):
    """Values of redundant measurements contradict others. `measurements`: names of both; `states`: of a batch."""

    def __init__(self, message: str, measurements: tuple[str, ...] = (), states: tuple[int, ...] = ()):
        self.measurements, self.states = measurements, states
        super().__init__(message)


class NoSafeOrdering(ProblemError):
    """No elimination order is numerically stable at every sampled state.

    `tried`: a line for each order with the reason why it was rejected; the message shows the first ones.
    """

    def __init__(self, message: str, tried: tuple[str, ...] = ()):
        self.tried = tried
        super().__init__(message)


class BackendUnavailable(SysdynError, ImportError):
    """An optional library is missing; the message says how to get it."""


class FileError(SysdynError, OSError):
    """A file that cannot be read or written, or is foreign, damaged, or of another version."""


class PlausibilityWarning(UserWarning):
    """The model can be used but is physically implausible, which many published files are."""


class IgnoredWarning(UserWarning):
    """Parts of a file or a problem that act on the robot are left out; the message names them."""


class FormatWarning(UserWarning):
    """A file departs from its format and was read anyway; the message gives line, element and interpretation."""


class AccuracyWarning(UserWarning):
    """Results may be less accurate than expected: the message gives the figure."""


class CacheWarning(UserWarning):
    """The cache folder cannot be used; the work is done without it."""


class LogWarning(UserWarning):
    """Columns of a log are unknown to the problem, or missing ones have been replaced by defaults; it names them."""
