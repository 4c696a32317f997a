"""Exported C compiles under a strict compiler and computes what the kernel computes; bad exports are refused."""

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
from nori.problems import load_cells
from oracles import icub
from typer.testing import CliRunner
from values import random_groups

import sysdyn as sd
from sysdyn.app.cli import app
from sysdyn.app.console import WRONG
from sysdyn.codegen import c99
from sysdyn.codegen.c_project import write_folder
from sysdyn.errors import BackendUnavailable, FileError, InvalidInput, SingularState, UnknownName
from sysdyn.offline.sampling import sample_states
from sysdyn.online.export import problem_name
from sysdyn.program.opcodes import BAD_INPUT, BAD_OUTPUT
from sysdyn.runtime.runner import Runner

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
WARNINGS = "-std=c99 -Wall -Wextra -pedantic -Werror".split()
STRICT = [*WARNINGS, "-Wshadow", "-Wconversion", "-Wmissing-prototypes"]
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="no C compiler")
LEG = sd.random_tree(5, seed=4, joints=("free", "revolute", "spherical", "prismatic", "planar"))


def build(folder: Path, name: str, *flags: str, compiler: str = (*COMPILERS, "")[0]) -> None:
    command = [compiler, *flags, f"{name}.c", "main.c", "-o", "main", "-lm"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)


