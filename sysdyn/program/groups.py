"""Named arrays that programs and calls take and give, and the checks of arguments against them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.program.arrays import (
    DOUBLES,
    batch_axes,
    broadcast_shapes,
    float_array,
    format_shape,
    is_readable_in_place,
    reject_not_finite,
)
from sysdyn.program.labels import array_by_label, as_frame

# dict[str, np.ndarray] by the name of a group.
Arrays: TypeAlias = Mapping[str, np.ndarray]


def slices(sizes: Iterable[int]) -> list[slice]:
    """Slices of parts of these sizes, one after the other."""
    ends = [0, *accumulate(sizes)]
    return [slice(a, b) for a, b in pairwise(ends)]


@dataclass(frozen=True, eq=False)
class Group:
    """One array that a program or call takes or gives.

    name            name in programs and files
    shape           shape at one state; arrays of several axes may be handed in flat, too
    labels          name of each scalar, as of columns in files and tables
    units           unit of each scalar; "" if unknown
    default         (size,) value if none is handed in; None: the caller has to hand one in
    meaning         description in headers of exported code; "" if the name is enough
    label           name in messages to callers; `name` if ""
    argument_hint   how to hand it in, as in "tau="; from the label if ""
    """

    name: str
    shape: tuple[int, ...]
    labels: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    default: np.ndarray | None = None
    meaning: str = ""
    label: str = ""
    argument_hint: str = ""

    @property
    def size(self) -> int:
        """Number of scalars at one state."""
        return math.prod(self.shape)

    @property
    def display_name(self) -> str:
        """Name in messages."""
        return self.label or self.name

    @property
    def description(self) -> str:
        """One line: the meaning, or the name, and the units."""
        units = ", ".join(dict.fromkeys(filter(None, self.units)))
        return f"{self.meaning} [{units}]" if self.meaning and units else self.meaning or self.name

    def batch_axes(self, x: np.ndarray) -> tuple[int, ...]:
        """Batch axes of a value (…, *shape) or (…, size). Raises InvalidInput naming both shapes."""
        return batch_axes(self.display_name, x, self.shape)

    def require_default(self) -> np.ndarray:
        """The default. Raises InvalidInput if there is none."""
        if self.default is None:
            hint = self.argument_hint or f"{self.display_name}="
            raise InvalidInput(f"no value was given for {self.display_name!r}: pass {hint}")
        return self.default


class Groups(Mapping[str, Group]):
    """Groups by name, in order; their scalars, one group after the other, are a row."""

    def __init__(self, groups: Iterable[Group]):
        self._groups = {x.name: x for x in groups}
        self._columns: dict[tuple[str, ...], slice | np.ndarray] = {}

    @staticmethod
    def of_sizes(sizes: Iterable[tuple[str, int]]) -> Groups:
        """Groups of these names and sizes."""
        return Groups(Group(name, (size,)) for name, size in sizes)

    def __getitem__(self, name: str) -> Group:
        return self._groups[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __repr__(self) -> str:
        return f"Groups({self.sizes})"

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each group."""
        return {name: x.size for name, x in self.items()}

    @cached_property
    def size(self) -> int:
        """Number of scalars in a row."""
        return sum(self.sizes.values())

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Slice of each group in a row."""
        return dict(zip(self, slices(self.sizes.values()), strict=True))

    def columns(self, names: tuple[str, ...]) -> slice | np.ndarray:
        """Columns of some groups in a row: a slice if they follow one another, else their numbers."""
        columns = self._columns.get(names)
        if columns is None:
            columns = np.concatenate([np.arange(0), *(np.arange(self.size)[self.slices[x]] for x in names)])
            first = int(columns[0]) if len(columns) else 0
            if np.array_equal(columns, np.arange(first, first + len(columns))):
                columns = slice(first, first + len(columns))
            self._columns[names] = columns
        return columns

    # ---- arguments -----------------------------------------------------------------------------------------------

    def normalise_inputs(self, arguments: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        """({group: (size,) or (N, size) C-contiguous float64}, batch axes); defaults stand in for missing values.

        Raises InvalidInput naming a value that is missing, of another type or shape, or of other batch axes.
        """
        arrays: dict[str, np.ndarray] = {}
        leads: dict[str, tuple[int, ...]] = {}
        for name, group in self.items():
            value = arguments[name] if name in arguments else group.require_default()
            if type(value) is np.ndarray and value.dtype == np.float64:
                x = value
            elif group.labels and (frame := as_frame(value)) is not None:
                x = array_by_label(group.display_name, frame, group.labels)
            else:
                x = float_array(group.display_name, value)
            arrays[name] = x
            if x.shape == (group.size,):
                arrays[name] = x if x.flags.c_contiguous else np.ascontiguousarray(x)
            else:
                leads[name] = group.batch_axes(x)
        if not leads:
            return arrays, ()
        lead = broadcast_shapes({self[name].display_name: axes for name, axes in leads.items()})
        for name, axes in leads.items():
            x, size = arrays[name], self[name].size
            if all(k == 1 for k in axes):
                arrays[name] = np.ascontiguousarray(x.reshape(size))
                continue
            if axes != lead:
                x = np.broadcast_to(x, lead + x.shape[len(axes) :])
            arrays[name] = np.ascontiguousarray(x.reshape(math.prod(lead), size))  # size may be 0
        return arrays, lead

    def check_in_place(
        self, arguments: Mapping[str, Any], dtype: np.dtype = DOUBLES
    ) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        """The same for arrays that a bound call keeps and reads in place: nothing is converted or copied."""
        arrays: dict[str, np.ndarray] = {}
        leads: dict[str, tuple[int, ...]] = {}
        for name, group in self.items():
            x = arguments[name] if name in arguments else group.require_default().astype(dtype, copy=False)
            if not is_readable_in_place(x, dtype):
                raise InvalidInput(
                    f"bind keeps {group.display_name} and reads it in place: it must be a C-contiguous {dtype.name} "
                    "array, not masked"
                )
            lead = group.batch_axes(x)
            if len(lead) > 1:
                needed = f"{format_shape(group.shape)} or (N, …) is needed"
                raise InvalidInput(f"{group.display_name} has shape {x.shape}, but {needed}")
            arrays[name] = x.reshape(*lead, group.size)
            if lead:
                leads[group.display_name] = lead
        if len(set(leads.values())) > 1:
            counts = ", ".join(f"{name} {lead}" for name, lead in leads.items())
            raise InvalidInput(f"the arrays hold different numbers of states: {counts}")
        return arrays, next(iter(leads.values()), ())

    def reject_not_finite(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise InvalidInput naming the first entry of normalised inputs that is infinite or NaN."""
        for name, x in arrays.items():
            reject_not_finite(self[name].display_name, x, 1)


