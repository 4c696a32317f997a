"""Sensors that a robot description declares, as measurements by their names.

In URDF files:

force_torque            on a joint: ForceTorqueSensor. <frame> child (default), parent or sensor; <measure_direction>
                        child_to_parent (default): the wrench on the parent; parent_to_child: on the child
accelerometer           on a link: Accelerometer
gyroscope               on a link: Gyroscope
imu                     on a link: Accelerometer, or by measures= Gyroscope or FrameAttitude
gps                     on a link: FramePosition

`<origin>` or `<pose>` of SDFormat (with relative_to, degrees and rotation_format) places them, within `<robot>` and
within `<gazebo reference=…>`.

In MJCF files accelerometer, gyro, velocimeter and magnetometer (Direction of <option magnetic>), jointpos and jointvel,
framepos, framequat (FrameAttitude: a rotation vector in place of the quaternion), framelinvel and frameangvel of the
same meaning. All but force_torque and accelerometer are sensors of the state: they have noise, and solvers of one state
leave them aside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.measurements.acceleration_sensors import Accelerometer
from sysdyn.measurements.bias_models import BiasModel
from sysdyn.measurements.measurement import Measurement, Names
from sysdyn.measurements.state_sensors import (
    Direction,
    FrameAttitude,
    FramePosition,
    Gyroscope,
    JointPosition,
    JointVelocity,
    Velocimeter,
)
from sysdyn.measurements.wrench_sensors import ForceTorqueSensor
from sysdyn.model import DeclaredSensor, Model
from sysdyn.model.se3 import rotation, unskew

# Classes of measurements by the type of the declared sensor. The first one is the default.
_CLASSES: dict[str, tuple[type[Measurement], ...]] = {
    "accelerometer": (Accelerometer,),
    "imu": (Accelerometer, Gyroscope, FrameAttitude),
    "gyroscope": (Gyroscope,), "gyro": (Gyroscope,), "frameangvel": (Gyroscope,),
    "velocimeter": (Velocimeter,), "framelinvel": (Velocimeter,),
    "gps": (FramePosition,), "framepos": (FramePosition,),
    "framequat": (FrameAttitude,),
    "magnetometer": (Direction,),
    "jointpos": (JointPosition,),
    "jointvel": (JointVelocity,),
    "force_torque": (ForceTorqueSensor,),
}  # fmt: skip
# Types of declared sensors that are measurements.
MEASURABLE = tuple(_CLASSES)
# Types that are on a joint; the others are on a link.
_ON_JOINTS = ("force_torque", "jointpos", "jointvel")
# Types whose value is in the axes of the world.
_IN_WORLD = ("frameangvel", "framelinvel")
# Directions of a force/torque sensor, and the side whose wrench it measures: on the parent or on the child.
DIRECTIONS = {"child_to_parent": "parent", "parent_to_child": "child"}
# Frames whose axes a force/torque sensor may have.
FRAMES = ("child", "parent", "sensor")


def declared_sensors(model: Model) -> dict[str, DeclaredSensor]:
    """{name: sensor} of the sensors that `sensor` makes measurements of, in the order of the robot description."""
    return {s.name: s for s in model.sensors if s.type in MEASURABLE and not s.fault}


def sensor(
    model: Model, name: str, components: Names = "all", noise=None, reference: str | None = None,
    bias: BiasModel | None = None, measures: str | None = None,
) -> Measurement:  # fmt: skip
    """The declared sensor of this name as a measurement of the same name; components, noise, …, bias: of its class.

    measures: the class for a sensor that measures several things, an imu: "Accelerometer" (default), "Gyroscope" or
    "FrameAttitude"; the name of the class follows the sensor's in the name of the second and third.
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
        raise InvalidInput(
            f"{name!r} is a sensor of type {others[name].type!r}; there are measurements for {', '.join(MEASURABLE)}"
        )
    s = found[name]
    if (s.parent_kind == "joint") != (s.type in _ON_JOINTS):
        raise InvalidInput(f"{name!r}, a sensor of type {s.type!r}, is declared on the {s.parent_kind} {s.parent!r}")
    classes = {cls.__name__: cls for cls in _CLASSES[s.type]}
    kind = next(iter(classes)) if measures is None else measures
    check_among(f"measures= of {name!r}:", kind, classes)
    given: dict[str, Any] = {"noise": noise, "bias": bias}
    given["name"] = name if kind == next(iter(classes)) else f"{name} {kind}"
    if classes[kind] is not FrameAttitude:
        given["components"] = components
    if classes[kind] in (Accelerometer, Gyroscope, Velocimeter, ForceTorqueSensor):
        given["reference"] = reference or ("world" if s.type in _IN_WORLD else "local")
    elif reference is not None:
        raise InvalidInput(f"{name!r} is a {kind}, which has no reference: leave it out")
    if s.type == "magnetometer":
        if "magnetic" not in s.attributes:
            raise InvalidInput(
                f"{name!r} is a magnetometer in a field that the file does not tell: state "
                f"Direction({s.parent!r}, vector=…) with the field in world axes"
            )
        given["vector"] = tuple(map(float, s.attributes["magnetic"].split()))
    make: Callable[..., Measurement] = classes[kind]
    if s.type == "force_torque":
        return _force_torque(model, s, given)
    return make(s.parent if s.parent_kind == "joint" else _place(model, s.parent, s), **given)


def _force_torque(model: Model, s: DeclaredSensor, given: dict[str, Any]) -> Measurement:
    if s.parent not in model.joint_names:
        raise InvalidInput(
            f"{s.name!r} is on the fixed joint {s.parent!r}, which the model has lumped, so that its force is no "
            f'unknown: load it with fixed_joints="sensors" or fixed_joints=["{s.parent}"]'
        )
    frame, direction = _settings(s)
    links = dict(zip(("parent", "child"), s.links, strict=True))
    place = _place(model, links["child"], s) if frame == "sensor" else links[frame]
    return ForceTorqueSensor(s.parent, place, side=DIRECTIONS[direction], **given)


def _settings(s: DeclaredSensor) -> tuple[str, str]:
    """(frame, direction) of a force/torque sensor. Raises UnknownName."""
    from lxml import etree  # loaded with the first robot file: most programs read none

    parser = etree.XMLParser(resolve_entities=False, recover=True)  # prefixes were read as they stand
    element = etree.fromstring(s.xml, parser) if s.xml else None

    def text(key: str, default: str, valid) -> str:
        found = None if element is None else element.findtext(f"force_torque/{key}")
        value = (found or default).strip()
        check_among(f"{key} of sensor {s.name!r}:", value, valid)
        return value

    return text("frame", "child", FRAMES), text("measure_direction", "child_to_parent", DIRECTIONS)


def _place(model: Model, link: str, s: DeclaredSensor) -> tuple[str, np.ndarray]:
    """(body, T (4, 4)): pose of the sensor on the body that carries the link. Raises InvalidInput for the base."""
    frame = model.frame(link)
    if frame.body < 0:
        raise InvalidInput(
            f"sensor {s.name!r} is on {link!r}, which is fixed to the base and has no dynamic variables: "
            'load the robot with base="floating"'
        )
    X = s.X @ frame.X
    R = rotation(X).T
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, unskew(-R @ X[3:, :3])
    return model.body_names[frame.body], T
