"""Parser of URDF files: dataclasses with line numbers; `urdf_model` converts them to a `Model`.

`<visual>`, `<collision>`, `<material>`, `<transmission>`, `<gazebo>` and extensions of other tools are ignored;
`UrdfRobot.ignored` lists ignored elements that affect the motion in other tools. `<sensor>` elements become
`Model.sensors`; those in `<gazebo reference=…>` only if their names are unused. Violations of the format that other
tools accept are tolerated and listed in `UrdfRobot.deviations`.

Reference: https://wiki.ros.org/urdf/XML; http://sdformat.org/spec for sensors.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NoReturn

import numpy as np

from sysdyn.errors import ModelError, UnknownName
from sysdyn.model.constants import clean
from sysdyn.model.frames import DeclaredSensor
from sysdyn.model.inertia import inertia
from sysdyn.model.joints import unit_axis
from sysdyn.model.readers.urdf_document import MAX_VALUE, Element, format_lines, open_urdf, rpy
from sysdyn.model.readers.urdf_schema import acting_elements
from sysdyn.model.se3 import X_inverse, X_motion, rotation, translation
from sysdyn.model.validate import MAX_BODIES
from sysdyn.program.reproducible import matmul

# Joint types of URDF, and those with one degree of freedom.
JOINT_TYPES = ("revolute", "continuous", "prismatic", "fixed", "planar", "floating")
_SINGLE_DOF = JOINT_TYPES[:3]
_MOMENTS = ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
# {rotation format of a `<pose>`: (number of values, their meaning)}
_POSE_FORMATS = {
    "euler_rpy": (6, "six numbers: x y z roll pitch yaw"),
    "quat_xyzw": (7, "seven numbers: x y z and qx qy qz qw"),
}


@dataclass(frozen=True, eq=False)
class UrdfLink:
    """A `<link>`.

    Attributes
    ----------
    name : str
    inertia : (6, 6) array
        Spatial inertia at the link origin in link coordinates; zero without `<inertial>`.
    line : int
        Line number in the file.
    """

    name: str
    inertia: np.ndarray
    line: int


@dataclass(frozen=True, eq=False)
class UrdfJoint:
    """A `<joint>`.

    Attributes
    ----------
    name, type, parent, child : str
        Joint name, URDF joint type, names of the parent link and the child link.
    E, r : (3, 3) array, (3,) array in m
        Rotation and origin of the joint frame in the parent link.
    axis : tuple of 3 floats
        Unit vector in the joint frame.
    lower, upper, velocity, effort : float
        Limits, ±inf if absent. (In the URDF specification, lower and upper default to 0.)
    damping, friction : float
        Damping in N s/m or N m s/rad, friction in N or N m.
    mimic : (str, float, float) or None
        Leader joint, multiplier, and offset in rad or m.
    line : int
        Line number in the file.
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
    """The content of a URDF file, validated to be a tree.

    Attributes
    ----------
    name, source : str
        Name of the robot; path of the file, or "<string>".
    links, joints : mapping of names to `UrdfLink`, `UrdfJoint`
        Links and joints in document order.
    sensors : tuple of DeclaredSensor
    root : str
        Name of the root link.
    deviations : tuple of str
        Violations of the format: file, line, element and interpretation.
    ignored : tuple of str
        Ignored elements that affect the motion in other tools, with their lines.
    """

    name: str
    source: str
    links: Mapping[str, UrdfLink]
    joints: Mapping[str, UrdfJoint]
    sensors: tuple[DeclaredSensor, ...]
    root: str
    deviations: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def read_urdf(source: str | os.PathLike[str], strict: bool = False, snap: bool = True) -> UrdfRobot:
    """Read a URDF file into dataclasses.

    Parameters
    ----------
    source : path or str
        A file, or the text itself if it begins with "<".
    strict : bool
        Raise ModelError for deviations from the format instead of listing them.
    snap : bool
        See `load_urdf`.

    Returns
    -------
    UrdfRobot

    Raises
    ------
    ModelError
        For invalid input, with file, line and element.
    """
    robot = open_urdf(source, strict, snap)
    robot.document.check_names(robot)
    if (n := len(robot.children("link"))) > MAX_BODIES:
        raise robot.error(f"{n:,} links; a robot may have {MAX_BODIES:,}")
    links = _by_name([(e, _link(e)) for e in robot.children("link")])
    joints = _by_name([(e, _joint(e, links)) for e in robot.children("joint")])
    elements = {e.text("name"): e for e in robot.children("joint")}
    _drop_invalid_mimics(joints, elements)
    if not links:
        raise robot.error("no <link>: a robot needs at least one")
    root = _root_link(robot, links, joints)
    sensors = _Sensors(links, joints).read(robot)
    return UrdfRobot(
        robot.text("name"),
        robot.document.source,
        MappingProxyType(links),
        MappingProxyType(joints),
        sensors,
        root,
        tuple(robot.document.deviations),
        tuple(f"{name} ({format_lines(lines)})" for name, lines in acting_elements(robot.node).items()),
    )


