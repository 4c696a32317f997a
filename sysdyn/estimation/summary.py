"""Overview of a run, gathered part by part: ranges, χ², biases, contacts and dropped readings, as tables and words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.estimation.outliers import MOTION, Event
from sysdyn.estimation.state_trajectory import prior_bias_std
from sysdyn.files.html import TextTable
from sysdyn.measurements.input_names import SWITCH, group_of
from sysdyn.measurements.problem import Problem
from sysdyn.program.groups import Group

# Standard deviation of a position that is hardly known at any instant [rad, m] (chosen).
HARDLY_KNOWN = 1.0
# Share of its prior standard deviation above which a bias is not told by a log (chosen).
TOLD = 0.5
# Probability of the band that χ² is compared with (as usual).
BAND = 0.95
# Names of the states, which every run has.
_STATE = ("q", "qd", "qdd")


class Fit(NamedTuple):
    """χ² and its degrees of freedom; coupled: of all sensors, else of sensors of motion only.

    forces: χ² and degrees of freedom of the other measurements, at the states estimated from sensors of motion.
    """

    squares: float
    freedoms: int
    coupled: bool
    forces: tuple[float, int] = (0.0, 0)

    def band(self, share: float = BAND) -> tuple[float, float]:
        """(least, greatest) χ² with this probability if all is as declared."""
        tail, freedoms = 0.5 * (1.0 - share), max(self.freedoms, 1)
        return float(scipy.special.chdtri(freedoms, 1.0 - tail)), float(scipy.special.chdtri(freedoms, tail))


class _Range(NamedTuple):
    """Least and greatest value, mean of the median σ of parts by their rows, and greatest σ."""

    least: float
    greatest: float
    median: float
    spread: float


class Overview:
    """Summary of a run, whose parts are added in order as {column: array (N, …)}; jitter: see `Run`."""

    def __init__(self, columns: Mapping[str, Group], outputs: Sequence[str], jitter: float = 0.0):
        self.jitter = jitter
        self.columns, self.outputs, self.rows = columns, tuple(outputs), 0
        self.begin = self.end = np.nan
        self._ranges: dict[str, _Range] = {}
        self._known: dict[str, np.ndarray] = {}  # least σ of positions and biases
        self._biases: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}  # first, last, σ of the last
        self._contacts: dict[str, tuple[int, int, bool]] = {}  # rows, changes, last
        self._events: dict[str, tuple[int, int, Event]] = {}  # readings, rows, worst

    def add(self, arrays: Mapping[str, np.ndarray], events: Iterable[Event]) -> None:
        n, rows = len(arrays["t"]), self.rows
        for name in dict.fromkeys((*_STATE, *self.outputs)):
            x, std = arrays[name], arrays[f"std:{name}"]
            now = _Range(float(x.min()), float(x.max()), float(np.median(std)), float(std.max()))
            old = self._ranges.get(name, now)
            median = (rows * old.median + n * now.median) / (rows + n)
            self._ranges[name] = _Range(
                min(old.least, now.least), max(old.greatest, now.greatest), median, max(old.spread, now.spread)
            )
        for name in ("q", *(x for x in arrays if x.startswith("bias:"))):
            least = arrays[f"std:{name}"].reshape(n, -1).min(axis=0)
            self._known[name] = np.minimum(least, self._known.get(name, least))
            if name != "q":
                x, (first, *_) = arrays[name], self._biases.get(name, (arrays[name][0],))
                self._biases[name] = first, x[-1], arrays[f"std:{name}"][-1]
        for name in arrays:
            if group_of(name).role == SWITCH:
                on = arrays[name] != 0.0
                count, changes, last = self._contacts.get(group_of(name).name, (0, 0, bool(on[0])))
                changes += int(np.sum(np.diff(np.concatenate([[last], on]).astype(int)) != 0))
                self._contacts[group_of(name).name] = count + int(on.sum()), changes, bool(on[-1])
        by_name: dict[str, list[Event]] = {}
        for event in events:
            by_name.setdefault(event.measurement, []).append(event)
        for name, found in by_name.items():
            worst, instants = max(found, key=lambda e: e.size), len({e.instant for e in found})
            n_before, rows_before, before_ = self._events.get(name, (0, 0, worst))
            worst = max(before_, worst, key=lambda e: e.size)
            self._events[name] = n_before + len(found), rows_before + instants, worst
        self.begin, self.end = (arrays["t"][0] if not rows else self.begin), arrays["t"][-1]
        self.rows += n

    def untold(self, problem: Problem, chosen: Sequence[str]) -> tuple[str, ...]:
        """Names of coordinates that are chosen or hardly known, and of biases known no better than before."""
        found, model = list(chosen), problem.model
        least = zip(model.dof_names, self._known["q"].tolist(), strict=True)
        found += [f"q:{x}" for x, std in least if std > HARDLY_KNOWN]
        for m in problem.biased:
            assert m.drift is not None
            components = m.components(model)
            told = self._known[f"bias:{m.name}"] <= TOLD * prior_bias_std(m, model)
            told |= np.isfinite(m.drift.times(len(components)))
            found += [f"bias of {m.name}: {c}" for c, x in zip(components, told.tolist(), strict=True) if not x]
        return tuple(found)

    # ---- for people ----------------------------------------------------------------------------------------------

    def tables(self, fit: Fit) -> list[TextTable]:
        """Ranges of quantities, χ², biases, contacts, and dropped readings; empty ones left out."""
        found = (
            self._of_ranges(), _of_fit(fit), self._of_times(), self._of_biases(), self._of_contacts(), self._of_events()
        )  # fmt: skip
        return [x for x in found if x.rows]

    def _of_ranges(self) -> TextTable:
        rows = []
        for name, x in self._ranges.items():
            units = ", ".join(dict.fromkeys(self.columns[name].units))
            numbers = (f"{x.least:.4g}", f"{x.greatest:.4g}", f"{x.median:.3g}", f"{x.spread:.3g}")
            rows.append((name, *numbers, units))
        return TextTable("quantities", ("", "least", "greatest", "median σ", "greatest σ", "unit"), rows)

    def _of_times(self) -> TextTable:
        row = ("jitter", f"{self.jitter:.3g}", f"{(self.end - self.begin) / max(self.rows - 1, 1):.3g}", "s")
        return TextTable("times", ("", "σ", "mean step", "unit"), [row] if self.jitter else [])

    def _of_biases(self) -> TextTable:
        rows = []
        for name, (first, last, std) in self._biases.items():
            group = self.columns[name]
            for k, (label, unit) in enumerate(zip(group.labels, group.units, strict=True)):
                cells = (f"{last[k]:.4g}", f"± {std[k]:.2g}", f"{last[k] - first[k]:.2g}", unit)
                rows.append((label.removeprefix("bias:"), *cells))
        return TextTable("biases", ("", "at the end", "σ", "moved by", "unit"), rows)

    def _of_contacts(self) -> TextTable:
        rows = [(x, f"{100.0 * n / self.rows:.1f} %", str(k)) for x, (n, k, _) in self._contacts.items()]
        return TextTable("contacts", ("", "of the rows", "changes"), rows)

    def _of_events(self) -> TextTable:
        rows = []
        for name, (count, instants, worst) in self._events.items():
            what = (f"{worst.size:.1f} σ", f"{worst.t:.6g} s", worst.component)
            rows.append((name, str(count), str(instants), *what))
        return TextTable("dropped readings", ("", "dropped", "in rows", "worst", "at", "of"), rows)

    def lines(self, fit: Fit, chosen: Sequence[str], missing: Mapping[str, int]) -> list[str]:
        """Lines of words for people, of all that was added."""
        low, high = fit.band()
        parts = [f"  outputs   {', '.join(self.outputs) or 'none'}"]
        parts.append(f"  χ²        {fit.squares:.0f}; of {BAND:.0%} of logs as declared {low:.0f} to {high:.0f}")
        if fit.forces[1]:
            low, high = Fit(*fit.forces, fit.coupled).band()
            parts.append(
                f"  forces    χ² {fit.forces[0]:.0f}; of {BAND:.0%} of logs as declared {low:.0f} to {high:.0f}"
            )
        if self.jitter:
            parts.append(
                f"  times     jitter by {self.jitter:.2g} s (σ), which adds to the noise of sensors of the state"
            )
        if self._biases:
            last = ((x.removeprefix("bias:"), now) for x, (_, now, _) in self._biases.items())
            parts.append(f"  biases    {'; '.join(f'{x} {np.array2string(now, precision=3)}' for x, now in last)}")
        if self._contacts:
            shown = (f"{name} {100.0 * n / self.rows:.0f} %" for name, (n, _, _) in self._contacts.items())
            parts.append(f"  contacts  {', '.join(shown)} of the time")
        if chosen:
            parts.append(f"  chosen    {', '.join(chosen)}: nothing in the log tells these, they are as at the start")
        if gone := {name: n for name, n in missing.items() if n}:
            parts.append(f"  missing   {', '.join(f'{name} {n}' for name, n in gone.items())}")
        counts = {name: n for name, (n, _, _) in self._events.items()}
        if impacts := counts.pop(MOTION, 0):
            parts.append(f"  impacts   {impacts}, at which velocities jump")
        if counts:
            parts.append(f"  dropped   {', '.join(f'{name} {n}' for name, n in counts.items())}")
        return parts


def _of_fit(fit: Fit) -> TextTable:
    low, high = fit.band()
    what = "all sensors" if fit.coupled else "sensors of motion"
    rows = [(what, f"{fit.squares:.0f}", f"{fit.freedoms}", f"{low:.0f} to {high:.0f}")]
    if fit.forces[1]:
        (squares, freedoms), (low, high) = fit.forces, Fit(*fit.forces, fit.coupled).band()
        rows.append(("forces, at these states", f"{squares:.0f}", f"{freedoms}", f"{low:.0f} to {high:.0f}"))
    return TextTable("fit", ("", "χ²", "degrees of freedom", f"{BAND:.0%} of logs as declared"), rows)
