"""The augmented system of an estimation problem: maximum a posteriori with exact equations kept exact.

Of all equations E d + e = 0 are exact and Y d + y₀ = ε, ε ~ N(0, Σ), are noisy. The estimate minimises
½ ε^T Σ⁻¹ ε over the d that satisfy the exact ones; with multipliers λ and μ = Σ⁻¹ ε it solves

    E^T λ + Y^T μ = 0        (stationarity, one equation for each unknown)
    E d + e = 0
    Y d + y₀ − Σ μ = 0

This is symmetric, linear in Σ, and as well posed for Σ → 0 as the exact problem. The block of its inverse that belongs
to d is the posterior covariance. Björck (1996), section 2.5; Golub and Van Loan (2013), section 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.equations.assembly import Assembly
from sysdyn.equations.block_system import BlockSystem
from sysdyn.measurements.noise import Noise, noise_of
from sysdyn.measurements.statement import Statement
from sysdyn.measurements.variables import QUANTITIES, Layout
from sysdyn.passes import PAPER, named_passes
from sysdyn.program.expr import Graph
from sysdyn.sparse.condition import equilibration


@dataclass(frozen=True)
class AugmentedLayout(Layout):
    """The unknowns of the problem, and a multiplier for each of its equations."""

    multipliers: int = 0

    @property
    def n(self) -> int:
        return Layout.n.fget(self) + self.multipliers


class AugmentedSystem(BlockSystem):
    """Equations and unknowns of a problem with noise: symmetric, unknowns first, then one multiplier an equation."""

    def __init__(
        self, problem, layout: str = "paper", known: str = "rows", passes: Sequence[str] = PAPER,
        outputs: Sequence[str] = QUANTITIES,
    ):  # fmt: skip
        super().__init__(problem, layout, known, passes=passes, outputs=outputs)
        self._equations = BlockSystem(problem, layout, known, passes=passes, outputs=outputs)
        rows = len(self.plain.assembly.rows)
        n = len(self.plain.columns)
        self.n_unknowns = n
        self.columns = [*self.plain.columns, *range(self.layout.n, self.layout.n + rows)]
        self.layout = AugmentedLayout(self.model, layout, self.layout.constraints, multipliers=rows)
        self.col_names = (*self.plain.col_names, *(f"multiplier of {name}" for name in self.plain.row_names))
        self.body_of = [*self._bodies_of_columns(), *self._bodies_of_rows()]
        multipliers = (("multiplier", body) for body in self.body_of[n:])
        self.col_blocks = (*self.plain.col_blocks, *multipliers)

    @property
    def plain(self) -> BlockSystem:
        return self._equations

    def _bodies_of_columns(self) -> list[int]:
        """The body that each unknown belongs to; a wrench of a constraint to those that it loads."""
        found = [block[1] for block in self.plain.col_blocks]
        for c in (c for c, block in enumerate(self.plain.col_blocks) if block[0] == "w"):
            rows = zip(self.plain.row_blocks, self.plain.assembly.rows, strict=True)
            found[c] = self._body_of({block[1] for block, row in rows if c in row})
        return found

    def _bodies_of_rows(self) -> list[int]:
        """The body that each row belongs to."""
        body = [block[1] for block in self.plain.col_blocks]
        rows = zip(self.plain.row_blocks, self.plain.assembly.rows, strict=True)
        return [block[1] if block[0] != "y" else self._body_of({body[c] for c in row}) for block, row in rows]

    def _body_of(self, bodies: set[int]) -> int:
        """The far end of the path that something is about, or where its branches meet."""
        parent = self.model.parent
        deepest = common = max(bodies, default=-1)
        for i in bodies:
            common = _common_ancestor(parent, common, i)
        return deepest if bodies <= set(_ancestors(parent, deepest)) else common

    @property
    def noise(self) -> Mapping[int, tuple]:
        """{multiplier's number: (noise, component)} of the noisy equations."""
        return {self.n_unknowns + r: x for r, x in self.plain.noisy.items()}

    @property
    def row_names(self) -> tuple[str, ...]:
        return (*(f"stationarity of {name}" for name in self.plain.col_names), *self.plain.row_names)

    @property
    def row_blocks(self) -> tuple[tuple[str, int], ...]:
        return (*(("stationarity", block[1]) for block in self.plain.col_blocks), *self.plain.row_blocks)

    def assemble(self, graph: Graph, mark: bool = False) -> Assembly:
        plain = super().assemble(graph, mark)
        n = self.n_unknowns
        rows: list[dict[int, object]] = [{} for _ in range(n)]
        rows += [dict(row) for row in plain.rows]
        for r, row in enumerate(plain.rows):
            for c, x in row.items():
                rows[c][n + r] = x
        b = [*(0.0 for _ in range(n)), *plain.b]
        members: dict[str, dict[int, int]] = {}  # by component of each covariance, the number of its multiplier
        for r, (noise, k) in self.plain.noisy.items():
            members.setdefault(noise.group, {})[k] = n + r
        switches = {f"noise:{m.name}": m for m in self.problem.switchable}
        inputs = []
        for noise in self.noises:
            numbers, place = graph.inputs(noise.group, noise.scalars), members.get(noise.group, {})
            inputs.append((noise.group, numbers))
            for k, i in place.items():
                for l, j in place.items():
                    if k == l or noise.full:
                        rows[i][j] = -noise.entry(numbers, k, l)
        for group, m in switches.items():
            place = members.get(group, {})
            active = graph.inputs(m.group, len(place))
            inputs.append((m.group, active))
            for k, i in place.items():
                self._switch(rows, b, i, active[k])
        return Assembly(graph, (*plain.inputs, *inputs), rows, b)

    @staticmethod
    def _switch(rows: list[dict[int, object]], b: list, i: int, active) -> None:
        """Equation i as it is where `active` is 1; −μ_i = 0, without any other unknown, where it is 0."""
        for j, x in rows[i].items():
            if j == i:
                rows[i][i] = x * active - (1.0 - active)
            else:
                rows[i][j] = x * active
                rows[j][i] = rows[j][i] * active
        b[i] = b[i] * active

    def values(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """As of any system; covariances that are missing are those declared, switches that are missing are on."""
        return super().values({**self.declared, **inputs})

    @cached_property
    def _covariance(self) -> np.ndarray:
        """(nnz) bool: the entry is one of Σ."""
        return (self.coordinates[0] >= self.n_unknowns) & (self.coordinates[1] >= self.n_unknowns)

    @cached_property
    def variances(self) -> np.ndarray:
        """(nnz) bool: the entry is on the diagonal of Σ."""
        return self._covariance & (self.coordinates[0] == self.coordinates[1])

    @cached_property
    def _scaling(self) -> tuple[np.ndarray, np.ndarray]:
        q, qd, _ = self.model.random_state(seed=7, batch=4)
        size = np.abs(self.values({"q": q, "qd": qd})[0]).max(axis=0)
        rows, columns = equilibration(*self.coordinates, np.where(self._covariance, 0.0, size), self.shape)
        both = np.sqrt(rows * columns)
        return both, both

    def scaled(self, entries: np.ndarray) -> scipy.sparse.csr_matrix:
        """As of any system, with Σ = 1: whether there is one estimate does not depend on Σ."""
        scale, (r, c) = self._scaling[0], self.coordinates
        return self.matrix(np.where(self._covariance, np.where(r == c, -1.0, 0.0), entries * scale[r] * scale[c]))

    @cached_property
    def declared(self) -> dict[str, np.ndarray]:
        """Numbers of the declared covariances, and switches that are on, by group of inputs."""
        on = {m.group: np.ones(len(m.components(self.model))) for m in self.problem.switchable}
        return {**{noise.group: noise.declared for noise in self.noises}, **on}

    @property
    def noises(self) -> list[Noise]:
        """The covariances, each once, in the order of the problem."""
        return [noise_of(m, self.model) for m in self.problem.noisy]


def system(
    problem: Statement, layout: str = "paper", known: str = "rows", turn: bool = False,
    passes: Sequence[str] = PAPER, outputs: Sequence[str] = QUANTITIES,
) -> BlockSystem:  # fmt: skip
    """The equations of a problem: an AugmentedSystem where some are noisy, see `Problem.system`.

    The problem keeps them: calls with the same arguments give the same object.
    """
    chosen, kinds = named_passes(passes), tuple(outputs)

    def make() -> BlockSystem:
        if problem.noisy:
            return AugmentedSystem(problem, layout, known, chosen, kinds)
        return BlockSystem(problem, layout, known, turn, chosen, kinds)

    return problem.kept((layout, known, turn, chosen, kinds), make)


def _ancestors(parent, i: int) -> list[int]:
    found = []
    while i >= 0:
        found.append(i)
        i = parent[i]
    return found


def _common_ancestor(parent, i: int, j: int) -> int:
    while i != j:
        if i > j:
            i = parent[i]
        else:
            j = parent[j]
    return i
