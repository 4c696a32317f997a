"""Robots by the texts that users give: a file, a generator, or a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.model import Model, auto_tree, chain, load

# Text of a generated robot: the name of its generator and numbers behind a colon.
GENERATOR = re.compile(r"(auto_tree|chain):(.*)")


def load_robot(
    spec: str, base: str = "fixed", folder: Path | None = None, fixed_joints: str | Sequence[str] | None = None
) -> Model:
    """The model called `spec`: the path of a robot file (relative to `folder`), `auto_tree:N[,b,skew,taper]`,
    `chain:N[,seed]`, or a name as for `sysdyn.load`, such as `icub`. fixed_joints: of a URDF, as for `load_urdf`.

    Raises ModelError for a file that cannot be read, InvalidInput for a wrong specification, BackendUnavailable if the
    package of the robot is missing.
    """
    check_among("base", base, ("fixed", "floating"))
    options: dict[str, Any] = {} if fixed_joints is None else {"fixed_joints": fixed_joints}
    generator = GENERATOR.fullmatch(spec)
    if generator:
        if base == "floating":
            raise InvalidInput(f"{spec}: generated robots stand on a fixed base; leave base=floating out")
        return _generated(*generator.groups())
    path = Path(spec) if folder is None else folder / spec
    try:
        return load(path if path.exists() or path.suffix in (".urdf", ".xml", ".xacro") else spec, base, **options)
    except UnknownName as error:
        if error.name != spec:
            raise
        raise UnknownName("robot", spec, (*error.valid, "auto_tree:N", "chain:N")) from None


def _generated(name: str, text: str) -> Model:
    """auto_tree or chain with the numbers in `text`."""
    shape = {"auto_tree": "auto_tree:N[,branching[,skew[,taper]]]", "chain": "chain:N[,seed]"}[name]
    parts = text.split(",")
    whole = (0,) if name == "auto_tree" else (0, 1)
    try:
        numbers: list[Any] = [int(x) if k in whole else float(x) for k, x in enumerate(parts)]
    except ValueError:
        raise InvalidInput(f"robot '{name}:{text}' is not of the form {shape}, as in auto_tree:7,1,1.5,0.9") from None
    if len(numbers) > (4 if name == "auto_tree" else 2):
        raise InvalidInput(f"robot '{name}:{text}' has too many numbers; the form is {shape}")
    return auto_tree(*numbers) if name == "auto_tree" else chain(*numbers)
