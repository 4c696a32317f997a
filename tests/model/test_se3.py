"""Poses, their exponential and logarithm, against arithmetic with 50 digits."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysdyn.errors import InvalidInput
from sysdyn.model.se3 import (
    X_motion,
    adjoint,
    checked_pose,
    cross,
    pose_inverse,
    se3_exp,
    se3_log,
    skew,
)
from sysdyn.program.graph import Graph

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


def test_small_and_large_distances_keep_their_digits():
    for angle, size in itertools.product([1e-12, 1e-5, 1.0, math.pi - 1e-12], (1e-12, 1e6)):
        V = np.concatenate([angle * unit((1.0, 2.0, -0.5)), size * np.array([0.3, -0.7, 0.2])])
        assert np.abs(se3_log(exact_exp(V))[3:] - V[3:]).max() <= 8 * EPS * size


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


def test_checked_pose_corrects_few_digits():
    T = random_pose(np.random.default_rng(6))
    corrected = checked_pose("target", np.round(T, 7))
    assert np.allclose(corrected, T, rtol=0, atol=2e-7)
    assert np.allclose(corrected[:3, :3].T @ corrected[:3, :3], np.eye(3), rtol=0, atol=1e-15)


WRONG_POSES = {
    "two digits": (lambda T: np.round(T, 2), r"rotation of target .* 1 by 0\.0\d+ .*svd"),
    "reflection": (lambda T: T * [-1.0, 1.0, 1.0, 1.0], "target has determinant −1"),
    "transposed": (lambda T: T.T, r"last row of target .* transposed\?"),
    "shape": (lambda T: np.eye(3), r"target has shape \(3, 3\).*\(4, 4\)"),
    "text": (lambda T: "here", "target .*number"),
    "nan": (lambda T: np.where(np.arange(16).reshape(4, 4) == 7, math.nan, T), r"target.*1, 3.* nan|target is nan"),
}


@pytest.mark.parametrize("case", WRONG_POSES)
def test_wrong_poses_are_named(case):
    change, message = WRONG_POSES[case]
    with pytest.raises(InvalidInput, match=message):
        checked_pose("target", change(random_pose(np.random.default_rng(6))))


def test_lists_of_numbers_make_arrays_of_numbers():
    """Arrays of objects are for expressions: models and calls refuse others."""
    symbol = Graph().input("x")
    for v, dtype in (([0.0, 0.0, 1.0], float), ((1, 2, 3), float), ([symbol, 0.0, 1.0], object)):
        assert skew(v).dtype == cross(v, v).dtype == dtype
