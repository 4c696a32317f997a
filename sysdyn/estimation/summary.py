"""Summaries of runs: ranges, χ², biases, contacts and outliers, gathered window by window."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.estimation.outliers import MOTION, Event
from sysdyn.estimation.state_trajectory import prior_bias_std
from sysdyn.files import html
from sysdyn.files.html import TextTable
from sysdyn.measurements.input_names import SWITCH, group_of
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.program.groups import Group

# Standard deviation of a position that is poorly observed at all time steps [rad, m] (chosen).
POORLY_OBSERVED_STD = 1.0
# Share of its prior standard deviation above which a bias counts as unobserved (chosen).
BIAS_OBSERVED_RATIO = 0.5
# Probability of the band that χ² is compared with (as usual).
BAND = 0.95
# Names of the states, which every run has.
_STATE = ("q", "qd", "qdd")


class Fit(NamedTuple):
    """χ² and its degrees of freedom; coupled: of all sensors, else of sensors of motion only.

    forces: χ² and degrees of freedom of the other measurements, at the states estimated from sensors of motion.
    """

    chi2: float
    dof: int
    coupled: bool
    forces: tuple[float, int] = (0.0, 0)

    def band(self, share: float = BAND) -> tuple[float, float]:
        """(least, greatest) χ² with this probability if all is as declared."""
        tail, dof = 0.5 * (1.0 - share), max(self.dof, 1)
        return float(scipy.special.chdtri(dof, 1.0 - tail)), float(scipy.special.chdtri(dof, tail))

    def parts(self) -> list[tuple[str, Fit]]:
        """The χ² of the trajectory, and that of the forces if there is one, by name."""
        what = "all sensors" if self.coupled else "sensors of motion"
        forces = [("forces, at these states", Fit(*self.forces, self.coupled))] if self.forces[1] else []
        return [(what, self._replace(forces=(0.0, 0))), *forces]


class _Range(NamedTuple):
    """Least and greatest value, mean and greatest standard deviation."""

    least: float
    greatest: float
    mean_std: float
    greatest_std: float


class RunStatistics:
    """Statistics of a run, whose successive windows are added in order."""

    def __init__(self) -> None:
        self.columns: Mapping[str, Group] = {}
        self.outputs: tuple[str, ...] = ()
        self.rows, self.jitter, self.fit = 0, 0.0, Fit(0.0, 0, False)
        self.begin = self.end = np.nan
        self.missing, self.rejected = Counter[str](), Counter[tuple[str, str]]()  # by measurement; and component
        self.first_biases: dict[str, np.ndarray] = {}
        self._ranges: dict[str, _Range] = {}
        self._least_std: dict[str, np.ndarray] = {}  # of positions and biases
        self._last_biases: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # and their standard deviations
        self._contacts: dict[str, tuple[int, int, bool]] = {}  # rows, changes, last
        self._events: dict[str, tuple[int, int, Event]] = {}  # readings, rows, worst

    def add(self, run: Any) -> None:
        """Add a window: a `Run` with the axis N.

        The χ² of its trajectory includes all windows before it; the χ² of its forces is of this window alone.
        """
        arrays, n, rows = run.arrays(), len(run), self.rows
        self.columns, self.outputs, self.jitter = run.columns, run.outputs, run.jitter
        forces = (self.fit.forces[0] + run.fit.forces[0], self.fit.forces[1] + run.fit.forces[1])
        self.fit = run.fit._replace(forces=forces)
        self.missing.update(run.missing)
        self.begin, self.end, self.rows = (self.begin if rows else run.t[0]), run.t[-1], rows + n
        for name in dict.fromkeys((*_STATE, *run.outputs)):
            x, std = arrays[name], arrays[f"std:{name}"]
            now = _Range(float(x.min()), float(x.max()), float(std.mean()), float(std.max()))
            old = self._ranges.get(name, now)
            self._ranges[name] = _Range(
                min(old.least, now.least), max(old.greatest, now.greatest),
                (rows * old.mean_std + n * now.mean_std) / self.rows, max(old.greatest_std, now.greatest_std),
            )  # fmt: skip
        biases = [m.name for m in run.problem.biased]
        for name in biases:
            self.first_biases.setdefault(name, run.bias(name)[0])
            self._last_biases[name] = run.bias(name)[-1], run.bias_std(name)[-1]
        for name in ("q", *(f"bias:{x}" for x in biases)):
            least = arrays[f"std:{name}"].reshape(n, -1).min(axis=0)
            self._least_std[name] = np.minimum(least, self._least_std.get(name, least))
        for name in (x for x in arrays if group_of(x).role == SWITCH):
            on = arrays[name] != 0.0
            count, changes, last = self._contacts.get(group_of(name).name, (0, 0, bool(on[0])))
            changes += int(np.sum(np.diff(on, prepend=last)))
            self._contacts[group_of(name).name] = count + int(on.sum()), changes, bool(on[-1])
        self._add_events(run.events)

    def _add_events(self, events: Sequence[Event]) -> None:
        self.rejected.update((e.measurement, e.component) for e in events)
        by_name: dict[str, list[Event]] = {}
        for event in events:
            by_name.setdefault(event.measurement, []).append(event)
        for name, some in by_name.items():
            count, rows, worst = self._events.get(name, (0, 0, some[0]))
            rows += len({e.instant for e in some})
            self._events[name] = count + len(some), rows, max(worst, *some, key=lambda e: e.size)

    @property
    def impacts(self) -> int:
        """Number of impacts."""
        return self._events[MOTION][0] if MOTION in self._events else 0

    def unobserved(self, problem: Problem, gauge_fixed: Sequence[str]) -> tuple[str, ...]:
        """Names of gauge-fixed and poorly observed coordinates, and of biases that the log does not determine."""
        names, model = list(gauge_fixed), problem.model
        least = zip(model.dof_names, self._least_std["q"].tolist(), strict=True)
        names += [f"q:{x}" for x, std in least if std > POORLY_OBSERVED_STD]
        for m in problem.biased:
            assert m.drift is not None
            components = m.components(model)
            observed = self._least_std[f"bias:{m.name}"] <= BIAS_OBSERVED_RATIO * prior_bias_std(m, model)
            observed |= np.isfinite(m.drift.times(len(components)))
            names += [f"bias of {m.name}: {c}" for c, x in zip(components, observed.tolist(), strict=True) if not x]
        return tuple(names)

    # ---- tables and text -----------------------------------------------------------------------------------------

    def tables(self) -> list[TextTable]:
        """Tables of ranges, χ², jitter, biases, contacts and dropped readings; empty ones are omitted."""
        tables = (
            self._ranges_table(),
            self._fit_table(),
            self._times_table(),
            self._bias_table(),
            *self._switch_tables(),
        )
        return [x for x in tables if x.rows]

    def _ranges_table(self) -> TextTable:
        rows = []
        for name, x in self._ranges.items():
            units = ", ".join(dict.fromkeys(self.columns[name].units))
            numbers = (f"{x.least:.4g}", f"{x.greatest:.4g}", f"{x.mean_std:.3g}", f"{x.greatest_std:.3g}")
            rows.append((name, *numbers, units))
        return TextTable("quantities", ("", "least", "greatest", "mean σ", "greatest σ", "unit"), rows)

    def _fit_table(self) -> TextTable:
        rows = []
        for what, fit in self.fit.parts():
            low, high = fit.band()
            rows.append((what, f"{fit.chi2:.0f}", f"{fit.dof}", f"{low:.0f} to {high:.0f}"))
        return TextTable("fit", ("", "χ²", "degrees of freedom", f"{BAND:.0%} of logs as declared"), rows)

    def _times_table(self) -> TextTable:
        row = ("jitter", f"{self.jitter:.3g}", f"{(self.end - self.begin) / max(self.rows - 1, 1):.3g}", "s")
        return TextTable("times", ("", "σ", "mean step", "unit"), [row] if self.jitter else [])

    def _bias_table(self) -> TextTable:
        rows = []
        for name, (last, std) in self._last_biases.items():
            group, first = self.columns[f"bias:{name}"], self.first_biases[name]
            for k, (label, unit) in enumerate(zip(group.labels, group.units, strict=True)):
                cells = (f"{last[k]:.4g}", f"± {std[k]:.2g}", f"{last[k] - first[k]:.2g}", unit)
                rows.append((label.removeprefix("bias:"), *cells))
        return TextTable("biases", ("", "at the end", "σ", "moved by", "unit"), rows)

    def _switch_tables(self) -> tuple[TextTable, TextTable]:
        """Contacts, and outliers."""
        contacts = [(x, f"{100.0 * n / self.rows:.1f} %", str(k)) for x, (n, k, _) in self._contacts.items()]
        rejected = []
        for name, (count, rows, worst) in self._events.items():
            what = (f"{worst.size:.1f} σ", f"{worst.t:.6g} s", worst.component)
            rejected.append((name, str(count), str(rows), *what))
        return (
            TextTable("contacts", ("", "of the rows", "changes"), contacts),
            TextTable("dropped readings", ("", "dropped", "in rows", "worst", "at", "of"), rejected),
        )

    def lines(self, gauge_fixed: Sequence[str]) -> list[str]:
        """Lines of text for `repr`."""
        lines = [("outputs", ", ".join(self.outputs) or "none")]
        for head, (_, fit) in zip(("χ²       ", "forces    χ²"), self.fit.parts(), strict=False):
            low, high = fit.band()
            lines.append((head, f"{fit.chi2:.0f}; of {BAND:.0%} of logs as declared {low:.0f} to {high:.0f}"))
        if self.jitter:
            lines.append(
                ("times", f"jitter by {self.jitter:.2g} s (σ), which adds to the noise of sensors of the state")
            )
        if self._last_biases:
            last = (f"{name} {np.array2string(x, precision=3)}" for name, (x, _) in self._last_biases.items())
            lines.append(("biases", "; ".join(last)))
        if self._contacts:
            shares = (f"{name} {100.0 * n / self.rows:.0f} %" for name, (n, _, _) in self._contacts.items())
            lines.append(("contacts", f"{', '.join(shares)} of the time"))
        if gauge_fixed:
            lines.append(("fixed", f"{', '.join(gauge_fixed)}: not observable in the log, they are as at the start"))
        if gaps := [f"{name} {n}" for name, n in self.missing.items() if n]:
            lines.append(("missing", ", ".join(gaps)))
        if self.impacts:
            lines.append(("impacts", f"{self.impacts}, at which velocities jump"))
        if counts := [f"{name} {n}" for name, (n, _, _) in self._events.items() if name != MOTION]:
            lines.append(("dropped", ", ".join(counts)))
        return [f"  {head:<9} {text}" for head, text in lines]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RunSummary(ABC):
    """What a run in memory and a run in a file have in common.

    gauge_fixed: coordinates that no sensor observes, which stay as at the start. motion {degree of freedom: density of
    its jerk, or of its snap if order is 4}, in the unit of q by s^order and √Hz. missing {measurement: number of values
    that the log lacks}. jitter: standard deviation of the errors of the log's times [s], 0 if its times are exact.
    """

    problem: Problem
    gauge_fixed: tuple[str, ...]
    motion: Mapping[str, float]
    order: int
    coupled: bool
    missing: Mapping[str, int]
    jitter: float = 0.0

    @property
    @abstractmethod
    def statistics(self) -> RunStatistics:
        """Statistics of all rows."""

    @property
    def model(self) -> Model:
        return self.problem.model

    @property
    def fit(self) -> Fit:
        """χ² of the trajectory and of the forces."""
        return self.statistics.fit

    def chi2(self) -> float:
        """Minimum of the sum of squares from which the states were estimated: χ² with `redundancy` degrees of freedom.

        Readings, motion and prior, in standard deviations; of the kinematic level sensors of motion, of the coupled one
        all. Of an instant of a filter the squared innovations of the last readings, normalised. Readings that were
        dropped do not count; stances count by the weights of Student's distribution, which take off up to a tenth.
        """
        return self.fit.chi2

    @property
    def redundancy(self) -> int:
        """Number of readings and exact rows, less those that determine the first state: degrees of freedom."""
        return self.fit.dof

    def chi2_band(self, share: float = BAND) -> tuple[float, float]:
        """(least, greatest) χ² with this probability if noise, motion and biases are as declared or learnt."""
        return self.fit.band(share)

    @property
    def unobserved(self) -> tuple[str, ...]:
        """Names of coordinates that are gauge-fixed or poorly observed, and of biases that the log does not determine.

        Gauss-Markov biases are never listed.
        """
        return self.statistics.unobserved(self.problem, self.gauge_fixed)

    def tables(self) -> list[TextTable]:
        """Ranges of quantities, χ², biases, contacts, and dropped readings; empty ones left out."""
        return self.statistics.tables()

    def _repr_html_(self) -> str:
        return html.fragment(html.text(repr(self)), *map(html.table, self.tables()))

    def __repr__(self) -> str:
        x, level = self.statistics, "coupled" if self.coupled else "kinematic"
        head = f"Run of {self.model.name!r}: {x.rows} instants over {x.end - x.begin:.4g} s, {level} level"
        return "\n".join([head, *x.lines(self.gauge_fixed)])
