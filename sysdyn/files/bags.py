"""ROS bags as tables: joint states, wrenches and inertial units of ROS 2 (and ROS 1), brought together in time.

A row is a message of the topic with the joints (of several the busiest), at the time in its header. Of every other
topic it has the latest message, if that is no more than `FRESH` seconds older, else NaN. Apart, every message is in the
row of its own time, beside NaN, so that a value measured once is there once. Columns are called by topic
and field, as "/joint_states/position[0]", and have a second name by what the message says of itself:

    sensor_msgs/JointState          q.NAME, qd.NAME, tau:NAME       by the names in the message
    geometry_msgs/WrenchStamped     TOPIC: nx … fz                  by the topic without its first slash
    sensor_msgs/Imu                 TOPIC: a_x … , omega_x …        likewise; the attitude has none
"""

from __future__ import annotations

import heapq
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Topic:
    """A topic: (column, second name or "") of each of its numbers, and the names of its joints."""

    columns: list[tuple[str, str]]
    joints: tuple[str, ...] = ()


def read_bag(path: Path, apart: bool) -> tuple[list[str], list[str], Callable[[Sequence[int]], Iterator[list[float]]]]:
    """(columns, their second names or "", a function of numbers of columns that gives their values row by row).

    apart: every message in the row of its own time alone.
    """
    with _opened(path) as bag:
        supported = [x for x in bag.connections if x.msgtype in (_JOINTS, *_FIELDS)]
        if not supported:
            raise FileError(f"{path} has no topic of the types {', '.join((_JOINTS, *_FIELDS))}")
        main = min(supported, key=lambda x: (x.msgtype != _JOINTS, -x.msgcount, x.topic)).topic
        topics: dict[str, _Topic] = {}
        for connection in sorted(supported, key=lambda x: x.topic):
            first = next(bag.messages([connection]), None)
            if first is not None:
                topics[connection.topic] = _topic(connection, bag.deserialize(first[2], connection.msgtype))
    columns = [(TIME, TIME), *(pair for x in topics.values() for pair in x.columns)]
    place, at = {}, 1
    for name, x in topics.items():
        place[name] = slice(at, at + len(x.columns))
        at += len(x.columns)

    def messages() -> Iterator[tuple[str, float, list[float]]]:
        """(topic, time [s], numbers) of each message, in the order in which they were recorded."""
        with _opened(path) as bag:
            for connection, received, raw in bag.messages([x for x in bag.connections if x.topic in topics]):
                name, message = connection.topic, bag.deserialize(raw, connection.msgtype)
                stamp = message.header.stamp.sec + message.header.stamp.nanosec * 1e-9
                yield name, stamp or received * 1e-9, _numbers(path, name, topics[name], message)

    def joined(used: Sequence[int]) -> Iterator[list[float]]:
        row = [math.nan] * len(columns)
        heard = dict.fromkeys(topics, -math.inf)
        for name, time, numbers in messages():
            heard[name], row[place[name]] = time, numbers
            if name == main:
                row[0] = heard[main]
                for other, before in heard.items():
                    if heard[main] - before > FRESH:
                        row[place[other]] = [math.nan] * len(topics[other].columns)
                yield [row[j] for j in used]

    def by_time(used: Sequence[int]) -> Iterator[list[float]]:
        wanted = {name for name, x in place.items() if any(x.start <= j < x.stop for j in used)}
        waiting: dict[float, list[float]] = {}
        order: list[float] = []
        for name, time, numbers in messages():
            if name not in wanted:
                continue
            if time not in waiting:
                waiting[time] = [math.nan] * len(columns)
                waiting[time][0] = time
                heapq.heappush(order, time)
            waiting[time][place[name]] = numbers
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


def _topic(connection: Any, message: Any) -> _Topic:
    """A topic by its first message."""
    topic = connection.topic
    if connection.msgtype == _JOINTS:
        columns = []
        for field, quantity in _OF_JOINTS.items():
            for k in range(len(getattr(message, field))):
                joint = f"{quantity}{message.name[k]}" if k < len(message.name) else ""
                columns.append((f"{topic}/{field}[{k}]", joint))
        return _Topic(columns, tuple(message.name))
    fields = _FIELDS[connection.msgtype]
    return _Topic([(f"{topic}/{field}", c and f"{topic.lstrip('/')}: {c}") for field, c in fields.items()])


def _numbers(path: Path, name: str, topic: _Topic, message: Any) -> list[float]:
    """The numbers of a message in the order of the topic's columns."""
    if hasattr(message, "position"):
        found = [float(x) for field in _OF_JOINTS for x in getattr(message, field)]
        if len(found) != len(topic.columns) or tuple(message.name) != topic.joints:
            raise FileError(
                f"{path}: the messages of {name} are of different joints: {', '.join(message.name)} after "
                f"{', '.join(topic.joints)}; record those of each set of joints as a topic"
            )
        return found
    values = []
    for column, _ in topic.columns:
        x = message
        for part in column.removeprefix(f"{name}/").split("/"):
            x = getattr(x, part)
        values.append(float(x))
    return values
