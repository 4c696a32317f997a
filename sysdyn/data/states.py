"""Files of states and results, read and written at once; columns as in `sysdyn.data.columns`.

A .npz file holds arrays: q (N, nq), qd (N, nv), tau and qdd (N, nv), fx, a and f (N, nb, 6), y (N, ny); without the
axis N for what is the same in all states. A .csv file has a header of column names and a row a state:

    q:l_knee, qd:l_knee, tau:l_knee, qdd:l_knee     by joint; q:base[0] … q:base[6] where a joint has several variables
    fx:l_foot.nz, a:l_foot.a_x, f:l_foot.nz         by body and component (nx ny nz fx fy fz; alpha_x … a_z)
    w:l_sole.fz                                     by contact or loop joint and component; an array w (N, nw)

q and qd are needed, and the known quantities without a constant value; fx is zero where it is missing. Values of the
unknown quantities are left out, so that a result can be read as the states of another problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.data.columns import OK
from sysdyn.data.sensor_log import Log
from sysdyn.errors import FileError
from sysdyn.files.atomic import write_file
from sysdyn.files.table_writers import WRITERS, write_table
from sysdyn.files.tables import table_suffix
from sysdyn.measurements.predict import predict
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITY
from sysdyn.online.storage import packed
from sysdyn.program.groups import Group

# Most numbers of states in memory, 1 GiB.
MOST_NUMBERS = 2**27

# {measurement: (m,)} of values that are the same in every state.
ConstantValues = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class States:
    """n states: arrays by name, as `Solver` takes them."""

    n: int
    arrays: Mapping[str, Any]


def random_states(problem: Problem, n: int, seed: int = 0, values: ConstantValues | None = None) -> States:
    """n random states: q, q̇ as `Model.random_state`, known values standard normal (forces, torques: ten times that).

    Where sensors or noise make values depend on each other, they are `predict`ed for random q̈ and fx, with noise.
    Constant values stay, and contacts and loop joints hold.
    """
    model, rng = problem.model, np.random.default_rng(seed)
    q, qd, _ = model.random_state(seed=seed, batch=n)
    arrays: dict[str, Any] = {"q": q, "qd": qd}
    if problem.custom:
        qdd, fx = rng.standard_normal((n, model.nv)), 10.0 * rng.standard_normal((n, model.nb, 6))
        held = {m.name for m in problem.constraints}
        further: dict[str, Any] = {x: rng.standard_normal((n, *QUANTITY[x].shape(model))) for x in problem.further}
        y = {name: x for name, x in predict(problem, q, qd, qdd, fx, seed, **further).items() if name not in held}
        known = {name: x for name, x in (values or {}).items() if name in problem.values}
        y |= {name: np.broadcast_to(x, (n, len(x))) for name, x in known.items()}
        arrays["y"] = y
        return States(n, arrays)
    for name, group in list(problem.inputs.items())[2:]:
        force = name in QUANTITY and QUANTITY[name].is_force
        arrays[name] = rng.standard_normal((n, *group.shape)) * (10.0 if force else 1.0)
    return States(n, _with_values(problem, arrays, values))


def _with_values(problem: Problem, arrays: dict[str, Any], values: ConstantValues | None) -> dict[str, Any]:
    """The arrays with values of measurements: of an exact raw one in its quantity, of another in y."""
    if not values:
        return arrays
    lead = np.shape(arrays["q"])[:-1]
    for m in problem.raw:
        if m.name in values:
            group = problem.inputs[m.quantity]
            flat = np.reshape(arrays.get(m.quantity, np.zeros(group.size)), (-1, group.size))
            flat = np.broadcast_to(flat, (math.prod(lead), group.size)).copy()
            flat[:, m.places(problem.model)] = values[m.name]
            arrays[m.quantity] = flat.reshape(*lead, *group.shape)
    others = {m.name: values[m.name] for m in problem.custom if m.name in values}
    return arrays | {"y": others} if others else arrays


# ---- reading ------------------------------------------------------------------------------------------------------


def read_states(source: Any, problem: Problem, values: ConstantValues | None = None, **options: Any) -> States:
    """The states in a file or DataFrame. values and options: as of `Log`, which reads them.

    Raises what Log does, and FileError if there are none or so many that they should be streamed.
    """
    chunks, count = [], 0
    log = Log(source, problem, values, timed=False, **options)
    width = sum(problem.inputs.sizes.values())
    for chunk in log:
        chunks.append(chunk)
        count += len(chunk.rows)
        if count * width > MOST_NUMBERS:
            most = MOST_NUMBERS // width
            raise FileError(f"{source} has more than {most:,} states, too many at once: estimate it as a log")
    if not chunks:
        raise FileError(f"{source} has no states")

    def whole(parts: Sequence[Any], width: int) -> np.ndarray:
        return np.vstack([np.broadcast_to(x, (len(c.rows), width)) for x, c in zip(parts, chunks, strict=True)])

    sizes = problem.values.sizes
    # of what is off in a whole file there is no value
    named = {name for c in chunks for name in c.y}
    y = {name: whole([c.y.get(name, 0.0) for c in chunks], sizes[name]) for name in problem.values if name in named}
    arrays: dict[str, Any] = {"q": np.vstack([c.q for c in chunks]), "qd": np.vstack([c.qd for c in chunks])}
    switched = {name for c in chunks for name in c.active}
    if switched:
        arrays["active"] = {name: whole([c.active.get(name, True) for c in chunks], sizes[name]) for name in switched}
    return States(count, _with_values(problem, arrays, y))


# ---- writing ------------------------------------------------------------------------------------------------------


def write_states(
    path: str | Path, groups: Mapping[str, Group], arrays: Mapping[str, np.ndarray], ok: np.ndarray | None = None
) -> Path:
    """Write states and results, arrays (N, …) of groups by name, in one step: the file is whole or not there.

    ok (N,): True for states that were solved. Raises FileError if it cannot be written.
    """
    if table_suffix(path, "output file", tuple(WRITERS)) == ".npz":  # with the axes of the arrays
        return write_file(path, packed({**arrays, **({} if ok is None else {OK: ok})}))
    names = {name: list(groups[name].labels) for name in arrays}
    parts = {name: np.reshape(x, (len(x), -1)) for name, x in arrays.items()}
    if ok is not None:
        names[OK], parts[OK] = [OK], np.asarray(ok, dtype=float)[:, None]
    writer = write_table(path, names)
    writer.write(parts)
    writer.close()
    return Path(path)
