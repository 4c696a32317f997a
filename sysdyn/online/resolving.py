"""Fallback of states at which the order of a solver fails: double-double rerun, pivoting, or an error."""

from __future__ import annotations

import numpy as np

from sysdyn.diagnosis.diagnose import undetermined_at
from sysdyn.diagnosis.structure import equation_names
from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.backward_error import residual_of
from sysdyn.equations.system import System
from sysdyn.errors import SingularState, at_states, few
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.covariance import dense_estimates
from sysdyn.offline.options import Options
from sysdyn.offline.pivoted_solves import REFINED, is_ill_conditioned, pivoted, solve_double_double
from sysdyn.offline.sampling import is_unsolvable, reach
from sysdyn.online.calls import Calls, Result
from sysdyn.online.double_double import DoubleDoubleFallback
from sysdyn.online.smallest import held, moves_freely, smallest_held
from sysdyn.problem import Problem
from sysdyn.program.opcodes import BAD_INPUT, BAD_OUTPUT, BAD_PIVOT, OUT_OF_RANGE, WEAK_PIVOT
from sysdyn.runtime.real import DOUBLE
from sysdyn.runtime.runner import Runner

# Greatest backward error of a state that pivoting has solved (chosen).
REPIVOTED_ERROR = 1e-9


class Resolver:
    """Fallbacks of a solver's calls for the states at which its order fails.

    again: the double-double rerun, which is tried first.
    """

    def __init__(self, problem: Problem, options: Options, executable: Runner, calls: Calls):
        self._problem, self._options, self._executable, self._calls = problem, options, executable, calls
        self._program = executable.program
        self.again = DoubleDoubleFallback(executable.program)

    def resolve(self, run: Result, policy: str) -> None:
        """Replace outputs and status of the states whose status is not zero, according to `policy`.

        Raises InvalidInput or SingularState, as a call does.
        """
        self._calls.reject_bad_inputs(run)
        # near a zero pivot, and beyond checked ranges, the order may lose digits that pivoting keeps. A zero pivot may
        # come from the order alone, so that the system itself is tested for singularity
        lost = WEAK_PIVOT | OUT_OF_RANGE
        if self._options.kernel_real is not DOUBLE:  # numbers too large for single precision are not for double
            lost |= BAD_INPUT | BAD_OUTPUT
        pivots = lost | BAD_PIVOT | BAD_OUTPUT
        left = np.flatnonzero((run.status & lost != 0) & (run.status & ~pivots == 0))
        if len(left):
            given = run.at(left)
            rows = np.concatenate([given[name] for name in self._program.inputs], axis=1)
            self.again.solve(rows, run.outputs, run.status, left)
            self._repivot(run, left[run.status[left] != 0])
        bad = np.flatnonzero(run.status)
        if not len(bad):
            return
        if policy == "raise":
            raise self._singular(run, bad)
        for x in run.outputs.values():
            x[bad] = np.nan

    def _repivot(self, run: Result, states: np.ndarray) -> None:
        """Replace outputs and status of these states by those of a pivoted solve, if that solves them.

        Singular states are not replaced: there pivoting gives a meaningless solution, though with a small residual. But
        if only the constraints make a state singular, those that are redundant up to rounding errors get wrenches of
        least norm, and those that differ by more are solved in double-double arithmetic.
        """
        if not len(states):
            return
        system, d, error = self._pivoted(run, states)
        good = error <= REPIVOTED_ERROR
        singular = np.flatnonzero(~good)
        singular = singular[moves_freely(self._problem, run.at(states[singular]))] if len(singular) else singular
        if len(singular):
            d[singular] = smallest_held(self._problem, run.at(states[singular]), self._near).d
            good[singular] = np.isfinite(d[singular]).all(axis=1)
        states, d = states[good], d[good]
        shown, finite = system.output_values(run.at(states), d), np.ones(len(states), dtype=bool)
        for name, x in run.outputs.items():
            with np.errstate(over="ignore"):
                x[states] = shown[name][0] if name in shown else d[:, system.layout.quantity_columns(name)]
            finite &= np.isfinite(x[states]).all(axis=1)
        run.status[states] = np.where(finite, 0, BAD_OUTPUT)

    def _pivoted(self, run: Result, states: np.ndarray) -> tuple[System, np.ndarray, np.ndarray]:
        """(equations, solution d (n, full layout) with pivoting, its backward error (n,)); NaN if singular.

        At large lengths, entries are differences that lose digits: the rounded equations belong to another state.
        """
        system = self._problem.system(outputs=(*QUANTITIES, *self._options.measured))
        given = run.at(states)
        entries, b = (np.broadcast_to(x, (len(states), x.shape[1])) for x in system.values(given))
        d, error = np.full((len(states), system.layout.n), np.nan), np.full(len(states), np.nan)
        regular = ~is_unsolvable(system, given, entries)
        far = (run.status[states] & OUT_OF_RANGE != 0) & (self._options.kernel_real is DOUBLE)
        near = regular & far
        near[regular & ~far] = is_ill_conditioned(system, entries[regular & ~far])
        with np.errstate(all="ignore"):
            if near.any():  # refined to the last bit: the residual of the rounded equations says less
                d[near] = self._near(run.at(states[near]))
                error[near] = np.where(np.isfinite(d[near]).all(axis=1), 0.0, np.nan)
            usual = regular & (~near | (far & np.isnan(error)))
            if usual.any():
                d[usual] = pivoted(system, entries[usual], b[usual], REFINED)
                error[usual] = residual_of(system, entries[usual], b[usual], d[usual]).backward_error
        return system, d, error

    def _near(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Double-double solution d (n, full layout) at regular states near singular ones."""
        system = self._problem.system(outputs=(*QUANTITIES, *self._options.measured))
        if not isinstance(system, AugmentedSystem):
            return solve_double_double(system, inputs)
        d = np.full((len(inputs["q"]), system.layout.n), np.nan)
        for k, estimate in enumerate(dense_estimates(system, inputs)):
            if estimate is not None:
                d[k, system.columns] = estimate.solution
        return d

    def _singular(self, run: Result, bad: np.ndarray) -> SingularState:
        """Error that names the first pivot to fail at the first bad state."""
        n = len(run.status)
        which = at_states(bad, n)
        if run.status[bad[0]] & OUT_OF_RANGE:
            return SingularState(
                f"the system cannot be solved at this state{which}: {self._out_of_range(run, bad[:1])}. "
                "Use on_singular='nan' to go on without it",
                states=tuple(bad.tolist()),
            )
        if run.status[bad[0]] == BAD_OUTPUT:
            numbers = "double" if self._options.kernel_real is DOUBLE else "single"
            return SingularState(
                f"the result is not finite at this state{which}: {self._largest(run, bad[:1])} is too large for "
                f"{numbers} precision. Use on_singular='nan' to go on without it",
                states=tuple(bad.tolist()),
            )
        parts, equation, unknown = [], "", ""
        if self._program.guards:
            values = np.abs(self._executable.guarded(run.at(bad[:1]))[0])
            pairs = list(zip(self._program.guards, values, strict=True))
            failed = [g for g, v in pairs if not v >= g.threshold] or [g for g, v in pairs if not v >= g.weak]
            if failed:
                equation, _, unknown = min(failed, key=lambda g: g.value).label.partition(" → ")
                parts.append(f"equation {equation} does not give {unknown}")
        free = undetermined_at(self._problem.system(), run.at(bad[:1]))
        if free:
            parts.append(free)
        if self._problem.constraints and not self._problem.noisy:
            plain, against = self._problem.system().plain, held(self._problem, run.at(bad[:1])).against[0]
            rows = [r for r in np.flatnonzero(against).tolist() if plain.row_blocks[r][0] == "y"]
            if named := equation_names(plain, rows):
                parts.append(f"{few(named)} cannot hold there, as if a limb is stretched and moves on")
        return SingularState(
            f"the system cannot be solved at this state{which}: {'; '.join(parts) or 'the result is not finite'}. "
            "Use on_singular='nan' to go on, or look at problem.diagnose()",
            equation,
            unknown,
            tuple(int(k) for k in bad),
        )

    def _largest(self, run: Result, state: np.ndarray) -> str:
        """The input of the greatest size at a state, by name, and its value."""
        given = {x: np.abs(values[0]).ravel() for x, values in run.at(state).items() if values.size}
        group = max(given, key=lambda x: given[x].max())
        k = int(np.argmax(given[group]))
        labels = self._problem.inputs[group].labels if group in self._problem.inputs else ()
        return f"{labels[k] if k < len(labels) else group} = {given[group][k]:.3g}"

    def _out_of_range(self, run: Result, state: np.ndarray) -> str:
        """Text for a state beyond the checked range of joints: the farthest joint, and the error of pivoting there."""
        model = self._problem.model
        q, most = run.at(state)["q"][0], reach(model)
        k = int(np.argmax(np.abs(q) / most))
        joint = next(i for i in range(model.nb) if k < model.q_slice(i).stop)
        error = float(self._pivoted(run, state)[2][0])
        left = "the matrix is singular to double precision" if np.isnan(error) else f"its backward error is {error:.1e}"
        return (
            f"joint {model.joint_names[joint]!r} is at {q[k]:.3g}, beyond the {most[k]:.3g} out to which solvers "
            f"are judged, and with pivoting {left}"
        )
