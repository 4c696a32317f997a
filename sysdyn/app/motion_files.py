"""Motions out of files: logs, their estimates and results of states, prepared to be shown."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sysdyn.data.log_columns import TIME, LogColumns
from sysdyn.data.sensor_log import files_of
from sysdyn.errors import InvalidInput, LogWarning, few
from sysdyn.files.tables import read_table
from sysdyn.measurements.groups import value_group
from sysdyn.measurements.raw import ExternalWrench, JointTorque
from sysdyn.model import Model
from sysdyn.problem import Problem


def read_motion(model: Model, sources: Sequence[str | Path]) -> dict[str, np.ndarray]:
    """Arguments q, tau, fx and t of `show` out of the files of a log and of its estimates; see `log_columns`.

    Files have q, tau, fx or some of these. States of several are those with the same t. States with missing values are
    left out. Raises FileError, and InvalidInput if no file has q.
    """
    found: dict[str, np.ndarray] = {}
    for source in sources:
        new = _read(model, source)
        if TIME in found and TIME in new:
            _, here, there = np.intersect1d(found[TIME], new[TIME], return_indices=True)
            found, new = {k: x[here] for k, x in found.items()}, {k: x[there] for k, x in new.items()}
        lengths = {len(x) for x in (*found.values(), *new.values())}
        if len(lengths) > 1:
            raise InvalidInput(f"{source} has as many states as no file before it, and no time t in common with these")
        found |= new
    shown = ", ".join(map(str, sources))
    if "q" not in found:
        raise InvalidInput(f"{shown} has no positions q:JOINT: give a file that has them, too, --log LOG --log FILE")
    whole = np.all([np.isfinite(x).all(axis=1) for x in found.values()], axis=0)
    if not whole.any():
        raise InvalidInput(f"{shown} has no state without missing values")
    arrays = {name: x[whole] for name, x in found.items()}
    if "fx" in arrays:
        arrays["fx"] = arrays["fx"].reshape(-1, model.nb, 6)
    if TIME in arrays:
        arrays[TIME] = arrays[TIME][:, 0]
    return arrays


def _read(model: Model, source: str | Path) -> dict[str, np.ndarray]:
    """{t, q, tau, fx: (N, columns)} of a file, or of all files that a pattern names."""
    stated = Problem(model, [JointTorque("all", name="tau"), ExternalWrench("all", name="fx")])
    columns = LogColumns(stated, ("tau", "fx"), timed=None, free=("q", "qd"))
    parts: list[dict[str, np.ndarray]] = []
    for file in files_of(source):
        table = read_table(file, columns.of_array)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LogWarning)  # columns that are not shown may be there
            used, numbers = columns.matched(table, str(file))
        x = np.vstack([np.empty((0, len(used))), *table.chunks(columns.kinds(used, numbers))])
        part = {}
        for name, group in ((TIME, TIME), ("q", "q"), ("tau", value_group("tau")), ("fx", value_group("fx"))):
            at = {columns.group[n][1]: k for k, n in enumerate(numbers) if columns.group[n][0] == group}
            all_of_it = [n for n, (g, _) in enumerate(columns.group) if g == group]
            lacking = [columns.names[n] for n in all_of_it if columns.group[n][1] not in at]
            if at and lacking and name != "fx":  # wrenches that are not named are zero
                raise InvalidInput(f"{file} lacks the columns {few(lacking, 12)}")
            if at:
                part[name] = np.zeros((len(x), len(all_of_it)))
                part[name][:, list(at)] = x[:, list(at.values())]
        parts.append(part)
    shared = set.intersection(*(set(x) for x in parts))
    return {name: np.vstack([x[name] for x in parts]) for name in sorted(shared)}
