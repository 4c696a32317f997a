"""One problem has one program, whatever BLAS, NumPy and libm make of the processor."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# The kernels of OpenBLAS, with what a processor needs for them, by the names that Linux has; Zen has those of Haswell.
KERNELS = {"Nehalem": "sse4_2", "Haswell": "avx2", "SkylakeX": "avx512dq"}
# Two of the problems: an arm's constants, and a choice of pivots.
FEW = ("inverse, general arm", "sensors")

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="these kernels are of x86-64")


def old_processor() -> dict[str, str]:
    """NumPy without any of its faster loops, libm without fused operations."""
    from numpy._core import _multiarray_umath as umath

    faster = [x for x in umath.__cpu_dispatch__ if umath.__cpu_features__.get(x)]
    tunables = "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F,-AVX2_Usable,-FMA_Usable"
    return {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": " ".join(faster), "GLIBC_TUNABLES": tunables}


def digests(settings: dict[str, str], *names: str) -> dict[str, list]:
    environment = {**os.environ, "SYSDYN_CACHE": "", "OPENBLAS_NUM_THREADS": "1", **settings}
    command = [sys.executable, "-W", "ignore", str(TESTS / "program_digests.py"), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def plain() -> dict[str, list]:
    return digests(old_processor())


def supported() -> list[str]:
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    return [name for name, flag in KERNELS.items() if flag in flags]


@x86
def test_a_problem_has_one_program():
    """With the plainest kernels and with the widest that the processor has."""
    widest = {"OPENBLAS_CORETYPE": supported()[-1]} if supported() else {}
    found = digests(old_processor(), *FEW)
    products = {f"inverse, general arm, {kind}" for kind in ("jvp", "vjp")}
    assert {*FEW} | products == {*found}
    assert digests(widest, *FEW) == found


@x86
@pytest.mark.slow
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_problem_has_one_program_with_each_kind_of_kernels(plain, kernels):
    if kernels not in supported():
        pytest.skip(f"the processor has no {KERNELS[kernels]}")
    assert len(plain) >= 12 and digests({"OPENBLAS_CORETYPE": kernels}) == plain


def test_the_settings_change_what_blas_and_libm_compute():
    """Else the tests above would compare a thing with itself."""
    if platform.machine() != "x86_64" or not {"Haswell", "Nehalem"} <= set(supported()):
        pytest.skip("needs a processor with two kinds of kernels")
    code = "import numpy as np, math; A = np.random.default_rng(0).random((6, 6)); "
    code += "print((A @ A @ A).tobytes().hex(), [math.sin(x / 7.0).hex() for x in range(2000)])"
    shown = set()
    for settings in ({"OPENBLAS_CORETYPE": "Haswell"}, old_processor()):
        command = [sys.executable, "-c", code]
        shown.add(subprocess.run(command, env={**os.environ, **settings}, capture_output=True, check=True).stdout)
    assert len(shown) == 2
