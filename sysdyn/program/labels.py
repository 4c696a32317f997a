"""DataFrames and Series as arguments: columns are matched by label, never by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, few
from sysdyn.program.arrays import dtype_problem


def as_frame(x: Any) -> Any:
    """Convert x to a pandas DataFrame, or to a Series for one state; None if x has no labels."""
    if isinstance(x, np.ndarray):
        return None
    if hasattr(x, "to_pandas"):  # Arrow, Polars, xarray
        x = x.to_pandas()
    return x if hasattr(x, "to_numpy") and (hasattr(x, "columns") or hasattr(x, "index")) else None


def column_labels(frame: Any) -> list[str]:
    """Column labels of a DataFrame, or entry labels of a Series."""
    return [str(label) for label in (frame.columns if hasattr(frame, "columns") else frame.index)]


def match_labels(name: str, columns: Sequence[str], labels: Sequence[str]) -> dict[int, int]:
    """Match columns to labels. The label "tau:l_knee" also matches the columns "tau.l_knee" and "l_knee".

    Returns {position in labels: position in columns}. Raises InvalidInput for unknown and for duplicate columns.
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
                f"{name} has the label {column!r}, but its labels are {few(labels)}: select and rename the columns, or "
                "pass an array (to_numpy)"
            )
        (k,) = matches
        if k in positions:
            raise InvalidInput(f"{name} has two columns for {labels[k]!r}")
        positions[k] = j
    return positions


def array_by_label(name: str, frame: Any, labels: Sequence[str]) -> np.ndarray:
    """Values of a DataFrame (N, labels) or Series (labels,) in the order of `labels`. Raises InvalidInput."""
    positions = match_labels(name, column_labels(frame), labels)
    if missing := [label for k, label in enumerate(labels) if k not in positions]:
        raise InvalidInput(f"{name} lacks the columns {few(missing)}")
    return frame_array(name, frame)[..., [positions[k] for k in range(len(labels))]]


def frame_array(name: str, frame: Any) -> np.ndarray:
    """Values of a DataFrame or Series in its order of labels, NaN if missing. Raises InvalidInput for other dtypes."""
    is_series = not hasattr(frame, "columns")
    types = [("", frame.dtype)] if is_series else zip(column_labels(frame), frame.dtypes, strict=True)
    for label, dtype in types:
        if problem := dtype_problem(dtype):
            raise InvalidInput(f"{name}{label and f', column {label!r},'} has {problem}")
    return frame.to_numpy(dtype=float, na_value=math.nan)
