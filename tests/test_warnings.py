"""Warnings point at the line of the caller, however many functions of the package are between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd

PACKAGE = Path(sd.__file__).parent
ARM = sd.chain(2)
ENCODER = sd.JointAcceleration("all", noise=0.1, name="encoder", bias=sd.Constant(1.0))


def velocities_of_a_log():
    columns = {"t": np.arange(9.0), "q": np.zeros((9, 2)), "qdd": np.zeros((9, 2))}
    next(iter(sd.Log(columns, sd.inverse_dynamics(ARM), velocities="difference")))


def negative_inertia() -> None:
    sd.from_dh([0.0], [1.0], [0.0], mass=[1.0], com=[[0.0, 0.0, 0.0]], inertia=[np.diag([1.0, 1.0, 5.0])])


CALLS = {
    "a bias that is left out": lambda: sd.compile(
        sd.inverse_dynamics(ARM) - sd.JointAcceleration("all") + ENCODER, backend="python"
    ),
    "velocities that a log lacks": velocities_of_a_log,
    "an inertia that nothing has": negative_inertia,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_line_is_the_callers(name):
    with pytest.warns(UserWarning) as caught:
        CALLS[name]()
    assert {Path(x.filename).name for x in caught} == {Path(__file__).name}


def test_all_warnings_go_the_same_way():
    for path in PACKAGE.rglob("*.py"):
        assert "warnings.warn(" not in path.read_text() or path.name == "errors.py", path
