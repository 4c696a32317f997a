"""Reports on compiled problems: operation counts, errors against reference algorithms, times, HTML page."""

from __future__ import annotations

import contextlib
import platform
import timeit
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from sysdyn.app.jobs import ALL_ORDERINGS, DEFAULT_OUTPUTS, REFERENCES, Job
from sysdyn.app.terminal import count_cells
from sysdyn.data.states import random_states
from sysdyn.errors import SysdynError, check_among
from sysdyn.files import html
from sysdyn.files.html import TextTable
from sysdyn.measurements.noise import noise_of
from sysdyn.model import Model
from sysdyn.online.display import spy_html
from sysdyn.online.estimate import Estimate
from sysdyn.online.solver import Solver
from sysdyn.passes import PAPER
from sysdyn.program.opcodes import Flops
from sysdyn.reference.flops import count_flops

# Numbers of random states for the comparison, the timed batch and the uncertainties: tuned to seconds.
CHECKED, TIMED_BATCH, _ESTIMATED = 1000, 10_000, 50
# Calls per timed loop, and repetitions of the loop (the minimum is reported): tuned to seconds.
_CALLS, _REPETITIONS = 2000, 7
# Factor on the standard deviation of a sensor that makes its contribution negligible: tuned.
_INFLATION = 1e3


class ReferenceAlgorithm:
    """Textbook RNEA or ABA of this package, the reference for inverse or forward dynamics."""

    def __init__(self, model: Model, kind: str):
        self.model, self.algorithm = model, REFERENCES[kind]
        self.name = self.algorithm.__name__.upper()

    def flops(self) -> Flops:
        return count_flops(self.algorithm, self.model, fx=True)

    def solve(self, q: np.ndarray, qd: np.ndarray, x: np.ndarray, fx: np.ndarray) -> np.ndarray:
        """τ or q̈ (N, nv). x: q̈ or τ (N, nv); fx: external wrenches (N, nb, 6)."""
        return self.algorithm(self.model, q, qd, x, fx)


def reference_of(job: Job) -> ReferenceAlgorithm | None:
    """Textbook algorithm for the problem, or None."""
    applies = job.kind in REFERENCES and not job.problem.model.couplings
    return ReferenceAlgorithm(job.problem.model, job.kind) if applies else None


# ---- operation counts


def count_orders(job: Job, orders: str | None) -> tuple[dict[str, list], dict[str, str]]:
    """Count the operations of elimination orders, of `other_forms`, and of the textbook algorithm.

    Parameters
    ----------
    job : Job
    orders : str or None
        Names of orders, separated by commas. None: all; for noisy problems only "symmetric".

    Returns
    -------
    counts : dict
        {scope: table rows}.
    refused : dict
        {order that is not applicable: reason}.

    Raises
    ------
    UnknownName
    """
    if orders is not None:
        names = orders.replace(" ", "").split(",")
    else:  # the other orders take minutes until they fail for noisy problems
        names = ["symmetric"] if job.problem.noisy else [*ALL_ORDERINGS]
    for name in names:
        check_among("ordering", name, ALL_ORDERINGS)
    counts: dict[str, list] = {"solve": [], "end to end": []}
    refused = {}
    for name in names:
        try:
            solver = replace(job, ordering=name).compile(backend="python")
        except SysdynError as error:
            lines = str(error).splitlines()  # first line, and the second one if the first ends with a colon
            refused[name] = " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")])
            continue
        remark = "triangular" if solver.triangular else ""
        for scope, flops in (("solve", solver.flops.solve), ("end to end", solver.flops.end_to_end)):
            if flops is not None:
                counts[scope].append((name, *count_cells(flops), f"{solver.fill_in:,}", remark))
    for label, solver in other_forms(job).items():
        fill = f"{solver.fill_in:,}" if solver.fill_in else ""
        counts["end to end"].append((f"{label}, {solver.ordering}", *count_cells(solver.flops.end_to_end), fill, ""))
    if reference := reference_of(job):
        counts["end to end"].append((f"{reference.name}, reference", *count_cells(reference.flops()), "", ""))
    return counts, refused


def other_forms(job: Job) -> dict[str, Solver]:
    """{label: solver} of the two alternatives: elimination after passes, and recursion. Omits inapplicable ones."""
    forms = {}
    for formulation, label in (("elimination", "with passes"), ("recursive", "recursive")):
        with contextlib.suppress(SysdynError):
            solver = replace(job, ordering="auto").compile(backend="python", formulation=formulation)
            if solver.passes != PAPER:
                forms[label] = solver
    return forms


