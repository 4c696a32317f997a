"""Forward dynamics in contact: operations and time as recursions, eliminated as general rows, and by Pinocchio.

    python experiments/benchmarks/contacts.py [--states 1000] [--switching]

q̈ and the wrenches of the contacts of floating robots, without other external wrenches. "eliminated": the same problem
with formulation="elimination". Pinocchio's constraintDynamics (one step, no regularisation) is called from Python, with
its overhead of a microsecond or two, once its results agree. Times are of bound calls; ratios are medians over rounds
in which all take their turn. Writes experiments/results/contacts.csv.

--switching: feet that switch by state, in no order, instead: a batch over as many states of its modes, each a batch of
its own, called on one core. Writes experiments/results/switching.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

import numpy as np
import pinocchio as pin
from common import close, timed, write_csv
from rivals import CannotBuild
from rivals.robots import FLOATING, G1, ROBOTS, Robot

import sysdyn as sd

# Each time is the median of this many rounds.
ROUNDS = 7
# Robots with their feet, and the kinds of contact of these.
CASES = {
    "iCub": (ROBOTS["icub"], ("l_sole", "r_sole"), ("fixed",), ("fixed", "point"), ("fixed", "fixed")),
    "Talos": (FLOATING["talos"], ("left_sole_link", "right_sole_link"), ("fixed",), ("fixed", "fixed")),
    "G1": (G1, ("left_ankle_roll_link", "right_ankle_roll_link"), ("fixed",), ("fixed", "fixed")),
    "HyQ": (FLOATING["hyq"], ("lf_foot", "rf_foot", "lh_foot", "rh_foot"), ("point",) * 2, ("point",) * 4),
    "ANYmal": (FLOATING["anymal"], ("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT"), ("point",) * 2, ("point",) * 4),
}
# Feet that are on, by their number: standing on all, and one foot or one diagonal pair after the other.
MODES = {2: ((1, 1), (1, 0), (0, 1)), 4: ((1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 1, 0))}
# States of batches whose feet switch, and rounds, as many as make differences of calls visible.
SWITCHED, SWITCHING_ROUNDS = (1000, 16000), 51
CONTACT_TYPES = {"fixed": pin.ContactType.CONTACT_6D, "point": pin.ContactType.CONTACT_3D}


class Peer:
    """constraintDynamics of one state at a time, of a floating robot whose other joints have one coordinate each."""

    def __init__(self, urdf: str, model: sd.Model, contacts: Sequence[tuple[str, str]]):
        self.model = pin.buildModelFromUrdf(urdf, pin.JointModelFreeFlyer())
        joints = [self.model.getJointId(name) for name in model.joint_names[1:]]
        self.places = np.array([self.model.idx_vs[j] for j in joints])
        self.models, self.datas = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
        for frame, kind in contacts:
            place = self.model.frames[self.model.getFrameId(frame)]
            self.models.append(pin.RigidConstraintModel(
                CONTACT_TYPES[kind], self.model, place.parentJoint, place.placement, pin.ReferenceFrame.LOCAL
            ))  # fmt: skip
            self.datas.append(self.models[len(self.models) - 1].createData())
        self.data = self.model.createData()
        pin.initConstraintDynamics(self.model, self.data, self.models, self.datas)
        self.settings = pin.ProximalSettings(1e-15, 0.0, 1)

    def theirs(self, x: np.ndarray) -> np.ndarray:
        """q, or what has an entry for each degree of freedom, in Pinocchio's order: linear before angular."""
        own, base = np.empty_like(x), len(x) - self.model.nv
        own[: 6 + base] = x[:7] if base else [*x[3:6], *x[:3]]
        own[base + self.places] = x[6 + base :]
        return own

    def ours(self, x: np.ndarray) -> np.ndarray:
        return np.array([*x[3:6], *x[:3], *x[self.places]])

    def __call__(self, q: np.ndarray, v: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return pin.constraintDynamics(self.model, self.data, q, v, tau, self.models, self.datas, self.settings)


def run(name: str, robot: Robot, frames: Sequence[str], kinds: Sequence[str], states: int) -> dict:
    urdf = str(robot.urdf)
    model, contacts = sd.load(urdf, base="floating"), list(zip(frames, kinds, strict=False))
    problem = sd.forward_dynamics(model) + [sd.Contact(frame, kind, name=frame) for frame, kind in contacts]
    options = {"outputs": ["qdd", "w"], "external_wrenches": False}
    free = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], external_wrenches=False)
    made = {"recursion": sd.compile(problem, **options),
            "eliminated": sd.compile(problem, **options, formulation="elimination"), "free": free}  # fmt: skip
    q, qd, _ = model.random_state(seed=0, batch=states)
    tau = np.random.default_rng(0).standard_normal((states, model.nv))
    peer = Peer(urdf, model, contacts)
    theirs = [peer.theirs(x[0]) for x in (q, qd, tau)]
    # at rest: of a foot that moves Pinocchio holds the spatial acceleration, not that of the point
    rest = np.zeros(model.nv)
    close(made["recursion"](q[0], rest, tau=tau[0]).qdd, peer.ours(peer(theirs[0], rest, theirs[2])))
    one = {what: solver.bind(q=q[0].copy(), qd=qd[0].copy(), tau=tau[0].copy()) for what, solver in made.items()}
    many = {what: solver.bind(q=q, qd=qd, tau=tau) for what, solver in made.items()}
    calls = {(what, "one"): (call, 300, 1) for what, call in one.items()}
    calls |= {(what, "batch"): (call, 1, states) for what, call in many.items()}
    calls["pinocchio", "one"] = (lambda: peer(*theirs), 100, 1)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(ROUNDS):
        for key, (call, number, size) in calls.items():
            times[key].append(timed(call, 3, number).median / size)

    def ratio(a: tuple[str, str], b: tuple[str, str]) -> float:
        return round(median(x / y for x, y in zip(times[a], times[b], strict=True)), 2)

    flops = {what: solver.flops.end_to_end.total for what, solver in made.items()}
    row = {
        "robot": name, "contacts": " + ".join(kinds), "ordering": made["recursion"].ordering,
        "operations_free": flops["free"], "operations": flops["recursion"],
        "operations_eliminated": flops["eliminated"], "ns": round(1e9 * median(times["recursion", "one"])),
        "over_free": ratio(("recursion", "one"), ("free", "one")),
        "eliminated_over_it": ratio(("eliminated", "one"), ("recursion", "one")),
        "pinocchio_over_it": ratio(("pinocchio", "one"), ("recursion", "one")),
        "ns_batch": round(1e9 * median(times["recursion", "batch"])),
        "eliminated_over_it_batch": ratio(("eliminated", "batch"), ("recursion", "batch")),
        "pinocchio_over_it_batch": ratio(("pinocchio", "one"), ("recursion", "batch")),
    }  # fmt: skip
    print("  ".join(str(x) for x in row.values()), flush=True)
    return row


