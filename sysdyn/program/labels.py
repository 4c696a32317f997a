"""DataFrames and Series as arguments: their columns go in by label, never by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, few
from sysdyn.program.arrays import dtype_problem


def as_frame(x: Any) -> Any:
    """x as a pandas DataFrame, or a Series (one state); None if x has no labels."""
    if isinstance(x, np.ndarray):
        return None
    if hasattr(x, "to_pandas"):  # of Arrow, Polars, xarray
        x = x.to_pandas()
    return x if hasattr(x, "to_numpy") and (hasattr(x, "columns") or hasattr(x, "index")) else None


def column_labels(frame: Any) -> list[str]:
    """Labels of the columns of a DataFrame, or of the entries of a Series."""
    return [str(label) for label in (frame.columns if hasattr(frame, "columns") else frame.index)]


def match_labels(name: str, columns: Sequence[str], labels: Sequence[str]) -> dict[int, int]:
    """{position in labels: position in columns}; a column for "tau:l_knee" may be "tau.l_knee" or "l_knee", too.

    Raises InvalidInput for columns that are unknown or occur twice.
    """
    spellings: dict[str, set[int]] = {}
    for k, label in enumerate(labels):
        compact, bare = label.replace(": ", ":", 1), label.partition(":")[2].strip()
        for spelling in (label, compact, compact.replace(":", ".", 1), bare):
            spellings.setdefault(spelling, set()).add(k)
    positions: dict[int, int] = {}
    for j, column in enumerate(columns):
        matches = spellings.get(column, set())
        if len(matches) != 1:
            raise InvalidInput(
                f"{name} has the label {column!r}, but its labels are {few(labels)}: choose and name its columns, or "
                "hand in an array (to_numpy)"
            )
        (k,) = matches
        if k in positions:
            raise InvalidInput(f"{name} has two columns for {labels[k]!r}")
        positions[k] = j
    return positions


def array_by_label(name: str, frame: Any, labels: Sequence[str]) -> np.ndarray:
    """Numbers of a DataFrame (N, labels) or Series (labels,) in the order of the labels. Raises InvalidInput."""
    positions = match_labels(name, column_labels(frame), labels)
    if missing := [label for k, label in enumerate(labels) if k not in positions]:
        raise InvalidInput(f"{name} lacks the columns {few(missing)}")
    return frame_array(name, frame)[..., [positions[k] for k in range(len(labels))]]


def frame_array(name: str, frame: Any) -> np.ndarray:
    """Numbers of a DataFrame or Series in its own order; NaN for missing ones. Raises InvalidInput for other types."""
    is_series = not hasattr(frame, "columns")
    types = [("", frame.dtype)] if is_series else zip(column_labels(frame), frame.dtypes, strict=True)
    for label, dtype in types:
        if problem := dtype_problem(dtype):
            raise InvalidInput(f"{name}{label and f', column {label!r},'} has {problem}")
    return frame.to_numpy(dtype=float, na_value=math.nan)
