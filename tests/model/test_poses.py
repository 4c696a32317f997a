"""Poses, their exponential and logarithm, and frame Jacobians: against SciPy, 50-digit arithmetic and Pinocchio."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import Pinocchio, icub, icub_urdf
from scipy.linalg import expm, logm

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.model import JOINTS, Model, frame_transform, random_tree
from sysdyn.model.kinematics import REFERENCES, frame_jacobian, frame_pose, path, pose_and_jacobian
from sysdyn.model.se3 import (
    X_motion,
    adjoint,
    checked_pose,
    interpolate,
    pose,
    pose_inverse,
    rotation,
    se3_exp,
    se3_log,
    skew,
    translation,
)
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Expr, Graph

EPS = np.finfo(float).eps
AXES = [(1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, 1.0), (0.6, -0.8, 0.0), (2 / 3, 1 / 3, -2 / 3), (1e-3, 1e-9, 1.0)]
SMALL = [0.0, 1e-300, 1e-12, 1e-9, 1e-8, 1e-6, 1e-3, 0.3]
LARGE = [1.0, math.pi / 2, 2 * math.pi / 3, 3.0, *(math.pi - 10.0**-k for k in range(3, 13)), math.pi]


def hat(V) -> np.ndarray:
    """[V] (4, 4) of a twist."""
    A = np.zeros((4, 4))
    A[:3, :3], A[:3, 3] = skew(np.asarray(V[:3])), V[3:]
    return A


def unit(axis) -> np.ndarray:
    return np.array(axis) / np.linalg.norm(axis)


def exact_exp(V) -> np.ndarray:
    """exp([V]) (4, 4) by its Taylor series with 50 digits, rounded at the end."""
    with localcontext() as context:
        context.prec = 50
        A = np.array([[Decimal(float(x)) for x in row] for row in hat(V)], dtype=object)
        term = total = np.array([[Decimal(int(i == j)) for j in range(4)] for i in range(4)], dtype=object)
        for k in range(1, 80):
            term = term @ A / k
            total = total + term
        return total.astype(float)


def random_pose(rng) -> np.ndarray:
    return se3_exp(rng.uniform(-2.0, 2.0, 6))


# ---- exponential and logarithm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("angle", SMALL + LARGE)
def test_exp_and_log_are_right_to_the_last_digits_at_any_angle(angle):
    """From 0 over 1e-12 to π − 1e-12 and π itself, against arithmetic with 50 digits."""
    rng = np.random.default_rng(1)
    for axis in [*AXES, *rng.standard_normal((5, 3))]:
        for shift in ((0.0, 0.0, 0.0), (0.3, -0.7, 0.2)):
            V = np.concatenate([angle * unit(axis), shift])
            T = exact_exp(V)
            assert np.abs(se3_exp(V) - T).max() <= 4 * EPS
            found = se3_log(T)
            if angle == math.pi and found[:3] @ V[:3] < 0.0:  # π in floats: either direction turns there
                found[:3] *= -1.0
                assert np.abs(exact_exp(np.concatenate([-found[:3], found[3:]])) - T).max() <= 8 * EPS
            else:
                assert np.abs(found[3:] - V[3:]).max() <= 8 * EPS
            assert np.abs(found[:3] - V[:3]).max() <= 4 * EPS * angle


@pytest.mark.parametrize("angle", [1e-12, 1e-5, 1.0, math.pi - 1e-12])
def test_small_and_large_distances_keep_their_digits(angle):
    for size in (1e-12, 1e6):
        V = np.concatenate([angle * unit((1.0, 2.0, -0.5)), size * np.array([0.3, -0.7, 0.2])])
        assert np.abs(se3_log(exact_exp(V))[3:] - V[3:]).max() <= 8 * EPS * size


def test_exp_agrees_with_scipy():
    rng = np.random.default_rng(2)
    for V in rng.standard_normal((100, 6)) * rng.choice([1e-6, 0.1, 1.0, 5.0], (100, 1)):
        assert np.allclose(se3_exp(V), expm(hat(V)), rtol=0, atol=1e-13)


def test_log_agrees_with_scipy():
    rng = np.random.default_rng(3)
    for _ in range(100):
        V = np.concatenate([rng.uniform(0.01, 3.0) * unit(rng.standard_normal(3)), rng.uniform(-1, 1, 3)])
        assert np.allclose(hat(se3_log(se3_exp(V))), logm(se3_exp(V)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("axis", AXES)
def test_half_turns_as_they_are_written(axis):
    """R = 2 n n^T − 1 exactly: |ω| = π, the largest component of ω positive."""
    n = unit(axis)
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = 2 * np.outer(n, n) - np.eye(3), (1.0, 2.0, 3.0)
    V = se3_log(T)
    assert np.linalg.norm(V[:3]) == pytest.approx(math.pi, abs=1e-15)
    largest = int(np.argmax(np.abs(n)))
    assert np.allclose(V[:3], math.pi * n * np.sign(n[largest]), rtol=0, atol=1e-15)
    assert np.allclose(se3_exp(V), T, rtol=0, atol=4e-15)


def test_log_of_no_rotation_is_exact():
    assert np.array_equal(se3_log(np.eye(4)), np.zeros(6))
    V = np.array([0.0, 0.0, 0.0, 1e-300, -2.0, 3e200])
    assert np.array_equal(se3_log(se3_exp(V)), V)


@given(st.lists(st.floats(-1.8, 1.8), min_size=6, max_size=6))
def test_log_undoes_exp(V):
    V = np.array(V)
    assert np.allclose(se3_log(se3_exp(V)), V, rtol=0, atol=2e-14)  # |ω| < π


@given(st.lists(st.floats(-30.0, 30.0), min_size=6, max_size=6))
def test_exp_undoes_log_and_the_angle_is_at_most_pi(V):
    T = se3_exp(np.array(V))
    assert np.allclose(T[:3, :3].T @ T[:3, :3], np.eye(3), rtol=0, atol=1e-14)
    found = se3_log(T)
    assert np.linalg.norm(found[:3]) <= math.pi * (1 + EPS)
    assert np.allclose(se3_exp(found), T, rtol=0, atol=1e-13 * (1 + np.abs(T).max()))


# ---- poses ----------------------------------------------------------------------------------------------------------


def test_adjoint_moves_twists_and_is_the_inverse_of_the_motion_transform():
    rng = np.random.default_rng(4)
    T, U, V = random_pose(rng), random_pose(rng), rng.standard_normal(6)
    assert np.allclose(hat(adjoint(T) @ V), T @ hat(V) @ np.linalg.inv(T), rtol=0, atol=1e-14)
    assert np.allclose(adjoint(T @ U), adjoint(T) @ adjoint(U), rtol=0, atol=1e-14)
    assert np.allclose(adjoint(T) @ X_motion(T[:3, :3].T, T[:3, 3]), np.eye(6), rtol=0, atol=1e-14)
    assert np.allclose(pose_inverse(T) @ T, np.eye(4), rtol=0, atol=4e-15)


def test_interpolation_is_a_screw_motion():
    rng = np.random.default_rng(5)
    T, U = random_pose(rng), random_pose(rng)
    assert np.array_equal(interpolate(T, U, 0.0), T)
    assert np.allclose(interpolate(T, U, 1.0), U, rtol=0, atol=1e-14)
    halfway = interpolate(T, U, 0.5)
    assert np.allclose(pose_inverse(T) @ halfway, pose_inverse(halfway) @ U, rtol=0, atol=1e-14)


def test_checked_pose_corrects_few_digits_and_says_what_is_wrong():
    rng = np.random.default_rng(6)
    T = random_pose(rng)
    rounded = np.round(T, 7)
    corrected = checked_pose("target", rounded)
    assert np.allclose(corrected, T, rtol=0, atol=2e-7)
    assert np.allclose(corrected[:3, :3].T @ corrected[:3, :3], np.eye(3), rtol=0, atol=1e-15)
    with pytest.raises(InvalidInput, match=r"rotation of target .* 1 by 0\.0\d+ .*svd"):
        checked_pose("target", np.round(T, 2))
    reflected = T.copy()
    reflected[:3, 0] *= -1.0
    with pytest.raises(InvalidInput, match="target has determinant −1"):
        checked_pose("target", reflected)
    with pytest.raises(InvalidInput, match=r"last row of target .* transposed\?"):
        checked_pose("target", T.T)
    with pytest.raises(InvalidInput, match=r"target has shape \(3, 3\); expected .*\(4, 4\)"):
        checked_pose("target", np.eye(3))
    with pytest.raises(InvalidInput, match="target must be a .*array of numbers"):
        checked_pose("target", "here")
    T[1, 3] = math.nan
    with pytest.raises(InvalidInput, match=r"target\[1, 3\] is nan"):
        checked_pose("target", T)


# ---- poses and Jacobians of frames -----------------------------------------------------------------------------------


def swap(J: np.ndarray) -> np.ndarray:
    """Linear-first rows to angular-first."""
    return np.concatenate([J[3:], J[:3]])


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
                expected = swap(pin.getFrameJacobian(other.pin, other.data, number, kind))
                expected = np.array([other.ours(row) for row in expected])
                J = frame_jacobian(model, q, frame, reference)
                assert np.allclose(J, expected, rtol=0, atol=1e-12), (frame, reference)


def difference_quotient(model: Model, q: np.ndarray, v: np.ndarray, frame: str, h: float) -> np.ndarray:
    """d/dt log(T(q)⁻¹ T(q ⊕ v t)) at t = 0, (6,)."""
    back = pose_inverse(frame_pose(model, q, frame))
    ahead, behind = (se3_log(back @ frame_pose(model, model.integrate(q, s * v), frame)) for s in (h, -h))
    return (ahead - behind) / (2 * h)


@pytest.mark.parametrize("joint", JOINTS)
def test_jacobians_of_every_joint_type_agree_with_finite_differences(joint):
    model = random_tree(4, seed=1, joints=[joint, "revolute"])
    q, v, _ = model.random_state(seed=2)
    for frame in model.frames:
        V = frame_jacobian(model, q, frame) @ v
        assert np.allclose(V, difference_quotient(model, q, v, frame, 1e-5), rtol=0, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_poses_agree_with_motion_transforms_and_references_with_each_other(seed):
    model = random_tree(10, seed=seed)
    q, v, _ = model.random_state(seed=seed)
    for frame in model.frames:
        T, J = pose_and_jacobian(model, q, frame)
        X = frame_transform(model, q, frame)
        assert np.allclose(T, pose(rotation(X), translation(X)), rtol=0, atol=1e-13)
        at_origin = T.copy()
        at_origin[:3, 3] = 0.0
        assert np.allclose(frame_jacobian(model, q, frame, "world"), adjoint(at_origin) @ J, rtol=0, atol=1e-13)
        assert np.allclose(frame_jacobian(model, q, frame, "space"), adjoint(T) @ J, rtol=0, atol=1e-13)


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
