"""Result of `sd.diagnose(Problem)`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sysdyn.diagnosis.directions import NullDirection
from sysdyn.errors import few
from sysdyn.files import html
from sysdyn.measurements.measurement import Measurement


@dataclass(frozen=True, eq=False)
class StateDiagnosis:
    """Well-posedness at one sampled state.

    Attributes
    ----------
    kind : str
        "random", "neutral" (every joint at zero, at rest), or the multiples of π/2 of the joint angles.
    q, qd : (nq,) and (nv,) arrays
        The state.
    missing, excess : int
        Number of null directions (observed by no equation), and of redundant exact equations.
    undetermined : tuple of str
        Unknowns that are not determined.
    directions : tuple of NullDirection
        Null directions, only if there are more than at almost every state.
    """

    kind: str
    q: np.ndarray
    qd: np.ndarray
    missing: int
    excess: int
    undetermined: tuple[str, ...]
    directions: tuple[NullDirection, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """Whether a problem has one solution at almost every state; if not, the causes and remedies.

    Attributes
    ----------
    equations, unknowns
        Number of equations and of unknowns.
    missing, excess
        Number of null directions (observed by no equation) and of redundant exact equations, at almost every state. For
        a problem with more than 300 unknown q̈, fx and w, lower bounds.
    by_structure
        `missing` and `excess` that are due to the pattern alone.
    undetermined
        Unknowns that are not determined at almost every state.
    undetermined_at_some_states
        Unknowns that are not determined at some of the sampled states.
    determined
        Unknowns that are determined at every sampled state; `sysdyn.least_norm` gives their values.
    redundant
        Measurements that are combinations of other exact equations, or contradict them.
    directions
        Null directions (combinations of unknowns that no equation observes) at a random state.
    states
        Results at each sampled state; empty for a large problem.
    suggestions
        Remedies as sentences.
    additions
        A minimal set of available measurements that makes the problem well posed. None if there is no such set; () if
        nothing is missing or none were given.
    removals
        A minimal set of equations whose removal leaves no redundant ones.
    switched_off
        Switchable measurements, or components of them, whose equations do not count.
    """

    equations: int
    unknowns: int
    missing: int
    excess: int
    by_structure: tuple[int, int]
    undetermined: tuple[str, ...]
    undetermined_at_some_states: tuple[str, ...] = ()
    determined: tuple[str, ...]
    redundant: tuple[str, ...]
    directions: tuple[NullDirection, ...] = ()
    states: tuple[StateDiagnosis, ...] = field(default=(), compare=False)
    suggestions: tuple[str, ...]
    additions: tuple[Measurement, ...] | None = ()
    removals: tuple[str, ...] = ()
    switched_off: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """Rank of the equations at almost every state; an upper bound for a large problem."""
        return self.unknowns - self.missing

    @property
    def structural(self) -> bool:
        """True if the pattern alone makes the problem ill posed."""
        return self.by_structure != (0, 0)

    @property
    def well_posed(self) -> bool:
        """True if the solution is unique and no exact equation is redundant, at almost every state."""
        return self.missing == 0 and self.excess == 0

    @property
    def worse_states(self) -> tuple[int, ...]:
        """Indices of sampled states with greater `missing` or `excess` than at almost every state."""
        worse = (k for k, s in enumerate(self.states) if s.missing > self.missing or s.excess > self.excess)
        return tuple(worse)

    def __str__(self) -> str:
        posed = "well posed" if self.well_posed else "ill posed"
        lines = [f"{posed}: {self.equations} equations, {self.unknowns} unknowns, rank {self.rank}"]
        if self.switched_off:
            lines.append(f"switched off: {', '.join(map(repr, self.switched_off))}")
        if self.undetermined:
            lines.append(f"undetermined ({_cause(self.missing, self.by_structure[0])}): {few(self.undetermined, 12)}")
            lines += _bullets("", self.directions)
        if self.redundant:
            cause = _cause(self.excess, self.by_structure[1])
            lines.append(f"redundant or contradictory ({cause}): {few(self.redundant, 12)}")
        lines += self._worst_state()
        if self.determined and len(self.determined) < self.unknowns:
            lines.append(
                f"determined at every sampled state: {len(self.determined)} of {self.unknowns} unknowns, among them "
                f"{few(self.determined, 8)}"
            )
        lines.extend(f"suggestion: {s}" for s in self.suggestions)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.fragment(html.text(str(self), html.GOOD if self.well_posed else html.BAD))

    def _worst_state(self) -> list[str]:
        """Lines of text about the worst sampled state; none if no state is worse than almost every state."""
        if not self.worse_states:
            return []
        kinds = dict.fromkeys(self.states[k].kind for k in self.worse_states)
        worst = max((self.states[k] for k in self.worse_states), key=lambda s: (s.kind == "neutral", s.missing))
        effect = "singular" if self.well_posed else "worse"
        lines = [f"{effect} at {len(self.worse_states)} of {len(self.states)} sampled states: {', '.join(kinds)}"]
        if worst.missing > self.missing:
            terms = (term.name for direction in worst.directions for term in direction.terms)
            lines[0] += f"; undetermined there: {few(dict.fromkeys((*terms, *worst.undetermined)), 8)}"
            lines += _bullets(f" ({worst.kind})", worst.directions)
        return lines


def _bullets(where: str, directions: tuple[NullDirection, ...]) -> list[str]:
    """Lines of text that list directions; none without directions."""
    if not directions:
        return []
    bullets = few((f"- {x}" for x in directions), between="\n  ")
    return [f"  {len(directions)} direction(s) that no equation observes{where}:", f"  {bullets}"]


def _cause(count: int, by_structure: int) -> str:
    if count == by_structure:
        return "by structure, whatever the state"
    return f"by {'structure and by ' if by_structure else ''}value, at every sampled state"
