"""Solver files and pickles: the same solver again, or an error that says what is wrong."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from solvers import ALL_JOINTS, compiled, reported, small, small_states, states

from sysdyn.errors import FileError
from sysdyn.measurements.variables import QUANTITIES
from sysdyn.online import storage
from sysdyn.online.solver import load_solver


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


def test_damaged_bytes_never_give_another_solver(tmp_path):
    good = compiled("auto_tree 2 1 1.5 0.9", "fd", "auto", level="fast")
    content = bytearray(good.save(tmp_path / "good.solver").read_bytes())
    path, rejected = tmp_path / "x.solver", 0
    for position in range(0, len(content), max(1, len(content) // 300)):
        damaged = bytearray(content)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        try:
            loaded = load_solver(path)
        except FileError:
            rejected += 1
        else:  # bytes that say nothing, such as a time stamp
            assert loaded.program.digest == good.program.digest and loaded.choice == good.choice
            assert loaded.problem.digest == good.problem.digest
    assert rejected > 150


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


def test_missing_files_and_unwritable_targets(tmp_path, monkeypatch):
    with pytest.raises(FileError, match=r"absent\.solver cannot be read: No such file"):
        load_solver(tmp_path / "absent.solver")
    with pytest.raises(FileError, match="cannot be read: Is a directory"):
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
    expected = small()(q, qd, tau, fx)
    again = pickle.loads(pickle.dumps(small()))
    np.testing.assert_array_equal(again(q, qd, tau, fx).f, expected.f)
    assert b"\x7fELF" not in pickle.dumps(small())
    (tmp_path / "solver.pickle").write_bytes(pickle.dumps((small(), q, qd, tau, fx)))
    program = (
        "import pickle, sys, numpy as np\n"
        "solver, *state = pickle.load(open(sys.argv[1] + '/solver.pickle', 'rb'))\n"
        "np.save(sys.argv[1] + '/f.npy', solver(*state).f)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program, str(tmp_path)], check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "f.npy"), expected.f)
