"""Code-generated Pinocchio: its headers on casadi::SX, emitted as C, compiled here; for one state or eight."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pinocchio as pin

from rivals.build import (
    BUILT,
    SOURCES,
    CannotBuild,
    compilers,
    pinocchio_flags,
    plain_arrays,
    pointers,
    shared_library,
)  # fmt: skip
from rivals.turns import Call, words

# A block holds this many states.
LANES = 8
# A statement of generated code that counts as an operation.
_OPERATION = re.compile(r"=\(\S+?[-+*/]\S+\);|=sqrt\(")
# Generated code is compiled for lanes of doubles below this head.
_HEAD = """#include <math.h>
#include <string.h>
typedef double lanes __attribute__((vector_size({bytes})));
lanes {prefix}_sin(lanes), {prefix}_cos(lanes);
#define casadi_real lanes
#define sin {prefix}_sin
#define cos {prefix}_cos
"""
# Loops over states, called as all peers are. Sizes: of a row, and of a row in whole registers.
_WORK = """
#include <string.h>
struct work {{ void* handle; long n; const double *q, *v, *x; double* out; }};
enum {{ SIZE = {size}, WHOLE = {whole} }};
"""
# Each state is copied in and its result copied out.
_ROWS = """
void rows(const struct work* w, void* unused) {
    casadi_int iw[1];
    double in[3][SIZE], out[SIZE];
    const casadi_real* arg[3] = {in[0], in[1], in[2]};
    casadi_real* res[1] = {out};
    for (long k = 0; k < w->n; ++k) {
        memcpy(in[0], w->q + k * SIZE, sizeof out);
        memcpy(in[1], w->v + k * SIZE, sizeof out);
        memcpy(in[2], w->x + k * SIZE, sizeof out);
        casadi_f0(arg, res, iw, 0, 0);
        memcpy(w->out + k * SIZE, out, sizeof out);
    }
}
"""
# Eight states at a time out of and into rows (of arrays that have room for WHOLE − SIZE doubles more), or side by side.
_LANES = """
typedef double unaligned __attribute__((vector_size(64), aligned(8)));
#define EXCHANGED(step, a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7) \\
    for (int k = 0; k < 8; ++k) \\
        if (!(k & step)) { \\
            const lanes a = x[k], b = x[k + step]; \\
            x[k] = __builtin_shufflevector(a, b, a0, a1, a2, a3, a4, a5, a6, a7); \\
            x[k + step] = __builtin_shufflevector(a, b, b0, b1, b2, b3, b4, b5, b6, b7); \\
        }
