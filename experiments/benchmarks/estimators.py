"""Maximum a posteriori estimates: accuracy on random problems, and the time of the iCub's.

    python experiments/benchmarks/estimators.py [--problems 300] [--states 400]

Random trees with joints of all types and random sensors, priors and covariances, in three classes: exact equations of
motion, some of them noisy, all of them noisy. Each is compared with whitened least squares in the null space of the
exact equations, by singular value decompositions: the mean, quantity by quantity relative to its greatest component,
and each standard deviation relative to itself. The iCub has noisy torques, joint accelerations, accelerometers and
force/torque sensors, and external wrenches that are either known or noisy, too.

Standard deviations and w-tests are those of new solutions, less the time of the solution itself, which takes turns with
them. Their `ratio` is to the mean in the same turns, or of one state to their kernels. Plain calls with `noise=` and
`active=` are of the same problem with two switchable force/torque sensors, one of which is off, less the prepared call.

Writes experiments/results/estimators.csv.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from statistics import median

import icub_models
import numpy as np
import scipy.linalg
from common import Timing, timed, write_csv

import sysdyn as sd
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.variables import Layout
from sysdyn.model.quantities import QUANTITIES

# Random problems are of these classes.
CLASSES = ("exact equations of motion", "some noisy equations of motion", "all equations of motion noisy")
# The dense solution is refined this many times.
REFINEMENTS = 2
# Errors of small values are relative to this fraction of the greatest unknown or standard deviation.
VANISHING = 1e-6


def random_problem(seed: int, kind: str) -> sd.Problem:
    """A problem that has one estimate whatever is drawn: accelerations and wrenches are measured, or expected."""
    rng = np.random.default_rng(seed)
    model = sd.random_tree(int(rng.integers(1, 5)), seed=seed)

    def deviation() -> float:
        return float(10.0 ** rng.uniform(-2.0, 1.0))

    def noise(n: int):
        """A standard deviation, one for each component, or a covariance."""
        kind = rng.integers(3)
        if kind == 0:
            return deviation()
        if kind == 1:
            return np.array([deviation() for _ in range(n)])
        B = rng.standard_normal((n, n))
        return (B @ B.T / max(n, 1) + np.eye(n)) * deviation() ** 2

    def body() -> str:
        return str(rng.choice(model.body_names))

    measurements: list[sd.Measurement] = [sd.JointAcceleration("all", name="acceleration", noise=noise(model.nv))]
    optional = [
        lambda: sd.JointTorque("all", name="torque", noise=noise(model.nv)),
        lambda: sd.Accelerometer(body(), name="accelerometer", noise=noise(3)),
        lambda: sd.AngularAccelerometer(body(), name="angular", reference="world", noise=noise(3)),
        lambda: sd.ForceTorqueSensor(str(rng.choice(model.joint_names)), name="ft", noise=noise(6)),
        lambda: sd.LoadCells(body(), ["nx", "fz"], name="cells", noise=noise(2)),
        lambda: sd.CentreOfMassAcceleration(name="centre of mass", noise=noise(3)),
    ]
    measurements += [make() for make in optional if rng.random() < 0.5]
    if kind == CLASSES[2]:
        kinds = (sd.BodyAcceleration, sd.JointWrench, sd.JointTorque, sd.ExternalWrench)
        measurements += [sd.Prior(of("all", noise=10.0 * deviation()), name=of.quantity) for of in kinds]
        measurements.append(sd.ModelNoise("all", noise=deviation(), name="motion"))
    elif rng.random() < 0.5:
        measurements.append(sd.ExternalWrench("all"))
    else:
        measurements.append(sd.Prior(sd.ExternalWrench("all", noise=noise(6 * model.nb)), name="wrenches"))
    if kind == CLASSES[1]:
        measurements.append(sd.ModelNoise(str(rng.choice(["a", "f", "tau"])), noise=deviation(), name="motion"))
    return sd.Problem(model, measurements)


def dense(problem: sd.Problem, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard deviations) of all unknowns at one state, inputs by group, by orthogonal decompositions."""
    system = sd.assemble(problem).plain
    entries, b = system.values(inputs)
    A, b = system.matrix(entries[0]).toarray(), b[0]
    members: dict[str, dict[int, int]] = {}
    for r, (noise, k) in system.noise_by_row.items():
        members.setdefault(noise.name, {})[k] = r
    exact = [r for r in range(len(A)) if r not in system.noise_by_row]
    whitened, right = [], []
    for m in problem.noisy:
        noise = noise_of(m, problem.model)
        rows = [members[m.name][k] for k in range(noise.size)]
        L = np.linalg.cholesky(noise.matrix(noise.declared))
        whitened.append(scipy.linalg.solve_triangular(L, A[rows], lower=True))
        right.append(scipy.linalg.solve_triangular(L, b[rows], lower=True))
    W, w = np.vstack(whitened), np.concatenate(right)
    scale = np.abs(A[exact]).max(axis=1, initial=0.0)
    E, e = A[exact] / scale[:, None], b[exact] / scale
    U, s, Vt = np.linalg.svd(E)
    N = Vt[len(s) :].T
    u, t, vt = np.linalg.svd(W @ N, full_matrices=False)
    G = N @ vt.T / t
    d = np.zeros(A.shape[1])
    for _ in range(REFINEMENTS + 1):
        d -= Vt[: len(s)].T @ ((U.T @ (E @ d + e)) / s)
        d -= G @ (u.T @ (W @ d + w))
    return d, np.sqrt(np.sum(G * G, axis=1))


