"""Agreement with iDynTree's BERDY: with its recorded estimate, and with itself where it is installed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd

HERE = Path(__file__).parents[1]
RECORDED = HERE / "fixtures" / "berdy.json"


@pytest.fixture(scope="module")
def berdy():
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # SWIG's types lack __module__; as an error that warning ends the process while iDynTree is imported.
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        patch.syspath_prepend(str(HERE.parent / "experiments" / "benchmarks"))
        import berdy

        yield berdy


@pytest.fixture(scope="module")
def solver(berdy):
    model = sd.load(str(HERE / "models" / "branched.urdf"), base="fixed")
    problem = berdy.problem_of(model, json.loads(RECORDED.read_text())["sensors"], berdy.Deviations())
    return sd.compile(problem, backend="python", level="fast")


@pytest.mark.slow
def test_agrees_with_what_berdy_found(berdy, solver):
    stored = json.loads(RECORDED.read_text())
    solution = solver(stored["q"], stored["qd"], y=stored["y"])
    mean, places, at = [], {}, 0
    for quantity, name, values in stored["mean"]:
        places[quantity, name] = np.arange(at, at + len(values))
        mean, at = [*mean, *values], at + len(values)
    assert max(berdy.difference(solver.model, np.array(mean), places, solution).values()) < 1e-8


@pytest.mark.slow
def test_agrees_with_berdy_itself(berdy, solver):
    pytest.importorskip("idyntree")
    estimator, _, state, _ = berdy.one_state("small", berdy.Deviations())
    solution = solver(state["q"], state["qd"], y=state["y"])
    found = berdy.difference(solver.model, estimator.mean(), estimator.places, solution)
    assert max(found.values()) < 1e-8
