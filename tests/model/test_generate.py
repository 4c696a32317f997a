"""Generated models against the formulas they come from."""

import math

import numpy as np
import pytest
from robots import ROBOTS, load_robot

from sysdyn.errors import InvalidInput, ModelError, PlausibilityWarning, UnknownName
from sysdyn.model import JOINTS, Planar, Prismatic, Revolute, auto_tree, chain, frame_transform, from_dh, random_tree
from sysdyn.model.generate import RANDOM_JOINTS
from sysdyn.model.se3 import pose, rotation, skew, translation
from sysdyn.model.validate import implausibility

# ---- autoTree -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nb", "branching", "skew_angle", "taper"),
    [(1, 1, 0, 1), (6, 1, 1.5, 0.9), (20, 1.5, 1.5, 0.9), (15, 2, 0, 1), (9, 3, 0.2, 1)],
)
def test_auto_tree_formulas(nb, branching, skew_angle, taper):
    """Written out as in the published description, with i = 1 … nb."""
    m = auto_tree(nb, branching, skew_angle, taper)
    assert m.nb == m.nv == m.nq == nb and set(m.joints) == {Revolute((0, 0, 1))}
    np.testing.assert_array_equal(m.gravity, [0, -9.81, 0])
    c, s = math.cos(skew_angle), math.sin(skew_angle)
    for i in range(1, nb + 1):
        parent = math.floor((i - 2 + math.ceil(branching)) / branching)
        assert m.parent[i - 1] == parent - 1
        length, mass = taper ** (i - 1), taper ** (3 * (i - 1))
        com = length * np.array([0.5, 0, 0])
        about_com = mass * length**2 * np.diag([0.0025, 1.015 / 12, 1.015 / 12])
        I = np.block(
            [[about_com + mass * skew(com) @ skew(com).T, mass * skew(com)], [mass * skew(com).T, mass * np.eye(3)]]
        )
        np.testing.assert_allclose(m.inertias[i - 1], I, rtol=1e-14, atol=1e-18)
        X = np.eye(6)
        if i > 1:
            E = np.array([[1, 0, 0], [0, c, s], [0, -s, c]])
            rotate = np.block([[E, np.zeros((3, 3))], [np.zeros((3, 3)), E]])
            shift = np.eye(6)
            shift[3:, :3] = -skew(np.array([taper ** (parent - 1), 0.0, 0.0]))
            X = rotate @ shift
        np.testing.assert_allclose(m.X_tree[i - 1], X, atol=1e-15)


def test_auto_tree_of_the_paper():
    assert auto_tree(7, 1.5, 1.5, 0.9).parent == (-1, 0, 1, 1, 2, 3, 3)
    assert auto_tree(7, 1).parent == (-1, 0, 1, 2, 3, 4, 5)
    assert auto_tree(7, 2).parent == (-1, 0, 0, 1, 1, 2, 2)
    right = auto_tree(2, 1, math.pi / 2)
    assert set(np.abs(right.X_tree).ravel()) == {0.0, 1.0}


@pytest.mark.parametrize("arguments", [(0,), (2.5,), (True,), (3, 0.5), (3, math.nan), (3, 1, 0, 0), (3, 1, math.inf)])
def test_auto_tree_rejects(arguments):
    with pytest.raises(InvalidInput):
        auto_tree(*arguments)


# ---- random models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [chain, random_tree])
def test_random_models_are_reproducible_and_plausible(make):
    m = make(25, seed=3)
    assert m.digest == make(25, seed=3).digest != make(25, seed=4).digest
    assert m.nb == 25 and not any(implausibility(I) for I in m.inertias)
    assert np.all(np.linalg.eigvalsh(m.inertias) > 0.0)
    with pytest.raises(InvalidInput, match="integer ≥ 1"):
        make(0)


def test_chain_is_a_serial_chain_about_z():
    m = chain(8)
    assert m.parent == tuple(range(-1, 7)) and set(m.joints) == {Revolute()}
    assert all(np.all(X[0, 2] == 0.0) for X in m.X_tree)  # a DH placement has x normal to the previous z


def test_random_tree_uses_the_joint_types_given():
    assert {j.kind for j in random_tree(200, seed=0).joints} == set(RANDOM_JOINTS)
    assert {j.kind for j in random_tree(30, seed=0, joints=["free", "planar"]).joints} == {"free", "planar"}
    with pytest.raises(UnknownName, match="'hinge'"):
        random_tree(3, joints=["hinge"])
    with pytest.raises(InvalidInput, match="no joint types"):
        random_tree(3, joints=[])


def test_the_random_robots_of_a_seed_stay_as_they_are(monkeypatch):
    """Whatever joint types are added."""
    kinds = "cylindrical free prismatic revolute helical helical revolute free free revolute revolute fixed"
    monkeypatch.setitem(JOINTS, "slab", type("Slab", (Planar,), {"kind": "slab"}))
    assert " ".join(j.kind for j in random_tree(12, seed=1).joints) == kinds
    assert [j.kind for j in random_tree(4, seed=1, joints=["slab"]).joints] == ["slab"] * 4


# ---- Denavit-Hartenberg -------------------------------------------------------------------------------------------


