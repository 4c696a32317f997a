"""Quantities that a row of the table adds: all calls, files and messages have them from there."""

import subprocess
import sys

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.data.columns import LogColumns
from sysdyn.model.quantities import (
    FORCE,
    QUANTITIES,
    QUANTITY,
    JointQuantity,
    KnownQuantities,
    SolvedQuantities,
    SpatialQuantity,
)
from sysdyn.online.robot_functions import ROBOT_FUNCTIONS, RobotFunction

GEAR = 3.0
ROWS = (
    JointQuantity(
        "drive", "motor torque", r"$\tau^m$", "torques of the motors, before their gears", FORCE, zero=True,
        equation_terms=lambda model, i: {"tau": GEAR * np.eye(model.joints[i].nv)},
    ),
    SpatialQuantity(
        "push", "push", "$f^p$", "wrenches of the surroundings on the bodies", FORCE,
        equation_terms=lambda model, i: {"f": np.eye(6)},
    ),
)  # fmt: skip


def compiled(problem: sd.Problem, **options) -> sd.Solver:
    return sd.compile(problem, **{"level": "fast", "backend": "python", **options})


@pytest.fixture(autouse=True)
def _rows(monkeypatch):
    for row in ROWS:
        monkeypatch.setitem(QUANTITY, row.name, row)


@pytest.fixture
def arm():
    return sd.random_tree(5, seed=3)


def _values(model, row, batch=()):
    return np.random.default_rng(1).standard_normal((*batch, *row.shape(model)))


def _equivalent(row, x):
    """(quantity of every problem, values) that act as values x of a further one do."""
    return ("tau", GEAR * x) if row.name == "drive" else ("fx", x)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("row", ROWS, ids=lambda x: x.name)
@pytest.mark.parametrize("options", [{}, {"formulation": "paper"}, {"layout": "net_force"}, {"known": "substituted"}],
                         ids=str)  # fmt: skip
