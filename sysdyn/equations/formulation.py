"""The formulation of a problem's equations: which unknowns they have, in which frames, and of which model.

A reduction (a pass of `sysdyn.passes`) maps a formulation to a reduced one, or returns None if it does not apply. It
acts before rows are written, so that the entries are as sparse as the reduced model permits. It changes the unknowns by
a linear map: `Formulation.output_terms` expresses the scalars of a quantity in the changed unknowns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sysdyn.equations.propagated_unknowns import propagated_blocks
from sysdyn.errors import check_among
from sysdyn.measurements.known_quantities import RawMeasurement
from sysdyn.measurements.measurement import Context, Measurement, Output
from sysdyn.measurements.noise import ModelNoise
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.model.normal_form import canonical_frames, changes_frames, regroup
from sysdyn.model.quantities import QUANTITIES, QUANTITY, is_spatial
from sysdyn.model.se3 import X_inverse
from sysdyn.passes import PAPER, named_passes

# Treatments of known quantities: rows x = y, or substituted into b.
KNOWN = ("rows", "substituted")
# Greatest relative difference of coefficients and bias that is a rounding error (between rounding and motion).
GALILEAN_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Formulation:
    """Unknowns, frames and model of a problem's equations.

    known: "rows" or "substituted". passes: the reductions that were applied. reduced_model: the model whose equations
    of motion are written. frames (nb, 6, 6): motion transforms from body frames to equation frames, in which a, f and
    fx are unknowns; None if the two are equal. fx_in_body_frame: bodies whose fx stays in the body frame. outputs:
    measurements whose values are outputs.
    """

    problem: Problem
    layout: Layout
    known: str
    passes: tuple[str, ...]
    reduced_model: Model
    frames: np.ndarray | None = None
    fx_in_body_frame: frozenset[int] = frozenset()
    outputs: tuple[Measurement, ...] = ()

    @cached_property
    def columns(self) -> list[int]:
        """Number in the layout of each scalar unknown that has a column."""
        if self.known == "rows":
            return list(range(self.layout.n))
        columns, model = self.layout.columns, self.problem.model
        known = {columns(m.quantity, i)[k] for m in self.problem.raw for i, k in m.pairs(model)}
        return [c for c in range(self.layout.n) if c not in known]

    @property
    def classical(self) -> bool:
        """True if a is the classical acceleration of the body origins."""
        return "classical_accelerations" in self.passes

    @cached_property
    def galilean_outputs(self) -> tuple[bool, ...]:
        """True for each output that does not depend on linear velocities; all False unless a is classical."""
        return tuple(self.classical and galilean_invariant(self.problem.model, m) for m in self.outputs)

    def from_equation_frame(self, quantity: str, body: int) -> np.ndarray | None:
        """Transform (6, 6) of a quantity from the equation frame to the body frame; None if they are equal."""
        if self.frames is None or not is_spatial(quantity) or (quantity == "fx" and body in self.fx_in_body_frame):
            return None
        X = self.frames[body]
        return (X.T if QUANTITY[quantity].is_force else X_inverse(X)).astype(object)

    def to_equation_frame(self, quantity: str, body: int) -> np.ndarray:
        """Transform (6, 6) of a quantity from the body frame to the equation frame."""
        assert self.frames is not None
        X = self.frames[body]
        return (X_inverse(X).T if QUANTITY[quantity].is_force else X).astype(object)

    def rows_for_known(self, quantity: str, body: int, components: list[int], x: list) -> tuple[np.ndarray, list]:
        """(rows (m, size), values (m)) of equations that fix m `components` of a block at the values x."""
        transform, size = self.from_equation_frame(quantity, body), self.layout.size(quantity, body)
        if transform is not None and components != list(range(6)):
            return transform[components], x
        if transform is not None:
            x = list(self.to_equation_frame(quantity, body) @ np.array(x, dtype=object))
        return np.array([[1.0 if i == k else 0.0 for i in range(size)] for k in components], dtype=object), x

    def output_terms(self, quantity: str) -> list[dict[int, float]]:
        """Each scalar of a quantity, in its body's frame, as {column: coefficient}.

        Empty for scalars without a column; if frames were changed, also for known scalars.
        """
        known = self.problem.knows(quantity) if self.frames is not None else frozenset()
        column = {c: k for k, c in enumerate(self.columns)}
        terms: list[dict[int, float]] = []
        for body in (i for x, i in self.layout.blocks if x == quantity):
            columns = [column.get(c) for c in self.layout.columns(quantity, body)]
            transform = self.from_equation_frame(quantity, body)
            unit = np.eye(len(columns)) if transform is None else transform
            for k in range(len(columns)):
                row = {} if (body, k) in known else zip(columns, unit[k], strict=True)
                terms.append({c: float(x) for c, x in row if c is not None and x != 0.0})
        return terms


def formulate(
    problem: Problem, layout: str = "paper", known: str = "rows", propagate: bool = False,
    passes: Sequence[str] = PAPER, outputs: Sequence[Output] = QUANTITIES,
) -> Formulation:  # fmt: skip
    """The paper's formulation, reduced by the passes that apply to the problem. Raises UnknownName.

    layout, known, propagate, outputs: see `sysdyn.assemble`.
    """
    check_among("treatment of known quantities", known, KNOWN)
    measurements = tuple(x for x in outputs if isinstance(x, Measurement))
    unknowns = problem.layout(layout)
    if propagate:
        unknowns = replace(unknowns, propagated=propagated_blocks(problem))
    form = Formulation(problem, unknowns, known, (), problem.model, outputs=measurements)
    for name, reduce in REDUCTIONS.items():
        reduced = reduce(form, outputs) if name in named_passes(passes) else None
        form = form if reduced is None else replace(reduced, passes=(*form.passes, name))
    return form


def _canonical_frames(form: Formulation, outputs: Sequence[Output]) -> Formulation | None:
    """Choose frames whose z is the joint axis, except for bodies with noisy equations of motion.

    Changed frames add entries to noisy rows and cost more than canonical frames save: 133,900 operations instead of
    112,800 for the iCub if all equations of motion are noisy.
    """
    noise = form.problem.noisy
    blocks = [block for m in noise if isinstance(m, ModelNoise) for block in m.blocks(form.problem.model)]
    fixed = frozenset(i for quantity, i in blocks if is_spatial(quantity))
    if form.problem.parameters or form.known != "rows" or not changes_frames(form.problem.model, fixed):
        return None
    model, frames = canonical_frames(form.reduced_model, fixed)
    # a noisy row of fx has one entry in the body's frame, up to six in another
    wrenches = [m for m in noise if isinstance(m, RawMeasurement) and m.quantity == "fx"]
    in_body_frame = frozenset(i for m in wrenches for i, _ in m.pairs(form.problem.model))
    return replace(form, reduced_model=model, frames=frames, fx_in_body_frame=in_body_frame)


def _base_parameters(form: Formulation, outputs: Sequence[Output]) -> Formulation | None:
    """Regroup unidentifiable inertial parameters with the parent's, except for bodies whose f is measured."""
    problem = form.problem
    if problem.parameters or problem.noisy or "f" in outputs or problem.knows("f"):
        return None
    blocks = blocks_of(problem.model, (*problem.custom, *form.outputs))
    return replace(form, reduced_model=regroup(form.reduced_model, keep={i for x, i in blocks if x == "f"}))


