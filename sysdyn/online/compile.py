"""`compile` makes a solver of a problem; compiled programs are cached on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sysdyn.codegen.registry import backend_named
from sysdyn.errors import (
    AccuracyWarning,
    IgnoredWarning,
    InvalidInput,
    NoSafeOrdering,
    ProblemError,
    StructurallySingular,
    SysdynError,
    check_among,
    checked_path,
    warn,
)
from sysdyn.files import cache
from sysdyn.measurements.measurement import Measurement, Output, output_name
from sysdyn.measurements.problem import Problem
from sysdyn.offline.cache_key import cache_key
from sysdyn.offline.options import CUSTOM, Equations, Options, requested_outputs
from sysdyn.offline.report import GREATEST_LOSS, Compiled, StabilityReport
from sysdyn.offline.stages import Progress
from sysdyn.online import storage
from sysdyn.online.progress import progress_callback
from sysdyn.online.redundancy import TOLERANCE, Reduction, remove_redundant
from sysdyn.online.solver import ON_SINGULAR, Solver
from sysdyn.passes import named_passes
from sysdyn.runtime.real import DOUBLE, real_of

# A custom elimination order: (row_perm, col_perm), or a function from the pattern (CSR) to these.
CustomOrder = tuple[Sequence[int], Sequence[int]] | Callable[[Any], tuple[Sequence[int], Sequence[int]]]


def compile(
    problem: Problem,
    ordering: str | CustomOrder = "auto",
    outputs: str | Measurement | Sequence[Output] = "all",
    *,
    level: str = "best",
    layout: str = "paper",
    known: str = "rows",
    backend: str = "llvm",
    real: str | type = "float64",
    on_singular: str = "raise",
    allow_unsafe: bool = False,
    formulation: str = "auto",
    external_wrenches: bool = True,
    effort: float = 1.0,
    passes: str | Sequence[str] = "all",
    inputs: Sequence[str] = (),
    progress: Progress | bool = True,
    check_limits: bool = False,
) -> Solver:
    """Compile a problem: choose an elimination order, check it, and generate machine code.

    Parameters
    ----------
    problem : Problem
        A problem with `Switchable` contacts, or other switchable exact constraints, gives a `SwitchingSolver`.
    ordering : str, or pair of sequences, or callable
        "auto" (the cheapest safe order), "rnea", "crba", "aba", "tearing", "umfpack", "markowitz", "colamd" or
        "symmetric"; or (row_perm, col_perm), the row and the column of each pivot of the system; or a function from its
        pattern (CSR of ones) to these. Custom orders are checked, too.
    outputs : str, Measurement, or sequence of these
        "all", or some of tau, qdd, fx, a, f, and measurements such as ``Accelerometer("head", name="imu")``, whose
        values at the solution are ``solution["imu"]``. Operations that the outputs do not need are omitted.
    level : {"best", "fast"}
        "fast" tries fewer orders and does not optimise the code, for very large robots.
    layout : {"paper", "net_force"}
    known : {"rows", "substituted"}
        See `BlockSystem`.
    backend : {"llvm", "python"}
        Machine code, or NumPy (slow, for tests).
    real : {"float64", "float32"} or type
        "float32" computes twice as many states a second in batches. Results are float32, and `Solver.report` shows
        their error. States with large losses in the check, or with small pivots, are solved again in double precision.
        Only for problems without noise; derivatives stay in double precision.
    on_singular : {"raise", "nan"}
        Action of a call at a singular state.
    allow_unsafe : bool
        If no order passes the check, compile the cheapest one instead of raising NoSafeOrdering. States at which its
        pivots fail are solved with pivoting.
    formulation : {"auto", "paper", "elimination", "recursive"}
        "paper": elimination of the paper's system; "elimination": the same after the passes; "recursive": recursions
        for inverse, forward and hybrid dynamics. "auto": "paper" if an order is named, else "recursive" if it applies
        and only tau or qdd is an output, else "elimination" if it saves operations.
    external_wrenches : bool
        If False, they are zero in every call, and recursions spend no operations on them.
    effort : float
        Factor on the operations that the search for cheaper recursions may spend; 0 for no search.
    passes : "all", or sequence of str
        Passes of `sysdyn.PASSES` that may be applied, if they apply. They leave the outputs unchanged.
    inputs : sequence of str
        Parameters of the model that calls can change by ``parameters={name: value}``: "gravity" [m/s²] in world axes,
        "inertia:BODY" (the 10 numbers of `inertial_parameters`), "armature:JOINT".
    progress : bool or callable
        True: a progress bar on a terminal or in a notebook; or a callback (stage, completed share ≤ 1). Estimates use
        it, too, when they compile a program at the first `std`, `chi2`, ….
    check_limits : bool
        Raise InvalidInput in calls if a joint is beyond its limits, as angles in degrees are; takes microseconds per
        call. Saved solvers and derivatives do not check limits.

    Returns
    -------
    Solver

    Raises
    ------
    UnknownName
        For an unknown option.
    ProblemError
        For too many equations, and for options that do not fit the problem.
    StructurallySingular, NoSafeOrdering, BackendUnavailable

    Warns
    -----
    AccuracyWarning
        If every order has large errors in its check.
    IgnoredWarning
        For biases, which are estimated over a log, not at one state.

    Notes
    -----
    Redundant exact equations are omitted, and solutions are checked against them (`Solver.left_out`). Sensors of q and
    q̇ are ignored, because these are arguments. Compiled programs are cached on disk.
    """
    if not isinstance(problem, Problem):
        raise InvalidInput(f"compile needs a Problem, got {type(problem).__name__}; see sysdyn.forward_dynamics(model)")
    if not problem.model.nb:
        raise ProblemError(f"{problem.model.name!r} has no body that moves: there is nothing to solve for")
    if isinstance(inputs, str):
        inputs = (inputs,)
    if problem.biased:
        named = ", ".join(repr(m.name) for m in problem.biased)
        warn(
            f"bias of {named} is ignored: a solver takes one state by itself, and biases are estimated over a log; "
            "without bias= nothing is ignored",
            IgnoredWarning,
        )  # fmt: skip
    problem = problem.varying(*(p.name for p in problem.parameters), *inputs) if inputs else problem
    check_among("on_singular", on_singular, ON_SINGULAR)
    backend_named(backend)  # missing packages are reported now, not after the search
    asked = requested_outputs(outputs, problem)
    if not any(problem.outputs(asked).sizes.values()):
        names = ", ".join(map(output_name, asked))
        raise ProblemError(f"{names} of {problem.model.name!r} have no entry: no joint moves")

    options = Options(
        ordering=ordering if isinstance(ordering, str) else CUSTOM, outputs=asked, level=level, backend=backend,
        real=real_of(real).dtype.name, formulation=formulation,
        external_wrenches=bool(external_wrenches), passes=named_passes(passes), equations=Equations(layout, known),
        effort=effort, allow_unsafe=allow_unsafe,
    )  # fmt: skip
    if options.kernel_real is not DOUBLE and problem.noisy:
        raise ProblemError(
            f"estimates are computed in double precision, as weights like that of {problem.noisy[0].name!r} take "
            "digits twice: leave real= out, or state measurements without noise"
        )
    compile_problem = partial(_compiled, ordering=ordering, on_singular=on_singular, check_limits=check_limits)
    if problem.switchable_constraints:
        from sysdyn.online.switching import SwitchingSolver, check_switches  # rarely needed

        check_switches(problem, ordering)
        return SwitchingSolver(problem, options, compile_problem, on_singular, progress, check_limits)
    return compile_problem(problem, options, progress)


def _compiled(
    problem: Problem, options: Options, progress: Progress | bool, *, ordering: str | CustomOrder, on_singular: str,
    check_limits: bool,
) -> Solver:  # fmt: skip
    """Compile a problem without switches; redundant measurements are omitted."""
    callback = progress_callback(progress)
    with np.errstate(all="ignore"):  # the check reports overflows at sampled states, in one message
        reduction = None if problem.noisy else remove_redundant(problem)
        if reduction and options.kernel_real is not DOUBLE:
            raise ProblemError(
                f"{reduction}; solutions are checked against them to {TOLERANCE:.0e}, which needs double precision: "
                "leave real= out"
            )
        try:
            try:
                built = _built(problem, reduction, options, ordering, callback)
            except ProblemError as error:
                singular = isinstance(error, StructurallySingular)
                by_value = not isinstance(error, NoSafeOrdering) if problem.noisy else singular
                reduction = remove_redundant(problem, numerically=True) if by_value else None
                if not reduction:
                    raise
                built = _built(problem, reduction, options, ordering, callback)
            solver = Solver(*built, on_singular, callback, check_limits, reduction)
        finally:
            if callback:
                callback("done", 1.0)
    if not options.allow_unsafe:
        _warn_of_errors(solver.stability)
    return solver


def _built(
    problem: Problem, reduction: Reduction | None, options: Options, ordering: str | CustomOrder,
    progress: Progress | None,
) -> tuple[Problem, Options, Compiled]:  # fmt: skip
    """(problem, options, compiled), of the reduced problem if there is a reduction; from the cache if possible."""
    if reduction:
        problem, options = reduction.reduced, replace(options, outputs=reduction.outputs(options.outputs))
    if not isinstance(ordering, str):
        from sysdyn.offline.order_selection import custom_permutations  # rarely needed

        options = replace(options, custom_order=custom_permutations(problem, ordering, options.equations))
    key = cache_key(problem, options)
    stored = cache.load(key) if key else None
    if stored is not None:
        with suppress(SysdynError):  # a damaged entry, or one of another problem
            return problem, options, storage.unpack(stored, problem, options.outputs).compiled
    from sysdyn.offline.compile import compile_program  # the offline phase, which a cached problem does not need

    try:
        compiled = compile_program(problem, options, progress)
    except NoSafeOrdering as error:
        if not reduction:
            raise
        raise NoSafeOrdering(
            f"{reduction} has no order that is safe: leave out others (sd.diagnose(problem).redundant names all that "
            f"depend on each other), give some noise=, or use sd.least_norm, which takes them all; {error}",
            error.tried,
        ) from error
    if key:
        cache.store(key, storage.pack(compiled, options, None))
    if progress:
        progress("compiling machine code", 0.95)
    return problem, options, compiled


def load_solver(path: str | os.PathLike, on_singular: str = "raise") -> Solver:
    """Load a solver that `Solver.save` wrote. Raises FileError for unreadable, foreign or damaged files.

    Files from untrusted sources are safe: they contain no code that is executed, and their programs access only their
    own arrays.
    """
    stored = storage.read(checked_path("a solver file", path))
    assert stored.problem is not None
    return Solver(stored.problem, stored.options, stored.compiled, on_singular, reduction=stored.reduction)


def _warn_of_errors(report: StabilityReport) -> None:
    """Warn if errors at sampled states are large and no better order was found."""
    if report.single_loss > GREATEST_LOSS:
        warn(
            f"in single precision the results of this solver may be wrong by {report.single_error:.1e} of their size, "
            f"{report.single_loss:.1e} times what rounding of the inputs changes: see solver.report(); leave real= "
            "out, or name another formulation= or ordering=",
            AccuracyWarning,
        )
    if report.inaccurate:
        warn(
            f"the results of this solver may be wrong by {report.difference:.1e} of their size, with a residual of "
            f"{report.backward_error:.1e}, at the worst of {report.states} sampled states, where a solve with pivoting "
            f"is wrong by {report.pivoted_difference:.1e}: see solver.report(); ordering= or formulation= may name a "
            "better order, and sd.diagnose(problem) says what is nearly singular",
            AccuracyWarning,
        )