def errors(seed: int, kind: str) -> tuple[float, float, int]:
    """(of the mean, of standard deviations, operations)."""
    problem = random_problem(seed, kind)
    model, layout = problem.model, Layout(problem.model)
    q, qd, qdd = model.random_state(seed=seed)
    y = sd.predict(problem, q, qd, qdd, seed=seed)
    y.pop("ExternalWrench", None)  # known to be zero
    solver = sd.compile(problem, backend="python", level="fast")
    solution = solver(q, qd, y=y)
    mean, std = dense(problem, {"q": q, "qd": qd, **{value_group(name): x for name, x in y.items()}})
    worst = 0.0
    for quantity in QUANTITIES:
        columns = layout.quantity_columns(quantity)
        if len(columns):
            size = np.maximum(std[columns], VANISHING * std.max())
            worst = max(worst, float((np.abs(solution.std(quantity).ravel() - std[columns]) / size).max()))
    return mean_error(problem, solution, mean), worst, solver.flops.end_to_end.total


def mean_error(problem: sd.Problem, solution: sd.Solution, mean: np.ndarray) -> float:
    """Greatest difference of a solution at one state to the mean (unknowns,), relative to that of its quantity."""
    layout, worst = problem.layout(), 0.0
    for quantity in problem.quantities:
        columns = layout.quantity_columns(quantity)
        if len(columns):
            size = max(np.abs(mean[columns]).max(), VANISHING * np.abs(mean).max())
            worst = max(worst, float(np.abs(solution[quantity].ravel() - mean[columns]).max()) / size)
    return worst


def random_problems(count: int) -> list[dict]:
    """The worst of each class."""
    rows = []
    for k, kind in enumerate(CLASSES):
        found = np.array([errors(seed, kind) for seed in range(k, count, len(CLASSES))])
        mean, std, _ = found.max(axis=0)
        print(f"{len(found)} random problems, {kind}: mean within {mean:.1e}, standard deviations within {std:.1e}")
        rows.append({"what": f"random problems, {kind}", "problems": len(found), "mean": f"{mean:.2e}",
                     "std": f"{std:.2e}", "operations": int(np.median(found[:, 2]))})  # fmt: skip
    return rows


def icub_problem(wrenches: sd.Measurement) -> sd.Problem:
    model = sd.load(str(icub_models.get_model_file("iCubGazeboV2_5")), base="fixed")
    joints = ("l_shoulder_yaw", "r_shoulder_yaw", "l_hip_yaw", "r_hip_yaw")
    bodies = ("head", "chest", "l_hand", "r_hand")
    return sd.Problem(model, [
        sd.JointAcceleration("all", noise=0.1, name="accelerations"),
        sd.JointTorque("all", noise=0.3, name="torques"),
        wrenches,
        *(sd.ForceTorqueSensor(joint, noise=0.1, name=f"ft {joint}") for joint in joints),
        *(sd.Accelerometer(body, noise=0.05, name=f"accelerometer {body}") for body in bodies),
    ])  # fmt: skip


def beyond(first: Callable[[], object], whole: Callable[[], object], number: int, repeat: int) -> tuple[Timing, float]:
    """(time of `whole` less that of `first`, its median ratio to the latter), turn by turn; of processor time."""
    times = []
    for call in (first, whole):
        call()
    for _ in range(repeat):
        turn = []
        for call in (first, whole):
            began = time.thread_time()
            for _ in range(number):
                call()
            turn.append((time.thread_time() - began) / number)
        times.append(turn)
    more = [b - a for a, b in times]
    return Timing(median(more), min(more), max(more)), median((b - a) / a for a, b in times)


def kernels(solution: sd.Estimate, names: Sequence[str]) -> Callable[[], None]:
    """The bare kernels of these results of one state, as prepared calls."""
    programs, steps = solution.posterior.programs, []
    for name in names:
        runner = programs[name]
        outputs, status = runner.backend.allocate_results(1)
        steps.append(runner.bind(solution.inputs, outputs, status, None, single=True))

    def run() -> None:
        for step in steps:
            step()

    return run


