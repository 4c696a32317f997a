"""Derivatives of solved quantities, compiled to machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.codegen.double_double import perturb_one_ulp, run_double_double
from sysdyn.codegen.registry import backend_named
from sysdyn.equations.system import System
from sysdyn.errors import ProblemError, SingularState, check_among
from sysdyn.frameworks.export import Exportable, ExportedProgram
from sysdyn.frameworks.traced import FrameworkFunction, fill_nan
from sysdyn.measurements.groups import NOISE, SWITCH, group_of, label_of
from sysdyn.model.quantities import QUANTITY
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.offline import recursion
from sysdyn.offline.check import VANISHING, with_ranges
from sysdyn.offline.choice import Choice
from sysdyn.offline.derivatives import SymbolicDerivatives, analytic, has_analytic, implicit
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.formulations import ordered_system
from sysdyn.offline.options import Options
from sysdyn.offline.pipeline import build
from sysdyn.offline.report import INACCURATE, StabilityReport
from sysdyn.offline.sampling import is_unsolvable
from sysdyn.online import export
from sysdyn.online.arguments import Arguments, CallKeywords, Inputs, Named
from sysdyn.online.calls import Calls, Result
from sysdyn.online.traced import framework_function
from sysdyn.problem import Problem
from sysdyn.program.graph import is_constant, strip_sign
from sysdyn.program.groups import Arrays, Group, Groups, select_names
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Guard, Program
from sysdyn.runtime.native_calls import fast_call
from sysdyn.runtime.runner import BoundCall, Runner

# Sampled states at which pivots of derivatives are checked, which are positive or belong to a singular state (chosen).
CHECKED_STATES = 256
# Passes after which the equations hold another quantity in place of this one; they apply if it is no output.
CHANGED = {"a": "classical_accelerations", "f": "base_parameters"}

Values = dict[tuple[str, str], np.ndarray]


def compile_derivatives(
    problem: Problem,
    choice: Choice,
    solution: Program,
    options: Options,
    *,
    of: str | Sequence[str] | None,
    wrt: str | Sequence[str] | None,
    made: Callable[..., Derivatives] | None = None,
) -> Derivatives:
    """The implementation of `Solver.derivatives`. made: the class of the result if it is not Derivatives itself.

    solution: the program that solves the problem, whose guards hold for its derivatives.
    """
    of = select_names("output", of, options.output_names, (*problem.quantities, *(m.name for m in options.measured)))
    wrt, groups = chosen_inputs(problem, wrt)
    found, report = _differentiate(problem, choice, solution.guards, options, of, [groups[name] for name in wrt])
    blocks = [(f"d{x}_d{name}", list(found.blocks[x, groups[name]].flat)) for x in of for name in wrt]
    guarded = [*found.guards, *_checked(problem, found, options)]
    # positions that the solution does not depend on, but its derivatives do, have ranges, too
    program = with_ranges(Program.from_graph(found.graph, found.inputs, blocks, guarded), problem.model, report)
    return (made or Derivatives)(problem, program, of, wrt, found.method, options)


def chosen_inputs(problem: Problem, wrt: str | Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """(the inputs that are differentiated by, {each that can be: its group}). Raises UnknownName, InvalidInput."""
    groups = {label_of(x): x for x in problem.inputs if group_of(x).role not in (NOISE, SWITCH)}
    zero = {x for x in problem.known_quantities if QUANTITY[x].zero} | {m.name for m in problem.custom if m.optional}
    return select_names("input to differentiate by", wrt, [name for name in groups if name not in zero], groups), groups


def _differentiate(
    problem: Problem, choice: Choice, guards: Sequence[Guard], options: Options, of: Sequence[str], wrt: Sequence[str]
) -> tuple[SymbolicDerivatives, StabilityReport]:
    """(derivatives, report on the solution that they follow): analytic where they can be, else by an elimination."""
    if has_analytic(problem, of, wrt) and (choice.is_recursion or not problem.constraints):
        return analytic(problem, of, wrt, options.external_wrenches), choice.report
    if choice.is_recursion:
        if not problem.constraints:
            raise ProblemError(f"derivatives of {', '.join(of)} need an elimination: compile with formulation='paper'")
        compiled = build(problem, replace(options, formulation="elimination"))
        choice, guards = compiled.choice, compiled.program.guards
    for x in of:
        if x not in options.output_names and x in CHANGED and CHANGED[x] in choice.passes:
            raise ProblemError(
                f"the pass {CHANGED[x]!r} leaves another {x} in the equations, since {x} is no output: for its "
                f"derivatives compile with outputs={[*options.output_names, x]!r}"
            )
    elimination = Elimination(ordered_system(problem, options, choice), *choice.pivots, refined=choice.refined)
    limits = {guard.label: guard for guard in guards}
    kept = [(strip_sign(pivot), guard.threshold, guard.label, guard.weak)
            for k, pivot in enumerate(elimination.factors.pivots)
            if (guard := limits.get(elimination.label(k)))]  # fmt: skip
    rows = sum(len(_scalars(elimination.system, x)) for x in of)
    sizes = problem.inputs.sizes | {"q": problem.model.nv}
    transposed = rows <= sum(sizes[name] for name in wrt)
    return implicit(elimination, kept, of, wrt, transposed), choice.report


def _checked(problem: Problem, found: SymbolicDerivatives, options: Options) -> list[tuple]:
    """Guards of pivots that no solver has checked."""
    pivots = [(strip_sign(x), freedom) for x, freedom in found.pivots if not is_constant(x)]
    if not pivots:
        return []
    labels = recursion.pivot_labels(problem, [freedom for _, freedom in pivots])
    groups = [("qdd", list(found.qdd)), (recursion.PIVOTS, [x for x, _ in pivots])]
    if problem.constraints:
        groups += [(problem.wrenches.name, list(found.w)), *recursion.loads(problem, found.graph, found.w)]
    program = Program.from_graph(found.graph, found.inputs, groups)
    checked = recursion.check_recursion(problem, program, labels, options.external_wrenches, CHECKED_STATES)
    return [(x, zero, label, fallback) for (x, _), label, (zero, fallback)
            in zip(pivots, labels, checked.thresholds, strict=True)]  # fmt: skip


def _scalars(system: System, output: str) -> Sequence:
    """One entry for each scalar of an output."""
    shown = system.assembly.outputs
    return shown[output].b if output in shown else system.layout.quantity_columns(output)


def settle_derived(
    problem: Problem, of: Sequence[str], program: Program, run: Result, reject: Callable[[Result], None] | None,
    on_singular: str,
) -> None:  # fmt: skip
    """Write derivatives at the states of a run at which its program failed.

    The same operations in double-double arithmetic, unless the system is singular there, or so near that rounding
    errors of constants decide them: then SingularState, or NaN. reject: raises InvalidInput for inputs that lead to
    states without results.
    """
    status, failed = run.status, np.flatnonzero(run.status)
    if reject and len(failed):
        reject(run)
    if len(failed):
        system, given = problem.system(), run.at(failed)
        given["q"] = normalise_quaternions(given["q"], [part for _, part in problem.model.quaternions])
        entries = np.broadcast_to(system.values(given)[0], (len(failed), system.nnz))
        for k in failed[~is_unsolvable(system, given, entries)].tolist():
            found = _reliable_outputs(program, {name: x[0] for name, x in run.at(np.array([k])).items()})
            if found is not None:
                status[k] = 0
                for name, x in found.items():
                    run.outputs[name][k] = x
    bad = np.flatnonzero(status)
    if len(bad) and on_singular == "raise":
        raise SingularState(
            f"{', '.join(of)} cannot be differentiated at {len(bad)} of {len(status)} states, the first being "
            f"{bad[0]}: the system is singular there, or so near that rounding errors of its constants decide them. "
            "Use on_singular='nan' to go on",
            states=tuple(bad.tolist()),
        )
    fill_nan(run.outputs, bad)


def _reliable_outputs(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Outputs (size,) by group in double-double arithmetic; None if rounding of the constants decides them.

    inputs (size,) by group.
    """
    results, perturbed = (
        {name: x.high for name, x in run_double_double(program, inputs, constants).items()}
        for constants in (program.constants, perturb_one_ulp(program.constants))
    )
    sizes = _sizes({name: x[None] for name, x in results.items()})
    with np.errstate(all="ignore"):
        changes = [0.5 * np.abs(x - perturbed[name]) / sizes[name][0] for name, x in results.items()]
    return results if all((x <= INACCURATE).all() for x in changes) else None  # NaN compares as False


