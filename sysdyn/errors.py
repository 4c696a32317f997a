"""Errors: one base class, and a kind for each thing a caller can act on.

Every message says what failed, the value found, what is valid, and what to do next.
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

# Most characters of a name that are shown, and compared with other names (chosen).
_LONGEST_NAME = 200
# Most items of a list that a message shows, unless it says another number (chosen).
MOST_ITEMS = 6

# Name by which pip knows sysdyn: "sysdyn" there is another project, of system dynamics.
DISTRIBUTION = "sysdyn-robotics"
# Version of the package; its build takes it from here.
VERSION = "0.3.0"


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line outside of this package from which it was called, however many functions are between."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def install(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def optional(module: str, message: str) -> ModuleType:
    """A module that may be missing. Raises BackendUnavailable with the message, in which {error} is the cause."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BackendUnavailable(message.replace("{error}", str(error))) from error


def few(items: Iterable[object], most: int = MOST_ITEMS, between: str = ", ") -> str:
    """The first items in one text, and the number of all if there are more."""
    texts = [*map(str, items)]
    more = [f"… ({len(texts)} in all)"] if len(texts) > most else []
    return between.join([*texts[:most], *more])


def at_states(states: Collection[Any], n: int) -> str:
    """The first of the states among n and how many there are more, as " 3 (and 4 more of 9)"; "" if n is 1."""
    more = f" (and {len(states) - 1} more of {n})" if len(states) > 1 else ""
    return "" if n == 1 else f" {int(next(iter(states)))}{more}"


class SysdynError(Exception):
    """Base class of all errors raised on purpose by sysdyn."""


class InvalidInput(SysdynError, ValueError):
    """A value handed in has the wrong shape, type, range or name."""


class UnknownName(InvalidInput, KeyError):
    """A name that does not exist; the message lists near matches, after a note, if there is one."""

    def __init__(self, kind: str, name: object, valid: Iterable[str], note: str = ""):
        self.name, self.valid = name, tuple(valid)
        if len(str(name)) > _LONGEST_NAME:
            name = f"{str(name)[:_LONGEST_NAME]}…"
        folded = {x.casefold(): x for x in reversed(self.valid)}
        close = difflib.get_close_matches(str(name).casefold(), folded, n=3, cutoff=0.5)
        near = [folded[str(name).casefold()]] if str(name).casefold() in folded else [folded[x] for x in close]
        shown = few(self.valid, 12)
        hint = f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
        hint = f"{note} " if note else hint
        super().__init__(f"unknown {kind} {name!r}. {hint}Valid names: {shown or '(none)'}.")

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return self.args[0]

    def __reduce__(self):  # BaseException would call __init__ with the message alone
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


def check_among(kind: str, name: object, valid: Collection[str]) -> None:
    """Raise UnknownName unless the name is a valid one."""
    if not isinstance(name, Hashable) or name not in valid:
        raise UnknownName(kind, name, valid)


def checked_path(what: str, path: object) -> Path:
    """`path`, a str or os.PathLike, as a Path. Raises InvalidInput for other types, such as file descriptors."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
        raise InvalidInput(f"{what} must be a path, not {path!r}")
    return Path(path)


class ModelError(SysdynError, ValueError):
    """A robot description that cannot be read or is not a valid model; names file, line and element if known."""


class ProblemError(SysdynError, ValueError):
    """A problem whose measurements do not fit together (missing, duplicate, too few or too many equations)."""


class StructurallySingular(ProblemError):
    """A system that no state makes solvable; `undetermined` unknowns cannot be found from `equations`."""

    def __init__(self, message: str, undetermined: tuple[str, ...] = (), equations: tuple[str, ...] = ()):
        self.undetermined, self.equations = undetermined, equations
        super().__init__(message)


class SingularState(SysdynError, ArithmeticError):
    """The system cannot be solved at this state; names the equation and the unknown of the failed pivot."""

    def __init__(self, message: str, equation: str = "", unknown: str = "", states: tuple[int, ...] = ()):
        self.equation, self.unknown, self.states = equation, unknown, states
        super().__init__(message)


class LostDigits(SingularState):
    """A result would keep fewer than 8 digits with the covariances that are handed in; names whose they are."""


class Inconsistent(SysdynError, ValueError):
    """Values of redundant measurements contradict those of others; both are named, and the states of a batch."""

    def __init__(self, message: str, measurements: tuple[str, ...] = (), states: tuple[int, ...] = ()):
        self.measurements, self.states = measurements, states
        super().__init__(message)


class NoSafeOrdering(ProblemError):
    """No elimination order is numerically stable at every sampled state.

    tried: one line for each order, with the reason why it was rejected. The message shows the first ones.
    """

    def __init__(self, message: str, tried: tuple[str, ...] = ()):
        self.tried = tried
        super().__init__(message)


class BackendUnavailable(SysdynError, ImportError):
    """An optional library is missing; the message says how to get it."""


class FileError(SysdynError, OSError):
    """A file that cannot be read or written, or is foreign, damaged, or of another version."""


class PlausibilityWarning(UserWarning):
    """The model is usable but physically implausible (as real files are)."""


class IgnoredWarning(UserWarning):
    """Parts of a file or a problem that act on the robot but are left out; the message names them."""


class FormatWarning(UserWarning):
    """A file that departs from its format and was read all the same; the message gives lines, elements and readings."""


class AccuracyWarning(UserWarning):
    """Results may be less accurate than expected: the message gives the figure."""


class CacheWarning(UserWarning):
    """The cache folder cannot be used; the work is done without it."""


class LogWarning(UserWarning):
    """States or a log with columns unknown to the problem, or without columns that are made up for: it names them."""
