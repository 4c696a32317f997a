"""Schema of URDF: attributes and children of each element, and elements of other tools that affect the motion.

References: https://wiki.ros.org/urdf/XML and urdfdom's `urdf.xsd`; http://sdformat.org/spec for `<pose>` and
`<force_torque>` of sensors; http://classic.gazebosim.org/tutorials?tut=ros_urdf for `<gazebo>`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sysdyn.errors import UnknownName

# {element: (attributes, children)}
_ELEMENTS = {
    "robot": ("name version", "link joint material transmission gazebo sensor"),
    "link": ("name type", "inertial visual collision"),
    "inertial": ("", "origin mass inertia"),
    "origin": ("xyz rpy quat_xyzw", ""),
    "mass": ("value", ""),
    "inertia": ("ixx ixy ixz iyy iyz izz", ""),
    "visual": ("name", "origin geometry material"),
    "collision": ("name", "origin geometry material verbose"),
    "geometry": ("name", "box cylinder sphere capsule mesh"),
    "box": ("size", ""),
    "cylinder": ("radius length", ""),
    "sphere": ("radius", ""),
    "capsule": ("radius length", ""),
    "mesh": ("filename scale", ""),
    "verbose": ("value", ""),
    "material": ("name", "color texture"),
    "color": ("rgba", ""),
    "texture": ("filename", ""),
    "joint": ("name type", "origin parent child axis calibration dynamics limit mimic safety_controller"),
    "parent": ("link joint", ""),
    "child": ("link", ""),
    "axis": ("xyz", ""),
    "calibration": ("rising falling reference_position", ""),
    "dynamics": ("damping friction", ""),
    "limit": ("lower upper effort velocity acceleration deceleration jerk", ""),
    "mimic": ("joint multiplier offset", ""),
    "safety_controller": ("soft_lower_limit soft_upper_limit k_position k_velocity", ""),
    "transmission": ("name type", ""),
    "gazebo": ("reference", "sensor"),
    "sensor": ("name type update_rate", "parent origin pose force_torque update_rate"),
    "pose": ("relative_to frame degrees rotation_format", ""),
    "force_torque": ("", "frame measure_direction"),
    "frame": ("", ""),
    "measure_direction": ("", ""),
    "update_rate": ("", ""),
}
ATTRIBUTES = {tag: attributes.split() for tag, (attributes, _) in _ELEMENTS.items()}
CHILDREN = {tag: children.split() for tag, (_, children) in _ELEMENTS.items()}
# Elements with text content.
_TEXT = ("pose", "frame", "measure_direction", "update_rate")
# Elements with content for other tools.
_FOREIGN = ("transmission", "gazebo")
# Elements without extensions: an unknown child is a mistake.
_CLOSED = ("inertial", *(tag for tag, children in CHILDREN.items() if not children and tag not in _FOREIGN))
# Similarity from which an element counts as misspelt, chosen: "intertial" has 0.94, "axes" 0.75, extensions less.
_SIMILARITY = 0.7

# Elements and attributes that affect the motion in other tools: {(parent or None for any, name): neutral value}. A
# neutral value has no effect; None: every value has an effect.
ACTING: dict[tuple[str | None, str], float | None] = {
    (None, "mechanicalReduction"): 1.0,
    (None, "mechanical_reduction"): 1.0,  # ros2_control
    (None, "motorInertia"): 0.0,
    (None, "rotorInertia"): 0.0,
    (None, "gear_ratio"): 1.0,  # Drake, also the next ones
    (None, "rotor_inertia"): 0.0,
    ("robot", "linear_bushing_rpy"): None,
    ("robot", "linear_spring_damper"): None,
    ("robot", "ball_constraint"): None,
    ("robot", "loop_joint"): None,
    ("robot", "deformable"): None,  # Bullet, also the next one
    (None, "inertia_scaling"): 1.0,
    (None, "springStiffness"): 0.0,  # Gazebo, also the next ones
    (None, "mimicJoint"): None,
    ("gazebo", "joint"): None,
    ("gazebo", "link"): None,
    ("gazebo", "model"): None,
    ("gazebo", "include"): None,
    ("gazebo", "turnGravityOff"): 0.0,
    ("gazebo", "dampingFactor"): 0.0,
    ("gazebo", "velocity_decay"): None,
    ("gazebo", "static"): 0.0,
    ("gazebo", "gravity"): 1.0,
    ("gazebo", "kinematic"): 0.0,
    ("link", "gravity"): 1.0,
    ("link", "kinematic"): 0.0,
}


class Fault(NamedTuple):
    """A violation of the schema by an element. Faults with the same `kind` are reported together."""

    element: Any
    message: str
    kind: tuple[str, ...]


def unknown_names(root: Any) -> Iterator[Fault]:
    """Unknown attributes, children and text in a file, in document order.

    Extensions of other tools (names with a prefix, unknown elements that resemble no known element) are skipped with
    their content.
    """
    pending = [root]
    while pending:
        element = pending.pop()
        tag = element.tag
        for key in element.keys():
            if key not in ATTRIBUTES[tag] and _is_plain(key):
                yield Fault(element, _unknown(tag, "attribute", key, ATTRIBUTES[tag]), (tag, "attribute", key))
        if tag in _CLOSED and tag not in _TEXT and (text := (element.text or "").strip()):
            attributes = ", ".join(ATTRIBUTES[tag]) or "none"
            yield Fault(element, f"text {text[:40]!r}; its attributes are {attributes}", (tag, "text"))
        children: list[Any] = []
        for child in element:
            if not isinstance(child.tag, str):  # a comment
                continue
            if child.tag in CHILDREN[tag]:
                children.append(child)
            elif tag not in _FOREIGN and _is_plain(child.tag) and _is_misplaced(tag, child.tag):
                yield Fault(child, _unknown(tag, "element", child.tag, CHILDREN[tag]), (tag, "element", child.tag))
        pending += reversed(children)


def acting_elements(root: Any) -> dict[str, list[int]]:
    """{name: lines} of elements and attributes in `ACTING` with values that have an effect."""
    lines: dict[str, list[int]] = {}
    names = {name for _, name in ACTING}

    def note(parent: str, name: str, value: str, line: int, label: str) -> None:
        for owner_tag in (parent, None):
            if (owner_tag, name) in ACTING and _acts(value, ACTING[owner_tag, name]):
                lines.setdefault(f"<{owner_tag}>{label}" if owner_tag else label, []).append(line)

    for element in root.iter():
        if not isinstance(element.tag, str):
            continue
        tag = _local(element.tag)
        if tag in names:
            owner = element.getparent()
            parent = "" if owner is None else _local(owner.tag)
            note(parent, tag, element.get("value") or element.text or "", element.sourceline, f"<{tag}>")
        for key, value in element.items():
            if (name := _local(key)) in names:
                note(tag, name, value, element.sourceline, f"{name}=")
    return lines


def _is_plain(name: str) -> bool:
    """True for names without a namespace."""
    return "}" not in name and ":" not in name


@lru_cache(maxsize=1024)
def _local(name: str) -> str:
    return name.rpartition("}")[2].rpartition(":")[2]


@cache
def _is_misplaced(parent: str, tag: str) -> bool:
    """True if a child is a mistake and not an extension: its name is in the schema or resembles a valid child."""
    if parent in _CLOSED or tag in CHILDREN or any(tag in keys for keys in ATTRIBUTES.values()):
        return True
    return bool(difflib.get_close_matches(tag.casefold(), CHILDREN[parent], 1, _SIMILARITY))


def _unknown(parent: str, kind: str, name: str, valid: list[str]) -> str:
    """Message for an unknown attribute or child `name`, with its correct parent or similar valid names."""
    note = ""
    if name in CHILDREN[parent]:
        note = f"It is an element: <{name}>."
    elif name in ATTRIBUTES[parent]:
        note = f"It is an attribute: {name}=."
    elif not difflib.get_close_matches(name.casefold(), valid, 1, _SIMILARITY):
        siblings = [tag for tag in CHILDREN[parent] if name in (*ATTRIBUTES[tag], *CHILDREN[tag])]
        homes = siblings or [tag for tag in CHILDREN if name in CHILDREN[tag]]
        note = f"It belongs in {', '.join(f'<{tag}>' for tag in homes)}." if homes else ""
    return str(UnknownName(f"{kind} of <{parent}>", name, valid, note))


def _acts(value: str, neutral: float | None) -> bool:
    word = value.strip().lower()
    try:
        return neutral is None or float({"true": "1", "false": "0"}.get(word, word)) != neutral
    except ValueError:
        return bool(word)
