"""Groups of inputs and outputs of programs: the one description of the arrays that a call takes and gives.

A `Group` says name, shape, labels, units and default of one array; `Groups` is the table of those of a call, which
checks what is handed in: by name, by type, by shape, and whether numbers are finite. Every call has its messages
from here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.program.arrays import real
from sysdyn.program.labels import by_label, frame_of

# Arrays by the name of a group.
Arrays: TypeAlias = dict[str, np.ndarray]
Shape: TypeAlias = tuple[int, ...]
# The type of arrays unless another is asked for.
DOUBLES = np.dtype(np.float64)


def slices(sizes: Iterable[int]) -> list[slice]:
    """Places of parts of these sizes, one after the other."""
    ends = [0, *accumulate(sizes)]
    return [slice(a, b) for a, b in pairwise(ends)]


@dataclass(frozen=True, eq=False)
class Group:
    """One array that a call takes or gives.

    name      of the group in programs and files
    shape     at one state; an array of several axes may be handed in flat, too
    labels    name of each scalar, as of columns in files and tables
    units     unit of each scalar; "" if unknown
    default   (size,) value if none is handed in; None: one is needed
    meaning   what it holds, in headers of exported code; "" if its name says it
    label     name by which a caller hands it in, in messages; the group's own if ""
    pass_as   text that hands it in, as in "pass tau="; from the label if ""
    """

    name: str
    shape: Shape
    labels: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    default: np.ndarray | None = None
    meaning: str = ""
    label: str = ""
    pass_as: str = ""

    @property
    def size(self) -> int:
        """Scalars at one state."""
        return math.prod(self.shape)

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return self.label or self.name

    @property
    def says(self) -> str:
        """Its meaning, or its name, and the units of its scalars: one line."""
        units = ", ".join(dict.fromkeys(filter(None, self.units)))
        return f"{self.meaning} [{units}]" if self.meaning and units else self.meaning or self.name

    def leading(self, x: np.ndarray) -> Shape:
        """Batch axes of a value (…, shape), or (…, size). Raises InvalidInput that shows both shapes."""
        return leading(self.shown, x, self.shape)

    def required(self) -> np.ndarray:
        """The default. Raises InvalidInput if there is none."""
        if self.default is None:
            raise InvalidInput(f"no value was given for {self.shown!r}: pass {self.pass_as or f'{self.shown}='}")
        return self.default


class Groups(Mapping[str, Group]):
    """Groups by name, in order."""

    def __init__(self, groups: Iterable[Group]):
        self._groups = {x.name: x for x in groups}
        self._columns: dict[tuple[str, ...], slice | np.ndarray] = {}

    @staticmethod
    def of_sizes(sizes: Iterable[tuple[str, int]]) -> Groups:
        """Groups of these names and numbers of scalars."""
        return Groups(Group(name, (size,)) for name, size in sizes)

    def __repr__(self) -> str:
        return f"Groups({self.sizes})"

    def __getitem__(self, name: str) -> Group:
        return self._groups[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """{name: scalars at one state}."""
        return {name: x.size for name, x in self.items()}

    @cached_property
    def size(self) -> int:
        """Scalars of all groups at one state."""
        return sum(self.sizes.values())

    @cached_property
    def slices(self) -> dict[str, slice]:
        """{name: place in a row of all scalars}."""
        return dict(zip(self, slices(self.sizes.values()), strict=True))

    def columns(self, names: tuple[str, ...]) -> slice | np.ndarray:
        """Places of these groups in a row of all scalars: a slice if they follow one another."""
        columns = self._columns.get(names)
        if columns is None:
            places = np.concatenate([np.arange(0), *(np.arange(self.size)[self.slices[x]] for x in names)])
            first = int(places[0]) if len(places) else 0
            contiguous = np.array_equal(places, np.arange(first, first + len(places)))
            columns = self._columns[names] = slice(first, first + len(places)) if contiguous else places
        return columns

    # ---- what is handed in ---------------------------------------------------------------------------------------

    def arranged(self, given: Mapping[str, Any]) -> tuple[Arrays, Shape]:
        """({group: (size,) or (N, size) C-contiguous float64}, leading axes); values that are missing are defaults.

        Raises InvalidInput that names the value: missing, of another type or shape, or of another number of states.
        """
        arrays: Arrays = {}
        leads: dict[str, Shape] = {}
        for name, group in self.items():
            value = given[name] if name in given else group.required()
            if type(value) is np.ndarray and value.dtype == np.float64:
                x = value
            elif group.labels and (frame := frame_of(value)) is not None:
                x = by_label(group.shown, frame, group.labels)
            else:
                x = real(group.shown, value)
            arrays[name] = x
            if x.shape == (group.size,):
                arrays[name] = x if x.flags.c_contiguous else np.ascontiguousarray(x)
            else:
                leads[name] = group.leading(x)
        if not leads:
            return arrays, ()
        lead = common({self[name].shown: shape for name, shape in leads.items()})
        for name, own in leads.items():
            x, size = arrays[name], self[name].size
            if all(k == 1 for k in own):
                arrays[name] = np.ascontiguousarray(x.reshape(size))
                continue
            if own != lead:
                x = np.broadcast_to(x, lead + x.shape[len(own) :])
            arrays[name] = np.ascontiguousarray(x.reshape(math.prod(lead), size))  # size may be 0
        return arrays, lead

    def in_place(self, given: Mapping[str, Any], dtype: np.dtype = DOUBLES) -> tuple[Arrays, Shape]:
        """As `arranged`, but the arrays are of this type, kept and read in place: nothing is converted or copied."""
        arrays: Arrays = {}
        counts = {}
        for name, group in self.items():
            x = given[name] if name in given else group.required().astype(dtype, copy=False)
            if not is_plain(x, dtype):
                raise InvalidInput(
                    f"bind keeps {group.shown} and reads it in place: it must be a C-contiguous {dtype.name} array, "
                    "not masked"
                )
            lead = group.leading(x)
            if len(lead) > 1:
                raise InvalidInput(
                    f"{group.shown} has shape {x.shape}, but {shown((), group.shape)} or (N, …) is needed"
                )
            arrays[name] = x.reshape(*lead, group.size)
            if lead:
                counts[group.shown] = lead
        if len(set(counts.values())) > 1:
            raise InvalidInput(f"the arrays hold different numbers of states: {_listed(counts)}")
        return arrays, next(iter(counts.values()), ())

    def reject_not_finite(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise InvalidInput that names the first entry that is infinite or not a number; arrays as of `arranged`."""
        for name, x in arrays.items():
            reject_not_finite(self[name].shown, x, 1)


