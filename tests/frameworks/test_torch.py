"""Functions of PyTorch: the values of calls, derivatives of any order, batches, compiled code, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from traced import ALWAYS, CASES, STATES, arm, estimate, missing, singular

import sysdyn as sd
from sysdyn.errors import BackendUnavailable, InvalidInput, SingularState, UnknownName
from sysdyn.frameworks import torch as bridge

try:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
except ImportError:
    torch = None
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch itself
installed = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


@pytest.fixture(scope="module", params=[pytest.param(x, marks=[pytest.mark.slow] * (x not in ALWAYS)) for x in CASES])
def case(request):
    """(compiled object, function, arguments by position and by name, as tensors)"""
    if torch is None:
        pytest.skip("PyTorch is not installed")
    compiled, args, kwargs = CASES[request.param]()
    return compiled, compiled.to_torch(), *tree(torch.from_numpy, (args, kwargs))


def tree(f, x):
    if isinstance(x, dict):
        return {k: tree(f, y) for k, y in x.items()}
    return tuple(tree(f, y) for y in x) if isinstance(x, tuple) else f(x)


def leaves(x) -> list:
    if isinstance(x, dict):
        x = tuple(x.values())
    return [z for y in x for z in leaves(y)] if isinstance(x, tuple) else [x]


def native(compiled, args, kwargs) -> dict:
    found = compiled(*args, **kwargs)
    return {x: found[x] for x in compiled.outputs} if isinstance(compiled, sd.Solver) else found


def same(found, expected):
    assert set(found) == set(expected)
    for name, x in expected.items():
        assert tuple(found[name].shape) == x.shape and found[name].dtype == torch.float64
        np.testing.assert_allclose(found[name].detach(), x, rtol=1e-12, atol=1e-12 * np.abs(x).max())


def flat(f, args, kwargs):
    """f as a function of tensors alone, and these."""
    given = leaves((args, kwargs))

    def call(*tensors):
        rest = iter(tensors)
        a, k = tree(lambda _: next(rest), (args, kwargs))
        return tuple(f(*a, **k).values())

    return call, given


def test_values_are_those_of_calls(case):
    compiled, f, args, kwargs = case
    many = native(compiled, *tree(torch.Tensor.numpy, (args, kwargs)))
    one = native(compiled, *tree(lambda x: x[1].numpy(), (args, kwargs)))
    same(f(*args, **kwargs), many)
    same(f(*tree(lambda x: x[1], args), **tree(lambda x: x[1], kwargs)), one)
    call, given = flat(f, args, kwargs)
    for found, x in zip(torch.func.vmap(call)(*given), many.values(), strict=True):
        np.testing.assert_allclose(found, x, rtol=1e-12, atol=1e-12 * np.abs(x).max())
    rest = [x[1] for x in given[1:]]
    expected = [call(x, *rest) for x in given[0]]
    for k, found in enumerate(torch.func.vmap(lambda x: call(x, *rest))(given[0])):
        np.testing.assert_allclose(found, np.stack([x[k] for x in expected]), rtol=1e-12, atol=1e-11)
    twice = [torch.stack([x, x]) for x in given]  # nested, with another axis first
    for found, x in zip(torch.func.vmap(torch.func.vmap(call), in_dims=1)(*(x.movedim(0, 1) for x in twice)),
                        many.values(), strict=True):  # fmt: skip
        np.testing.assert_allclose(found.reshape(x.shape) if len(found) == 1 else found[1], x, rtol=1e-12, atol=1e-9)


def test_derivatives_of_first_and_second_order(case):
    _, f, args, kwargs = case
    call, given = flat(f, args, kwargs)
    one = [x[2].clone().requires_grad_() for x in given]
    assert torch.autograd.gradcheck(call, one, eps=1e-6, atol=1e-4, rtol=1e-4, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, one, eps=1e-6, atol=1e-3, rtol=1e-3)
    by = torch.func.jacrev(call, argnums=0)(*[x[2] for x in given])
    for x, y in zip(by, torch.func.jacfwd(call, argnums=0)(*[x[2] for x in given]), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def test_gradients_of_batches_and_of_what_states_share(case):
    _, f, args, kwargs = case
    call, given = flat(f, args, kwargs)

    def cost(*x):
        return sum((y**2).sum() for y in call(*x))

    whole = torch.func.grad(cost, argnums=tuple(range(len(given))))(*given)
    for k in range(STATES):
        one = torch.func.grad(cost, argnums=tuple(range(len(given))))(*(x[k] for x in given))
        for x, y in zip(whole, one, strict=True):
            torch.testing.assert_close(x[k], y, rtol=1e-9, atol=1e-8)
    shared = given[0][1].clone().requires_grad_()
    cost(shared, *given[1:]).backward()
    by_one = sum(torch.func.grad(cost)(given[0][1], *(x[k] for x in given[1:])) for k in range(STATES))
    torch.testing.assert_close(shared.grad, by_one, rtol=1e-9, atol=1e-8)


@installed
@pytest.mark.slow
def test_compiled_code_has_no_breaks_and_the_same_gradients():
    for make in (arm, estimate):
        compiled, args, kwargs = make()
        f = compiled.to_torch()
        call, given = flat(f, *tree(torch.from_numpy, (args, kwargs)))

        def cost(*x, call=call):
            return sum((y**2).sum() for y in call(*x))

        faster = torch.compile(cost, fullgraph=True, backend="aot_eager")
        results = []
        for function in (cost, faster):
            own = [x.clone().requires_grad_() for x in given]
            value = function(*own)
            value.backward()
            results.append([value.detach(), *(x.grad for x in own)])
        for x, y in zip(*results, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


@installed
def test_states_that_fail_are_solved_again_or_not_a_number():
    solver, given = singular()
    expected = solver(**given, on_singular="nan")
    tensors = tree(torch.from_numpy, given)
    np.testing.assert_array_equal(solver.to_torch()(**tensors)["qdd"], expected.qdd)
    with pytest.raises(SingularState, match="the system cannot be solved at this state"):
        solver.to_torch(on_singular="raise")(**tensors)


@installed
def test_what_is_wrong_is_said():
    solver, (q, qd), known = arm()
    f = solver.to_torch()
    q, qd, tau = (torch.from_numpy(x) for x in (q, qd, known["tau"]))
    with pytest.raises(InvalidInput, match=r"qd has shape .*2.*, but \(…, 3\) is needed"):
        f(q[0], qd[0, :2], tau=tau[0])
    with pytest.raises(InvalidInput, match="no value was given for 'tau'"):
        f(q, qd)
    with pytest.raises(InvalidInput, match="q is of torch.complex128, but real numbers are needed"):
        f(q * 1j, qd, tau=tau)
    with pytest.raises(UnknownName, match="on_singular"):
        solver.to_torch(on_singular="repivot")
    found = f(q.float(), qd, tau=tau)["qdd"]
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, solver(q.numpy(), qd.numpy(), tau.numpy()).qdd, rtol=1e-3, atol=1e-3)


@installed
@pytest.mark.parametrize("device", ["cuda", "mps", "xpu"])
def test_tensors_of_other_devices_are_refused_with_the_remedy(device):
    """PyTorch's fake tensors are on devices that a machine lacks; those of "meta" have no numbers anywhere."""
    f = arm()[0].to_torch()
    with pytest.raises(BackendUnavailable, match="q is on meta, but programs run on CPUs: hand in numbers"):
        f(torch.empty(3, device="meta"), torch.zeros(3), tau=torch.zeros(3))
    with FakeTensorMode():
        here = torch.empty(3, dtype=torch.float64)
        there = torch.empty(3, dtype=torch.float64, device=device)
        many = torch.empty(4, 3, device=device)
        calls = (
            lambda: f(there, here, tau=here),
            lambda: f(there.requires_grad_(), there, tau=there),
            lambda: torch.func.vmap(f)(many, many, tau=many),
            lambda: torch.func.grad(lambda q: f(q, here, tau=here)["qdd"].sum())(there.detach()),
        )
        for call in calls:
            with pytest.raises(BackendUnavailable, match=rf"q is on {device}:0, but .* CPUs: hand in q.cpu\(\)"):
                call()
        with pytest.raises(BackendUnavailable, match=rf"tau is on {device}:0, but .* hand in tau.cpu\(\)"):
            f(here, here, tau=there.detach())


def test_without_pytorch_the_remedy_is_named():
    solver = arm()[0]
    with (
        missing(bridge, "torch"),
        pytest.raises(BackendUnavailable, match=r"pip install torch, or pip install '.*\[torch\]'"),
    ):
        solver.to_torch()
