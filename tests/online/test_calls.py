"""Calls: batches of any shape, threads, and the ways to hand in values."""

from __future__ import annotations

import numpy as np
import pytest
from solvers import TOLERANCE, compiled, in_threads, model_of, relative_error, small, small_states, states

import sysdyn as sd
from sysdyn.errors import InvalidInput
from sysdyn.model.quantities import QUANTITIES
from sysdyn.reference import aba, rnea


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 31, 1000])
def test_batches_of_any_size(count):
    q, qd, tau, fx = small_states(count)
    solution = small()(q, qd, tau, fx=fx)
    assert solution.qdd.shape == (count, small().model.nv)
    assert solution.a.shape == solution.f.shape == solution.fx.shape == (count, small().model.nb, 6)
    assert solution.ok.shape == (count,) and solution.ok.all()
    assert solution.backward_error().shape == (count,)
    for k in range(min(count, 40)):
        one = small()(q[k], qd[k], tau[k], fx=fx[k])
        for quantity in QUANTITIES:
            scale = np.abs(solution[quantity][k]).max()
            np.testing.assert_allclose(one[quantity], solution[quantity][k], rtol=0, atol=1e-12 * scale)
    if count == 1000:
        assert relative_error(solution.qdd, aba(small().model, q, qd, tau, fx)) <= TOLERANCE


def test_several_leading_axes_and_broadcasting():
    model = small().model
    q, qd, tau, fx = small_states(12)
    flat = small()(q, qd, tau, fx=fx)
    parts = [x.reshape(3, 4, *x.shape[1:]) for x in (q, qd, tau, fx)]
    shaped = small()(*parts[:3], fx=parts[3])
    assert shaped.f.shape == (3, 4, model.nb, 6) and shaped.ok.shape == (3, 4)
    np.testing.assert_array_equal(shaped.f.reshape(flat.f.shape), flat.f)
    assert shaped.residual().shape[:2] == (3, 4)
    assert shaped.acceleration("body2").shape == (3, 4, 6)
    np.testing.assert_array_equal(shaped["a", "body2"].reshape(12, 6), flat.a[:, 2])

    grid = small()(q[:3, None], qd[None, :4], tau[0], fx=fx[:3, None])  # (3, 1), (1, 4), () → (3, 4)
    assert grid.qdd.shape == (3, 4, model.nv)
    for i in range(3):
        for j in range(4):
            one = small()(q[i], qd[j], tau[0], fx=fx[i])
            np.testing.assert_allclose(grid.qdd[i, j], one.qdd, rtol=0, atol=1e-12 * np.abs(one.qdd).max())
    assert small()(q[:1], qd[:1], tau[:1]).qdd.shape == (1, model.nv)
    assert small()(q[:, None], qd[None, :1], tau[0]).qdd.shape == (12, 1, model.nv)
    one = small()(q[0], qd[0], tau[0], fx=fx[0])
    assert one.qdd.shape == (model.nv,) and one.ok.shape == ()


def test_arrays_of_any_memory_order_and_real_type():
    q, qd, tau, fx = small_states(10)
    expected = small()(q, qd, tau, fx=fx)
    spread, turned = np.repeat(tau, 2, axis=1)[:, ::2], fx.transpose(2, 1, 0).T
    strided = small()(np.asfortranarray(q), qd[::-1][::-1], spread, fx=turned)
    np.testing.assert_array_equal(strided.f, expected.f)
    packed = small()(q, qd, tau, fx=fx.reshape(10, -1))
    np.testing.assert_array_equal(packed.f, expected.f)
    whole = small()(q[0].tolist(), np.zeros(len(qd[0]), dtype=int), np.ones(len(tau[0]), dtype=np.float32))
    same = small()(q[0], np.zeros(len(qd[0])), np.ones(len(tau[0])))
    np.testing.assert_array_equal(whole.qdd, same.qdd)


@pytest.mark.parametrize("count", [1, 7, 64, 5000])
def test_threads_give_identical_results(count):
    q, qd, tau, fx = small_states(count)
    expected = small()(q, qd, tau, fx=fx, threads=1)
    for threads in (2, 3, None):
        found = small()(q, qd, tau, fx=fx, threads=threads)
        for quantity in QUANTITIES:
            np.testing.assert_array_equal(found[quantity], expected[quantity])


def test_one_solver_called_from_eight_threads_at_once():
    q, qd, tau, fx = small_states(400)
    expected = small()(q, qd, tau, fx=fx, threads=1).qdd
    single = [small()(q[k], qd[k], tau[k], fx=fx[k]).qdd for k in range(len(q))]
    wrong = []

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(20):
            start = int(rng.integers(0, 300))
            part = slice(start, start + int(rng.integers(8, 100)))
            found = small()(q[part], qd[part], tau[part], fx=fx[part], threads=1 + number % 2).qdd
            if not np.allclose(found, expected[part], rtol=1e-12, atol=0):
                wrong.append((number, part))
            one = small()(q[start], qd[start], tau[start], fx=fx[start]).qdd
            if not np.array_equal(one, single[start]):
                wrong.append((number, start))

    in_threads(work)
    assert wrong == []


