"""States read from and results written to .npz and .csv files.

A .npz file holds arrays: q (N, nq), qd (N, nv), tau and qdd (N, nv), fx, a and f (N, nb, 6), y (N, ny); without the
axis N for one state. A .csv file has a header of column names and a row a state:

    q:l_knee, qd:l_knee, tau:l_knee, qdd:l_knee     by joint; q:base[0] … q:base[6] where a joint has several variables
    fx:l_foot.nz, a:l_foot.a_x, f:l_foot.nz         by body and component (nx ny nz fx fy fz; alpha_x … a_z)
    w:l_sole.fz                                     by contact or loop joint and component; an array w (N, nw)

q and qd are needed, and what the problem knows and has no constant value; fx is zero where it is missing. Values of
what the problem does not know are left aside, so that a result can be read as the states of another problem.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.errors import FileError, InvalidInput, UnknownName
from sysdyn.files.atomic import write_file
from sysdyn.measurements.measurement import Constraint
from sysdyn.measurements.variables import COMPONENTS, QUANTITIES
from sysdyn.model import Model
from sysdyn.online.predict import predict
from sysdyn.problem import Problem

SUFFIXES = (".npz", ".csv")
OK = "ok"  # column and array that says whether a state was solved
_WRENCHES = ("fx", "a", "f")

Values = Mapping[str, np.ndarray]  # {measurement: (m,)} of those that have the same value in every state


@dataclass(frozen=True)
class States:
    """n states: arrays by name, as `Solver` takes them. unused: what the file had but the problem does not know."""

    n: int
    arrays: Mapping[str, np.ndarray]
    unused: tuple[str, ...] = ()


def column_names(model: Model, quantity: str, constraints: Sequence[Constraint] = ()) -> list[str]:
    """CSV columns of a quantity (q, qd, tau, qdd, fx, a, f; w of constraints) in the order of its flat array."""
    if quantity == "w":
        return [f"w:{m.name}.{c}" for m in constraints for c in m.wrench(model)]
    if quantity in _WRENCHES:
        return [f"{quantity}:{body}.{c}" for body in model.body_names for c in COMPONENTS[quantity]]
    if quantity != "q":
        return [f"{quantity}:{name}" for name in model.dof_names]
    names = []
    for name, joint in zip(model.joint_names, model.joints, strict=True):
        names += [f"q:{name}"] if joint.nq == 1 else [f"q:{name}[{k}]" for k in range(joint.nq)]
    return names


def random_states(problem: Problem, n: int, seed: int = 0, values: Values | None = None) -> States:
    """n random states: q, q̇ as `Model.random_state`, known values standard normal (forces, torques: ten times that).

    Where sensors or noise make values depend on each other, they are `predict`ed for random q̈ and fx, with noise. What
    has a constant value keeps it, and contacts and loop joints hold.
    """
    model, rng = problem.model, np.random.default_rng(seed)
    q, qd, _ = model.random_state(seed=seed, batch=n)
    arrays: dict[str, Any] = {"q": q, "qd": qd}
    if problem.custom:
        qdd, fx = rng.standard_normal((n, model.nv)), 10.0 * rng.standard_normal((n, model.nb, 6))
        held = {m.name for m in problem.constraints}
        y = {name: x for name, x in predict(problem, q, qd, qdd, fx, seed).items() if name not in held}
        y |= {name: np.broadcast_to(x, (n, len(x))) for name, x in (values or {}).items()}
        return States(n, {**arrays, "y": y})
    for name, size in problem.input_sizes[2:]:
        value = rng.standard_normal((n, size)) * (10.0 if name in ("tau", "fx", "f") else 1.0)
        arrays[name] = value.reshape(n, -1, 6) if name in _WRENCHES else value
    return States(n, _with_values(problem, arrays, values))


def _with_values(problem: Problem, arrays: dict[str, Any], values: Values | None) -> dict[str, Any]:
    """The arrays with what has a constant value: a raw one in its quantity, another in y."""
    if not values or isinstance(arrays.get("y"), np.ndarray):  # a packed y has all of them
        return arrays
    lead = np.shape(arrays["q"])[:-1]
    for m in problem.raw:
        if m.name in values:
            sizes = dict(problem.input_sizes)
            flat = np.reshape(arrays.get(m.quantity, np.zeros(sizes[m.quantity])), (-1, sizes[m.quantity]))
            flat = np.broadcast_to(flat, (math.prod(lead), sizes[m.quantity])).copy()
            flat[:, [_position(problem.model, m.quantity, *pair) for pair in m.pairs(problem.model)]] = values[m.name]
            arrays[m.quantity] = flat.reshape(*lead, -1, 6) if m.quantity in _WRENCHES else flat.reshape(*lead, -1)
    constant = {m.name: values[m.name] for m in problem.custom if m.name in values}
    return {**arrays, "y": constant} if constant else arrays


def _position(model: Model, quantity: str, body: int, component: int) -> int:
    """Place of a scalar in the flat array of its quantity."""
    return 6 * body + component if quantity in _WRENCHES else model.v_slice(body).start + component


def check_suffix(path: str | Path, what: str) -> str:
    """The suffix of a file that is to be read or written. Raises InvalidInput."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(f"{what} {str(path)!r} must end in .npz or .csv, not in {suffix or 'nothing'!r}")
    return suffix


