"""Well-posedness in names: which unknowns cannot be found, and from which equations.

Structure first: a maximum matching of the worst-case pattern and the Dulmage-Mendelsohn blocks it defines (Dulmage
and Mendelsohn 1958; Pothen and Fan 1990). Where the structure is sound, the rank at sampled states, because equations
can depend on each other by value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import maximum_bipartite_matching

from sysdyn.errors import ProblemError, StructurallySingular
from sysdyn.sparse.condition import condition

RANK_STATES = 3
RANK_LIMIT = 2000  # scalar unknowns up to which the rank is computed (dense singular values)
RELATIVE_RANK = 1e-10
JOINT_AND_CONTACT = ("w(", "fx(", "qdd(", "tau(")  # unknowns that a user would state; shown first


@dataclass(frozen=True)
class Structure:
    """Dulmage-Mendelsohn coarse blocks: names of the unknowns and equations of the under- and over-determined parts."""

    equations: int
    unknowns: int
    undetermined: tuple[str, ...]  # unknowns of the under-determined block
    from_equations: tuple[str, ...]  # and the equations they occur in
    free: int  # how many equations are missing there
    redundant: tuple[str, ...]  # equations of the over-determined block
    over_unknowns: tuple[str, ...]
    excess: int

    @property
    def sound(self) -> bool:
        return self.free == 0 and self.excess == 0

    def __str__(self) -> str:
        parts = [f"{self.equations} equations for {self.unknowns} unknowns"]
        if self.free:
            parts.append(
                f"{_few(_first(self.undetermined, JOINT_AND_CONTACT))} cannot be found: {self.free} equation(s) missing"
                + (f"; only {_few(self.from_equations)} speak of them" if self.from_equations else "")
                + ". State some of them, for example as JointTorque, JointAcceleration or ExternalWrench"
            )
        if self.excess:
            parts.append(
                f"{_few(_stated(self.redundant) or self.redundant)} are {self.excess} equation(s) too many for "
                f"{_few(_first(self.over_unknowns, JOINT_AND_CONTACT))}. "
                "Remove measurements (problem − …)"
            )
        return "; ".join(parts) + "."

    def require_solvable(self) -> None:
        """Raise where no state makes the system solvable."""
        if self.sound:
            return
        if self.equations < self.unknowns:
            raise StructurallySingular(f"too few equations: {self}", self.undetermined, self.from_equations)
        if self.equations > self.unknowns:
            raise ProblemError(f"too many equations: {self}")
        raise StructurallySingular(f"structurally singular: {self}", self.undetermined, self.from_equations)


def structure(system) -> Structure:
    """Matching and coarse blocks of a BlockSystem's worst-case pattern."""
    pattern = system.pattern()
    row_of = maximum_bipartite_matching(pattern, perm_type="row")  # row matched to each column, −1 if none
    m, n = pattern.shape
    column_of = np.full(m, -1)
    column_of[row_of[row_of >= 0]] = np.flatnonzero(row_of >= 0)
    by_column = pattern.tocsc()
    free_columns = np.flatnonzero(row_of < 0).tolist()
    free_rows = np.flatnonzero(column_of < 0).tolist()
    columns, rows = _reach(free_columns, by_column, column_of)
    over_rows, over_columns = _reach(free_rows, pattern.T.tocsc(), row_of)
    return Structure(
        m,
        n,
        tuple(system.col_names[c] for c in columns),
        tuple(system.row_names[r] for r in rows),
        len(free_columns),
        tuple(system.row_names[r] for r in over_rows),
        tuple(system.col_names[c] for c in over_columns),
        len(free_rows),
    )


def _reach(start: list[int], adjacency, matched) -> tuple[list[int], list[int]]:
    """Vertices reached from unmatched `start` by alternating paths, on both sides."""
    seen, other, stack = set(start), set(), list(start)
    while stack:
        v = stack.pop()
        for w in adjacency.indices[adjacency.indptr[v] : adjacency.indptr[v + 1]].tolist():
            if w not in other:
                other.add(w)
                back = int(matched[w])
                if back >= 0 and back not in seen:
                    seen.add(back)
                    stack.append(back)
    return sorted(seen), sorted(other)