def run_main(folder: Path) -> str:
    """What main prints, after all its checks have passed."""
    run = subprocess.run([folder / "main"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and run.stdout.endswith("all checks passed\n"), run.stdout
    return run.stdout


class Library:
    """NAME_run of an export in double, called through ctypes; structs are arrays of doubles."""

    def __init__(self, folder: Path, name: str, program):
        path = folder / "library.so"
        command = [COMPILERS[0], "-std=c99", "-O1", "-shared", "-fPIC", f"{name}.c", "-o", path, "-lm"]
        subprocess.run(command, cwd=folder, check=True)
        self.run, self.groups = getattr(ctypes.CDLL(str(path)), f"{name}_run"), list(program.inputs)
        work = re.search(r"double w\[(\d+)\];\n} \w+_work;", (folder / f"{name}.h").read_text())
        self.out, self.work = np.zeros(program.n_outputs), np.zeros(int(work[1]))

    def __call__(self, states, k: int) -> tuple[int, np.ndarray]:
        """(status, outputs) of state k of {group: (N, size)}."""
        row = np.concatenate([np.ravel(states[group][k]) for group in self.groups])
        status = self.run(*(x.ctypes.data_as(ctypes.c_void_p) for x in (row, self.out, self.work)))
        return status, self.out.copy()


def sensors() -> sd.Problem:
    """An accelerometer instead of a joint acceleration; its name is hard to put into a comment."""
    model = sd.auto_tree(5, 2, 0.7, 0.9)
    problem = sd.inverse_dynamics(model) - sd.JointAcceleration([model.joint_names[1]])
    return problem + sd.Accelerometer(model.body_names[4], components=["a_x"], name="*/ accel \\ é??/")


def function(*args, inputs=None) -> sd.Function:
    return sd.compile_function(*args, inputs or {"x": (1,)})


MEASURED = ["qdd", sd.Accelerometer("body3", name="imu"), sd.LoadCells("body2", ["fz", "nx"], name="IMU */ é")]
PROBLEMS = {
    "inverse": (lambda: sd.inverse_dynamics(sd.auto_tree(7, 1, 1.5, 0.9)), "all"),
    "forward": (lambda: sd.forward_dynamics(sd.chain(6, seed=3)), ["qdd"]),
    "floating": (lambda: sd.forward_dynamics(LEG), ["qdd", "a"]),
    "hybrid": (lambda: sd.hybrid_dynamics(LEG, [LEG.joint_names[2]]), "all"),
    "sensors": (sensors, ["tau", "qdd"]),
    "orthogonal columns": (lambda: load_cells(4), ["tau", "qdd"]),
    "measured": (lambda: sd.forward_dynamics(LEG), MEASURED),
}


def solver(case: str) -> sd.Solver:
    problem, outputs = PROBLEMS[case]
    return sd.compile(problem(), outputs=outputs, level="fast", on_singular="nan")


CASES = {case: partial(solver, case) for case in PROBLEMS} | {
    "product": lambda: solver("forward").vjp(),
    "kinematics": lambda: sd.kinematics(LEG, ["com", "mass_matrix"]),
    "function": lambda: function(partial(sd.crba, LEG), inputs={"w": (LEG.nq,)}),
    # constants, inputs that are passed on or not read, and a root
    "odd": lambda: function(
        lambda x, y: (np.array([x[0], -2.5, 3e30 * x[1]]), np.sqrt(x[0] * x[0] + 1.0)), inputs={"x": (2,), "y": (3,)}
    ),
}
SINGLE = ("forward", "floating", "orthogonal columns", "product")


@pytest.mark.slow(after=1)
@needs_compiler
@pytest.mark.parametrize(
    ("case", "real"), [*((case, "float64") for case in CASES), *((case, "float32") for case in SINGLE)]
)
def test_exported_code_is_strict_c99_and_agrees_with_the_kernel(case, real, tmp_path):
    """In float32 no operation is in double, for processors without them."""
    compiled = CASES[case]()
    folder = compiled.export_c(tmp_path / "c", "robot", real)
    assert {path.name for path in folder.iterdir()} == {
        "robot.h", "robot.c", "main.c", "test_vectors.h", "CMakeLists.txt"
    }  # fmt: skip
    for compiler in COMPILERS:
        build(folder, "robot", "-O1", *(STRICT if real == "float64" else WARNINGS), compiler=compiler)
        assert "state 7: " in run_main(folder)
    code, header = ((folder / f"robot.{x}").read_text() for x in "ch")
    assert set(re.findall(r"#include (\S+)", code)) == {'"robot.h"', "<math.h>"}
    if real == "float32":
        difference = re.search(r"Results differ from those in double by up to (\S+) of", header)
        assert "double" not in code and 1e-8 < float(difference[1]) < 0.1
        command = [COMPILERS[0], *WARNINGS, "-Wdouble-promotion", "-c", "robot.c"]
        subprocess.run(command, cwd=folder, check=True, timeout=120)
        return
    exported = compiled.exported_program()
    states, program = exported.states(), exported.executable.program
    n = len(next(iter(states.values())))
    outputs, status = exported.executable.results(states, n)
    run = Library(folder, "robot", program)
    for k in range(n):
        bits, row = run(states, k)
        assert bits == status[k]
        for group, part in program.outputs.slices.items() if not bits else ():
            expected = outputs[group][k]
            np.testing.assert_allclose(row[part], expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.slow
@needs_compiler
def test_large_programs_compile_in_seconds_and_need_little_stack(tmp_path):
    solver = sd.compile(sd.forward_dynamics(icub("floating")), outputs=["qdd"], level="fast")
    folder = solver.export_c(tmp_path / "icub")
    build(folder, "icub_forward_dynamics", "-O1", "-Wstack-usage=20000", *STRICT)
    printed = re.findall(r"differs by (\S+); its greatest entry is (\S+)", run_main(folder))
    assert len(printed) == 8 and all(float(error) <= 1e-12 * float(size) for error, size in printed)


@needs_compiler
def test_the_status_is_that_of_the_kernel(tmp_path):
    """At an exactly singular state, and for values that are not finite."""
    compiled = solver("sensors")
    run = Library(compiled.export_c(tmp_path / "c", name="odd"), "odd", compiled.program)
    states = sample_states(compiled.problem, 400, seed=11)
    states["q"][3, 0], states["qd"][4, 1] = np.nan, np.inf
    states["q"][5, 2] = 1e10  # beyond the largest angle
    _, status = compiled.executable.results(states, 400)
    bits = [run(states, k)[0] for k in range(400)]
    assert status[3] & BAD_INPUT and status[4] & BAD_INPUT and status[5] & BAD_OUTPUT
    np.testing.assert_array_equal(bits, status)
    assert len(set(bits)) > 3, "no pivot failed: the test says nothing about guards"


@needs_compiler
def test_angles_far_out_keep_their_digits(tmp_path):
    """Constants are added to angles after whole turns are subtracted, as in the kernel."""
    problem = sd.inverse_dynamics(sd.chain(5, seed=1))
    compiled = sd.compile(problem, outputs=["tau"], external_wrenches=False, level="fast")
    folder = compiled.export_c(tmp_path / "arm", name="arm")
    assert "wrapped(" in (folder / "arm.c").read_text()
    run = Library(folder, "arm", compiled.program)
    states = dict(zip(("q", "qd", "qdd"), compiled.model.random_state(seed=0, batch=20), strict=True))
    states["q"] += np.random.default_rng(0).uniform(-9e8, 9e8, states["q"].shape)
    expected, states["fx"] = compiled(**states).tau, np.zeros((20, 30))
    for k in range(20):
        status, tau = run(states, k)
        assert status == 0
        np.testing.assert_allclose(tau, expected[k], rtol=0.0, atol=1e-13 * np.abs(expected[k]).max())


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS or not shutil.which("cmake"), reason="no C compiler or no CMake")
def test_the_cmake_project_builds_and_passes_its_test(tmp_path):
    sd.compile(sd.inverse_dynamics(sd.chain(2)), outputs=["tau"]).export_c(tmp_path / "arm", name="arm")
    for command in (["cmake", "-S", "arm", "-B", "b"], ["cmake", "--build", "b"], ["ctest", "--test-dir", "b"]):
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr
    assert "100% tests passed" in run.stdout


# ---- test vectors --------------------------------------------------------------------------------------------------


@needs_compiler
def test_a_wrong_result_fails_the_exported_test(tmp_path):
    folder = sd.compile(sd.inverse_dynamics(sd.chain(2)), outputs=["tau"]).export_c(tmp_path / "arm", name="arm")
    helpers, pieces = (folder / "arm.c").read_text().split("static void piece_0", 1)
    (folder / "arm.c").write_text(f"{helpers}static void piece_0{pieces.replace(' + ', ' - ', 1)}")
    build(folder, "arm", *STRICT)
    run = subprocess.run([folder / "main"], capture_output=True, text=True)
    assert run.returncode == 1 and "checks failed" in run.stdout


@pytest.mark.parametrize("real", ["float64", "float32"])
@pytest.mark.parametrize(
    "spoil", [lambda x: 3.0 * x, lambda x: x + 1e-6 * np.abs(x).max(), lambda x: np.where(x > 0, x, 0)]
)
def test_wrong_machine_code_is_not_exported(spoil, real, tmp_path, monkeypatch):
    """The tolerance of the exported test does not grow with the error of the results that it is made of."""
    run = Runner.run

    def wrong(self, inputs, outputs, *rest, **options):
        run(self, inputs, outputs, *rest, **options)
        outputs["qdd"][...] = spoil(outputs["qdd"])

    compiled = solver("forward")
    monkeypatch.setattr(Runner, "run", wrong)
    with pytest.raises(SingularState, match="qdd"):
        compiled.export_c(tmp_path / "arm", "arm", real=real)
    assert not (tmp_path / "arm").exists()


def test_states_of_test_vectors_are_chosen_by_the_caller(tmp_path):
    shifted = function(lambda x: np.sqrt(x * x - 100.0))
    text = (shifted.export_c(tmp_path / "c", "root", states={"x": [11.0, 12.0]}) / "test_vectors.h").read_text()
    assert "TEST_COUNT 2" in text and "{12.0}" in text


@pytest.mark.parametrize(
    ("compute", "options", "error", "message"),
    [
        (lambda x: x, {"name": None}, InvalidInput, "C identifier"),
        (lambda x: x, {"real": "half"}, UnknownName, "type of numbers.*float64, float32"),
        (lambda x: x[:0], {}, InvalidInput, "nothing to export"),
        (lambda x: np.sqrt(-1.0 - x * x), {}, SingularState, "finite result"),
        (lambda x: x, {"states": {"y": [1.0]}}, InvalidInput, "no values of x"),
        # of x ≈ 1e-6 without a digit in float32
        (lambda x: np.sqrt(1.0 + 1e-6 * (1.0 + x * x)) - 1.0, {"real": "float32"}, SingularState, "float64"),
    ],
)
def test_what_cannot_be_exported_is_named(compute, options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        function(compute).export_c(tmp_path / "c", **{"name": "f", **options})
    assert not (tmp_path / "c").exists()


# ---- names and layout ----------------------------------------------------------------------------------------------


def test_the_header_names_every_entry(tmp_path):
    header = (solver("hybrid").export_c(tmp_path / "h", name="h") / "h.h").read_text()
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
def test_default_names_come_from_robot_and_problem(robot, expected):
    model = sd.chain(2).replace(name=robot)
    problems = (
        sd.inverse_dynamics(model),
        sd.forward_dynamics(model),
        sd.hybrid_dynamics(model, model.joint_names[:1]),
    )
    for problem, kind in zip(problems, ("inverse", "forward", "hybrid"), strict=True):
        assert c99.check_name(problem_name(problem)) == f"{expected}_{kind}_dynamics"
    assert problem_name(sensors()).endswith("_0_9_dynamics")


RESERVED = """int class static_assert main Main test_vectors m test all clean install ALL_BUILD math stddef time errno
string assert features pthread Stdio""".split()


@pytest.mark.parametrize("name", ["two words", "2r", "", 3, "é", "a-b", *RESERVED])
def test_names_that_are_reserved_or_no_identifiers_are_refused(name, tmp_path):
    """Headers of C and POSIX, which NAME.h would hide; targets of CMake; keywords."""
    with pytest.raises(InvalidInput, match="name is") as error:
        function(lambda x: x).export_c(tmp_path / "x", name=name)
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
def test_casadi_agrees_with_the_kernel(case):
    pytest.importorskip("casadi")
    compiled = solver(case)
    casadi = compiled.to_casadi()
    assert casadi.name() == problem_name(compiled.problem)
    known = {"sensors": ["known_qdd", "fx", "y_accel"]}.get(case, ["tau", "fx"])
    assert casadi.name_in() == ["q", "qd", *known]
    assert casadi.name_out() == {"measured": ["qdd", "imu", "imu_"]}.get(case, list(compiled.outputs))
    states = random_groups(compiled.problem, 3, seed=1)
    outputs, _ = compiled.executable.results(states, 3)
    for k in range(3):
        results = casadi.call([np.ravel(states[group][k]) for group in compiled.program.inputs])
        for x, expected in zip(results, outputs.values(), strict=True):
            np.testing.assert_allclose(x.full().ravel(), expected[k], rtol=0, atol=1e-12 * np.abs(expected[k]).max())


def test_casadi_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "casadi", None)
    with pytest.raises(BackendUnavailable, match="pip install casadi"):
        sd.compile(sd.inverse_dynamics(sd.chain(1)), outputs=["tau"]).to_casadi()
