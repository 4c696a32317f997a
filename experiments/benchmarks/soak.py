"""Hours of use in minutes: are results bitwise equal all the while, and memory flat?

    python experiments/benchmarks/soak.py [--states 10000000] [--compilations 1000] [--processes 64] [--seconds 120]

Each in a process of its own: batches of one solver of the forward dynamics, alone, shared by threads and as prepared
steps; compilations of a few robots without the cache, each called, differentiated, saved and loaded; and processes that
compile these robots with one small cache while they are ended by kill −9 at random times. Writes
experiments/results/soak.csv: how many results differ, and MiB of resident memory after a tenth of the work and at its
end; of the processes, those of the cache at the end.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import sysdyn as sd
from sysdyn.files import cache

# States of one batch.
BATCH = 50_000
# So many robots take turns.
ROBOTS = 8
# The cache of the processes holds so many MiB: less than all robots need.
LIMIT = 0.2
# Processes live for so many seconds on average.
LIFE = 10.0
# Bytes of a mebibyte.
MEBI = 2**20


def resident() -> float:
    """Resident memory of this process [MiB]. Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEBI


def compiled(robot: int) -> tuple[sd.Solver, tuple[np.ndarray, ...]]:
    solver = sd.compile(sd.forward_dynamics(sd.chain(3, seed=robot)), "aba", "qdd", level="fast", effort=0.0)
    return solver, solver.model.random_state(seed=robot, batch=64)


def answer(robot: int) -> bytes:
    """Accelerations of a robot at its states."""
    solver, state = compiled(robot)
    return solver(*state).qdd.tobytes()


def batches(states: int) -> dict:
    """Calls, shared calls and steps in turn, on the same states."""
    solver = sd.compile(sd.forward_dynamics(sd.chain(7, seed=1)), outputs="qdd")
    state = solver.model.random_state(seed=0, batch=BATCH)
    step, expected = solver.bind(*state, threads=2), solver(*state, threads=1).qdd
    differ, count, early = 0, -(-states // BATCH), 0.0
    for k in range(count):
        if k % 3 == 2:
            step()
        found = step.out["qdd"] if k % 3 == 2 else solver(*state, threads=1 + k % 3).qdd
        differ += not np.array_equal(found, expected)
        if k == count // 10:
            early = resident()
    return {"what": "states", "number": count * BATCH, "differ": differ, "early": early, "late": resident()}


def compilations(number: int) -> dict:
    os.environ["SYSDYN_CACHE"] = ""
    expected: dict[int, tuple] = {}
    differ, early = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for k in range(number):
            solver, state = compiled(k % ROBOTS)
            loaded = sd.load_solver(solver.save(Path(folder) / "x.solver"))
            derivatives = solver.derivatives("qdd", "tau")(*state)["qdd", "tau"]
            found = solver(*state).qdd.tobytes(), loaded(*state).qdd.tobytes(), derivatives.tobytes()
            differ += expected.setdefault(k % ROBOTS, found) != found
            if k == number // 10:
                early = resident()
    return {"what": "compilations", "number": number, "differ": differ, "early": early, "late": resident()}


def worker(seed: float, expected: list[bytes], log: Path) -> None:
    """Compile robots at random; the log gets what differs from what is expected, and what is raised."""
    warnings.simplefilter("error")
    rng = random.Random(seed)
    while True:
        robot = rng.randrange(ROBOTS)
        try:
            word = "" if answer(robot) == expected[robot] else f"robot {robot} differs"
        except Exception as error:
            word = repr(error)
        with log.open("a") as file:
            file.write(f"{word}\n")


def killed(processes: int, seconds: float) -> dict:
    """Workers on one cache, each ended at a random time and started again."""
    rng, ended, fork = random.Random(0), 0, multiprocessing.get_context("fork")
    os.environ |= {"SYSDYN_CACHE": "", "SYSDYN_CACHE_LIMIT": str(LIMIT)}
    expected = [answer(robot) for robot in range(ROBOTS)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SYSDYN_CACHE"] = str(Path(folder) / "cache")
        log = Path(folder) / "log"

        def start() -> multiprocessing.process.BaseProcess:
            process = fork.Process(target=worker, args=(rng.random(), expected, log), daemon=True)
            process.start()
            return process

        running, over = [start() for _ in range(processes)], time.monotonic() + seconds
        while time.monotonic() < over:
            time.sleep(2.0 * LIFE / processes * rng.random())
            k = rng.randrange(processes)
            running[k].kill()
            running[k].join()
            ended += 1
            running[k] = start()
        for process in running:
            process.kill()
            process.join()
        answers = log.read_text().split("\n")
        wrong = [line for line in answers if line]
        entries = cache.entries()
        whole = sum(entry.name.startswith(".") or cache.load(entry.name) is not None for entry in entries)
        size = sum(entry.size for entry in entries) / MEBI
        print(
            *wrong[-9:],
            f"{len(answers)} answers, {whole} of {len(entries)} entries are whole or unfinished",
            file=sys.stderr,
        )
    return {"what": f"kill -9 of {processes} processes", "number": ended, "differ": len(wrong), "late": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=10_000_000)
    parser.add_argument("--compilations", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long processes are ended and started again")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, *arguments = options.one
        work = {"states": batches, "compilations": compilations, "killed": killed}[kind]
        print(json.dumps(work(*map(json.loads, arguments))))
        return
    from common import write_csv

    rows = []
    for kind, *arguments in (
        ("states", options.states), ("compilations", options.compilations),
        ("killed", options.processes, options.seconds),
    ):  # fmt: skip
        command = [sys.executable, __file__, "--one", kind, *map(str, arguments)]
        row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        rows.append({key: f"{x:.1f}" if isinstance(x, float) else x for key, x in row.items()})
        print(rows[-1])
    write_csv("soak", rows)


if __name__ == "__main__":
    main()
