"""Recursions against RNEA, ABA and Pinocchio: every method, choice and output, and how they are compiled."""

from __future__ import annotations

import numpy as np
import pinocchio as pin
import pytest
from formulations import agree, parallel_chain, program, solvable
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles import icub, icub_urdf, pin_model
from robots import ROBOTS, load_robot

import sysdyn as sd
from sysdyn.app.matrix_plot import pattern
from sysdyn.codegen import interpreter
from sysdyn.passes import ALL as PASSES
from sysdyn.program.program import Program
from sysdyn.recursions.formulations import Plan, TauQdd
from sysdyn.recursions.generate import METHODS, generate, simplified
from sysdyn.reference.rnea import newton_euler

ALL = ("tau", "qdd", "fx", "a", "f")
trees = st.builds(sd.random_tree, st.integers(1, 7), st.integers(0, 10**6))


@settings(max_examples=20)
@given(trees, st.booleans(), st.sampled_from([("tau",), ALL]))
def test_inverse_dynamics_of_random_trees(model, wrenches, outputs):
    agree(model, generate(model, "qdd", outputs, wrenches), "qdd", wrenches)


@settings(max_examples=20)
@given(trees, st.booleans(), st.sampled_from([("qdd",), ALL]), st.sampled_from(METHODS["tau"]))
def test_forward_dynamics_of_random_trees(model, wrenches, outputs, method):
    assume(solvable(model))
    agree(model, generate(model, "tau", outputs, wrenches, method), "tau", wrenches)


@pytest.mark.slow
@settings(max_examples=20)
@given(trees, st.randoms(use_true_random=False), st.sampled_from([("tau", "qdd"), ALL]),
       st.sampled_from(METHODS["tau"]))  # fmt: skip
def test_hybrid_dynamics_of_random_trees(model, random, outputs, method):
    """The torques of a motion and the accelerations of it, each where the other is known."""
    assume(model.nv and solvable(model))
    free = [k for k in range(model.nv) if random.random() < 0.5]
    held = [k for k in range(model.nv) if k not in free]
    written = generate(model, free, outputs, True, method if free else "newton-euler")
    q, qd, qdd = model.random_state(seed=3, batch=5)
    fx = np.random.default_rng(3).standard_normal((5, model.nb, 6))
    motion = newton_euler(model, q, qd, qdd, fx)
    known = {"tau": motion.tau.copy(), "qdd": qdd.copy()}
    known["tau"][:, held] = known["qdd"][:, free] = np.nan  # nobody looks
    sizes = {"q": model.nq, "qd": model.nv, "tau": model.nv, "qdd": model.nv, "fx": 6 * model.nb}
    inputs = [(x, list(written.graph.inputs(x, n))) for x, n in sizes.items()]
    values = {"q": q, "qd": qd, **known, "fx": fx.reshape(5, -1)}
    found = interpreter.run_groups(Program.from_graph(written.graph, inputs, list(written.outputs.items())), values)
    expected = {"tau": motion.tau, "qdd": qdd, "fx": fx, "a": motion.a, "f": motion.f}
    for name, value in found.items():
        wanted = expected[name].reshape(value.shape)
        assert value == pytest.approx(wanted, abs=1e-8 * (1e-3 + np.abs(wanted).max(initial=0.0))), name


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(2, 5), st.integers(0, 10**6), st.booleans(), st.randoms(use_true_random=False))
def test_every_plan_gives_the_same_result(n, seed, planar, random):
    """Whatever is picked at the decisions that are open."""
    model = parallel_chain(n, seed) if planar else sd.random_tree(n, seed=seed, joints=("revolute", "prismatic"))
    for known, method in (("qdd", "newton-euler"), ("tau", "composite"), ("tau", "articulated")):
        if known == "tau" and not solvable(model):
            continue
        free = frozenset(range(model.nv)) if known == "tau" else frozenset()
        wanted = TauQdd(model, free, False, frozenset(PASSES))
        outputs = ("tau",) if known == "qdd" else ("qdd",)
        plan = Plan()
        wanted.write(method, outputs, plan.choose)
        for _ in range(2):
            plan = Plan({key: random.randrange(of) for key, of in plan.available.items()})
            written = wanted.write(method, outputs, plan.choose)
            agree(model, written, known, False)
            agree(model, simplified(written), known, False)


