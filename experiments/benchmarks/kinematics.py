"""Functions of the robot's state: checked calls from Python beside the reference algorithms, and beside pin.

    python experiments/benchmarks/kinematics.py [--rounds 41]

Needs `pin` and icub-models. Every call is a plain one: arrays in, checked, new arrays out; pin checks shapes and hands
out copies or views of its data. All three take turns of at least a millisecond in one thread, in processor time; what
they give is compared first. "compiled in" is the processor time of the first use with an empty cache. Writes
experiments/results/kinematics.csv.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import icub_models
import numpy as np
import pinocchio as pin
from common import TURN, timed, write_csv
from nori.arms import load_arm

import sysdyn as sd
from sysdyn.model.se3 import rotation, translation
from sysdyn.online.robot_functions import ROBOT_FUNCTIONS

TARGET = 10e-6  # A checked call on an arm of seven joints is to take no more seconds than this.
URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))
SWAP = [3, 4, 5, 0, 1, 2]  # Pinocchio's twists are linear first.


def arm_of_pinocchio(model: sd.Model) -> pin.Model:
    """The same arm of revolute joints about z."""
    other = pin.Model()
    for i, joint in enumerate(model.joints):
        assert joint == sd.model.Revolute() and model.parent[i] == i - 1
        I, X = model.inertias[i], model.X_tree[i]
        c = np.array([I[2, 4], I[0, 5], I[1, 3]]) / I[5, 5]
        about_com = I[:3, :3] + I[5, 5] * pin.skew(c) @ pin.skew(c)
        other.addJoint(i, pin.JointModelRZ(), pin.SE3(rotation(X).T, translation(X)), f"joint{i}")
        other.appendBodyToJoint(i + 1, pin.Inertia(I[5, 5], c, about_com), pin.SE3.Identity())
        other.addFrame(pin.Frame(f"body{i}", i + 1, 0, pin.SE3.Identity(), pin.FrameType.OP_FRAME))
    return other


def peers(m: pin.Model, frame: str, q: np.ndarray, qd: np.ndarray) -> dict[str, Callable[[], object]]:
    """pin's call for each function that is timed."""
    data, id = m.createData(), m.getFrameId(frame)

    def pose() -> np.ndarray:
        pin.forwardKinematics(m, data, q)
        return pin.updateFramePlacement(m, data, id).homogeneous

    return {
        f"pose:{frame}": pose,
        f"jacobian:{frame}": lambda: pin.computeFrameJacobian(m, data, q, id, pin.LOCAL),
        "mass_matrix": lambda: pin.crba(m, data, q),
        "bias": lambda: pin.nonLinearEffects(m, data, q, qd),
        "com": lambda: pin.centerOfMass(m, data, q),
        "energy": lambda: pin.computeMechanicalEnergy(m, data, q, qd),
    }


def turns(calls: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Seconds of a call of each, for every round."""
    numbers = [max(1, math.ceil(TURN / min(timed(call, repeat=3)))) for call in calls]
    found = []
    for _ in range(rounds):
        row = []
        for call, number in zip(calls, numbers, strict=True):
            began = time.thread_time()
            for _ in range(number):
                call()
            row.append((time.thread_time() - began) / number)
        found.append(row)
    return found


def first_use(model: sd.Model, names: list[str]) -> float:
    """Seconds of processor time until the functions can be called, with an empty cache."""
    before = os.environ.get("SYSDYN_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SYSDYN_CACHE"] = folder
        began = time.process_time()
        sd.kinematics(model, names)
        seconds = time.process_time() - began
    if before is None:
        del os.environ["SYSDYN_CACHE"]
    else:
        os.environ["SYSDYN_CACHE"] = before
    return seconds


def checked(name: str, ours: np.ndarray, theirs: object, order: list[int]) -> None:
    """Raise unless pin gives the same; order: sysdyn's number of each of its degrees of freedom."""
    other = np.asarray(theirs)
    if name.startswith("jacobian"):
        ours, other = ours[:, order], other[SWAP]
    elif name == "mass_matrix":
        ours, other = ours[np.ix_(order, order)], np.triu(other) + np.triu(other, 1).T
    elif name == "bias":
        ours = ours[order]
    error = np.max(np.abs(ours - other)) / np.max(np.abs(other))
    if not error < 1e-9:
        raise AssertionError(f"{name} differs from pin's by {error:.1e}")


def reference(model: sd.Model, name: str, q: np.ndarray, qd: np.ndarray) -> Callable[[], object]:
    """The function of the table on floats: `frame_pose`, `frame_jacobian`, `crba`, `rnea` and their like."""
    what, *place = name.split(":")
    function = ROBOT_FUNCTIONS[what]
    arguments = (q, qd)[: len(function.inputs)]
    return lambda: function.compute(model, *arguments, *place)


def one_after_the_other(calls: list[Callable[[], object]]) -> Callable[[], object]:
    def run() -> None:
        for call in calls:
            call()

    return run


def run(model: sd.Model, other: pin.Model, frame: str, rounds: int) -> list[dict]:
    q, qd, _ = model.random_state(seed=1)
    order = [model.v_slice(model.joint_index(name)).start for name in other.names[1:]]
    theirs = peers(other, frame, q[order], qd[order])
    references = {name: reference(model, name, q, qd) for name in theirs}
    rows = []
    print(f"{model.name}, {model.nv} degrees of freedom: medians of {rounds} rounds (least … greatest), in µs")
    for names in (*([name] for name in theirs), [*theirs]):
        seconds = first_use(model, names)
        function = sd.kinematics(model, names)
        takes = (q, qd)[: len(function.function.inputs)]
        for name, x in function(*takes).items():
            checked(name, x, theirs[name](), order)
        slow, peer = (one_after_the_other([calls[name] for name in names]) for calls in (references, theirs))
        times = np.array(turns([partial(function, *takes), slow, peer], rounds))
        mine, plain, their = (median(column) for column in times.T)
        by_reference, by_pin = median(times[:, 1] / times[:, 0]), median(times[:, 2] / times[:, 0])
        least, greatest = times[:, 0].min(), times[:, 0].max()
        what = names[0] if len(names) == 1 else f"all {len(names)}"
        print(
            f"  {what:<16}{1e6 * mine:>7.2f} ({1e6 * least:.2f} … {1e6 * greatest:.2f})   reference"
            f"{1e6 * plain:>8.0f} ({by_reference:.0f} ×)   pin{1e6 * their:>7.2f} ({by_pin:.2f} ×)   "
            f"{function.flops.total} operations, compiled in {seconds:.2f} s"
        )
        rows.append({
            "robot": model.name, "what": what, "us": f"{1e6 * mine:.3g}", "least": f"{1e6 * least:.3g}",
            "greatest": f"{1e6 * greatest:.3g}", "target": f"{1e6 * TARGET:g}" if model.nv == 7 else "",
            "reference_us": f"{1e6 * plain:.4g}", "pin_us": f"{1e6 * their:.3g}",
            "reference_ratio": f"{by_reference:.3g}", "pin_ratio": f"{by_pin:.3g}",
            "operations": function.flops.total, "compile_s": f"{seconds:.2g}",
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    arm, _ = load_arm("iiwa7")
    rows = run(arm, arm_of_pinocchio(arm), "body6", rounds)
    rows += run(sd.load(URDF), pin.buildModelFromUrdf(URDF), "l_hand", rounds)
    write_csv("kinematics", rows)


if __name__ == "__main__":
    main()
