"""C99 for tapes: the calls of one instant over static arrays, with the routines that they need; nothing but math.h.

Arrays of the calls become static arrays of the file, runs of programs calls of their C99 (`sysdyn.codegen.c99`).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sysdyn.codegen.c99 import Code, Description
from sysdyn.codegen.llvm.tape import Moving, Run, Tape
from sysdyn.runtime.kernel import address
from sysdyn.runtime.real import Real

# Routines by their name and their arguments that are characters, as in BLAS and LAPACK: matrices by columns, but for
# those that are ours (`sysdyn.codegen.llvm.routines`), by rows.
_ROUTINES = {
    "dcopy": """(int n, const double *x, int dx, double *y, int dy)
{
    int i;
    for (i = 0; i < n; ++i) {
        y[i * dy] = x[i * dx];
    }
}""",
    "daxpy": """(int n, double a, const double *x, int dx, double *y, int dy)
{
    int i;
    for (i = 0; i < n; ++i) {
        y[i * dy] += a * x[i * dx];
    }
}""",
    "dlaset_A": """(int m, int n, double off, double on, double *A, int lda)
{
    int i, j;
    for (j = 0; j < n; ++j) {
        for (i = 0; i < m; ++i) {
            A[i + j * lda] = i == j ? on : off;
        }
    }
}""",
    "dgemv_N": """(
    int m, int n, double a, const double *A, int lda, const double *x, int dx, double b, double *y, int dy)
{
    int i, j;
    for (i = 0; i < m; ++i) {
        y[i * dy] = b == 0.0 ? 0.0 : b * y[i * dy];
    }
    for (j = 0; j < n; ++j) {
        for (i = 0; i < m; ++i) {
            y[i * dy] += a * x[j * dx] * A[i + j * lda];
        }
    }
}""",
    "dpotrf_L": """(int n, double *A, int lda)
{
    int i, j, l, good = 1;
    for (j = 0; j < n; ++j) {
        double *restrict x = A + j * lda;
        const double root = sqrt(x[j]), inverse = 1.0 / root;
        good &= x[j] > 0.0;
        x[j] = root;
        for (i = j + 1; i < n; ++i) {
            x[i] *= inverse;
        }
        for (l = j + 1; l < n; ++l) {
            double *restrict y = A + l * lda;
            const double a = x[l];
            for (i = l; i < n; ++i) {
                y[i] -= a * x[i];
            }
        }
    }
    return !good;
}""",
    "dlacpy_A": """(int m, int n, const double *A, int lda, double *B, int ldb)
{
    int i, j;
    for (j = 0; j < n; ++j) {
        for (i = 0; i < m; ++i) {
            B[i + j * ldb] = A[i + j * lda];
        }
    }
}""",
    "solved": """(int k, int m, const double *L, double *x)
{
    int c, i, j;
    for (i = 0; i < m; ++i) {
        double *restrict to = x + i * k;
        const double inverse = 1.0 / L[i + i * m];
        for (j = 0; j < i; ++j) {
            const double a = L[i + j * m];
            const double *restrict from = x + j * k;
            for (c = 0; c < k; ++c) {
                to[c] -= a * from[c];
            }
        }
        for (c = 0; c < k; ++c) {
            to[c] *= inverse;
        }
    }
}""",
    "less": """(int k, int m, const double *x, const double *y, double *P)
{
    int c, i, l;
    for (i = 0; i < k; ++i) {
        double *restrict to = P + i * k;
        for (l = 0; l + 1 < m; l += 2) {
            const double a = x[l * k + i], b = x[(l + 1) * k + i];
            const double *restrict first = y + l * k;
            const double *restrict second = first + k;
            for (c = 0; c < k; ++c) {
                to[c] -= a * first[c] + b * second[c];
            }
        }
        for (; l < m; ++l) {
            const double a = x[l * k + i];
            const double *restrict from = y + l * k;
            for (c = 0; c < k; ++c) {
                to[c] -= a * from[c];
            }
        }
    }
}""",
    "product": """(
    int k, int n, int keep, const int *starts, const int *entries, const double *A, const double *x, double *y)
{
    int c, e, i;
    for (i = 0; i < n; ++i) {
        double *restrict to = y + i * k;
        const int end = starts[i + 1];
        e = starts[i];
        for (c = 0; !keep && e == end && c < k; ++c) {
            to[c] = 0.0;
        }
        if (!keep && e < end) {
            const double a = A[entries[2 * e + 1]];
            const double *restrict from = x + entries[2 * e] * k;
            for (c = 0; c < k; ++c) {
                to[c] = a * from[c];
            }
            ++e;
        }
        for (; e + 3 < end; e += 4) {
            const double a = A[entries[2 * e + 1]], b = A[entries[2 * e + 3]];
            const double f = A[entries[2 * e + 5]], g = A[entries[2 * e + 7]];
            const double *restrict first = x + entries[2 * e] * k;
            const double *restrict second = x + entries[2 * e + 2] * k;
            const double *restrict third = x + entries[2 * e + 4] * k;
            const double *restrict fourth = x + entries[2 * e + 6] * k;
            for (c = 0; c < k; ++c) {
                to[c] = ((to[c] + a * first[c]) + b * second[c]) + (f * third[c] + g * fourth[c]);
            }
        }
        for (; e < end; ++e) {
            const double a = A[entries[2 * e + 1]];
            const double *restrict from = x + entries[2 * e] * k;
            for (c = 0; c < k; ++c) {
                to[c] += a * from[c];
            }
        }
    }
}""",
    "transpose": """(int n, int k, const double *x, double *y)
{
    int i, j;
    for (i = 0; i < k; ++i) {
        for (j = 0; j < n; ++j) {
            y[i * n + j] = x[j * k + i];
        }
    }
}""",
    "mirror": """(int k, double *x)
{
    int i, j;
    for (i = 0; i < k; ++i) {
        for (j = i + 1; j < k; ++j) {
            x[i * k + j] = x[j * k + i];
        }
    }
}""",
    "flush": """(int n, double least, double *x)
{
    int i;
    for (i = 0; i < n; ++i) {
        x[i] = fabs(x[i]) < least ? 0.0 : x[i];
    }
}""",
    "add": """(int n, const int *numbers, const double *x, double *y)
{
    int i;
    for (i = 0; i < n; ++i) {
        y[numbers[i]] += x[i];
    }
}""",
}
# Inlined, compilers forget that arrays of routines are apart, which takes half as long again (measured with GCC 12).
_APART = """/* A function that is not inlined: compilers then know that its arrays are apart. */
#if defined(__GNUC__)
#define APART static __attribute__((noinline))
#else
#define APART static
#endif"""
# The routine that says whether it went well, by its return value in place of its last argument.
_SAYS = "dpotrf_L"


