"""Parameters out of logged motions and torques: base parameters, covariances, and bodies that can be."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from robots import load_robot
from scipy.signal import lfilter

import sysdyn as sd
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.model.inertia import parameters, pseudo_inertia, spatial_inertia, with_parameters

ARM = sd.auto_tree(3, 1, 1.5, 0.9)
LAST = "inertia:body2"
# A box of 0.6 kg, turned, in the hand of the arm.
BOX = np.array(
    [[0.02, 0.002, 0.001, 0.06], [0.002, 0.01, 0.0, 0.03], [0.001, 0.0, 0.015, -0.02], [0.06, 0.03, -0.02, 0.6]]
)
PAYLOAD = parameters(spatial_inertia(BOX))


def carrying(model: sd.Model, payload: np.ndarray) -> sd.Model:
    inertias = model.inertias.copy()
    inertias[-1] += with_parameters(payload).astype(float)
    return model.replace(inertias=inertias, strict=None)


def log(model: sd.Model, n: int, noise: float = 0.0, seed: int = 0):
    """(q, q̇, q̈, τ) of n states at random."""
    states = model.random_state(seed=seed, batch=n)
    rng = np.random.default_rng(seed + 1)
    return *states, sd.rnea(model, *states) + noise * rng.standard_normal(states[1].shape)


def pseudo(pi: np.ndarray) -> np.ndarray:
    return pseudo_inertia(with_parameters(pi).astype(float))


@pytest.mark.parametrize("added", [True, False])
def test_a_payload(added):
    found = sd.identify(ARM, *log(carrying(ARM, PAYLOAD), 50), LAST, added=added)
    np.testing.assert_allclose(found.change, PAYLOAD, atol=1e-9)
    np.testing.assert_allclose(found[LAST], sd.inertial_parameters(ARM)[-10:] + PAYLOAD, atol=1e-9)
    assert found.physically_consistent and np.isfinite(found.std).all() and not found.unidentifiable
    assert found.names[0] == "body2.m" and found.units[:2] == ("kg", "kg m")
    # as parameters of a solver, and as a model
    q, qd, qdd, tau = log(carrying(ARM, PAYLOAD), 3, seed=9)
    solver = sd.compile(sd.inverse_dynamics(ARM), outputs=["tau"], inputs=[LAST], level="fast", backend="python")
    np.testing.assert_allclose(solver(q, qd, qdd, parameters={LAST: found[LAST]}).tau, tau, atol=1e-8)
    np.testing.assert_allclose(sd.rnea(found.model, q, qd, qdd), tau, atol=1e-8)


def test_base_parameters_of_the_puma():
    """36, as of every 6R arm of its geometry (Gautier 1991); the rest changes no torque, whatever the motion."""
    model = load_robot("puma560")[0]
    found = sd.identify(model, *log(model, 100))
    assert (
        len(found.combinations) == 36
        and len(found.unidentifiable) == 24
        and all(x.structural for x in found.unidentifiable)
    )
    pi = dict(zip(found.names, sd.inertial_parameters(model), strict=True))
    for x in found.combinations:
        np.testing.assert_allclose(x.value, sum(c * pi[name] for name, c in x.terms), atol=1e-9)
    Y = sd.joint_torque_regressor(model, *model.random_state(seed=5, batch=20))
    number = {name: k for k, name in enumerate(found.names)}
    for x in found.unidentifiable:
        change = np.zeros(60)
        change[[number[name] for name, _ in x.terms]] = [c for _, c in x.terms]
        np.testing.assert_allclose(Y @ change, 0.0, atol=1e-9)
    text = repr(found)
    assert (
        "60 parameters of 'puma560': " in text and "24 not at all" in text and "not determined by any motion: " in text
    )


def test_what_a_log_does_not_tell():
    """An arm that only moves its first joint, lying in the plane: what another motion would tell is told apart."""
    q, qd, qdd, _ = log(ARM, 40)
    q[:, 1:], qd[:, 1:], qdd[:, 1:] = 0.3, 0.0, 0.0
    found = sd.identify(ARM, q, qd, qdd, sd.rnea(ARM, q, qd, qdd), LAST)
    assert found.unidentifiable and not any(x.structural for x in found.unidentifiable)
    Y = sd.joint_torque_regressor(ARM, q, qd, qdd)[..., -10:]
    everywhere = sd.joint_torque_regressor(ARM, *ARM.random_state(seed=2, batch=20))[..., -10:]
    for x in found.unidentifiable:
        change = np.zeros(10)
        change[[found.names.index(name) for name, _ in x.terms]] = [c for _, c in x.terms]
        np.testing.assert_allclose(Y @ change, 0.0, atol=1e-8)
        assert np.abs(everywhere @ change).max() > 1e-3
    np.testing.assert_allclose(found.change, 0.0, atol=1e-9)  # as declared, where the log says nothing
    assert "not determined by this log" in repr(found)
    seen_alone = {x.terms[0][0] for x in found.combinations if len(x.terms) == 1}
    assert {name for name, std in zip(found.names, found.std, strict=True) if np.isfinite(std)} == seen_alone


def test_deviations_are_those_of_many_logs():
    """Σ e^T C⁻¹ e of the base parameters is χ² distributed, with noise that is given and found."""
    truth = carrying(ARM, PAYLOAD)
    pi = dict(zip([f"body2.{x.split('.')[1]}" for x in sd.identify(ARM, *log(ARM, 20), LAST).names],
                  sd.inertial_parameters(truth)[-10:], strict=True))  # fmt: skip
    for noise in (0.3, None):
        total, freedoms = 0.0, 0
        for seed in range(8):
            found = sd.identify(ARM, *log(truth, 60, 0.3, seed), LAST, noise=noise)
            e = [x.value - sum(c * pi[name] for name, c in x.terms) for x in found.combinations]
            total += e @ np.linalg.solve(found.covariance, e)
            freedoms += len(e)
            np.testing.assert_allclose(found.noise, 0.3, rtol=0.3 if noise is None else 0.0)
            assert abs(found.chi2 - found.redundancy) < 5 * np.sqrt(2 * found.redundancy)
        assert abs(total - freedoms) < 4 * np.sqrt(2 * freedoms)


def test_the_best_of_those_that_can_be():
    """Karush, Kuhn and Tucker: P ⪰ 0, its multiplier Z ⪰ 0, ⟨P, Z⟩ = 0, for the gradient of the squared errors."""
    q, qd, qdd, tau = log(carrying(ARM, PAYLOAD), 60, noise=2.0, seed=4)
    found = sd.identify(ARM, q, qd, qdd, tau, LAST, noise=2.0, added=True)
    assert not found.physically_consistent and "not physically consistent" in repr(found)
    P = pseudo(found.change)
    Y = sd.joint_torque_regressor(ARM, q, qd, qdd)[..., -10:].reshape(-1, 10)
    gradient = Y.T @ (Y @ found.change - (tau - sd.rnea(ARM, q, qd, qdd)).ravel()) / 4.0
    # by the entries of P: d(pi) = linear dP, symmetric
    Z = np.array([[gradient @ parameters(spatial_inertia((E + E.T) / 2)) for E in row] for row in
                  np.eye(16).reshape(4, 4, 4, 4)])  # fmt: skip
    size = np.sqrt(np.diag(P))
    P, Z = P / np.outer(size, size), Z * np.outer(size, size)
    assert np.linalg.eigvalsh(P)[0] >= -1e-12 and np.linalg.eigvalsh(Z)[0] >= -1e-4 * np.abs(Z).max()
    assert abs(np.sum(P * Z)) <= 1e-4 * np.abs(Z).max()
    assert np.abs(Z).max() > 1e-2  # the limit counts


def test_joints():
    model = ARM.replace(armature=[0.1, 0.0, 0.2], damping=[0.5, 0.3, 0.0], friction=[0.0, 0.2, 0.4])
    q, qd, qdd, tau = log(model, 60)
    groups = [f"{kind}:joint{k}" for kind in ("armature", "damping", "friction") for k in range(3)]
    found = sd.identify(ARM, q, qd, qdd, tau - model.passive_torque(qd), groups)
    for name in ("armature", "damping", "friction"):
        np.testing.assert_allclose(getattr(found.model, name), getattr(model, name), atol=1e-9)
    assert found.units[0] == "kg m²" and found.names[3] == "joint0.damping"
    # τ of the tree alone, where nothing of friction is identified
    found = sd.identify(model, q, qd, qdd, tau, "armature:joint0")
    np.testing.assert_allclose(found.values, 0.1, atol=1e-9)
    # what is negative cannot be
    found = sd.identify(ARM, q, qd, qdd, tau - 0.4 * qd, "damping:joint1", noise=0.1)
    assert not found.physically_consistent and 0.0 <= found.values[0] <= 1e-6 and found.combinations[0].value < -0.39


def test_torques_that_are_not_known_and_known_wrenches():
    q, qd, qdd, tau = log(carrying(ARM, PAYLOAD), 80)
    fx = np.zeros((80, 3, 6))
    fx[:, 2] = np.random.default_rng(0).standard_normal((80, 6))
    tau = tau - sd.rnea(ARM, q, qd, qdd) + sd.rnea(ARM, q, qd, qdd, fx)
    tau[:, 1] = 1e3  # a broken sensor
    found = sd.identify(ARM, q, qd, qdd, tau, LAST, fx=fx, noise=[0.1, np.inf, 0.1])
    np.testing.assert_allclose(found.change, PAYLOAD, atol=1e-8)
    assert found.redundancy == 150


BAD = [
    (dict(parameters="mass:body2"), UnknownName, "parameter to identify.*inertia:BODY"),
    (dict(parameters="inertia:hand"), UnknownName, "hand"),
    (dict(parameters=[]), InvalidInput, "nothing to identify: name some of"),
    (dict(noise=0.0), InvalidInput, "noise of τ is one standard deviation > 0, or \\(3,\\)"),
    (dict(noise=[1.0, 2.0]), InvalidInput, "noise of τ"),
    (dict(tau=np.ones((4, 2))), InvalidInput, "tau has shape"),
    (dict(qd=np.ones((5, 3))), InvalidInput, "do not fit together"),
    (dict(tau=np.ones((4, 3)), parameters=None), InvalidInput, "12 torques do not determine 30 parameters"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "kind", "text"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said(wrong, kind, text):
    q, qd, qdd, tau = log(ARM, 4)
    with pytest.raises(kind, match=text):
        sd.identify(**{"model": ARM, "q": q, "qd": qd, "qdd": qdd, "tau": tau, "parameters": LAST, **wrong})


def test_robots_with_loops_are_refused():
    model = sd.chain(3).replace(closures=(sd.model.closures.Coupling("joint1", "joint0", (0.0, 2.0)),))
    with pytest.raises(InvalidInput, match="couplings or loops"):
        sd.identify(model, *log(sd.chain(3), 40))


def test_a_body_that_fits_is_possible_though_the_nearest_change_is_none():
    """Half as heavy again all over: the change that is least where nothing is told makes no body, others do."""
    model = sd.auto_tree(2)
    heavier = model.replace(inertias=np.array([model.inertias[0], 1.5 * model.inertias[1]]))
    q, qd, qdd = model.random_state(seed=0, batch=50)
    tau = sd.rnea(heavier, q, qd, qdd)
    for noise in (None, 0.01):
        found = sd.identify(model, q, qd, qdd, tau, "inertia:body1", noise=noise)
        assert found.physically_consistent
        np.testing.assert_allclose(found["inertia:body1"][:2], 1.5 * sd.inertial_parameters(model)[10:12], rtol=1e-6)
    tau[:, 1] *= -1.0  # a negative mass
    assert not sd.identify(model, q, qd, qdd, tau, "inertia:body1", noise=0.01).physically_consistent


# ---- residuals of a log ----------------------------------------------------------------------------------------------


def moving(n: int, seed: int, correlation: float, std: float = 0.3):
    """(q, q̇, q̈, τ) of n rows of the arm with a payload, on sines; errors of τ are an autoregressive process."""
    rng, t = np.random.default_rng(seed), 2e-3 * np.arange(n)
    omega, phase = 2.0 * np.pi * np.array([0.7, 1.1, 1.6]), rng.uniform(0.0, 6.0, 3)
    angle = t[:, None] * omega + phase
    states = np.sin(angle), omega * np.cos(angle), -(omega**2) * np.sin(angle)
    phi = (correlation - 1.0) / (correlation + 1.0)  # Σ ρ = (1 + φ) / (1 − φ)
    e = lfilter([np.sqrt(1.0 - phi * phi)], [1.0, -phi], rng.standard_normal((n + 1000, 3)), axis=0)[1000:]
    return *states, sd.rnea(carrying(ARM, PAYLOAD), *states) + std * e


def independent(q, qd, qdd, std: float) -> np.ndarray:
    """Standard deviations of the payload for independent errors of τ, by a dense inverse."""
    Y = sd.joint_torque_regressor(ARM, q, qd, qdd)[..., -10:].reshape(-1, 10)
    size = np.linalg.norm(Y, axis=0)
    return std * np.sqrt(np.diagonal(np.linalg.inv((Y / size).T @ (Y / size)))) / size


@pytest.mark.parametrize("n", [500, 2000, 8000])
@pytest.mark.parametrize("states", ["of a log", "at random"])
def test_deviations_of_independent_rows_are_those_of_least_squares(states, n):
    off = []
    for seed in range(10):
        rows = moving(n, seed, 1.0) if states == "of a log" else log(carrying(ARM, PAYLOAD), n, 0.3, seed)
        found = sd.identify(ARM, *rows, LAST, noise=0.3)
        off.append(np.median(found.std / independent(*rows[:3], 0.3)) - 1.0)
        assert found.correlation.shape == (3,) and found.correlation.min() >= 1.0
    assert min(off) > -1e-6 and np.median(off) < 0.01 and np.mean(np.array(off) > 0.03) <= 0.2


@pytest.mark.parametrize("correlation", [5.0, 40.0])
def test_deviations_count_how_long_errors_last(correlation):
    """Errors of estimates are as large as their standard deviations, which are √κ times those of independent rows."""
    true = sd.inertial_parameters(ARM)[-10:] + PAYLOAD
    z, factors, correlations = [], [], []
    for seed in range(20):
        rows = moving(4000, seed, correlation)
        found = sd.identify(ARM, *rows, LAST)
        base = dict(zip(found.names, true, strict=True))
        z.append([(x.value - sum(c * base[name] for name, c in x.terms)) / x.std for x in found.combinations])
        factors.append(np.median(found.std / independent(*rows[:3], 0.3)))
        correlations.append(found.correlation)
    assert 0.7 < np.mean(correlations) / correlation < 1.4
    assert 0.8 < np.median(factors) / np.sqrt(correlation) < 1.25
    assert 0.75 < np.sqrt(np.mean(np.square(z))) < 1.3


RECORDED = Path(__file__).parents[2].parent / "shared/data/panda/panda.npz"


@functools.cache
def panda() -> tuple[sd.Model, list[np.ndarray]]:
    """The arm by the table of its maker, and the smoothed states of its log with their torques."""
    right = 0.5 * np.pi
    model = sd.from_dh(
        [0.0, -right, right, right, -right, right, right], [0.0, 0.0, 0.0, 0.0825, -0.0825, 0.0, 0.088],
        [0.333, 0.0, 0.316, 0.0, 0.384, 0.0, 0.0], np.ones(7), np.zeros((7, 3)), np.tile(0.01 * np.eye(3), (7, 1, 1)),
    )  # fmt: skip
    with np.load(RECORDED) as log:
        t, q, tau = 1e-3 * log["ms"], log["q"][log["rows"]].astype(float), log["tau"][log["rows"]].astype(float)
    problem = sd.Problem(model, [sd.JointPosition("all", noise=1e-4, name="q"), sd.ExternalWrench("all", name="none")])
    run = sd.smooth(problem, {"t": t, "q": q}, [])
    return model, [run.q, run.qd, run.qdd, tau]


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED.is_file(), reason="recorded logs are not part of the project")
@pytest.mark.parametrize("step", [1, 10, 50, 100])
def test_base_parameters_of_four_quarters_of_a_log_agree(step):
    """57 base parameters of a Panda, every ms and more seldom, within their standard deviations."""
    model, states = panda()
    parameters = [f"inertia:{x}" for x in model.body_names]
    parameters += [f"{kind}:{x}" for kind in ("damping", "friction") for x in model.joint_names]
    n = len(states[0])
    found = [
        sd.identify(model, *(x[k * n // 4 : (k + 1) * n // 4 : step] for x in states), parameters) for k in range(4)
    ]
    value, std = (np.array([[getattr(c, x) for c in f.combinations] for f in found]) for x in ("value", "std"))
    assert value.shape == (4, 57)
    z = [(value[i] - value[j]) / np.hypot(std[i], std[j]) for i in range(4) for j in range(i)]
    assert 0.8 < np.sqrt(np.mean(np.square(z))) < 1.3
