"""Functions of JAX alone: loops, manifolds, failed states, devices, threads, processes, float32."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from framework_cases import arm, estimate, fast, singular
from robots import floating_tree

import sysdyn as sd
from sysdyn.errors import BackendUnavailable, InvalidInput
from sysdyn.model.se3 import quaternion_rates
from sysdyn.runtime.native import extension

jax = pytest.importorskip("jax")
jax.config.update("jax_enable_x64", True)
from jax.test_util import check_grads  # noqa: E402  (after the precision is set)


def at(tree, k):
    return jax.tree.map(lambda x: x[k], tree)


def test_a_simulation_and_its_gradient():
    """Of a floating base: gradient of its pose after fifty steps by the torques, against differences."""
    model = floating_tree(3, seed=4)
    fd = fast(sd.forward_dynamics(model), outputs="qdd").to_jax()
    step = sd.kinematics(model, "integrate").to_jax()
    q, qd, tau = model.random_state(seed=0)

    @jax.jit
    def last(tau):
        def advance(state, _):
            q, qd = state
            qd = qd + 1e-3 * fd(q, qd, tau)["qdd"]
            return (step(q, 1e-3 * qd), qd), None

        return jax.lax.scan(advance, (q, qd), length=50)[0][0].sum()

    gradient = jax.jit(jax.grad(last))(tau)
    for k, e in enumerate(1e-3 * np.eye(model.nv)):
        assert float(gradient[k]) == pytest.approx(float(last(tau + e) - last(tau - e)) / 2e-3, rel=1e-5, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.0, 1e-9, 1.0])
def test_steps_in_manifolds_have_derivatives_at_rest(size):
    model = sd.random_tree(3, seed=4, joints=("free", "spherical", "planar"))
    step = sd.kinematics(model, "integrate").to_jax()
    q, v, _ = model.random_state(seed=0)
    check_grads(step, (q, size * v), order=2, modes=("fwd", "rev"), eps=1e-5, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(step(q, size * v), model.integrate(q, size * v), atol=1e-13)
    difference = sd.kinematics(model, "difference").to_jax()
    there = model.integrate(q, size * v)
    check_grads(
        lambda q1: difference(q, q1=q1), (there,), order=2, modes=("fwd", "rev"), eps=1e-5, atol=1e-4, rtol=1e-4
    )


@pytest.mark.slow
def test_quaternions_of_frames_have_derivatives():
    """By the entries of q, which along the rates of positions are the rates of attitudes."""
    model = sd.random_tree(4, seed=4, joints=("free", "revolute", "spherical", "helical"))
    frame = model.body_names[-1]
    attitude = sd.kinematics(model, f"quaternion:{frame}").to_jax()
    q, v, _ = model.random_state(seed=0)
    check_grads(attitude, (q,), order=2, modes=("fwd", "rev"), eps=1e-5, atol=1e-4, rtol=1e-4)
    rates = np.zeros((model.nq, model.nv))
    for i, joint in enumerate(model.joints):
        rates[model.q_slice(i), model.v_slice(i)] = joint.rates(q[model.q_slice(i)])
    turning = quaternion_rates(np.asarray(attitude(q))) @ sd.frame_jacobian(model, q, frame)[:3]
    np.testing.assert_allclose(jax.jit(jax.jacrev(attitude))(q) @ rates, turning, atol=1e-13)
    many = model.random_state(seed=1, batch=4)[0]
    np.testing.assert_allclose(jax.vmap(attitude)(many), sd.kinematics(model, f"quaternion:{frame}")(many), atol=1e-14)


# ---- states that fail, and bad input --------------------------------------------------------------------------------


@pytest.mark.slow
def test_gradients_of_failed_states_are_nan():
    solver, given = singular()
    ok = solver(**given, on_singular="nan").ok
    f = solver.to_jax()
    slope = jax.jit(jax.vmap(jax.grad(lambda x: f(**x)["qdd"].sum())))(given)["qd"]
    finite = np.isfinite(slope).all(axis=1)
    assert not finite[~ok].any() and finite.sum() > 50


def test_noise_is_refused_and_lists_are_arrays():
    solver, (q, qd), known = arm()
    with pytest.raises(InvalidInput, match="noise is as declared"):
        estimate()[0].to_jax()(q, qd, y={}, noise={"torques": 0.1})
    found = solver.to_jax()(q.tolist(), qd.tolist(), **known)["qdd"]
    np.testing.assert_array_equal(found, solver(q, qd, **known).qdd)


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_other_devices_are_refused_with_the_remedy(platform):
    """When a function is compiled for a device, which this machine need not have; derivatives and maps, too."""
    solver, (q, qd), known = arm()
    f = solver.to_jax()

    def cost(q, qd, tau):
        return f(q, qd, tau)["qdd"].sum()

    for function in (f, jax.vmap(f), jax.grad(cost), jax.jacfwd(cost)):
        traced = jax.jit(function).trace(q, qd, *known.values())
        with pytest.raises(BackendUnavailable, match=r"programs run on CPUs: put arrays there by jax.device_put\(x, "):
            traced.lower(lowering_platforms=(platform,))


LAYOUT = r"""
#include <stddef.h>
#include <stdio.h>
#include HEADER
int main(void) {
#define SIZE(type) printf(#type " %zu\n", sizeof(type));
#define AT(type, field) printf(#type " " #field " %zu\n", offsetof(type, field));
    FIELDS
    printf("%d %d\n", XLA_FFI_Extension_Metadata, XLA_FFI_Error_Code_FAILED_PRECONDITION);
    return 0;
}
"""
# Fields that xla.c uses, and structs whose size it gives, or on which the places of fields after them depend.
FIELDS = {
    "Extension_Base": "type", "Api_Version": "major_version minor_version", "Metadata": "api_version traits",
    "Metadata_Extension": "metadata", "Error_Create_Args": "struct_size extension_start message errc",
    "Api": "XLA_FFI_Error_Create", "Buffer": "data rank dims", "Scalar": "value", "Args": "size args",
    "Rets": "size rets", "Attrs": "attrs", "CallFrame": "extension_start api args rets attrs",
}  # fmt: skip


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_structs_of_xla_have_the_layout_of_jaxlib(tmp_path):
    theirs = Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"
    ours = Path(extension.__file__).with_name("xla.h")
    source, program, layouts = tmp_path / "layout.c", tmp_path / "layout", []
    for header, typedefs in (
        (theirs, "".join(f"typedef struct XLA_FFI_{x} XLA_FFI_{x};\n" for x in FIELDS)),
        (ours, ""),
    ):
        fields = "".join(f"AT(XLA_FFI_{x}, {field})" for x, names in FIELDS.items() for field in names.split())
        fields += "SIZE(XLA_FFI_Error_Create_Args)"
        text = LAYOUT.replace("#include HEADER", f'{typedefs}#include "{header}"').replace("FIELDS", fields)
        source.write_text(text)
        subprocess.run(["cc", str(source), "-o", str(program)], check=True)
        layouts.append(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)
    assert layouts[0] == layouts[1]


# ---- lives and processes ---------------------------------------------------------------------------------------------


def test_compiled_functions_outlive_their_solvers():
    solver, (q, qd), known = arm()
    f, expected = jax.jit(solver.to_jax()), solver(q, qd, **known).qdd
    f(q, qd, **known)
    del solver
    gc.collect()
    np.testing.assert_array_equal(f(q, qd, **known)["qdd"], expected)


def test_threads_call_one_function():
    solver, (q, qd), known = arm()
    f = jax.jit(solver.to_jax())
    f(q, qd, **known)
    wrong = []

    def work(k: int) -> None:
        for _ in range(200):
            found = f(q + k, qd, **known)["qdd"]
            if not np.array_equal(found, solver(q + k, qd, **known).qdd):
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory of this process is read from /proc")
def test_a_million_calls_leave_nothing():
    """In a loop of XLA, and thousands from Python."""
    solver, (q, qd), known = arm()
    f, (q, qd, tau) = solver.to_jax(), (q[0], qd[0], known["tau"][0])
    loop = jax.jit(lambda q: jax.lax.scan(lambda x, _: (x + 1e-9 * f(x, qd, tau)["qdd"], None), q, length=10**6)[0])
    once = jax.jit(lambda q: f(q, qd, tau)["qdd"])

    def used() -> int:
        """Bytes of memory after a million steps and twenty thousand calls."""
        loop(q).block_until_ready()
        for _ in range(20_000):
            once(q)
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    used()  # what is allocated once
    before = used()
    assert used() - before < 4e6  # four bytes a call


SCRIPT = """
import multiprocessing, sys
import numpy as np
import jax
jax.config.update("jax_enable_x64", True)
import sysdyn as sd
arm = sd.chain(3, seed=2)
solver = sd.compile(sd.forward_dynamics(arm), outputs="qdd", level="fast")
q, qd, tau = arm.random_state(seed=0, batch=4)
{body}
"""
SPAWNED = """
def work(k):
    f = jax.jit(solver.to_jax())
    return bool(np.array_equal(f(q, qd, tau)["qdd"], solver(q, qd, tau).qdd))

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(all(pool.map(work, range(4))))
"""
SHARDED = """
from jax.sharding import PartitionSpec as P
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
f = solver.to_jax()
sharded = jax.jit(jax.shard_map(lambda *x: f(*x)["qdd"], mesh=mesh, in_specs=P("x"), out_specs=P("x")))
print(len(jax.devices()), np.array_equal(sharded(q, qd, tau), solver(q, qd, tau).qdd))
parts = [jax.device_put(x, jax.sharding.NamedSharding(mesh, P("x"))) for x in (q, qd, tau)]
print(all(np.array_equal(g(*parts), solver(q, qd, tau).qdd) for g in (sharded, jax.jit(lambda *x: f(*x)["qdd"]))))
by = jax.jit(jax.grad(lambda *x: sharded(*x).sum()))(q, qd, tau)
print(np.allclose(by, jax.grad(lambda *x: f(*x)["qdd"].sum())(q, qd, tau)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("x64", [True, False], ids=["with float64", "without"])
def test_solvers_in_single_precision(x64, request):
    """Functions and their derivatives are of float32, whether JAX has float64 or not."""
    problem = sd.forward_dynamics(floating_tree(5, seed=1))
    double, single = (fast(problem, outputs="qdd", real=x) for x in ("float64", "float32"))
    given = [x.astype(np.float32) for x in problem.model.random_state(seed=2, batch=37)]
    exact, expected = double(*given).qdd, single(*given).qdd

    def cost(q, qd, tau, f):
        return (f(q, qd, tau)["qdd"] * exact[1]).sum() / np.abs(exact[1]).max()

    slopes = jax.grad(cost, argnums=(0, 1, 2))(*at(given, 1), f=double.to_jax())
    jax.config.update("jax_enable_x64", x64)
    request.addfinalizer(lambda: jax.config.update("jax_enable_x64", True))
    f = single.to_jax()
    for call in (f, jax.jit(f), jax.vmap(f)):
        found = call(*given)["qdd"]
        assert found.dtype == np.float32 and found.shape == exact.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(exact).max())
    if x64:
        assert jax.jit(f)(*(x.astype(float) for x in given))["qdd"].dtype == np.float32
    else:
        message = r"q is of float32, but .* float64: call jax.config.update\('jax_enable_x64', True\)"
        with pytest.warns(UserWarning), pytest.raises(InvalidInput, match=message):
            double.to_jax()(*given)
    found = jax.jit(jax.grad(cost, argnums=(0, 1, 2)), static_argnames="f")(*at(given, 1), f=f)
    for x, y in zip(found, slopes, strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-3 * np.abs(y).max())
    rates = jax.jvp(lambda q: f(q, *at(given[1:], 1))["qdd"], (given[0][1],), (given[0][2],))[1]
    assert rates.dtype == np.float32 and np.isfinite(rates).all()
    given[0][5, -1] = 1e5  # an angle whose sine is that of double precision
    found = jax.jit(f)(*given)["qdd"]
    np.testing.assert_allclose(found[5], double(*at(given, 5)).qdd, rtol=0, atol=1e-5 * np.abs(exact).max())


def ran(tmp_path, body: str, *args: str, **environment: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(body=body))
    run = subprocess.run([sys.executable, str(path), *args], capture_output=True, text=True, timeout=300,
                         env=dict(os.environ) | environment)  # fmt: skip
    return run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_processes_make_functions_of_their_own(tmp_path, way):
    assert "True" in ran(tmp_path, SPAWNED, way).splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(jax, "shard_map"), reason="JAX before 0.6 has no jax.shard_map")
def test_shards_of_a_batch(tmp_path):
    found = ran(tmp_path, SHARDED, XLA_FLAGS="--xla_force_host_platform_device_count=2").splitlines()
    assert [line for line in found if "True" in line or "False" in line] == ["2 True", "True", "True"], found
