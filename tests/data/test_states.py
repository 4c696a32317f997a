"""Files of states: written and read back, and one clear error for everything that can be wrong with them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.data.columns import OK
from sysdyn.data.states import random_states, read_states, write_states
from sysdyn.errors import FileError, LogWarning, SysdynError
from sysdyn.model.quantities import QUANTITY

PROBLEM = sd.forward_dynamics(sd.chain(2))


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_states_come_back_bit_by_bit(tmp_path, suffix):
    """Known quantities are read, the others and the mark of solved states are left out."""
    problem = sd.inverse_dynamics(sd.random_tree(5, seed=2))
    model, arrays = problem.model, dict(random_states(problem, 4).arrays)
    more = {"tau": np.ones((4, model.nv)), "a": np.ones((4, model.nb, 6))}
    groups = {**problem.inputs, **problem.outputs(more)}
    path = write_states(tmp_path / f"states{suffix}", groups, {**arrays, **more}, ok=np.array([True, False] * 2))
    with pytest.warns(LogWarning, match="ignored columns that this problem does not have: tau, a$"):
        found = read_states(path, problem)
    assert found.n == 4 and set(found.arrays) == set(arrays)
    for name, x in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], x)
    assert OK in (path.read_text().split("\n")[0] if suffix == ".csv" else np.load(path).files)


def test_joints_with_several_variables_have_numbered_columns(tmp_path):
    problem = sd.forward_dynamics(sd.random_tree(4, seed=1, joints=("free", "spherical", "planar")))
    path = write_states(tmp_path / "states.csv", problem.inputs, random_states(problem, 4).arrays)
    assert f"q:{problem.model.joint_names[0]}[0]" in path.read_text()
    for name, x in read_states(path, problem).arrays.items():
        np.testing.assert_array_equal(x, random_states(problem, 4).arrays[name])


def test_places_of_scalars_are_those_of_their_columns():
    model = sd.random_tree(6, seed=3)
    for i, joint in enumerate(model.joints):
        for k in range(joint.nv):
            name = QUANTITY["tau"].labels(model)[model.v_slice(i).start + k]
            assert name.removeprefix("tau:").partition("[")[0] == model.joint_names[i]
        for k, component in enumerate(("nx", "ny", "nz", "fx", "fy", "fz")):
            assert QUANTITY["f"].labels(model)[6 * i + k] == f"f:{model.body_names[i]}.{component}"


# ---- malformed files -----------------------------------------------------------------------------------------------

HEADER = "q:joint0,q:joint1,qd:joint0,qd:joint1,tau:joint0,tau:joint1"
WRONG_CSV = {
    "empty": ("", "is empty"),
    "header only": (HEADER + "\n", "no states"),
    "column of another name": (
        HEADER.replace("qd:joint1", "speed") + "\n1,2,3,4,5,6\n",
        "lacks the columns qd.joint1; it has, besides, speed: --columns (columns=) renames them",
    ),
    "missing column": (HEADER.replace("qd:joint1,", "") + "\n1,2,3,4,5\n", "lacks the columns qd.joint1"),
    "unknown column": (
        HEADER.replace("tau", "tua") + "\n1,2,3,4,5,6\n",
        "lacks the columns tau:joint0, tau:joint1; 'tua:joint0' is unknown: did you mean 'tau:joint0'",
    ),
    "twice": (HEADER + ",q:joint0\n1,2,3,4,5,6,7\n", "'q.joint0' occurs twice"),
    "not a number": (HEADER + "\n1,2,3,4,5,6\n\n1,2,x,4,5,6\n", "row 2, column 'qd:joint0': 'x' is no number"),
    "not finite": (HEADER + "\n1,2,3,4,inf,6\n", "row 1, column 'tau:joint0': inf is not finite"),
    "missing": (HEADER + "\n1,2,3,4,,6\n", "row 1, column 'tau:joint0': the value is missing"),
    "short row": (HEADER + "\n1,2,3\n", "row 1: 3 fields, but the header has 6"),
    "long row": (HEADER + "\n1,2,3,4,5,6,7\n", "row 1: 7 fields, but the header has 6"),
    "endless field": (HEADER + "\n" + "1" * 200_000 + "\n", "field larger than"),
}


@pytest.mark.parametrize("case", WRONG_CSV)
def test_malformed_csv(tmp_path, case):
    text, needle = WRONG_CSV[case]
    path = tmp_path / "states.csv"
    path.write_text(text, newline="")
    with pytest.raises(SysdynError, match=re.escape(needle)) as caught:
        read_states(path, PROBLEM)
    assert str(path) in str(caught.value)


def test_csv_of_another_encoding(tmp_path):
    path = tmp_path / "states.csv"
    path.write_bytes(b"q:joint\xe9\n1\n")
    with pytest.raises(FileError, match="UTF-8"):
        read_states(path, PROBLEM)
    path.write_bytes(b"\xef\xbb\xbf" + (HEADER + "\r\n1, 2,3,4,5,6\r\n").encode())  # what spreadsheets write
    found = read_states(path, PROBLEM)
    assert found.n == 1 and found.arrays["q"].tolist() == [[1, 2]] and found.arrays["tau"].tolist() == [[5, 6]]


WRONG_NPZ = {
    "missing": ({"q": np.zeros((1, 2)), "qd": np.zeros((1, 2))}, "lacks the columns tau:joint0, tau:joint1"),
    "unknown": ({"q": np.zeros((1, 2)), "qv": np.zeros((1, 2))}, "lacks the columns qd.joint0"),
    "text": ({"q": np.array([["a", "b"]]), "qd": np.zeros((1, 2)), "tau": np.zeros((1, 2))}, "array 'q' has type"),
    "scalar": (
        {"q": np.zeros(()), "qd": np.zeros((1, 2)), "tau": np.zeros((1, 2))},
        "array 'q' has shape (), but (N, 2) is needed",
    ),
    "cube": ({"q": np.zeros((2, 2, 2)), "qd": np.zeros((1, 2)), "tau": np.zeros((1, 2))}, "(N, 2) is needed"),
    "nan": (
        {"q": np.array([[0.0, np.nan]]), "qd": np.zeros((1, 2)), "tau": np.zeros((1, 2))},
        "row 1, column 'q.joint1': the value is missing",
    ),
    "objects": ({"q": np.array([[None, 1]]), "qd": np.zeros((1, 2)), "tau": np.zeros((1, 2))}, "type object"),
}


@pytest.mark.parametrize("case", WRONG_NPZ)
def test_malformed_npz(tmp_path, case):
    arrays, needle = WRONG_NPZ[case]
    path = tmp_path / "states.npz"
    np.savez(path, **arrays)
    with pytest.raises(SysdynError, match=re.escape(needle)):
        read_states(path, PROBLEM)


def test_npz_that_is_something_else(tmp_path):
    path = tmp_path / "states.npz"
    path.write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(FileError, match="not a readable .npz"):
        read_states(path, PROBLEM)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(FileError, match="not a readable .npz"):
        read_states(path, PROBLEM)


def test_column_names_are_unique():
    model = sd.random_tree(8, seed=0)
    names = [
        name for quantity in ("q", "qd", "tau", "qdd", "fx", "a", "f") for name in QUANTITY[quantity].labels(model)
    ]
    assert len(names) == len(set(names)) == model.nq + 3 * model.nv + 18 * model.nb
