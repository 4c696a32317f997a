"""Arguments with labels: DataFrames and Series go in by the names of their columns, never by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.program.arrays import refused


def frame_of(x: Any) -> Any:
    """x as a DataFrame of pandas, or a Series (one row); None if it has no labels."""
    if isinstance(x, np.ndarray):
        return None
    if hasattr(x, "to_pandas"):  # of Arrow, Polars, xarray
        x = x.to_pandas()
    return x if hasattr(x, "to_numpy") and (hasattr(x, "columns") or hasattr(x, "index")) else None


def labels_of(x: Any) -> list[str]:
    return [str(label) for label in (x.columns if hasattr(x, "columns") else x.index)]


def places(name: str, found: Sequence[str], labels: Sequence[str]) -> dict[int, int]:
    """{place in labels: place in found}; a label "tau:l_knee" may also be "tau.l_knee" or "l_knee" alone.

    Raises InvalidInput for those that are unknown or occur twice.
    """
    spelled: dict[str, set[int]] = {}
    for k, label in enumerate(labels):
        whole, bare = label.replace(": ", ":", 1), label.partition(":")[2].strip()
        for form in (label, whole, whole.replace(":", ".", 1), bare):
            spelled.setdefault(form, set()).add(k)
    result: dict[int, int] = {}
    for j, label in enumerate(found):
        meant = spelled.get(label, set())
        if len(meant) != 1:
            raise InvalidInput(
                f"{name} has the label {label!r}, but its labels are {', '.join(labels[:6])}"
                f"{' …' if len(labels) > 6 else ''}: choose and name its columns, or hand in an array (to_numpy)"
            )
        (k,) = meant
        if k in result:
            raise InvalidInput(f"{name} has two columns for {labels[k]!r}")
        result[k] = j
    return result


def by_label(name: str, x: Any, labels: Sequence[str]) -> np.ndarray:
    """The numbers of a DataFrame (N, labels) or Series (labels,) in the order of the labels. Raises InvalidInput."""
    found = places(name, labels_of(x), labels)
    missing = [label for k, label in enumerate(labels) if k not in found]
    if missing:
        raise InvalidInput(f"{name} lacks the columns {', '.join(missing[:6])}{' …' if len(missing) > 6 else ''}")
    return numbers(name, x)[..., [found[k] for k in range(len(labels))]]


def numbers(name: str, x: Any) -> np.ndarray:
    """The numbers of a DataFrame or Series as they lie; NaN if there is none. Raises InvalidInput for other types."""
    types = dict(zip(labels_of(x), x.dtypes, strict=True)) if hasattr(x, "columns") else {"": x.dtype}
    for label, dtype in types.items():
        if why := refused(dtype):
            raise InvalidInput(f"{name}{label and f', column {label!r},'} has {why}")
    return x.to_numpy(dtype=float, na_value=math.nan)
