"""A C project of a program: its source, test vectors, a main that checks them, and CMakeLists.txt."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.codegen.c99 import GENERATED_BY, CSource, Description, check_name, comment, fill
from sysdyn.errors import FileError, InvalidInput, SingularState, checked_path
from sysdyn.files import atomic
from sysdyn.program.groups import Arrays
from sysdyn.program.program import Program
from sysdyn.runtime.real import DOUBLE, SINGLE, Real, real_of
from sysdyn.runtime.runner import Runner

# Number of test vectors (chosen).
TEST_STATES = 8
# Lower bound of the test tolerance in double, relative to the largest entry of a result: 4500 rounding units.
MIN_TOLERANCE = 1e-12
# Tolerance at ill-conditioned states, in multiples of rounding errors: compilers reorder sums (chosen).
ROUNDING_MULTIPLE = 10.0
# Upper bound of the tolerance; a larger one would accept wrong results (chosen: half the digits).
MAX_TOLERANCE = {DOUBLE: 1e-6, SINGLE: 0.1}


def export(
    folder: str | os.PathLike, name: str, executable: Runner, description: Description, inputs: Arrays,
    real: str = "float64",
) -> Path:  # fmt: skip
    """Write the C project of a program into `folder`. inputs {group: (N, size)}: candidates for test vectors.

    Raises UnknownName for `real`, InvalidInput, FileError, and SingularState if no state has a result, or if
    interpreter and machine code differ too much.
    """
    program, number_type = executable.program, real_of(real)
    if not program.n_outputs:
        raise InvalidInput("there is nothing to export: no result has any entries")
    n = len(next(iter(inputs.values())))
    outputs = {group: np.zeros((n, size)) for group, size in program.outputs.sizes.items()}
    status = np.empty(n, dtype=np.int64)
    executable.run(inputs, outputs, status, threads=1)
    good = np.flatnonzero(status == 0)
    if not len(good):
        raise SingularState(
            f"none of {n} sampled states has a finite result, so there is nothing to test an export with"
        )
    inputs, outputs = ({group: x[good] for group, x in part.items()} for part in (inputs, outputs))
    _tolerance(program, inputs, outputs, DOUBLE)  # at all states, as a check of the machine code
    remarks = []
    if number_type is not DOUBLE:
        worst = max(error for error, _, _ in _rounding_errors(program, inputs, outputs, number_type))
        remarks = [
            f"Results differ from those in double by up to {worst:.1g} of their greatest entry at {len(good)} states."
        ]
    code = CSource(check_name(name), program, description, number_type, remarks)
    inputs, outputs = ({group: x[:TEST_STATES] for group, x in part.items()} for part in (inputs, outputs))
    tolerance = _tolerance(program, inputs, outputs, number_type)
    files = {
        f"{name}.h": code.header(),
        f"{name}.c": code.source(),
        "test_vectors.h": _test_vectors(code, inputs, outputs, tolerance),
        "main.c": _main(code),
        "CMakeLists.txt": cmake(code.name, code.description.title, [f"{code.name}.c"]),
    }
    return write_folder(folder, files)


def _tolerance(program: Program, inputs: Arrays, outputs: Arrays, real: Real) -> float:
    """Test tolerance from the rounding errors at `inputs`. Raises SingularState if it exceeds MAX_TOLERANCE."""
    worst, group, k = max(_rounding_errors(program, inputs, outputs, real))
    tolerance = max(MIN_TOLERANCE * real.rounding / DOUBLE.rounding, ROUNDING_MULTIPLE * worst)
    if not tolerance <= MAX_TOLERANCE[real]:
        advice = (
            "The system is near singular there, or the machine code is wrong: compare with backend='python'"
            if real is DOUBLE
            else "Export in float64"
        )
        state = "; ".join(f"{x} = {values[k].tolist()}" for x, values in inputs.items())
        raise SingularState(
            f"{group!r} cannot be tested in {real.dtype}: interpreter and machine code differ by {worst:.1g} of its "
            f"greatest entry, more than the {MAX_TOLERANCE[real] / ROUNDING_MULTIPLE:.0e} that an exported test "
            f"allows. {advice}. State: {state}"
        )
    return tolerance


def _rounding_errors(program: Program, inputs: Arrays, outputs: Arrays, real: Real) -> list[tuple[float, str, int]]:
    """(largest error, group, state) of each output group: the interpreter in `real` compared with `outputs`.

    Errors are relative to the largest entry of the group at that state.
    """
    with np.errstate(over="ignore"):
        arrays = {group: x.astype(real.dtype) for group, x in inputs.items()}
        results = interpreter.run_groups(program, arrays, real=real)
    errors = []
    for group, x in outputs.items():
        if x.size:
            size = np.abs(x).max(axis=1)
            error = np.abs(results[group] - x).max(axis=1) / np.where(size > 0.0, size, 1.0)
            error[np.isnan(error)] = np.inf
            k = int(np.argmax(error))
            errors.append((float(error[k]), group, k))
    return errors


# ---- files --------------------------------------------------------------------------------------------------------


def _test_vectors(code: CSource, inputs: Arrays, outputs: Arrays, tolerance: float) -> str:
    count = len(next(iter(outputs.values())))
    arrays = []
    for what, members, values in (("inputs", code.inputs, inputs), ("outputs", code.outputs, outputs)):
        rows = []
        for k in range(count):
            blocks = ["{" + ", ".join(map(repr, values[m.group][k].tolist())) + "}" for m in members]
            rows.append("    {" + ",\n     ".join(blocks or ["0"]) + "}")
        initialiser = ",\n".join(rows)
        arrays.append(f"static const {code.name}_{what} test_{what}[TEST_COUNT] = {{\n{initialiser}\n}};")
    return fill(
        "test_vectors.h", banner=code.banner("states, and what the solver gives there"), name=code.name,
        upper=code.name.upper(), count=count, tolerance=repr(tolerance), arrays="\n\n".join(arrays),
    )  # fmt: skip


def _main(code: CSource) -> str:
    prints = [
        f'    for (k = 0; k < {m.size}; ++k) {{\n        printf("{m.name}[%d] = %.17g\\n", k, out.{m.name}[k]);\n    }}'
        for m in code.outputs
    ]
    checks = [
        f'        failed += differs("{m.name}", k, out.{m.name}, test_outputs[k].{m.name}, {m.size});'
        for m in code.outputs
    ]
    nan_checks = [
        f"""
    in = test_inputs[0];
    in.{m.name}[0] = NAN;
    if (!({code.name}_run(&in, &out, &work) & {code.bit("BAD_INPUT")})) {{
        printf("{m.name} that is not a number is not reported\\n");
        ++failed;
    }}
