"""The type of numbers belongs to the target: a kernel in single precision is one more value of `Real`."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from kernels import run_kernel

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.codegen.c99 import CSource, Description
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.codegen.llvm.target import host_processor
from sysdyn.program.opcodes import BAD_INPUT
from sysdyn.runtime.real import DOUBLE, SINGLE

MODEL = sd.random_tree(4, seed=3, joints=("revolute", "prismatic", "spherical"))
N = 11


@pytest.fixture(scope="module", params=["inverse", "forward", "paper"])
def program(request):
    if request.param == "inverse":
        return sd.compile(sd.inverse_dynamics(MODEL), outputs="tau", backend="python").program
    options = {"formulation": "paper"} if request.param == "paper" else {"outputs": "qdd"}
    return sd.compile(sd.forward_dynamics(MODEL), backend="python", **options).program


@pytest.fixture(scope="module")
def inputs(program):
    q, qd, qdd = MODEL.random_state(seed=1, batch=N)
    rng = np.random.default_rng(0)
    given = {"q": q, "qd": qd, "qdd": qdd, "tau": rng.standard_normal((N, MODEL.nv)),
             "fx": rng.standard_normal((N, 6 * MODEL.nb))}  # fmt: skip
    return {name: given[name] for name in program.inputs}


def _interpreted(program, inputs):
    """By the interpreter in single precision: {group: (N, size)}."""
    columns = [x.astype(np.float32) for name in program.inputs for x in inputs[name].T]
    results = interpreter.run(program, columns)
    ends = np.cumsum(list(program.outputs.sizes.values()))[:-1]
    rows = np.stack([np.broadcast_to(np.asarray(x, dtype=np.float32), N) for x in results], axis=1)
    return dict(zip(program.outputs, np.split(rows, ends, axis=1), strict=True))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("many", [False, True], ids=["one state", "batch"])
@pytest.mark.parametrize("level", [0, 2])
def test_kernels_in_single_precision(program, inputs, many, level):
    kernel = compile_kernel(program, host_processor().lanes(SINGLE) if many else 1, level, real=SINGLE)
    found, status = run_kernel(kernel, program, inputs, N)
    exact, _ = run_kernel(compile_kernel(program), program, inputs, N)
    assert not status.any()
    for name, alike in _interpreted(program, inputs).items():
        size = np.abs(exact[name]).max()
        bound = 20.0 * np.abs(alike - exact[name]).max() + 1e-5 * size  # rounded in another order
        assert found[name].dtype == np.float32
        assert 1e-10 * size < np.abs(found[name] - exact[name]).max() < bound < 0.1 * size


@pytest.mark.parametrize("many", [False, True], ids=["one state", "batch"])
def test_status_of_each_state(program, inputs, many):
    kernel = compile_kernel(program, host_processor().lanes(SINGLE) if many else 1, 0, real=SINGLE)
    bad = {name: x.copy() for name, x in inputs.items()}
    bad["qd"][[2, 7], 0] = np.nan, np.inf
    _, status = run_kernel(kernel, program, bad, N)
    assert np.flatnonzero(status & BAD_INPUT).tolist() == [2, 7]
    assert np.flatnonzero(status).tolist() == [2, 7]


def test_a_register_holds_numbers_by_their_size():
    assert host_processor().lanes(SINGLE) == 2 * host_processor().lanes(DOUBLE)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_c_in_single_precision(program, inputs, tmp_path):
    code = CSource("model", program, Description("a model"), SINGLE)
    (tmp_path / "model.h").write_text(code.header())
    (tmp_path / "model.c").write_text(code.source())
    assert "double" not in code.header() + code.source()
    subprocess.run(["cc", "-std=c99", "-O1", "-shared", "-fPIC", "model.c", "-o", "model.so", "-lm"], cwd=tmp_path,
                   check=True)  # fmt: skip
    run = ctypes.CDLL(str(tmp_path / "model.so")).model_run
    rows = np.hstack([inputs[name] for name in program.inputs]).astype(np.float32)
    expected = np.hstack([*_interpreted(program, inputs).values()])
    exact = np.hstack([*run_kernel(compile_kernel(program), program, inputs, N)[0].values()])
    out, work = np.zeros(program.n_outputs, np.float32), np.zeros(max(1, code.workspace_size), np.float32)
    for row, alike, right in zip(rows, expected, exact, strict=True):
        assert run(*(x.ctypes.data_as(ctypes.c_void_p) for x in (row, out, work))) == 0
        assert np.abs(out - right).max() < 20.0 * np.abs(alike - right).max() + 1e-5 * np.abs(right).max()
