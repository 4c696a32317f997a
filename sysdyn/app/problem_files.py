"""Robots and problems as people write them down: on the command line, and in the TOML files of `problems/`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sysdyn.app.robots import GENERATOR, load_robot
from sysdyn.data.log_columns import check_units
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.errors import FileError, InvalidInput, SysdynError, UnknownName
from sysdyn.files.toml import Document, Place
from sysdyn.measurements.constraints import CONSTRAINTS
from sysdyn.measurements.declared import sensor
from sysdyn.measurements.linear import numbers
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import ModelNoise, Prior, Switchable, noise_of
from sysdyn.measurements.raw import RAW, RawMeasurement
from sysdyn.measurements.registry import SENSORS
from sysdyn.model import Model
from sysdyn.model.urdf import rpy
from sysdyn.offline.options import ORDERINGS, output_quantities
from sysdyn.online.solver import ON_SINGULAR
from sysdyn.problem import Problem, forward_dynamics, hybrid_dynamics, inverse_dynamics

KINDS = ("inverse", "forward", "hybrid")
ALL_ORDERINGS = ("natural", *RECURSIVE, "mixed", *(name for name in ORDERINGS if name != "natural"))
# What a file can state: keys are the arguments of the class.
RAW_NAMES = {cls.__name__: cls for cls in RAW.values()}
MEASUREMENTS: dict[str, type[Measurement]] = {
    **RAW_NAMES, **SENSORS, **CONSTRAINTS, "ModelNoise": ModelNoise,
}  # fmt: skip
EXCEPT = "except"  # beside targets = "all": which ones not
DECLARED = "declared"  # the type of a sensor that the robot description has
FRAMES = ("frame", "frame_a", "frame_b")  # arguments that are frames
# What a problem is solved for where nothing is asked: the quantity that RNEA or ABA returns.
WANTED = {"inverse": ("tau",), "forward": ("qdd",), "hybrid": ("tau", "qdd")}
_FILE_KEYS = {
    "title": str, "robot": str, "base": str, "gravity": list, "fixed_joints": (str, list), "problem": str,
    "torque": list, "ordering": str, "outputs": (str, list), "on_singular": str, "measurement": list, "units": dict,
}  # fmt: skip
_WRAPPERS = {"prior": Prior, "switchable": Switchable}
_VALUE_KEYS = ("value", "mean")  # of a measurement, of a prior
_NUMBERS = (int, float, list)
_TABLE_KEYS = {"type": str, "name": str, "value": _NUMBERS, "mean": _NUMBERS, "noise": _NUMBERS, "prior": bool,
               "switchable": bool}  # fmt: skip
_FRAME_KEYS = {"body": str, "xyz": list, "rpy": list, "matrix": list}
_BLOCK_KEYS = ("quantity", "on", "matrix")
_TYPE_NAMES = {
    str: "a string", list: "a list", (str, list): "a string or a list", dict: "a table", bool: "true or false",
    _NUMBERS: "a number or a list of numbers",
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A problem and how it is to be compiled and solved; `kind`: inverse, forward, hybrid, or measurements.

    values: of measurements that have the same one in every state, {name: (m,)}.
    """

    problem: Problem
    kind: str
    title: str = ""
    ordering: str = "auto"
    outputs: tuple[str, ...] | None = None
    on_singular: str = "raise"
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The quantities asked for, else those that the kind of problem is solved for."""
        return self.outputs or WANTED.get(self.kind) or self.problem.quantities


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
    base = "fixed"            or "floating"; gravity = [x, y, z]
    fixed_joints = "lump"     as for `load_urdf`; default: lumped but for those with a declared sensor of the file
    problem = "forward"       or "inverse", or "hybrid" with torque = [joints]; left out: only the measurements below
    ordering, outputs, on_singular   as for `sysdyn.compile`
    [[measurement]]           type = "LoadCells" or another of MEASUREMENTS, with the arguments of its class, or
                              type = "declared", sensor = "l_foot_ft", of the robot description, with components,
                              noise, reference; except = [names] of a raw one: all targets but those
                              frames: a name, or {body = "l_foot", xyz = […], rpy = […]}, or {body, matrix = 4 × 4}
                              prior = true or switchable = true; mean (of a prior) or value: numbers that are the same
                              in every state, so that no value is handed in
    [units]                   measurement (or q, qd) = unit, or one for each component: must be those of sysdyn

    Errors name file and line. Raises FileError (unreadable, not TOML, wrong types, missing keys), UnknownName, and what
    the model and problem do.
    """
    doc = Document(path)
    data = doc.data
    _check(doc, (), data, _FILE_KEYS)
    if "robot" not in data:
        raise FileError(f'{path} names no robot: add robot = "icub", "auto_tree:6" or the path of a URDF file')
    kind, torque, tables = data.get("problem", ""), data.get("torque", ()), data.get("measurement", ())
    if not kind and not tables:
        raise FileError(f'{path} states no problem: add problem = "forward" (or inverse, hybrid) or [[measurement]]')
    if torque and kind != "hybrid":
        doc.fail(("torque",), 'torque = … is only for problem = "hybrid"')
    model = _model(doc)
    with doc.at(("torque",) if torque else ("problem",)):
        problem = make_problem(model, kind, torque) if kind else Problem(model, ())
    values: dict[str, np.ndarray] = {}
    for k, table in enumerate(tables):
        place = ("measurement", k)
        if not isinstance(table, Mapping):
            doc.fail(place, f"measurement {k + 1} is {table!r}, not a table: write [[measurement]] and its keys below")
        with doc.at(place):
            m = _measurement(doc, place, table, model)
            problem = problem + m
            if (key := _VALUE_KEYS[isinstance(m, Prior)]) in table:
                with doc.at((*place, key)):
                    values[m.name] = _constant(m, table[key], model)
    for name, unit in data.get("units", {}).items():
        _check(doc, ("units",), {name: unit}, {name: (str, list)})
        with doc.at(("units", name)):
            check_units(problem, {name: unit})
    for key, valid in (("ordering", ("auto", *ALL_ORDERINGS)), ("on_singular", ON_SINGULAR)):
        with doc.at((key,)):
            if data.get(key, valid[0]) not in valid:
                raise UnknownName(key, data[key], valid)
    outputs = None
    if "outputs" in data:
        with doc.at(("outputs",)):
            outputs = output_quantities(data["outputs"], problem.quantities)
    return Task(
        problem, kind if kind and not tables else "measurements", data.get("title", ""),
        data.get("ordering", "auto"), outputs, data.get("on_singular", "raise"), values,
    )  # fmt: skip


