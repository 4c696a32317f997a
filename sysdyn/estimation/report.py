"""HTML report of a run: trajectories with ±2 σ, outputs, contacts, biases and dropped readings."""

from __future__ import annotations

from html import escape

import numpy as np

from sysdyn.estimation.run import Run
from sysdyn.files import html
from sysdyn.files.html import TextTable
from sysdyn.model.quantities import QUANTITY
from sysdyn.program.groups import Group
from sysdyn.views import curves
from sysdyn.views.curves import Panel

# Most points of a curve.
PAGE_POINTS = 800
# Headings of the quantities of states.
_STATE = {"q": "positions", "qd": "velocities", "qdd": "accelerations"}


def run_page(run: Run, title: str = "") -> str:
    """The report of a run, an HTML document without external files."""
    title = title or f"{run.model.name}: {', '.join(run.outputs)} of a log"
    arrays = run.arrays()
    tables = {x.title: html.table(x) for x in run.tables()}
    parts = [
        f"<h1>{escape(title)}</h1>", html.text(repr(run)),
        html.section("The robot", html.text(repr(run.model)), html.table(run.model.table())),
        html.section("The run", html.table(_times(run)), tables["quantities"], tables["fit"],
                     html.table(_densities(run), True)),
        html.section("Motion", *(_bands(run, arrays, x) for x in _STATE)),
    ]  # fmt: skip
    for name in run.outputs:
        if name not in _STATE:
            parts.append(html.section(f"Output {name}", _bands(run, arrays, name)))
    if run.contacts:
        parts.append(html.section("Contacts", curves.svg(curves.bars(run.t, run.contacts)), tables["contacts"]))
    if "biases" in tables:
        parts.append(html.section("Biases", tables["biases"], *_biases(run, arrays)))
    if run.fitted:
        parts.append(html.section("Residuals", html.table(_fits(run)), _over_time(run)))
    parts.append(html.section("Dropped readings", *_dropped(run, tables.get("dropped readings", ""))))
    return html.page(title, *parts)


def _times(run: Run) -> TextTable:
    dt = np.diff(run.t)
    rows = [("rows", f"{len(run):,}"), ("time", f"{run.t[0]:.6g} to {run.t[-1]:.6g} s")]
    if len(dt):
        longest = int(np.argmax(dt))
        rows.append(("rate, median", f"{1.0 / np.median(dt):.4g} Hz"))
        rows.append(("longest gap", f"{dt[longest]:.4g} s, at {run.t[longest]:.6g} s"))
    rows += [
        (
            "level",
            "coupled: states and forces at once" if run.coupled else "kinematic: first the states, then the outputs",
        ),
        ("motion", f"white noise on {'jerk' if run.order == 3 else 'snap'}"),
    ]
    if run.unobserved:
        rows.append(("not observable", ", ".join(run.unobserved)))
    return TextTable("the log", ("", ""), rows, 2)


def _densities(run: Run) -> TextTable:
    rows = [(name, f"{x:.4g}", f"{unit}/s^{run.order} √s")
            for (name, x), unit in zip(run.motion.items(), run.columns["std:q"].units, strict=True)]  # fmt: skip
    return TextTable("density of the noise that moves each degree of freedom", ("", "density", "unit"), rows)


def _bands(run: Run, arrays: dict[str, np.ndarray], name: str) -> str:
    """Panels of the components that change most, with ±2 σ except for quaternions, whose σ is of rotation vectors."""
    group, n = run.columns[name], len(run)
    values, std = arrays[name].reshape(n, -1), arrays[f"std:{name}"].reshape(n, -1)
    if name == "q":
        std = _by_position(run, std)
    what = f"{_STATE[name]}, " if name in _STATE else ""
    return _figure(run.t, values, std, group, QUANTITY[name].symbol if name in QUANTITY else name, what)


def _by_position(run: Run, std: np.ndarray) -> np.ndarray:
    """Standard deviations (N, nq), NaN for joints with more positions than degrees of freedom."""
    model = run.model
    found = np.full((len(std), model.nq), np.nan)
    for i, joint in enumerate(model.joints):
        if joint.nq == joint.nv:
            found[:, model.q_slice(i)] = std[:, model.v_slice(i)]
    return found


def _figure(t: np.ndarray, values: np.ndarray, std: np.ndarray, group: Group, symbol: str, what: str = "") -> str:
    chosen = curves.most_changing(values, std)
    step = max(1, -(-len(t) // PAGE_POINTS))
    panels = []
    for k in chosen:
        label = group.labels[k].rpartition(":")[2].strip()
        s = std[::step, k]
        panels.append(
            Panel(label, f"{symbol} [{group.units[k]}]", values[::step, k], s if np.isfinite(s).any() else None)
        )
    some = f"{len(chosen)} of {group.size} shown" if len(chosen) < group.size else ""
    every = f"every {step}. row" if step > 1 else ""
    title = ", ".join(x for x in (what.rstrip(", "), some, every) if x)
    return curves.svg(curves.bands(t[::step], panels, title))


def _biases(run: Run, arrays: dict[str, np.ndarray]) -> list[str]:
    found = []
    for name, x in arrays.items():
        if name.startswith("bias:"):
            group = run.columns[name]
            found.append(_figure(run.t, x, arrays[f"std:{name}"], group, "bias", name.removeprefix("bias:")))
    return found


def _fits(run: Run) -> TextTable:
    """Residuals of each sensor of the state."""
    rows = []
    for name in run.fitted:
        e = run.residuals(name)
        e = e[np.isfinite(e)]
        if len(e):
            share = f"{100.0 * np.mean(np.abs(e) < 2.0):.1f} %"
            rows.append((name, f"{len(e):,}", f"{np.sqrt(np.mean(e * e)):.3g}", share, f"{np.abs(e).max():.3g}"))
    title = (
        "residuals of sensors of the state, in standard deviations of their noise (less than 1 where the path follows)"
    )
    return TextTable(title, ("", "readings", "root mean square", "within 2", "greatest"), rows)


def _over_time(run: Run) -> str:
    """Root mean squares of the residuals of each sensor over time."""
    step, panels = max(1, -(-len(run) // PAGE_POINTS)), []
    for name in run.fitted:
        e = run.residuals(name)
        on = np.isfinite(e)
        size = np.sqrt(np.where(on, e * e, 0.0).sum(axis=1) / np.maximum(on.sum(axis=1), 1))
        panels.append(Panel(name, "residual / σ", np.where(on.any(axis=1), size, np.nan)[::step]))
    return curves.svg(curves.bands(run.t[::step], panels))


def _dropped(run: Run, table: str) -> list[str]:
    """HTML of the rejected outliers: summary table, plot of normalised residuals over time, list of all."""
    if not run.events:
        return ["<p>No reading was dropped.</p>"]
    points: dict[str, tuple[list[float], list[float]]] = {}
    for e in run.events:
        t, size = points.setdefault(e.measurement, ([], []))
        t.append(e.t)
        size.append(e.size)
    arrays = {name: (np.array(t), np.array(size)) for name, (t, size) in points.items()}
    drawn = curves.marks(arrays, "|residual| / σ", (float(run.t[0]), float(run.t[-1])))
    rows = [(e.measurement, e.component, f"{e.t:.6g} s", f"{e.size:.1f} σ", e.why) for e in run.events]
    each = TextTable("each of them", ("sensor", "component", "time", "off by", "found as"), rows, 2)
    return [table, curves.svg(drawn), html.table(each, folded=True)]