class Differentials(Exportable):
    """Compiled derivatives of a problem's solution, or products of these: the calls that both have.

    of, wrt: differentiated outputs, and inputs. method: the way that was taken. flops: exact counts, that of the
    solution included. executable: the program on a back end. results: {group of outputs: (key of a result, its shape)}.
    """

    _word: str  # in names of exported code

    def __init__(
        self, problem: Problem, program: Program, of: tuple[str, ...], wrt: tuple[str, ...], method: str,
        options: Options, inputs: Inputs, results: Mapping[str, tuple[Any, tuple[int, ...]]],
    ):  # fmt: skip
        self.problem, self.model, self.program = problem, problem.model, program
        self.of, self.wrt, self.method, self._options = of, wrt, method, options
        self._inputs, self._results = inputs, dict(results)
        self.executable = Runner(backend_named(options.backend)(program, options.code_level))
        self.executable.backend.kernel(True)
        self._calls = Calls(inputs, self.executable, results, policy="raise")
        self.fast_calls = self._calls.single_state

    @property
    def flops(self) -> Flops:
        return self.program.flops

    def _called(self, given: Arguments, on_singular: str, threads: int | None) -> dict:
        """The results of a call."""
        check_among("on_singular", on_singular, ("raise", "nan"))
        result = self._calls.run(given, threads, on_singular)
        settle_derived(self.problem, self.of, self.program, result, self._calls.reject_bad_inputs, on_singular)
        return self._calls.values(result)

    def bind(
        self, q: np.ndarray, qd: np.ndarray, *known: np.ndarray, threads: int = 1,
        out: Mapping[Any, np.ndarray] | None = None, **given: Unpack[CallKeywords],
    ) -> BoundCall:  # fmt: skip
        """A prepared call: `step()` reads these arrays as they are then and writes `step.out`, as `Solver.bind`.

        out: {result: array} for some results or all; entries that are zero at every state are set here alone.
        """
        return self._calls.bind(Arguments.of(q, qd, known, given), threads, out)

    def exported_program(self, name: str | None = None) -> ExportedProgram:
        name = f"{export.problem_name(self.problem)}_{self._word}" if name is None else name
        results = Groups(Group(x, shape) for x, (_, shape) in self._results.items())
        return export.exported_program(name, self.problem, self._inputs.groups, results, self.executable)

    def framework_function(self, on_singular: str) -> FrameworkFunction:
        call: Any = self

        def on_failure(program: Program, run: Result) -> None:
            settle_derived(self.problem, self.of, program, run, None, on_singular)

        return framework_function(
            self._word, self._calls, self.program, on_failure, on_failure, partial(call, on_singular=on_singular),
            on_singular, self._options.code_level,
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__} for {self.model.name!r}: {', '.join(self.of)} by {', '.join(self.wrt)}; "
            f"{self.method}, {self.flops.total} operations"
        )


