"""Observability of a log: coordinates and biases that it does not determine, and remedies, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.diagnosis.directions import NullDirection, Term, echelon
from sysdyn.diagnosis.report import Diagnosis
from sysdyn.errors import few
from sysdyn.files import html
from sysdyn.measurements.measurement import Measurement

# A coordinate is listed with a combination of biases that explains more than EXPLAINED of its variance and changes it
# by more than NEGLIGIBLE of its standard deviation (lists stay short).
EXPLAINED, NEGLIGIBLE = 0.4, 0.1


@dataclass(frozen=True, kw_only=True, repr=False)
class Observability:
    """Result of `sysdyn.observability`: the equations of the log, linearised about an initial trajectory.

    Attributes
    ----------
    rows, of
        Number of samples that were used, from the start of the log, and number of all its samples.
    coupled
        True if measured torques and wrenches count as measurements of the states.
    chosen
        Positions and headings that no sensor observes; smoothing keeps their initial values.
    positions
        Degrees of freedom whose position this log does not determine.
    biases
        Combinations of biases whose uncertainty the log does not reduce, with correlated positions.
    suggestions
        Remedies as sentences.
    additions
        A minimal set of available sensors that makes everything observable. None if all of
        them do not suffice; () if nothing is missing or none were given.
    instant
        Diagnosis of one time step if torques and wrenches are not determined by q, q̇ and q̈; else None.
    """

    rows: int
    of: int
    coupled: bool
    chosen: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    biases: tuple[NullDirection, ...] = ()
    suggestions: tuple[str, ...] = ()
    additions: tuple[Measurement, ...] | None = ()
    instant: Diagnosis | None = None

    @property
    def observable(self) -> bool:
        """True if the log determines everything that is unknown."""
        return not (self.chosen or self.positions or self.biases or self.instant)

    def __str__(self) -> str:
        level = "coupled" if self.coupled else "kinematic"
        samples = f"the first {self.rows} of {self.of}" if self.rows < self.of else f"{self.rows}"
        lines = [f"{'' if self.observable else 'not '}observable from {samples} samples, on the {level} level"]
        if self.chosen:
            lines.append(f"observed by no sensor, they stay as at the start: {few(self.chosen, 12)}")
        if self.positions:
            lines.append(f"positions not determined by this log: {few(self.positions, 12)}")
        if self.biases:
            lines.append(f"  {len(self.biases)} direction(s) of biases known no better than before:")
            lines.append("  " + few((f"- {x}" for x in self.biases), between="\n  "))
        if self.instant is not None:
            lines.append("if q, q̇ and q̈ were known, one instant would be")
            lines += [f"  {x}" for x in str(self.instant).split("\n")]
        lines.extend(f"suggestion: {x}" for x in self.suggestions)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.fragment(html.text(str(self), html.GOOD if self.observable else html.BAD))


def unobservable_biases(
    P: np.ndarray, std: np.ndarray, names: Sequence[str], units: Sequence[str], share: float
) -> tuple[NullDirection, ...]:
    """Combinations of biases whose posterior standard deviation is more than `share` of the prior one.

    P (n, n): posterior covariance of n unknowns. std (n,): prior standard deviations of the biases, 0 for other
    unknowns. Other unknowns are listed with a combination that explains their variance, see `EXPLAINED`.
    """
    biases = np.flatnonzero(std > 0.0)
    variances, vectors = np.linalg.eigh(P[np.ix_(biases, biases)] / (std[biases, None] * std[biases]))
    basis = vectors[:, variances > share * share]
    if not basis.shape[1]:
        return ()
    rows, pivots = echelon(basis.T, np.argsort(-np.linalg.norm(basis, axis=1), kind="stable"))
    rows = np.where(np.abs(rows) > NEGLIGIBLE, rows, 0.0)
    amounts = np.zeros((len(rows), len(std)))  # of each combination in the unknowns
    amounts[:, biases] = np.linalg.solve(rows @ rows.T, rows) / std[biases]
    covariance = amounts @ P
    regression = np.linalg.solve(covariance @ amounts.T, covariance)  # change of each unknown with each combination
    variance = np.diagonal(P)
    explained = np.einsum("ki,ki->i", regression, covariance) > EXPLAINED * variance
    deviations = np.sqrt(np.diagonal(covariance @ amounts.T))[:, None] * np.abs(regression)
    change = np.where(explained & (deviations > NEGLIGIBLE * np.sqrt(variance)), regression, 0.0)
    change[:, biases] = rows * std[biases]
    directions = []
    for pivot, row in sorted(zip(biases[pivots].tolist(), change, strict=True), key=lambda x: x[0]):
        columns = (pivot, *(c for c in np.flatnonzero(row).tolist() if c != pivot))
        terms = (Term(names[c], float(row[c] / row[pivot]), units[c]) for c in columns)
        directions.append(NullDirection(tuple(terms)))
    return tuple(directions)
