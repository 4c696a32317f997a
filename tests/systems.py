"""Assembled systems by a short text, the reference answer as their unknowns, and custom measurements."""

from __future__ import annotations

import functools

import numpy as np
from oracles import icub
from robots import ROBOTS, load_robot

from sysdyn.equations.problem_system import assemble
from sysdyn.equations.system import BlockSystem
from sysdyn.measurements.classical import forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.measurements.known_quantities import BodyAcceleration, JointWrench
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model, random_tree
from sysdyn.model.quantities import QUANTITIES
from sysdyn.reference import newton_euler

PROBLEMS = {
    "inverse": inverse_dynamics,
    "forward": forward_dynamics,
    "hybrid": lambda model: hybrid_dynamics(model, model.joint_names[::2]),
    "bodies": lambda model: Problem(
        model, [BodyAcceleration("all", name="a"), JointWrench("all", name="f")]
    ),  # not square: too many equations are assembled, too
}


def model_with(name: str) -> Model:
    if name.startswith("icub"):
        return icub(name.split()[1])
    return load_robot(name)[0] if name in ROBOTS else random_tree(7, seed=int(name.split()[1]))


@functools.cache
def built(name: str, problem: str = "forward", layout: str = "paper", known: str = "rows") -> BlockSystem:
    return assemble(PROBLEMS[problem](model_with(name)), layout, known)


def unknowns(system: BlockSystem, answer: dict[str, np.ndarray]) -> np.ndarray:
    """d (columns of the system,) filled from quantities by name; fB from I a + ν, that is f + fx − Σ X^T f."""
    d = np.zeros(system.layout.n)
    for quantity in QUANTITIES:
        d[system.layout.quantity_columns(quantity)] = np.ravel(answer[quantity])
    if system.layout.name == "net_force":
        for i in range(system.model.nb):
            d[list(system.layout.columns("fB", i))] = answer["fB"][i]
    return d[system.columns]


def reference(model: Model, seed: int, scale: float = 1.0):
    """(q, q̇, quantities by name) of the recursive Newton-Euler algorithm at a random state with random wrenches."""
    q, qd, qdd = model.random_state(seed=seed, scale=scale)
    fx = np.random.default_rng(seed).uniform(-10.0, 10.0, (model.nb, 6))
    tau, a, f, v = newton_euler(model, q, qd, qdd, fx)
    net = np.array([model.inertias[i] @ a[i] + cross_force(v[i]) @ model.inertias[i] @ v[i] for i in range(model.nb)])
    return q, qd, {"tau": tau, "qdd": qdd, "fx": fx, "a": a, "f": f, "fB": net}


def cross_force(v: np.ndarray) -> np.ndarray:
    """v ×* as a matrix, written out here once more (RBDA eq. 2.32)."""
    w, u = v[:3], v[3:]

    def skew(x):
        return np.array([[0.0, -x[2], x[1]], [x[2], 0.0, -x[0]], [-x[1], x[0], 0.0]])

    return np.block([[skew(w), skew(u)], [np.zeros((3, 3)), skew(w)]])


def check_reference_solves(system: BlockSystem, seed: int) -> None:
    """The reference answer leaves no residual in D d + b, nor does it in `residual`."""
    q, qd, answer = reference(system.model, seed)
    known = {x: answer[x] for x in system.problem.known_quantities}
    D, b, d = system.D(q), system.b(q, qd, **known), unknowns(system, answer)
    assert D.shape == system.shape == (len(b), len(d))
    scale = np.abs(D).sum(axis=1).max() * np.abs(d).max(initial=1.0) + np.abs(b).max()
    assert np.abs(D @ d + b).max() <= 1e-13 * scale
    wrong = d.copy()
    wrong[seed % len(d)] += 1.0 + np.abs(d).max()  # and every entry matters
    assert np.abs(D @ wrong + b).max() > 1e-3


def kinds(base: type = Measurement) -> dict[str, type[Measurement]]:
    """Classes of measurements of the package by name: subclasses of `base`."""
    listed = Measurement.kinds.items()
    return {name: cls for name, cls in listed if cls.__module__.startswith("sysdyn.") and issubclass(cls, base)}


class Accelerometer(Measurement):
    """Proper acceleration of the origin of a frame along axes of the frame: linear part of X a + ω × v."""

    def __init__(self, frame: str, axes: str = "xyz", name: str = "accelerometer"):
        self.frame, self.axes, self.name = frame, axes, name

    def components(self, model):
        return tuple(self.axes)

    def rows(self, ctx):
        return {("a", ctx.body(self.frame)): ctx.X(self.frame)[["xyz".index(axis) + 3 for axis in self.axes]]}

    def bias(self, ctx):
        v = ctx.v(self.frame)
        across = {"x": v[1] * v[5] - v[2] * v[4], "y": v[2] * v[3] - v[0] * v[5], "z": v[0] * v[4] - v[1] * v[3]}
        return np.array([across[axis] for axis in self.axes])


class TorqueSum(Measurement):
    """Motors that drive two joints through a differential: τ_i + τ_j."""

    def __init__(self, first: str, second: str):
        self.joints, self.name = (first, second), f"{first}+{second}"

    def components(self, model):
        return ("sum",)

    def rows(self, ctx):
        return {("tau", joint): [[1.0]] for joint in self.joints}


class DistantWrench(Measurement):
    """Rows that are X from an ancestor to a frame, with no meaning beyond that."""

    def __init__(self, frame: str, ancestor: str):
        self.frame, self.ancestor, self.name = frame, ancestor, "distant"

    def components(self, model):
        return tuple("abcdef")

    def rows(self, ctx):
        return {("f", self.ancestor): ctx.X(self.frame, self.ancestor)}
