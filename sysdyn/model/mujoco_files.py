"""MJCF files compiled by MuJoCo (the package `mujoco`), which is kept from hanging or crashing on other files."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sysdyn.errors import InvalidInput, ModelError, install, optional
from sysdyn.files.regular import IrregularFile, open_regular, require_regular
from sysdyn.model.checks import MOST_BODIES
from sysdyn.model.urdf import MOST_BYTES, read_text

# The first element of an XML text, behind declarations and comments.
_ROOT_ELEMENT = re.compile(r"(?:\s|<\?.*?\?>|<!--.*?-->|<!DOCTYPE.*?>)*+<([^\s/>]+)", re.DOTALL)
# Elements that stand for as many others as their attribute count says.
_MANY = ("replicate", "composite", "flexcomp")
# Elements with as many entries as the product of these attributes, and the most entries accepted; chosen.
_ARRAYS, _MOST_ENTRIES = {"texture": ("width", "height"), "hfield": ("nrow", "ncol")}, 10**8
# Attributes that name files, in the folder of the robot file or in a folder that an attribute of <compiler> names.
_FILES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")
_FOLDERS = ("meshdir", "texturedir", "assetdir")
GLANCE = 0.002  # Seconds between two looks at a process that is waited for (chosen).


def imported() -> Any:
    """The module mujoco. Raises BackendUnavailable."""
    return optional(
        "mujoco", f"MJCF files are compiled by MuJoCo, which is not available ({{error}}): {install('mujoco')}"
    )


def root_element(text: str) -> str | None:
    """The tag of the first element of an XML text; None if there is none."""
    found = _ROOT_ELEMENT.match(text.lstrip("\ufeff"))
    return None if found is None else found[1]


def check_type(m: Any) -> None:
    """Raise InvalidInput unless m is an mjModel."""
    if not isinstance(m, imported().MjModel):
        raise InvalidInput(
            f"a mujoco.MjModel is needed, not {type(m).__name__}; load_mjcf reads files, and an MjSpec has .compile()"
        )


def compiled(source: str | os.PathLike[str], patience: float | None) -> Any:
    """The mjModel of an MJCF file or text; see `sysdyn.model.mjcf.load_mjcf`."""
    raw, shown = read_text(source)
    text = raw.decode(errors="replace")
    root = root_element(text)
    if root != "mujoco":
        found = "there is none" if root is None else f"it is <{root}>"
        hint = ": read a URDF with load_urdf" if root == "robot" else ""
        raise ModelError(f"{shown}: the root element of an MJCF file is <mujoco>, but {found}{hint}")
    mujoco = imported()
    _check_size(raw, Path(".") if shown == "<string>" else Path(shown).parent, shown)
    read = mujoco.MjModel
    compile_it = partial(read.from_xml_string, text) if shown == "<string>" else partial(read.from_xml_path, shown)
    if patience is not None:
        require_end(compile_it, patience, shown)
    try:
        return compile_it()
    except (ValueError, RuntimeError, MemoryError, mujoco.FatalError, mujoco.UnexpectedError) as error:
        raise ModelError(f"{shown}: MuJoCo cannot compile it: {' '.join(str(error).split())}") from None


def require_end(compile_it: Callable[[], object], seconds: float, shown: str) -> None:
    """Raise ModelError if a forked process that compiles it does not end by itself within `seconds`."""
    with warnings.catch_warnings():
        # JAX, and Python from 3.12 on, warn of forks beside threads; this child takes no lock of theirs, and ends
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):  # this process will see the same error
            compile_it()
        os._exit(0)
    last, ended, status = time.monotonic() + seconds, 0, 0
    while not ended and time.monotonic() < last:
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            time.sleep(GLANCE)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise ModelError(f"{shown}: MuJoCo is not done with it after {seconds:g} s")
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise ModelError(f"{shown}: MuJoCo crashes when it compiles it ({name})")


def _check_size(text: bytes, folder: Path, shown: str) -> None:
    """Raises ModelError if `<replicate>` and the like make more of a file than memory may hold.

    Files that it includes are looked into; what cannot be read is left for MuJoCo to say, but for what is no regular
    file, for which MuJoCo would wait.
    """
    from lxml import etree  # loaded with the first robot file: most programs read none

    def parsed(text: bytes) -> Any:
        return etree.fromstring(text, etree.XMLParser(resolve_entities=False, no_network=True, recover=True))

    def numbers(element: Any, *keys: str) -> float:
        try:
            return math.prod(float(x) for key in keys for x in element.get(key, "1").split())
        except ValueError:
            return 1.0

    def count(n: float, element: Any, most: int) -> None:
        if not n <= most:
            raise ModelError(
                f"{shown}: <{element.tag}> in line {element.sourceline} makes it too large: {n:,.0f} where a robot may "
                f"have {most:,}"
            )

    total, seen, folders, files = 0.0, set(), [folder], list[str]()
    stack = [(parsed(text), 1.0)]
    while stack:
        element, times = stack.pop()
        if element is None or not isinstance(element.tag, str):
            continue
        if element.tag in _MANY:
            total += times * numbers(element, "count")
            times *= numbers(element, "count") if element.tag == "replicate" else 1.0
        elif element.tag in _ARRAYS:
            count(numbers(element, *_ARRAYS[element.tag]), element, _MOST_ENTRIES)
        elif element.tag == "body":
            total += times
        count(total, element, MOST_BODIES)
        if element.tag == "compiler":
            folders += [folder / x for key in _FOLDERS if (x := element.get(key))]
        for key in _FILES:
            files += [file] if (file := element.get(key)) else []
        if element.tag in ("include", "model") and (file := element.get("file")) and file not in seen:
            seen.add(file)
            try:
                with open_regular(folder / file) as included:
                    stack.append((parsed(included.read(MOST_BYTES)), times))
            except (OSError, ValueError, etree.XMLSyntaxError):
                continue
        stack += [(child, times) for child in element]
    for path in (place / file for file in dict.fromkeys(files) for place in folders):
        try:
            require_regular(path)
        except IrregularFile as error:
            raise ModelError(f"{shown}: {path} cannot be read: {error.strerror}") from None
        except (OSError, ValueError):
            continue
