"""Spatial inertia I = [J, h×; (h×)^T, m 1] of a body, its ten inertial parameters, and its pseudo-inertia.

m is the mass, h = m c the first moment of mass, J the rotational inertia about the body origin. The pseudo-inertia is

    P = ∫ (ρ, 1) (ρ, 1)^T dm = [Σ h; h^T m],    Σ = ½ tr(J) 1 − J
"""

from __future__ import annotations

import numpy as np

from sysdyn.model.se3 import dtype_of, skew, unskew
from sysdyn.program.reproducible import matmul


def inertia(mass, com: np.ndarray, I_com: np.ndarray) -> np.ndarray:
    """Spatial inertia (6, 6) at the frame origin: [I_C + m c× c×^T, m c×; m c×^T, m 1]. RBDA eq. (2.63)."""
    C = skew(np.asarray(com))
    I = np.full((6, 6), 0.0, dtype=dtype_of(C, np.asarray(I_com)))
    I[:3, :3] = I_com + mass * matmul(C, C.T)
    I[:3, 3:] = mass * C
    I[3:, :3] = mass * C.T
    I[3:, 3:] = mass * np.eye(3)
    return I


def transform_inertia(I: np.ndarray, X: np.ndarray) -> np.ndarray:
    """X^T I X (6, 6): transform an inertia from the child frame to the parent frame of X."""
    return matmul(X.T, I, X)


def first_moment(I: np.ndarray) -> np.ndarray:
    """First moment of mass h = m c (3,) [kg m] of a spatial inertia (6, 6) of floats or Expr."""
    return unskew(I[:3, 3:])


def pseudo_inertia(I: np.ndarray) -> np.ndarray:
    """Pseudo-inertia P (4, 4) of a spatial inertia (6, 6)."""
    J = I[:3, :3]
    P = np.empty((4, 4))
    P[:3, :3] = np.trace(J) / 2 * np.eye(3) - J
    P[:3, 3] = P[3, :3] = first_moment(I)
    P[3, 3] = I[5, 5]
    return P


def spatial_inertia(P: np.ndarray) -> np.ndarray:
    """Spatial inertia (6, 6) of a pseudo-inertia P (4, 4)."""
    h, m = P[:3, 3], P[3, 3]
    I = np.empty((6, 6))
    I[:3, :3] = np.trace(P[:3, :3]) * np.eye(3) - P[:3, :3]
    I[:3, 3:], I[3:, :3], I[3:, 3:] = skew(h), skew(h).T, m * np.eye(3)
    return I


# Names of the ten inertial parameters of a body, in the order of Pinocchio's `Inertia.toDynamicParameters`, and units.
PARAMETERS = ("m", "mc_x", "mc_y", "mc_z", "I_xx", "I_xy", "I_yy", "I_xz", "I_yz", "I_zz")
PARAMETER_UNITS = ("kg", *("kg m",) * 3, *("kg m²",) * 6)
# {parameter: (row, column, sign) of its entries in the spatial inertia}
_ENTRIES = {
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


def parameters(I: np.ndarray) -> np.ndarray:
    """Inertial parameters (10,) of a spatial inertia (6, 6), in the order of PARAMETERS."""
    return np.array([I[5, 5], *first_moment(I), I[0, 0], I[0, 1], I[1, 1], I[0, 2], I[1, 2], I[2, 2]])


def with_parameters(pi: np.ndarray) -> np.ndarray:
    """Spatial inertia (6, 6), dtype object, with the inertial parameters `pi` (10,). RBDA eq. (2.63)."""
    I = np.full((6, 6), 0.0, dtype=object)
    for k, entries in _ENTRIES.items():
        for i, j, sign in entries:
            I[i, j] = pi[k] if sign > 0 else -pi[k]
    return I