def named(
    taker: str, valid: Sequence[str], positional: Sequence[str], given: Sequence, by_name: Mapping[str, Any],
    first: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """{name: value} of values by position and by keyword.

    valid: names that `taker` takes; positional: the ones that may go by position, in order; first: arguments
    before these. Raises InvalidInput for too many values and for one given twice, UnknownName with near names.
    """
    if len(given) > len(positional):
        shown = ", ".join((*first, *(x if x in positional else f"{x}=…" for x in valid)))
        raise InvalidInput(f"{len(first) + len(given)} values were given by position, but {taker} takes ({shown})")
    found = dict(zip(positional, given, strict=False))
    for name, value in by_name.items():
        if name in found:
            raise InvalidInput(f"{name} is given twice: by position and by keyword")
        if name not in valid:
            raise UnknownName(f"argument of {taker}:", name, (*first, *valid))
        found[name] = value
    return found


def chosen(
    kind: str, asked: str | Sequence[str] | None, default: Sequence[str], valid: Collection[str]
) -> tuple[str, ...]:
    """Names that are asked for, or the default. Raises UnknownName, and InvalidInput if there is none."""
    names = default if asked is None else (asked,) if isinstance(asked, str) else tuple(asked)
    for name in names:
        check_among(kind, name, valid)
    if not names:
        raise InvalidInput(f"no {kind} is named: give some of {', '.join(valid)}")
    return tuple(dict.fromkeys(names))


# ---- values ------------------------------------------------------------------------------------------------------


def is_plain(x: object, dtype: np.dtype = DOUBLES) -> TypeGuard[np.ndarray]:
    """True if a kernel can read x in place: a C-contiguous, aligned array of this type without a mask."""
    if not isinstance(x, np.ndarray) or isinstance(x, np.ma.MaskedArray):
        return False
    return x.dtype == dtype and x.flags.c_contiguous and x.flags.aligned


def leading(name: str, x: np.ndarray, shape: Shape) -> Shape:
    """Batch axes of x (…, shape), or flat (…, size). Raises InvalidInput that shows both shapes."""
    lead = x.shape[: max(x.ndim - len(shape), 0)]
    if lead + shape == x.shape:
        return lead
    if len(shape) > 1 and x.shape[-1:] == (math.prod(shape),):
        return x.shape[:-1]
    raise InvalidInput(f"{name} has shape {x.shape}, but {shown(('…',), shape)} is needed")


def finite(name: str, x: Any, shape: Shape) -> np.ndarray:
    """Finite numbers (…, shape) of x, flat (…, size) as well. Raises InvalidInput."""
    found = real(name, x)
    found = found.reshape(leading(name, found, shape) + shape)
    reject_not_finite(name, found, len(shape))
    return found


def common(leads: Mapping[str, Shape]) -> Shape:
    """The batch axes to which these broadcast. Raises InvalidInput that shows all."""
    try:
        return np.broadcast_shapes(*leads.values())
    except ValueError:
        raise InvalidInput(f"the leading (batch) axes do not fit together: {_listed(leads)}") from None


def reject_not_finite(name: str, x: np.ndarray, axes: int) -> None:
    """Raise InvalidInput that names the first entry of x that is infinite or not a number; axes: of one state."""
    finite = np.isfinite(x)
    if finite.all():
        return
    where = tuple(int(k) for k in np.argwhere(~finite)[0])
    split = len(where) - axes
    words = [
        f"{what} {k[0] if len(k) == 1 else k}" for what, k in (("state", where[:split]), ("entry", where[split:])) if k
    ]
    raise InvalidInput(f"{name} is {x[where]}{' at ' * bool(words)}{', '.join(words)}: every input must be finite")


def shown(lead: Sequence, shape: Shape) -> str:
    """A shape in messages."""
    axes = [*map(str, (*lead, *shape))]
    return f"({axes[0]},)" if len(axes) == 1 else f"({', '.join(axes)})"


def _listed(leads: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {lead}" for name, lead in leads.items())
