"""Machine code for programs: textual LLVM IR, compiled in this process by llvmlite.

One emitter makes the scalar kernel and the SIMD kernel, in which every value is a vector of `width` states. A kernel is

    run(args, work):  for a block of `width` states at a time: gather inputs, call the segments, scatter outputs

with `args` an array of 64-bit words [n, status, (pointer, stride) for each input group, pointer and stride for each
output group] and `work` the aligned workspace. Strides are in doubles; 0 repeats one row for all states; a null
output is skipped.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sysdyn.backends.llvm import entry
from sysdyn.backends.llvm.emitter import Emitter
from sysdyn.backends.llvm.entry_code import ALIGN, OF_MANY, OF_ONE, entry_code
from sysdyn.backends.llvm.registers import angles_first, arranged
from sysdyn.backends.llvm.target import LOCK, Processor, here, library, version
from sysdyn.files import cache
from sysdyn.files.sources import sources_digest
from sysdyn.program.program import Program

# The code in these parts of the package decides what machine code a program becomes.
EMITTING = ("program", "backends/llvm", "backends/schedule.py", "backends/pairs.py", "backends/twins.py")


@dataclass(frozen=True)
class Kernel:
    """Machine code of a program. `run` is a ctypes function (args pointer, work pointer) that releases the GIL."""

    run: Callable[[int, int], None]
    methods: entry.Methods  # the same for `sysdyn.backends.llvm.entry`
    width: int
    n_slots: int
    keep: object  # the engine that owns the code
    cached: bool

    @property
    def work_doubles(self) -> int:
        """Doubles of workspace that `run` needs, with alignment and a register's worth that may be read beyond it."""
        return (self.n_slots + 1) * self.width + 2 * (ALIGN // 8)


def aligned(n: int) -> tuple[np.ndarray, int]:
    """(array, address): n doubles of which `address` is the first 64-byte boundary."""
    work = np.empty(n)
    address = work.ctypes.data
    return work, (address + ALIGN - 1) // ALIGN * ALIGN


def compile_kernel(
    program: Program, width: int = 1, level: int = 2, zeros: bool = True, processor: Processor | None = None
) -> Kernel:
    """The kernel of `program` for `width` states at a time; code-generation level 0 (fast to compile) to 3.

    zeros: write outputs that are the constant 0, too; where not, they are there already. processor: by default
    this machine's. Object code is cached on disk by program, width, level, zeros, processor and versions.
    """
    with LOCK:
        llvm = library()
        processor = processor or here()
        target = processor.machine(level)
        about = (
            sources_digest(*EMITTING),
            version(),
            llvm.llvm_version_info,
            processor,
            entry_code(width),
            width,
            level,
            zeros,
        )
        key = hashlib.sha256((program.digest + repr(about)).encode()).hexdigest() + ".o"
        stored = _unpacked(key, cache.load(key))
        if stored is None:
            ordered = arranged(program, processor.registers) if level else angles_first(program)[0]
            emitter = Emitter(ordered, width, zeros, twins=level > 0, processor=processor)
            text, n_slots = emitter.module(), emitter.n_slots
            code = target.emit_object(llvm.parse_assembly(text))
            cache.store(key, _packed(key, n_slots, code))
        else:
            n_slots, code = stored
        # code and constants within reach of each other, which the memory manager of MCJIT does not promise
        empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
        engine = llvm.create_mcjit_compiler(empty, target, use_lmm=True)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address("run")
        methods = entry.methods(
            {name: engine.get_function_address(name) for name in (OF_ONE if width == 1 else OF_MANY)}
        )
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    return Kernel(run, methods, width, n_slots, engine, stored is not None)


def _packed(key: str, n_slots: int, code: bytes) -> bytes:
    """An entry of the cache: sha256 of the key and of what follows, n_slots, object code."""
    content = struct.pack("<q", n_slots) + code
    return _digest(key, content) + content


def _unpacked(key: str, stored: bytes | None) -> tuple[int, bytes] | None:
    """(n_slots, object code) of an entry; None where it is not one of the key, as LLVM dies of other bytes."""
    if stored is None or stored[:32] != _digest(key, stored[32:]):
        return None
    return *struct.unpack("<q", stored[32:40]), stored[40:]


def _digest(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(content)
    return digest.digest()
