"""Solver files and pickles: the same solver again, or an error that says what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from solvers import ALL_JOINTS, compiled, reported, small, small_states, states

import sysdyn as sd
from sysdyn.errors import FileError
from sysdyn.model.quantities import QUANTITIES
from sysdyn.online import storage
from sysdyn.online.compile import load_solver
from sysdyn.program.groups import Groups
from sysdyn.program.program import Program


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["fd", "id", "hybrid"])
def test_a_saved_solver_is_the_same_when_loaded(tmp_path, kind):
    solver = compiled(ALL_JOINTS, kind, "aba")
    path = solver.save(tmp_path / "robot.solver")
    loaded = load_solver(path, on_singular="nan")
    assert loaded.on_singular == "nan"
    assert reported(loaded) == reported(solver) and repr(loaded) == repr(solver)
    assert loaded.program.digest == solver.program.digest
    assert loaded.flops == solver.flops and loaded.options == solver.options and loaded.choice == solver.choice
    assert loaded.problem.digest == solver.problem.digest
    q, qd, qdd, fx, expected = states(solver.model)
    given = {x: {"tau": expected.tau, "qdd": qdd, "fx": fx}[x] for x in solver.problem.known_quantities}
    for quantity in QUANTITIES:
        np.testing.assert_array_equal(loaded(q, qd, **given)[quantity], solver(q, qd, **given)[quantity])
    assert [x.name for x in tmp_path.iterdir()] == ["robot.solver"]


def test_a_solver_file_holds_no_code_and_no_pickle(tmp_path):
    path = small().save(tmp_path / "robot.solver")
    with np.load(path, allow_pickle=False) as archive:
        assert all(archive[name].dtype.kind in "iuf" for name in archive.files)
    assert b"\x7fELF" not in path.read_bytes()


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def _foreign(kind: str, good: bytes, tmp_path) -> bytes:
    target = tmp_path / "foreign"
    if kind == "empty":
        return b""
    if kind == "text":
        return b"<robot name='iCub'/>\n" * 50
    if kind == "truncated":
        return good[: len(good) // 2]
    if kind == "without its end":
        return good[:-1]
    if kind == "pickle":
        return pickle.dumps(_Bomb(tmp_path / "bomb"))
    if kind == "other archive":
        np.savez(target, a=np.zeros(3))
        return target.with_suffix(".npz").read_bytes()
    if kind == "archive with a pickle":
        np.savez(target, solver=np.array([_Bomb(tmp_path / "bomb")], dtype=object))
        return target.with_suffix(".npz").read_bytes()
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind", ["empty", "text", "truncated", "without its end", "pickle", "other archive", "archive with a pickle"]
)
def test_foreign_files_are_rejected(tmp_path, kind):
    path = tmp_path / "x.solver"
    path.write_bytes(_foreign(kind, small().save(tmp_path / "good.solver").read_bytes(), tmp_path))
    with pytest.raises(FileError, match=r"x\.solver is not a sysdyn solver file"):
        load_solver(path)
    assert not (tmp_path / "bomb").exists()


def test_a_file_of_another_version_is_rejected(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(storage, "FORMAT", 999)
        path = small().save(tmp_path / "x.solver")
    with pytest.raises(FileError, match="format 999, this version reads"):
        load_solver(path)


def test_values_in_a_file_that_are_inconsistent_are_rejected(tmp_path):
    """An archive in good order whose operands point beyond the program must not reach the machine code."""
    with np.load(small().save(tmp_path / "good.solver"), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name in ("lhs", "rhs", "output_values", "kind"):
        changed = dict(arrays)
        changed[name] = arrays[name].copy()
        changed[name][len(changed[name]) // 2] = 100 if name == "kind" else 10**8
        np.savez(tmp_path / "bad.npz", **changed)
        with pytest.raises(FileError, match="damaged"):
            load_solver(tmp_path / "bad.npz")


def head_of(solver: sd.Solver) -> tuple[dict, dict]:
    """The arrays of its file, and their head."""
    arrays = storage.unpacked(storage.pack(solver.compiled, solver.options, solver.problem))
    return arrays, json.loads(arrays["solver"].tobytes())


def written(path, arrays: dict, head: dict, forged: bool = False, **program) -> Path:
    """A file of these arrays and this head. forged: its digests fit; program: changes of that of the solver."""
    arrays = {**arrays, "solver": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)}
    if program:
        arrays |= replace(Program.from_arrays(arrays), **program).to_arrays()
    if forged:
        del arrays["digest"]
        # a forger computes digests, users of the library do not
        arrays["digest"] = np.frombuffer(storage.digest_of(arrays), dtype=np.uint8)
    path.write_bytes(storage.packed(arrays))
    return path


def arm(seed: int) -> sd.Solver:
    """Of robots that differ by their lengths and inertias alone."""
    return sd.compile(sd.forward_dynamics(sd.chain(2, seed=seed)), "aba", "qdd", level="fast")


def test_a_program_of_another_robot_is_refused(tmp_path):
    """The groups and sizes of the two are the same."""
    (arrays, head), (_, other) = head_of(arm(1)), head_of(arm(2))
    mixed = {**head, "problem": other["problem"]}
    with pytest.raises(FileError, match="content does not match its digest"):
        load_solver(written(tmp_path / "x.solver", arrays, mixed))
    del arrays["digest"]
    with pytest.raises(FileError, match="content does not match its digest"):
        load_solver(written(tmp_path / "x.solver", arrays, head))


FORGED = {
    "more inputs than there are": ({"inputs": [("q", 2), ("qd", 2), ("tau", 2000), ("fx", 12)]}, "its program has"),
    "an input that there is not": ({"inputs": [("q", 2), ("qd", 2), ("taw", 2), ("fx", 12)]}, "its program has"),
    "a negative size": ({"inputs": [("q", 8), ("qd", 2), ("tau", -4), ("fx", 12)]}, "its groups are"),
    "an output that nobody asked for": ({"outputs": [("tau", 2)]}, "its program has"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_program_that_is_not_one_of_its_problem_is_refused(tmp_path, name):
    """Kernels would read or write beyond the arrays of a call."""
    groups, message = FORGED[name]
    changes = {side: Groups.of_sizes(sizes) for side, sizes in groups.items()}
    arrays, head = head_of(arm(1))
    with pytest.raises(FileError, match=message):
        load_solver(written(tmp_path / "x.solver", arrays, head, forged=True, **changes))


def test_orders_types_and_passes_of_a_forged_file(tmp_path):
    arrays, head = head_of(arm(1))
    n = len(arrays["row_perm"])
    assert n > 2
    for wrong in (np.zeros(n, np.int32), np.arange(n - 1, dtype=np.int32), np.arange(n, dtype=float)):
        with pytest.raises(FileError, match="no permutation|cast"):
            load_solver(written(tmp_path / "x.solver", {**arrays, "row_perm": wrong}, head, forged=True))
    for key, wrong in (("passes", ["all"]), ("fill_in", "3"), ("triangular", 2)):
        changed = {**head, "choice": {**head["choice"], key: wrong}}
        with pytest.raises(FileError, match=f"its {key} "):
            load_solver(written(tmp_path / "x.solver", arrays, changed, forged=True))
    short = {name: np.arange(2, dtype=np.int32) if "perm" in name else x for name, x in arrays.items()}
    beyond = {**arrays, "row_perm": arrays["row_perm"] + np.int32(1)}
    for wrong, count in ((short, 2), (beyond, n)):
        loaded = load_solver(written(tmp_path / "x.solver", wrong, head, forged=True))
        with pytest.raises(FileError, match=f"order has {count} pivots, which are not those of its system"):
            loaded.derivatives("a", "tau")
        with pytest.raises(FileError, match=f"order has {count} pivots"):
            loaded.report()


def test_scalars_that_the_model_does_not_have(tmp_path):
    arrays, head = head_of(arm(1))
    for selection in ([0, -1], [0, 7], [7]):
        head["problem"]["measurements"][0]["selection"] = selection
        with pytest.raises(FileError, match=r"components of 'tau' are \(.*\), but it has"):
            load_solver(written(tmp_path / "x.solver", arrays, head, forged=True))


def test_arrays_larger_than_their_file_are_refused(tmp_path):
    """A compressed member could be of any size."""
    np.savez_compressed(tmp_path / "x.npz", solver=np.zeros(10**6, np.uint8))
    with pytest.raises(FileError, match="arrays are larger than the file"):
        load_solver(tmp_path / "x.npz")


def test_missing_files_and_unwritable_targets(tmp_path, monkeypatch):
    with pytest.raises(FileError, match=r"absent\.solver cannot be read: No such file"):
        load_solver(tmp_path / "absent.solver")
    with pytest.raises(FileError, match="cannot be read"):
        load_solver(tmp_path)
    with pytest.raises(FileError, match=r"nowhere/x\.solver cannot be written: No such file"):
        small().save(tmp_path / "nowhere" / "x.solver")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="cannot be written"):
        small().save(tmp_path / "folder")
    assert [x.name for x in tmp_path.iterdir()] == ["folder"]

    old = small().save(tmp_path / "x.solver").read_bytes()

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(FileError, match=r"x\.solver cannot be written: No space left on device"):
        small().save(tmp_path / "x.solver")
    assert sorted(x.name for x in tmp_path.iterdir()) == ["folder", "x.solver"]
    assert (tmp_path / "x.solver").read_bytes() == old


def test_a_cache_entry_is_not_a_solver_file(tmp_path):
    path = tmp_path / "x.solver"
    path.write_bytes(storage.pack(small().compiled, small().options, None))
    with pytest.raises(FileError, match="holds no problem"):
        load_solver(path)


def test_a_solver_is_picklable_here_and_in_another_process(tmp_path):
    q, qd, tau, fx = small_states(20)
    expected = small()(q, qd, tau, fx=fx)
    again = pickle.loads(pickle.dumps(small()))
    np.testing.assert_array_equal(again(q, qd, tau, fx=fx).f, expected.f)
    assert b"\x7fELF" not in pickle.dumps(small())
    (tmp_path / "solver.pickle").write_bytes(pickle.dumps((small(), q, qd, tau, fx)))
    program = (
        "import pickle, sys, numpy as np\n"
        "solver, q, qd, tau, fx = pickle.load(open(sys.argv[1] + '/solver.pickle', 'rb'))\n"
        "np.save(sys.argv[1] + '/f.npy', solver(q, qd, tau, fx=fx).f)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "f.npy"), expected.f)


def test_functions_and_derivatives_are_picklable():
    solver = arm(1)
    q, qd, tau = solver.model.random_state(seed=0)
    derivatives = solver.derivatives("qdd", "tau")
    again = pickle.loads(pickle.dumps(derivatives))
    np.testing.assert_array_equal(again(q, qd, tau)["qdd", "tau"], derivatives(q, qd, tau)["qdd", "tau"])
    kinematics = sd.kinematics(solver.model, ["mass_matrix", "bias"])
    found, expected = pickle.loads(pickle.dumps(kinematics))(q, qd), kinematics(q, qd)
    for name in ("mass_matrix", "bias"):
        np.testing.assert_array_equal(found[name], expected[name])
