"""Robots and problems as people write them down: on the command line, and in the TOML files of `problems/`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sysdyn.compiler import output_quantities
from sysdyn.errors import BackendUnavailable, FileError, InvalidInput, UnknownName
from sysdyn.model import Model, auto_tree, chain, load
from sysdyn.system.measurements import RAW, Measurement
from sysdyn.system.problem import Problem, forward_dynamics, hybrid_dynamics, inverse_dynamics

ICUB = "iCubGazeboV2_5"
KINDS = ("inverse", "forward", "hybrid")
MEASUREMENTS = {cls.__name__: cls for cls in RAW.values()}
# What a problem is solved for where nothing is asked: the quantity that RNEA or ABA returns.
WANTED = {"inverse": ("tau",), "forward": ("qdd",), "hybrid": ("tau", "qdd")}
_GENERATOR = re.compile(r"(auto_tree|chain):(.*)")
_FILE_KEYS = {
    "title": str, "robot": str, "base": str, "problem": str, "torque": list, "ordering": str, "outputs": (str, list),
    "on_singular": str, "measurement": list,
}  # fmt: skip
_MEASUREMENT_KEYS = {"type": str, "targets": (str, list), "components": (str, list), "name": str}
_TYPE_NAMES = {str: "a string", list: "a list", (str, list): "a string or a list"}


@dataclass(frozen=True)
class Task:
    """A problem and how it is to be compiled and solved; `kind`: inverse, forward, hybrid, or measurements."""

    problem: Problem
    kind: str
    title: str = ""
    ordering: str = "auto"
    outputs: tuple[str, ...] | None = None
    on_singular: str = "raise"

    @property
    def wanted(self) -> tuple[str, ...]:
        """The quantities asked for, else those that the kind of problem is solved for."""
        return self.outputs or WANTED.get(self.kind) or output_quantities("all")


def load_robot(spec: str, base: str = "fixed", folder: Path | None = None) -> Model:
    """The model called `spec`: a URDF path (relative to `folder`), `auto_tree:N[,b,skew,taper]`, `chain:N[,seed]`,
    or `icub` (the iCubGazeboV2_5 of the icub-models package).

    Raises ModelError for a file that cannot be read, InvalidInput for a wrong specification, BackendUnavailable where
    icub-models is missing.
    """
    if base not in ("fixed", "floating"):
        raise UnknownName("base", base, ("fixed", "floating"))
    generator = _GENERATOR.fullmatch(spec)
    if generator:
        if base == "floating":
            raise InvalidInput(f"{spec}: generated robots stand on a fixed base; leave base=floating out")
        return _generated(*generator.groups())
    if spec == "icub":
        try:
            import icub_models
        except ImportError as error:
            raise BackendUnavailable(
                "robot 'icub' is in the package icub-models, which is not installed: pip install icub-models"
            ) from error
        return load(str(icub_models.get_model_file(ICUB)), base=base)
    path = Path(spec) if folder is None else folder / spec
    if not path.exists() and not path.suffix:
        names = ("icub", "auto_tree:N", "chain:N")
        near = difflib.get_close_matches(spec, ("icub", "auto_tree", "chain"), n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(f"robot {spec!r} is neither a file nor one of {', '.join(names)}.{hint}")
    return load(path, base=base)


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


def make_problem(model: Model, kind: str, torque: Sequence[str] = ()) -> Problem:
    """Inverse, forward or hybrid dynamics of the model; torque: joints whose torque is known (hybrid only)."""
    if kind not in KINDS:
        raise UnknownName("problem", kind, KINDS)
    if kind == "hybrid":
        if not torque:
            raise InvalidInput('hybrid dynamics needs the joints whose torque is known (torque = ["…"], --torque …)')
        return hybrid_dynamics(model, torque)
    if torque:
        raise InvalidInput(f"torque names joints of a hybrid problem; this one is {kind!r}, where they are not needed")
    return (inverse_dynamics if kind == "inverse" else forward_dynamics)(model)


def load_task(path: str | Path) -> Task:
    """The task in a TOML file.

    robot = "icub"            as for `load_robot`; paths are relative to the file
    base = "fixed"            or "floating"
    problem = "forward"       or "inverse", or "hybrid" with torque = [joints]; left out: only the measurements below
    ordering, outputs, on_singular   as for `sysdyn.compile`
    [[measurement]]           type = "JointTorque" (JointAcceleration, ExternalWrench, BodyAcceleration, JointWrench),
                              targets = "all" or [names], components = "all" or [names], name = "…"

    Raises FileError (unreadable, not TOML, wrong types, missing keys), UnknownName, and what the model and problem do.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"{path} is not valid TOML: {error}") from error
    _check(data, _FILE_KEYS, f"{path}")
    if "robot" not in data:
        raise FileError(f'{path} names no robot: add robot = "icub", "auto_tree:6" or the path of a URDF file')
    kind, torque = data.get("problem", ""), data.get("torque", ())
    measurements = [_measurement(m, f"{path}, measurement {k + 1}") for k, m in enumerate(data.get("measurement", ()))]
    if not kind and not measurements:
        raise FileError(f'{path} states no problem: add problem = "forward" (or inverse, hybrid) or [[measurement]]')
    if torque and kind != "hybrid":
        raise FileError(f'{path} has torque = …, which is only for problem = "hybrid"')
    model = load_robot(data["robot"], data.get("base", "fixed"), path.parent)
    problem = make_problem(model, kind, torque) if kind else Problem(model, ())
    problem = problem + measurements
    for m in measurements:  # a name that the robot does not have is found here, not when it is compiled
        m.components(model)
    outputs = output_quantities(data["outputs"]) if "outputs" in data else None
    return Task(
        problem, kind if kind and not measurements else "measurements", data.get("title", ""),
        data.get("ordering", "auto"), outputs, data.get("on_singular", "raise"),
    )  # fmt: skip


def _measurement(data: object, where: str) -> Measurement:
    if not isinstance(data, Mapping):
        raise FileError(f"{where} is {data!r}, not a table: write [[measurement]] and its keys below")
    _check(data, _MEASUREMENT_KEYS, where)
    if "type" not in data:
        raise FileError(f'{where} has no type: add type = "JointTorque" (or {", ".join(list(MEASUREMENTS)[1:])})')
    if data["type"] not in MEASUREMENTS:
        raise UnknownName(f"measurement type in {where}:", data["type"], MEASUREMENTS)
    return MEASUREMENTS[data["type"]](data.get("targets", "all"), data.get("components", "all"), name=data.get("name"))


def _check(data: Mapping, valid: Mapping, where: str) -> None:
    """Raise for keys that do not exist and values of the wrong type."""
    for key, value in data.items():
        if key not in valid:
            raise UnknownName(f"key in {where}:", key, valid)
        if not isinstance(value, valid[key]):
            raise FileError(f"{where}: {key} is {value!r}, but {_TYPE_NAMES[valid[key]]} is needed")


__all__ = ["KINDS", "Task", "load_robot", "load_task", "make_problem"]
