"""A page about a problem for people: its known and wanted quantities, matrix, counts, safety and speed."""

from __future__ import annotations

import platform
import timeit
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import numpy as np

from sysdyn.app.counts import count_forms
from sysdyn.app.demo import CHECKED, TIMED_BATCH
from sysdyn.app.tasks import REFERENCES, WANTED, Task, compile_task
from sysdyn.app.terminal import count_cells
from sysdyn.data.states import random_states
from sysdyn.errors import SysdynError
from sysdyn.files import html
from sysdyn.files.html import TextTable
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.overview import equations, unknowns
from sysdyn.online.estimate import Estimate
from sysdyn.online.pattern import pictures
from sysdyn.online.solver import Solver
from sysdyn.reference.flops import count_flops

# Random states at which estimates are judged (chosen).
ESTIMATED = 50
# Repetitions of each kind of call, of which the least time counts (chosen).
TURNS = 7
# Factor on the standard deviation of a sensor that makes its contribution vanish (chosen).
DEAF = 1e3


def report_page(task: Task, solver: Solver) -> str:
    """The page of a task and its solver, one HTML document that loads nothing. It measures times on this machine."""
    model, problem = solver.model, solver.problem
    title = task.title or f"{model.name}: {', '.join(solver.outputs)}"
    said = solver.report().partition("\n  orders considered")[0]  # which have a table
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(repr(solver))}</p>",
        html.section("The robot", html.text(repr(model)), html.table(model.table())),
        html.section("What is known, and what is asked", html.table(equations(problem)), html.table(unknowns(problem))),
        html.section("The matrix", _matrix(task, solver)),
        html.section("Operations", html.table(_counts(task, solver))),
        html.section(
            "Orders considered", html.table(TextTable("what each came to", ("order", ""), solver.considered, 2))
        ),
        html.section("Safety and accuracy", f"<pre>{escape(said)}</pre>", _checked(task, solver)),
        html.section("Time on this machine", html.table(_times(task, solver))),
    ]
    if problem.noisy:
        parts.append(html.section("What the estimate is worth", *_worth(task, solver)))
    return html.page(title, *parts)


def _matrix(task: Task, solver: Solver) -> str:
    """The matrix that is eliminated; if there is none, that of the paper in an order that is found quickly."""
    shown, said = solver, ""
    if solver.choice.is_recursion:
        shown = compile_task(task, formulation="paper", level="fast", backend="python")
        said = (
            "<p>The program is a recursion and forms no matrix. This is the system as the paper states it, in the "
            f"order {escape(repr(shown.ordering))}: {shown.flops.end_to_end.total:,} operations.</p>"
        )
    drawn = pictures(shown.problem, shown.options, shown.choice)
    hint = '<p class="quiet screen">Wheel: zoom. Drag: move. Double click: whole.</p>'
    return said + (drawn + hint if drawn else "<p>The system is too large to be drawn.</p>")


def _counts(task: Task, solver: Solver) -> TextTable:
    """Counts of this program and, if known, of other forms and of the algorithm by the book."""
    flops = solver.flops
    rows = [(f"this program, {solver.ordering}", *count_cells(flops.end_to_end))]
    if flops.solve is not None:
        rows.append(("of these, the linear solve", *count_cells(flops.solve)))
    if task.kind in REFERENCES:
        rows += [cells[:6] for cells in count_forms(task, None)]
    else:
        for algorithm in REFERENCES.values():
            n = count_flops(algorithm, solver.model, fx=True)
            rows.append((f"for comparison: {algorithm.__name__.upper()} of this robot", *count_cells(n)))
    return TextTable("exact counts, from q and q̇ on", ("", "mul", "add", "div", "total", "sin/cos"), rows)


def _checked(task: Task, solver: Solver) -> str:
    """Distance of answers at random states from the algorithm by the book, if there is one."""
    algorithm = REFERENCES.get(task.kind)
    if algorithm is None or solver.model.couplings or solver.problem.custom:
        return ""
    given = random_states(solver.problem, CHECKED, seed=1)
    arrays, known = given.arrays, {"inverse": "qdd", "forward": "tau"}[task.kind]
    wanted = WANTED[task.kind][0]
    if wanted not in solver.outputs:
        return ""
    fx = arrays["fx"]
    found = solver(arrays["q"], arrays["qd"], arrays[known], fx=fx)[wanted]
    expected = algorithm(solver.model, arrays["q"], arrays["qd"], arrays[known], fx)
    error = np.abs(found - expected).max(axis=-1) / np.abs(expected).max(axis=-1)
    return (
        f"<p>At {CHECKED:,} random states {wanted} is within {error.max():.1e} of {algorithm.__name__.upper()} by the "
        f"book, relative to the greatest entry of a state; the median is {np.median(error):.1e}.</p>"
    )


