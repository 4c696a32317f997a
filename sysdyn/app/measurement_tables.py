"""Tables of measurements: a [[measurement]] of a problem file as the measurement that it states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, SysdynError, UnknownName, check_among
from sysdyn.files.toml import Document, Place
from sysdyn.measurements.declared import sensor
from sysdyn.measurements.linear import numbers
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import Prior, Switchable, noise_of
from sysdyn.measurements.registry import MEASUREMENTS, RAW_NAMES
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, Quantity
from sysdyn.model.readers.urdf_document import rpy

# Type of a sensor of the robot description.
DECLARED = "declared"
# Key that names the exceptions, beside targets = "all".
EXCEPT = "except"
# Arguments that are frames.
FRAMES = ("frame", "frame_a", "frame_b")
# Keys that, if true, wrap the measurement in their class.
_WRAPPERS: dict[str, type[Prior] | type[Switchable]] = {"prior": Prior, "switchable": Switchable}
# Key of a switchable measurement that is on unless this foot stands.
UNLESS = "unless"
# Types of values and of noise: numbers or lists of numbers.
_NUMBERS = (int, float, list)
# Keys of every table, beside the arguments of its class.
_TABLE_KEYS = {"type": str, "name": str, "value": _NUMBERS, "mean": _NUMBERS, "noise": _NUMBERS, "prior": bool,
               "switchable": bool, UNLESS: str}  # fmt: skip
# Keys of a frame fixed in a body.
_FRAME_KEYS = {"body": str, "xyz": list, "rpy": list, "matrix": list}
# Keys of a block of Linear.
_BLOCK_KEYS = ("quantity", "on", "matrix")
# Names of the types of values in messages.
_TYPE_NAMES = {
    str: "a string", list: "a list", (str, list): "a string or a list", dict: "a table", bool: "true or false",
    _NUMBERS: "a number or a list of numbers",
}  # fmt: skip


def check_keys(doc: Document, place: Place, data: Mapping[str, object], valid: Mapping[str, Any]) -> None:
    """Raise for unknown keys (UnknownName) and values of the wrong type (FileError); valid {key: types}."""
    for key, value in data.items():
        if key not in valid:
            error = UnknownName("key", key, valid)
            error.args = (f"{doc.location((*place, key))}: {error}",)
            raise error
        if not isinstance(value, valid[key]) or (isinstance(value, bool) and valid[key] not in (bool, object)):
            doc.fail((*place, key), f"{key} is {value!r}, but {_TYPE_NAMES[valid[key]]} is needed")


class MeasurementTable:
    """A measurement that a file states at `place`, such as one [[measurement]] or a table of its outputs, of a robot.

    Its methods raise FileError, UnknownName and the errors of the measurement's class; `Document.at` adds the line.
    """

    def __init__(self, doc: Document, place: Place, table: Mapping[str, Any], model: Model):
        self.doc, self.table, self.model = doc, table, model
        self.place = place
        kind = table.get("type")
        if kind is None:
            doc.fail(self.place, 'the measurement has no type: add type = "JointTorque", "LoadCells", "declared" …')
        check_among("type of measurement", kind, (*MEASUREMENTS, DECLARED))
        self.kind: str = kind
        self.make: Callable[..., Measurement] = sensor if kind == DECLARED else MEASUREMENTS[kind]

    def measurement(self) -> Measurement:
        """The measurement that the table states, made and tried on the robot: names that it lacks are errors here."""
        self._check()
        arguments = self._arguments()
        wrappers = [wrapper for key, wrapper in _WRAPPERS.items() if self.table.get(key)]
        if len(wrappers) > 1:
            self.doc.fail(self.place, "a measurement is either a prior or switchable")
        if UNLESS in self.table and wrappers != [Switchable]:
            self.doc.fail((*self.place, UNLESS), "unless is of what is switchable: add switchable = true")
        try:
            m = self.make(**arguments)
            unless = {UNLESS: self.table[UNLESS]} if UNLESS in self.table else {}
            for wrapper in wrappers:
                m = wrapper(m, self.table.get("name"), **unless)
            m.components(self.model)
            if m.noise is not None:
                with self.doc.errors_at((*self.place, "noise")):
                    noise_of(m, self.model)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, SysdynError):
                raise
            raise InvalidInput(f"this does not describe a {self.kind}: {error}") from error
        if (wrong := "value" if isinstance(m, Prior) else "mean") in self.table:
            self.doc.fail((*self.place, wrong), "a prior has a mean, everything else a value")
        return m

    def constant(self, m: Measurement) -> np.ndarray | None:
        """(m,) numbers of the value or mean that the table states: one for all components or one for each."""
        key = "mean" if isinstance(m, Prior) else "value"
        if key not in self.table:
            return None
        value, n = self.table[key], len(m.components(self.model))
        x = np.full(n, value, dtype=float) if isinstance(value, (int, float)) else value
        with self.doc.errors_at((*self.place, key)):
            return numbers(f"the value of {m.name!r}", x, (n,))

    def _parameters(self) -> dict[str, inspect.Parameter]:
        """{key: argument of the class that it states}."""
        found = inspect.signature(self.make).parameters
        key = {"name": "sensor"} if self.kind == DECLARED else {}
        return {key.get(name, name): parameter for name, parameter in found.items() if name != "model"}

    def _check(self) -> None:
        """Raise for keys that are wrong or missing."""
        parameters = self._parameters()
        valid: dict[str, Any] = {**dict.fromkeys(parameters, object), **_TABLE_KEYS}
        if self.kind in RAW_NAMES:
            valid[EXCEPT] = (str, list)
        if "noise" not in parameters:
            del valid["noise"]
        check_keys(self.doc, self.place, self.table, valid)
        for key, parameter in parameters.items():
            if parameter.default is parameter.empty and key not in self.table:
                self.doc.fail(self.place, f"{self.kind} needs {key} = …; its keys are {', '.join(parameters)}")

    def _arguments(self) -> dict[str, Any]:
        """Arguments of the class."""
        given: dict[str, Any] = {}
        for key in self._parameters():
            if key in self.table:
                with self.doc.errors_at((*self.place, key)):
                    given[key] = self._argument(key, self.table[key])
        if EXCEPT in self.table:
            if self.table.get("targets", "all") != "all":
                self.doc.fail((*self.place, EXCEPT), "except is from all; targets names others")
            quantity = QUANTITY[given.get("quantity", RAW_NAMES[self.kind].quantity)]
            given["targets"] = _all_but(quantity, self.table[EXCEPT], self.model)
        if self.kind == DECLARED:
            given = {"model": self.model, "name": given.pop("sensor"), **given}
        return given

    def _argument(self, key: str, value: object) -> object:
        """An argument of a class as TOML says it: frames as (body, T), blocks of Linear by (quantity, name)."""
        if key in FRAMES and isinstance(value, Mapping):
            return self._frame(key, value)
        if key == "blocks":
            if not isinstance(value, list) or not all(
                isinstance(x, Mapping) and set(x) == set(_BLOCK_KEYS) for x in value
            ):
                self.doc.fail((*self.place, key), f"blocks is a list of tables with the keys {', '.join(_BLOCK_KEYS)}")
            return {(x["quantity"], x["on"]): x["matrix"] for x in value}
        return value

    def _frame(self, key: str, value: Mapping[str, Any]) -> tuple[str, object]:
        """(body, T (4, 4)) of a frame that a table places in a body."""
        place = (*self.place, key)
        check_keys(self.doc, place, value, _FRAME_KEYS)
        if "body" not in value or ("matrix" in value and len(value) > 2):
            self.doc.fail(
                place, f'{key} is a name, or {{body = "…", xyz = […], rpy = […]}}, or {{body = "…", matrix = […]}}'
            )
        if "matrix" in value:
            return value["body"], value["matrix"]
        T = np.eye(4)
        T[:3, 3] = numbers("xyz", value.get("xyz", (0, 0, 0)), (3,))
        T[:3, :3] = rpy(numbers("rpy", value.get("rpy", (0, 0, 0)), (3,)).tolist()).T
        return value["body"], T


def _all_but(quantity: Quantity, gone: str | list[str], model: Model) -> list[str]:
    """Names of the joints or bodies but for some. Raises UnknownName."""
    left_out = [quantity.index(model, name) for name in ([gone] if isinstance(gone, str) else gone)]
    return [name for i, name in enumerate(quantity.owners(model)) if i not in left_out]