class Derivatives(Differentials):
    """Compiled partial derivatives of solved quantities and measured outputs; `J(q, qd, tau)["qdd", "q"]`.

    of, wrt: differentiated outputs, and inputs.
    method: "analytic" (tree recursions), or "implicit" and "implicit, transposed" (solutions with the factors of the
        system and of its transpose).
    shapes: of the blocks. flops: exact counts, the solution of the problem included. executable: the program on a back
        end.

    It can be called from many threads.
    """

    _word = "derivatives"

    def __init__(self, problem: Problem, program: Program, of: tuple, wrt: tuple, method: str, options: Options):
        shape = {x: group.shape for x, group in problem.outputs((*problem.quantities, *options.measured)).items()}
        by = {label_of(name): group.shape for name, group in problem.inputs.items()} | {"q": (problem.model.nv,)}
        self.shapes = {(x, name): shape[x] + by[name] for x in of for name in wrt}
        results = {f"d{x}_d{name}": ((x, name), shape) for (x, name), shape in self.shapes.items()}
        inputs = Inputs(problem, options.external_wrenches)
        super().__init__(problem, program, of, wrt, method, options, inputs, results)

    @property
    def sparsity(self) -> dict[tuple[str, str], np.ndarray]:
        """For each block, an array of its shape: False if the derivative is zero at every state."""
        places, zero = self.program.outputs.slices, self.program.zero_outputs
        return {block: ~zero[places[group]].reshape(shape) for group, (block, shape) in self._results.items()}

    @fast_call
    def __call__(
        self, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
        noise: Named | None = None, active: Named | None = None, parameters: Named | None = None,
        on_singular: str = "raise", threads: int | None = None, **quantities: ArrayLike,
    ) -> Values:  # fmt: skip
        """{(quantity, input): array}: arguments as of the solver, leading axes are batch axes.

        A block has the axes of the quantity, then those of the input: ("qdd", "q") is (…, nv, nv), ("a", "fx")
        (…, nb, 6, nb, 6). Columns by q are in the tangent space, as `Model.integrate` steps. If pivots come near
        zero, or joints leave their checked ranges, the state is rerun in double-double arithmetic.
        on_singular: "raise" SingularState where the system is singular, or so near that rounding errors of its
        constants change a block by 1e-6 of its size, or "nan".

        Raises InvalidInput as the solver does.
        """
        return self._called(Arguments(q, qd, known, quantities, y, noise, active, parameters), on_singular, threads)

    def __reduce__(self):
        return Derivatives, (self.problem, self.program, self.of, self.wrt, self.method, self._options)


def _sizes(found: Arrays) -> Arrays:
    """Sizes {output: (n, 1)} that errors are relative to: the greatest entry, or the size that counts as zero."""
    size = {name: np.abs(x).max(axis=1, initial=0.0) for name, x in found.items()}
    least = VANISHING * np.max([*size.values()], axis=0)
    size = {name: np.maximum(x, least) for name, x in size.items()}
    return {name: np.where(x > 0.0, x, 1.0)[:, None] for name, x in size.items()}
