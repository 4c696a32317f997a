"""Contact points with friction: residuals after so many steps, and times, beside Pinocchio on the same problems.

    python experiments/benchmarks/friction.py [--states 1000]

Floating robots that land on points with friction 0.7, at 1 ms: feet of quadrupeds, and an iCub on the corners of both
soles, of which Ω has rank 12 of 24. Each solver gets the same Delassus matrix and free velocities; what it gives is
judged by one measure, the residuals of Signorini's conditions and Coulomb's law in m/s, and "unsolved" is the share of
states above 1e-6 m/s. Pinocchio's solvers have tolerances of 1e-12, by which they end before the number of steps at
states that are exact, and begin with a factored Ω; ours begin with Ω itself. Times are medians: of a call from Python
for one state, and of a state in a batch on one core. Writes experiments/results/friction.csv.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import pinocchio as pin
from common import timed, write_csv
from rivals import CannotBuild
from rivals.robots import FLOATING, ROBOTS, Robot

import sysdyn as sd

# Robots, the frames of their feet, and the points of each [m].
FOOT, SOLE = [(0.0, 0.0)], [*itertools.product((0.08, -0.08), (0.03, -0.03))]
CASES = {
    "ANYmal": (FLOATING["anymal"], ("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT"), FOOT),
    "HyQ": (FLOATING["hyq"], ("lf_foot", "rf_foot", "lh_foot", "rh_foot"), FOOT),
    "iCub": (ROBOTS["icub"], ("l_sole", "r_sole"), SOLE),
}
STEPS = (25, 50, 100, 200, 400)
# Step of time [s], friction, and the residual [m/s] above which a state counts as not solved.
STEP, FRICTION, FINE = 1e-3, 0.7, 1e-6
# States that are timed one by one, and rounds of a batch.
TIMED, ROUNDS = 30, 5
TOLERANCES = [f"{x}_{y}_tol" for x in ("absolute", "relative") for y in ("feasibility", "complementarity")]


class Problems:
    """Ω and b of n states, and the same constraints for Pinocchio."""

    def __init__(self, robot: Robot, frames: Sequence[str], places: Sequence[tuple[float, float]], n: int):
        urdf = str(robot.urdf)
        self.model = model = sd.load(urdf, base="floating")
        self.pin = pin.buildModelFromUrdf(urdf, pin.JointModelFreeFlyer())
        self.data, self.points, contacts = self.pin.createData(), [], []
        for frame, (k, (x, y)) in itertools.product(frames, enumerate(places)):
            theirs = self.pin.frames[self.pin.getFrameId(frame)]
            self.points.append((theirs.parentJoint, theirs.placement * pin.SE3(np.eye(3), np.array([x, y, 0.0]))))
            corner = np.eye(4)
            corner[:2, 3] = x, y
            place = sd.frame_pose(model, model.neutral(), model.body_names[model.frame(frame).body])
            at = np.linalg.solve(place, sd.frame_pose(model, model.neutral(), frame)) @ corner
            body = model.body_names[model.frame(frame).body]
            contacts.append(sd.Contact((body, at), "point", reference="world", name=f"{frame}{k}"))
        rng = np.random.default_rng(0)
        q = np.tile(model.neutral(), (n, 1))
        joints = [model.q_slice(i).start for i in range(1, model.nb) if model.joints[i].nv]
        q[:, joints] = 0.4 * rng.standard_normal((n, len(joints)))
        qd, tau = 0.1 * rng.standard_normal((n, model.nv)), 10.0 * rng.standard_normal((n, model.nv))
        qd[:, 5] -= 0.3  # it comes down
        tau[:, :6] = 0.0
        rows = sd.operational_space(model, contacts, ["jacobian", "delassus"])(q)
        free = sd.compile(sd.forward_dynamics(model), outputs=["qdd"])(q, qd, tau).qdd
        self.omega = rows["delassus"]
        self.free = (rows["jacobian"] @ (qd / STEP + free)[..., None])[..., 0]
        self.places = [self._position(x) for x in q]
        self.law = sd.Coulomb([3] * len(self.points))

    def _position(self, q: np.ndarray) -> np.ndarray:
        """q in Pinocchio's order of joints."""
        found = pin.neutral(self.pin)
        found[:7] = q[:7]
        for name in self.model.joint_names[1:]:
            own = self.model.q_slice(self.model.joint_index(name))
            if own.stop > own.start:
                found[self.pin.joints[self.pin.getJointId(name)].idx_q] = q[own][0]
        return found

    def theirs(self, k: int) -> tuple:
        """(factored Ω, constraints, their data) of state k. Raises unless Ω is ours."""
        q, data = self.places[k], self.data
        pin.forwardKinematics(self.pin, data, q)
        pin.crba(self.pin, data, q, pin.Convention.WORLD)
        models, datas = pin.StdVec_ConstraintModel(), pin.StdVec_ConstraintData()
        for joint, place in self.points:
            at = pin.SE3(np.eye(3), (data.oMi[joint] * place).translation)
            point = pin.PointContactConstraintModel(self.pin, 0, at, joint, pin.SE3(np.eye(3), place.translation))
            point.setFriction(FRICTION)
            models.append(pin.ConstraintModel(point))
            datas.append(models[len(models) - 1].createData())
        for one, its in zip(models, datas, strict=True):
            one.calc(self.pin, data, its)
        factor = pin.ConstraintCholeskyDecomposition(self.pin, data, models, datas)
        factor.compute(self.pin, data, models, datas, 1e-9)
        omega = factor.getDelassusOperatorCholeskyExpression()
        if np.abs(np.array(omega.matrix(False, False)) - self.omega[k]).max() > 1e-6 * np.abs(self.omega[k]).max():
            raise AssertionError("the Delassus matrices differ")
        return omega, models, datas, factor

    def row(self, name: str, solver: str, steps: int, forces: np.ndarray, one: float, batch: float | None) -> dict:
        result = self.law.residuals(self.omega, self.free, FRICTION, forces)
        residual = STEP * result.worst
        found = {
            "robot": name, "points": len(self.points), "solver": solver, "steps": steps,
            "median": f"{np.median(residual):.1e}", "p90": f"{np.quantile(residual, 0.9):.1e}",
            "worst": f"{residual.max():.1e}", "unsolved": round(float(np.mean(residual > FINE)), 3),
            "us_one": round(1e6 * one, 1), "us_batch": "" if batch is None else round(1e6 * batch, 2),
        }  # fmt: skip
        print("  ".join(f"{x:>10}" for x in found.values()), flush=True)
        return found


