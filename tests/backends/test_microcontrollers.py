"""Exports for microcontrollers, on emulated boards: the bits of this machine, all checks, and counted instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from kernels import run_kernel
from llvmlite.binding.object_file import ObjectFileRef
from microcontrollers import BOARDS, bits, instructions, needs_board, run, write_states

import sysdyn as sd
from sysdyn.backends.llvm.kernel import compile_kernel
from sysdyn.backends.llvm.objects import Target, compile_object
from sysdyn.backends.llvm.target import Processor, here
from sysdyn.backends.real import DOUBLE, REALS, Real
from sysdyn.errors import ProblemError, UnknownName
from sysdyn.papers.nori.problems import load_cells

STATES = 6
TREE = sd.random_tree(4, seed=4, joints=("free", "revolute", "spherical", "planar"))
# Features by which code for this machine rounds as that of a target.
ROUNDING = {"cortex-m4": "", "cortex-m7": "+avx,+avx2,+fma"}


def arm():
    return sd.compile(sd.forward_dynamics(sd.chain(5, seed=3)), outputs=["qdd"], level="fast")


def floating():
    return sd.compile(sd.forward_dynamics(TREE), outputs=["qdd", "a"], level="fast")


def guarded():
    """With roots, and signs of other numbers."""
    return sd.compile(load_cells(4), outputs=["tau", "qdd"], level="fast")


def moved():
    """More numbers than one function copies, some of which are passed on."""
    return sd.compile_function(lambda x: {"y": np.cumsum(x * x), "z": x[:3]}, {"x": (510,)})


CASES = {
    "arm": arm, "vjp": lambda: arm().vjp(), "jvp": lambda: arm().jvp(), "floating": floating, "guarded": guarded,
    "moved": moved,
}  # fmt: skip


def states(compiled, real: Real) -> dict[str, np.ndarray]:
    """Random inputs by group; of the last two states one entry is not a number, and another one is large."""
    rng, program = np.random.default_rng(0), compiled.program
    found = {name: rng.standard_normal((STATES, size)) for name, size in program.input_groups}
    if "q" in found:
        found["q"] = compiled.model.random_state(seed=5, batch=STATES)[0]
    first = next(iter(found.values()))
    first[-2, 1], first[-1, 1] = np.nan, 1e12
    return {name: x.astype(real.dtype) for name, x in found.items()}


class OneByOne(Processor):
    """A processor of this machine's kind that computes one number at a time."""

    def lanes(self, real: Real = DOUBLE) -> int:
        return 1


def same(found: np.ndarray, expected: np.ndarray, real: Real) -> None:
    """Bits are the same but for those of what is no number."""
    x, y = found.view(real.dtype), expected.view(real.dtype)
    np.testing.assert_array_equal(np.where(np.isnan(x), 0, found.view(f"u{real.size}")),
                                  np.where(np.isnan(y), 0, expected.view(f"u{real.size}")))  # fmt: skip


@pytest.mark.slow
@needs_board
@pytest.mark.skipif("x86_64" not in here().triple or not shutil.which("gcc"), reason="no gcc for x86-64")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("target", "real"), [("cortex-m7", "float"), ("cortex-m4", "float"), ("cortex-m7", "double")])
def test_objects_give_the_bits_of_this_machine_in_as_many_instructions_as_they_say(case, target, real, tmp_path):
    compiled, real = CASES[case](), REALS[real]
    given, program = states(compiled, real), compiled.program
    folder = compiled.export_c(tmp_path / "c", "robot", real=real.name, target=target)
    assert "all checks passed" in run(folder, target, ["main.c", "robot.o"])
    write_states(folder, "robot", program, given)
    printed = run(folder, target, ["bits.c", "robot.o"], "-Wno-missing-braces")
    status, words = bits(printed)
    assert not status[:-2].any() and status[-2]
    at_most = int(re.search(r"executes at most (\d+) instructions", (folder / "robot.h").read_text())[1])
    taken = instructions(printed, target)  # with those of the loop of calls; angles within half a turn are not reduced
    assert at_most - 12 * program.n_inputs < taken < at_most + 20, (at_most, taken)

    # the same function for this machine
    processor = OneByOne(here().triple, "x86-64", ROUNDING[target])
    mine = compile_object("robot", program, Target("this machine", processor, (real,)), real, "mine")
    (folder / "mine.o").write_bytes(mine.code)
    subprocess.run(["gcc", "-no-pie", "bits.c", "mine.o", "-o", "mine", "-lm"], cwd=folder, check=True, timeout=60)
    own = bits(subprocess.run([folder / "mine"], capture_output=True, text=True, check=True, timeout=60).stdout)
    np.testing.assert_array_equal(status, own[0])
    same(words, own[1], real)
    # and the kernel of solvers, where it rounds in the same places
    kernel = compile_kernel(program, processor=Processor(here().triple, "x86-64", ROUNDING[target]), real=real)
    expected, flags = run_kernel(kernel, program, given, STATES)
    rows = np.hstack(list(expected.values()))
    np.testing.assert_array_equal(status, flags)
    if not processor.fuses:
        same(words, rows.view(np.uint32), real)
    for x, y in zip(words.view(real.dtype)[:-2], rows[:-2], strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e4 * real.rounding * np.abs(y).max())


