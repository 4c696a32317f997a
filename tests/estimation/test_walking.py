"""A quadruped that trots in MuJoCo, which shares no code with the estimates, from its raw log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "trajectories"))
    import figures
    import logs

pytestmark = pytest.mark.slow


def rows(exact: bool, spoilt: bool, seed: int = 0, instants: int = 300) -> dict[str, dict[str, float]]:
    log, table = logs.quadruped(instants, seed=seed), figures.Table()
    given = figures.spoiled(log, seed) if spoilt else logs.with_contacts(log)
    bias = sd.Constant(3.0 * figures.OFFSET) if spoilt else None
    figures.walk_rows(table, "walk", log, given, logs.quadruped_problem(log, torque_bias=bias), exact)
    figured = ("rms", "nees", "within 2 sigma")
    return {
        row["what"].removeprefix("walk: "): {name: float(row[name]) for name in figured if row[name] != ""}
        for row in table.rows
    }


@pytest.mark.parametrize("exact", [False, True], ids=["kinematic", "exact"])
def test_a_trot(exact):
    found = rows(exact, spoilt=False)
    assert found["base velocity"]["rms"] < 0.008
    assert found["base velocity"]["within 2 sigma"] > 85.0  # feet that roll, slip and ring are declared to
    # the bias of the accelerometer is told from tilt by the torques, in so short a log
    assert found["tilt"]["rms"] < 0.005
    assert max(found[f"foot force {x}"]["rms"] for x in "xyz") < 6.0
    assert found["torques"]["rms"] < logs.NOISE["torques"]
    assert min(found[x]["within 2 sigma"] for x in ("tilt", "foot forces", "torques")) > 90.0


@pytest.mark.filterwarnings("ignore:more than 1%:sysdyn.errors.LogWarning")  # 1 % of the torques are outliers
@pytest.mark.parametrize("exact", [False, True], ids=["kinematic", "exact"])
def test_late_contacts_outliers_and_biases(exact):
    found = rows(exact, spoilt=True)
    assert found["base velocity"]["rms"] < 0.008
    # legs in the air tell the biases of their torques, and late touch-downs contradict that they are in the air
    assert max(found[f"foot force {x}"]["rms"] for x in "xyz") < 5.0
    assert found["torques"]["rms"] < 0.4 and found["tilt"]["rms"] < 0.005
    # tilts whose errors last for the whole log are no white noise of the torques
    assert min(found[x]["within 2 sigma"] for x in ("tilt", "foot forces", "torques")) > 85.0


def test_outliers_of_torques_are_named():
    log = logs.quadruped(200, seed=1)
    given = logs.with_contacts(log)
    given = {**given, "torques": given["torques"].copy(), "no motor": np.zeros((200, 6))}
    wrong = [(40, 2), (90, 7), (150, 11)]
    for row, joint in wrong:
        given["torques"][row, joint] += 20.0
    run = sd.smooth(logs.quadruped_problem(log), given, ["tau"], coupled=True)
    named = [(e.instant, e.component) for e in run.events if e.measurement == "torques"]
    for row, joint in wrong:
        name = log.model.joint_names[1 + joint]
        assert any(instant == row and name in component for instant, component in named), name