def _classical_accelerations(form: Formulation, outputs: Sequence[Output]) -> Formulation | None:
    return None if form.problem.parameters or "a" in outputs or form.problem.knows("a") else form


def _symmetric_elimination(form: Formulation, outputs: Sequence[Output]) -> Formulation | None:
    return form


# Reductions in the order of their application.
REDUCTIONS: dict[str, Callable[[Formulation, Sequence[Output]], Formulation | None]] = {
    "canonical_frames": _canonical_frames,
    "base_parameters": _base_parameters,
    "classical_accelerations": _classical_accelerations,
    "symmetric_elimination": _symmetric_elimination,
}


def blocks_of(model: Model, measurements: Sequence[Measurement]) -> set[tuple[str, int]]:
    """(quantity, body) of each block in the equations of measurements."""
    if not measurements:
        return set()
    q, qd, _ = (x.astype(object) for x in model.random_state(seed=0))
    context, layout = Context.at(model, q, qd), Layout(model)
    return {layout.block(*block) for m in measurements for block in m.rows(context)}


def galilean_invariant(model: Model, m: Measurement) -> bool:
    """True if the value of a measurement is independent of linear velocities, given the classical acceleration a_c.

    An observer in uniform motion measures the same value. With a = a_c + [0; v × ω] it is Y a_c + (Y [0; v × ω] + b_Y).
    Y and the bracket are compared at one random state with two sets of linear velocities.
    """
    q, qd, _ = model.random_state(seed=5)
    X = joint_transforms(model, q)
    v = velocities(model, X, qd)[0]
    rng = np.random.default_rng(5)
    values = []
    for velocity in (v, [np.concatenate([x[:3], rng.standard_normal(3)]) for x in v]):
        context = Context(model, X, [x.astype(object) for x in velocity], q.astype(object), qd.astype(object))
        bias, blocks = np.asarray(m.bias(context), dtype=float), []
        for (quantity, owner), coefficients in m.rows(context).items():
            block = np.asarray(coefficients, dtype=float)
            if quantity == "a":
                x = velocity[model.body_index(owner)]
                bias = bias + block[:, 3:] @ np.cross(x[3:], x[:3])
            blocks.append(block.ravel())
        values.append(np.concatenate([bias, *blocks]))
    return bool(np.abs(values[1] - values[0]).max() <= GALILEAN_TOLERANCE * np.abs(values[0]).max())
