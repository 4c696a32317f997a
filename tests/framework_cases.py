"""Frameworks behind one interface, and programs of every kind with arguments for them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.frameworks import jax as jax_bridge
from sysdyn.frameworks import torch as torch_bridge

STATES = 5


def fast(problem: sd.Problem, **options) -> sd.Solver:
    """A solver that is compiled in little time: nothing here depends on its order."""
    return sd.compile(problem, **({"level": "fast"} | options))


def arm():
    model = sd.chain(3, seed=2)
    q, qd, tau = model.random_state(seed=0, batch=STATES)
    return fast(sd.forward_dynamics(model), outputs="qdd"), (q, qd), {"tau": tau}


def quaternions():
    model = sd.random_tree(3, seed=4, joints=("free", "spherical", "planar"))
    q, qd, tau = model.random_state(seed=0, batch=STATES)
    return fast(sd.forward_dynamics(model), outputs="qdd"), (q, qd), {"tau": tau}


def contact():
    model = sd.random_tree(3, seed=4, joints=("free", "revolute", "revolute"))
    q, qd, tau = model.random_state(seed=0, batch=STATES)
    problem = sd.forward_dynamics(model) + sd.Contact("body2", ["a_z", "a_x"], name="tip")
    return fast(problem, outputs=("qdd", "w")), (q, qd), {"tau": tau}


def estimate():
    model = sd.chain(3, seed=2)
    torques = sd.JointTorque("all", noise=0.1, name="torques")
    accelerations = sd.JointAcceleration("all", noise=0.5, name="accelerations")
    q, qd, x = model.random_state(seed=0, batch=STATES)
    problem = sd.Problem(model, [sd.ExternalWrench("all", name="fx"), torques, accelerations])
    return fast(problem, outputs=("qdd", "tau")), (q, qd), {"y": {"torques": x, "accelerations": x[::-1].copy()}}


def product():
    solver, state, known = arm()
    return solver.vjp(wrt=("q", "tau")), state, known | {"cotangents": {"qdd": np.cos(state[0])}}


def kinematics(outputs=("energy", "mass_matrix")):
    model = sd.random_tree(3, seed=4, joints=("free", "spherical", "planar"))
    q, qd, _ = model.random_state(seed=0, batch=STATES)
    return sd.kinematics(model, outputs), (q, qd), {}


def kinematics_product():
    compiled, state, _ = kinematics("com_velocity")
    return compiled.vjp(), state, {"cotangents": {"com_velocity": np.cos(state[1][:, :3])}}


def own():
    function = sd.compile_function(lambda x, y: {"z": x * y[0] + x / y[1]}, {"x": (3,), "y": (2,)})
    rng = np.random.default_rng(0)
    return function, (rng.standard_normal((STATES, 3)), 1.0 + rng.random((STATES, 2))), {}


# Kinds of programs by name; that of ALWAYS has all that the arm's has, and compiles as quickly.
ALWAYS = ("quaternions",)
CASES = {x.__name__: x for x in (arm, quaternions, contact, estimate, product,
                                   kinematics, kinematics_product, own)}  # fmt: skip


def singular() -> tuple[sd.Solver, dict]:
    """Joints at multiples of π/2; at some of them the accelerometer does not observe the unknown acceleration."""
    model = sd.auto_tree(5, 2, 0.7, 0.9)
    problem = sd.inverse_dynamics(model) - sd.JointAcceleration([model.joint_names[1]])
    problem += sd.Accelerometer(model.body_names[4], components=["a_x"], name="imu")
    rng = np.random.default_rng(0)
    q = rng.integers(-2, 3, (800, 5)) * (np.pi / 2) + (np.arange(800)[:, None] % 4 == 0) * 1e-9
    given = {"q": q, "qd": rng.standard_normal((800, 5)), "qdd": rng.standard_normal((800, 5))}
    return fast(problem, outputs="qdd"), given | {"y": {"imu": rng.standard_normal((800, 1))}}


@contextlib.contextmanager
def missing(bridge: ModuleType, framework: str) -> Iterator[None]:
    """As if the framework of a bridge to it were not installed."""
    bridge.library.cache_clear()
    try:
        with mock.patch.dict(sys.modules, {framework: None}):
            yield
    finally:
        bridge.library.cache_clear()


# ---- frameworks ----------------------------------------------------------------------------------------------------


class Jax:
    name, bridge = "jax", jax_bridge

    def __init__(self):
        self.jax = pytest.importorskip("jax")
        self.jax.config.update("jax_enable_x64", True)
        self.float64, self.tensor, self.grad = np.float64, self.jax.numpy.asarray, self.jax.grad

    def numpy(self, x) -> np.ndarray:
        assert isinstance(x, self.jax.Array)
        return np.asarray(x)

    def vmap(self, f, axes=0):
        return self.jax.vmap(f, in_axes=axes)

    def variants(self, f) -> list:
        """f in other ways that give the same."""
        return [f, self.jax.jit(f)]

    def gradients(self, cost, argnums) -> list:
        """Functions that give the gradients of a cost that adds the states of a batch."""
        gradient = self.jax.grad(cost, argnums)
        mapped = self.jax.grad(lambda *x: self.jax.vmap(cost)(*x).sum(), argnums)
        return [gradient, self.jax.jit(gradient), mapped]

    def slope(self, f, x):
        return self.jax.grad(f)(x)

    def check_derivatives(self, call, args) -> None:
        from jax.test_util import check_grads

        check_grads(call, args, order=2, modes=("fwd", "rev"), eps=1e-5, atol=1e-3, rtol=1e-3)


class Torch:
    name, bridge = "torch", torch_bridge

    def __init__(self):
        self.torch = pytest.importorskip("torch")
        self.float64, self.tensor, self.grad = self.torch.float64, self.torch.from_numpy, self.torch.func.grad

    def numpy(self, x) -> np.ndarray:
        return x.detach().numpy()

    def vmap(self, f, axes=0):
        return self.torch.func.vmap(f, in_dims=axes)

    def variants(self, f) -> list:
        return [f]

    def gradients(self, cost, argnums) -> list:
        return [self.torch.func.grad(cost, argnums=argnums)]

    def slope(self, f, x):
        x = x.clone().requires_grad_()
        f(x).backward()
        return x.grad

    def check_derivatives(self, call, args) -> None:
        one = [x.clone().requires_grad_() for x in args]
        check = self.torch.autograd
        assert check.gradcheck(call, one, eps=1e-6, atol=1e-4, rtol=1e-4, check_forward_ad=True)
        assert check.gradgradcheck(call, one, eps=1e-6, atol=1e-3, rtol=1e-3)
        modes = (jacobian(call, argnums=0)(*args) for jacobian in (self.torch.func.jacrev, self.torch.func.jacfwd))
        for reverse, forward in zip(*modes, strict=True):
            self.torch.testing.assert_close(reverse, forward, rtol=1e-9, atol=1e-9)


def tree(f, x):
    """f of each array in tuples and dicts."""
    if isinstance(x, dict):
        return {k: tree(f, y) for k, y in x.items()}
    return tuple(tree(f, y) for y in x) if isinstance(x, tuple) else f(x)


def leaves(x) -> list:
    if isinstance(x, dict):
        x = tuple(x.values())
    return [z for y in x for z in leaves(y)] if isinstance(x, tuple) else [x]


def flat(framework, f, args, kwargs):
    """(f of tensors alone, which gives a tuple; these tensors)."""

    def call(*tensors):
        rest = iter(tensors)
        a, k = tree(lambda _: next(rest), (args, kwargs))
        return tuple(f(*a, **k).values())

    return call, [framework.tensor(x) for x in leaves((args, kwargs))]
