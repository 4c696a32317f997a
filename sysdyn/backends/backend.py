"""The contract of a back end: a program, and a way to run it on one state, on many, and by prepared calls.

Arrays are C-contiguous float64 by name of the program's groups: inputs (N, size), or (size,) for what all states share;
outputs (N, size). status (N,) int64 receives for each state the bits of `sysdyn.program.status`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from sysdyn.program.program import Program

Arrays = Mapping[str, np.ndarray]
Results = tuple[dict[str, np.ndarray], np.ndarray]  # ({output: (N, size)}, status (N,))


class Direct(NamedTuple):
    """A call of one state that checks its arrays itself.

    call(result, tuple of arrays, None or a dict of the last arrays by their keys) writes the outputs, then the inputs
    up to the last one that an argument gives, to `result` (length,) and says whether the status is zero. None, with
    nothing done, where an array is no plain one of float64 of its argument's shape, or keys are other objects than
    those of the arguments or in another order.
    keep: what has to stay alive as long as the call.
    """

    call: Callable[..., bool | None]
    length: int
    keep: object


class Argument(NamedTuple):
    """An array that a direct call takes: its shape, and the number of the program's input that each entry is.

    key: under which it may be handed over in a dict.
    """

    shape: tuple[int, ...]
    inputs: np.ndarray
    key: str | None = None


class Batch(NamedTuple):
    """A call of N states that checks its arrays itself.

    call(outputs by group (N, size), status (N,), tuple of arrays, counter) says whether every status is 0. None, with
    nothing done, unless the arrays are of float64 and of their argument's shape, C-contiguous, or of N times that, with
    states that are. None, too, where a quaternion is not normalised to the last bits.
    counter: None, or for threads that share the states an array of int64: 0, states of a region, states at a time, then
    a 0 for each region, of which there are as many as threads.
    keep: what has to stay alive as long as the call.
    """

    call: Callable[..., bool | None]
    keep: object


class Backend(ABC):
    """A program made ready to run. A back end is a subclass, and a line in `sysdyn.backends.registry.BACKENDS`.

    level: of code generation, 0 (fast to compile) to 3, for those that generate code. zeros: outputs that are the
    constant 0 are written, too; where not, they have to be 0 beforehand. Runs may be under way on many threads.
    """

    name: ClassVar[str]
    binds: ClassVar[bool] = False  # Whether the back end has prepared calls.
    shares: ClassVar[bool] = False  # Whether parts of a batch run faster on threads side by side.
    width: int = 1  # Parts of a batch are multiples of so many states.

    def __init__(self, program: Program, level: int = 2, zeros: bool = True):
        self.require()
        self.program, self.level, self.zeros = program, level, zeros

    def __reduce__(self):
        return type(self), (self.program, self.level, self.zeros)

    @classmethod
    def require(cls) -> None:
        """Raise BackendUnavailable, with the remedy, unless what the back end needs is installed."""
        return None

    @abstractmethod
    def run(self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int) -> None:
        """Run states start … start + size − 1 of the batch."""

    @abstractmethod
    def guarded(self, inputs: Arrays) -> np.ndarray:
        """(N, guards): the values that the program guards."""

    def one(self, inputs: Arrays) -> Results:
        """The results at one state, in new arrays of one row."""
        outputs, status = self.new(1)
        self.run(inputs, outputs, status, 0, 1)
        return outputs, status

    def prepared(
        self, inputs: Arrays, outputs: Arrays, status: np.ndarray, start: int, size: int, single: bool
    ) -> tuple[Callable[[], None], object]:
        """(a call without arguments that runs these states, what has to stay alive as long as it).

        single: the state is the only one, so that the call should be one of least latency. Only where `binds`.
        """
        raise NotImplementedError(f"{self.name} has no prepared calls")

    def direct(self, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int]) -> Direct | None:
        """The call of least latency at one state that takes these arrays; None where there is none.

        constants (n_inputs,): inputs that no argument gives. quaternions: numbers of the inputs at which unit
        quaternions begin; those of norm 1 within 1e-6 are normalised, for others the call does nothing.
        """
        return None

    def batch(self, arguments: Sequence[Argument], constants: np.ndarray, quaternions: Sequence[int]) -> Batch | None:
        """The call of least latency at many states that takes these arrays, as they are; None where there is none.

        constants and quaternions as for `direct`.
        """
        return None

    def new(self, n: int) -> Results:
        """New arrays for the results at n states."""
        new = np.empty if self.zeros else np.zeros
        return {name: new((n, size)) for name, size in self.program.output_groups}, np.empty(n, dtype=np.int64)
