"""Derivatives of solved quantities and their products with vectors, compiled to machine code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.codegen.registry import backend_named
from sysdyn.equations.problem_system import assemble
from sysdyn.equations.system import System
from sysdyn.errors import ProblemError, SingularState, check_among
from sysdyn.frameworks.export import Exportable, ExportedProgram
from sysdyn.frameworks.traced import FrameworkFunction, fill_nan
from sysdyn.measurements.input_names import NOISE, SWITCH, group_of, label_of
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITY
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.offline import products, recursion
from sysdyn.offline.check import with_ranges
from sysdyn.offline.compile import compile_program, ordered_system
from sysdyn.offline.derivatives import SymbolicDerivatives, analytic, has_analytic, implicit
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import Options
from sysdyn.offline.report import INACCURATE, Choice, StabilityReport
from sysdyn.offline.sampling import is_unsolvable
from sysdyn.online.arguments import Arguments, CallKeywords, Inputs, Named
from sysdyn.online.calls import Calls, Result
from sysdyn.online.double_double import DoubleDoubleFallback
from sysdyn.online.export import exported_program, framework_function, problem_name
from sysdyn.online.redundancy import Reduction
from sysdyn.program.autodiff import COTANGENTS, TANGENTS, vector_group
from sysdyn.program.graph import is_constant, strip_sign
from sysdyn.program.groups import Group, Groups, select_names
from sysdyn.program.opcodes import BAD_OUTPUT, BAD_PIVOT, OUT_OF_RANGE, WEAK_PIVOT, Flops
from sysdyn.program.program import Guard, Program
from sysdyn.runtime.native_calls import fast_call
from sysdyn.runtime.runner import BoundCall, Runner

# Sampled states for the check of pivots that are positive at regular states (chosen).
CHECKED_STATES = 256
# Passes that replace a quantity in the equations, unless it is an output.
REPLACED_BY = {"a": "classical_accelerations", "f": "base_parameters"}


class Kind(NamedTuple):
    """Form of derivatives: the vectors that a call takes, and the keys of its results.

    tangents, cotangents: True if calls take v, w. by_output: True if a product with vectors has one result for each
    output, such as J v; False if it has one for each input, such as w^T J.
    """

    tangents: bool = False
    cotangents: bool = False
    by_output: bool = False


# Kinds of derivatives; "derivatives" are the full Jacobians, with a result per output and input.
KINDS = {
    "derivatives": Kind(), "jvp": Kind(tangents=True, by_output=True), "vjp": Kind(cotangents=True),
    "hvp": Kind(tangents=True, cotangents=True),
}  # fmt: skip


def compile_derivatives(
    kind: str, problem: Problem, choice: Choice, solution: Program, options: Options, of: str | Sequence[str] | None,
    wrt: str | Sequence[str] | None, reduction: Reduction | None = None,
) -> Any:  # fmt: skip
    """Implement `Solver.derivatives`, `jvp`, `vjp` and `hvp`; kind: see `KINDS`.

    solution: the program of the solver, whose guards apply to the derivatives. reduction: that of the solver, if
    redundant measurements were omitted.
    """
    if reduction:
        reduction.reject_omitted(wrt)
    full = kind == "derivatives"
    outputs = (*problem.quantities, *(m.name for m in options.measured)) if full else options.output_names
    of = select_names("output", of, options.output_names, outputs)
    wrt, groups = chosen_inputs(problem, wrt)
    by = [groups[name] for name in wrt]
    if full:
        program, method = _jacobian(problem, choice, solution, options, of, dict(zip(wrt, by, strict=True)))
    else:
        program, method = products.product(kind, problem, choice, solution, options, of, by)
    made = Derivatives if full else DerivativeProduct
    return made(problem, program, of, wrt, method, options, kind, reduction)


def _jacobian(
    problem: Problem, choice: Choice, solution: Program, options: Options, of: Sequence[str], wrt: Mapping[str, str]
) -> tuple[Program, str]:
    """(program of the Jacobians, its method). wrt: {input: its name in programs}."""
    symbolic, report = _differentiate(problem, choice, solution.guards, options, of, [*wrt.values()])
    blocks = [(f"d{x}_d{name}", list(symbolic.blocks[x, group].flat)) for x in of for name, group in wrt.items()]
    program = Program.from_graph(
        symbolic.graph, symbolic.inputs, blocks, [*symbolic.guards, *_checked(problem, symbolic, options)]
    )
    # derivatives may depend on further positions, which need ranges, too
    return with_ranges(program, problem.model, report), symbolic.method


def chosen_inputs(problem: Problem, wrt: str | Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """(inputs to differentiate by, {possible input: its name in programs}). Raises UnknownName, InvalidInput."""
    groups = {label_of(x): x for x in problem.inputs if group_of(x).role not in (NOISE, SWITCH)}
    optional = {m.name for m in problem.custom if (m.optional or m.prior) and not m.switchable}
    zero = optional.union(x for x in problem.known_quantities if QUANTITY[x].zero)
    return select_names("input to differentiate by", wrt, [name for name in groups if name not in zero], groups), groups


def _differentiate(
    problem: Problem, choice: Choice, guards: Sequence[Guard], options: Options, of: Sequence[str], wrt: Sequence[str]
) -> tuple[SymbolicDerivatives, StabilityReport]:
    """Derivatives, analytic if possible, else implicit; and the stability report of the solution that they need."""
    if has_analytic(problem, of, wrt) and (choice.is_recursion or not problem.constraints):
        return analytic(problem, of, wrt, options.external_wrenches), choice.report
    if choice.is_recursion:
        if not problem.constraints:
            raise ProblemError(f"derivatives of {', '.join(of)} need an elimination: compile with formulation='paper'")
        compiled = compile_program(problem, replace(options, formulation="elimination"))
        choice, guards = compiled.choice, compiled.program.guards
    for x in of:
        if x not in options.output_names and x in REPLACED_BY and REPLACED_BY[x] in choice.passes:
            raise ProblemError(
                f"the pass {REPLACED_BY[x]!r} leaves another {x} in the equations, since {x} is no output: for its "
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


def _checked(problem: Problem, symbolic: SymbolicDerivatives, options: Options) -> list[tuple]:
    """Guards of the pivots that the stability check of the solver did not cover."""
    pivots = [(strip_sign(x), freedom) for x, freedom in symbolic.pivots if not is_constant(x)]
    if not pivots:
        return []
    labels = recursion.pivot_labels(problem, [freedom for _, freedom in pivots])
    groups = [("qdd", list(symbolic.qdd)), (recursion.PIVOTS, [x for x, _ in pivots])]
    if problem.constraints:
        groups += [(problem.wrenches.name, list(symbolic.w)), *recursion.loads(problem, symbolic.graph, symbolic.w)]
    program = Program.from_graph(symbolic.graph, symbolic.inputs, groups)
    checked = recursion.check_recursion(problem, program, labels, options.external_wrenches, CHECKED_STATES)
    return [(x, zero, label, fallback) for (x, _), label, (zero, fallback)
            in zip(pivots, labels, checked.thresholds, strict=True)]  # fmt: skip


def _scalars(system: System, output: str) -> Sequence:
    """One entry for each scalar of an output."""
    shown = system.assembly.outputs
    return shown[output].b if output in shown else system.layout.quantity_columns(output)


def handle_failed_states(
    problem: Problem, of: Sequence[str], program: Program, result: Result, on_singular: str
) -> None:
    """Evaluate derivatives in double-double arithmetic at the states at which their program failed.

    If the system is singular there, or so near that rounding errors of constants decide the result: raises
    SingularState, or writes NaN.
    """
    status, failed = result.status, np.flatnonzero(result.status)
    if not len(failed):
        return
    system, inputs = assemble(problem), result.at(failed)
    inputs["q"] = normalise_quaternions(inputs["q"], [part for _, part in problem.model.quaternions])
    entries = np.broadcast_to(system.values(inputs)[0], (len(failed), system.nnz))
    solvable = failed[~is_unsolvable(system, inputs, entries)]
    rerun = DoubleDoubleFallback(program, INACCURATE, recoverable=BAD_PIVOT | BAD_OUTPUT | WEAK_PIVOT | OUT_OF_RANGE)
    rerun.solve(result.at(solvable), result.outputs, status, solvable)
    bad = np.flatnonzero(status)
    if len(bad) and on_singular == "raise":
        raise SingularState(
            f"{', '.join(of)} cannot be differentiated at {len(bad)} of {len(status)} states, the first being "
            f"{bad[0]}: the system is singular there, or so near that rounding errors of its constants decide them. "
            "Use on_singular='nan' to go on",
            states=tuple(bad.tolist()),
        )
    fill_nan(result.outputs, bad)


class Derivatives(Exportable):
    """Compiled partial derivatives of solved quantities and measured outputs; `J(q, qd, tau)["qdd", "q"]`.

    kind: "derivatives" for the partial derivatives of every output with respect to every input.
    of, wrt: names of the differentiated outputs, and of the inputs to differentiate by.
    method: "analytic" (tree recursions), "implicit" (one solve with the factors of the system for each input scalar)
        or "implicit, transposed" (one solve with the transposed factors for each output scalar).
    tangents, cotangents: empty; only a `DerivativeProduct` takes vectors. shapes: {result: shape at one state}. flops:
        exact counts, including the solution of the problem. executable: the program on a back end.

    Calls are thread-safe.
    """

    def __init__(
        self, problem: Problem, program: Program, of: tuple[str, ...], wrt: tuple[str, ...], method: str,
        options: Options, kind: str = "derivatives", reduction: Reduction | None = None,
    ):  # fmt: skip
        self.problem, self.model, self.program, self.kind = problem, problem.model, program, kind
        self.of, self.wrt, self.method, self._options = of, wrt, method, options
        outputs = problem.outputs((*problem.quantities, *options.measured))
        _, groups = chosen_inputs(problem, wrt)
        inputs = {name: problem.inputs[groups[name]] for name in wrt}
        if "q" in wrt:
            inputs["q"] = Group("q", (self.model.nv,), tuple(self.model.dof_names))
        takes, vectors = KINDS[kind], dict[str, dict[str, Group]]()
        if takes.tangents:
            vectors[TANGENTS] = {
                x: vector_group(TANGENTS, x, f"{TANGENTS}:{groups[x]}", like) for x, like in inputs.items()
            }
        if takes.cotangents:
            vectors[COTANGENTS] = {x: vector_group(COTANGENTS, x, f"{COTANGENTS}:{x}", outputs[x]) for x in of}
        self.tangents, self.cotangents = (vectors.get(role, {}) for role in (TANGENTS, COTANGENTS))
        self._results: dict[str, tuple[Any, tuple[int, ...]]]
        if kind == "derivatives":
            shape = {(x, name): outputs[x].shape + inputs[name].shape for x in of for name in wrt}
            self._results = {f"d{x}_d{name}": ((x, name), shape[x, name]) for x, name in shape}
        elif takes.by_output:
            self._results = {x: (x, outputs[x].shape) for x in of}
        else:
            self._results = {groups[x]: (x, inputs[x].shape) for x in wrt}
        self.shapes = dict(self._results.values())
        self._inputs = Inputs(problem, options.external_wrenches, vectors=vectors, reduction=reduction)
        self.executable = Runner(backend_named(options.backend)(program, options.code_level))
        self.executable.backend.kernel(True)
        self._calls = Calls(self._inputs, self.executable, self._results, policy="raise")
        self.fast_calls = self._calls.single_state

    @property
    def flops(self) -> Flops:
        return self.program.flops

    @property
    def sparsity(self) -> dict[Any, np.ndarray]:
        """{result: bool array of its shape}: False for entries that are zero at every state."""
        places, zero = self.program.outputs.slices, self.program.zero_outputs
        return {key: ~zero[places[group]].reshape(shape) for group, (key, shape) in self._results.items()}

    @fast_call
    def __call__(
        self, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
        noise: Named | None = None, active: Named | None = None, parameters: Named | None = None,
        tangents: Named | ArrayLike | None = None, cotangents: Named | ArrayLike | None = None,
        on_singular: str = "raise", threads: int | None = None, **quantities: ArrayLike,
    ) -> dict[Any, np.ndarray]:  # fmt: skip
        """Evaluate the derivatives; leading axes are batch axes.

        Parameters
        ----------
        q, qd, *known, y, noise, active, parameters, threads, **quantities
            As for the solver, see `Solver.__call__`.
        tangents, cotangents : dict or array_like
            Vectors of products: v, {input: (…, shape)}, and w, {output: (…, shape)}. A single vector needs no name.
        on_singular : {"raise", "nan"}
            Action if the system is singular, or so near singular that rounding errors change a result by 1e-6 of its
            size.

        Returns
        -------
        dict
            Of `Solver.derivatives`: {(quantity, input): array}, with the axes of the quantity, then those of the input:
            ("qdd", "q") is (…, nv, nv), ("a", "fx") (…, nb, 6, nb, 6). Of products: {output or input: array}. Axes that
            belong to q have length nv, in the tangent space of `Model.integrate`.

        Raises
        ------
        InvalidInput
            As the solver does.
        SingularState
            With ``on_singular="raise"``.

        Notes
        -----
        States with small pivots, or joints beyond their checked ranges, are rerun in double-double arithmetic.
        """
        arguments = Arguments(q, qd, known, quantities, y, noise, active, parameters, tangents, cotangents)
        check_among("on_singular", on_singular, ("raise", "nan"))
        result = self._calls.run(arguments, threads, on_singular)
        if result.flagged is not None:
            self._calls.reject_bad_inputs(result)
            handle_failed_states(self.problem, self.of, self.program, result, on_singular)
        return self._calls.values(result)

    def bind(
        self, q: np.ndarray, qd: np.ndarray, *known: np.ndarray, threads: int = 1,
        out: Mapping[Any, np.ndarray] | None = None, **keywords: Unpack[CallKeywords],
    ) -> BoundCall:  # fmt: skip
        """Prepare a call: `step()` reads the current arrays and writes `step.out`; see `Solver.bind`.

        out: {result: array} for some results or all; only `bind` writes entries that are zero at every state.
        """
        return self._calls.bind(Arguments.of(q, qd, known, keywords), threads, out)

    def exported_program(self, name: str | None = None) -> ExportedProgram:
        name = f"{problem_name(self.problem)}_{self.kind}" if name is None else name
        results = Groups(Group(x, shape) for x, (_, shape) in self._results.items())
        return exported_program(name, self.problem, self._inputs.groups, results, self.executable)

    def framework_function(self, on_singular: str) -> FrameworkFunction:
        call: Any = self

        def on_failure(program: Program, result: Result) -> None:
            handle_failed_states(self.problem, self.of, program, result, on_singular)

        return framework_function(
            self.kind, self._calls, self.program, on_failure, on_failure, partial(call, on_singular=on_singular),
            on_singular, self._options.code_level,
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__} for {self.model.name!r}: {', '.join(self.of)} by {', '.join(self.wrt)}; "
            f"{self.method}, {self.flops.total} operations"
        )

    def __reduce__(self):
        arguments = self.problem, self.program, self.of, self.wrt, self.method, self._options, self.kind
        return type(self), (*arguments, self._inputs.reduction)


class DerivativeProduct(Derivatives):
    """Compiled product of the derivatives J = ∂(of)/∂(wrt) of solved quantities and measured outputs with vectors.

    kind: "jvp" (J v, by output), "vjp" (wᵀ J, by input), or "hvp" (the derivative of wᵀ J along v, by input).
    method: "program" (forward and reverse mode through the program of the solver), "factors" (one more solve with the
        factors of its elimination) or "inverse dynamics" (differentiated at the solved accelerations): the one with the
        fewest operations.
    tangents, cotangents: vectors v and w that a call takes, {input: description of v} and {output: description of w}
        with shapes and labels. Other attributes as of `Derivatives`.
    """
