"""Memory of results that nobody refers to any more, for those of the next call: new memory costs page faults."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

# Least and most bytes of results whose memory is kept: smaller ones come from memory that is there, and more would be
# missed elsewhere (chosen; measured on the iCub: 1,000 states of derivatives of 25 to 35 MB took twice the time).
SMALLEST_KEPT, LARGEST_KEPT = 2**17, 2**27


class Released:
    """The arrays that were handed out last, which are handed out again if only they themselves are left of them."""

    def __init__(self) -> None:
        self._last: dict[None, dict[str, np.ndarray]] = {}

    def arrays(self, shapes: Mapping[str, tuple[int, ...]], dtype: Any) -> dict[str, np.ndarray]:
        """Arrays of these shapes, whose entries are arbitrary."""
        last = self._last.pop(None, None)  # at once: another thread finds none, and makes its own
        fit = last is not None and {name: x.shape for name, x in last.items()} == shapes
        if last is None or not fit or _references(last) > _ALONE or not _COUNTED:
            last = {name: np.empty(shape, dtype) for name, shape in shapes.items()}
        if (
            _COUNTED
            and SMALLEST_KEPT <= np.dtype(dtype).itemsize * sum(map(math.prod, shapes.values())) <= LARGEST_KEPT
        ):
            self._last[None] = last
        return dict(last)


def _references(arrays: Mapping[str, np.ndarray]) -> int:
    """The greatest number of references to one of these arrays; views are references."""
    return max((sys.getrefcount(x) for x in arrays.values()), default=0)


# True if one number counts all references; free-threaded Pythons count them by thread.
_COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()
# Number of references to an array that nobody else holds.
_ALONE = _references({"": np.empty(0)})
