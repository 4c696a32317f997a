"""Necks and gimbals without inertia in between: whether states at which nothing determines q̈ are answered.

    python experiments/benchmarks/singular.py [--seeds 20] [--states 2000] [--orders NAME …] [--limit 3000]

Three revolute joints, two links without mass, then a point mass (necks) or a body (gimbals). Frames are turned by 90°
as files write it, by rpy="1.5707963 0 …", so that nothing is exactly zero. Each is compiled for q̈ alone, q̈ and τ, and
all unknowns, at two levels, in several orders. States are random, at right angles, within 1e-12 to 1e-4 of them, and
with one joint at a right angle.

A line of the CSV counts states, those called `ok` whose `Solution.reciprocal_condition` is below 1e-12 (wrong), those
refused where it is above 1e-8 (regular), and answers that differ by more than 1e-6 from the same equations in 50
digits, quantity by quantity (contradicted). Where axes that files turn by 1e-8 rad decide, accelerations of 1e17 rad/s²
are right. Robots that are singular everywhere raise an error.

Writes experiments/results/singular.csv.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np
from common import each_alone, greatest_of, harness
from digits import Digits, relative

import sysdyn as sd

# A right angle as files have it.
QUARTER = 1.5707963
# States are singular where the reciprocal condition number of the system is below this.
SINGULAR = 1e-12
# They are regular beyond doubt where it is above this.
REGULAR = 1e-8
# An answer that differs by more from that in 50 digits is contradicted.
CONTRADICTED = 1e-6
# Of the answers, a line counts these.
COUNTS = ("states", "answered", "wrong", "regular", "contradicted")
OUTPUTS: dict[str, str | list[str]] = {"qdd": "qdd", "both": ["qdd", "tau"], "all": "all"}
LEVELS = ("fast", "best")
ORDERS = ("auto", "markowitz", "tearing", "aba")
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


def counted(solver: sd.Solver, states: int, rng: np.random.Generator) -> dict:
    """How many states are answered, and which of the answers and refusals are wrong."""
    problem, q = solver.problem, positions(states, rng)
    system, inputs = sd.assemble(problem), {"q": q, "qd": rng.standard_normal(q.shape), "tau": np.ones(q.shape)}
    solution = solver(*inputs.values(), on_singular="nan")
    nearness, ok, worst, contradicted = solution.reciprocal_condition(), solution.ok, 0.0, 0
    for k in np.flatnonzero(ok).tolist():
        exact = Digits(system, {name: x[k] for name, x in inputs.items()})
        off = max(
            relative(solution[x][k].ravel(), exact.quantity(x)) for x in solver.outputs if exact.quantity(x).any()
        )
        worst, contradicted = max(worst, off), contradicted + (off > CONTRADICTED)
    least = float(nearness[ok].min()) if ok.any() else math.nan
    return {
        "states": states, "answered": int(ok.sum()), "wrong": int((ok & (nearness < SINGULAR)).sum()),
        "regular": int((~ok & (nearness > REGULAR)).sum()), "contradicted": contradicted,
        "least": f"{least:.1e}", "off": f"{worst:.1e}",
    }  # fmt: skip


def answered(seed: int, options: argparse.Namespace) -> dict:
    """The lines of a robot."""
    rows, model = [], robot(seed)
    for outputs, named in OUTPUTS.items():
        for order in options.orders:
            for level in options.levels:
                row = {"robot": model.name, "outputs": outputs, "order": order, "level": level, "error": ""}
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        problem = sd.forward_dynamics(model)
                        solver = sd.compile(problem, order, outputs=named, level=level, backend="python")
                    row |= counted(solver, options.states, np.random.default_rng(seed))
                except sd.SysdynError as error:
                    row["error"] = type(error).__name__
                rows.append(row)
    done = [row for row in rows if not row["error"]]
    return {
        "rows": rows, "robot": model.name, "solvers": len(done), "errors": sorted({row["error"] for row in rows}),
        **{x: sum(row[x] for row in done) for x in COUNTS},
        "off": max((float(row["off"]) for row in done), default=0.0),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=2000)
    parser.add_argument("--orders", nargs="+", default=list(ORDERS))
    parser.add_argument("--levels", nargs="+", default=list(LEVELS))
    found, out = each_alone(parser, "singular", 3000.0, answered)
    rows = [{**dict.fromkeys((*COUNTS, "least", "off"), ""), **row} for x in found for row in x.get("rows", ())]
    harness.write_csv(out, rows)
    done = [row for row in rows if not row["error"]]
    total = {x: sum(row[x] for row in done) for x in COUNTS}
    print(
        f"{len(rows)} solvers, {len(done)} compiled, {sum('rows' not in x for x in found)} robots without a line: "
        f"{total}; answers within {greatest_of(done, 'off'):.1e} of 50 digits"
    )


if __name__ == "__main__":
    main()
