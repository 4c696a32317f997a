"""Columns of sensor logs: their names, their units, and those that a problem needs.

    t                                       time [s]
    q.l_knee, qd.l_knee                     by joint; q.base[0] … where a joint has several variables
    l_foot_ft: fx                           by measurement and component, as in `problem.y_names`; l_foot_ft.fx as well
    tau:l_knee, fx:l_foot.nz                a component of a quantity, where one measurement states it
    active: l_contact                       1 or 0: whether a switchable measurement is on

A unit may follow in brackets, as in "q.l_knee [rad]"; it is not converted, but has to be the right one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from sysdyn.data.states import column_names
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.groups import SWITCH, VALUE, group_of, switch_group, value_group
from sysdyn.measurements.raw import RawMeasurement
from sysdyn.measurements.variables import PARTS, flat_place, freedom_units
from sysdyn.model import Model
from sysdyn.problem import Problem

# The column of time is called this in every file that is written.
TIME = "t"
# Files that are read may call it by any of these names.
_TIMES = (TIME, "time", "timestamp")
# A column may have its unit in brackets behind its name, as in "q.l_knee [rad]".
_UNIT = re.compile(r"(.*\S)\s+\[([^\]]+)\]")


class Columns:
    """The columns that the log of a problem may have, and those that it must have.

    values  names of the measurements whose value is known without a column
    names   canonical name of each column, in order: t, q, q̇, the value of each measurement, switches
    units   unit of each column
    group   (array, place in it) of each column: (TIME, 0), ("q", k), ("qd", k), ("y:NAME", k) or ("active:NAME", 0)
    """

    def __init__(self, problem: Problem, values: Mapping[str, np.ndarray] | Sequence[str] = ()):
        model = problem.model
        self.problem = problem
        entries: list[tuple[str, str, tuple[str, int], bool]] = [(TIME, "s", (TIME, 0), True)]
        for x, units in (("q", _position_units(model)), ("qd", freedom_units(model, "qd"))):
            for k, name in enumerate(column_names(model, x)):
                entries.append((name.replace(":", ".", 1), units[k], (x, k), True))
        for m in problem.valued:
            needed = not (m.name in values or m.has_default)
            for k, (c, unit) in enumerate(zip(m.components(model), m.component_units(model), strict=True)):
                entries.append((f"{m.name}: {c}", unit, (value_group(m.name), k), needed))
        entries += [(f"active: {m.name}", "1", (switch_group(m.name), 0), False) for m in problem.switchable]
        self.names, self.units, self.group, self._needed = (list(x) for x in zip(*entries, strict=True))
        self._number = self._spellings()

    def _spellings(self) -> dict[str, int]:
        """{name: number of the column}, canonical names and others that mean one column only."""
        model = self.problem.model
        raw = {m.name: m for m in self.problem.valued if isinstance(m, RawMeasurement)}
        found: dict[str, list[int]] = {}
        for n, (name, (group, k)) in enumerate(zip(self.names, self.group, strict=True)):
            role, owner = group_of(group)
            others = [name.replace(": ", ".", 1), name.replace(": ", ":", 1)]
            if group in ("q", "qd"):
                others = [name.replace(".", ":", 1)]
            elif group == TIME:
                others = list(_TIMES)
            elif role and owner in raw:
                quantity, pair = raw[owner].quantity, raw[owner].pairs(model)[k]
                others.append(column_names(model, quantity)[flat_place(model, quantity, *pair)])
            elif role == VALUE and self.group.count((group, k)) == 1 and (group, 1) not in self.group:
                others.append(owner)  # a sensor with one component
            for spelling in {name, *others}:
                found.setdefault(spelling, []).append(n)
        single = {spelling: numbers[0] for spelling, numbers in found.items() if len(numbers) == 1}
        return {**single, **{name: n for n, name in enumerate(self.names)}}

    def numbers(self, header: Sequence[str], where: str) -> list[int]:
        """The column that each name of a header means.

        Raises UnknownName, and InvalidInput for names that occur twice, wrong units, and missing columns.
        """
        found: list[int] = []
        for name in header:
            n = self._meant(name, where)
            if n in found:
                raise InvalidInput(f"{where}: the column {self.names[n]!r} occurs twice")
            found.append(n)
        present = {self.group[n][0] for n in found}
        missing = [
            name for n, name in enumerate(self.names)
            if n not in found and (self._needed[n] or self.group[n][0] in present)
        ]  # fmt: skip
        if missing:
            shown = ", ".join(missing[:12]) + (f" … ({len(missing)} in all)" if len(missing) > 12 else "")
            raise InvalidInput(f"{where} lacks the columns {shown}")
        return found

    def _meant(self, name: str, where: str) -> int:
        """The column that a name means, with its unit or without."""
        split = _UNIT.fullmatch(name)
        bare, unit = split.groups() if split else (name, None)
        if bare not in self._number:
            raise UnknownName(f"column in {where}:", bare, dict.fromkeys([*self.names, *self._number]))
        n = self._number[bare]
        if unit is not None and _spelled(unit) != self.units[n]:
            raise InvalidInput(_wrong_unit(f"column {bare!r} of {where}", unit, self.units[n]))
        return n

    def of_array(self, name: str) -> list[str] | None:
        """Columns of an array of a .npz file: t, q, qd, the name of a measurement, or active:NAME; None: unknown."""
        group = {TIME: TIME, **dict.fromkeys(_TIMES, TIME), "q": "q", "qd": "qd"}.get(name, value_group(name))
        if group_of(name).role == SWITCH:
            group = switch_group(group_of(name).name.strip())
        return [x for x, (g, _) in zip(self.names, self.group, strict=True) if g == group] or None


def _position_units(model: Model) -> list[str]:
    units = []
    angular, straight = PARTS["q"]
    for joint in model.joints:
        quaternion = range(joint.nq)[joint.quaternion] if joint.quaternion is not None else ()
        units += ["1" if k in quaternion else angular if k in joint.angles else straight for k in range(joint.nq)]
    return units


def check_units(problem: Problem, units: Mapping[str, str | Sequence[str]]) -> None:
    """Raise InvalidInput unless units, by measurement or q and qd, are those that values are in; UnknownName."""
    columns = Columns(problem)
    for name, given in units.items():
        needed = [u for u, (g, _) in zip(columns.units, columns.group, strict=True) if g in (name, value_group(name))]
        if not needed:
            raise UnknownName("measurement in units:", name, ("q", "qd", *(m.name for m in problem.valued)))
        each = [given] * len(needed) if isinstance(given, str) else list(given)
        if len(each) != len(needed):
            raise InvalidInput(f"units of {name!r}: {len(each)} are given, but it has {len(needed)} components")
        for found, right in zip(each, needed, strict=True):
            if _spelled(str(found)) != right:
                raise InvalidInput(_wrong_unit(repr(name), found, right))


def _spelled(unit: str) -> str:
    unit = unit.strip().replace("^2", "²").replace("s2", "s²")
    return {"Nm": "N m", "N*m": "N m", "N·m": "N m", "N.m": "N m", "-": "1", "": "1"}.get(unit, unit)


def _wrong_unit(what: str, found: object, needed: str) -> str:
    return f"{what} is in {found}, but {needed} is needed: values are not converted, so convert them before"
