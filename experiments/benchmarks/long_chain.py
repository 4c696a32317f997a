"""Forward dynamics of a chain of 1,000 bodies, one state: against MuJoCo in this run, and Pinocchio's ABA by its ratio.

    python experiments/benchmarks/long_chain.py [--bodies 1000] [--level best|fast]

Pinocchio's Data would need 32 GB at 1,000 bodies. Its C++ is timed here for 30 bodies of the same chain (or its wheel
where it cannot be built) and scaled by 149 / 4.4, which is what 1,000 bodies took over 30 where memory allowed both.
MuJoCo is mj_forward without contacts, limits and actuators. Writes experiments/results/long_chain.csv.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial

import mujoco
import numpy as np
import pinocchio as pin
from common import close, compared, write_csv
from rivals import native_or_wheel

import sysdyn as sd

# A repetition has this many calls.
CALLS = 20
# Pinocchio's ABA is timed with SMALL bodies; with 1,000 it takes GROWTH times as long.
SMALL, GROWTH = 30, 149.0 / 4.4
# The offline phase is to take no more than this many seconds.
OFFLINE = 60.0


def urdf(n: int) -> str:
    """A chain of n bodies whose joint axes turn from body to body, all placements and inertias general."""
    parts = ["<robot name='chain'><link name='base'/>"]
    for k in range(n):
        axis, parent = ("1 0 0", "0 1 0", "0 0 1")[k % 3], f"link{k - 1}" if k else "base"
        parts.append(
            f"<joint name='joint{k}' type='revolute'><parent link='{parent}'/><child link='link{k}'/>"
            f"<origin xyz='0.02 {0.01 * (k % 5)} 0.1' rpy='{0.1 * (k % 7)} 0.2 {0.05 * (k % 3)}'/>"
            f"<axis xyz='{axis}'/><limit lower='-3' upper='3' effort='9' velocity='9'/></joint><link name='link{k}'>"
            "<inertial><origin xyz='0.01 -0.02 0.05'/><mass value='1'/>"
            "<inertia ixx='0.02' ixy='0.001' ixz='0.002' iyy='0.03' iyz='-0.001' izz='0.025'/></inertial></link>"
        )
    return "".join(parts) + "</robot>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=1000)
    parser.add_argument("--level", choices=("fast", "best"), default="best")
    options = parser.parse_args()
    n = options.bodies
    with tempfile.NamedTemporaryFile("w", suffix=".urdf") as file:
        file.write(urdf(n))
        file.flush()
        model = sd.load_urdf(file.name)
        mj = mujoco.MjModel.from_xml_path(file.name)
    began, busy = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        kept = os.environ.get("SYSDYN_CACHE")
        os.environ["SYSDYN_CACHE"] = folder
        solver = sd.compile(sd.forward_dynamics(model), outputs=["qdd"], level=options.level, external_wrenches=False)
        if kept is None:
            del os.environ["SYSDYN_CACHE"]
        else:
            os.environ["SYSDYN_CACHE"] = kept
    offline, busy = time.perf_counter() - began, time.process_time() - busy
    print(f"offline {offline:.1f} s, {busy:.1f} s of them on a processor (target ≤ {OFFLINE:.0f} s); {solver!r}")

    # a chain bent everywhere is so ill-conditioned that no two algorithms agree: small angles, moderate torques
    rng = np.random.default_rng(0)
    q, qd, tau = rng.uniform(-0.1, 0.1, n), rng.uniform(-0.1, 0.1, n), rng.uniform(-1, 1, n)
    out = np.empty(n)
    step = solver.bind(q, qd, tau, fx=np.zeros((n, 6)), out=out)
    mj.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_ACTUATION
    data = mujoco.MjData(mj)
    data.qpos, data.qvel, data.qfrc_applied = q, qd, tau

    def ours() -> None:
        for _ in range(CALLS):
            step()

    rows = []
    ratio = compared(ours, partial(mujoco.mj_forward, mj, data), each=(CALLS, 1), repeat=15)
    residual = sd.rnea(model, q, qd, out) - tau
    print(f"  largest torque that inverse dynamics finds missing: ours {np.abs(residual).max():.1e} N m")
    common = {
        "bodies": n,
        "level": options.level,
        "offline_s": f"{offline:.1f}",
        "offline_processor_s": f"{busy:.1f}",
        "ordering": solver.ordering,
    }
    rows.append(ratio.row(f"chain of {n}, one state, MuJoCo", 1.0, peer="mj_forward", **common))

    peer_model = pin.buildModelFromXML(urdf(SMALL))
    peer = native_or_wheel(peer_model)
    small = [np.ascontiguousarray(x[None, :SMALL].repeat(50, axis=0)) for x in (q, qd, tau)]
    result = np.empty((50, SMALL))
    variant = peer.variants("forward")[0]
    ratio = compared(ours, partial(peer.run, variant, *small, result), each=(CALLS, len(result) / GROWTH), repeat=51)
    data30 = peer_model.createData()
    close(result[:1], np.asarray(pin.aba(peer_model, data30, *(x[0] for x in small)))[None])
    rows.append(ratio.row(f"chain of {n}, one state, Pinocchio by its ratio", 1.0, peer=peer.name, **common))
    write_csv("long_chain", rows)


if __name__ == "__main__":
    main()
