"""Machine code for programs: textual LLVM IR, compiled in this process by llvmlite.

The code computes a block of `width` states in a workspace; native/driver.c gathers their inputs and scatters their
outputs, block by block.
"""

from __future__ import annotations

import hashlib
import struct

from sysdyn.codegen.llvm.target import LOCK, Processor, host_processor, library, version
from sysdyn.files import cache
from sysdyn.files.sources import sources_digest
from sysdyn.program.graph import gc_paused
from sysdyn.program.program import Program
from sysdyn.runtime.kernel import Kernel
from sysdyn.runtime.real import DOUBLE, Real

# Source files of the package that affect the machine code of a program; they are part of the cache key.
EMITTING = (
    "program", "codegen/llvm", "codegen/instruction_order.py", "codegen/isomorphism.py", "codegen/partition.py",
    "codegen/slp.py", "runtime/real.py", "runtime/spans.py",
)  # fmt: skip

# Highest optimisation level for batch kernels. Level 2 adds scheduling after register allocation: compilation takes a
# fifth longer, and batches do not run faster (measured).
BATCHES = 1


def compile_kernel(
    program: Program, width: int = 1, level: int = 2, processor: Processor | None = None, real: Real = DOUBLE
) -> Kernel:
    """The kernel of `program` for `width` states at a time; code-generation level 0 (fast to compile) to 3.

    processor: by default the host processor. real: floating-point type. Object code is cached on disk; the key consists
    of all arguments and versions.
    """
    with LOCK, gc_paused():
        llvm = library()
        processor = processor or host_processor()
        target = processor.machine(level if width == 1 else min(level, BATCHES))
        about = (sources_digest(*EMITTING), version(), llvm.llvm_version_info, processor, width, level, real)
        key = hashlib.sha256((program.digest + repr(about)).encode()).hexdigest() + ".o"
        stored = cache.load(key)  # n_slots, status_slot, n_pauses, object code
        if stored is None:
            from sysdyn.codegen.instruction_order import hoist_trig
            from sysdyn.codegen.llvm.emitter import Emitter

            emitter = Emitter(hoist_trig(program), width, level, processor, real)
            code = target.emit_object(llvm.parse_assembly(emitter.module()))
            layout = emitter.n_slots, emitter.status_slot, emitter.n_pauses
            cache.store(key, struct.pack("<qqq", *layout) + code)
        else:
            layout, code = struct.unpack_from("<qqq", stored), stored[24:]
        # use_lmm places code and constants within addressing range; the memory manager of MCJIT does not ensure it
        empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
        engine = llvm.create_mcjit_compiler(empty, target, use_lmm=True)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        body = engine.get_function_address("body")
    return Kernel(program, body, width, *layout, engine, stored is not None, real)
