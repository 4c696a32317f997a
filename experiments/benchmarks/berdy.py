"""Estimation beside iDynTree's BERDY: the same robot, sensors, covariances and values; means and times of one run.

    python experiments/benchmarks/berdy.py [--robot small|icub|both] [--record tests/fixtures/berdy.json]

Needs iDynTree (pip install idyntree), which is used through its own Python interface and which nothing else of this
project needs. BERDY's unknowns are those of the layout "net_force", all with Gaussian priors, and its equations of
motion are noisy: priors and a ModelNoise here. Its net wrench fB, which has an equation and a prior of its own, has an
uninformative prior; then the noise of that equation adds to that of the balance of wrenches.

Writes experiments/results/berdy.csv. --record stores what BERDY finds for the small robot of the tests.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import icub_models
import numpy as np
from common import timed, write_csv

import sysdyn as sd

try:
    import idyntree.bindings as idyntree
except ImportError:
    idyntree = None

# The source tree.
ROOT = Path(__file__).resolve().parents[2]
# The small robot has five bodies.
SMALL = ROOT / "tests" / "models" / "branched.urdf"
# This order of components turns linear first into angular first.
SWAP = [3, 4, 5, 0, 1, 2]
# BERDY's types of variables stand for these quantities, in this order.
QUANTITIES = ("a", "fB", "f", "tau", "fx", "qdd")
# BERDY's types of sensors have these numbers.
FT, ACCELEROMETER, GYROSCOPE, ACCELERATION, WRENCH = 0, 1, 2, 1000, 1002
# A prior with this standard deviation says nothing.
UNINFORMATIVE = 1e7


@dataclass(frozen=True)
class Deviations:
    """Standard deviations: of the equations of motion, of the priors, and of the sensors."""

    motion: float = 0.03
    prior: float = 30.0
    sensors: float = 0.1


class Berdy:
    """iDynTree's estimator on a robot with a fixed base: all its sensors, external wrenches and joint accelerations."""

    def __init__(self, urdf: Path, joints: list[str], deviations: Deviations):
        loader = idyntree.ModelLoader()
        if not loader.loadReducedModelFromFile(str(urdf), joints):
            raise SystemExit(f"iDynTree cannot read {urdf}")
        self._loader, self.model = loader, loader.model().copy()
        self.base = self.model.getLinkName(self.model.getDefaultBaseLink())
        sensors = self.model.sensors()
        for kind, get in ((ACCELEROMETER, sensors.getAccelerometerSensor), (GYROSCOPE, sensors.getGyroscopeSensor)):
            found = [get(k) for k in range(sensors.getNrOfSensors(kind))]
            for name in [x.getName() for x in found if x.getParentLink() == self.base]:
                sensors.removeSensor(kind, name)  # BERDY with a fixed base has none on it
        options = idyntree.BerdyOptions()
        options.berdyVariant = idyntree.ORIGINAL_BERDY_FIXED_BASE
        options.includeAllNetExternalWrenchesAsDynamicVariables = True
        options.includeAllNetExternalWrenchesAsSensors = True
        options.includeAllJointAccelerationsAsSensors = True
        options.includeAllJointTorquesAsSensors = False
        options.includeFixedBaseExternalWrench = False
        options.baseLink = self.base
        self.helper = idyntree.BerdyHelper()
        if not self.helper.init(self.model, options):
            raise SystemExit("BERDY refuses the robot")
        self.places: dict[tuple[str, str], np.ndarray] = {}
        for x in self.helper.getDynamicVariablesOrdering():
            order = SWAP if x.range.size == 6 else [0]
            self.places[QUANTITIES[x.type], x.id] = x.range.offset + np.array(order)
        self.sensors = [(x.type, x.id, x.range.offset) for x in self.helper.getSensorsOrdering()]
        self._q, self._qd = idyntree.JointPosDoubleArray(self.model), idyntree.JointDOFsDoubleArray(self.model)
        self._y = idyntree.VectorDynSize(self.helper.getNrOfSensorsMeasurements())
        self._gravity, self._frame = idyntree.Vector3(), self.model.getFrameIndex(self.base)
        self._gravity.zero()
        self._gravity.setVal(2, -9.81)
        self.solver = idyntree.BerdySparseMAPSolver(self.helper)
        self.solver.initialize()
        n = self.helper.getNrOfDynamicVariables()
        prior = np.full(n, deviations.prior**2)
        for (quantity, _), place in self.places.items():
            if quantity == "fB":
                prior[place] = UNINFORMATIVE**2
        m, k = self.helper.getNrOfDynamicEquations(), self.helper.getNrOfSensorsMeasurements()
        self.variances = prior, np.full(m, deviations.motion**2), np.full(k, deviations.sensors**2)
        self.solver.setDynamicsRegularizationPriorCovariance(_diagonal(self.variances[0]))
        self.solver.setDynamicsConstraintsPriorCovariance(_diagonal(self.variances[1]))
        self.solver.setMeasurementsPriorCovariance(_diagonal(self.variances[2]))
        zero = idyntree.VectorDynSize(n)
        zero.zero()
        self.solver.setDynamicsRegularizationPriorExpectedValue(zero)

    @property
    def joints(self) -> list[str]:
        return [self.model.getJointName(k) for k in range(self.model.getNrOfJoints())]

    def placed(self) -> dict[str, tuple[int, str, np.ndarray]]:
        """{sensor: (type, link or joint, pose T (4, 4) in the link)} of accelerometers and force/torque sensors."""
        sensors, found = self.model.sensors(), {}
        for k in range(sensors.getNrOfSensors(ACCELEROMETER)):
            x = sensors.getAccelerometerSensor(k)
            T = x.getLinkSensorTransform().asHomogeneousTransform().toNumPy()
            found[x.getName()] = ACCELEROMETER, x.getParentLink(), T
        for k in range(sensors.getNrOfSensors(FT)):
            x = sensors.getSixAxisForceTorqueSensor(k)
            T = idyntree.Transform()
            x.getLinkSensorTransform(self.model.getLinkIndex(x.getSecondLinkName()), T)
            found[x.getName()] = FT, x.getParentJoint(), T.asHomogeneousTransform().toNumPy()
        return found

    def matrices(self, q: np.ndarray, qd: np.ndarray) -> list[np.ndarray]:
        """D, b_D, Y, b_Y at one state."""
        self._state(q, qd)
        self.helper.updateKinematicsFromFixedBase(self._q, self._qd, self._frame, self._gravity)
        parts = (idyntree.MatrixDynSize(), idyntree.VectorDynSize(), idyntree.MatrixDynSize(), idyntree.VectorDynSize())
        self.helper.resizeAndZeroBerdyMatrices(*parts)
        self.helper.getBerdyMatrices(*parts)
        return [x.toNumPy().copy() for x in parts]

    def prepare(self, q: np.ndarray, qd: np.ndarray, y: np.ndarray) -> None:
        self._state(q, qd)
        for k, x in enumerate(y.tolist()):
            self._y.setVal(k, x)

    def estimate(self) -> None:
        """The mean for what was prepared: all that BERDY computes for one state."""
        self.solver.updateEstimateInformationFixedBase(self._q, self._qd, self._frame, self._gravity, self._y)
        self.solver.doEstimate()

    def mean(self) -> np.ndarray:
        return self.solver.getLastEstimate().toNumPy().copy()

    def _state(self, q: np.ndarray, qd: np.ndarray) -> None:
        for k in range(len(q)):
            self._q.setVal(k, float(q[k]))
            self._qd.setVal(k, float(qd[k]))


