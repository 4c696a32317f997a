"""Programs in 50 digits, beside the interpreter and beside identities."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from programs import random_inputs, random_program

import sysdyn as sd
from sysdyn.codegen import interpreter, precise
from sysdyn.program.groups import Groups
from sysdyn.program.opcodes import ANGULAR, COS, DIV, OPERATIONS, SIN
from sysdyn.program.program import Program
from sysdyn.runtime import native_calls


def test_every_operation_is_there():
    assert set(precise.FUNCTIONS) == {kind for kind, x in OPERATIONS.items() if x.executed}


@pytest.mark.parametrize("angle", [0.0, 1e-9, -0.3, math.pi / 2, -3.7, 1e4, 1e9])
def test_sines_and_cosines(angle):
    sine, cosine = (precise.FUNCTIONS[kind](Decimal(angle)) for kind in (SIN, COS))
    assert float(sine) == pytest.approx(math.sin(angle), rel=1e-15)
    assert float(cosine) == pytest.approx(math.cos(angle), rel=1e-15)
    with localcontext(precise.DIGITS):
        assert abs(sine * sine + cosine * cosine - 1) < Decimal("1e-48")
        twice = precise.FUNCTIONS[SIN](2 * Decimal(angle))
        assert abs(2 * sine * cosine - twice) < Decimal("1e-47")  # by other series, of another quarter


def distances(program: Program, inputs: dict[str, np.ndarray]) -> list[float]:
    """Of native results in twice the precision from 50 digits, relative to these; inputs (size,) by group."""
    found = precise.run_twice(program, inputs)
    with localcontext(precise.DIGITS):
        sums = [Decimal(x) + Decimal(y) for part in found.values() for x, y in zip(*part, strict=True)]
        pairs = zip(sums, precise.run(program, inputs), strict=True)
        return [float(abs((x - exact) / exact)) if exact else float(abs(x)) for x, exact in pairs]


def operation(kind: int) -> Program:
    """One operation of the quotients x₀/x₂ and x₁/x₀."""
    rhs = 4 if OPERATIONS[kind].arity == 2 else -1
    return Program(
        Groups.of_sizes([("x", 3)]), Groups.of_sizes([("y", 1)]), np.zeros(0),
        np.array([DIV, DIV, kind], dtype=np.int8),
        np.array([0, 1, 3], dtype=np.int32), np.array([2, 0, rhs], dtype=np.int32), np.array([5], dtype=np.int32),
        np.zeros(0, dtype=np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind, x in OPERATIONS.items() if x.executed])
def test_every_operation_has_twice_the_precision(kind):
    """Of operands that have it, too, as quotients do; sines and cosines as these allow."""
    program, rng = operation(kind), np.random.default_rng(kind)
    for size in (1e-9, 1.0, 3.0, 1e4, 3e9):
        x = np.array([*size * rng.uniform(0.1, 1.0, 2), 3.0])
        x[1] *= -1.0
        (off,) = distances(program, {"x": x})
        assert off < (1e-29 * max(1.0, size) if kind in ANGULAR else 1e-30), size


@pytest.mark.parametrize("seed", range(6))
def test_programs_have_twice_the_precision(seed):
    program = random_program(seed)
    given = random_inputs(program, 3, seed)
    for k in range(3):
        assert max(distances(program, {x: v[k] if v.ndim == 2 else v for x, v in given.items()})) < 1e-27


@pytest.mark.parametrize("kind", [None, *(kind for kind, x in OPERATIONS.items() if x.executed)])
def test_states_that_run_together_have_the_bits_of_each_by_itself(kind):
    """Fewer than run at a time, as many, and more; one that is zero or no number changes none of the others."""
    program = random_program(2) if kind is None else operation(kind)
    rows = np.random.default_rng(3).uniform(-4.0, 4.0, (21, program.n_inputs))
    rows[3], rows[11], rows[19] = 0.0, math.nan, 1e9
    alone = [native_calls.twice(program, row[None], program.output_values) for row in rows]
    for n in (1, 7, 8, 9, 21):
        found = native_calls.twice(program, rows[:n], program.output_values)
        for part in ("high", "low"):
            expected = np.concatenate([getattr(x, part) for x in alone[:n]])
            np.testing.assert_array_equal(getattr(found, part), expected)


def test_numbers_that_are_none_stay_none():
    program = random_program(1)
    given = {x: np.full(size, math.nan) for x, size in program.inputs.sizes.items()}
    rounded, found = interpreter.run_groups(program, given), precise.run_twice(program, given)
    assert all((np.isnan(x.high) == np.isnan(rounded[name][0])).all() for name, x in found.items())
    assert any(np.isnan(x.high).any() for x in found.values())


@pytest.mark.parametrize("joints", [("revolute", "prismatic"), ("spherical", "helical", "free")])
def test_programs_are_those_of_the_interpreter_but_for_rounding(joints):
    model = sd.random_tree(4, 3, joints)
    system = sd.forward_dynamics(model).system()
    q, qd, tau = model.random_state(seed=1)
    inputs = {name: np.zeros(size) for name, size in system.program.inputs.sizes.items()} | {
        "q": q,
        "qd": qd,
        "tau": tau,
    }
    rounded, found = interpreter.run_groups(system.program, inputs), precise.run_twice(system.program, inputs)
    for name, x in rounded.items():
        np.testing.assert_allclose(found[name].high, x[0], rtol=1e-10, atol=1e-12)
        assert (np.abs(found[name].low) <= 2.0**-53 * np.abs(found[name].high)).all()
    assert any(x.low.any() for x in found.values())
