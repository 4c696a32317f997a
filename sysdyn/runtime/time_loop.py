"""Repeated kernel calls by compiled code, such as the steps of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.runtime.native import extension


@dataclass(frozen=True)
class TimeLoop:
    """Calls a kernel repeatedly, with arguments that change from call to call.

    All arrays are int64; the loop changes them in place. It ends early at a call that sets a status bit, or if the
    active set changes. To detect a change, even and odd time steps write their flags to `mode_flags[0]` and
    `mode_flags[1]`, and the loop compares the two. The caller can resume the loop at the call at which it ended.

    Attributes
    ----------
    kernel : int
        Address of the kernel.
    status : (n,) array
        Status of the n states.
    words : (period, width) array
        Arguments of the kernel: call k uses words[k % period], see `sysdyn.runtime.kernel`.
    increments : (period, width) array
        Added to the words of a call after it.
    mode_flags : (2, …) array
        Flags of the active set at even and at odd time steps, compared after the first call of each step.
    substeps : int
        Calls per time step.
    record_every : int
        Calls k = 0, record_every, 2 record_every, … are recorded: the loop copies arrays after these calls.
    records : (…, 4) array
        Arrays to copy: index of the word that contains their address, destination address, size in bytes, and increment
        of the destination address in bytes.
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
        """Make the calls first … last − 1 without the GIL. Returns the call at which the loop ended early, or `last`.

        resume: True if call `first` is already computed, for example by another solver; the loop then only records it.
        """
        return extension.run_time_loop(
            self.kernel, self.words, self.words.shape[1], self.increments, self.status, self.mode_flags, self.substeps,
            self.record_every, self.records, first, last, resume,
        )  # fmt: skip