def _diagonal(variances: np.ndarray):
    n = len(variances)
    matrix = idyntree.SparseMatrixColMajor(n, n)
    for k, x in enumerate(variances.tolist()):
        matrix.setValue(k, k, x)
    return matrix


def problem_of(model: sd.Model, placed: dict, deviations: Deviations) -> sd.Problem:
    """BERDY's problem. placed: sensors as `Berdy.placed` gives them."""
    noise, prior = deviations.sensors, deviations.prior
    measurements: list[sd.Measurement] = [
        sd.ExternalWrench("all", name="wrenches", noise=noise),
        sd.JointAcceleration("all", name="accelerations", noise=noise),
    ]
    for name, (kind, on, T) in placed.items():
        if kind == ACCELEROMETER:
            measurements.append(sd.Accelerometer((on, np.array(T)), name=name, noise=noise))
        else:
            child = model.body_names[model.joint_index(on)]
            measurements.append(sd.ForceTorqueSensor(on, frame=(child, np.array(T)), name=name, noise=noise))
    kinds = (sd.BodyAcceleration, sd.JointWrench, sd.JointTorque, sd.ExternalWrench, sd.JointAcceleration)
    measurements += [sd.Prior(kind("all", noise=prior), name=f"prior of {kind.quantity}") for kind in kinds]
    measurements.append(sd.ModelNoise(("a", "tau"), noise=deviations.motion, name="motion"))
    measurements.append(sd.ModelNoise("f", noise=np.sqrt(2.0) * deviations.motion, name="balance"))
    return sd.Problem(model, measurements)


