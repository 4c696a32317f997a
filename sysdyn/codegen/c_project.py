"""A C project around a program's code: test vectors, a main that checks them and shows the use, and a CMake file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.codegen.c99 import MARK, Code, Description, check_name, comment
from sysdyn.errors import FileError, InvalidInput, SingularState, checked_path
from sysdyn.files import atomic
from sysdyn.runtime.real import DOUBLE, SINGLE, Real, real_of
from sysdyn.runtime.runner import Runner

# Number of test vectors in a project; chosen.
TEST_STATES = 8
# Allowed error of a test vector's results, as a fraction of the greatest expected entry of a member; chosen.
VECTOR_TOLERANCE = 1e-12
# Allowed error at ill-conditioned test vectors, in multiples of the difference made by rounding alone (chosen).
WORST_ROUNDING = 10.0
# Greatest tolerance of an exported test by number type (chosen): a larger one would accept wrong results.
LARGEST_TOLERANCE = {DOUBLE: 1e-6, SINGLE: 0.1}


def export(
    folder: str | os.PathLike, name: str, executable: Runner, description: Description, inputs: Mapping,
    real: str = "float64",
) -> Path:  # fmt: skip
    """Write the project of a program into `folder`; its test vectors are results at some of the states `inputs`.

    inputs {group: (N, size)}. real: number type, "float64" or "float32". Raises UnknownName for the type, InvalidInput,
    FileError, and SingularState if no state has a result, or if interpreter and compiled code differ too much.
    """
    program = executable.program
    if not program.n_outputs:
        raise InvalidInput("there is nothing to export: no result has any entries")
    number_type = real_of(real)
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
    _tolerance(executable, inputs, outputs, DOUBLE)  # at all states: raises if machine code and interpreter disagree
    about = []
    if number_type is not DOUBLE:
        worst = max(error for error, _, _ in _rounding(executable, inputs, outputs, number_type))
        about = [
            f"Results differ from those in double by up to {worst:.1g} of their greatest entry at {len(good)} states."
        ]
    code = Code(check_name(name), program, description, number_type, about)
    inputs, outputs = ({group: x[:TEST_STATES] for group, x in part.items()} for part in (inputs, outputs))
    tolerance = _tolerance(executable, inputs, outputs, number_type)
    files = {
        f"{name}.h": code.header(),
        f"{name}.c": code.source(),
        "test_vectors.h": _test_vectors(code, inputs, outputs, tolerance),
        "main.c": _main(code),
        "CMakeLists.txt": cmake(code.name, code.description.title, [f"{code.name}.c"]),
    }
    return write_folder(folder, files)


def _tolerance(executable: Runner, inputs: Mapping, outputs: Mapping, real: Real) -> float:
    """Tolerance of the test vectors at these states, from the interpreter's rounding errors. Raises SingularState."""
    worst, group, k = max(_rounding(executable, inputs, outputs, real))
    tolerance = max(VECTOR_TOLERANCE * real.rounding / DOUBLE.rounding, WORST_ROUNDING * worst)
    if not tolerance <= LARGEST_TOLERANCE[real]:
        advice = (
            "The system is near singular there, or the machine code is wrong: compare with backend='python'"
            if real is DOUBLE
            else "Export in double"
        )
        state = "; ".join(f"{x} = {values[k].tolist()}" for x, values in inputs.items())
        raise SingularState(
            f"{group!r} cannot be tested in {real.name}: interpreter and compiled code differ by {worst:.1g} of its "
            f"greatest entry, more than the {LARGEST_TOLERANCE[real] / WORST_ROUNDING:.0e} that an exported test "
            f"allows. {advice}. State: {state}"
        )
    return tolerance


def _rounding(executable: Runner, inputs: Mapping, outputs: Mapping, real: Real) -> list[tuple[float, str, int]]:
    """Differences between the interpreter's results in this number type and `outputs`, relative to the greatest entry.

    Returns (greatest relative difference, group, index of its state) for each group.
    """
    columns = [x.astype(real.dtype) for group in executable.program.inputs for x in inputs[group].T]
    found = iter(interpreter.run(executable.program, columns, constant=real.dtype.type))
    worst = []
    for group, x in outputs.items():
        if x.size:
            other = np.stack([np.broadcast_to(next(found), len(x)) for _ in range(x.shape[1])], axis=1)
            size = np.abs(x).max(axis=1)
            error = np.abs(other - x).max(axis=1) / np.where(size > 0.0, size, 1.0)
            error[np.isnan(error)] = np.inf
            k = int(np.argmax(error))
            worst.append((float(error[k]), group, k))
    return worst


# ---- files --------------------------------------------------------------------------------------------------------


