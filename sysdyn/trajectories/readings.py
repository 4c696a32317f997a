"""Readings of a trajectory out of a log."""

from __future__ import annotations

from typing import Any

import numpy as np

from sysdyn.problem import Problem
from sysdyn.trajectories.equations import Readings


def read(problem: Problem, log: Any, **options: Any) -> tuple[np.ndarray, Readings]:
    """(t (N,), readings of all rows)."""
    t = np.asarray(log["t"], dtype=float)
    y, active, known = {}, {}, {}
    for m in (*problem.state_sensors, *problem.custom):
        size = len(m.components(problem.model))
        x = log.get(m.name)
        if x is None:
            x = np.zeros((len(t), size)) if m.has_default else np.full((len(t), size), np.nan)
        x = np.array(x, dtype=float).reshape(len(t), size)
        active[m.name] = np.isfinite(x)
        y[m.name] = np.where(active[m.name], x, 0.0)
        on = log.get(f"active: {m.name}")
        if on is not None:
            active[m.name] &= np.asarray(on, dtype=bool)[:, None]
    for name in problem.known_quantities:
        known[name] = np.zeros((len(t), problem.inputs[name].size))
    for m in problem.raw:
        if m.name in log:
            known[m.quantity][:, m.places(problem.model)] = np.reshape(log[m.name], (len(t), -1))
    return t, Readings(y, active, known)
