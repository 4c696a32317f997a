"""URDF files as plain dataclasses that remember their lines; `urdf_model` makes a `Model` of them.

Every error carries file, line and element. `<visual>`, `<collision>`, `<material>`, `<transmission>`, `<gazebo>` and
extensions of other tools are ignored, and those that act on the robot are listed; `<sensor>` elements are kept in
`Model.sensors`, and so are those of `<gazebo reference=…>` unless another sensor has the name. Input that violates the
format, but that other tools accept, is read and listed as a departure, as are unknown attributes and elements.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from sysdyn.errors import InvalidInput, ModelError, UnknownName, few
from sysdyn.model.frames import Origin, Sensor
from sysdyn.model.joints import ANGLE_SNAP, snap, unit_axis
from sysdyn.model.readers.urdf_schema import Fault, acting_elements, unknown_names
from sysdyn.model.spatial import (
    X_inverse,
    X_motion,
    inertia,
    quaternion_to_E,
    rotation,
    rotx,
    roty,
    rotz,
    translation,
)
from sysdyn.model.validate import MOST_BODIES
from sysdyn.program.reproducible import norm, product

# Joint types of the format.
JOINT_TYPES = ("revolute", "continuous", "prismatic", "fixed", "planar", "floating")
# Joint types with one degree of freedom.
_ONE_FREEDOM = ("revolute", "continuous", "prismatic")
# Greatest length of a robot file in bytes; longer ones would not fit into memory as elements (chosen).
MOST_BYTES = 64 * 2**20
# Greatest mass, moment and length, so that their products are finite (chosen).
_LARGEST = 1e30
# The message on xacro files.
_XACRO = "this is a xacro file, which sysdyn.load expands where its name ends in .xacro"
# The XML declaration, even with blanks before it.
_DECLARATION = re.compile(rb"(\s*)<\?xml\s([^>]*)\?>")
# The version that the XML declaration states.
_VERSION = re.compile(rb"version\s*=\s*[\"']([^\"']*)[\"']")


@dataclass(frozen=True, eq=False)
class UrdfLink:
    """A `<link>`: its spatial inertia (6, 6) at the link origin in link coordinates, zero if it has none."""

    name: str
    inertia: np.ndarray
    line: int


@dataclass(frozen=True, eq=False)
class UrdfJoint:
    """A `<joint>`: E (3, 3), r (3,) [m] place the joint frame in the parent link; axis in the joint frame.

    lower, upper, velocity, effort: limits, ±inf if not given (also lower and upper, which the format defaults to 0).
    damping [N s/m, N m s/rad], friction [N, N m]. mimic: the joint imitated, multiplier and offset [rad, m] of it.
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
    mimic: tuple[str, float, float] | None
    line: int


@dataclass(frozen=True, eq=False)
class UrdfRobot:
    """A URDF file, checked to be one tree: links and joints by name in document order, the name of the root link.

    departures: violations of the format, one message each, with file, line and element. ignored: elements that act on
    the robot in other tools only, with their lines.
    """

    name: str
    source: str
    links: Mapping[str, UrdfLink]
    joints: Mapping[str, UrdfJoint]
    sensors: tuple[Sensor, ...]
    root: str
    departures: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def read_urdf(source: str | os.PathLike[str], strict: bool = False, snap: bool = True) -> UrdfRobot:
    """The URDF file (or text, if it begins with "<") `source` as dataclasses, lines kept; as for `load_urdf`.

    Departures from the format that leave the robot unambiguous are in `departures`, with file, line and element;
    elements that act on the robot in other tools only are in `ignored`. strict: departures are errors.
    Raises ModelError.
    """
    text, name = read_text(source)
    return UrdfReader(name, strict, snap).robot(text)


class MadeText(str):
    """Text of a robot file that was generated from another file, such as a xacro file.

    name: of this text, in messages. folder: of the other file.
    """

    name: str
    folder: Path


def is_text(source: str | os.PathLike[str]) -> bool:
    """True for the text of a robot file, False for its path."""
    return isinstance(source, str) and source.lstrip("\ufeff \t\r\n").startswith("<")


def origin_of(source: str | os.PathLike[str]) -> Origin:
    """The origin for a path or a text."""
    if is_text(source):
        return Origin(str(source), source.folder if isinstance(source, MadeText) else Path.cwd())
    path = Path(source).absolute()
    return Origin(str(path), path.parent)


