"""Stored forms of measurements: to JSON and back, by the name of their class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.errors import UnknownName
from sysdyn.measurements import (
    acceleration_sensors,
    constraints,
    linear,
    momentum_sensors,
    state_sensors,
    wrench_sensors,
)
from sysdyn.measurements.bias_models import bias_model_of
from sysdyn.measurements.known_quantities import QuantityMeasurement
from sysdyn.measurements.measurement import Constraint, Measurement, Part, changed
from sysdyn.measurements.noise import ModelNoise, Prior, Switchable
from sysdyn.measurements.sensor import ConfigurableMeasurement
from sysdyn.model import Model

# Modules whose classes are listed in `Measurement.kinds` once they are imported.
MODULES = (acceleration_sensors, constraints, linear, momentum_sensors, state_sensors, wrench_sensors, ModelNoise)


def description(m: Measurement, model: Model, placed: bool = False) -> dict | None:
    """The measurement as JSON; None without a stored form. placed: with the place of its frame in the model."""
    cls = type(m.whole) if isinstance(m, Part) else type(m)
    described = m.describe(model) if placed else m.describe()
    if described is None or Measurement.kinds.get(cls.__name__) is not cls:
        return None
    attributes = {
        "noise": None if m.noise is None else np.asarray(m.noise, dtype=float).tolist(),
        "drift": None if m.drift is None else m.drift.describe(),
        "selection": None if m.selection is None else list(m.selection),
        "held": list(m.held) if isinstance(m, constraints.FrameConstraint) else None,
        "prior": (m.prior and not isinstance(m, Constraint)) or None,
        "switchable": m.switchable or None,
        "unless": m.unless,
    }
    return {**described, **{key: x for key, x in attributes.items() if x is not None}}


def restored(data: Mapping) -> Measurement:
    """Inverse of `description`. Raises UnknownName for a type that does not exist."""
    arguments = dict(data)
    kind, kinds = arguments.pop("type"), Measurement.kinds
    drift, selection, held, prior, switchable, unless = (
        arguments.pop(key, None) for key in ("drift", "selection", "held", "prior", "switchable", "unless")
    )
    if kind not in kinds:
        error = UnknownName("type of measurement", kind, kinds)
        error.args = (f"{error} A class of your own has to be defined, or imported, before.",)
        raise error
    if kind == "Linear":
        arguments["blocks"] = {(quantity, owner): C for quantity, owner, C in arguments["blocks"]}
    m = kinds[kind](**arguments)
    if selection is not None:
        sliced = isinstance(m, (QuantityMeasurement, ConfigurableMeasurement))
        m = changed(m, selection=tuple(map(int, selection))) if sliced else m.select(selection)
    if held is not None:
        m = changed(m, held=tuple(map(int, held)))
    if drift is not None:
        m = changed(m, drift=bias_model_of(m.name, drift))
    m = Prior(m, m.name) if prior else m
    return Switchable(m, unless=unless) if switchable else m
