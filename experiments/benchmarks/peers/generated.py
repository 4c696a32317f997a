"""Code-generated Pinocchio: its headers on casadi::SX, emitted as C, compiled by gcc; for one state or eight."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pinocchio as pin

from peers.build import BUILT, SOURCES, CannotBuild, clang, pinocchio_flags, plain_arrays, pointers, shared_library

# A block holds this many states.
LANES = 8
# Generated code is compiled for lanes of doubles below this head.
_HEAD = """#include <math.h>
typedef double lanes __attribute__((vector_size({bytes})));
lanes {prefix}_sin(lanes), {prefix}_cos(lanes);
#define casadi_real lanes
#define sin {prefix}_sin
#define cos {prefix}_cos
"""
# A loop runs over states, rows of one or blocks of eight, that follow each other in memory.
_LOOP = """
void many(long n, const double* q, const double* v, const double* x, double* out, double* work) {{
    casadi_int iw[1];
    for (long k = 0; k < n; ++k) {{
        const casadi_real* arg[3] = {{(const casadi_real*)q + k * {size}, (const casadi_real*)v + k * {size},
                                     (const casadi_real*)x + k * {size}}};
        casadi_real* res[1] = {{(casadi_real*)out + k * {size}}};
        casadi_f0(arg, res, iw, (casadi_real*)work, 0);
    }}
}}
"""


class Generated:
    """C of one robot: `run(problem, q, v, x, out)` for n states, `run_lanes` for n/8 blocks of eight states."""

    name = "code-generated Pinocchio, gcc -O3 -march=native"

    def __init__(self, robot: str, model: pin.Model):
        spec = importlib.util.find_spec("casadi")
        if spec is None:
            raise CannotBuild("casadi is not installed")
        gcc = shutil.which("gcc")
        if gcc is None:
            raise CannotBuild("gcc is not installed")
        casadi = Path(spec.origin).parent
        flags = ["-O1", "-DNDEBUG", "-std=c++17", *pinocchio_flags(), f"-I{casadi / 'include'}", f"-L{casadi}",
                 "-lcasadi", f"-Wl,-rpath,{casadi}"]  # fmt: skip
        library = shared_library(clang(), [SOURCES / "codegen.cpp"], flags)
        folder = BUILT / robot
        folder.mkdir(parents=True, exist_ok=True)
        self.instructions = library.generate(*pointers(plain_arrays(model)), str(folder).encode())
        self._functions = {}
        for name in ("inverse", "forward_aba", "forward_crba"):
            text = (folder / f"{name}.c").read_text().split(f"CASADI_SYMBOL_EXPORT int {name}(")[0]
            for lanes in (1, LANES):
                loop = _LOOP.format(size=model.nv)
                path = folder / f"{robot}_{name}_{lanes}.c"
                path.write_text((text if lanes == 1 else _widened(text)) + loop)
                flags = ["-O3", "-march=native", "-fno-math-errno", "-w", "-lmvec", "-lm"]
                self._functions[name, lanes] = shared_library(gcc, [path], flags).many

    def variants(self, problem: str) -> tuple[str, ...]:
        return ("inverse",) if problem == "inverse" else ("forward_aba", "forward_crba")

    def run(self, problem: str, q: np.ndarray, v: np.ndarray, x: np.ndarray, out: np.ndarray, lanes: int = 1) -> None:
        """Arrays (n, nv); for lanes = 8 (n, nv, 8), aligned to 64 bytes: eight states side by side."""
        self._functions[problem, lanes](ctypes.c_long(len(q)), *pointers([q, v, x, out]), None)


def _widened(text: str) -> str:
    """The C of a scalar function for vectors of eight doubles (sin and cos from glibc's libmvec)."""
    head = _HEAD.format(bytes=8 * LANES, prefix="_ZGVeN8v")
    text = text.replace("#include <math.h>", "")
    text = re.sub(r"#ifndef casadi_real\s+#define casadi_real double\s+#endif", "", text)
    text = re.sub(r"\b(a\d+) ?= ?(-?[0-9][0-9.e+-]*);", r"\1=(lanes){} + \2;", text)  # a constant in all lanes
    text = text.replace(" : 0;", " : (lanes){};")
    return head + text


def in_lanes(x: np.ndarray) -> np.ndarray:
    """(n, nv) → (n/8, nv, 8), aligned to 64 bytes."""
    n, nv = x.shape
    room = np.empty(n * nv + LANES)
    start = -(room.ctypes.data // 8) % LANES
    result = room[start : start + n * nv].reshape(n // LANES, nv, LANES)
    result[:] = x.reshape(n // LANES, LANES, nv).swapaxes(1, 2)
    return result
