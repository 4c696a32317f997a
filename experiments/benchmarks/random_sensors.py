"""Random regular problems with sensors, by seed: which scalars are known is drawn, a basis of the equations is kept.

With a, f and τ eliminated by the equations of motion, each measured scalar is a row in terms of q̈, fx and the wrenches
of contacts. Rows are taken in a random order, sensors first, and kept where they are independent of those before (a
matroid's greedy basis), so that a square problem has as many equations as unknowns and is regular at a generic state.
In a redundant one some of the kept equations and further ones are noisy; those that stay exact are independent, unless
all are exact: then the further ones follow from the kept ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import icub_models
import numpy as np
import scipy.sparse.linalg

import sysdyn as sd
from sysdyn.model.kinematics import path
from sysdyn.model.quantities import ACCELERATION, WRENCH
from sysdyn.sparse.condition import equilibration

# Joints of a random tree are of one of these sets of types.
JOINTS = (
    ("revolute",), ("revolute", "prismatic"), ("revolute", "prismatic", "spherical"),
    ("revolute", "prismatic", "helical", "cylindrical", "planar", "spherical", "free", "fixed"),
)  # fmt: skip
# Shares of the iCub, the biped and random chains among the robots; the others are random trees.
ICUB, BIPED, CHAINS = 0.1, 0.12, 0.13
# Robots of a random size have at least and at most so many bodies.
LEAST, MOST = 4, 20
# This share of the problems has more equations than unknowns.
REDUNDANT = 0.4
# A row counts as independent where this fraction of its length, equilibrated, is.
INDEPENDENT = 1e-3
# A problem is regular where the equilibrated matrix has a smaller condition number at most of the states.
CONDITION = 1e8
# Regularity is judged at so many random states.
STATES = 4
# Rows and columns are scaled in turn, so many times.
SCALINGS = 8
# So many draws of one seed are tried.
DRAWS = 50


def random_problem(seed: int, exact: bool = False) -> sd.Problem:
    """The regular problem of this seed; redundant ones have more equations than unknowns, and noise unless `exact`."""
    for draw in range(DRAWS):
        rng = np.random.default_rng([seed, draw])
        problem = sensor_problem(random_robot(rng), rng, redundant=rng.random() < REDUNDANT, exact=exact)
        if problem is not None and is_regular(problem):
            return problem
    raise AssertionError(f"seed {seed}: none of {DRAWS} draws is regular")


def random_robot(rng: np.random.Generator) -> sd.Model:
    kind, nb, seed = rng.random(), int(rng.integers(LEAST, MOST + 1)), int(rng.integers(10_000))
    if kind < ICUB:
        return icub()
    if kind < ICUB + BIPED:
        return biped()
    if kind < ICUB + BIPED + CHAINS:
        return sd.chain(nb, seed)
    return sd.random_tree(nb, seed, JOINTS[int(rng.integers(len(JOINTS)))])


@cache
def icub() -> sd.Model:
    return sd.load(str(icub_models.get_model_file("iCubGazeboV2_5")), base="floating")


@cache
def biped() -> sd.Model:
    return sd.load(str(Path(__file__).resolve().parents[2] / "problems" / "biped.urdf"), base="floating")


# ---- what may be measured ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A measurement that may be stated: make(components=, name=, noise=) of some of `labels`; whole: of all or none."""

    kind: type[sd.Measurement]
    make: Callable[..., sd.Measurement]
    labels: tuple
    whole: bool = False