def _model(doc: Document) -> Model:
    """The robot that the file names, with the joints that its declared sensors need."""
    data, options = doc.data, {}
    if "gravity" in data:
        with doc.at(("gravity",)):
            options["gravity"] = numbers("gravity", data["gravity"], (3,))
    wanted = [m.get("sensor") for m in data.get("measurement", ()) if isinstance(m, Mapping) and "sensor" in m]
    fixed = data.get("fixed_joints", "sensors" if wanted else None)
    if "fixed_joints" in data and GENERATOR.fullmatch(data["robot"]):
        doc.fail(("fixed_joints",), f"fixed_joints is for URDF files; {data['robot']} has no fixed joints")
    with doc.at(("base",) if data.get("base", "fixed") not in ("fixed", "floating") else ("robot",)):
        model = load_robot(data["robot"], data.get("base", "fixed"), doc.path.parent, fixed)
        if fixed == "sensors" and "fixed_joints" not in data:  # only those that are used
            kept = {s.parent for s in model.sensors if s.name in wanted}
            kept &= {name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv == 0}
            model = load_robot(data["robot"], data.get("base", "fixed"), doc.path.parent, tuple(sorted(kept)))
    return model.replace(**options) if options else model


def _measurement(doc: Document, place: Place, table: Mapping, model: Model) -> Measurement:
    """The measurement that a table describes; its keys are the arguments of its class."""
    kind = table.get("type")
    if kind is None:
        doc.fail(place, 'the measurement has no type: add type = "JointTorque", "LoadCells", "declared" …')
    if kind not in (*MEASUREMENTS, DECLARED):
        raise UnknownName("type of measurement", kind, (*MEASUREMENTS, DECLARED))
    make = sensor if kind == DECLARED else MEASUREMENTS[kind]
    parameters = {("sensor" if kind == DECLARED and key == "name" else key): p
                  for key, p in inspect.signature(make).parameters.items() if key != "model"}  # fmt: skip
    valid = {**dict.fromkeys(parameters, object), **_TABLE_KEYS}
    if kind in RAW_NAMES:
        valid[EXCEPT] = (str, list)
    if "noise" not in parameters:
        del valid["noise"]
    _check(doc, place, table, valid)
    for key, p in parameters.items():
        if p.default is p.empty and key not in table:
            doc.fail(place, f"{kind} needs {key} = …; its keys are {', '.join(parameters)}")
    given = {}
    for key in parameters:
        if key in table:
            with doc.at((*place, key)):
                given[key] = _argument(doc, (*place, key), key, table[key])
    if EXCEPT in table:
        if table.get("targets", "all") != "all":
            doc.fail((*place, EXCEPT), "except is from all; targets names others")
        given["targets"] = _all_but(RAW_NAMES[kind], table[EXCEPT], model)
    if kind == DECLARED:
        given = {"model": model, "name": given.pop("sensor"), **given}
    wrappers = [wrapper for key, wrapper in _WRAPPERS.items() if table.get(key)]
    if len(wrappers) > 1:
        doc.fail(place, "a measurement is either a prior or switchable")
    try:
        m = make(**given)
        if wrappers:
            m = wrappers[0](m, table.get("name"))
        m.components(model)  # a name that the robot does not have is found here, not when it is compiled
        if m.noise is not None:
            with doc.at((*place, "noise")):
                noise_of(m, model)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SysdynError):
            raise
        raise InvalidInput(f"this does not describe a {kind}: {error}") from error
    for wrapped, key in enumerate(_VALUE_KEYS):
        if key in table and wrapped != isinstance(m, Prior):
            doc.fail((*place, key), "a prior has a mean, everything else a value")
    return m


