"""Inverse kinematics: the textbook's cases to their digits, random targets near the start, limits and failures."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import icub

from sysdyn.errors import InvalidInput, ModelError, UnknownName
from sysdyn.model import JOINTS, Frame, Model, chain, random_tree
from sysdyn.model.generate import from_screws
from sysdyn.model.kinematics import frame_jacobian, frame_pose, path
from sysdyn.model.se3 import X_motion, adjoint, pose, pose_inverse, rot_axis, se3_exp, se3_log
from sysdyn.reference.ik import IKResult, inverse_kinematics, pinv

X, Y, Z = np.eye(3)
FORMS = ("body", "space")


def at(position, axis=Z, angle=0.0) -> np.ndarray:
    """T (4, 4): turned by `angle` about `axis`, with the origin at `position`."""
    return pose(rot_axis(axis, float(angle)), np.array(position, dtype=float))


def screws(axes, points) -> np.ndarray:
    """(6, n) columns [ω; −ω × p]."""
    return np.concatenate([np.transpose(axes), -np.cross(axes, points).T])


def errors(model: Model, q, frame: str, target) -> tuple[float, float]:
    """(angle [rad], distance [m]) between the frame and the target."""
    V = se3_log(pose_inverse(frame_pose(model, q, frame)) @ target)
    return float(np.linalg.norm(V[:3])), float(np.linalg.norm(frame_pose(model, q, frame)[:3, 3] - target[:3, 3]))


# ---- the pseudo-inverse --------------------------------------------------------------------------------------------


def test_pinv_of_the_text_to_its_printed_digits():
    A = np.arange(1.0, 17.0).reshape(4, 4)  # rank 2
    printed = [
        [-0.2850, -0.1450, -0.0050, 0.1350],
        [-0.1075, -0.0525, 0.0025, 0.0575],
        [0.0700, 0.0400, 0.0100, -0.0200],
        [0.2475, 0.1325, 0.0175, -0.0975],
    ]
    assert np.abs(pinv(A) - printed).max() < 1e-12


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 7), st.integers(0, 99), st.sampled_from([1e-12, 1.0, 1e12]))
def test_pinv_satisfies_the_penrose_conditions_at_any_scale(m, n, rank, seed, scale):
    rng = np.random.default_rng(seed)
    rank = min(m, n, rank)
    A = scale * rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))
    P = pinv(A, tol=1e-10)
    assert P.shape == (n, m)
    for found, expected in ((A @ P @ A, A), (P @ A @ P, P), (A @ P, (A @ P).T), (P @ A, (P @ A).T)):
        assert np.allclose(found, expected, rtol=0, atol=1e-7 * (1e-300 + np.abs(expected).max()))


def test_the_tolerance_of_pinv_is_relative_and_batches_are_allowed():
    A = np.diag([1.0, 1e-3, 1e-5])
    assert np.allclose(pinv(A, tol=1e-4), np.diag([1.0, 1e3, 0.0]), rtol=1e-15)
    assert np.allclose(pinv(1e-9 * A, tol=1e-4), np.diag([1e9, 1e12, 0.0]), rtol=1e-15)
    stack = np.random.default_rng(0).standard_normal((2, 5, 6, 7))
    assert np.allclose(pinv(stack), np.linalg.pinv(stack), rtol=0, atol=1e-12)
    assert pinv(np.zeros((6, 0))).shape == (0, 6)
    assert not pinv(np.zeros((3, 2))).any()


# ---- screws --------------------------------------------------------------------------------------------------------

UR3_HOME = at((213.0, 267.8, 478.95))
UR3_SCREWS = screws(
    [Z, Y, Y, Y, Z, Y],
    [(0, 0, 0), (0, 0, 151.9), (0, 0, 395.55), (213, 0, 395.55), (213, 110.4, 478.95), (213, 110.4, 478.95)],
)
TASK = at((-75.0, 300.0, 100.0))  # T_sw
UR3_TARGETS = {
    "A": TASK @ at((125.0, 75.0, 60.0), Z, math.pi / 2),
    "B": TASK @ at((85.0, 75.0, 100.0), X, -math.pi / 2),
    "C": TASK @ at((65.0, 75.0, 100.0), X, -math.pi / 2),
}
UR3_SOLUTIONS = {
    "A": (0.80504, 1.37951, -0.77177, -0.60773, 0.76576, 0.0),
    "B": (1.24542, 0.26655, -0.12739, 1.43164, -math.pi / 2, -0.32538),
    "C": (1.29874, 0.26655, -0.12739, 1.43164, -math.pi / 2, -0.27206),
}
UR3_TOLERANCES = {"angle_tol": 1e-4, "position_tol": 1e-3}  # rad, mm


@functools.cache
def ur3() -> Model:
    """The UR3 of the text, in mm."""
    return from_screws(UR3_HOME, space=UR3_SCREWS, name="UR3")


def exponentials(S, q) -> np.ndarray:
    return functools.reduce(np.matmul, [se3_exp(s * x) for s, x in zip(S.T, q, strict=True)], np.eye(4))


@pytest.mark.parametrize("seed", range(10))
def test_models_from_screws_are_products_of_exponentials(seed):
    rng = np.random.default_rng(seed)
    n, M = 5, se3_exp(rng.uniform(-2, 2, 6))
    S = np.empty((6, n))
    for k, kind in enumerate(rng.permutation(["revolute", "revolute", "prismatic", "helical", "revolute"])):
        w, p = rng.standard_normal(3), rng.uniform(-1, 1, 3)
        w = w / np.linalg.norm(w) if rng.random() < 0.7 else np.eye(3)[k % 3]
        h = rng.uniform(-0.5, 0.5) if kind == "helical" else 0.0
        S[:, k] = [0, 0, 0, *w] if kind == "prismatic" else [*w, *(-np.cross(w, p) + h * w)]
    model = from_screws(M, space=S)
    same = from_screws(M, body=adjoint(pose_inverse(M)) @ S)
    q = rng.uniform(-2, 2, n)
    expected = exponentials(S, q) @ M
    assert np.allclose(frame_pose(model, q, "tool"), expected, rtol=0, atol=1e-13)
    assert np.allclose(frame_pose(same, q, "tool"), expected, rtol=0, atol=1e-13)
    J = np.stack([adjoint(exponentials(S[:, :k], q[:k])) @ S[:, k] for k in range(n)], axis=1)  # eq. (5.11)
    assert np.allclose(frame_jacobian(model, q, "tool", "space"), J, rtol=0, atol=1e-13)


def test_screws_that_are_none_are_refused():
    M, S = np.eye(4), UR3_SCREWS
    with pytest.raises(ModelError, match=r"screw axis 2 has \|ω\| = 2; it must be 1"):
        from_screws(M, space=S * np.where(np.arange(6) == 2, 2.0, 1.0))
    with pytest.raises(ModelError, match=r"screw axis 0 has ω = 0 and \|v\| = 3"):
        from_screws(M, body=np.array([[0.0, 0.0, 0.0, 3.0, 0.0, 0.0]]).T)
    with pytest.raises(ModelError, match=r"space .*shape \(4, 6\)"):
        from_screws(M, space=S[:4])
    with pytest.raises(ModelError, match="either as space=S .* or as body=B"):
        from_screws(M, space=S, body=S)
    with pytest.raises(ModelError, match="either as space=S .* or as body=B"):
        from_screws(M)
    with pytest.raises(ModelError, match="space .*is nan"):
        from_screws(M, space=S * math.nan)
    with pytest.raises(InvalidInput, match=r"home has shape \(3, 3\)"):
        from_screws(np.eye(3), space=S)


# ---- the cases of the text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "updates"), [("body", 3), ("space", 2)])
def test_2r_arm_of_the_text(form, updates):
    B = np.array([[0.0, 0.0, 1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]]).T
    model = from_screws(at((2.0, 0.0, 0.0)), body=B)
    target = at((0.366, 1.366, 0.0), Z, 2 * math.pi / 3)
    result = inverse_kinematics(
        model, "tool", target, [0.0, 0.5], form=form, angle_tol=1e-3, position_tol=1e-4, max_iter=20
    )
    assert result and result.iterations == updates and result.start_rank == 2
    assert np.allclose(np.degrees(result.q), (30.0, 90.0), rtol=0, atol=0.01)


def test_2r_arm_with_the_target_as_printed():
    """Three digits of a rotation by 120°: it is off by 4.4e-5, and so it has to be said that this may be."""
    model = from_screws(at((2.0, 0.0, 0.0)), body=np.array([[0, 0, 1, 0, 2, 0], [0, 0, 1, 0, 1, 0]], dtype=float).T)
    printed = [[-0.5, -0.866, 0.0, 0.366], [0.866, -0.5, 0.0, 1.366], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    options = {"angle_tol": 1e-3, "position_tol": 1e-4, "max_iter": 20}
    with pytest.raises(InvalidInput, match=r"R\^T R differs from 1 by 4\.4e-05 \(up to 1e-06 .*rotation_tol="):
        inverse_kinematics(model, "tool", printed, [0.0, 0.5], **options)
    for form, updates in (("body", 3), ("space", 2)):
        result = inverse_kinematics(model, "tool", printed, [0.0, 0.5], form=form, rotation_tol=1e-4, **options)
        assert result and updates == result.iterations
        assert "the rotation of target was off by 4.4e-05" in result.reason
        assert np.abs(result.q - (0.523589, 1.570829)).max() < 1e-4  # the digits of the text
    with pytest.raises(InvalidInput, match="rotation_tol"):
        inverse_kinematics(model, "tool", printed, [0.0, 0.5], rotation_tol=-1.0)


@pytest.mark.parametrize("name", UR3_TARGETS)
def test_printed_solutions_of_the_ur3_reach_their_targets(name):
    angle, distance = errors(ur3(), np.array(UR3_SOLUTIONS[name]), "tool", UR3_TARGETS[name])
    assert angle < 2e-5 and distance < 5e-3  # five decimals of q, arms of 500 mm


def test_ur3_from_its_singular_home_to_a():
    result = inverse_kinematics(ur3(), "tool", UR3_TARGETS["A"], np.zeros(6), form="body", **UR3_TOLERANCES)
    assert result and result.iterations == 6
    assert result.start_rank == 5 and "q0 is singular: the Jacobian has rank 5 of 6 there" in result.reason
    assert np.abs(result.q - UR3_SOLUTIONS["A"]).max() < 6e-6


@pytest.mark.parametrize("name", UR3_TARGETS)
def test_ur3_by_the_space_form_that_the_text_takes(name):
    """Directly from home, to A as the body form; to B and C, where that fails, with the wrist turned the other way."""
    target = UR3_TARGETS[name]
    result = inverse_kinematics(ur3(), "tool", target, np.zeros(6), form="space", **UR3_TOLERANCES)
    assert result and result.iterations == 6 and result.start_rank == 5
    angle, distance = errors(ur3(), result.q, "tool", target)
    assert angle <= 1e-4 and distance <= 1e-3
    apart = (result.q - UR3_SOLUTIONS[name] + math.pi) % (2.0 * math.pi) - math.pi
    assert (np.abs(apart).max() < 6e-6) == (name == "A")


@pytest.mark.parametrize("form", FORMS)
def test_ur3_from_b_to_c(form):
    result = inverse_kinematics(ur3(), "tool", UR3_TARGETS["C"], UR3_SOLUTIONS["B"], form=form, **UR3_TOLERANCES)
    assert result and result.iterations == 2 and result.start_rank == 6 and result.reason == ""
    assert np.abs(result.q - UR3_SOLUTIONS["C"]).max() < 1.1e-5


def test_ur3_to_c_directly_fails_and_says_so():
    result = inverse_kinematics(ur3(), "tool", UR3_TARGETS["C"], np.zeros(6), form="body", max_iter=20)
    assert not result and not result.converged
    assert result.iterations == 20 and result.position_error > 1e-3
    for part in ("no convergence within 20 iterations", "rank 5 of 6", "try another q0"):
        assert part in result.reason


# ---- random targets ------------------------------------------------------------------------------------------------


def carrying(model: Model, frame: str) -> list[int]:
    """The degrees of freedom of the joints that carry the frame."""
    return [k for i in path(model, model.frame(frame).body) for k in range(model.nv)[model.v_slice(i)]]


def test_floating_base():
    model = icub("floating")
    q0, v = model.random_state(seed=1)[0], model.random_state(seed=2, scale=0.05)[1]
    q0[7:] = np.clip(0.0, model.lower[6:] + 0.2, model.upper[6:] - 0.2)
    target = frame_pose(model, model.integrate(q0, v), "l_hand")
    result = inverse_kinematics(model, "l_hand", target, q0)
    assert result and max(errors(model, result.q, "l_hand", target)) < 1e-7
    others = np.setdiff1d(np.arange(6, model.nv), carrying(model, "l_hand"))
    assert np.array_equal(result.q[others + 1], q0[others + 1])
    assert abs(np.linalg.norm(result.q[3:7]) - 1.0) < 1e-12


@pytest.mark.parametrize("joint", [name for name in JOINTS if name != "fixed"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 5), marks=pytest.mark.slow)], ids=str)
def test_every_joint_type_in_both_forms(joint, form, seeds):
    for seed in seeds:
        model = random_tree(5, seed=seed, joints=[joint, "revolute"])
        frame = max(model.body_names, key=lambda name: len(path(model, model.body_index(name))))
        q0, v, _ = model.random_state(seed=seed, scale=0.05)
        target = frame_pose(model, model.integrate(q0, v), frame)
        result = inverse_kinematics(model, frame, target, q0, form=form)
        assert result, result
        angle, distance = errors(model, result.q, frame, target)
        assert max(angle, distance) < 1e-7 and np.array_equal(model.normalise(result.q), result.q)
        assert np.isclose(result.angle_error, angle, rtol=1e-6, atol=1e-14)
        assert np.isclose(result.position_error, distance, rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_targets_out_of_reach_are_never_reported_solved(form):
    model, rng = icub(), np.random.default_rng(2)
    q0 = np.clip(model.neutral(), model.lower, model.upper)
    for _ in range(20):
        target = frame_pose(model, rng.uniform(model.lower, model.upper), "l_hand")
        target[:3, 3] += 2.0 * target[:3, 3] / np.linalg.norm(target[:3, 3])
        result = inverse_kinematics(model, "l_hand", target, q0, form=form, max_iter=30)
        assert not result and result.position_error > 1.0 and result.reason and np.all(np.isfinite(result.q))


# ---- limits and whole turns ----------------------------------------------------------------------------------------


def planar(n: int, **limits) -> Model:
    """n links of 1 m in the plane z = 0, stretched along x at q = 0."""
    return from_screws(at((float(n), 0.0, 0.0)), space=screws([Z] * n, [(k, 0.0, 0.0) for k in range(n)]), **limits)


def test_limits_are_checked_at_the_end():
    model = planar(3, lower=[-3.0, -0.5, -3.0], upper=[3.0, 0.5, 3.0])
    target = frame_pose(model, np.array([0.2, 0.9, 0.1]), "tool")
    result = inverse_kinematics(model, "tool", target, [0.2, 0.5, 0.1], form="body")
    assert not result and "reached outside the limits of joint1" in result.reason
    assert result.angle_error < 1e-8 and result.position_error < 1e-8


def test_whole_turns_are_taken_off_limited_angles():
    model = planar(3, lower=[-math.pi, -math.inf, -math.inf], upper=[math.pi, math.inf, math.inf])
    q = np.array([0.2, 0.9, 0.1])
    target = frame_pose(model, q, "tool")
    result = inverse_kinematics(model, "tool", target, q + 0.05 + 4 * math.pi, form="body")
    assert result
    assert np.allclose(result.q, [0.2, 0.9 + 4 * math.pi, 0.1 + 4 * math.pi], rtol=0, atol=1e-7)


@pytest.mark.parametrize("form", FORMS)
def test_angles_without_limits_stay_within_half_a_turn_of_the_start(form):
    model, rng = chain(7, seed=1), np.random.default_rng(0)
    frame = model.body_names[-1]
    for _ in range(20):
        target, q0 = frame_pose(model, rng.uniform(-3.0, 3.0, 7), frame), rng.uniform(-30.0, 30.0, 7)
        result = inverse_kinematics(model, frame, target, q0, form=form)
        assert np.abs(result.q - q0).max() <= math.pi + 1e-12
        assert not result or np.abs(frame_pose(model, result.q, frame) - target).max() < 1e-7


def test_a_frame_of_the_base_and_a_target_that_is_met_already():
    model = planar(3).replace(frames={"base": Frame("base", -1), "stand": Frame("stand", -1, X_motion(np.eye(3), X))})
    for form in FORMS:
        here = inverse_kinematics(model, "stand", at((1.0, 0.0, 0.0)), np.zeros(3), form=form)
        assert here and here.iterations == 0
        there = inverse_kinematics(model, "stand", at((2.0, 0.0, 0.0)), np.zeros(3), form=form)
        assert not there and "no joint carries the frame" in there.reason and there.position_error == 1.0


def test_a_singular_target_is_reached():
    """Stretched arms: the Jacobian loses rank at the solution."""
    model = planar(3)
    result = inverse_kinematics(model, "tool", at((3.0, 0.0, 0.0)), [0.3, -0.4, 0.2], angle_tol=1e-6, position_tol=1e-6)
    assert result and np.abs(result.q).max() < 1e-2


# ---- results and errors --------------------------------------------------------------------------------------------


def test_results_are_true_where_solved_frozen_and_readable():
    good = inverse_kinematics(planar(3), "tool", at((1.0, 1.0, 0.0)), [0.1, 0.5, 0.2])
    bad = inverse_kinematics(planar(3), "tool", at((9.0, 1.0, 0.0)), [0.1, 0.5, 0.2])
    assert isinstance(good, IKResult) and good and not bad
    assert repr(good).startswith(f"frame 'tool' reached after {good.iterations} iterations\n  error ")
    assert repr(bad).startswith("frame 'tool' NOT reached after ") and bad.reason in repr(bad)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bad.converged = True


def test_starts_and_targets_are_not_written_to():
    q0, target = np.array([0.1, 0.5, 0.2]), at((1.0, 1.0, 0.0))
    before = q0.copy(), target.copy()
    result = inverse_kinematics(planar(3), "tool", target, q0)
    assert np.array_equal(q0, before[0]) and np.array_equal(target, before[1])
    kept = result.q.copy()
    inverse_kinematics(planar(3), "tool", at((0.5, 1.0, 0.0)), q0)
    assert np.array_equal(result.q, kept)


def test_wrong_input_is_named():
    model, T, q0 = icub(), np.eye(4), icub().neutral()
    no_rotation = np.diag([1.0, 1.0, 1.1, 1.0])
    cases = [
        (UnknownName, "unknown frame 'l_hnd'. Did you mean 'l_hand'", ("l_hnd", T, q0), {}),
        (UnknownName, r"unknown frame \['l_hand'\]", (["l_hand"], T, q0), {}),
        (InvalidInput, r"rotation of target .* differs from 1 by 0\.21 ", ("l_hand", no_rotation, q0), {}),
        (InvalidInput, "target is nan", ("l_hand", T * math.nan, q0), {}),
        (InvalidInput, r"target is 1e\+200.* at most 1e\+08", ("l_hand", at((1e200, 0.0, 0.0)), q0), {}),
        (InvalidInput, r"q0 has shape \(6,\).*32", ("l_hand", T, q0[:6]), {}),
        (InvalidInput, r"q0 has shape \(2, 32\)", ("l_hand", T, [q0, q0]), {}),
        (InvalidInput, r"q0.* nan", ("l_hand", T, q0 * math.nan), {}),
        (InvalidInput, r"q0 is 1000000000000.0; .* at most 1e\+08", ("l_hand", T, q0 + 1e12), {}),
        (InvalidInput, "q0 has type <U4, but real numbers are needed", ("l_hand", T, "home"), {}),
        (UnknownName, "unknown form 'newton'.*body", ("l_hand", T, q0), {"form": "newton"}),
        (InvalidInput, "max_iter is 2.5", ("l_hand", T, q0), {"max_iter": 2.5}),
        (InvalidInput, "angle_tol is 0", ("l_hand", T, q0), {"angle_tol": 0}),
        (InvalidInput, "pinv_tol is 1", ("l_hand", T, q0), {"pinv_tol": 1.0}),
    ]  # fmt: skip
    for kind, message, arguments, options in cases:
        with pytest.raises(kind, match=message):
            inverse_kinematics(model, *arguments, **options)
    floating = icub("floating")
    q0 = floating.neutral()
    q0[6] = 2.0
    with pytest.raises(InvalidInput, match="quaternion of joint .* has norm 2"):
        inverse_kinematics(floating, "l_hand", T, q0)


def test_unit_quaternions_may_be_written_with_few_digits():
    floating = icub("floating")
    q0 = floating.neutral()
    q0[7:] = np.clip(0.0, floating.lower[6:] + 0.2, floating.upper[6:] - 0.2)
    target = frame_pose(floating, q0, "l_hand")
    q0[6] += 1e-7
    result = inverse_kinematics(floating, "l_hand", at((0.01, 0.0, 0.0)) @ target, q0)
    assert result and abs(np.linalg.norm(result.q[3:7]) - 1.0) < 1e-12
