"""Centre of mass, centroidal momentum and energy of a robot, generic over float and Expr.

q (nq,) and q̇ (nv,) are float arrays or object arrays of Expr. Results are in world axes; momenta are about the centre
of mass c. The armature (reflected rotor inertia) contributes to the energy, not to the momentum.

D. Orin, A. Goswami, S. Lee, Centroidal dynamics of a humanoid robot, Autonomous Robots 35 (2013).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.model.inertia import first_moment
from sysdyn.model.joints import Free
from sysdyn.model.kinematics import joint_placement, joint_transforms, velocities
from sysdyn.model.se3 import skew
from sysdyn.reference.crba import crba
from sysdyn.reference.rnea import newton_euler


def centre_of_mass(model: Model, q: np.ndarray) -> np.ndarray:
    """c (3,) [m]: Σ m_i c_i / m. Raises InvalidInput for a robot without mass."""
    return _first_moment(model, q) * (1.0 / _mass(model))


def centre_of_mass_velocity(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """ċ (3,) [m/s]: the linear momentum, divided by the mass. Raises InvalidInput for a robot without mass."""
    return _momentum(model, q, qd)[3:] * (1.0 / _mass(model))


def centre_of_mass_jacobian(model: Model, q: np.ndarray, mass_matrix: Callable = crba) -> np.ndarray:
    """J_c (3, nv) with J_c q̇ = ċ; mass_matrix as in `momentum_matrix`. Raises InvalidInput for a robot without mass."""
    return momentum_matrix(model, q, mass_matrix)[3:] * (1.0 / _mass(model))


def momentum(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """h_G = [k; p] (6,) [N m s, N s]: angular momentum about the centre of mass, and linear momentum.

    Raises InvalidInput for a robot without mass. Orin et al. eq. (17).
    """
    return _about_centre(model, q, _momentum(model, q, qd))


def momentum_matrix(model: Model, q: np.ndarray, mass_matrix: Callable = crba) -> np.ndarray:
    """A_G (6, nv) with A_G q̇ = h_G, the centroidal momentum matrix.

    mass_matrix(model, q) computes the joint-space inertia matrix of the robot on a massless free base. A_G is its block
    of base rows and joint columns, moved to the centre of mass.

    Raises InvalidInput for a robot without mass. Orin et al. eq. (19); RBDA section 9.3 for the base.
    """
    afloat = _on_a_free_base(model)
    rows = mass_matrix(afloat, np.concatenate([afloat.joints[0].neutral().astype(q.dtype), q]))[:6, 6:]
    return _about_centre(model, q, rows)


def momentum_bias(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """Ȧ_G q̇ (6,) [N m, N]: the rate of h_G while q̈ = 0.

    Raises InvalidInput for a robot without mass. Orin et al. eq. (20).
    """
    weightless = model.replace(gravity=np.zeros(3))
    f = newton_euler(weightless, q, qd, np.zeros(model.nv)).f
    return _about_centre(model, q, _at_the_world(model, q, list(f)))


def kinetic_energy(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """½ q̇^T H q̇ () [J] = ½ Σ v_i^T I_i v_i + ½ Σ A_k q̇_k²."""
    v, _ = velocities(model, joint_transforms(model, q), qd)
    dtype = np.result_type(q, qd)
    twice = (model.armature.astype(dtype) * qd) @ qd if model.nv else 0.0
    for I, v_i in zip(model.inertias.astype(dtype), v, strict=True):
        twice = twice + v_i @ (I @ v_i)
    return np.asarray(twice * 0.5)


def potential_energy(model: Model, q: np.ndarray) -> np.ndarray:
    """−g^T Σ m_i c_i () [J], zero at the height of the world's origin."""
    return np.asarray(-(model.gravity.astype(q.dtype) @ _first_moment(model, q)))


def energy(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """Total energy () [J]: kinetic plus potential."""
    return np.asarray(kinetic_energy(model, q, qd) + potential_energy(model, q))


def _mass(model: Model) -> float:
    if not model.mass > 0.0:
        raise InvalidInput(f"{model.name!r} has no mass, so it has no centre of mass and no momentum about it")
    return model.mass


def _first_moment(model: Model, q: np.ndarray) -> np.ndarray:
    """Σ m_i c_i (3,) [kg m] in world axes, accumulated from the tips to the base."""
    inertias = model.inertias.astype(q.dtype)
    moments = [first_moment(I) for I in inertias]
    masses = model.inertias[:, 5, 5].tolist()
    total = np.full(3, 0.0, dtype=q.dtype)
    for i in reversed(range(model.nb)):
        E, r = joint_placement(model, i, q)
        moved = E.T @ moments[i] + masses[i] * r
        parent = model.parent[i]
        if parent < 0:
            total = total + moved
        else:
            moments[parent] = moments[parent] + moved
            masses[parent] += masses[i]
    return total


def _momentum(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """Σ X_i0^T I_i v_i (6,): momentum about the world's origin."""
    X = joint_transforms(model, q)
    v, _ = velocities(model, X, qd)
    h = [I @ v_i for I, v_i in zip(model.inertias.astype(np.result_type(q, qd)), v, strict=True)]
    for i in reversed(range(model.nb)):
        if model.parent[i] >= 0:
            h[model.parent[i]] = h[model.parent[i]] + X[i].T @ h[i]
    return _at_the_world(model, q, h)


def _at_the_world(model: Model, q: np.ndarray, forces: list[np.ndarray]) -> np.ndarray:
    """Σ X_i^T f_i (6,) over the root bodies i: total force vector about the world's origin in world axes."""
    X = joint_transforms(model, q)
    total = np.full(6, 0.0, dtype=forces[0].dtype if forces else q.dtype)
    for i, parent in enumerate(model.parent):
        if parent < 0:
            total = total + X[i].T @ forces[i]
    return total


def _about_centre(model: Model, q: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Move force vectors (6, …) from the world's origin to the centre of mass: [n − c × f; f]."""
    return np.concatenate([h[:3] - skew(centre_of_mass(model, q)) @ h[3:], h[3:]])


def _on_a_free_base(model: Model) -> Model:
    """The robot on a massless floating base (body 0)."""
    base = "base"
    while base in model.frames or base in model.joint_names:
        base += "_"
    return Model(
        model.name,
        (base, *model.body_names),
        (base, *model.joint_names),
        (Free(), *model.joints),
        (-1, *(parent + 1 for parent in model.parent)),
        np.concatenate([np.eye(6)[None], model.X_tree]),
        np.concatenate([np.zeros((1, 6, 6)), model.inertias]),
        model.gravity,
        np.concatenate([np.zeros(6), model.armature]),
        strict=None,
    )