def switched(name: str, robot: Robot, frames: Sequence[str], kinds: Sequence[str], states: int) -> dict:
    """A batch of mixed modes beside its modes, by calls on one core."""
    model, rng = sd.load(str(robot.urdf), base="floating"), np.random.default_rng(0)
    feet = [sd.Switchable(sd.Contact(frame, kind, name=frame)) for frame, kind in zip(frames, kinds, strict=True)]
    solver = sd.compile(sd.forward_dynamics(model) + feet, outputs=["qdd", "w"], external_wrenches=False)
    modes = MODES[len(feet)]
    q, qd, _ = model.random_state(seed=0, batch=states)
    tau, pick = rng.standard_normal((states, model.nv)), rng.integers(0, len(modes), states)
    active = {frame: np.array(modes, dtype=bool)[pick, k] for k, frame in enumerate(frames)}
    alone = [solver.mode(dict(zip(frames, mode, strict=True))) for mode in modes]
    calls = [lambda own=own: own(q, qd, tau=tau, threads=1).w for own in alone]
    calls.append(lambda: solver(q, qd, tau=tau, active=active, threads=1).w)
    times = np.array([[timed(call, 1).median / states for call in calls] for _ in range(SWITCHING_ROUNDS)])
    by_themselves = times[:, :-1] @ np.bincount(pick, minlength=len(modes)) / states
    row = {
        "robot": name, "contacts": " + ".join(kinds), "states": states, "modes": len(modes),
        "ns_mixed": round(1e9 * median(times[:, -1])), "ns_modes": round(1e9 * median(by_themselves)),
        "over_modes": round(median(times[:, -1] / by_themselves), 2),
        "over_all_feet": round(median(times[:, -1] / times[:, 0]), 2),
    }  # fmt: skip
    print("  ".join(str(x) for x in row.values()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1000)
    parser.add_argument("--switching", action="store_true")
    options = parser.parse_args()
    rows = []
    for name, (robot, frames, *several) in CASES.items():
        try:
            if options.switching:
                rows += [switched(name, robot, frames, several[-1], states) for states in SWITCHED]
            else:
                rows += [run(name, robot, frames, kinds, options.states) for kinds in several]
        except CannotBuild as why:
            print(f"{name} is left out: {why}")
    write_csv("switching" if options.switching else "contacts", rows)


if __name__ == "__main__":
    main()
