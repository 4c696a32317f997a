"""What an estimate is worth: covariances, residuals and likelihood of a solved problem with noise, on request.

All of it is in the inverse K⁻¹ of the augmented matrix (see `sysdyn.system.augmented`), of which only the entries asked
for are computed. With C = Cov(d) and μ = Σ⁻¹ (Y d + y₀ − y):

    K⁻¹ = [C …; … −M],   M = Cov(μ) = Σ⁻¹ − Σ⁻¹ Y C Y^T Σ⁻¹,   residuals y − Y d − y₀ = −Σ μ

Teunissen (2000) for the tests, Dempster, Laird and Rubin (1977) for the learning of covariances.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sysdyn import cache
from sysdyn.backends.executable import Executable
from sysdyn.elimination import Choice, Elimination
from sysdyn.errors import FileError, ProblemError, UnknownName
from sysdyn.sparse.inverse import Inverse
from sysdyn.sparse.program import Program
from sysdyn.system.augmented import AugmentedSystem
from sysdyn.system.noise import Noise
from sysdyn.system.problem import Problem

Part = str | tuple[str, str]  # a quantity, or (quantity, joint or body)


class Checked(NamedTuple):
    """What the noisy equations say of themselves at N states.

    multipliers    {name: μ (N, m)}
    covariances    {name: Cov(μ) (N, m, m)} of each measurement by itself
    log_determinant (N,) of |K|
    """

    multipliers: dict[str, np.ndarray]
    covariances: dict[str, np.ndarray]
    log_determinant: np.ndarray


class Posterior:
    """Entries of the posterior covariance and tests of the measurements, compiled when they are first asked for.

    key: under which programs are cached, None: not.
    """

    def __init__(self, problem: Problem, choice: Choice, layout: str, known: str, backend: str, level: int,
                 key: str | None = None):  # fmt: skip
        self.problem, self.choice = problem, choice
        self._options = layout, known
        self._backend, self._level, self._key = backend, level, key
        self._lock = threading.Lock()
        self._executables: dict[str, Executable] = {}
        self._elimination: Elimination | None = None

    # ---- programs --------------------------------------------------------------------------------------------------

    def _system(self) -> AugmentedSystem:
        if not self.problem.noisy:
            raise ProblemError("no measurement of this problem is noisy, so its solution has no standard deviation")
        return self.problem.system(*self._options)

    def _eliminated(self) -> Elimination:
        if self._elimination is None:
            choice = self.choice
            self._elimination = Elimination(self._system(), choice.row_perm, choice.col_perm, refined=choice.refined)
        return self._elimination

    def _run(self, name: str, groups: Callable[[Elimination], list], inputs: dict[str, np.ndarray], n: int) -> dict:
        """Outputs (n, size) of the program `name`, which `groups` describes."""
        with self._lock:
            if name not in self._executables:
                program = self._stored(name)
                if program is None:
                    elimination = self._eliminated()
                    program = Program.from_graph(elimination.graph, elimination.assembly.inputs, groups(elimination))
                    self._store(name, program)
                self._executables[name] = Executable(program, self._backend, self._level)
            executable = self._executables[name]
        outputs = {group: np.empty((n, size)) for group, size in executable.program.output_groups}
        executable.run(inputs, outputs, np.empty(n, dtype=np.int64))
        return outputs

    def _file(self, name: str) -> str:
        return hashlib.sha256(f"{self._key} {name}".encode()).hexdigest() + ".posterior"

    def _stored(self, name: str) -> Program | None:
        payload = cache.load(self._file(name)) if self._key else None
        if payload is None:
            return None
        try:
            with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
                return Program.from_arrays({part: archive[part] for part in archive.files})
        except (FileError, ValueError, OSError):
            return None  # a damaged entry is made again

    def _store(self, name: str, program: Program) -> None:
        if self._key:
            buffer = io.BytesIO()
            np.savez(buffer, **program.to_arrays())
            cache.store(self._file(name), buffer.getvalue())

    # ---- covariances -----------------------------------------------------------------------------------------------

    def variances(self, quantity: str, inputs: dict[str, np.ndarray], n: int) -> np.ndarray:
        """(n, size) of every scalar of a quantity."""
        entries = self._columns(quantity)
        return self._run(f"variance {quantity}", self._entries(list(zip(entries, entries, strict=True))), inputs, n)[
            "z"
        ]

    def covariance(self, first: Part, second: Part, inputs: dict[str, np.ndarray], n: int) -> np.ndarray:
        """(n, size of first, size of second)."""
        rows, columns = self._columns(first), self._columns(second)
        pairs = [(i, j) for i in rows for j in columns]
        z = self._run(f"covariance {first} {second}", self._entries(pairs), inputs, n)["z"]
        return z.reshape(n, len(rows), len(columns))

    def _entries(self, pairs: Sequence[tuple[int | None, int | None]]) -> Callable[[Elimination], list]:
        def groups(elimination: Elimination) -> list:
            inverse = Inverse(elimination.factors)
            return [("z", [0.0 if None in pair else inverse.entry(*pair) for pair in pairs])]

        return groups

    def _columns(self, part: Part) -> list[int | None]:
        """Number in the system of each scalar; None where it is an exactly known input."""
        quantity, name = part if isinstance(part, tuple) else (part, None)
        if quantity not in self.problem.quantities:
            raise UnknownName("quantity", quantity, self.problem.quantities)
        layout = self.problem.layout(self._options[0])
        columns = layout.quantity_columns(quantity)
        if name is not None:
            columns = list(layout.columns(*layout.block(quantity, name)))
        number = {c: k for k, c in enumerate(self._system().plain.columns)}
        return [number.get(c) for c in columns]

    # ---- tests -----------------------------------------------------------------------------------------------------

    @property
    def noises(self) -> list[Noise]:
        return self._system().noises

    def check(self, inputs: dict[str, np.ndarray], n: int) -> Checked:
        """Multipliers with their covariances, and the determinant."""

        def groups(elimination: Elimination) -> list:
            system, inverse = elimination.system, Inverse(elimination.factors)
            found = [("pivots", list(elimination.factors.pivots))]
            for noise, places in _places(system):
                pairs = [(i, j) for a, i in enumerate(places) for j in (places[: a + 1] if noise.full else [i])]
                found.append((f"mu {noise.name}", [elimination.solution[i] for i in places]))
                found.append((f"M {noise.name}", [-inverse.entry(*pair) for pair in pairs]))
            return found

        out = self._run("check", groups, inputs, n)
        multipliers, covariances = {}, {}
        for noise in self.noises:
            multipliers[noise.name] = out[f"mu {noise.name}"]
            covariances[noise.name] = noise.matrix(out[f"M {noise.name}"])
        with np.errstate(divide="ignore"):
            return Checked(multipliers, covariances, np.log(np.abs(out["pivots"])).sum(axis=1))


def _places(system: AugmentedSystem) -> Iterable[tuple[Noise, list[int]]]:
    """(covariance, numbers of its multipliers in the order of its components)."""
    members: dict[str, dict[int, int]] = {}
    for r, (noise, k) in system.plain.noisy.items():
        members.setdefault(noise.name, {})[k] = system.n_unknowns + r
    for noise in system.noises:
        yield noise, [members[noise.name][k] for k in range(noise.size)]
