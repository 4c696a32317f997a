"""Plots over time: curves of long logs are thinned."""

from __future__ import annotations

import numpy as np

import sysdyn as sd
from sysdyn.app.time_plot import Bands
from sysdyn.data.sensor_log import Estimates
from sysdyn.views.curves import POINTS


def test_pictures_of_long_logs_are_thinned():
    """Every 2^k-th state of a log of any length, whatever the chunks are."""
    model = sd.chain(3)
    for n, rows in ((10_000, 4096), (POINTS + 1, 7), (POINTS, 64), (5, 5)):
        bands = Bands(model, "tau")
        for at in range(0, n, rows):
            t = np.arange(at, min(at + rows, n), dtype=float)
            bands(
                Estimates(
                    "",
                    np.arange(len(t)),
                    t,
                    np.zeros((len(t), 3)),
                    {"tau": np.sin(t)[:, None] * [1, 2, 3]},
                    {},
                    np.ones(len(t), dtype=bool),
                )  # fmt: skip
            )
        (line,) = bands.figure().axes[0].lines
        drawn = line.get_xdata()
        step = drawn[1] - drawn[0]
        assert len(drawn) <= POINTS and step == 2 ** round(np.log2(step))
        np.testing.assert_array_equal(drawn, np.arange(0, n, step))
        assert n <= POINTS or len(drawn) > POINTS / 2
        np.testing.assert_array_equal(line.get_ydata(), np.sin(drawn))
