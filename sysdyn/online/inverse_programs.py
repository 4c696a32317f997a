"""Programs for entries of the inverse of an augmented matrix, run so that rounding errors are seen and mended.

Where variances are many orders apart, entries of K⁻¹ are small differences of large numbers, whatever the order of
elimination. Each program is therefore run for Σ and for c Σ with two numbers c. With D = diag(c^½ I, c^−½ I) for
unknowns and multipliers, K(c Σ) = D⁻¹ K(Σ) D⁻¹: C becomes c C, μ and Cov(μ) a c-th. Rounding errors do not follow, so
that the difference shows how large they are (Vignes 1993, stochastic arithmetic). At states at which they are too large
the entries of K are eliminated again in decimal arithmetic of enough digits.
"""

from __future__ import annotations

import decimal
import functools
import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.backends.executable import Executable
from sysdyn.backends.registry import backend_named
from sysdyn.equations.assembly import Combination
from sysdyn.equations.augmented import AugmentedSystem, augmented_system
from sysdyn.errors import FileError
from sysdyn.files import cache
from sysdyn.measurements.groups import NOISE, group_of
from sysdyn.offline.choice import Choice
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import Options
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.online import storage
from sysdyn.problem import Problem
from sysdyn.program.program import Program
from sysdyn.program.scalar import Scalar
from sysdyn.sparse.extended import Extended
from sysdyn.sparse.lu import Factors, eliminate, is_unit

# Programs are run for Σ and for these multiples c Σ of it.
SCALES = (3.0, 0.7)
# A state is computed again with more digits where results for Σ and c Σ differ by more than this, relative.
DIFFERENCE = 3e-10
# A variance counts as zero where it is below this share of the greatest of its program at every sampled state.
VANISHING = 1e-22
# Variances that are zero at every state are found at so many sampled states.
SAMPLES = 4
# So many states at a time are computed again.
CHUNK = 256
# Decimal arithmetic has so many digits, and so many more for each decade between the variances.
DIGITS, DIGITS_A_DECADE = 40, 3.0
# These groups of outputs hold variances; other covariances are compared on the scale of their square roots.
VARIANCES = ("variance", "variance of second")

# Outputs are listed by (group, values).
Groups = list[tuple[str, list]]
# Results are arrays (N, size) by group.
Outputs = dict[str, np.ndarray]


class Solved(NamedTuple):
    """An elimination of numbers instead of expressions. shown: the measured outputs in terms of the unknowns."""

    factors: Factors
    shown: Mapping[str, Combination]

    @property
    def solution(self) -> list:
        return self.factors.solution


# The outputs of a program are described for an elimination of expressions and of numbers alike.
Describe = Callable[[Elimination | Solved], Groups]


