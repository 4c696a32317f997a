"""Files and pickles of version 0.1 are read."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from version_0_1 import ARM, FIXTURES, problems, solved

import sysdyn as sd


def unpickled() -> sd.Solver:
    return pickle.loads((FIXTURES / "solver_0.1.pickle").read_bytes())


def loaded() -> sd.Solver:
    return sd.load_solver(FIXTURES / "solver_0.1.npz")


@pytest.mark.parametrize("read", [unpickled, loaded])
def test_a_solver_of_version_0_1_gives_its_answers(read):
    answers = {name: np.array(x) for name, x in json.loads((FIXTURES / "answers_0.1.json").read_text()).items()}
    solver = read()
    assert type(solver) is sd.Solver and solver.problem.digest == solved().digest
    assert solver.flops.end_to_end.total == 107
    found = solver(answers["q"], answers["qd"], answers["tau"]).qdd
    np.testing.assert_allclose(found, answers["qdd"], rtol=1e-13)
    again = pickle.loads(pickle.dumps(solver))
    assert np.array_equal(again(answers["q"], answers["qd"], answers["tau"]).qdd, found)
    assert "107" in solver.report()


def test_problems_of_version_0_1_are_what_they_were():
    found = pickle.loads((FIXTURES / "problems_0.1.pickle").read_bytes())
    expected = problems()
    assert len(found) == len(expected) == 6
    for old, new in zip(found, expected, strict=True):
        assert type(old) is sd.Problem and old.to_dict() == new.to_dict() and old.digest == new.digest
        assert [type(m) for m in old.measurements] == [type(m) for m in new.measurements]
        assert old.system().row_names == new.system().row_names
        for a, b in zip(old.measurements, new.measurements, strict=True):
            assert vars(a).keys() == vars(b).keys() and a.of.quantity == b.of.quantity, a.name
            assert a.component_units(ARM) == b.component_units(ARM), a.name
    kinds = {type(m).__name__ for problem in found for m in problem.measurements}
    public = {name for name in sd.__all__ if isinstance(getattr(sd, name), type)}
    public = {name for name in public if issubclass(getattr(sd, name), sd.Measurement)}
    assert public - kinds == {"Measurement", "Constraint"}
