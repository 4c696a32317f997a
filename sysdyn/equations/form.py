"""The form of a problem's equations: their unknowns, the passes that were applied, their frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sysdyn.equations.frames import Frames
from sysdyn.measurements.measurement import Context, Measurement
from sysdyn.measurements.statement import Statement
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms, velocities

# Difference of coefficients and bias below which an output does not depend on linear velocities, as a share of the
# greatest of them: between rounding and motion (chosen).
UNIFORM = 1e-9
# Seed of the state at which they are compared (chosen).
UNIFORM_SEED = 5


@dataclass(frozen=True, eq=False)
class Form:
    """Choices by which the equations of a problem are written.

    layout: their unknowns. known: "rows" or "substituted". passes: the applied ones. moved: the model whose equations
    of motion they are. frames: of the unknowns. outputs: measurements whose values are wanted.
    """

    problem: Statement
    layout: Layout
    known: str
    passes: tuple[str, ...]
    moved: Model
    frames: Frames
    outputs: tuple[Measurement, ...] = ()

    @cached_property
    def columns(self) -> list[int]:
        """Numbers in the full layout of the scalar unknowns that have a column."""
        if self.known == "rows":
            return list(range(self.layout.n))
        columns, model = self.layout.columns, self.problem.model
        stated = {columns(m.quantity, i)[k] for m in self.problem.raw for i, k in m.pairs(model)}
        return [c for c in range(self.layout.n) if c not in stated]

    @property
    def classical(self) -> bool:
        """True if a is the classical acceleration of the origins of bodies."""
        return "classical_accelerations" in self.passes

    @cached_property
    def uniform(self) -> tuple[bool, ...]:
        """True for each output that is independent of the linear velocities of all bodies, a being classical."""
        return tuple(is_uniform(self.problem.model, m) for m in self.outputs)


def is_uniform(model: Model, m: Measurement) -> bool:
    """True if the value of a measurement is independent of linear velocities, given the classical acceleration a_c.

    An observer in uniform motion sees such values alike. With a = a_c + [0; v × ω], ŷ = Y a_c + Y [0; v × ω] + b_Y: Y
    and the rest are compared at a random state, with the linear velocities that it has and with others.
    """
    q, qd, _ = model.random_state(seed=UNIFORM_SEED)
    X = joint_transforms(model, q)
    v = velocities(model, X, qd)[0]
    rng = np.random.default_rng(UNIFORM_SEED)
    found = []
    for given in (v, [np.concatenate([x[:3], rng.standard_normal(3)]) for x in v]):
        context = Context(model, X, [x.astype(object) for x in given], q.astype(object), qd.astype(object))
        bias, blocks = np.asarray(m.bias(context), dtype=float), []
        for (quantity, owner), coefficients in m.rows(context).items():
            block = np.asarray(coefficients, dtype=float)
            if quantity == "a":
                x = given[model.body_index(owner)]
                bias = bias + block[:, 3:] @ np.cross(x[3:], x[:3])
            blocks.append(block.ravel())
        found.append(np.concatenate([bias, *blocks]))
    return bool(np.abs(found[1] - found[0]).max() <= UNIFORM * np.abs(found[0]).max())