def packed(berdy: Berdy, model: sd.Model, placed: dict, y: dict[str, np.ndarray], b_Y: np.ndarray) -> np.ndarray:
    """Values of one state in BERDY's order; what says nothing of the unknowns (gyroscopes) as expected."""
    result = b_Y.copy()
    for kind, on, offset in berdy.sensors:
        if kind == ACCELEROMETER:
            result[offset : offset + 3] = y[on]
        elif kind == FT:
            result[offset : offset + 6] = y[on][SWAP]
        elif kind == ACCELERATION:
            result[offset] = y["accelerations"][model.v_slice(model.joint_index(on))][0]
        elif kind == WRENCH:
            body = model.body_index(on)
            result[offset : offset + 6] = y["wrenches"][6 * body : 6 * body + 6][SWAP]
    return result


def difference(model: sd.Model, berdy_mean: np.ndarray, places: dict, solution: sd.Solution) -> dict[str, float]:
    """{quantity: greatest difference over its greatest size}."""
    worst: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for (quantity, name), place in places.items():
        if quantity != "fB":
            body = model.body_names[model.joint_index(name)] if quantity == "f" else name
            ours = np.atleast_1d(solution[quantity, body])
            worst[quantity] = max(worst.get(quantity, 0.0), float(np.abs(ours - berdy_mean[place]).max()))
            sizes[quantity] = max(sizes.get(quantity, 0.0), float(np.abs(ours).max()))
    return {quantity: worst[quantity] / sizes[quantity] for quantity in worst}


