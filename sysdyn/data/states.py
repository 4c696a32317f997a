"""States read from and results written to .npz and .csv files.

A .npz file holds arrays: q (N, nq), qd (N, nv), tau and qdd (N, nv), fx, a and f (N, nb, 6), y (N, ny); without the
axis N for one state. A .csv file has a header of column names and a row a state:

    q:l_knee, qd:l_knee, tau:l_knee, qdd:l_knee     by joint; q:base[0] … q:base[6] where a joint has several variables
    fx:l_foot.nz, a:l_foot.a_x, f:l_foot.nz         by body and component (nx ny nz fx fy fz; alpha_x … a_z)
    w:l_sole.fz                                     by contact or loop joint and component; an array w (N, nw)

q and qd are needed, and the known quantities without a constant value; fx is zero where it is missing. Values of the
unknown quantities are left aside, so that a result can be read as the states of another problem.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.errors import FileError, InvalidInput, UnknownName
from sysdyn.files.atomic import write_file
from sysdyn.measurements.measurement import Constraint, Measurement
from sysdyn.measurements.variables import COMPONENTS, QUANTITIES, WRENCHES, flat_place
from sysdyn.model import Model
from sysdyn.online.predict import predict
from sysdyn.problem import Problem

# States are stored in files of these kinds.
SUFFIXES = (".npz", ".csv")
# The column and the array of this name say whether a state was solved.
OK = "ok"
# Every file has these two, the state itself.
_STATE = ("q", "qd")

# {measurement: (m,)} gives the measurements whose value is the same in every state.
Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class States:
    """n states: arrays by name, as `Solver` takes them. unused: quantities of the file, unknown in the problem."""

    n: int
    arrays: Mapping[str, np.ndarray]
    unused: tuple[str, ...] = ()


def column_names(model: Model, quantity: str, constraints: Sequence[Constraint] = ()) -> list[str]:
    """CSV columns of a quantity (q, qd, tau, qdd, fx, a, f; w of constraints) in the order of its flat array."""
    if quantity == "w":
        return [f"w:{m.name}.{c}" for m in constraints for c in m.wrench(model)]
    if quantity in WRENCHES:
        return [f"{quantity}:{body}.{c}" for body in model.body_names for c in COMPONENTS[quantity]]
    if quantity != "q":
        return [f"{quantity}:{name}" for name in model.dof_names]
    names = []
    for name, joint in zip(model.joint_names, model.joints, strict=True):
        names += [f"q:{name}"] if joint.nq == 1 else [f"q:{name}[{k}]" for k in range(joint.nq)]
    return names


def measured_columns(measured: Iterable[Measurement], model: Model) -> dict[str, list[str]]:
    """{name: columns} of measurements, such as "imu: a_x", as in `problem.y_names`."""
    return {m.name: [f"{m.name}: {c}" for c in m.components(model)] for m in measured}


def random_states(problem: Problem, n: int, seed: int = 0, values: Values | None = None) -> States:
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
        y = {name: x for name, x in predict(problem, q, qd, qdd, fx, seed).items() if name not in held}
        y |= {name: np.broadcast_to(x, (n, len(x))) for name, x in (values or {}).items()}
        arrays["y"] = y
        return States(n, arrays)
    for name, size in problem.input_sizes[2:]:
        value = rng.standard_normal((n, size)) * (10.0 if name in ("tau", "fx", "f") else 1.0)
        arrays[name] = value.reshape(n, -1, 6) if name in WRENCHES else value
    return States(n, _with_values(problem, arrays, values))


def _with_values(problem: Problem, arrays: dict[str, Any], values: Values | None) -> dict[str, Any]:
    """The arrays with the constant values: of a raw measurement in its quantity, of another in y."""
    if not values or isinstance(arrays.get("y"), np.ndarray):  # a packed y has all of them
        return arrays
    lead = np.shape(arrays["q"])[:-1]
    for m in problem.raw:
        if m.name in values:
            size = dict(problem.input_sizes)[m.quantity]
            flat = np.reshape(arrays.get(m.quantity, np.zeros(size)), (-1, size))
            flat = np.broadcast_to(flat, (math.prod(lead), size)).copy()
            flat[:, [flat_place(problem.model, m.quantity, *pair) for pair in m.pairs(problem.model)]] = values[m.name]
            arrays[m.quantity] = flat.reshape(*lead, -1, 6) if m.quantity in WRENCHES else flat.reshape(*lead, -1)
    constant = {m.name: values[m.name] for m in problem.custom if m.name in values}
    return arrays | {"y": constant} if constant else arrays


def check_suffix(path: str | Path, what: str) -> str:
    """The suffix of a file that is to be read or written. Raises InvalidInput."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(f"{what} {str(path)!r} must end in .npz or .csv, not in {suffix or 'nothing'!r}")
    return suffix


