"""The form of a problem's equations: their unknowns, the passes that were applied, their frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sysdyn.equations.frames import Frames
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.statement import Statement
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model


@dataclass(frozen=True, eq=False)
class Form:
    """How the equations of a problem are written.

    layout: their unknowns. known: "rows" or "substituted". passes: those that were applied. moved: the model whose
    equations of motion they are. frames: of the unknowns. outputs: measurements whose values are wanted.
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
        """Whether a is that of the origins of bodies."""
        return "classical_accelerations" in self.passes
