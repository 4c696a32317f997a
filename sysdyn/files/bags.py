"""ROS bags as tables: joint states, wrenches and IMUs of ROS 2 (and ROS 1).

Synchronised, the topic of joint states (of several, the one with the most messages) sets the rows: one row for each of
its messages, at the time in the header; successive messages with the same time share a row. Every other topic adds its
latest values, or NaN if they are more than `MAX_AGE` seconds older than the row. Unsynchronised, every message has a
row at its own time, with NaN in the columns of other topics. A topic has the joints of all its messages, in order of
appearance, with NaN for joints that a message lacks. Columns are named after topic and field, such as
"/joint_states/position[0]", and have an alias from the contents of the message:

    sensor_msgs/JointState          q.NAME, qd.NAME, tau:NAME       by the names in the messages
    geometry_msgs/WrenchStamped     TOPIC: nx … fz                  by the topic without its first slash
    sensor_msgs/Imu                 TOPIC: a_x … , omega_x …        likewise; the attitude has none
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

# Greatest age of a value in a synchronised row, in s: tuned.
MAX_AGE = 0.1
# Unsynchronised rows wait so many seconds of recording to be sorted by time, as topics are delayed: tuned.
REORDER_WINDOW = 1.0
_JOINTS = "sensor_msgs/msg/JointState"
# Fields of other messages, each with its component of a measurement.
_FIELDS: dict[str, dict[str, str]] = {
    "geometry_msgs/msg/WrenchStamped": {
        **{f"wrench/torque/{c}": f"n{c}" for c in "xyz"}, **{f"wrench/force/{c}": f"f{c}" for c in "xyz"}
    },
    "sensor_msgs/msg/Imu": {
        **{f"linear_acceleration/{c}": f"a_{c}" for c in "xyz"},
        **{f"angular_velocity/{c}": f"omega_{c}" for c in "xyz"}, **{f"orientation/{c}": "" for c in "xyzw"},
    },
}  # fmt: skip
# Fields of joint states, each with its quantity.
_JOINT_FIELDS = {"position": "q.", "velocity": "qd.", "effort": "tau:"}


# Key of a number in a message: its field, and in joint states the joint (its index in messages without names).
_Key = tuple[str, str | int]


def read_bag(
    path: Path, unsynchronised: bool
) -> tuple[list[str], list[str], Callable[[Sequence[int]], Iterator[list[float]]]]:
    """(columns, their aliases or "", a function of column numbers that gives the values of these row by row)."""
    with _opened(path) as bag:
        topics: dict[str, list[Any]] = {}
        for x in sorted(bag.connections, key=lambda x: x.topic):
            if x.msgtype in (_JOINTS, *_FIELDS):
                topics.setdefault(x.topic, []).append(x)
        if not topics:
            raise FileError(f"{path} has no topic of the types {', '.join((_JOINTS, *_FIELDS))}")
        count = {topic: sum(x.msgcount for x in connections) for topic, connections in topics.items()}
        main = min(topics, key=lambda topic: (topics[topic][0].msgtype != _JOINTS, -count[topic]))
        columns, place = [(TIME, TIME)], dict[str, dict[_Key, int]]()
        for topic, connections in topics.items():
            names = _names(path, bag, connections) if count[topic] else {}
            place[topic] = {key: len(columns) + k for k, key in enumerate(names)}
            columns += names.values()

    def messages() -> Iterator[tuple[str, float, dict[int, float]]]:
        """(topic, time [s], {column: value}) of each message, in the order of recording."""
        with _opened(path) as bag:
            for x, received, raw in bag.messages([x for x in bag.connections if x.topic in topics]):
                message = bag.deserialize(raw, x.msgtype)
                stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
                values = _values(path, x, message)
                yield x.topic, stamp or received * 1e-9, {place[x.topic][key]: v for key, v in values.items()}

    def synchronised_rows(used: Sequence[int]) -> Iterator[list[float]]:
        row, latest = {0: math.nan}, dict[int, tuple[float, float]]()
        for topic, time, values in messages():
            if topic != main:
                latest |= {j: (time, x) for j, x in values.items()}
                continue
            if time != row[0]:
                if not math.isnan(row[0]):
                    yield [row.get(j, math.nan) for j in used]
                row = {0: time, **{j: x for j, (then, x) in latest.items() if time - then <= MAX_AGE}}
            row |= values
        if not math.isnan(row[0]):
            yield [row.get(j, math.nan) for j in used]

    def unsynchronised_rows(used: Sequence[int]) -> Iterator[list[float]]:
        needed = {topic for topic, columns in place.items() if not set(columns.values()).isdisjoint(used)}
        waiting: dict[float, dict[int, float]] = {}
        times: list[float] = []  # of these, as a heap
        for topic, time, values in messages():
            if topic not in needed:
                continue
            if time not in waiting:
                waiting[time] = {0: time}
                heapq.heappush(times, time)
            waiting[time] |= values
            while times[0] < time - REORDER_WINDOW:
                row = waiting.pop(heapq.heappop(times))
                yield [row.get(j, math.nan) for j in used]
        for time in sorted(times):
            yield [waiting[time].get(j, math.nan) for j in used]

    header, aliases = (list(x) for x in zip(*columns, strict=True))
    return header, aliases, unsynchronised_rows if unsynchronised else synchronised_rows


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    highlevel = importlib.import_module("rosbags.highlevel")
    typesys = importlib.import_module("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)  # for bags that do not say what their messages are
    with highlevel.AnyReader([path], default_typestore=store) as bag:
        yield bag


def _names(path: Path, bag: Any, connections: Sequence[Any]) -> dict[_Key, tuple[str, str]]:
    """{key: (column, alias or "")} of the numbers in a topic's messages; of joint states in all its messages."""
    topic, kind = connections[0].topic, connections[0].msgtype
    if kind != _JOINTS:
        name = topic.lstrip("/")
        return {(field, ""): (f"{topic}/{field}", c and f"{name}: {c}") for field, c in _FIELDS[kind].items()}
    keys: dict[_Key, None] = {}
    for connection, _, raw in bag.messages(connections):
        keys |= dict.fromkeys(_values(path, connection, bag.deserialize(raw, kind)))
    joints = {joint: k for k, joint in enumerate(dict.fromkeys(joint for _, joint in keys))}
    return {
        (field, joint): (f"{topic}/{field}[{k}]", f"{quantity}{joint}" if isinstance(joint, str) else "")
        for field, quantity in _JOINT_FIELDS.items() for joint, k in joints.items() if (field, joint) in keys
    }  # fmt: skip


def _values(path: Path, connection: Any, message: Any) -> dict[_Key, float]:
    """The numbers of a message. Raises FileError for joint states whose fields have different lengths."""
    values: dict[_Key, float] = {}
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
                f"{', '.join(names)}: joints must have different names, and all of them a value, or none"
            )
        values |= {(field, joint): float(value) for joint, value in zip(names or range(len(x)), x, strict=False)}
    return values
