"""The online phase: a Solver is a compiled problem; calling it gives a Solution."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.codegen.registry import backend_named
from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.files import html
from sysdyn.files.atomic import write_file
from sysdyn.files.html import TextTable
from sysdyn.frameworks.export import Differentiable, ExportedProgram
from sysdyn.measurements.measurement import Measurement, Output
from sysdyn.measurements.problem import Problem
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.offline.cache_key import cache_key
from sysdyn.offline.options import Options
from sysdyn.offline.report import Choice, Compiled, StabilityReport
from sysdyn.offline.stages import Progress
from sysdyn.online import storage
from sysdyn.online.arguments import Arguments, CallKeywords, Inputs, Named
from sysdyn.online.calls import BatchCall, Calls, Result
from sysdyn.online.redundancy import TOLERANCE, Reduction
from sysdyn.online.solution import Solution, SolutionContext
from sysdyn.program.opcodes import BAD_INPUT, Flops
from sysdyn.program.program import Program
from sysdyn.runtime.native import extension
from sysdyn.runtime.native_calls import fast_call
from sysdyn.runtime.real import DOUBLE
from sysdyn.runtime.runner import BoundCall, Runner

if TYPE_CHECKING:  # modules that a first call does not need are imported by the methods that need them
    from sysdyn.frameworks.traced import FrameworkFunction
    from sysdyn.online.derivatives import DerivativeProduct, Derivatives
    from sysdyn.online.estimate import Estimate, Posteriors
    from sysdyn.online.fallback import FallbackSolver
    from sysdyn.online.posterior import Posterior

# Actions of a call at singular states.
ON_SINGULAR = ("raise", "nan")
# Text of a report in place of a count of the solve scope.
_NO_SCOPE = "none: the formulation does without X, v, c or ν"


class Counts(NamedTuple):
    """Exact operation counts: `end_to_end` from q, q̇; `solve` with X, v, c, ν as inputs, None if not used."""

    end_to_end: Flops
    solve: Flops | None

    def __repr__(self) -> str:
        return f"end to end  {self.end_to_end!r}\nsolve       {self.solve or _NO_SCOPE}"


class Solver(Differentiable["DerivativeProduct"]):
    """A compiled problem.

    problem: the solved problem. whole: the stated problem, which may have redundant equations. left_out: (measurement,
    numbers of its components) of `whole` that `problem` omits; solutions are checked against them, with `tolerance`.
    model: the robot. program: the operations. executable: the program on a back end. on_singular: action of a call at
    singular states.

    solver(q, qd, …) solves for one state or a batch; `bind` prepares a call without checks for control loops. A solver
    is thread-safe; it can be pickled, saved to a file and loaded. Unpickling runs code of the pickle: load files of
    others by `load_solver`.
    """

    def __init__(
        self, problem: Problem, options: Options, compiled: Compiled | None, on_singular: str = "raise",
        progress: Progress | None = None, check_limits: bool = False, reduction: Reduction | None = None,
    ):  # fmt: skip
        """compiled: None for a solver of several contact modes, each of which has its own program."""
        check_among("on_singular", on_singular, ON_SINGULAR)
        self.problem, self.whole = problem, reduction.full if reduction else problem
        self.reduction, self.tolerance = reduction, TOLERANCE
        self.left_out = reduction.omitted if reduction else ()
        self.model, self.options, self.on_singular = problem.model, options, on_singular
        self._inputs = Inputs(problem, options.external_wrenches, check_limits, reduction=reduction)
        self._about = SolutionContext(
            problem, problem.outputs(options.outputs), refuse=on_singular == "raise", measured=options.measured,
            inactive_constraints=reduction.inactive_constraints if reduction else (),
        )  # fmt: skip
        self.posterior: Posterior | None = None
        self.fast_calls: list[extension.SingleStateCall] = []
        if compiled is not None:
            self._link(compiled, progress)

    def _link(self, compiled: Compiled, progress: Progress | None) -> None:
        """Load the machine code of the compiled problem, and prepare its calls."""
        problem, options = self.problem, self.options
        self.compiled, began = compiled, time.perf_counter()
        backend = backend_named(options.backend)
        self.executable = Runner(backend(self.program, options.code_level, real=options.kernel_real))
        self.executable.backend.kernel(True)
        self._machine_code_seconds = time.perf_counter() - began
        results = {name: (name, group.shape) for name, group in self._about.outputs.items()}
        self._solution: type[Solution] = Solution
        if problem.noisy:
            from sysdyn.online.estimate import Estimate, Posteriors

            self._solution = Estimate
        self._calls = Calls(self._inputs, self.executable, results, self._solution)
        self.fast_calls = self._calls.single_state
        posteriors: Posteriors | None = None
        if problem.noisy:
            posteriors = Posteriors(
                problem, compiled.choice, options, self.program.guards, cache_key(problem, options), progress
            )
            self.posterior = posteriors.posterior
        self._about = replace(self._about, inputs=self.program.inputs.slices, posterior=posteriors)

    # ---- calling ------------------------------------------------------------------------------------------------

    @fast_call
    def __call__(
        self,
        q: ArrayLike,
        qd: ArrayLike,
        *known: ArrayLike,
        y: Named | ArrayLike | None = None,
        noise: Named | None = None,
        active: Named | None = None,
        parameters: Named | None = None,
        on_singular: str | None = None,
        threads: int | None = None,
        **quantities: ArrayLike,
    ) -> Solution | Estimate:
        """Solve at one state or at a batch of states; leading axes are batch axes and broadcast.

        Parameters
        ----------
        q, qd : (…, nq) and (…, nv) array_like
            Positions and velocities. Those of coupled joints are computed from their leaders; a warning, one per
            solver, names values that contradict these.
        *known, **quantities : array_like
            Known quantities at full size: tau, qdd (…, nv); fx, a, f (…, nb, 6). The only required one may be
            positional, as in ``solver(q, qd, tau)``. Entries that the problem does not know are ignored; fx is zero by
            default.
        y : dict, array_like, or table
            {measurement name: (…, m)}, or packed (…, ny) as in `problem.y_names`. DataFrames and Series are matched by
            column labels. Masked entries of Switchable measurements are switched off; entries that `active` switches
            off may be NaN.
        noise : dict
            {measurement name: standard deviations, () or (…, m), or covariance (…, m, m)}, in place of the declared
            noise, of the same kind. A standard deviation of 0 makes the component exact.
        active : dict
            {name: (…) or (…, m) bool} of Switchable measurements. The batch axes of the other arguments decide which
            shape it has.
        parameters : dict
            {name: (…, size)} of the parameters that are inputs, in place of the model's.
        on_singular : {"raise", "nan"}
            Action at singular states, see `Solution.ok`. Regular states at which pivots fail are solved with pivoting.
        threads : int
            Number of threads for a batch; by default chosen by its size.

        Returns
        -------
        Solution or Estimate

        Raises
        ------
        InvalidInput
            For wrong shapes or types, NaN or infinity, missing, duplicate or ambiguous values; names the argument.
        SingularState
            For singular states, with ``on_singular="raise"``.

        Notes
        -----
        Later requests to the solution (`std`, `backward_error`, …) use the values at the time of the call. Batches do
        not copy arrays that they read in place: the first such request does, and raises InvalidInput if they have been
        overwritten.
        """
        arguments = Arguments(q, qd, known, quantities, y, noise, active, parameters)
        return self.solve(arguments, on_singular, threads)

    def solve(self, arguments: Arguments, on_singular: str | None = None, threads: int | None = None) -> Solution:
        """Implement calls."""
        policy = self._policy(on_singular)
        about = self._about if on_singular is None else replace(self._about, refuse=policy == "raise")
        result = self._calls.run(arguments, threads, on_singular, about)
        if result.flagged is not None:
            self.resolve(result, policy)
        solution = self._solution(about, result)
        if self.reduction and result.full_system:
            from sysdyn.online.overdetermined import check_consistency, inconsistent

            consistency = check_consistency(self.reduction, solution, result.full_system, self.tolerance)
            if consistency.violated.any() and policy == "raise":
                raise inconsistent(self.reduction, consistency, result.full_system)
            solution.differences = consistency.errors
            solution.ok = solution.ok & ~consistency.violated
        return solution

    def _policy(self, on_singular: str | None) -> str:
        """`on_singular` of a call, or else of the solver. Raises UnknownName."""
        if on_singular is not None and on_singular not in ON_SINGULAR:
            raise UnknownName("on_singular", on_singular, ON_SINGULAR)
        return on_singular or self.on_singular

    def batch_call(self, arguments: Arguments) -> BatchCall | None:
        """Batch call for arguments with these names, which reads arrays in place; None if calls must convert them."""
        return self._calls.batch_call(arguments, arguments.arrays(), None, None, self._about)

    def resolve(self, run: Result, policy: str) -> None:
        """Solve the flagged states by fallbacks; see `FallbackSolver.resolve`."""
        self._fallback.resolve(run, policy)

    @cached_property
    def _fallback(self) -> FallbackSolver:
        from sysdyn.online.fallback import FallbackSolver

        return FallbackSolver(self.problem, self.options, self.executable, self._calls, self.reduction)

    # ---- control loops ------------------------------------------------------------------------------------------

    def bind(
        self, q: np.ndarray, qd: np.ndarray, *known: np.ndarray, threads: int = 1,
        out: np.ndarray | Mapping[str, np.ndarray] | None = None, **keywords: Unpack[CallKeywords],
    ) -> BoundCall:  # fmt: skip
        """Prepare a call without checks: `step()` reads the current arrays and writes `step.out`.

        Parameters
        ----------
        q, qd, *known, **keywords
            As for a call: C-contiguous float64 arrays of full size, of one state or of N states (N, …). They are read
            in place; no two may share memory. Quaternions must be normalised. y, parameters: {name: array}. noise and
            active are constant after `bind`; measurements that are off at all states are not read.
        threads : int
            Number of threads for a batch, including the caller's.
        out : array, or dict of arrays
            Array of a single output, or {output: array}. Default: new arrays.

        Returns
        -------
        BoundCall
            `step.status` (bits of `sysdyn.program.opcodes`) is nonzero at states where a pivot failed; WEAK_PIVOT: a
            pivot was near zero, and digits were lost that a call would keep. One thread at a time may run it.

        Raises
        ------
        InvalidInput
            For arrays of wrong type or shape, and for masked or overlapping ones.
        """
        return self._calls.bind(Arguments.of(q, qd, known, keywords), threads, out)

    # ---- derivatives --------------------------------------------------------------------------------------------

    def derivatives(self, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None) -> Derivatives:
        """Compile partial derivatives of solved quantities with respect to inputs.

            J = sd.compile(sd.forward_dynamics(model), outputs="qdd").derivatives(wrt=("q", "qd", "tau"))
            J(q, qd, tau)["qdd", "q"]                       # (…, nv, nv), in the tangent space of q

        Parameters
        ----------
        of : str or sequence of str
            Quantities (tau, qdd, fx, a, f) and measured outputs. Default: the outputs of the solver.
        wrt : str or sequence of str
            q, qd, known quantities and measurements. Default: all but fx.

        Returns
        -------
        Derivatives

        Raises
        ------
        UnknownName
        ProblemError
            For outputs without analytic derivatives (a, f, measured outputs) of a solver that eliminates no matrix.

        Notes
        -----
        Derivatives of τ and q̈ in inverse, forward and hybrid dynamics are analytic. All others solve
        D ∂d = −(∂D d + ∂b) with the factors of the solution, or with their transpose if there are fewer outputs than
        inputs.
        """
        return self._compile_derivatives("derivatives", of, wrt)

    def product(
        self, kind: str, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None
    ) -> DerivativeProduct:
        return self._compile_derivatives(kind, of, wrt)

    def _compile_derivatives(self, kind: str, of: str | Sequence[str] | None, wrt: str | Sequence[str] | None) -> Any:
        from sysdyn.online.derivatives import compile_derivatives

        return compile_derivatives(kind, self.problem, self.choice, self.program, self.options, of, wrt, self.reduction)

    # ---- properties ---------------------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The operations of a call."""
        return self.compiled.program

    @property
    def choice(self) -> Choice:
        """The elimination order with its cost and the report of its check."""
        return self.compiled.choice

    @property
    def ordering(self) -> str:
        """Name of the elimination order in use."""
        return self.choice.ordering

    @property
    def passes(self) -> tuple[str, ...]:
        """Names of the applied passes of `sysdyn.PASSES`."""
        return self.choice.passes

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: quantities in canonical order, then measurements in the order of `compile`."""
        return self.options.output_names

    @property
    def measured(self) -> dict[str, Measurement]:
        """The measurements among the outputs, by name; they have `units` and `components(model)`."""
        return {m.name: m for m in self.options.measured}

    @property
    def flops(self) -> Counts:
        """Exact operation counts of the program: `end_to_end` from q, q̇; `solve` with X, v, c, ν as inputs."""
        return Counts(self.program.flops, self._solve_scope)

    @cached_property
    def _solve_scope(self) -> Flops | None:
        """Operation count with X, v, c, ν as inputs; None if the formulation does not compute these."""
        if self.choice.solve or self.choice.is_recursion:
            return self.choice.solve
        from sysdyn.offline.compile import ordered_system
        from sysdyn.offline.elimination import solve_scope

        system = ordered_system(self.problem, self.options, self.choice)
        return solve_scope(system, self.choice, self.options.outputs)

    @property
    def fill_in(self) -> int:
        """Entries of L and U that are structural zeros of D."""
        return self.choice.fill_in

    @property
    def triangular(self) -> bool:
        """True if the permuted matrix is triangular: the solution is one substitution."""
        return self.choice.triangular

    @property
    def stability(self) -> StabilityReport:
        """Errors and pivots of the program over the sampled states at which it was checked."""
        return self.choice.report

    def report(self) -> str:
        """Text of the offline decisions and their reasons."""
        s, counts = self.stability, self.flops
        single = [
            f"  {self.options.real}      error ≤ {s.single_error:.1e} of the greatest entry, median "
            f"{s.single_median:.1e}; ≤ {s.single_loss:.2g} times the effect of rounded inputs"
        ]
        lines = [
            repr(self),
            f"  end to end   {counts.end_to_end!r}",
            f"  solve        {counts.solve or _NO_SCOPE}",
            f"  fill-in      {self.fill_in}{' (triangular)' if self.triangular else ''}"
            f"{'; one step of iterative refinement follows' if self.choice.refined else ''}",
            f"  stability    over {s.states} states, every joint at multiples of π/2 and its limits among them: "
            f"backward error ≤ {s.backward_error:.1e} row by row",
            f"  omitted      {s.singular} singular states, and {s.fallback} near them that calls solve again",
            f"  accuracy     difference from a refined pivoted solve ≤ {s.difference:.1e} at {s.compared} of them",
            *([] if self.options.kernel_real is DOUBLE else single),
            f"  least pivot  {s.least_pivot:.2g} of its typical size: {s.least_pivot_name}",
            f"  passes       {', '.join(self.passes) or 'none'}",
            f"  offline      {self._offline()}",
            "  orders considered:",
        ]
        lines += [f"    {name}: {what}" for name, what in self.considered]
        return "\n".join(lines)

    @property
    def considered(self) -> tuple[tuple[str, str], ...]:
        """(order, its cost or the reason against it) of each tried order; starts with equal reasons share one line."""
        seen: dict[tuple[str, str], str] = {}
        for name, what in self.compiled.considered:
            seen.setdefault((name.partition(" ")[0], what), name)
        return tuple((name, what) for (_, what), name in seen.items())

    def _offline(self) -> str:
        """Seconds of each stage, as text."""
        stages = (*self.compiled.stages, ("machine code", self._machine_code_seconds))
        return f"{self.compiled.seconds:.2f} s: " + ", ".join(f"{name} {spent:.2f}" for name, spent in stages)

    def _repr_html_(self) -> str:
        from sysdyn.online.display import spy_html

        flops, s = self.program.flops, self.stability
        counts = (flops.mul, flops.add, flops.div, flops.sqrt, flops.total, flops.trig)
        columns = ("operations", "mul", "add", "div", "sqrt", "total", "sin/cos")
        considered = TextTable("orders considered", ("order", "what it came to"), self.considered, 2)
        said = f"{repr(self)}\n  accuracy  backward error ≤ {s.backward_error:.1e} at {s.states} states"
        return html.fragment(
            html.text(said),
            html.table(TextTable("operations", columns, [("from q, q̇ on", *(f"{x:,}" for x in counts))])),
            html.table(considered, folded=True),
            spy_html(self.problem, self.options, self.choice),
        )

    def __repr__(self) -> str:
        counts = f"ordering {self.ordering!r}, {self.program.flops.total} operations, fill-in {self.fill_in}"
        return f"{self._title()}; {counts}"

    def _title(self) -> str:
        """Kind of solver, robot, outputs and inputs, as text."""
        known = ", ".join((*self._inputs.known, *(m.name for m in self.problem.custom))) or "nothing"
        return (
            f"{type(self).__name__} for {self.model.name!r} ({self.model.nb} bodies, {self.model.nv} degrees of "
            f"freedom): {', '.join(self.outputs)} from {known}"
        )

    # ---- storage ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the solver and its problem to one file of plain arrays and JSON.

        Raises FileError if it cannot be written, ProblemError if a custom measurement has no stored form.
        """
        return write_file(path, storage.pack(self.compiled, self.options, self.whole, self.reduction))

    @cached_property
    def _in_double(self) -> Runner:
        """The program in double precision."""
        options = self.options
        if options.kernel_real is DOUBLE:
            return self.executable
        return Runner(backend_named(options.backend)(self.program, options.code_level))

    def exported_program(self, name: str | None = None) -> ExportedProgram:
        from sysdyn.online.export import exported_program, problem_name

        name = problem_name(self.problem) if name is None else name
        return exported_program(name, self.problem, self._inputs.groups, self._about.outputs, self._in_double)

    def framework_function(self, on_singular: str) -> FrameworkFunction:
        from sysdyn.frameworks.traced import fill_nan
        from sysdyn.offline.products import product
        from sysdyn.online.derivatives import handle_failed_states
        from sysdyn.online.export import framework_function, problem_name

        if self.reduction:  # a function of the reduced problem, without checks
            return Solver(self.problem, self.options, self.compiled).framework_function(on_singular)

        def on_failure(_: Program, run: Result) -> None:
            dead = run.status & BAD_INPUT != 0
            if dead.any() and on_singular == "raise":
                self._calls.reject_bad_inputs(run)
            fill_nan(run.outputs, dead)
            flagged = np.flatnonzero((run.status != 0) & ~dead)
            inputs, outputs = run.at(flagged), {name: x[flagged] for name, x in run.outputs.items()}
            inputs["q"] = normalise_quaternions(inputs["q"], self._inputs.quaternions)
            part = Result(inputs, flagged.shape, outputs, run.status[flagged])
            try:
                self.resolve(part, on_singular)
            except InvalidInput:  # angles too large for a sine
                if on_singular == "raise":
                    raise
                fill_nan(part.outputs, ...)
            for name, x in part.outputs.items():
                run.outputs[name][flagged] = x

        def derivative(kind: str, wrt: tuple[str, ...]) -> Program:
            return product(
                kind, self.problem, self.choice, self.program, self.options, self.outputs, wrt, ambient=True
            )[0]

        def on_derivative_failure(program: Program, run: Result) -> None:
            handle_failed_states(self.problem, self.outputs, program, run, on_singular)

        outputs = self.outputs

        def eager_call(*args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
            solution = self(*args, on_singular=on_singular, **kwargs)
            return {name: solution[name] for name in outputs}

        return framework_function(
            problem_name(self.problem), self._calls, self.program, on_failure, on_derivative_failure,
            eager_call, on_singular, self.options.code_level, derivative, self.options.kernel_real,
        )  # fmt: skip

    def __reduce__(self):
        payload = storage.pack(self.compiled, self.options, None)
        options = self.on_singular, self.options.outputs, self._inputs.check_limits, self.reduction, self.tolerance
        return restored, (self.problem, payload, *options)


def restored(
    problem: Problem, payload: bytes, on_singular: str, outputs: Sequence[Output] = (), check_limits: bool = False,
    reduction: Reduction | None = None, tolerance: float = TOLERANCE,
) -> Solver:  # fmt: skip
    stored = storage.unpack(payload, problem, tuple(outputs))
    solver = Solver(problem, stored.options, stored.compiled, on_singular, None, check_limits, reduction)
    solver.tolerance = tolerance
    return solver
