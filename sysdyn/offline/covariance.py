"""Covariances, multipliers and determinant of an estimate as expressions over its elimination.

With the inverse Z of the augmented matrix, the block of Z at the unknowns is their covariance, and the block of −Z at
the multipliers μ = Σ⁻¹ ε is the covariance of the multipliers; see `sysdyn.equations.augmented`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.diagnosis.null_space import MotionElimination
from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.offline.dense_estimate import Covariance, LinearTerms
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.sampling import sample_states
from sysdyn.program.graph import Scalar, is_constant, is_zero, strip_sign
from sysdyn.program.program import Guard, Program
from sysdyn.sparse.selected_inverse import SelectedInverse, abs_of

# A variance below this share of `SelectedInverse.error_scale` is rerun in double-double (above it errors of σ are below
# 1e-7; 9 % of the sampled states of 14 problems are below it, 22 % below 1e-5).
LEAST_SHARE = 1e-6
# A scalar is determined by the exact equations if its relative norm in their null space is below DETERMINED (ten
# problems: below 1e-11 or above 1e-5); number of random states at which it is computed, and their seed.
DETERMINED, NULL_SPACES, NULL_SPACE_SEED = 1e-8, 3, 5
# Output group of the guarded ratios.
SHARES = "shares"


class SymbolicCovariance(Covariance):
    """Statistics as expressions of an elimination. limits: {label of a pivot: (zero, fallback) thresholds}."""

    def __init__(self, elimination: Elimination, limits: Mapping[str, tuple[float, float]]):
        assert isinstance(elimination.system, AugmentedSystem)
        self.system, self._elimination, self._limits = elimination.system, elimination, limits
        self._inverse = SelectedInverse(elimination.factors, symmetric=True)
        self._guards: list[tuple[Scalar, float, str, float]] = []

    def output_rows(self, name: str) -> Sequence[LinearTerms]:
        return self._elimination.output_rows[name].rows

    def covariances(self, pairs: Sequence[tuple[LinearTerms, LinearTerms]]) -> list[Scalar]:
        rows = list({id(x): x for pair in pairs for x in pair}.values())
        variable = {id(x): x for x, share in zip(rows, self._free_shares(rows), strict=True) if share > DETERMINED}
        pairs = [(variable.get(id(x), {}), variable.get(id(y), {})) for x, y in pairs]
        Z = self._inverse.select({(i, j) for x, y in pairs for i in x for j in y}, self._begin)
        covariances = []
        for x, y in pairs:
            terms = [a * b * Z[i, j] for i, a in x.items() for j, b in y.items()]
            covariances.append(sum(terms, 0.0))
            if x is y:
                scales = [a * a * self._inverse.error_scale((i, i)) for i, a in x.items()]
                self._guard(covariances[-1], sum((abs_of(t) for t in terms if len(terms) > 1), sum(scales, 0.0)))
        return covariances

    def multipliers(self) -> list[Scalar]:
        solution = self._elimination.solution
        return [solution[i] for _, numbers in self.system.noise_numbers for i in numbers]

    def multiplier_covariances(self) -> list[Scalar]:
        pairs = [*self._multiplier_pairs()]
        Z, rows = self._inverse.select(pairs, self._begin), self._elimination.assembly.rows
        for i in {i for i, _ in pairs}:
            # the variance is 0 if no other equation is redundant with this one, so the scale is 1 / Σ_ii
            self._guard(1.0, self._inverse.error_scale((i, i)) * -rows[i][i])
        return [-Z[x] for x in pairs]

    def pivots(self) -> list[Scalar]:
        return list(self._elimination.factors.pivots)

    def program(self, groups: Sequence[tuple[str, list]]) -> Program:
        """The program of output groups, with guards against small pivots and cancellation."""
        elimination = self._elimination
        guards, shares = [*self._guards], [x for x, *_ in self._guards]
        for k, pivot in enumerate(elimination.factors.pivots):
            if not is_constant(pivot):
                zero, weak = self._limits.get(elimination.label(k), (0.0, 0.0))
                guards.append((strip_sign(pivot), zero, elimination.label(k), weak))
        groups = [*groups, (SHARES, shares)]  # the program drops values that no output depends on, and their guards
        return Program.from_graph(elimination.graph, elimination.assembly.inputs, groups, guards)

    def _free_shares(self, rows: Sequence[LinearTerms]) -> np.ndarray:
        """Relative norms (len(rows),) of scalars in the null space of the exact equations, maxima over random states.

        A scalar of share 0 is determined by the exact equations: its variance is zero.
        """
        assembly, plain = self._elimination.assembly, self.system.plain
        coefficients = [x for row in rows for x in row.values()]
        program = Program.from_graph(assembly.graph, assembly.inputs, [("coefficients", coefficients)])
        states = {name: x[::2] for name, x in sample_states(plain.problem, 2 * NULL_SPACES, NULL_SPACE_SEED).items()}
        places = [k for k, row in enumerate(rows) for _ in row], [i for row in rows for i in row]
        scaled, exact = np.zeros((len(rows), plain.shape[1])), MotionElimination(plain, ~plain.noisy_mask)
        shares, entries = np.zeros(len(rows)), plain.values_at(states, NULL_SPACES)[0]
        for x, D in zip(interpreter.run_groups(program, states)["coefficients"], entries, strict=True):
            scaled[places] = x * plain.scaling[1][places[1]]
            sizes, free = (np.linalg.norm(y, axis=1) for y in (scaled, scaled @ exact.at(D).right))
            shares = np.maximum(shares, free / np.where(sizes > 0.0, sizes, 1.0))
        return shares

    def _guard(self, x: Scalar, size: Scalar) -> None:
        """Guard against cancellation: states with small |x| / `size` are rerun in double-double arithmetic.

        If rounded constants of the program still affect the rerun, the result is the dense estimate of the original
        equations.
        """
        if not (is_zero(x) or is_zero(size) or (is_constant(x) and is_constant(size))):
            self._guards.append((strip_sign(x / size), 0.0, "cancellation in a variance", LEAST_SHARE))

    def _begin(self, k: int) -> None:
        """Begin a new code segment if pivot k belongs to another body than the previous pivot."""
        body = self.system.tree_node[self._elimination.factors.col_perm[k]]
        if body != self._body:
            self._elimination.graph.cut()
        self._body = body

    _body = -2


def limits_of(guards: Sequence[Guard]) -> dict[str, tuple[float, float]]:
    """{label of a pivot: thresholds}, the argument `limits` of `SymbolicCovariance`."""
    return {x.label: (x.threshold, x.weak) for x in guards}
