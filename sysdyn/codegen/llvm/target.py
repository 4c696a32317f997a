"""The target processor of machine code, and lazy loading of LLVM."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sysdyn.errors import optional
from sysdyn.runtime.real import DOUBLE, Real

# Registers for values; the rest of the 32 of AVX-512 and ARM is for constants (chosen).
REGISTERS = 30
# Bytes of the first-level instruction cache if the operating system does not report it: that of most processors.
CODE_CACHE = 2**15

# Serialises compilation: LLVM compiles for one thread at a time.
LOCK = threading.RLock()


@functools.cache
def library() -> ModuleType:
    """llvmlite.binding, initialised for this machine. Raises BackendUnavailable."""
    llvm = optional(
        "llvmlite.binding",
        "machine code needs llvmlite, which cannot be imported here: pip install llvmlite, or do without machine code "
        "by backend='python'",
    )
    _fork_outside_calls(llvm)
    with LOCK:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        if hasattr(llvm, "initialize_native_asmparser"):
            llvm.initialize_native_asmparser()
    return llvm


def _fork_outside_calls(llvm: ModuleType) -> None:
    """Acquire the locks before each fork: otherwise a child could inherit a lock that a compiling thread owns."""
    inner = getattr(llvm.ffi.lib, "_lock", LOCK)  # lock of llvmlite, which it also takes to free code

    def acquire() -> None:
        LOCK.acquire()
        inner.__enter__()

    def release() -> None:
        inner.__exit__(None, None, None)
        LOCK.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)


def version() -> str:
    """The version of llvmlite."""
    return importlib.import_module("llvmlite").__version__


@dataclass(frozen=True)
class Processor:
    """A target processor as LLVM names it: triple, CPU model, and features such as "+avx,-fma".

    code_cache: size of its first-level instruction cache in bytes.
    """

    triple: str
    model: str
    features: str
    code_cache: int = CODE_CACHE

    def has(self, *features: str) -> bool:
        return {f"+{x}" for x in features} <= set(self.features.split(","))

    @property
    def _is_x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i386", "i686", "amd64"))

    def lanes(self, real: Real = DOUBLE) -> int:
        """Numbers in the widest vector register."""
        return (64 if self.has("avx512f") else 32 if self.has("avx") else 16) // real.size

    @property
    def registers(self) -> int:
        """Vector registers for values; the remaining ones are for constants."""
        return REGISTERS - 16 if self._is_x86 and not self.has("avx512f") else REGISTERS

    @property
    def fuses(self) -> bool:
        """True if the processor has fused multiply-add."""
        return self.has("fma") if self._is_x86 else self.triple.startswith(("aarch64", "arm64"))

    def machine(self, level: int) -> Any:
        """TargetMachine of llvmlite; code-generation level 0 to 3. The caller must hold `LOCK`.

        LLVM's own level 0 is not used: it saves a fifth of the compile time, but its code takes up to twice as long.
        """
        return library().Target.from_triple(self.triple).create_target_machine(
            cpu=self.model, features=self.features, opt=max(level, 1), reloc="pic", codemodel="small", jit=True
        )  # fmt: skip


@functools.cache
def host_processor() -> Processor:
    """The processor of this machine."""
    with LOCK:
        llvm = library()
        features = llvm.get_host_cpu_features().flatten()
        return Processor(llvm.get_default_triple(), llvm.get_host_cpu_name(), features, _code_cache())


def _code_cache() -> int:
    """Size of the first-level instruction cache of this machine in bytes, from Linux's sysfs."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache/index1")
    try:
        if (folder / "type").read_text().strip() == "Instruction":
            return int((folder / "size").read_text().strip().removesuffix("K")) * 1024
    except (OSError, ValueError):
        pass
    return CODE_CACHE