def changed_calls(
    problem: sd.Problem, q: np.ndarray, qd: np.ndarray, y: dict[str, np.ndarray]
) -> dict[str, tuple[Timing, str]]:  # fmt: skip
    """Plain calls with other covariances and switches, beyond the prepared call of the same problem."""
    first, second, *_ = (m for m in problem.measurements if isinstance(m, sd.ForceTorqueSensor))
    switched = sd.Problem(problem.model, [
        sd.Switchable(m) if m in (first, second) else m for m in problem.measurements
    ])  # fmt: skip
    solver = sd.compile(switched, outputs=["qdd", "tau"])
    step = solver.bind(q.copy(), qd.copy(), y=y)
    given = {name: x for name, x in y.items() if name != first.name}
    calls = {
        "noise=": lambda: solver(q, qd, y=y, noise={second.name: 0.2}),
        "active=": lambda: solver(q, qd, y=given, active={first.name: False}),
        "both": lambda: solver(q, qd, y=given, active={first.name: False}, noise={second.name: 0.2}),
    }
    more = {name: beyond(step, call, 50, 51)[0] for name, call in calls.items()}
    return {f"plain call with {name}, beyond the kernel": (x, "") for name, x in more.items()}


def icub(what: str, wrenches: sd.Measurement, states: int) -> list[dict]:
    """Times of the mean, and of the standard deviations of the torques and the w-test, on one thread.

    Most repetitions are so short that other work on the machine does not interrupt them.
    """
    problem = icub_problem(wrenches)
    model = problem.model
    q, qd, qdd = model.random_state(seed=0)
    y = sd.predict(problem, q, qd, qdd, seed=1)
    y.pop("ExternalWrench", None)
    solver = sd.compile(problem)
    step = solver.bind(q.copy(), qd.copy(), y=y)
    batch = [np.repeat(x[None], states, axis=0) for x in (q, qd)]
    many = {name: np.repeat(x[None], states, axis=0) for name, x in y.items()}
    solution = solver(q, qd, y=y)
    solution.std("tau"), solution.normalised_residuals()

    states_in_turn = itertools.cycle([q, q + 1e-3])

    def one() -> sd.Estimate:
        return solver(next(states_in_turn), qd, y=y)

    def all_states() -> sd.Estimate:
        return solver(*batch, y=many, threads=1)

    asked = {
        "std of tau": (lambda x: x.std("tau"), ["variances of tau"]),
        "w-test": (lambda x: x.normalised_residuals(), ["tests"]),
    }
    times: dict[str, tuple[Timing, float | str]] = {
        "mean, bind, one state": (timed(step, repeat=201, number=50), ""),
        "mean, plain call, one state": (timed(one, repeat=201, number=50), ""),
        "mean, batch, a state": (timed(all_states, repeat=101).scaled(1 / states), ""),
    }
    for name, (ask, programs) in asked.items():
        bare = kernels(solution, programs)
        whole, _ = beyond(one, lambda ask=ask: ask(one()), 50, 51)
        alone, _ = beyond(step, lambda bare=bare: (step(), bare()), 50, 51)
        times[f"{name}, one state"] = whole, whole.least / alone.least
        times[f"{name}, its kernels after that of the mean"] = alone, ""
        found, ratio = beyond(all_states, lambda ask=ask: ask(all_states()), 1, 15)
        times[f"{name}, batch, a state"] = found.scaled(1 / states), ratio
    times |= changed_calls(problem, q, qd, y)
    unknowns = len(sd.assemble(problem).plain.columns)
    print(f"iCub, {what}: {unknowns} unknowns, {problem.ny} values, {solver.flops.end_to_end.total} operations")
    rows = []
    for name, (x, ratio) in times.items():
        shown = f"{ratio:.2f}" if ratio else ""
        print(f"  {name:<44}{x.median * 1e6:8.2f} µs  ({x.least * 1e6:.2f} … {x.greatest * 1e6:.2f})  {shown}")
        rows.append({"what": f"iCub, {what}: {name}", "problems": 1, "seconds": f"{x.median:.4g}",
                     "least": f"{x.least:.4g}", "greatest": f"{x.greatest:.4g}", "ratio": shown,
                     "operations": solver.flops.end_to_end.total})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--states", type=int, default=400)
    options = parser.parse_args()
    rows = icub("wrenches known", sd.ExternalWrench("all"), options.states)
    rows += icub("wrenches noisy", sd.ExternalWrench("all", noise=0.1, name="wrenches"), options.states)
    rows += random_problems(options.problems)
    columns = ("what", "problems", "mean", "std", "seconds", "least", "greatest", "ratio", "operations")
    write_csv("estimators", [{column: row.get(column, "") for column in columns} for row in rows])


if __name__ == "__main__":
    main()
