"""ROS bags as tables: joint states, wrenches and inertial units of ROS 2 (and ROS 1), brought together in time.

The topic of joint states (if there are several, the one with the most messages) sets the rows: one row for each of its
messages, at the time in the message's header; successive messages with the same time share a row. Every other topic
adds its latest values, or NaN if they are more than `FRESH` seconds older than the row. If topics are read apart, every
message has a row at its own time, with NaN in the columns of other topics, so that no value is repeated. A topic has
the joints of all its messages, in order of appearance, with NaN for joints that a message lacks. Columns are named
after topic and field, such as "/joint_states/position[0]", and have a second name from the contents of the message:

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

# Seconds after a message during which it counts for states (chosen).
FRESH = 0.1
# Seconds of recording after which messages apart are put in order of their times (chosen): topics come with delays.
DELAY = 1.0
# Name of the column of time: of every bag, and of all files that are written.
TIME = "t"
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
_OF_JOINTS = {"position": "q.", "velocity": "qd.", "effort": "tau:"}


# Key of a number in a message: its field, and in joint states the joint (its index in messages without names).
_Key = tuple[str, str | int]


def read_bag(path: Path, apart: bool) -> tuple[list[str], list[str], Callable[[Sequence[int]], Iterator[list[float]]]]:
    """(columns, their second names or "", a function of numbers of columns that gives their values row by row).

    apart: every message in the row of its own time alone.
    """
    with _opened(path) as bag:
        supported = [x for x in bag.connections if x.msgtype in (_JOINTS, *_FIELDS)]
        if not supported:
            raise FileError(f"{path} has no topic of the types {', '.join((_JOINTS, *_FIELDS))}")
        topics: dict[str, list[Any]] = {}
        for x in sorted(supported, key=lambda x: x.topic):
            topics.setdefault(x.topic, []).append(x)
        busy = {topic: sum(x.msgcount for x in found) for topic, found in topics.items()}
        main = min(topics, key=lambda topic: (topics[topic][0].msgtype != _JOINTS, -busy[topic]))
        columns, place = [(TIME, TIME)], dict[str, dict[_Key, int]]()
        for topic, found in topics.items():
            names = _names(path, bag, found) if busy[topic] else {}
            place[topic] = dict(zip(names, range(len(columns), len(columns) + len(names)), strict=True))
            columns += names.values()

    def messages() -> Iterator[tuple[str, float, dict[int, float]]]:
        """(topic, time [s], {column: number}) of each message, in the order of recording."""
        with _opened(path) as bag:
            for x, received, raw in bag.messages([x for x in bag.connections if x.topic in topics]):
                message = bag.deserialize(raw, x.msgtype)
                stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
                numbers, own = _numbers(path, x, message), place[x.topic]
                yield x.topic, stamp or received * 1e-9, {own[key]: value for key, value in numbers.items()}

    def empty(time: float) -> list[float]:
        return [time, *[math.nan] * (len(columns) - 1)]

    def joined(used: Sequence[int]) -> Iterator[list[float]]:
        row, latest = empty(math.nan), dict[int, tuple[float, float]]()
        for topic, time, numbers in messages():
            if topic != main:
                latest |= {j: (time, x) for j, x in numbers.items()}
                continue
            if time != row[0]:
                if not math.isnan(row[0]):
                    yield [row[j] for j in used]
                row = empty(time)
                for j, (before, x) in latest.items():
                    row[j] = x if time - before <= FRESH else math.nan
            for j, x in numbers.items():
                row[j] = x
        if not math.isnan(row[0]):
            yield [row[j] for j in used]

    def by_time(used: Sequence[int]) -> Iterator[list[float]]:
        wanted = {topic for topic, own in place.items() if set(own.values()) & set(used)}
        waiting: dict[float, list[float]] = {}
        order: list[float] = []
        for topic, time, numbers in messages():
            if topic not in wanted:
                continue
            if time not in waiting:
                waiting[time] = empty(time)
                heapq.heappush(order, time)
            for j, x in numbers.items():
                waiting[time][j] = x
            while order[0] < time - DELAY:
                row = waiting.pop(heapq.heappop(order))
                yield [row[j] for j in used]
        while order:
            row = waiting.pop(heapq.heappop(order))
            yield [row[j] for j in used]

    return [name for name, _ in columns], [name for _, name in columns], by_time if apart else joined


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    highlevel = importlib.import_module("rosbags.highlevel")
    typesys = importlib.import_module("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)  # for bags that do not say what their messages are
    with highlevel.AnyReader([path], default_typestore=store) as bag:
        yield bag


def _names(path: Path, bag: Any, connections: Sequence[Any]) -> dict[_Key, tuple[str, str]]:
    """{key: (column, second name or "")} of the numbers in a topic's messages; joint states: in all its messages."""
    topic, kind = connections[0].topic, connections[0].msgtype
    if kind != _JOINTS:
        name = topic.lstrip("/")
        return {(field, ""): (f"{topic}/{field}", c and f"{name}: {c}") for field, c in _FIELDS[kind].items()}
    found: dict[_Key, None] = {}
    for connection, _, raw in bag.messages(connections):
        found |= dict.fromkeys(_numbers(path, connection, bag.deserialize(raw, kind)))
    joints = {joint: k for k, joint in enumerate(dict.fromkeys(joint for _, joint in found))}
    keys = [(field, joint) for field in _OF_JOINTS for joint in joints if (field, joint) in found]
    return {
        (field, joint): (f"{topic}/{field}[{joints[joint]}]", f"{_OF_JOINTS[field]}{joint}" * isinstance(joint, str))
        for field, joint in keys
    }


def _numbers(path: Path, connection: Any, message: Any) -> dict[_Key, float]:
    """The numbers of a message. Raises FileError for joint states whose fields have different lengths."""
    if connection.msgtype == _JOINTS:
        found: dict[_Key, float] = {}
        for field in _OF_JOINTS:
            x, names = getattr(message, field), message.name
            if names and (len(x) not in (0, len(names)) or len(set(names)) < len(names)):
                raise FileError(
                    f"{path}: a message of {connection.topic} has {len(x)} values of {field} for the joints "
                    f"{', '.join(names)}: joints must have different names, and all of them a value, or none"
                )
            found |= {(field, joint): float(value) for joint, value in zip(names or range(len(x)), x, strict=False)}
        return found
    values: dict[_Key, float] = {}
    for field in _FIELDS[connection.msgtype]:
        x = message
        for part in field.split("/"):
            x = getattr(x, part)
        values[field, ""] = float(x)
    return values
