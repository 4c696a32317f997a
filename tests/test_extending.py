"""docs/extending.md: its blocks run as they stand, and what they add to the tables works as it says."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.codegen.registry import BACKENDS
from sysdyn.model import READERS
from sysdyn.model.joints import JOINTS
from sysdyn.model.quantities import QUANTITY
from sysdyn.online.robot_functions import ROBOT_FUNCTIONS
from sysdyn.program.opcodes import OPERATIONS
from sysdyn.sparse.orderings import ORDERINGS

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
TABLES = (JOINTS, READERS, sd.Measurement.kinds, ORDERINGS, BACKENDS, OPERATIONS, QUANTITY, ROBOT_FUNCTIONS)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Names of the blocks, run in turn at the level "fast", by the interpreter unless they name another back end; the
    tables are as before afterwards.
    """
    before = [dict(table) for table in TABLES]
    found: dict = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("extending"))
        patch.setenv("SYSDYN_CACHE", "")
        patch.setattr(sd, "compile", functools.partial(sd.compile, level="fast", backend="python"))
        patch.setattr("builtins.print", lambda *values: None)
        for number, code in enumerate(blocks(), start=1):
            exec(compile(code, f"{PAGE.name}, block {number}", "exec"), found)
        yield found
    for table, was in zip(TABLES, before, strict=True):
        table.clear()
        table.update(was)


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_a_reader(names):
    """A double pendulum: its torques at rest are those of gravity."""
    arm = names["two_links"]
    tau = sd.rnea(arm, np.array([np.pi / 2, 0.0]), np.zeros(2), np.zeros(2))
    assert np.abs(tau) == pytest.approx([9.81 * (2.0 * 0.1 + 1.0 * 0.4), 9.81 * 1.0 * 0.1])


@pytest.mark.slow
def test_a_joint(names):
    model = names["model"]
    assert {joint.kind for joint in model.joints} == {"translational", "revolute"}
    q, qd, qdd = model.random_state(seed=7, batch=6)
    tau = sd.rnea(model, q, qd, qdd)
    for outputs in ("all", "qdd"):  # an elimination and a recursion
        found = sd.compile(sd.forward_dynamics(model), outputs=outputs, level="fast")(q, qd, tau).qdd
        np.testing.assert_allclose(found, qdd, rtol=0, atol=1e-9 * np.abs(qdd).max())
    again = sd.Problem.from_dict(sd.inverse_dynamics(model).to_dict()).model
    np.testing.assert_allclose(sd.rnea(again, q, qd, qdd), tau, rtol=0, atol=1e-12 * np.abs(tau).max())


@pytest.mark.slow
def test_a_sensor(names):
    arm, solver = names["arm"], names["solver"]
    q, qd, qdd = arm.random_state(seed=8, batch=5)
    tau = sd.rnea(arm, q, qd, qdd)
    y = {**sd.predict(names["belted"], q, qd, qdd), "belt": (tau[:, 1] - tau[:, 0])[:, None] / 0.05}
    solution = solver(q, qd, y=y)
    np.testing.assert_allclose(solution.tau, tau, rtol=0, atol=1e-9 * np.abs(tau).max())
    np.testing.assert_allclose(solution.qdd, qdd, rtol=0, atol=1e-8 * np.abs(qdd).max())


def test_an_order(names):
    ordered, arm = names["ordered"], names["arm"]
    assert ordered.ordering == "short_columns" and ordered.stability.acceptable
    q, qd, tau = arm.random_state(seed=9, batch=5)
    np.testing.assert_allclose(ordered(q, qd, tau).qdd, sd.aba(arm, q, qd, tau), rtol=1e-8)


