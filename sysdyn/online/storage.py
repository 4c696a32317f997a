"""Compiled problems as bytes: one .npz of plain arrays and a JSON text; never machine code, never pickle."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.errors import FileError, ProblemError, SysdynError
from sysdyn.offline.choice import Choice, Compiled
from sysdyn.offline.options import Options
from sysdyn.offline.outputs import described, from_described
from sysdyn.offline.safety import Safety
from sysdyn.problem import Problem
from sysdyn.program.operations import Flops
from sysdyn.program.program import FORMAT, Program


def pack(compiled: Compiled, options: Options, problem: Problem | None) -> bytes:
    """The stored form; without the problem, and outputs by name alone, where whoever reads it has them."""
    choice = asdict(compiled.choice)
    perms = {name: np.array(choice.pop(name), dtype=np.int32) for name in ("row_perm", "col_perm")}
    outputs = list(options.names) if problem is None else _described_outputs(options, problem)
    head = {
        "sysdyn solver": FORMAT,
        "options": {**options.to_dict(), "outputs": outputs},
        "choice": choice,
        "considered": compiled.considered,
        "seconds": compiled.seconds,
        "stages": compiled.stages,
        "problem": None if problem is None else problem.to_dict(),
    }
    text = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    return packed({"solver": text, **perms, **compiled.program.to_arrays()})


def unpack(payload: bytes) -> tuple[Compiled, Options, Problem | None]:
    """Inverse of `pack`. Raises FileError for foreign or damaged bytes and other versions."""
    try:
        arrays = unpacked(payload)
        head = json.loads(bytes(arrays["solver"]).decode())
        if head["sysdyn solver"] != FORMAT:
            raise FileError(f"format {head['sysdyn solver']}, this version reads {FORMAT}: compile it again")
        choice = head["choice"]
        for scope in ("end_to_end", "solve"):
            choice[scope] = None if choice[scope] is None else Flops(**choice[scope])
        choice["passes"] = tuple(choice["passes"])
        choice["joined"] = tuple((k, tuple(rows)) for k, rows in choice.get("joined", ()))
        known = {x.name for x in fields(Safety)}  # earlier versions stored figures that there are no more
        choice["safety"] = Safety(**{name: x for name, x in choice["safety"].items() if name in known})
        choice["row_perm"], choice["col_perm"] = (tuple(arrays[name].tolist()) for name in ("row_perm", "col_perm"))
        considered = tuple((name, what) for name, what in head["considered"])
        stages = tuple((name, spent) for name, spent in head.get("stages", ()))
        compiled = Compiled(Choice(**choice), Program.from_arrays(arrays), considered, head["seconds"], stages)
        outputs = from_described(head["options"]["outputs"])
        options = Options.from_dict({**head["options"], "outputs": outputs})
        problem = None if head["problem"] is None else Problem.from_dict(head["problem"])
    except SysdynError:
        raise
    except Exception as error:  # zipfile, numpy and json each raise their own kinds on damaged bytes
        raise FileError(f"{type(error).__name__}: {error}") from error
    return compiled, options, problem


def _described_outputs(options: Options, problem: Problem) -> list[str | dict]:
    """The outputs as JSON. Raises ProblemError where one has no description."""
    for m in options.measured:
        if described([m], problem.model) is None:
            raise ProblemError(f"measurement {m.name!r} is custom and cannot be stored in a file")
    return described(options.outputs, problem.model) or []


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """Arrays by name as the bytes of an .npz file."""
    buffer, by_name = io.BytesIO(), dict[str, Any](arrays)
    np.savez(buffer, **by_name)
    return buffer.getvalue()


def unpacked(payload: bytes) -> dict[str, np.ndarray]:
    """Inverse of `packed`. Raises what NumPy and zipfile raise on damaged bytes."""
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read(path: Path) -> tuple[Compiled, Options, Problem]:
    """The solver and problem in a file of `Solver.save`. Raises FileError naming the file."""
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        compiled, options, problem = unpack(payload)
    except FileError as error:
        raise FileError(f"{path} is not a sysdyn solver file of this version: {error}") from error
    if problem is None:
        raise FileError(f"{path} holds no problem: it is a cache entry, not a file written by Solver.save")
    return compiled, options, problem
