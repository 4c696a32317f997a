"""Solvers and functions as C99: compiled by a strict compiler, they give what they give here, and say what is wrong."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from disk import FULL, no_room
from oracles import icub
from typer.testing import CliRunner
from values import random_groups

import sysdyn as sd
from sysdyn.app.cli import app
from sysdyn.app.terminal import WRONG
from sysdyn.codegen import c99
from sysdyn.codegen.c_project import write_folder
from sysdyn.errors import BackendUnavailable, FileError, InvalidInput, SingularState, UnknownName
from sysdyn.offline.sampling import sample_states
from sysdyn.online.export import problem_name
from sysdyn.papers.nori.problems import load_cells
from sysdyn.program.opcodes import BAD_INPUT, BAD_OUTPUT, WEAK_PIVOT
from sysdyn.runtime.runner import Runner

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
STRICT = "-std=c99 -Wall -Wextra -pedantic -Werror -Wshadow -Wconversion -Wmissing-prototypes".split()
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="no C compiler")
LEG = sd.random_tree(5, seed=4, joints=("free", "revolute", "spherical", "prismatic", "planar"))


def build(folder: Path, name: str, compiler: str, *flags: str) -> None:
    subprocess.run(
        [compiler, *STRICT, *flags, f"{name}.c", "main.c", "-o", "main", "-lm"], cwd=folder, check=True, timeout=120
    )


def check(folder: Path) -> str:
    """What main prints; it must find every test vector right."""
    run = subprocess.run([folder / "main"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and run.stdout.endswith("all checks passed\n"), run.stdout
    return run.stdout


class Library:
    """NAME_run of an export, called through ctypes with structs written as arrays of doubles."""

    def __init__(self, folder: Path, name: str, sizes: tuple[int, int]):
        path = folder / "library.so"
        subprocess.run(
            [COMPILERS[0], "-std=c99", "-O1", "-shared", "-fPIC", f"{name}.c", "-o", path, "-lm"],
            cwd=folder,
            check=True,
        )
        self.run = getattr(ctypes.CDLL(str(path)), f"{name}_run")
        self.out = np.zeros(sizes[0])
        self.work = np.zeros(sizes[1])

    def __call__(self, *groups: np.ndarray) -> tuple[int, np.ndarray]:
        given = np.concatenate([np.ravel(x) for x in groups])
        status = self.run(*(x.ctypes.data_as(ctypes.c_void_p) for x in (given, self.out, self.work)))
        return status, self.out.copy()


def library(folder: Path, name: str, program) -> Library:
    work = int(re.search(r"double w\[(\d+)\]", (folder / f"{name}.h").read_text())[1])
    return Library(folder, name, (program.n_outputs, work))


def sensors() -> sd.Problem:
    """An accelerometer in place of a joint acceleration; its name is hard to put into a comment."""
    model = sd.auto_tree(5, 2, 0.7, 0.9)
    problem = sd.inverse_dynamics(model) - sd.JointAcceleration([model.joint_names[1]])
    return problem + sd.Accelerometer(model.body_names[4], components=["a_x"], name="*/ accel \\ é??/")


def solved(solver: sd.Solver, states) -> sd.Solution:
    """The solution at states by group."""
    y = {name.removeprefix("y:"): x for name, x in states.items() if name.startswith("y:")}
    return solver(**{name: x for name, x in states.items() if not name.startswith("y:")}, y=y)


CASES = {
    "inverse": (lambda: sd.inverse_dynamics(sd.auto_tree(7, 1, 1.5, 0.9)), "all"),
    "forward": (lambda: sd.forward_dynamics(sd.chain(6, seed=3)), ["qdd"]),
    "floating": (lambda: sd.forward_dynamics(LEG), ["qdd", "a"]),
    "hybrid": (lambda: sd.hybrid_dynamics(LEG, [LEG.joint_names[2]]), "all"),
    "sensors": (sensors, ["tau", "qdd"]),
    "orthogonal columns": (lambda: load_cells(4), ["tau", "qdd"]),
    "measured": (
        lambda: sd.forward_dynamics(LEG),
        ["qdd", sd.Accelerometer("body3", name="imu"), sd.LoadCells("body2", ["fz", "nx"], name="IMU */ é")],
    ),
}


@pytest.mark.slow(after=1)
@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_exported_code_is_strict_c99_and_gives_what_the_solver_gives(case, tmp_path):
    make, outputs = CASES[case]
    problem = make()
    solver = sd.compile(problem, outputs=outputs, level="fast")
    folder = solver.export_c(tmp_path / "exported")
    name = problem_name(problem)
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.h", f"{name}.c", "main.c", "test_vectors.h", "CMakeLists.txt"
    }  # fmt: skip
    for compiler in COMPILERS:
        build(folder, name, compiler, "-O1")
        assert "state 7: " in check(folder)
    assert set(re.findall(r"#include (\S+)", (folder / f"{name}.c").read_text())) == {f'"{name}.h"', "<math.h>"}
    # at other states than those of the test vectors
    states = random_groups(problem, 20, seed=5)
    solution, (_, kernel) = solved(solver, states), solver.executable.results(states, 20)
    assert not (kernel & ~WEAK_PIVOT).any()  # which calls solve again
    run = library(folder, name, solver.program)
    for k in range(20):
        status, found = run(*(states[group][k] for group in solver.program.inputs))
        expected = [solution[x][k].ravel() for x in solver.outputs]
        assert status == kernel[k]
        for part, x in zip(np.split(found, np.cumsum([len(x) for x in expected])[:-1]), expected, strict=True):
            np.testing.assert_allclose(part, x, rtol=0, atol=1e-12 * np.abs(x).max())


@pytest.mark.slow
@needs_compiler
def test_large_programs_compile_in_seconds_and_need_little_stack(tmp_path):
    solver = sd.compile(sd.forward_dynamics(icub("floating")), outputs=["qdd"], level="fast")
    folder = solver.export_c(tmp_path / "icub")
    build(folder, "icub_forward_dynamics", COMPILERS[0], "-O1", "-Wstack-usage=20000")
    worst = [float(x) for x in re.findall(r"differs by (\S+); its greatest entry is \S+", check(folder))]
    size = [float(x) for x in re.findall(r"differs by \S+; its greatest entry is (\S+)", check(folder))]
    assert len(worst) == 8 and all(e <= 1e-12 * s for e, s in zip(worst, size, strict=True))


@needs_compiler
def test_the_status_is_that_of_the_kernel(tmp_path):
    """At an exactly singular state, and for values that are not finite."""
    problem = CASES["sensors"][0]()
    solver = sd.compile(problem, outputs=["qdd"], level="fast", on_singular="nan")
    assert solver.program.guards
    folder = solver.export_c(tmp_path / "c", name="odd")
    run = library(folder, "odd", solver.program)
    states = sample_states(problem, 400, seed=11)
    states["q"][3, 0], states["qd"][4, 1] = np.nan, np.inf
    states["q"][5, 2] = 1e10  # beyond the largest angle
    output = {"qdd": np.empty((400, problem.model.nv))}
    status = np.empty(400, dtype=np.int64)
    solver.executable.run(states, output, status)
    found = [run(*(states[group][k] for group in solver.program.inputs))[0] for k in range(400)]
    assert status[3] & BAD_INPUT and status[4] & BAD_INPUT and status[5] & BAD_OUTPUT
    np.testing.assert_array_equal(found, status)
    assert len(set(found)) > 3, "no pivot failed: the test says nothing about guards"


@needs_compiler
def test_angles_far_out_keep_their_digits(tmp_path):
    """Constants are added to angles that are less their whole turns, as by the solver."""
    solver = sd.compile(
        sd.inverse_dynamics(sd.chain(5, seed=1)), outputs=["tau"], external_wrenches=False, level="fast"
    )
    folder = solver.export_c(tmp_path / "arm", name="arm")
    assert "wrapped(" in (folder / "arm.c").read_text()
    run = library(folder, "arm", solver.program)
    q, qd, qdd = solver.model.random_state(seed=0, batch=20)
    q += np.random.default_rng(0).uniform(-9e8, 9e8, q.shape)
    for state in zip(q, qd, qdd, strict=True):
        fx = () if len(solver.program.inputs) == 3 else (np.zeros((5, 6)),)
        status, tau = run(*state, *fx)
        assert status == 0
        np.testing.assert_allclose(tau, solver(*state).tau, rtol=0.0, atol=1e-13 * np.abs(tau).max())


@needs_compiler
def test_functions_are_exported_too(tmp_path):
    model = sd.random_tree(4, seed=1)
    function = sd.compile_function(partial(sd.crba, model), {"w": (model.nq,)})
    folder = function.export_c(tmp_path / "crba")
    build(folder, "crba", COMPILERS[0])
    check(folder)
    q, _, _ = model.random_state(seed=3)
    _, H = library(folder, "crba", function.program)(q)
    np.testing.assert_allclose(H.reshape(model.nv, model.nv), sd.crba(model, q), atol=1e-13)
    # constants, an input that is passed on, an input that is not read, and a result of a root
    odd = sd.compile_function(
        lambda x, y: (np.array([x[0], -2.5, 3e300 * x[1]]), np.sqrt(x[0] * x[0] + 1.0)), {"x": (2,), "y": (3,)}
    )
    folder = odd.export_c(tmp_path / "odd", name="odd")
    build(folder, "odd", COMPILERS[0])
    check(folder)
    assert "x[1]" not in (folder / "odd.c").read_text().split("piece_0")[0]
    status, found = library(folder, "odd", odd.program)(np.array([2.0, 1.0]), np.zeros(3))
    assert status == 0
    np.testing.assert_allclose(found, [2.0, -2.5, 3e300, np.sqrt(5.0)], rtol=1e-15)
    with pytest.raises(InvalidInput, match="C identifier"):
        sd.compile_function(lambda x: x, {"x": (1,)}).export_c(tmp_path / "lambda")
    with pytest.raises(InvalidInput, match="nothing to export"):
        sd.compile_function(lambda x: x[:0], {"x": (1,)}).export_c(tmp_path / "lambda", "empty")
    with pytest.raises(SingularState, match="finite result"):
        sd.compile_function(lambda x: np.sqrt(-1.0 - x * x), {"x": (1,)}).export_c(tmp_path / "lambda", "root")
    assert not (tmp_path / "lambda").exists()
    shifted = sd.compile_function(lambda x: np.sqrt(x * x - 100.0), {"x": (1,)})
    with pytest.raises(InvalidInput, match="no values of x"):
        shifted.export_c(tmp_path / "root", "root", states={"y": [11.0]})
    text = (shifted.export_c(tmp_path / "root", "root", states={"x": [11.0, 12.0]}) / "test_vectors.h").read_text()
    assert "TEST_COUNT 2" in text and "{12.0}" in text


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS or not shutil.which("cmake"), reason="no C compiler or no CMake")
def test_the_cmake_project_builds_and_passes_its_test(tmp_path):
    sd.compile(sd.inverse_dynamics(sd.chain(2)), outputs=["tau"]).export_c(tmp_path / "arm", name="arm")
    for command in (["cmake", "-S", "arm", "-B", "b"], ["cmake", "--build", "b"], ["ctest", "--test-dir", "b"]):
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr
    assert "100% tests passed" in run.stdout


@needs_compiler
def test_a_wrong_result_fails_the_exported_test(tmp_path):
    folder = sd.compile(sd.inverse_dynamics(sd.chain(2)), outputs=["tau"]).export_c(tmp_path / "arm", name="arm")
    source = (folder / "arm.c").read_text()
    helpers, pieces = source.split("static void piece_0", 1)
    (folder / "arm.c").write_text(f"{helpers}static void piece_0{pieces.replace(' + ', ' - ', 1)}")
    build(folder, "arm", COMPILERS[0])
    run = subprocess.run([folder / "main"], capture_output=True, text=True)
    assert run.returncode == 1 and "checks failed" in run.stdout


@pytest.mark.parametrize("real", ["float64", "float32"])
@pytest.mark.parametrize(
    "spoil", [lambda x: 3.0 * x, lambda x: x + 1e-6 * np.abs(x).max(), lambda x: np.where(x > 0, x, 0)]
)
def test_wrong_machine_code_is_not_exported(spoil, real, tmp_path, monkeypatch):
    """The tolerance of the exported test does not grow with the error of the results that it is made of."""
    solver = sd.compile(sd.forward_dynamics(sd.chain(3, seed=3)), outputs=["qdd"], level="fast")
    run = Runner.run

    def wrong(self, inputs, outputs, *rest, **options):
        run(self, inputs, outputs, *rest, **options)
        outputs["qdd"][...] = spoil(outputs["qdd"])

    monkeypatch.setattr(Runner, "run", wrong)
    with pytest.raises(SingularState, match="qdd"):
        solver.export_c(tmp_path / "arm", "arm", real=real)
    assert not (tmp_path / "arm").exists()


def test_results_that_single_precision_cannot_hold_are_not_exported_in_it(tmp_path):
    """√(1 + x) − 1 of x ≈ 1e-6 has no digit in single precision, and nine in double."""
    function = sd.compile_function(lambda x: np.sqrt(1.0 + 1e-6 * (1.0 + x * x)) - 1.0, {"x": (1,)})
    function.export_c(tmp_path / "double", "small", real="float64")
    with pytest.raises(SingularState, match="float64"):
        function.export_c(tmp_path / "float", "small", real="float32")
    assert not (tmp_path / "float").exists()


# ---- names and layout ----------------------------------------------------------------------------------------------


def test_the_header_names_every_entry(tmp_path):
    problem = CASES["hybrid"][0]()
    folder = sd.compile(problem, outputs=["tau", "qdd"], level="fast").export_c(tmp_path / "h", name="h")
    header = (folder / "h.h").read_text()
    inputs, outputs = header.split("_inputs;")
    for i, joint in enumerate(LEG.joint_names):
        for k in range(LEG.joints[i].nv):
            name = f"qdd:{joint}[{k}]" if LEG.joints[i].nv > 1 else f"qdd:{joint}"
            line = f" *   qdd[{LEG.v_slice(i).start + k}] {name}"
            assert f"{line}\n" in outputs
            assert (f"{line}\n" in inputs, f"{line}, not read\n" in inputs) == (i != 2, i == 2)
    assert f"fx[8] fx:{LEG.body_names[1]}.nz" in header
    free = next(i for i, joint in enumerate(LEG.joints) if joint.kind == "free")
    assert f"q[{LEG.q_slice(free).start + 6}] q:{LEG.joint_names[free]}[6]\n" in header


@pytest.mark.parametrize(
    ("robot", "expected"),
    [("Panda arm", "panda_arm"), ("2R", "robot_2r"), ("", "robot"), ("é", "robot"), ("int", "int"), ("a*/b", "a_b")],
)
def test_names_come_from_robot_and_problem(robot, expected):
    model = sd.chain(2).replace(name=robot)
    for problem, kind in (
        (sd.inverse_dynamics(model), "inverse_dynamics"), (sd.forward_dynamics(model), "forward_dynamics"),
        (sd.hybrid_dynamics(model, [model.joint_names[0]]), "hybrid_dynamics"),
    ):  # fmt: skip
        assert c99.check_name(problem_name(problem)) == f"{expected}_{kind}"


def test_the_name_of_sensors_is_dynamics():
    assert problem_name(sensors()).endswith("_0_9_dynamics")


REFUSED = (
    "two words", "2r", "", 3, "é", "a-b", "int", "class", "static_assert",
    "main", "Main", "test_vectors", "m", "test", "all", "clean", "install", "ALL_BUILD",
    "math", "stddef", "time", "errno", "string", "assert", "features", "pthread", "Stdio",
)  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_names_are_refused(name, tmp_path):
    """Headers of C and POSIX, which NAME.h would hide; targets of CMake; keywords."""
    solver = sd.compile(sd.inverse_dynamics(sd.chain(1)), outputs=["tau"])
    with pytest.raises(InvalidInput, match="name is") as error:
        solver.export_c(tmp_path / "x", name=name)
    assert c99.check_name(re.findall(r"such as '(\w+)'", str(error.value))[0])
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_no_header_that_the_compiler_reads_is_a_name(tmp_path):
    folder = sd.compile(sd.inverse_dynamics(sd.chain(1)), outputs=["tau"]).export_c(tmp_path / "arm", name="arm")
    command = [COMPILERS[0], "-M", "main.c", "arm.c"]
    read = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
    headers = {Path(x).stem for x in read.split() if x.endswith(".h") and Path(x).parent.name == "include"}
    assert {"math", "stdio", "features"} <= headers
    for name in headers:
        with pytest.raises(InvalidInput, match="name is"):
            c99.check_name(name)


@needs_compiler
def test_members_named_by_words_of_c_and_of_compilers_are_valid(tmp_path):
    """The header is for C++, too, and `unix` is a macro of GNU's dialects."""
    names = ["class", "new", "bool", "unix", "errno", "static_assert"]
    function = sd.compile_function(
        lambda *x: {f"out_{k}": 2.0 * y for k, y in enumerate(x)}, dict.fromkeys(names, (1,))
    )
    folder = function.export_c(tmp_path / "words", name="words")
    text = "".join(f"#include <{x}>\n" for x in ("assert.h", "errno.h", "stdbool.h", "words.h"))
    (folder / "all.h").write_text(text)
    for language in ("c", "c++"):
        command = [COMPILERS[0], "-x", language, "-Wall", "-Werror", "-fsyntax-only", "-I.", "all.h"]
        if language == "c" or shutil.which("g++") or shutil.which("clang++"):
            subprocess.run(command, cwd=folder, check=True, timeout=60)


