"""Limbs, linkages and parallel robots that are straight, folded and nearly so: answers, refusals, and digits.

    python experiments/benchmarks/repeated.py [--seeds 36] [--states 2800] [--limit 3000]

Seeds 0 to 23 are chains of 2 to 5 links in a plane, turned in space, whose tip is pinned, clamped or closes a loop, on
a fixed base or as two legs of a floating trunk. The others are `mechanisms`: a walker on two soles, one held twice, a
parallelogram of revolute joints and one with a third crank, a Stewart platform, a Delta robot. Of ten states six have
joints at random angles, and four have those that matter at 0, at ±π, or within 1e-15 to 1e-3 of these. At rest, and, at
every fourth state, moving.

A line of the CSV counts states, and answers, which must meet the equations of motion and of the rows within 1e-6: those
whose forces are open (shared), which must be as short as any that do, and the others, which must agree with the same
equations in 50 digits if they are nearly singular (digits), quantity by quantity. Then those that do not (wrong),
refusals (refused), and of these the ones at rest where least squares meets all equations within 1e-9 with the
accelerations of 50 digits (solvable). Of rows that repeat each other at every state `compile` leaves some out.

A limb that is bent by 1e-13 to 1e-9 rad is refused, although least squares meets its equations: it drops the direction
in which the limb hardly resists, while in 50 digits wrenches of 1e8 to 1e13 N stop this direction. Accelerations of
both differ by their own size, so an angle that is no more than rounding decides between them.

Writes experiments/results/repeated.csv.
"""

from __future__ import annotations

import argparse

import numpy as np
from common import each_alone, greatest_of, harness
from digits import Digits, relative
from mechanisms import KINDS, MECHANISMS, NEAR, Mechanism, right_angles

import sysdyn as sd
from sysdyn.model.joints import Free
from sysdyn.model.se3 import X_motion

# Answers that are off by more are wrong; a refused state is solvable if less is left.
WRONG, LEFT = 1e-6, 1e-9
COUNTS = ("states", "shared", "answered", "digits", "wrong", "refused", "solvable")
# Shares of the greatest singular value of J H^-1/2 below which one is zero, or small: errors of 1e-12 stay below 1e-8
# above that.
NOTHING, SMALL = 1e-13, 1e-4
# Share below which one is zero in more digits, too, but for what rounding makes of it: 50 digits divide by that.
ROUNDING = 1e-15
LIMBS = 24  # Seeds of limbs.
HOLDS: dict[str, tuple[str, ...]] = {
    "pinned": ("a_x", "a_y"),
    "clamped": ("alpha_z", "a_x", "a_y"),
    "loop": ("a_x", "a_y"),
}


def limb(n: int, rng: np.random.Generator) -> sd.Model:
    """n links of 1 m in a plane that is turned about x."""
    com = np.array([[0.5, 0.0, 0.0]] * n) * rng.uniform(0.6, 1.4, (n, 1))
    inertia = np.array([np.diag(rng.uniform(0.01, 0.05) * np.array([0.4, 1.0, 1.0])) for _ in range(n)])
    alpha = [rng.uniform(-1.0, 1.0), *[0.0] * (n - 1)]
    mass = rng.uniform(0.5, 2.0, n)
    return sd.from_dh(alpha=alpha, a=[0.0, *[1.0] * (n - 1)], d=np.zeros(n), mass=mass, com=com, inertia=inertia)


def walker(n: int, rng: np.random.Generator) -> sd.Model:
    """A floating trunk with two such limbs."""
    legs = [limb(n, rng), limb(n, rng)]
    names = ["trunk", *(f"{side}{k}" for side in "lr" for k in range(n))]
    places = [np.eye(6)]
    for side, leg in zip((-1.0, 1.0), legs, strict=True):
        hip = X_motion(np.eye(3), np.array([0.0, 0.1 * side, 0.0]))
        places += [leg.X_tree[0] @ hip, *leg.X_tree[1:]]
    parent = [-1, 0, *range(1, n), 0, *range(n + 1, 2 * n)]
    joints = [Free(), *legs[0].joints, *legs[1].joints]
    trunk = np.diag([0.3, 0.4, 0.2, 8.0, 8.0, 8.0])
    inertias = [trunk, *legs[0].inertias, *legs[1].inertias]
    return sd.Model("walker", names, ["base", *names[1:]], joints, parent, places, inertias, legs[0].gravity)


def problem(seed: int) -> tuple[sd.Problem, str, list[int]]:
    """(problem, its name, numbers in q of the joints beyond the first of a limb)."""
    rng = np.random.default_rng(seed)
    n, kind, floating = int(rng.integers(2, 6)), list(HOLDS)[seed % 3], seed % 4 == 3
    end = np.eye(4)
    end[0, 3] = 1.0
    if floating:
        model = walker(max(n, 3), rng)
        tips = ["l" + str(max(n, 3) - 1), "r" + str(max(n, 3) - 1)]
        held = [sd.Contact((tip, end), HOLDS[kind], name=tip) for tip in tips]
        bent = [model.q_slice(i).start for i, name in enumerate(model.body_names) if name[1:] not in ("runk", "0")]
    else:
        n = max(n, 3 if kind == "clamped" else 2)
        model = limb(n, rng)
        tip, far = (model.body_names[-1], end), np.eye(4)
        far[0, 3] = float(n)  # where the straight limb ends
        held = [
            sd.LoopJoint(tip, (model.body_names[0], far), HOLDS[kind], name="tip") if kind == "loop" and n > 2
            else sd.Contact(tip, HOLDS[kind], name="tip")
        ]  # fmt: skip
        bent = list(range(1, n))
    stated = [sd.JointTorque("all", name="tau"), sd.ExternalWrench("all", name="fx"), *held]
    return sd.Problem(model, stated), f"{'walker' if floating else 'limb'} of {n}, {kind}", bent


