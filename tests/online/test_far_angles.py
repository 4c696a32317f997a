"""Angles far out: as many digits as at the same angle less its whole turns, and overflow called by its name."""

from __future__ import annotations

import itertools
from decimal import Decimal, getcontext

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.program.opcodes import WRAP

# π to 60 digits.
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
getcontext().prec = 60


def without_turns(x: float) -> float:
    """x − 2π k, |x| ≤ π, correctly rounded."""
    exact, turn = Decimal(x), 2 * PI
    return float(exact - turn * (exact / turn).to_integral_value())


def far_states(model: sd.Model, largest: float, n: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """(q, q less whole turns) (n, nq) with angles up to `largest`; coordinates that are no angles are small."""
    q = model.random_state(seed=3, batch=n)[0]
    rng, reduced = np.random.default_rng(4), q.copy()
    for i, joint in enumerate(model.joints):
        if type(joint).__name__ in ("Revolute", "Continuous"):
            k = model.q_slice(i).start
            q[:, k] = rng.uniform(-largest, largest, n)
            reduced[:, k] = [without_turns(x) for x in q[:, k]]
    return q, reduced


MODELS = {
    "chain": lambda: sd.chain(5, seed=1),
    "tree": lambda: sd.random_tree(9, seed=5),
    "iCub": lambda: sd.load("icub"),
    "floating": lambda: sd.load("icub", base="floating"),
    "parallel axes": lambda: sd.auto_tree(6, 1, 0, 1),
}
PROBLEMS = {
    "tau": sd.inverse_dynamics,
    "qdd": sd.forward_dynamics,
    "hybrid": lambda model: sd.hybrid_dynamics(model, torque=model.joint_names[-2:]),
}


CASES = [*itertools.product(MODELS, PROBLEMS, ["llvm", "python"])]
# The same operations as of the others, with a longer compile.
LONG = {(name, "hybrid", "llvm") for name in ("iCub", "floating")}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "problem", "backend"), [case for case in CASES if case not in LONG])
def test_solvers_keep_their_digits(name, problem, backend):
    model = MODELS[name]()
    outputs = ["tau", "qdd"] if problem == "hybrid" else [problem]
    solver = sd.compile(PROBLEMS[problem](model), outputs=outputs, level="fast", backend=backend)
    _, qd, x = model.random_state(seed=3, batch=8)
    given = {"tau": x, "qdd": 0.5 * x} if problem == "hybrid" else {"qdd" if problem == "tau" else "tau": x}
    for largest in (1e2, 1e5, 1e9):
        q, reduced = far_states(model, largest)
        found, right = solver(q, qd, **given), solver(reduced, qd, **given)
        for output in outputs:
            size = np.abs(right[output]).max()
            np.testing.assert_allclose(found[output], right[output], rtol=0.0, atol=1e-13 * size)
            one = solver(q[0], qd[0], **{a: b[0] for a, b in given.items()})[output]
            np.testing.assert_allclose(one, right[output][0], rtol=0.0, atol=1e-13 * size)


@pytest.mark.slow
def test_estimates_derivatives_and_kinematics_keep_their_digits():
    model = sd.chain(5, seed=1)
    problem = sd.Problem(
        model,
        [
            sd.JointAcceleration("all", noise=0.1, name="encoders"),
            sd.JointTorque("all", noise=0.3, name="torques"),
            sd.ExternalWrench("all"),
        ],
    )
    (q, reduced), (_, qd, qdd) = far_states(model, 1e9), model.random_state(seed=3, batch=8)
    y = sd.predict(problem, reduced, qd, qdd, seed=0)
    estimator = sd.compile(problem, outputs=["tau"], level="fast")
    found, right = estimator(q, qd, y=y), estimator(reduced, qd, y=y)
    for part in (lambda x: x.tau, lambda x: x.std("tau"), lambda x: x.residuals()["encoders"]):
        np.testing.assert_allclose(part(found), part(right), rtol=0.0, atol=1e-12 * np.abs(part(right)).max())
    J = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], level="fast").derivatives(wrt=("q", "qd"))
    for wrt in ("q", "qd"):
        right = J(reduced, qd, qdd)["tau", wrt]
        np.testing.assert_allclose(J(q, qd, qdd)["tau", wrt], right, rtol=0.0, atol=1e-13 * np.abs(right).max())
    H = sd.kinematics(model, ["mass_matrix"])
    right = H(reduced)["mass_matrix"]
    np.testing.assert_allclose(H(q)["mass_matrix"], right, rtol=0.0, atol=1e-13 * np.abs(right).max())


def test_only_sums_that_are_angles_are_wrapped():
    """A coordinate whose sum is read as a number keeps its turns: sin(x + 1) + x, and an angle by itself."""
    t = np.array(1e8 + 0.25)
    sine = sd.compile_function(lambda x: np.sin(x + 1.0), {"x": ()})
    both = sd.compile_function(lambda x: np.sin(x + 1.0) + (x + 1.0), {"x": ()})
    alone = sd.compile_function(lambda x: np.sin(x), {"x": ()})
    wraps = [int((f.program.kind == WRAP).sum()) for f in (sine, both, alone)]
    assert wraps == [1, 0, 0]
    assert sine(t) == pytest.approx(np.sin(without_turns(float(t)) + 1.0), abs=1e-15)
    assert both(t) == pytest.approx(t + 1.0, rel=1e-7)
    assert sine.program.flops.total == 1


@pytest.mark.parametrize("problem", ["tau", "qdd"])
def test_overflow_is_called_overflow(problem):
    model = sd.chain(3)
    solver = sd.compile(PROBLEMS[problem](model), outputs=[problem], level="fast")
    q, qd, x = model.random_state(seed=0)
    with pytest.raises(sd.SingularState, match=r"qd:joint\d = .*e\+199 is too large for double precision"):
        solver(q, 1e200 * qd, x)
    if problem == "qdd":
        with pytest.raises(sd.SingularState, match=r"tau:joint1 = 1e\+308 is too large"):
            solver(q, qd, np.array([1e307, 1e308, -1e307]))
    assert not solver(q, 1e200 * qd, x, on_singular="nan").ok


@pytest.mark.parametrize("backend", ["llvm", "python"])
def test_angles_beyond_the_largest_are_refused_by_every_back_end(backend):
    """The interpreter answered them, by the C library's sine."""
    model = sd.chain(2, seed=1)
    solver = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], level="fast", backend=backend)
    zero, q = np.zeros((2, 2)), np.array([[1e9, -1e9], [0.5, -2e9]])
    with pytest.raises(sd.InvalidInput, match=r"the angle of joint 'joint1' is 2e\+09 rad.*reduce it"):
        solver(q, zero, qdd=zero)
    assert solver(q[0], zero[0], qdd=zero[0]).ok