# ---- reading ------------------------------------------------------------------------------------------------------


def read_states(path: str | Path, problem: Problem, values: Values | None = None) -> States:
    """The states in a file. values: of what needs no column, being the same in every state.

    Raises FileError (unreadable, malformed; with line and column) and UnknownName.
    """
    suffix = check_suffix(path, "states file")
    try:
        payload = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    found = (_from_npz if suffix == ".npz" else _from_csv)(str(path), payload, problem, values or {})
    return replace(found, arrays=_with_values(problem, dict(found.arrays), values))


def _from_npz(path: str, payload: bytes, problem: Problem, values: Values) -> States:
    try:
        archive = np.load(io.BytesIO(payload), allow_pickle=False)
        found = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile and numpy each raise their own kinds
        raise FileError(f"{path} is not a readable .npz file: {error}") from error
    valid = ("q", "qd", *QUANTITIES, "w", "y")
    for name in found:
        if name not in (*valid, OK):
            raise UnknownName(f"array in {path}:", name, valid)
    needed = ["q", "qd"]
    varying = {m.quantity for m in problem.raw if m.name not in values}
    needed += [x for x in problem.known_quantities if x != "fx" and x in varying and "y" not in found]
    missing = [name for name in needed if name not in found]
    if missing:
        raise FileError(
            f"{path} has no array {', '.join(missing)}; it has {', '.join(found) or 'none'}. "
            f"This problem needs {', '.join(needed)}"
        )
    known = ("q", "qd", *problem.known_quantities, "y")
    if "y" in found:
        known = ("q", "qd", "y")
    arrays = {name: x for name, x in found.items() if name in known}
    for name, x in arrays.items():
        if x.dtype.kind not in "fiu":
            raise FileError(f"{path}: array {name} has type {x.dtype}, but real numbers are needed")
        if x.ndim == 0:
            raise FileError(f"{path}: array {name} is a single number; its last axis must be the variables")
        if not np.isfinite(x).all():
            where = tuple(int(k) for k in np.argwhere(~np.isfinite(x))[0])
            raise FileError(f"{path}: {name}{list(where)} is {x[where]}; every value must be finite")
    q = arrays["q"]
    if q.ndim > 2:
        raise FileError(f"{path}: q has shape {q.shape}, but (states, {problem.model.nq}) is needed")
    return States(len(q) if q.ndim == 2 else 1, arrays, tuple(x for x in found if x not in (*arrays, OK)))


