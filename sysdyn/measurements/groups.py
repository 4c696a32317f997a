"""Groups of inputs of a problem's programs, by what they hold and of what.

    q, qd, gravity, and quantities (tau, qdd, fx, a, f)     by their names alone
    y:NAME, noise:NAME, active:NAME                         value, covariance and switches of a measurement
    inertia:BODY, armature:JOINT                            parameters of the model

Programs, solver files and logs hold these texts.
"""

from __future__ import annotations

from typing import NamedTuple

# These groups belong to measurements.
VALUE, NOISE, SWITCH = "y", "noise", "active"
# These groups belong to parts of the model.
INERTIA, ARMATURE = "inertia", "armature"
# Gravity is a group of its own.
GRAVITY = "gravity"
# Texts with other words before a colon are names.
ROLES = (VALUE, NOISE, SWITCH, INERTIA, ARMATURE)


class Group(NamedTuple):
    """What a group holds: its role, and the name of what it belongs to; no role where it is a quantity or the state."""

    role: str
    name: str

    def __str__(self) -> str:
        return f"{self.role}:{self.name}" if self.role else self.name


def group_of(text: str) -> Group:
    """The group with this text."""
    role, colon, name = text.partition(":")
    return Group(role, name) if colon and role in ROLES else Group("", text)


def value_group(measurement: str) -> str:
    """The group of the value of a measurement."""
    return str(Group(VALUE, measurement))


def noise_group(measurement: str) -> str:
    """The group of the numbers of a measurement's covariance."""
    return str(Group(NOISE, measurement))


def switch_group(measurement: str) -> str:
    """The group of the switches of a measurement's components."""
    return str(Group(SWITCH, measurement))


def label_of(text: str) -> str:
    """How a caller hands the group in: the value of a measurement by its name alone."""
    group = group_of(text)
    return group.name if group.role == VALUE else text
