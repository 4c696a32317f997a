"""Silent wrong answers: 20 robots × inverse, forward and hybrid dynamics, a contact, sensors, at 10⁶ states in all.

    python experiments/benchmarks/silent.py [--states 1000000] [--robots NAME …] [--problems NAME …]
            [--ordering auto] [--limit 900]

Every solver computes all unknowns. States are drawn over the declared range of the joints and far out, multiples of
π/2 and limits among them (see `states`): lengths without limits reach 1 km at half of the states, 1,000 km at the
rest. An answer is beyond if its row-wise residuals, of rounded equations and of those in 50 digits, exceed 1e-11. It
is farther if it is farther, too, from the answer in 50 digits than rounding of the equations' entries explains, and
wrong if a quantity is then off by more than 1e-11 of its greatest entry and the state is not why (see `states`):
silent if it is called `ok` all the same; untold if its own `forward_error` does not say so either. Columns `off`,
`units` and `dense` have the greatest error of a quantity of those that are farther: relative to its greatest entry, in
rounding units of the equations, and over that of a dense solve with pivoting. Also counted: states that were not
solved, and how many of a sample of these have a regular matrix. "Limit" stands where compiling and answering took more
CPU seconds than --limit.

Writes experiments/results/silent.csv, a line for each robot and problem. Solvers are kept in the cache.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import icub_models
import numpy as np
from common import RESULTS, ROOT, alone, apart, greatest_of, harness
from nori.arms import ARMS, load_arm
from random_sensors import DRAWS, biped, icub, is_regular, sensor_problem
from states import KILOMETRE, Answers, judged

import sysdyn as sd
from sysdyn.model.kinematics import path

# Lengths without limits reach so far [m] at every other batch.
FAR = 1e6
# Inertias of a robot with uneven bodies differ by up to this ratio.
RATIO = 1e12


def with_last_inertia(model: sd.Model, factor: float) -> sd.Model:
    inertias = model.inertias.copy()
    inertias[-1] *= factor
    return model.replace(inertias=inertias)


def uneven(model: sd.Model, seed: int) -> sd.Model:
    """Each body's inertia times a random factor; the factors differ by `RATIO`."""
    factors = RATIO ** np.random.default_rng(seed).uniform(-0.5, 0.5, model.nb)
    return model.replace(inertias=model.inertias * factors[:, None, None])


