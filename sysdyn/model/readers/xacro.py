"""Xacro files: the package `xacro` expands them to URDF text."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from sysdyn.errors import ModelError, install, optional
from sysdyn.model.model import Model
from sysdyn.model.readers.source import GeneratedText, is_text, origin_of
from sysdyn.model.readers.urdf_model import load_urdf

# xacro keeps its state in module variables, so files are expanded one at a time.
_LOCK = threading.Lock()


def load_xacro(source: str | os.PathLike[str], mappings: Mapping[str, object] | None = None, **options: Any) -> Model:
    """Read a xacro file (or text) into a `Model`.

    mappings: {argument of the file: value}. Options and errors as in `load_urdf`.
    """
    return load_urdf(expand(source, mappings), **options)


def expand(source: str | os.PathLike[str], mappings: Mapping[str, object] | None) -> GeneratedText:
    """Expand a xacro file (or text) to URDF text. mappings: {argument of the file: value}.

    Xacro evaluates expressions as Python code and can include any file: expand trusted files only. Raises
    BackendUnavailable if xacro is missing, ModelError for errors of xacro.
    """
    missing = f"xacro files are expanded by the package xacro, which is not available ({{error}}): {install('xacro')}"
    xacro = optional("xacro", missing)
    values = {key: str(value) for key, value in (mappings or {}).items()}
    text = is_text(source)
    name = "<string>" if text else str(source)
    with _LOCK:
        try:
            if text:
                xacro.init_stacks(None)
                document = xacro.parse(source)
                xacro.process_doc(document, mappings=values)
            else:
                document = xacro.process_file(os.fspath(source), mappings=values)
        except Exception as error:  # expressions can raise any exception
            reason = " ".join(str(error).split()) or type(error).__name__
            if "ament_index_python" in reason:  # xacro resolves $(find package) with it
                reason += (
                    ". $(find package) needs ROS: expand the file where ROS is (xacro robot.xacro > robot.urdf) and "
                    "load the result, or write paths relative to the file, as ../package/urdf/arm.xacro"
                )
            raise ModelError(f"{name}: xacro cannot expand it: {reason}") from None
    result = GeneratedText(document.toprettyxml(indent="  "))
    result.name, result.folder = f"{name}, expanded", origin_of(source).folder
    return result
