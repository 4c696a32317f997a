"""Covariances, multipliers and determinant of a solved problem with noise, on request.

Each result has a program: the elimination that solves for the mean, with the same order and guards, followed by
selected entries of the inverse (Takahashi, Fagan and Chin 1973). Programs are compiled at first use. Variances of
outputs that the user selected share one, so that a result does not depend on what has been requested before. For the
residual tests see Teunissen (2000).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from sysdyn.codegen.registry import backend_named
from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.problem_system import assemble
from sysdyn.errors import SingularState, UnknownName, at_states, check_among
from sysdyn.measurements.problem import Problem
from sysdyn.offline.check import with_ranges
from sysdyn.offline.compile import ordered_system
from sysdyn.offline.covariance import SHARES, SymbolicCovariance, limits_of
from sysdyn.offline.dense_estimate import Covariance, DenseEstimate, LinearTerms, dense_estimates
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import Options
from sysdyn.offline.report import Choice
from sysdyn.offline.stages import Progress, Stages
from sysdyn.online import storage
from sysdyn.online.double_double import DoubleDoubleFallback
from sysdyn.online.states import SolvedStates
from sysdyn.online.whitening import NoisyComponents
from sysdyn.program.groups import Arrays
from sysdyn.program.program import Guard, Program
from sysdyn.runtime.native import extension
from sysdyn.runtime.native_calls import Argument, CallPattern, ResultLayout, single_state_call
from sysdyn.runtime.runner import Runner

# Level of code generation for the programs, which are large and run rarely.
CODE_LEVEL = 0
# Greatest relative change of a pivot or guarded variance between both double-double runs; dense matrices solve states
# with larger changes (errors of σ are up to six times the change).
TOLERANCE = 1e-9
# Most dense estimates that a call keeps, about a megabyte each for a humanoid (chosen).
MAX_KEPT = 64

# A part of the results: an output, or (quantity, joint, body or constraint), or (measured output, component).
OutputPart = str | tuple[str, str]
# Groups of outputs, (name, values), as a function of the statistics of an estimate.
Formula = Callable[[Covariance], list[tuple[str, list]]]


class Posterior:
    """Covariances, multipliers and determinant of the estimates of a solver.

    choice, guards: the elimination order of the mean, and the guards of its program. key: cache key of the solver and
    its programs; None without caching. progress: callback while programs are compiled.
    """

    def __init__(
        self, problem: Problem, choice: Choice, options: Options, guards: Sequence[Guard], key: str | None,
        progress: Progress | None,
    ):  # fmt: skip
        self.problem, self._choice, self._options, self._guards = problem, choice, options, guards
        self._key, self._progress = key, progress
        self._components = {m.name: tuple(m.components(problem.model)) for m in options.measured}
        self._statistics: dict[str, Statistic] = {}

    @functools.cached_property
    def system(self) -> AugmentedSystem:
        system = ordered_system(self.problem, self._options, self._choice)
        assert isinstance(system, AugmentedSystem)
        return system

    @functools.cached_property
    def _body_frame_system(self) -> AugmentedSystem:
        """Equations without passes, in body frames: transforms to other frames lose digits near singular states."""
        equations, outputs = self._options.equations, self._options.outputs
        system = assemble(self.problem, equations.layout, equations.known, outputs=outputs)
        assert isinstance(system, AugmentedSystem)
        return system

    @functools.cached_property
    def noisy(self) -> NoisyComponents:
        """The noisy components, in the order of `multipliers`."""
        noises = [noise for noise, _ in self.system.noise_numbers]
        return NoisyComponents(noises, [m.name for m in self.problem.switchable])

    # ---- results ------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of outputs at one state."""
        return {name: x.shape for name, x in self.problem.outputs(self._options.outputs).items()}

    def shape(self, quantity: str) -> tuple[int, ...]:
        """The shape of a quantity at one state, whether it is an output or not."""
        if quantity not in self._shapes:
            self._shapes[quantity] = self.problem.outputs([quantity])[quantity].shape
        return self._shapes[quantity]

    def variances(self, quantity: str, states: SolvedStates) -> np.ndarray:
        """Variances (n, size) of the scalars of a quantity or of a measured output."""
        if quantity not in states.variances:
            quantities = self._with_variances(quantity)
            name = _variances_of(quantities)
            if name not in self._statistics:
                self._rows(quantity)  # raises UnknownName

            def groups(of: Covariance) -> list[tuple[str, list]]:
                return [(x, of.covariances([(y, y) for y in self._rows(x)(of)])) for x in quantities]

            states.variances.update(self._run(name, groups, states))
        return states.variances[quantity]

    def _with_variances(self, quantity: str) -> tuple[str, ...]:
        """Quantities whose variances the program computes that computes those of `quantity`.

        Outputs that the user selected share a program, in which the elimination and its guards run once. Each of all
        quantities has its own: one program of all would be large.
        """
        outputs = self._options.output_names
        selected = quantity in outputs and not set(self.problem.quantities) <= set(outputs)
        return outputs if selected else (quantity,)

    def has_variances(self, quantity: str) -> bool:
        """True if `variances` of this quantity have a compiled program."""
        return _variances_of(self._with_variances(quantity)) in self._statistics

    def covariance(self, first: OutputPart, second: OutputPart, states: SolvedStates) -> np.ndarray:
        """Covariances (n, size of first, size of second) between two parts."""
        name = " and ".join(part if isinstance(part, str) else " of ".join(reversed(part)) for part in (first, second))
        chosen = [self._rows(part) for part in (first, second)]

        def groups(of: Covariance) -> list[tuple[str, list]]:
            rows, columns = ([*part(of)] for part in chosen)
            variances = [(x, x) for x in (*rows, *columns)]  # for their guards
            covariances = iter(of.covariances([*((x, y) for x in rows for y in columns), *variances]))
            return [(f"row {k}", [next(covariances) for _ in columns]) for k in range(len(rows))]

        outputs = self._run(f"covariance of {name}", groups, states)
        covariances = [x for group, x in outputs.items() if group != SHARES]
        return np.stack(covariances, axis=1) if covariances else np.empty((states.n, 0, 0))

    def multipliers(self, states: SolvedStates) -> np.ndarray:
        """Multipliers μ = Σ⁻¹ ε (n, m) of the noisy equations."""
        return self._run("multipliers", lambda of: [("multipliers", of.multipliers())], states)["multipliers"]

    def tests(self, states: SolvedStates) -> tuple[np.ndarray, np.ndarray]:
        """(multipliers (n, m), their covariances (n, numbers): variances, or a triangle of each full covariance)."""

        def groups(of: Covariance) -> list[tuple[str, list]]:
            return [("multipliers", of.multipliers()), ("their covariances", of.multiplier_covariances())]

        outputs = self._run("tests", groups, states)
        return outputs["multipliers"], outputs["their covariances"]

    def log_determinant(self, states: SolvedStates) -> np.ndarray:
        """Logarithm (n,) log |det A| of the augmented matrix."""
        outputs = self._run("determinant", lambda of: [("pivots", of.pivots())], states)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.abs(outputs["pivots"])).sum(axis=1))

    def _rows(self, part: OutputPart) -> Callable[[Covariance], Sequence[LinearTerms]]:
        """Function to the scalars of a part as {column: coefficient}; empty for a known input. Raises UnknownName."""
        quantity, name = part if isinstance(part, tuple) else (part, None)
        if quantity in self._components:
            components = self._components[quantity]
            if name is None:
                return lambda of: of.output_rows(quantity)
            check_among(f"component of {quantity!r}:", name, components)
            place = components.index(name)
            return lambda of: [of.output_rows(quantity)[place]]
        if quantity not in self.problem.quantities:
            raise UnknownName("quantity", quantity, (*self.problem.quantities, *self._components))
        layout = self.problem.layout()
        columns = layout.quantity_columns(quantity)
        chosen = columns if name is None else layout.columns(*layout.block(quantity, name))
        return lambda of: [x for c, x in zip(columns, of.system.output_terms(quantity), strict=True) if c in chosen]

    # ---- programs -----------------------------------------------------------------------------------------------

    @property
    def programs(self) -> dict[str, Runner]:
        """Compiled programs by name, one per requested result."""
        return {name: x.runner for name, x in self._statistics.items()}

    def _run(self, name: str, groups: Formula, states: SolvedStates) -> Arrays:
        """Outputs {group: (n, size)} of the program `name`, which computes these groups.

        Fallbacks of states at which a guard fails are the double-double rerun and dense matrices. If these fail as
        well: raises SingularState, or returns NaN if `states.refuse` is False.
        """
        statistic = self._statistics.get(name)
        if statistic is None:
            statistic = self._statistics[name] = self._build_statistic(name, groups)
        if states.n == 1 and (row := statistic.at_one(states)) is not None:
            return row
        outputs, status = statistic.runner.results(states.inputs, states.n)
        solved = np.ones(states.n, dtype=bool) if states.solved is None else states.solved
        flagged = np.flatnonzero((status != 0) & solved)
        statistic.double_double.solve(states.at(flagged), outputs, status, flagged)
        for k in flagged[status[flagged] != 0].tolist():
            if estimate := self._dense_estimate(states, k):
                status[k] = 0
                for group, values in groups(estimate):
                    outputs[group][k] = values
        failed = np.flatnonzero((status != 0) | ~solved)
        if states.refuse and solved[failed].any():
            raise SingularState(
                f"the {name} cannot be computed at this state{at_states(failed, states.n)}: nothing determines the "
                "estimate there. Use on_singular='nan' to go on without it",
                states=tuple(failed.tolist()),
            )
        for x in outputs.values():
            x[failed] = np.nan
        return outputs

    def _dense_estimate(self, states: SolvedStates, k: int) -> DenseEstimate | None:
        """The estimate of state k by dense matrices, cached."""
        if k not in states.dense:
            if len(states.dense) >= MAX_KEPT:
                states.dense.clear()
            states.dense[k] = dense_estimates(self._body_frame_system, states.at(np.array([k])))[0]
        return states.dense[k]

    def _build_statistic(self, name: str, groups: Formula) -> Statistic:
        stages = Stages(self._progress)
        stages.report(name)
        try:
            file = hashlib.sha256(f"{self._key} {name}".encode()).hexdigest() + ".posterior"

            def make() -> storage.StoredProgram:
                stages.report(f"{name}: eliminating", 0.2)
                return self._program(groups), {}

            program, _ = storage.cached_program(file if self._key else None, make)
            stages.report(f"{name}: compiling machine code", 0.6)
            return Statistic(Runner(backend_named(self._options.backend)(program, CODE_LEVEL)))
        finally:
            stages.report("done", 1.0)

    def _program(self, groups: Formula) -> Program:
        elimination = Elimination(self.system, *self._choice.pivots, refined=self._choice.refined)
        with elimination.graph:
            covariance = SymbolicCovariance(elimination, limits_of(self._guards))
            program = covariance.program(groups(covariance))
        return with_ranges(program, self.problem.model, self._choice.report)


class Statistic:
    """The compiled program of one result of an estimate, such as variances or the determinant."""

    def __init__(self, runner: Runner):
        self.runner = runner
        self.double_double = DoubleDoubleFallback(runner.program, TOLERANCE)

    @functools.cached_property
    def _single_state_calls(self) -> list[extension.SingleStateCall]:
        """The native call with the vector of all inputs as argument; none without machine code."""
        program = self.runner.program
        vector = Argument((program.n_inputs,), np.arange(program.n_inputs))
        layout = ResultLayout(dict, tuple(program.outputs), tuple((1, size) for size in program.outputs.sizes.values()))
        constants, pattern = np.zeros(program.n_inputs), CallPattern(1, {}, {})
        call = single_state_call(self.runner.backend, [vector], constants, [], pattern, layout)
        return [call] if call else []

    def at_one(self, states: SolvedStates) -> Arrays | None:
        """Outputs {group: (1, size)} at one state by a native call; None if a guard failed, or without machine code."""
        if not (calls := self._single_state_calls):
            return None
        return extension.run_single_state(calls, (states.input_vector(self.runner.program.inputs),), {})


def _variances_of(quantities: Sequence[str]) -> str:
    return f"variances of {', '.join(quantities)}"
