"""Functions of JAX and PyTorch: framework × kind of program × property."""

from __future__ import annotations

import numpy as np
import pytest
from framework_cases import ALWAYS, CASES, STATES, Jax, Torch, arm, flat, leaves, missing, quaternions, singular, tree

import sysdyn as sd
from sysdyn.errors import BackendUnavailable, InvalidInput, UnknownName

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch itself


@pytest.fixture(scope="module", params=[Jax, Torch], ids=lambda x: x.name)
def framework(request):
    return request.param()


@pytest.fixture(scope="module", params=[pytest.param(x, marks=[pytest.mark.slow] * (x not in ALWAYS)) for x in CASES])
def case(request, framework):
    """(compiled object, its function, arguments by position and by name)"""
    compiled, args, kwargs = CASES[request.param]()
    return compiled, getattr(compiled, f"to_{framework.name}")(), args, kwargs


def native(compiled, args, kwargs) -> dict:
    found = compiled(*args, **kwargs)
    return {x: found[x] for x in compiled.outputs} if isinstance(compiled, sd.Solver) else found


def close(found, expected, tolerance=1e-12) -> None:
    expected = np.asarray(expected)
    assert tuple(found.shape) == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max()))


def test_values_are_those_of_calls(framework, case):
    """Of one state, of batches, and mapped over some arguments or all, in nested maps and along other axes."""
    compiled, f, args, kwargs = case
    for k in (slice(None), 1):
        state = tree(lambda x, k=k: x[k], (args, kwargs))
        expected = native(compiled, *state)
        a, named = tree(framework.tensor, state)
        for call in framework.variants(f):
            found = call(*a, **named)
            assert set(found) == set(expected)
            for name, x in expected.items():
                assert found[name].dtype == framework.float64
                close(framework.numpy(found[name]), x)
    expected = list(native(compiled, args, kwargs).values())
    call, tensors = flat(framework, f, args, kwargs)
    pairs = [framework.tensor(np.moveaxis(np.stack([x, x]), 2, 0)) for x in leaves((args, kwargs))]
    nested = framework.vmap(framework.vmap(call, 1), 1)
    for x, one, two in zip(expected, framework.vmap(call)(*tensors), nested(*pairs), strict=True):
        close(framework.numpy(one), x)
        close(framework.numpy(two)[1], x)
    rest = [x[1] for x in tensors[1:]]
    by_state = [call(x, *rest) for x in tensors[0]]
    for k, found in enumerate(framework.vmap(lambda x: call(x, *rest))(tensors[0])):
        close(framework.numpy(found), np.stack([framework.numpy(x[k]) for x in by_state]))


def test_derivatives_of_first_and_second_order(framework, case):
    _, f, args, kwargs = case
    call, tensors = flat(framework, f, args, kwargs)
    framework.check_derivatives(call, [x[2] for x in tensors])


@pytest.mark.slow
def test_gradients_of_batches_and_of_shared_arguments(framework, case):
    _, f, args, kwargs = case
    call, tensors = flat(framework, f, args, kwargs)

    def cost(*x):
        return sum((y**2).sum() for y in call(*x))

    argnums = tuple(range(len(tensors)))
    by_state = [framework.grad(cost, argnums)(*(x[k] for x in tensors)) for k in range(STATES)]
    for gradient in framework.gradients(cost, argnums):
        for k, found in enumerate(gradient(*tensors)):
            close(framework.numpy(found), np.stack([framework.numpy(x[k]) for x in by_state]), 1e-9)
    shared, *rest = tensors
    expected = sum(framework.numpy(framework.grad(cost)(shared[1], *(x[k] for x in rest))) for k in range(STATES))
    close(framework.numpy(framework.slope(lambda x: cost(x, *rest), shared[1])), expected, 1e-9)


@pytest.mark.slow
def test_failed_states_are_solved_again_or_nan_or_raise(framework):
    solver, given = singular()
    expected, tensors = solver(**given, on_singular="nan"), tree(framework.tensor, given)
    assert 0 < (~expected.ok).sum() < 700
    function, strict = (getattr(solver, f"to_{framework.name}")(on_singular=x) for x in ("nan", "raise"))
    for call in framework.variants(function):
        np.testing.assert_array_equal(framework.numpy(call(**tensors)["qdd"]), expected.qdd)
    bad, fine = (tree(lambda x, mask=mask: x[int(mask.argmax())], tensors) for mask in (~expected.ok, expected.ok))
    for call in framework.variants(strict):
        close(framework.numpy(call(**fine)["qdd"]), expected.qdd[expected.ok][0], 0.0)
        with pytest.raises(Exception, match="the system cannot be solved at this state"):
            framework.numpy(call(**bad)["qdd"])


@pytest.mark.parametrize("make", [arm, quaternions])
def test_states_without_a_result_are_nan_and_quaternions_are_normalised(framework, make):
    compiled, (q, qd), known = make()
    f = getattr(compiled, f"to_{framework.name}")()
    expected, changed = compiled(q, qd, **known).qdd, q.copy()
    for _, part in compiled.model.quaternions:
        changed[:, part] *= 2.0
    changed[1:4, -1], expected[1:4] = (np.nan, np.inf, 1e12 if make is arm else np.nan), np.nan
    for call in framework.variants(f):
        results = call(*map(framework.tensor, (changed, qd)), **tree(framework.tensor, known))
        np.testing.assert_allclose(framework.numpy(results["qdd"]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f, q, qd, tau: f(q[0], qd[0, :2], tau[0]), InvalidInput, r"qd has shape .*2.*, but \(…, 3\) is needed"),
        (lambda f, q, qd, tau: f(q, qd[:4], tau), InvalidInput, "do not fit together: q .*5.*, qd .*4"),
        (lambda f, q, qd, tau: f(q, qd), InvalidInput, "no value was given for 'tau'"),
        (lambda f, q, qd, tau: f(q, qd, torque=tau), UnknownName, "torque"),
        (lambda f, q, qd, tau: f(q * 1j, qd, tau), InvalidInput, "q is of .*complex128, but real numbers are needed"),
    ],
)
def test_wrong_arguments_are_named(framework, call, error, message):
    solver, (q, qd), known = arm()
    with pytest.raises(error, match=message):
        call(getattr(solver, f"to_{framework.name}")(), *map(framework.tensor, (q, qd, known["tau"])))
    with pytest.raises(UnknownName, match="on_singular"):
        getattr(solver, f"to_{framework.name}")(on_singular="skip")


@pytest.mark.parametrize("kind", [Jax, Torch], ids=lambda x: x.name)
def test_without_the_framework_the_remedy_is_named(kind):
    solver, name = arm()[0], kind.name
    with missing(kind.bridge, name), pytest.raises(BackendUnavailable, match=rf"pip install {name}, or .*\[{name}\]'"):
        getattr(solver, f"to_{name}")()
