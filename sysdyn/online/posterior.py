"""Covariances, residuals and likelihood of a solved problem with noise, on request.

All of it comes from one elimination of the whitened equations by orthogonal columns, W d + w = Q (R d + r, left):

    Cov(d) = R⁻¹ R^-T,   ε = W d + w = Q₂ left,   Cov(ε) = Q₂ Q₂^T,   χ² = |left|²

Sums of squares only keep their digits whatever the variances. Each program is compiled when it is first asked for.
Golub (1965) and Bierman (1977); Teunissen (2000) for the tests.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.backends.executable import Executable
from sysdyn.backends.registry import backend_named
from sysdyn.equations.whitened import WhitenedSystem, whitened_system
from sysdyn.errors import FileError, UnknownName
from sysdyn.files import cache
from sysdyn.measurements.noise import Noise
from sysdyn.offline.choice import Choice
from sysdyn.offline.options import Options
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.offline.square_root import SquareRoot, square_root
from sysdyn.online import storage
from sysdyn.problem import Problem
from sysdyn.program.program import Program
from sysdyn.sparse.information import product

# The programs are large and run seldom: they are compiled at this level of code generation.
CODE_LEVEL = 0
# A variance counts as zero where it is below this share of the greatest of its program at every sampled state.
VANISHING = 1e-22
# Variances that are zero at every state are found at so many sampled states.
SAMPLES = 4

# A part of the results is an output, or (quantity, joint, body or constraint), or (measured output, component).
Part = str | tuple[str, str]
# A scalar is a sum of unknowns, {number of an unknown: coefficient}; that of a measured output depends on the state.
Terms = Mapping[int, Any]
# Outputs of programs are listed by (group, values), results are arrays (n, size) by group.
Groups = list[tuple[str, list]]
Arrays = Mapping[str, np.ndarray]


class Posterior:
    """Posterior covariances, and residuals with theirs.

    choice: how the mean is computed, whose passes these programs have as well. key: the key of the solver in the cache,
    under which programs are stored, too; None where they are not stored.
    """

    def __init__(self, problem: Problem, choice: Choice, options: Options, key: str | None = None):
        self.problem, self._passes, self._options, self._key = problem, choice.passes, options, key
        self._components = {m.name: tuple(m.components(problem.model)) for m in options.measured}
        self._executables: dict[str, Executable] = {}
        self.begin()
        _ALIVE.add(self)

    def begin(self) -> None:
        """Forget who makes a program, and what of it is half made: in a forked process nobody goes on with it."""
        self._lock = threading.Lock()
        self.__dict__.pop("_root", None)

    @functools.cached_property
    def system(self) -> WhitenedSystem:
        # classical accelerations differ from a by a function of q and q̇, and have its covariance: none is fixed
        equations, measured = self._options.equations, self._options.measured
        return whitened_system(self.problem, equations.layout, equations.known, self._passes, outputs=measured)

    @functools.cached_property
    def _root(self) -> SquareRoot:
        return square_root(self.system)

    @property
    def noises(self) -> list[Noise]:
        return self.system.noises

    # ---- covariances --------------------------------------------------------------------------------------------

    def variances(self, quantity: str, inputs: Arrays, n: int) -> np.ndarray:
        """(n, size) of every scalar of a quantity or measured output."""
        scalars = self._scalars(quantity)

        def groups() -> Groups:
            return [("variance", [product(z, z) for z in map(self._root.information.deviations, scalars())])]

        return self._run(f"variance {quantity}", groups, inputs, n)["variance"]

    def covariance(self, first: Part, second: Part, inputs: Arrays, n: int) -> np.ndarray:
        """(n, size of first, size of second)."""
        rows_of, columns_of = self._scalars(first), self._scalars(second)

        def groups() -> Groups:
            rows, columns = ([*map(self._root.information.deviations, of())] for of in (rows_of, columns_of))
            return [(f"row {k}", [product(x, y) for y in columns]) for k, x in enumerate(rows)]

        found = self._run(f"covariance {first} {second}", groups, inputs, n)
        return np.stack([*found.values()], axis=1)

    def _scalars(self, part: Part) -> Callable[[], Sequence[Terms]]:
        """Each scalar in terms of unknowns of the system; of none where it is an exactly known input."""
        quantity, name = part if isinstance(part, tuple) else (part, None)
        if quantity in self._components:
            components = self._components[quantity]
            if name is None:
                return lambda: self._root.assembly.shown[quantity].rows
            if name not in components:
                raise UnknownName(f"component of {quantity!r}:", name, components)
            place = components.index(name)
            return lambda: [self._root.assembly.shown[quantity].rows[place]]
        if quantity not in self.problem.quantities:
            raise UnknownName("quantity", quantity, (*self.problem.quantities, *self._components))
        layout, scalars = self.system.layout, self.system.reported(quantity)
        if name is not None:
            chosen = layout.columns(*layout.block(quantity, name))
            columns = layout.quantity_columns(quantity)
            scalars = [x for c, x in zip(columns, scalars, strict=True) if c in chosen]
        return lambda: scalars

    # ---- tests --------------------------------------------------------------------------------------------------

    def residuals(self, inputs: Arrays, n: int) -> Arrays:
        """{name: ε (n, m)} of the whitened noisy equations, independent errors of variance 1 before the estimate."""

        def groups() -> Groups:
            residual = self._root.information.residuals()
            return [(noise.name, [residual.get(i, 0.0) for i in rows]) for noise, rows in self.system.places()]

        return self._run("residuals", groups, inputs, n)

    def redundancy(self, inputs: Arrays, n: int) -> Arrays:
        """{name: Cov(ε) (n, m, m)} of the whitened residuals; of independent components, the diagonal alone."""

        def groups() -> Groups:
            free = self._root.information.free()
            found: Groups = []
            for noise, rows in self.system.places():
                shares = [{k: y[i] for k, y in enumerate(free) if i in y} for i in rows]
                pairs = [(i, j) for i in range(noise.size) for j in (range(i + 1) if noise.full else [i])]
                found.append((noise.name, [product(shares[i], shares[j]) for i, j in pairs]))
            return found

        found = self._run("redundancy", groups, inputs, n)
        return {noise.name: noise.matrix(found[noise.name]) for noise in self.noises}

    def log_determinant(self, inputs: Arrays, n: int) -> np.ndarray:
        """(n,) log |det [0 E^T W^T; E 0 0; W 0 −1]|."""
        pivots = self._run("pivots", lambda: [("pivots", [*self._root.factors.pivots])], inputs, n)["pivots"]
        with np.errstate(divide="ignore"):
            return 2.0 * np.log(np.abs(pivots)).sum(axis=1)

    # ---- programs -----------------------------------------------------------------------------------------------

    def _run(self, name: str, groups: Callable[[], Groups], inputs: Arrays, n: int) -> Arrays:
        """Outputs (n, size) of the program `name`, which `groups` describes."""
        with self._lock:
            if name not in self._executables:
                program = self._stored(name)
                if program is None:
                    program = self._program(groups())
                    self._store(name, program)
                self._executables[name] = Executable(backend_named(self._options.backend)(program, CODE_LEVEL))
        return self._executables[name].results(inputs, n)[0]

    def _program(self, groups: Groups) -> Program:
        """The program, with zeros for variances that are zero at every state but for rounding."""
        graph, inputs = self._root.assembly.graph, self._root.assembly.inputs
        program = Program.from_graph(graph, inputs, groups)
        if groups[0][0] != "variance":
            return program
        found = interpreter.run_groups(program, sample_states(self.problem, SAMPLES, seed=EXAMPLE_SEED))["variance"]
        size = np.fmax.reduce(found, axis=0)
        least = VANISHING * np.fmax.reduce(size, initial=0.0)
        variances = [0.0 if s <= least else x for x, s in zip(groups[0][1], size, strict=True)]
        return Program.from_graph(graph, inputs, [("variance", variances)])

    def _file(self, name: str) -> str:
        return hashlib.sha256(f"{self._key} {name}".encode()).hexdigest() + ".posterior"

    def _stored(self, name: str) -> Program | None:
        payload = cache.load(self._file(name)) if self._key else None
        if payload is None:
            return None
        try:
            program = Program.from_arrays(storage.unpacked(payload))
            storage.check_inputs(program, self.problem)
            return program
        except (FileError, ValueError, OSError):
            return None  # a damaged entry is made again

    def _store(self, name: str, program: Program) -> None:
        if self._key:
            cache.store(self._file(name), storage.packed(program.to_arrays()))


def _forked() -> None:
    for posterior in _ALIVE:
        posterior.begin()


_ALIVE: weakref.WeakSet[Posterior] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
