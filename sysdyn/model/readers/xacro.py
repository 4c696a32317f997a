"""Xacro files, expanded by the package `xacro` to the text of a URDF."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from sysdyn.errors import ModelError, install, optional
from sysdyn.model.readers.source import GeneratedText, origin_of

# Held to expand a file: one at a time, as xacro keeps its state in module variables.
_ONE_AT_A_TIME = threading.Lock()


def expanded(source: str | os.PathLike[str], mappings: Mapping[str, object] | None, text: bool) -> GeneratedText:
    """The XML that xacro makes of a file (or of the text `source`), with values of its arguments.

    Expressions of the file are evaluated as Python by xacro, and it can include any file: expand what you trust.
    Raises BackendUnavailable if xacro is missing, ModelError with what it finds wrong.
    """
    missing = f"xacro files are expanded by the package xacro, which is not available ({{error}}): {install('xacro')}"
    xacro = optional("xacro", missing)
    values = {name: str(value) for name, value in (mappings or {}).items()}
    shown = "<string>" if text else str(source)
    with _ONE_AT_A_TIME:
        try:
            if text:
                xacro.init_stacks(None)
                document = xacro.parse(source)
                xacro.process_doc(document, mappings=values)
            else:
                document = xacro.process_file(os.fspath(source), mappings=values)
        except Exception as error:  # whatever its expressions raise
            reason = " ".join(str(error).split()) or type(error).__name__
            if "ament_index_python" in reason:  # how xacro resolves $(find package)
                reason += (
                    ". $(find package) needs ROS: expand the file where ROS is (xacro robot.xacro > robot.urdf) and "
                    "load the result, or write paths relative to the file, as ../package/urdf/arm.xacro"
                )
            raise ModelError(f"{shown}: xacro cannot expand it: {reason}") from None
    made = GeneratedText(document.toprettyxml(indent="  "))
    made.name, made.folder = f"{shown}, expanded", origin_of(source).folder
    return made
