"""Storage of compiled problems: an .npz of plain arrays and a JSON text, without machine code and pickles.

A sha256 digest of all arrays detects accidental damage, but not manipulation. Therefore all content is checked: no file
can make a kernel read or write beyond its arrays.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sysdyn.errors import FileError, ProblemError, SysdynError
from sysdyn.files import cache
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.problem import Problem
from sysdyn.offline.options import Options, described, from_described
from sysdyn.offline.report import Choice, Compiled, StabilityReport
from sysdyn.online.redundancy import Reduction, drop_components
from sysdyn.passes import PASSES
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program

FORMAT = 6  # Version of the stored form: increment when the meaning of a part changes.

# Types of fields of dataclasses by their annotations, for fields that are no dataclasses.
_PLAIN: dict[str, Any] = {"str": str, "int": int, "float": (int, float), "bool": bool}


class Stored(NamedTuple):
    """A stored compiled problem. reduction: from the stated problem to `problem`, if equations were omitted."""

    compiled: Compiled
    options: Options
    problem: Problem | None
    reduction: Reduction | None = None


def pack(
    compiled: Compiled, options: Options, problem: Problem | None, reduction: Reduction | None = None
) -> bytes:  # fmt: skip
    """Bytes of a compiled problem; reduction: from the stated problem to the compiled one.

    problem: None, and outputs by name only, if the reader has the problem and the outputs.
    """
    choice = asdict(compiled.choice)
    perms = {name: np.array(choice.pop(name), dtype=np.int32) for name in ("row_perm", "col_perm")}
    outputs = list(options.output_names) if problem is None else _described_outputs(options, problem)
    head = {
        "sysdyn solver": FORMAT,
        "options": {**options.to_dict(), "outputs": outputs},
        "choice": choice,
        "considered": compiled.considered,
        "seconds": compiled.seconds,
        "stages": compiled.stages,
        "problem": None if problem is None else problem.to_dict(),
        "left_out": {m.name: list(k) for m, k in reduction.omitted} if reduction else {},
        "loosened": bool(reduction and reduction.keeps_wrenches),
    }
    text = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    arrays: dict[str, np.ndarray] = {"solver": text, **perms, **compiled.program.to_arrays()}
    return packed({**arrays, "digest": np.frombuffer(digest_of(arrays), dtype=np.uint8)})


def unpack(payload: bytes, problem: Problem | None = None, outputs: Sequence[Output] = ()) -> Stored:
    """Inverse of `pack`. problem, outputs: replace those stored.

    Raises FileError for foreign or damaged bytes, other versions, and a program that does not fit the problem.
    """
    try:
        arrays = unpacked(payload)
        digest = arrays.pop("digest", None)
        head = json.loads(bytes(arrays["solver"]).decode())
        if head["sysdyn solver"] != FORMAT:
            raise FileError(f"format {head['sysdyn solver']}, this version reads {FORMAT}: compile it again")
        if digest is None or digest.tobytes() != digest_of(arrays):
            raise FileError("its content does not match its digest: it is damaged, or was changed")
        choice = head["choice"]
        for scope in ("end_to_end", "solve"):
            choice[scope] = None if choice[scope] is None else Flops(**choice[scope])
        choice["passes"] = tuple(choice["passes"])
        choice["rotated_with"] = tuple((int(k), tuple(map(int, rows))) for k, rows in choice["rotated_with"])
        choice["stability"] = StabilityReport(**choice["stability"])
        for name in ("row_perm", "col_perm"):
            choice[name] = tuple(arrays[name].astype(np.int32, casting="safe").tolist())
        considered = tuple((str(name), str(what)) for name, what in head["considered"])
        stages = tuple((str(name), float(spent)) for name, spent in head["stages"])
        compiled = Compiled(Choice(**choice), Program.from_arrays(arrays), considered, head["seconds"], stages)
        outputs = outputs or from_described(head["options"]["outputs"])
        options = Options.from_dict({**head["options"], "outputs": outputs})
        reduction = None
        if problem is None and head["problem"] is not None:
            problem = Problem.from_dict(head["problem"])
            if head["left_out"]:
                reduction = drop_components(problem, head["left_out"], bool(head["loosened"]))
                problem = reduction.reduced
        _check_types(options, options.equations, compiled, compiled.choice, compiled.choice.report)
        _check_choice(compiled.choice)
        if problem is not None:
            _check_groups(compiled.program, options, problem)
    except SysdynError:
        raise
    except Exception as error:  # zipfile, numpy and json have different errors for damaged bytes
        raise FileError(f"{type(error).__name__}: {error}") from error
    return Stored(compiled, options, problem, reduction)


def _check_types(*stored: Any) -> None:
    """Raise FileError unless str, int, float and bool fields of these dataclasses have values of these types."""
    for x in stored:
        for field in fields(x):
            value = getattr(x, field.name)
            if not isinstance(value, _PLAIN.get(str(field.type), object)):
                raise FileError(f"its {field.name} is {value!r}, not {field.type}")


def _check_choice(choice: Choice) -> None:
    """Raise FileError unless the order is a permutation of rows and of columns, and all passes exist."""
    n, rows = len(choice.col_perm), set(choice.row_perm)
    if sorted(choice.col_perm) != list(range(n)) or not len(rows) == len(choice.row_perm) == n:
        raise FileError("its elimination order is no permutation")
    if not set(choice.passes) <= set(PASSES):
        raise FileError(f"its passes {choice.passes} are not all known")


def _check_groups(program: Program, options: Options, problem: Problem) -> None:
    """Raise FileError unless the program takes the inputs of the problem and gives the outputs of the options."""
    sizes = program.inputs.sizes, program.outputs.sizes
    required = problem.inputs.sizes, problem.outputs(options.outputs).sizes
    if sizes != required:
        raise FileError(f"its program has inputs and outputs {sizes}, and its problem {required}")


def _described_outputs(options: Options, problem: Problem) -> list[str | dict]:
    """The outputs as JSON. Raises ProblemError if one has no description."""
    for m in options.measured:
        if described([m], problem.model) is None:
            raise ProblemError(f"measurement {m.name!r} is custom and cannot be stored in a file")
    return described(options.outputs, problem.model) or []


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays by name as the bytes of an .npz file."""
    buffer, by_name = io.BytesIO(), dict[str, Any](arrays)
    np.savez(buffer, **by_name)
    return buffer.getvalue()


