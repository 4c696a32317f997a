"""Every kind of measurement by name; measurements to stored forms and back.

A new sensor of sysdyn is a class in one of the files of sensors, its name in `SENSORS` or `STATE_SENSORS`, and its line
in `sysdyn/__init__.pyi`, for type checkers. One of a user's own is `register`ed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.acceleration_sensors import Accelerometer, AngularAccelerometer, FrameAcceleration
from sysdyn.measurements.bias_models import drift_of
from sysdyn.measurements.constraints import CONSTRAINTS
from sysdyn.measurements.known_quantities import RAW, Known, RawMeasurement, Subset, known
from sysdyn.measurements.linear import Linear, MotorTorque
from sysdyn.measurements.measurement import Constraint, Measurement, changed
from sysdyn.measurements.momentum_sensors import CentreOfMassAcceleration, MomentumRate
from sysdyn.measurements.noise import ModelNoise, Prior, Switchable
from sysdyn.measurements.state_sensors import (
    Direction,
    FrameAttitude,
    FrameDistance,
    FramePose,
    FramePosition,
    Gyroscope,
    JointPosition,
    JointVelocity,
    Stance,
    Velocimeter,
)
from sysdyn.measurements.wrench_sensors import ForceDirection, ForceTorqueSensor, LoadCells, NetWrench, PointContact
from sysdyn.model import Model

# Sensors by the name of their class.
SENSORS: dict[str, type[Measurement]] = {
    cls.__name__: cls
    for cls in (
        ForceTorqueSensor, LoadCells, PointContact, ForceDirection, NetWrench, FrameAcceleration, Accelerometer,
        AngularAccelerometer, CentreOfMassAcceleration, MomentumRate, Linear, MotorTorque,
    )
}  # fmt: skip
# Sensors of the state by the name of their class.
STATE_SENSORS: dict[str, type[Measurement]] = {
    cls.__name__: cls
    for cls in (
        JointPosition, JointVelocity, Gyroscope, Velocimeter, FramePosition, FrameAttitude, FramePose, Direction,
        Stance, FrameDistance,
    )
}  # fmt: skip
# Raw measurements by the name of their class.
RAW_NAMES: dict[str, type[RawMeasurement]] = {cls.__name__: cls for cls in (*RAW.values(), Known)}
# Measurements that a problem file can state, by the name of their class.
MEASUREMENTS: dict[str, type[Measurement]] = {
    **RAW_NAMES, **SENSORS, **STATE_SENSORS, **CONSTRAINTS, "ModelNoise": ModelNoise,
}  # fmt: skip
# Names that cannot be given to another class.
_TAKEN = frozenset((*MEASUREMENTS, "Part", "Prior", "Switchable"))

Class = TypeVar("Class", bound=type[Measurement])


def register(cls: Class) -> Class:
    """Make a class of measurements known by its name, to problem files and to stored problems; a class decorator.

    All keys of its `describe()` but "type" have to be arguments of the class, as of every `Sensor`. A process that
    loads a solver or a problem with such a measurement has to register the class before. Raises InvalidInput.
    """
    if not (isinstance(cls, type) and issubclass(cls, Measurement)):
        raise InvalidInput(f"a class of measurements is registered, a subclass of Measurement or Sensor, not {cls!r}")
    if cls.__name__ in _TAKEN and MEASUREMENTS.get(cls.__name__) is not cls:
        raise InvalidInput(f"a measurement of sysdyn is called {cls.__name__}: give your class another name")
    SENSORS[cls.__name__] = MEASUREMENTS[cls.__name__] = cls
    return cls


def from_description(data: Mapping, valid: Mapping[str, type[Measurement]]) -> Measurement:
    """Inverse of `describe()`. Raises UnknownName for a type that does not exist."""
    arguments = dict(data)
    kind, drift = arguments.pop("type"), drift_of(str(data.get("name")), arguments.pop("drift", None))
    if kind == "Part":
        m = from_description(arguments["whole"], valid).part(arguments["kept"])
        return m if drift is None else changed(m, drift=drift)
    if kind not in valid:
        error = UnknownName("type of measurement", kind, valid)
        error.args = (f"{error} A class of your own has to be registered: sysdyn.measurements.registry.register.",)
        raise error
    if kind == "Linear":
        arguments["blocks"] = {(quantity, owner): C for quantity, owner, C in arguments["blocks"]}
    m = valid[kind](**arguments)
    return m if drift is None else changed(m, drift=drift)


def description(m: Measurement, model: Model, placed: bool = False) -> dict | None:
    """The measurement as JSON, a raw one by its scalars; None without a stored form. placed: with its frame's place."""
    if isinstance(m, RawMeasurement):
        described: dict | None = {"quantity": m.quantity, "name": m.name, "pairs": [list(p) for p in m.pairs(model)]}
    else:
        described = m.describe(model) if placed else m.describe()
    if described is not None and m.noise is not None:
        described = {**described, "noise": np.asarray(m.noise, dtype=float).tolist()}
    if described is not None and m.drift is not None:
        described = {**described, "drift": m.drift.describe()}
    treatment = {"prior": m.prior and not isinstance(m, Constraint), "switchable": m.switchable, "unless": m.unless}
    return described and {**described, **{key: x for key, x in treatment.items() if x}}


def restored(data: Mapping) -> Measurement:
    """Inverse of `description`."""
    data = dict(data)
    prior, switchable, unless = (data.pop(key, None) for key in ("prior", "switchable", "unless"))
    m = _restored(data)
    m = Prior(m, m.name) if prior else m
    return Switchable(m, unless=unless) if switchable else m


def _restored(data: Mapping) -> Measurement:
    if "quantity" in data:
        base = known(data["quantity"], name=data["name"])
        pairs = tuple((int(i), int(k)) for i, k in data["pairs"])
        return Subset(base, pairs, data.get("noise"), drift_of(data["name"], data.get("drift")))
    if data["type"] == "ModelNoise":
        return ModelNoise(**{key: x for key, x in data.items() if key != "type"})
    return from_description(data, {**SENSORS, **STATE_SENSORS, **CONSTRAINTS})