# ---- reading ------------------------------------------------------------------------------------------------------


def read_states(path: str | Path, problem: Problem, values: Values | None = None) -> States:
    """The states in a file. values: those that are the same in every state and need no column.

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
    _check_names(path, found, problem, values)
    known = ("q", "qd", "y") if "y" in found else (*_STATE, *problem.known_quantities)
    arrays = {name: x for name, x in found.items() if name in known}
    for name, x in arrays.items():
        _check_array(path, name, x)
    q = arrays["q"]
    if q.ndim > 2:
        raise FileError(f"{path}: q has shape {q.shape}, but (states, {problem.model.nq}) is needed")
    return States(len(q) if q.ndim == 2 else 1, arrays, tuple(x for x in found if x not in (*arrays, OK)))


def _check_names(path: str, found: Mapping[str, np.ndarray], problem: Problem, values: Values) -> None:
    """Raise for arrays of unknown names, and for the ones that the problem needs and the archive lacks."""
    valid = (*_STATE, *QUANTITIES, "w", "y")
    for name in found:
        if name not in (*valid, OK):
            raise UnknownName(f"array in {path}:", name, valid)
    varying = {m.quantity for m in problem.raw if m.name not in values}
    packed = "y" in found  # it has the values of all measurements
    needed = [*_STATE, *(x for x in problem.known_quantities if x != "fx" and x in varying and not packed)]
    missing = [name for name in needed if name not in found]
    if missing:
        raise FileError(
            f"{path} has no array {', '.join(missing)}; it has {', '.join(found) or 'none'}. "
            f"This problem needs {', '.join(needed)}"
        )


def _check_array(path: str, name: str, x: np.ndarray) -> None:
    """Raise unless x is an array of finite real numbers."""
    if x.dtype.kind not in "fiu":
        raise FileError(f"{path}: array {name} has type {x.dtype}, but real numbers are needed")
    if x.ndim == 0:
        raise FileError(f"{path}: array {name} is a single number; its last axis must be the variables")
    if not np.isfinite(x).all():
        where = tuple(int(k) for k in np.argwhere(~np.isfinite(x))[0])
        raise FileError(f"{path}: {name}{list(where)} is {x[where]}; every value must be finite")


def _from_csv(path: str, payload: bytes, problem: Problem, values: Values) -> States:
    (line, names), *rows = _csv_rows(path, payload, problem.model)
    header = [name.strip() for name in names]
    place = _csv_places(problem.model, header)
    _check_header(path, line, header, place, _needed(problem, values))
    if not rows:
        raise FileError(f"{path} names its columns but has no states below them")
    known = (*_STATE, *problem.known_quantities)
    used = [k for k, name in enumerate(header) if name != OK and place[name][0] in known]
    numbers = _csv_numbers(path, header, rows, used)
    sizes = {name: size for name, size in problem.input_sizes if name in known}
    unused = dict.fromkeys(place[x][0] for x in header if x != OK and place[x][0] not in known)
    return States(len(rows), _arrays(numbers, [place[header[k]] for k in used], sizes), tuple(unused))


def _arrays(numbers: np.ndarray, places: Sequence[tuple[str, int]], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """{quantity: (N, size), of wrenches (N, nb, 6)} of numbers (N, columns) with their places; the others are zero."""
    flat = {name: np.zeros((len(numbers), size)) for name, size in sizes.items()}
    for column, (quantity, place) in zip(numbers.T, places, strict=True):
        flat[quantity][:, place] = column
    shapes = {name: (-1, 6) if name in WRENCHES else (-1,) for name in flat}
    return {name: x.reshape(len(x), *shapes[name]) for name, x in flat.items()}


def _csv_rows(path: str, payload: bytes, model: Model) -> list[tuple[int, list[str]]]:
    """(line, fields) of the rows that are not blank, the header first. Raises FileError where there is none."""
    try:
        text = payload.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not a text file in UTF-8: {error}") from error
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(x.strip() for x in row)]
    except csv.Error as error:
        raise FileError(f"{path}, line {reader.line_num}: {error}") from error
    if not rows:
        raise FileError(f"{path} is empty: its first line must name the columns, such as {column_names(model, 'q')[0]}")
    return rows


def _csv_places(model: Model, header: Sequence[str]) -> dict[str, tuple[str, int]]:
    """{column: (quantity, place in its flat array)} of all columns that a file may have.

    Wrenches of constraints are results and never read, so that every column w:… has place 0.
    """
    place = {
        name: (quantity, k)
        for quantity in (*_STATE, *QUANTITIES)
        for k, name in enumerate(column_names(model, quantity))
    }
    return place | {name: ("w", 0) for name in header if name.startswith("w:")}


def _check_header(
    path: str, line: int, header: Sequence[str], place: Mapping[str, tuple[str, int]], needed: Sequence[str]
) -> None:
    """Raise for columns that are unknown, occur twice or are missing."""
    seen = set()
    for number, name in enumerate(header, start=1):
        if name not in place and name != OK:
            raise UnknownName(f"column in {path}, line {line}, column {number}:", name, place)
        if name in seen:
            raise FileError(f"{path}, line {line}: column {name!r} occurs twice")
        seen.add(name)
    missing = [name for name in needed if name not in seen]
    if missing:
        shown = ", ".join(missing[:6]) + (f", … ({len(missing)} in all)" if len(missing) > 6 else "")
        raise FileError(f"{path} lacks columns that this problem needs: {shown}")


def _csv_numbers(
    path: str, header: Sequence[str], rows: Sequence[tuple[int, list[str]]], used: Sequence[int]
) -> np.ndarray:
    """(rows, used columns): the numbers in these columns."""
    numbers = np.empty((len(rows), len(used)))
    for i, (line, row) in enumerate(rows):
        if len(row) != len(header):
            raise FileError(f"{path}, line {line} has {len(row)} values for {len(header)} columns")
        for j, k in enumerate(used):
            numbers[i, j] = _number(row[k], f"{path}, line {line}, column {header[k]!r}")
    return numbers


def _needed(problem: Problem, values: Values) -> list[str]:
    """Columns without which the problem cannot be solved."""
    model = problem.model
    names = column_names(model, "q") + column_names(model, "qd")
    for m in problem.raw:
        if m.quantity != "fx" and m.name not in values:
            columns = column_names(model, m.quantity)
            names += [columns[flat_place(model, m.quantity, *pair)] for pair in m.pairs(model)]
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
    constraints: Sequence[Constraint] = (), columns: Mapping[str, Sequence[str]] | None = None,
) -> Path:  # fmt: skip
    """Write states and results, arrays (N, …) by name, in one step: the file is whole or not there.

    ok (N,): whether each state was solved. constraints: those of w. columns: names of the columns of arrays that are
    no quantities. Raises FileError where it cannot be written.
    """
    suffix = check_suffix(path, "output file")
    if suffix == ".npz":
        buffer = io.BytesIO()
        everything: dict[str, Any] = {**arrays, **({} if ok is None else {OK: ok})}
        np.savez(buffer, **everything)
        return write_file(path, buffer.getvalue())
    header: list[str] = []
    parts = []
    for name, x in arrays.items():
        header += (columns or {}).get(name) or column_names(model, name, constraints)
        parts.append(np.reshape(x, (len(x), -1)))
    if ok is not None:
        header.append(OK)
        parts.append(np.asarray(ok, dtype=float)[:, None])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([repr(x) for x in row] for row in np.hstack(parts).tolist())
    return write_file(path, text.getvalue().encode())