def bind_arguments(
    callee: str, valid: Sequence[str], positional: Sequence[str], values: Sequence, by_name: Mapping[str, Any],
    first: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Bind positional and keyword arguments to names, like `inspect.Signature.bind`.

    valid: all names that `callee` takes; positional: those that may go by position; first: arguments before these.
    Raises InvalidInput for too many values and for one given twice, UnknownName.
    """
    if len(values) > len(positional):
        takes = ", ".join((*first, *(x if x in positional else f"{x}=…" for x in valid)))
        raise InvalidInput(f"{len(first) + len(values)} values were given by position, but {callee} takes ({takes})")
    bound = dict(zip(positional, values, strict=False))
    for name, value in by_name.items():
        if name in bound:
            raise InvalidInput(f"{name} is given twice: by position and by keyword")
        if name not in valid:
            raise UnknownName(f"argument of {callee}:", name, (*first, *valid))
        bound[name] = value
    return bound


def select_names(
    kind: str, names: str | Sequence[str] | None, default: Sequence[str], valid: Collection[str]
) -> tuple[str, ...]:
    """The names, each once; the default for None. Raises UnknownName, and InvalidInput if there are none."""
    names = default if names is None else (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        check_among(kind, name, valid)
    if not names:
        raise InvalidInput(f"no {kind} is named: give some of {', '.join(valid)}")
    return tuple(dict.fromkeys(names))
