"""Covariances, residuals and likelihood of a solved problem with noise, on request.

All of it comes from one elimination of the whitened equations by orthogonal columns, W d + w = Q (R d + r, left):

    Cov(d) = R⁻¹ R^-T,   ε = W d + w = Q₂ left,   Cov(ε) = Q₂ Q₂^T,   χ² = |left|²

Sums of squares only keep their digits whatever the variances. The factors (R, the turns of Q, left) are one program,
and each result is another, of these; they are compiled at first use. Golub (1965) and Bierman (1977);
Teunissen (2000) for the tests.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.codegen.registry import backend_named
from sysdyn.equations.whitened import WhitenedSystem, whitened_system
from sysdyn.errors import SingularState, UnknownName, at_states, check_among
from sysdyn.files import cache
from sysdyn.measurements.noise import noise_of
from sysdyn.offline.choice import Choice
from sysdyn.offline.elimination import output_groups
from sysdyn.offline.options import Options
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.offline.square_root import AtState, Estimated, SquareRoot, pivoted, square_root
from sysdyn.offline.stages import Progress, Stages
from sysdyn.online import storage
from sysdyn.online.digits import Distance, sizes_of_mean
from sysdyn.online.states import States
from sysdyn.online.whitening import NoisyComponents
from sysdyn.problem import Problem
from sysdyn.program.groups import Arrays
from sysdyn.program.opcodes import BAD_PIVOT
from sysdyn.program.program import Program
from sysdyn.runtime.backend import RunResults
from sysdyn.runtime.runner import Runner
from sysdyn.sparse.information import product

# Level of code generation for the programs, which are large and run seldom.
CODE_LEVEL = 0
# Share of the greatest variance of its program and state below which a variance counts as zero, at every sampled state
# that the factors' order solves (chosen).
VANISHING_VARIANCE = 1e-22
# Number of states at which variances that are zero at every state are found (chosen).
SAMPLES = 4
# Most states of which the form with pivoting is kept, about a megabyte each for a humanoid (chosen).
MOST_KEPT = 64
# Names of the programs of the factors and of the mean, and of the inputs of all others.
FACTORS, MEAN, ENTRIES = "factors", "mean", "entries"

# A part of the results: an output, or (quantity, joint, body or constraint), or (measured output, component).
Part = str | tuple[str, str]
# A scalar as a sum of unknowns, {number of an unknown: coefficient}; for a measured output these depend on the state.
Terms = Mapping[int, Any]
# Outputs of a program, (group, values).
NamedScalars = list[tuple[str, list]]
# Outputs as a function of the factors, of all states as expressions or of one state as numbers.
Formula = Callable[[Estimated], NamedScalars]
# Sizes that errors are relative to, as a function of results at some states and the numbers of these.
Sizes = Callable[[Arrays, np.ndarray], Arrays]


class Posterior:
    """Posterior covariances, and residuals with theirs.

    choice: the order of the mean, whose passes these programs have as well. key: the key of the solver in the cache,
    under which programs are stored, too; None if they are not stored. progress: called while programs are made.
    RunResults are checked if covariances are far from the declared ones, see `Distance`.
    """

    def __init__(
        self, problem: Problem, choice: Choice, options: Options, key: str | None,
        progress: Progress | None,
    ):  # fmt: skip
        self.problem, self._passes, self._options, self._key = problem, choice.passes, options, key
        self._progress = progress
        self._components = {m.name: tuple(m.components(problem.model)) for m in options.measured}
        self._executables: dict[str, Ready] = {}
        self._factors: Factors | None = None
        self.distance = Distance([noise_of(m, problem.model) for m in problem.noisy])
        self.begin()
        _ALIVE.add(self)

    def begin(self) -> None:
        """Free the lock and drop a half-made form: in a forked process nobody goes on with it."""
        self._lock = threading.Lock()
        self.__dict__.pop("_root", None)

    @functools.cached_property
    def system(self) -> WhitenedSystem:
        # classical accelerations differ from a by a function of q and q̇, and have its covariance: none is fixed
        equations, measured = self._options.equations, self._options.measured
        return whitened_system(self.problem, equations.layout, equations.known, self._passes, outputs=measured)

    @functools.cached_property
    def _stated(self) -> WhitenedSystem:
        """The same equations in frames as stated: what a turn rounds counts near singular states."""
        equations, measured = self._options.equations, self._options.measured
        return whitened_system(self.problem, equations.layout, equations.known, outputs=measured)

    @functools.cached_property
    def _root(self) -> SquareRoot:
        return square_root(self.system, Stages(self._progress))

    @functools.cached_property
    def noisy(self) -> NoisyComponents:
        """The noisy components, in the order of `residuals`."""
        return NoisyComponents(self.system.noises, [m.name for m in self.problem.switchable])

    # ---- mean ---------------------------------------------------------------------------------------------------

    def mean(self, states: States) -> Arrays:
        """Estimate {output: (n, size)} from the square-root form; NaN if digits are lost."""

        def groups(_: Estimated) -> NamedScalars:
            root = self._root
            return output_groups(self.system, root.assembly, root.solution, self._options.outputs)

        states = States(states.inputs, states.n, refuse=False)
        found = self._run(MEAN, groups, states, lambda found, _: sizes_of_mean(found))
        return {name: found[:, part] for name, part in self._executables[MEAN].places.items()}

    # ---- covariances --------------------------------------------------------------------------------------------

    @functools.cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of outputs at one state."""
        return {name: x.shape for name, x in self.problem.outputs(self._options.outputs).items()}

    def shape(self, quantity: str) -> tuple[int, ...]:
        """The shape of an output at one state, or of a quantity that is none."""
        if quantity not in self._shapes:
            self._shapes[quantity] = self.problem.outputs([quantity])[quantity].shape
        return self._shapes[quantity]

    def variances(self, part: Part, states: States) -> np.ndarray:
        """Variances (n, size) of the scalars of a part."""
        name = f"variance {_words(part)}"
        self._check(name, part)

        def groups(of: Estimated) -> NamedScalars:
            return [("variance", [product(z, z) for z in map(of.information.deviations, self._scalars(part)(of))])]

        def sizes(found: Arrays, _: np.ndarray) -> Arrays:
            x = found["variance"]
            return {"variance": np.maximum(x, VANISHING_VARIANCE * x.max(axis=1, initial=0.0, keepdims=True))}

        return self._run(name, groups, states, sizes, 1.0)

    def covariance(self, first: Part, second: Part, states: States) -> np.ndarray:
        """Covariances (n, size of first, size of second) between two parts."""
        name = f"covariance {_words(first)} {_words(second)}"
        self._check(name, first, second)

        def groups(of: Estimated) -> NamedScalars:
            rows, columns = ([*map(of.information.deviations, self._scalars(x)(of))] for x in (first, second))
            return [(f"row {k}", [product(x, y) for y in columns]) for k, x in enumerate(rows)]

        def sizes(found: Arrays, chosen: np.ndarray) -> Arrays:
            part = States(states.at(chosen), len(chosen), refuse=False)
            rows, columns = (np.sqrt(self.variances(x, part)) for x in (first, second))
            sizes = rows[:, :, None] * columns[:, None]
            least = np.sqrt(VANISHING_VARIANCE) * sizes.max(axis=(1, 2), initial=0.0, keepdims=True)
            sizes = np.maximum(sizes, least)
            return {name: sizes[:, k] for k, name in enumerate(found)}

        found = self._run(name, groups, states, sizes, 1.0)
        return found.reshape(states.n, len(self._executables[name].places), -1)

    def _check(self, name: str, *parts: Part) -> None:
        """Raise UnknownName before anything is eliminated for a program that is not made yet."""
        if name not in self._executables:
            for part in parts:
                self._scalars(part)

    def _scalars(self, part: Part) -> Callable[[Estimated], Sequence[Terms]]:
        """Each scalar in terms of unknowns of the system; of none if it is a known input. Raises UnknownName."""
        quantity, name = part if isinstance(part, tuple) else (part, None)
        if quantity in self._components:
            components = self._components[quantity]
            if name is None:
                return lambda of: of.shown[quantity]
            check_among(f"component of {quantity!r}:", name, components)
            place = components.index(name)
            return lambda of: [of.shown[quantity][place]]
        if quantity not in self.problem.quantities:
            raise UnknownName("quantity", quantity, (*self.problem.quantities, *self._components))
        layout = self.system.layout
        columns = layout.quantity_columns(quantity)
        chosen = columns if name is None else layout.columns(*layout.block(quantity, name))
        return lambda of: [x for c, x in zip(columns, of.system.output_terms(quantity), strict=True) if c in chosen]

    # ---- tests --------------------------------------------------------------------------------------------------

    def residuals(self, states: States) -> np.ndarray:
        """Residuals ε (n, m) of the whitened noisy equations, in their order; at first errors of variance 1."""

        def groups(of: Estimated) -> NamedScalars:
            residual = of.information.residuals()
            return [("residuals", [residual.get(i, 0.0) for _, rows in of.system.places() for i in rows])]

        def sizes(found: Arrays, _: np.ndarray) -> Arrays:
            return {name: np.abs(x).max(axis=1, initial=1.0, keepdims=True) for name, x in found.items()}

        return self._run("residuals", groups, states, sizes, -0.5)

    def redundancy(self, states: States) -> np.ndarray:
        """Covariances (n, numbers) of the whitened residuals, of each `Noise` as its own: variances, or a triangle."""

        def groups(of: Estimated) -> NamedScalars:
            free = of.information.free()
            found: list = []
            for noise, rows in of.system.places():
                shares = [{k: y[i] for k, y in enumerate(free) if i in y} for i in rows]
                pairs = [(i, j) for i in range(noise.size) for j in (range(i + 1) if noise.full else [i])]
                found += [product(shares[i], shares[j]) for i, j in pairs]
            return [("redundancy", found)]

        return self._run("redundancy", groups, states, lambda found, _: dict.fromkeys(found, np.ones((1, 1))))

    def log_determinant(self, states: States) -> np.ndarray:
        """Logarithm (n,) log |det [0 E^T W^T; E 0 0; W 0 −1]|."""

        def groups(of: Estimated) -> NamedScalars:
            pivots = of.information.pivots()
            return [("exact", [*pivots.exact]), ("noisy", [*pivots.noisy])]

        def sizes(found: Arrays, _: np.ndarray) -> Arrays:
            return {name: np.abs(x) for name, x in found.items()}

        found = self._run("determinant", groups, states, sizes, {"exact": 0.0, "noisy": -0.5})
        with np.errstate(divide="ignore"):
            logs = np.log(np.abs(found))
        return 2.0 * np.sum([logs[:, x].sum(axis=1) for x in self._executables["determinant"].places.values()], axis=0)

    # ---- programs -----------------------------------------------------------------------------------------------

    @property
    def programs(self) -> dict[str, Runner]:
        """The compiled programs by name: of the factors, and of each result that was asked for."""
        factors = {FACTORS: self._factors.executable} if self._factors else {}
        return factors | {name: ready.executable for name, ready in self._executables.items()}

    def _run(
        self, name: str, groups: Formula, states: States, sizes: Sizes,
        power: float | Mapping[str, float] = 0.0,
    ) -> np.ndarray:  # fmt: skip
        """Outputs (n, size), of all groups, of the program `name`, which `groups` describes; see `Distance.errors`.

        Raises SingularState if not even pivoting computes them; with `states.refuse` false they are NaN then.
        """
        executable = self._executable(name, groups)
        if states.n == 1 and (one := executable.at_one(states)) is not None:
            return one
        found, status = executable.results(states.inputs, states.n, states.solved, states.again)
        failed = np.flatnonzero(status)
        if len(failed):
            if states.refuse and (states.solved is None or states.solved[failed].any()):
                raise SingularState(
                    f"the {name} cannot be computed at this state{at_states(failed, states.n)}: nothing determines the "
                    "estimate there. Use on_singular='nan' to go on without it",
                    states=tuple(failed.tolist()),
                )
            for x in found.values():
                x[failed] = np.nan
        far = self.distance.far(states.inputs, states.n)
        if len(far):
            part = {output: x[far] for output, x in found.items()}
            powers = power if isinstance(power, Mapping) else dict.fromkeys(found, power)
            error = self.distance.errors(executable, part, states.at(far), sizes(part, far), powers)
            lost = far[error > self.distance.kept]
            if len(lost) and states.refuse:
                raise self.distance.lost(f"the {name}", states.inputs, states.n, lost)
            for x in found.values():
                x[lost] = np.nan
        return np.concatenate([*found.values()], axis=1) if len(found) != 1 else next(iter(found.values()))

    def _executable(self, name: str, groups: Formula) -> Ready:
        """The program `name` ready to run, made at first use."""
        if (found := self._executables.get(name)) is not None:
            return found
        with self._lock:
            if name not in self._executables:
                stages = Stages(self._progress)
                stages.report(name)
                try:
                    self._executables[name] = self._made(name, groups, stages)
                finally:
                    stages.report("done", 1.0)
            return self._executables[name]

    def _made(self, name: str, groups: Formula, stages: Stages) -> Ready:
        def compiled(program: Program) -> Runner:
            stages.report(f"{name}: compiling machine code", 0.6)
            return Runner(backend_named(self._options.backend)(program, CODE_LEVEL))

        if name == MEAN:
            program = self._stored(name, self.problem.input_sizes)
            if program is None:
                program = self._store(name, self._root.mean(groups(self._root)))
            return Ready(compiled(program))
        first, rest = self._stored(FACTORS, self.problem.input_sizes), None
        if first is not None:
            rest = self._stored(f"{name} of {first.digest}", [(ENTRIES, first.n_outputs)])
        if first is None or rest is None:
            made, rest = self._root.program, None
            if first is None or first.digest != made.digest:
                self._store(FACTORS, made)
            first = made
        if self._factors is None or self._factors.executable.program.digest != first.digest:
            self._factors = Factors(compiled(first), lambda x: pivoted(self._stated, dict(x)), self.distance)
        if rest is None:
            rest = self._store(f"{name} of {first.digest}", self._program(groups(self._root), self._factors))
        return AfterFactors(self._factors, compiled(rest), groups)

    def _program(self, groups: NamedScalars, factors: Factors) -> Program:
        """A program of the factors, with zeros for variances that are zero at every state but for rounding."""
        graph, inputs = self._root.graph, [self._root.entries]
        program = Program.from_graph(graph, inputs, groups)
        if groups[0][0] != "variance":
            return program
        states = sample_states(self.problem, 2 * SAMPLES, seed=EXAMPLE_SEED)
        random = {name: x[::2] for name, x in states.items()}  # at right angles variances vanish that do not elsewhere
        made, status = factors.executable.results(random, SAMPLES)
        if status.all():
            return program
        found = interpreter.run_groups(program, {ENTRIES: made[ENTRIES][status == 0]})["variance"]
        zero = (found <= VANISHING_VARIANCE * found.max(axis=1, initial=0.0, keepdims=True)).all(axis=0)
        variances = [0.0 if none else x for x, none in zip(groups[0][1], zero, strict=True)]
        return Program.from_graph(graph, inputs, [("variance", variances)])

    def _file(self, name: str) -> str:
        return hashlib.sha256(f"{self._key} {name}".encode()).hexdigest() + ".posterior"

    def _stored(self, name: str, inputs: Sequence[tuple[str, int]]) -> Program | None:
        program = storage.program_of(cache.load(self._file(name)) if self._key else None)
        return program if program and program.inputs.sizes == dict(inputs) else None

    def _store(self, name: str, program: Program) -> Program:
        if self._key:
            cache.store(self._file(name), storage.packed(program.to_arrays()))
        return program


