"""The answers with 50 digits that the benchmarks measure distances from."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    from rivals import exact


def test_exact_dynamics_agree_with_each_other_and_with_doubles():
    model = sd.random_tree(5, 3, joints=("revolute", "prismatic"))
    q, qd, qdd = model.random_state(seed=1)
    tau = exact.inverse(model, q, qd, qdd)
    expected = sd.rnea(model, q, qd, qdd)
    np.testing.assert_allclose(tau.astype(float), expected, rtol=0, atol=1e-13 * np.abs(expected).max())
    again = exact.forward(model, q, qd, tau)
    assert max(abs(x - Decimal(float(y))) for x, y in zip(again, qdd, strict=True)) < Decimal("1e-45")
