"""Derivatives as expressions against differences of dense solutions: every quantity by every input, in every form."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import scipy
from robots import floating_tree
from values import random_groups

import sysdyn as sd
from sysdyn.equations.formulation import KNOWN
from sysdyn.equations.system import System
from sysdyn.measurements.input_names import NOISE, SWITCH, group_of
from sysdyn.model.closures import Coupling
from sysdyn.model.joints import Free, Planar, Revolute, Spherical
from sysdyn.model.normal_form import canonical_frames, regroup
from sysdyn.model.se3 import X_motion
from sysdyn.offline.derivatives import SymbolicDerivatives, analytic, has_analytic, implicit
from sysdyn.offline.elimination import Elimination
from sysdyn.passes import PAPER
from sysdyn.program.autodiff import evaluate
from sysdyn.program.program import Program

STEP, TOLERANCE = 1e-5, 1e-7

# A joint with several degrees of freedom and one whose positions are not as many as those; branches; armature.
TREE = sd.random_tree(3, seed=4, joints=("spherical", "revolute", "prismatic"))
TREE = TREE.replace(armature=np.linspace(0.1, 0.4, TREE.nv))
ARM = sd.chain(2, seed=3)
SINGLE = sd.chain(1, seed=3)
# Two limbs of two joints on a third one.
LIMBS = sd.random_tree(5, seed=1, joints=("revolute",)).replace(parent=(-1, 0, 1, 0, 3))
# A trunk that carries a third limb at its middle, and one of so many joints that limbs know of it by a body's motion.
HANDS = sd.random_tree(7, seed=2, joints=("revolute",)).replace(parent=(-1, 0, 1, 1, 3, 0, 5))
TALL = sd.random_tree(11, seed=6, joints=("revolute",)).replace(parent=(-1, 0, 1, 2, 3, 4, 5, 6, 6, 8, 6))
# Legs and a tail on a floating trunk.
WALKER = floating_tree(6, 3, (-1, 0, 1, 2, 0, 0))
# Five joints on a trunk of seven, and on a floating one.
LONG = sd.random_tree(12, seed=1, joints=("revolute",)).replace(parent=(-1, 0, 1, 2, 3, 4, 5, 6, 6, 8, 9, 6))
CARRIER = floating_tree(7, 3, (-1, 0, 1, 2, 3, 1, 5))
FOUR = floating_tree(6, 3, (-1, 0, 1, 2, 1, 4))
# Three legs of two joints, and limbs of which some slide.
LEGS = floating_tree(7, 3, (-1, 0, 1, 0, 3, 0, 5))
PRISMATIC = sd.random_tree(6, seed=5, joints=("revolute", "prismatic"))
# A ball on a floating trunk, whose axes turn with it, and a limb of two joints.
SHOULDER = floating_tree(4, 3, (-1, 0, 0, 2))
SHOULDER = SHOULDER.replace(
    joints=(SHOULDER.joints[0], Spherical(), *SHOULDER.joints[2:]), armature=None, lower=None, upper=None,
    velocity_limit=None, effort_limit=None,
)  # fmt: skip
# Limbs on limbs on limbs, among two trees; and on a trunk that makes all motions, by none of its axes alone.
NEST = sd.random_tree(10, seed=1, joints=("revolute",)).replace(parent=(-1, 0, 1, 1, 2, 2, 0, 6, 6, -1))
SPREAD = sd.random_tree(10, seed=1, joints=("revolute",)).replace(parent=(-1, 0, 0, 1, 3, 4, 5, 6, 1, 8))
TWIG = sd.random_tree(8, seed=1, joints=("revolute",)).replace(parent=(-1, 0, 1, 1, 2, 2, 4, 4))
TWIG = TWIG.replace(
    joints=(Planar(), Spherical(), *TWIG.joints[2:]), armature=None, lower=None, upper=None, velocity_limit=None,
    effort_limit=None,
)  # fmt: skip
# A leg of three joints and a tail on a floating trunk; the axis of the hip is through the trunk's origin.
HIP = floating_tree(5, 3, (-1, 0, 1, 2, 0))
X_HIP = X_motion(np.eye(3), np.array([0.0, 0.3, 0.4]))
HIP = HIP.replace(
    joints=(HIP.joints[0], Revolute((0.0, 0.6, 0.8)), *HIP.joints[2:]), X_tree=[HIP.X_tree[0], X_HIP, *HIP.X_tree[2:]]
)
TIP = ARM.body_names[-1]
PLACE = np.eye(4) + np.pad([[0.1], [0.2], [0.3]], ((0, 1), (3, 0)))  # off the axis of its joint


class Oblique(Free):
    """A free joint by velocities u of another basis: [ω; v] = S u."""

    @property
    def S(self) -> np.ndarray:
        return np.eye(6) + np.diag([0.5, 0.0, -0.3], 3)

    def rates(self, q):
        return super().rates(q) @ self.S

    def integrate(self, q, v):
        return super().integrate(q, v @ self.S.T)


OBLIQUE = HIP.replace(joints=(Oblique(), *HIP.joints[1:]))


def partly() -> sd.Problem:
    """Two quantities known in part, and a sensor that is not linear in q̇."""
    rest = sd.inverse_dynamics(ARM) - sd.JointAcceleration([ARM.joint_names[1]])
    return rest + sd.Accelerometer((TIP, PLACE), components=["a_x"], name="imu")


def noisy() -> sd.Problem:
    torques = sd.Switchable(sd.JointTorque("all", noise=0.1), name="torques")
    accelerations = sd.Prior(sd.JointAcceleration("all", noise=0.5), name="accelerations")
    return sd.Problem(ARM, [sd.ExternalWrench("all", name="fx"), torques, accelerations])


def touching() -> sd.Problem:
    return sd.forward_dynamics(sd.chain(3, seed=3)) + sd.Contact("body2", ["a_z"], name="tip")


def contact(model: sd.Model, body: int, components: Sequence[str] = ("a_x",), **options) -> sd.Contact:
    place = np.eye(4) + np.pad([[0.1], [0.2], [0.3]], ((0, 1), (3, 0)))
    return sd.Contact((model.body_names[body], place), components, name=f"contact {body}", **options)


def coupled(model: sd.Model, joint: int, leader: int) -> sd.Model:
    names = model.joint_names
    return model.replace(closures=(Coupling(names[joint], names[leader], (0.1, -0.5, 0.3, 0.2)),))


# Constraints on none, some and all of the limbs, in axes that turn, between limbs, on joints, and with known q̈.
HELD = {
    "single": lambda: sd.forward_dynamics(SINGLE) + contact(SINGLE, 0),
    "tip": lambda: sd.forward_dynamics(LIMBS) + contact(LIMBS, 4),
    "root": lambda: sd.forward_dynamics(LIMBS) + contact(LIMBS, 0),
    "trunk": lambda: sd.forward_dynamics(HANDS) + contact(HANDS, 1, reference="world", stabilise=0.1),
    "both": lambda: sd.forward_dynamics(HANDS) + contact(HANDS, 2) + contact(HANDS, 6, ("a_y", "a_z")),
    "loop": lambda: sd.forward_dynamics(HANDS) + sd.LoopJoint("body4", ("body6", PLACE), ("a_x",), name="loop"),
    "coupled": lambda: sd.forward_dynamics(coupled(HANDS, 6, 3)) + contact(HANDS, 4),
    "foot": lambda: sd.forward_dynamics(WALKER) + contact(WALKER, 3, ("a_x", "a_z")),
    "held hybrid": lambda: (
        sd.hybrid_dynamics(HANDS, [x for k, x in enumerate(HANDS.joint_names) if k not in (1, 5)]) + contact(HANDS, 6)
    ),
    "tall": lambda: sd.forward_dynamics(TALL) + contact(TALL, 9),
    "tall trunk": lambda: sd.forward_dynamics(TALL) + contact(TALL, 3),
    "tall coupled": lambda: sd.forward_dynamics(coupled(TALL, 9, 10)),
    "nested": lambda: sd.forward_dynamics(NEST) + contact(NEST, 3),
}
PROBLEMS = {
    "inverse": lambda: sd.inverse_dynamics(TREE),
    "forward": lambda: sd.forward_dynamics(TREE),
    "hybrid": lambda: sd.hybrid_dynamics(TREE, TREE.joint_names[1:2]),
    "partly": partly,
    "noisy": noisy,
    "branches": lambda: sd.forward_dynamics(LIMBS),
    "touching": touching,
    "hands": lambda: sd.forward_dynamics(HANDS),
    "tall alone": lambda: sd.forward_dynamics(TALL),
    "shoulder": lambda: sd.forward_dynamics(SHOULDER),
    "carried": lambda: sd.hybrid_dynamics(SHOULDER, SHOULDER.joint_names[2:3]),
    "walking": lambda: sd.hybrid_dynamics(WALKER, [x for k, x in enumerate(WALKER.joint_names) if k != 2]),
    "nested alone": lambda: sd.forward_dynamics(NEST),
    "twig": lambda: sd.forward_dynamics(TWIG),
    "hip": lambda: sd.forward_dynamics(HIP),
    "oblique": lambda: sd.forward_dynamics(OBLIQUE),
} | HELD
# What each is asked for beside all quantities.
SENSORS = {
    "forward": lambda: sd.Accelerometer(TREE.body_names[-1], name="tip"),
    "partly": lambda: sd.ForceTorqueSensor(ARM.joint_names[0], name="foot"),
}


@functools.cache
def problem_of(case: str) -> sd.Problem:
    return PROBLEMS[case]()


@functools.cache
def state_of(case: str) -> dict[str, np.ndarray]:
    """Random inputs, covariances and switches as declared."""
    problem = problem_of(case)
    state = {name: x[0].ravel() for name, x in random_groups(problem, 1, seed=3).items()}
    return state | {name: problem.inputs[name].require_default() for name in state if name not in inputs_of(problem)}


def inputs_of(problem: sd.Problem) -> list[str]:
    """All but covariances and switches."""
    return [name for name in problem.inputs if group_of(name).role not in (NOISE, SWITCH)]


def values(system: System, of: Sequence[str], states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """(N, m) each quantity and measured output by dense solutions; known scalars are those handed in."""
    n = len(states["q"])
    entries, b = (np.broadcast_to(x, (n, x.shape[-1])) for x in system.values(states))
    d = np.array([np.linalg.solve(system.matrix(x).toarray(), -y) for x, y in zip(entries, b, strict=True)])
    full = np.zeros((n, system.layout.n))
    full[:, system.columns] = d
    found = {name: y for name, (y, _) in system.output_values(states, full).items()}
    for x in (x for x in of if x not in found):
        terms = system.output_terms(x)
        given = states.get(x, np.full((n, len(terms)), np.nan)).T
        scalars = [sum(s * d[:, c] for c, s in t.items()) if t else given[k] for k, t in enumerate(terms)]
        found[x] = np.stack(scalars, axis=1)
    return found


def differences(
    system: System, of: Sequence[str], wrt: Sequence[str], state: dict[str, np.ndarray]
) -> dict[tuple[str, str], np.ndarray]:
    """Central differences of `values`, those by positions in the tangent space."""
    model, found = system.model, {}
    for name in wrt:
        x, steps = state[name], STEP * np.eye(model.nv if name == "q" else len(state[name]))
        ends = [model.integrate(np.tile(x, (len(e), 1)), e) if name == "q" else x + e for e in (steps, -steps)]
        states = {group: np.tile(y, (2 * len(steps), 1)) for group, y in state.items()}
        for y, z in values(system, of, states | {name: np.concatenate(ends)}).items():
            found[y, name] = (z[: len(steps)] - z[len(steps) :]).T / (2 * STEP)
    return found


def named(found: SymbolicDerivatives, state: dict[str, np.ndarray]) -> dict[str, float]:
    """The single inputs at a state."""
    return {f"{group}[{k}]": float(state[group][k]) for group, x in found.inputs for k in range(len(x))}


def numbers(found: SymbolicDerivatives, state: dict[str, np.ndarray]) -> dict[tuple[str, str], np.ndarray]:
    """The blocks at a state."""
    return {key: np.array(evaluate(block, named(found, state)), dtype=float) for key, block in found.blocks.items()}


def compare(found: dict, expected: dict, tolerance: float = TOLERANCE) -> None:
    for key, value in expected.items():
        size = max(1.0, np.abs(value).max(initial=0.0))
        np.testing.assert_allclose(found[key], value, rtol=0, atol=tolerance * size, err_msg=str(key))


def eliminated(system, state: dict[str, np.ndarray]) -> Elimination:
    """With the pivots of a sparse factorisation at a state."""
    entries, _ = system.values(state)
    factors = scipy.sparse.linalg.splu(system.matrix(np.ravel(entries)).tocsc(), diag_pivot_thresh=0.1)
    rows, columns = (np.argsort(x).tolist() for x in (factors.perm_r, factors.perm_c))
    return Elimination(system, rows, columns)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("case", ["inverse", "forward", "hybrid", "partly", "noisy", "touching"])
@pytest.mark.parametrize(("known", "passes"), [*zip(KNOWN, (PAPER, "all"), strict=True),
                                               *zip(KNOWN, ("all", PAPER), strict=True)])  # fmt: skip
def test_implicit_derivatives_of_everything_by_everything(case, known, passes):
    """By columns and by rows: known quantities too, which are themselves, and measured outputs."""
    problem, state = problem_of(case), state_of(case)
    shown = [SENSORS[case]()] if case in SENSORS else []
    of, wrt = (*problem.quantities, *(m.name for m in shown)), inputs_of(problem)
    system = sd.assemble(problem, known=known, passes=passes, outputs=(*problem.quantities, *shown))
    elimination, expected = eliminated(system, state), differences(system, of, wrt, state)
    for transposed in (False, True):
        found = implicit(elimination, (), of, wrt, transposed)
        assert found.method == ("implicit, transposed" if transposed else "implicit")
        assert found.blocks.keys() == expected.keys()
        compare(numbers(found, state), expected)


def test_few_scalars_by_many_inputs_are_cheaper_transposed():
    """One solution of D^T for each scalar wanted, or one of D for each that is differentiated by."""
    problem, state = problem_of("forward"), state_of("forward")
    system = sd.assemble(problem, outputs=("a", SENSORS["forward"]()))

    def operations(of: str, wrt: str, transposed: bool) -> int:
        return implicit(eliminated(system, state), (), (of,), (wrt,), transposed).operations

    assert operations("tip", "fx", True) < operations("tip", "fx", False)  # 3 by 18
    assert operations("a", "tau", False) < operations("a", "tau", True)  # 18 by 5


def test_operations_are_those_of_a_program_of_all_blocks():
    found = analytic(sd.hybrid_dynamics(TREE, TREE.joint_names[1:2]), ("tau", "qdd"), ("q", "qd", "qdd"))
    blocks = [(f"{x} by {name}", list(block.flat)) for (x, name), block in found.blocks.items()]
    assert found.operations == Program.from_graph(found.graph, found.inputs, blocks).flops.total


def test_derivatives_cost_the_same_wherever_frames_are():
    """Those by all but fx, of a robot whose axes and links are along no axes of the frames that it was given in."""
    model = sd.random_tree(4, seed=2, joints=("revolute",))
    counts = []
    for moved in (model, regroup(canonical_frames(model)[0])):
        found = analytic(sd.forward_dynamics(moved), ("qdd",), ("q", "qd"), external_wrenches=False)
        counts.append(found.operations)
    assert counts[0] == counts[1]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("external", [True, False], ids=["fx", "no fx"])
@pytest.mark.parametrize(
    "case",
    ["inverse", "forward", "hybrid", "branches", "hands", "tall alone", "shoulder", "carried", "walking",
     "nested alone", "twig", "hip", "oblique"],
)  # fmt: skip
def test_analytic_derivatives_by_all_inputs(case, external):
    """τ and q̈ by all inputs, among them those of themselves; frames and parameters are moved if not by fx."""
    problem, of = problem_of(case), ("tau", "qdd")
    state = state_of(case) | ({} if external else {"fx": np.zeros(6 * problem.model.nb)})
    expected = differences(sd.assemble(problem, outputs=of), of, inputs_of(problem), state)
    without = [x for x in inputs_of(problem) if x != "fx"]
    for wrt in (inputs_of(problem), without) if external else (without,):
        found = analytic(problem, of, wrt, external)
        assert found.blocks.keys() == set(itertools.product(of, wrt))
        assert len(found.qdd) == problem.model.nv and not found.w
        compare(numbers(found, state), {key: expected[key] for key in found.blocks})


def test_analytic_derivatives_are_those_of_recursions_by_their_inputs():
    """Not of other outputs, by parameters, or where no recursion solves; of wrenches if there are any."""
    forward, touched = problem_of("forward"), problem_of("tip")
    assert has_analytic(forward, ("qdd", "tau"), ("q", "tau"))
    assert has_analytic(touched, ("w",), ("q", "y:contact 4"))
    for problem, of, wrt in (
        (forward, ("a",), ("q",)), (forward, ("qdd",), ("q", "gravity")), (forward, ("w",), ("q",)),
        (problem_of("partly"), ("qdd",), ("q",)),
    ):  # fmt: skip
        assert not has_analytic(problem, of, wrt)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", HELD)
def test_analytic_derivatives_with_constraints(case):
    """τ, q̈ and w by all inputs, the accelerations that constraints hold among them."""
    problem, state, of = problem_of(case), state_of(case), ("tau", "qdd", "w")
    nv, rows = problem.model.nv, sum(len(m.components(problem.model)) for m in problem.constraints)
    assert has_analytic(problem, of, inputs_of(problem))
    expected = differences(sd.assemble(problem, outputs=of), of, inputs_of(problem), state)
    without = [x for x in inputs_of(problem) if x != "fx"]
    for wrt in (inputs_of(problem), without):
        found = analytic(problem, of, wrt)
        assert sorted(k for _, k in found.pivots)[-rows:] == [*range(nv, nv + rows)]  # by which they are named
        assert len(found.w) == rows
        assert found.blocks.keys() == set(itertools.product(of, wrt))
        result = numbers(found, state)
        compare(result, {key: expected[key] for key in found.blocks})
        np.testing.assert_array_equal(result["qdd", "tau"], result["qdd", "tau"].T)  # to the last bit


def test_constraints_on_robots_without_external_wrenches():
    """As with such that are zero."""
    problem, of = problem_of("tip"), ("tau", "qdd", "w")
    state = state_of("tip") | {"fx": np.zeros(6 * problem.model.nb)}
    wrt = [x for x in inputs_of(problem) if x != "fx"]
    found, expected = (numbers(analytic(problem, of, wrt, external), state) for external in (False, True))
    compare(found, expected, 1e-12)


@pytest.mark.parametrize(
    ("model", "most"),
    [(sd.chain(7, seed=3), 6_706), (LIMBS, 2_748), (LONG, 17_429), (CARRIER, 10_351), (WALKER, 7_129), (HIP, 5_941)],
)
def test_operations_of_derivatives_of_forward_dynamics(model, most):
    """Limbs of fixed and floating bases; a floating base takes accelerations that all bodies have in common."""
    problem, wrt = sd.forward_dynamics(model), ["q", "qd", "tau"]
    found = analytic(problem, ["qdd"], wrt, False)
    assert found.operations <= most
    q, qd, tau = model.random_state(seed=2)
    rates = sd.rnea_derivatives(model, q, qd, sd.aba(model, q, qd, tau))
    expected = {"q": rates.dtau_dq, "qd": rates.dtau_dqd, "tau": -np.eye(model.nv)}
    state = {"q": q, "qd": qd, "tau": tau, "fx": np.zeros(6 * model.nb)}
    compare(numbers(found, state), {("qdd", x): -np.linalg.solve(rates.H, y) for x, y in expected.items()}, 1e-9)