def rx(t):
    return np.array([[1, 0, 0, 0], [0, np.cos(t), -np.sin(t), 0], [0, np.sin(t), np.cos(t), 0], [0, 0, 0, 1.0]])


def rz(t):
    return np.array([[np.cos(t), -np.sin(t), 0, 0], [np.sin(t), np.cos(t), 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])


def move(x, z):
    T = np.eye(4)
    T[0, 3], T[2, 3] = x, z
    return T


def table(n=6, seed=0):
    rng = np.random.default_rng(seed)
    I = rng.uniform(0.1, 0.2, (n, 6)) * [1, 0.1, 0.1, 1, 0.1, 1]
    values = {
        "alpha": rng.uniform(-2, 2, n), "a": rng.uniform(-0.5, 0.5, n), "d": rng.uniform(-0.5, 0.5, n),
        "mass": rng.uniform(1, 2, n), "com": rng.uniform(-0.2, 0.2, (n, 3)), "inertia": I,
    }  # fmt: skip
    return values, rng.uniform(-1, 1, n)


@pytest.mark.parametrize("types", ["RRRRRR", "RPRRPR", "PPPPPP"])
@pytest.mark.parametrize("convention", ["modified", "standard"])
def test_dh_frames_and_inertias(convention, types):
    """Frames against products of homogeneous matrices; com and kinetic quantities against the DH frames."""
    values, theta = table()
    m = from_dh(**values, convention=convention, theta=theta, joint_types=types)
    assert all(isinstance(j, Revolute if t == "R" else Prismatic) for j, t in zip(m.joints, types, strict=True))
    q = m.random_state(1)[0]
    T = np.eye(4)
    for j in range(m.nb):
        angle = theta[j] + (q[j] if types[j] == "R" else 0.0)
        offset = values["d"][j] + (q[j] if types[j] == "P" else 0.0)
        twist, length = rx(values["alpha"][j]), values["a"][j]
        if convention == "modified":
            T = T @ twist @ move(length, 0) @ rz(angle) @ move(0, offset)
        else:
            T = T @ rz(angle) @ move(0, offset) @ move(length, 0) @ twist
        X = frame_transform(m, q, f"dh{j}")
        np.testing.assert_allclose(pose(rotation(X), translation(X)), T, atol=1e-14)
        # The inertia seen from the DH frame: X_f^-T I X_f^-1
        inverse = np.linalg.inv(m.frames[f"dh{j}"].X)
        I = inverse.T @ m.inertias[j] @ inverse
        com, mass = values["com"][j], values["mass"][j]
        xx, xy, xz, yy, yz, zz = values["inertia"][j]
        about_com = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        np.testing.assert_allclose(I[:3, 3:], mass * skew(com), atol=1e-14)
        np.testing.assert_allclose(I[:3, :3], about_com + mass * skew(com) @ skew(com).T, atol=1e-14)


def test_dh_inertia_forms_and_right_angles():
    values, _ = table()
    full = values["inertia"][:, [0, 1, 2, 1, 3, 4, 2, 4, 5]].reshape(-1, 3, 3)
    assert from_dh(**values).digest == from_dh(**{**values, "inertia": full}).digest
    m = from_dh(**{**values, "alpha": [0, math.pi / 2, -math.pi / 2, math.pi, 0, math.pi / 2]})
    assert set(np.abs(m.X_tree[:, :3, :3]).ravel()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": [1.0]}, ModelError, r"a has shape \(1,\), but \(6,\) is needed"),
        ({"alpha": []}, ModelError, "alpha has shape"),
        ({"com": np.zeros((6, 2))}, ModelError, r"com has shape \(6, 2\)"),
        ({"inertia": np.zeros((6, 5))}, ModelError, r"inertia \(as \(n, 3, 3\) or \(n, 6\)\) has shape"),
        (
            {"inertia": np.array([np.diag([1.0, 1, 1]) + np.eye(3, k=1)] * 6)},
            ModelError,
            r"inertia\[0\] is not symmetric",
        ),
        ({"d": [0, 0, 0, math.nan, 0, 0]}, ModelError, "d is nan at entry 3"),
        ({"d": ["x"] * 6}, ModelError, "d has type <U1"),
        ({"mass": [-1.0] * 6}, ModelError, "'body0' has mass -1"),
        ({"joint_types": "RRR"}, ModelError, "needs 6 entries"),
        ({"joint_types": "RRRRRX"}, ModelError, 'each "R" or "P"'),
        ({"convention": "craig"}, UnknownName, "'craig'"),
    ],
)
def test_dh_rejects(changes, error, message):
    values, _ = table()
    with pytest.raises(error, match=message):
        from_dh(**{**values, **changes})


# ---- arms of the literature ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROBOTS)
def test_stored_robots_load(name):
    m, test = load_robot(name)
    assert m.name == name and m.nv == len(test["q"]) == len(test["qd"]) == len(test["qdd"]) == len(test["tau"])


def test_dh_warns_of_implausible_inertias():
    values, _ = table()
    bad = values["inertia"] * [1, 1, 1, 1, 1, 9]
    with pytest.warns(PlausibilityWarning, match="triangle"):
        from_dh(**{**values, "inertia": bad})
    with pytest.raises(ModelError, match="triangle"):
        from_dh(**{**values, "inertia": bad}, strict=True)
