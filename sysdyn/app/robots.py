"""Robots by specification: a file, a generator, or a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.model import Model, auto_tree, chain, load

# Text of a generated robot: the name of its generator and numbers after a colon.
GENERATOR = re.compile(r"(auto_tree|chain):(.*)")
# Form, function, and types of the arguments of generators.
_GENERATORS: dict[str, tuple[str, Callable[..., Model], tuple[type, ...]]] = {
    "auto_tree": ("auto_tree:N[,branching[,skew[,taper]]]", auto_tree, (int, float, float, float)),
    "chain": ("chain:N[,seed]", chain, (int, int)),
}


def load_robot(
    spec: str, base: str = "fixed", folder: Path | None = None, fixed_joints: str | Sequence[str] | None = None
) -> Model:
    """Model of a specification on the command line or in a problem file.

    spec: the path of a robot file (relative to `folder`), `auto_tree:N[,b,skew,taper]`, `chain:N[,seed]`, or a name as
    for `sysdyn.load`, such as `icub`. fixed_joints: of a URDF, as for `load_urdf`.

    Raises ModelError for a file that cannot be read, InvalidInput for a wrong specification, BackendUnavailable if the
    package of the robot is missing.
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
