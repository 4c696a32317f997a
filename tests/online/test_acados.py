"""The problem of optimal control of the page on control loops, in acados: the plan by the dynamics as CasADi's symbols.

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

PAGE = Path(__file__).parents[2] / "docs" / "control.md"
COMPILER = next((x for x in ("gcc", "clang") if shutil.which(x)), "")
SOURCE = os.environ.get("ACADOS_SOURCE_DIR", "")

RUN = """
import subprocess
import sys

import casadi as ca
import numpy as np
import sysdyn as sd

h = 0.02
exec({export!r})
if {library}:
    subprocess.run("{compiler} -std=c99 -O1 -shared -fPIC seven/*.c -o libseven.so -lm", shell=True, check=True)
    f = ca.external("seven", "./libseven.so", {{"jac_penalty": 1}})
else:
    f = seven.to_casadi()
exec({block!r})
states = [planner.get(k, "x") for k in range(ocp.dims.N + 1)]
np.savez({file!r}, x=states, status=planner.status, iterations=planner.get_stats("sqp_iter"))
"""


@pytest.mark.slow
@pytest.mark.skipif(not SOURCE or not importlib.util.find_spec("acados_template"), reason="acados is not installed")
@pytest.mark.skipif(not COMPILER, reason="no C compiler")
def test_plans_are_those_by_symbols(tmp_path):
    """Two joints in place of seven: acados takes a minute to compile the symbols of these."""
    text = PAGE.read_text().replace("sd.chain(7)", "sd.chain(2)").replace("n, N = 7, 15", "n, N = 2, 15")
    blocks = re.findall(r"^```py\n(.*?)^```", text, re.S | re.M)
    export = next(x for x in blocks if "export_casadi" in x).split("# cc")[0]
    block = next(x for x in blocks if "acados_template" in x)
    found = []
    for library in (True, False):
        folder = tmp_path / str(library)
        folder.mkdir()
        paths = [str(folder), f"{SOURCE}/lib", os.environ.get("LD_LIBRARY_PATH", "")]
        code = RUN.format(export=export, block=block, library=library, compiler=COMPILER, file=str(folder / "plan.npz"))
        if not library:
            code = code.replace("options.model_external_shared_lib_dir, options.model_external_shared_lib_name", "_, _")
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=os.environ | {"LD_LIBRARY_PATH": ":".join(paths)},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
        found.append(np.load(folder / "plan.npz"))
    assert found[0]["status"] == 0 and found[0]["iterations"] == found[1]["iterations"]
    np.testing.assert_allclose(found[0]["x"], found[1]["x"], atol=1e-9)
    assert np.abs(found[0]["x"][-1, :2] - 0.2).max() < np.abs(found[0]["x"][0, :2] - 0.2).max()
