"""Repeated kernel calls by compiled code, such as the steps of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.runtime.native import extension


@dataclass(frozen=True)
class TimeLoop:
    """Consecutive calls of a kernel. All arrays are int64; the loop changes them in place.

    Time steps write the two sets of mode flags alternately. The loop ends early if the status of a state is not 0 or if
    the two sets differ. It can be resumed after the call at which it ended.

    kernel        address of the code
    status        (n,) of the n states
    words         (period, width): call k has words[k % period], see `sysdyn.runtime.kernel`
    increments    (period, width): added to these words after each call
    mode_flags    (2, …), compared after the first call of each time step
    substeps      calls per time step
    record_every  calls from one record to the next; the first call is recorded
    records       (…, 4): index of the word with the address of the recorded array, destination address, size in bytes,
                  and stride of the destination in bytes
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

        resume: the kernel has already made the first call; the loop starts with its record. It runs without the GIL.
        """
        return extension.run_time_loop(
            self.kernel, self.words, self.words.shape[1], self.increments, self.status, self.mode_flags, self.substeps,
            self.record_every, self.records, first, last, resume,
        )  # fmt: skip