def _times(task: Task, solver: Solver) -> TextTable:
    """A plain call, a bound one, and a batch on one thread; the least of several turns."""
    batch: dict[str, Any] = dict(random_states(solver.problem, TIMED_BATCH, seed=2, values=task.values).arrays)
    one: dict[str, Any] = {name: _first(x) for name, x in batch.items()}
    q, qd = one.pop("q"), one.pop("qd")
    rows = [("one plain call", _microseconds(lambda: solver(q, qd, **one), 200))]
    rows.append(("one bound call", _microseconds(solver.bind(q, qd, **_in_place(solver, one)), 2000)))
    q_all, qd_all = batch.pop("q"), batch.pop("qd")
    spent = _microseconds(lambda: solver(q_all, qd_all, threads=1, **batch), 1)
    rows.append((f"a state of a batch of {TIMED_BATCH:,}, one thread", spent / TIMED_BATCH))
    cells = [(name, f"{x:.3g} µs") for name, x in rows]
    return TextTable(f"{platform.machine()}, Python {platform.python_version()}", ("call", "time"), cells)


def _in_place(solver: Solver, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `bind`, which reads known quantities whole: zero if only measurements of them are given."""
    problem = solver.problem
    sensed = {m.name: given["y"][m.name] for m in problem.custom if m.name in given.get("y", {})}
    whole = {x: np.zeros(problem.inputs[x].shape) for x in problem.known_quantities}
    whole |= {x: value for x, value in given.items() if x != "y"}
    return whole | ({"y": sensed} if sensed else {})


def _first(x: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
    """The first state of an array, or of each."""
    if isinstance(x, Mapping):
        return {name: np.ascontiguousarray(value[0]) for name, value in x.items()}
    return np.ascontiguousarray(x[0])


def _microseconds(call: Callable[[], object], number: int) -> float:
    call()
    return 1e6 * min(timeit.repeat(call, number=number, repeat=TURNS)) / number


# ---- estimates -------------------------------------------------------------------------------------------------------


def _worth(task: Task, solver: Solver) -> list[str]:
    """Standard deviations of outputs, and by sensor its leverage and the loss without it."""
    given: dict[str, Any] = dict(random_states(solver.problem, ESTIMATED, seed=3, values=task.values).arrays)
    q, qd = given.pop("q"), given.pop("qd")
    estimate = solver(q, qd, **given)
    assert isinstance(estimate, Estimate)
    std = {name: _flat(estimate.std(name)) for name in solver.outputs}
    leverage = estimate.leverage()
    rows = []
    for m in solver.problem.noisy:
        components = m.components(solver.model)
        noise = noise_of(m, solver.model)
        deviations = np.sqrt(np.diagonal(noise.matrix(noise.declared)))
        row = [m.name, str(len(components)), _range(deviations), f"{np.mean(leverage[m.name]):.2f}"]
        rows.append((*row, _loss(solver, (q, qd, given), std, m.name, noise.matrix(noise.declared), noise.full)))
    sensors = TextTable(
        "noisy measurements, priors and equations, and what outputs lose without them",
        ("name", "components", "σ", "leverage", "std of outputs without it"), rows, 1,
    )  # fmt: skip
    outputs = []
    for name in solver.outputs:
        labels = _labels(solver, name)
        outputs += [(label, f"{x:.3g}") for label, x in zip(labels, std[name].mean(axis=0), strict=True)]
    return [
        f"<p>There are {float(np.mean(estimate.redundancy)):.0f} noisy equations more than are needed, which is what "
        "χ² should be. Leverage is the share of a component's own error that the estimate follows: 1 where nothing "
        "else checks it.</p>",
        html.table(sensors),
        html.table(
            TextTable(f"standard deviations, mean of {ESTIMATED} states", ("output", "σ"), outputs), folded=True
        ),
    ]


def _loss(solver: Solver, state: tuple, std: Mapping[str, np.ndarray], name: str, covariance: np.ndarray,
          full: bool) -> str:  # fmt: skip
    """Growth of the standard deviations of outputs without a measurement, as factors: median and greatest."""
    q, qd, given = state
    deaf = DEAF**2 * covariance if full else DEAF * np.sqrt(np.diagonal(covariance))
    try:
        estimate = solver(q, qd, **given, noise={name: deaf})
        assert isinstance(estimate, Estimate)
        without = {output: _flat(estimate.std(output)) for output in std}
    except SysdynError as error:
        return str(error).splitlines()[0]
    told = []
    for output, x in without.items():
        known = std[output].mean(axis=0) > 0.0
        if not known.any():
            continue
        times = x.mean(axis=0)[known] / std[output].mean(axis=0)[known]
        worst = [label for label, there in zip(_labels(solver, output), known, strict=True) if there][times.argmax()]
        told.append(f"× {np.median(times):.3g} (median of {output}), × {times.max():.3g} ({worst})")
    return "; ".join(told)


def _labels(solver: Solver, output: str) -> list[str]:
    return list(solver.problem.outputs(solver.options.outputs)[output].labels)


def _flat(x: np.ndarray) -> np.ndarray:
    """(states, entries)."""
    return np.reshape(x, (ESTIMATED, -1))


def _range(x: np.ndarray) -> str:
    return f"{x.min():.3g}" if x.min() == x.max() else f"{x.min():.3g} to {x.max():.3g}"
