"""The passes of a system of equations, one after the other: each says when it applies and applies itself.

The way back from its unknowns is left in the form (`Form.frames`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from sysdyn.equations.form import Form
from sysdyn.equations.frames import Frames
from sysdyn.equations.turned_joints import layout as layout_of
from sysdyn.errors import check_among
from sysdyn.measurements.measurement import Context, Measurement, Output
from sysdyn.measurements.noise import ModelNoise, Wrapped
from sysdyn.measurements.raw import RawMeasurement
from sysdyn.measurements.statement import Statement
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.normal_form import canonical_frames, changes_frames, regroup
from sysdyn.model.quantities import is_spatial
from sysdyn.passes import named_passes

# Treatments of known quantities: rows x = y, or substituted into b.
KNOWN = ("rows", "substituted")


class SystemPass(ABC):
    """A pass of a system of equations."""

    name: ClassVar[str]  # one of `sysdyn.passes`

    @abstractmethod
    def applies(self, form: Form, outputs: Sequence[Output]) -> bool:
        """True if the equations it makes still give the outputs and hold the known and measured quantities."""

    def apply(self, form: Form) -> Form:
        """The form of the equations after the pass."""
        return form


class CanonicalFrames(SystemPass):
    name = "canonical_frames"

    def applies(self, form: Form, outputs: Sequence[Output]) -> bool:
        kept = kept_bodies(form.problem)
        return not form.problem.parameters and form.known == "rows" and changes_frames(form.problem.model, kept)

    def apply(self, form: Form) -> Form:
        moved, X = canonical_frames(form.moved, kept_bodies(form.problem))
        return replace(form, moved=moved, frames=Frames(X, noisy_wrenches(form.problem)))


class BaseParameters(SystemPass):
    name = "base_parameters"

    def applies(self, form: Form, outputs: Sequence[Output]) -> bool:
        problem = form.problem
        return not problem.parameters and not problem.noisy and "f" not in outputs and not problem.knows("f")

    def apply(self, form: Form) -> Form:
        return replace(form, moved=regroup(form.moved, keep=measured(form.problem, "f", form.outputs)))


class ClassicalAccelerations(SystemPass):
    name = "classical_accelerations"

    def applies(self, form: Form, outputs: Sequence[Output]) -> bool:
        return not form.problem.parameters and "a" not in outputs and not form.problem.knows("a")


class SymmetricElimination(SystemPass):
    name = "symmetric_elimination"

    def applies(self, form: Form, outputs: Sequence[Output]) -> bool:
        return True


# Passes, in the order of their application.
SYSTEM_PASSES: tuple[SystemPass, ...] = (
    CanonicalFrames(), BaseParameters(), ClassicalAccelerations(), SymmetricElimination(),
)  # fmt: skip


def form(
    problem: Statement, layout: str, known: str, turn: bool, passes: Sequence[str], outputs: Sequence[Output]
) -> Form:
    """The form that `BlockSystem` describes: the plain one after all passes that apply. Raises UnknownName.

    Measurements among the outputs are written in the unknowns after the passes.
    """
    check_among("treatment of known quantities", known, KNOWN)
    wanted = named_passes(passes)
    shown = tuple(x for x in outputs if isinstance(x, Measurement))
    found = Form(problem, layout_of(problem, layout, turn), known, (), problem.model, Frames(), shown)
    for step in SYSTEM_PASSES:
        if step.name in wanted and step.applies(found, outputs):
            found = replace(step.apply(found), passes=(*found.passes, step.name))
    return found


def measured(problem: Statement, quantity: str, outputs: Sequence[Measurement] = ()) -> set[int]:
    """Bodies whose `quantity` is in an equation of a measurement, also of one that is an output."""
    return {i for x, i in involved(problem.model, (*problem.custom, *outputs)) if x == quantity}


def involved(model: Model, measurements: Sequence[Measurement]) -> set[tuple[str, int]]:
    """(quantity, body) of the blocks that the equations of measurements are about."""
    if not measurements:
        return set()
    q, qd, _ = (x.astype(object) for x in model.random_state(seed=0))
    context = Context.at(model, q, qd)
    layout = Layout(model)
    return {layout.block(*block) for m in measurements for block in m.rows(context)}


def kept_bodies(problem: Statement) -> frozenset[int]:
    """Bodies that keep their frames: their equations have noise, which is declared in these.

    Rows turned back have more entries than they save: 133,900 operations instead of 112,800 for the iCub if all
    equations of motion are noisy.
    """
    noise = (m for m in problem.noisy if isinstance(m, ModelNoise))
    return frozenset(i for m in noise for quantity, i in m.blocks(problem.model) if is_spatial(quantity))


def noisy_wrenches(problem: Statement) -> frozenset[int]:
    """Bodies whose fx is stated with noise: rows with one entry there would have up to six in another frame."""
    stated = (m.of if isinstance(m, Wrapped) else m for m in problem.noisy)
    wrenches = (m for m in stated if isinstance(m, RawMeasurement) and m.quantity == "fx")
    return frozenset(i for m in wrenches for i, _ in m.pairs(problem.model))