# Sines of a few operations, for C libraries have their own.
SINES = """
static float sinf(float x) { const float y = x * x; return x * (1.0f - y * (0.16666667f - y * 0.0083333f)); }
static float cosf(float x) { const float y = x * x; return 1.0f - y * (0.5f - y * 0.041666667f); }
"""


@pytest.mark.slow(after=1)
@needs_board
@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
@pytest.mark.parametrize("case", ["arm", "vjp", "floating"])
@pytest.mark.parametrize("target", BOARDS)
def test_code_in_c_passes_its_checks_and_gives_the_same_bits(case, target, tmp_path):
    """With one set of sines, as rounding is that of each single operation."""
    compiled, real = CASES[case](), REALS["float"]
    folder = compiled.export_c(tmp_path / "c", "robot", real="float")
    assert "all checks passed" in run(folder, target, ["main.c", "robot.c"])
    code = (folder / "robot.c").read_text()
    functions = SINES.replace("sinf(", "ours_sinf(").replace("cosf(", "ours_cosf(")
    head = "#include <math.h>\n"
    assert head in code
    code = re.sub(r"\b(sinf|cosf)\(", r"ours_\1(", code).replace(head, head + functions)
    (folder / "robot.c").write_text(code)
    write_states(folder, "robot", compiled.program, states(compiled, real))
    status, words = bits(run(folder, target, ["bits.c", "robot.c"], "-Wno-missing-braces"))
    command = "gcc -std=c99 -O2 bits.c robot.c -o mine -lm".split()
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    own = bits(subprocess.run([folder / "mine"], capture_output=True, text=True, check=True, timeout=60).stdout)
    np.testing.assert_array_equal(status, own[0])
    same(words, own[1], real)


def test_targets_that_cannot_be_are_named(tmp_path):
    f = sd.compile_function(lambda x: x + 1.0, {"x": (2,)})
    with pytest.raises(UnknownName, match=r"unknown target 'cortex'.*Valid names: cortex-m4, cortex-m7"):
        f.export_c(tmp_path / "c", "next", target="cortex")
    with pytest.raises(ProblemError, match="a Cortex-M4F has no instructions for double: export with real='float'"):
        f.export_c(tmp_path / "c", "next", target="cortex-m4")
    assert not (tmp_path / "c").exists()


def test_an_earlier_object_is_replaced_and_its_instructions_are_in_the_header(tmp_path):
    for n in (2, 40):
        f = sd.compile_function(lambda x: np.cumsum(x), {"x": (n,)})
        folder = f.export_c(tmp_path / "c", "sums", real="float", target="cortex-m7")
        count = int(re.search(r"at most (\d+) instructions: there are no loops", (folder / "sums.h").read_text())[1])
        # a number is read and looked at, added, written and looked at again
        assert 6 * n < count < 11 * n + 40
    assert (folder / "sums.o").read_bytes()[:7] == b"\x7fELF\x01\x01\x01"
    (folder / "sums.o").write_bytes(b"mine")
    with pytest.raises(sd.errors.FileError, match=r"sums\.o was not written by sysdyn"):
        f.export_c(tmp_path / "c", "sums", real="float", target="cortex-m7")


@pytest.mark.slow
def test_what_the_icub_takes_is_what_the_page_says(tmp_path):
    pytest.importorskip("icub_models")
    solver = sd.compile(sd.forward_dynamics(sd.load("icub")), outputs=["qdd"])
    folder = solver.export_c(tmp_path / "c", "icub", real="float", target="cortex-m7")
    count = int(re.search(r"at most (\d+) instructions", (folder / "icub.h").read_text())[1])
    kept = (b".text", b".rodata", b".ARM.exidx")
    size = sum(x.size() for x in ObjectFileRef.from_path(str(folder / "icub.o")).sections() if x.name() in kept)
    text = " ".join((Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8").split())
    assert f"the 32 joints of the iCub take {count:,} instructions and {size / 1e3:.0f} kB of flash." in text
