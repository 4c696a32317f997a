"""Conditions on measured values, such as "l_foot_ft: fz > 40 and imu: a_z < 12", which switch stances."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, check_among
from sysdyn.program.groups import Group

# Comparisons by their sign; signs of two characters come first, as they are looked for in this order.
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
# One comparison: column, sign, number.
_CLAUSE = re.compile(rf"\s*(\S.*?)\s*({'|'.join(COMPARISONS)})\s*([-+.\w]+)\s*")
_AND = re.compile(r"\s+and\s+")


@dataclass(frozen=True)
class Condition:
    """Comparisons of components of measurements with numbers, all of which have to hold.

    text: "MEASUREMENT: COMPONENT > NUMBER", also with <, >=, <=, several joined by "and". Raises InvalidInput.
    """

    text: str
    clauses: tuple[tuple[str, str, float], ...] = ()  # (column, sign, number)

    def __post_init__(self):
        object.__setattr__(self, "clauses", tuple(_clause(part, self.text) for part in _AND.split(self.text)))

    def check(self, name: str, groups: Iterable[Group]) -> None:
        """Raise UnknownName for a column that none of the groups, values of measurements, has; name: whose it is."""
        valid = [label for group in groups for label in group.labels]
        for column, _, _ in self.clauses:
            check_among(f"column in when= of {name!r}:", column, valid)

    def holds(self, y: Mapping[str, np.ndarray], labels: Mapping[str, tuple[str, ...]]) -> np.ndarray:
        """(…) bool for values y {measurement: (…, m)}, labels {measurement: of its columns}; False for NaN."""
        place = {label: (name, k) for name, found in labels.items() for k, label in enumerate(found)}
        result: Any = True
        for column, sign, number in self.clauses:
            name, k = place[column]
            x = np.asarray(y[name], dtype=float)[..., k]
            with np.errstate(invalid="ignore"):
                result = result & COMPARISONS[sign](x, number)
        return np.asarray(result)

    def is_measured(self, y: Mapping[str, np.ndarray], labels: Mapping[str, tuple[str, ...]]) -> np.ndarray:
        """(…) bool: no value that it compares is NaN; see `holds`."""
        columns = (column for column, _, _ in self.clauses)
        return np.logical_and.reduce(
            [
                ~np.isnan(y[name][..., labels[name].index(x)])
                for x, name in ((x, x.rpartition(": ")[0]) for x in columns)
            ]
        )

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the measurements whose values it compares, each once."""
        return tuple(dict.fromkeys(column.rpartition(": ")[0] for column, _, _ in self.clauses))

    def __str__(self) -> str:
        return self.text


def condition_of(name: str, when: object) -> Condition | None:
    """The condition of `name` out of when=: a text, a condition or None. Raises InvalidInput."""
    if when is None or isinstance(when, Condition):
        return when
    if not isinstance(when, str):
        raise InvalidInput(f'when= of {name!r} is {when!r}: a text such as "l_foot_ft: fz > 40" is needed')
    return Condition(when)


def _clause(part: str, text: str) -> tuple[str, str, float]:
    found = _CLAUSE.fullmatch(part)
    try:
        number = float(found[3]) if found else np.nan
    except ValueError:
        number = np.nan
    if not found or not np.isfinite(number):
        raise InvalidInput(
            f'the condition {text!r} cannot be read at {part.strip()!r}: write "MEASUREMENT: COMPONENT > NUMBER", with '
            f'{", ".join(COMPARISONS)}, and several joined by "and". Without when=, a column "active: NAME" of the log '
            "switches the stance"
        )
    column = re.sub(r"\s*:\s*(?=[^:]*$)", ": ", found[1])  # the component follows the last colon
    return column, found[2], number
