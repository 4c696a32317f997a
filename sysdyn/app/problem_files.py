"""Problem files: tasks in TOML, that is robots, known quantities and options of compiling (`problems/`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.app.measurement_tables import MeasurementTable, check_keys
from sysdyn.app.robots import GENERATOR, load_robot
from sysdyn.app.tasks import ALL_ORDERINGS, Task, make_problem
from sysdyn.data.log_columns import LogColumns, check_units
from sysdyn.errors import FileError, UnknownName
from sysdyn.files.shipped import shipped
from sysdyn.files.toml import Document, Place
from sysdyn.measurements.linear import numbers
from sysdyn.measurements.measurement import Measurement, Output
from sysdyn.model import Model
from sysdyn.offline.outputs import requested_outputs
from sysdyn.online.solver import ON_SINGULAR
from sysdyn.problem import Problem

# Keys of a file, with their types.
_FILE_KEYS = {
    "title": str, "robot": str, "base": str, "gravity": list, "fixed_joints": (str, list), "problem": str,
    "torque": list, "ordering": str, "outputs": (str, list), "on_singular": str, "measurement": list, "units": dict,
    "columns": dict,
}  # fmt: skip


def load_task(path: str | Path) -> Task:
    """The task in a TOML file.

    robot = "icub"            as for `load_robot`; paths are relative to the file
    base = "fixed"            or "floating"; gravity = [x, y, z]
    fixed_joints = "lump"     as for `load_urdf`; default: lumped but for those with a declared sensor of the file
    problem = "forward"       or "inverse", or "hybrid" with torque = [joints]; left out: only the measurements below
    ordering, outputs, on_singular   as for `sysdyn.compile`; an output is a name, or a table as of a [[measurement]],
                              {type = "Accelerometer", frame = "head", name = "imu"}: its value is computed
    [[measurement]]           type = "LoadCells" or another of `MEASUREMENTS`, with the arguments of its class, or
                              type = "declared", sensor = "l_foot_ft", of the robot description, with components,
                              noise, reference; except = [names] of a raw one: all targets but those
                              frames: a name, or {body = "l_foot", xyz = […], rpy = […]}, or {body, matrix = 4 × 4}
                              prior = true or switchable = true, this with unless = "STANCE" for logs; mean (of a
                              prior) or value: numbers that are the same in every state, so that no value is handed in
    [units]                   measurement (or q, qd) = unit, or one for each component: must be those of sysdyn
    [columns]                 name in files of states and logs = name here: "/joint_states/position[0]" = "q.elbow"

    Errors name file and line. Raises FileError (unreadable, not TOML, wrong types, missing keys), UnknownName, and what
    the model and problem do.
    """
    try:
        doc = Document(path)
    except FileError as error:
        if Path(path).exists() or not (examples := shipped("problems")) or not (examples / Path(path).name).is_file():
            raise
        raise FileError(f"{error}: 'sysdyn problems' writes the example problems") from error
    data = doc.data
    check_keys(doc, (), data, _FILE_KEYS)
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
    problem, values = _with_measurements(doc, problem)
    for name, unit in data.get("units", {}).items():
        check_keys(doc, ("units",), {name: unit}, {name: (str, list)})
        with doc.errors_at(("units", name)):
            check_units(problem, {name: unit})
    for key, valid in (("ordering", ("auto", *ALL_ORDERINGS)), ("on_singular", ON_SINGULAR)):
        with doc.errors_at((key,)):
            if data.get(key, valid[0]) not in valid:
                raise UnknownName(key, data[key], valid)
    return Task(
        problem, kind if kind and not measured else "measurements", data.get("title", ""),
        data.get("ordering", "auto"), _outputs(doc, problem), data.get("on_singular", "raise"), values,
        _renames(doc, ("columns",), data.get("columns", {}), problem),
    )  # fmt: skip


def load_renames(path: str | Path, problem: Problem) -> dict[str, str]:
    """{name in files of states and logs: name here}, the content of a TOML file. Raises FileError, UnknownName."""
    doc = Document(path)
    return _renames(doc, (), doc.data, problem)


def _renames(doc: Document, place: Place, table: Mapping[str, Any], problem: Problem) -> dict[str, str]:
    for old, new in table.items():
        check_keys(doc, place, {old: new}, {old: str})
        with doc.errors_at((*place, old)):
            LogColumns(problem, renames={old: new})
    return dict(table)


def _model(doc: Document) -> Model:
    """The robot that the file names, with the joints that its declared sensors need."""
    data, options = doc.data, {}
    if "gravity" in data:
        with doc.errors_at(("gravity",)):
            options["gravity"] = numbers("gravity", data["gravity"], (3,))
    stated = [*data.get("measurement", ()), *(data["outputs"] if isinstance(data.get("outputs"), list) else ())]
    wanted = [m["sensor"] for m in stated if isinstance(m, Mapping) and "sensor" in m]
    fixed = data.get("fixed_joints", "sensors" if wanted else None)
    if "fixed_joints" in data and GENERATOR.fullmatch(data["robot"]):
        doc.fail(("fixed_joints",), f"fixed_joints is for URDF files; {data['robot']} has no fixed joints")
    with doc.errors_at(("base",) if data.get("base", "fixed") not in ("fixed", "floating") else ("robot",)):
        load = partial(load_robot, data["robot"], data.get("base", "fixed"), doc.path.parent)
        model = load(fixed)
        if fixed == "sensors" and "fixed_joints" not in data:
            model = load(_fixed_joints(model, wanted))
    return model.replace(**options) if options else model


def _fixed_joints(model: Model, sensors: Sequence[str]) -> tuple[str, ...]:
    """Names of the fixed joints that carry these sensors."""
    carrying = {s.parent for s in model.sensors if s.name in sensors}
    fixed = {name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv == 0}
    return tuple(sorted(carrying & fixed))


def _with_measurements(doc: Document, problem: Problem) -> tuple[Problem, dict[str, np.ndarray]]:
    """(problem with the measurements of the file, {measurement: (m,)} of the constant values stated there)."""
    values: dict[str, np.ndarray] = {}
    made: list[tuple[Place, Measurement]] = []
    for k, table in enumerate(doc.data.get("measurement", ())):
        place = ("measurement", k)
        if not isinstance(table, Mapping):
            doc.fail(place, f"measurement {k + 1} is {table!r}, not a table: write [[measurement]] and its keys below")
        with doc.errors_at(place):
            stated = MeasurementTable(doc, place, table, problem.model)
            m = stated.measurement()
            made.append((place, m))
            if (value := stated.constant(m)) is not None:
                values[m.name] = value
    # a stance may name measurements that follow it
    grown, with_condition = problem, [x for x in made if getattr(x[1].of, "when", None) is not None]
    for at, m in [*(x for x in made if x not in with_condition), *with_condition]:
        with doc.errors_at(at):
            grown = grown + m
    return problem + [m for _, m in made], values


def _outputs(doc: Document, problem: Problem) -> tuple[Output, ...] | None:
    """The outputs of the file, by name or as tables of measurements; None if it asks for none."""
    if "outputs" not in doc.data:
        return None
    place, stated = ("outputs",), doc.data["outputs"]
    with doc.errors_at(place):
        if isinstance(stated, str):
            return requested_outputs(stated, problem)
        outputs: list[Output] = []
        for table in stated:
            if not isinstance(table, Mapping):
                outputs.append(table)
                continue
            for key in ("value", "mean"):
                if key in table:
                    doc.fail(place, f"an output has no {key}: it is computed")
            outputs.append(MeasurementTable(doc, place, table, problem.model).measurement())
        return requested_outputs(outputs, problem)
