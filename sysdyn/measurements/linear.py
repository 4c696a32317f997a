"""Measurements that are linear combinations of the unknowns, given as matrices or as functions of the state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, check_among
from sysdyn.measurements.bias_models import BiasModel, bias_model_of
from sysdyn.measurements.measurement import Context, Measurement
from sysdyn.model import Model
from sysdyn.model.closures import friction_torque
from sysdyn.model.model import COULOMB_VELOCITY
from sysdyn.model.quantities import QUANTITY, user_visible
from sysdyn.program.arrays import finite_array, to_plain
from sysdyn.program.groups import slices

# Coefficients: numbers, or a function of (q, q̇) that gives an array of floats or expressions.
Coefficients = np.ndarray | Callable[[np.ndarray, np.ndarray], Any]


class _LinearMeasurement(Measurement, listed=False):
    """Combination Σ C x + bias, with blocks {(quantity, name): C} that subclasses give for a model.

    bias: numbers, a function, or unknown over a log as `drift` is: a Constant or a RandomWalk.
    """

    def __init__(
        self,
        name: str,
        noise,
        bias,
        components: Sequence[str],
        units: Sequence[str] | str,
        drift: BiasModel | None = None,
    ):
        if isinstance(bias, (BiasModel, Mapping)):
            if drift is not None:
                raise InvalidInput(f"the bias of {name!r} is given twice, by bias= and by drift=")
            bias, drift = None, bias_model_of(name, bias)
        self.name, self.noise, self.drift = name, noise, bias_model_of(name, drift)
        self.chosen = (components,) if isinstance(components, str) else tuple(components)
        m = len(self.chosen)
        for k, component in enumerate(self.chosen):
            if component in self.chosen[:k]:
                raise InvalidInput(f"two equations of {name!r} are called {component!r}")
        self.units = (units,) * m if isinstance(units, str) else tuple(units)
        if len(self.units) != m:
            raise InvalidInput(f"{name!r} has {m} equations, but {len(self.units)} units")
        self.offset = bias if bias is None or callable(bias) else numbers(f"bias of {name!r}", bias, (None,))
        if isinstance(self.offset, np.ndarray):
            self._check_bias(self.offset)

    def blocks_of(self, model: Model) -> dict[tuple[str, str], Coefficients]:
        raise NotImplementedError

    def components(self, model: Model) -> tuple[str, ...]:
        for key, C in self.blocks_of(model).items():
            QUANTITY[key[0]].index(model, key[1])
            if isinstance(C, np.ndarray):
                self._check_block(key, C, model)
        return self.chosen

    def rows(self, ctx: Context) -> dict[tuple[str, str], np.ndarray]:
        rows: dict[tuple[str, str], np.ndarray] = {}
        for key, C in self.blocks_of(ctx.model).items():
            block = _called(C, ctx)
            self._check_block(key, block, ctx.model)
            quantity, owner = QUANTITY[key[0]], key[1]
            place = key[0], quantity.owners(ctx.model)[quantity.index(ctx.model, owner)]
            rows[place] = rows[place] + block if place in rows else block  # f by its joint's name and by its body's
        return rows

    def bias(self, ctx: Context) -> np.ndarray:
        bias = zeros(len(self.chosen)) if self.offset is None else _called(self.offset, ctx)
        self._check_bias(bias)
        return bias

    def _check_bias(self, bias: np.ndarray) -> None:
        if bias.shape != (len(self.chosen),):
            raise InvalidInput(
                f"the bias of {self.name!r} has shape {bias.shape}, but ({len(self.chosen)},) is needed: "
                "one number for each equation"
            )

    def _check_block(self, key: tuple[str, str], C: np.ndarray, model: Model) -> None:
        quantity = QUANTITY[key[0]]
        needed = len(self.chosen), quantity.size(model, quantity.index(model, key[1]))
        if C.shape != needed:
            raise InvalidInput(
                f"block {key} of {self.name!r} has shape {C.shape}, but {needed} is needed: "
                "its equations × the size of the quantity"
            )

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(self.chosen)}>"


class Linear(_LinearMeasurement):
    """Any linear combination Σ C x + bias of a, f, τ, fx, q̈.

    blocks      {(quantity, name): C (m, size)} with the joint's name for tau and qdd, the body's for a, fx and f (or
                the joint's for f). C and bias (m,) are numbers, or functions of (q (nq,), q̇ (nv,)) made of + − · / and
                numpy's sin, cos, sqrt, without branching on values: they receive expressions once, when the problem is
                compiled. Functions have no stored form, so that solvers with one are neither cached nor saved.
    components  name of each equation; default their numbers, needed if all of blocks and bias are functions
    units       unit of each equation
    drift       a further bias, unknown over a log: a Constant or a RandomWalk; bias= takes one, too

    Raises InvalidInput for shapes that do not fit, UnknownName.
    """

    def __init__(
        self, blocks: Mapping[tuple[str, str], Any], bias=None, components: Sequence[str] | None = None,
        name: str = "Linear", units: Sequence[str] | str = "", noise=None, drift: BiasModel | None = None,
    ):  # fmt: skip
        if not isinstance(blocks, Mapping) or not blocks:
            raise InvalidInput(f"{name!r} needs blocks by (quantity, name), such as {{('tau', 'l_knee'): [[1.0]]}}")
        self.blocks: dict[tuple[str, str], Coefficients] = {}
        for key, C in blocks.items():
            if not (isinstance(key, tuple) and len(key) == 2):
                raise InvalidInput(f"{name!r}: a block is of (quantity, name), such as ('f', 'l_foot'), not {key!r}")
            check_among(f"quantity in {name!r}:", key[0], user_visible())
            self.blocks[key] = C if callable(C) else numbers(f"block {key} of {name!r}", C, (None, None))
        if components is None:
            sizes = [len(C) for C in self.blocks.values() if isinstance(C, np.ndarray)]
            if not sizes and bias is not None and not (callable(bias) or isinstance(bias, (BiasModel, Mapping))):
                sizes = [np.size(bias)]
            if not sizes:
                raise InvalidInput(f"{name!r} has functions only: name its equations with components=[…]")
            components = [str(k) for k in range(sizes[0])]
        super().__init__(name, noise, bias, components, units, drift)

    def blocks_of(self, model: Model) -> dict[tuple[str, str], Coefficients]:
        return self.blocks

    def describe(self, model: Model | None = None) -> dict | None:
        constant = {key: C for key, C in self.blocks.items() if isinstance(C, np.ndarray)}
        if callable(self.offset) or len(constant) < len(self.blocks):
            return None
        return {
            "type": "Linear", "name": self.name, "components": list(self.chosen), "units": list(self.units),
            "blocks": [[*key, C.tolist()] for key, C in constant.items()], "bias": to_plain(self.offset),
        }  # fmt: skip


class MotorTorque(_LinearMeasurement):
    """Torques of motors [N m or N] that drive joints through a linear transmission: y = matrix τ + bias.

    joints      names of the joints, whose degrees of freedom follow each other in τ
    matrix      (m, degrees of freedom of the joints), default the identity
    bias        (m,) numbers or a function of (q (nq,), q̇ (nv,)), such as friction: lambda q, qd: B @ qd
    components  name of each motor, default the joints' names if there are as many, else their numbers
    passive     the joints resist as the model says: y = matrix (τ + damping q̇ + friction q̇/√(q̇² + slip²)) + bias,
                slip in rad/s or m/s
    optional    the value is zero unless a call gives one, as of joints without a motor
    drift       a further bias, unknown over a log: a Constant or a RandomWalk; bias= takes one, too

    With joint velocities q̇ = T θ̇ of motor velocities θ̇, power gives τ_θ = T^T τ: matrix is T^T.
    Raises InvalidInput for shapes that do not fit, UnknownName.
    """

    passive: bool = False
    slip: float = COULOMB_VELOCITY

    def __init__(
        self, joints: str | Sequence[str], matrix=None, bias=None, components: Sequence[str] | None = None,
        name: str | None = None, noise=None, passive: bool = False, slip: float = COULOMB_VELOCITY,
        optional: bool = False, drift: BiasModel | None = None,
    ):  # fmt: skip
        self.joints = (joints,) if isinstance(joints, str) else tuple(joints)
        name = name or f"MotorTorque({','.join(self.joints)})"
        if not self.joints or len(set(self.joints)) < len(self.joints):
            raise InvalidInput(f"{name!r} must name joints, each once, not {self.joints!r}")
        if passive:
            self.passive, self.slip = True, float(slip)
            if not (math.isfinite(self.slip) and self.slip > 0.0):
                raise InvalidInput(f"slip of {name!r} is {slip}; friction needs a positive velocity to grow over")
        if optional:
            self.optional = True
        n = len(self.joints)
        self.matrix = np.eye(n) if matrix is None else numbers(f"matrix of {name!r}", matrix, (None, None))
        if components is None:
            m = len(self.matrix)
            components = self.joints if m == n else [str(k) for k in range(m)]
        super().__init__(name, noise, bias, components, "N m or N", drift)

    def bias(self, ctx: Context) -> np.ndarray:
        bias = super().bias(ctx)
        if not self.passive:
            return bias
        places = self._places(ctx.model)
        damping, friction = (x[places] for x in (ctx.model.damping, ctx.model.friction))
        torque = friction_torque(damping, friction, np.asarray(ctx.qd)[places], self.slip)
        return bias + self.matrix.astype(object) @ torque

    def _places(self, model: Model) -> list[int]:
        """The degrees of freedom of the joints in τ."""
        return [k for joint in self.joints for k in range(model.nv)[model.v_slice(model.joint_index(joint))]]

    def blocks_of(self, model: Model) -> dict[tuple[str, str], Coefficients]:
        sizes = [model.joints[model.joint_index(joint)].nv for joint in self.joints]
        needed = len(self.chosen), sum(sizes)
        if self.matrix.shape != needed:
            raise InvalidInput(
                f"the matrix of {self.name!r} has shape {self.matrix.shape}, but {needed} is needed: "
                "motors × degrees of freedom of the joints"
            )
        return {("tau", j): self.matrix[:, part] for j, part in zip(self.joints, slices(sizes), strict=True)}

    def describe(self, model: Model | None = None) -> dict | None:
        if callable(self.offset):
            return None
        return {
            "type": "MotorTorque", "name": self.name, "components": list(self.chosen), "joints": list(self.joints),
            "matrix": self.matrix.tolist(), "bias": to_plain(self.offset),
            **({"passive": True, "slip": self.slip} if self.passive else {}),
            **({"optional": True} if self.optional else {}),
            **({"resistance": self._resistance(model)} if self.passive and model is not None else {}),
        }  # fmt: skip

    def _resistance(self, model: Model) -> list[list[float]]:
        places = self._places(model)
        return [model.damping[places].tolist(), model.friction[places].tolist()]


def _called(C: Coefficients, ctx: Context) -> np.ndarray:
    """Coefficients at the state, with entries float or Expr."""
    return scalars(C(ctx.q, ctx.qd) if callable(C) else C)


def scalars(values: Any) -> np.ndarray:
    """An array of Expr and Python floats."""
    values = np.asarray(values, dtype=object)
    result = np.empty(values.shape, dtype=object)
    for place, x in np.ndenumerate(values):
        result[place] = float(x) if isinstance(x, (int, float, np.number)) else x
    return result


def zeros(n: int) -> np.ndarray:
    """Zeros (n,) that Expr can be added to."""
    return np.zeros(n).astype(object)


def numbers(what: str, x, shape: tuple[int | None, ...]) -> np.ndarray:
    """Read-only float array of the shape from x; None in it for any length but 0. Raises InvalidInput."""
    x = finite_array(what, x, shape).copy()
    x.flags.writeable = False
    return x
