"""Quaternions and free joints: products, steps, logarithms, rates and random ones, for one or many.

Quaternions are [x, y, z, w] of unit norm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.program.autodiff import to_graph
from sysdyn.program.graph import SHARING, Graph, copysign, sqrt
from sysdyn.program.program import Program
from sysdyn.program.reproducible import cos, norm, sin


def sinc(x: np.ndarray) -> np.ndarray:
    """sin x / x."""
    safe = np.where(x == 0.0, 1.0, x)
    return np.where(x == 0.0, 1.0, sin(safe) / safe)


def cubic(angle: np.ndarray) -> np.ndarray:
    """(θ − sin θ)/θ³, by its series below 0.3 rad."""
    t = angle * angle
    series = 1 / 6 - t / 120 * (1 - t / 42 * (1 - t / 72 * (1 - t / 110)))
    safe = np.where(angle < 0.3, 1.0, angle)
    return np.where(angle < 0.3, series, (safe - sin(safe)) / safe**3)


# Halvings of an angle before its sine and cosine are summed up, for expressions: angles to 10 rad come below 0.32.
HALVINGS = 5
# Halvings of an angle up to π/2 of which sine and cosine are given: it comes below 0.1.
UNTURNS = 4


def smooth(square: Any) -> tuple[Any, Any, Any, Any]:
    """sin θ / θ, cos θ, (θ − sin θ)/θ³ and (1 − cos θ)/θ² of θ², for numbers and expressions, without branch or root.

    They have derivatives of every order at θ = 0, too, and 15 digits up to 10 rad: series at θ/32, whose angle is
    doubled by sin 2x = 2 sin x cos x, cos 2x = 1 − 2 sin² x and 2x − sin 2x = 2 (x − sin x) + 2 sin x (1 − cos x).
    """
    t = square * 4.0**-HALVINGS
    s = _series(t, 6, 20, 42, 72, 110)
    c = _series(t, 2, 12, 30, 56, 90, 132)
    b = 0.5 * _series(t, 12, 30, 56, 90, 132)  # (1 − cos x)/x²
    e = _series(t, 20, 42, 72, 110, 156) * (1 / 6)
    for _ in range(HALVINGS):
        s, c, b, e, t = s * c, 1.0 - 2.0 * t * s * s, 0.5 * s * s, 0.25 * (e + s * b), 4.0 * t
    return s, c, e, b


def _series(t: Any, *divisors: float) -> Any:
    """1 − t/a (1 − t/b (1 − …)) of the divisors a, b, …"""
    total: Any = 1.0
    for divisor in reversed(divisors):
        total = 1.0 - t * (1.0 / divisor) * total
    return total


def turn(w: np.ndarray) -> tuple[Any, Any, Any]:
    """sin(θ/2)/(θ/2), cos(θ/2) and (θ − sin θ)/θ³ (…, 1) of a rotation vector w (…, 3), θ = |w|."""
    if w.dtype == object:
        half, cosine, third, rest = smooth(0.25 * (w @ w))
        return half, cosine, 0.25 * (third + half * rest)  # of the doubled angle
    angle = norm(w)[..., None]
    return sinc(angle / 2), cos(angle / 2), cubic(angle)


def unturned(cosine: Any, sine: Any) -> tuple[Any, Any]:
    """x/sin x and (1 − x cot x)/(4 x²) of cos x ≥ 0 and sin² x, for numbers and expressions, without a branch.

    They have derivatives of every order at x = 0, too. The angle is halved by cos x/2 = √((1 + cos x)/2), then follow
    series; x cot x = x/2 (cot x/2 − tan x/2) leads back.
    """
    cosines, t = [], sine
    for _ in range(UNTURNS):
        t = t / (2.0 + 2.0 * cosine)
        cosine = sqrt(0.5 + 0.5 * cosine)
        cosines.append(cosine)
    ratio = 0.0 * t + 1.0
    for k in reversed(range(1, 8)):  # x = arcsin √t
        ratio = 1.0 + t * ((2 * k - 1) ** 2 / (2 * k * (2 * k + 1))) * ratio
    t = t * ratio * ratio  # x²
    rest = 1 / 3 + t * (1 / 45 + t * (2 / 945 + t * (1 / 4725 + t * (2 / 93555 + t * (1382 / 638512875)))))
    for cosine in reversed(cosines):
        rest = 0.25 * (rest + 1.0 / (ratio * cosine))
        ratio = ratio / cosine
    return ratio, 0.25 * rest


def quaternion_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    u, w, v, s = a[..., :3], a[..., 3:], b[..., :3], b[..., 3:]
    return np.concatenate([w * v + s * u + np.cross(u, v), w * s - (u * v).sum(axis=-1, keepdims=True)], axis=-1)


def rotate(p: np.ndarray, x: np.ndarray) -> np.ndarray:
    """R x = E^T x: body coordinates to parent coordinates by the unit quaternion p."""
    u = p[..., :3]
    t = 2 * np.cross(u, x)
    return x + p[..., 3:] * t + np.cross(u, t)


def quaternion_step(p: np.ndarray, w: np.ndarray) -> np.ndarray:
    """p ⊗ exp(ω/2), renormalised."""
    half, cosine, _ = turn(w)
    if p.dtype == object or w.dtype == object:
        return unit(quaternion_product(p, np.array([*(0.5 * half * w), cosine], dtype=object)), [slice(0, 4)])
    stepped = quaternion_product(p, np.concatenate([0.5 * half * w, cosine], axis=-1))
    return stepped / norm(stepped)[..., None]


def unit(q: np.ndarray, parts: Iterable[slice]) -> np.ndarray:
    """q (…, nq) with the quaternions at these parts divided by their norms; (nq,) of expressions."""
    found = q.copy()
    for part in parts:
        own = q[..., part]
        found[..., part] = own / (sqrt(own @ own) if q.dtype == object else norm(own)[..., None])
    return found


def at_unit(program: Program, parts: Iterable[slice]) -> Program:
    """The program at q (input group "q") with unit quaternions, which it makes of the ones that it gets."""
    parts = tuple(parts)
    if not parts or "q" not in program.inputs:
        return program
    graph = Graph(SHARING)
    q = unit(graph.inputs("q", program.inputs.sizes["q"]), parts)
    again = to_graph(program, graph, {"q": list(q)})
    return again.to_program({}, again.outputs, program.ranges, simplified=False)  # as exact as it was


def quaternion_rates(p: np.ndarray) -> np.ndarray:
    """(4, 3): the rate of the quaternion p = (u, w) for a unit angular velocity in the body, ½ p ⊗ (ω, 0)."""
    x, y, z, w = 0.5 * p
    N = np.empty((4, 3), dtype=p.dtype)
    for k, row in enumerate(((w, -z, y), (z, w, -x), (-y, x, w), (-x, -y, -z))):
        for j, value in enumerate(row):
            N[k, j] = value
    return N


def quaternion_log(p0: np.ndarray, p1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ω (…, 3) in body coordinates, |ω| ≤ π, that turns p0 into ±p1, and D (…, 1) = (1 − |ω|/2 cot |ω|/2)/|ω|²."""
    d = unit(quaternion_product(p0 * np.array([-1.0, -1.0, -1.0, 1.0]), p1), [slice(0, 4)])
    d = d * (np.array([copysign(1.0, d[3])]) if d.dtype == object else np.copysign(1.0, d[..., 3:]))
    ratio, rest = unturned(d[..., 3:], (d[..., :3] ** 2).sum(axis=-1, keepdims=True))
    return 2.0 * ratio * d[..., :3], rest


def normalised(name: str, q: np.ndarray, first: int) -> np.ndarray:
    """A copy of q (…, n) with the quaternion that begins there of norm 1. Raises InvalidInput if it is zero."""
    q, place = np.array(q), slice(first, first + 4)
    norms = np.linalg.norm(q[..., place], axis=-1, keepdims=True)
    if np.any(norms == 0.0):
        raise InvalidInput(f"the quaternion {name}[{place.start}:{place.stop}] is zero and gives no attitude")
    q[..., place] /= norms
    return q


def turning(qd: np.ndarray, first: Iterable[int]) -> np.ndarray:
    """ω × v (…, nv) at the linear part of free joints whose velocities [ω; v] begin there.

    By it the acceleration of the point is greater than v̇ in axes of the body.
    """
    extra = np.zeros_like(qd)
    for k in first:
        extra[..., k + 3 : k + 6] = np.cross(qd[..., k : k + 3], qd[..., k + 3 : k + 6])
    return extra


def random_quaternion(rng: np.random.Generator, batch: tuple[int, ...]) -> np.ndarray:
    p = rng.standard_normal((*batch, 4))
    return p / norm(p)[..., None]