def test_a_back_end(names):
    """It gives what the interpreter gives, with fewer rounding errors; singular states are told."""
    extended, arm = names["extended"], names["arm"]
    q, qd, tau = arm.random_state(seed=10, batch=7)
    plain = sd.compile(sd.forward_dynamics(arm), backend="python", level="fast")
    np.testing.assert_allclose(extended(q, qd, tau).f, plain(q, qd, tau).f, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(extended(q[0], qd[0], tau[0]).qdd, sd.aba(arm, q[0], qd[0], tau[0]), rtol=1e-9)
    J = extended.derivatives(of="qdd", wrt="tau")(q, qd, tau)["qdd", "tau"]
    np.testing.assert_allclose(J @ np.stack([sd.crba(arm, x) for x in q]), np.tile(np.eye(4), (7, 1, 1)), atol=1e-9)
    with pytest.raises(sd.ProblemError, match="machine code"):
        extended.bind(q[0], qd[0], tau[0])


def test_an_operation(names):
    """On both back ends, for one state and for many."""
    x = np.array([[-3.0, 4.0], [3.0, 4.0], [0.5, -1.2]])
    for backend in ("llvm", "python"):
        reflect = sd.compile_function(names["reflected"], {"x": (2,)}, backend=backend)
        np.testing.assert_allclose(reflect(x), [5.0, -5.0, -1.3], rtol=1e-15)
    assert names["reflect"](x[0]) == 5.0


def test_a_quantity(names):
    """What motors bring replaces a hundredth of the torque, and goes into files and headers by its name."""
    arm, driven = names["arm"], names["driven"]
    q, qd, qdd = arm.random_state(seed=11, batch=5)
    drive = np.random.default_rng(0).standard_normal(4)
    tau = sd.rnea(arm, q, qd, qdd) - 100.0 * drive
    found = driven(q, qd, qdd=qdd, tau=tau, drive=drive)
    np.testing.assert_allclose(found.qdd, qdd, rtol=0, atol=1e-9 * np.abs(qdd).max())
    np.testing.assert_allclose(found.tau, tau, rtol=0, atol=1e-9 * np.abs(tau).max())
    assert driven.problem.inputs["drive"].labels == tuple(f"drive:{x}" for x in arm.joint_names)


def test_a_measurement_as_output(names):
    arm = names["arm"]
    q, qd, qdd = arm.random_state(seed=12, batch=4)
    tau = sd.rnea(arm, q, qd, qdd)
    found = names["tension"](q, qd, tau)["belt"]
    np.testing.assert_allclose(found[:, 0], (tau[:, 1] - tau[:, 0]) / 0.05, rtol=1e-9)


def test_an_output(names):
    arm, reach = names["arm"], names["reach"]
    q, _, _ = arm.random_state(seed=11, batch=4)
    np.testing.assert_allclose(reach(q), [np.linalg.norm(sd.frame_pose(arm, x, "body3")[:3, 3]) for x in q], rtol=1e-12)


def test_contributors_are_sent_to_files_that_exist():
    root = Path(__file__).parents[1]
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| [^|]+ \| (.*) \|$", text, re.MULTILINE)[1:]
    named = [name for line in tables for name in re.findall(r"`(\w+(?:/\w+)*(?:\.py)?)`", line) if name.islower()]
    assert len(named) >= 8 and all((root / "sysdyn" / name).exists() for name in named)
    for link in re.findall(r"\]\(([^)]+)\)", text + (root / "SECURITY.md").read_text(encoding="utf-8")):
        assert (root / link).exists(), link


def test_everything_with_a_program_is_exportable(names):
    """By a translator that nobody but the page knows."""
    arm = sd.chain(2)
    solver = sd.compile(sd.forward_dynamics(arm), outputs=["qdd"], level="fast")
    function = sd.compile_function(lambda x: 2.0 * x, {"x": (3,)})
    for made in (solver, solver.derivatives(), function, sd.kinematics(arm, ["mass_matrix"])):
        source = made.exported_program("name")
        lines = names["assembly_text"](source).splitlines()
        assert lines[0] == "; name" and len(lines) == 1 + len(source.executable.program)
        states = source.states()
        sizes = source.executable.program.inputs.sizes
        assert {group: states[group].shape[-1] for group in sizes} == sizes
