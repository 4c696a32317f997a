"""Problems without a safe fixed pivot: programs with orthogonal columns, through every back end and derivative."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from nori.problems import load_cells

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.codegen.interpreter import numpy_functions
from sysdyn.frameworks import casadi
from sysdyn.offline.check import SampledStates
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.pivoted_lu import reference
from sysdyn.offline.sampling import is_singular, order_samples
from sysdyn.online.solver import Solver
from sysdyn.program.graph import is_constant
from sysdyn.program.opcodes import ADD, COPYSIGN, DIV, MUL, SQRT, SUB
from sysdyn.sparse.orderings import ORDERINGS
from sysdyn.sparse.rotations import Reflection, Rotation
from sysdyn.sparse.tearing import tearing_order

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import random_sensors

PROBLEM = load_cells(4)


@cache
def solver(backend: str = "llvm", outputs="all") -> Solver:
    return sd.compile(PROBLEM, ordering="tearing", backend=backend, outputs=outputs, on_singular="nan")


def rounded_otherwise(seed: int) -> dict[int, Callable]:
    """NumPy's operations with results that are changed by up to one unit in the last place, at random."""
    rng = np.random.default_rng(seed)

    def changed(function: Callable, *operands):
        exact = function(*operands)
        return np.nextafter(exact, exact + rng.choice([-1.0, 0.0, 1.0], np.shape(exact)) * np.abs(exact))

    counted = (ADD, SUB, MUL, DIV, SQRT)
    return {kind: partial(changed, f) if kind in counted else f for kind, f in numpy_functions().items()}


def regular_states(problem: sd.Problem, n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs by group at n regular states, half of them with joints at multiples of π/2."""
    model, rng = problem.model, np.random.default_rng(seed)
    q, qd, _ = model.random_state(seed=seed, batch=4 * n)
    quarters = rng.integers(0, 4, qd[::2].shape) * np.pi / 2
    q[::2] = model.integrate(np.broadcast_to(model.neutral(), q[::2].shape), quarters)
    inputs = {"q": q, "qd": qd}
    inputs |= {name: rng.standard_normal((4 * n, size)) for name, size in problem.input_sizes[2:]}
    good = np.flatnonzero(~is_singular(sd.assemble(problem), inputs))[:n]
    return {name: x[good] for name, x in inputs.items()}


def call(solver: Solver, inputs: dict[str, np.ndarray], **options) -> sd.Solution:
    known = {name: x for name, x in inputs.items() if name in solver.problem.known_quantities}
    y = {m.name: inputs[f"y:{m.name}"] for m in solver.problem.custom if f"y:{m.name}" in inputs}
    model = solver.model
    known = {name: x.reshape(-1, model.nb, 6) if name in ("fx", "a", "f") else x for name, x in known.items()}
    return solver(inputs["q"], inputs["qd"], **known, y=y or None, **options)


def test_the_program_rotates_rows_and_is_acceptable():
    found = solver()
    assert found.choice.rotated_with and set(found.program.kind.tolist()) >= {SQRT, COPYSIGN}
    assert found.flops.end_to_end.sqrt == len(found.choice.rotated_with)
    assert found.stability.acceptable and found.stability.good


@pytest.mark.parametrize("backend", ["llvm", "python"])
def test_back_ends_solve_one_state_and_batches(backend):
    inputs = regular_states(PROBLEM, 40)
    expected = reference(sd.assemble(PROBLEM), inputs).refined
    layout = sd.assemble(PROBLEM).layout
    found = call(solver(backend), inputs)
    assert found.ok.all() and found.backward_error().max() < 1e-11
    for k in range(3):  # one state at a time
        one = call(solver(backend), {name: x[k : k + 1] for name, x in inputs.items()})
        np.testing.assert_allclose(one.tau[0], found.tau[k], rtol=1e-9, atol=1e-9)
    tau = expected[:, layout.quantity_columns("tau")]
    np.testing.assert_allclose(found.tau, tau, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_casadi_and_c_have_the_same_operations(tmp_path):
    found = solver(outputs="tau")
    inputs = regular_states(PROBLEM, 3)
    groups = list(found.program.inputs)
    expected = call(found, inputs).tau
    function = casadi.function(found.program, "f")
    for k in range(3):
        tau = function(*(inputs[name][k] for name in groups)).full().ravel()
        np.testing.assert_allclose(tau, expected[k], rtol=1e-9, atol=1e-9)
    found.export_c(tmp_path / "c")
    text = "".join(path.read_text() for path in (tmp_path / "c").rglob("*.c"))
    assert "copysign(" in text and "sqrt(" in text


@pytest.mark.slow
def test_derivatives_through_rotated_rows():
    """By columns and by rows of D⁻¹, against differences."""
    found = solver(outputs=("tau", "qdd"))
    inputs = regular_states(PROBLEM, 6, seed=3)
    J = found.derivatives(wrt=("q", "fx"))
    known = {name: x.reshape(-1, PROBLEM.model.nb, 6) for name, x in inputs.items() if name in ("fx", "f")}
    values = J(inputs["q"], inputs["qd"], **known)
    step = 1e-6
    for column in range(PROBLEM.model.nv):
        high, low = (
            call(found, inputs | {"q": inputs["q"] + s * step * np.eye(PROBLEM.model.nv)[column]}) for s in (1.0, -1.0)
        )
        for name in ("tau", "qdd"):
            expected = (high[name] - low[name]) / (2.0 * step)
            size = 1.0 + np.abs(expected).max()
            np.testing.assert_allclose(values[name, "q"][..., column], expected, rtol=0.0, atol=2e-4 * size)


def test_rotations_and_reflections_are_both_used():
    system = sd.assemble(load_cells(8))
    sampled, kinds = order_samples(system, 48), set()
    for order in ORDERINGS["tearing"]:
        found = Elimination(system, *order(sampled))
        kinds |= {type(x) for x in found.factors.rotations.values()}
        assert found.check(SampledStates.of(system, 256)).report.acceptable
    assert kinds == {Rotation, Reflection}


@pytest.mark.slow(after=1)
@pytest.mark.filterwarnings("ignore::sysdyn.errors.AccuracyWarning")  # where pivoting loses digits, too
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 11, 120))])
def test_every_regular_problem_has_an_order_that_is_safe_by_structure(seed, monkeypatch):
    """No pivot was chosen by samples: each is constant, or what is left of a column, or of a row."""
    problem = random_sensors.random_problem(seed)
    system = sd.assemble(problem)
    sampled = order_samples(system, 8)
    found = Elimination(system, *tearing_order(sampled, certified=True))
    factors = found.factors
    assert all(
        is_constant(pivot) or not factors.lower[k] or not factors.upper[k] for k, pivot in enumerate(factors.pivots)
    )
    for rounding in (numpy_functions(), *(rounded_otherwise(k) for k in range(2))):
        with monkeypatch.context() as patched:
            patched.setattr(interpreter, "numpy_functions", lambda rounding=rounding: rounding)
            report = found.check(SampledStates.of(system)).report
        assert report.least_pivot == 1.0 and report.backward_error < 5e-8
    compiled = sd.compile(problem, ordering="tearing", backend="python", on_singular="nan")
    solution = call(compiled, regular_states(problem, 100, seed))
    assert solution.ok.all() and solution.backward_error().max() < 1e-10
