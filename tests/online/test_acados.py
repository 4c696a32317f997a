"""The problem of optimal control of the page on control loops, in acados: the plan obeys the dynamics.

acados is built from source, and finds itself by ACADOS_SOURCE_DIR; its loader reads LD_LIBRARY_PATH, so that it runs in
a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd

PAGE = Path(__file__).parents[2] / "docs" / "control.md"
SOURCE = os.environ.get("ACADOS_SOURCE_DIR", "")

RUN = """
import casadi as ca
import numpy as np
import sysdyn as sd

h = 0.02
{block}
x, u = (np.array([planner.get(k, name) for k in range(N + last)]) for name, last in (("x", 1), ("u", 0)))
np.savez("plan.npz", x=x, u=u, status=planner.status)
"""


@pytest.mark.slow
@pytest.mark.skipif(not SOURCE or not importlib.util.find_spec("acados_template"), reason="acados is not installed")
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_plan_obeys_the_dynamics(tmp_path):
    """Two joints in place of seven: acados takes half a minute to compile the symbols of these."""
    text = PAGE.read_text().replace("sd.chain(7)", "sd.chain(2)").replace("n, N = 7, 15", "n, N = 2, 15")
    block = next(x for x in re.findall(r"^```py\n(.*?)^```", text, re.S | re.M) if "acados_template" in x)
    paths = f"{SOURCE}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
    run = subprocess.run(
        [sys.executable, "-c", RUN.format(block=block)], cwd=tmp_path, env=os.environ | {"LD_LIBRARY_PATH": paths},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    plan, h = np.load(tmp_path / "plan.npz"), 0.02
    (q, qd), u = np.split(plan["x"], 2, axis=1), plan["u"]
    assert plan["status"] == 0 and np.abs(u).max() <= 20.0
    tau = sd.rnea(sd.chain(2), q[:-1], qd[:-1], np.diff(qd, axis=0) / h)
    np.testing.assert_allclose(tau, u, atol=1e-5)
    np.testing.assert_allclose(np.diff(q, axis=0), h * qd[1:], atol=1e-9)
    assert np.abs(q[-1] - 0.2).max() < np.abs(q[0] - 0.2).max()
