"""Validation of the fields of a model. Each ModelError names the body, joint or frame."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import ModelError
from sysdyn.model.constants import clean
from sysdyn.model.frames import Frame
from sysdyn.model.inertia import first_moment
from sysdyn.model.joints import JOINTS, Free, Joint
from sysdyn.model.se3 import X_motions, translation
from sysdyn.program.arrays import is_integer

# Largest number of bodies; larger models need gigabytes for arrays and frames: chosen.
MAX_BODIES = 100_000
# Largest entry of placements and inertias; a product of three entries is finite.
_MAX_ENTRY = 1e100


def check_count(bodies: int) -> None:
    """Raise ModelError for too many bodies, before memory is allocated."""
    if bodies > MAX_BODIES:
        raise ModelError(f"{bodies:,} bodies; a robot may have {MAX_BODIES:,}")


def implausibility(I: np.ndarray) -> str | None:
    """Reason why a spatial inertia I (6, 6) is physically inconsistent (tolerance 1e-9 of its trace), or None."""
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
    """Raise ModelError unless the names are non-empty and unique. kind: "body" or "joint"."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise ModelError(f"a {kind} name must be a non-empty string, got {name!r}")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ModelError(f"{kind} names must be unique; used more than once: {', '.join(repeated)}")


def unique_name(name: str, taken: set[str]) -> str:
    """Append underscores to `name` until it is not in `taken`; add the result to `taken`."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def checked_parents(parent: Sequence[int]) -> tuple[int, ...]:
    """Convert parents to Python integers. Raises ModelError unless −1 ≤ parent[i] < i."""
    for i, p in enumerate(parent):
        if not is_integer(p):
            raise ModelError(f"parent[{i}] = {p!r}: a body number, or −1 for the base, is needed")
        if p >= i:
            raise ModelError(f"parent[{i}] = {p}: bodies must be numbered so that parents come first")
        if p < -1:
            raise ModelError(f"parent[{i}] = {p}: the base is −1 and bodies are numbered from 0")
    return tuple(map(int, parent))


def check_tree(model: Any) -> None:
    """Raise ModelError for wrong numbers of names and joints, duplicate names, and objects other than joints."""
    for name in ("body_names", "joint_names", "joints"):
        if len(getattr(model, name)) != model.nb:
            raise ModelError(f"{name} has {len(getattr(model, name))} entries, but parent has {model.nb}")
    check_names("body", model.body_names)
    check_names("joint", model.joint_names)
    for i, joint in enumerate(model.joints):
        if not isinstance(joint, Joint):
            raise ModelError(f"joints[{i}] is {joint!r}, not a Joint; valid: {', '.join(JOINTS)}")
    taken = set(model.joint_names)
    for name, joint in zip(model.joint_names, model.joints, strict=True):
        for label in (f"{name}[{k}]" for k in range(joint.nq) if joint.nv > 1):
            if label in taken:  # columns of tables would be ambiguous
                raise ModelError(f"{label!r} is a joint, and a variable of joint {name!r}: rename one of them")


def check_base(model: Any) -> None:
    """Raise ModelError unless the base is fixed, or floating with joint 0 `Free` and all bodies on body 0."""
    if model.base not in ("fixed", "floating"):
        raise ModelError(f'base is {model.base!r}; valid: "fixed", "floating"')
    if model.base == "floating":
        if not model.joints or not isinstance(model.joints[0], Free):
            raise ModelError("a floating-base model must have a Free joint as joint 0")
        if model.parent.count(-1) > 1:
            other = model.body_names[model.parent.index(-1, 1)]
            raise ModelError(f"body {other!r} is a child of the base in a floating-base model; only body 0 may be")


def check_position_limits(model: Any) -> None:
    """Raise ModelError for position limits of joints with several degrees of freedom, and for lower > upper."""
    for i, (name, joint) in enumerate(zip(model.joint_names, model.joints, strict=True)):
        part = model.v_slice(i)
        if joint.nv > 1 and (np.any(model.lower[part] > -math.inf) or np.any(model.upper[part] < math.inf)):
            raise ModelError(f"joint {name!r} has {joint.nv} degrees of freedom: position limits need exactly one")
    if np.any(model.lower > model.upper):
        k = int(np.argmax(model.lower > model.upper))
        raise ModelError(f"the limits of {model.dof_names[k]!r} are lower {model.lower[k]} > upper {model.upper[k]}")


def checked_frames(model: Any) -> dict[str, Frame]:
    """Validated frames of a model, with cleaned placements.

    A frame is added for each body, and a frame "base" if the model has no frames. Raises ModelError.
    """
    frames: dict[str, Frame] = {}
    names = {name: i for i, name in enumerate(model.body_names)}
    declared = ({} if "base" in names else {"base": Frame("base", -1)}) if model.frames is None else model.frames
    for key, f in declared.items():
        if key != f.name:
            raise ModelError(f"frames[{key!r}] is called {f.name!r}: key and name must agree")
        if not -1 <= f.body < model.nb:
            raise ModelError(f"frame {f.name!r} is on body {f.body}; valid: −1 (the base) to {model.nb - 1}")
    placements = checked_placements([f.X for f in declared.values()], [f"X of frame {name!r}" for name in declared])
    for (key, f), X in zip(declared.items(), placements, strict=True):
        if key in names and (f.body != names[key] or not np.array_equal(X, np.eye(6))):
            raise ModelError(f"frame {key!r} has the name of a body: it must be the frame of that body itself")
        frames[key] = Frame(f.name, int(f.body), X, f.joint)
    for name, i in names.items():
        frames.setdefault(name, Frame(name, i))
    return frames


def check_size(what: str, A: np.ndarray) -> None:
    """Raise ModelError if an entry is too large, so that products could overflow."""
    if A.size and (largest := float(np.max(np.abs(A)))) > _MAX_ENTRY:
        raise ModelError(f"{what} has an entry of size {largest:.3g}, beyond {_MAX_ENTRY:g}")


def checked_placements(placements: ArrayLike, names: Sequence[str]) -> np.ndarray:
    """Check that each X (6, 6) is [E 0; −E r× E]. Returns (n, 6, 6) with entries near 0 and ±1 rounded.

    Raises ModelError that begins with the name of the placement.
    """
    X = np.array(placements, dtype=float).reshape(-1, 6, 6)
    for placement, name in zip(X, names, strict=True):
        check_size(name, placement)
    E, r = X[:, :3, :3], translation(X)
    size = np.abs(r).max(axis=1)
    errors = np.max(
        [
            np.abs(E @ E.swapaxes(1, 2) - np.eye(3)).max(axis=(1, 2)),
            np.abs(np.linalg.det(E) - 1.0),
            np.abs(X - X_motions(E, r)).max(axis=(1, 2)) / (1.0 + size),
        ],
        axis=0,
    )
    for name, error in zip(names, errors, strict=True):
        if not error < 1e-8:
            raise ModelError(f"{name} is not a motion transform [E 0; −E r× E] with E a rotation (error {error:.3g})")
    cleaned = X_motions(clean(E), clean(r))
    cleaned[:, 3:, :3] = clean(cleaned[:, 3:, :3], size[:, None, None])
    return np.where(np.isin(cleaned, (-1.0, 0.0, 1.0)), cleaned, X) + 0.0


def checked_inertias(inertias: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Symmetrise inertias (nb, 6, 6). Raises ModelError unless they have the form of RBDA eq. (2.63)."""
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
            raise ModelError(f"the inertia of body {name!r} does not have the form [J, m c×; −m c×, m 1]")
        result[i] = (I + I.T) / 2
    return result
