"""Normal forms: canonical frames, base parameters, units of length and welded joints leave the motion as it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import icub
from robots import ROBOTS, load_robot

import sysdyn as sd
from sysdyn.model import Fixed, Prismatic, Revolute
from sysdyn.model.inertia import inertia, pseudo_inertia, spatial_inertia
from sysdyn.model.normal_form import (
    axes_to_z,
    canonical_frames,
    is_along_z,
    normal_form,
    placement,
    regroup,
    transform,
    weld_fixed_joints,
)
from sysdyn.model.se3 import X_motion, rotx, roty, rotz
from sysdyn.reference.rnea import newton_euler

trees = st.builds(sd.random_tree, st.integers(1, 8), st.integers(0, 10**6))


def same_torques(a: sd.Model, b: sd.Model, factor: float = 1e-11) -> None:
    q, qd, qdd = a.random_state(seed=1)
    tau = sd.rnea(a, q, qd, qdd)
    assert sd.rnea(b, q, qd, qdd) == pytest.approx(tau, abs=factor * (1.0 + np.abs(tau).max(initial=0.0)))


# ---- canonical frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("up", [0.0, math.pi])
def test_axes_that_are_parallel_either_way(up):
    X = X_motion(rotz(0.3) @ rotx(up) @ rotz(-0.7), np.array([0.1, -0.2, 0.4]))
    place = placement(X)
    assert transform(place) == pytest.approx(X, abs=1e-14)
    assert place.gamma == (1.0, 0.0)


@given(
    st.lists(st.floats(-4, 4), min_size=3, max_size=3),
    st.lists(st.sampled_from([0.0, math.pi / 2, math.pi, 1e-6, 0.3, -2.0]), min_size=3, max_size=3),
)
def test_the_screws_of_a_transform_give_it_back(r, angles):
    X = X_motion(rotz(angles[2]) @ rotx(angles[1]) @ roty(angles[0]), np.array(r))
    place = placement(X)
    assert transform(place) == pytest.approx(X, abs=1e-10)
    assert place.gamma[0] ** 2 + place.gamma[1] ** 2 == pytest.approx(1.0, abs=1e-14)


@settings(max_examples=25)
@given(trees, st.sampled_from([canonical_frames, axes_to_z]))
def test_frames_change_a_and_f_but_no_torque_and_no_pose(model, change):
    """a becomes X a and f becomes X⁻ᵀ f."""
    tip = sd.Frame("tip", model.nb - 1, X_motion(rotx(0.4), np.array([0.1, 0.2, 0.3])))
    model = model.replace(frames={**model.frames, "tip": tip})
    other, X = change(model)
    q, qd, qdd = model.random_state(seed=1)
    a, b = (newton_euler(m, q, qd, qdd) for m in (model, other))
    scale = 1.0 + np.abs(a.f).max()
    assert b.tau == pytest.approx(a.tau, abs=1e-11 * scale)
    for i in range(model.nb):
        assert b.a[i] == pytest.approx(X[i] @ a.a[i], abs=1e-10 * (1.0 + np.abs(a.a).max()))
        assert X[i].T @ b.f[i] == pytest.approx(a.f[i], abs=1e-10 * scale)
        assert is_along_z(other, i) == isinstance(model.joints[i], (Revolute, Prismatic))
    assert sd.frame_pose(other, q, "tip") == pytest.approx(sd.frame_pose(model, q, "tip"), abs=1e-12)


@pytest.mark.parametrize("name", ROBOTS)
def test_parameters_of_denavit_and_hartenberg_are_found_again(name):
    """α and lengths along x and z remain; no rotation γ, and no displacement of the last frame."""
    model, _ = load_robot(name)
    places = [placement(X) for X in canonical_frames(model)[0].X_tree]
    twists = [abs(math.acos(np.clip(X[2, 2], -1.0, 1.0))) for X in model.X_tree]
    assert [abs(math.atan2(p.alpha[1], p.alpha[0])) for p in places] == pytest.approx(twists, abs=1e-9)
    assert all(abs(p.gamma[1]) < 1e-12 and p.p[1] == 0.0 for p in places)
    assert places[-1].r == 0.0


def test_placements_of_the_icub_are_screws_about_x_except_at_branches():
    """31 of the 32 axes of the iCub meet their parents' at right angles or are parallel to them."""
    model, _ = canonical_frames(icub())
    places = [placement(X) for X in model.X_tree]
    assert all(0.0 in p.alpha for p in places)
    later = {j for i in range(model.nb) for j in model.children[i][1:]}
    roots = {i for i, p in enumerate(model.parent) if p < 0}
    assert all(abs(p.gamma[1]) < 1e-12 for i, p in enumerate(places) if i not in later | roots)


def test_nearly_parallel_axes_do_not_move_frames_far_away():
    model = sd.auto_tree(3, 1, 1e-7, 0.9)
    other, _ = canonical_frames(model)
    assert max(np.abs(X).max() for X in other.X_tree) < 10.0
    same_torques(model, other, 1e-9)


# ---- base parameters -------------------------------------------------------------------------------------------------


def test_the_pseudo_inertia_is_the_second_moment_of_the_mass():
    """P = Σ m (ρ, 1) (ρ, 1)^T of point masses."""
    rng = np.random.default_rng(0)
    points, masses = rng.standard_normal((6, 3)), rng.uniform(0.1, 1.0, 6)
    I = sum(inertia(m, p, np.zeros((3, 3))) for m, p in zip(masses, points, strict=True))
    P = sum(m * np.outer([*p, 1.0], [*p, 1.0]) for m, p in zip(masses, points, strict=True))
    assert pseudo_inertia(I) == pytest.approx(P)
    assert spatial_inertia(P) == pytest.approx(I)


@settings(max_examples=30)
@given(trees)
def test_regrouping_removes_parameters_and_leaves_the_torques(model):
    model = canonical_frames(model)[0]
    base = regroup(model)
    same_torques(model, base, factor=1e-10)
    for joint, I in zip(base.joints, base.inertias, strict=True):
        P = pseudo_inertia(I)
        if isinstance(joint, Revolute):
            assert not P[2:, 2:].any()
        elif isinstance(joint, Prismatic):
            assert not P[:3, :3].any()
        elif isinstance(joint, Fixed):
            assert not P.any()


@settings(max_examples=20)
@given(trees)
def test_fixed_joints_are_welded(model):
    welded = weld_fixed_joints(model)
    assert not any(isinstance(joint, Fixed) for joint in welded.joints)
    assert (welded.nq, welded.nv) == (model.nq, model.nv)
    same_torques(model, welded)


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_icub(base):
    """With a floating base all mass is on the root link; armature stays."""
    model = icub(base)
    model = model.replace(armature=np.linspace(0.1, 0.2, model.nv))
    base_model, _ = normal_form(model)
    same_torques(model, base_model)
    assert base_model.mass == pytest.approx(model.mass if base == "floating" else 0.0)
    assert np.array_equal(base_model.armature, model.armature)
