"""Problems with more exact equations than unknowns: solved without the redundant ones, which then check the solution.

measurements − removals of the diagnosis → a Solver, with the left-out measurements among its outputs
inconsistency = values of the left-out measurements at the solution − their readings
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sysdyn.diagnosis.diagnose import contradicting
from sysdyn.equations.backward_error import ROUNDING_SHARE, residual_of
from sysdyn.equations.measurement_rows import measurement_row_name
from sysdyn.errors import Inconsistent, at_states, few
from sysdyn.files.atomic import write_file
from sysdyn.measurements.groups import value_group
from sysdyn.measurements.measurement import Constraint, Measurement
from sysdyn.measurements.raw import RawMeasurement
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.choice import Compiled
from sysdyn.offline.options import Options
from sysdyn.offline.pivoted_solves import LEFT, least_squares
from sysdyn.offline.stages import Progress
from sysdyn.online import storage
from sysdyn.online.accuracy import forward_errors
from sysdyn.online.arguments import Arguments
from sysdyn.online.redundancy import ReducedArguments, Redundant
from sysdyn.online.resolving import REPIVOTED_ERROR
from sysdyn.online.smallest import held
from sysdyn.online.solution import Solution, Whole
from sysdyn.online.solver import Solver

# Error at which a measurement contradicts the others, in its units: this times 1 + its greatest value (chosen).
TOLERANCE = 1e-6
# Number of states with contradicting measurements that are solved by all equations at a time, until none of them turns
# out to agree (chosen: a dense solve takes some 10 ms).
CONTRADICTING = 16
# Factor by which errors may exceed their estimates (chosen).
UNTOLD = 10.0


class CheckedSolver(Solver):
    """A Solver that checks solutions by redundant measurements, left out of `problem` and kept in `whole`.

    tolerance: a measurement contradicts the others if it is off by more than this times 1 + its greatest value, in its
    units. Such states are not `ok`; on_singular="raise" raises Inconsistent, which names the measurements, and the
    other policies do not change the solution. `Solution.inconsistency` has the numbers. C projects and CasADi functions
    are of `problem`: they do without the left-out measurements.
    """

    def __init__(
        self, found: Redundant, options: Options, compiled: Compiled, on_singular: str = "raise",
        progress: Progress | None = None, check_limits: bool = False,
    ):  # fmt: skip
        super().__init__(found.rest, options, compiled, on_singular, progress, check_limits)
        self.whole, self.left_out, self.tolerance = found.whole, found.left_out, TOLERANCE
        self._reduction: ReducedArguments = ReducedArguments(found, options.external_wrenches)
        self.fast_calls = []  # native calls do not check solutions
        self._calls.copies = True  # results may be those of all equations, which the program cannot repeat
        kept = {m.name for m in found.rest.measurements}
        gone = tuple(m for m, _ in found.left_out if isinstance(m, Constraint))
        self._about = replace(self._about, idle=tuple(m for m in gone if m.name not in kept))
        # all equations together determine all unknowns
        self._square = not self.whole.noisy and (found.loosened or not gone)

    def solve(
        self, arguments: Arguments, on_singular: str | None = None, threads: int | None = None, owned: bool = False
    ) -> Solution:
        """Solve as a Solver does, with values of all measurements of `whole`. Raises Inconsistent, too."""
        policy = self._policy(on_singular)
        arrays, values, reduced = self._reduction.apply(arguments)
        solution = super().solve(reduced, "nan" if self._square else policy, threads, owned)
        off, bad, share = self._compared(solution, values)
        if self._square and ((share > ROUNDING_SHARE).any() or not solution.ok.all()):
            disagreeing = self._solve_whole(solution, arrays, bad, off, share)
            if policy != "nan" and not solution.ok.all():
                lost = ~solution.ok
                run = self._calls.run(reduced, threads)
                run.status[np.ravel(solution.ok)] = 0  # states that were solved with all equations
                self.resolve(run, policy)  # whose error names the singular equations
                for name, x in self._calls.values(run).items():
                    solution._values[name][lost] = x[lost]
                solution.ok = run.status.reshape(run.lead) == 0
            off, bad, _ = self._compared(solution, values)
            bad |= disagreeing
        solution.differences = off
        if bad.any() and policy == "raise":
            raise self._inconsistent(arrays, off, np.flatnonzero(bad.reshape(-1)))
        solution.ok = solution.ok & ~bad
        return solution

    def _compared(
        self, solution: Solution, values: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """({measurement: its errors}, (…) bool: one is beyond the tolerance, (…): the greatest relative one).

        Errors below ROUNDING_SHARE of their readings count as 0. A reading below that share of the greatest value of
        its unit is a rounding error: an error of LEFT times that value then counts as ROUNDING_SHARE.
        """
        off, bad, share = {}, np.zeros(solution.ok.shape, dtype=bool), np.zeros(solution.ok.shape)
        for m, components in self.left_out:
            reads = self._reads(m, values)[..., components]
            off[m.name] = self._implied(m, solution)[..., components] - reads
            error, size = np.abs(off[m.name]), np.abs(reads)
            bad |= (error > self.tolerance * (1.0 + size.max(axis=-1, keepdims=True))).any(axis=-1)
            if (error > ROUNDING_SHARE * size).any():
                units = self.whole.values[m.name].units
                most = np.stack([self._greatest(units[k], solution, values) for k in components], axis=-1)
                size = np.where(size < ROUNDING_SHARE * most, LEFT / ROUNDING_SHARE * most, size)
                share = np.maximum(share, (error / np.where(size > 0.0, size, 1.0)).max(axis=-1))
        return off, bad, share

    def _greatest(self, unit: str, solution: Solution, values: dict[str, np.ndarray]) -> np.ndarray:
        """(…) the greatest value of this unit that is known or solved for."""
        found = np.zeros(solution.ok.size)
        for groups, arrays in ((self.whole.inputs, values), (self._about.outputs, solution._values)):
            for name in (x for x in arrays if unit in groups[x].units):
                columns = [x == unit for x in groups[name].units]
                size = np.abs(arrays[name]).reshape(-1, groups[name].size)[:, columns]
                found = np.maximum(found, size.max(axis=1))
        return found.reshape(solution.ok.shape)

    def _solve_whole(
        self,
        solution: Solution,
        arrays: dict[str, np.ndarray],
        bad: np.ndarray,
        off: Mapping[str, np.ndarray],
        share: np.ndarray,
    ) -> np.ndarray:
        """Solve states by all equations: those that are not ok, and those whose chosen equations are off.

        Returns (…) bool: True for states that only all equations determine, and at which they contradict each other.

        The left-out measurements are one choice for all states; if the rest is nearly singular, all equations together
        may be regular. Values that contradict each other do not change. Least squares, whose residual is then zero.
        bad: states with an error beyond the tolerance. share: errors relative to their terms; more than rounding errors
        may come from ill-conditioned remaining equations.
        """
        n, loose = solution.ok.size, (share > ROUNDING_SHARE) & ~bad & solution.ok
        failed, bad, loose = (np.flatnonzero(x.reshape(-1)) for x in (~solution.ok, bad, loose))
        loose = loose[np.argsort(-share.reshape(-1)[loose], kind="stable")]  # the largest errors first
        system = self.whole.system(outputs=(*QUANTITIES, *self.options.measured))
        outputs = {name: x.reshape(n, -1) for name, x in solution._values.items()}
        ok, (disagreeing, by_all) = np.array(solution.ok.reshape(-1)), np.zeros((2, n), dtype=bool)

        def at(states: np.ndarray) -> dict[str, np.ndarray]:
            return {name: np.broadcast_to(x, (n, x.shape[-1]))[states] for name, x in arrays.items()}

        def solve(states: np.ndarray, most: float | None) -> bool:
            """True if all equations hold at one of the states; most: their error, None to take what they give."""
            given = at(states)
            entries, b = (np.broadcast_to(x, (len(states), x.shape[1])) for x in system.values(given))
            d = least_squares(system, entries, b)
            lost = np.isnan(d).any(axis=1)
            if most is not None and lost.any():  # wrenches that are open: the smallest, as the rest has them
                d[lost] = held(self.whole, {name: x[lost] for name, x in given.items()}).d
            good = finite = np.isfinite(d).all(axis=1)
            with np.errstate(invalid="ignore"):
                error = residual_of(system, entries, b, d).backward_error
            if most is None:  # there is no other solution to contradict
                disagreeing[states] = finite & ~(error <= REPIVOTED_ERROR)
            else:
                good = error <= most
            shown = system.output_values(given, d)
            for name, x in outputs.items():
                found = shown[name][0] if name in shown else d[:, system.layout.quantity_columns(name)]
                x[states[good]] = found[good]
            ok[states[good]] = by_all[states[good]] = True
            return bool(good.any())

        solve(failed, None)
        for k in range(0, len(bad), CONTRADICTING):
            if not solve(bad[k : k + CONTRADICTING], REPIVOTED_ERROR):
                break  # they contradict each other
        for k in range(0, len(loose), CONTRADICTING):
            states = self._ill_conditioned(solution, off, loose[k : k + CONTRADICTING])
            if not (len(states) and solve(states, ROUNDING_SHARE)):
                break  # the values are so
        for name, x in outputs.items():
            solution._values[name][...] = x.reshape(solution._values[name].shape)
        lead = solution.ok.shape
        solution.ok = ok.reshape(lead)
        if by_all.any():
            states = np.flatnonzero(by_all)
            solution.whole = Whole(self.whole, at(states), states)
        return disagreeing.reshape(lead)

    def _ill_conditioned(self, solution: Solution, off: Mapping[str, np.ndarray], states: np.ndarray) -> np.ndarray:
        """The states at which the rest's own solution may be off by as much as a left-out measurement."""
        n = solution.ok.size
        given = {name: np.broadcast_to(x, (n, x.shape[-1]))[states] for name, x in solution.inputs.items()}
        names = {m.name: m.quantity if isinstance(m, RawMeasurement) else m.name for m, _ in self.left_out}
        values = {x: solution[x].reshape(n, -1)[states] for x in names.values()}
        system = self.problem.system(outputs=(*QUANTITIES, *self.options.measured))
        errors = forward_errors(system, given, values)
        possible = np.zeros(len(states), dtype=bool)
        for name, x in names.items():
            size = np.abs(values[x]).max(axis=1, initial=0.0)
            greatest = np.abs(off[name].reshape(n, -1)[states]).max(axis=1, initial=0.0)
            possible |= (greatest > 0.0) & (greatest <= UNTOLD * errors[x] * size)
        return states[possible]

    def _reads(self, m: Measurement, values: dict[str, np.ndarray]) -> np.ndarray:
        group = value_group(m.name)
        return values[group] if group in values else values[m.quantity][..., self._places(m)]

    def _implied(self, m: Measurement, solution: Solution) -> np.ndarray:
        if not isinstance(m, RawMeasurement):
            return solution[m.name]
        found = solution[m.quantity]
        return found.reshape(*solution.ok.shape, self.whole.inputs.sizes[m.quantity])[..., m.places(self.model)]

    def _places(self, m: Measurement) -> list[int]:
        """Places of the components of a raw measurement in its quantity."""
        assert isinstance(m, RawMeasurement)
        return m.places(self.model)

    def _inconsistent(self, given: dict[str, np.ndarray], off: dict[str, np.ndarray], bad: np.ndarray) -> Inconsistent:
        """Error that names the contradicting measurements at the first bad state."""
        n = max((len(x) for x in given.values() if x.ndim == 2), default=1)
        state, words, names = int(bad[0]), [], []
        one = {name: np.broadcast_to(x, (n, x.shape[-1]))[[state]] for name, x in given.items()}
        for m, components in self.left_out:
            error = np.abs(off[m.name].reshape(n, -1)[state])
            if np.any(error > self.tolerance * (1.0 + np.abs(self._reads(m, one)[0, list(components)]).max())):
                k = int(np.argmax(error))
                place = components[k]
                component, unit = m.components(self.model)[place], self.whole.values[m.name].units[place]
                row = measurement_row_name(m, component)
                others = contradicting(self.whole.system().plain, one, row)
                names += [m.name, *others]
                against = f" by {few(map(repr, others))}" if others else ", as the joints alone move it"
                words.append(f"{m.name!r} is off by {error[k]:.3g}{unit and ' ' + unit} at {component}{against}")
        if not words:  # only all together determine the state
            names = [m.name for m, _ in self.left_out]
            words = [f"{few(map(repr, names))}, or others that state the same"]
        where = f" at state{at_states(bad, n)}" if n > 1 else ""
        return Inconsistent(
            f"measurements contradict each other{where}: {'; '.join(words)}. Correct their values, leave some out, or "
            "raise solver.tolerance; on_singular='nan' goes on with solution.ok False",
            tuple(dict.fromkeys(names)), tuple(bad.tolist()),
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the solver, `whole` and what is left out to one file, as `Solver.save`; tolerance is not stored."""
        gone = {m.name: list(components) for m, components in self.left_out}
        loosened = self._reduction.found.loosened
        return write_file(path, storage.pack(self.compiled, self.options, self.whole, gone, loosened))

    def __reduce__(self):
        checks = self.tolerance, self._inputs.check_limits
        return _restored, (self._reduction.found, self.options, self.compiled, self.on_singular, *checks)


def _restored(found, options, compiled, on_singular, tolerance, check_limits) -> CheckedSolver:
    solver = CheckedSolver(found, options, compiled, on_singular, None, check_limits)
    solver.tolerance = tolerance
    return solver