def stored(name: str) -> sd.Model:
    """A robot among the test data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is no part of a model
        return sd.load(str(ROOT / "tests" / "models" / name))


# The robots by name.
ROBOTS: dict[str, Callable[[], sd.Model]] = {
    **{name: partial(lambda name: load_arm(name)[0], name) for name in ARMS},
    "icub": lambda: sd.load(str(icub_models.get_model_file("iCubGazeboV2_5"))),
    "icub floating": icub,
    "biped": biped,
    "humanoid": lambda: stored("humanoid.xml"),
    "gantry": lambda: stored("gantry.xml"),
    "stacked": lambda: stored("stacked.xml"),
    "balls": lambda: stored("balls.xml"),
    "auto_tree 15": lambda: sd.auto_tree(15, 2, 0.7, 0.8),
    "chain 12": lambda: sd.chain(12, 3),
    "chain 6, heavy end": lambda: with_last_inertia(sd.chain(6, 4), RATIO),
    "chain 8, light end": lambda: with_last_inertia(sd.chain(8, 2), 1.0 / RATIO),
    "tree 12, slides": lambda: sd.random_tree(12, 5, ("revolute", "prismatic")),
    "tree 10, slides alone": lambda: sd.random_tree(10, 6, ("prismatic",)),
    "tree 9, slides, uneven": lambda: uneven(sd.random_tree(9, 7, ("revolute", "prismatic")), 7),
    "tree 10, all joints": lambda: sd.random_tree(10, 8),
    "tree 8, all joints, uneven": lambda: uneven(sd.random_tree(8, 9), 9),
}


def contact(model: sd.Model) -> sd.Problem:
    """Forward dynamics with a body farthest from the base in contact: its origin held, or one direction of it."""
    freedoms = [sum(model.joints[j].nv for j in path(model, i)) for i in range(model.nb)]
    body = int(np.argmax(freedoms))
    kind = "point" if freedoms[body] >= 6 else "normal"
    return sd.forward_dynamics(model) + sd.Contact(model.body_names[body], kind)


def sensors(model: sd.Model) -> sd.Problem:
    """The first regular draw of `random_sensors` for the robot, without noise."""
    for draw in range(DRAWS):
        problem = sensor_problem(model, np.random.default_rng(draw), redundant=False)
        if problem is not None and is_regular(problem):
            return problem
    raise AssertionError(f"{model.name}: none of {DRAWS} draws is regular")


# The problems by name.
PROBLEMS: dict[str, Callable[[sd.Model], sd.Problem]] = {
    "inverse": sd.inverse_dynamics,
    "forward": sd.forward_dynamics,
    "hybrid": lambda model: sd.hybrid_dynamics(model, model.joint_names[::2]),
    "contact": contact,
    "sensors": sensors,
}


def answered(robot: str, name: str, states: int, ordering: str) -> dict:
    """A line of the table."""
    row = {"robot": robot, "problem": name, "ordering": "", "operations": "", "compile_s": "", "call_s": ""}
    row |= dict.fromkeys(Answers._fields, "") | {"error": ""}
    print(json.dumps(row), flush=True)  # what is known of it where it never ends
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = PROBLEMS[name](ROBOTS[robot]())
        began = time.process_time()
        try:
            solver = sd.compile(problem, ordering)
        except sd.SysdynError as error:
            return row | {"error": type(error).__name__}
    compiled = time.process_time()
    rng = np.random.default_rng([list(ROBOTS).index(robot), list(PROBLEMS).index(name)])
    found = judged(problem, solver, states // 2, rng, KILOMETRE) + judged(problem, solver, states // 2, rng, FAR)
    return row | {
        "ordering": solver.ordering, "operations": solver.flops.end_to_end.total,
        "compile_s": f"{compiled - began:.2f}", "call_s": f"{time.process_time() - compiled:.2f}", **found.row(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1_000_000, help="in all")
    parser.add_argument("--robots", nargs="+", choices=ROBOTS, default=list(ROBOTS), metavar="NAME")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--ordering", default="auto")
    parser.add_argument("--limit", type=float, default=900.0, help="CPU seconds of each line")
    parser.add_argument("--out", type=Path, default=RESULTS / "silent.csv")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    each = options.states // (len(ROBOTS) * len(PROBLEMS))
    if options.one:
        return alone(options.limit, lambda: answered(*options.one, options.states, options.ordering))
    rows: list[dict] = []
    for robot in options.robots:
        for name in options.problems:
            arguments = ["--one", robot, name, "--states", each, "--ordering", options.ordering]
            rows.append(apart(Path(__file__), arguments, options.limit))
            print("  ".join(f"{x}" for x in rows[-1].values()), flush=True)
            harness.write_csv(options.out, rows)
    print(summary(harness.read_csv(options.out)))


def summary(rows: list[dict]) -> str:
    """Totals over the lines."""
    done = [row for row in rows if not row["error"]]
    counts = ("states", "unsolved", "regular", "beyond", "farther", "silent", "untold")
    total = {name: sum(row[name] for row in done) for name in counts}
    return (
        f"{total['states']} states of {len(done)} solvers: {total['silent']} silent wrong answers; of "
        f"{total['beyond']} that were solved in 50 digits {total['farther']} are farther than rounding explains, off "
        f"by up to {greatest_of(done, 'off'):.1e}, {greatest_of(done, 'dense'):.1g} times as far as a dense solve, "
        f"and {total['untold']} are ten times as far as they say; {total['unsolved']} states not solved "
        f"({total['regular']} of those looked at are regular), row-wise residual where ok up to "
        f"{greatest_of(done, 'residual'):.1e}; no solver for {len(rows) - len(done)} problems"
    )


if __name__ == "__main__":
    main()
