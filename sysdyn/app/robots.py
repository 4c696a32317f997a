"""Robots for the command line: a file, a generator such as chain:5, or a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.model import Model, auto_tree, chain, load

# Syntax of a generated robot: generator name, colon, numbers.
GENERATOR = re.compile(r"(auto_tree|chain):(.*)")
# {generator: (syntax, function, argument types)}
_GENERATORS: dict[str, tuple[str, Callable[..., Model], tuple[type, ...]]] = {
    "auto_tree": ("auto_tree:N[,branching[,skew[,taper]]]", auto_tree, (int, float, float, float)),
    "chain": ("chain:N[,seed]", chain, (int, int)),
}


def load_robot(
    spec: str, base: str = "fixed", folder: Path | None = None, fixed_joints: str | Sequence[str] | None = None
) -> Model:
    """Load the robot of a specification on the command line or in a problem file.

    Parameters
    ----------
    spec : str
        Path of a robot file, `auto_tree:N[,b,skew,taper]`, `chain:N[,seed]`, or a name for `sysdyn.load`, such as
        `icub`.
    base : {"fixed", "floating"}
    folder : Path or None
        Base folder of a relative path.
    fixed_joints : str or sequence of str, optional
        Option for URDF files, see `load_urdf`.

    Raises
    ------
    ModelError
        For a file that cannot be read.
    InvalidInput
        For an invalid specification.
    BackendUnavailable
        If the package of the robot is missing.
    """
    check_among("base", base, ("fixed", "floating"))
    if generator := GENERATOR.fullmatch(spec):
        if base == "floating":
            raise InvalidInput(f"{spec}: generated robots have a fixed base; leave base=floating out")
        form, generate, types = _GENERATORS[generator[1]]
        texts = generator[2].split(",")
        try:
            numbers = [kind(x) for kind, x in zip(types[: len(texts)], texts, strict=True)]
        except ValueError:
            raise InvalidInput(f"robot {spec!r} is not of the form {form}, as in auto_tree:7,1,1.5,0.9") from None
        return generate(*numbers)
    path = Path(spec) if folder is None else folder / spec
    options: dict[str, Any] = {} if fixed_joints is None else {"fixed_joints": fixed_joints}
    try:
        return load(path if path.exists() or path.suffix in (".urdf", ".xml", ".xacro") else spec, base, **options)
    except UnknownName as error:
        if error.name != spec:
            raise
        raise UnknownName("robot", spec, (*error.valid, "auto_tree:N", "chain:N")) from None
