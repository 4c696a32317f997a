"""A program as a function of JAX: traced, differentiated and batched there, run by kernels without Python (an extra).

Programs are one primitive of JAX. Its derivatives by forward and reverse mode are programs, too, made when they are
first traced, and so on to any order. XLA calls the kernels on CPUs through its foreign function interface.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from sysdyn.errors import BackendUnavailable, InvalidInput, SysdynError, install, optional
from sysdyn.frameworks.traced import FrameworkFunction, Node, flatten_batch_axes
from sysdyn.runtime.backend import Arrays
from sysdyn.runtime.kernel import ALIGN
from sysdyn.runtime.native import extension

# Kernels by their keys, for as long as the process lives: compiled functions of JAX refer to them.
_KERNELS: dict[int, object] = {}


def function(exported: FrameworkFunction) -> Callable:
    """The function of JAX. Raises BackendUnavailable if JAX is not installed."""
    jax = library()
    node = JaxNode.root(exported)

    def call(*args: Any, **kwargs: Any) -> Any:
        convert = functools.partial(_converted, dtype=exported.real.dtype)
        arrays, lead = exported.flatten_arguments(args, kwargs, convert, jax.numpy.broadcast_to)
        return exported.results(_primitive().bind(*arrays, node=node), lead)

    call.__name__ = call.__qualname__ = exported.name
    return call


def _converted(name: str, x: Any, dtype: np.dtype) -> Any:
    """An array of JAX of float64 or float32. Raises InvalidInput."""
    jnp = library().numpy
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating) and not jnp.issubdtype(x.dtype, jnp.integer):
        raise InvalidInput(f"{name} is of {x.dtype}, but real numbers are needed")
    if x.dtype == dtype:
        return x
    x = x.astype(dtype)
    if x.dtype != dtype:
        raise InvalidInput(
            f"{name} is of {x.dtype}, but the program computes in {dtype}: call jax.config.update('jax_enable_x64', "
            "True) before arrays are made, or compile a solver with real='float32'"
        )
    return x


class JaxNode(Node):
    """A program whose kernels XLA runs."""

    @functools.cached_property
    def _keys(self) -> dict[bool, int]:
        return {}

    def key(self, single: bool) -> int:
        """Key of the kernel of one state, or of many, in the handler of xla.c; it is the same in every process."""
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

    def _on_failure(self, place: int, n: int) -> str | None:
        """Settle a block of states some of which failed, by the address of their words; a message if that fails."""
        try:
            self.on_failure(self.program, *self._block(place, n))
        except Exception as error:  # an error must not cross the boundary to XLA: it becomes one of XLA's
            return str(error) if isinstance(error, SysdynError) else repr(error)
        return None

    def _block(self, place: int, n: int) -> tuple[Arrays, Arrays, np.ndarray]:
        """Inputs, outputs and status of n states, by the words at this address: views of XLA's memory."""
        given, results = ([*x.sizes.items()] for x in (self.program.inputs, self.program.outputs))
        words = np.ctypeslib.as_array((ctypes.c_int64 * (2 + 2 * len(given + results))).from_address(place)).tolist()
        columns = zip(given + results, words[2::2], words[3::2], strict=True)
        arrays = [self._rows(start, n if stride else 1, size) for (_, size), start, stride in columns]
        inputs = {name: x if len(x) == n else x[0] for (name, _), x in zip(given, arrays, strict=False)}
        outputs = {name: x for (name, _), x in zip(results, arrays[len(given) :], strict=True)}
        return inputs, outputs, np.ctypeslib.as_array((ctypes.c_int64 * n).from_address(words[1]))

    def _rows(self, start: int, n: int, size: int) -> np.ndarray:
        """(n, size) numbers at this address."""
        kind = np.ctypeslib.as_ctypes_type(self.function.real.dtype)
        return np.ctypeslib.as_array((kind * (n * size)).from_address(start)).reshape(n, size)


# ---- the primitive -------------------------------------------------------------------------------------------------


@functools.cache
def library() -> ModuleType:
    """JAX with its foreign function interface. Raises BackendUnavailable."""
    missing = f"functions of JAX need JAX 0.5 or later, which is not installed: pip install jax, or {install('jax')}"
    optional("jax.ffi", missing)
    return optional("jax", missing)


@functools.cache
def _primitive() -> Any:
    """The primitive of all programs, with its rules. Operands are (size,) or (N, size), all N alike."""
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
        # inside shard_map types say how values vary over the mesh: results are as the operand that varies most
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
    def at_once(*args: Any, node: JaxNode) -> list:
        return primitive.bind(*args, node=node)

    def elsewhere(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable(
            "programs run on CPUs: put arrays there by jax.device_put(x, jax.devices('cpu')[0]), or set "
            "JAX_PLATFORMS=cpu"
        )

    def forward(primals: tuple, tangents: tuple, *, node: JaxNode) -> tuple:
        results = primitive.bind(*primals, node=node)
        moving = {name: x for name, x in zip(node.inputs, tangents, strict=True) if type(x) is not ad.Zero}
        rates = primitive.bind(*primals, *moving.values(), node=node.derivative("jvp", tuple(moving)))
        return results, rates

    def transposed(cotangents: list, *args: Any, node: JaxNode) -> list:
        """Cotangents of the operands in which a derivative is linear: of v in J v, of w in w^T J."""
        parent, unknown = node.parent, [ad.is_undefined_primal(x) for x in args]
        assert parent is not None and node.kind
        n = len(parent.inputs)
        primals, vectors = args[:n], unknown[n:]
        shapes = [x.aval if gone else x for x, gone in zip(args, unknown, strict=True)]
        weights = [
            jnp.zeros((*lead(shapes), size), node.function.real.dtype) if type(x) is ad.Zero else x
            for x, size in zip(cotangents, node.program.outputs.sizes.values(), strict=True)
        ]
        if node.kind == "jvp":
            wrt = tuple(name for name, asked in zip(node.wrt, vectors, strict=True) if asked)
            found = iter(primitive.bind(*primals, *weights, node=parent.derivative("vjp", wrt)))
        else:
            whole = primitive.bind(*primals, *weights, node=parent.derivative("jvp", node.wrt))
            found = iter([x for x, asked in zip(whole, vectors, strict=True) if asked])
        result: list = [None] * n
        for x, asked in zip(shapes[n:], vectors, strict=True):
            value = next(found) if asked else None
            if value is not None and len(x.shape) == 1 and value.ndim == 2:  # all states share it
                value = value.sum(axis=0)
            result.append(value)
        return result

    def batched(args: tuple, axes: tuple, *, node: JaxNode) -> tuple[list, list]:
        flat, inside = flatten_batch_axes(args, axes, lambda x, axis: jnp.moveaxis(x, axis, 0), jnp.broadcast_to)
        results = primitive.bind(*flat, node=node)
        return [x.reshape((*inside, x.shape[-1])) for x in results], [0] * len(results)

    jax.ffi.register_ffi_target("sysdyn", extension.XLA_HANDLER, platform="cpu")
    primitive.def_impl(at_once)
    mlir.register_lowering(primitive, elsewhere)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True), platform="cpu")
    ad.primitive_jvps[primitive] = forward
    ad.primitive_transposes[primitive] = transposed
    batching.primitive_batchers[primitive] = batched
    return primitive
