"""Programs in 50 digits, beside the interpreter and beside identities."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.backends import interpreter, precise
from sysdyn.program.operations import COS, OPERATIONS, SIN


def test_every_operation_is_there():
    assert set(precise.FUNCTIONS) == {kind for kind, x in OPERATIONS.items() if x.executed}


@pytest.mark.parametrize("angle", [0.0, 1e-9, -0.3, math.pi / 2, -3.7, 1e4, 1e9])
def test_sines_and_cosines(angle):
    sine, cosine = (precise.FUNCTIONS[kind](Decimal(angle)) for kind in (SIN, COS))
    assert float(sine) == pytest.approx(math.sin(angle), rel=1e-15)
    assert float(cosine) == pytest.approx(math.cos(angle), rel=1e-15)
    with localcontext(precise.DIGITS):
        assert abs(sine * sine + cosine * cosine - 1) < Decimal("1e-48")
        twice = precise.FUNCTIONS[SIN](2 * Decimal(angle))
        assert abs(2 * sine * cosine - twice) < Decimal("1e-47")  # by other series, of another quarter


@pytest.mark.parametrize("joints", [("revolute", "prismatic"), ("spherical", "helical", "free")])
def test_programs_are_those_of_the_interpreter_but_for_rounding(joints):
    model = sd.random_tree(4, 3, joints)
    system = sd.forward_dynamics(model).system()
    q, qd, tau = model.random_state(seed=1)
    inputs = {name: np.zeros(size) for name, size in system.program.input_groups} | {"q": q, "qd": qd, "tau": tau}
    rounded, found = interpreter.run_groups(system.program, inputs), precise.run_twice(system.program, inputs)
    for name, x in rounded.items():
        np.testing.assert_allclose(found[name].high, x[0], rtol=1e-10, atol=1e-12)
        assert (np.abs(found[name].low) <= 2.0**-53 * np.abs(found[name].high)).all()
    assert any(x.low.any() for x in found.values())
