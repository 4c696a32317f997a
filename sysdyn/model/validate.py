"""Checks of the parts of a model, each with an error that names the part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from sysdyn.errors import ModelError
from sysdyn.model.constants import clean
from sysdyn.model.inertia import first_moment
from sysdyn.model.se3 import X_motion, translation
from sysdyn.program.arrays import is_integer

# Most moving bodies of a robot: with more, its arrays and frames would take gigabytes (chosen).
MOST_BODIES = 100_000
# Greatest entry of placements and inertias; products of three are finite.
_LARGEST = 1e100


def check_count(bodies: int) -> None:
    """Raises ModelError for more bodies than a robot may have, before memory is taken for them."""
    if bodies > MOST_BODIES:
        raise ModelError(f"{bodies:,} bodies; a robot may have {MOST_BODIES:,}")


def implausible(I: np.ndarray) -> str | None:
    """The reason why no rigid body can have the spatial inertia I (6, 6), or None. Tolerance: 1e-9 of its trace."""
    m = float(I[5, 5])
    h = first_moment(I)
    if m == 0.0 and np.any(h != 0.0):
        return "its mass is 0, yet m·com is not"
    c = h / m if m > 0.0 else np.zeros(3)
    about_com = I[:3, :3] - m * (float(c @ c) * np.eye(3) - np.outer(c, c))
    e = np.linalg.eigvalsh(about_com)
    tolerance = 1e-9 * float(np.trace(I[:3, :3]))
    if e[0] < -abs(tolerance):
        return f"a principal moment of inertia about the com is {e[0]:.3g} < 0"
    if e[0] + e[1] < e[2] - tolerance:
        return f"the principal moments {e[0]:.3g}, {e[1]:.3g}, {e[2]:.3g} violate the triangle inequality"
    return None


def check_names(kind: str, names: Sequence[str]) -> None:
    """Raises ModelError unless the names are non-empty and differ. kind: "body" or "joint"."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise ModelError(f"a {kind} name must be a non-empty string, got {name!r}")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ModelError(f"{kind} names must be unique; used more than once: {', '.join(twice)}")


def unique(name: str, taken: set[str]) -> str:
    """`name` with underscores behind it until it is new; it is noted in `taken`."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def checked_parents(parent: Sequence[int]) -> tuple[int, ...]:
    found = []
    for i, p in enumerate(parent):
        if not is_integer(p):
            raise ModelError(f"parent[{i}] = {p!r}: a body number, or −1 for the base, is needed")
        found.append(int(p))
    return tuple(found)


def check_size(what: str, A: np.ndarray) -> None:
    """Raises ModelError for entries so large that products of some are not finite."""
    if A.size and (largest := float(np.max(np.abs(A)))) > _LARGEST:
        raise ModelError(f"{what} has an entry of size {largest:.3g}, beyond {_LARGEST:g}")


def frozen(A: Any) -> np.ndarray:
    A = np.array(A, dtype=float)
    A.setflags(write=False)
    return A


def checked_placement(X: np.ndarray, what: str) -> np.ndarray:
    """X (6, 6), checked to be [E 0; −E r× E]; entries that cleaning makes 0 or ±1 are exact, all others unchanged."""
    check_size(what, X)
    error, placed = _placed(X.tobytes())
    if not error < 1e-8:
        raise ModelError(f"{what} is not a motion transform [E 0; −E r× E] with E a rotation (error {error:.3g})")
    return placed.copy()


@lru_cache(maxsize=4096)  # models are made of others again and again
def _placed(content: bytes) -> tuple[float, np.ndarray]:
    """(error, cleaned X) of the transform with these bytes."""
    X = np.frombuffer(content).reshape(6, 6)
    E, r = X[:3, :3], translation(X)
    error = max(
        float(np.max(np.abs(E @ E.T - np.eye(3)))),
        abs(float(np.linalg.det(E)) - 1.0),
        float(np.max(np.abs(X - X_motion(E, r)))) / (1.0 + float(np.max(np.abs(r)))),
    )
    cleaned = X_motion(clean(E), clean(r))
    cleaned[3:, :3] = clean(cleaned[3:, :3], np.max(np.abs(r)))
    return error, np.where(np.isin(cleaned, (-1.0, 0.0, 1.0)), cleaned, X) + 0.0


def checked_inertias(inertias: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The inertias, exactly symmetric. Raises ModelError naming the body whose inertia is not of RBDA's form (2.63)."""
    result = inertias.copy()
    for i, (I, name) in enumerate(zip(inertias, names, strict=True)):
        check_size(f"the inertia of body {name!r}", I)
        size = float(np.max(np.abs(I)))
        if np.max(np.abs(I - I.T)) > 1e-9 * size:
            raise ModelError(f"the inertia of body {name!r} is not symmetric")
        m, H = I[5, 5], I[:3, 3:]
        if m < 0.0:
            raise ModelError(f"body {name!r} has mass {m:g} kg; masses are ≥ 0")
        if np.max(np.abs(I[3:, 3:] - m * np.eye(3))) > 1e-9 * size or np.max(np.abs(H + H.T)) > 1e-9 * size:
            raise ModelError(f"the inertia of body {name!r} has not the form [J, m c×; −m c×, m 1]")
        result[i] = (I + I.T) / 2
    return result