def sensors(model: sd.Model, rng: np.random.Generator, count: int, loaded: Sequence[str]) -> list[Candidate]:
    """Sensors of random kinds, frames and components; those of external wrenches on the bodies `loaded`."""
    bodies = [x for i, x in enumerate(model.body_names) if any(model.joints[j].nv for j in path(model, i))]

    def some(labels: Sequence) -> tuple:
        """All of them, or a few."""
        if rng.random() < 0.4:
            return tuple(labels)
        kept = rng.permutation(len(labels))[: rng.integers(1, min(3, len(labels)) + 1)]
        return tuple(labels[k] for k in sorted(kept.tolist()))

    def one(names: Sequence[str]) -> str:
        return str(names[int(rng.integers(len(names)))])

    def place(names: Sequence[str] = bodies):
        """A body, or a pose fixed in it."""
        body = one(names)
        if rng.random() < 0.5:
            return body
        Q = np.linalg.qr(rng.standard_normal((3, 3)))[0]
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = Q * np.sign(np.linalg.det(Q)), rng.uniform(-0.2, 0.2, 3)
        return body, T

    def framed(cls, names: Sequence[str] = bodies, **more) -> Candidate:
        reference = one(("local", "local", "world"))
        return Candidate(cls, partial(cls, place(names), reference=reference, **more), some(cls.scalars))

    def raw(cls, labels: Sequence[str]) -> Candidate:
        return Candidate(cls, partial(cls, one(bodies)), some(labels))

    def whole(cls) -> Candidate:
        return Candidate(cls, cls, some(cls.scalars))

    def force_torque() -> Candidate:
        make = partial(sd.ForceTorqueSensor, one(model.joint_names), side=one(("child", "parent")))
        return Candidate(sd.ForceTorqueSensor, make, some(WRENCH))

    def motor() -> Candidate:
        moved = [x for x, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv == 1]
        if len(moved) < 2:
            return force_torque()
        chosen = rng.choice(len(moved), 2, replace=False)
        make = partial(sd.MotorTorque, [moved[k] for k in chosen], rng.uniform(0.5, 2.0, (1, 2)))
        return Candidate(sd.MotorTorque, lambda components, **options: make(**options), (0,))

    def custom() -> Candidate:
        """Sums of components of accelerations or wrenches of two bodies, constant or with a function of the state."""
        quantity, rows = one(("a", "f", "fx")), int(rng.integers(1, 4))
        blocks = {(quantity, one(bodies)): rng.standard_normal((rows, 6)) for _ in range(2)}

        def make(components, name, noise=None) -> sd.Measurement:
            chosen = {key: C[list(components)] for key, C in blocks.items()}
            return sd.Linear(chosen, name=name, noise=noise)

        return Candidate(sd.Linear, make, tuple(range(rows)))

    kinds: list[Callable[[], Candidate]] = [
        force_torque,
        force_torque,
        lambda: framed(sd.Accelerometer),
        lambda: framed(sd.Accelerometer),
        lambda: framed(sd.AngularAccelerometer),
        lambda: framed(sd.FrameAcceleration, classical=bool(rng.integers(2))),
        lambda: framed(sd.LoadCells, loaded),
        lambda: framed(sd.LoadCells, loaded),
        lambda: framed(sd.PointContact, loaded),
        lambda: framed(sd.ForceDirection, loaded, direction=rng.standard_normal(3)),
        lambda: framed(sd.NetWrench),
        lambda: raw(sd.BodyAcceleration, ACCELERATION),
        lambda: raw(sd.JointWrench, WRENCH),
        lambda: whole(sd.CentreOfMassAcceleration),
        lambda: whole(sd.MomentumRate),
        motor,
        custom,
    ]
    found, stated = [], set()
    for _ in range(count):
        candidate = kinds[int(rng.integers(len(kinds)))]()
        if candidate.kind in (sd.BodyAcceleration, sd.JointWrench):  # a scalar is stated once
            about = candidate.kind, candidate.make.args
            if about in stated:
                continue
            stated.add(about)
        found.append(candidate)
    return found


def contacts(model: sd.Model, rng: np.random.Generator) -> list[Candidate]:
    """Rigid contacts of bodies that can move, in a third of the problems."""
    moving = [x for i, x in enumerate(model.body_names) if sum(model.joints[j].nv for j in path(model, i)) >= 6]
    if not moving or rng.random() < 0.67:
        return []
    found = []
    for body in rng.choice(moving, int(rng.integers(1, min(2, len(moving)) + 1)), replace=False):
        kind = str(rng.choice(["fixed", "point", "normal", "plane"]))
        make = partial(_contact, str(body), kind)
        found.append(Candidate(sd.Contact, make, (0,), whole=True))
    return found


