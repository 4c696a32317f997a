"""Scales and condition numbers of systems, against dense matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.augmented import SQUARED
from sysdyn.equations.system import ENTRY_ROUNDING, System
from sysdyn.model import Prismatic
from sysdyn.sparse.condition import rank_condition


def forward(lighter: float = 1.0) -> System:
    """A small tree whose first body is lighter by a factor."""
    model = sd.random_tree(3, seed=4)
    inertias = model.inertias * np.array([lighter, 1.0, 1.0])[:, None, None]
    return sd.assemble(sd.forward_dynamics(model.replace(inertias=inertias)))


def estimate(scale: float = 1.0) -> System:
    """An arm with one sensor more than it needs, and an exact equation that ties two of them."""
    known = [
        sd.JointAcceleration("all", noise=0.1 * scale, name="qdd"),
        sd.JointTorque("all", noise=scale**2 * (np.eye(3) + 0.3), name="tau"),
        sd.ExternalWrench("all"),
        sd.Contact("body2", "normal", name="contact"),
        sd.ModelNoise("a", "body0", noise=0.2 * scale),
    ]
    return sd.assemble(sd.Problem(sd.chain(3, seed=1), known))


def entries_at(system: System, n: int) -> np.ndarray:
    """Entries at n random states."""
    q, qd, _ = system.model.random_state(seed=11, batch=n)
    return system.values_at({"q": q, "qd": qd}, n)[0]


def growth(A: np.ndarray) -> np.ndarray:
    """|A⁻¹| |A|, whose spectral radius is the condition number in the best units."""
    return np.abs(np.linalg.inv(A)) @ np.abs(A)


@pytest.mark.parametrize("make", [forward, estimate])
def test_typical_sizes_are_the_greatest_of_several_states(make):
    system = make()
    entries, fixed = np.abs(entries_at(system, 100)), system.fixed_entries()
    sizes = system.typical_sizes
    np.testing.assert_array_equal(sizes[fixed], entries[0, fixed])
    assert (sizes[~fixed] > np.median(entries, axis=0)[~fixed]).mean() > 0.8
    rounding = np.where(np.arange(system.nnz) % 2, 0.5, 2.0) * ENTRY_ROUNDING * sizes
    covariance = np.logical_and(*(np.asarray(x) >= system.plain.shape[1] for x in system.coordinates))
    dropped = (np.arange(system.nnz) % 2 == 1) & ~covariance  # small variances are no rounding errors
    np.testing.assert_array_equal(system.drop_rounding(-rounding), np.where(dropped, 0.0, -rounding))


def test_scaled_entries_are_comparable():
    """The squares of each row and of each column sum up to the number of its entries, whatever the units."""
    for lighter in (1.0, 1e-12):
        system = forward(lighter)
        scaled = system.scaled(system.typical_sizes).toarray() ** 2
        pattern = system.pattern().toarray()
        for axis in (0, 1):
            np.testing.assert_allclose(scaled.sum(axis=axis), pattern.sum(axis=axis), rtol=0.02)


def test_scales_of_augmented_systems_are_symmetric_and_do_not_see_covariances():
    for found in (estimate(), estimate(1e6)):
        rows, columns = found.scaling
        np.testing.assert_array_equal(rows, columns)
        np.testing.assert_allclose(rows, estimate().scaling[0], rtol=1e-9)
        scaled, n = found.scaled(entries_at(found, 1)[0]).toarray(), found.n_unknowns
        np.testing.assert_allclose(scaled, scaled.T, rtol=1e-14)
        np.testing.assert_array_equal(scaled[n:, n:], -np.diag(found.plain.noisy_mask.astype(float)))
        sizes = found.scaled(found.typical_sizes).toarray()
        sizes[n:, n:] = 0.0
        for row in sizes:  # whose entries are 1 on a geometric average
            assert np.log(row[row > 0.0]).sum() == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("lighter", [1.0, 1e-6, 1e-12])
def test_the_condition_is_that_in_the_best_units(lighter):
    system = forward(lighter)
    for entries in entries_at(system, 3):
        A = system.matrix(entries).toarray()
        least = 1.0 / np.abs(np.linalg.eigvals(growth(A))).max()
        found = system.reciprocal_condition(entries)
        assert found == system.solvability(entries) == pytest.approx(least, rel=0.05)
        # an estimate in usual units is less, and enough if it is asked for no more
        usual, quick = (
            growth(system.scaled(entries).toarray()).sum(axis=1).max(),
            system.reciprocal_condition(entries, 0.0),
        )
        assert (1.0 - 1e-9) / usual < quick < 3.0 / usual and quick < found
        assert system.reciprocal_condition(entries, quick) == quick
        assert system.reciprocal_condition(entries, 1.01 * quick) == system.reciprocal_condition(entries) == found
        # the units in which it is found
        rows, columns = system.scaling_at(entries)
        best = rows[:, None] * A * columns
        np.testing.assert_allclose(np.abs(best).sum(axis=1), 1.0)
        assert 1.0 / growth(best).sum(axis=1).max() == pytest.approx(found, rel=1e-3)


def sliding(angle: float, *more: sd.Measurement) -> System:
    """Two slides whose axes differ by an angle, and the acceleration of the second with noise."""
    slides = [Prismatic((math.cos(x), math.sin(x), 0.0)) for x in (0.6, 0.6 + angle)]
    model = sd.chain(2, seed=1).replace(joints=tuple(slides), X_tree=np.array([np.eye(6)] * 2))
    sensor = sd.Accelerometer("body1", ["a_x", "a_y"], noise=0.1, name="imu")
    return sd.assemble(sd.Problem(model, [sd.ExternalWrench("all"), sensor, *more]))


TWICE = sd.JointAcceleration("all"), sd.Accelerometer("body1", ["a_x"], name="again")
HELD = [sd.Contact("body1", ["a_x"], name=name) for name in ("once", "again")]
# (angle, further equations)
ESTIMATES = {
    "regular": (1.0, ()),
    "one more": (1.0, (sd.JointAcceleration("joint0", noise=1.0),)),
    "nearly singular": (1e-5, ()),
    "singular": (0.0, ()),
    "exact equations that say the same": (1.0, TWICE),
    "wrenches that do the same": (1.0, HELD),
}


@pytest.mark.parametrize("case", ESTIMATES)
def test_estimates_are_as_regular_as_their_equations_without_multipliers(case):
    angle, more = ESTIMATES[case]
    system = sliding(angle, *more)
    given = {"q": np.array([0.3, -0.2])}
    (entries,), (plain,) = system.values(given)[0], system.plain.values(given)[0]
    D = system.plain.matrix(plain).toarray()
    conditions = [rank_condition(x) for x in (D, D[~system.plain.noisy_mask])]
    found, whole = system.estimability(entries), system.reciprocal_condition(entries)
    assert found == pytest.approx(1.0 / max(conditions), rel=1e-6, abs=1e-15)
    # it counts if the augmented matrix leaves a doubt
    assert system.solvability(entries) == (whole if whole >= SQUARED else max(found, whole))
    assert system.solvability(entries, whole) == whole


def test_nothing_is_estimated_by_fewer_equations_than_unknowns():
    system = sliding(1.0)
    problem = system.problem - sd.ExternalWrench("all") + sd.ExternalWrench("body0")
    less = sd.assemble(problem)
    assert less.plain.pattern().shape == less.plain.shape == (34, 40)
    assert less.estimability(less.values({"q": np.zeros(2)})[0][0]) == 0.0


def test_the_condition_of_an_estimate_is_that_in_its_own_units_or_in_natural_ones():
    """Whichever is better; both are estimated."""
    for system, own_is_better in ((sliding(1.0), True), (estimate(1e4), False)):
        entries = entries_at(system, 1)[0]
        matrices = system.matrix(entries), system.scaled(entries)
        own, natural = (1.0 / growth(x.toarray()).sum(axis=1).max() for x in matrices)
        assert (own > natural) == own_is_better
        assert 1.0 - 1e-9 < system.reciprocal_condition(entries) / max(own, natural) < 1.5
