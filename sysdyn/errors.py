"""Errors and warnings: one base class, and a class for each failure that callers can handle differently.

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

# Longest name and list that a message shows, in characters and items: both fit on a line or two.
_MAX_NAME, MAX_ITEMS = 200, 6

# Name of sysdyn for pip: "sysdyn" there is another project, of system dynamics.
DISTRIBUTION = "sysdyn-robotics"
# The package build reads the version here.
VERSION = "0.3.0"


def warn(message: str, category: type[Warning]) -> None:
    """Warn with the location of the caller outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def install(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def optional(module: str, message: str) -> ModuleType:
    """Import an optional module. Raises BackendUnavailable with `message`, in which the cause replaces "{error}"."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendUnavailable(message.replace("{error}", str(error))) from error


def few(items: Iterable[object], most: int = MAX_ITEMS, between: str = ", ") -> str:
    """The first `most` items, separated by `between`; if there are more, also the total number."""
    texts = [*map(str, items)]
    more = [f"… ({len(texts)} in all)"] if len(texts) > most else []
    return between.join([*texts[:most], *more])


def at_states(states: Collection[Any], n: int) -> str:
    """Text such as " 3 (and 4 more of 9)": the first state and the number of others; "" if n is 1."""
    more = f" (and {len(states) - 1} more of {n})" if len(states) > 1 else ""
    return "" if n == 1 else f" {int(next(iter(states)))}{more}"


class SysdynError(Exception):
    """Base class of all errors of sysdyn."""


class InvalidInput(SysdynError, ValueError):
    """An argument has the wrong shape, type, range or name."""


class UnknownName(InvalidInput, KeyError):
    """A name that does not exist.

    kind: the kind of object that is named. valid: the valid names. The message lists near matches, or `note` if given.
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
    """Raise UnknownName unless `name` is in `valid`."""
    if not isinstance(name, Hashable) or name not in valid:
        raise UnknownName(kind, name, valid)


def checked_path(what: str, path: object) -> Path:
    """The argument as a Path. Raises InvalidInput unless it is a str or os.PathLike (no file descriptors)."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise InvalidInput(f"{what} must be a path, not {path!r}")
    return Path(path)


class ModelError(SysdynError, ValueError):
    """A robot description that cannot be read or is not a valid model; names file, line and element if known."""


class ProblemError(SysdynError, ValueError):
    """An ill-posed problem: too few equations, too many, or two measurements of the same name."""


class StructurallySingular(ProblemError):
    """A system that is singular at every state. `undetermined`: names of unknowns; `equations`: redundant ones."""

    def __init__(self, message: str, undetermined: tuple[str, ...] = (), equations: tuple[str, ...] = ()):
        self.undetermined, self.equations = undetermined, equations
        super().__init__(message)


class SingularState(SysdynError, ArithmeticError):
    """The system is singular at a state. `equation`, `unknown`: failed pivot; `states`: singular states of a batch."""

    def __init__(self, message: str, equation: str = "", unknown: str = "", states: tuple[int, ...] = ()):
        self.equation, self.unknown, self.states = equation, unknown, states
        super().__init__(message)


class Inconsistent(SysdynError, ValueError):
    """Redundant measurements have contradictory values, at the `states` of a batch. `measurements`: their names."""

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
    """The model is usable but physically implausible, as are many published files."""


class IgnoredWarning(UserWarning):
    """Parts of a file or a problem that affect the dynamics are ignored; the message names them."""


class FormatWarning(UserWarning):
    """A file departs from its format and was read anyway; the message gives line, element and interpretation."""


class AccuracyWarning(UserWarning):
    """Results may be less accurate than expected; the message gives the error."""


class CacheWarning(UserWarning):
    """The cache folder cannot be used; the work is done without it."""


class LogWarning(UserWarning):
    """The message names columns of a log that the problem does not use, or that are missing and have defaults."""
