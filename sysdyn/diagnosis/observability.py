"""Observability of a log in names: coordinates and biases that it does not tell, and remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.diagnosis.diagnose import Diagnosis
from sysdyn.diagnosis.directions import Direction, Term, echelon
from sysdyn.diagnosis.words import listed
from sysdyn.errors import few
from sysdyn.files import html
from sysdyn.measurements.measurement import Measurement

# Share of its variance that goes along with biases beyond which a coordinate cannot be told apart from them, and share
# of its standard deviation below which an unknown has no part in one combination of them (chosen).
ALONG, LITTLE = 0.4, 0.1


@dataclass(frozen=True, kw_only=True, repr=False)
class Observability:
    """Result of `Problem.diagnose(log)`, from the equations of the log linearised about a first path.

    rows, of     rows of the log that were looked at, the first ones, of all its rows
    coupled      the level: dynamic variables tell of states, too
    chosen       positions and headings that no sensor tells: they stay as at the start of a run
    positions    degrees of freedom whose position is not told by this log
    biases       combinations of biases known no better after the log than before, with positions that pass for them
    suggestions  remedies in words
    additions    of the available sensors those after which nothing is left untold, none of which can be left out; None
                 if all of them are not enough; () if nothing is missing or none were given
    instant      of one instant whose state is known, if its dynamic variables are not determined; else None
    """

    rows: int
    of: int
    coupled: bool
    chosen: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    biases: tuple[Direction, ...] = ()
    suggestions: tuple[str, ...] = ()
    additions: tuple[Measurement, ...] | None = ()
    instant: Diagnosis | None = None

    @property
    def told(self) -> bool:
        """True if the log tells everything that is unknown."""
        return not (self.chosen or self.positions or self.biases or self.instant)

    def __str__(self) -> str:
        level = "coupled" if self.coupled else "kinematic"
        some = f"the first {self.rows} of {self.of}" if self.rows < self.of else f"{self.rows}"
        words = "everything is told" if self.told else "not everything is told"
        lines = [f"{words} by {some} rows, on the {level} level"]
        if self.chosen:
            lines.append(f"told by no sensor, they stay as at the start: {few(self.chosen, 12)}")
        if self.positions:
            lines.append(f"positions not told by this log: {few(self.positions, 12)}")
        lines += listed(f"{len(self.biases)} direction(s) of biases known no better than before", self.biases)
        if self.instant is not None:
            lines.append("if q, q̇ and q̈ were known, one instant would be")
            lines += [f"  {x}" for x in str(self.instant).split("\n")]
        lines.extend(f"suggestion: {x}" for x in self.suggestions)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.fragment(html.text(str(self), html.GOOD if self.told else html.BAD))


def biases_untold(
    P: np.ndarray, std: np.ndarray, names: Sequence[str], units: Sequence[str], share: float
) -> tuple[Direction, ...]:
    """Combinations of biases of which more than this share of their prior standard deviation is left.

    P (n, n): covariance of n unknowns after a log; std (n,): prior standard deviations of those that are biases, 0 of
    the others, which are part of a combination if they cannot be told apart from it: beyond `ALONG`.
    """
    own = np.flatnonzero(std > 0.0)
    left, vectors = np.linalg.eigh(P[np.ix_(own, own)] / (std[own, None] * std[own]))
    free = vectors[:, left > share * share]
    if not free.shape[1]:
        return ()
    rows, pivots = echelon(free.T, np.argsort(-np.linalg.norm(free, axis=1), kind="stable"))
    rows = np.where(np.abs(rows) > LITTLE, rows, 0.0)
    amounts = np.zeros((len(rows), len(std)))  # of each combination in the unknowns
    amounts[:, own] = np.linalg.solve(rows @ rows.T, rows) / std[own]
    shared = amounts @ P
    together = np.linalg.solve(shared @ amounts.T, shared)  # change of each unknown with each combination
    spread = np.diagonal(P)
    told = np.einsum("ki,ki->i", together, shared) > ALONG * spread
    deviations = np.sqrt(np.diagonal(shared @ amounts.T))[:, None] * np.abs(together)
    change = np.where(told & (deviations > LITTLE * np.sqrt(spread)), together, 0.0)
    change[:, own] = rows * std[own]
    found = []
    for pivot, row in sorted(zip(own[pivots].tolist(), change, strict=True), key=lambda x: x[0]):
        others = (c for c in np.flatnonzero(row).tolist() if c != pivot)
        terms = (Term(names[c], float(row[c] / row[pivot]), units[c]) for c in (pivot, *others))
        found.append(Direction(tuple(terms)))
    return tuple(found)
