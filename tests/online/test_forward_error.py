"""`Solution.forward_error` against the same equations in 50 digits."""

from __future__ import annotations

import decimal
from decimal import Decimal

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.program.opcodes import ADD, COPYSIGN, COS, DIV, MUL, NEG, SIN, SQRT, SUB, WRAP

DIGITS = 50


def sine(x: Decimal) -> Decimal:
    """Of |x| below 10, by its series."""
    term, total, n = x, x, 1
    while abs(term) > Decimal(10) ** -(DIGITS + 5):
        n += 2
        term *= -x * x / (n * (n - 1))
        total += term
    return total


def cosine(x: Decimal) -> Decimal:
    term, total, n = Decimal(1), Decimal(1), 0
    while abs(term) > Decimal(10) ** -(DIGITS + 5):
        n += 2
        term *= -x * x / (n * (n - 1))
        total += term
    return total


FUNCTIONS = {
    ADD: lambda a, b: a + b, SUB: lambda a, b: a - b, MUL: lambda a, b: a * b, DIV: lambda a, b: a / b,
    NEG: lambda a: -a, SIN: sine, COS: cosine, SQRT: lambda a: a.sqrt(), COPYSIGN: lambda a, b: abs(a).copy_sign(b),
    WRAP: lambda a: a,
}  # fmt: skip