def _by_name(items: list) -> dict:
    """{name: item} of (element, item) pairs. Raises ModelError for duplicate names."""
    unique: dict = {}
    for element, item in items:
        first = unique.setdefault(item.name, item)
        if first is not item:
            raise element.error(f"duplicate name, first used in line {first.line}")
    return unique


# ---- links and joints ------------------------------------------------------------------------------------------------


def _link(element: Element) -> UrdfLink:
    name = element.text("name")
    inertial = element.first_child("inertial")
    return UrdfLink(name, np.zeros((6, 6)) if inertial is None else _inertia(inertial), element.line)


def _inertia(inertial: Element) -> np.ndarray:
    """Spatial inertia (6, 6) of an `<inertial>`."""
    mass_element = inertial.first_child("mass")
    if mass_element is None:
        inertial.deviation("missing element <mass>", "read as no inertia")
        return np.zeros((6, 6))
    mass = mass_element.number("value")
    if mass < 0.0:
        raise mass_element.error(f"negative mass {mass:g} kg; masses are ≥ 0")
    moments = inertial.first_child("inertia")
    if moments is None:
        inertial.deviation("missing element <inertia>", "read as a point mass")
        xx = xy = xz = yy = yz = zz = 0.0
    else:
        xx, xy, xz, yy, yz, zz = (moments.number(key) for key in _MOMENTS)
    E, r = inertial.origin()
    return inertia(mass, r, matmul(E.T, np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]), E))


def _joint(element: Element, links: Mapping[str, UrdfLink]) -> UrdfJoint:
    name, type = element.text("name"), element.text("type")
    if type not in JOINT_TYPES:
        raise element.error(str(UnknownName("joint type", type, JOINT_TYPES)))
    ends = {}
    for end in ("parent", "child"):
        child = element.required_child(end)
        ends[end] = child.text("link")
        if ends[end] not in links:
            raise child.error(str(UnknownName(f"{end} link", ends[end], links)))
    E, r = element.origin()
    axis = _axis(element) if type not in ("fixed", "floating") else (1.0, 0.0, 0.0)
    limit, dynamics, mimic = (element.child(tag) for tag in ("limit", "dynamics", "mimic"))
    lower, upper = _number(limit, "lower", -math.inf), _number(limit, "upper", math.inf)
    if limit is not None and lower > upper:
        limit.deviation(f"lower limit {lower:g} is above the upper limit {upper:g}", "read as no limits")
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
        velocity=_number(limit, "velocity", math.inf),
        effort=_number(limit, "effort", math.inf),
        damping=_resistance(dynamics, "damping"),
        friction=_resistance(dynamics, "friction"),
        mimic=None if mimic is None else _mimic(mimic),
        line=element.line,
    )


def _mimic(element: Element) -> tuple[str, float, float]:
    return element.text("joint"), element.number("multiplier", 1.0), element.number("offset", 0.0)


def _axis(joint: Element) -> tuple[float, float, float]:
    element = joint.first_child("axis")
    if element is None:
        return (1.0, 0.0, 0.0)
    components = element.numbers("xyz", 3)
    try:
        return unit_axis(components)
    except ModelError as error:
        raise element.error(str(error)) from None


def _number(element: Element | None, key: str, default: float) -> float:
    return default if element is None else element.number(key, default)


