"""A kernel called again and again by compiled code, such as the steps of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.runtime.native import extension


@dataclass(frozen=True)
class TimeLoop:
    """Calls of a kernel, one after the other; arrays of int64, which the loop changes in place.

    The loop ends early if a state has a status, or if the two sets of mode flags, which time steps write in turns,
    differ; it can be resumed after the call at which it ended.

    kernel        address of the code
    status        (n,) of the n states
    words         (period, width): call k has words[k % period], see `sysdyn.runtime.kernel`
    increments    (period, width): added to these words after each call
    mode_flags    (2, …), compared after the first call of each time step
    substeps      calls of a time step
    record_every  calls from one record to the next; the first call is recorded
    records       (…, 4): word with the address of the recorded array, address of its next place, bytes, and distance
                  from place to place
    """

    kernel: int
    status: np.ndarray
    words: np.ndarray
    increments: np.ndarray
    mode_flags: np.ndarray
    substeps: int
    record_every: int
    records: np.ndarray

    def run(self, first: int, last: int, resume: bool = False) -> int:
        """Make the calls first … last − 1 and return the number of the call at which the loop ended, or `last`.

        resume: the first call was made before; only what follows it is left to do. The interpreter's lock is released.
        """
        return extension.run_time_loop(
            self.kernel, self.words, self.words.shape[1], self.increments, self.status, self.mode_flags, self.substeps,
            self.record_every, self.records, first, last, resume,
        )  # fmt: skip