# ---- writing -------------------------------------------------------------------------------------------------------


def test_an_earlier_export_is_replaced_and_nothing_else(tmp_path):
    solver = sd.compile(sd.inverse_dynamics(sd.chain(1)), outputs=["tau"])
    solver.export_c(tmp_path, name="arm")
    (tmp_path / "notes.txt").write_text("mine")
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    (tmp_path / "arm.c").write_text(before["arm.c"] + "/* changed */")
    solver.export_c(tmp_path, name="arm")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    (tmp_path / "CMakeLists.txt").write_text("project(mine)")
    (tmp_path / "arm.c").unlink()
    with pytest.raises(FileError, match=r"CMakeLists\.txt was not written by sysdyn"):
        solver.export_c(tmp_path, name="arm")
    assert not (tmp_path / "arm.c").exists() and (tmp_path / "CMakeLists.txt").read_text() == "project(mine)"


def test_places_that_cannot_be_written_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file is a file, but a folder is needed"):
        write_folder(tmp_path / "file", {"a": "x"})
    with pytest.raises(FileError, match="does not exist"):
        write_folder(tmp_path / "no" / "such", {"a": "x"})

    for folder in (tmp_path / "full", tmp_path):
        with no_room(), pytest.raises(FileError, match=f"a cannot be written: {FULL}"):
            write_folder(folder, {"a": "too long"})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full"]
    if os.geteuid():
        tmp_path.chmod(0o500)
        with pytest.raises(FileError, match="Permission denied"):
            write_folder(tmp_path / "new", {"a": "x"})
        tmp_path.chmod(0o700)


