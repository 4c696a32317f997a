"""Named frames and sensors of a robot description, and its source file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sysdyn.errors import ModelError
from sysdyn.model.se3 import rotation, translation
from sysdyn.model.validate import frozen
from sysdyn.program.arrays import finite_array


class Origin(NamedTuple):
    """A robot file: its path or text, and the folder that relative paths in it start from."""

    file: str
    folder: Path


@dataclass(frozen=True, eq=False, repr=False)
class Frame:
    """A frame fixed in body `body` (−1: the base), placed by the motion transform X (6, 6) from body to frame.

    joint: the fixed joint of the robot description that was lumped with the link of this name; empty if none was.
    """

    name: str
    body: int
    X: np.ndarray = field(default_factory=lambda: np.eye(6))
    joint: str = ""

    def __post_init__(self):
        object.__setattr__(self, "X", frozen(finite_array(f"X of frame {self.name!r}", self.X, (6, 6), ModelError)))

    def __repr__(self) -> str:
        where = "the base" if self.body < 0 else f"body {self.body}"
        xyz = ", ".join(f"{x:.4g}" for x in translation(self.X) + 0.0)
        turned = "" if np.allclose(rotation(self.X), np.eye(3), rtol=0, atol=1e-9) else ", turned"
        return f"Frame({self.name!r} on {where} at ({xyz}) m{turned})"


@dataclass(frozen=True, eq=False)
class Sensor:
    """A sensor named by the robot description, kept as it was declared.

    parent: name of the link or joint (`parent_kind`) that carries it. X (6, 6): motion transform to the sensor frame
    from the frame of that link or, for a joint, of the joint's child link. links: of a joint, its parent and child
    link. `xml` is the element, `line` its line. fault: why it cannot be used, or empty.
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
        object.__setattr__(self, "X", frozen(finite_array(f"X of sensor {self.name!r}", self.X, (6, 6), ModelError)))
        object.__setattr__(self, "links", tuple(self.links))
