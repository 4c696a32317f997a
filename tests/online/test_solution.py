"""Kinds of solutions: what only estimates have; the system that they are checked with is kept."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.system import BlockSystem
from sysdyn.online.solution import EstimateAttributes
from sysdyn.program.opcodes import OUT_OF_RANGE
from sysdyn.runtime.runner import Runner

FAST = {"backend": "python", "level": "fast"}
CHAIN = sd.chain(2, seed=0)


def exact() -> sd.Solution:
    q, qd, tau = CHAIN.random_state(seed=0)
    return sd.compile(sd.forward_dynamics(CHAIN), **FAST)(q, qd, tau)


def noisy_problem() -> sd.Problem:
    return sd.Problem(
        CHAIN,
        [sd.JointAcceleration("all"), sd.JointTorque("all", noise=0.1, name="torque"), sd.ExternalWrench("all")],
    )


def estimated() -> sd.Solution:
    q, qd, qdd = CHAIN.random_state(seed=0)
    return sd.compile(noisy_problem(), **FAST)(q, qd, qdd, y={"torque": np.zeros(2)})


def undetermined() -> sd.Solution:
    q, qd, _ = CHAIN.random_state(seed=0)
    return sd.least_norm(sd.forward_dynamics(CHAIN) - sd.JointTorque("joint1"), q, qd, np.zeros(2))


def test_estimates_have_more_than_solutions():
    found = estimated()
    assert type(found) is sd.Estimate and all(hasattr(found, name) for name in EstimateAttributes.__annotations__)
    assert found.std("qdd").shape == (2,) and found.redundancy == 2


@pytest.mark.parametrize("solution", [exact, undetermined])
def test_solutions_without_noise_say_that_they_are_no_estimates(solution):
    found = solution()
    assert isinstance(found, sd.Solution) and not isinstance(found, sd.Estimate)
    for name in EstimateAttributes.__annotations__:
        with pytest.raises(sd.ProblemError, match=f"no measurement of this problem is noisy.* no {name}"):
            getattr(found, name)
        assert not hasattr(found, name)
    with pytest.raises(AttributeError, match="Solution.*no attribute 'stt'"):
        found.stt  # noqa: B018


def test_solutions_are_copied():
    for found in (exact(), estimated()):
        assert np.array_equal(copy.copy(found).qdd, found.qdd)


@pytest.fixture
def assembled(monkeypatch) -> list[str]:
    """Names of the systems that are assembled from here on."""
    found: list[str] = []
    for kind in (BlockSystem, AugmentedSystem):

        def noted(self, *arguments, build=kind.build, **options):
            found.append(type(self).__name__)
            return build(self, *arguments, **options)

        monkeypatch.setattr(kind, "build", noted)
    return found


def test_the_system_that_solutions_are_checked_with_is_assembled_once(assembled, tmp_path):
    solver = sd.load_solver(sd.compile(sd.forward_dynamics(CHAIN), **FAST).save(tmp_path / "solver"))
    del assembled[:]
    for seed in range(3):
        solution = solver(*CHAIN.random_state(seed=seed))
        for _ in range(2):
            assert solution.backward_error() < 1e-12 and np.abs(solution.residual()).max() < 1e-9
    assert assembled == ["BlockSystem"]


def test_the_system_of_an_estimate_is_assembled_once(assembled, tmp_path):
    solver = sd.load_solver(sd.compile(noisy_problem(), **FAST).save(tmp_path / "solver"))
    del assembled[:]
    for seed in range(3):
        q, qd, qdd = CHAIN.random_state(seed=seed)
        estimate = solver(q, qd, qdd, y={"torque": np.zeros(2)})
        assert estimate.redundancy == 2 and np.isfinite(estimate.backward_error())
    assert assembled == ["BlockSystem"]


def test_the_system_that_pivoting_solves_is_assembled_once(assembled, tmp_path, monkeypatch):
    solver = sd.load_solver(sd.compile(sd.forward_dynamics(CHAIN), **FAST).save(tmp_path / "solver"))
    results = Runner.results

    def weak(self, *arguments):
        outputs, status = results(self, *arguments)
        return {name: np.zeros_like(x) for name, x in outputs.items()}, status | OUT_OF_RANGE

    monkeypatch.setattr(Runner, "results", weak)
    del assembled[:]
    for seed in range(3):
        q, qd, tau = CHAIN.random_state(seed=seed, batch=4)
        np.testing.assert_allclose(solver(q, qd, tau).qdd, sd.aba(CHAIN, q, qd, tau), rtol=1e-9)
    assert assembled == ["BlockSystem"]


def test_one_component_of_one_state_is_a_number():
    model = sd.chain(3, seed=1)
    measured = sd.Accelerometer("body2", name="imu")
    problem = sd.inverse_dynamics(model)
    solver = sd.compile(problem, outputs=["tau", "f", measured], level="fast")
    for batch, kind in ((None, float), (2, np.ndarray)):
        solution = solver(*model.random_state(seed=1, batch=batch))
        found = solution["tau", model.joint_names[0]], solution["imu", "a_x"]
        assert all(isinstance(x, kind) for x in found)
        assert np.shape(solution["f", "body2"])[-1] == 6
        assert set(dict(solution)) == {"tau", "f", "imu"} and {"q", "qd", "qdd"} <= solution.inputs.keys()


def called(kind: str, q: np.ndarray, qd: np.ndarray, **options) -> sd.Solution:
    """A solution of one state of each kind."""
    if kind == "least norm":
        return sd.least_norm(sd.forward_dynamics(CHAIN) - sd.JointTorque("joint1"), q, qd, np.zeros(2))
    if kind == "estimate":
        return sd.compile(noisy_problem(), **options)(q, qd, np.zeros(2), y={"torque": np.zeros(2)})
    problem = sd.forward_dynamics(CHAIN)
    if kind == "contact":
        problem += sd.Contact("body1", ["a_x"], name="rail")
    if kind == "redundant":
        problem += sd.JointTorque("joint1", name="again")
        return sd.compile(problem, **options)(q, qd, np.zeros(2), y={"again": [0.0]})
    return sd.compile(problem, **options)(q, qd, np.zeros(2))


@pytest.mark.parametrize("backend", ["python", "llvm"])
@pytest.mark.parametrize("kind", ["exact", "contact", "redundant", "estimate", "least norm"])
def test_solutions_of_one_state_keep_it(kind, backend):
    """Whoever steps a robot changes the arrays of the call before anything else is asked for."""
    q, qd, _ = CHAIN.random_state(seed=0)
    options = {"backend": backend, "level": "fast"}
    expected, solution = called(kind, q.copy(), qd.copy(), **options), called(kind, q, qd, **options)
    q += 0.3
    qd += 0.3
    assert solution.inputs["q"].tolist() == expected.inputs["q"].tolist() != q.tolist()
    assert np.array_equal(solution.backward_error(), expected.backward_error())
    turned = (x.acceleration("body1", reference="world") for x in (solution, expected))
    assert np.array_equal(*turned)
    if kind == "estimate":
        assert np.array_equal(solution.std("tau"), expected.std("tau"))


def test_speeds_of_what_contacts_and_loops_hold():
    model = sd.auto_tree(4, 2, 1.5, 0.9)
    held = [
        sd.Contact("body3", ["a_x", "a_y"], reference="world", name="foot"),
        sd.LoopJoint("body0", "body2", ["alpha_z"], name="loop"),
    ]
    solver = sd.compile(sd.forward_dynamics(model) + held, outputs=["qdd"], **FAST)
    q, qd, _ = model.random_state(seed=2, batch=3)
    found = solver(q, qd, np.zeros(4)).speeds()
    for k in range(3):
        J = {x: sd.frame_jacobian(model, q[k], x) @ qd[k] for x in ("body0", "body2", "body3")}
        R = {x: sd.frame_pose(model, q[k], x)[:3, :3] for x in J}
        np.testing.assert_allclose(found["foot"][k], (R["body3"] @ J["body3"][3:])[:2], atol=1e-12)
        turn = R["body2"] @ J["body2"][:3] - R["body0"] @ J["body0"][:3]
        np.testing.assert_allclose(found["loop"][k], (R["body0"].T @ turn)[[2]], atol=1e-12)
    one = solver(q[1], qd[1], np.zeros(4)).speeds()
    np.testing.assert_array_equal(one["foot"], found["foot"][1])
    assert exact().speeds() == {}
