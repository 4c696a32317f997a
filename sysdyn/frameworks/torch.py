"""A program as a function of PyTorch: in autograd to any order, under vmap, and under torch.compile (an extra).

Tensors of the CPU are read where they are. A call that nothing differentiates goes to the kernels at once; others are
one operation of autograd. torch.compile sees one opaque operation, and needs no graph breaks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from sysdyn.errors import BackendUnavailable, InvalidInput, SysdynError, install, optional
from sysdyn.frameworks.traced import FrameworkFunction, Node, flatten_batch_axes

# Nodes by number, which operations hold in place of them; they stay for the life of the process, as compiled code does.
_NODES: list[TorchNode] = []


def function(exported: FrameworkFunction) -> Callable:
    """The function of PyTorch. Raises BackendUnavailable if it is not installed."""
    torch = library()
    node = TorchNode.root(exported)
    apply, forward_mode = _operation(), torch.autograd.forward_ad

    def converted(name: str, x: Any) -> Any:
        x = torch.as_tensor(x)
        if x.device.type != "cpu":
            what = f"{name}.cpu()" if x.device.type != "meta" else "numbers"
            raise BackendUnavailable(f"{name} is on {x.device}, but programs run on CPUs: hand in {what}")
        if x.dtype == torch.float64:
            return x
        if x.is_complex() or x.dtype == torch.bool:
            raise InvalidInput(f"{name} is of {x.dtype}, but real numbers are needed")
        return x.to(torch.float64)

    def at_once(args: tuple, kwargs: dict) -> Any:
        """Results of tensors whose numbers may be read, which PyTorch refuses inside transformations."""
        found = exported.eager_call(*map(read, args), **{name: read(x) for name, x in kwargs.items()})
        if type(found) is dict:
            return {name: torch.from_numpy(x) for name, x in found.items()}
        return tuple(map(torch.from_numpy, found)) if type(found) is tuple else torch.from_numpy(found)

    def read(x: Any) -> Any:
        return {name: read(y) for name, y in x.items()} if type(x) is dict else x.numpy()

    def call(*args: Any, **kwargs: Any) -> Any:
        # tensors with tangents would be read without them; their level is −1 outside of forward mode
        if not torch.compiler.is_compiling() and getattr(forward_mode, "_current_level", 0) < 0:
            try:
                return at_once(args, kwargs)
            except (RuntimeError, AttributeError, TypeError, SysdynError):
                pass  # these have gradients, are no tensors, or the call fails: it goes the general way
        tensors, lead = exported.flatten_arguments(args, kwargs, converted, torch.broadcast_to)
        return exported.results(apply(node, tensors), lead)

    call.__name__ = call.__qualname__ = exported.name
    return call


class TorchNode(Node):
    """A program as an operation of PyTorch. number: of the node among all."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.number = len(_NODES)
        _NODES.append(self)

    def sizes(self) -> list[int]:
        return list(self.program.outputs.sizes.values())


@functools.cache
def library() -> ModuleType:
    """PyTorch. Raises BackendUnavailable."""
    missing = f"functions of PyTorch need it, and it is not installed: pip install torch, or {install('torch')}"
    return optional("torch", missing)


@functools.cache
def _operation() -> Callable[[TorchNode, list], tuple]:
    """Gives outputs of a node, of operands (size,) or (N, size)."""
    torch = library()

    def numbers(tensors: Any) -> list[np.ndarray]:
        return [x.detach().contiguous().numpy() for x in tensors]

    def run(tensors: Any, node: TorchNode) -> tuple:
        return tuple(torch.from_numpy(x) for x in node.run(numbers(tensors)))

    def lead(tensors: Any) -> tuple[int, ...]:
        return next((x.shape[:1] for x in tensors if x.ndim > 1), ())

    opaque = torch.library.custom_op("sysdyn::run", lambda tensors, node: list(run(tensors, _NODES[node])),
                                     mutates_args=(), schema="(Tensor[] tensors, int node) -> Tensor[]")  # fmt: skip

    @opaque.register_fake
    def _(tensors: Any, node: int) -> list:
        return [tensors[0].new_empty((*lead(tensors), size)) for size in _NODES[node].sizes()]

    def setup(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.node, ctx.shared = _NODES[inputs[1]], [x.ndim == 1 for x in inputs[0]]
        ctx.save_for_backward(*inputs[0])

    def backward(ctx: Any, weights: list) -> tuple:
        wanted = [x.requires_grad for x in ctx.saved_tensors]
        return pulled(ctx, weights, wanted, lambda node, given: opaque(list(given), node.number)), None

    opaque.register_autograd(backward, setup_context=setup)

    def pulled(ctx: Any, weights: Any, wanted: list[bool], apply: Callable) -> list:
        """Cotangents of the operands that are wanted, None for others."""
        operands = ctx.saved_tensors
        names = tuple(name for name, asked in zip(ctx.node.inputs, wanted, strict=True) if asked)
        many = lead(operands)
        weights = [operands[0].new_zeros((*many, size)) if x is None else x
                   for x, size in zip(weights, ctx.node.sizes(), strict=True)]  # fmt: skip
        found = iter(apply(ctx.node.derivative("vjp", names), [*operands, *weights]))
        result: list = []
        for asked, shared in zip(wanted, ctx.shared, strict=True):
            x = next(found) if asked else None
            result.append(x.sum(0) if x is not None and shared and many else x)
        return result

    class Call(torch.autograd.Function):  # type: ignore[name-defined, misc]
        """Outputs of a node."""

        @staticmethod
        def forward(node: TorchNode, *tensors: Any) -> Any:
            return run(tensors, node)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            ctx.node, *tensors = inputs
            ctx.shared = [x.ndim == 1 for x in tensors]
            ctx.save_for_backward(*tensors)
            ctx.save_for_forward(*tensors)

        @staticmethod
        def backward(ctx: Any, *weights: Any) -> tuple:
            return None, *pulled(ctx, weights, list(ctx.needs_input_grad[1:]), lambda *x: Call.apply(x[0], *x[1]))

        @staticmethod
        def jvp(ctx: Any, _: Any, *rates: Any) -> tuple:
            names = tuple(name for name, x in zip(ctx.node.inputs, rates, strict=True) if x is not None)
            moving = [x for x in rates if x is not None]
            return Call.apply(ctx.node.derivative("jvp", names), *ctx.saved_tensors, *moving)

        @staticmethod
        def vmap(info: Any, axes: tuple, node: TorchNode, *tensors: Any) -> tuple:
            flat, inside = flatten_batch_axes(tensors, axes[1:], lambda x, axis: x.movedim(axis, 0), torch.broadcast_to)
            results = Call.apply(node, *flat)
            return tuple(x.reshape((*inside, x.shape[-1])) for x in results), (0,) * len(results)

    # kept, as PyTorch asks for it in every call
    vars(Call.forward)["__signature__"] = inspect.signature(Call.forward)

    def apply(node: TorchNode, tensors: list) -> tuple:
        if torch.compiler.is_compiling():
            return tuple(opaque(tensors, node.number))
        return Call.apply(node, *tensors)

    return apply