def read_text(source: str | os.PathLike[str]) -> tuple[bytes, str]:
    """(bytes of the robot file or text, its name in messages). Raises ModelError, InvalidInput."""
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidInput(f"a robot file is a path or the text itself, not {type(source).__name__}")
    if isinstance(source, str) and is_text(source):
        text = source.lstrip("\ufeff \t\r\n").encode(errors="replace")
        name = source.name if isinstance(source, MadeText) else "<string>"
    else:
        name = str(source)
        try:
            with open(source, "rb") as file:
                text = file.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            shown = name if len(name) <= 200 else f"{name[:200]}…"
            raise ModelError(f"cannot read {shown!r}: {reason}") from None
    if len(text) > MOST_BYTES:
        raise ModelError(f"{name!r} is longer than {MOST_BYTES >> 20} MiB, more than a robot file may have")
    return text, name


class UrdfReader:
    """Reads elements; faults are raised as ModelError with file, line and element.

    strict: departures that leave the robot known are raised, too; else they are noted. snap: as for `load_urdf`.
    """

    def __init__(self, source: str, strict: bool, snap: bool):
        self.source, self.strict, self.snap = source, strict, snap
        self.departures: list[str] = []

    def depart(self, what: str, read: str) -> None:
        """Note a departure from the format, in words with its place, and what is `read` instead; strict: raise it."""
        if self.strict:
            raise ModelError(what)
        self.departures.append(f"{what}; {read}")

    def fail(self, element, message: str) -> NoReturn:
        raise ModelError(self.told(element, message))

    def told(self, element, message: str) -> str:
        """The message with file, line and element."""
        name = element.get("name")
        shown = f'<{element.tag} name="{name}">' if name else f"<{element.tag}>"
        owner = element.getparent()
        while not name and owner is not None and owner.tag != "robot":
            name = owner.get("name")
            shown = f"{shown} in <{owner.tag}>" if not name else f'{shown} in <{owner.tag} name="{name}">'
            owner = owner.getparent()
        return f"{self.source}:{element.sourceline}: {shown}: {message}"

    # ---- the file ------------------------------------------------------------------------------------------------

    def robot(self, text: bytes) -> UrdfRobot:
        root = self.root(text)
        self.check_names(root)
        if (n := sum(1 for _ in root.iterchildren("link"))) > MOST_BODIES:
            self.fail(root, f"{n:,} links; a robot may have {MOST_BODIES:,}")
        links = self.unique([self.link(e) for e in root.iterchildren("link")], "link")
        joints = self.unique([self.joint(e, links) for e in root.iterchildren("joint")], "joint")
        self.check_mimics(joints)
        if not links:
            self.fail(root, "no <link>: a robot needs at least one")
        root_link = self.root_link(links, joints)
        sensors = self.sensors(root, links, joints)
        return UrdfRobot(
            self.attribute(root, "name"),
            self.source,
            MappingProxyType(links),
            MappingProxyType(joints),
            sensors,
            root_link,
            tuple(self.departures),
            tuple(f"{name} ({_lines(lines)})" for name, lines in acting_elements(root).items()),
        )

    def check_names(self, root) -> None:
        """Record unknown attributes and elements as departures; equal ones once, with all their lines."""
        names = [e.get("name", "") for e in root.iterchildren("link", "joint")]
        faults = [*unknown_names(root)]
        for e in root.iterchildren("gazebo"):
            if (reference := e.get("reference", "")) and reference not in names:
                faults.append(Fault(e, str(UnknownName("reference", reference, names)), ("reference", reference)))
        groups: dict[tuple[str, ...], list[Fault]] = {}
        for fault in faults:
            groups.setdefault(fault.kind, []).append(fault)
        for first, *others in groups.values():
            also = f", also in {_lines([fault.element.sourceline for fault in others])}" if others else ""
            self.depart(self.told(first.element, first.message), f"not read{also}")

    def root(self, text: bytes):
        from lxml import etree  # loaded with the first robot file: most programs read none

        # No network, no external DTD, no entity expansion: a robot file is untrusted input.
        settings: dict[str, Any] = {"resolve_entities": False, "no_network": True, "load_dtd": False}
        settings["encoding"] = "utf-8" if self.source == "<string>" else None
        parser = etree.XMLParser(**settings)
        text = self.declared(text)
        try:
            root = etree.fromstring(text, parser)
        except etree.XMLSyntaxError as error:
            if "xacro" in str(error):
                self.reject(error.lineno, "<xacro:…>", _XACRO)
            said: dict[str, int] = {}
            for e in parser.error_log.filter_from_errors():
                if e.type != etree.ErrorTypes.NS_ERR_UNDEFINED_NAMESPACE:
                    self.reject(e.line, "file", f"not well-formed XML: {e.message}")
                said.setdefault(e.message, e.line)
            for message, line in said.items():
                self.depart(f"{self.source}:{line}: {message}", "read as it stands")
            root = etree.fromstring(text, etree.XMLParser(**settings, recover=True))
        dtd = root.getroottree().docinfo.internalDTD
        if dtd is not None and any(True for _ in dtd.iterentities()):
            self.reject(1, "<!DOCTYPE>", "entity declarations are not allowed in a robot file")
        for element in root.iter(etree.Element):
            if "xacro" in element.tag.rpartition("}")[0] or element.tag.startswith("xacro:"):
                self.reject(element.sourceline, f"<{element.tag}>", _XACRO)
        if root.tag != "robot":
            kind = {"sdf": " (an SDF file)", "mujoco": " (an MJCF file)"}.get(str(root.tag), "")
            self.reject(
                root.sourceline, f"<{root.tag}>", f"the root element of a URDF is <robot>, not <{root.tag}>{kind}"
            )
        return root

    def declared(self, text: bytes) -> bytes:
        """The text with its XML declaration put at the start and set to version 1.x; lines keep their numbers."""
        found = _DECLARATION.match(text)
        if not found:
            return text
        blanks, said = found.groups()
        line, version = blanks.count(b"\n") + 1, _VERSION.search(said)
        unknown = version is not None and not version[1].startswith(b"1.")
        if blanks:
            self.depart(f"{self.source}:{line}: <?xml>: blanks before the XML declaration", "left out")
        if version is not None and unknown:
            shown = version[1].decode(errors="replace")
            self.depart(f'{self.source}:{line}: <?xml version="{shown}">: no version of XML', "read as 1.0")
            said = _VERSION.sub(b'version="1.0"', said)
        if not blanks and not unknown:
            return text
        return b"<?xml " + said.replace(b"\n", b" ") + b"?>" + b"\n" * found[0].count(b"\n") + text[found.end() :]

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
        inertial = self.first(element, "inertial")
        mass_element = None if inertial is None else self.first(inertial, "mass")
        I = np.zeros((6, 6))
        if inertial is not None and mass_element is None:
            self.depart(self.told(inertial, "missing element <mass>"), "read as no inertia")
        elif inertial is not None:
            mass = self.number(mass_element, "value")
            if mass < 0.0:
                self.fail(mass_element, f"negative mass {mass:g} kg; masses are ≥ 0")
            moments = self.first(inertial, "inertia")
            xx = xy = xz = yy = yz = zz = 0.0
            if moments is None:
                self.depart(self.told(inertial, "missing element <inertia>"), "read as a point mass")
            else:
                keys = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
                xx, xy, xz, yy, yz, zz = (self.number(moments, key) for key in keys)
            E, r = self.origin(inertial)
            I_com = product(E.T, np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]), E)
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
        axis_element = self.first(element, "axis")
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
            crossed = f"lower limit {lower:g} is above the upper limit {upper:g}"
            self.depart(self.told(limit, crossed), "read as no limits")
            lower, upper = -math.inf, math.inf
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
            damping=self.resistance(dynamics, "damping"),
            friction=self.resistance(dynamics, "friction"),
            mimic=None if mimic is None else self.mimic(mimic),
            line=element.sourceline,
        )

    def sensors(self, root, links: Mapping[str, UrdfLink], joints: Mapping[str, UrdfJoint]) -> tuple[Sensor, ...]:
        """Sensors of <robot>, then those of <gazebo> with unused names; a sensor that is wrong carries its fault."""
        own = [self.usable(e, self.sensor, e, None, links, joints) for e in root.iterchildren("sensor")]
        taken = {s.name for s in own}
        for owner in root.iterchildren("gazebo"):
            carrier, inside = owner.get("reference"), list(owner.iterchildren("sensor"))
            if carrier is None and inside:
                self.depart(self.told(inside[0], "its <gazebo> has no reference="), "left out")
            elif carrier in links or carrier in joints:
                own += [
                    self.usable(e, self.sensor, e, carrier, links, joints) for e in inside if e.get("name") not in taken
                ]
        found: dict[tuple[str, str], Sensor] = {}
        for s in own:
            first = found.setdefault((s.type, s.name), s)
            if first is not s and s.name:
                place = f'{self.source}:{s.line}: <sensor name="{s.name}">'
                fault = f"{place}: duplicate name, first used in line {first.line}"
                self.depart(fault, "an error where it is asked for")
                found[s.type, s.name] = replace(first, fault=fault)
        return tuple(s for s in found.values() if s.name)

    def usable(self, element, read: Callable[..., Sensor], *arguments) -> Sensor:
        """The sensor as `read`, or its name and its fault."""
        try:
            return read(*arguments)
        except ModelError as error:
            name = (element.get("name") or "").strip()
            self.depart(str(error), "an error where the sensor is asked for" if name else "left out")
            kind = element.get("type", "")
            return Sensor(name, kind, "link", "", line=element.sourceline, fault=str(error))

    def sensor(
        self, element, carrier: str | None, links: Mapping[str, UrdfLink], joints: Mapping[str, UrdfJoint]
    ) -> Sensor:
        """A sensor on `carrier`, the reference of its `<gazebo>`; None: on the link or joint of its `<parent>`."""
        from lxml import etree  # see `root`

        name, type = self.attribute(element, "name"), element.get("type", "")
        if carrier is None:
            parent = self.child(element, "parent", required=True)
            kind = "joint" if parent.get("joint") is not None else "link"
            carrier = self.attribute(parent, kind)
            valid: Mapping[str, object] = joints if kind == "joint" else links
            if carrier not in valid:
                self.fail(parent, str(UnknownName(f"parent {kind}", carrier, valid)))
        else:
            kind = "joint" if carrier in joints and (carrier not in links or type == "force_torque") else "link"
        ends = (joints[carrier].parent, joints[carrier].child) if kind == "joint" else ()
        return Sensor(
            name=name,
            type=type,
            parent_kind=kind,
            parent=carrier,
            X=self.sensor_pose(element, ends[1] if ends else carrier, links, joints),
            links=ends,
            attributes=MappingProxyType({str(key): str(value) for key, value in element.attrib.items()}),
            line=element.sourceline,
            xml=etree.tostring(element, encoding="unicode", with_tail=False),
        )

    def sensor_pose(
        self, element, link: str, links: Mapping[str, UrdfLink], joints: Mapping[str, UrdfJoint]
    ) -> np.ndarray:
        """X (6, 6) from the link to its sensor, by `<origin>` or by SDFormat's `<pose>`.

        A pose is x y z roll pitch yaw, or x y z and a quaternion x y z w, in the frame of the link. `relative_to`
        (before SDFormat 1.7: `frame`) names another link, or a joint for its child link, at its position at q = 0.
        """
        pose = self.child(element, "pose")
        if pose is None:
            return X_motion(*self.origin(element))
        if element.find("origin") is not None:
            self.fail(pose, "both <origin> and <pose> are given; remove one")
        text, format = pose.text or "", pose.get("rotation_format", "euler_rpy")
        counts = {"euler_rpy": 6, "quat_xyzw": 7}
        if format not in counts:
            self.fail(pose, str(UnknownName("rotation_format", format, counts)))
        count = counts[format]
        try:
            numbers = np.array([float(x) for x in text.split()] or [0.0] * 6 + [1.0] * (count - 6))
        except ValueError:
            numbers = np.empty(0)
        if numbers.shape != (count,) or not np.all(np.abs(numbers) <= _LARGEST):
            shape = "six numbers: x y z roll pitch yaw" if count == 6 else "seven numbers: x y z and qx qy qz qw"
            self.fail(pose, f"{text!r} is not {shape}")
        angles = np.radians(numbers[3:]) if pose.get("degrees", "").strip() in ("true", "1") else numbers[3:]
        E = rpy(angles, self.snap) if count == 6 else self.attitude(pose, numbers[3:])
        X = X_motion(E, snap(numbers[:3]))
        base = (pose.get("relative_to") or pose.get("frame") or "").strip()
        if not base:
            return X
        if base != "__model__" and base not in links and base not in joints:
            self.fail(pose, str(UnknownName("relative_to", base, ["__model__", *links, *joints])))
        parent = {j.child: j for j in joints.values()}

        def placed(name: str) -> np.ndarray:
            """X (6, 6) from the root to a link at q = 0."""
            X = np.eye(6)
            while name in parent:
                X, name = product(X, X_motion(parent[name].E, parent[name].r)), parent[name].parent
            return X

        if base not in links and base in joints:
            base = joints[base].child
        there = np.eye(6) if base == "__model__" else placed(base)
        X = product(X, there, X_inverse(placed(link)))
        return X_motion(snap(rotation(X)), snap(translation(X)))

    def resistance(self, element, key: str) -> float:
        value = self.number(element, key, 0.0)
        if value < 0.0:
            self.depart(self.told(element, f"negative {key} {value:g}"), "read as 0")
        return max(value, 0.0)

    def mimic(self, element) -> tuple[str, float, float]:
        leader = self.attribute(element, "joint")
        return leader, self.number(element, "multiplier", 1.0), self.number(element, "offset", 0.0)

    def check_mimics(self, joints: dict[str, UrdfJoint]) -> None:
        """Make joints independent that imitate a joint without one degree of freedom, or in the end themselves."""
        for j in list(joints.values()):
            if j.mimic is None:
                continue
            leader, way = joints.get(j.mimic[0]), [j.name]
            fault = "" if leader is not None else str(UnknownName("joint", j.mimic[0], joints))
            if leader is not None and {leader.type, j.type} - set(_ONE_FREEDOM):
                fault = f"{j.name!r} or {leader.name!r} has not one degree of freedom"
            while leader is not None and not fault:
                fault = f"it imitates itself: {' → '.join([*way, leader.name])}" if leader.name in way else ""
                way.append(leader.name)
                leader = joints.get(leader.mimic[0]) if leader.mimic is not None else None
            if fault:
                self.depart(f'{self.source}:{j.line}: <mimic> in <joint name="{j.name}">: {fault}', "left out")
                joints[j.name] = replace(j, mimic=None)

    def origin(self, element) -> tuple[np.ndarray, np.ndarray]:
        """(E (3, 3), r (3,)) of the `<origin>` of `element`, E = (Rz(y) Ry(p) Rx(r))^T; identity if it has none."""
        origin = self.first(element, "origin")
        if origin is None:
            return np.eye(3), np.zeros(3)
        r = snap(np.array(self.numbers(origin, "xyz", 3, (0.0, 0.0, 0.0))))
        if origin.get("quat_xyzw") is None:
            return rpy(self.numbers(origin, "rpy", 3, (0.0, 0.0, 0.0)), self.snap), r
        if origin.get("rpy") is not None:
            self.fail(origin, "both rpy and quat_xyzw are given; remove one")
        return self.attitude(origin, np.array(self.numbers(origin, "quat_xyzw", 4))), r

    def attitude(self, element, p: np.ndarray) -> np.ndarray:
        """E (3, 3) of a quaternion x y z w."""
        size = float(norm(p))
        if abs(size - 1.0) > 1e-3:
            self.fail(element, f"quat_xyzw has norm {size:.6g}, not 1")
        return snap(quaternion_to_E(p / size))

    # ---- attributes ----------------------------------------------------------------------------------------------

    def child(self, element, tag: str, required: bool = False):
        found = list(element.iterchildren(tag))
        if len(found) > 1:
            self.fail(found[1], f"a second <{tag}>; only one is allowed")
        if required and not found:
            self.fail(element, f"missing element <{tag}>")
        return found[0] if found else None

    def first(self, element, tag: str):
        """The first child of this tag, others noted as a departure; None if there is no child."""
        found = list(element.iterchildren(tag))
        if len(found) > 1:
            self.depart(self.told(found[1], f"a second <{tag}>; only one is allowed"), "the first is taken")
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
            self.fail(element, f"{key}={text!r}: {_XACRO}")
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
            if abs(value) > _LARGEST and element.tag not in ("limit", "dynamics"):
                self.fail(element, f"{key}={text!r}: {part!r} is beyond {_LARGEST:g}")
            values.append(value)
        return tuple(values)


def _lines(lines: Sequence[int]) -> str:
    return f"line{'s' * (len(lines) > 1)} {few(lines)}"


def rpy(angles: Iterable[float], right: bool = True) -> np.ndarray:
    """E (3, 3) = (Rz(yaw) Ry(pitch) Rx(roll))^T.

    right: angles within 1e-11 rad of multiples of π/2 are made exactly that.
    """
    roll, pitch, yaw = map(_right_angle, angles) if right else angles
    return snap(product(snap(rotx(roll)), snap(roty(pitch)), snap(rotz(yaw))))


def _right_angle(angle: float) -> float:
    """`angle` [rad], or the multiple of π/2 within 1e-11 of it."""
    exact = round(angle / (math.pi / 2)) * (math.pi / 2)
    return exact if abs(angle - exact) <= ANGLE_SNAP else angle
