"""Motions out of files: results of states, and logs with their estimates."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.app.motion_files import read_motion
from sysdyn.data.states import write_states

MODEL = sd.chain(2, seed=0)  # joints joint0, joint1; bodies body0, body1
LOG = "t,q.joint0,q.joint1 [rad],qd.joint0\n0.1,1,2,0\n0.2,3,4,0\n0.3,5,6,0\n"
ESTIMATES = "t,tau:joint0,tau:joint1,std:tau:joint0,fx:body1.fz,ok\n0.1,10,20,1,7,1\n0.3,30,40,1,8,1\n"


@pytest.fixture
def write(tmp_path):
    def file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return file


def test_results_of_states_have_no_time(tmp_path):
    q, qd, tau = MODEL.random_state(seed=0, batch=3)
    fx = np.random.default_rng(1).standard_normal((3, 2, 6))
    for name in ("result.csv", "result.npz"):
        path = write_states(
            tmp_path / name, sd.forward_dynamics(MODEL).inputs, {"q": q, "qd": qd, "tau": tau, "fx": fx}
        )
        motion = read_motion(MODEL, [path])
        assert set(motion) == {"q", "tau", "fx"}
        for key, x in (("q", q), ("tau", tau), ("fx", fx)):
            np.testing.assert_array_equal(motion[key], x)


def test_a_log_and_its_estimates_are_joined_at_the_times_of_both(write):
    motion = read_motion(MODEL, [write("log.csv", LOG), write("estimates.csv", ESTIMATES)])
    np.testing.assert_array_equal(motion["t"], [0.1, 0.3])
    np.testing.assert_array_equal(motion["q"], [[1, 2], [5, 6]])
    np.testing.assert_array_equal(motion["tau"], [[10, 20], [30, 40]])
    np.testing.assert_array_equal(motion["fx"][:, 1, 5], [7, 8])
    assert not motion["fx"][:, 0].any()


def test_states_that_are_not_whole_are_left_out(write):
    motion = read_motion(MODEL, [write("log.csv", LOG.replace("3,4", "nan,4"))])
    np.testing.assert_array_equal(motion["t"], [0.1, 0.3])


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([ESTIMATES], r"no positions q:JOINT: give a file that has them, too, --log LOG --log FILE"),
        (["t,q.joint0\n0,1\n"], r"lacks the columns q.joint1"),
        ([LOG, "tau:joint0,tau:joint1\n1,2\n"], "no common column t"),
        (["t,q:joint0,q:joint1\n0,nan,1\n"], "no state without missing values"),
        (["t,q:joint0 [deg],q:joint1\n0,1,1\n"], "is in deg, but rad is needed"),
    ],
)
def test_files_that_do_not_give_a_motion_are_named(write, texts, said):
    files = [write(f"{k}.csv", text) for k, text in enumerate(texts)]
    with pytest.raises(sd.InvalidInput, match=said):
        read_motion(MODEL, files)
