"""Figures in the prose of the pages are those of the files of results, or of the code if it takes seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path

import pytest

import sysdyn as sd
from sysdyn.app.problem_files import load_task
from sysdyn.papers.nori.experiments import read_csv

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"


@cache
def rows(name: str) -> list[dict]:
    return read_csv(RESULTS / f"{name}.csv")


def of(name: str, column: str, **where: object) -> list:
    """A column of the rows with these values."""
    return [row[column] for row in rows(name) if all(row[key] == x for key, x in where.items())]


def one(name: str, column: str, **where: object):
    (value,) = of(name, column, **where)
    return value


def thousands(*values: int) -> str:
    return ", ".join(f"{x:,}" for x in values)


def rounded(x: float, digits: int = 1) -> str:
    """Halves go up, as readers of the file round."""
    return str(Decimal(str(x)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def span(values: list, digits: int) -> str:
    return f"{rounded(min(values), digits)} to {rounded(max(values), digits)}"


def percent(*values: float) -> list[str]:
    return [f"{100 * x:.0f}" for x in values]


# ---- sentences -----------------------------------------------------------------------------------------------------


def contacts() -> str:
    kinds = ("fixed", "fixed + point", "fixed + fixed")
    free = one("contacts", "operations_free", robot="iCub", contacts="fixed")
    first, second, third = (one("contacts", "operations", robot="iCub", contacts=x) for x in kinds)
    all_of_them = [one("contacts", "operations_eliminated", robot="iCub", contacts=x) for x in kinds]
    return (
        f"On the iCub q̈ takes {free:,} operations in free fall; q̈ and the wrenches {first:,} on one foot, {second:,} "
        f"with a point of the other and {third:,} on two; by elimination of the general system, as for `a` and `f`, "
        f"{thousands(*all_of_them[:2])} and {all_of_them[2]:,}."
    )


def friction() -> str:
    def left(solver: str) -> list[str]:
        return percent(
            *(one("friction", "unsolved", robot=x, solver=solver, steps=100) for x in ("ANYmal", "HyQ", "iCub"))
        )

    admm, pgs, pinocchio = (left(x) for x in ("sysdyn admm", "sysdyn pgs", "Pinocchio ADMM"))
    times = [
        one("friction", "us_batch", robot=x, solver="sysdyn admm + Newton", steps=100)
        for x in ("ANYmal", "HyQ", "iCub")
    ]
    return (
        f"By 100 steps alone, ADMM leaves {admm[0]} and {admm[1]} % of the former and {admm[2]} % of the latter above "
        f"that, Gauss-Seidel {pgs[0]}, {pgs[1]} and {pgs[2]} %, and Pinocchio's ADMM {pinocchio[0]}, {pinocchio[1]} "
        f"and {pinocchio[2]} %. On one core a state takes {span(times[:2], 0)} µs in a batch on four points, and "
        f"{times[2]:.0f} µs"
    )


def gradients() -> str:
    icub, floating, feet, estimate = (
        one("products", "of_solution", problem=x, what="vjp")
        for x in ("iCub, forward", "iCub floating, forward", "iCub floating, two feet", "iCub, estimate")
    )
    assert round(floating, 1) == round(feet, 1)
    return (
        f"wᵀ J {icub:.1f} times for the iCub, {feet:.1f} on a floating base and on two feet, {estimate:.1f} for an "
        "estimate"
    )


def steps() -> str:
    def costs(integrator: str, *torques: str) -> str:
        return span([x for y in torques for x in of("simulate", "ratio", integrator=integrator, torques=y)], 2)

    def seconds(robot: str, robots: int) -> float:
        return one("simulate", "seconds", robot=robot, robots=robots, integrator="euler", torques="constant")

    assert 0.95e6 < 1 / seconds("iCub", 1) < 1.1e6
    feet = 1e-4 / seconds("iCub, two feet", 1)
    pin, mujoco = (1 / one("simulate", "ratio", torques=x) for x in ("pin.aba, Python", "mj_step"))
    many = " and ".join(f"{1e-6 / seconds(x, 1024):.1f}" for x in ("iCub", "iCub, two feet"))
    return (
        f"A step of Euler's method takes {costs('euler', 'constant')} times the bare kernel of the problem with "
        f"constant torques, in the same loop, and {costs('euler', 'feedback')} times with feedback; one of "
        f"Runge-Kutta's {costs('rk4', 'constant', 'feedback')} times four kernels, for its stages have more numbers to "
        f"carry. On one core that is a million steps a second of the floating iCub, "
        f"{feet:.0f}0,000 of it on two feet, and {many} million for 1,024 robots side by side. `pin.aba` and "
        f"`pin.integrate` called from Python take {pin:.0f} times as long, and MuJoCo's `mj_step`, which does more "
        f"than the equations of motion, {mujoco:.0f} times as long"
    )


def single(ending: str) -> list[float]:
    return [row["ratio"] for row in rows("single") if str(row["what"]).endswith(ending)]


def single_precision() -> str:
    plain = [*single(", bound"), *single(", plain")]
    return (
        f"{span(plain, 1)} times as many states a second in batches ([benchmarks](benchmarks.md#single-precision)). "
        "Results are float32; arrays of float32 are read where they are, others are rounded as they are read "
        f"({span(single('float64 handed in'), 1)} times as many)"
    )


def certificate() -> str:
    first, second = (1 / one("single", "ratio", what=f"g1, forward, tolerance {x}") for x in ("1e-05", "1e-08"))
    return f"(a humanoid {first:.1f} times at 1e-5, {second:.1f} at 1e-8)"


def worst_error() -> str:
    size, power = f"{one('single', 'error', what='g1, forward, error'):.1e}".split("e-")
    return f"{size}e-{int(power)} at the worst of a million with random torques"


def lagging() -> str:
    forwards, behind, smoothed = (
        one("trajectories", "rms", what="arm, encoders alone: torques", level=x)
        for x in ("filter", "filter, 20 ms behind", "smoother")
    )
    return f"{forwards:.0f} N m are wrong forwards, {behind:.1f} with this lag, and {smoothed:.1f} smoothed"


def late_contacts() -> str:
    late = "late contacts, outliers, biases: "
    torques, tilt, side = (
        one("trajectories", "rms", what=late + x, level="kinematic") for x in ("torques", "tilt", "foot force y")
    )
    return (
        f"errors of torques fall from 0.73 to {torques:.2f} N m, of tilts from 9.6 to {1e3 * tilt:.1f} mrad, and of "
        f"lateral forces from 4.0 to {side:.1f} N."
    )


def squat() -> str:
    median, greatest = (
        one("trajectories", "rms", what=f"squat: σ by those of q and q̇ exact, {x}, 1.5 wanted")
        for x in ("median of the joints", "greatest")
    )
    return (
        f"are {median:.2f} times (median of the joints) those of known q and q̇ and sensors without biases, and "
        f"{greatest:.2f} times for the pitch of the ankles"
    )


def accuracy() -> str:
    (states,) = {row["states"] for row in rows("accuracy")}
    worst = max(row["worst"] for row in rows("accuracy"))
    return f"every order is within {up(worst)} of the exact accelerations at each of {states:,} random states"


def files_of_others() -> str:
    worst = max(row[f"worst {x}"] for row in rows("robot_files") for x in ("rnea", "crba", "frames"))
    assert all(row["loaded of these"] == row["peer loads"] == row["agree"] for row in rows("robot_files"))
    return f"gives their rnea, crba and frames within {up(worst)}"


def up(x: float) -> str:
    """A bound of one digit."""
    power = math.floor(math.log10(x))
    return f"{math.ceil(x / 10.0**power)}e{power}"


def humanoid() -> str:
    times = [
        row["ns"]
        for row in rows("kernels")
        if str(row["what"]).startswith("icub") and "one state, in cache" in row["what"]
    ]
    assert len(times) >= 8 and max(times) < 1000
    return "Dynamics of a humanoid take less than 1 µs"


STATED: list[tuple[str, Callable[[], str]]] = [
    ("docs/contacts.md", contacts),
    ("docs/contacts.md", friction),
    ("docs/control.md", gradients),
    ("docs/simulation.md", steps),
    ("docs/solving.md", single_precision),
    ("docs/solving.md", certificate),
    ("docs/solving.md", worst_error),
    ("docs/trajectories.md", lagging),
    ("docs/trajectories.md", late_contacts),
    ("docs/trajectories.md", squat),
    ("README.md", humanoid),
    ("docs/verification.md", accuracy),
    ("docs/verification.md", files_of_others),
]  # fmt: skip


@pytest.mark.parametrize(("page", "said"), STATED)
def test_sentences_are_those_of_the_results(page, said):
    assert said() in " ".join((ROOT / page).read_text(encoding="utf-8").split())


# ---- rows of the table of experiments/README.md ----------------------------------------------------------------------

PANDA, ICUB, FLOATING = "panda", "icub", "icub, floating"
KINDS = ("inverse", "forward")


def totals(problem: str, *robots: str) -> str:
    return thousands(*(one("counts", "total", robot=x, problem=problem, scope="end to end") for x in robots))


def ratios(*values: float, digits: int = 1) -> str:
    return ", ".join(rounded(x, digits) for x in values)


def fastest(name: str, what: str, *robots: str) -> str:
    """Ratios to the fastest peer of inverse and forward dynamics, robot by robot."""
    return "; ".join(
        ratios(*(one(name, "ratio", what=f"{robot}, {kind}, {what}", fastest="True") for kind in KINDS))
        for robot in robots
    )


def cached(way: str, *robots: str) -> str:
    return fastest("kernels", f"{way}, in cache", *robots)


def called(what: str, *robots: str, threads: int = 1, digits: int = 1) -> str:
    """Medians of ratios to pin of inverse and forward dynamics called from Python, robot by robot."""
    return "; ".join(
        ratios(
            *(of("python_calls", "ratio", what=f"{x}, {kind}, {what}", threads=threads)[0] for kind in KINDS),
            digits=digits,
        )
        for x in robots
    )


def plain(column: str, digits: int) -> str:
    """Microseconds of a plain call, of inverse and forward dynamics, robot by robot."""
    return "; ".join(
        ratios(
            *(one("python_calls", column, what=f"{x}, {kind}, one plain call") / 1e3 for kind in KINDS), digits=digits
        )
        for x in (PANDA, ICUB)
    )


def beside_bound(robot: str) -> str:
    return "; ".join(
        ratios(*(
            one("batches", "ratio", what=f"{robot}, {kind}, plain beside 128 bound states", states=n)
            for n in (1000, 10_000, 100_000)
        ), digits=2)
        for kind in KINDS
    )  # fmt: skip


def speed_up(robot: str) -> str:
    return " and ".join(
        ratios(*(one("batches", "ratio", what=f"{robot}, {kind}, speed-up by threads", states=n) for kind in KINDS))
        for n in (10_000, 100_000)
    )


def few(states: int) -> str:
    found = [row["ratio"] for row in rows("batches") if row["states"] == states and "speed-up" in str(row["what"])]
    return f"{min(found):.2f}–{max(found):.2f}"


def in_contact(column: str, digits: int) -> str:
    feet, points = "fixed + fixed", "point + point + point + point"
    groups = [
        (("iCub", feet), ("Talos", feet), ("G1", feet)),
        (("HyQ", points), ("ANYmal", points)),
        (("iCub", "hand to hand"),),
    ]
    return "; ".join(
        ratios(*(one("contacts", column, robot=x, contacts=kind) for x, kind in group), digits=digits)
        for group in groups
    )


def jacobians() -> str:
    fixed, floating, feet = (
        f"{one('products', 'operations', problem=x, what='Jacobian in full'):,}"
        for x in ("iCub, forward", "iCub floating, forward", "iCub floating, two feet")
    )
    return f"{fixed}, {floating}; {feet}"


def products(what: str, digits: int) -> str:
    icub, g1, feet, estimate = (
        rounded(one("products", "of_solution", problem=x, what=what), digits)
        for x in ("iCub, forward", "G1, forward", "iCub floating, two feet", "iCub, estimate")
    )
    return f"{icub}, {g1}; {feet}; {estimate}"


def marked() -> str:
    none, *some = (one("checks", "ms", what=f"batch of 10,000, {k} of them marked") for k in (0, 1, 10, 100))
    return ratios(*(x - none for x in some), digits=2)


def inside(what: str, by: str) -> float:
    return one("inside_jax", "of_sysdyn", robot="g1", what=what, by=by)


def cells(effort: int) -> str:
    return "; ".join(f"{x:,}" for x in of("load_cells", "operations", effort=effort) if x < 10_000)


# The first words of a row, and the beginning of its last cell.
ROWS: dict[str, Callable[[], str]] = {
    "operations of inverse dynamics: gen6R": lambda: totals(
        "inverse", "gen6R", "puma560, general values", "puma560, own numbers"),
    "of forward dynamics: gen6R": lambda: totals(
        "forward", "gen6R", "rx90", "puma560, general values", "iiwa7", "puma560, own numbers"),
    "of forward dynamics, `auto_tree(30, 1, 1.5, 0.9)`": lambda: totals("forward", "auto_tree(30, 1, 1.5, 0.9)"),
    "of inverse and forward dynamics, iCub": lambda: ", ".join(totals(x, "iCub, fixed base") for x in KINDS),
    "kernel, one state, beside Pinocchio's C++": lambda: cached("one state", PANDA, ICUB) + " ×",
    "the same, floating bases: ANYmal": lambda: cached("one state", "anymal", "hyq", "talos", "icub_floating") + " ×",
    "the same, forward dynamics of chains": lambda: ratios(*(
        one("kernels", "ratio", what=f"chain_{n}, forward, one state, in cache", fastest="True")
        for n in (30, 100, 300)))
        + " ×",
    "the same, batch of 128 states, in cache": lambda: cached("batch", PANDA, ICUB) + "; " + ratios(
        one("kernels", "ratio", what="talos, forward, batch, in cache", fastest="True")) + " × (AMD EPYC, family 25)",
    "beside code generated from Pinocchio": lambda: fastest("generated", "one state", PANDA, ICUB) + " ×",
    "the same, eight states wide": lambda: fastest("generated", "eight states wide", PANDA, ICUB) + " ×",
    "derivatives, kernel of one state": lambda: "; ".join(
        ratios(*(one("derivatives_kernels", "ratio", what=f"{x} dynamics, one state", fastest="True") for x in group))
        for group in (
            ("panda, derivatives of inverse", "panda, derivatives of forward"),
            ("icub, derivatives of forward", "icub_floating, derivatives of forward"))) + " ×",
    "one plain call and its result": lambda: f"{plain('ns', 2)} µs; pin {plain('peer_ns', 1)} µs",
    "one bound call beside a call of pin": lambda: called("one bound call", PANDA, ICUB) + " ×",
    "batch of 20,000 beside pin's parallel": lambda: called("batch of 20000, 1 threads", PANDA, ICUB, digits=0) + " ×",
    "the same, two threads on two cores": lambda: called(
        "batch of 20000, 2 threads", PANDA, ICUB, threads=2, digits=0) + " ×",
    "a state of a plain batch of 1,000": lambda: beside_bound(PANDA) + " ×",
    "the same: iCub inverse, forward": lambda: beside_bound(ICUB) + " ×",
    "the same, floating base | `batches.py`": lambda: beside_bound(FLOATING) + " ×",
    "two threads on two cores over one": lambda: "; ".join(speed_up(x) for x in (PANDA, ICUB, FLOATING)) + " ×",
    "the same, 100, 500 and 2,049 states": lambda: ", ".join(few(n) for n in (100, 500, 2049)) + " ×",
    "chain of 1,000 bodies": lambda: "{:.1f} ×, {:.0f} ×".format(*(
        one("long_chain", "ratio", what=f"chain of 1000, one state, {x}")
        for x in ("Pinocchio by its ratio", "MuJoCo"))),
    "operations of the Jacobian of forward": jacobians,
    "forward dynamics in contact beside": lambda: in_contact("pinocchio_over_it", 1) + " ×",
    "the same, batch | `contacts.py`": lambda: in_contact("pinocchio_over_it_batch", 0) + " ×",
    "inside JAX, G1": lambda: f"{1 / inside('step', 'sysdyn, bound, without JAX'):.2f}, "
        f"{1 / inside('vmap', 'sysdyn, bound, without JAX'):.2f} ×",
    "the same beside frax": lambda: ratios(*(
        inside(x, "frax") for x in ("step", "vmap", "gradient, a call", "gradient, a step")), digits=0) + " ×",
    "operations of wᵀ J over the solution's": lambda: products("vjp", 2) + " ×",
    "the same of J v": lambda: f"{products('jvp', 2)}; {products('hvp', 1)} ×",
    "what 1, 10, 100 marked states cost": lambda: marked() + " ms",
    "its operations, iCub": lambda: f"{of('berdy', 'operations', robot='icub')[0]:,};",
    "load cells, all unknowns, n = 4, 8, 12, 20": lambda: cells(1) + "; in ",
    "the same, n = 4, 8, 12, 20, by `compile(…, effort=2)`": lambda: cells(4) + ", by rewriting",
    "n = 100": lambda: f"{one('load_cells', 'operations', bodies=100, effort=1):,}; in ",
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_the_experiments_are_those_of_the_results(row):
    text = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {row}"))
    assert line.strip("| ").rsplit(" | ", 1)[1].startswith(ROWS[row]())


# ---- counts of programs --------------------------------------------------------------------------------------------


def test_a_search_begins_where_the_page_says():
    problem = sd.forward_dynamics(sd.chain(6))
    total = sd.compile(problem, outputs=["qdd"], formulation="paper", backend="python").flops.end_to_end.total
    assert f"the paper's system: {total:,} →" in (ROOT / "docs" / "formulation.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_square_root_form_takes_what_the_page_says():
    pytest.importorskip("icub_models")
    problem = load_task(ROOT / "problems" / "icub_sensors.toml").problem
    q, qd, qdd = problem.model.random_state(seed=0)
    solver = sd.compile(problem, outputs=["tau"], level="fast", backend="python")
    found = solver(q, qd, y=sd.predict(problem, q, qd, qdd, seed=1))
    found.std("tau"), found.chi2()
    programs = found.posterior.programs
    factors, std, chi2 = (programs[x].program.flops.total for x in ("factors", "variance tau", "residuals"))
    text = " ".join((ROOT / "docs" / "estimation.md").read_text(encoding="utf-8").split())
    assert (
        f"takes {factors:,} operations for the factors, {std:,} for the standard deviations of τ and {chi2:,} for χ²"
        in text
    )
