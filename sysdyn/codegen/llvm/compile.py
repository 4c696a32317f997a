"""Machine code for programs: textual LLVM IR, compiled in this process by llvmlite.

The code computes a block of `width` states in a workspace; native/driver.c gathers their inputs and scatters their
outputs, block by block.
"""

from __future__ import annotations

import hashlib
import struct

from sysdyn.codegen.instruction_order import hoist_trig
from sysdyn.codegen.llvm.emitter import Emitter
from sysdyn.codegen.llvm.target import LOCK, Processor, host_processor, library, version
from sysdyn.files import cache
from sysdyn.files.sources import sources_digest
from sysdyn.program.graph import gc_paused
from sysdyn.program.program import Program
from sysdyn.runtime.kernel import Kernel
from sysdyn.runtime.real import DOUBLE, Real

# Parts of the package on whose code the machine code of a program depends.
EMITTING = (
    "program", "codegen/llvm", "codegen/instruction_order.py", "codegen/isomorphism.py", "codegen/partition.py",
    "codegen/slp.py", "runtime/real.py", "runtime/spans.py",
)  # fmt: skip

# Highest level at which kernels of batches are made. Level 2 adds scheduling after registers are allocated: it takes a
# fifth longer to compile, and batches not less to run.
BATCHES = 1


def compile_kernel(
    program: Program, width: int = 1, level: int = 2, processor: Processor | None = None, real: Real = DOUBLE
) -> Kernel:
    """The kernel of `program` for `width` states at a time; code-generation level 0 (fast to compile) to 3.

    processor: by default this machine's. real: type of its numbers. Object code is cached on disk by all of these and
    versions.
    """
    with LOCK, gc_paused():
        llvm = library()
        processor = processor or host_processor()
        target = processor.machine(level if width == 1 else min(level, BATCHES))
        about = (sources_digest(*EMITTING), version(), llvm.llvm_version_info, processor, width, level, real)
        key = hashlib.sha256((program.digest + repr(about)).encode()).hexdigest() + ".o"
        stored = cache.load(key)  # n_slots, status_slot, n_pauses, object code
        if stored is None:
            emitter = Emitter(hoist_trig(program), width, level, processor, real)
            code = target.emit_object(llvm.parse_assembly(emitter.module()))
            layout = emitter.n_slots, emitter.status_slot, emitter.n_pauses
            cache.store(key, struct.pack("<qqq", *layout) + code)
        else:
            layout, code = struct.unpack_from("<qqq", stored), stored[24:]
        # code and constants within reach of each other, which the memory manager of MCJIT does not promise
        empty = llvm.parse_assembly(f'target triple = "{target.triple}"')
        engine = llvm.create_mcjit_compiler(empty, target, use_lmm=True)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        body = engine.get_function_address("body")
    return Kernel(program, body, width, *layout, engine, stored is not None, real)
