"""Exact operations of inverse and forward dynamics, against the best known figures and the targets of the project.

    python experiments/benchmarks/counts.py [--effort 4] [--states 10000] [--only NAME]
    python experiments/benchmarks/counts.py --release

Writes experiments/results/counts.csv; with --release, run when a version is released, counts_released.csv: totals of
the default search, of two more arms, too, which no later version may exceed (tests/experiments/test_benchmark_page.py).
A count is of the program that runs: multiplications, additions, divisions and square roots, end to end from q, q̇, with
no external wrench; sin/cos pairs beside. "error" is the greatest difference to RNEA or ABA over random states, relative
to the greatest entry of the state's result. "solve" rows: X, v, c, ν given. "best_known" is the least of what was
published or made by hand for the robot ("published"), of the formulas of RBDA ch. 10 for its number of joints ("rbda"),
and of our textbook algorithms on it ("textbook").
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import icub_models
import numpy as np
from common import write_csv
from nori.arms import load_arm
from nori.counters import RBDA

import sysdyn as sd

# The iCub's description.
URDF = Path(icub_models.get_model_file("iCubGazeboV2_5"))
# States are checked in batches of this many.
CHUNK = 1000


class Row(NamedTuple):
    """One figure: the robot, the fewest operations known from others, and those aimed at; None: there are none."""

    robot: str
    problem: str
    model: Callable[[], sd.Model]
    published: int | None
    target: int | None
    outputs: str = ""
    scope: str = "end to end"
    contacts: tuple[tuple[str, str], ...] = ()  # (frame, kind) of what the ground holds; q̈ and w are counted then


def robot(name: str) -> Callable[[], sd.Model]:
    return lambda: load_arm(name)[0]


def general(name: str) -> Callable[[], sd.Model]:
    """The geometry of the robot with inertial parameters of which none is zero or equal to another."""

    def make() -> sd.Model:
        model = load_arm(name)[0]
        return model.replace(inertias=sd.chain(model.nb, seed=1).inertias, strict=None)

    return make


def icub() -> sd.Model:
    return sd.load(URDF)


def standing() -> sd.Model:
    return sd.load(URDF, base="floating")


def quadruped() -> sd.Model:
    return sd.load("sysdyn:quadruped", base="floating")


def orthogonal() -> sd.Model:
    """Seven joints, each at a right angle to the next and some way off it, of general inertial parameters."""
    rng = np.random.default_rng(5)
    alpha = np.pi / 2 * np.array([0, -1, 1, -1, 1, -1, 1])
    a, d = (np.append(0.0, rng.uniform(0.1, 0.5, 6)) for _ in range(2))
    model = sd.from_dh(alpha, a, d, np.ones(7), np.zeros((7, 3)), np.tile(np.eye(3), (7, 1, 1)))
    return model.replace(inertias=sd.chain(7, seed=1).inertias, strict=None)


def tree(n: int) -> Callable[[], sd.Model]:
    return lambda: sd.auto_tree(n, 1, 1.5, 0.9)


# Each row of the table is the count of one program.
ROWS = (
    Row("gen6R", "inverse", robot("gen6R"), 721, 700),
    Row("puma560, general values", "inverse", general("puma560"), 499, 480),
    Row("puma560, own numbers", "inverse", robot("puma560"), 320, 310),
    Row("rx90", "inverse", robot("rx90"), 475, None),
    Row("iiwa7", "inverse", robot("iiwa7"), 570, None),
    Row("gen6R", "forward", robot("gen6R"), 1444, 1350),
    Row("rx90", "forward", robot("rx90"), 838, 780),
    Row("puma560, general values", "forward", general("puma560"), 907, 850),
    Row("puma560, own numbers", "forward", robot("puma560"), 591, 560),
    Row("iiwa7", "forward", robot("iiwa7"), 1089, 1000),
    Row("auto_tree(30, 1, 1.5, 0.9)", "forward", tree(30), 12363, 10000),
    Row("iCub, fixed base", "inverse", icub, 7458, 4000),
    Row("iCub, fixed base", "forward", icub, 16809, 9000),
    Row("auto_tree(6, 1, 1.5, 0.9), every unknown", "forward", tree(6), 2400, 1800, "all", "solve"),
)  # fmt: skip

# Rows that are counted by default search, too, so that growth since a release is seen.
WATCHED = (
    *ROWS,
    Row("general arm of seven joints", "inverse", lambda: sd.chain(7), None, None),
    Row("orthogonal arm of seven joints", "inverse", orthogonal, None, None),
    Row("iCub on one foot", "forward", standing, None, 7900, contacts=(("l_sole", "fixed"),)),
    Row("iCub on a foot and a point", "forward", standing, None, 10500,
        contacts=(("l_sole", "fixed"), ("r_sole", "point"))),
    Row("iCub on two feet", "forward", standing, None, 11500, contacts=(("l_sole", "fixed"), ("r_sole", "fixed"))),
    Row("quadruped on four points", "forward", quadruped, None, None,
        contacts=tuple((f"{x}_foot", "point") for x in ("lf", "rf", "lh", "rh"))),
)  # fmt: skip


# Textbook algorithms of each problem, and names of RBDA's formulas for it.
TEXTBOOK = {"inverse": (sd.rnea,), "forward": (sd.aba, sd.forward_dynamics_crba)}
FORMULA = {"inverse": "rnea", "forward": "aba"}


def known(row: Row, model: sd.Model) -> dict[str, int | str]:
    """The columns of what was known before."""
    found: dict[str, int | str] = {"published": row.published or "", "rbda": "", "textbook": ""}
    if row.scope == "end to end":
        found["rbda"] = RBDA[FORMULA[row.problem]](model.nv).total
        found["textbook"] = min(sd.count_flops(f, model).total for f in TEXTBOOK[row.problem])
    return {"best_known": min(x for x in found.values() if isinstance(x, int)), **found}


def error(model: sd.Model, solver: sd.Solver, problem: str, states: int) -> float:
    """Greatest error of τ or q̈ over random states."""
    worst = 0.0
    for start in range(0, states, CHUNK):
        q, qd, x = model.random_state(seed=start, batch=min(CHUNK, states - start))
        found = getattr(solver(q, qd, x), "tau" if problem == "inverse" else "qdd")
        expected = (sd.rnea if problem == "inverse" else sd.aba)(model, q, qd, x)
        difference = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
        worst = max(worst, float(difference.max()))
    return worst


def compiled(row: Row, model: sd.Model, effort: float = 1.0, backend: str = "llvm") -> tuple[sd.Solver, sd.Flops]:
    """(solver, its operations in the scope of the row)."""
    problem = sd.inverse_dynamics(model) if row.problem == "inverse" else sd.forward_dynamics(model)
    problem = problem + [sd.Contact(frame, kind, name=frame) for frame, kind in row.contacts]
    usual = ["tau" if row.problem == "inverse" else "qdd", *(["w"] if row.contacts else [])]
    solver = sd.compile(
        problem, outputs=row.outputs or usual, external_wrenches=False,
        effort=effort, formulation="recursive" if row.outputs else "auto", backend=backend,
    )  # fmt: skip
    return solver, solver.flops.solve if row.scope == "solve" else solver.flops.end_to_end


def released() -> list[dict]:
    """Totals of the default search."""
    return [
        {"robot": row.robot, "problem": row.problem, "total": compiled(row, row.model(), backend="python")[1].total}
        for row in WATCHED
    ]


def measure(row: Row, effort: float, states: int) -> dict:
    model = row.model()
    began = time.perf_counter()
    solver, count = compiled(row, model, effort)
    seconds = time.perf_counter() - began
    return {
        "robot": row.robot, "problem": row.problem, "scope": row.scope, "method": solver.ordering,
        "mul": count.mul, "add": count.add, "div": count.div, "sqrt": count.sqrt, "total": count.total,
        "sincos_pairs": count.trig, "freedoms": model.nv, **known(row, model), "target": row.target or "",
        "reached": "" if row.target is None else "yes" if count.total <= row.target else "no",
        "states": states, "error": f"{error(model, solver, row.problem, states):.1e}", "offline_s": f"{seconds:.1f}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effort", type=float, default=4.0, help="of the search, as in sd.compile")
    parser.add_argument("--states", type=int, default=10_000, help="random states a row is checked at")
    parser.add_argument("--only", default="", help="rows whose robot contains this; nothing is written")
    parser.add_argument("--release", action="store_true", help="the counts that later versions are compared with")
    arguments = parser.parse_args()
    if arguments.release:
        return write_csv("counts_released", released())
    rows = []
    print(f"{'robot':42} {'problem':8} {'scope':11} {'total':>6} {'target':>6} {'known':>6}  pairs  error    method")
    for row in ROWS:
        if arguments.only in row.robot:
            rows.append(found := measure(row, arguments.effort, arguments.states))
            print(
                f"{row.robot:42} {row.problem:8} {row.scope:11} {found['total']:6} {found['target']:>6} "
                f"{found['best_known']:6}  {found['sincos_pairs']:5}  {found['error']}  {found['method']}",
                flush=True,
            )
    if not arguments.only:
        write_csv("counts", rows)


if __name__ == "__main__":
    main()