def least_squares(berdy: Berdy, q: np.ndarray, qd: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean from BERDY's matrices by orthogonal factorisation of the weighted equations: what both should give."""
    D, b_D, Y, b_Y = berdy.matrices(q, qd)
    prior, motion, sensors = (1.0 / np.sqrt(x) for x in berdy.variances)
    A = np.vstack([np.diag(prior), motion[:, None] * D, sensors[:, None] * Y])
    b = np.concatenate([np.zeros(len(prior)), -motion * b_D, sensors * (y - b_Y)])
    return np.linalg.lstsq(A, b, rcond=None)[0]


def one_state(robot: str, deviations: Deviations) -> tuple[Berdy, sd.Problem, dict, dict]:
    """(BERDY prepared for one state, the problem, the state with the values, BERDY's sensors)."""
    if robot == "icub":
        urdf = Path(str(icub_models.get_model_file("iCubGazeboV2_5")))
    else:
        urdf = SMALL
    model = sd.load(str(urdf), base="fixed")
    berdy = Berdy(urdf, list(model.joint_names), deviations)
    placed = berdy.placed()
    problem = problem_of(model, placed, deviations)
    q, qd, qdd = model.random_state(seed=0)
    fx = np.random.default_rng(0).standard_normal((model.nb, 6))
    y = sd.predict(problem, q, qd, qdd, fx, seed=1)
    y = {name: x for name, x in y.items() if not name.startswith("prior")}
    order = [model.v_slice(model.joint_index(name)).start for name in berdy.joints]
    b_Y = berdy.matrices(q[order], qd[order])[3]
    state = {"q": q, "qd": qd, "y": y, "order": order, "values": packed(berdy, model, placed, y, b_Y)}
    berdy.prepare(q[order], qd[order], state["values"])
    berdy.estimate()
    return berdy, problem, state, placed


def record(path: Path, berdy: Berdy, state: dict, placed: dict) -> None:
    """What BERDY found, by quantity and name in this project's order of components."""
    mean = berdy.mean()
    stored = {
        "iDynTree": "15.1.0",
        "sensors": {name: [kind, on, T.tolist()] for name, (kind, on, T) in placed.items()},
        "q": state["q"].tolist(), "qd": state["qd"].tolist(),
        "y": {name: x.tolist() for name, x in state["y"].items()},
        "mean": [[*key, mean[place].tolist()] for key, place in berdy.places.items()],
    }  # fmt: skip
    path.write_text(json.dumps(stored, indent=1) + "\n")


def compare(robot: str, states: int, recorded: Path | None) -> list[dict]:
    berdy, problem, state, placed = one_state(robot, Deviations())
    if recorded:
        record(recorded, berdy, state, placed)
    solver = sd.compile(problem)
    q, qd, y = state["q"], state["qd"], state["y"]
    solution = solver(q, qd, y=y)
    exact = least_squares(berdy, q[state["order"]], qd[state["order"]], state["values"])
    apart = max(difference(problem.model, berdy.mean(), berdy.places, solution).values())
    truth = max(difference(problem.model, exact, berdy.places, solution).values())
    step = solver.bind(q.copy(), qd.copy(), y=y)
    batch = [np.repeat(x[None], states, axis=0) for x in (q, qd)]
    many = {name: np.repeat(x[None], states, axis=0) for name, x in y.items()}
    times = {
        "BERDY, one state": timed(berdy.estimate, number=100),
        "bind, one state": timed(step, number=500),
        "plain call, one state": timed(lambda: solver(q, qd, y=y), number=500),
        "batch, one thread, a state": timed(lambda: solver(*batch, y=many, threads=1)).scaled(1 / states),
    }
    n = berdy.helper.getNrOfDynamicVariables(), berdy.helper.getNrOfSensorsMeasurements()
    print(f"{problem.model.name}: {n[0]} unknowns, {n[1]} values; {solver.ordering}, {solver.flops.end_to_end}")
    print(f"mean: {apart:.1e} from BERDY's, {truth:.1e} from orthogonal factorisation of BERDY's equations")
    rows = []
    for what, x in times.items():
        ratio = times["BERDY, one state"].median / x.median
        print(f"  {what:<28}{x.median * 1e6:10.1f} µs   {ratio:.1f}")
        rows.append({"robot": robot, "what": what, "seconds": f"{x.median:.4g}", "least": f"{x.least:.4g}",
                     "greatest": f"{x.greatest:.4g}", "ratio": f"{ratio:.2f}", "difference": f"{apart:.2e}",
                     "operations": solver.flops.end_to_end.total})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robot", choices=("small", "icub", "both"), default="both")
    parser.add_argument("--states", type=int, default=4000)
    parser.add_argument("--record", type=Path, help="of the last robot")
    options = parser.parse_args()
    if idyntree is None:
        sys.exit("iDynTree is not installed: pip install idyntree")
    robots = ("icub", "small") if options.robot == "both" else (options.robot,)
    write_csv("berdy", [row for robot in robots for row in compare(robot, options.states, options.record)])


if __name__ == "__main__":
    main()
