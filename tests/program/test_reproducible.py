"""Arithmetic in a defined order: values compared with NumPy and libm, the same bits for floats and arrays."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from sysdyn.program.graph import Graph
from sysdyn.program.reproducible import HALF_PI, atan2, cos, dot, exp, log, matmul, norm, sin, sincos

SHAPES = [
    ((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)),
    ((5, 3, 4), (4, 2)), ((5, 3, 4), (5, 4, 2)), ((5, 3, 4), (4,)), ((4,), (5, 4, 2)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES)
def test_products_are_those_of_numpy(shapes):
    rng = np.random.default_rng(0)
    A, B = (rng.standard_normal(shape) for shape in shapes)
    np.testing.assert_allclose(matmul(A, B), A @ B, rtol=1e-13, atol=1e-14, strict=True)


def test_terms_are_rounded_and_added_one_after_the_other():
    A, B = np.random.default_rng(1).standard_normal((2, 6, 6))
    for i, j in np.ndindex(6, 6):
        total = 0.0
        for k in range(6):  # Python rounds each product and each sum
            total += float(A[i, k]) * float(B[k, j])
        assert matmul(A, B)[i, j] == total
    assert matmul(A, B, A).tolist() == matmul(matmul(A, B), A).tolist()
    assert dot(A[0], B[0]) == matmul(A[0], B[0]) and norm(A[0]) == math.sqrt(dot(A[0], A[0]))


def test_products_of_expressions_fold_zeros():
    A = np.array([[Graph().input("x"), 0.0], [0.0, 1.0]], dtype=object)
    assert matmul(A, np.array([2.0, 3.0]))[1] == 3.0


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"\(3, 4\) and \(3, 2\)"):
        matmul(np.ones((3, 4)), np.ones((3, 2)))


@pytest.mark.parametrize("largest", [1.0, 10.0, 1e3, 1e6, 1e9])
def test_sines_and_cosines_of_floats_and_arrays_are_within_one_ulp(largest):
    x = np.random.default_rng(0).uniform(-largest, largest, 4000)
    x[:1000] = np.rint(x[:1000] / (math.pi / 2)) * (math.pi / 2)  # as near to multiples of π/2 as doubles come
    for values, function, reference in zip(sincos(x), (sin, cos), (math.sin, math.cos), strict=True):
        expected = np.array([reference(y) for y in x.tolist()])
        assert (np.abs(values - expected) <= np.spacing(np.abs(expected))).all()
        assert values.tolist() == function(x).tolist() == [function(y) for y in x.tolist()]


def test_other_angles_and_types_have_the_sines_of_libm():
    x = np.array([1.0, 2e9, -1e15])
    np.testing.assert_allclose(sin(x), np.sin(x), rtol=1e-15)
    assert sin(2e9) == math.sin(2e9) and cos(-1e15) == math.cos(-1e15)
    assert math.isnan(sin(math.inf)) and np.isnan(cos(np.array([math.nan, -math.inf]))).all()
    assert sin(0.3 + 1e-30j).imag == pytest.approx(math.cos(0.3) * 1e-30)  # complex steps
    x = np.array([0.3, 1e6], dtype=np.longdouble)
    assert sin(x).dtype == np.longdouble and (sin(x) == np.sin(x)).all()


def test_arc_tangents_are_correctly_rounded():
    rng = np.random.default_rng(2)
    for _ in range(500):
        y, x = (rng.standard_normal(2) * 10.0 ** rng.uniform(-6.0, 6.0)).tolist()
        assert abs(atan2(y, x) - math.atan2(y, x)) <= math.ulp(math.atan2(y, x))
    for y, x in ((0.0, 1.0), (0.0, -1.0), (1.0, 0.0), (-1.0, 0.0), (1.0, 1.0), (-1.0, -1.0), (0.0, 0.0)):
        assert atan2(y, x) == math.atan2(y, x)
    assert math.isnan(atan2(math.inf, 1.0))


def test_exponentials_and_logarithms():
    x = np.random.default_rng(3).uniform(-20.0, 20.0, 1000)
    np.testing.assert_allclose(exp(x), np.exp(x), rtol=1e-14)
    x = 10.0 ** np.linspace(-300.0, 300.0, 1001)
    np.testing.assert_allclose(log(x), np.log(x), rtol=1e-14, atol=1e-15)


def test_the_parts_of_a_right_angle_have_few_bits():
    """Products with integers of 30 bits are exact; the parts add up to π/2 to 105 bits."""
    half_pi = Fraction(884279719003555, 562949953421312) + Fraction(6.123233995736766e-17)
    assert abs(sum(map(Fraction, HALF_PI)) - half_pi) < Fraction(1, 2**105)
    assert all(Fraction(part).numerator.bit_length() <= 23 for part in HALF_PI)
