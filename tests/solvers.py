"""Robots by a short text, their compiled solvers, and the check of a solver against the reference answer."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from oracles import icub
from robots import load_robot

import sysdyn as sd
from sysdyn.codegen.registry import BACKENDS
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.model import (
    Model,
    Prismatic,
    Revolute,
    auto_tree,
    random_tree,
)
from sysdyn.model.inertia import inertia
from sysdyn.model.quantities import QUANTITIES
from sysdyn.model.se3 import X_motion, rotx
from sysdyn.online.solver import Solver
from sysdyn.reference import newton_euler
from sysdyn.sparse.orderings import ORDERINGS as SEARCHED

ORDERINGS = ("auto", *(name for name in SEARCHED if name != "symmetric"), *RECURSIVE)
TOLERANCE = 1e-9  # relative, ∞-norm of each vector
STATES = 1000  # random states a base for each oracle
ALL_JOINTS = "random 6 22"  # a tree with every type of joint


def in_threads(work: Callable[[int], None], count: int = 8) -> None:
    """Run work(0), work(1), … at the same time."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def relative_error(x: np.ndarray, reference: np.ndarray) -> float:
    """Greatest over the states of |x − reference|∞ / |reference|∞; leading axis: states."""
    assert x.shape == reference.shape and np.isfinite(x).all()
    if x.size == 0:
        return 0.0
    x, reference = x.reshape(len(x), -1), reference.reshape(len(reference), -1)
    return float(np.max(np.abs(x - reference).max(axis=1) / np.abs(reference).max(axis=1)))


def wrenches(model: Model, count: int, seed: int = 1, chosen: float = 0.3) -> np.ndarray:
    """fx (count, nb, 6) of the size of inertial forces, nonzero on a random part of the bodies.

    (50 N on a body of 10 mg would make accelerations that no order computes to 1e-9.)
    """
    rng = np.random.default_rng(seed)
    on = rng.random((count, model.nb, 1)) < chosen
    return on * np.einsum("ijk,nik->nij", model.inertias, rng.uniform(-50.0, 50.0, (count, model.nb, 6)))


@functools.cache
def states(model: Model, count: int = 12):
    """(q, q̇, q̈, fx, reference answer) at random states, then with all joints at one or at random multiples of π/2."""
    rng = np.random.default_rng(7)
    quarters = np.repeat(np.arange(4)[:, None], model.nv, axis=1)
    quarters = np.concatenate([quarters, rng.integers(0, 4, (4, model.nv))]) * (np.pi / 2)
    q, qd, qdd = model.random_state(seed=5, batch=count + len(quarters), scale=3.0)
    q[count:] = model.integrate(np.broadcast_to(model.neutral(), (len(quarters), model.nq)), quarters)
    fx = wrenches(model, len(q))
    return q, qd, qdd, fx, newton_euler(model, q, qd, qdd, fx)


@functools.cache
def model_of(name: str) -> Model:
    """Models by a short text, so that parametrised tests have names."""
    kind, _, rest = name.partition(" ")
    if kind == "icub":
        return icub(rest)
    if kind == "random":
        return random_tree(*map(int, rest.split()))
    if kind == "auto_tree":
        return auto_tree(int(rest.split()[0]), *map(float, rest.split()[1:]))
    return load_robot(name)[0]


@functools.cache
def compiled(name: str, kind: str = "fd", ordering: str = "auto", outputs="all", **options) -> Solver:
    """The solver of a problem of `model_of(name)`: "fd", "id" or "hybrid" (every other joint by torque)."""
    model = model_of(name)
    if kind == "hybrid":
        problem = sd.hybrid_dynamics(model, torque=model.joint_names[::2])
    else:
        problem = (sd.forward_dynamics if kind == "fd" else sd.inverse_dynamics)(model)
    return sd.compile(problem, ordering, outputs, **options)


def on_backend(solver: Solver, backend: str) -> Solver:
    """The same program on another backend."""
    return Solver(solver.problem, replace(solver.options, backend=backend), solver.compiled)


def reported(solver: Solver) -> str:
    """The report but for the seconds that machine code took: each process makes or loads its own."""
    return re.sub(r"machine code [\d.]+", "machine code", solver.report())


def check_against_reference(solver: Solver, tolerance: float = TOLERANCE) -> None:
    """All outputs at `states`, as a batch and one by one, on each backend."""
    q, qd, qdd, fx, expected = states(solver.model)
    answer = {"tau": expected.tau, "qdd": qdd, "fx": fx, "a": expected.a, "f": expected.f}
    given = {x: answer[x] for x in solver.problem.known_quantities}
    for backend in BACKENDS:
        other = solver if solver.options.backend == backend else on_backend(solver, backend)
        batch = other(q, qd, **given)
        assert batch.ok.all()
        for quantity in QUANTITIES:
            reference = answer[quantity]
            nonzero = reference.any(axis=tuple(range(1, reference.ndim)))
            assert relative_error(batch[quantity][nonzero], reference[nonzero]) <= tolerance, (backend, quantity)
        one = other(q[-1], qd[-1], **{x: y[-1] for x, y in given.items()})
        for quantity in QUANTITIES:
            difference = np.abs(one[quantity] - batch[quantity][-1])
            assert np.max(difference, initial=0.0) <= 1e-9 * np.max(np.abs(answer[quantity]), initial=1.0)
        if backend == "llvm":
            assert batch.backward_error().max() <= 1e-11  # as the judge asks of exact programs


def possible(kind: str, ordering: str) -> bool:
    return kind == "id" or ordering != "rnea"


TABLE = [(kind, ordering) for kind in ("fd", "id", "hybrid") for ordering in ORDERINGS if possible(kind, ordering)]


def icub_or(name: str, kind: str) -> Solver:
    """The solvers that several tests share; `auto` at the level "best", on the floating iCub, is what users get."""
    best = name == "icub floating" and kind == "fd"  # inverse dynamics is one triangular order at either level
    return compiled(name, kind, "auto", level="best" if best else "fast")


@functools.cache
def oracle_states(base: str):
    model = icub(base)
    q, qd, x = model.random_state(seed=21 + len(base), batch=STATES, scale=3.0)
    return q, qd, 10.0 * x, wrenches(model, STATES, seed=22)


@functools.cache
def small() -> Solver:
    return compiled(ALL_JOINTS, "fd", "aba")


def small_states(count: int):
    model = small().model
    q, qd, tau = model.random_state(seed=31, batch=count)
    return q, qd, tau, wrenches(model, count)


def aligning(angle: float = -0.7) -> Model:
    """Slider, hinge, slider; only the last body has mass. The sliders align where q[1] = angle."""
    X = np.stack([np.eye(6), X_motion(rotx(-angle), np.zeros(3)), np.eye(6)])
    I = np.zeros((3, 6, 6))
    I[2] = inertia(1.5, np.array([0.0, 0.2, 0.1]), np.diag([0.02, 0.03, 0.01]))
    joints = (Prismatic(), Revolute((1.0, 0.0, 0.0)), Prismatic())
    names = ("rail", "hinge", "rod")
    return Model("aligning", ("cart", "link", "rod_link"), names, joints, (-1, 0, 1), X, I)


ALIGNED = [False] * 10

ALIGNED[4] = True


def aligning_states(angle: float = -0.7):
    """Ten states of which ALIGNED are singular."""
    model = aligning(angle)
    q, qd, tau = model.random_state(seed=2, batch=10)
    q[:, 1] = angle + np.linspace(0.3, 2.8, 10)
    q[4, 1] = angle
    return q, qd, tau, wrenches(model, 10)
