"""Residual and correction of forward dynamics, for results that are computed in single precision.

Of u, the given τ of some degrees of freedom, q̈ of the others and accelerations of constraints, a recursion computes
x = (q̈, w). Inverse dynamics and the rows of the constraints at x give the u that belongs to x, so that

    r = u − u(q, q̇, x),   δ = (∂x/∂u) r,   x + δ

are the residual, what x is off by, as x is affine in u, and the corrected x. r needs the digits of double precision, δ
does not: a step of iterative refinement in mixed precision. Wilkinson (1963); Higham (2002), section 12.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sysdyn.errors import ProblemError
from sysdyn.measurements.groups import value_group
from sysdyn.offline import recursion
from sysdyn.offline.choice import Choice
from sysdyn.offline.options import Options
from sysdyn.problem import Problem
from sysdyn.program.evaluate import derivative, evaluate
from sysdyn.program.expr import SHARING, Graph
from sysdyn.program.products import replayed
from sysdyn.program.program import Program

# Groups of the residual and of u; prefix of the groups of solved quantities among the inputs of another program.
RESIDUAL, GIVEN, SOLVED = "residual", "given", "solved:"


class Certificate(NamedTuple):
    """Programs of the residual and u, from inputs and x, and of the correction, from inputs and the residual."""

    residual: Program
    correction: Program


def driven(problem: Problem, options: Options) -> frozenset[int]:
    """Degrees of freedom of given τ. Raises ProblemError if results of the problem have no certificate."""
    solved = {"qdd", problem.wrenches.name} if problem.constraints else {"qdd"}
    free = recursion.applies(problem)
    by_recursion = options.usual and options.formulation in ("auto", "recursive")
    if not (free and by_recursion and set(options.names) == solved):
        raise ProblemError(
            f"tolerance= is for forward dynamics by a recursion, with outputs={sorted(solved)!r}: ask for these alone, "
            "and leave formulation=, ordering=, layout= and known= out; or leave real= out"
        )
    return free


def certificate(problem: Problem, choice: Choice, program: Program, options: Options) -> Certificate:
    """The certificate of a program that solves a problem. Raises ProblemError if the problem has none."""
    free = driven(problem, options)
    if not choice.is_recursion:
        raise ProblemError("no recursion is accurate enough at every state, which tolerance= needs: leave real= out")
    every, values = range(problem.model.nv), [(m, len(m.components(problem.model))) for m in problem.constraints]
    names = [f"tau[{k}]" for k in sorted(free)]
    names += [f"{value_group(m.name)}[{k}]" for m, size in values for k in range(size)]
    names += [f"qdd[{k}]" for k in every if k not in free]
    return Certificate(_residual(problem, program, options, free, names), _correction(program, names))


def _residual(problem: Problem, program: Program, options: Options, free: frozenset[int], names: list[str]) -> Program:
    """names: of the single inputs that are u."""
    inverse = recursion.inverse(problem, options)
    graph = Graph(SHARING)
    groups = [(name, list(graph.inputs(name, size))) for name, size in program.input_groups]
    given = {f"{name}[{k}]": x for name, column in groups for k, x in enumerate(column)}
    found = [(SOLVED + name, list(graph.inputs(SOLVED + name, size))) for name, size in program.output_groups]
    x = {f"{name.removeprefix(SOLVED)}[{k}]": y for name, column in found for k, y in enumerate(column)}
    scalars = evaluate(np.array([*inverse.scalars, None], dtype=object)[:-1], given | x).tolist()
    nv = problem.model.nv
    rows = [given[f"tau[{k}]"] - scalars[k] for k in sorted(free)]
    rows += [-y for y in scalars[nv:]]  # of which the given accelerations are taken off already
    rows += [given[f"qdd[{k}]"] - x[f"qdd[{k}]"] for k in range(nv) if k not in free]
    results = [(RESIDUAL, rows), (GIVEN, [given[name] for name in names])]
    return recursion.coupled(problem, Program.from_graph(graph, groups + found, results))


def _correction(program: Program, names: list[str]) -> Program:
    """names: of the single inputs that are u."""
    own = replayed(program, Graph(SHARING))
    pushing = dict(zip(names, own.graph.inputs(RESIDUAL, len(names)), strict=True))
    rates = iter(derivative([x for column in own.outputs.values() for x in column], pushing))
    results = {name: [next(rates) for _ in column] for name, column in own.outputs.items()}
    return own.program({RESIDUAL: list(pushing.values())}, results, ())
