"""Kinematics of bodies and frames, over floats, batches and expressions: against finite differences and Pinocchio."""

from __future__ import annotations

import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Pinocchio, icub, icub_urdf

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.model import (
    JOINTS,
    Frame,
    chain,
    forward_kinematics,
    frame_transform,
    joint_transforms,
    random_tree,
    velocities,
)
from sysdyn.model.kinematics import REFERENCES, frame_jacobian, frame_pose, path, pose_and_jacobian
from sysdyn.model.se3 import X_motion, adjoint, crm, pose, pose_inverse, rotation, rotz, se3_log, translation
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Expr, Graph

# ---- transforms and velocities of bodies ---------------------------------------------------------------------------


def trees():
    return st.builds(random_tree, st.integers(1, 9), st.integers(0, 10**6))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(trees(), st.integers(0, 10**6))
def test_velocities_are_the_rates_of_the_transforms(m, seed):
    """d(X_i0)/dt = −v_i× X_i0, and with q̈ = 0: dv_i/dt = X_i dv_λ/dt + c_i (as coordinates)."""
    q, qd, _ = m.random_state(seed)
    h = 1e-5
    v, c = velocities(m, joint_transforms(m, q), qd)
    after, before = (m.integrate(q, qd, s * h) for s in (1, -1))
    X_after, X_before = forward_kinematics(m, after), forward_kinematics(m, before)
    v_after, v_before = (velocities(m, joint_transforms(m, x), qd)[0] for x in (after, before))
    X, X0 = joint_transforms(m, q), forward_kinematics(m, q)
    rate = [(a - b) / (2 * h) for a, b in zip(v_after, v_before, strict=True)]
    for i, p in enumerate(m.parent):
        np.testing.assert_allclose((X_after[i] - X_before[i]) / (2 * h), -crm(v[i]) @ X0[i], atol=1e-7)
        np.testing.assert_allclose(rate[i], c[i] + (X[i] @ rate[p] if p >= 0 else 0.0), atol=1e-7)


@pytest.mark.parametrize("sharing", ["none", "structural", "algebraic"])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(m=trees(), seed=st.integers(0, 10**6))
def test_expr_kinematics_equal_float_kinematics(sharing, m, seed):
    q, qd, _ = m.random_state(seed)
    graph = Graph(sharing)
    q_e, qd_e = graph.inputs("q", m.nq), graph.inputs("qd", m.nv)
    values = {f"q[{k}]": x for k, x in enumerate(q)} | {f"qd[{k}]": x for k, x in enumerate(qd)}
    X, X_e = joint_transforms(m, q), joint_transforms(m, q_e)
    numeric = [*X, *velocities(m, X, qd)[0], *velocities(m, X, qd)[1], *forward_kinematics(m, q)]
    symbolic = [*X_e, *velocities(m, X_e, qd_e)[0], *velocities(m, X_e, qd_e)[1], *forward_kinematics(m, q_e)]
    for a, b in zip(numeric, symbolic, strict=True):
        assert a.dtype == float and b.dtype == object and {type(x) for x in b.flat} <= {float, Expr}
        np.testing.assert_allclose(np.asarray(evaluate(b, values), dtype=float), a, atol=1e-12)


def test_batches_in_object_arrays():
    m = random_tree(10, seed=8)
    q, qd, _ = m.random_state(seed=1, batch=3)
    packed = [np.empty(A.shape[1], dtype=object) for A in (q, qd)]
    for P, A in zip(packed, (q, qd), strict=True):
        P[:] = list(A.T.copy())
    X = joint_transforms(m, packed[0])
    v, c = velocities(m, X, packed[1])
    for n in range(3):
        X_n = joint_transforms(m, q[n])
        for whole, one in zip([*X, *v, *c], [*X_n, *velocities(m, X_n, qd[n])[0], *velocities(m, X_n, qd[n])[1]],
                              strict=True):  # fmt: skip
            picked = [np.broadcast_to(x, 3)[n] for x in whole.flat]
            np.testing.assert_allclose(picked, one.ravel(), atol=1e-13)


def test_mark_is_called_before_each_body():
    m = chain(4)
    graph = Graph()
    q, qd = graph.inputs("q", 4), graph.inputs("qd", 4)
    sizes = []
    X = joint_transforms(m, q, mark=lambda i: sizes.append((i, len(graph))))
    assert [i for i, _ in sizes] == [0, 1, 2, 3]
    assert sizes[0][1] == 8 and all(a[1] < b[1] for a, b in zip(sizes, sizes[1:], strict=False))
    seen = []
    velocities(m, X, qd, mark=seen.append)
    assert seen == [0, 1, 2, 3]


def test_first_body_and_unit_axes_cost_nothing():
    """z joints: X_i of the first body is cos and sin alone, its v is q̇, its c is 0."""
    m = chain(1)
    graph = Graph("none")
    X = joint_transforms(m, graph.inputs("q", 1))
    v, c = velocities(m, X, graph.inputs("qd", 1))
    assert graph.count([*X[0].flat, *v[0], *c[0]]).total == 0 and all(x == 0.0 for x in c[0])


def test_results_do_not_share_memory():
    m = random_tree(6, seed=1, joints=["fixed", "revolute"])
    X = joint_transforms(m, m.neutral())
    v, c = velocities(m, X, np.zeros(m.nv))
    results = [*X, *v, *c]
    assert not any(np.shares_memory(a, b) for k, a in enumerate(results) for b in [*results[k + 1 :], m.X_tree])


