"""Groups: the named input and output arrays of programs and calls, and checks of arguments."""

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

# {group name: array}
Arrays: TypeAlias = Mapping[str, np.ndarray]


def slices(sizes: Iterable[int]) -> list[slice]:
    """Consecutive slices of the given sizes."""
    ends = [0, *accumulate(sizes)]
    return [slice(a, b) for a, b in pairwise(ends)]


@dataclass(frozen=True, eq=False)
class Group:
    """An input or output array of a program or call.

    Attributes
    ----------
    name : str
        Name in programs and files.
    shape : tuple of int
        Shape at one state. A call also accepts the flattened array.
    labels : sequence of str
        Name of each scalar, used for columns in files and tables.
    units : sequence of str
        Unit of each scalar; "" if unknown.
    default : (size,) array or None
        Default value; None if the argument is required.
    meaning : str
        Description in headers of exported code; "" if the name is enough.
    label : str
        Name in messages; "" for `name`.
    argument_hint : str
        Syntax of the argument in messages, such as "tau="; "" to derive it from the label.
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
        """Number of scalars of one state."""
        return math.prod(self.shape)

    @property
    def display_name(self) -> str:
        """Name in messages."""
        return self.label or self.name

    @property
    def description(self) -> str:
        """One line with the meaning (or the name) and the units."""
        units = ", ".join(dict.fromkeys(filter(None, self.units)))
        return f"{self.meaning} [{units}]" if self.meaning and units else self.meaning or self.name

    def batch_axes(self, x: np.ndarray) -> tuple[int, ...]:
        """Batch axes of a value (…, *shape) or (…, size). Raises InvalidInput with both shapes."""
        return batch_axes(self.display_name, x, self.shape)

    def require_default(self) -> np.ndarray:
        """The default value. Raises InvalidInput if the argument is required."""
        if self.default is None:
            hint = self.argument_hint or f"{self.display_name}="
            raise InvalidInput(f"no value was given for {self.display_name!r}: pass {hint}")
        return self.default


class Groups(Mapping[str, Group]):
    """Ordered groups by name. A row concatenates the scalars of all groups."""

    def __init__(self, groups: Iterable[Group]):
        self._groups = {x.name: x for x in groups}
        self._columns: dict[tuple[str, ...], slice | np.ndarray] = {}

    @staticmethod
    def of_sizes(sizes: Iterable[tuple[str, int]]) -> Groups:
        """Groups from (name, size) pairs."""
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
        """{group: size}."""
        return {name: x.size for name, x in self.items()}

    @cached_property
    def size(self) -> int:
        """Number of scalars in a row."""
        return sum(self.sizes.values())

    @cached_property
    def slices(self) -> dict[str, slice]:
        """{group: slice in a row}."""
        return dict(zip(self, slices(self.sizes.values()), strict=True))

    def columns(self, names: tuple[str, ...]) -> slice | np.ndarray:
        """Columns of the groups `names` in a row: a slice if they are contiguous, else indices."""
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
        """Convert arguments to arrays and broadcast their batch axes. Missing arguments get their default.

        Returns
        -------
        arrays : dict
            {group: (size,) or (N, size) C-contiguous float64 array}.
        batch_axes : tuple of int

        Raises
        ------
        InvalidInput
            For a missing required value, a wrong type or shape, and batch axes that do not broadcast.
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
        """Like `normalise_inputs`, but for the arrays of a bound call: they are checked, not converted or copied."""
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
            raise InvalidInput(f"the arrays have different numbers of states: {counts}")
        return arrays, next(iter(leads.values()), ())

    def reject_not_finite(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise InvalidInput with the first infinite or NaN entry of normalised inputs."""
        for name, x in arrays.items():
            reject_not_finite(self[name].display_name, x, 1)


def bind_arguments(
    callee: str, valid: Sequence[str], positional: Sequence[str], values: Sequence, by_name: Mapping[str, Any],
    first: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Bind positional and keyword arguments to names, like `inspect.Signature.bind`.

    Parameters
    ----------
    callee : str
        Name of the function in messages.
    valid, positional : sequences of str
        All parameter names; names of the positional parameters.
    values : sequence
        Positional arguments.
    by_name : mapping
        Keyword arguments.
    first : sequence of str
        Parameters that precede `positional` and are already bound.

    Raises
    ------
    InvalidInput
        For too many positional arguments, or for an argument that is passed by position and by keyword.
    UnknownName
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
    """Unique names of a selection; `default` for None. Raises UnknownName, and InvalidInput for an empty selection."""
    names = default if names is None else (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        check_among(kind, name, valid)
    if not names:
        raise InvalidInput(f"no {kind} is selected: choose from {', '.join(valid)}")
    return tuple(dict.fromkeys(names))
