"""Fallbacks for states at which the static pivots of a solver are too small: double-double rerun, then pivoting."""

from __future__ import annotations

import numpy as np

from sysdyn.diagnosis.diagnose import undetermined_at
from sysdyn.diagnosis.structure import equation_names
from sysdyn.equations.backward_error import residual_of
from sysdyn.equations.problem_system import assemble
from sysdyn.errors import SingularState, at_states, few
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.options import Options
from sysdyn.offline.pivoted_lu import solve_pivoted
from sysdyn.offline.sampling import reach
from sysdyn.online.calls import Calls, Result
from sysdyn.online.double_double import DoubleDoubleFallback
from sysdyn.online.minimum_norm import ConstraintWrenches
from sysdyn.online.redundancy import FullSystem, Reduction
from sysdyn.program.opcodes import BAD_INPUT, BAD_OUTPUT, BAD_PIVOT, OUT_OF_RANGE, WEAK_PIVOT
from sysdyn.runtime.real import DOUBLE
from sysdyn.runtime.runner import Runner

# Backward error of a least-squares solution above which equations contradict each other (chosen).
AGREEMENT = 1e-9


class FallbackSolver:
    """Solves the flagged states of a solver's calls: by the rerun `double_double`, or else by LU with pivoting."""

    def __init__(
        self, problem: Problem, options: Options, executable: Runner, calls: Calls, reduction: Reduction | None = None
    ):  # fmt: skip
        self._problem, self._options, self._executable, self._calls = problem, options, executable, calls
        self._reduction = reduction
        self._program = executable.program
        self.double_double = DoubleDoubleFallback(executable.program)

    def resolve(self, run: Result, policy: str) -> None:
        """Solve the flagged states: update outputs and status of `run`, and set `run.undetermined`.

        policy: "nan" or "raise". Raises InvalidInput or SingularState, as a call does.
        """
        self._calls.reject_bad_inputs(run)
        # a zero pivot may come from the order alone: the system itself is tested for singularity
        weak = WEAK_PIVOT | OUT_OF_RANGE
        if self._options.kernel_real is not DOUBLE:  # double precision has a larger range of exponents
            weak |= BAD_INPUT | BAD_OUTPUT
        recoverable = weak | BAD_PIVOT | BAD_OUTPUT
        flagged = np.flatnonzero((run.status & weak != 0) & (run.status & ~recoverable == 0))
        if len(flagged):
            self.double_double.solve(run.at(flagged), run.outputs, run.status, flagged)
            run.undetermined = self._pivot(run, flagged[run.status[flagged] != 0])
        bad = np.flatnonzero(run.status)
        if len(bad) and policy == "raise":
            raise self._error(run, bad)
        for x in run.outputs.values():
            x[bad] = np.nan

    def _equations(
        self, run: Result, states: np.ndarray
    ) -> tuple[Problem, FullSystem | None, dict[str, np.ndarray]]:  # fmt: skip
        """(problem, FullSystem or None, inputs) of pivoted solves; the full problem if least squares can solve it."""
        full = run.full_system if self._reduction and self._reduction.is_least_squares else None
        return (full.problem, full, full.at(states)) if full else (self._problem, None, run.at(states))

    @staticmethod
    def _wrenches(problem: Problem) -> ConstraintWrenches | None:
        """Solver of minimum-norm constraint wrenches; None for problems without constraints or with noise."""
        if problem.noisy or not problem.constraints:
            return None
        return problem.cached("constraint wrenches", lambda: ConstraintWrenches(problem))

    def _pivot(self, run: Result, states: np.ndarray) -> tuple[str, ...]:
        """Replace outputs and status of these states by those of a pivoted solve, if it succeeds.

        At a singular state it succeeds only if nothing but constraint wrenches is undetermined. These get minimum norm;
        their names are returned.
        """
        problem, full, inputs = self._equations(run, states)
        system = assemble(problem, outputs=(*QUANTITIES, *self._options.measured))
        d, undetermined = np.full((len(states), system.layout.n), np.nan), np.zeros(system.layout.n, dtype=bool)
        for k in range(len(states)):
            state = {name: x[k] for name, x in inputs.items()}
            if solution := solve_pivoted(system, state):
                d[k] = solution.d
            elif wrenches := self._wrenches(problem):
                least = wrenches.at(state)
                if least.solved:
                    d[k], undetermined = least.d, undetermined | least.undetermined
        solved = np.isfinite(d).all(axis=1)
        states, d, inputs = states[solved], d[solved], {name: x[solved] for name, x in inputs.items()}
        if full:
            error = residual_of(system, *system.values_at(inputs, len(d)), d).backward_error
            full.solved[states], full.contradicting[states] = True, error > AGREEMENT
        measured, finite = system.output_values(inputs, d), np.ones(len(states), dtype=bool)
        for name, x in run.outputs.items():
            with np.errstate(over="ignore"):
                x[states] = measured[name][0] if name in measured else d[:, system.layout.quantity_columns(name)]
            finite &= np.isfinite(x[states]).all(axis=1)
        run.status[states] = np.where(finite, 0, BAD_OUTPUT)
        return tuple(np.array(system.plain.col_names)[undetermined[system.plain.columns]].tolist())

    # ---- errors -------------------------------------------------------------------------------------------------

    def _error(self, run: Result, bad: np.ndarray) -> SingularState:
        """SingularState that names undetermined unknowns, or the input that is too large, at the first bad state."""
        status, equation, unknown = run.status[bad[0]], "", ""
        state = {name: x[0] for name, x in run.at(bad[:1]).items()}
        advice = "Use on_singular='nan' to go on without it"
        if status & OUT_OF_RANGE:
            reason = self._out_of_range(state["q"])
        elif status == BAD_OUTPUT:
            numbers = "double" if self._options.kernel_real is DOUBLE else "single"
            reason = f"{self._largest(state)} is too large for {numbers} precision: the result is not finite"
        else:
            equation, unknown = self._failed_pivot(run, bad[:1])
            reason = "; ".join(self._singularity(run, bad[:1], equation, unknown)) or "the result is not finite"
            advice += ", sd.least_norm for the least of many solutions, or look at sd.diagnose(problem)"
        return SingularState(
            f"the system cannot be solved at this state{at_states(bad, len(run.status))}: {reason}. {advice}",
            equation, unknown, tuple(bad.tolist()),
        )  # fmt: skip

    def _failed_pivot(self, run: Result, state: np.ndarray) -> tuple[str, str]:
        """(equation, unknown) of the first pivot below its threshold; empty if there is none."""
        if not self._program.guards:
            return "", ""
        pairs = list(zip(self._program.guards, np.abs(self._executable.guarded(run.at(state))[0]), strict=True))
        failed = [g for g, v in pairs if not v >= g.threshold] or [g for g, v in pairs if not v >= g.weak]
        label = min(failed, key=lambda g: g.value).label if failed else ""
        equation, _, unknown = label.partition(" → ")
        return equation, unknown

    def _singularity(self, run: Result, state: np.ndarray, equation: str, unknown: str) -> list[str]:
        """Reasons of a singularity in words: undetermined unknowns, and constraints that contradict each other."""
        reasons = [f"equation {equation} does not give {unknown}"] if equation else []
        problem, _, inputs = self._equations(run, state)
        if free := undetermined_at(assemble(problem), inputs):
            reasons.append(free)
        if wrenches := self._wrenches(problem):
            plain = assemble(problem).plain
            contradicting = wrenches.at({name: x[0] for name, x in inputs.items()}).contradicting
            rows = [r for r in np.flatnonzero(contradicting).tolist() if plain.row_blocks[r][0] == "y"]
            if names := equation_names(plain, rows):
                reasons.append(f"{few(names)} cannot hold there, as if a limb is stretched and moves on")
        return reasons

    def _largest(self, inputs: dict[str, np.ndarray]) -> str:
        """The largest input of a state, by name, and its value."""
        sizes = {name: np.abs(x) for name, x in inputs.items() if x.size}
        group = max(sizes, key=lambda name: sizes[name].max())
        k = int(np.argmax(sizes[group]))
        labels = self._problem.inputs[group].labels if group in self._problem.inputs else ()
        return f"{labels[k] if k < len(labels) else group} = {sizes[group][k]:.3g}"

    def _out_of_range(self, q: np.ndarray) -> str:
        """The joint that is farthest beyond the checked range of its positions."""
        model = self._problem.model
        ranges = reach(model)
        k = int(np.argmax(np.abs(q) / ranges))
        joint = next(i for i in range(model.nb) if k < model.q_slice(i).stop)
        return (
            f"joint {model.joint_names[joint]!r} is at {q[k]:.3g}, beyond the {ranges[k]:.3g} out to which solvers are "
            "checked, and pivoting does not converge either"
        )
