"""Columns of logs and states: their names, their units, and the columns that a problem needs.

    t                                       time [s]; time and timestamp, too
    q.l_knee, qd.l_knee                     by joint; q.base[0] … where a joint has several variables; q:l_knee as well
    l_foot_ft: fx                           by measurement and component, as in `problem.y_names`; l_foot_ft.fx as well
    tau:l_knee, fx:l_foot.nz                a component of a quantity, where one measurement states it
    active: l_contact                       1 or 0: whether a switchable measurement is on

If q and q̇ are unknown, their columns are those of sensors: q.l_knee is that of the one `JointPosition` of the joint,
qd.l_knee that of its `JointVelocity`, and every measurement with noise may be switched.

A unit may follow in brackets, as in "q.l_knee [rad]"; it is checked, not converted. Brackets of a joint called
"knee [rad]" are part of its name. Arrays of a file hold several columns: q, qd, a quantity (N, nb, 6), a
measurement, or y, the packed values of all.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from sysdyn.errors import InvalidInput, LogWarning, UnknownName, check_among, few, warn
from sysdyn.files.tables import TIME, Table
from sysdyn.measurements.input_names import SWITCH, VALUE, group_of, switch_group, value_group
from sysdyn.measurements.known_quantities import RawMeasurement
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import ModelNoise
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.state_sensors import JointSensor
from sysdyn.model.quantities import QUANTITY, user_visible
from sysdyn.program.arrays import BOOLEANS, NUMBERS, TIMES

# Ways of a log with the state: q and q̇ are columns, exact, or unknown and measured by sensors.
STATES = ("exact", "unknown")
# Name of the column and the array that say of each state if it was solved.
OK = "ok"
# Names of the column of time in files that are read.
_TIMES = (TIME, "time", "timestamp")
# Names of columns left out in silence: indices that pandas writes, and the "solved" of results.
_INDEX = ("", "Unnamed: 0", "index", "__index_level_0__", OK)
# A name of a column with its unit in brackets behind it, as in "q.l_knee [rad]".
_UNIT = re.compile(r"(.*\S)\s+\[([^\]]+)\]")


class LogColumns:
    """The columns that the states of a problem may have, and the columns that they must have.

    values   names of the measurements whose value is known without a column
    renames  {name in the file: name here, or "" for a column to be left out}
    timed    True if time is needed; else it is left out; None: it is taken if it is there
    free     groups ("q", "qd") that may be missing
    unused   places ("q", k), ("qd", k) of which nothing depends, and which may be missing, too
    states   "exact", or "unknown": columns of sensors of the state in place of q and q̇

    names    canonical name of each column, in order: t, q, q̇, the value of each measurement, switches
    units    unit of each column; "" if a measurement of one's own states none
    group    (array, place in it) of each column: (TIME, 0), ("q", k), ("qd", k), ("y:NAME", k) or ("active:NAME", 0)
    sizes    {array: columns}
    optional {name: measurement} of those that may be off in some states

    Raises UnknownName for renames to names that do not exist.
    """

    def __init__(
        self, problem: Problem, values: Mapping[str, np.ndarray] | Sequence[str] = (),
        renames: Mapping[str, str] | None = None, timed: bool | None = True, free: Sequence[str] = (),
        states: str = STATES[0], unused: Collection[tuple[str, int]] = (),
    ):  # fmt: skip
        check_among("choice for states", states, STATES)
        model, exact = problem.model, states == STATES[0]
        self.problem, self._exact = problem, exact
        switched = (*problem.switchable, *problem.switchable_constraints)
        self.optional: dict[str, Measurement] = {m.name: m for m in switched}
        if not exact:
            noisy = [m for m in (*problem.state_sensors, *problem.noisy) if not isinstance(m, ModelNoise)]
            self.optional = {m.name: m for m in noisy}
        entries: list[tuple[str, str, tuple[str, int], bool]] = [(TIME, "s", (TIME, 0), timed is True)]
        for x in ("q", "qd") if exact else ():
            group = problem.inputs[x]
            for k, (label, unit) in enumerate(zip(group.labels, group.units, strict=True)):
                entries.append((label.replace(":", ".", 1), unit, (x, k), x not in free and (x, k) not in unused))
        switchable = {m.name for m in problem.measurements if m.switchable}
        groups = {**problem.values} if exact else {**problem.state_values, **problem.values}
        for name, group in groups.items():
            needed = name not in values and group.default is None and name not in switchable
            for k, (label, unit) in enumerate(zip(group.labels, group.units, strict=True)):
                entries.append((label, unit, (value_group(name), k), needed))
        entries += [(f"active: {name}", "1", (switch_group(name), 0), False) for name in self.optional]
        self.names, self.units, self.group, self._needed = (list(x) for x in zip(*entries, strict=True))
        self.sizes = Counter(group for group, _ in self.group)
        self._timed, self.unused = timed is not False, frozenset(unused)
        # scalars of quantities by the columns of files of states
        self._stated = {
            (value_group(m.name), k): label
            for m in problem.valued
            if isinstance(m, RawMeasurement) and m.divisible
            for k, label in enumerate(m.labels(model))
        }
        self._of_joints = {
            (value_group(m.name), k): label
            for m in problem.state_sensors
            if isinstance(m, JointSensor) and not exact
            for k, label in enumerate(m.labels(model))
        }
        # wrenches that are not named are zero
        self._in_part = {value_group(m.name) for m in problem.raw if m.stated.zero} | set(free)
        self._number = self._spellings()
        self._elsewhere = self._of_others()
        self._renames = {old.lstrip("/"): new for old, new in (renames or {}).items()}
        for new in self._renames.values():
            if new and new not in self._number and new not in self._elsewhere and not self._of_array(new):
                raise UnknownName("column for another name:", new, dict.fromkeys([*self.names, *self._number]))

    def _spellings(self) -> dict[str, int]:
        """{name: number of the column}, canonical names and others that mean one column only."""
        found: dict[str, list[int]] = {}
        for n, (name, (group, k)) in enumerate(zip(self.names, self.group, strict=True)):
            role, owner = group_of(group)
            others = [name.replace(": ", ".", 1), name.replace(": ", ":", 1)]
            if group in ("q", "qd"):
                others = [name.replace(".", ":", 1)]
            elif group == TIME:
                others = list(_TIMES)
            elif (group, k) in self._stated:
                others.append(self._stated[group, k])
            elif role == VALUE and self.sizes[group] == 1:
                others.append(owner)  # a sensor with one component
            if (group, k) in self._of_joints:
                label = self._of_joints[group, k]
                others += [label, label.replace(":", ".", 1)]
            for spelling in {name, *others}:
                found.setdefault(spelling, []).append(n)
        single = {spelling: numbers[0] for spelling, numbers in found.items() if len(numbers) == 1}
        return {**single, **{name: n for n, name in enumerate(self.names)}}

    def _of_others(self) -> set[str]:
        """Names of columns that the problem has only if its state is exact and this is not, or the reverse."""
        if self._exact:
            labels = [label for group in self.problem.state_values.values() for label in group.labels]
            return {x for label in labels for x in (label, label.replace(": ", ".", 1), label.replace(": ", ":", 1))}
        labels = [label for x in ("q", "qd") for label in QUANTITY[x].labels(self.problem.model)]
        return {x for label in labels for x in (label, label.replace(":", ".", 1))}

    def matched(self, table: Table, where: str, told: set[str] | None = None) -> tuple[list[int], list[int]]:
        """(columns of a table that the problem uses, by number; the column here that each is).

        Those of unknown names are left out with one LogWarning that names them, but for what is in `told`. Raises
        InvalidInput for names that occur twice, wrong units, and missing columns.
        """
        used: dict[int, int] = {}
        unknown: list[str] = []
        others = table.aliases or [""] * len(table.header)
        for j, (name, other) in enumerate(zip(table.header, others, strict=True)):
            n = self._meant(name, other, where)
            if n is None:
                array = name.partition("[")[0]
                new = [self._renames.get(x.lstrip("/")) for x in (name, array)]
                gone = name in _INDEX or "" in new
                gone = gone or (self._exact and not self._elsewhere.isdisjoint((name, *new)))  # its state is given
                unknown += [] if gone else [name]
            elif n in used and self._of_state(name) != self._of_state(table.header[used[n]]):
                unknown.append(name if self._of_state(name) else table.header[used[n]])  # q beside its sensor's own
                used[n] = used[n] if self._of_state(name) else j
            elif n in used and self.group[n][0] != TIME:
                raise InvalidInput(f"{where}: the column {self._shown(n)!r} occurs twice")
            elif n not in used and (self._timed or self.group[n][0] != TIME):
                used[n] = j
        left_out = [x for x in self._by_quantity(unknown, used) if x not in (told or ())]
        present = {self.group[n][0] for n in used} - self._in_part
        missing = [
            self._shown(n) for n in range(len(self.names))
            if n not in used and (self._needed[n] or self.group[n][0] in present) and self.group[n] not in self.unused
        ]  # fmt: skip
        if missing:
            near = {x: difflib.get_close_matches(x, missing, n=1, cutoff=0.7) for x in left_out}
            hints = "".join(f"; {x!r} is unknown: did you mean {y[0]!r}?" for x, y in near.items() if y)
            beside = f"; it has, besides, {few(left_out, 12)}: --columns (columns=) renames them" if left_out else ""
            raise InvalidInput(f"{where} lacks the columns {few(missing, 12)}{hints}{beside}")
        if left_out:
            if told is not None:
                told.update(left_out)
            warn(f"{where}: left out what this problem does not know: {', '.join(left_out)}", LogWarning)
        return list(used.values()), list(used)

    def _meant(self, name: str, other: str, where: str) -> int | None:
        """The column that a name means, with its unit or without; else that of its second name; None: unknown."""
        new = self._renames.get(name.lstrip("/"))
        if new is not None:
            return self._number.get(new)
        bare, unit = _with_unit(name, self._number)
        n = self._number.get(bare, self._number.get(other))
        if n is not None and unit is not None and self.units[n] and _spelled(unit) != self.units[n]:
            raise InvalidInput(_wrong_unit(f"column {bare!r} of {where}", unit, self.units[n]))
        return n

    def _of_state(self, name: str) -> bool:
        """True for a column of a sensor of joints that is named as of files of exact states, such as q.l_knee."""
        new = self._renames.get(name.lstrip("/"), name)
        return _with_unit(new, self._elsewhere)[0] in self._elsewhere and not self._exact

    def kinds(self, used: Sequence[int], numbers: Sequence[int]) -> dict[int, str]:
        """{column of a table: kinds of types that its entries may have}, as `matched` found them."""
        found = {}
        for j, n in zip(used, numbers, strict=True):
            group = self.group[n][0]
            found[j] = TIMES if group == TIME else BOOLEANS if group_of(group).role == SWITCH else NUMBERS
        return found

    def _shown(self, n: int) -> str:
        """The name of a column in messages: of an exact quantity that of files of states."""
        group, k = self.group[n]
        exact = any(value_group(m.name) == group for m in self.problem.raw)
        return self._stated[group, k] if exact else self.names[n]

    def _by_quantity(self, names: Sequence[str], used: Iterable[int]) -> list[str]:
        """The names with the columns of a quantity as one name; none of a quantity that is used in part."""
        model = self.problem.model
        quantity = {c: x for x in user_visible() for c in QUANTITY[x].labels(model)}
        raw = {m.name: m.quantity for m in self.problem.raw}
        known = {raw.get(group_of(self.group[n][0]).name) for n in used}
        return list(dict.fromkeys(quantity.get(x, x) for x in names if quantity.get(x) not in known - {None}))

    def of_array(self, name: str) -> list[list[str]]:
        """Columns of an array of a file, in any of its forms; none if the array is unknown."""
        return self._of_array(self._renames.get(name.lstrip("/"), name))

    def _of_array(self, name: str) -> list[list[str]]:
        problem, found = self.problem, []
        group = {**dict.fromkeys(_TIMES, TIME), "q": "q", "qd": "qd"}.get(name, value_group(name))
        if group_of(name).role == SWITCH:
            group = switch_group(group_of(name).name.strip())
        found.append([x for x, (g, _) in zip(self.names, self.group, strict=True) if g == group])
        if group in ("q", "qd") and not self._exact:
            found.append([x.replace(":", ".", 1) for x in QUANTITY[group].labels(problem.model)])
        if self._exact and name in problem.state_values:
            found.append(list(problem.state_values[name].labels))
        if name in user_visible():
            found.append(list(QUANTITY[name].labels(problem.model)))
        elif name == VALUE and not found[0]:
            found.append(list(problem.y_names))
        return [names for names in found if names]


def check_units(problem: Problem, units: Mapping[str, str | Sequence[str]]) -> None:
    """Raise InvalidInput unless units, by measurement or q and qd, are the units of the values here; UnknownName."""
    both = [LogColumns(problem, states=x) for x in STATES]
    unit = {group: u for columns in both for group, u in zip(columns.group, columns.units, strict=True)}
    for name, given in units.items():
        needed = [u for (g, _), u in unit.items() if g in (name, value_group(name))]
        if not needed:
            valid = ("q", "qd", *problem.values, *problem.state_values)
            raise UnknownName("measurement in units:", name, valid)
        each = [given] * len(needed) if isinstance(given, str) else list(given)
        if len(each) != len(needed):
            raise InvalidInput(f"units of {name!r}: {len(each)} are given, but it has {len(needed)} components")
        for found, right in zip(each, needed, strict=True):
            if _spelled(str(found)) != right:
                raise InvalidInput(_wrong_unit(repr(name), found, right))


def _with_unit(name: str, known: Collection[str]) -> tuple[str, str | None]:
    """(name without its unit in brackets, the unit or None); brackets that are part of a known name are no unit."""
    split = _UNIT.fullmatch(name) if name not in known else None
    return (split[1], split[2]) if split else (name, None)


def _spelled(unit: str) -> str:
    unit = unit.strip().replace("^2", "²").replace("s2", "s²")
    return {"Nm": "N m", "N*m": "N m", "N·m": "N m", "N.m": "N m", "-": "1", "": "1"}.get(unit, unit)


def _wrong_unit(what: str, found: object, needed: str) -> str:
    return f"{what} is in {found}, but {needed} is needed: values are not converted, so convert them before"
