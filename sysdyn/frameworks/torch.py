"""Export of programs as PyTorch functions (an extra), for autograd of any order, vmap and torch.compile.

CPU tensors are read in place. A call without differentiation or transformation runs as a plain call. Other calls are a
single autograd operation. For torch.compile it is one opaque operation without graph breaks.
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

# Nodes of custom operations, by index. They are never freed, since compiled code refers to them.
_NODES: list[TorchNode] = []


def function(exported: FrameworkFunction) -> Callable:
    """Convert a program to a PyTorch function. Raises BackendUnavailable if PyTorch is not installed."""
    torch = library()
    node = TorchNode.root(exported)
    apply, forward_mode = _operation(), torch.autograd.forward_ad

    def as_float64(name: str, x: Any) -> Any:
        x = torch.as_tensor(x)
        if x.device.type != "cpu":
            what = f"{name}.cpu()" if x.device.type != "meta" else "numbers"
            raise BackendUnavailable(f"{name} is on {x.device}, but programs run on CPUs: hand in {what}")
        if x.dtype == torch.float64:
            return x
        if x.is_complex() or x.dtype == torch.bool:
            raise InvalidInput(f"{name} is of {x.dtype}, but real numbers are needed")
        return x.to(torch.float64)

    def as_array(x: Any) -> Any:
        if type(x) is dict:
            return {name: as_array(y) for name, y in x.items()}
        if x.is_complex() or x.dtype == torch.bool:
            raise TypeError  # `as_float64` raises an error with the argument name
        return x.numpy()

    def as_arrays(args: tuple, kwargs: dict) -> tuple[list, dict] | None:
        """Arguments as NumPy arrays; None if some are not tensors, need gradients, or are being transformed."""
        # in forward mode (level ≥ 0), tensors may have tangents, which NumPy arrays would drop
        if torch.compiler.is_compiling() or getattr(forward_mode, "_current_level", 0) >= 0:
            return None
        try:
            return [as_array(x) for x in args], as_array(kwargs)
        except (RuntimeError, AttributeError, TypeError):
            return None

    def as_tensors(results: Any) -> Any:
        if type(results) is dict:
            return {name: torch.from_numpy(x) for name, x in results.items()}
        return tuple(map(torch.from_numpy, results)) if type(results) is tuple else torch.from_numpy(results)

    def call(*args: Any, **kwargs: Any) -> Any:
        arrays = as_arrays(args, kwargs)
        if arrays:
            try:
                return as_tensors(exported.eager_call(*arrays[0], **arrays[1]))
            except SysdynError:
                pass  # plain calls reject invalid norms and NaN; traced calls normalise quaternions and return NaN
        tensors, lead = exported.flatten_arguments(args, kwargs, as_float64, torch.broadcast_to)
        return exported.results(apply(node, tensors), lead)

    call.__name__ = call.__qualname__ = exported.name
    return call


class TorchNode(Node):
    """A program, or a derivative of one, that the PyTorch operation runs. number: index of the node in `_NODES`."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.number = len(_NODES)
        _NODES.append(self)

    def sizes(self) -> list[int]:
        return list(self.program.outputs.sizes.values())


@functools.cache
def library() -> ModuleType:
    """Import PyTorch. Raises BackendUnavailable."""
    missing = f"functions of PyTorch need it, and it is not installed: pip install torch, or {install('torch')}"
    return optional("torch", missing)


@functools.cache
def _operation() -> Callable[[TorchNode, list], tuple]:
    """PyTorch operation with derivatives: apply(node, operands) → outputs, for the program of any `TorchNode`.

    Operands and outputs are tensors (size,) or (N, size), one for each input or output group of the program.
    """
    torch = library()

    def run(tensors: Any, node: TorchNode) -> tuple:
        arrays: list[np.ndarray] = [x.detach().contiguous().numpy() for x in tensors]
        return tuple(map(torch.from_numpy, node.run(arrays)))

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
        needed = [x.requires_grad for x in ctx.saved_tensors]
        return cotangents(ctx, weights, needed, lambda node, operands: opaque(list(operands), node.number)), None

    opaque.register_autograd(backward, setup_context=setup)

    def cotangents(ctx: Any, weights: Any, needed: list[bool], apply: Callable) -> list:
        """Cotangents of the operands of a forward call; None for operands whose entry of `needed` is false.

        ctx: autograd context of the call. weights: cotangent of each output; None for 0. apply: (node, operands) →
        outputs; it runs the vector-Jacobian product.
        """
        operands = ctx.saved_tensors
        names = tuple(name for name, need in zip(ctx.node.inputs, needed, strict=True) if need)
        many = lead(operands)
        weights = [operands[0].new_zeros((*many, size)) if x is None else x
                   for x, size in zip(weights, ctx.node.sizes(), strict=True)]  # fmt: skip
        computed = iter(apply(ctx.node.derivative("vjp", names), [*operands, *weights]))
        result: list = []
        for need, shared in zip(needed, ctx.shared, strict=True):
            x = next(computed) if need else None
            result.append(x.sum(0) if x is not None and shared and many else x)
        return result

    class Call(torch.autograd.Function):  # type: ignore[name-defined, misc]
        """The operation for autograd and vmap."""

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
            needed = list(ctx.needs_input_grad[1:])
            return None, *cotangents(ctx, weights, needed, lambda node, operands: Call.apply(node, *operands))

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

    # PyTorch inspects the signature in every call, so cache it
    vars(Call.forward)["__signature__"] = inspect.signature(Call.forward)

    def apply(node: TorchNode, tensors: list) -> tuple:
        if torch.compiler.is_compiling():
            return tuple(opaque(tensors, node.number))
        return Call.apply(node, *tensors)

    return apply