def _resistance(dynamics: Element | None, key: str) -> float:
    """Damping or friction, with negative values replaced by 0."""
    value = _number(dynamics, key, 0.0)
    if dynamics is not None and value < 0.0:
        dynamics.deviation(f"negative {key} {value:g}", "read as 0")
    return max(value, 0.0)


def _drop_invalid_mimics(joints: dict[str, UrdfJoint], elements: Mapping[str, Element]) -> None:
    """Remove invalid `<mimic>` elements: leaders without exactly one degree of freedom, and cycles."""
    for j in list(joints.values()):
        if j.mimic is None:
            continue
        leader, path = joints.get(j.mimic[0]), [j.name]
        fault = "" if leader is not None else str(UnknownName("joint", j.mimic[0], joints))
        if leader is not None and {leader.type, j.type} - set(_SINGLE_DOF):
            fault = f"{j.name!r} or {leader.name!r} does not have exactly one degree of freedom"
        while leader is not None and not fault:
            fault = f"it follows itself: {' → '.join([*path, leader.name])}" if leader.name in path else ""
            path.append(leader.name)
            leader = joints.get(leader.mimic[0]) if leader.mimic is not None else None
        if fault:
            elements[j.name].required_child("mimic").deviation(fault, "omitted")
            joints[j.name] = replace(j, mimic=None)


def _root_link(robot: Element, links: Mapping[str, UrdfLink], joints: Mapping[str, UrdfJoint]) -> str:
    """Name of the root link. Raises ModelError for loops, cycles and several roots."""

    def reject(kind: str, item: UrdfLink | UrdfJoint, message: str) -> NoReturn:
        raise robot.document.error(item.line, f'<{kind} name="{item.name}">', message)

    parent_joint: dict[str, UrdfJoint] = {}
    for j in joints.values():
        first = parent_joint.setdefault(j.child, j)
        if first is not j:
            reject("joint", j, f"link {j.child!r} already has a parent, by joint {first.name!r} in line {first.line}; "
                   "a URDF is a tree: remove one and close the loop with a constraint")  # fmt: skip
    rooted: set[str] = set()  # links with a finite path to the root
    for link in links:
        path: dict[str, None] = {}  # ordered set
        while link in parent_joint and link not in rooted:
            if link in path:
                cycle = " → ".join([link, *reversed(list(path)[list(path).index(link) :])])
                reject("joint", parent_joint[link], f"the links form a cycle: {cycle}")
            path[link] = None
            link = parent_joint[link].parent
        rooted.update(path)
    roots = [name for name in links if name not in parent_joint]
    if len(roots) > 1:
        names = ", ".join(map(repr, roots))
        reject("link", links[roots[1]], f"the robot has {len(roots)} root links (links that are the child of no "
               f"joint): {names}; join them")  # fmt: skip
    return roots[0]


# ---- sensors ---------------------------------------------------------------------------------------------------------