class _OneState(threading.local):
    """Prepared calls of one state, a set for each thread.

    inputs (n_inputs,), outputs (1, n_outputs) and status (1,) are arrays of its own. of: the row of inputs of the
    outputs, None if there are none. busy: they are in use; a signal's handler may ask for results, too.
    """

    def __init__(self, executable: Runner, outputs_before: Callable[[], np.ndarray] | None = None):
        program = executable.program
        self.inputs = np.zeros(program.n_inputs) if outputs_before is None else outputs_before()[0]
        self.outputs, self.status = np.zeros((1, program.n_outputs)), np.zeros(1, dtype=np.int64)
        inputs, outputs = (
            {name: x[..., part] for name, part in places.items()}
            for x, places in ((self.inputs, program.inputs.slices), (self.outputs, program.outputs.slices))
        )
        self.run = executable.bind(inputs, outputs, self.status, None, single=True)
        self.of: np.ndarray | None = None
        self.busy = False


class Factors:
    """The factors of the square-root form at states; at one state, those of the last call are kept.

    pivoted: the form with pivoting at each of the states (inputs (k, size) by group), None if singular.
    """

    def __init__(
        self, executable: Runner, pivoted: Callable[[Arrays], list[AtState | None]], distance: Distance
    ):  # fmt: skip
        self.executable, self._pivoted, self.distance = executable, pivoted, distance
        self.groups = executable.program.inputs
        self._again: tuple[Arrays, dict[int, AtState | None]] | None = None

    @functools.cached_property
    def one(self) -> _OneState:
        """Prepared calls of one state, if the back end has any."""
        return _OneState(self.executable)

    def again(self, inputs: Arrays, n: int, chosen: Sequence[int]) -> Iterator[AtState | None]:
        """The form with pivoting at each of these states, for inputs that nobody changes."""
        if self._again is None or self._again[0] is not inputs:
            self._again = inputs, {}
        kept = self._again[1]
        for start in range(0, len(chosen), MOST_KEPT):
            part = chosen[start : start + MOST_KEPT]
            new = [k for k in part if k not in kept]
            made = dict(
                zip(new, self._pivoted(States(inputs, n, refuse=False).at(np.array(new, dtype=int))), strict=True)
            )
            yield from (made[k] if k in made else kept[k] for k in part)
            if len(kept) + len(made) <= MOST_KEPT:
                kept.update(made)