def _test_vectors(code: Code, inputs: Mapping, outputs: Mapping, tolerance: float) -> str:
    count = len(next(iter(outputs.values())))
    arrays = []
    for what, members, values in (("inputs", code.inputs, inputs), ("outputs", code.outputs, outputs)):
        rows = []
        for k in range(count):
            blocks = ["{" + ", ".join(map(repr, values[m.group][k].tolist())) + "}" for m in members]
            rows.append("    {" + ",\n     ".join(blocks or ["0"]) + "}")
        initialiser = ",\n".join(rows)
        arrays.append(f"static const {code.name}_{what} test_{what}[TEST_COUNT] = {{\n{initialiser}\n}};")
    guard = f"{code.name.upper()}_TEST_VECTORS_H"
    return f"""{code.banner("states, and what the solver gives there")}
#ifndef {guard}
#define {guard}

#include "{code.name}.h"

#define TEST_COUNT {count}
#define TEST_TOLERANCE {tolerance!r} /* relative to the greatest expected entry */

{(2 * chr(10)).join(arrays)}

#endif
"""


def _main(code: Code) -> str:
    name = code.name
    prints = "\n".join(
        f'    for (k = 0; k < {m.size}; ++k) {{\n        printf("{m.name}[%d] = %.17g\\n", k, out.{m.name}[k]);\n    }}'
        for m in code.outputs
    )
    checks = "\n".join(
        f'        failed += differs("{m.name}", k, out.{m.name}, test_outputs[k].{m.name}, {m.size});'
        for m in code.outputs
    )
    spoiled = "".join(
        f"""
    in = test_inputs[0];
    in.{m.name}[0] = NAN;
    if (!({name}_run(&in, &out, &work) & {code.bit("BAD_INPUT")})) {{
        printf("{m.name} that is not a number is not reported\\n");
        ++failed;
    }}
"""
        for m in code.inputs
    )
    return f"""{code.banner("an example of use, and the check of the test vectors")}
#include <math.h>
#include <stdio.h>

#include "{name}.h"
#include "test_vectors.h"

{differs("state", code.real)}
int main(void)
{{
    static {name}_inputs in; /* static: they may be larger than the stack of a small machine */
    static {name}_outputs out;
    static {name}_work work;
    int k, status, failed = 0;

    in = test_inputs[0];
    status = {name}_run(&in, &out, &work);
    if (status != 0) {{
        printf("status %d: see the enumeration in {name}.h\\n", status);
    }}
{prints}

    for (k = 0; k < TEST_COUNT; ++k) {{
        failed += {name}_run(&test_inputs[k], &out, &work) != 0;
{checks}
    }}
{spoiled}
    if (failed) {{
        printf("%d checks failed\\n", failed);
    }} else {{
        printf("all checks passed\\n");
    }}
    return failed != 0;
}}
"""


def differs(row: str, real: Real) -> str:
    """The function of a check that compares arrays. row: the word for the place that they belong to."""
    return f"""/* Whether found[n] differs from expected[n] by more than the tolerance. */
static int differs(const char *what, int {row}, const {real.name} *found, const {real.name} *expected, int n)
{{
    double size = 0.0, error = 0.0;
    int k;
    for (k = 0; k < n; ++k) {{
        size = fmax(size, fabs(expected[k]));
        error = fmax(error, fabs(found[k] - expected[k]));
    }}
    printf("{row} %d: %s differs by %.1e; its greatest entry is %.3g\\n", {row}, what, error, size);
    return !(error <= TEST_TOLERANCE * size);
}}
"""


def cmake(name: str, title: str, sources: Sequence[str]) -> str:
    """CMakeLists.txt that builds a library from the sources and NAME.h, and its test from main.c."""
    return f"""# {MARK}: {comment(title)}
cmake_minimum_required(VERSION 3.10)
project({name} C)

set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library({name} {" ".join(sources)} {name}.h)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
set_target_properties({name} PROPERTIES POSITION_INDEPENDENT_CODE ON) # for shared libraries, such as plugins
if(UNIX)
  target_link_libraries({name} PUBLIC m)
endif()

add_executable({name}_main main.c test_vectors.h)
target_link_libraries({name}_main {name})

enable_testing()
add_test(NAME {name}_test_vectors COMMAND {name}_main)
"""


def write_folder(folder: str | os.PathLike, files: Mapping[str, str]) -> Path:
    """Write files into `folder`, which is made if it does not exist; a failure leaves no half-written file.

    Raises FileError if that cannot be done, or would replace a file that sysdyn did not write.
    """
    folder = checked_path("a folder", folder)
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file, but a folder is needed: name another, or one that does not exist yet")
    if not folder.absolute().parent.is_dir():
        raise FileError(f"{folder} cannot be made: the folder {folder.parent} does not exist")
    try:
        for path in (folder / name for name in files):
            if path.exists() and not (path.is_file() and _is_ours(path)):
                raise FileError(f"{path} was not written by sysdyn and would be replaced: name another folder")
    except OSError as error:
        raise FileError(f"{folder} cannot be written: {error.strerror or error}") from error
    return atomic.write_folder(folder, {name: text.encode("ascii") for name, text in files.items()})


def _is_ours(path: Path) -> bool:
    """True if the file begins with the mark of sysdyn."""
    return MARK.encode() in path.read_bytes()[:200]