def solved(system, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """d (unknowns,) of one state, by elimination with pivoting in 50 digits from q, q̇ and what is known."""
    with decimal.localcontext(prec=DIGITS):
        program, known = system.program, {x: group.default for x, group in system.problem.inputs.items()} | inputs
        given = [np.zeros(size) if known[name] is None else known[name] for name, size in program.inputs.sizes.items()]
        flat = [Decimal(float(x)) for group in given for x in np.ravel(group)]
        exact = [Decimal(float(x)) for x in program.constants]
        values = list(flat) + exact
        for kind, a, b in zip(program.kind.tolist(), program.lhs.tolist(), program.rhs.tolist(), strict=True):
            values.append(FUNCTIONS[kind](values[a]) if b < 0 else FUNCTIONS[kind](values[a], values[b]))
        out = [values[k] for k in program.output_values.tolist()]
        n = system.shape[0]
        A = np.full((n, n + 1), Decimal(0), dtype=object)
        for (r, c), x in zip(zip(*system.coordinates, strict=True), out[: system.nnz], strict=True):
            A[r, c] = x
        A[:, n] = [-x for x in out[system.nnz :]]
        for k in range(n):
            p = k + int(np.argmax(np.abs(A[k:, k])))
            A[[k, p]] = A[[p, k]]
            used = np.flatnonzero(A[k] != 0)
            A[k, used] = A[k, used] / A[k, k]
            rows = np.flatnonzero(A[:, k] != 0)
            rows = rows[rows != k]
            A[np.ix_(rows, used)] -= np.outer(A[rows, k], A[k, used])
        return A[:, n].astype(float)


def far_slides() -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """Prismatic joints at kilometres, where digits cancel."""
    model = sd.random_tree(5, seed=11, joints=("prismatic", "revolute"))
    q, qd, x = model.random_state(seed=2, batch=4)
    for i, joint in enumerate(model.joints):
        if type(joint).__name__ == "Prismatic":
            q[:, model.q_slice(i)] *= 3e4
    return sd.forward_dynamics(model), {"q": q, "qd": qd, "tau": x}


def usual(make, model) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    problem = make(model)
    q, qd, x = model.random_state(seed=2, batch=3)
    return problem, {"q": q, "qd": qd, ("qdd" if make is sd.inverse_dynamics else "tau"): x}


def nearly_singular(tilt: float) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """A force along x but for a tilt, of which a sensor tells the y component: a condition of about 1/tilt."""
    model = sd.chain(3, seed=3)
    along = sd.ForceDirection("body2", (1.0, tilt, 0.0), name="along")
    wrist = sd.ForceTorqueSensor("body2", components=["fy", "nx", "ny", "nz"], name="wrist")
    problem = sd.inverse_dynamics(model) - sd.ExternalWrench("body2") + [along, wrist]
    q, qd, qdd = model.random_state(seed=2, batch=3)
    fx = np.zeros((3, 3, 6))
    fx[:, 2, 3:] = 5.0 * np.array([1.0, tilt, 0.0])
    return problem, {"q": q, "qd": qd, "qdd": qdd, **sd.predict(problem, q, qd, qdd, fx=fx)}


CASES = {
    "inverse": lambda: usual(sd.inverse_dynamics, sd.chain(4, seed=1)),
    "forward": lambda: usual(sd.forward_dynamics, sd.random_tree(5, seed=3)),
    "slides at kilometres": far_slides,
    "sensors 1e-3": lambda: nearly_singular(1e-3),
    "sensors 1e-7": lambda: nearly_singular(1e-7),
}


@pytest.mark.slow(after=1)
@pytest.mark.filterwarnings("ignore::sysdyn.AccuracyWarning")  # of the nearly singular ones
@pytest.mark.parametrize("outputs", ["all", "some"])
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_not_far_below_the_error(case, outputs):
    problem, inputs = CASES[case]()
    some = [x for x in ("qdd", "tau", "fx") if x in problem.quantities and x not in inputs] or ["tau"]
    solver = sd.compile(problem, outputs="all" if outputs == "all" else some, level="fast")
    known = {x: inputs[x] for x in inputs if x not in ("q", "qd") and x in ("tau", "qdd")}
    y = {x: v for x, v in inputs.items() if x not in ("q", "qd", "tau", "qdd")}
    solution = solver(inputs["q"], inputs["qd"], **known, **({"y": y} if y else {}))
    system, errors = sd.assemble(problem), solution.forward_error()
    assert list(errors) == list(solver.outputs)
    for k in range(len(inputs["q"])):
        given = {name: np.ravel(x[k]) for name, x in solution.inputs.items() if np.ndim(x) > 1}
        given |= {name: np.ravel(x) for name, x in solution.inputs.items() if np.ndim(x) == 1}
        d = np.zeros(system.layout.n)
        d[system.columns] = solved(system, given)
        for name in solver.outputs:
            right = d[system.layout.quantity_columns(name)]
            size = np.abs(right).max()
            if size < 1e-12:  # no external wrench
                assert errors[name][k] < 1e-12
                continue
            true = np.abs(solution[name][k].ravel() - right).max() / size
            assert true <= 10.0 * errors[name][k], (name, k)
            assert errors[name][k] <= 1e3 * max(true, 1e-16), (name, k)


@pytest.mark.filterwarnings("ignore::sysdyn.AccuracyWarning")
def test_it_tells_what_the_condition_does_not():
    """Digits are lost where sensors see a force badly, at states that are far from singular."""
    problem, inputs = nearly_singular(1e-7)
    solver = sd.compile(problem, outputs=["tau", "fx"], level="fast")
    y = {name: inputs[name] for name in ("along", "wrist")}
    solution = solver(inputs["q"], inputs["qd"], qdd=inputs["qdd"], y=y)
    assert (solution.reciprocal_condition() > 0.5).all()
    assert (solution.forward_error()["fx"] > 1e-9).all() and (solution.forward_error()["fx"] < 1e-5).all()


def test_measured_outputs_estimates_and_states_that_are_not_solved():
    model = sd.chain(3, seed=1)
    known = [sd.JointAcceleration("all", noise=0.1, name="encoders"), sd.JointTorque("all", noise=0.3, name="torques")]
    problem = sd.Problem(model, [*known, sd.ExternalWrench("all")])
    q, qd, qdd = model.random_state(seed=2, batch=4)
    y = sd.predict(problem, q, qd, qdd, seed=0)
    estimator = sd.compile(problem, outputs=["tau", sd.Accelerometer("body2", name="imu")], level="fast")
    estimate = estimator(q.reshape(2, 2, 3), qd.reshape(2, 2, 3), y={x: v.reshape(2, 2, -1) for x, v in y.items()})
    errors = estimate.forward_error()
    assert list(errors) == ["tau", "imu"] and errors["imu"].shape == (2, 2)
    assert all(((x > 1e-17) & (x < 1e-10)).all() for x in errors.values())
    neck = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], level="fast")
    found = neck(q, 1e200 * qd, qdd, on_singular="nan").forward_error()["qdd"]
    assert np.isnan(found).all()
    assert neck(q[0], qd[0], qdd[0]).forward_error()["qdd"].shape == ()