@pytest.mark.parametrize("name", ROBOTS)
def test_published_torques(name):
    model, test = load_robot(name)
    written = generate(model, "qdd", ("tau",), False)
    values = {x: np.array(test[x], dtype=float)[None] for x in ("q", "qd", "qdd")}
    values["fx"] = np.zeros((1, 6 * model.nb))
    assert interpreter.run_groups(program(model, written, "qdd"), values)["tau"][0] == pytest.approx(
        test["tau"], rel=1e-9
    )


@pytest.mark.slow
def test_icub_against_pinocchio():
    model = icub("floating")
    peer = pin_model(icub_urdf(), "floating")
    data = peer.createData()
    q, v, x = model.random_state(seed=5)
    order = [model.v_slice(model.joint_index(n)).start for n in peer.names[2:]]
    where = np.array([3, 4, 5, 0, 1, 2, *order])
    q_peer = np.concatenate([q[:7], q[np.array(order) + 1]])
    quick = {"effort": 0.0, "level": "fast", "backend": "python"}
    inverse = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], **quick)
    forward = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], **quick)
    tau = pin.rnea(peer, data, q_peer, v[where], x[where])
    assert inverse(q, v, x).tau[where] == pytest.approx(tau, rel=1e-9, abs=1e-9)
    qdd = pin.aba(peer, data, q_peer, v[where], tau)
    given_tau = np.empty(model.nv)
    given_tau[where] = tau
    assert forward(q, v, given_tau).qdd[where] == pytest.approx(qdd, rel=1e-8, abs=1e-8)


# ---- counts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "inverse", "forward"),
    [("puma560", 340, 500), ("rx90", 450, 720), ("iiwa7", 536, 970), ("gen6R", 687, 1334)],
)
def test_operations_of_the_first_plans(name, inverse, forward):
    """Without a search; best known by hand are 320/591, 475/838, 570/1089 and 721/1444."""
    model, _ = load_robot(name)
    assert generate(model, "qdd", ("tau",), False).total <= inverse
    assert generate(model, "tau", ("qdd",), False).total <= forward


def test_count_is_that_of_the_program():
    model = sd.chain(4, seed=1)
    written = generate(model, "tau", ("qdd",), False)
    assert program(model, written, "tau").flops == written.graph.count(written.scalars)


def test_articulated_bodies_are_linear_in_bodies():
    """Articulated bodies: linear, and fewer operations than the book's formula gives, 429 n − 507."""
    costs = [generate(sd.auto_tree(n, 1, 1.5, 0.9), "tau", ("qdd",), False, "articulated").total for n in (10, 20, 30)]
    assert costs[2] - costs[1] == pytest.approx(costs[1] - costs[0], rel=0.01)
    assert costs[2] <= 10_000


def test_search_saves_operations():
    model = load_robot("gen6R")[0]
    before, after = (generate(model, "tau", ("qdd",), False, budget=x) for x in (0.0, 20_000.0))
    assert after.total < before.total
    agree(model, after, "tau", False)


# ---- compiled ------------------------------------------------------------------------------------------------------


def test_solver_uses_the_formulation_of_fewest_operations():
    model = sd.auto_tree(6, 1, 1.5, 0.9)
    problem = sd.forward_dynamics(model)
    recursive = sd.compile(problem, outputs=["qdd"], effort=0.0)
    paper = sd.compile(problem, outputs=["qdd"], ordering="aba", formulation="paper")
    assert recursive.ordering == "composite"
    assert recursive.flops.end_to_end.total < 0.6 * paper.flops.end_to_end.total
    q, qd, tau = model.random_state(seed=0, batch=20)
    fx = np.random.default_rng(0).standard_normal((20, 6, 6))
    assert recursive(q, qd, tau, fx=fx).qdd == pytest.approx(paper(q, qd, tau, fx=fx).qdd, rel=1e-9, abs=1e-9)
    assert recursive.flops.solve is None
    assert "does without" in recursive.report()


