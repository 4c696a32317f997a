"""Functions of PyTorch alone: torch.compile, types of tensors, devices."""

from __future__ import annotations

import numpy as np
import pytest
from framework_cases import Torch, arm, estimate, flat

from sysdyn.errors import BackendUnavailable

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of PyTorch itself


@pytest.mark.slow
@pytest.mark.parametrize("make", [arm, estimate])
def test_compiled_code_has_no_breaks_and_the_same_gradients(make):
    compiled, args, kwargs = make()
    call, tensors = flat(Torch(), compiled.to_torch(), args, kwargs)

    def cost(*x):
        return sum((y**2).sum() for y in call(*x))

    results = []
    for function in (cost, torch.compile(cost, fullgraph=True, backend="aot_eager")):
        own = [x.clone().requires_grad_() for x in tensors]
        value = function(*own)
        value.backward()
        results.append([value.detach(), *(x.grad for x in own)])
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_float32_is_converted():
    solver, (q, qd), known = arm()
    found = solver.to_torch()(*(torch.from_numpy(x) for x in (q.astype(np.float32), qd, known["tau"])))["qdd"]
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, solver(q, qd, **known).qdd, rtol=1e-3, atol=1e-3)


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
