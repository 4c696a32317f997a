"""The page on C++, ROS 2 and FMI: its code is compiled by a strict compiler, called, and gives what solvers give."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd

PAGE = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text()
STAND_INS = Path(__file__).parents[1] / "stand_ins"
STRICT = "-std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror -fno-exceptions -O1".split()
pytestmark = pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("g++"), reason="no gcc and g++")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """A folder with the exports of the page, as objects, and the description of its FMU."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names: dict = {}
        for block in blocks("python"):
            exec(block, names)
    for name in ("arm_inverse", "arm_forward"):
        command = ["gcc", "-std=c99", "-O1", "-fPIC", "-c", f"{name}/{name}.c"]
        subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder


def build(folder: Path, name: str, text: str, *more: str, includes: tuple[str | Path, ...] = ()) -> Path:
    (folder / f"{name}.cpp").write_text(text)
    paths = [f"-I{x}" for x in ("arm_inverse", "arm_forward", *includes)]
    command = ["g++", *STRICT, *paths, f"{name}.cpp", "arm_inverse.o", "arm_forward.o", "-o", name, *more]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return folder / name


def numbers(program: Path) -> np.ndarray:
    """What a program prints."""
    run = subprocess.run([program], capture_output=True, text=True, timeout=60, check=True)
    return np.array(run.stdout.split(), dtype=float)


@pytest.mark.slow
def test_a_class_of_cpp_computes_what_the_solver_does_and_allocates_nothing(exported):
    q = np.array([0.3, -0.4, 0.5])
    main = f"""
#include <cmath>
#include <cstdio>
int main() {{
  static Gravity gravity;
  std::array<double, 3> tau{{1.0, 2.0, 3.0}};
  std::printf("%d ", gravity.torques({{0.0, std::nan(""), 0.0}}, tau));
  for (double x : tau) std::printf("%.17g ", x);
  std::printf("%d ", gravity.torques({{{", ".join(map(repr, q.tolist()))}}}, tau));
  for (double x : tau) std::printf("%.17g ", x);
}}
"""
    found = numbers(build(exported, "gravity", blocks("cpp")[0] + main))
    tau = sd.compile(sd.inverse_dynamics(sd.chain(3)), outputs=["tau"])(q, np.zeros(3), np.zeros(3)).tau
    np.testing.assert_array_equal(found[:5], [0, 1, 2, 3, 1])
    np.testing.assert_allclose(found[5:], tau, rtol=1e-13, atol=1e-14)
    needed = subprocess.run(["nm", "-u", "arm_inverse.o"], cwd=exported, capture_output=True, text=True, check=True)
    mathematics = {"sin", "cos", "sqrt", "floor", "sincos", "_GLOBAL_OFFSET_TABLE_"}
    assert {x for x in needed.stdout.split() if x not in "Uw"} <= mathematics


@pytest.mark.slow
def test_a_controller_of_ros_computes_torques(exported):
    main = """
#include <cstdio>
controller_interface::ControllerInterface* plugin();
int main() {
  auto* c = plugin();
  c->on_init();
  std::printf("%d ", c->on_configure({}) == controller_interface::CallbackReturn::ERROR);  // no joints are given
  c->get_node()->parameters["joints"] = std::vector<std::string>{"a", "b", "c"};
  c->get_node()->parameters["goal"] = std::vector<double>{0.1, 0.2, 0.3};
  std::printf("%d ", c->on_configure({}) == controller_interface::CallbackReturn::SUCCESS);
  c->state_interfaces_.resize(c->state_interface_configuration().names.size());
  c->command_interfaces_.resize(c->command_interface_configuration().names.size());
  std::printf("%zu %d ", c->command_interfaces_.size(), c->state_interface_configuration().names[3] == "b/velocity");
  for (std::size_t k = 0; k < 6; ++k) c->state_interfaces_[k].value = 0.1 * static_cast<double>(k);
  std::printf("%d ", c->update({}, {}) == controller_interface::return_type::OK);
  for (auto& x : c->command_interfaces_) std::printf("%.17g ", x.value);
  c->state_interfaces_[2].value = 0.0 / 0.0;
  std::printf("%d ", c->update({}, {}) == controller_interface::return_type::ERROR);
  for (auto& x : c->command_interfaces_) std::printf("%.17g ", x.value);
  delete c;
}
"""
    found = numbers(build(exported, "controller", blocks("cpp")[1] + main, includes=(STAND_INS,)))
    np.testing.assert_array_equal(found[:5], [1, 1, 3, 1, 1])
    q, qd, goal = np.array([0.0, 0.2, 0.4]), np.array([0.1, 0.3, 0.5]), np.array([0.1, 0.2, 0.3])
    qdd = 100.0 * (goal - q) - 20.0 * qd
    tau = sd.compile(sd.inverse_dynamics(sd.chain(3)), outputs=["tau"])(q, qd, qdd).tau
    np.testing.assert_allclose(found[5:8], tau, rtol=1e-12)
    np.testing.assert_array_equal(found[8:], [1, 0, 0, 0])


