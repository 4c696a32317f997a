"""Solvers in single precision: beside double precision, and at every kind of state."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
from solvers import ALIGNED, aligning, aligning_states

import sysdyn as sd
from sysdyn.codegen.llvm.target import host_processor
from sysdyn.errors import InvalidInput, ProblemError, SingularState, UnknownName
from sysdyn.program.opcodes import BAD_OUTPUT
from sysdyn.runtime.real import SINGLE

LANES = host_processor().lanes(SINGLE)
ARM = sd.chain(5, seed=1)
TREE = sd.random_tree(6, seed=3, joints=("revolute", "prismatic", "spherical"))
FLOATING = sd.random_tree(6, seed=2, joints=("free", "revolute", "spherical"))
FOOT = sd.Contact(FLOATING.body_names[-1], name="foot")
PROBLEMS = {
    "arm, inverse": (sd.inverse_dynamics(ARM), "tau", {}),
    "arm, forward": (sd.forward_dynamics(ARM), "qdd", {}),
    "arm, hybrid": (sd.hybrid_dynamics(ARM, ARM.joint_names[:2]), "qdd", {}),
    "tree": (sd.forward_dynamics(TREE), "qdd", {}),
    "tree, eliminated": (sd.forward_dynamics(TREE), "all", {"formulation": "paper"}),
    "floating base": (sd.forward_dynamics(FLOATING), "qdd", {}),
    "contact": (sd.forward_dynamics(FLOATING) + [FOOT], ["qdd", "w"], {}),
    "sensor": (sd.forward_dynamics(ARM), [sd.Accelerometer(ARM.body_names[-1], name="imu")], {}),
}  # fmt: skip


@functools.cache
def solvers(name: str) -> tuple[sd.Solver, sd.Solver]:
    """In double precision and in single."""
    problem, outputs, own = PROBLEMS[name]
    given = {"outputs": outputs, "level": "fast", **own}
    return sd.compile(problem, **given), sd.compile(problem, real="float32", **given)


def arguments(name: str, n: int, dtype: type = np.float64, seed: int = 0) -> dict[str, np.ndarray]:
    problem = PROBLEMS[name][0]
    q, qd, tau = problem.model.random_state(seed=seed, batch=n)
    values = {"tau": tau, "qdd": 0.3 * tau, "fx": np.random.default_rng(seed).standard_normal((n, problem.model.nb, 6))}
    given = {"q": q, "qd": qd} | {x: y for x, y in values.items() if x in problem.known_quantities}
    return {x: y.astype(dtype) for x, y in given.items()}


def off(found, exact, outputs) -> float:
    """Greatest difference of an output at a state, as a fraction of its greatest entry."""
    worst = 0.0
    for x in outputs:
        a, b = (np.asarray(y[x]).reshape(len(exact.ok), -1) for y in (found, exact))
        worst = max(worst, float(np.max(np.abs(a - b).max(axis=1) / np.maximum(np.abs(b).max(axis=1), 1e-30))))
    return worst


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", PROBLEMS)
def test_results_differ_from_double_precision_by_rounding(name):
    double, single = solvers(name)
    for n in (1, 2, LANES - 1, LANES, LANES + 1, 5 * LANES + 3):
        given = arguments(name, n, seed=n)
        exact = double(**given)
        for dtype in (np.float64, np.float32):
            found = single(**{x: y.astype(dtype) for x, y in given.items()})
            assert found.ok.all() and all(found[x].dtype == np.float32 for x in single.outputs)
            assert off(found, exact, [x for x in single.outputs if x != "fx"]) < 3e-4
    assert off(found, exact, single.outputs) > 1e-9
    one = single(**{x: y[3] for x, y in given.items()})
    for x in single.outputs:
        assert one[x].dtype == np.float32 and one[x].shape == exact[x].shape[1:]
        np.testing.assert_allclose(one[x], found[x][3], rtol=0, atol=1e-3 * np.abs(found[x][3]).max())


def test_forward_dynamics_is_that_of_pinocchio():
    pin = pytest.importorskip("pinocchio")
    from pinocchio_models import Twin

    (_, single), twin, given = solvers("tree"), Twin(TREE), arguments("tree", 40)
    given["fx"][:] = 0.0
    for q, qd, tau, found in zip(given["q"], given["qd"], given["tau"], single(**given).qdd, strict=True):
        exact = twin.T.T @ pin.aba(twin.pin, twin.data, twin.position(q), twin.T @ qd, twin.T @ tau)
        assert np.abs(found - exact).max() < 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("name", ["arm, inverse", "floating base"])
def test_arrays_of_every_kind_are_rounded_alike(name):
    single = pickle.loads(pickle.dumps(solvers(name)[1]))  # with calls of its own
    (output,), n = single.outputs, 200
    given = arguments(name, n)
    expected = single(**given)[output]
    short = {x: y.astype(np.float32) for x, y in given.items()}
    wide = {x: np.concatenate([y, y], axis=1)[:, : y.shape[1]] for x, y in given.items() if y.ndim == 2}
    for kind in (
        {x: np.asfortranarray(y) for x, y in given.items()}, given | wide, given | {"q": short["q"]},
        {x: y.tolist() for x, y in given.items()}, {x: y[::-1][::-1] for x, y in short.items()},
    ):  # fmt: skip
        found = single(**kind)[output]
        assert found.dtype == np.float32
        if name == "arm, inverse":  # without quaternions, which are normalised before or after they are rounded
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(single(**given, threads=2)[output], single(**given, threads=1)[output])
    one = {x: y[0] if x == "q" else y for x, y in given.items()}
    np.testing.assert_array_equal(single(**one)[output][0], expected[0])


def test_quaternions_of_another_norm_are_refused():
    single = solvers("floating base")[1]
    for dtype in (np.float64, np.float32):
        given = arguments("floating base", 40, dtype)
        given["q"][7, FLOATING.quaternions[0][1]] *= 1.01
        with pytest.raises(InvalidInput, match=r"state 7 has norm 1\.01"):
            single(**given)


def test_bound_calls_read_arrays_of_their_type():
    double, single = solvers("floating base")
    for n in (None, 3, 4 * LANES + 1):
        given = arguments("floating base", n or 1, np.float32)
        if n is None:
            given = {x: y[0] for x, y in given.items()}
        step = single.bind(**given)
        step()
        assert step.out["qdd"].dtype == np.float32 and not step.status.any()
        exact = double(**given).qdd
        assert np.abs(step.out["qdd"] - exact).max() < 1e-4 * np.abs(exact).max()
    with pytest.raises(InvalidInput, match="must be a C-contiguous float32 array"):
        single.bind(**arguments("floating base", 3))
    with pytest.raises(InvalidInput, match=r"out\['qdd'\] must be a writeable C-contiguous float32 array"):
        single.bind(**given, out=np.zeros((n, FLOATING.nv)))


def test_the_interpreter_is_the_oracle_of_kernels():
    problem, outputs, _ = PROBLEMS["arm, forward"]
    double, kernel = solvers("arm, forward")
    slow = sd.compile(problem, outputs=outputs, level="fast", backend="python", real="float32")
    given = arguments("arm, forward", 100)
    given["q"][:, 1] += 300.0  # angles of many turns
    found, exact = slow(**given), double(**given)
    assert found.qdd.dtype == np.float32
    assert 1e-8 < off(found, exact, ["qdd"]) < 20.0 * off(kernel(**given), exact, ["qdd"]) < 1e-2


# ---- states at which it does not suffice ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sysdyn.AccuracyWarning")  # near these states
@pytest.mark.parametrize("outputs", ["all", "qdd"])
def test_singular_states_are_those_of_double_precision(outputs):
    q, qd, tau, fx = aligning_states()
    single = sd.compile(sd.forward_dynamics(aligning()), outputs=outputs, real="float32")
    with pytest.raises(SingularState, match="cannot be solved at this state 4: equation"):
        single(q, qd, tau, fx=fx)
    assert single(q, qd, tau, fx=fx, on_singular="nan").ok.tolist() == [not x for x in ALIGNED]


def test_states_near_singular_ones_are_solved_in_double_precision():
    """Within single precision of the aligned sliders, pivots are nothing but rounding errors."""
    q, qd, tau, fx = (np.repeat(x[3:4], 6, axis=0) for x in aligning_states())
    q[:, 1] = -0.7 + 10.0 ** -np.arange(1, 7)
    double, single = (
        sd.compile(sd.forward_dynamics(aligning()), outputs="qdd", real=x) for x in ("float64", "float32")
    )
    found, exact = single(q, qd, tau, fx=fx), double(q, qd, tau, fx=fx)
    assert found.ok.all() and exact.ok.all()
    assert off(found, exact, ["qdd"]) < 5e-3
    plain, status = single.executable.results(exact.inputs, 6)
    assert status[-1] and np.abs(plain["qdd"][-1] / exact.qdd[-1] - 1.0).max() > 1e-2  # what would have been given


def test_angles_of_many_turns_and_great_numbers():
    double, single = solvers("arm, forward")
    given = arguments("arm, forward", 20)
    given["q"][[3, 11], 1] += 2.0 * np.pi * 1e4  # beyond the angles that have a sine in single precision
    found, exact = single(**given), double(**given)
    assert found.ok.all()
    assert off(found, exact, ["qdd"]) < 1e-4
    step = single.bind(**{x: y.astype(np.float32) for x, y in given.items()})
    step()
    assert np.flatnonzero(step.status).tolist() == [3, 11] and (step.status[[3, 11]] & BAD_OUTPUT).all()
    given["tau"][5] = 1e39  # finite, but not in single precision
    assert double(**given).ok.all()
    with pytest.raises(SingularState, match=r"state 5: tau\S* = 1e\+39 is too large for single precision"):
        single(**given)
    assert np.flatnonzero(~single(**given, on_singular="nan").ok).tolist() == [5]
    given["tau"][5] = np.nan
    with pytest.raises(InvalidInput, match="tau is nan at state 5"):
        single(**given)


def test_states_far_out_are_solved_in_double_precision():
    """A prismatic joint without limits, beyond the range that was checked."""
    double, single = solvers("tree")
    assert single.stability.verified_range <= double.stability.verified_range
    columns = [k - single.program.inputs.slices["q"].start for k, _ in single.program.ranges]
    given = arguments("tree", 30)
    given["q"][::3, columns] = 100.0 * single.stability.verified_range
    found, exact = single(**given), double(**given)
    step = single.bind(**{x: y.astype(np.float32) for x, y in given.items()})
    step()
    assert columns and found.ok.all() and step.status[::3].all()
    assert off(found, exact, ["qdd"]) < 3e-4


# ---- what it is not for ---------------------------------------------------------------------------------------------


def test_what_needs_double_precision_says_so():
    model = ARM
    with pytest.raises(UnknownName, match="type of numbers 'float16'"):
        sd.compile(sd.forward_dynamics(model), real="float16")
    with pytest.raises(UnknownName, match="type of numbers 'int64'"):
        sd.compile(sd.forward_dynamics(model), real=np.int64)
    quick = sd.compile(sd.forward_dynamics(model), outputs="qdd", real=np.float32, level="fast", backend="python")
    assert quick.options.real == "float32"
    noisy = sd.forward_dynamics(model) + [sd.JointAcceleration("all", noise=0.1, name="encoders")]
    with pytest.raises(ProblemError, match="estimates are computed in double precision.*leave real= out"):
        sd.compile(noisy, real="float32")
    twice = sd.inverse_dynamics(model) + [sd.JointAcceleration(model.joint_names[0], name="again")]
    with pytest.raises(ProblemError, match="'again'.*needs double precision: leave real= out"):
        sd.compile(twice, real="float32")
    with pytest.raises(ProblemError, match="compile without real='float32'"):
        solvers("arm, forward")[1].to_torch()


def test_files_copies_derivatives_and_exports(tmp_path):
    double, single = solvers("arm, forward")
    given = arguments("arm, forward", 20)
    single.save(tmp_path / "solver")
    for copy in (sd.load_solver(tmp_path / "solver"), pickle.loads(pickle.dumps(single))):
        assert copy.options.real == "float32"
        np.testing.assert_array_equal(copy(**given).qdd, single(**given).qdd)
        assert "float32" in copy.report() and f"{single.stability.single_error:.1e}" in copy.report()
    assert "float32" not in double.report()
    J, exact = (x.derivatives(wrt="tau")(**given)["qdd", "tau"] for x in (single, double))
    assert J.dtype == np.float64
    np.testing.assert_allclose(J, exact, rtol=1e-12, atol=1e-12 * np.abs(exact).max())
    for real, name in (("float64", "double"), ("float32", "float")):
        folder = single.export_c(tmp_path / real, "arm", real=real)
        assert f"{name} q[" in (folder / "arm.h").read_text()


@pytest.mark.slow
def test_modes_of_switchable_contacts():
    problem = sd.forward_dynamics(FLOATING) + [sd.Switchable(FOOT)]
    options = {"outputs": ["qdd", "w"], "level": "fast"}
    double, single = sd.compile(problem, **options), sd.compile(problem, real="float32", **options)
    given = arguments("contact", 40)
    active = {"foot": np.arange(40) % 3 > 0}
    found, exact = single(**given, active=active), double(**given, active=active)
    assert found.qdd.dtype == found.w.dtype == np.float32
    assert (found.w[::3] == 0.0).all() and off(found, exact, ["qdd", "w"]) < 1e-3
