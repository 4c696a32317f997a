"""Arithmetic in a defined order: values beside NumPy's and libm's, and the same bits for floats and arrays."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from sysdyn.program import reproducible
from sysdyn.program.graph import Graph

SHAPES = [
    ((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)),
    ((5, 3, 4), (4, 2)), ((5, 3, 4), (5, 4, 2)), ((5, 3, 4), (4,)), ((4,), (5, 4, 2)),
]  # fmt: skip


def angles(largest: float, n: int = 4000) -> np.ndarray:
    """Random angles, a part of them as near to multiples of π/2 as doubles come."""
    x = np.random.default_rng(0).uniform(-largest, largest, n)
    x[: n // 4] = np.rint(x[: n // 4] / (math.pi / 2)) * (math.pi / 2)
    return x


@pytest.mark.parametrize("shapes", SHAPES)
def test_products_are_those_of_numpy(shapes):
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(shape) for shape in shapes)
    np.testing.assert_allclose(reproducible.matmul(A, B), A @ B, rtol=1e-13, atol=1e-14)
    assert np.shape(reproducible.matmul(A, B)) == np.shape(A @ B)


def test_terms_are_rounded_and_added_one_after_the_other():
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((6, 6)), rng.standard_normal((6, 6))
    for i, j in np.ndindex(6, 6):
        total = 0.0
        for k in range(6):  # Python rounds each product and each sum
            total += float(A[i, k]) * float(B[k, j])
        assert reproducible.matmul(A, B)[i, j] == total
    assert reproducible.matmul(A, B, A).tolist() == reproducible.matmul(reproducible.matmul(A, B), A).tolist()
    assert reproducible.dot(A[0], B[0]) == reproducible.matmul(A[0], B[0])
    assert reproducible.norm(A[0]) == math.sqrt(reproducible.dot(A[0], A[0]))


def test_products_of_expressions_fold_zeros():
    graph = Graph()
    x = graph.input("x")
    A = np.array([[x, 0.0], [0.0, 1.0]], dtype=object)
    assert reproducible.matmul(A, np.array([2.0, 3.0]))[1] == 3.0


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"\(3, 4\) and \(3, 2\)"):
        reproducible.matmul(np.ones((3, 4)), np.ones((3, 2)))


@pytest.mark.parametrize("largest", [1.0, 10.0, 1e3, 1e6, 1e9])
def test_sines_and_cosines_are_right_to_the_last_bit_or_two(largest):
    x = angles(largest)
    s, c = reproducible.sincos(x)
    for found, function in ((s, math.sin), (c, math.cos)):
        expected = np.array([function(y) for y in x.tolist()])
        assert (np.abs(found - expected) <= 1.0 * np.spacing(np.abs(expected))).all()


def test_sines_of_floats_and_arrays_have_the_same_bits():
    x = angles(1e9)
    assert reproducible.sin(x).tolist() == [reproducible.sin(y) for y in x.tolist()]
    assert reproducible.cos(x).tolist() == [reproducible.cos(y) for y in x.tolist()]


def test_sines_beyond_the_largest_angle_are_those_of_libm():
    x = np.array([1.0, 2e9, -1e15])
    np.testing.assert_allclose(reproducible.sin(x), np.sin(x), rtol=1e-15)
    assert reproducible.sin(2e9) == math.sin(2e9) and reproducible.cos(-1e15) == math.cos(-1e15)
    assert math.isnan(reproducible.sin(math.inf)) and np.isnan(reproducible.cos(np.array([math.nan, -math.inf]))).all()


def test_complex_steps_go_through():
    assert reproducible.sin(0.3 + 1e-30j).imag == pytest.approx(math.cos(0.3) * 1e-30)


def test_more_digits_are_kept():
    x = np.array([0.3, 1e6], dtype=np.longdouble)
    assert reproducible.sin(x).dtype == np.longdouble and (reproducible.sin(x) == np.sin(x)).all()


def test_arc_tangents_are_correctly_rounded():
    rng = np.random.default_rng(2)
    for _ in range(500):
        y, x = (rng.standard_normal(2) * 10.0 ** rng.uniform(-6.0, 6.0)).tolist()
        assert abs(reproducible.atan2(y, x) - math.atan2(y, x)) <= math.ulp(math.atan2(y, x))
    for y, x in ((0.0, 1.0), (0.0, -1.0), (1.0, 0.0), (-1.0, 0.0), (1.0, 1.0), (-1.0, -1.0), (0.0, 0.0)):
        assert reproducible.atan2(y, x) == math.atan2(y, x)


def test_exponentials_and_logarithms():
    x = np.random.default_rng(3).uniform(-20.0, 20.0, 1000)
    np.testing.assert_allclose(reproducible.exp(x), np.exp(x), rtol=1e-14)
    sizes = 10.0 ** np.linspace(-300.0, 300.0, 1001)
    np.testing.assert_allclose(reproducible.log(sizes), np.log(sizes), rtol=1e-14, atol=1e-15)


def test_the_parts_of_a_right_angle_have_few_bits():
    """Products with integers of 30 bits are exact; all parts add up to π/2 to 105 bits and more."""
    half_pi = Fraction(884279719003555, 562949953421312) + Fraction(6.123233995736766e-17)
    parts = [Fraction(x) for x in reproducible.HALF_PI]
    assert abs(sum(parts) - half_pi) < Fraction(1, 2**105)
    for part in parts:
        assert part.numerator.bit_length() <= 23
