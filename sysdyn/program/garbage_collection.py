"""Python's collector of cyclic garbage, kept from walking millions of objects that all stay alive."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Context without cyclic garbage collection: graphs, programs and the text of machine code have few cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
