"""Remedies: measurements to add to a problem, and to leave out, until it has one solution.

Independent rows form a matroid, so that rows taken one by one, each seeing something that those before do not, are as
few as can be: without any one of them the rest is not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice

import numpy as np

from sysdyn.diagnosis.reduction import PART
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import noise_part
from sysdyn.measurements.raw import Known, RawMeasurement, Subset, known
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model

# Least share of a row that is new, for the row to be taken; the second one if no other row is left (chosen).
NEW = (1e-3, 1e-7)
MOST_COMBINATIONS = 2000  # Most sets of measurements that cannot be split that are tried (chosen).
# Least share that is left of a row to be removed, beside the greatest that is left of any (chosen: the condition number
# of what stays is at most 2e4 times that of all equations in 200 states of four sensor problems).
PREFERRED = 0.01


@dataclass(frozen=True)
class Candidate:
    """A measurement that could be added: the part that its components see of the directions that no equation sees.

    seen (components, directions); split: some of the components can be had without the others.
    """

    measurement: Measurement
    seen: np.ndarray
    split: bool

    @property
    def exact(self) -> bool:
        return self.measurement.noise is None


def independent_rows(rows: np.ndarray, order: Sequence[int], held: np.ndarray | None = None) -> list[int]:
    """Numbers of rows that are independent of each other and of the rows `held`; earlier in `order` first.

    Rows that are nearly dependent are taken where no others are left.
    """
    basis = np.zeros((0, rows.shape[1])) if held is None else np.linalg.qr(held.T)[0].T
    chosen: list[int] = []
    for least in NEW:
        for r in order:
            if len(basis) == rows.shape[1]:
                return chosen
            if r in chosen:
                continue
            rest = rows[r] - basis.T @ (basis @ rows[r])
            rest -= basis.T @ (basis @ rest)
            size = float(np.linalg.norm(rest))
            if size > max(least * float(np.linalg.norm(rows[r])), PART):
                basis = np.vstack([basis, rest / size])
                chosen.append(r)
    return chosen


def rank(rows: np.ndarray) -> int:
    """Rank of rows that see directions, by the same measure."""
    return len(independent_rows(rows, range(len(rows))))


def additions(candidates: Sequence[Candidate], missing: int) -> list[tuple[Candidate, list[int]]] | None:
    """(candidate, components) that together see all `missing` directions, none of them dispensable.

    Exact rows are independent of each other. Measurements that can be used whole come first. None if the candidates
    do not see all.
    """
    if rank(np.vstack([c.seen for c in candidates] or [np.zeros((0, missing))])) < missing:
        return None
    whole = [c for c in candidates if c.exact and not c.split and 0 < rank(c.seen) == len(c.seen)]
    rest = [c for c in candidates if not c.exact or c.split]
    for forced in islice(chain.from_iterable(combinations(whole, k) for k in range(len(whole) + 1)), MOST_COMBINATIONS):
        held = np.vstack([c.seen for c in forced] or [np.zeros((0, missing))])
        if rank(held) < len(held):
            continue
        chosen = _extended(rest, held)
        if rank(np.vstack([held, *(c.seen[k] for c, k in chosen)])) == missing:
            return _pruned([(c, list(range(len(c.seen)))) for c in forced] + chosen, missing)
    return None


def _extended(candidates: Sequence[Candidate], held: np.ndarray) -> list[tuple[Candidate, list[int]]]:
    """Candidates that see more than `held` does: those that are new in all components first, the largest first."""
    chosen: list[tuple[Candidate, list[int]]] = []
    left = list(candidates)
    while left:
        new = [independent_rows(c.seen, range(len(c.seen)), held) for c in left]
        best = max(range(len(left)), key=lambda k: (len(new[k]) == len(left[k].seen), len(new[k])))
        if not new[best]:
            return chosen
        candidate = left.pop(best)
        components = sorted(new[best]) if candidate.exact or candidate.split else list(range(len(candidate.seen)))
        chosen.append((candidate, components))
        held = np.vstack([held, candidate.seen[new[best]]])
    return chosen


def _pruned(chosen: list[tuple[Candidate, list[int]]], missing: int) -> list[tuple[Candidate, list[int]]]:
    """`chosen` without candidates that the others make superfluous, later ones first; exact ones never are."""
    for one in reversed(chosen):
        others = [x for x in chosen if x is not one]
        if others and rank(np.vstack([c.seen[k] for c, k in others])) == missing:
            chosen = others
    return chosen


def removals(dependent: Sequence[np.ndarray], order: Sequence[int]) -> list[int]:
    """Rows without which the others are independent; as few as there are dependencies, earlier in `order` first.

    dependent: at one or more states, orthonormal bases (equations, k) of the combinations that vanish. The condition of
    the rest is at most that of all rows over the least singular value of the removed rows of the basis: a row counts if
    what those before it leave of it, at the state where least is left, is not small beside the most that any has left.
    """
    left, rows = [basis[list(order)] for basis in dependent], list(order)
    chosen: list[int] = []
    for _ in range(left[0].shape[1]):
        sizes = np.array([np.linalg.norm(basis, axis=1) for basis in left])
        share = sizes.min(axis=0) if sizes.min(axis=0).max() > PART else sizes[0]
        k = int(np.argmax(share >= PREFERRED * share.max()))
        chosen.append(rows[k])
        for basis, size in zip(left, sizes[:, k], strict=True):
            direction = basis[k] / (size or 1.0)
            basis -= np.outer(basis @ direction, direction)
    return chosen


# ---- parts of measurements -------------------------------------------------------------------------------------------


def restricted(m: Measurement, components: Sequence[int], model: Model) -> list[Measurement]:
    """The measurement with some of its components; a raw one may take several."""
    if len(components) == len(m.components(model)):
        return [m]
    if not isinstance(m, RawMeasurement):
        return [m.part(components)]
    layout, pairs = Layout(model), m.pairs(model)
    by_body: dict[int, list[int]] = {}
    for k in components:
        by_body.setdefault(pairs[k][0], []).append(pairs[k][1])
    groups: dict[str | tuple, list[str]] = {}  # bodies of which the same components are wanted
    for i, numbers in by_body.items():
        full = len(numbers) == layout.size(m.quantity, i)
        names = m.stated.components(model, i)
        key = "all" if full else tuple(names[n] for n in sorted(numbers))
        groups.setdefault(key, []).append(layout.owner(m.quantity, i))
    if m.noise is not None:
        return [Subset(m, tuple(pairs[k] for k in components), noise_part(m.noise, components))]
    return [known(m.quantity, tuple(owners), key) for key, owners in groups.items()]


def written(m: Measurement, model: Model) -> str:
    """Short text of the measurement, as in code."""
    if isinstance(m, RawMeasurement) and not isinstance(m, Subset):
        of = m.targets if isinstance(m.targets, str) or len(m.targets) > 1 else m.targets[0]
        chosen = "" if m.chosen == "all" else f", {list(m.chosen)!r}"
        which = f"{m.quantity!r}, " if isinstance(m, Known) else ""
        return f"{type(m).__name__}({which}{of!r}{chosen})"
    names = m.components(model)
    return m.name if len(names) == 1 and names[0] in m.name else f"{m.name}: {', '.join(names)}"
