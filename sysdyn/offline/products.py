"""Products of the derivatives of a problem's solution f with vectors: J v, wᵀ J and the derivative of wᵀ J along v.

    program            forward and reverse mode through the program, where it solves for nothing: inverse dynamics;
    inverse dynamics   recursions that solve for q̈: through the program by τ alone, which gives μ = H⁻¹ w, and by all
                       else through ID(q, q̇, q̈) at the solved q̈, which is fixed: wᵀ ∂q̈ = −μᵀ ∂ID, H ∂q̈ = ∂τ − ∂ID. With
                       constraints their rows and given accelerations are treated as ID and τ, their wrenches as q̈;
    factors            eliminations: D ∂d = −(∂D d + ∂b) with one solution by the factors of D or Dᵀ, and forward or
                       reverse mode through the residual D d + b at the solved d, which is fixed.

Positions are differentiated in the tangent space, or by the numbers that arrays hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

from sysdyn.equations.system import System
from sysdyn.measurements.groups import value_group
from sysdyn.model.quantities import tangents
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.offline import recursion
from sysdyn.offline.choice import Choice
from sysdyn.offline.derivatives import affine
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.formulations import ordered_system
from sysdyn.offline.options import Options
from sysdyn.problem import Problem
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


class Product(NamedTuple):
    """The program of a product, and the way that it goes."""

    method: str
    program: Program


def product(
    kind: str, problem: Problem, choice: Choice, program: Program, options: Options, of: Sequence[str],
    wrt: Sequence[str], ambient: bool = False,
) -> Product:  # fmt: skip
    """A product of the derivatives of the outputs `of` by the groups of inputs `wrt`.

    Its groups of inputs are those of the program, then `cotangents:NAME` of outputs and `tangents:NAME` of inputs as
    the kind needs. Its groups of outputs are `of` (jvp), or `wrt`. ambient: positions are differentiated by their
    numbers, which are q / |q| for quaternions q that are handed in; else in the tangent space of unit quaternions.
    """
    directions: TangentBasis = unit_directions if ambient else partial(tangents, problem.model)
    derivatives = _derivatives(problem, choice, program, options, of, wrt, directions)
    found = Product(derivatives.method, derivatives.product(kind))
    parts = [part for _, part in problem.model.quaternions]
    return found._replace(program=_at_unit(found.program, parts)) if ambient and parts else found


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
    free, solved = recursion.applies(problem), {"qdd", *([problem.wrenches.name] if problem.constraints else [])}
    # the residual of a tree lacks the derivatives through couplings
    if not free or problem.couplings or not {*of} <= {"tau", *solved}:
        return ProgramDerivatives(program, of, wrt, directions)
    if not solved <= set(program.outputs):
        options = replace(options, outputs=(*options.outputs, *sorted(solved - set(options.output_names))))
        program = recursion.build(problem, recursion.write(problem, options), options)[1]
    return _ByInverseDynamics(problem, program, of, wrt, directions, free, recursion.inverse(problem, options))


def _at_unit(program: Program, parts: Sequence[slice]) -> Program:
    """A product by the numbers of q at unit quaternions, as one by the quaternions that it makes these of."""
    graph, sizes, tangents = Graph(SHARING), program.inputs.sizes, f"{TANGENTS}:q"
    q = graph.inputs("q", sizes["q"])
    normalised = list(normalise_quaternions(q, parts))
    given = {"q": normalised}
    if tangents in sizes:
        direction = {f"q[{k}]": x for k, x in enumerate(graph.inputs(tangents, sizes[tangents]))}
        given[tangents] = derivative(normalised, direction)
    own = to_graph(program, graph, given)
    if tangents not in sizes and "q" in own.outputs:  # slopes
        own.outputs["q"] = gradient(normalised, own.outputs["q"], list(q))
    return own.to_program({}, own.outputs, program.ranges)


class _ByInverseDynamics(ProgramDerivatives):
    """Through ID at the solved q̈, and the rows of constraints, and through the program by what these give alone.

    free: degrees of freedom of known τ; q̈ is known of the others. inverse: ID and ROWS, with q, q̇, q̈, w and fx as its
    inputs.
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
        self.passed = {(x, k) for x in of for k in known.get(x, ())}
        # single inputs that the residual gives, by its places; the others of τ are results
        self.given = {k: f"tau[{k}]" for k in sorted(free)}
        values = [f"{value_group(m.name)}[{k}]" for m in problem.constraints
                  for k in range(len(m.components(problem.model)))]  # fmt: skip
        self.given |= dict(enumerate(values, start=self.nv))
        # accelerations and wrenches that are solved for
        self.solved = {f"{name}[{k}]": x for name in ("qdd", problem.wrenches.name)
                       for k, x in enumerate(self.symbolic.outputs.get(name, ()))
                       if name != "qdd" or k in free}  # fmt: skip
        self.state |= {f"qdd[{k}]": x for k, x in enumerate(self.symbolic.outputs["qdd"])} | self.solved

    def rates(self, direction: PartialsByScalar) -> ScalarsByGroup:
        change, pushing = self._pushing(direction)
        found: ScalarsByGroup = {}
        for name, column in self.outputs.items():
            found[name] = derivative(column, pushing)
            for k in range(len(column)):
                if (name, k) in self.passed:
                    found[name][k] = direction.get(f"{name}[{k}]", 0.0)
                elif name == "tau":
                    found[name][k] = found[name][k] + change[k]
        return found

    def gradients(self, weights: ScalarsByGroup) -> PartialsByScalar:
        rows, names = self._rows(weights), self._held()
        own = gradient(self.residual, self._row, [self.scratch.input(x) for x in names])
        own = self.evaluate_at_state(own, _numbered("row", rows))
        return self._with_given(dict(zip(names, own, strict=True)), rows, weights)

    def hessian_products(self, weights: ScalarsByGroup, direction: PartialsByScalar) -> ScalarsByGroup:
        """Changes of z = (q̈, w) and μ, with K = ∂R/∂z of the residual R and K^T μ = w.

            K ∂z = −∂R at z held fixed,    K^T ∂μ = −∂(K^T) μ,

        by two more solutions of the program's, none of which is differentiated again.
        """
        rows, names = self._rows(weights), self._held()
        own = gradient(self.residual, self._row, [self.scratch.input(x) for x in (*names, *self.solved)])
        slopes, through = own[: len(names)], own[len(names) :]
        inside = self._inside(direction)
        given = _numbered("row", rows) | {f"rate {x}": y for x, y in inside.items()}
        z, inputs = list(self.solved.values()), [self.graph.input(x) for x in self.given.values()]
        moved = dict(zip(self.solved, derivative(z, self._pushing(direction)[1]), strict=True))
        turned = gradient(z, self.evaluate_at_state(derivative(through, self._rate(inside)), given), inputs)
        moved |= {f"row[{k}]": -x for k, x in zip(self.given, turned, strict=True)}
        rates = self.evaluate_at_state(derivative(slopes, self._rate(inside) | self._rate(moved)),
                           given | {f"rate {x}": y for x, y in moved.items()})  # fmt: skip
        found = dict(zip(names, rates, strict=True)) | dict(zip(self.given.values(), turned, strict=True))
        changes = self.project(found)
        if any(not isinstance(rate, float) for x in concatenated(self.directions) for rate in x.values()):
            held = self._with_given(dict(zip(names, self.evaluate_at_state(slopes, given), strict=True)), rows, weights)
            for name, column in self.project(held, lambda rate: derivative([rate], direction)[0]).items():
                changes[name] = [x + y for x, y in zip(changes[name], column, strict=True)]
        return changes

    @cached_property
    def _row(self) -> list:
        """Weights of the rows of the residual."""
        return list(self.scratch.inputs("row", len(self.residual)))

    def _rows(self, weights: ScalarsByGroup) -> list:
        """Weights of the residual's rows, by which its slopes at the solution held fixed are the outputs'."""
        solved = [(x, k) for x, column in self.outputs.items() for k in range(len(column)) if (x, k) not in self.passed]
        inputs = [self.graph.input(x) for x in self.given.values()]
        mu = gradient([self.outputs[x][k] for x, k in solved], [weights[x][k] for x, k in solved], inputs)
        rows = [weights["tau"][k] if ("tau", k) in solved else 0.0 for k in range(len(self.residual))]
        for k, x in zip(self.given, mu, strict=True):
            rows[k] = -x
        return rows

    def _with_given(self, found: PartialsByScalar, rows: list, weights: ScalarsByGroup) -> PartialsByScalar:
        """These slopes and those by what the residual gives, with the weights of outputs that are inputs."""
        found |= {x: -rows[k] for k, x in self.given.items()}
        for x, k in self.passed:
            found[f"{x}[{k}]"] = found.get(f"{x}[{k}]", 0.0) + weights[x][k]
        return found

    def _held(self) -> list[str]:
        """The single inputs that are differentiated by at the solution held fixed."""
        outside = {*self.given.values(), *(f"tau[{k}]" for k in range(self.nv)), *self.solved}
        return [x for x in self.scalar_names() if x not in outside]

    def _inside(self, direction: PartialsByScalar) -> PartialsByScalar:
        """Rates of the inputs of the residual."""
        outside = {*self.given.values(), *self.solved}
        return {x: y for x, y in direction.items() if not (x in outside or x.startswith("tau["))}

    def _rate(self, names: Iterable[str]) -> PartialsByScalar:
        return {x: self.scratch.input(f"rate {x}") for x in names}

    def _pushing(self, direction: PartialsByScalar) -> tuple[list, PartialsByScalar]:
        """(the change of the residual at the solution held fixed, the rates of what it gives that make up for it)."""
        inside = self._inside(direction)
        change = self.evaluate_at_state(derivative(self.residual, self._rate(inside)),
                            {f"rate {x}": y for x, y in inside.items()})  # fmt: skip
        return change, {x: direction.get(x, 0.0) - change[k] for k, x in self.given.items()}


