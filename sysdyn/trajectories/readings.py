"""Readings of a trajectory out of a log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sysdyn.data.sensor_log import Chunk, Log
from sysdyn.errors import InvalidInput
from sysdyn.problem import Problem
from sysdyn.trajectories.equations import Readings


def read(problem: Problem, log: Any, **options: Any) -> Readings:
    """The readings of a whole log: a `Log` of unknown states, or what one is made of, with its options.

    Raises InvalidInput if it has fewer than two rows.
    """
    log = log if isinstance(log, Log) else Log(log, problem, states="unknown", **options)
    found = readings(problem, log)
    if len(found.t) < 2:
        raise InvalidInput(f"the log has {len(found.t)} rows: a trajectory needs two or more")
    return found


def readings(problem: Problem, chunks: Iterable[Chunk]) -> Readings:
    """The readings of successive chunks of a log.

    A stance without a condition and without a column stands until its motion says otherwise; any other measurement
    with noise that the log does not have is off, and a prior has its mean.
    """
    model = problem.model
    parts: list[Readings] = []
    for chunk in chunks:
        n, y, active, known = len(chunk.t), {}, {}, {}
        for m in (*problem.state_sensors, *problem.custom):
            size = len(m.components(model))
            default = np.zeros((n, size))
            y[m.name] = np.broadcast_to(chunk.y.get(m.name, default), (n, size))
            on = chunk.active.get(m.name, m.name in chunk.y or m.has_default)
            active[m.name] = np.array(np.broadcast_to(on if np.ndim(on) != 1 else np.asarray(on)[:, None], (n, size)))
        for name in problem.known_quantities:
            known[name] = np.zeros((n, problem.inputs[name].size))
        for m in problem.raw:
            if m.name in chunk.y:
                known[m.quantity][:, m.places(model)] = chunk.y[m.name]
        parts.append(Readings(chunk.t, y, active, known))
    if not parts:
        return Readings(np.zeros(0), {}, {}, {})
    return Readings(np.concatenate([x.t for x in parts]), *(
        {name: np.concatenate([getattr(x, group)[name] for x in parts]) for name in getattr(parts[0], group)}
        for group in ("y", "active", "known")
    ))  # fmt: skip
