"""Equations solved in 50 digits at one state, beside which answers are held: means, variances, multipliers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from typing import NamedTuple

import decimals
import numpy as np

import sysdyn as sd
from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.system import System
from sysdyn.measurements.input_names import value_group
from sysdyn.offline.check import VANISHING

# A pivot is at least this share of its row, of the rows with fewest entries this many are looked at.
SHARE, LOOKED_AT = Decimal("1e-3"), 6
# Share of the greatest standard deviation of all unknowns and measurements below which one counts as zero: of variances
# 1e-22.
CERTAIN = 1e-11


def _evaluated(system: System, inputs: dict[str, np.ndarray]) -> list[Decimal]:
    """Entries of D, then b, at one state; inputs (size,) by group, zero or as declared if left out."""
    inputs = inputs | {"q": system.model.normalise(np.ravel(inputs["q"])[None])[0]}
    defaults = {x: group.default for x, group in system.problem.inputs.items() if group.default is not None}
    given = {x: (defaults | inputs).get(x, np.zeros(size)) for x, size in system.program.inputs.sizes.items()}
    return decimals.run(system.program, given)


def left_over(system: System, inputs: dict[str, np.ndarray], d: np.ndarray) -> np.ndarray:
    """D d + b (equations,) at one state, rounded once; inputs (size,) by group, d (columns of D,)."""
    out = _evaluated(system, inputs)
    with localcontext(decimals.DIGITS):
        total, exact = out[system.nnz :], [Decimal(x) for x in d.tolist()]
        for r, c, x in zip(*(x.tolist() for x in system.coordinates), out[: system.nnz], strict=True):
            total[r] += x * exact[c]
    return np.array([float(x) for x in total])


class Digits:
    """The solution of D d + b = 0, and columns of −D⁻¹, of a system at one state; inputs (size,) by group.

    columns: the numbers j of the unit vectors e_j that D x + e_j = 0 is solved for, too. rows: of the equations that
    are solved, all if None. entries, b: of D, in the order of the system's coordinates, and b, rounded once.
    """

    def __init__(
        self, system: System, inputs: dict[str, np.ndarray], columns: Sequence[int] = (),
        rows: Sequence[int] | np.ndarray | None = None,
    ):  # fmt: skip
        out = _evaluated(system, inputs)
        self.system, n, nnz = system, system.shape[0], system.nnz
        self.entries, self.b = (np.array([float(x) for x in part]) for part in (out[:nnz], out[nnz:]))
        left: list[dict[int, Decimal]] = [{} for _ in range(n)]
        for r, c, x in zip(*(x.tolist() for x in system.coordinates), out[:nnz], strict=True):
            if x:
                left[r][c] = x
        right: list[dict[int, Decimal]] = [{0: x} if x else {} for x in out[nnz:]]
        for k, j in enumerate(columns, 1):
            right[j][k] = Decimal(1)
        kept = range(n) if rows is None else rows
        with localcontext(decimals.DIGITS):
            self.log_determinant, self._x = _solved([left[i] for i in kept], [right[i] for i in kept])

    def value(self, unknown: int, k: int = 0) -> float:
        """The unknown of this number among columns of D; k: of the right-hand side, b or the k-th unit vector."""
        return float(self._x[unknown].get(k, Decimal(0)))

    def quantity(self, name: str, k: int = 0) -> np.ndarray:
        """The components of a quantity that are unknowns."""
        system = self.system
        place = {c: j for j, c in enumerate(system.columns)}
        return np.array([self.value(place[c], k) for c in system.layout.quantity_columns(name) if c in place])


def _solved(rows: list[dict], right: list[dict]) -> tuple[float, dict[int, dict]]:
    """(log |det D|, {unknown: {right-hand side: value}}); raises ZeroDivisionError if D is exactly singular."""
    holding: list[set[int]] = [set() for _ in rows]
    for i, row in enumerate(rows):
        for c in row:
            holding[c].add(i)
    left, order, log = set(range(len(rows))), [], 0.0
    for _ in rows:
        options = []
        for i in sorted(left, key=lambda i: len(rows[i]))[:LOOKED_AT]:
            if not rows[i]:
                raise ZeroDivisionError("singular")
            least = SHARE * max(map(abs, rows[i].values()))
            found = [((len(rows[i]) - 1) * (len(holding[c]) - 1), i, c) for c, x in rows[i].items() if abs(x) >= least]
            options.append(min(found))
        _, i, c = min(options)
        left.discard(i)
        order.append((i, c))
        log += float(abs(rows[i][c]).ln())
        for j in rows[i]:
            holding[j].discard(i)
        for r in holding[c]:
            factor = rows[r].pop(c) / rows[i][c]
            for j, x in rows[i].items():
                if j != c:
                    rows[r][j] = rows[r].get(j, Decimal(0)) - factor * x
                    holding[j].add(r)
            for k, x in right[i].items():
                right[r][k] = right[r].get(k, Decimal(0)) - factor * x
        holding[c] = set()
    found: dict[int, dict] = {}
    for i, c in reversed(order):
        total = dict(right[i])
        for j, x in rows[i].items():
            if j != c:
                for k, y in found[j].items():
                    total[k] = total.get(k, Decimal(0)) + x * y
        found[c] = {k: -x / rows[i][c] for k, x in total.items()}
    return log, found


def greatest(arrays: Iterable[np.ndarray]) -> float:
    """The greatest absolute value in any of the arrays; 0 without one."""
    return max((float(np.abs(x).max(initial=0.0)) for x in arrays), default=0.0)


def relative(found: np.ndarray, expected: np.ndarray, least: float = 1e-300) -> float:
    """Greatest difference over the greatest expected value, or over the least size that counts."""
    return greatest([found - expected]) / max(greatest([expected]), least, 1e-300)


class Worth(NamedTuple):
    """Everything that an estimate has, of all of its states."""

    estimate: sd.Estimate
    std: dict[str, np.ndarray]
    residuals: dict[str, np.ndarray]
    tests: dict[str, np.ndarray]
    chi2: np.ndarray
    likelihood: np.ndarray

    @staticmethod
    def of(problem: sd.Problem, estimate: sd.Estimate) -> Worth:
        std = {x: estimate.std(x) for x in problem.quantities if len(problem.layout().quantity_columns(x))}
        tests = estimate.normalised_residuals()
        return Worth(estimate, std, estimate.residuals(), tests, estimate.chi2(), estimate.log_likelihood())


def worth_off(problem: sd.Problem, inputs: dict[str, np.ndarray], worth: Worth, k: int) -> dict[str, float]:
    """{what: its error} of an estimate at state k, inputs by group at all states.

    Means relative to the greatest of their quantity, deviations and χ² to themselves, residuals to their deviations,
    w-tests and the likelihood to 1 and themselves. A quantity vanishes below VANISHING of the greatest of all, its
    deviations below CERTAIN of the greatest: what is left of both are rounding errors of the equations themselves.
    """
    system, estimate = sd.assemble(problem), worth.estimate
    assert isinstance(system, AugmentedSystem)
    noisy = sorted(i for _, numbers in system.noise_numbers for i in numbers)
    kinds = [x for x in problem.quantities if len(system.layout.quantity_columns(x))]
    place = {c: j for j, c in enumerate(system.columns)}
    unknowns = {x: [place[c] for c in system.layout.quantity_columns(x) if c in place] for x in kinds}
    columns = [*(j for x in kinds for j in unknowns[x]), *noisy]
    number = {j: n for n, j in enumerate(columns, 1)}
    exact = Digits(system, {name: x[k] if x.ndim == 2 else x for name, x in inputs.items()}, columns)
    off: dict[str, float] = {}
    mean = {x: exact.quantity(x) for x in kinds}
    std = {x: np.array([max(0.0, -exact.value(j, number[j])) ** 0.5 for j in unknowns[x]]) for x in kinds}
    declared = [np.sqrt(np.diagonal(noise.matrix(noise.declared))) for noise, _ in system.noise_numbers]
    least, certain = VANISHING * greatest(mean.values()), CERTAIN * greatest([*std.values(), *declared])
    for x in kinds:
        if len(mean[x]) == estimate[x][k].size:
            off[f"mean {x}"] = relative(estimate[x][k].ravel(), mean[x], least)
            size = np.maximum(std[x], max(certain, 1e-7 * greatest([std[x]]), 1e-300))
            off[f"std {x}"] = greatest([(worth.std[x][k].ravel() - std[x]) / size])
    chi2 = 0.0
    for noise, rows in system.noise_numbers:
        mu = np.array([exact.value(i) for i in rows])
        S = noise.matrix(noise.declared)
        deviation = np.sqrt(np.diagonal(S))
        chi2 += float(mu @ S @ mu)
        own = worth.residuals[noise.name][k].ravel()
        terms = deviation + np.abs(
            np.ravel(inputs[value_group(noise.name)][k]) if value_group(noise.name) in inputs else 0.0
        )
        off[f"residual {noise.name}"] = float((np.abs(own + S @ mu) / terms).max())
        variance = np.array([exact.value(i, number[i]) for i in rows])
        checked = variance * deviation**2 > 1e-6
        w = np.abs(mu) / np.sqrt(np.where(checked, variance, 1.0))
        shown = np.abs(np.nan_to_num(worth.tests[noise.name][k].ravel()))
        off[f"w-test {noise.name}"] = float(np.where(checked, np.abs(shown - w) / (1.0 + w), 0.0).max())
    off["chi2"] = abs(float(worth.chi2[k]) - chi2) / max(1.0, chi2)
    likelihood = -0.5 * (chi2 + exact.log_determinant + int(estimate.redundancy[k]) * math.log(2.0 * math.pi))
    off["likelihood"] = abs(float(worth.likelihood[k]) - likelihood) / max(1.0, abs(likelihood))
    return off
