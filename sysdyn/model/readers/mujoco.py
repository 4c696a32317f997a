"""Compilation of MJCF files by MuJoCo (package `mujoco`)."""

from __future__ import annotations

import os
import re
from typing import Any

from sysdyn.errors import InvalidInput, ModelError, install, optional
from sysdyn.model.readers.source import read_text

# First element of an XML text, after declarations and comments.
_ROOT_ELEMENT = re.compile(r"(?:\s|<\?.*?\?>|<!--.*?-->|<!DOCTYPE.*?>)*+<([^\s/>]+)", re.DOTALL)


def imported() -> Any:
    """Import the module mujoco. Raises BackendUnavailable."""
    return optional(
        "mujoco", f"MJCF files are compiled by MuJoCo, which is not available ({{error}}): {install('mujoco')}"
    )


def root_element(text: str) -> str | None:
    """Tag of the root element of an XML text, or None."""
    match = _ROOT_ELEMENT.match(text.lstrip("\ufeff"))
    return None if match is None else match[1]


def check_type(m: Any) -> None:
    """Raise InvalidInput unless m is an mjModel."""
    if not isinstance(m, imported().MjModel):
        raise InvalidInput(
            f"a mujoco.MjModel is needed, not {type(m).__name__}; load_mjcf reads files, and an MjSpec has .compile()"
        )


def compiled(source: str | os.PathLike[str]) -> Any:
    """Compile an MJCF file or text to an mjModel. Errors as in `load_mjcf`."""
    raw, name = read_text(source)
    text = raw.decode(errors="replace")
    root = root_element(text)
    if root != "mujoco":
        actual = "there is none" if root is None else f"it is <{root}>"
        hint = ": read a URDF with load_urdf" if root == "robot" else ""
        raise ModelError(f"{name}: the root element of an MJCF file is <mujoco>, but {actual}{hint}")
    mujoco = imported()
    model = mujoco.MjModel
    try:
        return model.from_xml_string(text) if name == "<string>" else model.from_xml_path(name)
    except (ValueError, RuntimeError, MemoryError, mujoco.FatalError, mujoco.UnexpectedError) as error:
        raise ModelError(f"{name}: MuJoCo cannot compile it: {' '.join(str(error).split())}") from None
