"""Instructions of segments: isomorphic halves in two lanes, spilled values, checks of pivots."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run_kernel
from programs import assert_within, random_inputs, run_bounded

import sysdyn as sd
from sysdyn.codegen.instruction_order import hoist_trig
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.codegen.llvm.emitter import Emitter
from sysdyn.codegen.llvm.segments import BLOCK_LENGTH
from sysdyn.codegen.llvm.target import host_processor
from sysdyn.codegen.partition import Segment, partition
from sysdyn.codegen.slp import INSERT, LaneOperation, slp_vectorise
from sysdyn.program.graph import Graph, copysign, sin, sqrt
from sysdyn.program.opcodes import BAD_PIVOT, MUL, SIN, WEAK_PIVOT
from sysdyn.program.program import Program

each_width = pytest.mark.parametrize("width", [1, host_processor().lanes()])


def straight_program(seed: int, size: int = 300, guards: int = 0) -> Program:
    """Random operations without angles; later ones need early ones, too, so that registers run out."""
    rng = np.random.default_rng(seed)
    graph = Graph("none")
    x = graph.inputs("x", 12).tolist()
    values = list(x)
    for _ in range(size):
        a, b, c = values[-rng.integers(1, 12)], values[rng.integers(len(values))], float(rng.uniform(-1.0, 1.0))
        steps = (
            lambda a, b, c: a * 0.5 + b * c, lambda a, b, c: a * c - b * 0.25, lambda a, b, c: b * 0.5 - a * c,
            lambda a, b, c: a * a * 0.25 + b * 0.5, lambda a, b, c: c / (a * a + 1.5),
            lambda a, b, c: sqrt(a * a + 0.5), lambda a, b, c: -(a * c), lambda a, b, c: (a + a) * 0.25,
            lambda a, b, c: copysign(a * 0.5, b * c),
        )  # fmt: skip
        values.append(steps[rng.integers(len(steps))](a, b, c))
    values.append(values[-1] * values[-1] + values[-1])
    outputs = [v * 0.5 for v in values[12:]]
    watched = [(v, 0.01 + 0.001 * k, f"g{k}", 0.05) for k, v in enumerate(values[12 : 12 + guards])]
    return Program.from_graph(graph, [("x", x)], [("y", outputs)], watched)


@pytest.mark.slow(after=1)
@each_width
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_more_values_than_registers(width, seed):
    program = straight_program(seed)
    inputs = random_inputs(program, width + 1, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSDYN_CACHE", "")
        kernel = compile_kernel(program, width)
    expected, _ = run_bounded(program, inputs)
    found, status = run_kernel(kernel, program, inputs, width + 1)
    assert not status.any()
    assert_within(found["y"], expected["y"])


@each_width
def test_basic_blocks_are_short(width):
    """LLVM takes more than twice as long for a block of twice as many instructions."""
    program = straight_program(3, size=2000)
    text = Emitter(program, width, level=0).module()
    blocks = [block.count(" contract ") for block in re.split(r"^(?:\w+:|})$", text, flags=re.MULTILINE)]
    assert sum(blocks) > 4000 and max(blocks) <= 2 * BLOCK_LENGTH  # a product and its sum are one operation


@each_width
def test_each_pivot_is_checked(width):
    """In a register of one state or of many; NaN is both bad and weak."""
    program = straight_program(7, guards=4)
    n = 200
    inputs = random_inputs(program, n, 0)
    inputs["x"][3] = math.nan
    _, values = run_bounded(program, inputs)
    expected = np.zeros(n, dtype=int)
    with np.errstate(invalid="ignore"):
        for guard in program.guards:
            size = np.abs(values[guard.value].value)
            expected |= np.where(~(size >= guard.threshold), BAD_PIVOT | WEAK_PIVOT, 0)
            expected |= np.where(~(size >= guard.weak), WEAK_PIVOT, 0)
    _, status = run_kernel(compile_kernel(program, width), program, inputs, n)
    np.testing.assert_array_equal(status & (BAD_PIVOT | WEAK_PIVOT), expected)
    assert set(expected.tolist()) == {0, WEAK_PIVOT, BAD_PIVOT | WEAK_PIVOT}


@pytest.mark.parametrize("last", [*range(1, 21), 63, 64, 65, 150])
def test_the_last_of_any_number_of_pivots_is_checked(last):
    """Some are checked at a time."""
    graph = Graph("none")
    x = graph.inputs("x", last).tolist()
    squares = [v * v for v in x]
    guards = [(v, 0.5, f"g{k}", 0.75) for k, v in enumerate(squares)]
    program = Program.from_graph(graph, [("x", x)], [("y", squares)], guards)
    states = np.ones((3, last))
    states[1:, -1] = 0.8, 0.1
    _, status = run_kernel(compile_kernel(program, 1, 0), program, {"x": states}, 3)
    np.testing.assert_array_equal(status, [0, WEAK_PIVOT, BAD_PIVOT | WEAK_PIVOT])


# ---- halves --------------------------------------------------------------------------------------------------------


def limbs(seed: int, mirrored: bool, size: int = 60) -> Program:
    """The same random operations on two sets of inputs, with constants of their own, and sums of their results.

    mirrored: where the first has a sum the second has a difference, at random.
    """
    rng = np.random.default_rng(seed)
    graph = Graph("none")
    x = graph.inputs("x", 12).tolist()
    shape = [(int(rng.integers(7)), *rng.integers(0, 10**6, 2).tolist()) for _ in range(size)]
    ends, guards = [], []
    for limb in range(2):
        values = x[6 * limb : 6 * limb + 6]
        for k, (kind, i, j) in enumerate(shape):
            a, b, c = values[i % len(values)], values[-1 - j % 6], float(rng.uniform(0.2, 0.7))
            s = 1.0 if not (mirrored and limb) else float(rng.choice([1.0, -1.0]))
            b = b if s > 0.0 else -b
            values.append(
                (
                    a * c + b * 0.25,
                    a * 0.25 - b * c,
                    a * b * 0.5,
                    -(a * c),
                    sqrt(a * a + 0.5),
                    c / (a * a + 1.5),
                    copysign(a * 0.5, b),
                )[kind]
            )
            if k % 20 == 10:
                guards.append((values[-1], 0.01, f"g{limb},{k}", 0.05))
        ends.append(values[6:])
    trunk = [p * 0.5 + q * 0.5 for p, q in zip(*ends, strict=True)]
    outputs = [*ends[0][::3], *ends[1][::3], *trunk]
    return Program.from_graph(graph, [("x", x)], [("y", outputs)], guards)


def only_segment(program: Program) -> Segment:
    (segment,) = partition(program, 1, len(program)).segments
    return segment


def vectorised(segment: Segment) -> list[LaneOperation]:
    both = slp_vectorise(segment)
    assert both is not None
    return both[0]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("mirrored", [False, True])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_vectorised_limbs_give_the_same(mirrored, seed):
    program = limbs(seed, mirrored)
    inputs = random_inputs(program, 3, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYSDYN_CACHE", "")
        kernel = compile_kernel(program)
    expected, values = run_bounded(program, inputs)
    found, status = run_kernel(kernel, program, inputs, 3)
    assert_within(found["y"], expected["y"])
    weak = [(np.abs(values[g.value].value) < g.weak) for g in program.guards]
    np.testing.assert_array_equal(status & WEAK_PIVOT != 0, np.any(weak, axis=0))


def test_vectorised_limbs_save_instructions():
    program = limbs(3, mirrored=True, size=200)
    segment = only_segment(program)
    both = vectorised(segment)
    pairs = sum(operation.lanes == 2 and operation.kind != INSERT for operation in both)
    assert pairs > 0.35 * len(segment.template.kind) and len(both) < 0.75 * len(segment.template.kind)


def test_signs_make_mirrored_limbs_alike():
    """(a c − b) d for (a' c' + b') d': the products with constants take the sign, nothing is multiplied by −1."""
    graph = Graph("none")
    x = graph.inputs("x", 24).tolist()
    ends = []
    for limb in range(2):
        a = x[12 * limb : 12 * limb + 12]
        for k in range(11):
            term = a[k] * (0.3 + 0.01 * k + 0.1 * limb)
            a[k + 1] = (term + a[k + 1] if limb else term - a[k + 1]) * (0.5 - 0.02 * k)
        ends.append(a[11])
    program = Program.from_graph(graph, [("x", x)], [("y", ends)])
    kinds = Counter((operation.kind, operation.lanes) for operation in vectorised(only_segment(program)))
    assert kinds[MUL, 2] <= 22 + 2 and kinds[MUL, 1] == 0
    inputs = random_inputs(program, 4, 0)
    found, _ = run_kernel(compile_kernel(program), program, inputs, 4)
    expected, _ = run_bounded(program, inputs)
    assert_within(found["y"], expected["y"])


def test_a_chain_has_no_halves():
    """Operations that depend on one another are never in one register."""
    graph = Graph("none")
    x = graph.inputs("x", 40).tolist()
    total = x[0]
    for k, v in enumerate(x[1:]):
        total = (total * (0.3 + 0.01 * k) + v) * 0.5 + v * v
    program = Program.from_graph(graph, [("x", x)], [("y", [total])])
    both = slp_vectorise(only_segment(program))
    assert both is None or len(both[0]) > 0.7 * len(program)
    inputs = random_inputs(program, 3, 0)
    expected, _ = run_bounded(program, inputs)
    assert_within(run_kernel(compile_kernel(program), program, inputs, 3)[0]["y"], expected["y"])


def test_limbs_of_a_robot_are_vectorised():
    """Two limbs on a trunk with parameters of their own: nearly all of their operations are in pairs."""
    links = []
    for side, y in (("l", 0.1), ("r", -0.1)):
        for k in range(4):
            parent = "trunk" if k == 0 else f"{side}{k - 1}"
            axis = ("1 0 0", "0 1 0", "0 0 1")[k % 3]
            links.append(
                f"<joint name='j{side}{k}' type='revolute'><parent link='{parent}'/><child link='{side}{k}'/>"
                f"<origin xyz='0.02 {y} {-0.1 - 0.01 * k}' rpy='0.1 {2 * y} {y}'/><axis xyz='{axis}'/>"
                "<limit lower='-2' upper='2' effort='9' velocity='9'/></joint>"
                f"<link name='{side}{k}'><inertial><origin xyz='0.01 {y / 5} 0.05'/><mass value='{1 + y + k}'/>"
                f"<inertia ixx='0.02' ixy='{y / 50}' ixz='0.002' iyy='0.03' iyz='{-y / 90}' izz='0.025'/>"
                "</inertial></link>"
            )
    urdf = (
        "<robot name='twins'><link name='base'/><joint name='t' type='revolute'><parent link='base'/>"
        "<child link='trunk'/><origin xyz='0 0 1'/><axis xyz='0 0 1'/>"
        "<limit lower='-2' upper='2' effort='9' velocity='9'/></joint><link name='trunk'><inertial>"
        "<origin xyz='0 0.01 0.05'/><mass value='2'/>"
        "<inertia ixx='0.1' ixy='0' ixz='0.01' iyy='0.1' iyz='0' izz='0.1'/></inertial></link>"
        f"{''.join(links)}</robot>"
    )
    model = sd.load_urdf(urdf)
    solver = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], external_wrenches=False, level="fast")
    program = hoist_trig(solver.program)
    longest = max(partition(program, 1, len(program)).segments, key=lambda s: len(s.template.kind))
    assert len(vectorised(longest)) < 0.75 * len(longest.template.kind)
    q, qd, tau = model.random_state(seed=0, batch=5)
    for one in zip(q, qd, tau, strict=True):
        np.testing.assert_allclose(solver(*one).qdd, sd.aba(model, *one), rtol=1e-10)


def test_sines_are_not_vectorised():
    """Where they are among other operations, as they need these."""
    graph = Graph("none")
    x = graph.inputs("x", 2).tolist()
    ends = []
    for v in x:
        for k in range(30):
            v = v * (0.3 + 0.01 * k) + sin(v * 0.5)
        ends.append(v)
    program = Program.from_graph(graph, [("x", x)], [("y", ends)])
    both = vectorised(only_segment(program))
    assert {operation.lanes for operation in both if operation.kind == SIN} == {1}
    inputs = random_inputs(program, 3, 0)
    expected, _ = run_bounded(program, inputs)
    assert_within(run_kernel(compile_kernel(program), program, inputs, 3)[0]["y"], expected["y"])
