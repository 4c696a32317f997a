"""The online phase: a Solver is a compiled problem; calling it gives a Solution."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import json
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sysdyn import cache
from sysdyn.backends import llvm, python
from sysdyn.compiler import LEVELS, Choice, Compiled, Progress, Safety, build, input_sizes, output_quantities, pivoted_solve
from sysdyn.errors import FileError, InvalidInput, ProblemError, SingularState, SysdynError, UnknownName
from sysdyn.expr import Flops
from sysdyn.solution import Solution
from sysdyn.sparse.program import FORMAT, Program
from sysdyn.system.measurements import RAW
from sysdyn.system.problem import Problem

BACKENDS = ("llvm", "python")
ON_SINGULAR = ("raise", "nan", "repivot")
THREAD_STATES = 2048  # states a further thread is worth


class Counts(NamedTuple):
    """Exact operation counts in both scopes."""

    end_to_end: Flops
    solve: Flops

    def __repr__(self) -> str:
        return f"end to end  {self.end_to_end!r}\nsolve       {self.solve!r}"


@dataclass(frozen=True)
class Options:
    """How a problem was compiled."""

    ordering: str
    outputs: tuple[str, ...]
    level: str
    layout: str
    known: str
    backend: str


def compile(
    problem: Problem,
    ordering: str = "auto",
    outputs: str | Sequence[str] = "all",
    *,
    level: str = "best",
    layout: str = "paper",
    known: str = "rows",
    backend: str = "llvm",
    on_singular: str = "raise",
    progress: Progress | None = None,
) -> Solver:
    """Compile a problem: fix the elimination order, check it, write the program and its machine code.

    ordering     "auto" (the cheapest safe one), "rnea", "crba", "aba", "umfpack", "colamd", "markowitz", "natural"
    outputs      "all" or some of tau, qdd, fx, a, f; operations that they do not need are left out
    level        "best", or "fast": fewer orders tried and code generation without optimisation, for very large robots
    layout       "paper" or "net_force"; known: "rows" or "substituted" (see `BlockSystem`)
    backend      "llvm" (machine code) or "python" (NumPy; the oracle of the other)
    on_singular  what a call does where the order fails: "raise", "nan" or "repivot"
    progress     called with (what, share done) while it works

    The result is cached on disk. Raises ProblemError (too many equations), StructurallySingular, NoSafeOrdering, BackendUnavailable.
    """
    wanted = output_quantities(outputs)
    for name, value, valid in (
        ("level", level, LEVELS), ("backend", backend, BACKENDS), ("on_singular", on_singular, ON_SINGULAR)
    ):  # fmt: skip
        if value not in valid:
            raise UnknownName(name, value, valid)
    options = Options(ordering, wanted, level, layout, known, backend)
    key = _cache_key(problem, options)
    stored = cache.load(key) if key else None
    if stored is not None:
        try:
            return Solver(problem, options, _unpack(stored)[0], on_singular)
        except FileError:
            pass  # a damaged entry is compiled again
    compiled = build(problem, ordering, wanted, level, layout, known, progress)
    if key:
        cache.store(key, _pack(compiled, options, None))
    if progress:
        progress("compiling machine code", 0.95)
    solver = Solver(problem, options, compiled, on_singular)
    if progress:
        progress("done", 1.0)
    return solver


def _cache_key(problem: Problem, options: Options) -> str | None:
    if problem.digest is None:
        return None
    import sysdyn

    # "auto" finds other orders where UMFPACK is installed
    umfpack = importlib.util.find_spec("scikits") is not None and importlib.util.find_spec("scikits.umfpack") is not None
    about = [FORMAT, sysdyn.__version__, problem.digest, asdict(options), umfpack]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest() + ".solver"


class Solver:
    """A compiled problem.

    solver(q, qd, …) solves for one state or a batch; `bind` prepares a call without checks for control loops. It can be
    called from many threads, pickled, saved to a file and loaded again.
    """

    def __init__(self, problem: Problem, options: Options, compiled: Compiled, on_singular: str = "raise"):
        self.problem, self.model, self.options = problem, problem.model, options
        self.compiled, self.program = compiled, compiled.program
        self.on_singular = on_singular
        self._sizes = dict(input_sizes(problem))
        self._shapes = {"fx": (self.model.nb, 6), "a": (self.model.nb, 6), "f": (self.model.nb, 6)}
        self._positional = tuple(x for x in ("tau", "qdd", "fx", "a", "f") if x in problem.known_quantities)
        self._plain = all(joint.quaternion is None for joint in self.model.joints)
        if options.backend == "llvm":
            level = LEVELS[options.level]
            self._scalar = llvm.compile(self.program, 1, level)
            self._vector = llvm.compile(self.program, llvm.simd_width(), level)
        self._local = threading.local()

    # ---- calling -----------------------------------------------------------------------------------------------

    def __call__(
        self,
        q: np.ndarray,
        qd: np.ndarray,
        *known: np.ndarray,
        y: Mapping[str, np.ndarray] | np.ndarray | None = None,
        on_singular: str | None = None,
        threads: int | None = None,
        **quantities: np.ndarray,
    ) -> Solution:
        """Solve at q (…, nq), qd (…, nv); leading axes are batch axes and broadcast.

        Known quantities are full-size and positional (in the order tau, qdd, fx, a, f of those the problem knows) or by
        keyword: tau, qdd (…, nv); fx, a, f (…, nb, 6). Entries that the problem does not know are ignored; fx is zero where it
        is not given. y: {measurement name: (…, m)}, or packed (…, ny) in the order of `problem.y_names`.
        on_singular: "raise" (SingularState), "nan", or "repivot" (solve again with pivoting); see `Solution.ok`.
        threads: for batches; default one a core.

        Raises InvalidInput naming the argument for wrong shapes, types, NaN or infinity, missing or duplicate values.
        """
        given = self._collect(known, y, quantities)
        given["q"], given["qd"] = q, qd
        arrays, lead = self._checked(given)
        if not self._plain:
            arrays["q"] = self.model.normalise(arrays["q"])
        n = 1
        for k in lead:
            n *= k
        outputs = {name: np.empty((n, size)) for name, size in self.program.output_groups}
        status = np.empty(n, dtype=np.int64)
        if n:
            self._run(arrays, outputs, status, n, threads)
        if status.any():
            self._resolve(arrays, outputs, status, on_singular or self.on_singular)
        shaped = {name: x.reshape(lead + self._shapes.get(name, x.shape[1:])) for name, x in outputs.items()}
        return Solution(self, arrays, lead, shaped, status.reshape(lead))

    def _collect(self, known: tuple, y, quantities: dict) -> dict:
        """Values by input group, missing fx zero. Raises InvalidInput for what is missing, double or not known."""
        given = dict(quantities)
        if len(known) > len(self._positional):
            raise InvalidInput(
                f"{len(known)} known quantities were given by position, but the problem knows only "
                f"{', '.join(self._positional) or 'none'}"
            )
        for name, value in zip(self._positional, known, strict=False):
            if name in given:
                raise InvalidInput(f"{name} is given twice: by position and by keyword")
            given[name] = value
        for name in given:
            if name not in self._sizes or name in ("q", "qd"):
                raise UnknownName("known quantity", name, self._positional)
        if y is not None:
            self._add_measured(given, y)
        for name, size in self._sizes.items():
            if name not in given and name not in ("q", "qd"):
                if name != "fx":
                    what = f"y={{{name[2:]!r}: …}}" if name.startswith("y:") else f"{name}="
                    raise InvalidInput(f"the problem knows {name.removeprefix('y:')!r}, but no value was given: pass {what}")
                given[name] = np.zeros(size)
        return given

    def _add_measured(self, given: dict, y) -> None:
        """Values by measurement, scattered into the full-size groups."""
        measurements = {m.name: m for m in self.problem.measurements}
        if not isinstance(y, Mapping):
            y = np.asarray(y, dtype=float)
            if y.shape[-1:] != (self.problem.ny,):
                raise InvalidInput(f"y has shape {y.shape}, but its last axis must be ny = {self.problem.ny} (problem.y_names)")
            packed, at, y = y, 0, {}
            for m in self.problem.measurements:
                size = len(m.components(self.model))
                y[m.name] = packed[..., at : at + size]
                at += size
        full: dict[str, list] = {}
        for name, value in y.items():
            if name not in measurements:
                raise UnknownName("measurement", name, measurements)
            m, value = measurements[name], np.asarray(value, dtype=float)
            size = len(m.components(self.model))
            if value.shape[-1:] != (size,):
                raise InvalidInput(f"y[{name!r}] has shape {value.shape}, but its last axis must be {size}")
            quantity = getattr(m, "quantity", None)
            if quantity not in RAW:
                given[f"y:{name}"] = value
                continue
            if quantity in given:
                raise InvalidInput(f"{quantity} is given twice: as {quantity}= and in y[{name!r}]")
            full.setdefault(quantity, []).append((m, value))
        for quantity, parts in full.items():
            stated = {p for m, _ in parts for p in m.pairs(self.model)}
            missing = self.problem.knows(quantity) - stated
            if missing and quantity != "fx":
                absent = sorted({m.name for m in self.problem.raw if m.quantity == quantity} - {m.name for m, _ in parts})
                raise InvalidInput(f"no value for measurement {', '.join(map(repr, absent))}: y needs all of those of {quantity}")
            lead = np.broadcast_shapes(*(v.shape[:-1] for _, v in parts))
            array = np.zeros((*lead, self._sizes[quantity]))
            for m, value in parts:
                array[..., [self._position(quantity, i, k) for i, k in m.pairs(self.model)]] = value
            given[quantity] = array

    def _position(self, quantity: str, body: int, component: int) -> int:
        return self.model.v_slice(body).start + component if quantity in ("tau", "qdd") else 6 * body + component

    def _checked(self, given: dict) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        """({group: (size,) or (N, size) C-contiguous float64}, leading axes)."""
        arrays, leads = {}, []
        for name, size in self._sizes.items():
            x = given[name]
            if type(x) is not np.ndarray or x.dtype != np.float64:
                x = self._converted(name, x)
            if x.shape == (size,):
                arrays[name] = x if x.flags.c_contiguous else np.ascontiguousarray(x)
                continue
            shape = self._shapes.get(name, (size,)) if not name.startswith("y:") else (size,)
            lead = x.shape[: x.ndim - len(shape)]
            if x.shape[x.ndim - len(shape) :] != shape or x.ndim < len(shape):
                if len(shape) == 2 and x.shape[-1:] == (size,):  # packed wrenches
                    lead = x.shape[:-1]
                else:
                    wanted = "(…, " + ", ".join(map(str, shape)) + ")"
                    raise InvalidInput(f"{name} has shape {x.shape}, but {wanted} is needed")
            arrays[name] = x
            leads.append((name, lead))
        if not leads:
            return arrays, ()
        try:
            lead = np.broadcast_shapes(*(shape for _, shape in leads))
        except ValueError:
            shown = ", ".join(f"{name} {shape}" for name, shape in leads)
            raise InvalidInput(f"the leading (batch) axes do not fit together: {shown}") from None
        for name, own in leads:
            x, size = arrays[name], self._sizes[name]
            if all(k == 1 for k in own):
                arrays[name] = np.ascontiguousarray(x.reshape(size))
            else:
                if own != lead:
                    x = np.broadcast_to(x, lead + x.shape[len(own) :])
                arrays[name] = np.ascontiguousarray(x.reshape(-1, size))
        return arrays, lead

    def _converted(self, name: str, x) -> np.ndarray:
        if x is None:
            raise InvalidInput(f"{name} is None: an array is needed")
        array = np.asarray(x)
        if array.dtype.kind not in "fiub":
            raise InvalidInput(f"{name} has type {array.dtype}, but real numbers are needed")
        return array.astype(np.float64)

    def _run(self, arrays: dict, outputs: dict, status: np.ndarray, n: int, threads: int | None) -> None:
        if self.options.backend == "python":
            self._run_python(arrays, outputs, status)
            return
        kernel = self._scalar if n == 1 else self._vector
        count = threads or (os.cpu_count() or 1)
        count = min(count, -(-n // THREAD_STATES)) if threads is None else min(count, n)
        if count <= 1:
            words, work = self._words(arrays, outputs, status, 0, n), self._work(kernel)
            kernel.run(words.ctypes.data, work)
            return
        share = -(-n // (count * kernel.width)) * kernel.width

        def part(start: int) -> None:
            words = self._words(arrays, outputs, status, start, min(share, n - start))
            kernel.run(words.ctypes.data, self._work(kernel))

        list(_pool(count).map(part, range(0, n, share)))

    def _words(self, arrays: dict, outputs: dict, status: np.ndarray, start: int, n: int) -> np.ndarray:
        """Arguments of the kernel for states start … start + n − 1."""
        words = [n, _address(status) + 8 * start]
        for name, size in self.program.input_groups:
            x = arrays[name]
            words += (_address(x), 0) if x.ndim == 1 else (_address(x) + 8 * size * start, size)
        for name, size in self.program.output_groups:
            words += (_address(outputs[name]) + 8 * size * start, size)
        return np.array(words, dtype=np.int64)

    def _work(self, kernel: llvm.Kernel) -> int:
        """Address of this thread's workspace."""
        held = self._local.__dict__.get(kernel.width)
        if held is None:
            held = self._local.__dict__[kernel.width] = llvm.aligned(kernel.work_doubles)
        return held[1]

    def _run_python(self, arrays: dict, outputs: dict, status: np.ndarray) -> None:
        result = python.run_groups(self.program, arrays)
        status[:] = 0
        for x in arrays.values():
            status[~np.isfinite(x).all(axis=-1)] |= llvm.BAD_INPUT
        for name, x in result.items():
            outputs[name][:] = x
            status[~np.isfinite(x).all(axis=-1)] |= llvm.BAD_OUTPUT
        if self.program.guards:
            values = self._guard_values(arrays)
            limits = np.array([g.threshold for g in self.program.guards])
            status[(np.abs(values) < limits).any(axis=1)] |= llvm.BAD_PIVOT

    def _guard_values(self, arrays: dict) -> np.ndarray:
        """(N, guards): values of the guarded pivots."""
        seen: dict[int, object] = {}
        numbers = {g.value for g in self.program.guards}
        flat = [row for name, size in self.program.input_groups for row in np.atleast_2d(arrays[name]).T]
        python.run(self.program, flat, watch=lambda i, x: seen.__setitem__(i, x) if i in numbers else None)
        columns = np.broadcast_arrays(*(np.atleast_1d(seen[g.value]) for g in self.program.guards))
        return np.stack(columns, axis=1)

    # ---- states where the order fails ----------------------------------------------------------------------------

    def _resolve(self, arrays: dict, outputs: dict, status: np.ndarray, policy: str) -> None:
        """Deal with the states whose status is not zero, as `policy` says."""
        if policy not in ON_SINGULAR:
            raise UnknownName("on_singular", policy, ON_SINGULAR)
        if (status & llvm.BAD_INPUT).any():
            self._reject_input(arrays, len(status))
        bad = np.flatnonzero(status)
        part = {name: x if x.ndim == 1 else x[bad] for name, x in arrays.items()}
        angle = self._too_large(part)
        if angle:
            raise InvalidInput(angle)
        if policy == "raise":
            raise self._singular(part, bad, len(status))
        if policy == "repivot":
            system = self.problem.system()
            part = {name: np.broadcast_to(x, (len(bad), x.shape[-1])) for name, x in part.items()}
            d = pivoted_solve(system, part)
            with np.errstate(all="ignore"):
                error = system.residual(part, d)[1]
                good = np.isfinite(error) & (error < 1e-9) & np.isfinite(d).all(axis=1)
            for name, x in outputs.items():
                x[bad] = np.where(good[:, None], d[:, system.layout.quantity_columns(name)], np.nan)
            status[bad[good]] = 0
            return
        for x in outputs.values():
            x[bad] = np.nan

    def _reject_input(self, arrays: dict, n: int) -> None:
        for name, x in arrays.items():
            finite = np.isfinite(x)
            if not finite.all():
                where = tuple(int(k) for k in np.argwhere(~finite)[0])
                at = f"state {where[0]}, entry {where[1]}" if len(where) == 2 else f"entry {where[0]}"
                raise InvalidInput(f"{name.removeprefix('y:')} is {x[where]} at {at}: every input must be finite")

    def _too_large(self, arrays: dict) -> str:
        q = np.atleast_2d(arrays["q"])
        for i, joint in enumerate(self.model.joints):
            block = q[:, self.model.q_slice(i)]
            for k in joint.angles:
                if (np.abs(block[:, k]) > llvm.LARGEST_ANGLE).any():
                    return (
                        f"the angle of joint {self.model.joint_names[i]!r} is {np.abs(block[:, k]).max():.3g} rad: "
                        f"beyond {llvm.LARGEST_ANGLE:.0e} its sine has no meaning; reduce it modulo 2π"
                    )
        return ""

    def _singular(self, arrays: dict, bad: np.ndarray, n: int) -> SingularState:
        """The error that names the pivot which fails worst at the first bad state."""
        at = "" if n == 1 else f" {int(bad[0])} (and {len(bad) - 1} more of {n})" if len(bad) > 1 else f" {int(bad[0])}"
        first = {name: x if x.ndim == 1 else x[0] for name, x in arrays.items()}
        equation = unknown = ""
        if self.program.guards:
            values = np.abs(self._guard_values(first)[0])
            ratio = [
                0.0 if not np.isfinite(v) else v / g.threshold if g.threshold > 0 else np.inf
                for v, g in zip(values, self.program.guards, strict=True)
            ]
            order = np.argsort([self.program.guards[k].value for k in range(len(values))])
            failed = [int(k) for k in order if not ratio[k] >= 1.0]
            if failed:
                equation, _, unknown = self.program.guards[failed[0]].label.partition(" → ")
        what = f"equation {equation} does not give {unknown}" if unknown else "the result is not finite"
        return SingularState(
            f"the system cannot be solved at state{at}: {what}. Use on_singular='nan' or 'repivot' to go on, or problem.diagnose()",
            equation, unknown, tuple(int(k) for k in bad),
        )  # fmt: skip

    # ---- control loops -------------------------------------------------------------------------------------------

    def bind(self, q: np.ndarray, qd: np.ndarray, *known: np.ndarray, out=None, **quantities: np.ndarray) -> Step:
        """A prepared call: `step()` reads these arrays as they are then and writes `step.out`, without checks or allocation.

        Arrays must be C-contiguous float64 of full size, one state or (N, …) states each; they are kept. out: an array where one quantity is
        asked for, or {quantity: array}; made if None. Quaternions are taken to be normalised. `step.status` is not
        zero where the order failed (bits BAD_INPUT, BAD_PIVOT, BAD_OUTPUT of `sysdyn.backends.llvm`).
        """
        if self.options.backend != "llvm":
            raise ProblemError("bind needs machine code: compile with backend='llvm'")
        given = self._collect(known, None, quantities)
        given["q"], given["qd"] = q, qd
        arrays, leads = {}, set()
        for name, size in self._sizes.items():
            x = given[name]
            shape = self._shapes.get(name, (size,))
            if not isinstance(x, np.ndarray) or x.dtype != np.float64 or not x.flags.c_contiguous:
                raise InvalidInput(f"bind keeps {name} and reads it in place: it must be a C-contiguous float64 array")
            if x.shape not in ((size,), shape) and x.shape[1:] not in ((size,), shape):
                raise InvalidInput(f"{name} has shape {x.shape}, but {shape} or (N, …) is needed")
            single = x.shape in ((size,), shape)
            arrays[name] = x.reshape(size) if single else x.reshape(-1, size)
            if not single:
                leads.add(len(x))
        if len(leads) > 1:
            raise InvalidInput(f"the arrays hold different numbers of states: {sorted(leads)}")
        lead = tuple(leads)
        outputs = self._out(out, lead)
        status = np.zeros(lead[0] if lead else 1, dtype=np.int64)
        flat = {name: x.reshape(len(status), -1) for name, x in outputs.items()}
        words = self._words(arrays, flat, status, 0, len(status))
        kernel = self._vector if lead else self._scalar
        return Step(kernel, words, outputs, status, (arrays, flat))

    def _out(self, out, lead: tuple[int, ...]) -> dict[str, np.ndarray]:
        shapes = {name: lead + self._shapes.get(name, (size,)) for name, size in self.program.output_groups}
        if out is None:
            return {name: np.zeros(shape) for name, shape in shapes.items()}
        if not isinstance(out, Mapping):
            if len(shapes) != 1:
                raise InvalidInput(f"out must be a dict with {', '.join(shapes)}: the solver has several outputs")
            out = {next(iter(shapes)): out}
        for name, x in out.items():
            if name not in shapes:
                raise UnknownName("output", name, shapes)
            if not isinstance(x, np.ndarray) or x.dtype != np.float64 or not x.flags.c_contiguous or x.shape != shapes[name]:
                raise InvalidInput(f"out[{name!r}] must be a C-contiguous float64 array of shape {shapes[name]}")
            if not x.flags.writeable:
                raise InvalidInput(f"out[{name!r}] is read-only")
        missing = [name for name in shapes if name not in out]
        return {**out, **{name: np.zeros(shapes[name]) for name in missing}}

    # ---- what it is ------------------------------------------------------------------------------------------------

    @property
    def choice(self) -> Choice:
        return self.compiled.choice

    @property
    def ordering(self) -> str:
        """Name of the elimination order in use."""
        return self.choice.ordering

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.options.outputs

    @property
    def flops(self) -> Counts:
        """Exact counts of the program: `end_to_end` from q, q̇ on; `solve` with X, v, c, ν given."""
        return Counts(self.program.flops, self.choice.solve)

    @property
    def fill_in(self) -> int:
        """Entries of L and U that are structural zeros of D."""
        return self.choice.fill_in

    @property
    def triangular(self) -> bool:
        """The permuted matrix is triangular: the solution is one substitution."""
        return self.choice.triangular

    @property
    def safety(self) -> Safety:
        return self.choice.safety

    def report(self) -> str:
        """What was decided offline and why, as text."""
        s, counts = self.safety, self.flops
        lines = [
            repr(self),
            f"  end to end   {counts.end_to_end!r}",
            f"  solve        {counts.solve!r}",
            f"  fill-in      {self.fill_in}{' (triangular)' if self.triangular else ''}",
            f"  safety       {s.states} states, every joint at multiples of π/2 among them: backward error ≤ {s.backward_error:.1e}, "
            f"growth ≤ {s.growth:.3g}",
            f"  least pivot  {s.least_pivot:.2g} of its greatest value: {s.least_pivot_name}",
            f"  offline      {self.compiled.seconds:.2f} s without machine code",
            "  orders considered:",
        ]
        lines += [f"    {name}: {what}" for name, what in self.compiled.considered]
        return "\n".join(lines)

    def __repr__(self) -> str:
        known = " and ".join((", ".join(self._positional[:-1]), self._positional[-1])).removeprefix(" and ") if self._positional else "nothing"
        return (
            f"Solver for {self.model.name!r} ({self.model.nb} bodies, {self.model.nv} freedoms): {', '.join(self.outputs)} from {known}; "
            f"ordering {self.ordering!r}, {self.program.flops.total} operations, fill-in {self.fill_in}"
        )

    # ---- storing it ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike) -> Path:
        """Write the solver to one file (plain arrays and JSON: no machine code, no pickle). Raises ProblemError for custom measurements."""
        path, payload = Path(path), _pack(self.compiled, self.options, self.problem)
        handle, temporary = None, None
        try:
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
            with os.fdopen(handle, "wb") as file:
                file.write(payload)
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
            raise FileError(f"the solver cannot be written to {path}: {error.strerror or error}") from error
        return path

    def __reduce__(self):
        return _restored, (self.problem, _pack(self.compiled, self.options, None), self.on_singular)