class InversePrograms:
    """Programs for entries of K⁻¹, which the first call compiles.

    choice: the elimination order of the solution, which serves the inverse, too. key: the key of the solver in the
    cache, under which programs are stored as well; None where they are not stored.
    """

    def __init__(self, problem: Problem, choice: Choice, options: Options, key: str | None = None):
        self.problem, self.choice = problem, choice
        self._options, self._key = options, key
        self._lock = threading.Lock()
        self._executables: dict[str, Executable] = {}
        self._elimination: Elimination | None = None

    @functools.cached_property
    def system(self) -> AugmentedSystem:
        """The equations whose matrix is K."""
        # classical accelerations differ from a by a function of q and q̇, and have its covariance: none is fixed
        equations, measured = self._options.equations, self._options.measured
        return augmented_system(self.problem, equations.layout, equations.known, self.choice.passes, outputs=measured)

    def _eliminated(self) -> Elimination:
        if self._elimination is None:
            choice = self.choice
            self._elimination = Elimination(self.system, *choice.pivots, refined=choice.refined)
        return self._elimination

    def run(
        self,
        name: str,
        groups: Describe,
        inputs: dict[str, np.ndarray],
        n: int,
        reliable: Callable[[Outputs, Outputs, float], np.ndarray],
    ) -> Outputs:
        """Outputs (n, size) of the program `name`, which `groups` describes.

        reliable(outputs for Σ, for c Σ, c): (n,) whether the two agree. Where not, extended precision has been used.
        """
        executable = self._executable(name, groups)
        outputs = self._double(executable, inputs, n)
        with np.errstate(all="ignore"):
            same = [reliable(outputs, self._double(executable, scaled(inputs, c), n), c) for c in SCALES]
        again = np.flatnonzero(~np.logical_and.reduce(same))
        names, sizes = zip(*executable.program.output_groups, strict=True)
        zeros = dict(zip(names, np.split(executable.program.zero_outputs, np.cumsum(sizes)[:-1]), strict=True))
        for start in range(0, len(again), CHUNK):
            part = again[start : start + CHUNK]
            chosen = {group: x[part] if x.ndim == 2 else x for group, x in inputs.items()}
            for group, x in self._extended(groups, chosen, len(part)).items():
                outputs[group][part] = np.where(zeros[group], 0.0, x)
        return outputs

    @staticmethod
    def _double(executable: Executable, inputs: dict[str, np.ndarray], n: int) -> Outputs:
        return executable.results(inputs, n)[0]

    def _extended(self, groups: Describe, inputs: dict[str, np.ndarray], n: int) -> Outputs:
        """The same outputs with as many digits as the range of Σ takes, from the entries of K on."""
        system = self.system
        entries, b = system.values(inputs)
        fixed = system.fixed_entries()
        size = np.concatenate([np.abs(entries[:, system.variances]).ravel(), [1.0]])
        decades = math.log10(size.max() / size[size > 0.0].min())
        rows: list[dict[int, Scalar]] = [{} for _ in b[0]]
        for i, j, constant, x in zip(*system.coordinates, fixed, entries.T, strict=True):
            rows[i][int(j)] = float(x[0]) if constant and is_unit(float(x[0])) else Extended.of(x)
        rhs = [Extended.of(x) if x.any() else 0.0 for x in b.T]
        shown = {
            name: Combination([{c: Extended.of(x) for c, x in row.items()} for row in y.rows], y.b)
            for name, y in system.shown_values(inputs).items()
        }
        digits = DIGITS + math.ceil(DIGITS_A_DECADE * decades)
        with decimal.localcontext(decimal.Context(prec=digits, traps=[])):  # NaN where a state is singular
            factors = eliminate(rows, rhs, self.choice.row_perm, self.choice.col_perm, joined=dict(self.choice.joined))
            found = groups(Solved(factors, shown))
        outputs = {group: np.zeros((n, len(values))) for group, values in found}
        for group, values in found:
            for k, x in enumerate(values):
                outputs[group][:, k] = x.rounded() if type(x) is Extended else x
        return outputs

    def _executable(self, name: str, groups: Describe) -> Executable:
        with self._lock:
            if name not in self._executables:
                program = self._stored(name)
                if program is None:
                    program = self._program(groups)
                    self._store(name, program)
                backend = backend_named(self._options.backend)
                self._executables[name] = Executable(backend(program, self._options.code_level))
            return self._executables[name]

    def _program(self, groups: Describe) -> Program:
        """The program, with zeros for variances that are zero at every state but for rounding."""
        elimination = self._eliminated()
        make = functools.partial(Program.from_graph, elimination.graph, elimination.assembly.inputs)
        wanted = groups(elimination)
        program = make(wanted)
        if VARIANCES[0] not in dict(wanted):
            return program
        states = sample_states(self.problem, SAMPLES, seed=EXAMPLE_SEED)
        found, other = (interpreter.run_groups(program, x) for x in (states, scaled(states, SCALES[0])))
        if same_covariances(found, other, SCALES[0]).any():
            return program
        found = self._extended(groups, states, SAMPLES)
        size = {group: np.fmax.reduce(np.abs(x), axis=0) for group, x in found.items()}
        least = VANISHING * np.fmax.reduce(np.concatenate([size[group] for group in size]))
        return make([
            (group, [0.0 if s <= least else x for x, s in zip(values, size[group], strict=True)])
            for group, values in wanted
        ])  # fmt: skip

    def _file(self, name: str) -> str:
        return hashlib.sha256(f"{self._key} {name}".encode()).hexdigest() + ".posterior"

    def _stored(self, name: str) -> Program | None:
        payload = cache.load(self._file(name)) if self._key else None
        if payload is None:
            return None
        try:
            return Program.from_arrays(storage.unpacked(payload))
        except (FileError, ValueError, OSError):
            return None  # a damaged entry is made again

    def _store(self, name: str, program: Program) -> None:
        if self._key:
            cache.store(self._file(name), storage.packed(program.to_arrays()))


def scaled(inputs: dict[str, np.ndarray], c: float) -> dict[str, np.ndarray]:
    """The inputs for c Σ."""
    return {name: c * x if group_of(name).role == NOISE else x for name, x in inputs.items()}


def same_covariances(found: Outputs, scaled: Outputs, c: float) -> np.ndarray:
    """(n,) whether variances, and covariances as parts of standard deviations, are those for c Σ by c."""
    apart = {group: np.abs(scaled[group] / c - x) for group, x in found.items()}
    same = [(apart[group] <= DIFFERENCE * found[group]).all(axis=1) for group in VARIANCES if group in found]
    if "z" in found:
        rows, columns = (np.sqrt(np.maximum(found[group], 0.0)) for group in VARIANCES)
        size = (rows[:, :, None] * columns[:, None, :]).reshape(found["z"].shape)
        same.append((apart["z"] <= DIFFERENCE * size).all(axis=1))
    return np.logical_and.reduce(same)
