"""Products of the derivatives of a problem's solution f with vectors: J v, wᵀ J and the derivative of wᵀ J along v.

    program            forward and reverse mode through the program, for explicit ones such as inverse dynamics;
    inverse dynamics   for recursions that solve for q̈: the program is differentiated by τ only, which gives μ = H⁻¹ w,
                       and ID(q, q̇, q̈) by the other inputs at fixed q̈: wᵀ ∂q̈ = −μᵀ ∂ID, H ∂q̈ = ∂τ − ∂ID. Rows and
                       known accelerations of constraints are treated like ID and τ, their wrenches like q̈;
    factors            for eliminations: D ∂d = −(∂D d + ∂b) by one solve with the factors of D or Dᵀ, and forward or
                       reverse mode through the residual D d + b at fixed d.

Positions are differentiated in the tangent space, or by the entries of q.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from sysdyn.equations.system import System
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import tangents
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.offline import recursion
from sysdyn.offline.compile import ordered_system
from sysdyn.offline.derivatives import FixedSolution, affine
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import Options
from sysdyn.offline.report import Choice
from sysdyn.program.autodiff import (  # fmt: skip
    TANGENTS,
    PartialsByScalar,
    ProgramDerivatives,
    ScalarsByGroup,
    SymbolicProgram,
    TangentBasis,
    concatenated,
    derivative,
    gradient,
    to_graph,
    unit_directions,
)
from sysdyn.program.graph import SHARING, Graph, strip_sign
from sysdyn.program.program import Program
from sysdyn.recursions.generate import GeneratedDynamics
from sysdyn.sparse.lu import solve, solve_transposed


def product(
    kind: str, problem: Problem, choice: Choice, program: Program, options: Options, of: Sequence[str],
    wrt: Sequence[str], ambient: bool = False,
) -> tuple[Program, str]:  # fmt: skip
    """(product of vectors with the derivatives of the outputs `of` by the groups of inputs `wrt`, its method).

    The product's inputs are those of the program, then `cotangents:NAME` of outputs and `tangents:NAME` of inputs, as
    required by `kind`. Its outputs are `of` (jvp) or `wrt`. ambient: differentiate by the entries of q, where
    quaternions are normalised in the program; else in the tangent space.
    """
    directions: TangentBasis = unit_directions if ambient else partial(tangents, problem.model)
    derivatives = _derivatives(problem, choice, program, options, of, wrt, directions)
    program = derivatives.product(kind)
    parts = [part for _, part in problem.model.quaternions]
    return (_at_unit(program, parts) if ambient and parts else program), derivatives.method


def _derivatives(
    problem: Problem, choice: Choice, program: Program, options: Options, of: Sequence[str], wrt: Sequence[str],
    directions: TangentBasis,
) -> ProgramDerivatives:  # fmt: skip
    """The method (program, inverse dynamics or factors) for products of this problem."""
    if not choice.is_recursion:
        system = ordered_system(problem, options, choice)
        return _ByFactors(
            program, of, wrt, directions, system, Elimination(system, *choice.pivots, refined=choice.refined)
        )
    free, solved = recursion.torque_driven(problem), {"qdd", *([problem.wrenches.name] if problem.constraints else [])}
    # the residual of a tree lacks the derivatives through couplings
    if not free or problem.couplings or not {*of} <= {"tau", *solved}:
        return ProgramDerivatives(program, of, wrt, directions)
    if not solved <= set(program.outputs):
        options = replace(options, outputs=(*options.outputs, *sorted(solved - set(options.output_names))))
        program = recursion.compile_recursion(problem, recursion.generate_dynamics(problem, options), options)[1]
    return _ByInverseDynamics(problem, program, of, wrt, directions, free, recursion.generate_inverse(problem, options))


def _at_unit(program: Program, parts: Sequence[slice]) -> Program:
    """Extend the program of a Jacobian product from unit quaternions to all nonzero ones.

    It normalises the quaternions of q, and applies the chain rule of the normalisation to tangents and gradients by q.
    parts: the slice of each quaternion in q.
    """
    graph, sizes, tangents = Graph(SHARING), program.inputs.sizes, f"{TANGENTS}:q"
    q = graph.inputs("q", sizes["q"])
    normalised = list(normalise_quaternions(q, parts))
    substitutes = {"q": normalised}
    if tangents in sizes:
        direction = {f"q[{k}]": x for k, x in enumerate(graph.inputs(tangents, sizes[tangents]))}
        substitutes[tangents] = derivative(normalised, direction)
    symbolic = to_graph(program, graph, substitutes)
    if tangents not in sizes and "q" in symbolic.outputs:  # slopes
        symbolic.outputs["q"] = gradient(normalised, symbolic.outputs["q"], list(q))
    return symbolic.to_program({}, symbolic.outputs, program.ranges)


class _ByInverseDynamics(ProgramDerivatives):
    """Jacobian products by the method "inverse dynamics" (see the module).

    free: degrees of freedom with known τ; the others have known q̈. inverse: ID and ROWS as functions of q, q̇, q̈, w
    and fx.
    """

    method = "inverse dynamics"

    def __init__(
        self, problem: Problem, program: Program, of: Sequence[str], wrt: Sequence[str],
        directions: TangentBasis, free: frozenset[int], inverse: GeneratedDynamics,
    ):  # fmt: skip
        super().__init__(program, of, wrt, directions)
        self.nv = problem.model.nv
        self.scratch, self.residual = inverse.graph, inverse.scalars
        known = {"tau": free, "qdd": frozenset(range(self.nv)) - free}
        # outputs that are inputs
        self.identities = {(x, k) for x in of for k in known.get(x, ())}
        # {row of the residual: scalar input to which it is equal at the solution}; the other τ are outputs
        self.residual_inputs = {k: f"tau[{k}]" for k in sorted(free)}
        values = [f"{value_group(m.name)}[{k}]" for m in problem.constraints
                  for k in range(len(m.components(problem.model)))]  # fmt: skip
        self.residual_inputs |= dict(enumerate(values, start=self.nv))
        # solved accelerations and wrenches
        self.solved = {f"{name}[{k}]": x for name in ("qdd", problem.wrenches.name)
                       for k, x in enumerate(self.symbolic.outputs.get(name, ()))
                       if name != "qdd" or k in free}  # fmt: skip
        self.state |= {f"qdd[{k}]": x for k, x in enumerate(self.symbolic.outputs["qdd"])} | self.solved

    def rates(self, direction: PartialsByScalar) -> ScalarsByGroup:
        change, compensating = self._compensating(direction)
        rates: ScalarsByGroup = {}
        for name, column in self.outputs.items():
            rates[name] = derivative(column, compensating)
            for k in range(len(column)):
                if (name, k) in self.identities:
                    rates[name][k] = direction.get(f"{name}[{k}]", 0.0)
                elif name == "tau":
                    rates[name][k] = rates[name][k] + change[k]
        return rates

    def gradients(self, weights: ScalarsByGroup) -> PartialsByScalar:
        rows, names = self._rows(weights), self._fixed_solution_inputs()
        slopes = gradient(self.residual, self._row, [self.scratch.input(x) for x in names])
        slopes = self.evaluate_at_state(slopes, _numbered("row", rows))
        return self._with_inputs(dict(zip(names, slopes, strict=True)), rows, weights)

    def hessian_products(self, weights: ScalarsByGroup, direction: PartialsByScalar) -> ScalarsByGroup:
        """Derivatives of the gradients along `direction`, through z = (q̈, w) and the multipliers μ.

        With the residual R, K = ∂R/∂z and K^T μ = weights, two derivatives of the program by `residual_inputs` give

            K ∂z = −∂R at fixed z,    K^T ∂μ = −∂(K^T) μ.
        """
        rows, names = self._rows(weights), self._fixed_solution_inputs()
        all_slopes = gradient(self.residual, self._row, [self.scratch.input(x) for x in (*names, *self.solved)])
        slopes, by_solution = all_slopes[: len(names)], all_slopes[len(names) :]
        inner = self._inner_rates(direction)
        values = _numbered("row", rows) | {f"rate {x}": y for x, y in inner.items()}
        z, inputs = list(self.solved.values()), [self.graph.input(x) for x in self.residual_inputs.values()]
        solution_rates = dict(zip(self.solved, derivative(z, self._compensating(direction)[1]), strict=True))
        mu_rates = gradient(z, self.evaluate_at_state(derivative(by_solution, self._rate(inner)), values), inputs)
        solution_rates |= {f"row[{k}]": -x for k, x in zip(self.residual_inputs, mu_rates, strict=True)}
        rates = self.evaluate_at_state(derivative(slopes, self._rate(inner) | self._rate(solution_rates)),
                           values | {f"rate {x}": y for x, y in solution_rates.items()})  # fmt: skip
        gradients = dict(zip(names, rates, strict=True)) | dict(
            zip(self.residual_inputs.values(), mu_rates, strict=True)
        )
        changes = self.project(gradients)
        if any(not isinstance(rate, float) for x in concatenated(self.directions) for rate in x.values()):
            fixed = self._with_inputs(
                dict(zip(names, self.evaluate_at_state(slopes, values), strict=True)), rows, weights
            )
            for name, column in self.project(fixed, lambda rate: derivative([rate], direction)[0]).items():
                changes[name] = [x + y for x, y in zip(changes[name], column, strict=True)]
        return changes

    @cached_property
    def _row(self) -> list:
        """Symbolic weights of the rows of the residual, as inputs of the graph `scratch`."""
        return list(self.scratch.inputs("row", len(self.residual)))

    def _rows(self, weights: ScalarsByGroup) -> list:
        """Weights of the residual's rows such that its gradient at a fixed solution is that of the weighted outputs."""
        scalars = [(x, k) for x, column in self.outputs.items() for k in range(len(column))]
        solved = [x for x in scalars if x not in self.identities]
        inputs = [self.graph.input(x) for x in self.residual_inputs.values()]
        mu = gradient([self.outputs[x][k] for x, k in solved], [weights[x][k] for x, k in solved], inputs)
        rows = [weights["tau"][k] if ("tau", k) in solved else 0.0 for k in range(len(self.residual))]
        for k, x in zip(self.residual_inputs, mu, strict=True):
            rows[k] = -x
        return rows

    def _with_inputs(self, gradients: PartialsByScalar, rows: list, weights: ScalarsByGroup) -> PartialsByScalar:
        """Add the gradients by `residual_inputs`, and the weights of outputs that are inputs."""
        gradients |= {x: -rows[k] for k, x in self.residual_inputs.items()}
        for x, k in self.identities:
            gradients[f"{x}[{k}]"] = gradients.get(f"{x}[{k}]", 0.0) + weights[x][k]
        return gradients

    def _fixed_solution_inputs(self) -> list[str]:
        """Scalar inputs by which the residual is differentiated at a fixed solution."""
        outside = {*self.residual_inputs.values(), *(f"tau[{k}]" for k in range(self.nv)), *self.solved}
        return [x for x in self.scalar_names() if x not in outside]

    def _inner_rates(self, direction: PartialsByScalar) -> PartialsByScalar:
        """The part of `direction` in the inputs of the residual."""
        outside = {*self.residual_inputs.values(), *self.solved}
        return {x: y for x, y in direction.items() if not (x in outside or x.startswith("tau["))}

    def _rate(self, names: Iterable[str]) -> PartialsByScalar:
        return {x: self.scratch.input(f"rate {x}") for x in names}

    def _compensating(self, direction: PartialsByScalar) -> tuple[list, PartialsByScalar]:
        """(change of the residual at a fixed solution, rates of `residual_inputs` less that change)."""
        inner = self._inner_rates(direction)
        change = self.evaluate_at_state(derivative(self.residual, self._rate(inner)),
                            {f"rate {x}": y for x, y in inner.items()})  # fmt: skip
        return change, {x: direction.get(x, 0.0) - change[k] for k, x in self.residual_inputs.items()}


