"""Everything that is answered near singular states, beside the same equations in 50 digits."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
from estimates import FAST

import sysdyn as sd
from sysdyn.equations.system import SINGULAR
from sysdyn.errors import SingularState
from sysdyn.frameworks.traced import Node
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.noise import noise_of
from sysdyn.offline.sampling import lengths
from sysdyn.online import posterior

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import singular
    from digits import Digits, Worth, relative, worth_off

# Greatest error of an answer.
OFF = 1e-8
# Distances from the stretched arm [rad]: the condition number of exact equations is about their inverse, see below.
NEAR = (0.3, 1e-3, 1e-5, 1e-7, 1e-8, 1e-9)
LINK = """<link name="{k}"><inertial><origin xyz="0.2 0.01 0.02"/><mass value="1.{k}"/>
<inertia ixx="0.01" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial></link>"""
JOINT = """<joint name="j{k}" type="continuous"><parent link="{parent}"/><child link="{k}"/>
<origin xyz="0.4 0 0"/><axis xyz="0 0 1"/></joint>"""


@functools.cache
def arm() -> sd.Model:
    """A planar arm of three links: stretched, no joint moves its end along it."""
    links = '<link name="base"/>' + "".join(LINK.format(k=k) for k in range(3))
    joints = "".join(JOINT.format(k=k, parent=k - 1 if k else "base") for k in range(3))
    return sd.load(f'<robot name="arm">{links}{joints}</robot>')


# Pose of the end of the arm in its last link.
END = np.eye(4)
END[0, 3] = 0.4


@functools.cache
def solved(kind: str) -> tuple[sd.Problem, sd.Solver, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """An estimate with an exact sensor along the arm; near the stretched arm its inputs by group, and its readings."""
    model = arm()
    exact = sd.Accelerometer(("2", END), ["a_x"] if kind == "one" else ["a_x", "a_y"], name="exact")
    problem = sd.Problem(model, [
        sd.JointAcceleration("all", noise=0.3, name="accelerations"), sd.JointTorque("all", noise=0.1, name="torques"),
        sd.ExternalWrench("all"), sd.AngularAccelerometer("1", name="gyro", noise=0.2), exact,
    ])  # fmt: skip
    rng = np.random.default_rng(3)
    q = np.array(NEAR)[:, None] * np.array([0.7, 1.0, -0.6])
    qd, qdd = rng.standard_normal((2, *q.shape))
    y = sd.predict(problem, q, qd, qdd, seed=1)
    inputs = {"q": q, "qd": qd} | {value_group(m.name): y[m.name] for m in problem.custom}
    inputs |= {x.group: x.declared for x in (noise_of(m, model) for m in problem.noisy)}
    return (
        problem,
        sd.compile(problem, **FAST),
        inputs,
        {m.name: y[m.name] for m in problem.custom},
    )


def test_an_estimate_whose_worth_cannot_be_computed_says_so(monkeypatch):
    """Were there a state that is solved with pivoting, and whose factors are not: an error, or NaN at that state."""
    _, solver, inputs, y = solved("one")
    monkeypatch.setattr(posterior, "dense_estimates", lambda system, given: [None] * len(given["q"]))
    monkeypatch.setattr(posterior.DoubleDoubleFallback, "solve", lambda *given: False)
    refusing, going_on = (solver(inputs["q"], inputs["qd"], y=y, on_singular=x) for x in ("raise", "nan"))
    with pytest.raises(SingularState, match="variances of qdd cannot be computed at this state") as caught:
        refusing.std("qdd")
    lost = np.isnan(going_on.std("qdd")).any(axis=1)
    assert going_on.ok.all() and caught.value.states == tuple(np.flatnonzero(lost)) and not lost[0] and lost[-1]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ("one", "two"))
def test_estimates_near_singular_states_are_right(kind):
    """Means, deviations, residuals, χ², tests and likelihood; the augmented matrix has twice as few digits."""
    problem, solver, inputs, y = solved(kind)
    estimate = solver(inputs["q"], inputs["qd"], y=y, on_singular="nan")
    system = sd.assemble(problem)
    augmented = [system.reciprocal_condition(x) for x in system.values(estimate.inputs)[0]]
    assert estimate.ok.all() and min(augmented) < 1e-14
    worth = Worth.of(problem, estimate)
    for k in range(len(NEAR)):
        off = worth_off(problem, inputs, worth, k)
        assert {what: x for what, x in off.items() if not x <= OFF} == {}, NEAR[k]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ("one", "two"))
def test_estimates_have_answers_and_all_results_unless_their_state_counts_as_singular(kind):
    """By `reciprocal_condition`, also where the augmented matrix alone counts as singular; in batches and by itself."""
    problem, solver, *_ = solved(kind)
    q = np.logspace(-17.0, -0.5, 67)[:, None] * np.array([0.7, 1.0, -0.6])
    qd, qdd = np.random.default_rng(5).standard_normal((2, *q.shape))
    read = sd.predict(problem, q, qd, qdd, seed=1)
    y = {m.name: read[m.name] for m in problem.custom}
    estimate = solver(q, qd, y=y, on_singular="nan")
    answered = estimate.reciprocal_condition() >= SINGULAR
    assert 20 < answered.sum() < 50 and (estimate.ok == answered).all()
    for result in (estimate.chi2(), estimate.std("tau").sum(axis=1), estimate.log_likelihood()):
        assert (np.isfinite(result) == answered).all()
    for k in range(0, len(q), 6):
        one = solver(q[k], qd[k], y={name: x[k] for name, x in y.items()}, on_singular="nan")
        assert one.ok == answered[k] == (one.reciprocal_condition() >= SINGULAR) == np.isfinite(one.chi2())


def test_rounding_errors_of_what_is_certain_are_no_lost_digits():
    """Under variances far from the declared ones: certain parts of a planar robot's a have covariances of 1e-20."""
    _, solver, inputs, y = solved("one")
    estimate = solver(inputs["q"], inputs["qd"], y=y, noise={"torques": 30.0})
    covariance, std = estimate.covariance("a"), estimate.std("a").reshape(len(NEAR), -1)
    found = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    np.testing.assert_allclose(found, std, rtol=1e-10, atol=1e-10 * std.max())
    assert std.min() < 1e-16 * std.max() and np.isfinite(estimate.log_likelihood()).all()


