"""The form of a problem's equations: their unknowns, the passes that apply to them, their frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sysdyn.equations.frames import Frames
from sysdyn.equations.turned_joints import layout as layout_of
from sysdyn.errors import UnknownName
from sysdyn.measurements.measurement import Context
from sysdyn.measurements.noise import ModelNoise, Wrapped
from sysdyn.measurements.raw import RawMeasurement
from sysdyn.measurements.statement import Statement
from sysdyn.measurements.variables import COMPONENTS, Layout
from sysdyn.model import Model
from sysdyn.model.base_parameters import regrouped
from sysdyn.model.canonical import canonical, moves_frames
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.passes import ELIMINATION, named_passes

KNOWN = ("rows", "substituted")


@dataclass(frozen=True, eq=False)
class Form:
    """How the equations of a problem are written.

    layout: their unknowns. known: "rows" or "substituted". passes: those that apply. moved: the model whose equations
    of motion they are. frames: of the unknowns.
    """

    problem: Statement
    layout: Layout
    known: str
    passes: tuple[str, ...]
    moved: Model
    frames: Frames

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
        """Whether a is that of the origins of bodies."""
        return "classical_accelerations" in self.passes


def form(
    problem: Statement, layout: str, known: str, turn: bool, passes: Sequence[str], outputs: Sequence[str]
) -> Form:
    """The form that `BlockSystem` describes. Raises UnknownName."""
    if known not in KNOWN:
        raise UnknownName("treatment of known quantities", known, KNOWN)
    applied = applicable(problem, known, named_passes(passes), outputs)
    moved, frames = problem.model, Frames()
    if "canonical_frames" in applied:
        moved, X = canonical(moved, kept_bodies(problem))
        frames = Frames(X, noisy_wrenches(problem))
    if "base_parameters" in applied:
        moved = regrouped(moved, kept=measured(problem, "f"))
    return Form(problem, layout_of(problem, layout, turn), known, applied, moved, frames)


def applicable(problem: Statement, known: str, passes: Sequence[str], outputs: Sequence[str]) -> tuple[str, ...]:
    """Those of the passes that leave the outputs, and what is known and measured, as they are."""
    fixed, estimated = bool(problem.parameters), bool(problem.noisy)
    here = {
        "canonical_frames": not fixed and known == "rows" and moves_frames(problem.model, kept_bodies(problem)),
        "base_parameters": not fixed and not estimated and "f" not in outputs and not problem.knows("f"),
        "classical_accelerations": not fixed and "a" not in outputs and not problem.knows("a"),
        "symmetric_elimination": True,
    }
    return tuple(x for x in ELIMINATION if x in passes and here[x])


def measured(problem: Statement, quantity: str) -> set[int]:
    """Bodies whose `quantity` is in an equation of a measurement."""
    model = problem.model
    if not problem.custom:
        return set()
    q, qd, _ = (x.astype(object) for x in model.random_state(seed=0))
    X = joint_transforms(model, q)
    context = Context(model, X, velocities(model, X, qd)[0], q, qd)
    rows = [m.rows(context) for m in problem.custom]
    return {model.body_index(owner) for blocks in rows for x, owner in blocks if x == quantity}


def kept_bodies(problem: Statement) -> frozenset[int]:
    """Bodies that keep their frames: their equations have noise, which is declared in these.

    Rows turned back have more entries than they save: 133,900 operations instead of 112,800 for the iCub where all
    equations of motion are noisy.
    """
    noise = (m for m in problem.noisy if isinstance(m, ModelNoise))
    return frozenset(i for m in noise for quantity, i in m.blocks(problem.model) if quantity in COMPONENTS)


def noisy_wrenches(problem: Statement) -> frozenset[int]:
    """Bodies whose fx is stated with noise: rows with one entry there would have up to six in another frame."""
    stated = (m.of if isinstance(m, Wrapped) else m for m in problem.noisy)
    wrenches = (m for m in stated if isinstance(m, RawMeasurement) and m.quantity == "fx")
    return frozenset(i for m in wrenches for i, _ in m.pairs(problem.model))
