"""Motions from files (logs, estimates, results) as arguments of `show`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sysdyn.data.columns import LogColumns
from sysdyn.data.sensor_log import files_of
from sysdyn.errors import InvalidInput, LogWarning, few
from sysdyn.files.tables import TIME, read_table
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.known_quantities import ExternalWrench, JointTorque
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model


def read_motion(model: Model, sources: Sequence[str | Path]) -> dict[str, np.ndarray]:
    """Read arguments q, tau, fx and t for `show` from files with columns as in `sysdyn.data.columns`.

    Several files are merged at their common times t. States with missing values are dropped. Raises FileError, and
    InvalidInput if no file has q.
    """
    motion: dict[str, np.ndarray] = {}
    for source in sources:
        new = _read(model, source)
        if TIME in motion and TIME in new:
            _, before, after = np.intersect1d(motion[TIME], new[TIME], return_indices=True)
            motion, new = {k: x[before] for k, x in motion.items()}, {k: x[after] for k, x in new.items()}
        n, earlier = (max(map(len, x.values()), default=0) for x in (new, motion))
        if motion and new and n != earlier:
            raise InvalidInput(
                f"{source} has {n} states, the earlier files {earlier}, and no common column t to align them"
            )
        motion |= new
    names = ", ".join(map(str, sources))
    if "q" not in motion:
        raise InvalidInput(f"{names} has no positions q:JOINT: give a file that has them, too, --log LOG --log FILE")
    complete = np.all([np.isfinite(x).all(axis=1) for x in motion.values()], axis=0)
    if not complete.any():
        raise InvalidInput(f"{names} has no state without missing values")
    shapes = {TIME: (-1,), "fx": (-1, model.nb, 6)}
    return {name: x[complete].reshape(shapes.get(name, (-1, x.shape[1]))) for name, x in motion.items()}


def _read(model: Model, source: str | Path) -> dict[str, np.ndarray]:
    """Read {"t", "q", "tau", "fx": (N, columns)} from a file, or from all files that match a pattern."""
    problem = Problem(model, [JointTorque("all", name="tau"), ExternalWrench("all", name="fx")])
    columns = LogColumns(problem, ("tau", "fx"), timed=None, free=("q", "qd"))
    parts: list[dict[str, np.ndarray]] = []
    for file in files_of(source):
        table = read_table(file, columns.of_array)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LogWarning)  # ignored columns
            used = columns.matched(table, str(file))
        x = np.vstack([np.empty((0, len(used))), *table.chunks({j: c.kinds for j, c in used.items()})])
        part = {}
        for name, group in ((TIME, TIME), ("q", "q"), ("tau", value_group("tau")), ("fx", value_group("fx"))):
            every = [c for c in columns.columns if c.group == group]
            at = {c.index: k for k, c in enumerate(used.values()) if c.group == group}
            missing = [c.name for c in every if c.index not in at]
            if at and missing and name != "fx":  # missing wrenches are zero
                raise InvalidInput(f"{file} lacks the columns {few(missing, 12)}")
            if at:
                part[name] = np.zeros((len(x), len(every)))
                part[name][:, list(at)] = x[:, list(at.values())]
        parts.append(part)
    return {name: np.vstack([x[name] for x in parts]) for name in sorted(set.intersection(*map(set, parts)))}
