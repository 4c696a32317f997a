"""Where problems pickled by version 0.1 look for their classes; to go with version 0.3."""

import sys
from types import ModuleType

from sysdyn import problem
from sysdyn.measurements import (
    acceleration_sensors,
    constraints,
    linear,
    measurement,
    momentum_sensors,
    noise,
    parameters,
    raw,
    wrench_sensors,
)
from sysdyn.measurements import sensor as base


class _Several(ModuleType):
    """A module that was split: its names are looked up in the parts."""

    def __init__(self, name: str, *parts: ModuleType):
        super().__init__(f"{__name__}.{name}")
        self._parts = parts

    def __getattr__(self, name: str):
        for part in self._parts:
            if hasattr(part, name):
                return getattr(part, name)
        if name == "_Subset":
            return raw.Subset
        raise AttributeError(name)


_MOVED: dict[str, ModuleType] = {
    "problem": _Several("problem", problem, raw),
    "measurements": _Several("measurements", measurement, raw),
    "sensors": _Several("sensors", base, wrench_sensors, acceleration_sensors, momentum_sensors),
    "linear": linear,
    "constraints": constraints,
    "noise": noise,
    "parameters": parameters,
}
sys.modules.update({f"{__name__}.{name}": module for name, module in _MOVED.items()})
