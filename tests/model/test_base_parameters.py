"""Base parameters, units of length and welded joints: other numbers in the model, the same torques."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import icub

import sysdyn as sd
from sysdyn.model import Fixed, Prismatic, Revolute
from sysdyn.model.inertia import inertia, pseudo_inertia, spatial_inertia
from sysdyn.model.normal_form import RETAINED_CHOICES, canonical_frames, regroup, rescale_length, weld_fixed_joints

trees = st.builds(sd.random_tree, st.integers(1, 8), st.integers(0, 10**6))


def same_torques(a: sd.Model, b: sd.Model, seed: int = 1, factor: float = 1e-11) -> None:
    q, qd, qdd = a.random_state(seed=seed)
    tau = sd.rnea(a, q, qd, qdd)
    assert sd.rnea(b, q, qd, qdd) == pytest.approx(tau, abs=factor * (1.0 + np.abs(tau).max(initial=0.0)))


def test_the_pseudo_inertia_is_the_second_moment_of_the_mass():
    """P = Σ m (ρ, 1) (ρ, 1)^T of point masses."""
    rng = np.random.default_rng(0)
    points, masses = rng.standard_normal((6, 3)), rng.uniform(0.1, 1.0, 6)
    I = sum(inertia(m, p, np.zeros((3, 3))) for m, p in zip(masses, points, strict=True))
    P = sum(m * np.outer([*p, 1.0], [*p, 1.0]) for m, p in zip(masses, points, strict=True))
    assert pseudo_inertia(I) == pytest.approx(P)
    assert spatial_inertia(P) == pytest.approx(I)


@settings(max_examples=30)
@given(trees, st.integers(0, RETAINED_CHOICES - 1))
def test_regrouping_leaves_the_torques(model, left):
    model = canonical_frames(model)[0]
    base = regroup(model, {i: left for i in range(model.nb)})
    same_torques(model, base, factor=1e-10)
    for joint, I in zip(base.joints, base.inertias, strict=True):
        P = pseudo_inertia(I)
        if isinstance(joint, Revolute):
            assert P[3, 3] == P[2, 3] == 0.0
            assert P[2, 2] == pytest.approx((0.0, -P[0, 0], -P[1, 1], P[0, 0], P[1, 1])[left], abs=1e-12)
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


@given(st.integers(1, 6), st.integers(0, 10**6), st.floats(0.01, 100.0))
def test_another_unit_of_length_changes_no_torque(n, seed, length):
    model = sd.chain(n, seed=seed)
    same_torques(model, rescale_length(model, length), factor=1e-11)


def test_the_armature_stays():
    model = sd.chain(3, seed=0)
    model = model.replace(armature=[0.1, 0.2, 0.3])
    same_torques(model, regroup(canonical_frames(model)[0]))
    assert regroup(canonical_frames(model)[0]).armature.tolist() == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_icub(base):
    """With a floating base the mass is not lost: it is all on the root link, on whose joint it is felt."""
    model = icub(base)
    moved = regroup(canonical_frames(model)[0])
    same_torques(model, moved)
    assert moved.mass == pytest.approx(model.mass if base == "floating" else 0.0)
