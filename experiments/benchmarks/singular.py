"""Necks and gimbals without inertia in between: whether states at which nothing determines q̈ are answered.

    python experiments/benchmarks/singular.py [--robots 20] [--states 2000] [--orders NAME …] [--limit 120]

Three revolute joints, two links without mass, then a point mass (necks) or a body (gimbals). Frames are turned by 90°
as files write it, by rpy="1.5707963 0 …", so that nothing is exactly zero. Each is compiled for q̈ alone, q̈ and τ, and
all unknowns, at two levels, in several orders. States are random, at right angles, within 1e-12 to 1e-4 of them, and
with one joint at a right angle.

A line of the CSV counts states, those called `ok` whose `Solution.reciprocal_condition` is below 1e-12 (wrong), and
those refused though the least singular value of the joint-space inertia is above 1e-8 of the greatest (regular).
Answers where it is below 1e-14 are counted, too (extreme): there axes that files turn by 1e-8 rad decide, which are
given to eight digits, and no relative change of an entry below 1e-12 makes the matrix singular. Robots that are
singular everywhere raise an error.

Writes experiments/results/singular.csv.
"""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path

import numpy as np
from common import RESULTS, alone, apart, experiments

import sysdyn as sd

# A right angle as files have it.
QUARTER = 1.5707963
# States are singular where the reciprocal condition number of the system is below this.
SINGULAR = 1e-12
# They are extreme and regular where that of the joint-space inertia is below and above these.
EXTREME, REGULAR = 1e-14, 1e-8
OUTPUTS: dict[str, str | list[str]] = {"qdd": "qdd", "both": ["qdd", "tau"], "all": "all"}
LEVELS = ("fast", "best")
ORDERS = ("auto", "natural", "colamd", "torn", "aba")
JOINT = """<joint name="j{k}" type="revolute"><parent link="{parent}"/><child link="{child}"/>
<origin xyz="{xyz}" rpy="{rpy}"/><axis xyz="0 0 1"/><limit lower="-3" upper="3" effort="1" velocity="1"/></joint>"""