def unpacked(payload: bytes) -> dict[str, np.ndarray]:
    """Inverse of `packed`. Raises the errors of NumPy and zipfile for damaged bytes, FileError for compressed ones."""
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        if sum(x.file_size for x in archive.zip.infolist()) > len(payload):
            raise FileError("its arrays are larger than the file")
        return {name: archive[name] for name in archive.files}


StoredProgram: TypeAlias = tuple[Program, Mapping[str, np.ndarray]]  # with arrays that belong to it


def cached_program(key: str | None, make: Callable[[], StoredProgram]) -> StoredProgram:
    """Program of a cache entry; if the entry is missing or damaged, `make` it and store it. key None: no cache."""
    payload = cache.load(key) if key else None
    if payload is not None:
        with contextlib.suppress(FileError, ValueError, OSError):
            arrays = unpacked(payload)
            return Program.from_arrays(arrays), arrays
    made = program, extra = make()
    if key:
        cache.store(key, packed({**extra, **program.to_arrays()}))
    return made


def digest_of(arrays: Mapping[str, np.ndarray]) -> bytes:
    """sha256 of arrays with their names, types and shapes."""
    h = hashlib.sha256()
    for name in sorted(arrays):
        x = arrays[name]
        h.update(repr((name, x.dtype.str, x.shape)).encode())
        h.update(np.ascontiguousarray(x).tobytes())
    return h.digest()


def read(path: Path) -> Stored:
    """The solver and problem in a file of `Solver.save`. Raises FileError naming the file."""
    try:
        payload = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        stored = unpack(payload)
    except SysdynError as error:
        raise FileError(f"{path} is not a sysdyn solver file of this version: {error}") from error
    if stored.problem is None:
        raise FileError(f"{path} holds no problem: it is a cache entry, not a file written by Solver.save")
    return stored