@dataclass(frozen=True)
class Diagnosis:
    """Whether a problem has one solution at almost every state, and what stands in the way if not.

    undetermined: unknowns with a part in a direction that the equations do not see; redundant: equations that are
    combinations of others; suggestions: what to state or to leave out; rank: at the sampled state where it is least
    (None: not computed).
    """

    equations: int
    unknowns: int
    rank: int | None
    undetermined: tuple[str, ...]
    redundant: tuple[str, ...]
    suggestions: tuple[str, ...]
    structural: bool

    @property
    def well_posed(self) -> bool:
        return not self.undetermined and not self.redundant and self.equations == self.unknowns

    def __str__(self) -> str:
        lines = [
            f"{'well posed' if self.well_posed else 'ill posed'}: {self.equations} equations, {self.unknowns} unknowns"
        ]
        if self.rank is not None:
            lines[0] += f", rank {self.rank}"
        kind = "by structure, whatever the state" if self.structural else "by value, at every sampled state"
        if self.undetermined:
            lines.append(f"undetermined ({kind}): {_few(_first(self.undetermined, JOINT_AND_CONTACT), 12)}")
        if self.redundant:
            lines.append(f"redundant or contradictory ({kind}): {_few(_stated(self.redundant) or self.redundant, 12)}")
        lines.extend(f"suggestion: {s}" for s in self.suggestions)
        return "\n".join(lines)


def diagnose(problem) -> Diagnosis:
    """Structure of the problem's system and, where that is sound, its rank at sampled states."""
    system = problem.system()
    found = structure(system)
    if not found.sound:
        suggestions = []
        if found.free:
            loose = tuple(x for x in found.undetermined if x.startswith(JOINT_AND_CONTACT))
            suggestions.append(
                f"state {found.free} of: {_few(_first(loose, JOINT_AND_CONTACT) or found.undetermined, 8)}"
            )
        if found.excess:
            suggestions.append(f"leave out {found.excess} of: {_few(_stated(found.redundant), 8)}")
        return Diagnosis(
            found.equations, found.unknowns, None, found.undetermined if found.free else (),
            found.redundant if found.excess else (), tuple(suggestions), True,
        )  # fmt: skip
    rank, undetermined, redundant = _numeric(system) if found.unknowns <= RANK_LIMIT else (None, (), ())
    suggestions = ()
    if undetermined:
        loose = tuple(x for x in undetermined if x.startswith(JOINT_AND_CONTACT))
        loose = _first(loose, JOINT_AND_CONTACT) or undetermined
        suggestions = (f"state one of {_few(loose, 8)} for each direction that is missing ({found.unknowns - rank})",)
    return Diagnosis(found.equations, found.unknowns, rank, undetermined, redundant, suggestions, False)


def _numeric(system) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Greatest rank over a few random states, with the names in the null spaces there."""
    q, qd, _ = system.model.random_state(seed=3, batch=RANK_STATES)
    entries, _ = system.values({"q": q, "qd": qd})
    matrices = [system.scaled(x) for x in entries[:RANK_STATES]]
    if any(condition(A) < 1.0 / RELATIVE_RANK for A in matrices):  # cheaper than singular values
        return len(system.columns), (), ()
    best = None
    for A in matrices:
        U, s, Vt = np.linalg.svd(A.toarray())
        rank = int(np.sum(s > RELATIVE_RANK * s[0]))
        if best is None or rank > best[0]:
            best = rank, U[:, rank:], Vt[rank:]
    rank, left, right = best
    missing = _involved(right.T, system.col_names)
    extra = _involved(left, system.row_names)
    return rank, missing, extra


def _involved(basis: np.ndarray, names: tuple[str, ...]) -> tuple[str, ...]:
    if basis.size == 0:
        return ()
    size = np.abs(basis).max(axis=1)
    return tuple(name for name, x in zip(names, size, strict=True) if x > 1e-6 * size.max())


def _first(names: tuple[str, ...], kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Names that begin with one of `kinds`, in their order, before the others."""
    return tuple(sorted(names, key=lambda name: [not name.startswith(kind) for kind in kinds]))


def _stated(rows: tuple[str, ...]) -> tuple[str, ...]:
    """The measurements among the rows, the one stated last first: it is the likeliest to be one too many."""
    return tuple(row for row in reversed(rows) if row.startswith("y:"))


def _few(names: tuple[str, ...], most: int = 6) -> str:
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more