class Step:
    """A prepared call: `step()` solves for the values that the bound arrays hold then."""

    __slots__ = ("_keep", "_pointers", "_run", "out", "status")

    def __init__(self, kernel: llvm.Kernel, words: np.ndarray, out: dict, status: np.ndarray, keep):
        work, address = llvm.aligned(kernel.work_doubles)
        self.out, self.status = out, status
        self._run, self._pointers = kernel.run, (words.ctypes.data, address)
        self._keep = (kernel, words, work, keep)

    def __call__(self) -> None:
        self._run(*self._pointers)


def load_solver(path: str | os.PathLike, on_singular: str = "raise") -> Solver:
    """The solver that `Solver.save` wrote. Raises FileError for unreadable, foreign or damaged files."""
    try:
        payload = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        compiled, options, problem = _unpack(payload)
    except FileError as error:
        raise FileError(f"{path} is not a sysdyn solver file of this version: {error}") from error
    if problem is None:
        raise FileError(f"{path} holds no problem: it is a cache entry, not a file written by Solver.save")
    return Solver(problem, options, compiled, on_singular)


def _restored(problem: Problem, payload: bytes, on_singular: str) -> Solver:
    compiled, options, _ = _unpack(payload)
    return Solver(problem, options, compiled, on_singular)


def _pack(compiled: Compiled, options: Options, problem: Problem | None) -> bytes:
    """Plain arrays and one JSON text, as .npz."""
    choice = asdict(compiled.choice)
    row_perm, col_perm = choice.pop("row_perm"), choice.pop("col_perm")
    head = {
        "sysdyn solver": FORMAT, "options": asdict(options), "choice": choice, "considered": compiled.considered,
        "seconds": compiled.seconds, "problem": None if problem is None else problem.to_dict(),
    }  # fmt: skip
    buffer = io.BytesIO()
    np.savez(
        buffer, solver=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8), row_perm=np.array(row_perm, dtype=np.int32),
        col_perm=np.array(col_perm, dtype=np.int32), **compiled.program.to_arrays(),
    )  # fmt: skip
    return buffer.getvalue()


