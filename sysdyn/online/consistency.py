"""Problems with more exact equations than unknowns: solved without the redundant ones, which the solution is held to.

measurements − removals of the diagnosis → a Solver, with what was left out among its outputs
inconsistency = what the left-out measurements would read at the solution − what they read
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.diagnose import contradicting
from sysdyn.diagnosis.structure import structure
from sysdyn.diagnosis.words import at_states, few
from sysdyn.equations.assembly import measured_row
from sysdyn.errors import Inconsistent, InvalidInput, ProblemError
from sysdyn.measurements.groups import value_group
from sysdyn.measurements.measurement import Constraint, Measurement, Output
from sysdyn.measurements.raw import RawMeasurement, Subset
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.choice import Compiled
from sysdyn.offline.options import Options
from sysdyn.offline.sampling import least_squares
from sysdyn.offline.stages import Progress
from sysdyn.online.arguments import Arguments, Inputs
from sysdyn.online.solution import Solution
from sysdyn.online.solver import REPIVOTED_ERROR, Solver
from sysdyn.problem import Problem
from sysdyn.program.groups import Arrays

# Error at which a measurement contradicts the others, in its units: this times 1 + its greatest value (chosen).
TOLERANCE = 1e-6
# States at which measurements contradict each other are solved by all equations in lots of this size, until none of a
# lot turns out to agree (chosen: a dense solve takes some 10 ms).
CONTRADICTING = 16


class Redundant(NamedTuple):
    """A problem without its redundant equations: left_out (measurement, numbers of its components)."""

    rest: Problem
    left_out: tuple[tuple[Measurement, tuple[int, ...]], ...]

    def __str__(self) -> str:
        names = ", ".join(repr(m.name) for m, _ in self.left_out)
        return f"the problem without redundant equations of {names}"

    def outputs(self, asked: tuple[Output, ...]) -> tuple[Output, ...]:
        """The outputs, and the quantities and measurements that the left-out measurements are compared with."""
        raw = {m.quantity for m, _ in self.left_out if isinstance(m, RawMeasurement)}
        shown = tuple(x for x in asked if isinstance(x, Measurement))
        others = (m for m, _ in self.left_out if not isinstance(m, RawMeasurement) and m not in shown)
        return (*(x for x in self.rest.quantities if x in asked or x in raw), *shown, *others)


def redundant(problem: Problem) -> Redundant | None:
    """The redundant equations of a problem that has one solution without them; None for any other problem.

    With noise that takes a diagnosis: ask for problems that are singular at every state. Of constraints that hold the
    same motion twice the wrenches are open: what is left out of them exerts none.
    """
    model = problem.model
    if not problem.noisy:
        motion, stated = 12 * model.nb + model.nv, sum(len(m.components(model)) for m in problem.valued)
        twice = len(problem.constraints) > 1 and not structure(problem.system()).sound
        if motion + stated <= problem.layout().n and not twice:
            return None
    found = problem.diagnose()
    places = {measured_row(m, c): (m, k) for m in problem.valued for k, c in enumerate(m.components(model))}
    gone: dict[Measurement, list[int]] = {}
    for row in found.removals:
        m, k = places[row]
        gone.setdefault(m, []).append(k)
    held = sum(len(k) for m, k in gone.items() if isinstance(m, Constraint))
    if not gone or found.missing != held:
        return None
    try:
        kept = [part for m in problem.measurements if (part := _without(m, gone.get(m, []), problem))]
    except InvalidInput:  # components that are measured together
        return None
    rest = Problem(model, kept, [p.name for p in problem.parameters])
    if held and not rest.diagnose().well_posed:
        return None
    return Redundant(rest, tuple((m, tuple(sorted(k))) for m, k in gone.items()))


def _without(m: Measurement, gone: list[int], problem: Problem) -> Measurement | None:
    rest = [k for k in range(len(m.components(problem.model))) if k not in gone]
    if not gone or not rest:
        return m if rest else None
    if isinstance(m, RawMeasurement):
        pairs = m.pairs(problem.model)
        return Subset(m, tuple(pairs[k] for k in rest))
    return m.part(rest)


class CheckedSolver(Solver):
    """A Solver whose solutions are held to redundant measurements, which are left out of `problem` and kept in `whole`.

    tolerance: a measurement contradicts the others where it is off by more than this times 1 + its greatest value, in
    its units. Such states are not `ok`; on_singular="raise" raises Inconsistent, which names the measurements, and the
    others leave the solution as it is. `Solution.inconsistency` has the numbers. Files of `save`, C projects and
    derivatives are of `problem`: they do without what was left out.
    """

    def __init__(
        self, whole: Problem, found: Redundant, options: Options, compiled: Compiled, on_singular: str = "raise",
        progress: Progress | None = None, check_limits: bool = False,
    ):  # fmt: skip
        super().__init__(found.rest, options, compiled, on_singular, progress, check_limits)
        self.whole, self.left_out, self.tolerance = whole, found.left_out, TOLERANCE
        self._found, self._whole_inputs = found, Inputs(whole, options.external_wrenches)
        kept = {m.name for m in found.rest.measurements}
        gone = tuple(m for m, _ in found.left_out if isinstance(m, Constraint))
        self._about = self._about._replace(idle=tuple(m for m in gone if m.name not in kept))
        self._square = not whole.noisy and not gone  # all equations together determine all unknowns

    def __call__(
        self, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, on_singular: str | None = None,
        threads: int | None = None, **given: Any,
    ) -> Solution:  # fmt: skip
        """Solve as a Solver does, with values of all measurements of `whole`. Raises Inconsistent, too."""
        arrays, lead = self._whole_inputs.checked(Arguments.of(q, qd, known, given))
        self._whole_inputs.groups.reject_not_finite(arrays)
        values = {name: x if x.ndim == 1 else x.reshape(*lead, -1) for name, x in arrays.items()}
        others = {name: x for name, x in given.items() if name in ("noise", "active", "parameters")}
        found: dict[str, Any] = {**self._quantities(values), **others, "y": self._kept(values)}
        policy = on_singular or self.on_singular

        def solved(policy: str) -> Solution:
            return super(CheckedSolver, self).__call__(
                values["q"], values["qd"], on_singular=policy, threads=threads, **found
            )

        solution = solved("nan" if self._square else policy)
        off, bad = self._compared(solution, values)
        if self._square and (bad.any() or not solution.ok.all()):
            disagreeing = self._solve_whole(solution, arrays, bad)
            off, bad = self._compared(solution, values)
            bad |= disagreeing
            if policy != "nan" and not solution.ok.all():
                solution = solved(policy)  # which says what is singular
        solution.differences = off
        if bad.any() and policy == "raise":
            raise self._inconsistent(arrays, off, np.flatnonzero(bad.reshape(-1)))
        solution.ok = solution.ok & ~bad
        return solution

    def _compared(self, solution: Solution, values: Arrays) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """({measurement: its errors}, (…) bool: one error is beyond the tolerance)."""
        off, bad = {}, np.zeros(solution.ok.shape, dtype=bool)
        for m, components in self.left_out:
            reads = self._reads(m, values)[..., components]
            off[m.name] = self._implied(m, solution)[..., components] - reads
            size = 1.0 + np.abs(reads).max(axis=-1, keepdims=True)
            bad |= (np.abs(off[m.name]) > self.tolerance * size).any(axis=-1)
        return off, bad

    def _solve_whole(self, solution: Solution, arrays: Arrays, bad: np.ndarray) -> np.ndarray:
        """Solve states by all equations: the states that are not ok, and those in `bad` whose chosen equations are off.

        Returns (…) bool: states that only they determine, and at which they contradict each other.

        What is left out is one choice for all states; where the rest is nearly singular all equations together may be
        regular. Values that contradict each other stay as they are. Least squares, whose residual is then zero.
        """
        n = solution.ok.size
        failed, bad = np.flatnonzero(~solution.ok.reshape(-1)), np.flatnonzero(bad.reshape(-1))
        system = self.whole.system(outputs=(*QUANTITIES, *self.options.measured))
        outputs = {name: x.reshape(n, -1) for name, x in solution._values.items()}
        ok, disagreeing = np.array(solution.ok.reshape(-1)), np.zeros(n, dtype=bool)
        for states in (failed, *(bad[k : k + CONTRADICTING] for k in range(0, len(bad), CONTRADICTING))):
            given = {name: np.broadcast_to(x, (n, x.shape[-1]))[states] for name, x in arrays.items()}
            entries, b = (np.broadcast_to(x, (len(states), x.shape[1])) for x in system.values(given))
            d = least_squares(system, entries, b)
            with np.errstate(invalid="ignore"):
                good = system.misfit(entries, b, d).backward_error <= REPIVOTED_ERROR
            if states is failed:  # there is no other solution to contradict
                disagreeing[states] = np.isfinite(d).all(axis=1) & ~good
                good = np.isfinite(d).all(axis=1)
            shown = system.shown(given, d)
            for name, x in outputs.items():
                found = shown[name][0] if name in shown else d[:, system.layout.quantity_columns(name)]
                x[states[good]] = found[good]
            ok[states[good]] = True
            if len(states) and states is not failed and not good.any():
                break  # they contradict each other
        for name, x in outputs.items():
            solution._values[name][...] = x.reshape(solution._values[name].shape)
        lead = solution.ok.shape
        solution.ok = ok.reshape(lead)
        return disagreeing.reshape(lead)

    def _kept(self, values: Arrays) -> Arrays:
        """Values of the measurements of `problem` that are no quantities, by name."""
        groups = {m.name: value_group(m.name) for m in self.problem.custom}
        return {m.name: values[groups[m.name]][..., self._rest(m)] for m in self.whole.custom if m.name in groups}

    def _rest(self, m: Measurement) -> list[int]:
        """The components of a measurement that are not left out."""
        gone = {m.name: k for m, k in self.left_out}.get(m.name, ())
        return [k for k in range(len(m.components(self.model))) if k not in gone]

    def _quantities(self, values: Arrays) -> Arrays:
        """Values of the known quantities of `problem`."""
        found = {x: values.get(x, np.zeros(self._inputs.sizes[x])) for x in self._inputs.known}
        raw = {m.name for m in self.problem.raw}
        for m in self.whole.custom:  # what states some scalars again, and others alone
            if isinstance(m, RawMeasurement) and m.name in raw:
                rest, y, x = self._rest(m), values[value_group(m.name)], found[m.quantity]
                x = np.broadcast_to(x, (*np.broadcast_shapes(x.shape[:-1], y.shape[:-1]), x.shape[-1])).copy()
                x[..., np.array(self._places(m))[rest]] = y[..., rest]
                found[m.quantity] = x
        return found

    def _reads(self, m: Measurement, values: Arrays) -> np.ndarray:
        group = value_group(m.name)
        return values[group] if group in values else values[m.quantity][..., self._places(m)]

    def _implied(self, m: Measurement, solution: Solution) -> np.ndarray:
        if not isinstance(m, RawMeasurement):
            return solution[m.name]
        return solution[m.quantity].reshape(*solution.ok.shape, -1)[..., self._places(m)]

    def _places(self, m: Measurement) -> list[int]:
        """Places of the components of a raw measurement in its quantity."""
        assert isinstance(m, RawMeasurement)
        return m.places(self.model)

    def _inconsistent(self, given: Arrays, off: Arrays, bad: np.ndarray) -> Inconsistent:
        """The error that names the contradicting measurements at the first bad state."""
        n = max((len(x) for x in given.values() if x.ndim == 2), default=1)
        state, words, names = int(bad[0]), [], []
        one = {name: np.broadcast_to(x, (n, x.shape[-1]))[[state]] for name, x in given.items()}
        for m, components in self.left_out:
            error = np.abs(off[m.name].reshape(n, -1)[state])
            if np.any(error > self.tolerance * (1.0 + np.abs(self._reads(m, one)[0, list(components)]).max())):
                k = int(np.argmax(error))
                component, unit = (x(self.model)[components[k]] for x in (m.components, m.component_units))
                row = measured_row(m, component)
                others = contradicting(self.whole.system().plain, one, row)
                names += [m.name, *others]
                against = few(tuple(map(repr, others)))
                words.append(f"{m.name!r} is off by {error[k]:.3g} {unit} at {component} by {against}")
        if not words:  # only all together determine the state
            names = [m.name for m, _ in self.left_out]
            words = [f"{few(tuple(map(repr, names)))}, or others that state the same"]
        where = f" at state{at_states(bad, n)}" if n > 1 else ""
        return Inconsistent(
            f"measurements contradict each other{where}: {'; '.join(words)}. Correct their values, leave some out, or "
            "raise solver.tolerance; on_singular='nan' goes on with solution.ok False",
            tuple(dict.fromkeys(names)), tuple(bad.tolist()),
        )  # fmt: skip

    def bind(self, *args, **kwargs) -> NoReturn:
        """Raises ProblemError: prepared calls have no checks. Bind a solver of `problem`, which needs none."""
        raise ProblemError(
            f"a prepared call has no checks, which {', '.join(repr(m.name) for m, _ in self.left_out)} need: "
            "bind sd.compile(solver.problem) instead"
        )

    def __reduce__(self):
        checks = self.tolerance, self._inputs.check_limits
        return _restored, (self.whole, self._found, self.options, self.compiled, self.on_singular, *checks)


def _restored(whole, found, options, compiled, on_singular, tolerance, check_limits) -> CheckedSolver:
    solver = CheckedSolver(whole, found, options, compiled, on_singular, None, check_limits)
    solver.tolerance = tolerance
    return solver
