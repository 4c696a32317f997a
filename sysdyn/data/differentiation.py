"""Velocities from positions: the derivative of a parabola fitted to the rows around each row.

Savitzky and Golay (1964), for rows at any times: q of the 2 `HALF` + 1 rows around a row, as tangent vectors at its q,
is fitted by a polynomial of degree 2 in time, least squares, whose slope at the row is q̇. The window is centred: the
group delay is zero (a causal filter of the same length would have that of `HALF` rows); at the first and last rows
it is one-sided. With even times this is `scipy.signal.savgol_filter(q, 11, 2, deriv=1)`: q̇ of a motion at 0.03 of the
rate of the rows is 10 % too small, at 0.073 of it half; noise of standard deviation σ in q is 0.095 σ · rate in q̇.
"""

from __future__ import annotations

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model import Model

# Rows of the window on either side of its centre (chosen).
HALF = 5
# Rows of a whole window, the one in its middle included.
WINDOW = 2 * HALF + 1
# Share of the rate of the rows up to which motions lose at most 10 % of their velocity, by HALF rows a side.
FLAT = 0.03


def velocities(model: Model, t: np.ndarray, q: np.ndarray, rows: range) -> np.ndarray:
    """q̇ (len(rows), nv) of some of the rows of t (n,) [s] and q (n, nq).

    Angles may jump by whole turns. Raises InvalidInput if too few rows differ in time.
    """
    width = min(WINDOW, len(t))
    at = np.arange(rows.start, rows.stop)
    window = np.clip(at - HALF, 0, len(t) - width)[:, None] + np.arange(width)
    s = t[window] - t[at, None]
    if width < 3 or np.any(np.count_nonzero(np.diff(s, axis=1), axis=1) < 2):
        raise InvalidInput("velocities of q need three different times or more within any 11 rows")
    q = model.normalise(q)
    parts = []
    for i, joint in enumerate(model.joints):
        x = q[:, model.q_slice(i)]
        if joint.nv:
            here, around = x[at, None], x[window]
            for k in joint.angles:
                angle = np.unwrap(around[..., k], axis=1)
                shift = here[..., k] - np.take_along_axis(angle, (at - window[:, 0])[:, None], axis=1)
                around[..., k] = angle + shift
            parts.append(joint.difference(here, around))
    span = np.ptp(s, axis=1)[:, None]
    powers = np.stack([np.ones_like(s), s / span, (s / span) ** 2], axis=-1)
    slope = np.linalg.pinv(powers)[:, 1] / span
    return np.sum(slope[:, :, None] * np.concatenate(parts, axis=-1), axis=1)
