"""Runs: what a log tells of a whole trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sysdyn.errors import UnknownName
from sysdyn.problem import Problem
from sysdyn.program.groups import Group
from sysdyn.trajectories.filtering import Event

# Share of its prior standard deviation above which a bias is not told by a log (chosen).
TOLD = 0.5


@dataclass(frozen=True)
class Run:
    """Estimates along a log of N rows, of states, biases and the outputs, with their standard deviations.

    One instant of a filter has no axis N.

    t (N,) [s]; q (N, nq), qd, qdd (N, nv), a free joint's twist in its body. run["tau"] (N, nv), run["tau", "l_knee"],
    run["fx"] (N, nb, 6): outputs in the shapes of a Solution.
    events: components of measurements that were dropped at an instant, see `Event`. contacts: {stance: (N,) bool} as
    they were used. chosen: coordinates that nothing tells, which are as at the start. motion: {degree of freedom:
    density of its jerk, or of its snap if order is 4}, in the unit of q by s^order and √Hz.
    """

    problem: Problem
    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    events: tuple[Event, ...]
    contacts: Mapping[str, np.ndarray]
    chosen: tuple[str, ...]
    motion: Mapping[str, float]
    order: int
    coupled: bool
    _values: Mapping[str, np.ndarray] = field(repr=False)
    _std: Mapping[str, np.ndarray] = field(repr=False)
    _biases: Mapping[str, tuple[np.ndarray, np.ndarray]] = field(repr=False)
    _groups: Mapping[str, Group] = field(repr=False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(self._values)

    def __len__(self) -> int:
        return len(self.t)

    def first(self) -> Run:
        """The first instant, without the axis N."""
        return replace(
            self, t=self.t[0], q=self.q[0], qd=self.qd[0], qdd=self.qdd[0],
            contacts={name: x[0] for name, x in self.contacts.items()},
            _values={name: x[0] for name, x in self._values.items()},
            _std={name: x[0] for name, x in self._std.items()},
            _biases={name: (x[0], std[0]) for name, (x, std) in self._biases.items()},
        )  # fmt: skip

    @property
    def untold(self) -> tuple[str, ...]:
        """What the log does not tell: coordinates that are chosen, and biases known no better than before."""
        found = list(self.chosen)
        for m in self.problem.biased:
            assert m.drift is not None
            components = m.components(self.problem.model)
            before = m.drift.deviations(len(components))
            after = np.atleast_2d(self.bias_std(m.name)).min(axis=0)
            found += [
                f"bias of {m.name}: {c}" for c, x, y in zip(components, after, before, strict=True) if x > TOLD * y
            ]
        return tuple(found)

    def __getitem__(self, key: str | tuple[str, str]) -> np.ndarray:
        """An output (N, …), or that of one joint, body or component."""
        name, part = key if isinstance(key, tuple) else (key, None)
        return self._picked(self._values, name, part)

    def std(self, quantity: str, name: str | None = None) -> np.ndarray:
        """Standard deviations of q (N, nv) in the tangent space, qd, qdd, or of an output, in its shape."""
        return self._picked(self._std, quantity, name)

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
            found = x[..., model.v_slice(model.joint_index(part))]
            return found[..., 0] if found.shape[-1] == 1 else found
        group = self._groups[name]
        flat = x.reshape(*np.shape(self.t), -1)
        owners = [label.partition(":")[2].strip() for label in group.labels]
        chosen = [
            k for k, owner in enumerate(owners) if owner == part or owner.partition(".")[0].partition("[")[0] == part
        ]
        if not chosen:
            raise UnknownName(f"part of {name!r}:", part, tuple(dict.fromkeys(owners)))
        found = flat[..., chosen]
        return found[..., 0] if len(chosen) == 1 else found

    def arrays(self) -> dict[str, np.ndarray]:
        """t, q, qd, qdd, the outputs and their standard deviations, as `sysdyn solve --out` writes them."""
        found = {"t": self.t, "q": self.q, "qd": self.qd, "qdd": self.qdd, **self._values}
        found |= {f"std:{name}": x for name, x in self._std.items()}
        for name, (x, std) in self._biases.items():
            found |= {f"bias:{name}": x, f"std:bias:{name}": std}
        return found

    def __repr__(self) -> str:
        t = np.atleast_1d(self.t)
        parts = [f"Run of {self.problem.model.name!r}: {len(t)} instants over {t[-1] - t[0]:.4g} s, "
                 f"{'coupled' if self.coupled else 'kinematic'} level"]  # fmt: skip
        parts.append(f"  outputs   {', '.join(self.outputs) or 'none'}")
        if self._biases:
            shown = (
                f"{name} {np.array2string(np.atleast_2d(x)[-1], precision=3)}" for name, (x, _) in self._biases.items()
            )
            parts.append(f"  biases    {'; '.join(shown)}")
        if self.contacts:
            shown = (f"{name} {100.0 * x.mean():.0f} %" for name, x in self.contacts.items())
            parts.append(f"  contacts  {', '.join(shown)} of the time")
        if self.chosen:
            parts.append(
                f"  chosen    {', '.join(self.chosen)}: nothing in the log tells these, they are as at the start"
            )
        if self.events:
            counts: dict[str, int] = {}
            for event in self.events:
                counts[event.measurement] = counts.get(event.measurement, 0) + 1
            parts.append(f"  dropped   {', '.join(f'{name} {n}' for name, n in counts.items())}")
        return "\n".join(parts)


def listed(events: Sequence[Event]) -> str:
    """The events, a line each."""
    return "\n".join(f"{e.t:.6g} s  {e.measurement}: {e.component}  {e.size:.1f} σ  {e.why}" for e in events)
