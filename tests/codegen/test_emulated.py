"""Whole solvers on other processors, by QEMU's emulation of user programs: no abort, and the same results.

Each is left out without its emulator, a Debian package (qemu-user). Python, NumPy and SciPy for 64-bit ARM are taken
from the folder SYSDYN_TEST_AARCH64; CONTRIBUTING.md says how it is made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import emulated
import numpy as np
import pytest

TESTS = Path(emulated.__file__).parent
ARM = Path(os.environ.get("SYSDYN_TEST_AARCH64", "/none"))
# Models fail to build under QEMU 7.2 with NumPy's loops for AVX2; the cause was not found.
WITHOUT_LOOPS = {"NPY_DISABLE_CPU_FEATURES": "X86_V3", "OPENBLAS_CORETYPE": "Nehalem"}
# {name: (emulator and what it starts, environment, numbers in a register, one instruction multiplies and adds)}; NumPy
# itself needs x86-64-v2. AVX-512 is not emulated: `test_processors.py` has its code.
PROCESSORS = {
    "SSE": (["qemu-x86_64", "-cpu", "Nehalem", sys.executable], {}, 2, False),
    "AVX": (["qemu-x86_64", "-cpu", "IvyBridge", sys.executable], {}, 4, False),
    "AVX2": (["qemu-x86_64", "-cpu", "Haswell", sys.executable], WITHOUT_LOOPS, 4, True),
    "ARM": (["qemu-aarch64", "-L", str(ARM), str(ARM / "usr/bin/python3.11")], {}, 2, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
def test_solvers_give_the_same_on_each_processor(name):
    command, environment, lanes, fuses = PROCESSORS[name]
    if not shutil.which(command[0]):
        pytest.skip("qemu-user is not installed")
    if not Path(command[-1]).exists():
        pytest.skip("SYSDYN_TEST_AARCH64 names no folder with a Python for ARM")
    path = [str(TESTS), str(TESTS.parent), *([str(ARM / "site")] if name == "ARM" else [])]
    given = {"SYSDYN_CACHE": "", "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [*command, str(TESTS / "emulated.py")], capture_output=True, text=True, env=os.environ | given | environment,
        timeout=1800, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert (found["processor"]["lanes"], found["processor"]["fuses"]) == (lanes, fuses)
    for what, expected in emulated.results().items():
        size = np.abs(expected).max()
        tolerance = 1e-6 if what == "single" else 1e-12
        np.testing.assert_allclose(found["results"][what], expected, rtol=0.0, atol=tolerance * size, err_msg=what)
