"""The type of the numbers of a solver: its back end, certified if there is a tolerance, and lines of its report."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from sysdyn.backends.backend import Backend
from sysdyn.backends.certified import Certified
from sysdyn.backends.executable import Executable
from sysdyn.backends.real import DOUBLE
from sysdyn.backends.registry import backend_named
from sysdyn.files import cache
from sysdyn.offline.certificate import Certificate, certificate
from sysdyn.offline.choice import Compiled
from sysdyn.offline.key import cache_key
from sysdyn.offline.options import Options
from sysdyn.offline.sampling import EXAMPLE_SEED, sample_states
from sysdyn.offline.single import relative_errors
from sysdyn.offline.verdict import Safety
from sysdyn.online import storage
from sysdyn.problem import Problem
from sysdyn.program.status import BEYOND_TOLERANCE

# States at which a report looks at errors beside a tolerance (chosen).
REPORTED = 512


def backend(problem: Problem, options: Options, compiled: Compiled) -> Backend:
    """The back end of a compiled problem. Raises ProblemError if it has no certificate and needs one."""
    make = backend_named(options.backend)
    first = make(compiled.program, options.code_level, real=options.numbers)
    if options.tolerance is None:
        return first
    residual, correction = _certificate(problem, options, compiled)
    return Certified(
        first, make(residual, options.code_level), make(correction, options.code_level, real=options.numbers),
        options.tolerance,
    )  # fmt: skip


def _certificate(problem: Problem, options: Options, compiled: Compiled) -> Certificate:
    """Programs of residual and correction, out of the cache if they are there."""
    key = cache_key(problem, replace(options, tolerance=None))
    about = (f"{key} {compiled.program.digest} {x}" for x in Certificate._fields)
    files = [hashlib.sha256(x.encode()).hexdigest() + ".certificate" for x in about]
    residual, correction = (storage.program_of(cache.load(x) if key else None) for x in files)
    if residual and correction:
        return Certificate(residual, correction)
    made = certificate(problem, compiled.choice, compiled.program, options)
    for name, program in zip(files, made, strict=True):
        if key:
            cache.store(name, storage.packed(program.to_arrays()))
    return made


def said(problem: Problem, options: Options, s: Safety, own: Executable, in_double: Executable) -> list[str]:
    """Lines of a report about errors in single precision; own: the solver's program, which may have a tolerance."""
    if options.numbers is DOUBLE:
        return []
    lines = [
        f"  {options.real:<11}  error ≤ {s.single_error:.1e} of the greatest entry, {s.single_median:.1e} at half of "
        f"the states; ≤ {s.single_loss:.2g} times what rounding of the inputs changes"
    ]
    if options.tolerance is not None:
        inputs = sample_states(problem, REPORTED, EXAMPLE_SEED, ranges=True)
        inputs = {name: x.reshape(REPORTED, -1) for name, x in inputs.items()}
        found, status = own.results(inputs, REPORTED)
        exact, regular = in_double.results(inputs, REPORTED)
        good, beyond = (status == 0) & (regular == 0), np.count_nonzero(status & BEYOND_TOLERANCE)
        error = relative_errors(exact, found)[good].max(initial=0.0)
        lines.append(
            f"  tolerance    {options.tolerance:g}: error ≤ {error:.1e} at {np.count_nonzero(good)} of {REPORTED} "
            f"sampled states; {beyond} others are to be solved again"
        )
    return lines
