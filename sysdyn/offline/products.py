"""Products of the derivatives of a problem's solution f with vectors: J v, w^T J and the derivative of w^T J along v.

Two ways, the one of fewer operations:

    program            forward and reverse mode through the program that solves the problem;
    inverse dynamics   through the program only by τ, which gives μ = H⁻¹ w, and by all else through ID(q, q̇, q̈) at the
                       solved q̈, held fixed: w^T ∂q̈ = −μ^T ∂ID, and H ∂q̈ = ∂τ − ∂ID.

Positions are differentiated in the tangent space, or by the numbers that arrays hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sysdyn.measurements.classical import is_classical, torque_freedoms
from sysdyn.model.manifolds import unit
from sysdyn.offline.options import Options
from sysdyn.offline.recursion import BUDGET
from sysdyn.offline.sensitivity_implicit import tangents
from sysdyn.problem import Problem
from sysdyn.program.evaluate import derivative, evaluate, gradient
from sysdyn.program.expr import Graph
from sysdyn.program.products import COTANGENTS, SHARING, TANGENTS, Scalars, replayed
from sysdyn.program.program import Program
from sysdyn.recursions import write as recursions
from sysdyn.recursions.write import Written

# Products: forward, reverse, and forward of reverse.
KINDS = ("jvp", "vjp", "hvp")

# Scalars by the names of single inputs, as q[0].
Slopes = dict[str, Any]


class Product(NamedTuple):
    """The program of a product, and the way that it goes."""

    method: str
    program: Program


def product(
    kind: str, problem: Problem, program: Program, options: Options, of: Sequence[str], wrt: Sequence[str],
    ambient: bool = False,
) -> Product:  # fmt: skip
    """A product of the derivatives of the outputs `of` by the groups of inputs `wrt`.

    Its groups of inputs are those of the program, then `cotangents:NAME` of outputs and `tangents:NAME` of inputs as
    the kind needs. Its groups of outputs are `of` (jvp), or `wrt`. ambient: positions are differentiated by their
    numbers, which are q / |q| for quaternions q that are handed in; else in the tangent space of unit quaternions.
    """
    ways = [_Way(problem, program, of, wrt, ambient)]
    free = torque_freedoms(problem) if is_classical(problem) else None
    if free and set(of) <= {"tau", "qdd"} and "qdd" in dict(program.output_groups):
        model = problem.model
        inverse = recursions.write(
            model, frozenset(), ("tau",), options.external_wrenches, budget=BUDGET * options.budget.effort,
            passes=options.passes,
        )  # fmt: skip
        ways.append(_ByInverseDynamics(problem, program, of, wrt, ambient, free, inverse))
    return min((Product(way.method, way.product(kind)) for way in ways), key=lambda x: x.program.flops.total)


class _Way:
    """Forward and reverse mode through the program.

    at: the value of each single input of the program, by name.
    """

    method = "program"

    def __init__(self, problem: Problem, program: Program, of: Sequence[str], wrt: Sequence[str], ambient: bool):
        self.model, self.of, self.wrt, self.ambient = problem.model, of, wrt, ambient
        self.graph, self.ranges = Graph(SHARING), program.ranges
        q = self.graph.inputs("q", self.model.nq)
        given = {"q": list(unit(q, [part for _, part in self.model.quaternions]) if ambient else q)}
        self.own = replayed(program, self.graph, given)
        self.at = {
            f"{name}[{k}]": x for name, column in (self.own.inputs | given).items() for k, x in enumerate(column)
        }
        self.outputs = {name: self.own.outputs[name] for name in of}

    def product(self, kind: str) -> Program:
        further: Scalars = {}
        if kind != "jvp":
            weights, groups = self.own.vectors(COTANGENTS, {name: len(x) for name, x in self.outputs.items()})
            further |= groups
            results = self._gathered(self.slopes(weights))
        if kind != "vjp":
            vectors, groups = self.own.vectors(TANGENTS, {name: len(self._directions[name]) for name in self.wrt})
            further |= groups
            direction = self._along(vectors)
            if kind == "jvp":
                results = self.rates(direction)
            else:
                rates = iter(derivative(_flat(results), direction))
                results = {name: [next(rates) for _ in column] for name, column in results.items()}
        return self.own.program(further, results, self.ranges)

    def rates(self, direction: Slopes) -> Scalars:
        """Rates of the outputs along rates of single inputs."""
        found = iter(derivative(_flat(self.outputs), direction))
        return {name: [next(found) for _ in column] for name, column in self.outputs.items()}

    def slopes(self, weights: Scalars) -> Slopes:
        """Slopes of the weighted sum of the outputs by single inputs."""
        names = [f"{name}[{k}]" for name in self.wrt for k in range(len(self.own.inputs[name]))]
        inputs = [self.graph.input(name) for name in names]
        return dict(zip(names, gradient(_flat(self.outputs), _flat(weights), inputs), strict=True))

    # ---- spaces --------------------------------------------------------------------------------------------------

    @cached_property
    def _directions(self) -> dict[str, list[Slopes]]:
        """Rates of single inputs along each direction of an input."""
        return {
            name: [{f"{name}[{k}]": 1.0} for k in range(len(column))] if self.ambient
            else [dict(x) for x in tangents(self.model, name, np.array(column, dtype=object))]
            for name, column in self.own.inputs.items() if name in self.wrt
        }  # fmt: skip

    def _along(self, vectors: Scalars) -> Slopes:
        """Rates of single inputs along vectors."""
        found: Slopes = {}
        for name, vector in vectors.items():
            for x, direction in zip(vector, self._directions[name], strict=True):
                for scalar, rate in direction.items():
                    found[scalar] = found.get(scalar, 0.0) + rate * x
        return found

    def _gathered(self, slopes: Slopes) -> Scalars:
        """Slopes along each direction of the inputs."""
        return {
            name: [
                sum((rate * slopes.get(scalar, 0.0) for scalar, rate in x.items()), 0.0) for x in self._directions[name]
            ]
            for name in self.wrt
        }


class _ByInverseDynamics(_Way):
    """Through ID at the solved q̈, and through the program by τ alone.

    free: degrees of freedom of known τ; q̈ is known of the others. inverse: ID, with q, q̇, q̈ and fx as its inputs.
    """

    method = "inverse dynamics"

    def __init__(
        self, problem: Problem, program: Program, of: Sequence[str], wrt: Sequence[str], ambient: bool,
        free: frozenset[int], inverse: Written,
    ):  # fmt: skip
        super().__init__(problem, program, of, wrt, ambient)
        self.free, self.tau, self.scratch = sorted(free), inverse.outputs["tau"], inverse.graph
        given = {"tau": free, "qdd": frozenset(range(self.model.nv)) - free}
        # outputs that are inputs
        self.passed = {(x, k) for x in of for k in given.get(x, ())}
        self.at |= {f"qdd[{k}]": x for k, x in enumerate(self.own.outputs["qdd"])}

    def rates(self, direction: Slopes) -> Scalars:
        q = [f"q[{k}]" for k in range(self.model.nq)]
        moving = direction | dict(zip(q, derivative([self.at[x] for x in q], direction), strict=True))
        inside = {x: y for x, y in moving.items() if not x.startswith("tau[")}
        change = self._inverse(derivative(self.tau, {x: self.scratch.input(f"rate {x}") for x in inside}),
                               {f"rate {x}": y for x, y in inside.items()})  # fmt: skip
        pushing = {f"tau[{k}]": direction.get(f"tau[{k}]", 0.0) - change[k] for k in self.free}
        found: Scalars = {}
        for name, column in self.outputs.items():
            found[name] = derivative(column, pushing)
            for k in range(len(column)):
                if (name, k) in self.passed:
                    found[name][k] = direction.get(f"{name}[{k}]", 0.0)
                elif name == "tau":
                    found[name][k] = found[name][k] + change[k]
        return found

    def slopes(self, weights: Scalars) -> Slopes:
        solved = [(x, k) for x, column in self.outputs.items() for k in range(len(column)) if (x, k) not in self.passed]
        inputs = [self.graph.input(f"tau[{k}]") for k in self.free]
        mu = gradient([self.outputs[x][k] for x, k in solved], [weights[x][k] for x, k in solved], inputs)
        rows = [weights["tau"][k] if ("tau", k) in solved else 0.0 for k in range(self.model.nv)]
        for k, x in zip(self.free, mu, strict=True):
            rows[k] = -x
        names = [x for x in self._names() if x.partition("[")[0] != "tau" and x not in self._solved()]
        own = gradient(self.tau, list(self.scratch.inputs("row", len(rows))), [self.scratch.input(x) for x in names])
        found: Slopes = dict(zip(names, self._inverse(own, {f"row[{k}]": x for k, x in enumerate(rows)}), strict=True))
        found |= {f"tau[{k}]": x for k, x in zip(self.free, mu, strict=True)}
        if self.ambient and "q" in self.wrt:
            q = [f"q[{k}]" for k in range(self.model.nq)]
            slopes = gradient([self.at[x] for x in q], [found[x] for x in q], [self.graph.input(x) for x in q])
            found |= dict(zip(q, slopes, strict=True))
        for x, k in self.passed:
            found[f"{x}[{k}]"] = found.get(f"{x}[{k}]", 0.0) + weights[x][k]
        return found

    def _names(self) -> list[str]:
        return [f"{name}[{k}]" for name in self.wrt for k in range(len(self.own.inputs[name]))]

    def _solved(self) -> set[str]:
        """Accelerations that are solved for."""
        return {f"qdd[{k}]" for k in self.free}

    def _inverse(self, scalars: Sequence, further: Slopes) -> list:
        """Scalars of ID's graph at this state."""
        return list(evaluate(np.array([*scalars, None], dtype=object)[:-1], self.at | further))


def _flat(columns: Mapping[str, Iterable]) -> list:
    return [x for column in columns.values() for x in column]
