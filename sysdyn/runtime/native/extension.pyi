"""Types of the C extension, which the C files describe."""

from collections.abc import Callable
from typing import Any

import numpy as np

SOURCE: int  # CRC-32 of the C sources that it was built from

class Called:
    """Base of classes whose `__call__` is an `Entry`. _plain: calls of one state, which it tries first."""

    _plain: list

class Result:
    """Base of the solutions that such a call returns."""

    _about: Any
    _given: Any
    _row: Any

class Entry:
    def __init__(self, general: Callable, /) -> None: ...

class Quantity:
    def __init__(self, name: str, general: Callable[[Any], Any], /) -> None: ...

class Plain:
    def __init__(self, *arguments: Any) -> None: ...

class Chain:
    def __init__(self, *arguments: Any) -> None: ...
    def __call__(self, values: np.ndarray, begin: int, rest: np.ndarray, /) -> np.ndarray | None: ...

def prepared(kernel: int, words: int, n: int, /) -> Callable[[], None]: ...
def batch(*arguments: Any) -> Any: ...
def twice(*arguments: Any) -> None: ...
def again(*arguments: Any) -> int: ...