def robot(seed: int) -> sd.Model:
    """A neck of even seed, a gimbal of odd seed."""
    rng = np.random.default_rng(seed)
    point = seed % 2 == 0
    x, y, z = rng.uniform(0.01, 0.2, 3) * (rng.random(3) < 0.7)
    offset = float(rng.choice([0.0, 0.0095, 0.02])) if point else 0.0
    if point and offset == 0.0 and seed % 4:
        offset = 0.0095
    turns = [f"{s * QUARTER} 0 {t * QUARTER}" for s, t in rng.integers(-1, 2, (3, 2)) | np.array([1, 0])]
    turns[0] = f"0 0 {int(rng.integers(4)) * QUARTER}"
    places = ["0 0 0.1", f"{offset} 0 0", "0 0 0"]
    inertia = 0.0 if point else 1e-3
    names = ["base", "first", "second", "head"]
    joints = "".join(
        JOINT.format(k=k, parent=names[k], child=names[k + 1], xyz=places[k], rpy=turns[k]) for k in range(3)
    )
    body = (
        f'<link name="head"><inertial><origin xyz="{x} {y} {z}"/><mass value="1.3"/><inertia ixx="{inertia}" '
        f'iyy="{1.3 * inertia}" izz="{1.7 * inertia}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )
    links = "".join(f'<link name="{x}"/>' for x in names[:3])
    return sd.load(f'<robot name="{"neck" if point else "gimbal"}{seed}">{links}{body}{joints}</robot>')


def positions(n: int, rng: np.random.Generator) -> np.ndarray:
    """(n, 3)"""
    q, kind = rng.uniform(-3.0, 3.0, (n, 3)), np.arange(n) % 4
    right = rng.integers(-2, 3, (n, 3)) * (math.pi / 2)
    q = np.where((kind == 1)[:, None], right, q)
    q = np.where((kind == 2)[:, None], right + 10.0 ** rng.uniform(-12.0, -4.0, (n, 3)), q)
    one = rng.integers(0, 3, n)
    held = (kind == 3)[:, None] & (np.arange(3) == one[:, None])
    return np.where(held, rng.integers(-2, 3, (n, 1)) * (math.pi / 2), q)


def of_inertia(model: sd.Model, q: np.ndarray) -> np.ndarray:
    """(n,): least over greatest singular value of H(q)."""
    values = np.linalg.svd(sd.crba(model, q), compute_uv=False)
    return np.asarray(values[:, -1] / values[:, 0])


def counted(solver: sd.Solver, states: int, rng: np.random.Generator) -> dict:
    """How many states are answered, and which of the answers and refusals are wrong."""
    q = positions(states, rng)
    solution = solver(q, rng.standard_normal(q.shape), np.ones(q.shape), on_singular="nan")
    nearness, ok, inertia = solution.reciprocal_condition(), solution.ok, of_inertia(solver.model, q)
    least = float(nearness[ok].min()) if ok.any() else math.nan
    return {
        "states": states, "answered": int(ok.sum()),
        "wrong": int((ok & (nearness < SINGULAR)).sum()), "regular": int((~ok & (inertia > REGULAR)).sum()),
        "extreme": int((ok & (inertia < EXTREME)).sum()), "least": f"{least:.1e}",
    }  # fmt: skip


def answered(seed: int, states: int, orders: list[str], levels: list[str]) -> dict:
    """The lines of a robot, as one."""
    rows, model = [], robot(seed)
    for outputs, named in OUTPUTS.items():
        for order in orders:
            for level in levels:
                row = {"robot": model.name, "outputs": outputs, "order": order, "level": level, "error": ""}
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        problem = sd.forward_dynamics(model)
                        solver = sd.compile(problem, order, outputs=named, level=level, backend="python")
                    row |= counted(solver, states, np.random.default_rng(seed))
                except sd.SysdynError as error:
                    row["error"] = type(error).__name__
                rows.append(row)
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", type=int, default=20)
    parser.add_argument("--states", type=int, default=2000)
    parser.add_argument("--orders", nargs="+", default=list(ORDERS))
    parser.add_argument("--levels", nargs="+", default=list(LEVELS))
    parser.add_argument("--limit", type=float, default=900.0, help="CPU seconds of each robot")
    parser.add_argument("--out", type=Path, default=RESULTS / "singular.csv")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        return alone(options.limit, lambda: answered(options.one, options.states, options.orders, options.levels))
    rows: list[dict] = []
    for seed in range(options.robots):
        arguments = [
            "--one",
            seed,
            "--states",
            options.states,
            "--orders",
            *options.orders,
            "--levels",
            *options.levels,
        ]
        found = apart(Path(__file__), arguments, options.limit)
        if "rows" not in found:
            print(f"robot {seed}: {found}", flush=True)
            continue
        empty = {"states": "", "answered": "", "wrong": "", "regular": "", "extreme": "", "least": ""}
        rows += [{**row, **{x: row.get(x, "") for x in empty}} for row in found["rows"]]
        done = [row for row in found["rows"] if not row["error"]]
        print(
            f"{found['rows'][0]['robot']}: {len(done)} solvers, {len(found['rows']) - len(done)} errors "
            f"{sorted({row['error'] for row in found['rows']} - {''})}, {sum(row['wrong'] for row in done)} singular "
            f"states answered, {sum(row['regular'] for row in done)} regular ones refused",
            flush=True,
        )
        experiments.write_csv(options.out, rows)
    done = [row for row in rows if not row["error"]]
    print(
        f"{len(rows)} solvers, {len(done)} compiled: {sum(row['answered'] for row in done)} answers at "
        f"{sum(row['states'] for row in done)} states, {sum(row['wrong'] for row in done)} of singular states; "
        f"{sum(row['regular'] for row in done)} regular states refused"
    )


if __name__ == "__main__":
    main()
