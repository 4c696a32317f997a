"""Canonical frames: screws give the transforms back, and nothing that does not depend on frames changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import icub
from robots import ROBOTS, load_robot

import sysdyn as sd
from sysdyn.model import Prismatic, Revolute
from sysdyn.model.normal_form import axes_to_z, canonical_frames, is_along_z, placement, transform
from sysdyn.model.se3 import X_motion, rotx, roty, rotz
from sysdyn.reference.rnea import newton_euler

trees = st.builds(sd.random_tree, st.integers(1, 8), st.integers(0, 10**6))


def moved(model):
    return [i for i, joint in enumerate(model.joints) if isinstance(joint, (Revolute, Prismatic))]


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
def test_the_motion_and_its_torques_are_the_same(model, change):
    """a becomes X a and f becomes X⁻ᵀ f; τ stays."""
    other, X = change(model)
    q, qd, qdd = model.random_state(seed=1)
    a, b = (newton_euler(m, q, qd, qdd) for m in (model, other))
    scale = 1.0 + np.abs(a.f).max()
    assert b.tau == pytest.approx(a.tau, abs=1e-11 * scale)
    for i in range(model.nb):
        assert b.a[i] == pytest.approx(X[i] @ a.a[i], abs=1e-10 * (1.0 + np.abs(a.a).max()))
        assert X[i].T @ b.f[i] == pytest.approx(a.f[i], abs=1e-10 * scale)
    assert all(is_along_z(other, i) for i in moved(model))


@settings(max_examples=15)
@given(trees)
def test_frames_stay_where_they_are(model):
    q, _, _ = model.random_state(seed=2)
    frames = {**model.frames, "tip": sd.Frame("tip", model.nb - 1, X_motion(rotx(0.4), np.array([0.1, 0.2, 0.3])))}
    model = model.replace(frames=frames)
    changed = canonical_frames(model)[0]
    assert sd.frame_pose(changed, q, "tip") == pytest.approx(sd.frame_pose(model, q, "tip"), abs=1e-12)


@pytest.mark.parametrize("name", ROBOTS)
def test_parameters_of_denavit_and_hartenberg_are_found_again(name):
    """What the table has is left: α, and lengths along x and z; no turn γ, and no displacement of the last frame."""
    model, _ = load_robot(name)
    found, _ = canonical_frames(model)
    places = [placement(X) for X in found.X_tree]
    twists = [abs(math.atan2(p.alpha[1], p.alpha[0])) for p in places]
    given_twists = [abs(math.acos(np.clip(X[2, 2], -1.0, 1.0))) for X in model.X_tree]
    assert twists == pytest.approx(given_twists, abs=1e-9)
    assert all(abs(p.gamma[1]) < 1e-12 and p.p[1] == 0.0 for p in places)
    assert places[-1].r == 0.0


def test_placements_of_the_icub_are_screws_about_x_but_for_its_branches():
    """31 of the 32 axes of the iCub meet their parents' at right angles or are parallel to them."""
    model, _ = canonical_frames(icub())
    places = [placement(X) for X in model.X_tree]
    assert all(0.0 in p.alpha for p in places)
    branching = {model.children[i][1:] for i in range(model.nb)}
    later = {j for group in branching for j in group}
    roots = {i for i, p in enumerate(model.parent) if p < 0}
    assert all(abs(p.gamma[1]) < 1e-12 for i, p in enumerate(places) if i not in later | roots)


def test_nearly_parallel_axes_are_not_slid_to_a_far_point():
    model = sd.auto_tree(3, 1, 1e-7, 0.9)
    other, _ = canonical_frames(model)
    assert max(np.abs(X).max() for X in other.X_tree) < 10.0
    q, qd, qdd = model.random_state(seed=0)
    assert sd.rnea(other, q, qd, qdd) == pytest.approx(sd.rnea(model, q, qd, qdd), rel=1e-9, abs=1e-9)
