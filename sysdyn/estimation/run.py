"""Runs in memory: estimates along a log, or at one time step of a filter."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.data.columns import TIME
from sysdyn.data.states import write_states
from sysdyn.errors import UnknownName
from sysdyn.estimation.outliers import Event
from sysdyn.estimation.summary import Fit, RunStatistics, RunSummary
from sysdyn.files.atomic import write_file
from sysdyn.measurements.input_names import switch_group, value_of
from sysdyn.model.quantities import QUANTITY
from sysdyn.program.groups import Group


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Run(RunSummary):
    """Estimates along a log of N rows, of states, biases and the outputs, with their standard deviations.

    One time step of a filter has no axis N.

    t (N,) [s]; q (N, nq), qd, qdd (N, nv), a free joint's twist in its body. run["tau"] (N, nv), run["tau", "l_knee"],
    run["fx"] (N, nb, 6): outputs in the shapes of a Solution.
    events: components of measurements that were dropped at an instant, see `Event`, and impacts, for which a filter
    does not look. contacts: {stance: (N,) bool} as they were used. gauge_fixed: coordinates that no sensor observes,
    which stay as at the start. motion: {degree of freedom: density of its jerk, or of its snap if order is 4}, in the
    unit of q by s^order and √Hz. missing: {measurement: number of values that the log lacks}. jitter: standard
    deviation of the errors of the log's times [s], 0 if its times are exact.
    """

    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    events: tuple[Event, ...]
    contacts: Mapping[str, np.ndarray]
    _values: Mapping[str, np.ndarray]
    _std: Mapping[str, np.ndarray]
    _biases: Mapping[str, tuple[np.ndarray, np.ndarray]]
    _groups: Mapping[str, Group]
    _fit: tuple[float, int]
    _residuals: Mapping[str, np.ndarray] = field(default_factory=dict)
    _forces: tuple[float, int] = (0.0, 0)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(self._values)

    def __len__(self) -> int:
        return len(self.t)

    @property
    def seconds(self) -> float:
        """Length of the log [s]."""
        return float(np.ptp(self.t))

    @property
    def ok(self) -> np.ndarray:
        """(N,) bool: every output is finite, and so is its standard deviation."""
        lead = np.ndim(self.t)
        values = (*self._values.values(), *(self._std[x] for x in self._values))
        finite = (np.isfinite(x).all(axis=tuple(range(lead, x.ndim))) for x in values)
        return np.logical_and.reduce([np.ones(np.shape(self.t), dtype=bool), *finite])

    def first(self) -> Run:
        """The first instant, without the axis N."""
        return replace(self._each(lambda x: x[0]), events=tuple(e for e in self.events if e.instant == 0))

    def _along(self) -> Run:
        """The run with the axis N, which is added to a run of a single time step."""
        return self if np.ndim(self.t) else self._each(lambda x: np.asarray(x)[None])

    def _each(self, of: Callable[[np.ndarray], np.ndarray]) -> Run:
        """The run with the function `of` applied to each of its arrays."""
        return replace(
            self, t=of(self.t), q=of(self.q), qd=of(self.qd), qdd=of(self.qdd),
            contacts={name: of(x) for name, x in self.contacts.items()},
            _values={name: of(x) for name, x in self._values.items()},
            _std={name: of(x) for name, x in self._std.items()},
            _biases={name: (of(x), of(std)) for name, (x, std) in self._biases.items()},
            _residuals={name: of(x) for name, x in self._residuals.items()},
        )  # fmt: skip

    @property
    def fit(self) -> Fit:
        return Fit(*self._fit, self.coupled, self._forces)

    @property
    def statistics(self) -> RunStatistics:
        statistics = RunStatistics()
        statistics.add(self._along())
        return statistics

    def __getitem__(self, key: str | tuple[str, str]) -> np.ndarray:
        """An output (N, …), or that of one joint, body or component; q, qd and qdd as well."""
        name, part = key if isinstance(key, tuple) else (key, None)
        return self._picked({"q": self.q, "qd": self.qd, "qdd": self.qdd, **self._values}, name, part)

    def std(self, quantity: str, name: str | None = None) -> np.ndarray:
        """Standard deviations of q (N, nv) in the tangent space, qd, qdd, or of an output, in its shape."""
        return self._picked(self._std, quantity, name)

    def residuals(self, name: str) -> np.ndarray:
        """Residuals (N, m) of a sensor of the state in standard deviations of its noise, NaN where it was dropped.

        An instant of a filter has none. Raises UnknownName.
        """
        if name not in self._residuals:
            raise UnknownName("sensor of the state in this run:", name, tuple(self._residuals))
        return self._residuals[name]

    @property
    def fitted(self) -> tuple[str, ...]:
        """Names of the sensors of the state that have `residuals`."""
        return tuple(self._residuals)

    def bias(self, name: str) -> np.ndarray:
        """The bias (N, m) of a measurement."""
        return self._of_bias(name)[0]

    def bias_std(self, name: str) -> np.ndarray:
        """Standard deviations (N, m) of the bias of a measurement."""
        return self._of_bias(name)[1]

    def _of_bias(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        if name not in self._biases:
            raise UnknownName("measurement with a bias:", name, tuple(self._biases))
        return self._biases[name]

    def _picked(self, values: Mapping[str, np.ndarray], name: str, part: str | None) -> np.ndarray:
        if name not in values:
            raise UnknownName("output of this run:", name, tuple(values))
        x = values[name]
        if part is None:
            return x
        if name in ("q", "qd", "qdd"):
            model = self.problem.model
            place = model.q_slice if x is self.q else model.v_slice
            found = x[..., place(model.joint_index(part))]
            return found[..., 0] if found.shape[-1] == 1 else found
        group = self._groups[name]
        flat = x.reshape(*np.shape(self.t), -1)
        owners = [label.partition(":")[2].strip() for label in group.labels]
        chosen = [k for k, x in enumerate(owners) if x == part]
        component = re.compile(re.escape(part) + r"(\.\w+|\[\d+\])")  # such as .fx and [3]
        chosen = chosen or [k for k, x in enumerate(owners) if component.fullmatch(x)]
        if not chosen:
            raise UnknownName(f"part of {name!r}:", part, tuple(dict.fromkeys(owners)))
        found = flat[..., chosen]
        return found[..., 0] if len(chosen) == 1 else found

    # ---- files and pages -----------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays (N, …) by the names of `columns`."""
        found = {TIME: self.t, "q": self.q, "qd": self.qd, "qdd": self.qdd, **self._values}
        found |= {f"std:{name}": x for name, x in self._std.items()}
        for name, (x, std) in self._biases.items():
            found |= {f"bias:{name}": x, f"std:bias:{name}": std}
        return found | {switch_group(name): np.asarray(x, dtype=float) for name, x in self.contacts.items()}

    @property
    def columns(self) -> dict[str, Group]:
        """Groups of what is known of an instant: t, q, qd, qdd, outputs; then std:q …, bias:NAME, active:STANCE.

        Their labels are names of columns in files: q:l_knee, std:q:l_knee, "bias:imu: a_x", "active: l_sole".
        """
        model = self.problem.model
        found = {TIME: Group(TIME, (), (TIME,), ("s",))}
        found |= {x: QUANTITY[x].group(model) for x in ("q", "qd", "qdd")} | dict(self._groups)
        rates = QUANTITY["qd"].units(model)
        tangent = Group("q", (model.nv,), tuple(f"q:{x}" for x in model.dof_names),
                        tuple(x.removesuffix("/s") for x in rates))  # fmt: skip
        spread = [tangent if x == "q" else found[x] for x in self._std]
        biases = {m.name: value_of(m, model) for m in self.problem.biased}
        spread += [_renamed("bias:", biases[name]) for name in self._biases]
        found |= {group.name: group for group in spread[len(self._std) :]}
        found |= {group.name: group for group in (_renamed("std:", x) for x in spread)}
        for name in self.contacts:
            found[switch_group(name)] = Group(switch_group(name), (), (f"active: {name}",), ("1",))
        return found

    def save(self, path: str | Path) -> Path:
        """Write all arrays to a .csv, .parquet, .npz or .h5 file, which is whole or not there. Raises FileError."""
        arrays = self._along().arrays()
        return write_states(path, {name: x for name, x in self.columns.items() if name in arrays}, arrays)

    def report(self, path: str | Path, title: str = "") -> Path:
        """Write a page (.html) for people, which loads nothing: curves with ±2 σ, contacts, biases, dropped readings.

        Raises FileError.
        """
        from sysdyn.estimation.report import run_page  # matplotlib takes half a second to import

        return write_file(path, run_page(self._along(), title).encode())

    def view_arguments(self) -> dict[str, Any]:
        """Arguments of `sysdyn.show`: the model, q and t, and tau and fx if they are among the outputs."""
        run = self._along()
        wanted: dict[str, Any] = {x: run[x] for x in ("tau", "fx") if x in run.outputs}
        return {"model": self.model, "q": run.q, "t": run.t, **wanted}


def _renamed(role: str, group: Group) -> Group:
    """The group with a word before its name and those of its columns."""
    return Group(f"{role}{group.name}", group.shape, tuple(f"{role}{x}" for x in group.labels), group.units)