class _ByFactors(ProgramDerivatives):
    """Jacobian products by the method "factors" (see the module).

    outputs: {output: [{column: coefficient of that unknown} for each of its scalars]}, without constant terms.
    """

    method = "factors"

    def __init__(
        self, program: Program, of: Sequence[str], wrt: Sequence[str], directions: TangentBasis, system: System,
        elimination: Elimination,
    ):  # fmt: skip
        self.wrt, self.basis = wrt, directions
        self.graph, self.ranges, self.factors = elimination.graph, program.ranges, elimination.factors
        limits = {guard.label: guard for guard in program.guards}
        pivots = [(strip_sign(x), limits.get(elimination.label(k))) for k, x in enumerate(self.factors.pivots)]
        inputs = {name: list(x) for name, x in elimination.assembly.inputs}
        self.symbolic = SymbolicProgram(self.graph, inputs, {}, [(x, guard) for x, guard in pivots if guard])
        shown = elimination.assembly.outputs
        self.outputs = {x: shown[x].rows if x in shown else system.output_terms(x) for x in of}
        self.n = len(elimination.solution)
        fixed_solution = FixedSolution(system, elimination.assembly, elimination.solution)
        self.scratch, self.residual, self.state = fixed_solution.graph, fixed_solution.residual, fixed_solution.state
        self.fixed_outputs = {x: y for x, y in fixed_solution.outputs.items() if x in of}

    def rates(self, direction: PartialsByScalar) -> ScalarsByGroup:
        inner = {x: self.scratch.input(f"rate {x}") for x in direction}
        values = {f"rate {x}": y for x, y in direction.items()}
        fixed_rates = {x: self.evaluate_at_state(derivative(y, inner), values) for x, y in self.fixed_outputs.items()}
        change = solve(self.factors, self.evaluate_at_state(derivative(self.residual, inner), values))
        rates: ScalarsByGroup = {}
        for x, terms in self.outputs.items():
            rates[x] = fixed_rates.get(x, [0.0] * len(terms))
            for k, row in enumerate(terms):
                if not row and x not in self.fixed_outputs:  # a known output is an input
                    rates[x][k] = direction.get(f"{x}[{k}]", 0.0)
                rates[x][k] = affine(row, rates[x][k], change)
        return rates

    def gradients(self, weights: ScalarsByGroup) -> PartialsByScalar:
        right: list = [0.0] * self.n
        for x, terms in self.outputs.items():
            for row, weight in zip(terms, weights[x], strict=True):
                for c, entry in row.items():
                    right[c] = right[c] + entry * weight
        rows = solve_transposed(self.factors, right)
        values = {f"row[{k}]": -x for k, x in enumerate(rows)}
        outputs, inputs = list(self.residual), [self.scratch.input(x) for x in values]
        for x, column in self.fixed_outputs.items():
            scalars = {f"weight {x}[{k}]": y for k, y in enumerate(weights[x])}
            outputs, inputs = outputs + column, inputs + [self.scratch.input(y) for y in scalars]
            values |= scalars
        names = self.scalar_names()
        slopes = self.evaluate_at_state(gradient(outputs, inputs, [self.scratch.input(x) for x in names]), values)
        gradients = dict(zip(names, slopes, strict=True))
        for x, terms in self.outputs.items():
            for k, row in enumerate(terms):
                if not row and x not in self.fixed_outputs and f"{x}[{k}]" in gradients:
                    gradients[f"{x}[{k}]"] = gradients[f"{x}[{k}]"] + weights[x][k]
        return gradients


def _numbered(name: str, values: Iterable) -> PartialsByScalar:
    return {f"{name}[{k}]": x for k, x in enumerate(values)}