class _Sensors:
    """Reader of `<sensor>` elements."""

    def __init__(self, links: Mapping[str, UrdfLink], joints: Mapping[str, UrdfJoint]):
        self.links, self.joints = links, joints
        self.joint_above = {j.child: j for j in joints.values()}

    def read(self, robot: Element) -> tuple[DeclaredSensor, ...]:
        """Sensors of `<robot>`, then those of `<gazebo>` with unused names. Invalid sensors have a `fault`."""
        sensors = [self._sensor_or_fault(e, None) for e in robot.children("sensor")]
        sensors += self._gazebo_sensors(robot, {s.name for s in sensors})
        unique: dict[tuple[str, str], DeclaredSensor] = {}
        for s in sensors:
            first = unique.setdefault((s.type, s.name), s)
            if first is not s and s.name:
                place = f'{robot.document.source}:{s.line}: <sensor name="{s.name}">'
                fault = f"{place}: duplicate name, first used in line {first.line}"
                robot.document.deviation(fault, "an error where it is asked for")
                unique[s.type, s.name] = replace(first, fault=fault)
        return tuple(s for s in unique.values() if s.name)

    def _gazebo_sensors(self, robot: Element, names: set[str]) -> Iterator[DeclaredSensor]:
        for gazebo in robot.children("gazebo"):
            carrier, sensors = gazebo.node.get("reference"), gazebo.children("sensor")
            if carrier is None and sensors:
                sensors[0].deviation("its <gazebo> has no reference=", "omitted")
            elif carrier in self.links or carrier in self.joints:
                yield from (self._sensor_or_fault(e, carrier) for e in sensors if e.node.get("name") not in names)

    def _sensor_or_fault(self, element: Element, carrier: str | None) -> DeclaredSensor:
        try:
            return self._sensor(element, carrier)
        except ModelError as error:
            name = element.get("name")
            element.document.deviation(str(error), "an error where the sensor is asked for" if name else "omitted")
            return DeclaredSensor(name, element.node.get("type", ""), "link", "", line=element.line, fault=str(error))

    def _sensor(self, element: Element, carrier: str | None) -> DeclaredSensor:
        """Read a sensor. carrier: the `reference` of its `<gazebo>`; None: use the `<parent>` of the sensor."""
        from lxml import etree  # see UrdfDocument.root

        name, type = element.text("name"), element.node.get("type", "")
        if carrier is None:
            parent = element.required_child("parent")
            kind = "joint" if parent.node.get("joint") is not None else "link"
            carrier = parent.text(kind)
            valid: Mapping[str, object] = self.joints if kind == "joint" else self.links
            if carrier not in valid:
                raise parent.error(str(UnknownName(f"parent {kind}", carrier, valid)))
        else:
            ambiguous = carrier in self.links and type != "force_torque"
            kind = "joint" if carrier in self.joints and not ambiguous else "link"
        ends = (self.joints[carrier].parent, self.joints[carrier].child) if kind == "joint" else ()
        return DeclaredSensor(
            name=name,
            type=type,
            parent_kind=kind,
            parent=carrier,
            X=self._pose(element, ends[1] if ends else carrier),
            links=ends,
            attributes=MappingProxyType({str(key): str(value) for key, value in element.node.attrib.items()}),
            line=element.line,
            xml=etree.tostring(element.node, encoding="unicode", with_tail=False),
        )

    def _pose(self, element: Element, link: str) -> np.ndarray:
        """Transform X (6, 6) from the link frame to the sensor frame, from `<origin>` or SDFormat's `<pose>`.

        A pose is x y z roll pitch yaw, or x y z and a quaternion x y z w, in the link frame. The attribute
        `relative_to` (before SDFormat 1.7: `frame`) selects another link, or the child link of a joint, at q = 0.
        """
        pose = element.child("pose")
        if pose is None:
            return X_motion(*element.origin())
        if element.node.find("origin") is not None:
            raise pose.error("both <origin> and <pose> are given; remove one")
        text, format = pose.node.text or "", pose.node.get("rotation_format", "euler_rpy")
        if format not in _POSE_FORMATS:
            raise pose.error(str(UnknownName("rotation_format", format, _POSE_FORMATS)))
        count, meaning = _POSE_FORMATS[format]
        try:
            numbers = np.array([float(x) for x in text.split()] or [0.0] * 6 + [1.0] * (count - 6))
        except ValueError:
            numbers = np.empty(0)
        if numbers.shape != (count,) or not np.all(np.abs(numbers) <= MAX_VALUE):
            raise pose.error(f"{text!r} is not {meaning}")
        angles = np.radians(numbers[3:]) if pose.get("degrees") in ("true", "1") else numbers[3:]
        E = rpy(angles, pose.document.snap) if format == "euler_rpy" else pose.attitude(numbers[3:])
        X = X_motion(E, clean(numbers[:3]))
        base = pose.get("relative_to") or pose.get("frame")
        if not base:
            return X
        if base not in ("__model__", *self.links, *self.joints):
            raise pose.error(str(UnknownName("relative_to", base, ["__model__", *self.links, *self.joints])))
        if base not in self.links and base in self.joints:
            base = self.joints[base].child
        X_base = np.eye(6) if base == "__model__" else self._from_root(base)
        X = matmul(X, X_base, X_inverse(self._from_root(link)))
        return X_motion(clean(rotation(X)), clean(translation(X)))

    def _from_root(self, link: str) -> np.ndarray:
        """Transform X (6, 6) from the root link to a link at q = 0."""
        X = np.eye(6)
        while link in self.joint_above:
            j = self.joint_above[link]
            X, link = matmul(X, X_motion(j.E, j.r)), j.parent
        return X
