"""Programs in double-double arithmetic against 50 decimal digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from programs import random_inputs, random_program

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.codegen.double_double import perturb_one_ulp, run_double_double
from sysdyn.program.groups import Groups
from sysdyn.program.opcodes import ANGULAR, COS, DIV, OPERATIONS, SIN
from sysdyn.program.program import Program
from sysdyn.runtime import native_calls

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import decimals

EXECUTED = [kind for kind, x in OPERATIONS.items() if x.executed]


@pytest.mark.parametrize("angle", [0.0, 1e-9, -0.3, math.pi / 2, -3.7, 1e4, 1e9])
def test_the_decimal_reference_has_correct_sines(angle):
    sine, cosine = (decimals.FUNCTIONS[kind](Decimal(angle)) for kind in (SIN, COS))
    assert float(sine) == pytest.approx(math.sin(angle), rel=1e-15)
    assert float(cosine) == pytest.approx(math.cos(angle), rel=1e-15)
    with localcontext(decimals.DIGITS):
        assert abs(sine * sine + cosine * cosine - 1) < Decimal("1e-48")
        double = decimals.FUNCTIONS[SIN](2 * Decimal(angle))
        assert abs(2 * sine * cosine - double) < Decimal("1e-47")  # by other series, of another quarter


def relative_errors(program: Program, inputs: dict[str, np.ndarray]) -> list[float]:
    """Of double-double results at one state."""
    results = run_double_double(program, inputs)
    with localcontext(decimals.DIGITS):
        sums = [Decimal(x) + Decimal(y) for part in results.values() for x, y in zip(*part, strict=True)]
        pairs = zip(sums, decimals.run(program, inputs), strict=True)
        return [float(abs((x - exact) / exact)) if exact else float(abs(x)) for x, exact in pairs]


def operation(kind: int) -> Program:
    """One operation of the quotients x₀/x₂ and x₁/x₀."""
    rhs = 4 if OPERATIONS[kind].arity == 2 else -1
    return Program(
        Groups.of_sizes([("x", 3)]), Groups.of_sizes([("y", 1)]), np.zeros(0),
        np.array([DIV, DIV, kind], dtype=np.int8), np.array([0, 1, 3], dtype=np.int32),
        np.array([2, 0, rhs], dtype=np.int32), np.array([5], dtype=np.int32), np.zeros(0, dtype=np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("kind", EXECUTED)
def test_every_operation_has_thirty_digits(kind):
    """Also of operands with low parts; sines and cosines as far as the angle has digits."""
    program, rng = operation(kind), np.random.default_rng(kind)
    for size in (1e-9, 1.0, 3.0, 1e4, 3e9):
        x = np.array([*size * rng.uniform(0.1, 1.0, 2), 3.0])
        x[1] *= -1.0
        (error,) = relative_errors(program, {"x": x})
        assert error < (1e-29 * max(1.0, size) if kind in ANGULAR else 1e-30), size


@pytest.mark.parametrize("seed", range(6))
def test_programs_have_27_digits_and_keep_nan(seed):
    program = random_program(seed)
    inputs = random_inputs(program, 3, seed)
    for k in range(3):
        state = {x: v[k] if v.ndim == 2 else v for x, v in inputs.items()}
        assert max(relative_errors(program, state)) < 1e-27
    nan = {x: np.full(size, math.nan) for x, size in program.inputs.sizes.items()}
    expected = interpreter.run_groups(program, nan)
    for name, x in run_double_double(program, nan).items():
        np.testing.assert_array_equal(np.isnan(x.high), np.isnan(expected[name][0]))


@pytest.mark.parametrize("kind", [None, *EXECUTED])
def test_lanes_do_not_change_bits(kind):
    """Batches of fewer states than lanes, as many, and more; zero or NaN in one lane changes no other."""
    program = random_program(2) if kind is None else operation(kind)
    rows = np.random.default_rng(3).uniform(-4.0, 4.0, (21, program.n_inputs))
    rows[3], rows[11], rows[19] = 0.0, math.nan, 1e9
    alone = [native_calls.twice(program, row[None], program.output_values) for row in rows]
    for n in (1, 7, 8, 9, 21):
        together = native_calls.twice(program, rows[:n], program.output_values)
        for part in ("high", "low"):
            expected = np.concatenate([getattr(x, part) for x in alone[:n]])
            np.testing.assert_array_equal(getattr(together, part), expected)


def test_perturbed_constants_are_one_ulp_away_unless_they_are_integers():
    constants = np.array([0.0, 0.1, -2.0, 0.1, 1e300, 1e-12])
    np.testing.assert_array_equal(np.abs(perturb_one_ulp(constants) - constants) / np.spacing(constants),
                                  [0.0, 1.0, 0.0, 1.0, 0.0, 1.0])  # fmt: skip


def test_double_double_agrees_with_the_interpreter_on_a_robot():
    model = sd.random_tree(4, 3, ("spherical", "helical", "free"))
    system = sd.assemble(sd.forward_dynamics(model))
    q, qd, tau = model.random_state(seed=1)
    inputs = {x: np.zeros(size) for x, size in system.program.inputs.sizes.items()} | {"q": q, "qd": qd, "tau": tau}
    expected, results = interpreter.run_groups(system.program, inputs), run_double_double(system.program, inputs)
    for name, x in expected.items():
        np.testing.assert_allclose(results[name].high, x[0], rtol=1e-10, atol=1e-12)
        assert (np.abs(results[name].low) <= 2.0**-53 * np.abs(results[name].high)).all()
