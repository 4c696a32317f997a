"""Written recursions as programs, compared with the reference algorithms."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.model import Model
from sysdyn.program.program import Program
from sysdyn.recursions.generate import GeneratedDynamics
from sysdyn.reference.rnea import newton_euler


def program(model: Model, written: GeneratedDynamics, known: str) -> Program:
    sizes = {"q": model.nq, "qd": model.nv, known: model.nv, "fx": 6 * model.nb}
    inputs = [(name, list(written.graph.inputs(name, n))) for name, n in sizes.items()]
    return Program.from_graph(written.graph, inputs, list(written.outputs.items()))


def agree(
    model: Model, written: GeneratedDynamics, known: str, wrenches: bool, states: int = 5, tolerance: float = 1e-9
):
    """The program against the reference algorithms, every output relative to its greatest entry."""
    rng = np.random.default_rng(3)
    q, qd, x = model.random_state(seed=3, batch=states)
    fx = rng.standard_normal((states, model.nb, 6)) * wrenches
    values = {"q": q, "qd": qd, known: x, "fx": fx.reshape(states, -1)}
    found = interpreter.run_groups(program(model, written, known), values)
    qdd = sd.aba(model, q, qd, x, fx) if known == "tau" else x
    motion = newton_euler(model, q, qd, qdd, fx)
    expected = {"tau": motion.tau, "qdd": qdd, "fx": fx, "a": motion.a, "f": motion.f}
    for name, value in found.items():
        wanted = expected[name].reshape(value.shape)
        assert value == pytest.approx(wanted, abs=tolerance * (1e-3 + np.abs(wanted).max(initial=0.0))), name


def parallel_chain(n: int, seed: int) -> Model:
    """A chain of revolute and prismatic joints; consecutive axes are often parallel or opposite."""
    rng = np.random.default_rng(seed)
    return sd.from_dh(
        rng.choice([0.0, 0.0, np.pi, np.pi / 2, 0.3], size=n), rng.uniform(-0.5, 0.5, n),
        rng.choice([0.0, 0.2], size=n), rng.uniform(1.0, 3.0, n), rng.uniform(-0.2, 0.2, (n, 3)),
        [np.diag(x) for x in rng.uniform(0.1, 0.15, (n, 3))], theta=rng.choice([0.0, np.pi / 2, 0.4], size=n),
        joint_types=["P" if x else "R" for x in rng.uniform(size=n) < 0.2],
    )  # fmt: skip


def solvable(model: Model) -> bool:
    q, qd, tau = model.random_state(seed=3, batch=5)
    try:
        qdd = sd.aba(model, q, qd, tau)
    except sd.SingularState:
        return False
    back = sd.rnea(model, q, qd, qdd)
    return bool(np.abs(back - tau).max(initial=0.0) < 1e-10)