@pytest.mark.parametrize("kind", ("one", "two"))
def test_singular_estimates_are_refused_with_names(kind):
    _, solver, inputs, y = solved(kind)
    values = {name: x[:1] for name, x in y.items()}
    for q in (0.0, 1e-15):
        given = np.full((1, 3), q), inputs["qd"][:1]
        assert not solver(*given, y=values, on_singular="nan").ok.any()
        with pytest.raises(SingularState, match="cannot be solved at this state"):
            solver(*given, y=values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "order"), [(0, "auto"), (3, "aba"), (0, "markowitz"), (1, "markowitz"), (3, "tearing"), (9, "tearing")]
)
@pytest.mark.filterwarnings("ignore::sysdyn.errors.AccuracyWarning")  # the one start of level "fast" marks nothing
def test_necks_and_gimbals_are_answered_as_in_50_digits(seed, order):
    """Also accelerations of 1e17 rad/s², of axes that files turn by 1e-8 rad; no regular state is refused."""
    problem = sd.forward_dynamics(singular.robot(seed))
    solver = sd.compile(problem, order, outputs=["qdd"], level="fast", backend="python")
    found = singular.counted(solver, 120, np.random.default_rng(seed))
    assert found["wrong"] == found["regular"] == found["contradicted"] == 0 < found["answered"]