class TapeCode:
    """C99 of tapes. name: of the project; kept: arrays that begin with their values, all others with zeros.

    real: type of the numbers. programs: the code of the programs that they run.
    """

    def __init__(self, name: str, kept: Collection[np.ndarray], real: Real):
        self.name, self.real, self.programs = name, real, list[Code]()
        self._numbers: dict[int, int] = {}
        self._arrays: dict[int, tuple[str, np.ndarray]] = {}
        self._used: dict[str, None] = {}
        self._kept = {id(_root(x)) for x in kept}

    def place(self, x: np.ndarray) -> str:
        """C for the address of the first entry of an array, which is not empty."""
        root = _root(x)
        name, _ = self._arrays.setdefault(id(root), (f"a{len(self._arrays)}", root))
        behind = (address(x) - address(root)) // root.itemsize
        return f"{name} + {behind}" if behind else name

    def function(self, head: str, tape: Tape, failed: str) -> str:
        """A function of this head that makes the calls of a tape, and returns the bits of the status of its programs.

        failed: the word of the bit if a matrix has no factor.
        """
        lines = []
        for call in tape.calls:
            if isinstance(call, Run):
                lines += self._run(call)
                continue
            name, arguments = call
            if any(isinstance(x, np.ndarray) and not x.size for x in arguments):
                continue  # nothing is copied
            name = "_".join([name, *(x for x in arguments if isinstance(x, str))])
            self._used[name] = None
            kept = arguments[:-1] if name == _SAYS else arguments
            given = ", ".join(self._argument(x) for x in kept if not isinstance(x, str))
            lines.append(f"status |= {name}({given}) ? {failed} : 0;" if name == _SAYS else f"{name}({given});")
        text = "\n".join(f"    {line}" for line in lines)
        return f"{head}\n{{\n    int status = 0;\n{text}\n    return status;\n}}"

    def _argument(self, x: np.ndarray | Moving | float) -> str:
        if isinstance(x, Moving):
            raise TypeError("a tape of one instant has no arrays that move")
        return self.place(x) if isinstance(x, np.ndarray) else self.real.literal(x) if isinstance(x, float) else str(x)

    def _run(self, run: Run) -> list[str]:
        k = self._numbers.setdefault(id(run.program), len(self.programs))
        if k == len(self.programs):
            description = Description(f"part {k} of {self.name}")
            self.programs.append(Code(f"{self.name}_{k}", run.program, description, self.real))
        code, lines = self.programs[k], []
        for m in code.inputs:
            lines.append(f"memcpy(in_{k}.{m.name}, {self.place(run.inputs[m.group])}, sizeof in_{k}.{m.name});")
        lines.append(f"status |= {code.name}_run(&in_{k}, &out_{k}, &work_{k});")
        for m in code.outputs:
            lines.append(f"memcpy({self.place(run.outputs[m.group])}, out_{k}.{m.name}, sizeof out_{k}.{m.name});")
        return lines

    def memory(self) -> str:
        """Declarations of all arrays that functions have used until now."""
        lines = [f"static {x.name}_{what} {short}_{k};" for k, x in enumerate(self.programs)
                 for what, short in (("inputs", "in"), ("outputs", "out"), ("work", "work"))]  # fmt: skip
        for name, x in self._arrays.values():
            numbers = x.dtype.kind == "i"
            kind = "const int" if numbers else self.real.name
            if numbers or id(x) in self._kept:
                values = ", ".join(map(str, x.reshape(-1).tolist())) if numbers else self.real.literals(x)
                lines.append(f"static {kind} {name}[{x.size}] = {{{values}}};")
            else:
                lines.append(f"static {kind} {name}[{x.size}];")
        return "\n".join(lines)

    def routines(self) -> str:
        """The routines that functions have used until now."""
        parts = (f"APART {'int' if name == _SAYS else 'void'} {name}{_ROUTINES[name]}" for name in self._used)
        return self.real.specialise_c_source(f"{_APART}\n\n" + "\n\n".join(parts))

    @property
    def bytes(self) -> int:
        """Size of all arrays."""
        size = self.real.size
        return sum((4 if x.dtype.kind == "i" else size) * x.size for _, x in self._arrays.values()) + sum(
            size * (x.program.n_inputs + x.program.n_outputs + max(1, x.n_work)) for x in self.programs
        )


def _root(x: np.ndarray) -> np.ndarray:
    """The array that owns the memory."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x
