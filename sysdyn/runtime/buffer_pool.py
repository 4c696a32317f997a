"""Reuse of result arrays without references: page faults of new memory can cost more than a kernel."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

# Range of result sizes in bytes to reuse: malloc reuses smaller ones; larger ones would waste memory (chosen).
MIN_BYTES, MAX_BYTES = 2**17, 2**27


class BufferPool:
    """Reuses the arrays of the previous call if there are no other references to them; otherwise allocates new ones."""

    def __init__(self) -> None:
        self._previous: list[dict[str, np.ndarray]] = []  # at most one; list.pop is safe among threads

    def arrays(self, shapes: Mapping[str, tuple[int, ...]], dtype: Any) -> dict[str, np.ndarray]:
        """Uninitialised arrays of `shapes` {name: shape}."""
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
    """Largest reference count of the arrays; each view of an array counts as a reference."""
    return max((sys.getrefcount(x) for x in arrays.values()), default=0)


# Free-threaded Python counts references per thread, so the pool reuses no arrays there.
_COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()
# Reference count of an array to which only the pool refers.
_UNSHARED = _max_references({"": np.empty(0)})