def test_the_command_line_exports(tmp_path):
    out = tmp_path / "arm"
    command = ["export", "auto_tree:3,1,1.5,0.9", "--problem", "inverse", "--out", str(out), "--name", "arm"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "wrote" in result.output
    assert {"arm.h", "arm.c", "main.c", "test_vectors.h", "CMakeLists.txt"} == {path.name for path in out.iterdir()}
    result = CliRunner().invoke(app, [*command, "--real", "float32", "--force"])
    assert result.exit_code == 0 and "float q[3]" in (out / "arm.h").read_text()
    for wrong in (["--name", "2r"], ["--real", "half"], ["--out", str(tmp_path / "no" / "such")]):
        result = CliRunner().invoke(app, [*command, *wrong])
        assert result.exit_code == WRONG and result.stderr.count("error: ") == 1


# ---- CasADi --------------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", ["forward", "floating", "sensors", "measured"])
def test_casadi_gives_what_the_solver_gives(case):
    pytest.importorskip("casadi")
    make, outputs = CASES[case]
    problem = make()
    solver = sd.compile(problem, outputs=outputs, level="fast")
    function = solver.to_casadi()
    assert function.name() == problem_name(problem)
    known = {"sensors": ["known_qdd", "fx", "y_accel"]}.get(case, ["tau", "fx"])
    assert function.name_in() == ["q", "qd", *known]
    assert function.name_out() == {"measured": ["qdd", "imu", "imu_"]}.get(case, list(solver.outputs))
    states = random_groups(problem, 3, seed=1)
    solution = solved(solver, states)
    for k in range(3):
        found = function.call([np.ravel(states[group][k]) for group in solver.program.inputs])
        for x, quantity in zip(found, solver.outputs, strict=True):
            expected = solution[quantity][k].ravel()
            np.testing.assert_allclose(x.full().ravel(), expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_casadi_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "casadi", None)
    with pytest.raises(BackendUnavailable, match="pip install casadi"):
        sd.compile(sd.inverse_dynamics(sd.chain(1)), outputs=["tau"]).to_casadi()


@pytest.mark.skipif(not COMPILERS, reason="no C compiler")
@pytest.mark.slow(after=1)
@pytest.mark.parametrize("make", ["product", "orthogonal columns", "forward", "floating"])
def test_single_precision_has_no_double_inside(make, tmp_path):
    """Its code has no operation in double, for processors without them, and passes a check of its own."""
    problem, outputs = CASES["forward" if make == "product" else make]
    solver = sd.compile(problem(), outputs=outputs, level="fast")
    exported = solver.vjp() if make == "product" else solver
    folder = exported.export_c(tmp_path / "c", "robot", real="float32")
    code, header = (folder / "robot.c").read_text(), (folder / "robot.h").read_text()
    stated = re.search(r"Results differ from those in double by up to (\S+) of", header)
    assert "double" not in code and stated and 1e-8 < float(stated[1]) < 0.1
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    subprocess.run([COMPILERS[0], *flags, "-Wdouble-promotion", "-c", "robot.c"], cwd=folder, check=True, timeout=120)
    subprocess.run([COMPILERS[0], *flags, "main.c", "robot.o", "-o", "main", "-lm"], cwd=folder, check=True, timeout=60)
    run = subprocess.run([folder / "main"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and run.stdout.endswith("all checks passed\n"), run.stdout[-2000:]
    with pytest.raises(UnknownName, match="type of numbers"):
        exported.export_c(tmp_path / "c", "robot", real="half")
