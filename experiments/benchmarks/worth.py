"""What estimates are worth at right angles: residuals and χ² beside the mean, deviations beside dense matrices.

    python experiments/benchmarks/worth.py [--seeds 50] [--states 100000] [--seconds 60] [--exact 4] [--limit 600]

Problems with exact contacts and sensors beside noisy ones: floating trees, trees of all joints, a biped, and the
redundant problems of `random_sensors`. Joints are at multiples of π/2 at half of the states and within 1e-14 to 0.1 of
them at the others; lengths are drawn within 1 m. Where the solver has an answer, each residual is compared with
y − Y d − y₀ of the answer itself, relative to its terms and its standard deviation, and χ² with its sum. At a few
states of every twentieth batch, half of them the nearest to singular ones, everything is compared with the same
equations in 50 digits: the mean, standard deviations of all unknowns, residuals, χ², w-tests and the likelihood. States
near singular ones take milliseconds, so that a problem ends with --states of them or after --seconds.

A line of the CSV is a problem: states answered, how many of these are off by more than 1e-8, how many of the refused
ones that are looked at are regular (a condition number below 1e8), the greatest error of a residual, of χ², and of
anything beside 50 digits. Refused are states without a mean, and those with a mean but NaN for residuals or χ².

Writes experiments/results/worth.csv.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Sequence

import numpy as np
from common import each_alone, greatest_of, harness
from digits import Worth, worth_off
from random_sensors import biped, is_regular, random_problem, regular_at
from states import at, unknowns

import sysdyn as sd
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.noise import noise_of
from sysdyn.model import Free
from sysdyn.model.kinematics import path
from sysdyn.offline.sampling import lengths
from sysdyn.reference import newton_euler

# Residuals that differ by more, relative to their terms, are wrong.
OFF = 1e-8
# States are near right angles by so many decades of radians.
NEAREST, FARTHEST = -14.0, -1.0
# Solvers are called with so many states at a time.
BATCH = 500
# Of so many batches one is looked at in 50 digits.
LOOKED_AT = 20
# So many draws of a seed are tried.
DRAWS = 50
# Of the answers, a line says these.
COLUMNS = ("states", "answered", "off", "regular", "residual", "chi2", "exact", "what")
# Of so many refused states of a batch it is looked at whether they are regular.
REFUSED = 20


def worth_problem(seed: int) -> sd.Problem:
    """The regular problem of this seed: exact contacts and sensors beside noisy ones."""
    kind = seed % 4
    if kind == 3:
        return next(p for p in map(random_problem, range(100 * seed, 100 * seed + 100)) if p.noisy)
    for draw in range(DRAWS):
        rng = np.random.default_rng([seed, draw])
        problem = _drawn(_robot(kind, rng), rng)
        if is_regular(problem):
            return problem
    raise AssertionError(f"seed {seed}: none of {DRAWS} draws is regular")


def _robot(kind: int, rng: np.random.Generator) -> sd.Model:
    if kind == 2:
        return biped()
    n, seed = int(rng.integers(3, 11)), int(rng.integers(10_000))
    if kind == 1:
        return sd.random_tree(n, seed)
    tree = sd.random_tree(n, seed, ("revolute",))
    free = dict.fromkeys(("armature", "lower", "upper", "velocity_limit", "effort_limit"))
    parent = tuple(p if i == 0 else max(p, 0) for i, p in enumerate(tree.parent))
    return tree.replace(joints=(Free(), *tree.joints[1:]), parent=parent, base="floating", **free)


def _drawn(model: sd.Model, rng: np.random.Generator) -> sd.Problem:
    """Noisy accelerations and torques of joints, exact contacts and exact and noisy sensors."""

    carried = [x for i, x in enumerate(model.body_names) if any(model.joints[j].nv for j in path(model, i))]

    def body() -> str:
        return str(rng.choice(carried))

    def deviation() -> float:
        return float(10.0 ** rng.uniform(-2.0, 0.5))

    def noise() -> float | None:
        return None if rng.random() < 0.4 else deviation()

    moved = [x for x, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv]
    torques = [x for x in moved if x != "root_joint" or rng.random() < 0.5]
    wrenches = sd.ExternalWrench("all")
    stated: list[sd.Measurement] = [
        sd.JointAcceleration("all", name="accelerations", noise=deviation()),
        sd.Prior(sd.ExternalWrench("all", noise=deviation()), name="wrenches") if rng.random() < 0.3 else wrenches,
        *(sd.JointTorque(x, name=f"torque {x}", noise=deviation()) for x in torques if rng.random() < 0.8),
    ]
    for k in range(int(rng.integers(1, 3))):
        stated.append(sd.Contact(body(), str(rng.choice(["fixed", "point", "normal"])), name=f"contact {k}"))
    for k in range(int(rng.integers(1, 5))):
        name, kind = f"sensor {k}", rng.integers(4)
        if kind == 0:
            stated.append(sd.Accelerometer(body(), name=name, noise=noise()))
        elif kind == 1:
            stated.append(sd.ForceTorqueSensor(str(rng.choice(moved)), name=name, noise=noise()))
        elif kind == 2:
            stated.append(sd.AngularAccelerometer(body(), name=name, reference="world", noise=noise()))
        else:
            stated.append(sd.CentreOfMassAcceleration(name=name, noise=deviation()))
    return sd.Problem(model, stated)


def right_angles(problem: sd.Problem, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """q, qd and readings at n states, by group: of a motion, with noise that is five times the declared one."""
    model = problem.model
    away = np.where(rng.random((n, 1)) < 0.5, 0.0, 10.0 ** rng.uniform(NEAREST, FARTHEST, (n, model.nv)))
    turned = rng.integers(0, 4, (n, model.nv)) * (math.pi / 2) + away
    q = model.integrate(np.broadcast_to(model.neutral(), (n, model.nq)), turned)
    q[:, lengths(model)] = rng.uniform(-1.0, 1.0, (n, int(lengths(model).sum())))
    qd, qdd = rng.standard_normal((n, model.nv)), rng.standard_normal((n, model.nv))
    y = sd.predict(problem, q, qd, qdd, seed=int(rng.integers(2**31)))
    found = {"q": q, "qd": qd}
    found |= {value_group(m.name): np.broadcast_to(y[m.name], (n, len(m.components(model)))) for m in problem.custom}
    motion = newton_euler(model, q, qd, qdd)
    values = motion.quantities(qdd, np.zeros((n, model.nb, 6)))
    found |= {x: values[x].reshape(n, -1) for x in problem.known_quantities}
    return found | {x.group: x.declared for x in (noise_of(m, model) for m in problem.noisy)}


def called(problem: sd.Problem, solver: sd.Solver, inputs: dict[str, np.ndarray]) -> sd.Estimate:
    """The answer for inputs by group, NaN where there is none."""
    given = {name: x for name, x in inputs.items() if not name.startswith("noise:")}
    y = {m.name: given[value_group(m.name)] for m in problem.custom}
    known = {x: given[x] for x in problem.known_quantities if x in given}
    return solver(given["q"], given["qd"], y=y, on_singular="nan", **known)


def differences(problem: sd.Problem, inputs: dict[str, np.ndarray], estimate: sd.Estimate) -> tuple:
    """(error of residuals (n,) relative to their terms, of χ² (n,)); NaN where there is no answer or no residual."""
    system, d = sd.assemble(problem).plain, unknowns(problem, estimate)
    inputs = inputs | {"q": problem.model.normalise(inputs["q"])}
    entries, b = system.values(inputs)
    entries = np.broadcast_to(entries, (len(d), entries.shape[1]))
    found, worst, total = estimate.residuals(), np.zeros(len(d)), np.zeros(len(d))
    r, c = system.coordinates
    terms = entries * d[:, system.columns][:, c]
    for m in problem.noisy:
        noise = noise_of(m, problem.model)
        rows = [next(i for i, x in system.noise_by_row.items() if x[0].name == m.name and x[1] == k)
                for k in range(noise.size)]  # fmt: skip
        own = np.stack([terms[:, r == i].sum(axis=1) + b[:, i] for i in rows], axis=1)
        size = np.stack([np.abs(terms[:, r == i]).sum(axis=1) + np.abs(b[:, i]) for i in rows], axis=1)
        covariance = noise.matrix(noise.declared)
        size = size + np.sqrt(np.diagonal(covariance))
        given = found[m.name].reshape(len(d), -1)
        worst = np.maximum(worst, (np.abs(given + own) / size).max(axis=1))
        factor = np.linalg.inv(np.linalg.cholesky(covariance))
        total += ((given @ factor.T) ** 2).sum(axis=1)
    chi2 = estimate.chi2()
    return worst, np.abs(chi2 - total) / np.maximum(1.0, np.abs(total))


def exactly_off(problem: sd.Problem, solver: sd.Solver, inputs: dict[str, np.ndarray], most: int) -> tuple[float, str]:
    """(greatest error beside 50 digits, of what) at so many of these states, half of them nearest to singular ones."""
    near = called(problem, solver, inputs).reciprocal_condition()
    chosen = list(dict.fromkeys([*np.argsort(near)[: most // 2].tolist(), *range(min(most - most // 2, len(near)))]))
    part = picked(inputs, chosen)
    worth = Worth.of(problem, called(problem, solver, part))
    kept = dict(part)  # 50 digits need as many exact equations as are independent
    for m, gone in solver.left_out:
        kept[value_group(m.name)] = np.delete(kept[value_group(m.name)], gone, axis=-1)
    found = [(x, what) for k in range(len(chosen)) for what, x in worth_off(solver.problem, kept, worth, k).items()]
    return max(((math.inf if math.isnan(x) else x, what) for x, what in found), default=(0.0, ""))


def picked(inputs: dict[str, np.ndarray], chosen: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
    """Inputs at some of the states."""
    return {name: x if x.ndim < 2 or name.startswith("noise:") else x[chosen] for name, x in inputs.items()}


def judged(problem: sd.Problem, solver: sd.Solver, options: argparse.Namespace, rng: np.random.Generator) -> dict:
    """The columns of a line that are about answers."""
    line: dict = dict(zip(COLUMNS, (0, 0, 0, 0, 0.0, 0.0, 0.0, ""), strict=True))
    began = time.process_time()
    for batch, start in enumerate(range(0, options.states, BATCH)):
        if time.process_time() - began > options.seconds:
            break
        inputs = right_angles(problem, min(BATCH, options.states - start), rng)
        estimate = called(problem, solver, inputs)
        with np.errstate(all="ignore"):
            residual, chi2 = differences(problem, inputs, estimate)
        ok = estimate.ok & ~np.isnan(residual) & ~np.isnan(chi2)
        line["states"] += len(ok)
        line["answered"] += int(ok.sum())
        line["off"] += int((ok & ~((residual <= OFF) & (chi2 <= OFF))).sum())
        line["regular"] += sum(regular_at(problem, at(inputs, k)) for k in np.flatnonzero(~ok)[:REFUSED])
        line["residual"] = max(line["residual"], float(residual[ok].max(initial=0.0)))
        line["chi2"] = max(line["chi2"], float(chi2[ok].max(initial=0.0)))
        if options.exact and batch % LOOKED_AT == 0 and ok.any():
            found = exactly_off(problem, solver, picked(inputs, np.flatnonzero(ok)), options.exact)
            line["exact"], line["what"] = max((line["exact"], line["what"]), found)
    return line


def answered(seed: int, options: argparse.Namespace) -> dict:
    """A line of the table."""
    problem = worth_problem(seed)
    row = {"robot": problem.model.name, "unknowns": sd.assemble(problem).plain.shape[1]}
    row |= dict.fromkeys(("operations", "compile_s", "call_s", *COLUMNS, "error"), "")
    print(json.dumps(row), flush=True)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            solver = sd.compile(problem, level="fast")
        except sd.SysdynError as error:
            return row | {"error": type(error).__name__}
        compiled = time.process_time()
        found = judged(problem, solver, options, np.random.default_rng(seed))
    shown = {name: f"{x:.1e}" if isinstance(x, float) else x for name, x in found.items()}
    return row | {
        "operations": solver.flops.end_to_end.total, "compile_s": f"{compiled - began:.1f}",
        "call_s": f"{time.process_time() - compiled:.1f}", **shown,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=100_000, help="of each problem")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds of the states of a problem")
    parser.add_argument("--exact", type=int, default=4, help="states of each batch that are looked at in 50 digits")
    rows, out = each_alone(parser, "worth", 600.0, answered)
    harness.write_csv(out, rows)
    done = [row for row in rows if not row["error"]]
    print(
        f"{sum(row['answered'] for row in done)} answers of {sum(row['states'] for row in done)} states, {len(done)} "
        f"problems: {sum(row['off'] for row in done)} off by more than {OFF:g}; residuals within "
        f"{greatest_of(done, 'residual'):.1e}, chi2 {greatest_of(done, 'chi2'):.1e}, "
        f"all results {greatest_of(done, 'exact'):.1e} of 50 digits; "
        f"{sum(row['regular'] for row in done)} regular states refused; no line for {len(rows) - len(done)}"
    )


if __name__ == "__main__":
    main()