def test_positional_keyword_and_measured_values_are_the_same():
    solver, model = small(), small().model
    q, qd, tau, fx = small_states(5)
    expected = solver(q, qd, tau, fx=fx).qdd
    flat = fx.reshape(5, -1)
    packed = np.concatenate([{"tau": tau, "fx": flat}[m.name] for m in solver.problem.measurements], axis=-1)
    assert packed.shape == (5, solver.problem.ny)
    assert solver.problem.y_names[0].startswith("tau: tau(joint0)")
    for found in (
        solver(q, qd, tau=tau, fx=fx),
        solver(q, qd, tau, fx=fx),
        solver(q, qd, y={"tau": tau, "fx": flat}),
        solver(q, qd, y=packed),
        solver(q, qd, tau, y={"fx": flat}),
        solver(q, qd, y={"tau": tau}, fx=fx),
    ):
        np.testing.assert_array_equal(found.qdd, expected)
    zero = solver(q, qd, tau).qdd
    np.testing.assert_array_equal(zero, solver(q, qd, tau, fx=np.zeros((model.nb, 6))).qdd)
    np.testing.assert_array_equal(zero, solver(q, qd, y={"tau": tau}).qdd)
    assert np.abs(zero - expected).max() > 1e-3


def test_entries_that_the_problem_does_not_know_are_ignored():
    model = model_of("random 9 1")
    moving = [name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv]
    solver = sd.compile(sd.hybrid_dynamics(model, moving[:3]), "aba", level="fast")
    q, qd, qdd, fx, expected = states(model)
    noise = np.random.default_rng(0).standard_normal((2, *qdd.shape))
    known = np.zeros(model.nv, dtype=bool)
    for name in moving[:3]:
        known[model.v_slice(model.joint_index(name))] = True
    found = solver(q, qd, tau=np.where(known, expected.tau, noise[0]), qdd=np.where(known, noise[1], qdd), fx=fx)
    assert relative_error(found.qdd, qdd) <= TOLERANCE
    assert relative_error(found.tau, expected.tau) <= TOLERANCE


@pytest.mark.slow
def test_measurements_of_one_quantity_are_scattered_by_name():
    model = model_of("random 9 1")
    moving = [name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv]
    parts = [
        sd.JointTorque(moving[3:], name="rest"), sd.ExternalWrench("all", components=["fz", "nx"], name="some"),
        sd.JointTorque(moving[2::-1], name="first three backwards"),
        sd.ExternalWrench("all", components=["fx", "fy", "ny", "nz"], name="others"),
    ]  # fmt: skip
    solver = sd.compile(sd.Problem(model, parts), "aba")
    q, qd, qdd, fx, expected = states(model)
    block = {name: expected.tau[:, model.v_slice(model.joint_index(name))] for name in moving}
    y = {
        "rest": np.concatenate([block[name] for name in moving[3:]], axis=1),
        "first three backwards": np.concatenate([block[name] for name in moving[2::-1]], axis=1),
        "some": fx[:, :, [5, 0]].reshape(len(q), -1),
        "others": fx[:, :, [3, 4, 1, 2]].reshape(len(q), -1),
    }
    assert relative_error(solver(q, qd, y=y).qdd, qdd) <= TOLERANCE
    packed = np.concatenate([y[m.name] for m in parts], axis=1)
    assert relative_error(solver(q, qd, y=packed).qdd, qdd) <= TOLERANCE
    only_some = solver(q, qd, y={k: v for k, v in y.items() if k != "others"})  # unstated wrenches are zero
    masked = fx * np.array([1, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(only_some.qdd, solver(q, qd, expected.tau, fx=masked).qdd)


def test_large_angles_are_good_up_to_a_limit_and_rejected_beyond():
    solver = compiled("puma560", "id", "auto")
    q, qd, qdd = solver.model.random_state(seed=0, batch=9)
    turns = np.random.default_rng(0).integers(-(10**6), 10**6, q.shape)
    with np.errstate(all="ignore"):
        shifted = q + turns * (2 * np.pi)
    expected = rnea(solver.model, shifted, qd, qdd)
    assert relative_error(solver(shifted, qd, qdd).tau, expected) <= TOLERANCE
    q[3, 2] = 1e10
    for batch in (q, q[3]):
        with pytest.raises(InvalidInput, match=r"angle of joint 'joint2' is 1e\+10 rad.*modulo 2π"):
            solver(batch, qd if batch.ndim == 2 else qd[3], qdd if batch.ndim == 2 else qdd[3])