static inline void transpose(lanes* x) {
    EXCHANGED(1, 0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15)
    EXCHANGED(2, 0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15)
    EXCHANGED(4, 0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
}
static void gather(const double* from, lanes* to) {
    for (int j = 0; j < WHOLE; j += 8) {
        lanes x[8];
        for (int k = 0; k < 8; ++k) x[k] = *(const unaligned*)(from + k * SIZE + j);
        transpose(x);
        for (int k = 0; k < 8; ++k) to[j + k] = x[k];
    }
}
static void scatter(const lanes* from, double* to) {
    for (int j = 0; j < WHOLE; j += 8) {
        lanes x[8];
        for (int k = 0; k < 8; ++k) x[k] = from[j + k];
        transpose(x);
        for (int k = 0; k < 8; ++k) memcpy(to + k * SIZE + j, x + k, (SIZE - j < 8 ? SIZE - j : 8) * sizeof *to);
    }
}
void rows(const struct work* w, void* unused) {
    casadi_int iw[1];
    lanes in[3][WHOLE], out[WHOLE];
    const casadi_real* arg[3] = {in[0], in[1], in[2]};
    casadi_real* res[1] = {out};
    for (long k = 0; k < w->n; k += 8) {
        gather(w->q + k * SIZE, in[0]);
        gather(w->v + k * SIZE, in[1]);
        gather(w->x + k * SIZE, in[2]);
        casadi_f0(arg, res, iw, 0, 0);
        scatter(out, w->out + k * SIZE);
    }
}
void side_by_side(const struct work* w, void* unused) {
    casadi_int iw[1];
    for (long k = 0; k < w->n; ++k) {
        const casadi_real* arg[3] = {(const lanes*)w->q + k * SIZE, (const lanes*)w->v + k * SIZE,
                                     (const lanes*)w->x + k * SIZE};
        casadi_real* res[1] = {(lanes*)w->out + k * SIZE};
        casadi_f0(arg, res, iw, 0, 0);
    }
}
"""


class Generated:
    """C of one robot on a fixed base: `call(variant, q, v, x, out, lanes)` for n states."""

    def __init__(self, robot: str, model: pin.Model, compiler: str = ""):
        """compiler: a name out of `compilers`; the first of them where none is given."""
        spec = importlib.util.find_spec("casadi")
        if spec is None:
            raise CannotBuild("casadi is not installed")
        found = compilers()
        compiler = compiler or next(iter(found))
        self.name = f"code-generated Pinocchio, {compiler}"
        casadi = Path(spec.origin).parent
        flags = ["-O1", "-DNDEBUG", "-std=c++17", *pinocchio_flags(), f"-I{casadi / 'include'}", f"-L{casadi}",
                 "-lcasadi", f"-Wl,-rpath,{casadi}"]  # fmt: skip
        library = shared_library(next(iter(found.values())), [SOURCES / "codegen.cpp"], flags)
        folder = BUILT / robot
        folder.mkdir(parents=True, exist_ok=True)
        self.instructions = library.generate(*pointers(plain_arrays(model)), str(folder).encode())
        in_c = found[compiler].replace("clang++", "clang").replace("g++", "gcc")
        work = _WORK.format(size=model.nv, whole=-(-model.nv // LANES) * LANES)
        self._functions = {}
        self.operations = {}  # of one state: each statement runs once; changes of sign are free
        for name in ("inverse", "forward_aba", "forward_crba"):
            text = (folder / f"{name}.c").read_text().split(f"CASADI_SYMBOL_EXPORT int {name}(")[0]
            self.operations[name] = len(_OPERATION.findall(text))
            for lanes, whole in ((1, text + work + _ROWS), (LANES, _widened(text) + work + _LANES)):
                path = folder / f"{robot}_{name}_{lanes}.c"
                path.write_text(whole)
                flags = ["-O3", "-march=native", "-fno-math-errno", "-w", "-lmvec", "-lm"]
                self._functions[name, lanes] = shared_library(in_c, [path], flags)

    def variants(self, problem: str) -> tuple[str, ...]:
        return ("inverse",) if problem == "inverse" else ("forward_aba", "forward_crba")

    def call(self, variant: str, q: np.ndarray, v: np.ndarray, x: np.ndarray, out: np.ndarray, lanes: int = 1) -> Call:
        """Arrays (n, nv): for lanes = 8 as `roomy` makes them; or (n/8, nv, 8) of `in_lanes`: eight side by side."""
        layout, many = ("side by side", len(q) * LANES) if q.ndim == 3 else ("from rows", len(q))
        function = getattr(self._functions[variant, lanes], "rows" if q.ndim == 2 else "side_by_side")
        made = words(f"{self.name}, {variant}, {layout}", function, 0, [q, v, x, out])
        return Call(made.name, function, made.first, made.second, many, out, (made.keep, self))


def _widened(text: str) -> str:
    """The C of a scalar function for vectors of eight doubles (sin and cos from glibc's libmvec)."""
    head = _HEAD.format(bytes=8 * LANES, prefix="_ZGVeN8v")
    text = text.replace("#include <math.h>", "")
    text = re.sub(r"#ifndef casadi_real\s+#define casadi_real double\s+#endif", "", text)
    text = re.sub(r"\b(a\d+) ?= ?(-?[0-9][0-9.e+-]*);", r"\1=(lanes){} + \2;", text)  # a constant in all lanes
    text = text.replace(" : 0;", " : (lanes){};")
    return head + text


def roomy(x: np.ndarray) -> np.ndarray:
    """The same array with room behind it for a register of doubles."""
    room = np.zeros(x.size + LANES)
    result = room[: x.size].reshape(x.shape)
    result[:] = x
    return result


def in_lanes(x: np.ndarray) -> np.ndarray:
    """(n, nv) → (n/8, nv, 8), aligned to 64 bytes."""
    n, nv = x.shape
    room = np.empty(n * nv + LANES)
    start = -(room.ctypes.data // 8) % LANES
    result = room[start : start + n * nv].reshape(n // LANES, nv, LANES)
    result[:] = x.reshape(n // LANES, LANES, nv).swapaxes(1, 2)
    return result
