"""Named frames, sensors and the source file of a robot description."""

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
    """Source of a model: path or text of the robot file, and the base folder of relative paths in it."""

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
        For a lumped link, the name of its fixed joint in the robot file; "" for other frames.
    """

    name: str
    body: int
    X: np.ndarray = field(default_factory=lambda: np.eye(6))
    joint: str = ""

    def __post_init__(self):
        object.__setattr__(self, "X", _to_transform(f"X of frame {self.name!r}", self.X))

    @cached_property
    def r(self) -> np.ndarray:
        """Origin (3,) [m] in body coordinates, cleaned of rounding errors."""
        return read_only(clean(translation(self.X)))

    def __repr__(self) -> str:
        carrier = "the base" if self.body < 0 else f"body {self.body}"
        xyz = ", ".join(f"{x:.4g}" for x in self.r + 0.0)
        rotated = "" if np.allclose(rotation(self.X), np.eye(3), rtol=0, atol=1e-9) else ", rotated"
        return f"Frame({self.name!r} on {carrier} at ({xyz}) m{rotated})"


@dataclass(frozen=True, eq=False)
class DeclaredSensor:
    """A sensor that the robot file declares.

    Parameters
    ----------
    name, type : str
        Name and type in the robot file.
    parent_kind, parent : str
        "link" or "joint", and the name of the link or joint that carries the sensor.
    X : (6, 6) array_like
        Motion transform from the frame of the link, or of the child link of the joint, to the sensor frame.
    attributes : mapping of str to str
        Settings of the sensor.
    line, xml : int or None, str
        Line number of the XML element, and its text.
    links : sequence of str
        Parent and child link if a joint carries the sensor.
    fault : str
        Reason why the sensor is unusable; "" for a valid sensor.
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
        object.__setattr__(self, "X", _to_transform(f"X of sensor {self.name!r}", self.X))
        object.__setattr__(self, "attributes", dict(self.attributes))
        object.__setattr__(self, "links", tuple(self.links))


def _to_transform(name: str, X: ArrayLike) -> np.ndarray:
    """Read-only copy of X (6, 6). Raises ModelError for a wrong shape or an entry that is not finite."""
    return read_only(finite_array(name, X, (6, 6), ModelError))
