"""Base inertial parameters: what cannot be told from the motion of a robot is moved to where it costs nothing.

A joint leaves some distributions of mass where they are: turning about z does not move a rod on the z axis, and sliding
does not turn anything. Such a part of body i may as well be counted to its parent: τ and q̈ are the same for every
motion, f_i is not. Gautier & Khalil (1990), by numbers instead of rules, in terms of the pseudo-inertia

    P = ∫ (ρ, 1) (ρ, 1)^T dm = [Σ h; h^T m],    Σ = ½ tr(J) 1 − J

for which the move is T P T^T, T (4, 4) the pose of the body in its parent.
"""

from __future__ import annotations

import numpy as np

from sysdyn.model.tree import Model


def pseudo_inertia(I: np.ndarray) -> np.ndarray:
    """P (4, 4) of a spatial inertia (6, 6)."""
    J = I[:3, :3]
    P = np.empty((4, 4))
    P[:3, :3] = np.trace(J) / 2 * np.eye(3) - J
    P[:3, 3] = P[3, :3] = I[2, 4], I[0, 5], I[1, 3]
    P[3, 3] = I[5, 5]
    return P


def spatial_inertia(P: np.ndarray) -> np.ndarray:
    """The spatial inertia (6, 6) of a pseudo-inertia (4, 4)."""
    h, m = P[:3, 3], P[3, 3]
    H = np.array([[0.0, -h[2], h[1]], [h[2], 0.0, -h[0]], [-h[1], h[0], 0.0]])
    I = np.empty((6, 6))
    I[:3, :3] = np.trace(P[:3, :3]) * np.eye(3) - P[:3, :3]
    I[:3, 3:], I[3:, :3], I[3:, 3:] = H, H.T, m * np.eye(3)
    return I


PARAMETERS = ("m", "mc_x", "mc_y", "mc_z", "I_xx", "I_xy", "I_yy", "I_xz", "I_yz", "I_zz")
# Of the 10 parameters of a body, the number of the one at each place of its spatial inertia, and the sign there.
_PLACES = {
    0: ((3, 3, 1), (4, 4, 1), (5, 5, 1)),
    1: ((1, 5, -1), (2, 4, 1), (5, 1, -1), (4, 2, 1)),
    2: ((0, 5, 1), (2, 3, -1), (5, 0, 1), (3, 2, -1)),
    3: ((0, 4, -1), (1, 3, 1), (4, 0, -1), (3, 1, 1)),
    4: ((0, 0, 1),),
    5: ((0, 1, 1), (1, 0, 1)),
    6: ((1, 1, 1),),
    7: ((0, 2, 1), (2, 0, 1)),
    8: ((1, 2, 1), (2, 1, 1)),
    9: ((2, 2, 1),),
}


def inertial_parameters(model: Model) -> np.ndarray:
    """π (10 nb): of each body m [kg], m c (3) [kg m], and I_xx, I_xy, I_yy, I_xz, I_yz, I_zz [kg m²] about its origin.

    In body coordinates; the order is Pinocchio's (`Inertia.toDynamicParameters`).
    """
    return np.concatenate(
        [
            [I[5, 5], I[2, 4], I[0, 5], I[1, 3], I[0, 0], I[0, 1], I[1, 1], I[0, 2], I[1, 2], I[2, 2]]
            for I in model.inertias
        ]
        or [np.zeros(0)]
    )


def with_parameters(parameters: np.ndarray) -> np.ndarray:
    """The spatial inertia (6, 6) of objects that has the 10 parameters of a body. RBDA eq. (2.63)."""
    I = np.full((6, 6), 0.0, dtype=object)
    for k, places in _PLACES.items():
        for i, j, sign in places:
            I[i, j] = parameters[k] if sign > 0 else -parameters[k]
    return I
