"""Models from formulas: Featherstone's tree, random chains and trees, Denavit-Hartenberg, product of exponentials."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, ModelError, check_among
from sysdyn.model import inertia as inertias
from sysdyn.model.constants import UNIT_ERROR, clean
from sysdyn.model.frames import Frame
from sysdyn.model.joints import JOINTS, AxisJoint, Free, Helical, Joint, Planar, Prismatic, Revolute, unit_axis
from sysdyn.model.model import GRAVITY, Model
from sysdyn.model.se3 import X_motion, adjoint, checked_pose, rotx, rotz
from sysdyn.model.validate import check_count
from sysdyn.program.arrays import finite_array, is_count
from sysdyn.program.reproducible import dot, matmul, norm

# Gravity [m/s²] of planar robots with joint axes along z.
ALONG_Y = (0.0, -9.81, 0.0)
# Default joint types of `random_tree`. A list of its own, so new entries of JOINTS do not change the robot of a seed.
RANDOM_JOINTS = ("revolute", "prismatic", "helical", "cylindrical", "planar", "spherical", "free", "fixed")


def auto_tree(nb: int, branching: float = 1, skew: float = 0, taper: float = 1) -> Model:
    """Featherstone's parametric tree of revolute joints about z, spatial_v2's autoTree; gravity along −y.

    For i = 1 … nb: parent λ(i) = ⌊(i − 2 + ⌈branching⌉)/branching⌋, length l_i = taper^(i−1) m, mass
    m_i = taper^(3(i−1)) kg, centre of mass l_i [0.5, 0, 0], inertia about it
    m_i l_i² diag(0.0025, 1.015/12, 1.015/12), X_tree(1) = 1 and X_tree(i) = rotx(skew) xlt([l_λ, 0, 0]) for i > 1. Body
    i has the index i − 1 in the model.

    Parameters
    ----------
    nb : int
        Number of bodies.
    branching : float
        Branching factor ≥ 1; 1 generates a chain.
    skew : float
        Twist between successive axes, rad.
    taper : float
        Ratio of successive lengths, > 0.

    References
    ----------
    Nori, published experiments.
    """
    _positive_count("nb", nb)
    if not (math.isfinite(branching) and branching >= 1):
        raise InvalidInput(f"branching is {branching}; a tree needs a branching factor ≥ 1")
    if not (math.isfinite(taper) and taper > 0 and math.isfinite(skew)):
        raise InvalidInput(f"taper is {taper}, skew is {skew}; taper must be > 0 and both finite")
    parent = [math.floor((i - 2 + math.ceil(branching)) / branching) - 1 for i in range(1, nb + 1)]
    length = [float(taper) ** i for i in range(nb)]
    E = rotx(float(skew))
    X_tree = np.empty((nb, 6, 6))
    I = np.empty((nb, 6, 6))
    for i, l in enumerate(length):
        X_tree[i] = X_motion(E, np.array([length[parent[i]], 0.0, 0.0])) if i else np.eye(6)
        m = float(taper) ** (3 * i)
        I[i] = inertias.inertia(m, l * np.array([0.5, 0.0, 0.0]), m * l**2 * np.diag([0.0025, 1.015 / 12, 1.015 / 12]))
    name = f"auto_tree({nb}, {branching:g}, {skew:g}, {taper:g})"
    return _model(name, [Revolute()] * nb, parent, X_tree, I, gravity=ALONG_Y)


def chain(n: int, seed: int = 0) -> Model:
    """A random serial chain of revolute joints about z.

    Joint placements have random modified Denavit-Hartenberg parameters: twists uniform in ±π, lengths in 0.05 … 0.4 m,
    offsets in ±0.15 m. Inertias are those of random point masses around the link, hence physically consistent.

    Parameters
    ----------
    n : int
        Number of bodies.
    seed : int
        The same seed gives the same robot.
    """
    _positive_count("n", n)
    rng = np.random.default_rng(seed)
    X_tree = np.empty((n, 6, 6))
    I = np.empty((n, 6, 6))
    for i in range(n):
        alpha, a, d = rng.uniform((-math.pi, 0.05, -0.15), (math.pi, 0.4, 0.15))
        X_tree[i] = _modified_dh(alpha, a, d, 0.0) if i else np.eye(6)
        I[i] = _random_inertia(rng)
    return _model(f"chain({n}, seed={seed})", [Revolute()] * n, range(-1, n - 1), X_tree, I)


def random_tree(nb: int, seed: int = 0, joints: Sequence[str] = RANDOM_JOINTS) -> Model:
    """A tree with random parents, placements, joint types, axes and physically consistent inertias.

    On average, half of the joint axes lie along ±x, ±y or ±z; the others have random directions.

    Parameters
    ----------
    nb : int
        Number of bodies.
    seed : int
        The same seed and joint types give the same robot.
    joints : sequence of str
        Names of joint types in `JOINTS` to draw from.

    Raises
    ------
    UnknownName, InvalidInput
        For unknown joint types; for an empty list of joint types or nb < 1.
    """
    _positive_count("nb", nb)
    if not joints:
        raise InvalidInput(f"no joint types to choose from; valid: {', '.join(JOINTS)}")
    for name in joints:
        check_among("joint type", name, JOINTS)
    rng = np.random.default_rng(seed)
    parent = [int(rng.integers(-1, i)) if i else -1 for i in range(nb)]
    types = [_random_joint(rng, joints[int(rng.integers(len(joints)))]) for _ in range(nb)]
    X_tree = []
    for _ in range(nb):
        E, r = Free().transform(Free().random(rng))
        X_tree.append(X_motion(np.eye(3) if rng.random() < 0.3 else E, r))
    I = [_random_inertia(rng) for _ in range(nb)]
    return _model(f"random_tree({nb}, seed={seed})", types, parent, X_tree, I)


def from_dh(
    alpha: ArrayLike,
    a: ArrayLike,
    d: ArrayLike,
    mass: ArrayLike,
    com: ArrayLike,
    inertia: ArrayLike,
    *,
    convention: str = "modified",
    theta: ArrayLike | None = None,
    joint_types: str | Sequence[str] | None = None,
    gravity: ArrayLike = GRAVITY,
    name: str = "dh",
    strict: bool | None = False,
) -> Model:
    """Create a serial robot from Denavit-Hartenberg parameters.

    The model has a frame "dh{i}" for the DH frame of body i, counted from 0.

    Parameters
    ----------
    alpha, a, d : (n,) array_like, rad, m, m
        Link twists, lengths and offsets.
    mass : (n,) array_like, kg
        Masses of the links.
    com : (n, 3) array_like, m
        Centres of mass in the DH frames of the links.
    inertia : (n, 3, 3) or (n, 6) array_like, kg m²
        Inertias about the centres of mass in the DH frames of the links; (n, 6) are xx, xy, xz, yy, yz, zz.
    convention : {"modified", "standard"}
        "modified" (Craig, Khalil): T_j = Rx(α_j) Tx(a_j) Rz(θ_j) Tz(d_j), and the body frame is DH frame j.
        "standard": T_j = Rz(θ_j) Tz(d_j) Tx(a_j) Rx(α_j). The joint axis is z of DH frame j−1; the body frame is DH
        frame j−1, moved by joint j.
    theta : (n,) array_like, rad, optional
        Offsets added to the joint angles.
    joint_types : sequence of {"R", "P"}, optional
        "R": θ is the joint variable. "P": d is the joint variable. Default: all "R".
    gravity : (3,) array_like, m/s²
        In base coordinates.
    name : str
        Name of the robot.
    strict : bool or None
        See `Model`.

    Raises
    ------
    ModelError, UnknownName
        For wrong shapes and values; for an unknown convention.
    """
    alpha = finite_array("alpha", alpha, (None,), ModelError)
    n = alpha.shape[0]
    a = finite_array("a", a, (n,), ModelError)
    d = finite_array("d", d, (n,), ModelError)
    theta = np.zeros(n) if theta is None else finite_array("theta", theta, (n,), ModelError)
    mass = finite_array("mass", mass, (n,), ModelError)
    com = finite_array("com", com, (n, 3), ModelError)
    I_com = _rotational_inertias("inertia", inertia, n)
    types = ["R"] * n if joint_types is None else list(joint_types)
    if len(types) != n or any(t not in ("R", "P") for t in types):
        raise ModelError(f'joint_types is {types}; it needs {n} entries, each "R" or "P"')
    check_among("convention", convention, ("modified", "standard"))

    X_tree, I, frames = [], [], {"base": Frame("base", -1)}
    E, r = np.eye(3), np.zeros(3)  # from the body frame to its DH frame
    for i in range(n):
        if convention == "modified":
            X_tree.append(_modified_dh(alpha[i], a[i], d[i], theta[i]))
        else:
            X_tree.append(X_motion(matmul(rotz(float(theta[i])), E), r))
            E, r = rotx(float(alpha[i])), np.array([a[i], 0.0, d[i]])
        I.append(inertias.inertia(mass[i], r + matmul(E.T, com[i]), matmul(E.T, I_com[i], E)))
        frames[f"dh{i}"] = Frame(f"dh{i}", i, X_motion(E, r))
    joints = [Revolute() if t == "R" else Prismatic() for t in types]
    return _model(name, joints, range(-1, n - 1), X_tree, I, gravity=gravity, frames=frames, strict=strict)


def from_screws(
    home: ArrayLike,
    space: ArrayLike | None = None,
    body: ArrayLike | None = None,
    lower: ArrayLike | None = None,
    upper: ArrayLike | None = None,
    name: str = "screws",
) -> Model:
    """Create a massless serial chain from screw axes (product of exponentials).

    The pose of its frame "tool" is T(q) = exp([S_1] q_1) … exp([S_n] q_n) M = M exp([B_1] q_1) … exp([B_n] q_n). The
    unit of length is that of M and v.

    Parameters
    ----------
    home : (4, 4) array_like
        Pose M of the tool at q = 0.
    space, body : (6, n) array_like
        Pass exactly one. A column [ω; v] is the screw axis of a joint at q = 0: S_i in world coordinates or B_i in tool
        coordinates. Revolute and helical joints: |ω| = 1 and v = −ω × p + h ω, for an axis through p with pitch h (0 if
        revolute). Prismatic joints: ω = 0 and |v| = 1.
    lower, upper : (n,) array_like, optional
        Limits of q.
    name : str
        Name of the robot.

    Raises
    ------
    InvalidInput, ModelError
        If M is not a pose; for invalid axes.

    References
    ----------
    Lynch & Park, Modern Robotics, eqs. (4.14), (4.16).
    """
    M = checked_pose("home", home)
    if (space is None) == (body is None):
        raise ModelError("give the screw axes either as space=S (world coordinates) or as body=B (tool coordinates)")
    S = _screws("space", space) if body is None else matmul(adjoint(M), _screws("body", body))
    n = S.shape[1]
    joints, X_tree = [], np.empty((n, 6, 6))
    origin = np.zeros(3)
    for i, screw in enumerate(S.T):
        joint, point = _screw_joint(screw, i, origin)
        joints.append(joint)
        X_tree[i] = X_motion(np.eye(3), point - origin)
        origin = point
    frames = {"base": Frame("base", -1), "tool": Frame("tool", n - 1, X_motion(M[:3, :3].T, M[:3, 3] - origin))}
    I = np.zeros((n, 6, 6))
    return _model(name, joints, range(-1, n - 1), X_tree, I, frames=frames, lower=lower, upper=upper)


def _modified_dh(alpha: float, a: float, d: float, theta: float) -> np.ndarray:
    """X_tree (6, 6) of Rx(α) Tx(a) Rz(θ) Tz(d): E = rotz(θ) rotx(α), r = [a, −d sin α, d cos α]."""
    E = rotx(float(alpha))
    return X_motion(matmul(rotz(float(theta)), E), np.array([a, 0.0, 0.0]) + d * E[2])


def _random_inertia(rng: np.random.Generator) -> np.ndarray:
    """Spatial inertia (6, 6) of six point masses of 0.1 … 1 kg in a box of 0.3 × 0.2 × 0.2 m around the link."""
    m = rng.uniform(0.1, 1.0, 6)
    points = rng.uniform((-0.05, -0.1, -0.1), (0.25, 0.1, 0.1), (6, 3))
    mass = float(dot(m, np.ones(len(m))))
    com = matmul(m, points) / mass
    x = points - com
    products = matmul((x * m[:, None]).T, x)
    return inertias.inertia(mass, com, np.trace(products) * np.eye(3) - products)


def _random_joint(rng: np.random.Generator, kind: str) -> Joint:
    """A joint of type `kind` with a random axis and pitch. With probability ½, the axis is a coordinate axis."""
    direction = rng.standard_normal(3)
    if rng.random() < 0.5:
        direction = rng.choice((-1.0, 1.0)) * np.eye(3)[int(rng.integers(3))]
    axis = unit_axis(direction)
    cls = JOINTS[kind]
    if issubclass(cls, Helical):
        return cls(axis, float(rng.uniform(-0.3, 0.3)))
    return cls(axis) if issubclass(cls, (AxisJoint, Planar)) else cls()


def _model(name, joints, parent, X_tree, I, gravity=GRAVITY, **options) -> Model:
    """A model whose bodies and joints are called body0, joint0 and so on."""
    n = len(joints)
    bodies, names = tuple(f"body{i}" for i in range(n)), tuple(f"joint{i}" for i in range(n))
    return Model(name, bodies, names, tuple(joints), tuple(parent), X_tree, I, gravity, **options)


def _positive_count(name: str, n: int) -> None:
    """Check a number of bodies. Raises InvalidInput, or ModelError if it is too large."""
    if not is_count(n, 1):
        raise InvalidInput(f"{name} is {n!r}; the number of bodies must be an integer ≥ 1")
    check_count(int(n))


def _rotational_inertias(name: str, value: ArrayLike, n: int) -> np.ndarray:
    """Symmetric matrices (n, 3, 3) from (n, 3, 3) or from (n, 6) xx, xy, xz, yy, yz, zz. Raises ModelError."""
    packed = np.ndim(value) == 2
    A = finite_array(f"{name} (as (n, 3, 3) or (n, 6))", value, (n, 6) if packed else (n, 3, 3), ModelError)
    if packed:
        A = A[:, [0, 1, 2, 1, 3, 4, 2, 4, 5]].reshape(n, 3, 3)
    for i in range(n):
        if np.max(np.abs(A[i] - A[i].T)) > 1e-9 * np.max(np.abs(A[i])):
            raise ModelError(f"{name}[{i}] is not symmetric")
    return A


def _screw_joint(screw: np.ndarray, i: int, origin: np.ndarray) -> tuple[Joint, np.ndarray]:
    """Convert a screw axis (6,) to (joint, point (3,) on its axis). The point is the nearest one to `origin`."""
    w, v = screw[:3], screw[3:]
    size, speed = float(norm(w)), float(norm(v))
    if size <= UNIT_ERROR:
        if abs(speed - 1.0) > UNIT_ERROR:
            raise ModelError(f"screw axis {i} has ω = 0 and |v| = {speed:.9g}; a prismatic joint needs |v| = 1")
        return Prismatic(tuple(v)), origin
    if abs(size - 1.0) > UNIT_ERROR:
        raise ModelError(
            f"screw axis {i} has |ω| = {size:.9g}; it must be 1 (or 0 for a prismatic joint): divide by it"
        )
    w, v = w / size, v / size
    pitch, point = float(dot(w, v)), np.cross(w, v)
    joint = Helical(tuple(w), pitch) if clean(pitch, norm(v)) else Revolute(tuple(w))
    return joint, point + w * dot(w, origin - point)


def _screws(name: str, screws: ArrayLike | None) -> np.ndarray:
    """Check screw axes (6, n) and convert them to floats. Raises ModelError."""
    return finite_array(f"{name} (a column [ω; v] for each joint)", screws, (6, None), ModelError)
