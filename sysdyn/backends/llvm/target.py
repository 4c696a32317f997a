"""The processor that machine code is made for."""

from __future__ import annotations

import llvmlite.binding as llvm

from sysdyn.backends.llvm.registers import REGISTERS

_ready = False


def machine(level: int) -> llvm.TargetMachine:
    global _ready
    if not _ready:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _ready = True
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        reloc="pic",
        codemodel="small",
        jit=True,
    )


def simd_width() -> int:
    """Doubles in the widest vector register of this machine."""
    features = llvm.get_host_cpu_features()
    return 8 if features.get("avx512f") else 4 if features.get("avx") else 2


def registers() -> int:
    """Registers of a function that need not hold constants: a few less than there are of the widest kind."""
    features = llvm.get_host_cpu_features()
    return REGISTERS if features.get("avx512f") or not features.get("sse2") else REGISTERS - 16