def moved(tau: np.ndarray, duration: float, steps: int) -> np.ndarray:
    """q and q̇ of the arm after a while from rest, by a method of another order."""
    problem = sd.forward_dynamics(sd.chain(3))
    run = sd.simulate(problem, np.zeros(3), np.zeros(3), tau, duration, duration / steps, integrator="rk4")
    return np.concatenate([run.q[-1], run.qd[-1]])


@pytest.mark.slow
def test_an_fmu_moves_as_simulations(exported):
    library = build(exported, "fmu", blocks("cpp")[2], "-shared", "-fPIC", includes=(STAND_INS,))
    fmu = ctypes.CDLL(str(library))
    fmu.fmi2Instantiate.restype = fmu.fmi2GetVersion.restype = ctypes.c_void_p
    assert ctypes.string_at(fmu.fmi2GetVersion()) == b"2.0"
    assert fmu.fmi2Instantiate(b"arm", 0, b"", b"", None, 0, 0) is None  # model exchange
    instance = ctypes.c_void_p(fmu.fmi2Instantiate(b"arm", 1, b"", b"", None, 0, 0))
    tau, places = np.array([0.1, -0.2, 0.05]), np.arange(9, dtype=np.uint32)

    def real(function, first: int, x: np.ndarray) -> None:
        size = ctypes.c_size_t(len(x))
        assert (
            function(instance, ctypes.c_void_p(places[first:].ctypes.data), size, ctypes.c_void_p(x.ctypes.data)) == 0
        )

    found = []
    for _ in range(2):  # the same after a reset
        real(fmu.fmi2SetReal, 0, tau)
        for k in range(10):
            assert fmu.fmi2DoStep(instance, ctypes.c_double(1e-2 * k), ctypes.c_double(1e-2), 1) == 0
        state = np.zeros(6)
        real(fmu.fmi2GetReal, 3, state)
        found.append(state)
        assert fmu.fmi2Reset(instance) == 0
    np.testing.assert_array_equal(found[0], found[1])
    expected = moved(tau, 0.1, 100)
    np.testing.assert_allclose(found[0], expected, atol=2e-3 * np.abs(expected).max())
    real(fmu.fmi2SetReal, 0, np.full(3, np.nan))
    assert fmu.fmi2DoStep(instance, ctypes.c_double(0.0), ctypes.c_double(1e-2), 1) == 3
    fmu.fmi2FreeInstance(instance)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("fmpy"), reason="FMPy is not installed")
def test_fmpy_runs_the_fmu(exported):
    import fmpy

    headers = Path(fmpy.__file__).parent / "c-code"
    library = build(exported, "standard", blocks("cpp")[2], "-shared", "-fPIC", includes=(headers,))
    path = exported / "arm.fmu"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(exported / "modelDescription.xml", "modelDescription.xml")
        archive.write(library, "binaries/linux64/arm.so")
    description = fmpy.read_model_description(str(path), validate=True)
    assert [x.name for x in description.modelVariables][:4] == ["tau.joint0", "tau.joint1", "tau.joint2", "q.joint0"]
    tau = {"tau.joint0": 0.1, "tau.joint1": -0.2, "tau.joint2": 0.05}
    names = [f"{x}.joint{k}" for x in ("q", "qd") for k in range(3)]
    result = fmpy.simulate_fmu(str(path), stop_time=0.1, output_interval=1e-2, start_values=tau, output=names)
    expected = moved(np.array(list(tau.values())), 0.1, 100)
    np.testing.assert_allclose([result[x][-1] for x in names], expected, atol=2e-3 * np.abs(expected).max())
