"""Limbs that are straight, folded and nearly so while contacts or loops hold them: answers, refusals, and digits.

    python experiments/benchmarks/repeated.py [--seeds 24] [--states 4000] [--limit 3000]

Chains of 2 to 5 links in a plane, turned in space, whose tip is pinned, clamped or closes a loop, on a fixed base or as
two legs of a floating trunk. Of the joints beyond the first of a limb all are at random angles, or all at 0, at ±π, or
within 1e-15 to 1e-3 of these. At rest, and, at every fourth state, moving.

A line of the CSV counts states; answers whose forces are open (shared), which must meet the equations of motion and of
the rows within 1e-6, with wrenches as short as those of a dense solve; other answers, which must agree with the same
equations in 50 digits within 1e-6, quantity by quantity; those of both kinds that do not (wrong); refusals (refused),
and of these the ones at rest, where least squares meets all equations within 1e-9 (solvable).

Writes experiments/results/repeated.csv.
"""

from __future__ import annotations

import argparse

import numpy as np
from common import each_alone, experiments
from digits import Digits, relative

import sysdyn as sd
from sysdyn.model.joints import Free
from sysdyn.model.spatial import X_motion

# Answers that are off by more are wrong; a refused state is solvable if less is left.
WRONG, LEFT = 1e-6, 1e-9
COUNTS = ("states", "shared", "answered", "wrong", "refused", "solvable")
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


def states(made: sd.Problem, bent: list[int], n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    model = made.model
    q, qd, _ = model.random_state(seed=int(rng.integers(1000)), batch=n)
    kind = np.arange(n) % 5
    right = rng.integers(-1, 2, (n, len(bent))) * np.pi
    right = np.where((kind == 1)[:, None], 0.0, right)
    near = right + 10.0 ** rng.uniform(-15.0, -3.0, (n, 1)) * rng.choice([-1.0, 1.0], (n, len(bent)))
    near = np.where((kind == 4)[:, None], near, right)
    q[:, bent] = np.where((kind == 0)[:, None], q[:, bent], near)
    qd *= (np.arange(n) % 4 == 3)[:, None]
    return {"q": q, "qd": qd, "tau": rng.standard_normal((n, model.nv)), "fx": np.zeros((n, model.nb, 6))}


def answered(seed: int, options: argparse.Namespace) -> dict:
    """The line of a problem."""
    made, name, bent = problem(seed)
    row = {"problem": name, **dict.fromkeys(COUNTS, 0), "off": 0.0}
    rng = np.random.default_rng(seed)
    given = states(made, bent, options.states, rng)
    solver = sd.compile(made, outputs=["qdd", "w"], on_singular="nan", progress=False)
    found, space = solver(**given), sd.operational_space(made.model, made.constraints, ["jacobian", "velocity"])
    H, C = sd.kinematics(made.model, "mass_matrix"), sd.kinematics(made.model, "bias")
    rates = sd.operational_space(made.model, made.constraints, "acceleration")
    system = made.system()
    for k in range(options.states):
        now = {x: v[k] for x, v in given.items()}
        alone = solver(**now)
        row["states"] += 1
        here, J = H(now["q"]), space(now["q"], now["qd"])["jacobian"]
        rest = now["tau"] - C(now["q"], now["qd"])
        drift = rates(now["q"], now["qd"], tau=now["tau"]) - J @ np.linalg.solve(here, rest)  # J̇ q̇
        if not found.ok[k]:
            row["refused"] += 1
            if not now["qd"].any():
                K = np.block([[here, -J.T], [J, np.zeros((len(J), len(J)))]])
                right = np.concatenate([rest, -drift])
                x = np.linalg.lstsq(K, right, rcond=1e-12)[0]
                row["solvable"] += bool(np.abs(K @ x - right).max() < LEFT * (1.0 + np.abs(right).max()))
            continue
        if alone.undetermined:
            row["shared"] += 1
            size = 1.0 + np.abs(found.qdd[k]).max() + np.abs(found["w"][k]).max()
            motion, rows = here @ found.qdd[k] - rest - J.T @ found["w"][k], J @ found.qdd[k] + drift
            shortest = np.linalg.lstsq(J.T, here @ found.qdd[k] - rest, rcond=1e-10)[0]
            parts = motion, rows, np.linalg.norm(shortest) - np.linalg.norm(found["w"][k])
            off = max(float(np.abs(x).max()) for x in parts) / size
        else:
            row["answered"] += 1
            exact = Digits(system, {x: v.ravel() for x, v in now.items()})
            off = max(relative(found[x][k].ravel(), exact.quantity(x), least=1e-3) for x in ("qdd", "w"))
        row["off"], row["wrong"] = max(row["off"], off), row["wrong"] + (off > WRONG)
    return {x: v if isinstance(v, str) else int(v) for x, v in row.items() if x != "off"} | {"off": f"{row['off']:.1e}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=4000)
    rows, out = each_alone(parser, "repeated", 3000.0, answered)
    done = [row for row in rows if "problem" in row]
    experiments.write_csv(out, done)
    total = {x: sum(row[x] for row in done) for x in COUNTS}
    print(f"{len(done)} of {len(rows)} problems: {total}; off by {max(float(row['off']) for row in done):.1e} at most")


if __name__ == "__main__":
    main()