@pytest.mark.parametrize("symbolic", [False, True])
def test_frame_transform(symbolic):
    X_tool = X_motion(rotz(0.4), np.array([0.1, 0.0, 0.2]))
    frames = {"tool": Frame("tool", 2, X_tool), "camera": Frame("camera", -1, X_tool), "root": Frame("root", -1)}
    m = random_tree(5, seed=6).replace(frames=frames)
    q = m.random_state(2)[0]
    given = Graph().inputs("q", m.nq) if symbolic else q
    values = {f"q[{k}]": x for k, x in enumerate(q)}
    X0 = forward_kinematics(m, q)
    for name, expected in [("tool", X_tool @ X0[2]), ("camera", X_tool), ("root", np.eye(6)), ("body4", X0[4])]:
        found = frame_transform(m, given, name)
        assert found.dtype == (object if symbolic else float)
        np.testing.assert_allclose(np.asarray(evaluate(found, values), dtype=float), expected, atol=1e-14)
    with pytest.raises(UnknownName, match="Did you mean 'tool'"):
        frame_transform(m, q, "tol")


# ---- poses and Jacobians of frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_poses_and_jacobians_agree_with_pinocchio_on_icub(base):
    model = icub(base)
    other = Pinocchio(model, icub_urdf())
    kinds = {"local": pin.LOCAL, "world": pin.LOCAL_WORLD_ALIGNED, "space": pin.WORLD}
    assert set(kinds) == set(REFERENCES)
    for seed in range(5):
        q = model.random_state(seed=seed)[0]
        position = other.position(q)
        pin.computeJointJacobians(other.pin, other.data, position)
        pin.updateFramePlacements(other.pin, other.data)
        for frame in ("l_hand", "r_foot", "head", "imu_frame", "root_link"):
            number = other.pin.getFrameId(frame, pin.BODY)
            T = frame_pose(model, q, frame)
            assert np.allclose(T, other.data.oMf[number].homogeneous, rtol=0, atol=1e-12)
            for reference, kind in kinds.items():
                expected = np.roll(pin.getFrameJacobian(other.pin, other.data, number, kind), 3, axis=0)
                expected = np.array([other.ours(row) for row in expected])
                J = frame_jacobian(model, q, frame, reference)
                assert np.allclose(J, expected, rtol=0, atol=1e-12), (frame, reference)


@pytest.mark.parametrize("joint", JOINTS)
def test_jacobians_agree_with_finite_differences_motion_transforms_and_each_other(joint):
    """J v = d/dt log(T(q)⁻¹ T(q ⊕ v t)) at t = 0."""
    model, h = random_tree(6, seed=1, joints=[joint, "revolute"]), 1e-5
    q, v, _ = model.random_state(seed=2)
    for frame in model.frames:
        T, J = pose_and_jacobian(model, q, frame)
        back = pose_inverse(T)
        ahead, behind = (se3_log(back @ frame_pose(model, model.integrate(q, s * v), frame)) for s in (h, -h))
        assert np.allclose(J @ v, (ahead - behind) / (2 * h), rtol=0, atol=1e-8)
        X = frame_transform(model, q, frame)
        assert np.allclose(T, pose(rotation(X), translation(X)), rtol=0, atol=1e-13)
        at_origin = T.copy()
        at_origin[:3, 3] = 0.0
        for reference, change in (("local", np.eye(6)), ("world", adjoint(at_origin)), ("space", adjoint(T))):
            assert np.allclose(frame_jacobian(model, q, frame, reference), change @ J, rtol=0, atol=1e-13)


@pytest.mark.parametrize("joint", JOINTS)
def test_symbolic_and_batched_jacobians_are_the_same_ones(joint):
    model = random_tree(6, seed=5, joints=[joint, "revolute"])
    q, _, _ = model.random_state(seed=3, batch=4)
    frame = max(model.body_names, key=lambda name: len(path(model, model.body_index(name))))
    graph = Graph()
    inputs = graph.inputs("q", model.nq)
    T, J = pose_and_jacobian(model, inputs, frame)
    carrying = {k for i in path(model, model.body_index(frame)) for k in range(model.nv)[model.v_slice(i)]}
    for column in set(range(model.nv)) - carrying:
        assert all(type(x) is float and x == 0.0 for x in J[:, column])
    assert any(isinstance(x, Expr) for x in J.flat)
    batch = np.empty(model.nq, dtype=object)
    for k in range(model.nq):
        batch[k] = q[:, k].copy()
    T_batch, J_batch = pose_and_jacobian(model, batch, frame)
    for k in range(4):
        expected_T, expected_J = pose_and_jacobian(model, q[k], frame)
        values = {f"q[{n}]": x for n, x in enumerate(q[k])}
        for found, expected in ((T, expected_T), (J, expected_J)):
            assert np.allclose(evaluate(found, values), expected, rtol=0, atol=1e-14)
        for found, expected in ((T_batch, expected_T), (J_batch, expected_J)):
            row = np.array([[x[k] if isinstance(x, np.ndarray) else x for x in line] for line in found])
            assert np.allclose(row, expected, rtol=0, atol=1e-14)


def test_frames_of_the_base_stand_still():
    model = icub()
    T, J = pose_and_jacobian(model, model.neutral(), "root_link")
    assert np.array_equal(T, np.eye(4)) and not J.any()


def test_unknown_frames_and_references_are_named():
    model = icub()
    with pytest.raises(UnknownName, match="unknown frame 'l_hnd'. Did you mean 'l_hand'"):
        frame_pose(model, model.neutral(), "l_hnd")
    with pytest.raises(UnknownName, match="unknown reference 'body'.*local, world, space"):
        frame_jacobian(model, model.neutral(), "l_hand", "body")
    with pytest.raises(InvalidInput, match=r"q has shape \(3,\)"):
        frame_pose(model, np.zeros(3), "l_hand")
