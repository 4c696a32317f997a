"""The demonstration: inverse and forward dynamics of a humanoid from its URDF to machine code, checked and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from sysdyn.app.tasks import REFERENCES, WANTED, make_problem
from sysdyn.app.terminal import count_cells, new_table
from sysdyn.errors import FileError, SysdynError
from sysdyn.model import Model
from sysdyn.online.compile import compile
from sysdyn.online.progress import Bar
from sysdyn.online.solver import Solver
from sysdyn.reference.flops import count_flops
from sysdyn.runtime.runner import BoundCall

# States at which solutions are compared with other algorithms (chosen).
CHECKED = 1000
# States of the timed batch (chosen).
TIMED_BATCH = 10_000
# Calls of a timed loop (chosen).
LOOP = 2000
# Repetitions of each timing, whose median counts (chosen).
TIMINGS = 7

# Names in prose of each kind of problem, and symbols of its known and of its wanted quantities.
NOUNS = {"inverse": "inverse dynamics", "forward": "forward dynamics"}
KNOWN = {"inverse": "q̈, fx", "forward": "τ, fx"}
FOUND = {"inverse": "τ", "forward": "q̈"}


def pictures(model: Model, folder: Path) -> dict[str, Path]:
    """{kind of problem: its picture}."""
    return {kind: folder / f"{model.name.lower()}_{kind}.png" for kind in NOUNS}


def run(console: Console, model: Model, urdf: str, folder: Path) -> None:
    """Print the demonstration on `console` and leave two pictures in `folder`. Raises SysdynError.

    urdf: the path of the model's file, which pin reads, too; empty where it has none.
    """
    began = time.perf_counter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder {folder} cannot be made: {error.strerror or error}") from error
    _heading(console, "1  The robot")
    console.print(
        f"{model.name}{', read from its URDF' if urdf else ''}: {model.nb} moving bodies, {model.nv} joints, "
        f"{model.mass:.1f} kg, {model.base} base. Each body has a spatial acceleration a, a wrench f through its "
        "joint, an external wrench fx, a joint torque τ and a joint acceleration q̈. The Newton-Euler equations are "
        "linear in all of these: D(q) d + b(q, q̇) = 0 with a sparse matrix D. Some are known, the others are solved "
        "for."
    )
    solvers = _offline(console, model)
    fastest = _recursive(console, model)
    _counts(console, model, solvers, fastest)
    other = _check(console, model, urdf, {"elimination": solvers, "recursion": fastest})
    _speed(console, model, fastest, other)
    _heading(console, "6  Pictures of the matrix, before and after permutation")
    from sysdyn.app.matrix_plot import plot_matrix, save_figure  # matplotlib takes half a second to import

    for kind, solver in solvers.items():
        path = save_figure(plot_matrix(solver), pictures(model, folder)[kind])
        console.print(f"{NOUNS[kind]}: {path}", soft_wrap=True)
    console.print(f"\nDone in {time.perf_counter() - began:.0f} s. Next: README.md, and sysdyn --help.")


def _heading(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold")


def _offline(console: Console, model: Model) -> dict[str, Solver]:
    _heading(console, "2  Offline, once for each problem: order, program, machine code")
    solvers, facts = {}, []
    for kind, noun in NOUNS.items():
        started = time.perf_counter()
        problem = make_problem(model, kind)
        with Bar(noun) as bar:
            solver = solvers[kind] = compile(problem, outputs=WANTED[kind], formulation="paper", progress=bar)
        spent = f"{time.perf_counter() - started:.2f} s ({'from the cache' if bar.cached else 'cold'})"
        system = problem.system()
        fill = f"{solver.fill_in:,}" + (" (triangular)" if solver.triangular else "")
        size = f"{system.shape[0]:,} = {system.shape[1]:,}"
        facts.append((KNOWN[kind], FOUND[kind], size, f"{system.nnz:,}", solver.ordering, fill, spent))
    table = new_table("", *NOUNS.values())
    names = ("known", "wanted", "equations = unknowns", "entries of D", "order chosen", "fill-in", "offline time")
    for name, *cells in zip(names, *facts, strict=True):
        table.add_row(name, *cells)
    console.print(table)
    tried = _families([name for name, what in solvers["forward"].compiled.considered if "not available" not in what])
    console.print(
        f"Orders of elimination tried for forward dynamics: {', '.join(tried)}. Kept is the one with the fewest "
        f"operations that solves {solvers['forward'].safety.states:,} sampled states accurately with its pivots fixed. "
        "rnea, crba and aba are the orders that amount to these recursive algorithms; the others are found from the "
        "matrix. Fill-in: entries of the factors L and U that are zero in D. Triangular: no elimination is left, only "
        "substitution."
    )
    return solvers


def _recursive(console: Console, model: Model) -> dict[str, Solver]:
    """The same demonstration by the formulation of fewest operations."""
    solvers = {}
    for kind, noun in NOUNS.items():
        with Bar(f"{noun}, recursion") as bar:
            solvers[kind] = compile(make_problem(model, kind), outputs=WANTED[kind], progress=bar)
    chosen = " and ".join(f"{solver.ordering} for {NOUNS[kind]}" for kind, solver in solvers.items())
    console.print(
        "Where only τ or q̈ is wanted, sysdyn.compile goes on from there: the same equations in canonical frames, with "
        f"base inertial parameters, as recursions whose form is found by a search ({chosen}). The unrequested a and f "
        "of every body are left out."
    )
    return solvers


def _families(names: list[str]) -> list[str]:
    """Families of orders by name, with the number of starts if there are several."""
    count: dict[str, int] = {}
    for name in names:
        count[name.split(" ")[0]] = count.get(name.split(" ")[0], 0) + 1
    return [name if n == 1 else f"{name} ({n} starts)" for name, n in count.items()]


def _counts(console: Console, model: Model, solvers: dict[str, Solver], fastest: dict[str, Solver]) -> None:
    _heading(console, "3  Exact operation counts of the compiled programs")
    table = new_table("", "mul", "add", "div", "total", "sin/cos pairs")
    for kind, reference in REFERENCES.items():
        counts = solvers[kind].flops
        table.add_row(f"{NOUNS[kind]}, {FOUND[kind]} of q, q̇, {KNOWN[kind]}", *count_cells(counts.end_to_end))
        if counts.solve is not None:
            table.add_row("    of these, the linear solve alone", *count_cells(counts.solve))
        table.add_row("    as a recursion of few operations", *count_cells(fastest[kind].flops.end_to_end))
        by_the_book = count_flops(reference, model, fx=True)
        table.add_row(f"    for comparison: {reference.__name__.upper()}, by the book", *count_cells(by_the_book))
    console.print(table)
    console.print(
        "RNEA and ABA are the classical recursive algorithms in our own implementation, counted by the same rules: "
        "products with 0 and ±1, changes and copies of signs, the reduction of angles by whole turns and the checks of "
        "pivots are not counted. Every other executed operation is counted; none is estimated."
    )


class _Peer:
    """pin's rnea and aba on the same URDF; joints are matched by name."""

    def __init__(self, model: Model, urdf: str):
        import pinocchio as pin

        self.pin = pin
        self.model = pin.buildModelFromUrdf(urdf)
        self.data = self.model.createData()
        self.order = [model.v_slice(model.joint_index(name)).start for name in list(self.model.names)[1:]]
        self.name = f"pin {pin.__version__}"

    def states(self, *arrays: np.ndarray) -> list[np.ndarray]:
        return [np.ascontiguousarray(x[:, self.order]) for x in arrays]

    def solve(self, kind: str, q: np.ndarray, qd: np.ndarray, x: np.ndarray) -> np.ndarray:
        call = self.pin.rnea if kind == "inverse" else self.pin.aba
        result = np.empty_like(x)
        for k, row in enumerate(zip(*self.states(q, qd, x), strict=True)):
            result[k, self.order] = call(self.model, self.data, *row)
        return result