class _ByFactors(ProgramDerivatives):
    """By the factors of an elimination, and the residual of its system at the solution d.

    outputs: the coefficients of d in each scalar.
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
        self.state = {f"{name}[{k}]": x for name, column in inputs.items() for k, x in enumerate(column)}
        self.state |= {f"d[{k}]": x for k, x in enumerate(elimination.solution)}
        self.scratch = Graph("structural")
        written = system.build(self.scratch)
        d = self.scratch.inputs("d", self.n)
        self.residual = [affine(row, b, d) for row, b in zip(written.rows, written.b, strict=True)]
        # outputs Y d + b_Y with d held
        self.held = {x: [affine(*row, d) for row in zip(y.rows, y.b, strict=True)]
                     for x, y in written.outputs.items() if x in of}  # fmt: skip

    def rates(self, direction: PartialsByScalar) -> ScalarsByGroup:
        inside = {x: self.scratch.input(f"rate {x}") for x in direction}
        given = {f"rate {x}": y for x, y in direction.items()}
        own = {x: self.evaluate_at_state(derivative(y, inside), given) for x, y in self.held.items()}
        change = solve(self.factors, self.evaluate_at_state(derivative(self.residual, inside), given))
        found: ScalarsByGroup = {}
        for x, terms in self.outputs.items():
            found[x] = own.get(x, [0.0] * len(terms))
            for k, row in enumerate(terms):
                if not row and x not in self.held:  # known ones are inputs
                    found[x][k] = direction.get(f"{x}[{k}]", 0.0)
                found[x][k] = affine(row, found[x][k], change)
        return found

    def gradients(self, weights: ScalarsByGroup) -> PartialsByScalar:
        ends: list = [0.0] * self.n
        for x, terms in self.outputs.items():
            for row, weight in zip(terms, weights[x], strict=True):
                for c, entry in row.items():
                    ends[c] = ends[c] + entry * weight
        rows = solve_transposed(self.factors, ends)
        values = {f"row[{k}]": -x for k, x in enumerate(rows)}
        outputs, given = list(self.residual), [self.scratch.input(x) for x in values]
        for x, held in self.held.items():
            own = {f"weight {x}[{k}]": y for k, y in enumerate(weights[x])}
            outputs, given, values = outputs + held, given + [self.scratch.input(y) for y in own], values | own
        names = self.scalar_names()
        slopes = self.evaluate_at_state(gradient(outputs, given, [self.scratch.input(x) for x in names]), values)
        found = dict(zip(names, slopes, strict=True))
        for x, terms in self.outputs.items():
            for k, row in enumerate(terms):
                if not row and x not in self.held and f"{x}[{k}]" in found:
                    found[f"{x}[{k}]"] = found[f"{x}[{k}]"] + weights[x][k]
        return found


def _numbered(name: str, values: Iterable) -> PartialsByScalar:
    return {f"{name}[{k}]": x for k, x in enumerate(values)}
