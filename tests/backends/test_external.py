"""Functions of C in CasADi, with their derivatives: values and derivatives of SX, and problems of optimal control."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from test_export_c import STRICT
from traced import CASES, arm, singular

import sysdyn as sd
from sysdyn.errors import InvalidInput

ca = pytest.importorskip("casadi")
COMPILER = next((x for x in ("gcc", "clang") if shutil.which(x)), "")
needs_compiler = pytest.mark.skipif(not COMPILER, reason="no C compiler")


def position(names: list[str]) -> str:
    """The name of q: of an input that is a result, too, it is another one."""
    return "known_q" if "known_q" in names else "q"


def external(compiled, folder: Path, name: str = "robot", **options):
    """casadi.external of what is compiled here of an export."""
    path = compiled.export_casadi(folder / name, name)
    sources = sorted(x.name for x in path.glob("*.c"))
    library = path / "library.so"
    subprocess.run([COMPILER, *STRICT, "-O1", "-shared", "-fPIC", *sources, "-o", library, "-lm"], cwd=path, check=True)
    return ca.external(name, str(library), options)


@pytest.mark.slow(after=1)
@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_values_and_derivatives_are_those_of_symbols(case, tmp_path):
    """Jacobians by forward and by reverse mode, and a Hessian; of states with unit quaternions."""
    compiled, _, _ = CASES[case]()
    function, symbols = external(compiled, tmp_path), compiled.to_casadi("symbols")
    assert [function.name_in(), function.name_out()] == [symbols.name_in(), symbols.name_out()]
    rng = np.random.default_rng(0)
    sizes = [function.size1_in(k) for k in range(function.n_in())]
    given = [rng.standard_normal(n) for n in sizes]
    q = position(function.name_in())
    if q in function.name_in():
        given[function.index_in(q)] = compiled.model.random_state(seed=3)[0]
    own = [ca.MX.sym(f"x{k}", n) for k, n in enumerate(sizes)]
    at, weights = ca.vertcat(*own), [rng.standard_normal(x.shape) for x in function.call(given)]

    def normal(x: list) -> list:
        """Inputs with quaternions divided by their norms, as the library has them."""
        x = list(x)
        if position(function.name_in()) in function.name_in():
            k = function.index_in(position(function.name_in()))
            q = x[k]
            for _, part in compiled.model.quaternions:
                norm = ca.norm_2(q[part])
                q = ca.vertcat(q[: part.start], q[part] / norm, q[part.stop :])
            x[k] = q
        return x

    for name, expression in (
        ("value", lambda f: ca.vertcat(*f)),
        ("Jacobian", lambda f: ca.jacobian(ca.vertcat(*f), at)),
        ("gradient", lambda f: ca.gradient(sum(ca.dot(w, y) for w, y in zip(weights, f, strict=True)), at)),
        ("Hessian", lambda f: ca.hessian(sum(ca.dot(w, y) for w, y in zip(weights, f, strict=True)), at)[0]),
        ("forward", lambda f: ca.jtimes(ca.vertcat(*f), at, ca.DM(np.cos(np.arange(at.shape[0]))))),
    ):
        ours = ca.Function("ours", own, [expression(function.call(own))]).call(given)[0]
        theirs = ca.Function("theirs", own, [expression(symbols.call(normal(own)))]).call(given)[0]
        ours, theirs = np.array(ours), np.array(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9 * max(1.0, np.abs(theirs).max()), err_msg=name)


@pytest.mark.slow(after=1)
@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_jacobians_are_programs(case, tmp_path):
    """In one call, as by differences; entries that symbols know to be zero are left out."""
    compiled, _, _ = CASES[case]()
    function, symbols = external(compiled, tmp_path, jac_penalty=1), compiled.to_casadi("symbols")
    other = {"enable_fd": True, "enable_forward": False, "enable_reverse": False, "enable_jacobian": False}
    differences = ca.external("robot", str(tmp_path / "robot" / "library.so"), other | {"fd_method": "central"})
    given = [np.random.default_rng(0).standard_normal(function.size1_in(k)) for k in range(function.n_in())]
    q = position(function.name_in())
    if q in function.name_in():
        given[function.index_in(q)] = compiled.model.random_state(seed=3)[0]
    J, pattern = function.jacobian(), symbols.jacobian()
    assert J.class_name() == "External" and J.name() == "jac_robot"
    blocks, n = J.call([*given, *function.call(given)]), function.n_in()
    own = [ca.MX.sym(f"x{k}", len(x)) for k, x in enumerate(given)]
    at = ca.vertcat(*own)
    slope = ca.jtimes(ca.vertcat(*differences.call(own)), at, ca.DM.eye(at.shape[0]))
    expected = ca.Function("slope", own, [slope]).call(given)[0].full()
    found = np.vstack([np.hstack([x.full() for x in blocks[k : k + n]]) for k in range(0, len(blocks), n)])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    if case != "quaternions":  # a body with three freedoms has entries that are zero by values alone
        assert all(J.nnz_out(k) <= pattern.nnz_out(k) for k in range(len(blocks)))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("solver", ["ipopt", "sqpmethod"])
def test_optimal_control_by_exact_derivatives(solver, tmp_path):
    """An arm is brought to a place within a horizon, by the function in C and by symbols: the same motion."""
    compiled, _, _ = arm()
    plans = []
    for f in (external(compiled, tmp_path, jac_penalty=1), compiled.to_casadi()):
        h, N, n = 0.02, 10, 3
        ocp = ca.Opti()
        x, u = ocp.variable(2 * n, N + 1), ocp.variable(n, N)
        ocp.subject_to(x[:, 0] == 0)
        for k in range(N):
            qd = x[n:, k] + h * f(x[:n, k], x[n:, k], u[:, k], ca.DM.zeros(6 * n))
            ocp.subject_to(x[:, k + 1] == ca.vertcat(x[:n, k] + h * qd, qd))
        ocp.minimize(ca.sumsqr(x[:n, :] - 0.2) + 1e-2 * ca.sumsqr(x[n:, :]) + 1e-4 * ca.sumsqr(u))
        quiet = {"print_iter": False, "print_header": False}
        if solver == "ipopt":
            ocp.solver("ipopt", {"print_time": False}, {"print_level": 0, "sb": "yes", "tol": 1e-10})
        else:
            options = {"print_header": False, "print_iteration": False, "print_status": False, "print_time": False}
            ocp.solver("sqpmethod", {"qpsol": "qrqp", "qpsol_options": quiet, **options})
        plans.append((x, ocp.solve()))
        slope = ca.Function("slope", [ocp.x], [ca.jacobian(ocp.g, ocp.x)])
        calls = [slope.instruction_MX(k).which_function().name() for k in range(slope.n_instructions())
                 if slope.instruction_id(k) == ca.OP_CALL]  # fmt: skip
        assert calls == ["jac_robot"] * N or f.is_a("SXFunction")  # in place of sweeps
    (mine, ours), (x, theirs) = plans
    assert ours.stats()["iter_count"] == theirs.stats()["iter_count"] < 20  # Newton's method
    np.testing.assert_allclose(ours.value(mine), theirs.value(x), atol=1e-7)


@needs_compiler
def test_states_that_cannot_be_solved_fail(tmp_path):
    solver, given = singular()
    function = external(solver, tmp_path)
    step = solver.bind(given["q"], given["qd"], given["qdd"], y=given["y"])
    step()
    bad = int(np.flatnonzero(step.status & 2)[0])
    good = int(np.flatnonzero(step.status == 0)[0])

    def result(k: int) -> np.ndarray:
        found = function(given["q"][k], given["qd"][k], given["qdd"][k], np.zeros(30), given["y"]["imu"][k])
        return np.array(found).ravel()

    np.testing.assert_allclose(result(good), step.out["qdd"][good], rtol=1e-9)
    with pytest.raises(RuntimeError):
        result(bad)


def test_names_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="C identifier"):
        sd.kinematics(sd.chain(2), ["energy"]).export_casadi(tmp_path / "x", "2r")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER or not shutil.which("cmake"), reason="no C compiler or no CMake")
def test_the_cmake_project_makes_the_library(tmp_path):
    sd.kinematics(sd.chain(2), ["energy"]).export_casadi(tmp_path / "c", "robot")
    for command in (["cmake", "-S", "c", "-B", "b"], ["cmake", "--build", "b"]):
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    energy = ca.external("robot", str(tmp_path / "b" / "librobot.so"))
    q, qd, _ = sd.chain(2).random_state(seed=0)
    found = np.array(energy.call([q, qd])[0]).ravel()
    np.testing.assert_allclose(found, np.ravel(sd.kinematics(sd.chain(2), ["energy"])(q, qd)["energy"]), rtol=1e-12)