def _peer(model: Model, urdf: str) -> _Peer | None:
    try:
        return _Peer(model, urdf) if urdf else None
    except ImportError:
        return None


def _check(console: Console, model: Model, urdf: str, solvers: dict[str, dict[str, Solver]]) -> _Peer | None:
    peer = _peer(model, urdf)
    _heading(console, f"4  Check against {peer.name if peer else 'our own RNEA and ABA'} at {CHECKED:,} random states")
    if peer is None:
        console.print("The independent library pin is not there for it, and this check a weaker one: pip install pin.")
    q, qd, x = model.random_state(seed=1, batch=CHECKED)
    x = 10.0 * x
    table = new_table("", "largest relative error (∞-norm)")
    worst = 0.0
    for kind, own in REFERENCES.items():
        expected = peer.solve(kind, q, qd, x) if peer else own(model, q, qd, x)
        for form, compiled in solvers.items():
            found = compiled[kind](q, qd, x)[WANTED[kind][0]]
            error = float(np.max(np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)))
            worst = max(worst, error)
            table.add_row(f"{NOUNS[kind]}, {FOUND[kind]}, by {form}", f"{error:.1e}")
    console.print(table)
    if not worst < 1e-9:
        raise SysdynError(f"the results differ by {worst:.1e}, more than 1e-9: please report this")
    return peer


