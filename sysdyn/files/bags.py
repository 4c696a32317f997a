"""ROS bags as tables: joint states, wrenches and IMUs of ROS 2 (and ROS 1).

Synchronised mode: the main topic defines the rows. It is the topic of joint states with the most messages. Each of its
messages is a row at the time stamp of its header; successive messages with the same time stamp share a row. Every other
topic adds its latest values, or NaN if they are more than `MAX_AGE` seconds older than the row.

Unsynchronised mode: each message is a row at its own time stamp, with NaN in the columns of the other topics.

A topic of joint states has a column for each joint in any of its messages, in order of appearance. A joint that is
missing in a message is NaN there. Columns are named by topic and field, such as "/joint_states/position[0]". They also
have an alias:

    sensor_msgs/JointState          q.NAME, qd.NAME, tau:NAME       NAME: joint name in the message
    geometry_msgs/WrenchStamped     TOPIC: nx … fz                  TOPIC: without its leading slash
    sensor_msgs/Imu                 TOPIC: a_x … , omega_x …        no alias for the attitude
"""

from __future__ import annotations

import heapq
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sysdyn.errors import FileError
from sysdyn.files.tables import TIME

# Largest age [s] of a value in a synchronised row: tuned.
MAX_AGE = 0.1
# Length [s] of the buffer that sorts unsynchronised rows by time, since topics are recorded with delays: tuned.
REORDER_WINDOW = 1.0
_JOINTS = "sensor_msgs/msg/JointState"
# {message type: {field: component of the measurement}} of wrenches and IMUs.
_FIELDS: dict[str, dict[str, str]] = {
    "geometry_msgs/msg/WrenchStamped": {
        **{f"wrench/torque/{c}": f"n{c}" for c in "xyz"}, **{f"wrench/force/{c}": f"f{c}" for c in "xyz"}
    },
    "sensor_msgs/msg/Imu": {
        **{f"linear_acceleration/{c}": f"a_{c}" for c in "xyz"},
        **{f"angular_velocity/{c}": f"omega_{c}" for c in "xyz"}, **{f"orientation/{c}": "" for c in "xyzw"},
    },
}  # fmt: skip
# {field of joint states: prefix of the alias}
_JOINT_FIELDS = {"position": "q.", "velocity": "qd.", "effort": "tau:"}


# Key of a number in a message: (field, joint). joint: name, or index if names are missing; "" in other messages.
_FieldKey = tuple[str, str | int]


