"""Measurements to add to a problem, and to leave out, until it has one solution.

Independent rows form a matroid: rows that are taken greedily, each independent of those before, are as few as possible,
and without any one of them the rest does not suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.diagnosis.null_space import INDEPENDENT, ZERO
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import noise_part
from sysdyn.measurements.raw import Known, RawMeasurement, Subset, known
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model

# Least part of a removed row relative to the greatest candidate: the condition number of the remaining equations is at
# most 2e4 times that of all, in 200 states of four sensor problems.
REMOVABLE = 0.01


@dataclass(frozen=True)
class Candidate:
    """A measurement that could be added.

    observed (components, directions): its rows times the null directions. divisible: components can be used alone.
    """

    measurement: Measurement
    observed: np.ndarray
    divisible: bool

    @property
    def exact(self) -> bool:
        return self.measurement.noise is None


def greedy_basis(rows: np.ndarray, order: Sequence[int], initial: np.ndarray | None = None) -> list[int]:
    """Numbers of rows that are independent of each other and of the rows `initial`; earlier in `order` first.

    Nearly dependent rows are taken only where no others are left.
    """
    basis = np.zeros((0, rows.shape[1])) if initial is None else np.linalg.qr(initial.T)[0].T
    chosen: list[int] = []
    for least in INDEPENDENT:
        for r in order:
            if len(basis) == rows.shape[1]:
                return chosen
            if r in chosen:
                continue
            rest = rows[r] - basis.T @ (basis @ rows[r])
            rest -= basis.T @ (basis @ rest)
            size = float(np.linalg.norm(rest))
            if size > max(least * float(np.linalg.norm(rows[r])), ZERO):
                basis = np.vstack([basis, rest / size])
                chosen.append(r)
    return chosen


def rank(rows: np.ndarray) -> int:
    """Rank by the criterion of `greedy_basis`."""
    return len(greedy_basis(rows, range(len(rows))))


def additions(candidates: Sequence[Candidate], missing: int) -> list[tuple[Candidate, list[int]]] | None:
    """Minimal [(candidate, components)] that observe all `missing` directions; None if there are none.

    Greedy: first the candidate whose components are all new, then the one with the most new components. Exact rows stay
    independent of each other, so that an exact measurement that cannot be divided has to be new as a whole.
    """
    chosen: list[tuple[Candidate, list[int]]] = []
    remaining, observed = list(candidates), np.zeros((0, missing))
    while rank(observed) < missing:
        new = []
        for c in remaining:
            rows = greedy_basis(c.observed, range(len(c.observed)), observed)
            whole = len(rows) == len(c.observed)
            new.append((rows if whole or c.divisible or not c.exact else [], whole))
        best = max(range(len(new)), key=lambda k: (new[k][1] and bool(new[k][0]), len(new[k][0])), default=-1)
        if best < 0 or not new[best][0]:
            return None
        candidate, rows = remaining.pop(best), sorted(new[best][0])
        observed = np.vstack([observed, candidate.observed[rows]])
        components = rows if candidate.exact or candidate.divisible else list(range(len(candidate.observed)))
        chosen.append((candidate, components))
    for one in reversed(chosen):
        others = [x for x in chosen if x is not one]
        if others and rank(np.vstack([c.observed[k] for c, k in others])) == missing:
            chosen = others
    return chosen


def removals(dependent: Sequence[np.ndarray], order: Sequence[int]) -> list[int]:
    """Rows without which the others are independent; as few as there are dependencies, earlier in `order` first.

    dependent: at one or more states, orthonormal bases (equations, k) of the combinations that vanish. The condition
    number of the remaining rows is at most that of all rows over the least singular value of the removed rows of the
    basis. So a row is removed if its part that is independent of the rows before, at the state where this is least, is
    not small compared with the greatest of such parts.
    """
    bases, rows = [basis[list(order)] for basis in dependent], list(order)
    chosen: list[int] = []
    for _ in range(bases[0].shape[1]):
        sizes = np.array([np.linalg.norm(basis, axis=1) for basis in bases])
        share = sizes.min(axis=0) if sizes.min(axis=0).max() > ZERO else sizes[0]
        k = int(np.argmax(share >= REMOVABLE * share.max()))
        chosen.append(rows[k])
        for basis, size in zip(bases, sizes[:, k], strict=True):
            direction = basis[k] / (size or 1.0)
            basis -= np.outer(basis @ direction, direction)
    return chosen


def restricted(m: Measurement, components: Sequence[int], model: Model) -> list[Measurement]:
    """The measurement with some of its components; a raw one may take several."""
    if len(components) == len(m.components(model)):
        return [m]
    if not isinstance(m, RawMeasurement):
        return [m.part(components)]
    layout, pairs = Layout(model), m.pairs(model)
    if m.noise is not None:
        return [Subset(m, tuple(pairs[k] for k in components), noise_part(m.noise, components))]
    by_owner: dict[int, list[int]] = {}
    for k in components:
        by_owner.setdefault(pairs[k][0], []).append(pairs[k][1])
    owners: dict[str | tuple, list[str]] = {}  # by the components that are wanted of each
    for i, numbers in by_owner.items():
        names = m.stated.components(model, i)
        whole = len(numbers) == layout.size(m.quantity, i)
        key = "all" if whole else tuple(names[n] for n in sorted(numbers))
        owners.setdefault(key, []).append(layout.owner(m.quantity, i))
    return [known(m.quantity, tuple(of), key) for key, of in owners.items()]


def as_code(m: Measurement, model: Model) -> str:
    """The measurement as Python code; one without simple code by its name and components."""
    if isinstance(m, RawMeasurement) and not isinstance(m, Subset):
        owners = m.targets if isinstance(m.targets, str) or len(m.targets) > 1 else m.targets[0]
        chosen = "" if m.chosen == "all" else f", {list(m.chosen)!r}"
        quantity = f"{m.quantity!r}, " if isinstance(m, Known) else ""
        return f"{type(m).__name__}({quantity}{owners!r}{chosen})"
    names = m.components(model)
    return m.name if len(names) == 1 and names[0] in m.name else f"{m.name}: {', '.join(names)}"
