"""States of a robot as they are shown: the arguments of `show`, checked, with one axis of states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model import Model

# Of more states every k-th is shown, so that at most so many are.
MOST_STATES = 1000


@dataclass(frozen=True, eq=False)
class Motion:
    """States as they are shown: q (N, nq), wrenches {frame: (N, 6)}, tau (N, nv) or None, t (N,).

    timed: t is time, and no number of states; every: of so many states one is shown; total: the number of states.
    """

    q: np.ndarray
    wrenches: dict[str, np.ndarray]
    tau: np.ndarray | None
    t: np.ndarray
    timed: bool
    every: int
    total: int


def motion_of(model: Model, q: Any, fx: Any, tau: Any, t: Any) -> Motion:
    """The arguments of `show`, checked, with one axis of states."""
    q = model.neutral() if q is None else q
    each: dict[str, tuple[Any, tuple[int, ...]]] = {"q": (q, (model.nq,))}
    if tau is not None:
        each["tau"] = (tau, (model.nv,))
    if isinstance(fx, Mapping):
        for name, x in fx.items():
            model.frame(name)
            each[f"fx[{name!r}]"] = (x, (6,))
    elif fx is not None:
        each["fx"] = (fx, (model.nb, 6))
    arrays = {name: _numbers(name, x, tail) for name, (x, tail) in each.items()}
    leads = {name: x.shape[: x.ndim - len(each[name][1])] for name, x in arrays.items()}
    try:
        lead = np.broadcast_shapes(*leads.values())
    except ValueError:
        shown = ", ".join(f"{name} {lead}" for name, lead in leads.items())
        raise InvalidInput(f"the batch axes do not fit together: {shown}") from None
    total = math.prod(lead)
    if not total:
        raise InvalidInput("there is no state to show: q has a batch axis of length 0")
    every = -(-total // MOST_STATES)

    def states(name: str) -> np.ndarray:
        tail = each[name][1]
        return np.broadcast_to(arrays[name], (*lead, *tail)).reshape(total, *tail)[::every]

    if isinstance(fx, Mapping):
        wrenches = {name: states(f"fx[{name!r}]") for name in fx}
    else:
        wrenches = {} if fx is None else dict(zip(model.body_names, states("fx").swapaxes(0, 1), strict=True))
    times = np.arange(total)[::every] if t is None else _times(t, total)[::every]
    return Motion(
        model.normalise(states("q")), {name: x for name, x in wrenches.items() if x.any()},
        states("tau") if tau is not None else None, times, t is not None, every, total,
    )  # fmt: skip


def _numbers(name: str, x: Any, tail: tuple[int, ...]) -> np.ndarray:
    """x (…, *tail) as finite floats. Raises InvalidInput."""
    try:
        x = np.asarray(x, dtype=float)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be an array of numbers") from None
    if x.shape[max(0, x.ndim - len(tail)) :] != tail:
        shown = ", ".join(("…", *map(str, tail)))
        raise InvalidInput(f"{name} has shape {x.shape}, but the model needs ({shown})")
    if not np.isfinite(x).all():
        raise InvalidInput(f"{name} has values that are not finite: leave out states that are not solution.ok")
    return x


def _times(t: Any, total: int) -> np.ndarray:
    """t (total,) from its first value on. Raises InvalidInput."""
    t = _numbers("t", t, ())
    if t.shape != (total,) or np.any(np.diff(t) <= 0.0):
        raise InvalidInput(f"t has shape {t.shape}; it is the time of each of the {total} states, and increases")
    return t - t[0]