def _unpack(payload: bytes) -> tuple[Compiled, Options, Problem | None]:
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        head = json.loads(bytes(arrays["solver"]).decode())
        if head["sysdyn solver"] != FORMAT:
            raise FileError(f"format {head['sysdyn solver']}, this version reads {FORMAT}: compile it again")
        choice = head["choice"]
        for scope in ("end_to_end", "solve"):
            choice[scope] = Flops(**choice[scope])
        choice["safety"] = Safety(**choice["safety"])
        perms = (tuple(arrays["row_perm"].tolist()), tuple(arrays["col_perm"].tolist()))
        program = Program.from_arrays(arrays)
        found = Choice(row_perm=perms[0], col_perm=perms[1], **choice)
        compiled = Compiled(found, program, tuple((a, b) for a, b in head["considered"]), head["seconds"])
        options = Options(**{**head["options"], "outputs": tuple(head["options"]["outputs"])})
        problem = None if head["problem"] is None else Problem.from_dict(head["problem"])
    except SysdynError:
        raise
    except Exception as error:  # zipfile, numpy and json each raise their own kinds on damaged bytes
        raise FileError(f"{type(error).__name__}: {error}") from error
    return compiled, options, problem


@functools.lru_cache(maxsize=4)
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="sysdyn")


def _address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0]
