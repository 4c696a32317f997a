"""The judge of programs in single precision, beside what rounding of the inputs to single precision alone changes.

Programs are found and judged in double precision. At a sampled state let f be the result in double precision, f₃₂ that
in single precision, and f' the one of inputs that are wrong by half a unit in their last single place. The loss

    max |f₃₂ − f| / (max |f' − f| + ε max |f|),   ε the distance of 1 from the next single number,

tells how much worse a program is than any that is handed inputs in single precision: about 1 if it is backward stable,
whatever the condition of the state. Pivots are weak below sizes at which the loss was seen to be large, and lengths are
judged only as far out as it is not. The interpreter computes f₃₂, so that programs are the same on every processor.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.errors import NoSafeOrdering
from sysdyn.offline.choice import Compiled
from sysdyn.offline.options import Options
from sysdyn.offline.recursion import judged_states
from sysdyn.offline.safety import HARMLESS, MARGIN, REACHES, ranged
from sysdyn.offline.sampling import NEAR, SAFETY_SEED, is_far, lengths, sample_states
from sysdyn.offline.verdict import RARE, Inputs
from sysdyn.problem import Problem
from sysdyn.program.program import Program
from sysdyn.runtime.real import DOUBLE

# Loss beyond which a state is to be solved in double precision: three digits of the seven (chosen).
GREATEST_LOSS = 1e3
# Draws of rounded inputs, the greatest effect of which is taken: one alone may hardly change the results (chosen).
DRAWS = 4
# Rounding units of its typical size below which a pivot may be that of a singular state (chosen).
ROUNDED_PIVOT = 100.0
# Share of its typical size below which a quantity is nothing for its error to be relative to (chosen).
SMALL_SHARE = 1e-3
# Fewest states of a long program (chosen).
LEAST_STATES = 64


def judged_single(problem: Problem, compiled: Compiled, options: Options) -> Compiled:
    """The compiled problem with guards, ranges and errors of its program in the options' type of numbers."""
    program, real = compiled.program, options.numbers
    n = judged_states(len(program), LEAST_STATES)
    inputs = {x: y.reshape(n, -1) for x, y in sample_states(problem, n, SAFETY_SEED, ranges=True).items()}
    if not options.external_wrenches:
        inputs["fx"] = np.zeros_like(inputs["fx"])
    with np.errstate(all="ignore"):
        exact, found = (interpreter.run_groups(program, inputs, real=x) for x in (DOUBLE, real))
        sizes = np.broadcast_to(np.abs(interpreter.guarded(program, inputs)), (n, len(program.guards)))
        loss, error = _losses(program, inputs, exact, found, real.rounding), relative_errors(exact, found)
    weak = np.array([guard.weak for guard in program.guards])
    q = np.abs(inputs["q"][:, lengths(problem.model)]).max(axis=1, initial=0.0)
    far = np.abs(np.concatenate([inputs[name] for name in program.inputs], axis=1))
    within = np.all([far[:, k] <= most for k, most in program.ranges], axis=0)
    regular = within & (sizes >= weak).all(axis=1) & np.isfinite(error)
    near = regular & ~is_far(problem.model, inputs["q"])
    weak = weak_sizes(weak, sizes, near, loss, real.rounding)
    kept = regular & (sizes >= weak).all(axis=1)
    small = (x for x in REACHES if (loss[kept & (q <= x)] <= GREATEST_LOSS).all())
    safety = compiled.choice.judged
    safety = replace(safety, reach=min(safety.reach, next(small, NEAR)))
    guards = tuple(replace(x, weak=float(size)) for x, size in zip(program.guards, weak, strict=True))
    program = ranged(replace(program, guards=guards), problem.model, safety)
    seen = kept & (q <= safety.reach)
    if not seen.any():
        raise NoSafeOrdering(
            f"single precision fails at all of {n} sampled states: at {int((~np.isfinite(error)).sum())} results are "
            "not finite, at the others pivots are too small. Choose units in which inertias and lengths are near 1, or "
            "leave real= out"
        )
    safety = replace(
        safety, single_loss=float(loss[seen].max()), single_error=float(error[seen].max()),
        single_median=float(np.median(error[seen])),
    )  # fmt: skip
    return replace(compiled, program=program, choice=replace(compiled.choice, safety=safety))


def relative_errors(exact: Inputs, found: Inputs) -> np.ndarray:
    """(n,): greatest difference of an output as a fraction of its greatest entry; not a number if one is infinite."""
    error = np.zeros(len(next(iter(exact.values()))))
    for name, x in exact.items():
        if x.size:
            size, off = np.abs(x).max(axis=1), np.abs(found[name] - x).max(axis=1)
            size = np.maximum(size, SMALL_SHARE * np.nanmedian(size))
            error = np.maximum(error, np.where(off == 0.0, 0.0, off / size))
    return error


def _losses(program: Program, inputs: Inputs, exact: Inputs, found: Inputs, rounding: float) -> np.ndarray:
    """(n,): the greatest loss of all groups of outputs."""
    rng, n = np.random.default_rng(0), len(inputs["q"])
    drawn = [
        {name: x * (1.0 + 0.5 * rounding * rng.choice((-1.0, 1.0), x.shape)) for name, x in inputs.items()}
        for _ in range(DRAWS)
    ]
    others = [interpreter.run_groups(program, x) for x in drawn]
    loss = np.zeros(n)
    for name, x in exact.items():
        if x.shape[1]:
            size, off = np.abs(x).max(axis=1), np.abs(found[name] - x).max(axis=1)
            effect = np.max([np.abs(y[name] - x).max(axis=1) for y in others], axis=0) + rounding * size
            loss = np.maximum(loss, np.where(off == 0.0, 0.0, off / effect))
    return np.where(np.isnan(loss), math.inf, loss)


def weak_sizes(weak: np.ndarray, sizes: np.ndarray, near: np.ndarray, loss: np.ndarray, rounding: float) -> np.ndarray:
    """Sizes (p,) below which pivots (n, p) lose too many digits, not less than `weak`; near (n,): states to judge by.

    Where the loss is large the pivot of the least share of its typical size is to blame, if that leaves nearly all
    states to the program.
    """
    if not len(weak) or not near.any():
        return weak
    typical, least = np.median(sizes[near], axis=0), sizes[near].min(axis=0)
    weak = np.maximum(weak, np.minimum(ROUNDED_PIVOT * rounding * typical, HARMLESS * least))
    shares, found = sizes / np.where(typical > 0.0, typical, 1.0), weak.copy()
    for k in np.flatnonzero(near & (loss > GREATEST_LOSS)):
        pivot = int(np.argmin(shares[k]))
        found[pivot] = max(found[pivot], MARGIN * sizes[k, pivot])
    few = int(((sizes < found).any(axis=1) & near).sum()) <= RARE * int(near.sum())
    return found if few else weak
