"""Results that hold arrays are objects: they compare and hash without an error."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.data.sensor_log import Chunk, Estimates
from sysdyn.estimation.streamed_result import StoredRun

PUBLIC = [x for x in (getattr(sd, name) for name in dir(sd)) if isinstance(x, type)]
RESULTS = sorted(
    (x for x in {*PUBLIC, Chunk, Estimates, StoredRun} if dataclasses.is_dataclass(x)
     and any(str(f.type).startswith(("np.ndarray", "Mapping")) for f in dataclasses.fields(x))),
    key=lambda x: x.__name__,
)  # fmt: skip


@pytest.mark.parametrize("kind", RESULTS, ids=lambda x: x.__name__)
def test_results_compare_and_hash(kind):
    a, b = object.__new__(kind), object.__new__(kind)
    for x in (a, b):
        for f in dataclasses.fields(kind):
            object.__setattr__(x, f.name, np.zeros(2))
    assert a == a and a != b and len({a, b}) == 2


def test_two_runs_of_a_log_compare():
    assert {sd.Run, sd.LearnedMotion, sd.Simulation, sd.Impulses, StoredRun} <= set(RESULTS)
    problem = sd.Problem(sd.chain(1), [sd.JointPosition("all", noise=1e-3, name="enc"), sd.ExternalWrench("all")])
    log = {"t": 0.01 * np.arange(20), "enc": 0.1 * np.arange(20.0)}
    a, b = (sd.smooth(problem, log) for _ in range(2))
    assert a == a and a != b and len({a, b}) == 2
