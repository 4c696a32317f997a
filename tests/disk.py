"""A disk that is full, for files of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# What the system says of a file that grows beyond the limit.
FULL = "File too large"


@contextmanager
def no_room(most: int = 4) -> Iterator[None]:
    """Files may have so many bytes within: the kernel refuses to write more."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