def operations(job: Job, solvers: Mapping[str, Solver]) -> TextTable:
    """Table of operation counts of solvers {label: solver} and of textbook algorithms."""
    rows = []
    for label, solver in solvers.items():
        rows.append((f"{label}, {solver.ordering}", *count_cells(solver.flops.end_to_end)))
        if solver.flops.solve is not None:
            rows.append(("  of these, the linear solve", *count_cells(solver.flops.solve)))
    for kind in () if job.problem.model.couplings else REFERENCES:  # the references ignore couplings
        if job.kind not in REFERENCES or kind == job.kind:
            reference = ReferenceAlgorithm(job.problem.model, kind)
            rows.append((f"textbook {reference.name} of this robot", *count_cells(reference.flops())))
    return TextTable("exact counts, from q and q̇ on", ("", "mul", "add", "div", "total", "sin/cos"), rows)


# ---- accuracy and time


def differences(job: Job, solvers: Mapping[str, Solver], reference: ReferenceAlgorithm) -> dict[str, np.ndarray]:
    """{label: (N,) largest relative error against the reference at each of N random states}."""
    arrays, output = random_states(job.problem, CHECKED, seed=1).arrays, DEFAULT_OUTPUTS[job.kind][0]
    x = arrays["q"], arrays["qd"], arrays["qdd" if job.kind == "inverse" else "tau"], arrays["fx"]
    expected = reference.solve(*x)
    scale = np.abs(expected).max(axis=-1)
    results = {label: solver(*x[:3], fx=x[3])[output] for label, solver in solvers.items() if output in solver.outputs}
    return {label: np.abs(y - expected).max(axis=-1) / scale for label, y in results.items()}


def accuracy(name: str, errors: Mapping[str, np.ndarray]) -> TextTable:
    """Table of `differences` from the reference algorithm `name`."""
    rows = [(label, f"{x.max():.1e}", f"{np.median(x):.1e}") for label, x in errors.items()]
    return TextTable(f"relative difference from {name} at {CHECKED:,} random states", ("", "largest", "median"), rows)


def call_times(job: Job, solver: Solver) -> dict[str, float]:
    """{kind of call: seconds} for a plain call, a bound call, and a state of a batch on one thread."""
    problem = solver.problem
    batch: dict[str, Any] = dict(random_states(problem, TIMED_BATCH, seed=2, values=job.values).arrays)
    state: dict[str, Any] = {
        name: {key: y[0].copy() for key, y in x.items()} if isinstance(x, Mapping) else x[0].copy()
        for name, x in batch.items()
    }
    # `bind` needs complete known quantities; they are zero if only measurements of them exist
    bindable = {x: np.zeros(problem.inputs[x].shape) for x in problem.known_quantities} | state
    y = {m.name: state["y"][m.name] for m in problem.custom if m.name in state.get("y", {})}
    bound = solver.bind(**{**{name: x for name, x in bindable.items() if name != "y"}, **({"y": y} if y else {})})
    q, qd = state.pop("q"), state.pop("qd")
    return {
        "a plain call": fastest(lambda: solver(q, qd, **state), _CALLS // 10),
        "a bound call": fastest(bound, _CALLS),
        f"a state of a batch of {TIMED_BATCH:,}, one thread":
            fastest(lambda: solver(**batch, threads=1), 1) / TIMED_BATCH,
    }  # fmt: skip


def fastest(call: Callable[[], object], n: int) -> float:
    """Time [s] per call, the minimum over several loops of n calls."""
    call()
    return min(timeit.repeat(call, number=n, repeat=_REPETITIONS)) / n


def times(seconds: Mapping[str, float]) -> TextTable:
    """Table of times {kind of call: seconds}."""
    rows = [(name, f"{1e6 * x:.3g} µs") for name, x in seconds.items()]
    return TextTable(f"{platform.machine()}, Python {platform.python_version()}", ("call", "time"), rows)


# ---- the page


def report_page(job: Job, solver: Solver) -> str:
    """Report on a job and its solver as self-contained HTML. Times are measured on this machine."""
    model, problem = solver.model, solver.problem
    title = job.title or f"{model.name}: {', '.join(solver.outputs)}"
    summary = solver.report().partition("\n  orders considered")[0]  # the orders have a table of their own
    solvers, reference = {"this program": solver}, reference_of(job)
    compared = differences(job, solvers, reference) if reference and not problem.custom else {}
    considered = TextTable("what each came to", ("order", ""), solver.considered, 2)
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(repr(solver))}</p>",
        html.section("The robot", html.text(repr(model)), html.table(model.table())),
        html.section("What is known, and what is asked", *map(html.table, problem.tables())),
        html.section("The matrix", _matrix(job, solver)),
        html.section("Operations", html.table(operations(job, solvers | (other_forms(job) if reference else {})))),
        html.section("Orders considered", html.table(considered)),
        html.section("Stability and accuracy", f"<pre>{escape(summary)}</pre>",
                     html.table(accuracy(reference.name, compared)) if reference and compared else ""),
        html.section("Time on this machine", html.table(times(call_times(job, solver)))),
    ]  # fmt: skip
    if problem.noisy:
        parts.append(html.section("Uncertainty of the estimate", *map(html.table, _uncertainty(job, solver))))
    return html.page(title, *parts)