def _contact(body: str, kind: str, components, name: str, noise=None) -> sd.Measurement:
    return sd.Contact(body, kind, name=name)


def quantities(model: sd.Model, rng: np.random.Generator, loaded: Sequence[str]) -> list[Candidate]:
    """τ or q̈ of every joint, fx of all bodies but those loaded; then what was left out, in a random order."""
    share = rng.choice([0.0, 1.0, rng.random()])
    first, rest = [], []
    for joint, name in zip(model.joints, model.joint_names, strict=True):
        kinds, labels = (sd.JointTorque, sd.JointAcceleration), tuple(range(joint.nv))
        both = [Candidate(cls, partial(cls, name), labels) for cls in kinds]
        if joint.nv:
            chosen = int(rng.random() < share)
            first.append(both[chosen])
            rest.append(both[1 - chosen])
    for body in model.body_names:
        (rest if body in loaded else first).append(_wrench(body))
    return [*first, *(rest[k] for k in rng.permutation(len(rest)))]


def _wrench(body: str) -> Candidate:
    return Candidate(sd.ExternalWrench, partial(sd.ExternalWrench, body), WRENCH)


# ---- which of it is kept -------------------------------------------------------------------------------------------


def sensor_problem(
    model: sd.Model, rng: np.random.Generator, redundant: bool, exact: bool = False
) -> sd.Problem | None:  # fmt: skip
    """A problem that is regular at a generic state; None where what was drawn gives none. exact: without noise."""
    count = int(rng.integers(1, 3 + model.nb // 2))
    loaded = [model.body_names[k] for k in rng.permutation(model.nb)[: rng.integers(1, 3 + model.nb // 4)]]
    drawn = [*contacts(model, rng), *sensors(model, rng, count, loaded), *quantities(model, rng, loaded)]
    kept = basis(model, drawn, rng)
    if kept is None:
        return None
    stated = []
    for k, labels in kept.items():
        share = 0.0 if exact else 0.1 if drawn[k].kind is sd.ExternalWrench else 0.6
        noisy = redundant and not drawn[k].whole and rng.random() < share
        stated.append(_made(drawn[k], labels, k, _noise(len(labels), rng) if noisy else None))
    if redundant:
        further = sensors(model, rng, count, loaded) + [drawn[k] for k in range(len(drawn)) if k not in kept]
        further = [x for x in further if not x.whole and x.kind is not sd.ExternalWrench]
        chosen = [further[k] for k in rng.permutation(len(further))[: 1 + count]]
        for k, x in enumerate(chosen, start=len(drawn)):
            stated.append(_made(x, x.labels, k, None if exact else _noise(len(x.labels), rng)))
        if exact:  # those that follow from others are stated anywhere among them
            stated = [stated[k] for k in rng.permutation(len(stated))]
    return sd.Problem(model, stated)


def _made(candidate: Candidate, labels: Sequence, number: int, noise=None) -> sd.Measurement:
    return candidate.make(components=labels, name=f"{candidate.kind.__name__}#{number}", noise=noise)


def _noise(n: int, rng: np.random.Generator):
    """A standard deviation, one for each component, or a covariance."""
    sizes, kind = 10.0 ** rng.uniform(-2.0, 0.5, n), rng.integers(5)
    if kind < 3:
        return float(sizes[0])
    if kind == 3:
        return sizes
    B = rng.standard_normal((n, n))
    return (B @ B.T / n + np.eye(n)) * sizes[0] ** 2


def basis(model: sd.Model, drawn: Sequence[Candidate], rng: np.random.Generator) -> dict[int, list] | None:
    """{number of a candidate: labels kept}: independent rows, the first ones first, that determine every unknown.

    None where there are none, or a contact depends on another.
    """
    whole = [_made(x, x.labels, k) for k, x in enumerate(drawn)]
    numbers, R = reduced_rows(sd.Problem(model, whole), rng)
    Q, kept = np.zeros((0, R.shape[1])), {}
    for k in range(len(drawn)):
        rows = [r for r, number in enumerate(numbers) if number == k]
        for place, r in enumerate(rows):
            size = np.linalg.norm(R[r])
            v = R[r] / size if size else R[r]
            for _ in range(2):
                v = v - Q.T @ (Q @ v)
            length = np.linalg.norm(v)
            if length > INDEPENDENT:
                Q = np.vstack([Q, v / length])
                kept.setdefault(k, []).append(drawn[k].labels[0 if drawn[k].whole else place])
            elif drawn[k].whole:
                return None
    if len(Q) < R.shape[1]:
        return None
    return {k: labels[:1] if drawn[k].whole else labels for k, labels in kept.items()}


def reduced_rows(problem: sd.Problem, rng: np.random.Generator) -> tuple[list[int], np.ndarray]:
    """(number of its measurement, equilibrated row in terms of q̈, fx and w) of each measured scalar at a random state.

    The equations of motion give N with [a f τ] = N [q̈ fx w] + …: a row [Y₁ Y₂] of both becomes Y₂ + Y₁ N.
    """
    model, system = problem.model, sd.assemble(problem).plain
    q, qd, _ = model.random_state(seed=int(rng.integers(10_000)))
    D = system.D(q).tocsc()
    order = [problem.measurements.index(m) for m in (*problem.raw, *problem.custom)]
    numbers = [order[block[1]] if block[0] == "y" else -1 for block in system.row_blocks]
    motion = np.array([k < 0 for k in numbers])
    free = np.array([block[0] in ("qdd", "fx", "w") for block in system.col_blocks])
    lu = scipy.sparse.linalg.splu(D[motion][:, ~free].tocsc())
    R = D[~motion][:, free].toarray() - D[~motion][:, ~free] @ lu.solve(D[motion][:, free].toarray())
    R[np.abs(R) < 1e-12 * np.abs(R).max(axis=1, keepdims=True)] = 0.0
    r, c = np.nonzero(R)
    rows, columns = equilibration(r, c, np.abs(R[r, c]), R.shape)
    return [k for k in numbers if k >= 0], rows[:, None] * R * columns


def is_regular(problem: sd.Problem) -> bool:
    """Whether every unknown is determined, and the exact equations are independent, at most random states."""
    q, qd, _ = problem.model.random_state(seed=STATES, batch=STATES)
    return 2 * sum(regular_at(problem, {"q": x, "qd": v}) for x, v in zip(q, qd, strict=True)) > STATES


def regular_at(problem: sd.Problem, inputs: dict[str, np.ndarray]) -> bool:
    """The same at one state, inputs by group."""
    system = sd.assemble(problem).plain
    D, exact = system.matrix(system.values(inputs)[0][0]).toarray(), ~system.noisy_mask
    if D.shape[0] < D.shape[1]:
        return False
    return all(condition(A) < CONDITION for A in ([D] if exact.all() else [D, D[exact]]))


def condition(A: np.ndarray) -> float:
    """Greatest over least singular value, greatest entries of rows and columns brought near 1 (Ruiz 2001)."""
    for _ in range(SCALINGS):
        for axis in (1, 0):
            size = np.abs(A).max(axis=axis, keepdims=True)
            A = A / np.sqrt(np.where(size > 0.0, size, 1.0))
    s = np.linalg.svd(A, compute_uv=False)
    return s[0] / s[-1] if s[-1] > 0.0 else np.inf


def described(problem: sd.Problem) -> str:
    """The measurements in one line."""
    names = sorted(m.name.partition("#")[0] for m in problem.measurements)
    return ", ".join(f"{len(list(group))} {name}" for name, group in groupby(names))
