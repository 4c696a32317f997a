"""Products of derivatives with vectors: against derivatives in full, differences of the solver, and one another."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from oracles import icub
from programs import executed
from solvers import on_backend
from values import random_groups

import sysdyn as sd
from sysdyn.errors import InvalidInput, SingularState, UnknownName
from sysdyn.offline.sampling import lengths, sample_states
from sysdyn.program.opcodes import OUT_OF_RANGE, WEAK_PIVOT

ALL_JOINTS = sd.random_tree(6, seed=3)
STATES = 3


def fast(problem: sd.Problem, **options) -> sd.Solver:
    """A solver that is compiled in little time: nothing here depends on its order."""
    return sd.compile(problem, **({"level": "fast"} | options))


def hybrid() -> sd.Problem:
    """So few known accelerations that products go through inverse dynamics."""
    return sd.hybrid_dynamics(ALL_JOINTS, [x for k, x in enumerate(ALL_JOINTS.joint_names) if k != 3])


def contact() -> sd.Problem:
    return sd.forward_dynamics(sd.random_tree(4, seed=4)) + sd.Contact("body3", ["a_z", "a_x"], name="tip")


def estimation() -> sd.Problem:
    model = sd.chain(3, seed=2)
    torques = sd.JointTorque("all", noise=0.1, name="torques")
    accelerations = sd.JointAcceleration("all", noise=0.5, name="accelerations")
    imu = sd.Accelerometer(model.body_names[2], noise=0.1, name="imu")
    return sd.Problem(model, [sd.ExternalWrench("all", name="fx"), torques, accelerations, imu])


def measured() -> tuple:
    model = sd.chain(4, seed=1)
    return sd.forward_dynamics(model), ["qdd", sd.Accelerometer(model.body_names[3], name="imu")]


def of_the_state(q, qd) -> list:
    return [q[0] * qd[0], qd[1] * qd[1]]


def measured_contact() -> tuple:
    """An output, too, one of whose scalars depends on the state alone."""
    model = contact().model
    blocks = {("tau", model.joint_names[0]): [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]}
    power = sd.Linear(blocks, of_the_state, ["a", "b"], "power")
    return contact(), ["qdd", "tau", "w", sd.Accelerometer("body2", name="imu"), power]


# (problem, outputs and further options, the way of JVP and VJP)
CASES = {
    "inverse": (lambda: (sd.inverse_dynamics(ALL_JOINTS), "tau"), "program"),
    "forward": (lambda: (sd.forward_dynamics(ALL_JOINTS), "qdd"), "inverse dynamics"),
    "hybrid": (lambda: (hybrid(), ("tau", "qdd")), "inverse dynamics"),
    "wrenches": (lambda: (sd.forward_dynamics(sd.random_tree(3, seed=4, joints=("free", "revolute", "planar"))),
                          ("qdd", "tau", "a", "f")), "factors"),
    "contact": (lambda: (contact(), "qdd"), "inverse dynamics"),
    "estimation": (lambda: (estimation(), ("qdd", "tau")), "factors"),
    "measured beside a contact": (lambda: (*measured_contact(), {"known": "substituted"}), "factors"),
    "measured": (measured, "factors"),
}  # fmt: skip


ALWAYS = ("contact",)  # the others take seconds to compile


@pytest.fixture(scope="module", params=[pytest.param(x, marks=[pytest.mark.slow] * (x not in ALWAYS)) for x in CASES])
def case(request):
    """(solver, arguments at a few states, by group; the inputs to differentiate by, the way)"""
    make, way = CASES[request.param]
    problem, outputs, *options = make()
    solver = fast(problem, outputs=outputs, **dict(*options))
    state = {k: x for k, x in random_groups(problem, STATES, seed=3).items() if not k.startswith("noise:")}
    wrt = tuple(name.removeprefix("y:") for name in state)
    return solver, state, wrt, way


def arguments(state: dict) -> dict:
    y = {k.removeprefix("y:"): x for k, x in state.items() if k.startswith("y:")}
    return {k: x for k, x in state.items() if not k.startswith("y:")} | ({"y": y} if y else {})


def vectors(solver: sd.Solver, state: dict, wrt, seed: int) -> tuple[dict, dict]:
    """(tangents, cotangents)"""
    rng, nv = np.random.default_rng(seed), solver.model.nv
    shapes = {name.removeprefix("y:"): x.shape[1:] for name, x in state.items()} | {"q": (nv,)}
    found = solver(**arguments(state))
    return (
        {name: rng.standard_normal((STATES, *shapes[name])) for name in wrt},
        {name: rng.standard_normal(found[name].shape) for name in solver.outputs},
    )


def moved(model: sd.Model, state: dict, tangents: dict, step: float) -> dict:
    found = {}
    for name, x in state.items():
        v = step * tangents[name.removeprefix("y:")]
        found[name] = model.integrate(x, v) if name == "q" else x + v
    return found


def sums(a: dict, b: dict) -> np.ndarray:
    """Σ aᵀ b at each state."""
    return sum((a[name] * b[name]).reshape(STATES, -1).sum(axis=1) for name in a)


def close(found, expected, tolerance):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max(initial=0.0)))


def test_products_against_differences_and_one_another(case):
    """By the interpreter, as machine code of second derivatives takes longer to compile than all of this."""
    solver, state, wrt, way = case
    solver = on_backend(solver, "python")
    model = solver.model
    push, pull, bend = (make(wrt=wrt) for make in (solver.jvp, solver.vjp, solver.hvp))
    assert push.wrt == wrt and push.of == solver.outputs
    assert {push.method, pull.method} <= {"program", way}
    v, w = vectors(solver, state, wrt, seed=0)
    rates = push(**arguments(state), tangents=v)
    slopes = pull(**arguments(state), cotangents=w)
    bent = bend(**arguments(state), cotangents=w, tangents=v)
    ends = [moved(model, state, v, step) for step in (1e-5, -1e-5)]
    before = [solver(**arguments(x)) for x in ends]
    for name in solver.outputs:
        close(rates[name], (before[0][name] - before[1][name]) / 2e-5, 2e-6)
    close(sums(slopes, v), sums(w, rates), 1e-10)
    before = [pull(**arguments(x), cotangents=w) for x in ends]
    for name in wrt:
        assert bent[name].shape == slopes[name].shape == v[name].shape
        close(bent[name], (before[0][name] - before[1][name]) / 2e-5, 1e-5)
    if solver.choice.is_recursion and "imu" in solver.outputs:
        return  # has no derivatives in full
    J = solver.derivatives(wrt=wrt)(**arguments(state))
    for name in wrt:
        whole = sum(np.einsum("ni,nij->nj", w[x].reshape(STATES, -1), J[x, name].reshape(STATES, w[x][0].size, -1))
                    for x in solver.outputs)  # fmt: skip
        close(slopes[name].reshape(STATES, -1), whole, 1e-9)
    alone = solver.jvp(wrt="q")(**arguments(state), tangents=v["q"])
    for x in solver.outputs:
        expected = np.einsum("nij,nj->ni", J[x, "q"].reshape(STATES, -1, model.nv), v["q"])
        close(alone[x].reshape(STATES, -1), expected, 1e-9)


def test_second_derivatives_by_positions_all_of_whose_directions_turn():
    model = sd.random_tree(3, seed=1, joints=("spherical",))
    solver = fast(sd.forward_dynamics(model), outputs="qdd")
    q, qd, tau = model.random_state(seed=0)
    bend, pull = solver.hvp(wrt="q"), solver.vjp(wrt="q")
    assert bend.method == "inverse dynamics"
    v, w = np.cos(np.arange(model.nv)), np.linspace(0.0, 1.0, model.nv)
    ends = [pull(model.integrate(q, step * v), qd, tau=tau, cotangents=w)["q"] for step in (1e-5, -1e-5)]
    close(bend(q, qd, tau=tau, cotangents=w, tangents=v)["q"], (ends[0] - ends[1]) / 2e-5, 1e-6)


@pytest.mark.slow
def test_one_state_many_states_and_prepared_calls_agree(case):
    solver, state, wrt, _ = case
    v, w = vectors(solver, state, wrt, seed=1)
    for product in (solver.jvp(wrt=wrt), solver.vjp(wrt=wrt)):
        given = {"tangents": v} if product.kind == "jvp" else {"cotangents": w}
        many = product(**arguments(state), **given)
        for _ in range(2):  # the general way, then the shortest one
            one = product(**arguments({k: x[1] for k, x in state.items()}),
                          **{k: {name: x[1] for name, x in part.items()} for k, part in given.items()})  # fmt: skip
            for name, x in one.items():
                assert x.shape == product.shapes[name]
                close(x, many[name][1], 1e-12)
        step = product.bind(**arguments({k: x.copy() for k, x in state.items()}), **given)
        step()
        for name, x in step.out.items():
            close(x, many[name], 1e-12)
        np.testing.assert_equal(pickle.loads(pickle.dumps(product))(**arguments(state), **given), many)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "push", "pull", "bend"), [("fixed", 2.14, 2.22, 5.0), ("floating", 2.12, 2.41, 5.1)])
def test_a_product_takes_little_more_than_twice_the_solution(base, push, pull, bend):
    """Multiples of the operations of forward dynamics; the Jacobian in full takes 6 and 12."""
    solver = sd.compile(sd.forward_dynamics(icub(base)), outputs="qdd", external_wrenches=False)
    for make, most in ((solver.jvp, push), (solver.vjp, pull), (solver.hvp, bend)):
        product = make()
        assert product.method == "inverse dynamics"
        assert product.flops.total <= most * solver.flops.end_to_end.total
    n = product.program.n_inputs
    assert executed(product.program, np.linspace(0.1, 1.0, n).tolist())[0] == product.flops


def sensing() -> tuple[sd.Solver, dict]:
    """(a solver, 400 states of it): joints at multiples of π/2, where the accelerometer may feel nothing."""
    model = sd.auto_tree(5, 2, 0.7, 0.9)
    problem = sd.inverse_dynamics(model) - sd.JointAcceleration([model.joint_names[1]])
    problem += sd.Accelerometer(model.body_names[4], components=["a_x"], name="accelerometer")
    states = arguments(sample_states(problem, 400, seed=11))
    return fast(problem, outputs="qdd", on_singular="nan"), states


def test_singular_states_are_refused_or_not_a_number():
    solver, given = sensing()
    model, singular = solver.model, ~solver(**given).ok
    assert 0 < singular.sum() < 200
    for product in (solver.jvp(), solver.vjp()):
        vectors = {"cotangents": np.ones(model.nv)}
        if product.kind == "jvp":
            vectors = {"tangents": {name: np.ones(group.shape) for name, group in product.tangents.items()}}
        with pytest.raises(SingularState, match="qdd cannot be differentiated at .* of 400 states") as caught:
            product(**given, **vectors)
        assert set(np.flatnonzero(singular)) <= set(caught.value.states)
        found = product(**given, **vectors, on_singular="nan")
        for x in found.values():
            assert np.isnan(x[singular]).all() and np.isfinite(x[~singular]).any()


@pytest.mark.parametrize("where", ["near singular states", pytest.param("far out", marks=pytest.mark.slow)])
def test_states_at_which_double_precision_fails_are_made_in_50_digits(where):
    """Sliding joints at 100 km, beyond what is judged, and pivots of 1e-7: derivatives in full and all products."""
    if where == "far out":
        model = sd.random_tree(8, 5, ("revolute", "prismatic"))
        solver = fast(sd.forward_dynamics(model), outputs="qdd")
        q, qd, tau = model.random_state(seed=1, batch=STATES)
        given = {"q": np.where(lengths(model), 1e5 * q, q), "qd": qd, "tau": tau}
    else:
        solver, given = sensing()
        rng = np.random.default_rng(0)
        given = {k: x[~solver(**given).ok][:STATES] if k != "y" else x for k, x in given.items()}
        given["q"] = given["q"] + 1e-7 * rng.standard_normal(given["q"].shape)
        given["y"] = {"accelerometer": np.zeros((STATES, 1))}
    model = solver.model
    J, push, pull = (make(wrt=("q", "qd")) for make in (solver.derivatives, solver.jvp, solver.vjp))
    v = {"q": np.ones(model.nv), "qd": np.linspace(0.0, 1.0, model.nv)}
    w = np.cos(np.arange(model.nv))
    step = push.bind(**given, tangents={k: np.tile(x, (STATES, 1)) for k, x in v.items()})
    step()
    assert (step.status & (OUT_OF_RANGE | WEAK_PIVOT)).all(), "double precision has failed"
    slopes, rates, pulled = J(**given), push(**given, tangents=v), pull(**given, cotangents=w)
    for k in range(STATES):
        expected = sum(slopes["qdd", x][k] @ v[x] for x in v)
        np.testing.assert_allclose(rates["qdd"][k], expected, rtol=0, atol=1e-8 * np.abs(expected).max())
        for x in v:
            expected = w @ slopes["qdd", x][k]
            np.testing.assert_allclose(pulled[x][k], expected, rtol=0, atol=1e-8 * np.abs(expected).max())


def test_inputs_without_a_name_and_errors():
    solver = fast(hybrid(), outputs=("tau", "qdd"))
    q, qd, x = ALL_JOINTS.random_state(seed=0)
    push, pull = solver.jvp(wrt="q"), solver.vjp(of="qdd", wrt=("q", "qd"))
    known = {"tau": x, "qdd": x}
    v, w = np.ones(ALL_JOINTS.nv), np.linspace(0, 1, ALL_JOINTS.nv)
    np.testing.assert_array_equal(
        push(q, qd, **known, tangents=v)["tau"], push(q, qd, **known, tangents={"q": v})["tau"]
    )
    np.testing.assert_array_equal(
        pull(q, qd, **known, cotangents=w)["q"], pull(q, qd, **known, cotangents={"qdd": w})["q"]
    )
    assert push.method == pull.method == "inverse dynamics"
    rest = solver.vjp(wrt="q")(q, qd, **known, cotangents={"tau": np.zeros(ALL_JOINTS.nv), "qdd": w})
    close(pull(q, qd, **known, cotangents=w)["q"], rest["q"], 1e-12)
    with pytest.raises(InvalidInput, match=r"no value was given for \"tangents\['q'\]\": pass tangents={'q': …}"):
        push(q, qd, **known)
    with pytest.raises(InvalidInput, match=r"cotangents\['qdd'\] has shape \(2,\), but \(…, \d+\) is needed"):
        pull(q, qd, **known, cotangents=w[:2])
    with pytest.raises(UnknownName, match=r"name in tangents: 'qp'.*Valid names: q"):
        push(q, qd, **known, tangents={"qp": v})
    with pytest.raises(InvalidInput, match="no cotangents"):
        push(q, qd, **known, tangents=v, cotangents=w)
    with pytest.raises(InvalidInput, match="cotangents is {name: value}, of 'tau', 'qdd'"):
        solver.vjp()(q, qd, **known, cotangents=w)
    with pytest.raises(UnknownName, match="output"):
        solver.vjp(of="a")
    with pytest.raises(UnknownName, match="input to differentiate by"):
        solver.jvp(wrt="position")
    with pytest.raises(InvalidInput, match="every input must be finite"):
        push(q, qd, **known, tangents=v * np.nan)
    assert repr(pull).startswith(f"DerivativeProduct for {ALL_JOINTS.name!r}: qdd by q, qd; ")


def test_products_are_exported(tmp_path):
    solver = fast(sd.forward_dynamics(sd.chain(3, seed=2)), outputs="qdd")
    folder = solver.vjp(wrt=("q", "qd")).export_c(tmp_path / "pull")
    assert "cotangents" in next(folder.glob("*.h")).read_text()
    function = solver.jvp(wrt="q").to_casadi()
    assert function.name().endswith("jvp")