"""
        for m in code.inputs
    ]
    return fill(
        "main.c", banner=code.banner("an example of use, and the check of the test vectors"), name=code.name,
        differs=differs("state", code.real), prints="\n".join(prints), checks="\n".join(checks),
        nan_checks="".join(nan_checks),
    )  # fmt: skip


def differs(index: str, real: Real) -> str:
    """C function that compares a result with its expected value. index: name of its test-vector argument."""
    return fill("differs.c", index=index, real=real.name)


def cmake(name: str, title: str, sources: Sequence[str]) -> str:
    """CMakeLists.txt of a library from the sources and NAME.h, and of its test from main.c."""
    return fill("CMakeLists.txt", mark=GENERATED_BY, title=comment(title), name=name, sources=" ".join(sources))


def write_folder(folder: str | os.PathLike, files: Mapping[str, str]) -> Path:
    """Write files into `folder`, created if needed; a failure leaves no partial file.

    Raises FileError, also if it would overwrite a file that sysdyn did not write.
    """
    folder = checked_path("a folder", folder)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file, but a folder is needed: name another, or one that does not exist yet")
    if not folder.absolute().parent.is_dir():
        raise FileError(f"{folder} cannot be made: the folder {folder.parent} does not exist")
    try:
        for path in (folder / name for name in files):
            if path.exists() and not (path.is_file() and GENERATED_BY.encode() in path.read_bytes()[:200]):
                raise FileError(f"{path} was not written by sysdyn and would be replaced: name another folder")
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error.strerror or error}") from error
    return atomic.write_folder(folder, {name: text.encode("ascii") for name, text in files.items()})