def _speed(console: Console, model: Model, solvers: dict[str, Solver], peer: _Peer | None) -> None:
    _heading(console, "5  Speed of the recursions on this machine, one thread, medians of this run")
    q, qd, x = model.random_state(seed=2, batch=TIMED_BATCH)
    table = new_table("", *NOUNS.values())
    rows: dict[str, list[float]] = {"batch": [], "bind": [], "peer": []}
    for kind, solver in solvers.items():
        step = solver.bind(q[0].copy(), qd[0].copy(), x[0].copy(), fx=np.zeros((model.nb, 6)))
        jobs: dict[str, tuple[Callable[[], object], int]] = {
            "batch": (partial(solver, q, qd, x, threads=1), TIMED_BATCH),
            "bind": (partial(_repeat, step), LOOP),
        }
        if peer:
            states = list(zip(*peer.states(q[:LOOP], qd[:LOOP], x[:LOOP]), strict=True))
            call = peer.pin.rnea if kind == "inverse" else peer.pin.aba
            jobs["peer"] = (partial(_loop, call, peer, states), LOOP)
        for name, seconds in _medians(jobs).items():
            rows[name].append(seconds)
    table.add_row(f"sysdyn, batch of {TIMED_BATCH:,} states", *(f"{t * 1e9:,.0f} ns a state" for t in rows["batch"]))
    table.add_row("sysdyn, one state, prepared call (bind)", *(f"{t * 1e6:.2f} µs" for t in rows["bind"]))
    if peer:
        table.add_row(f"{peer.name}, called in a Python loop", *(f"{t * 1e6:.2f} µs" for t in rows["peer"]))
        for label, name in (("pin's loop over sysdyn's batch", "batch"), ("pin's call over sysdyn's call", "bind")):
            ratios = (a / b for a, b in zip(rows["peer"], rows[name], strict=True))
            table.add_row(f"ratio: {label}", *(f"{r:.1f} ×" for r in ratios))
    console.print(table)
    if peer:
        console.print("Both are called from Python; pin's figures include the call (rnea, aba), as do ours.")


def _medians(jobs: Mapping[str, tuple[Callable[[], object], int]]) -> dict[str, float]:
    """Median seconds for one unit of each job (function, units); they take turns, so that all meet the same noise."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(TIMINGS + 1):
        for name, (job, units) in jobs.items():
            began = time.perf_counter()
            job()
            if number:  # the first round warms up
                times[name].append((time.perf_counter() - began) / units)
    return {name: float(np.median(t)) for name, t in times.items()}


def _repeat(step: BoundCall) -> None:
    for _ in range(LOOP):
        step()


def _loop(call: Callable, peer: _Peer, states: list) -> None:
    model, data = peer.model, peer.data
    for q, qd, x in states:
        call(model, data, q, qd, x)