def _from_csv(path: str, payload: bytes, problem: Problem, values: Values) -> States:
    try:
        text = payload.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
    model, known = problem.model, problem.known_quantities
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(x.strip() for x in row)]
    except csv.Error as error:
        raise FileError(f"{path}, line {reader.line_num}: {error}") from error
    if not rows:
        raise FileError(f"{path} is empty: its first line must name the columns, such as {column_names(model, 'q')[0]}")
    header = [name.strip() for name in rows[0][1]]
    place = {
        name: (quantity, k)
        for quantity in ("q", "qd", *QUANTITIES)
        for k, name in enumerate(column_names(model, quantity))
    }
    place |= {name.strip(): ("w", 0) for name in rows[0][1] if name.strip().startswith("w:")}
    seen = set()
    for number, name in enumerate(header, start=1):
        if name not in place and name != OK:
            raise UnknownName(f"column in {path}, line {rows[0][0]}, column {number}:", name, place)
        if name in seen:
            raise FileError(f"{path}, line {rows[0][0]}: column {name!r} occurs twice")
        seen.add(name)
    missing = [name for name in _needed(problem, values) if name not in seen]
    if missing:
        shown = ", ".join(missing[:6]) + (f", … ({len(missing)} in all)" if len(missing) > 6 else "")
        raise FileError(f"{path} lacks columns that this problem needs: {shown}")
    if len(rows) == 1:
        raise FileError(f"{path} names its columns but has no states below them")
    used = [k for k, name in enumerate(header) if name != OK and place[name][0] in ("q", "qd", *known)]
    numbers = np.empty((len(rows) - 1, len(used)))
    for i, (line, row) in enumerate(rows[1:]):
        if len(row) != len(header):
            raise FileError(f"{path}, line {line} has {len(row)} values for {len(header)} columns")
        for j, k in enumerate(used):
            numbers[i, j] = _number(row[k], f"{path}, line {line}, column {header[k]!r}")
    sizes = dict(problem.input_sizes)
    arrays: dict[str, np.ndarray] = {
        name: np.zeros((len(numbers), size)) for name, size in sizes.items() if name in ("q", "qd", *known)
    }
    for j, k in enumerate(used):
        quantity, position = place[header[k]]
        arrays[quantity][:, position] = numbers[:, j]
    arrays = {name: x.reshape(len(x), -1, 6) if name in _WRENCHES else x for name, x in arrays.items()}
    unused = dict.fromkeys(place[x][0] for x in header if x != OK and place[x][0] not in ("q", "qd", *known))
    return States(len(numbers), arrays, tuple(unused))


def _needed(problem: Problem, values: Values) -> list[str]:
    """Columns without which the problem cannot be solved."""
    model = problem.model
    names = column_names(model, "q") + column_names(model, "qd")
    for m in problem.raw:
        if m.quantity != "fx" and m.name not in values:
            columns = column_names(model, m.quantity)
            names += [columns[_position(model, m.quantity, *pair)] for pair in m.pairs(model)]
    return names


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise FileError(f"{where}: {text!r} is not a number") from None
    if not math.isfinite(value):
        raise FileError(f"{where}: {text.strip()} is not finite")
    return value


# ---- writing ------------------------------------------------------------------------------------------------------


def write_states(
    path: str | Path, model: Model, arrays: Mapping[str, np.ndarray], ok: np.ndarray | None = None,
    constraints: Sequence[Constraint] = (),
) -> Path:  # fmt: skip
    """Write states and results, arrays (N, …) by name, in one step: the file is whole or not there.

    ok (N,): whether each state was solved. constraints: those of w. Raises FileError where it cannot be written.
    """
    suffix = check_suffix(path, "output file")
    if suffix == ".npz":
        buffer = io.BytesIO()
        everything: dict[str, Any] = {**arrays, **({} if ok is None else {OK: ok})}
        np.savez(buffer, **everything)
        return write_file(path, buffer.getvalue())
    header: list[str] = []
    columns = []
    for name, x in arrays.items():
        header += column_names(model, name, constraints)
        columns.append(np.reshape(x, (len(x), -1)))
    if ok is not None:
        header.append(OK)
        columns.append(np.asarray(ok, dtype=float)[:, None])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([repr(x) for x in row] for row in np.hstack(columns).tolist())
    return write_file(path, text.getvalue().encode())
