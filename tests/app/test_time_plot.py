"""Plots over time: curves of long logs are thinned."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.app.time_plot import Bands
from sysdyn.views.curves import POINTS


@pytest.mark.parametrize(("n", "rows"), [(10_000, 4096), (POINTS + 1, 7), (POINTS, 64), (5, 5)])
def test_pictures_of_long_logs_are_thinned(n, rows):
    """Every 2^k-th state of a log of any length, whatever the chunks are."""
    bands = Bands(sd.chain(3), "tau")
    for begin in range(0, n, rows):
        t = np.arange(begin, min(begin + rows, n), dtype=float)
        bands.add({"t": t, "tau": np.sin(t)[:, None] * [1, 2, 3]})
    (line,) = bands.figure().axes[0].lines
    drawn = line.get_xdata()
    step = drawn[1] - drawn[0]
    assert len(drawn) <= POINTS and step == 2 ** round(np.log2(step))
    np.testing.assert_array_equal(drawn, np.arange(0, n, step))
    assert n <= POINTS or len(drawn) > POINTS / 2
    np.testing.assert_array_equal(line.get_ydata(), np.sin(drawn))
