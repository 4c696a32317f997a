"""Columns of logs and states: their names, their units, and the columns that a problem needs.

    t                          time [s]
    q.l_knee, qd.l_knee        by joint; q.base[0] … for a joint with several variables; q:l_knee as in results
    l_foot_ft: fx              by measurement and component, as in `problem.y_names`
    tau:l_knee, fx:l_foot.nz   a component of a quantity that one measurement states, as in results
    active: l_contact          1 or 0: whether a switchable measurement is on

If q and q̇ are unknown, q.l_knee is the column of the one `JointPosition` of the joint, qd.l_knee that of its
`JointVelocity`, and every measurement with noise may be switched. `columns={name in the file: name here}` renames.

A unit may follow in brackets, as in "q.l_knee [rad]"; it is checked, not converted. Brackets of a joint called
"knee [rad]" are part of its name. An array of a file is several columns: q, qd, a quantity (N, nb, 6), a measurement,
or y, the packed values of all.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

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

# Whether q and q̇ are exact columns of a log, or unknown and measured by sensors.
STATES = ("exact", "unknown")
# Name of the column and the array that say whether a state was solved.
OK = "ok"
# Columns that are ignored without a warning: indices that pandas writes, and OK.
_INDEX = ("", "Unnamed: 0", "index", "__index_level_0__", OK)
# A column name with its unit in brackets, such as "q.l_knee [rad]".
_UNIT = re.compile(r"(.*\S)\s+\[([^\]]+)\]")


@dataclass(frozen=True)
class Column:
    """A column that a log may have: entry `index` of the array `group` (t, q, qd, y:MEASUREMENT, active:MEASUREMENT).

    unit: "" if a custom measurement states none. needed: it must be there. aliases: other names. label: name in
    messages.
    """

    name: str
    unit: str
    group: str
    index: int = 0
    needed: bool = False
    aliases: tuple[str, ...] = ()
    label: str = ""

    @property
    def kinds(self) -> str:
        """Kinds of types that entries may have; see `sysdyn.program.arrays`."""
        return TIMES if self.group == TIME else BOOLEANS if group_of(self.group).role == SWITCH else NUMBERS


class LogColumns:
    """The columns that the states of a problem may have.

    values: names of the measurements whose value needs no column. renames {name in the file: name here, or "" for a
    column to be ignored}. timed: True if time is needed, False if it is ignored, None if it may be there. free: groups
    ("q", "qd") that may be missing. unused: places ("q", k), ("qd", k) that may be missing, since no output depends on
    them. states: "exact" or "unknown".

    columns: in order t, q, q̇, the value of each measurement, switches. sizes {group: number of columns}. optional
    {name: measurement}: those that may be off in some states. Raises UnknownName for renames to unknown names.
    """

    def __init__(
        self, problem: Problem, values: Mapping[str, np.ndarray] | Sequence[str] = (),
        renames: Mapping[str, str] | None = None, timed: bool | None = True, free: Sequence[str] = (),
        states: str = STATES[0], unused: Collection[tuple[str, int]] = (),
    ):  # fmt: skip
        check_among("choice for states", states, STATES)
        self.problem, self._exact = problem, states == STATES[0]
        self._timed, self.unused = timed is not False, frozenset(unused)
        switched: Sequence[Measurement] = (*problem.switchable, *problem.switchable_constraints)
        if not self._exact:
            switched = [m for m in (*problem.state_sensors, *problem.noisy) if not isinstance(m, ModelNoise)]
        self.optional: dict[str, Measurement] = {m.name: m for m in switched}
        self.columns = [
            Column(TIME, "s", TIME, needed=timed is True),
            *self._state_columns(free),
            *self._value_columns(values),
            *(Column(f"active: {name}", "1", switch_group(name)) for name in self.optional),
        ]
        self.sizes = Counter(c.group for c in self.columns)
        # wrenches that are not named are zero
        self._in_part = {value_group(m.name) for m in problem.raw if m.stated.zero} | set(free)
        aliases = Counter(alias for c in self.columns for alias in {*c.aliases})
        self._named = {x: c for c in self.columns for x in c.aliases if aliases[x] == 1}
        self._named |= {c.name: c for c in self.columns}
        self._elsewhere = self._columns_of_other_states()
        self._renames = {old.lstrip("/"): new for old, new in (renames or {}).items()}
        for new in self._renames.values():
            if new and new not in self._named and new not in self._elsewhere and not self._of_array(new):
                raise UnknownName("column for another name:", new, dict.fromkeys([*self.names, *self._named]))

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [c.name for c in self.columns]

    def _state_columns(self, free: Sequence[str]) -> list[Column]:
        """q and q̇ of exact states."""
        columns = []
        for x in ("q", "qd") if self._exact else ():
            group = self.problem.inputs[x]
            for k, (label, unit) in enumerate(zip(group.labels, group.units, strict=True)):
                needed = x not in free and (x, k) not in self.unused
                columns.append(Column(label.replace(":", ".", 1), unit, x, k, needed, (label,)))
        return columns

    def _value_columns(self, values: Collection[str]) -> list[Column]:
        """Values of measurements."""
        problem, model, columns = self.problem, self.problem.model, []
        exact = {m.name for m in problem.raw}
        measurements = {m.name: m for m in (*problem.state_sensors, *problem.valued)}
        for name, group in {**({} if self._exact else problem.state_values), **problem.values}.items():
            m = measurements[name]
            needed = name not in values and group.default is None and not m.switchable
            aliases: list[tuple[str, ...]] = [()] * group.size
            if isinstance(m, RawMeasurement) and m.selectable:
                aliases = [(x,) for x in m.labels(model)]
            elif isinstance(m, JointSensor):
                aliases = [(x, x.replace(":", ".", 1)) for x in m.labels(model)]
            for k, (label, unit) in enumerate(zip(group.labels, group.units, strict=True)):
                shown = aliases[k][0] if name in exact else label
                columns.append(Column(label, unit, value_group(name), k, needed, aliases[k], shown))
        return columns

    def _columns_of_other_states(self) -> set[str]:
        """Names of columns that the problem has only if its state is exact and this one is not, or the reverse."""
        if self._exact:
            return {label for group in self.problem.state_values.values() for label in group.labels}
        labels = [label for x in ("q", "qd") for label in QUANTITY[x].labels(self.problem.model)]
        return {x for label in labels for x in (label, label.replace(":", ".", 1))}

    def matched(self, table: Table, where: str, warned: set[str] | None = None) -> dict[int, Column]:
        """{index of a table's column: `Column` of the problem} for the columns that the problem uses.

        Columns with unknown names are ignored; one LogWarning lists them, except for names in `warned`. Raises
        InvalidInput for names that occur twice, wrong units, and missing columns.
        """
        used: dict[Column, int] = {}
        unknown: list[str] = []
        others = table.aliases or [""] * len(table.header)
        for j, (name, other) in enumerate(zip(table.header, others, strict=True)):
            column = self._meant(name, other, where)
            if column is None:
                unknown += [] if self._ignored(name) else [name]
            elif column in used and self._of_state(name) != self._of_state(table.header[used[column]]):
                # q in addition to its sensor's own column
                unknown.append(name if self._of_state(name) else table.header[used[column]])
                used[column] = used[column] if self._of_state(name) else j
            elif column in used:
                raise InvalidInput(f"{where}: the column {column.label or column.name!r} occurs twice")
            elif self._timed or column.group != TIME:
                used[column] = j
        ignored = [x for x in self._by_quantity(unknown, used) if x not in (warned or ())]
        self._check_missing(used, ignored, where)
        if ignored:
            if warned is not None:
                warned.update(ignored)
            warn(f"{where}: ignored columns that this problem does not have: {', '.join(ignored)}", LogWarning)
        return {j: column for column, j in used.items()}

    def _ignored(self, name: str) -> bool:
        """True for a column that the problem does not use and that needs no warning."""
        new = [self._renames.get(x.lstrip("/")) for x in (name, name.partition("[")[0])]
        return name in _INDEX or "" in new or (self._exact and not self._elsewhere.isdisjoint((name, *new)))

    def _check_missing(self, used: Collection[Column], ignored: Sequence[str], where: str) -> None:
        """Raise InvalidInput if needed columns, or some columns of an array, are missing."""
        present = {c.group for c in used} - self._in_part
        missing = [
            c.label or c.name for c in self.columns
            if c not in used and (c.needed or c.group in present) and (c.group, c.index) not in self.unused
        ]  # fmt: skip
        if missing:
            near = {x: difflib.get_close_matches(x, missing, n=1, cutoff=0.7) for x in ignored}
            hints = "".join(f"; {x!r} is unknown: did you mean {y[0]!r}?" for x, y in near.items() if y)
            others = f"; it has, besides, {few(ignored, 12)}: --columns (columns=) renames them" if ignored else ""
            raise InvalidInput(f"{where} lacks the columns {few(missing, 12)}{hints}{others}")

    def _meant(self, name: str, other: str, where: str) -> Column | None:
        """The column that a name means, with or without its unit; else that of its second name; None: unknown."""
        new = self._renames.get(name.lstrip("/"))
        if new is not None:
            return self._named.get(new)
        bare, unit = _with_unit(name, self._named)
        column = self._named.get(bare, self._named.get(other))
        if column is not None and unit is not None and column.unit and _normalized(unit) != column.unit:
            raise InvalidInput(_wrong_unit(f"column {bare!r} of {where}", unit, column.unit))
        return column

    def _of_state(self, name: str) -> bool:
        """True for a column of a sensor of joints that is named as in files of exact states, such as q.l_knee."""
        new = self._renames.get(name.lstrip("/"), name)
        return _with_unit(new, self._elsewhere)[0] in self._elsewhere and not self._exact

    def _by_quantity(self, names: Sequence[str], used: Iterable[Column]) -> list[str]:
        """The names with the columns of a quantity as one name; none of a quantity that is used in part."""
        model = self.problem.model
        quantity = {c: x for x in user_visible() for c in QUANTITY[x].labels(model)}
        raw = {m.name: m.quantity for m in self.problem.raw}
        known = {raw.get(group_of(c.group).name) for c in used}
        return list(dict.fromkeys(quantity.get(x, x) for x in names if quantity.get(x) not in known - {None}))

    def of_array(self, name: str) -> list[list[str]]:
        """Columns of an array of a file, in any of its forms; none if the array is unknown."""
        return self._of_array(self._renames.get(name.lstrip("/"), name))

    def _of_array(self, name: str) -> list[list[str]]:
        problem = self.problem
        group = name if name in (TIME, "q", "qd") else value_group(name)
        if group_of(name).role == SWITCH:
            group = switch_group(group_of(name).name.strip())
        forms = [[c.name for c in self.columns if c.group == group]]
        if group in ("q", "qd") and not self._exact:
            forms.append([x.replace(":", ".", 1) for x in QUANTITY[group].labels(problem.model)])
        if self._exact and name in problem.state_values:
            forms.append(list(problem.state_values[name].labels))
        if name in user_visible():
            forms.append(list(QUANTITY[name].labels(problem.model)))
        elif name == VALUE and not forms[0]:
            forms.append(list(problem.y_names))
        return [names for names in forms if names]


def check_units(problem: Problem, units: Mapping[str, str | Sequence[str]]) -> None:
    """Check that units {measurement, q or qd: units} are those of the problem. Raises InvalidInput, UnknownName."""
    unit = {(c.group, c.index): c.unit for x in STATES for c in LogColumns(problem, states=x).columns}
    for name, given in units.items():
        needed = [u for (g, _), u in unit.items() if g in (name, value_group(name))]
        if not needed:
            valid = ("q", "qd", *problem.values, *problem.state_values)
            raise UnknownName("measurement in units:", name, valid)
        each = [given] * len(needed) if isinstance(given, str) else list(given)
        if len(each) != len(needed):
            raise InvalidInput(f"units of {name!r}: {len(each)} are given, but it has {len(needed)} components")
        for found, right in zip(each, needed, strict=True):
            if _normalized(str(found)) != right:
                raise InvalidInput(_wrong_unit(repr(name), found, right))


def _with_unit(name: str, known: Collection[str]) -> tuple[str, str | None]:
    """(name without its unit in brackets, the unit or None); brackets that are part of a known name are no unit."""
    split = _UNIT.fullmatch(name) if name not in known else None
    return (split[1], split[2]) if split else (name, None)


def _normalized(unit: str) -> str:
    unit = unit.strip().replace("^2", "²").replace("s2", "s²")
    return {"Nm": "N m", "N*m": "N m", "N·m": "N m", "N.m": "N m", "-": "1", "": "1"}.get(unit, unit)


def _wrong_unit(what: str, found: object, needed: str) -> str:
    return f"{what} is in {found}, but {needed} is needed: values are not converted, so convert them before"