def slopes(problem: sd.Problem, of: str, wrt: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """(m, n) derivative at one state of an unknown quantity by an input that equations are linear in, in 50 digits."""
    system = sd.assemble(problem)
    ends = [system.values(inputs | {wrt: inputs[wrt] + e})[1].ravel() for e in (0.0, *np.eye(inputs[wrt].size))]
    change = np.array(ends[1:]) - ends[0]
    rows = np.flatnonzero(change.any(axis=0)).tolist()
    exact = Digits(system, inputs, rows)
    return sum(np.outer(exact.quantity(of, k), change[:, row]) for k, row in enumerate(rows, 1))


DERIVED = {
    "neck": (lambda: sd.forward_dynamics(singular.robot(0)), ("qdd",), "tau", "analytic"),
    "neck, f": (lambda: sd.forward_dynamics(singular.robot(0)), ("qdd", "f"), "tau", "implicit"),
    "gimbal, f": (lambda: sd.forward_dynamics(singular.robot(1)), ("qdd", "f"), "tau", "implicit"),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", DERIVED)
def test_derivatives_near_singular_states_are_right_or_refused(case):
    """Gimbals whose axes files turn by 1e-8 rad had derivatives two times too large: rounded constants decided them."""
    make, of, wrt, method = DERIVED[case]
    problem, rng = make(), np.random.default_rng(0)
    solver = sd.compile(problem, outputs="qdd" if of == ("qdd",) else "all", level="fast", backend="python")
    J = solver.derivatives(of=of, wrt=("q", wrt))
    assert J.method.startswith(method)
    q = singular.positions(60, rng)
    at = q[np.argmin(np.linalg.svd(sd.crba(problem.model, q), compute_uv=False)[:, -1])]
    q = np.concatenate([q, at + np.logspace(-1, -9, 9)[:, None] * np.array([0.3, 1.0, -0.7])])
    zero = np.zeros_like(q)
    inputs = {"q": q, "qd": zero, wrt: zero}
    found = J(**inputs, on_singular="nan")
    nearness = solver(**inputs, on_singular="nan").reciprocal_condition()
    answered = np.isfinite(found["qdd", wrt]).all(axis=(1, 2))
    for block in found.values():
        assert np.isfinite(block[answered]).all() and np.isnan(block[~answered]).all()
    assert (nearness < singular.SINGULAR).any() and not answered[nearness < singular.SINGULAR].any()
    assert answered[60:63].all()  # with small pivots, as are those of some others
    for k in np.flatnonzero(answered):
        exact = slopes(problem, "qdd", wrt, {name: x[k] for name, x in inputs.items()})
        assert relative(found["qdd", wrt][k], exact) <= 1e-5, q[k]
    refused = np.flatnonzero(~answered)
    with pytest.raises(SingularState, match="at .* states, .*singular there, or so near that rounding") as caught:
        J(**inputs)
    assert caught.value.states == tuple(refused)


@pytest.mark.parametrize("of", (("qdd",), ("qdd", "f")), ids=" and ".join)
def test_derivatives_far_out_have_all_digits(of):
    """In 50 digits beyond the judged lengths, also of a joint whose position the solution itself does not depend on."""
    model = sd.random_tree(3, 4, ("revolute", "prismatic"))
    problem = sd.forward_dynamics(model)
    solver = sd.compile(problem, outputs="qdd" if of == ("qdd",) else "all", level="fast", backend="python")
    q = np.where(lengths(model), np.array([[2e3], [1e5], [1e7]]), model.random_state(seed=1)[0])
    zero = np.zeros_like(q)
    found, product = solver.derivatives(of=of, wrt=("q", "tau"))(q, zero, zero), solver.jvp(of="qdd", wrt="q")
    for k, x in enumerate(q):
        exact = slopes(problem, "qdd", "tau", {"q": x, "qd": zero[0], "tau": zero[0]})
        columns = [product(x, zero[0], zero[0], tangents=e)["qdd"] for e in np.eye(model.nv)]
        assert relative(found["qdd", "tau"][k], exact) < 2e-14
        assert relative(np.transpose(columns), found["qdd", "q"][k]) < 2e-14


def test_traced_derivatives_near_singular_states_are_those_of_unit_quaternions():
    """Of numbers q that stand for q / |q|: by them whether the system is singular is decided, too."""
    model = sd.random_tree(2, 2, ("revolute", "spherical"))
    # the acceleration of the first joint, by a sensor that does not feel it where the second is turned so
    problem = sd.inverse_dynamics(model) - sd.JointAcceleration([model.joint_names[0]])
    problem += sd.Accelerometer(model.body_names[1], components=["a_x"], name="imu")
    system, zero = sd.assemble(problem), np.zeros(model.nv)

    def turned(angle: float) -> np.ndarray:
        return model.integrate(model.random_state(seed=1)[0], np.array([0.0, 0.0, angle, 0.0]))

    def determinant(angle: float) -> float:
        return float(np.linalg.det(system.matrix(system.values({"q": turned(angle), "qd": zero})[0][0]).toarray()))

    ends = np.linspace(0.0, 6.0, 25)
    start = next(x for x in ends if determinant(x) * determinant(x + 0.25) < 0.0)
    root = scipy.optimize.brentq(determinant, start, start + 0.25, xtol=1e-15)
    q = np.array([turned(root + x) for x in (0.0, 1e-6, 1e-4, 0.1, 0.2)])
    J = sd.compile(problem, outputs="qdd", level="fast").derivatives(wrt=("q", "imu"))
    expected = J(q, np.zeros(q.shape)[:, 1:], y={"imu": np.zeros(1)}, qdd=np.zeros(model.nv), on_singular="nan")
    node = Node.root(J.framework_function("nan"))
    given = {"q": np.where(np.arange(model.nq) > 0, 1e4, 1.0) * q} | {
        name: np.zeros((len(q), size)) for name, size in node.program.inputs.sizes.items() if name != "q"
    }
    given["qd"][4] = np.nan
    found = node.run([given[name] for name in node.inputs])
    for (block, x), y in zip(expected.items(), found, strict=True):
        assert np.isnan(x[0]).all() and np.isfinite(x[1:]).all(), block
        y = y.reshape(x.shape)
        np.testing.assert_allclose(y[:4], x[:4], rtol=1e-9)
        assert np.isnan(y[4]).all(), "of a state that is no number"


def test_a_state_of_twice_the_precision_is_rounded_once():
    problem = sd.forward_dynamics(singular.robot(0))
    solver = sd.compile(problem, outputs=["qdd"], level="fast", backend="python")
    q = singular.positions(240, np.random.default_rng(0))
    inputs = {"q": q, "qd": np.ones_like(q), "tau": np.ones_like(q)}
    solution = solver(*inputs.values(), on_singular="nan")
    near = np.flatnonzero(solution.ok & (solution.reciprocal_condition() < 1e-8))
    assert len(near)
    for k in near:
        exact = Digits(sd.assemble(problem), {name: x[k] for name, x in inputs.items()})
        assert relative(solution.qdd[k], exact.quantity("qdd")) < 4e-16


def test_solutions_of_twice_the_precision_are_not_judged_by_rounded_equations():
    """Sliding joints at up to 1,000 km: of the 60 states one was refused, whose answer leaves 1e-9 of rounded terms."""
    model = sd.random_tree(12, 5, ("revolute", "prismatic"))
    problem, rng = sd.inverse_dynamics(model), np.random.default_rng(1)
    q, qd, qdd = model.random_state(seed=3, batch=60)
    far = rng.choice([-1, 1], q.shape) * 10.0 ** rng.uniform(3, 6, q.shape)
    q = np.where(lengths(model), far, q)
    solution = sd.compile(problem, level="fast", backend="python")(q, qd, qdd)
    for k in np.argsort(solution.backward_error())[-2:]:
        exact = Digits(sd.assemble(problem), {"q": q[k], "qd": qd[k], "qdd": qdd[k]})
        assert relative(solution.tau[k], exact.quantity("tau")) < 1e-15