def limbs(seed: int) -> Mechanism:
    made, name, bent = problem(seed)

    def positions(n: int, rng: np.random.Generator) -> np.ndarray:
        q = made.model.random_state(seed=int(rng.integers(1000)), batch=n)[0]
        angles, others = right_angles(n, len(bent), rng)
        q[:, bent] = np.where(others[:, None], q[:, bent], angles)
        return q

    return Mechanism(name, made, positions)


def states(made: Mechanism, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    model = made.problem.model
    q = made.positions(n, rng)
    qd = rng.standard_normal((n, model.nv)) * (np.arange(n) % 4 == 3)[:, None]
    return {"q": q, "qd": qd, "tau": rng.standard_normal((n, model.nv)), "fx": np.zeros((n, model.nb, 6))}


def answered(seed: int, options: argparse.Namespace) -> dict:
    """The line of a problem."""
    rng = np.random.default_rng(seed)
    made = limbs(seed) if seed < LIMBS else MECHANISMS[(seed - LIMBS) % len(MECHANISMS)](rng)
    row = {"problem": made.name, **dict.fromkeys(COUNTS, 0), "off": 0.0}
    now = states(made, options.states, rng)
    solver = sd.compile(made.problem, outputs=["qdd", "w"], on_singular="nan", progress=False)
    found, kept = solver(**now), solver.problem
    q, qd, tau = now["q"], now["qd"], now["tau"]
    H, C = (sd.kinematics(kept.model, x) for x in ("mass_matrix", "bias"))
    here, rest = H(q), tau - C(q, qd)
    J = sd.operational_space(kept.model, kept.constraints, "jacobian")(q)
    rates = sd.operational_space(kept.model, kept.constraints, "acceleration")(q, qd, tau=tau)
    drift = rates - _times(J, np.linalg.solve(here, rest[..., None])[..., 0])  # J̇ q̇
    # singular values of J H^-1/2, of which a few are zero, and a few nearly so
    half = np.linalg.inv(np.linalg.cholesky(here))
    sizes = np.linalg.svd(J @ np.swapaxes(half, -1, -2), compute_uv=False)
    sizes = sizes / sizes[:, :1]
    shared, nearly = (sizes < NOTHING).any(axis=1), ((sizes >= NOTHING) & (sizes < SMALL)).any(axis=1)
    row |= {"states": len(q), "refused": int((~found.ok).sum())}
    system = sd.assemble(kept)
    still = ~found.ok & ~qd.any(axis=1)
    for k in np.flatnonzero(still):
        K = np.block([[here[k], -J[k].T], [J[k], np.zeros((J.shape[1],) * 2)]])
        right = np.concatenate([rest[k], -drift[k]])
        x = np.linalg.lstsq(K, right, rcond=1e-12)[0]
        if np.abs(K @ x - right).max() < LEFT * (1.0 + np.abs(right).max()):
            exact = Digits(system, {name: v[k].ravel() for name, v in now.items()})
            row["solvable"] += bool(relative(x[: len(rest[k])], exact.quantity("qdd"), least=1e-3) < WRONG)
    force = _times(here, found.qdd) - rest  # that the constraints have to exert
    w, JT = found["w"], np.swapaxes(J, -1, -2)
    size = 1.0 + np.abs(found.qdd).max(axis=1) + np.abs(w).max(axis=1)
    off = np.maximum(np.abs(force - _times(JT, w)).max(axis=1), np.abs(_times(J, found.qdd) + drift).max(axis=1)) / size
    for k in np.flatnonzero(found.ok & (shared | nearly)):
        one = {x: v[k] for x, v in now.items()}
        close, open_always = nearly[k] and not shared[k], sizes[k].min() < ROUNDING
        if close or (k % KINDS == NEAR and not open_always and not solver(**one).undetermined):
            exact = Digits(system, {x: v.ravel() for x, v in one.items()})
            off[k] = max(relative(found[x][k].ravel(), exact.quantity(x), least=1e-3) for x in ("qdd", "w"))
            row["digits"] += 1
        else:
            off[k] = max(off[k], longer(JT[k], force[k], w[k]))
    row |= {"shared": int((found.ok & shared).sum()), "answered": int((found.ok & ~shared).sum())}
    row["wrong"], row["off"] = int((off[found.ok] > WRONG).sum()), float(off[found.ok].max(initial=0.0))
    return {x: f"{v:.1e}" if x == "off" else v for x, v in row.items()}


def longer(JT: np.ndarray, force: np.ndarray, w: np.ndarray) -> float:
    """Share by which w is longer than the shortest that makes the force, beyond what rounding makes of that."""
    U, sizes, V = np.linalg.svd(JT, full_matrices=False)
    along, scale = U.T @ force, 1.0 + np.abs(force).max()
    for rank in range(1, len(sizes) + 1):  # the least that makes the force
        if np.abs(U[:, :rank] @ along[:rank] - force).max() < WRONG * scale:
            shortest = np.linalg.norm(along[:rank] / sizes[:rank])
            apart = abs(shortest - np.linalg.norm(w)) / (1.0 + np.linalg.norm(w))
            return max(0.0, apart - 1e-14 * sizes[0] / sizes[rank - 1])
    return 1.0


def _times(A: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.einsum("nij,nj->ni", A, x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=2800)
    rows, out = each_alone(parser, "repeated", 3000.0, answered)
    done = [row for row in rows if "problem" in row]
    harness.write_csv(out, done)
    total = {x: sum(row[x] for row in done) for x in COUNTS}
    print(f"{len(done)} of {len(rows)} problems: {total}; off by {greatest_of(done, 'off'):.1e} at most")


if __name__ == "__main__":
    main()