def ours(name: str, x: Problems, method: str, steps: int, newton_steps: int) -> dict:
    law = sd.Coulomb([3] * len(x.points), method, steps, newton_steps)
    solved = lambda k: law(x.omega[k], x.free[k], FRICTION, tolerance=FINE / STEP)  # noqa: E731
    batch: Callable = lambda: law(x.omega, x.free, FRICTION, tolerance=FINE / STEP)  # noqa: E731
    forces = batch().forces
    one = median(timed(lambda k=k: solved(k), 3).median for k in range(TIMED))
    many = timed(batch, ROUNDS).median / len(x.free)
    return x.row(name, f"sysdyn {method}{' + Newton' if newton_steps else ''}", steps, forces, one, many)


def theirs(name: str, x: Problems, kind: str, steps: int) -> dict:
    forces, times = [], []
    for k, free in enumerate(x.free):
        omega, models, datas, _ = x.theirs(k)
        solver, settings = getattr(pin, f"{kind}ConstraintSolver")(len(free)), getattr(pin, f"{kind}SolverSettings")()
        settings.max_iterations = steps
        for tolerance in TOLERANCES:
            setattr(settings, tolerance, 1e-12)
        result = getattr(pin, f"{kind}SolverResult")()
        began = time.perf_counter()
        solver.solve(omega, free, models, datas, settings, result)
        times.append(time.perf_counter() - began)
        forces.append(result.retrieveConstraintImpulses().copy())
    return x.row(name, f"Pinocchio {kind}", steps, np.array(forces), median(times), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1000)
    options = parser.parse_args()
    rows = []
    for name, (robot, frames, places) in CASES.items():
        try:
            x = Problems(robot, frames, places, options.states)
        except CannotBuild as why:
            print(f"{name} is left out: {why}")
            continue
        for steps in STEPS:
            rows += [ours(name, x, method, steps, 0) for method in ("admm", "pgs")]
            rows += [ours(name, x, "admm", steps, 3)]
            rows += [theirs(name, x, kind, steps) for kind in ("ADMM", "PGS")]
    write_csv("friction", rows)


if __name__ == "__main__":
    main()
