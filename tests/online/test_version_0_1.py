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


def assert_same_model(found: sd.Model, expected: sd.Model) -> None:
    """To rounding: the last bits of generated models come from the machine's linear algebra."""
    assert found.joint_names == expected.joint_names
    np.testing.assert_allclose(found.inertias, expected.inertias, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.X_tree, expected.X_tree, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("read", [unpickled, loaded])
def test_a_solver_of_version_0_1_gives_its_answers(read):
    answers = {name: np.array(x) for name, x in json.loads((FIXTURES / "answers_0.1.json").read_text()).items()}
    solver = read()
    assert type(solver) is sd.Solver and solver.problem.to_dict() == sd.forward_dynamics(solver.model).to_dict()
    assert_same_model(solver.model, solved().model)
    assert solver.flops.end_to_end.total == 107
    found = solver(answers["q"], answers["qd"], answers["tau"]).qdd
    np.testing.assert_allclose(found, answers["qdd"], rtol=1e-13)
    again = pickle.loads(pickle.dumps(solver))
    assert np.array_equal(again(answers["q"], answers["qd"], answers["tau"]).qdd, found)
    assert "107" in solver.report()


def test_problems_of_version_0_1_are_what_they_were():
    found = pickle.loads((FIXTURES / "problems_0.1.pickle").read_bytes())
    assert_same_model(found[0].model, ARM)
    expected = problems(found[0].model)
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
    assert public - kinds == {"Measurement", "Constraint", "JointCoupling"}  # the last since 0.2