def test_solver_takes_it_by_name(row, options, arm):
    q, qd, tau = arm.random_state(seed=0, batch=4)
    x = _values(arm, row)  # broadcast against the batch
    found = compiled(sd.forward_dynamics(arm) + sd.Known(row.name), **options)(q, qd, tau=tau, **{row.name: x})
    name, same = _equivalent(row, x)
    usual = {"tau": tau, "fx": np.zeros((arm.nb, 6))}
    usual[name] = usual[name] + same
    expected = compiled(sd.forward_dynamics(arm))(q, qd, **usual)
    np.testing.assert_allclose(found.qdd, expected.qdd, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(getattr(found, row.name), np.broadcast_to(x, (4, *row.shape(arm))))
    assert found.backward_error().max() < 1e-12


@pytest.mark.parametrize("row", ROWS, ids=lambda x: x.name)
def test_a_known_motion_gives_its_sensors(row, arm):
    """A further quantity as the only unknown beside those that follow: what another problem made of it comes back."""
    q, qd, qdd = arm.random_state(seed=0, batch=3)
    x = _values(arm, row, (3,))
    whole = sd.forward_dynamics(arm) + sd.Known(row.name)
    y = sd.predict(whole, q, qd, qdd, **{row.name: x})
    np.testing.assert_array_equal(y[row.name], x.reshape(3, -1))
    np.testing.assert_allclose(compiled(whole)(q, qd, y=y).qdd, qdd, rtol=1e-9, atol=1e-9)


def test_messages_name_it(arm):
    q, qd, tau = arm.random_state(seed=0)
    solver = compiled(sd.forward_dynamics(arm) + sd.Known("drive") + sd.Known("push"))
    with pytest.raises(sd.InvalidInput, match="no value was given for 'push': pass push="):
        solver(q, qd, tau=tau)
    with pytest.raises(sd.InvalidInput, match=rf"push has shape \(3,\), but \(…, {arm.nb}, 6\) is needed"):
        solver(q, qd, tau=tau, push=np.zeros(3))
    with pytest.raises(sd.InvalidInput, match=r"drive is nan at entry 1: every input must be finite"):
        solver(q, qd, tau=tau, push=np.zeros((arm.nb, 6)), drive=np.where(np.arange(arm.nv) == 1, np.nan, 0.0))
    with pytest.raises(sd.UnknownName, match="drives.*Did you mean 'drive'"):
        solver(q, qd, tau=tau, drives=np.zeros(arm.nv))
    with pytest.raises(sd.UnknownName, match="'brake'.*drive, push"):
        sd.Known("brake")
    with pytest.raises(sd.UnknownName, match="predict.*'drives'"):
        sd.predict(solver.problem, q, qd, qd, drives=np.zeros(arm.nv))
    assert not solver(q, qd, tau=tau, push=np.zeros((arm.nb, 6))).drive.any()  # zero if it is not handed in


def test_problems_without_it_are_as_before(arm):
    assert sd.forward_dynamics(arm).quantities == QUANTITIES
    assert compiled(sd.forward_dynamics(arm)).outputs == QUANTITIES
    with pytest.raises(sd.UnknownName, match="quantity in the rows of 'gauge'.*'drive'"):
        sd.compile(sd.forward_dynamics(arm), outputs=["qdd", _gauge(arm)])


def _gauge(model, noise=None):
    parts = [range(model.nv)[model.v_slice(i)] for i in range(model.nb)]
    blocks = {("drive", x): np.eye(model.nv)[:, part] for x, part in zip(model.joint_names, parts, strict=True) if part}
    return sd.Linear(blocks, name="gauge", noise=noise)


@pytest.mark.slow
def test_estimates_have_its_standard_deviation():
    model = sd.chain(3, seed=1)
    problem = sd.forward_dynamics(model) + sd.Known("drive", noise=0.5) + _gauge(model, noise=0.5)
    q, qd, tau = model.random_state(seed=0)
    found = compiled(problem)(q, qd, tau=tau, y={"drive": np.ones(3), "gauge": np.zeros(3)})
    np.testing.assert_allclose(found.drive, 0.5)
    np.testing.assert_allclose(found.std("drive"), np.sqrt(0.125))
    H = sd.crba(model, q)
    np.testing.assert_allclose(found.covariance("qdd"), 0.125 * GEAR**2 * np.linalg.inv(H @ H), rtol=1e-6)


def test_derivatives_by_it(arm):
    q, qd, tau = arm.random_state(seed=0)
    solver = compiled(sd.forward_dynamics(arm) + sd.Known("drive"), outputs="qdd")
    J = solver.derivatives(wrt=("tau", "drive"))(q, qd, tau=tau)
    np.testing.assert_allclose(J["qdd", "drive"], GEAR * J["qdd", "tau"], rtol=1e-10)
    assert "drive" not in solver.derivatives().wrt  # zero by default, as fx


@pytest.mark.slow
def test_labels_tables_and_logs(arm):
    pandas = pytest.importorskip("pandas")
    problem = sd.forward_dynamics(arm) + sd.Known("drive") + sd.Known("push", name="shove")
    columns = LogColumns(problem)
    labels = [x.replace("tau:", "drive:") for x in problem.inputs["tau"].labels]
    q, qd, tau = arm.random_state(seed=0, batch=3)
    x, w = _values(arm, ROWS[0], (3,)), _values(arm, ROWS[1], (3,))
    solver = compiled(problem)
    found = solver(q, qd, tau=tau, drive=x, push=w)
    frame = found.to_pandas()
    np.testing.assert_array_equal(frame[labels], x)
    assert frame.attrs["units"][f"push:{arm.body_names[0]}.nx"] == "N m"
    np.testing.assert_array_equal(found["drive", arm.joint_names[2]], x[:, arm.v_slice(2)])
    assert ("drive", "(3, 7)") in [row[:2] for row in found.tables()[0].rows] and "motors" in problem._repr_html_()
    named = {c.name: c.unit for c in columns.columns}
    assert named[f"drive: drive({arm.joint_names[0]})"] in ("N m", "N")
    data = pandas.DataFrame(
        np.hstack([np.arange(3)[:, None], q, qd, tau, x, w.reshape(3, -1)]),
        columns=["t", *problem.inputs["q"].labels, *problem.inputs["qd"].labels, *problem.inputs["tau"].labels,
                 *labels, *ROWS[1].labels(arm)],
    )  # fmt: skip
    (chunk,) = sd.Log(data, problem)
    np.testing.assert_array_equal(chunk.y["drive"], x)
    np.testing.assert_array_equal(chunk.y["shove"], w.reshape(3, -1))


@pytest.mark.slow
def test_files_and_exports(arm, tmp_path):
    problem = sd.forward_dynamics(arm) + sd.Known("drive") + sd.Known("push", "all", ("fx", "fy", "fz"), name="forces")
    problem += sd.Known("push", "all", ("nx", "ny", "nz"), name="moments")
    solver = compiled(problem)
    again = sd.load_solver(solver.save(tmp_path / "a.solver"))
    q, qd, tau = arm.random_state(seed=0)
    given = {"tau": tau, "drive": _values(arm, ROWS[0]), "push": _values(arm, ROWS[1])}
    np.testing.assert_array_equal(again(q, qd, **given).qdd, solver(q, qd, **given).qdd)
    header = (solver.export_c(tmp_path / "c", "driven") / "driven.h").read_text()
    assert f"double drive[{arm.nv}]" in header and f"double push[{6 * arm.nb}]" in header
    assert "torques of the motors, before their gears" in header and "push:body0.nx" in header
    code = f"import sysdyn as sd; sd.load_solver({str(tmp_path / 'a.solver')!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "unknown quantity of a Known: 'drive'" in other.stderr


def test_files_of_problems_state_it(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('robot = "chain:3"\nproblem = "forward"\n[[measurement]]\ntype = "Known"\nquantity = "drive"\n'
                    'name = "motors"\nexcept = "joint1"\n[[measurement]]\ntype = "Known"\nquantity = "drive"\n'
                    'targets = "joint1"\nname = "other"\nvalue = 2.0\n')  # fmt: skip
    task = load_job(path)
    assert task.problem.knows("drive") == {(0, 0), (1, 0), (2, 0)}
    assert [m.name for m in task.problem.raw] == ["tau", "fx", "motors", "other"]


def test_what_is_missing_is_named_with_its_remedy(arm):
    problem = sd.forward_dynamics(arm) + sd.Known("drive", tuple(x for x in arm.joint_names if x != "joint1"))
    found = sd.diagnose(problem)
    last = arm.joint_names[1]
    assert found.missing == 1
    assert f"drive({last})" in str(found.directions[0])
    assert f"Known('drive', {last!r})" in str(sd.diagnose(problem, [sd.Known("drive")]))


def test_its_load_decides_the_program(arm, monkeypatch):
    """Programs are not taken from the cache if the row says something else."""
    q, qd, tau = arm.random_state(seed=0)
    x = _values(arm, ROWS[0])
    before = compiled(sd.forward_dynamics(arm) + sd.Known("drive"))(q, qd, tau=tau, drive=x).qdd
    other = JointQuantity(
        "drive", "", "", "", FORCE, zero=True, equation_terms=lambda model, i: {"tau": np.eye(model.joints[i].nv)}
    )
    monkeypatch.setitem(QUANTITY, "drive", other)
    after = compiled(sd.forward_dynamics(arm) + sd.Known("drive"))(q, qd, tau=tau, drive=GEAR * x).qdd
    np.testing.assert_allclose(after, before, rtol=1e-9)
    wrong = JointQuantity("drive", "", "", "", FORCE, equation_terms=lambda model, i: {"tau": np.eye(2)})
    monkeypatch.setitem(QUANTITY, "drive", wrong)
    with pytest.raises(sd.InvalidInput, match=r"'drive'.*\(2, 2\)"):
        sd.compile(sd.forward_dynamics(arm) + sd.Known("drive"))


def test_usual_quantities_are_stated_by_name_too():
    model = sd.chain(2)
    assert sd.Known("tau", "joint0").pairs(model) == sd.JointTorque("joint0").pairs(model)
    assert sd.Known("tau") != sd.Known("qdd", name="tau")


def test_type_checkers_know_the_table():
    assert tuple(KnownQuantities.__annotations__) == QUANTITIES
    assert tuple(SolvedQuantities.__annotations__) == (*QUANTITIES, "w")


def test_pictures_of_its_matrix_and_least_norms(arm):
    matrix_plot = pytest.importorskip("sysdyn.app.matrix_plot")
    solver = sd.compile(sd.forward_dynamics(arm) + sd.Known("drive"), formulation="paper")
    assert "further" in set(matrix_plot.pattern(solver).kind)
    texts = [text.get_text() for text in matrix_plot.plot_matrix(solver).legends[0].get_texts()]
    assert "further quantity" in texts and "further" in solver._repr_html_()
    q, qd, qdd = arm.random_state(seed=0)
    free = sd.inverse_dynamics(arm) + sd.JointTorque("all") + sd.Known("drive", "joint0")
    tau = sd.rnea(arm, q, qd, qdd)
    found = sd.least_norm(free - sd.ExternalWrench("all"), q, qd, qdd=qdd, tau=tau, drive=np.zeros(arm.nv))
    np.testing.assert_allclose(found.drive, 0.0, atol=1e-9)
    assert set(sd.least_norm(free - sd.ExternalWrench("body1"), q, qd, qdd=qdd, tau=tau, drive=np.zeros(arm.nv),
                             weights={"fx": 1.0}).determined) >= {"drive"}  # fmt: skip


def test_functions_of_the_state_take_it(arm, tmp_path, monkeypatch):
    """By keyword, checked and described by its row."""
    power = RobotFunction("power [W]", ("q", "qd", "drive"), (), lambda model, q, qd, drive: GEAR * (qd @ drive))
    monkeypatch.setitem(ROBOT_FUNCTIONS, "power", power)
    function = sd.kinematics(arm, "power")
    q, qd, _ = arm.random_state(seed=0, batch=4)
    x = _values(arm, ROWS[0])
    np.testing.assert_allclose(function(q, qd, drive=x), GEAR * (qd @ x))
    with pytest.raises(sd.InvalidInput, match=r"drive has shape \(2,\)"):
        function(q, qd, drive=np.zeros(2))
    with pytest.raises(sd.InvalidInput, match="no value was given for 'drive'"):
        function(q, qd)
    header = (function.export_c(tmp_path, "power") / "power.h").read_text()
    assert "torques of the motors, before their gears [N, N m]" in header and "drive[0] drive:joint0" in header
