"""Export of programs as JAX functions (an extra): one primitive; on CPUs, XLA calls its kernels without Python."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from sysdyn.errors import BackendUnavailable, InvalidInput, SysdynError, install, optional
from sysdyn.frameworks.traced import FrameworkFunction, Node, flatten_batch_axes
from sysdyn.program.groups import Arrays
from sysdyn.runtime.kernel import ALIGN
from sysdyn.runtime.native import extension

# {key: kernel}. Compiled JAX functions refer to kernels, so these are never freed.
_KERNELS: dict[int, object] = {}


def function(exported: FrameworkFunction) -> Callable:
    """Convert a program to a JAX function. Raises BackendUnavailable if JAX is not installed."""
    jax = library()
    node = JaxNode.root(exported)

    def call(*args: Any, **kwargs: Any) -> Any:
        convert = functools.partial(_as_array, dtype=exported.real.dtype)
        arrays, lead = exported.flatten_arguments(args, kwargs, convert, jax.numpy.broadcast_to)
        return exported.results(_primitive().bind(*arrays, node=node), lead)

    call.__name__ = call.__qualname__ = exported.name
    return call


def _as_array(name: str, x: Any, dtype: np.dtype) -> Any:
    """Convert x to a JAX array of `dtype`. Raises InvalidInput."""
    jnp = library().numpy
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating) and not jnp.issubdtype(x.dtype, jnp.integer):
        raise InvalidInput(f"{name} is of {x.dtype}, but real numbers are needed")
    if x.dtype == dtype:
        return x
    x = x.astype(dtype)
    if x.dtype != dtype:
        raise InvalidInput(
            f"{name} is of {x.dtype}, but the program computes in {dtype}: call "
            "jax.config.update('jax_enable_x64', True) before arrays are made, or compile a solver with real='float32'"
        )
    return x


class JaxNode(Node):
    """A program, or a derivative of one, that the JAX primitive runs: the static parameter `node` of its calls."""

    @functools.cached_property
    def _keys(self) -> dict[bool, int]:
        return {}

    def key(self, single: bool) -> int:
        """Key of the kernel in xla.c, for one state (single) or many. It is reproducible, since JAX caches it."""
        if single not in self._keys:
            of = self.function
            content = f"{self.program.digest} {single} {of.level} {of.cache_tag} {self.kind} {of.real.name}"
            key = int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "little", signed=True)
            if key not in _KERNELS:
                kernel = _KERNELS[key] = self.machine_code.kernel(single)
                size = kernel.real.size
                workspace = (kernel.n_slots + 1) * kernel.width * size + ALIGN
                extension.register_xla(key, kernel.address, size, workspace, self._on_failure)
            self._keys[single] = key
        return self._keys[single]

    def _on_failure(self, address: int, n: int) -> str | None:
        """Handle failed states in a block of n states at `address`. Returns an error message or None."""
        try:
            self.on_failure(self.program, *self._block(address, n))
        except Exception as error:  # exceptions must not cross XLA; XLA raises an error with this message
            return str(error) if isinstance(error, SysdynError) else repr(error)
        return None

    def _block(self, address: int, n: int) -> tuple[Arrays, Arrays, np.ndarray]:
        """(inputs, outputs, status) of n states as views of XLA memory. address: block as in `runtime.kernel`."""
        number, program = np.ctypeslib.as_ctypes_type(self.function.real.dtype), self.program
        sizes = [*program.inputs.sizes.items(), *program.outputs.sizes.items()]
        words = (ctypes.c_int64 * (2 + 2 * len(sizes))).from_address(address)
        arrays = []
        for (name, size), start, stride in zip(sizes, words[2::2], words[3::2], strict=True):
            shape = (n, size) if stride or n == 1 else (size,)
            view = np.ctypeslib.as_array((number * math.prod(shape)).from_address(start))
            arrays.append((name, view.reshape(shape)))
        n_inputs, status = len(program.inputs), (ctypes.c_int64 * n).from_address(words[1])
        return dict(arrays[:n_inputs]), dict(arrays[n_inputs:]), np.ctypeslib.as_array(status)


# ---- the primitive -------------------------------------------------------------------------------------------------


@functools.cache
def library() -> ModuleType:
    """Import JAX with its foreign function interface. Raises BackendUnavailable."""
    missing = f"functions of JAX need JAX 0.5 or later, which is not installed: pip install jax, or {install('jax')}"
    optional("jax.ffi", missing)
    return optional("jax", missing)


@functools.cache
def _primitive() -> Any:
    """The JAX primitive of all programs, with its rules. Operands are (size,) or (N, size), with a common N."""
    jax = library()
    ad, batching, mlir = (importlib.import_module(f"jax.interpreters.{x}") for x in ("ad", "batching", "mlir"))
    jnp = jax.numpy
    primitive = importlib.import_module("jax.extend.core").Primitive("sysdyn")
    primitive.multiple_results = True

    def lead(args: Any) -> tuple[int, ...]:
        return next((x.shape[:1] for x in args if len(x.shape) > 1), ())

    def varying(x: Any) -> int:
        return len(getattr(getattr(x, "manual_axis_type", None), "varying", getattr(x, "vma", ())))

    @primitive.def_abstract_eval
    def _(*args: Any, node: JaxNode) -> list:
        # in shard_map, results vary over the same mesh axes as the operand with the most varying axes
        rank = 1 + len(lead(args))
        like = max((x for x in args if len(x.shape) == rank), key=varying)
        return [
            like.update(shape=(*lead(args), size), dtype=node.function.real.dtype, weak_type=False)
            for size in node.program.outputs.sizes.values()
        ]

    def run(*args: Any, node: JaxNode) -> list:
        dtype = node.function.real.dtype
        shapes = [jax.ShapeDtypeStruct((*lead(args), size), dtype) for size in node.program.outputs.sizes.values()]
        return jax.ffi.ffi_call("sysdyn", shapes)(*args, kernel=np.int64(node.key(not lead(args))))

    @functools.partial(jax.jit, static_argnames="node")
    def eager(*args: Any, node: JaxNode) -> list:
        return primitive.bind(*args, node=node)

    def no_cpu(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable(
            "programs run on CPUs: put arrays there by jax.device_put(x, jax.devices('cpu')[0]), or set "
            "JAX_PLATFORMS=cpu"
        )

    def forward(primals: tuple, tangents: tuple, *, node: JaxNode) -> tuple:
        results = primitive.bind(*primals, node=node)
        nonzero = {name: x for name, x in zip(node.inputs, tangents, strict=True) if type(x) is not ad.Zero}
        rates = primitive.bind(*primals, *nonzero.values(), node=node.derivative("jvp", tuple(nonzero)))
        return results, rates

    def transpose(cotangents: list, *args: Any, node: JaxNode) -> list:
        """Transpose a linear derivative program: cotangents of v in J v, or of w in wᵀ J."""
        parent, linear = node.parent, [ad.is_undefined_primal(x) for x in args]
        assert parent is not None and node.kind
        n = len(parent.inputs)
        primals, needed = args[:n], linear[n:]
        shapes = [x.aval if undefined else x for x, undefined in zip(args, linear, strict=True)]
        weights = [
            jnp.zeros((*lead(shapes), size), node.function.real.dtype) if type(x) is ad.Zero else x
            for x, size in zip(cotangents, node.program.outputs.sizes.values(), strict=True)
        ]
        if node.kind == "jvp":
            wrt = tuple(name for name, need in zip(node.wrt, needed, strict=True) if need)
            computed = iter(primitive.bind(*primals, *weights, node=parent.derivative("vjp", wrt)))
        else:
            rates = primitive.bind(*primals, *weights, node=parent.derivative("jvp", node.wrt))
            computed = iter([x for x, need in zip(rates, needed, strict=True) if need])
        result: list = [None] * n
        for x, need in zip(shapes[n:], needed, strict=True):
            value = next(computed) if need else None
            if value is not None and len(x.shape) == 1 and value.ndim == 2:  # one operand for all states
                value = value.sum(axis=0)
            result.append(value)
        return result

    def batch(args: tuple, axes: tuple, *, node: JaxNode) -> tuple[list, list]:
        flat, inside = flatten_batch_axes(args, axes, lambda x, axis: jnp.moveaxis(x, axis, 0), jnp.broadcast_to)
        results = primitive.bind(*flat, node=node)
        return [x.reshape((*inside, x.shape[-1])) for x in results], [0] * len(results)

    jax.ffi.register_ffi_target("sysdyn", extension.XLA_HANDLER, platform="cpu")
    primitive.def_impl(eager)
    mlir.register_lowering(primitive, no_cpu)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True), platform="cpu")
    ad.primitive_jvps[primitive] = forward
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    return primitive
