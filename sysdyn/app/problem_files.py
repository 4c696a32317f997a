"""Problem files (`problems/*.toml`): robot, measurements and options of a job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from sysdyn.app.jobs import ALL_ORDERINGS, Job, make_problem
from sysdyn.app.robots import GENERATOR, load_robot
from sysdyn.data.columns import LogColumns, check_units
from sysdyn.errors import FileError, InvalidInput, SysdynError, UnknownName, check_among
from sysdyn.files.shipped import shipped
from sysdyn.files.toml import Document, KeyPath
from sysdyn.measurements.declared import sensor
from sysdyn.measurements.known_quantities import RawMeasurement
from sysdyn.measurements.linear import numbers
from sysdyn.measurements.measurement import Measurement, Output
from sysdyn.measurements.noise import Prior, Switchable, noise_of
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.model.readers.urdf import rpy
from sysdyn.offline.options import requested_outputs
from sysdyn.online.solver import ON_SINGULAR

_NUMBERS = int | float | list
# {key: type} of a file, of a [[measurement]] (without the arguments of its class), and of a frame.
_FILE_KEYS = {
    "title": str, "robot": str, "base": str, "gravity": list, "fixed_joints": str | list, "problem": str,
    "torque": list, "ordering": str, "outputs": str | list, "on_singular": str, "measurement": list, "units": dict,
    "columns": dict,
}  # fmt: skip
_MEASUREMENT_KEYS = {
    "type": str, "name": str, "value": _NUMBERS, "mean": _NUMBERS, "noise": _NUMBERS, "prior": bool,
    "switchable": bool, "unless": str,
}  # fmt: skip
_FRAME_KEYS = {"body": str, "xyz": list, "rpy": list, "matrix": list}
_BLOCK_KEYS = {"quantity", "on", "matrix"}  # of the measurement Linear
_TYPE_NAMES = {str: "a string", list: "a list", dict: "a table", bool: "true or false", float: "a number"}
# Measurement type for sensors of the robot file.
_DECLARED = "declared"


def load_job(path: str | Path) -> Job:
    """Read a job from a TOML file.

    robot = "icub"            see `load_robot`; paths are relative to the file
    base = "fixed"            or "floating"; gravity = [x, y, z]
    fixed_joints = "lump"     see `load_urdf`; default: lump all except those with a sensor that the file uses
    problem = "forward"       or "inverse", or "hybrid" with torque = [joints]; default: measurements only
    ordering, outputs, on_singular   see `sysdyn.compile`; an output is a name, or a table like a [[measurement]] with
                              a value to compute: {type = "Accelerometer", frame = "head", name = "imu"}
    [[measurement]]           type = a name in `Measurement.kinds`, such as "LoadCells", with the arguments of its class
                              type = "declared", sensor = "l_foot_ft": a sensor of the robot file, with components,
                              noise, reference
                              except = [names]: all targets except these, for raw measurements
                              frames: a name, or {body = "l_foot", xyz = […], rpy = […]}, or {body, matrix = 4 × 4}
                              prior = true, or switchable = true; unless = "STANCE" for a switchable one in logs
                              value (for a prior: mean): constant values, which need no column
    [units]                   measurement (or q, qd) = unit, or a list per component; must be the units of sysdyn
    [columns]                 column name in files = name in sysdyn: "/joint_states/position[0]" = "q.elbow"

    Errors have file and line. Raises FileError (unreadable, not TOML, wrong types, missing keys), UnknownName, and the
    errors of the model and the problem.
    """
    try:
        doc = Document(path)
    except FileError as error:
        if Path(path).exists() or not (examples := shipped("problems")) or not (examples / Path(path).name).is_file():
            raise
        raise FileError(f"{error}: 'sysdyn problems' writes the example problems") from error
    data = doc.data
    _check_keys(doc, (), data, _FILE_KEYS)
    if "robot" not in data:
        raise FileError(f'{path} names no robot: add robot = "icub", "auto_tree:6" or the path of a URDF file')
    kind, torque, measured = data.get("problem", ""), data.get("torque", ()), bool(data.get("measurement"))
    if not kind and not measured:
        raise FileError(f'{path} states no problem: add problem = "forward" (or inverse, hybrid) or [[measurement]]')
    if torque and kind != "hybrid":
        doc.fail(("torque",), 'torque = … is only for problem = "hybrid"')
    model = _model(doc)
    with doc.errors_at(("torque",) if torque else ("problem",)):
        problem = make_problem(model, kind, torque) if kind else Problem(model, ())
    problem, values = _add_measurements(doc, problem)
    for name, unit in data.get("units", {}).items():
        _check_keys(doc, ("units",), {name: unit}, {name: str | list})
        with doc.errors_at(("units", name)):
            check_units(problem, {name: unit})
    for key, valid in (("ordering", ("auto", *ALL_ORDERINGS)), ("on_singular", ON_SINGULAR)):
        with doc.errors_at((key,)):
            check_among(key, data.get(key, valid[0]), valid)
    return Job(
        problem, kind if kind and not measured else "measurements", data.get("title", ""),
        data.get("ordering", "auto"), _outputs(doc, problem), data.get("on_singular", "raise"), values,
        _renames(doc, ("columns",), data.get("columns", {}), problem),
    )  # fmt: skip


def load_renames(path: str | Path, problem: Problem) -> dict[str, str]:
    """Read a TOML file with {column name in files: name in sysdyn}. Raises FileError, UnknownName."""
    doc = Document(path)
    return _renames(doc, (), doc.data, problem)


def _renames(doc: Document, place: KeyPath, table: Mapping[str, Any], problem: Problem) -> dict[str, str]:
    _check_keys(doc, place, table, dict.fromkeys(table, str))
    for old, new in table.items():
        with doc.errors_at((*place, old)):
            LogColumns(problem, renames={old: new})
    return dict(table)


def _check_keys(doc: Document, place: KeyPath, table: Mapping[str, object], types: Mapping[str, Any]) -> None:
    """Check keys and value types against `types`. Raises UnknownName for keys, FileError for types."""
    for key, value in table.items():
        if key not in types:
            error = UnknownName("key", key, types)
            error.args = (f"{doc.location((*place, key))}: {error}",)
            raise error
        if not isinstance(value, types[key]) or (isinstance(value, bool) and types[key] not in (bool, object)):
            names = [_TYPE_NAMES[x] for x in get_args(types[key]) or (types[key],) if x in _TYPE_NAMES]
            doc.fail((*place, key), f"{key} is {value!r}, but {' or '.join(names)} is needed")


def _model(doc: Document) -> Model:
    """Load the robot of the file. Fixed joints are kept if a declared sensor of the file needs them."""
    data = doc.data
    tables = [*data.get("measurement", ()), *(data["outputs"] if isinstance(data.get("outputs"), list) else ())]
    sensors = [x["sensor"] for x in tables if isinstance(x, Mapping) and "sensor" in x]
    fixed = data.get("fixed_joints", "sensors" if sensors else None)
    if "fixed_joints" in data and GENERATOR.fullmatch(data["robot"]):
        doc.fail(("fixed_joints",), f"fixed_joints is for URDF files; {data['robot']} has no fixed joints")
    with doc.errors_at(("base",) if data.get("base", "fixed") not in ("fixed", "floating") else ("robot",)):
        load = partial(load_robot, data["robot"], data.get("base", "fixed"), doc.path.parent)
        model = load(fixed)
        if fixed == "sensors" and "fixed_joints" not in data:
            carriers = {x.parent for x in model.sensors if x.name in sensors}
            joints = zip(model.joint_names, model.joints, strict=True)
            model = load(tuple(sorted(carriers & {name for name, joint in joints if joint.nv == 0})))
    with doc.errors_at(("gravity",)):
        return model.replace(gravity=numbers("gravity", data["gravity"], (3,))) if "gravity" in data else model


def _add_measurements(doc: Document, problem: Problem) -> tuple[Problem, dict[str, np.ndarray]]:
    """Add the measurements of the file. Returns (problem, {measurement: (m,) constant values})."""
    values: dict[str, np.ndarray] = {}
    measurements: list[tuple[KeyPath, Measurement]] = []
    for k, table in enumerate(doc.data.get("measurement", ())):
        place: KeyPath = ("measurement", k)
        if not isinstance(table, Mapping):
            doc.fail(place, f"measurement {k + 1} is {table!r}, not a table: write [[measurement]] and its keys below")
        with doc.errors_at(place):
            m = _measurement(doc, place, table, problem.model)
            measurements.append((place, m))
            key = "mean" if table.get("prior") else "value"
            if key in table:
                with doc.errors_at((*place, key)):
                    n = len(m.components(problem.model))
                    x = table[key] if isinstance(table[key], list) else np.full(n, table[key], dtype=float)
                    values[m.name] = numbers(f"the value of {m.name!r}", x, (n,))
    partial_problem = problem  # stances last, since they may refer to later measurements
    for place, m in sorted(measurements, key=lambda x: getattr(x[1], "when", None) is not None):
        with doc.errors_at(place):
            partial_problem = partial_problem + m
    return problem + [m for _, m in measurements], values


def _outputs(doc: Document, problem: Problem) -> tuple[Output, ...] | None:
    """Outputs of the file, names or tables of measurements; None if the file has none."""
    if "outputs" not in doc.data:
        return None
    place, entries = ("outputs",), doc.data["outputs"]
    with doc.errors_at(place):
        if isinstance(entries, str):
            return requested_outputs(entries, problem)
        outputs: list[Output] = []
        for entry in entries:
            for key in {"value", "mean"} & set(entry if isinstance(entry, Mapping) else ()):
                doc.fail(place, f"an output has no {key}: it is computed")
            outputs.append(_measurement(doc, place, entry, problem.model) if isinstance(entry, Mapping) else entry)
        return requested_outputs(outputs, problem)


# ---- measurements


def _measurement(doc: Document, place: KeyPath, table: Mapping[str, Any], model: Model) -> Measurement:
    """Create the measurement of a table and check it against the robot. Raises UnknownName for unknown names."""
    kind = table.get("type")
    if kind is None:
        doc.fail(place, 'the measurement has no type: add type = "JointTorque", "LoadCells", "declared" …')
    check_among("type of measurement", kind, (*Measurement.kinds, _DECLARED))
    make: Callable[..., Measurement] = Measurement.kinds[kind] if kind != _DECLARED else partial(sensor, model)
    arguments = _arguments(doc, place, table, model, kind, make)
    if table.get("prior") and table.get("switchable"):
        doc.fail(place, "a measurement is either a prior or switchable")
    if "unless" in table and not table.get("switchable"):
        doc.fail((*place, "unless"), "unless is an option of switchable measurements: add switchable = true")
    try:
        m = make(**arguments)
        if table.get("prior"):
            m = Prior(m, table.get("name"))
        if table.get("switchable"):
            m = Switchable(m, table.get("name"), **({"unless": table["unless"]} if "unless" in table else {}))
        m.components(model)
        if m.noise is not None:
            with doc.errors_at((*place, "noise")):
                noise_of(m, model)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SysdynError):
            raise
        raise InvalidInput(f"this does not describe a {kind}: {error}") from error
    if (wrong := "value" if table.get("prior") else "mean") in table:
        doc.fail((*place, wrong), "a prior has a mean, everything else a value")
    return m


def _arguments(
    doc: Document, place: KeyPath, table: Mapping[str, Any], model: Model, kind: str, make: Callable[..., Measurement]
) -> dict[str, Any]:
    """Arguments for the class of a measurement, checked against its signature."""
    parameters = dict(inspect.signature(make).parameters)
    if kind == _DECLARED:
        parameters = {"sensor" if key == "name" else key: x for key, x in parameters.items()}
    types: dict[str, Any] = {**dict.fromkeys(parameters, object), **_MEASUREMENT_KEYS}
    types |= {"except": str | list} if isinstance(make, type) and issubclass(make, RawMeasurement) else {}
    if "noise" not in parameters:
        del types["noise"]
    _check_keys(doc, place, table, types)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in table:
            doc.fail(place, f"{kind} needs {key} = …; its keys are {', '.join(parameters)}")
    arguments: dict[str, Any] = {}
    for key in (x for x in parameters if x in table):
        with doc.errors_at((*place, key)):
            arguments[key] = _argument(doc, (*place, key), table[key])
    if "except" in table:
        if table.get("targets", "all") != "all":
            doc.fail((*place, "except"), "except is from all; targets names others")
        names = [table["except"]] if isinstance(table["except"], str) else table["except"]
        quantity = QUANTITY[arguments.get("quantity", Measurement.kinds[kind].quantity)]
        excluded = [quantity.index(model, name) for name in names]
        arguments["targets"] = [name for i, name in enumerate(quantity.owners(model)) if i not in excluded]
    if kind == _DECLARED:
        arguments["name"] = arguments.pop("sensor")
    return arguments


def _argument(doc: Document, place: KeyPath, value: Any) -> Any:
    """Convert the TOML value of an argument of a measurement.

    A frame table becomes (body name, pose T (4, 4) of the frame in the body). The list `blocks` of the measurement
    `Linear` becomes {(quantity, name of the joint or body): matrix}. Other values are returned unchanged.
    """
    key = place[-1]
    if key in ("frame", "frame_a", "frame_b") and isinstance(value, Mapping):
        _check_keys(doc, place, value, _FRAME_KEYS)
        if "body" not in value or ("matrix" in value and len(value) > 2):
            doc.fail(
                place, f'{key} is a name, or {{body = "…", xyz = […], rpy = […]}}, or {{body = "…", matrix = […]}}'
            )
        T = np.eye(4)
        T[:3, 3] = numbers("xyz", value.get("xyz", (0, 0, 0)), (3,))
        T[:3, :3] = rpy(numbers("rpy", value.get("rpy", (0, 0, 0)), (3,)).tolist()).T
        return value["body"], value.get("matrix", T)
    if key == "blocks":
        if not isinstance(value, list) or not all(isinstance(x, Mapping) and set(x) == _BLOCK_KEYS for x in value):
            doc.fail(place, f"blocks is a list of tables with the keys {', '.join(sorted(_BLOCK_KEYS))}")
        return {(x["quantity"], x["on"]): x["matrix"] for x in value}
    return value