def read_bag(
    path: Path, unsynchronised: bool
) -> tuple[list[str], list[str], Callable[[Sequence[int]], Iterator[list[float]]]]:
    """Open a ROS bag as a table.

    Returns
    -------
    columns : list of str
    aliases : list of str
        "" for a column without an alias.
    rows : callable
        rows(column numbers) iterates over the rows of these columns.

    Raises
    ------
    FileError
        If no topic has a supported message type.
    """
    with _open_bag(path) as bag:
        topics: dict[str, list[Any]] = {}
        for x in sorted(bag.connections, key=lambda x: x.topic):
            if x.msgtype in (_JOINTS, *_FIELDS):
                topics.setdefault(x.topic, []).append(x)
        if not topics:
            raise FileError(f"{path} has no topic of the types {', '.join((_JOINTS, *_FIELDS))}")
        count = {topic: sum(x.msgcount for x in connections) for topic, connections in topics.items()}
        main = min(topics, key=lambda topic: (topics[topic][0].msgtype != _JOINTS, -count[topic]))
        columns, place = [(TIME, TIME)], dict[str, dict[_FieldKey, int]]()
        for topic, connections in topics.items():
            names = _names(path, bag, connections) if count[topic] else {}
            place[topic] = {key: len(columns) + k for k, key in enumerate(names)}
            columns += names.values()

    def messages() -> Iterator[tuple[str, float, dict[int, float]]]:
        """(topic, time [s], {column: value}) of each message, in the order of recording."""
        with _open_bag(path) as bag:
            for x, received, raw in bag.messages([x for x in bag.connections if x.topic in topics]):
                message = bag.deserialize(raw, x.msgtype)
                stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
                values = _values(path, x, message)
                yield x.topic, stamp or received * 1e-9, {place[x.topic][key]: v for key, v in values.items()}

    def synchronised_rows(selection: Sequence[int]) -> Iterator[list[float]]:
        row, latest = {0: math.nan}, dict[int, tuple[float, float]]()
        for topic, time, values in messages():
            if topic != main:
                latest |= {j: (time, x) for j, x in values.items()}
                continue
            if time != row[0]:
                if not math.isnan(row[0]):
                    yield [row.get(j, math.nan) for j in selection]
                row = {0: time, **{j: x for j, (then, x) in latest.items() if time - then <= MAX_AGE}}
            row |= values
        if not math.isnan(row[0]):
            yield [row.get(j, math.nan) for j in selection]

    def unsynchronised_rows(selection: Sequence[int]) -> Iterator[list[float]]:
        needed = {topic for topic, columns in place.items() if not set(columns.values()).isdisjoint(selection)}
        waiting: dict[float, dict[int, float]] = {}
        times: list[float] = []  # heap of the keys of `waiting`
        for topic, time, values in messages():
            if topic not in needed:
                continue
            if time not in waiting:
                waiting[time] = {0: time}
                heapq.heappush(times, time)
            waiting[time] |= values
            while times[0] < time - REORDER_WINDOW:
                row = waiting.pop(heapq.heappop(times))
                yield [row.get(j, math.nan) for j in selection]
        for time in sorted(times):
            yield [waiting[time].get(j, math.nan) for j in selection]

    header, aliases = (list(x) for x in zip(*columns, strict=True))
    return header, aliases, unsynchronised_rows if unsynchronised else synchronised_rows


@contextmanager
def _open_bag(path: Path) -> Iterator[Any]:
    highlevel = importlib.import_module("rosbags.highlevel")
    typesys = importlib.import_module("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)  # for bags without message definitions
    with highlevel.AnyReader([path], default_typestore=store) as bag:
        yield bag


def _names(path: Path, bag: Any, connections: Sequence[Any]) -> dict[_FieldKey, tuple[str, str]]:
    """{key: (column, alias or "")} of a topic. Joint states are scanned for all joint names."""
    topic, kind = connections[0].topic, connections[0].msgtype
    if kind != _JOINTS:
        name = topic.lstrip("/")
        return {(field, ""): (f"{topic}/{field}", c and f"{name}: {c}") for field, c in _FIELDS[kind].items()}
    keys: dict[_FieldKey, None] = {}
    for connection, _, raw in bag.messages(connections):
        keys |= dict.fromkeys(_values(path, connection, bag.deserialize(raw, kind)))
    joints = {joint: k for k, joint in enumerate(dict.fromkeys(joint for _, joint in keys))}
    return {
        (field, joint): (f"{topic}/{field}[{k}]", f"{quantity}{joint}" if isinstance(joint, str) else "")
        for field, quantity in _JOINT_FIELDS.items() for joint, k in joints.items() if (field, joint) in keys
    }  # fmt: skip


def _values(path: Path, connection: Any, message: Any) -> dict[_FieldKey, float]:
    """Values of a message by key. Raises FileError if the fields of joint states differ in length."""
    values: dict[_FieldKey, float] = {}
    for field in _FIELDS.get(connection.msgtype, ()):
        x = message
        for part in field.split("/"):
            x = getattr(x, part)
        values[field, ""] = float(x)
    for field in _JOINT_FIELDS if connection.msgtype == _JOINTS else ():
        x, names = getattr(message, field), message.name
        if names and (len(x) not in (0, len(names)) or len(set(names)) < len(names)):
            raise FileError(
                f"{path}: a message of {connection.topic} has {len(x)} values of {field} for the joints "
                f"{', '.join(names)}: joint names must be unique, and a field needs one value per joint or none"
            )
        values |= {(field, joint): float(value) for joint, value in zip(names or range(len(x)), x, strict=False)}
    return values
