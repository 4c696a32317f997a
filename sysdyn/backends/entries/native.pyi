"""The functions that are compiled from native.c, where a C compiler was there when the package was built.

They are for `sysdyn.backends.entries.calls` alone, and trust what it hands over. Tables are C-contiguous int64 arrays:
of targets (axes, four lengths of axes, entries, at, scattered), of outputs (axes, four lengths, word, at); see native.c.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

# The checksum of the source that was compiled.
SOURCE: int

class Plain:
    """A call of one state by arguments of certain names and shapes, for `Entry`.

    kernel: its address. words: as `sysdyn.backends.kernel` has them, with the addresses of the groups in `inputs`
    (float64, all of them). n_outputs, n_inputs: numbers in a row of results. quaternions: where they begin among the
    inputs. muted: inputs that are taken for 0 unless they are finite. keys: names of the outputs.
    positional: number of arguments by position; keywords: ((name, what, number of the first array), …), what being
    Ellipsis for an array, or a dict of such, or the object that is given. make: a subclass of `Result`, which gets
    about, the call and a row of results; or dict, tuple or, for a single array, None. keep: what has to live as long.
    """

    layout: Any
    def __init__(
        self, kernel: int, words: np.ndarray, inputs: np.ndarray, n_outputs: int, n_inputs: int, targets: np.ndarray,
        places: np.ndarray, quaternions: np.ndarray, muted: np.ndarray, outputs: np.ndarray, keys: tuple,
        positional: int, keywords: tuple, make: type | None, about: object, layout: object, keep: object,
    ) -> None: ...  # fmt: skip

class Entry:
    """A method that tries the calls in the list `_plain` of its object, and goes the general way if none fits."""

    def __init__(self, general: Callable) -> None: ...

class Result:
    """Results of a plain call, in a row, or others, which Python code keeps in `_given`."""

    _about: Any
    _given: Any
    @property
    def _row(self) -> np.ndarray | None: ...

class Quantity:
    """An attribute of results: a view of their row, or what the general function of an object gives."""

    def __init__(self, name: str, general: Callable) -> None: ...

def prepared(kernel: int, words: int, n: int) -> Callable[[], None]:
    """A function without arguments that runs a kernel, with the interpreter's lock held."""

def batch(
    kernel: int, words: np.ndarray, targets: np.ndarray, quaternions: np.ndarray, most: int, work: int, outputs: tuple,
    status: np.ndarray, arrays: tuple, counter: np.ndarray | None,
) -> bool | None:  # fmt: skip
    """Whether every status is 0 at the states of a batch; see `sysdyn.backends.entries.calls.Batch`."""