class Ready:
    """A program ready to run. places: of its outputs in a row."""

    def __init__(self, executable: Runner):
        self.executable, self.places = executable, executable.program.outputs.slices

    def at_one(self, states: States) -> np.ndarray | None:
        """Outputs (1, n_outputs) at one state by prepared calls; None if anything has to be looked at."""
        return None

    def results(
        self, inputs: Arrays, n: int, solved: np.ndarray | None = None, again: np.ndarray | None = None
    ) -> RunResults:
        """({output: (n, size)}, status (n,)) as of a `Runner`. solved, again (n,) bool: see `States`."""
        return self.executable.results(inputs, n)


class AfterFactors(Ready):
    """A program of the factors, together with these.

    groups: the outputs, also at states at which the order of the factors fails.
    """

    def __init__(self, factors: Factors, executable: Runner, groups: Formula):
        super().__init__(executable)
        self.factors, self._groups, self._kernels = factors, groups, executable.backend.kernels

    @functools.cached_property
    def _one(self) -> tuple[_OneState, _OneState]:
        """Prepared calls of one state: of the factors, and of this program, which reads what they write."""
        factors = self.factors.one
        return factors, _OneState(self.executable, lambda: factors.outputs)

    def at_one(self, states: States) -> np.ndarray | None:
        if states.again is not None or not self._kernels or not self.factors.distance.is_near(states):
            return None
        factors, one = self._one
        if factors.busy:
            return None
        try:
            factors.busy = True
            row = states.row(self.factors.groups)
            if factors.of is not row:
                factors.of = None
                factors.inputs[:] = row
                factors.run()
                factors.of = row
            if factors.status[0]:
                return None
            one.run()
            return None if one.status[0] else one.outputs.copy()
        finally:
            factors.busy = False

    def results(
        self, inputs: Arrays, n: int, solved: np.ndarray | None = None, again: np.ndarray | None = None
    ) -> RunResults:
        """As of any program; the status is zero also for states that pivoting solves."""
        (outputs, status), failed = self.executable.run_after(self.factors.executable, inputs, n)
        status |= failed
        failing = (status != 0) if again is None else (status != 0) | again
        chosen = np.flatnonzero(failing if solved is None else failing & solved)
        if len(chosen):
            self._solve_again(inputs, chosen.tolist(), outputs, status)
        return outputs, status

    def _solve_again(self, inputs: Arrays, chosen: Sequence[int], outputs: Arrays, status: np.ndarray) -> None:
        """Replace outputs and status of the chosen states that pivoting solves."""
        zero, start = self.executable.program.zero_outputs, 0
        always = {}
        for name, size in self.executable.program.outputs.sizes.items():
            always[name] = zero[start : start + size]
            start += size
        for k, form in zip(chosen, self.factors.again(inputs, len(status), chosen), strict=True):
            status[k] = BAD_PIVOT if form is None else 0
            if form is not None:
                for name, x in self._groups(form):
                    outputs[name][k] = np.where(always[name], 0.0, np.array(x, dtype=float))


def _forked() -> None:
    for posterior in _ALIVE:
        posterior.begin()


_ALIVE: weakref.WeakSet[Posterior] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _words(part: Part) -> str:
    return part if isinstance(part, str) else " of ".join(reversed(part))
