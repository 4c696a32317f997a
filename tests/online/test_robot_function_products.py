"""Products of derivatives of kinematics and compiled functions with vectors: differences, one another, every call."""

from __future__ import annotations

import pickle
import shutil
import subprocess
from functools import partial

import numpy as np
import pytest
from programs import executed

import sysdyn as sd
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.model.quantities import QUANTITY
from sysdyn.online.robot_functions import ROBOT_FUNCTIONS

COMPILER = next((x for x in ("gcc", "clang") if shutil.which(x)), None)
MODEL = sd.random_tree(3, seed=4, joints=("free", "spherical", "planar"))
FRAME = MODEL.body_names[2]
STEP = 1e-6  # half the width of differences, whose errors are about 1e-9 then


def outputs(name: str) -> str:
    return f"{name}:{FRAME}" if ROBOT_FUNCTIONS[name].of_frame else name


def state(kin: sd.Kinematics, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {x: rng.standard_normal(QUANTITY[x].shape(MODEL)) for x in kin.function.inputs}
    for k, x in enumerate({"q", "q1"} & {*found}):
        found[x] = MODEL.random_state(seed=seed + k)[0]
    return found


def tangents(kin: sd.Kinematics, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {x: (MODEL.nv,) if x in ("q", "q1") else shape for x, shape in kin.function.inputs.items()}
    return {x: rng.standard_normal(shape) for x, shape in shapes.items()}


def moved(given: dict, along: dict, step: float) -> dict:
    return {
        x: MODEL.integrate(y, step * along[x]) if x in ("q", "q1") else y + step * along[x] for x, y in given.items()
    }


def close(found, expected, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max(initial=0.0)))


@pytest.mark.parametrize("name", ROBOT_FUNCTIONS)
def test_products_against_differences_and_one_another(name):
    """Of each function in the table, of all joints with quaternions."""
    kin = sd.kinematics(MODEL, outputs(name), backend="python")
    push, pull, bend = (make() for make in (kin.jvp, kin.vjp, kin.hvp))
    given, v = state(kin, 0), tangents(kin, 1)
    w = np.random.default_rng(2).standard_normal(np.shape(kin(**given)))
    ahead, behind = (moved(given, v, step) for step in (STEP, -STEP))
    Jv, wJ = push(**given, tangents=v), pull(**given, cotangents=w)
    close(Jv, (kin(**ahead) - kin(**behind)) / (2 * STEP), 1e-7)
    assert sum((wJ[x] * v[x]).sum() for x in wJ) == pytest.approx((w * Jv).sum(), abs=1e-10)
    slopes = [pull(**x, cotangents=w) for x in (ahead, behind)]
    for x, found in bend(**given, cotangents=w, tangents=v).items():
        close(found, (slopes[0][x] - slopes[1][x]) / (2 * STEP), 1e-7)


@pytest.fixture(scope="module")
def kin() -> sd.Kinematics:
    return sd.kinematics(MODEL, {"E": "energy", "place": f"pose:{FRAME}", "H": "mass_matrix"})


def test_every_call_of_a_product(kin):
    """By name and alone, of many states, prepared, pickled; counts are those of the program that runs."""
    pull, push = kin.vjp(of=("E", "place")), kin.jvp(of="place", wrt="q")
    q, qd, _ = MODEL.random_state(seed=0, batch=5)
    w = {"E": np.arange(5.0), "place": np.random.default_rng(0).standard_normal((4, 4))}
    many = pull(q, qd, cotangents=w)
    assert {x: y.shape for x, y in many.items()} == {"q": (5, MODEL.nv), "qd": (5, MODEL.nv)}
    for k in range(5):
        own = {"E": np.array(float(k)), "place": w["place"]}
        one = pull(q[k], qd[k], cotangents=own)
        step = pull.bind(q[k].copy(), qd[k].copy(), cotangents=own)
        step()
        again = pickle.loads(pickle.dumps(pull))(q=q[k], qd=qd[k], cotangents=own)
        for x, y in many.items():
            close(one[x], y[k], 1e-13)
            close(step.out[x], y[k], 1e-13)
            np.testing.assert_array_equal(again[x], one[x])
    v = np.cos(np.arange(MODEL.nv))
    alone, named = push(q, qd, tangents=v), push(q, qd, tangents={"q": v})
    assert list(alone) == ["place"] and alone["place"].shape == (5, 4, 4)
    np.testing.assert_array_equal(alone["place"], named["place"])
    given = np.concatenate([q[0], qd[0], *(np.ravel(x) for x in (w["E"][0], w["place"]))])
    assert executed(pull.program, given.tolist())[0] == pull.flops
    shown = [f"{x} from q, qd, " for x in ("q, qd", "place")]
    assert shown[0] + "cotangents['E'], cotangents['place'];" in repr(pull)
    assert shown[1] + "tangents['q'];" in repr(push) and "w^T J" in pull.report()
    longer = q[0].copy()
    for _, part in MODEL.quaternions:
        longer[part] *= 1.0000001  # and is divided by its norm
    far = pull(longer, qd[0], cotangents=own)
    close(far["q"], pull(q[0], qd[0], cotangents=own)["q"], 1e-13)


@pytest.mark.slow
def test_operations_are_a_few_times_those_of_the_function():
    """A gradient of the energy of a long chain, not its Jacobian's rows or columns."""
    model = sd.chain(16)
    energy = sd.kinematics(model, "energy", level=0)
    assert energy.jvp().flops.total < 2.5 * energy.flops.total
    assert energy.vjp().flops.total < 2.5 * energy.flops.total
    assert energy.hvp().flops.total < 6.0 * energy.flops.total


def test_products_of_a_function_of_ones_own():
    """Results are handed over as the function does; names of groups may hold anything."""
    function = sd.compile_function(lambda x, y: (x @ y, x * y[0]), {"x": (3,), "tangents:x": (3,)})
    x, y, v = np.array([1.0, 2.0, 3.0]), np.array([0.5, 4.0, -1.0]), np.array([1.0, -1.0, 2.0])
    dot, rest = function.jvp(wrt="x")(x, y, tangents=v)
    np.testing.assert_allclose(dot, v @ y)
    np.testing.assert_allclose(rest, v * y[0])
    (dot,) = function.jvp(of="result", wrt="tangents:x")(x, y, tangents={"tangents:x": v})
    np.testing.assert_allclose(dot, v @ x)
    dot, _ = function.jvp()(x, y, tangents={"x": v, "tangents:x": v})
    np.testing.assert_allclose(dot, v @ y + v @ x)
    pull = function.vjp()(x, y, cotangents={"result": 2.0, "result1": v})
    np.testing.assert_allclose(pull["x"], 2.0 * y + v * y[0])
    np.testing.assert_allclose(pull["tangents:x"], 2.0 * x + [v @ x, 0.0, 0.0])
    ratio = sd.compile_function(lambda x: x[1] / x[0], {"x": (2,)})
    assert ratio.jvp()(np.array([2.0, 6.0]), tangents=np.array([1.0, 0.0])) == -1.5
    matrix = sd.compile_function(partial(sd.crba, MODEL), {"q": (MODEL.nq,)})  # q are numbers as others here
    assert matrix.vjp()(MODEL.neutral(), cotangents=np.eye(MODEL.nv))["q"].shape == (MODEL.nq,)
    assert repr(function.jvp(wrt="x")).startswith("Function <lambda>_jvp: x (3,), tangents:x (3,), tangents['x'] (3,)")


def test_bad_input_is_named(kin):
    q, qd, _ = MODEL.random_state(seed=0)
    pull = kin.vjp(of="E")
    with pytest.raises(UnknownName, match="unknown result 'energy'"):
        kin.vjp(of="energy")
    with pytest.raises(UnknownName, match="unknown argument to differentiate by 'tau'"):
        kin.jvp(wrt="tau")
    with pytest.raises(InvalidInput, match="is a product already"):
        pull.hvp()
    with pytest.raises(InvalidInput, match="pass cotangents={'E': …}"):
        pull(q, qd)
    with pytest.raises(UnknownName, match="unknown name in cotangents: 'energy'"):
        pull(q, qd, cotangents={"energy": 1.0})
    with pytest.raises(UnknownName, match="'tangents'"):
        pull(q, qd, tangents={"q": qd}, cotangents=1.0)
    with pytest.raises(InvalidInput, match=r"cotangents\['E'\] has shape \(2, 2\)|do not fit together"):
        pull(np.stack([q] * 3), qd, cotangents=np.ones(2))
    with pytest.raises(InvalidInput, match="cotangents .*'E', 'place', 'H'"):
        kin.vjp()(q, qd, cotangents=1.0)


@pytest.mark.skipif(not COMPILER, reason="no C compiler")
@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["jvp", "vjp", "hvp"])
def test_products_in_c(kin, kind, tmp_path):
    folder = kin.product(kind, "E").export_c(tmp_path / kind, "robot")
    assert ("cotangents_e[1]" in (folder / "robot.h").read_text()) == (kind != "jvp")
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror"]
    subprocess.run([COMPILER, *flags, "main.c", "robot.c", "-o", "main", "-lm"], cwd=folder, check=True, timeout=60)
    run = subprocess.run([folder / "main"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and run.stdout.endswith("all checks passed\n"), run.stdout[-2000:]
