"""Sensors that a robot description declares, as measurements by their names.

force_torque            on a joint: ForceTorqueSensor. <frame> child (default), parent or sensor; <measure_direction>
                        child_to_parent (default): the wrench on the parent; parent_to_child: on the child
accelerometer, imu      on a link: Accelerometer (the attitude and ω of an imu are inputs of the kinematics)
gyroscope               none: ω follows from q and q̇, which are given
"""

from __future__ import annotations

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.acceleration_sensors import Accelerometer
from sysdyn.measurements.measurement import Measurement, Names
from sysdyn.measurements.wrench_sensors import ForceTorqueSensor
from sysdyn.model import Model, Sensor
from sysdyn.model.spatial import rotation

# Types of declared sensors that are measurements.
MEASURABLE = ("force_torque", "accelerometer", "imu")
# Directions of a force/torque sensor, and the side whose wrench it measures: on the parent or on the child.
DIRECTIONS = {"child_to_parent": "parent", "parent_to_child": "child"}
# Frames whose axes a force/torque sensor may have.
FRAMES = ("child", "parent", "sensor")


def declared_sensors(model: Model) -> dict[str, Sensor]:
    """{name: sensor} of the sensors that `sensor` makes measurements of, in the order of the robot description."""
    return {s.name: s for s in model.sensors if s.type in MEASURABLE and not s.fault}


def sensor(model: Model, name: str, components: Names = "all", noise=None, reference: str = "local") -> Measurement:
    """The declared sensor of this name as a measurement of the same name; components, noise, reference: of its class.

    A force/torque sensor on a fixed joint measures a force that is an unknown only if the model keeps the joint: load
    it with fixed_joints="sensors". Raises UnknownName, InvalidInput.
    """
    found = declared_sensors(model)
    if name not in found:
        others = {s.name: s for s in model.sensors}
        if name not in others:
            raise UnknownName("declared sensor", name, found)
        if others[name].fault:
            raise InvalidInput(f"{name!r} cannot be used: {others[name].fault}")
        if others[name].type == "gyroscope":
            raise InvalidInput(
                f"{name!r} is a gyroscope: angular velocities are no unknowns, they follow from q and q̇, which are "
                "inputs of every problem; use it to find q̇ (of a floating base, say) before solving"
            )
        raise InvalidInput(
            f"{name!r} is a sensor of type {others[name].type!r}; there are measurements for {', '.join(MEASURABLE)}"
        )
    s = found[name]
    if (s.parent_kind == "joint") != (s.type == "force_torque"):
        raise InvalidInput(f"{name!r}, a sensor of type {s.type!r}, is declared on the {s.parent_kind} {s.parent!r}")
    options = {"components": components, "noise": noise, "reference": reference, "name": name}
    if s.type != "force_torque":
        return Accelerometer(_place(model, s.parent, s), **options)
    if s.parent not in model.joint_names:
        raise InvalidInput(
            f"{name!r} is on the fixed joint {s.parent!r}, which the model has lumped, so that its force is no "
            f'unknown: load it with fixed_joints="sensors" or fixed_joints=["{s.parent}"]'
        )
    frame, direction = _settings(s)
    links = dict(zip(("parent", "child"), s.links, strict=True))
    place = _place(model, links["child"], s) if frame == "sensor" else links[frame]
    return ForceTorqueSensor(s.parent, place, side=DIRECTIONS[direction], **options)


def _settings(s: Sensor) -> tuple[str, str]:
    """(frame, direction) of a force/torque sensor. Raises UnknownName."""
    from lxml import etree  # loaded with the first robot file: most programs read none

    parser = etree.XMLParser(resolve_entities=False, recover=True)  # prefixes were read as they stand
    element = etree.fromstring(s.xml, parser) if s.xml else None

    def text(key: str, default: str, valid) -> str:
        found = None if element is None else element.findtext(f"force_torque/{key}")
        value = (found or default).strip()
        if value not in valid:
            raise UnknownName(f"{key} of sensor {s.name!r}:", value, valid)
        return value

    return text("frame", "child", FRAMES), text("measure_direction", "child_to_parent", DIRECTIONS)


def _place(model: Model, link: str, s: Sensor) -> tuple[str, np.ndarray]:
    """(body, T (4, 4)): pose of the sensor on the body that carries the link. Raises InvalidInput for the base."""
    frame = model.frame(link)
    if frame.body < 0:
        raise InvalidInput(
            f"sensor {s.name!r} is on {link!r}, which is fixed to the base and has no dynamic variables: "
            'load the robot with base="floating"'
        )
    X = s.X @ frame.X
    R = rotation(X).T
    rx = -R @ X[3:, :3]
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, (rx[2, 1], rx[0, 2], rx[1, 0])
    return model.body_names[frame.body], T
