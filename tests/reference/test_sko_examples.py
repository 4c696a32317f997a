"""The planar arm of docs/operators.md and the one whose links bend, against Lagrange's equations of their points."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sysdyn.reference.operators import SKOModel

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
# Points of a link and their weights: integrals over polynomials of degree 4 are exact.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(3)
X, W = (NODES + 1.0) / 2.0, WEIGHTS / 2.0


@functools.cache
def planar_arm() -> Callable[..., SKOModel]:
    """The function of the page, which runs as it stands."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    names: dict = {}
    for code in (blocks[0], next(code for code in blocks if "def planar_arm" in code)):
        exec(compile(code, PAGE.name, "exec"), names)
    return names["planar_arm"]


def points(theta: np.ndarray, bends: bool) -> np.ndarray:
    """(n, 3, 2) positions of points of each link, of freedoms that may be complex."""
    q, eta = (theta[::2], theta[1::2]) if bends else (theta, np.zeros(len(theta)))
    at, angle, found = np.zeros(2, dtype=complex), 0.0, []
    for k in range(len(q)):
        angle = angle + q[k]
        along, across = np.array([np.cos(angle), np.sin(angle)]), np.array([-np.sin(angle), np.cos(angle)])
        found.append(at + np.outer(X, along) + np.outer(X**2, across) * eta[k])
        at, angle = at + along + eta[k] * across, angle + 2.0 * eta[k]
    return np.array(found)


def mass_matrix(theta: np.ndarray, bends: bool) -> np.ndarray:
    """Σ J* J over the points, J by complex steps."""
    steps = 1e-30j * np.eye(len(theta))
    J = np.stack([points(theta + step, bends).imag / 1e-30 for step in steps], axis=-1)
    return np.einsum("kpxi,p,kpxj->ij", J, W, J)


def lagrange(theta: np.ndarray, rate: np.ndarray, T: np.ndarray, bends: bool) -> np.ndarray:
    """θ̈ by d/dt ∂L/∂θ̇ − ∂L/∂θ = T, ∂ℳ/∂θ by central differences."""
    n, h = len(theta), 1e-6
    slopes = np.array([
        (mass_matrix(theta + h * e, bends) - mass_matrix(theta - h * e, bends)) / (2.0 * h) for e in np.eye(n)
    ])  # fmt: skip
    C = np.einsum("kij,k,j->i", slopes, rate, rate) - np.einsum("ijk,j,k->i", slopes, rate, rate) / 2.0
    heights = [points(theta + 1e-30j * e, bends)[..., 1].imag / 1e-30 for e in np.eye(n)]
    G = 9.81 * np.array([np.sum(W * x) for x in heights])
    return np.linalg.solve(mass_matrix(theta, bends), T - C - G)


@pytest.mark.parametrize("bends", [False, True], ids=["rigid", "bending"])
@pytest.mark.parametrize("links", [1, 2, 4])
def test_the_operators_give_lagranges_equations(links, bends):
    rng = np.random.default_rng(links)
    n = 2 * links if bends else links
    theta, rate, T = rng.uniform(-1.0, 1.0, n), rng.uniform(-2.0, 2.0, n), rng.uniform(-5.0, 5.0, n)
    if bends:
        theta[1::2] *= 0.2
        sko = planar_arm()(theta[::2], rate[::2], theta[1::2], rate[1::2])
        assert sko.phi.sizes == (4,) * links and sko.H.rows == (2,) * links
    else:
        sko = planar_arm()(theta, rate)
        assert sko.phi.sizes == (3,) * links and sko.H.rows == (1,) * links
    np.testing.assert_allclose(sko.mass_matrix(), mass_matrix(theta, bends), rtol=0, atol=1e-12)
    found, expected = sko.forward_dynamics(T), lagrange(theta, rate, T, bends)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(sko.inverse_dynamics(found), T, rtol=0, atol=1e-9 * np.abs(T).max())
