"""Lists of names, short enough to read."""

from __future__ import annotations

from sysdyn.diagnosis.directions import FIRST, Direction
from sysdyn.measurements.groups import VALUE, group_of

JOINT_AND_CONTACT = tuple(f"{x}(" for x in FIRST)  # Unknowns that a user would state begin so; they are shown first.


# ---- words -----------------------------------------------------------------------------------------------------------


def kind_of_state(count: int, by_structure: int) -> str:
    if count == by_structure:
        return "by structure, whatever the state"
    return f"by {'structure and by ' if by_structure else ''}value, at every sampled state"


def listed(what: str, found: tuple[Direction, ...], most: int = 6) -> list[str]:
    if not found:
        return []
    more = [f"  … ({len(found)} in all)"] if len(found) > most else []
    return [f"  {what}:", *(f"  - {x}" for x in found[:most]), *more]


def joints_first(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of what a user would state before the others."""
    return tuple(sorted(names, key=lambda name: [not name.startswith(kind) for kind in JOINT_AND_CONTACT]))


def stated(rows: tuple[str, ...]) -> tuple[str, ...]:
    """The measurements among the rows, the one stated last first: it is the likeliest to be one too many."""
    return tuple(row for row in reversed(rows) if group_of(row).role == VALUE)


def few(names: tuple[str, ...], most: int = 6) -> str:
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more
