"""Groups of inputs of a problem's programs, by their role and its owner.

    q, qd, gravity, and quantities (tau, qdd, fx, a, f)     by their names alone
    y:NAME, noise:NAME, active:NAME                         value, covariance and switches of a measurement
    inertia:BODY, armature:JOINT                            parameters of the model
    tangents:INPUT, cotangents:OUTPUT                       vectors that derivatives are multiplied with

Programs, solver files and logs hold these texts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sysdyn.measurements.measurement import Measurement
from sysdyn.model import Model
from sysdyn.program.autodiff import COTANGENTS, TANGENTS
from sysdyn.program.groups import Group

# Roles of groups of measurements.
VALUE, NOISE, SWITCH = "y", "noise", "active"
# Roles of groups of parts of the model.
INERTIA, ARMATURE = "inertia", "armature"
# Name of the group of gravity, which has no owner; also of the vector of a Direction that points against it.
GRAVITY = "gravity"
# Roles; texts with other words before a colon are names.
ROLES = (VALUE, NOISE, SWITCH, INERTIA, ARMATURE, TANGENTS, COTANGENTS)


class InputName(NamedTuple):
    """Name of a group of program inputs as (role, owner): y:imu has the role y, a value, of the measurement imu.

    The role is empty for quantities, the state and gravity.
    """

    role: str
    name: str

    def __str__(self) -> str:
        return f"{self.role}:{self.name}" if self.role else self.name


def group_of(text: str) -> InputName:
    """Role and name of the group with this text."""
    role, colon, name = text.partition(":")
    return InputName(role, name) if colon and role in ROLES else InputName("", text)


def value_group(measurement: str) -> str:
    """Name y:MEASUREMENT of the input group with the value of a measurement."""
    return str(InputName(VALUE, measurement))


def noise_group(measurement: str) -> str:
    """Name noise:MEASUREMENT of the input group with the covariance of a measurement."""
    return str(InputName(NOISE, measurement))


def switch_group(measurement: str) -> str:
    """Name active:MEASUREMENT of the input group with the switches of the components of a measurement."""
    return str(InputName(SWITCH, measurement))


def label_of(text: str) -> str:
    """Name by which a caller hands the group in: the measurement's alone for its value."""
    group = group_of(text)
    return group.name if group.role == VALUE else text


# ---- contents of groups --------------------------------------------------------------------------------------------


def value_of(m: Measurement, model: Model) -> Group:
    """The value of a measurement, under its own name; labels as in `problem.y_names`, such as "imu: a_x"."""
    components = m.components(model)
    units = tuple(m.component_units(model)) or ("",) * len(components)
    labels = tuple(f"{m.name}: {c}" for c in components)
    default = np.zeros(len(components)) if m.has_default else None
    return Group(m.name, (len(components),), labels, units, default, f"values of {m.name}", m.name, m.argument_hint)