def test_every_unknown_by_recursion(tmp_path):
    """≤ 1,800 operations in the paper's scope; nothing is left of the system; files keep it."""
    model = sd.auto_tree(6, 1, 1.5, 0.9)
    solver = sd.compile(sd.forward_dynamics(model), formulation="recursive", external_wrenches=False, effort=0.0)
    q, qd, tau = model.random_state(seed=1, batch=4)
    solution = solver(q, qd, tau)
    assert np.abs(solution.residual()).max() < 1e-10
    assert solver.flops.solve.total <= 1_800
    again = sd.load_solver(solver.save(tmp_path / "s.npz"))
    assert np.array_equal(again(q, qd, tau).f, solution.f)
    assert again.flops == solver.flops


def test_external_wrenches_are_refused_if_excluded():
    model = sd.chain(2, seed=0)
    solver = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], external_wrenches=False, effort=0.0)
    q, qd, qdd = model.random_state(seed=0)
    assert solver(q, qd, qdd).tau == pytest.approx(sd.rnea(model, q, qd, qdd))
    with pytest.raises(sd.InvalidInput, match="external_wrenches=False"):
        solver(q, qd, qdd, fx=np.ones((2, 6)))
    with pytest.raises(sd.InvalidInput, match="external_wrenches=False"):
        solver.bind(q, qd, qdd, fx=np.ones((2, 6)))


@pytest.mark.parametrize("seed", [9, 14])
def test_rounding_errors_of_constants(seed):
    """A ball of its own at a tip leaves moments of 1e-18 to its parent, where exact arithmetic leaves none."""
    model = sd.random_tree(3, seed=seed, joints=("spherical",))
    agree(model, generate(model, "tau", ("qdd",), False, "articulated"), "tau", False)


@pytest.mark.slow
def test_problems_without_a_recursion():
    model = sd.chain(3, seed=0)
    hybrid = sd.hybrid_dynamics(model, torque=["joint1"])
    held = sd.forward_dynamics(sd.chain(6, seed=0)) + sd.Contact("body5", "point")
    with pytest.raises(sd.ProblemError, match="inverse, forward and hybrid dynamics"):
        sd.compile(held, formulation="recursive")
    assert sd.compile(held, outputs=["qdd"], level="fast").ordering in METHODS["tau"]
    with pytest.raises(sd.ProblemError, match="no ordering"):
        sd.compile(sd.forward_dynamics(model), "aba", formulation="recursive")
    long = sd.chain(6)
    heavy = long.replace(inertias=np.concatenate([long.inertias[:5], 1e14 * long.inertias[5:]]))
    with pytest.raises(sd.NoSafeOrdering, match="no recursion is accurate enough .* backward error of"):
        sd.compile(sd.forward_dynamics(heavy), outputs=["qdd"], formulation="recursive", effort=0.0)
    with pytest.raises(sd.UnknownName, match="formulation"):
        sd.compile(hybrid, formulation="best")
    with pytest.raises(sd.InvalidInput, match="effort"):
        sd.compile(hybrid, effort=-1.0)
    every = sd.compile(sd.forward_dynamics(model), formulation="recursive", effort=0.0)
    with pytest.raises(sd.ProblemError, match="derivatives of a, f need an elimination"):
        every.derivatives(of=("a", "f"))
    assert every.derivatives(of="qdd").method == "analytic"


def test_joint_without_inertia_is_singular():
    """The recursion divides by zero at every state: the elimination says so by name."""
    model = sd.chain(2, seed=0)
    model = model.replace(inertias=np.zeros_like(model.inertias))
    with pytest.raises((sd.NoSafeOrdering, sd.StructurallySingular)):
        sd.compile(sd.forward_dynamics(model), outputs=["qdd"])


def test_no_matrix_to_draw():
    solver = sd.compile(sd.inverse_dynamics(sd.chain(2, seed=0)), outputs=["tau"], effort=0.0)
    with pytest.raises(sd.ProblemError, match="formulation='paper'"):
        pattern(solver)
