"""Named frames and sensors of a robot description, and its source file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import ModelError
from sysdyn.model.constants import clean, read_only
from sysdyn.model.se3 import rotation, translation
from sysdyn.program.arrays import finite_array


class Origin(NamedTuple):
    """A robot file: its path or text, and the folder of relative paths in it."""

    file: str
    folder: Path


@dataclass(frozen=True, eq=False, repr=False)
class Frame:
    """A frame fixed in a body.

    Parameters
    ----------
    name : str
        Name of the frame.
    body : int
        Index of its body; −1 is the base.
    X : (6, 6) array_like
        Motion transform from the body to the frame.
    joint : str
        The fixed joint of the robot file that was welded with the link of this name; "" for other frames.
    """

    name: str
    body: int
    X: np.ndarray = field(default_factory=lambda: np.eye(6))
    joint: str = ""

    def __post_init__(self):
        object.__setattr__(self, "X", _checked_transform(f"X of frame {self.name!r}", self.X))

    @cached_property
    def r(self) -> np.ndarray:
        """(3,) origin in the body [m], cleaned."""
        return read_only(clean(translation(self.X)))

    def __repr__(self) -> str:
        carrier = "the base" if self.body < 0 else f"body {self.body}"
        xyz = ", ".join(f"{x:.4g}" for x in self.r + 0.0)
        rotated = "" if np.allclose(rotation(self.X), np.eye(3), rtol=0, atol=1e-9) else ", rotated"
        return f"Frame({self.name!r} on {carrier} at ({xyz}) m{rotated})"


@dataclass(frozen=True, eq=False)
class Sensor:
    """A sensor that the robot file declares.

    Parameters
    ----------
    name, type : str
        As declared.
    parent_kind, parent : str
        "link" or "joint", and the name of the link or joint that carries it.
    X : (6, 6) array_like
        Motion transform to the sensor frame from the frame of that link or of the child link of that joint.
    attributes : mapping of str to str
        Settings of the sensor.
    line, xml : int or None, str
        Line of the element, and the element.
    links : sequence of str
        Of a joint, its parent and child link.
    fault : str
        Why the sensor cannot be used; "" if it can.
    """

    name: str
    type: str
    parent_kind: str
    parent: str
    X: np.ndarray = field(default_factory=lambda: np.eye(6))
    attributes: Mapping[str, str] = field(default_factory=dict)
    line: int | None = None
    xml: str = ""
    links: tuple[str, ...] = ()
    fault: str = ""

    def __post_init__(self):
        object.__setattr__(self, "X", _checked_transform(f"X of sensor {self.name!r}", self.X))
        object.__setattr__(self, "attributes", dict(self.attributes))
        object.__setattr__(self, "links", tuple(self.links))


def _checked_transform(name: str, X: ArrayLike) -> np.ndarray:
    """A read-only copy of X (6, 6). Raises ModelError for a wrong shape or an entry that is not finite."""
    return read_only(finite_array(name, X, (6, 6), ModelError))
