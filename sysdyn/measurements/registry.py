"""Every kind of measurement by name, their stored forms, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.errors import UnknownName
from sysdyn.measurements.acceleration_sensors import Accelerometer, AngularAccelerometer, FrameAcceleration
from sysdyn.measurements.constraints import CONSTRAINTS
from sysdyn.measurements.linear import Linear, MotorTorque
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.momentum_sensors import CentreOfMassAcceleration, MomentumRate
from sysdyn.measurements.noise import WRAPPERS, ModelNoise
from sysdyn.measurements.raw import RAW, RawMeasurement, Subset
from sysdyn.measurements.wrench_sensors import ForceDirection, ForceTorqueSensor, LoadCells, NetWrench, PointContact
from sysdyn.model import Model

SENSORS: dict[str, type[Measurement]] = {
    cls.__name__: cls
    for cls in (
        ForceTorqueSensor, LoadCells, PointContact, ForceDirection, NetWrench, FrameAcceleration, Accelerometer,
        AngularAccelerometer, CentreOfMassAcceleration, MomentumRate, Linear, MotorTorque,
    )
}  # fmt: skip


def from_description(data: Mapping, valid: Mapping[str, type[Measurement]] = SENSORS) -> Measurement:
    """Inverse of `describe()`. Raises UnknownName for a type that does not exist."""
    arguments = dict(data)
    kind = arguments.pop("type")
    if kind not in valid:
        raise UnknownName("type of measurement", kind, valid)
    if kind == "Linear":
        arguments["blocks"] = {(quantity, owner): C for quantity, owner, C in arguments["blocks"]}
    return valid[kind](**arguments)


def description(m: Measurement, model: Model, placed: bool = False) -> dict | None:
    """The measurement as JSON, or None; a raw one by its scalars. placed: with where its frame is."""
    if m.of is not m:
        of = description(m.of, model, placed)
        return None if of is None else {"type": type(m).__name__, "name": m.name, "of": of}
    if isinstance(m, RawMeasurement):
        described: dict | None = {"quantity": m.quantity, "name": m.name, "pairs": [list(p) for p in m.pairs(model)]}
    else:
        described = m.describe(model) if placed else m.describe()
    if described is not None and m.noise is not None:
        described = {**described, "noise": np.asarray(m.noise, dtype=float).tolist()}
    return described


def restored(data: Mapping) -> Measurement:
    """Inverse of `description`."""
    if "quantity" in data:
        base = RAW[data["quantity"]](name=data["name"])
        return Subset(base, tuple((int(i), int(k)) for i, k in data["pairs"]), data.get("noise"))
    if data["type"] in WRAPPERS:
        return WRAPPERS[data["type"]](restored(data["of"]), name=data["name"])
    if data["type"] == "ModelNoise":
        return ModelNoise(**{key: x for key, x in data.items() if key != "type"})
    return from_description(data, {**SENSORS, **CONSTRAINTS})