def _all_but(cls: type[RawMeasurement], gone: str | list, model: Model) -> list[str]:
    """Names of the joints or bodies but for some. Raises UnknownName."""
    joints = cls.quantity in ("tau", "qdd")
    names = model.joint_names if joints else model.body_names
    gone = [gone] if isinstance(gone, str) else gone
    for name in gone:
        if name not in names:
            raise UnknownName("joint" if joints else "body", name, names)
    return [name for name in names if name not in gone]


def _argument(doc: Document, place: Place, key: str, value: object) -> object:
    """An argument of a class as TOML says it: frames as (body, T), blocks of Linear by (quantity, name)."""
    if key in FRAMES and isinstance(value, Mapping):
        _check(doc, place, value, _FRAME_KEYS)
        if "body" not in value or ("matrix" in value and len(value) > 2):
            doc.fail(
                place, f'{key} is a name, or {{body = "…", xyz = […], rpy = […]}}, or {{body = "…", matrix = […]}}'
            )
        if "matrix" in value:
            return value["body"], value["matrix"]
        T = np.eye(4)
        T[:3, 3] = numbers("xyz", value.get("xyz", (0, 0, 0)), (3,))
        T[:3, :3] = rpy(numbers("rpy", value.get("rpy", (0, 0, 0)), (3,))).T
        return value["body"], T
    if key == "blocks":
        if not isinstance(value, list) or not all(isinstance(x, Mapping) and set(x) == set(_BLOCK_KEYS) for x in value):
            doc.fail(place, f"blocks is a list of tables with the keys {', '.join(_BLOCK_KEYS)}")
        return {(x["quantity"], x["on"]): x["matrix"] for x in value}
    return value


def _constant(m: Measurement, value: object, model: Model) -> np.ndarray:
    """(m,) numbers: one for all, or one for each component."""
    n = len(m.components(model))
    x = np.full(n, value, dtype=float) if isinstance(value, (int, float)) else value
    return numbers(f"the value of {m.name!r}", x, (n,))


def _check(doc: Document, place: Place, data: Mapping, valid: Mapping) -> None:
    """Raise for keys that do not exist and values of the wrong type."""
    for key, value in data.items():
        if key not in valid:
            error = UnknownName("key", key, valid)
            error.args = (f"{doc.where((*place, key))}: {error}",)
            raise error
        if not isinstance(value, valid[key]) or (isinstance(value, bool) and valid[key] not in (bool, object)):
            doc.fail((*place, key), f"{key} is {value!r}, but {_TYPE_NAMES[valid[key]]} is needed")


__all__ = ["ALL_ORDERINGS", "KINDS", "MEASUREMENTS", "Task", "load_robot", "load_task", "make_problem"]
