"""Reuse of result arrays that the caller has dropped: page faults of new memory can cost more than a kernel."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

# Sizes of results in bytes that are kept: malloc reuses smaller ones, larger ones would be missed elsewhere (chosen).
MIN_BYTES, MAX_BYTES = 2**17, 2**27


class BufferPool:
    """Returns the arrays of the previous call if nothing else refers to them, else new ones."""

    def __init__(self) -> None:
        self._previous: list[dict[str, np.ndarray]] = []  # at most one; list.pop is safe among threads

    def arrays(self, shapes: Mapping[str, tuple[int, ...]], dtype: Any) -> dict[str, np.ndarray]:
        """Arrays of these shapes with arbitrary entries."""
        try:
            arrays = self._previous.pop()
        except IndexError:
            arrays = {}
        if {name: x.shape for name, x in arrays.items()} != shapes or _max_references(arrays) > _UNSHARED:
            arrays = {name: np.empty(shape, dtype) for name, shape in shapes.items()}
        if _COUNTED and MIN_BYTES <= np.dtype(dtype).itemsize * sum(map(math.prod, shapes.values())) <= MAX_BYTES:
            self._previous = [arrays]
        return dict(arrays)


def _max_references(arrays: Mapping[str, np.ndarray]) -> int:
    """Largest reference count of the arrays; a view is a reference."""
    return max((sys.getrefcount(x) for x in arrays.values()), default=0)


# Free-threaded Pythons count references by thread: there nothing is reused.
_COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()
# Count of an array that only a dict of the pool holds.
_UNSHARED = _max_references({"": np.empty(0)})
