"""URDF files: first into plain dataclasses that remember their lines, then into a `Model`.

Every error carries file, line and element. `<visual>`, `<collision>`, `<material>`, `<transmission>`, `<gazebo>` and
unknown elements are ignored; `<sensor>` elements are kept in `Model.sensors`, and so are those of
`<gazebo reference=…>` whose name no other has.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import numpy as np

from sysdyn.errors import ModelError, UnknownName
from sysdyn.model.frames import Sensor
from sysdyn.model.joints import snap, unit_axis
from sysdyn.model.spatial import X_motion, inertia, quaternion_to_E, rotx, roty, rotz

# The joint types that the format knows.
JOINT_TYPES = ("revolute", "continuous", "prismatic", "fixed", "planar", "floating")
# Angles this near [rad] to a multiple of π/2 are made exactly that, for π/2 is often written 1.57079632679.
_ANGLE_SNAP = 1e-11


@dataclass(frozen=True, eq=False)
class UrdfLink:
    """A `<link>`: its spatial inertia (6, 6) at the link origin in link coordinates, zero if it has none."""

    name: str
    inertia: np.ndarray
    line: int


@dataclass(frozen=True, eq=False)
class UrdfJoint:
    """A `<joint>`: E (3, 3), r (3,) [m] place the joint frame in the parent link; axis in the joint frame.

    lower, upper, velocity, effort: limits, ±inf where not given (also lower and upper, which the format defaults to 0).
    damping [N s/m, N m s/rad] and friction [N, N m] are kept, but no equation uses them. mimic: the joint imitated.
    """

    name: str
    type: str
    parent: str
    child: str
    E: np.ndarray
    r: np.ndarray
    axis: tuple[float, float, float]
    lower: float
    upper: float
    velocity: float
    effort: float
    damping: float
    friction: float
    mimic: str | None
    line: int


@dataclass(frozen=True, eq=False)
class UrdfRobot:
    """A URDF file, checked to be one tree: links and joints by name in document order, the name of the root link."""

    name: str
    source: str
    links: Mapping[str, UrdfLink]
    joints: Mapping[str, UrdfJoint]
    sensors: tuple[Sensor, ...]
    root: str


def read_urdf(source: str | os.PathLike[str]) -> UrdfRobot:
    """The URDF file (or text, if it begins with "<") `source` as dataclasses, lines kept. Raises ModelError."""
    text, name = _text(source)
    return _Reader(name).robot(text)


def _text(source: str | os.PathLike[str]) -> tuple[bytes, str]:
    if isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<"):
        return source.lstrip("\ufeff \t\r\n").encode(), "<string>"
    try:
        return Path(source).read_bytes(), str(source)
    except OSError as error:
        raise ModelError(f"cannot read {str(source)!r}: {error.strerror}") from None
    except ValueError as error:
        raise ModelError(f"cannot read {str(source)!r}: {error}") from None


class _Reader:
    """Reads elements; what is wrong is raised as ModelError with file, line and element."""

    def __init__(self, source: str):
        self.source = source

    def fail(self, element, message: str) -> NoReturn:
        name = element.get("name")
        shown = f'<{element.tag} name="{name}">' if name else f"<{element.tag}>"
        owner = element.getparent()
        while not name and owner is not None and owner.tag != "robot":
            name = owner.get("name")
            shown = f"{shown} in <{owner.tag}>" if not name else f'{shown} in <{owner.tag} name="{name}">'
            owner = owner.getparent()
        raise ModelError(f"{self.source}:{element.sourceline}: {shown}: {message}")

    # ---- the file ------------------------------------------------------------------------------------------------

    def robot(self, text: bytes) -> UrdfRobot:
        root = self.root(text)
        links = self.unique([self.link(e) for e in root.iterchildren("link")], "link")
        joints = self.unique([self.joint(e, links) for e in root.iterchildren("joint")], "joint")
        sensors = tuple(self.sensor(e, links, joints) for e in root.iterchildren("sensor"))
        taken = {s.name for s in sensors}
        sensors += tuple(s for s in self.gazebo_sensors(root, links, joints) if s.name not in taken)
        seen: dict[tuple[str, str], Sensor] = {}
        for s in sensors:
            first = seen.setdefault((s.type, s.name), s)
            if first is not s:
                self.reject(s.line, f'<sensor name="{s.name}">', f"duplicate name, first used in line {first.line}")
        if not links:
            self.fail(root, "no <link>: a robot needs at least one")
        return UrdfRobot(
            self.attribute(root, "name"),
            self.source,
            MappingProxyType(links),
            MappingProxyType(joints),
            sensors,
            self.root_link(links, joints),
        )

    def root(self, text: bytes):
        from lxml import etree  # loaded with the first robot file: most programs read none

        # No network, no external DTD, no entity expansion: a robot file is untrusted input.
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, encoding=None)
        try:
            root = etree.fromstring(text, parser)
        except etree.XMLSyntaxError as error:
            if "xacro" in str(error):
                self.reject(error.lineno, "<xacro:…>", "this is a xacro file: run xacro first")
            self.reject(error.lineno, "file", f"not well-formed XML: {error.msg}")
        dtd = root.getroottree().docinfo.internalDTD
        if dtd is not None and any(True for _ in dtd.iterentities()):
            self.reject(1, "<!DOCTYPE>", "entity declarations are not allowed in a robot file")
        for element in root.iter(etree.Element):
            if "xacro" in (etree.QName(element).namespace or "") or element.tag.startswith("xacro:"):
                self.reject(element.sourceline, f"<{element.tag}>", "this is a xacro file: run xacro first")
        if root.tag != "robot":
            kind = {"sdf": " (an SDF file)", "mujoco": " (an MJCF file)"}.get(str(root.tag), "")
            self.reject(
                root.sourceline, f"<{root.tag}>", f"the root element of a URDF is <robot>, not <{root.tag}>{kind}"
            )
        return root

    def reject(self, line: int | None, element: str, message: str) -> NoReturn:
        raise ModelError(f"{self.source}:{line}: {element}: {message}")

    def unique(self, items: list, kind: str) -> dict:
        found: dict = {}
        for item in items:
            first = found.setdefault(item.name, item)
            if first is not item:
                self.reject(
                    item.line, f'<{kind} name="{item.name}">', f"duplicate name, first used in line {first.line}"
                )
        return found

    def root_link(self, links: Mapping[str, UrdfLink], joints: Mapping[str, UrdfJoint]) -> str:
        """The only link that is no child. Raises ModelError for loops, cycles and several roots."""
        above: dict[str, UrdfJoint] = {}
        for j in joints.values():
            first = above.setdefault(j.child, j)
            if first is not j:
                self.reject(
                    j.line,
                    f'<joint name="{j.name}">',
                    f"link {j.child!r} already has a parent, by joint {first.name!r} in line {first.line}; "
                    "a URDF is a tree: remove one and close the loop with a constraint",
                )
        rooted: set[str] = set()  # links whose way up is known to end
        for link in links:
            path: dict[str, None] = {}  # in walking order
            while link in above and link not in rooted:
                if link in path:
                    j = above[link]
                    cycle = " → ".join([link, *reversed(list(path)[list(path).index(link) :])])
                    self.reject(j.line, f'<joint name="{j.name}">', f"the links form a cycle: {cycle}")
                path[link] = None
                link = above[link].parent
            rooted.update(path)
        roots = [name for name in links if name not in above]
        if len(roots) > 1:
            extra = links[roots[1]]
            shown = ", ".join(repr(name) for name in roots)
            self.reject(
                extra.line,
                f'<link name="{extra.name}">',
                f"the robot has {len(roots)} root links (links that are the child of no joint): {shown}; join them",
            )
        return roots[0]

    # ---- elements ------------------------------------------------------------------------------------------------

    def link(self, element) -> UrdfLink:
        name = self.attribute(element, "name")
        inertial = self.child(element, "inertial")
        I = np.zeros((6, 6))
        if inertial is not None:
            mass_element = self.child(inertial, "mass", required=True)
            mass = self.number(mass_element, "value")
            if mass < 0.0:
                self.fail(mass_element, f"negative mass {mass:g} kg; masses are ≥ 0")
            moments = self.child(inertial, "inertia", required=True)
            xx, xy, xz, yy, yz, zz = (self.number(moments, key) for key in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz"))
            E, r = self.origin(inertial)
            I_com = E.T @ np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) @ E
            I = inertia(mass, r, I_com)
        return UrdfLink(name, I, element.sourceline)

    def joint(self, element, links: Mapping[str, UrdfLink]) -> UrdfJoint:
        name = self.attribute(element, "name")
        type = self.attribute(element, "type")
        if type not in JOINT_TYPES:
            self.fail(element, str(UnknownName("joint type", type, JOINT_TYPES)))
        ends = {}
        for end in ("parent", "child"):
            child = self.child(element, end, required=True)
            ends[end] = self.attribute(child, "link")
            if ends[end] not in links:
                self.fail(child, str(UnknownName(f"{end} link", ends[end], links)))
        E, r = self.origin(element)
        axis = (1.0, 0.0, 0.0)
        axis_element = self.child(element, "axis")
        if axis_element is not None and type not in ("fixed", "floating"):
            try:
                axis = unit_axis(self.numbers(axis_element, "xyz", 3))
            except ModelError as error:
                if str(error).startswith(self.source):
                    raise
                self.fail(axis_element, str(error))
        limit, dynamics, mimic = (self.child(element, tag) for tag in ("limit", "dynamics", "mimic"))
        lower, upper = self.number(limit, "lower", -math.inf), self.number(limit, "upper", math.inf)
        if lower > upper:
            self.fail(limit, f"lower limit {lower:g} is above the upper limit {upper:g}")
        if type == "continuous":
            lower, upper = -math.inf, math.inf
        return UrdfJoint(
            name=name,
            type=type,
            parent=ends["parent"],
            child=ends["child"],
            E=E,
            r=r,
            axis=axis,
            lower=lower,
            upper=upper,
            velocity=self.number(limit, "velocity", math.inf),
            effort=self.number(limit, "effort", math.inf),
            damping=self.number(dynamics, "damping", 0.0),
            friction=self.number(dynamics, "friction", 0.0),
            mimic=None if mimic is None else self.attribute(mimic, "joint"),
            line=element.sourceline,
        )

    def sensor(self, element, links: Mapping[str, UrdfLink], joints: Mapping[str, UrdfJoint]) -> Sensor:
        name = self.attribute(element, "name")
        parent = self.child(element, "parent", required=True)
        kind = "joint" if parent.get("joint") is not None else "link"
        carrier = self.attribute(parent, kind)
        valid: Mapping[str, object] = joints if kind == "joint" else links
        if carrier not in valid:
            self.fail(parent, str(UnknownName(f"parent {kind}", carrier, valid)))
        return self.placed_sensor(element, name, kind, carrier, X_motion(*self.origin(element)), joints)

    def gazebo_sensors(self, root, links: Mapping[str, UrdfLink], joints: Mapping[str, UrdfJoint]) -> Iterator[Sensor]:
        """Those within `<gazebo reference=link or joint>`, whose `<pose>` is x y z roll pitch yaw."""
        for owner in root.iterchildren("gazebo"):
            carrier = owner.get("reference")
            for element in owner.iterchildren("sensor") if carrier in links or carrier in joints else ():
                pose = self.child(element, "pose")
                text = "" if pose is None else pose.text or ""
                try:
                    numbers = np.array([float(x) for x in text.split() or [0.0] * 6])
                except ValueError:
                    numbers = np.empty(0)
                if numbers.shape != (6,) or not np.isfinite(numbers).all():
                    self.fail(pose, f"{text!r} is not six numbers: x y z roll pitch yaw")
                kind = "joint" if carrier in joints else "link"
                X = X_motion(rpy(numbers[3:]), snap(numbers[:3]))
                yield self.placed_sensor(element, self.attribute(element, "name"), kind, carrier, X, joints)

    def placed_sensor(self, element, name, kind, carrier, X, joints: Mapping[str, UrdfJoint]) -> Sensor:
        from lxml import etree  # see `root`

        return Sensor(
            name=name,
            type=element.get("type", ""),
            parent_kind=kind,
            parent=carrier,
            X=X,
            links=(joints[carrier].parent, joints[carrier].child) if kind == "joint" else (),
            attributes=MappingProxyType({str(key): str(value) for key, value in element.attrib.items()}),
            line=element.sourceline,
            xml=etree.tostring(element, encoding="unicode", with_tail=False),
        )

    def origin(self, element) -> tuple[np.ndarray, np.ndarray]:
        """(E (3, 3), r (3,)) of the `<origin>` of `element`, E = (Rz(y) Ry(p) Rx(r))^T; identity if it has none."""
        origin = self.child(element, "origin")
        if origin is None:
            return np.eye(3), np.zeros(3)
        r = snap(np.array(self.numbers(origin, "xyz", 3, (0.0, 0.0, 0.0))))
        if origin.get("quat_xyzw") is None:
            return rpy(self.numbers(origin, "rpy", 3, (0.0, 0.0, 0.0))), r
        if origin.get("rpy") is not None:
            self.fail(origin, "both rpy and quat_xyzw are given; remove one")
        p = np.array(self.numbers(origin, "quat_xyzw", 4))
        norm = float(np.linalg.norm(p))
        if abs(norm - 1.0) > 1e-3:
            self.fail(origin, f"quat_xyzw has norm {norm:.6g}, not 1")
        return snap(quaternion_to_E(p / norm)), r

    # ---- attributes ----------------------------------------------------------------------------------------------

    def child(self, element, tag: str, required: bool = False):
        found = list(element.iterchildren(tag))
        if len(found) > 1:
            self.fail(found[1], f"a second <{tag}>; only one is allowed")
        if required and not found:
            self.fail(element, f"missing element <{tag}>")
        return found[0] if found else None

    def attribute(self, element, key: str) -> str:
        value = element.get(key)
        if value is None or not value.strip():
            self.fail(element, f"missing attribute {key!r}")
        return value

    def number(self, element, key: str, default: float | None = None) -> float:
        if default is not None and (element is None or element.get(key) is None):
            return default
        return self.numbers(element, key, 1)[0]

    def numbers(self, element, key: str, count: int, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        if default is not None and element.get(key) is None:
            return default
        text = self.attribute(element, key)
        if "${" in text or "$(" in text:
            self.fail(element, f"{key}={text!r}: this is a xacro file: run xacro first")
        parts = text.split()
        if len(parts) != count:
            self.fail(element, f"{key}={text!r} has {len(parts)} numbers; {count} needed")
        values = []
        for part in parts:
            try:
                value = float(part) if "_" not in part else None
            except ValueError:
                value = None
            if value is None:
                self.fail(element, f"{key}={text!r}: {part!r} is not a number")
            if not math.isfinite(value):
                self.fail(element, f"{key}={text!r}: {part!r} is not finite")
            values.append(value)
        return tuple(values)


def rpy(angles: Iterable[float]) -> np.ndarray:
    """E (3, 3) = (Rz(yaw) Ry(pitch) Rx(roll))^T."""
    roll, pitch, yaw = map(_right_angle, angles)
    return snap(snap(rotx(roll)) @ snap(roty(pitch)) @ snap(rotz(yaw)))


def _right_angle(angle: float) -> float:
    """`angle` [rad], or the multiple of π/2 within 1e-11 of it."""
    exact = round(angle / (math.pi / 2)) * (math.pi / 2)
    return exact if abs(angle - exact) <= _ANGLE_SNAP else angle
