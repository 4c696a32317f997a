"""Filters as C99: compiled projects agree with steps computed here, row by row of a log."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from robots import floating_tree

import sysdyn as sd
from sysdyn.errors import FileError, InvalidInput, UnknownName

COMPILER = next((x for x in ("gcc", "clang") if shutil.which(x)), "")
FLAGS = "-std=c99 -O1 -Wall -Wextra -pedantic -Werror -Wshadow -Wconversion -Wmissing-prototypes".split()
STEP, ROWS, BEFORE = 4e-3, 60, 20

needs_compiler = pytest.mark.skipif(not COMPILER, reason="no C compiler")


def chain(**options) -> tuple[sd.Problem, dict, dict[str, np.ndarray]]:
    """Correlated encoders, tachometers with a drift and, of the coupled level, torques, some of them known exactly."""
    model, rng = sd.chain(3, seed=1), np.random.default_rng(0)
    t, omega = STEP * np.arange(ROWS), np.array([3.0, 5.0, 7.0])
    angle = t[:, None] * omega
    q, qd, qdd = 0.4 * np.sin(angle), 0.4 * omega * np.cos(angle), -0.4 * omega**2 * np.sin(angle)
    tau = sd.rnea(model, q, qd, qdd)
    noise = 1e-6 * (np.eye(3) + 0.5)
    sensors = [
        sd.JointPosition("all", noise=noise, name="encoders"),
        sd.JointVelocity("all", noise=0.1, bias=sd.RandomWalk(0.1, std=1.0), name="double"),
    ]  # fmt: skip
    log = {"encoders": q + 1e-3 * rng.standard_normal(q.shape), "double": qd + 0.1 * rng.standard_normal(q.shape)}
    if options.get("coupled"):
        sensors += [sd.JointTorque("joint0", name="known"),
                    sd.JointTorque(["joint1", "joint2"], noise=0.3, bias=sd.Constant(1.0), name="torques")]  # fmt: skip
        log |= {"known": tau[:, :1], "torques": tau[:, 1:] + 0.3 * rng.standard_normal((ROWS, 2))}
    problem = sd.Problem(model, [*sensors, sd.ExternalWrench("all", name="none")])
    return problem, {"motion": 300.0, **options}, {"t": t, **log}


def wrapped() -> tuple[sd.Problem, dict, dict[str, np.ndarray]]:
    """Encoders that report angles in [0, 2π), some with a bias: a joint turns, another one swings across the seam."""
    model, rng, t = sd.chain(3, seed=1), np.random.default_rng(0), STEP * np.arange(ROWS)
    q = np.column_stack([6.0 + 3.0 * t, 0.02 * np.sin(40.0 * t), 1.0 + 0.0 * t])
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-2, name="encoders"), sd.ExternalWrench("all", name="none"),
        sd.JointPosition("all", noise=1e-2, bias=sd.Constant(0.5), name="motors"),
    ])  # fmt: skip
    noise = 1e-2 * rng.standard_normal((2, *q.shape))
    log = {"t": t, "encoders": (q + noise[0]) % (2.0 * np.pi), "motors": (q + 0.4 + noise[1]) % (2.0 * np.pi)}
    return problem, {"motion": 3000.0}, log


def walker(**options) -> tuple[sd.Problem, dict, dict[str, np.ndarray]]:
    """A floating base with an IMU, a position that is measured now and then, and a foot that switches."""
    model, rng = floating_tree(3, seed=1), np.random.default_rng(0)
    first, last = (model.body_names[0], np.eye(4)), (model.body_names[-1], np.eye(4))
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-3, name="encoders"),
        sd.Gyroscope(first, noise=1e-2, bias=sd.Constant(0.1), name="gyro"),
        sd.Accelerometer(first, noise=0.1, bias=sd.Constant(0.5), name="acc"),
        sd.FramePosition(first, noise=1e-2, name="mocap"),
        sd.Switchable(sd.Stance(last, noise=1e-2, bias=sd.GaussMarkov(0.02, 0.01), name="foot")),
        sd.ExternalWrench("all", name="none"),
    ])  # fmt: skip
    t = STEP * np.arange(ROWS)
    turn = np.array([0.2, -0.1, 0.3])
    log = {"t": t, "encoders": 0.1 * np.sin(5.0 * t)[:, None] + np.zeros((ROWS, model.nv - 6)),
           "gyro": turn + 1e-2 * rng.standard_normal((ROWS, 3)),
           "acc": np.array([0.0, 0.0, 9.81]) + 0.1 * rng.standard_normal((ROWS, 3)),
           "mocap": np.where(np.arange(ROWS)[:, None] % 5 == 0, 1e-2 * rng.standard_normal((ROWS, 3)), np.nan),
           "active: foot": (np.arange(ROWS) // 10 % 2).astype(float)}  # fmt: skip
    log["gyro"][45] += 5.0  # beyond belief
    return problem, {"motion": 100.0, **options}, log


CASES = {
    "chain": lambda: chain(), "snap": lambda: chain(order=4),
    "coupled": lambda: chain(coupled=True, robust=False), "walker": lambda: walker(),
    "wrapped": wrapped,
}  # fmt: skip


def rows(log: dict[str, np.ndarray]):
    for k, t in enumerate(log["t"].tolist()):
        y = {name: x[k] for name, x in log.items() if name != "t" and not name.startswith("active: ")}
        yield t, y, {name.partition(": ")[2]: x[k] for name, x in log.items() if name.startswith("active: ")}


def struct(header: str, what: str) -> type[ctypes.Structure]:
    """A struct of a header."""
    body = next(x for x in re.findall(r"typedef struct \{(.*?)\} (\w+);", header, re.S) if x[1].endswith(what))[0]
    kinds = {"double": ctypes.c_double, "float": ctypes.c_float, "int": ctypes.c_int}
    found = re.findall(r"^    (double|float|int) (\w+)(?:\[(\d+)\])?;", body, re.M)
    fields = [(name, kinds[kind] * int(size) if size else kinds[kind]) for kind, name, size in found]
    return type(what, (ctypes.Structure,), {"_fields_": fields})


def compiled(folder: Path, *flags: str) -> ctypes.CDLL:
    sources = [x.name for x in folder.glob("*.c") if x.name != "main.c"]
    subprocess.run(
        [COMPILER, *FLAGS, *flags, "-shared", "-fPIC", *sources, "-o", "robot.so", "-lm"], cwd=folder, check=True
    )
    return ctypes.CDLL(str(folder / "robot.so"))


def call(code: ctypes.CDLL, readings: type[ctypes.Structure], t: float, y: dict, active: dict) -> int:
    """A step by these readings."""
    now = readings(**({"t": t} if hasattr(readings, "t") else {"dt": STEP}))
    for name, x in y.items():
        member = {"double": "double_"}.get(name, name)
        getattr(now, member)[:] = np.atleast_1d(x).tolist()
        getattr(now, f"has_{member}")[:] = [1] * np.size(x)
    for name, x in active.items():
        has = getattr(now, f"has_{name}")
        has[:] = [int(x)] * len(has)
    return code.robot_step(ctypes.byref(now))


@pytest.mark.slow(after=1)
@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_filter(case, tmp_path):
    problem, options, log = CASES[case]()
    live = sd.filter(problem, [], **options)
    found = [live(*row) for row in list(rows(log))[:BEFORE]]
    folder = live.export_c(tmp_path / "out", "robot")
    subprocess.run(
        [COMPILER, *FLAGS, *(x.name for x in folder.glob("*.c")), "-o", "main", "-lm"], cwd=folder, check=True
    )
    run = subprocess.run([folder / "main"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and "all checks passed" in run.stdout, run.stdout
    header = (folder / "robot.h").read_text()
    code, readings, state = compiled(folder), struct(header, "readings"), struct(header, "state")
    now, events = state(), 0
    for row in list(rows(log))[BEFORE:]:
        assert call(code, readings, *row) == 0
        code.robot_now(ctypes.byref(now))
        expected = live(*row)
        events += len(expected.events)
        assert now.t == expected.t
        np.testing.assert_allclose(now.q[:], expected.q, rtol=0, atol=1e-9)
        belief = live.belief
        np.testing.assert_allclose(now.std[:], np.sqrt(np.diagonal(belief.P)), rtol=1e-8)
        rates = np.concatenate([getattr(now, x)[:] for x in ("qd", "qdd", "qddd") if hasattr(now, x)])
        std = np.array(now.std[:])[problem.model.nv :]
        assert (np.abs(rates - belief.path.rates.reshape(-1)) <= 1e-8 * std[: rates.size]).all()
        if belief.path.biases.size:
            assert (np.abs(now.biases[:] - belief.path.biases[0]) <= 1e-8 * std[rates.size :]).all()
    assert found and (case != "walker" or events)


@pytest.mark.slow(after=1)
@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_steps_in_single_precision(case, tmp_path):
    """Without an operation in double; over a log they stay within a thousandth of a standard deviation."""
    problem, options, log = CASES[case]()
    live, given = sd.filter(problem, [], **options), list(rows(log))
    for row in given[:BEFORE]:
        live(*row)
    folder = live.export_c(tmp_path / "out", "robot", real="float32")
    sources = sorted(x.name for x in folder.glob("*.c"))
    assert not [x for x in sources if x != "main.c" and re.search(r"\bdouble\b", code_of(folder / x))]
    subprocess.run([COMPILER, "-std=c99", "-O1", *sources, "-o", "main", "-lm"], cwd=folder, check=True)
    run = subprocess.run([folder / "main"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and "all checks passed" in run.stdout, run.stdout
    header = (folder / "robot.h").read_text()
    code, readings, state = compiled(folder, "-Wdouble-promotion"), struct(header, "readings"), struct(header, "state")
    now = state()
    for row in given[BEFORE:]:
        assert call(code, readings, *row) == 0
        code.robot_now(ctypes.byref(now))
        live(*row)
        belief = live.belief
        std = np.sqrt(np.diagonal(belief.P))
        np.testing.assert_allclose(now.std[:], std, rtol=1e-3)
        rates = np.concatenate([getattr(now, x)[:] for x in ("qd", "qdd", "qddd") if hasattr(now, x)])
        own = np.array(now.q[:])
        for _, part in problem.model.quaternions:
            own[part] /= np.linalg.norm(own[part])
        biases = np.array(getattr(now, "biases", ()))
        error = np.concatenate([problem.model.difference(belief.path.q[0], own), rates - belief.path.rates.reshape(-1),
                                biases - belief.path.biases[0]])  # fmt: skip
        assert (np.abs(error) <= 1e-3 * std).all() and np.abs(error / std).max() > 1e-7  # not in double
    again = readings(dt=0.0)
    assert code.robot_step(ctypes.byref(again)) == 256  # not later


def code_of(file: Path) -> str:
    """A file without its comments."""
    return re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.S)


@needs_compiler
def test_it_begins_elsewhere_and_says_what_is_wrong(tmp_path):
    problem, options, log = chain()
    live, given = sd.filter(problem, [], **options), list(rows(log))
    for row in given[:BEFORE]:
        live(*row)
    folder = live.export_c(tmp_path / "out", "robot")
    code, header = compiled(folder), (folder / "robot.h").read_text()
    readings, state = struct(header, "readings"), struct(header, "state")
    now, again = state(), state()
    assert call(code, readings, *given[BEFORE]) == 0
    code.robot_now(ctypes.byref(now))
    assert call(code, readings, *given[BEFORE]) == 256  # not later
    code.robot_now(ctypes.byref(again))
    assert bytes(now) == bytes(again)
    belief = live.belief
    arrays = [np.ascontiguousarray(x, dtype=float) for x in
              (belief.path.q, belief.path.rates, belief.path.biases, belief.P)]  # fmt: skip
    code.robot_start.argtypes = [ctypes.c_double, *[ctypes.c_void_p] * 4]
    code.robot_start(float(belief.path.t[0]), *(x.ctypes.data for x in arrays))
    assert call(code, readings, *given[BEFORE]) == 0
    code.robot_now(ctypes.byref(again))
    assert bytes(now) == bytes(again)
    arrays[3][:] = -1e3 * belief.P
    code.robot_start(float(belief.path.t[0]), *(x.ctypes.data for x in arrays))
    assert call(code, readings, *given[BEFORE]) & 512  # no factor


def test_what_is_not_exported_is_said(tmp_path):
    problem, options, log = chain()
    live = sd.filter(problem, [], **options)
    for before_readings in (lambda: live.export_c(tmp_path / "out"), lambda: live.belief):
        with pytest.raises(InvalidInput, match="no state yet"):
            before_readings()
    live(*next(rows(log)))
    with pytest.raises(InvalidInput, match="C identifier"):
        live.export_c(tmp_path / "out", "a filter")
    with pytest.raises(UnknownName, match="unknown type of numbers 'half'"):
        live.export_c(tmp_path / "out", real="half")
    with pytest.raises(FileError, match="does not exist"):
        live.export_c(tmp_path / "none" / "out")
    behind = sd.filter(problem, [], lag=0.1, **options)
    with pytest.raises(InvalidInput, match="give lag=0"):
        behind.export_c(tmp_path / "out")
    problem, options, _ = chain(coupled=True)
    with pytest.raises(InvalidInput, match="robust=False"):
        sd.filter(problem, ["tau"], **options).export_c(tmp_path / "out")
