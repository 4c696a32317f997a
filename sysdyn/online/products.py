"""Products of derivatives of solved quantities with vectors, compiled to machine code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.offline.choice import Choice
from sysdyn.offline.options import Options
from sysdyn.offline.products import product
from sysdyn.online.arguments import Arguments, Inputs, Named
from sysdyn.online.derivatives import Differentials, chosen_inputs
from sysdyn.problem import Problem
from sysdyn.program.autodiff import COTANGENTS, TANGENTS, vector_group
from sysdyn.program.groups import Group, select_names
from sysdyn.program.program import Program
from sysdyn.runtime.native_calls import fast_call


def compile_product(
    kind: str, problem: Problem, choice: Choice, program: Program, options: Options, of: str | Sequence[str] | None,
    wrt: str | Sequence[str] | None, made: Callable[..., DerivativeProduct] | None = None,
) -> DerivativeProduct:  # fmt: skip
    """The implementation of `Solver.jvp`, `vjp` and `hvp`. kind: one of these. made: the class of the result."""
    of = select_names("output", of, options.output_names, options.output_names)
    wrt, groups = chosen_inputs(problem, wrt)
    found = product(kind, problem, choice, program, options, of, [groups[name] for name in wrt])
    return (made or DerivativeProduct)(kind, problem, found.program, of, wrt, found.method, options)


class DerivativeProduct(Differentials):
    """Compiled product of the derivatives J = ∂(of)/∂(wrt) of solved quantities and measured outputs with vectors.

    kind: "jvp" (J v, by output), "vjp" (wᵀ J, by input), or "hvp" (the derivative of wᵀ J along v, by input).
    of, wrt: differentiated outputs, and inputs. method: "program" (forward and reverse mode through the program of the
        solver), "factors" (one more solution by the factors of its elimination) or "inverse dynamics" (through that at
        the solved accelerations), whichever takes the fewest operations.
    tangents, cotangents: groups of the vectors that a call takes, by name. shapes: of the results. flops: exact counts,
        the solution of the problem included. executable: the program on a back end.

    It can be called from many threads.
    """

    def __init__(
        self, kind: str, problem: Problem, program: Program, of: tuple[str, ...], wrt: tuple[str, ...], method: str,
        options: Options,
    ):  # fmt: skip
        self.kind = self._word = kind
        model = problem.model
        outputs = problem.outputs((*problem.quantities, *options.measured))
        _, groups = chosen_inputs(problem, wrt)
        inputs = {name: problem.inputs[groups[name]] for name in wrt}
        if "q" in wrt:
            inputs["q"] = Group("q", (model.nv,), tuple(model.dof_names))
        vectors: dict[str, dict[str, Group]] = {}
        if kind != "vjp":
            vectors[TANGENTS] = {
                x: vector_group(TANGENTS, x, f"{TANGENTS}:{groups[x]}", like) for x, like in inputs.items()
            }
        if kind != "jvp":
            vectors[COTANGENTS] = {x: vector_group(COTANGENTS, x, f"{COTANGENTS}:{x}", outputs[x]) for x in of}
        self.shapes = {x: outputs[x].shape for x in of} if kind == "jvp" else {x: inputs[x].shape for x in wrt}
        by_group = {x: x for x in of} if kind == "jvp" else {groups[x]: x for x in wrt}
        results = {group: (name, self.shapes[name]) for group, name in by_group.items()}
        self.tangents, self.cotangents = (vectors.get(role, {}) for role in (TANGENTS, COTANGENTS))
        taken = Inputs(problem, options.external_wrenches, vectors=vectors)
        super().__init__(problem, program, of, wrt, method, options, taken, results)

    @fast_call
    def __call__(
        self, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
        noise: Named | None = None, active: Named | None = None, parameters: Named | None = None,
        tangents: Named | ArrayLike | None = None, cotangents: Named | ArrayLike | None = None,
        on_singular: str = "raise", threads: int | None = None, **quantities: ArrayLike,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """{name: array}: arguments as of the solver, and the vectors by name; leading axes are batch axes.

        tangents: v, {input: (…, shape)}. cotangents: w, {output: (…, shape)}. A single one may go without its name.
        Vectors and results that belong to q are (…, nv), in the tangent space, as `Model.integrate` steps.
        on_singular: "raise" SingularState where the system is singular or a value is not finite, or "nan".

        Raises InvalidInput as the solver does.
        """
        given = Arguments(q, qd, known, quantities, y, noise, active, parameters, tangents, cotangents)
        return self._called(given, on_singular, threads)

    def __reduce__(self):
        return DerivativeProduct, (
            self.kind, self.problem, self.program, self.of, self.wrt, self.method, self._options,
        )  # fmt: skip
