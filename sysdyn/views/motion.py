"""States of a robot as they are shown: the arguments of `show`, checked, with one axis of states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.program.arrays import float_array, reject_not_finite
from sysdyn.program.groups import Group, Groups

# Most states shown; of a longer motion every k-th state (chosen).
MOST_STATES = 1000


class Viewable(Protocol):
    """A result that `show` plays, such as a Run or a Simulation."""

    def view_arguments(self) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class StateSequence:
    """States as they are shown: q (N, nq), wrenches {frame: (N, 6)}, tau (N, nv) or None, t (N,).

    timed: t is time, and no number of states; every: states from a shown one to the next; total: the number of states.
    """

    q: np.ndarray
    wrenches: dict[str, np.ndarray]
    tau: np.ndarray | None
    t: np.ndarray
    timed: bool
    every: int
    total: int


def motion_of(model: Model, q: Any, fx: Any, tau: Any, t: Any) -> StateSequence:
    """The arguments of `show`, checked, with one axis of states."""
    q = model.neutral() if q is None else q
    given = {"q": q} | {
        name: x for name, x in (("tau", tau), ("fx", fx)) if x is not None and not isinstance(x, Mapping)
    }
    groups = [QUANTITY[name].group(model) for name in given]
    if isinstance(fx, Mapping):
        for name, x in fx.items():
            model.frame(name)
            given[f"fx[{name!r}]"] = x
            groups.append(Group(f"fx[{name!r}]", (6,)))
    table = Groups(groups)
    arrays, lead = table.normalise_inputs(given)
    table.reject_not_finite(arrays)
    total = math.prod(lead)
    if not total:
        raise InvalidInput("there is no state to show: q has a batch axis of length 0")
    every = -(-total // MOST_STATES)

    def states(name: str) -> np.ndarray:
        shape = table[name].shape
        return np.broadcast_to(arrays[name], (total, table[name].size)).reshape(total, *shape)[::every]

    if isinstance(fx, Mapping):
        wrenches = {name: states(f"fx[{name!r}]") for name in fx}
    else:
        wrenches = {} if fx is None else dict(zip(model.body_names, states("fx").swapaxes(0, 1), strict=True))
    times = np.arange(total)[::every] if t is None else _times(t, total)[::every]
    return StateSequence(
        model.normalise(states("q")), {name: x for name, x in wrenches.items() if x.any()},
        states("tau") if tau is not None else None, times, t is not None, every, total,
    )  # fmt: skip


def view_arguments(x: Any) -> dict[str, Any]:
    """Arguments of `show` for a result. Raises InvalidInput."""
    if not callable(getattr(x, "view_arguments", None)):
        raise InvalidInput(f"a Model is shown, the Run of a log or a Simulation, not {type(x).__name__}")
    return x.view_arguments()


def _times(t: Any, total: int) -> np.ndarray:
    """t (total,) checked and shifted to begin at zero. Raises InvalidInput."""
    t = float_array("t", t)
    reject_not_finite("t", t, 0)
    if t.shape != (total,) or np.any(np.diff(t) <= 0.0):
        raise InvalidInput(f"t has shape {t.shape}; it is the time of each of the {total} states, and increases")
    return t - t[0]