def _matrix(job: Job, solver: Solver) -> str:
    """Pictures of the eliminated matrix. For a recursion: the matrix of the paper, with a quick ordering."""
    eliminated, note = solver, ""
    if solver.choice.is_recursion:
        eliminated = job.compile(formulation="paper", level="fast", backend="python")
        note = (
            "<p>The program is a recursion and forms no matrix. This is the system as the paper states it, in the "
            f"order {escape(repr(eliminated.ordering))}: {eliminated.flops.end_to_end.total:,} operations.</p>"
        )
    drawn = spy_html(eliminated.problem, eliminated.options, eliminated.choice)
    hint = '<p class="quiet screen">Wheel: zoom. Drag: move. Double click: whole.</p>'
    return note + (drawn + hint if drawn else "<p>The system is too large to be drawn.</p>")


def _uncertainty(job: Job, solver: Solver) -> list[TextTable]:
    """Two tables: each noisy measurement with its leverage and effect on the outputs; std of all outputs."""
    arrays: dict[str, Any] = dict(random_states(solver.problem, _ESTIMATED, seed=3, values=job.values).arrays)
    estimate = solver(**arrays)
    assert isinstance(estimate, Estimate)
    std, leverage = _mean_std(solver, estimate), estimate.leverage()
    rows = []
    for m in solver.problem.noisy:
        noise = noise_of(m, solver.model)
        covariance = noise.matrix(noise.declared)
        sigma = np.sqrt(np.diagonal(covariance))
        spread = f"{sigma.min():.3g}" + (f" to {sigma.max():.3g}" if sigma.min() < sigma.max() else "")
        inflated = _INFLATION**2 * covariance if noise.full else _INFLATION * sigma
        try:
            without = _mean_std(solver, solver(**arrays, noise={m.name: inflated}))
            growth = "; ".join(_growth(name, std[name], x) for name, x in without.items() if any(std[name].values()))
        except SysdynError as error:
            growth = str(error).splitlines()[0]
        rows.append((m.name, str(len(sigma)), spread, f"{np.mean(leverage[m.name]):.2f}", growth))
    redundant = float(np.mean(estimate.redundancy))
    return [
        TextTable(
            f"noisy measurements, priors and equations; {redundant:.0f} of them are redundant, the expected χ²",
            ("name", "components", "σ", "leverage", "std of outputs without it"), rows,
        ),
        TextTable(
            f"standard deviations, mean of {_ESTIMATED} states", ("output", "σ"),
            [(label, f"{x:.3g}") for entries in std.values() for label, x in entries.items()],
        ),
    ]  # fmt: skip


def _mean_std(solver: Solver, estimate: Any) -> dict[str, dict[str, float]]:
    """{output: {label: standard deviation}}, averaged over the states."""
    groups = solver.problem.outputs(solver.options.outputs)
    std = {name: np.reshape(estimate.std(name), (_ESTIMATED, -1)).mean(axis=0) for name in solver.outputs}
    return {name: dict(zip(groups[name].labels, x.tolist(), strict=True)) for name, x in std.items()}


def _growth(name: str, std: Mapping[str, float], without: Mapping[str, float]) -> str:
    """Median and maximum factor, as text, by which the standard deviations of an output grow without a measurement."""
    factors = {label: without[label] / x for label, x in std.items() if x > 0.0}
    worst = max(factors, key=factors.__getitem__)
    return f"× {np.median([*factors.values()]):.3g} (median of {name}), × {factors[worst]:.3g} ({worst})"
