"""The processor that machine code is made for, and the library that makes it, loaded when it is first needed."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from types import ModuleType
from typing import Any

from sysdyn.backends.assembler.encoding import Encoder
from sysdyn.backends.llvm.registers import REGISTERS
from sysdyn.errors import BackendUnavailable

# LLVM makes code for one thread at a time, which holds this lock.
LOCK = threading.RLock()


@functools.cache
def library() -> ModuleType:
    """llvmlite.binding, ready to make code for this machine. Raises BackendUnavailable."""
    try:
        llvm = importlib.import_module("llvmlite.binding")
    except ImportError as error:
        raise BackendUnavailable(
            "machine code needs llvmlite, which cannot be imported here: pip install llvmlite, or do without machine "
            "code by backend='python'"
        ) from error
    _fork_between_calls(llvm)
    with LOCK:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        if hasattr(llvm, "initialize_native_asmparser"):
            llvm.initialize_native_asmparser()
    return llvm


def _fork_between_calls(llvm: ModuleType) -> None:
    """Let forks wait until no thread makes code, for the forked process could not finish it, nor release its locks."""
    inner = getattr(llvm.ffi.lib, "_lock", LOCK)  # llvmlite's own, which it holds to free code, too

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


def machine(level: int) -> Any:
    """llvmlite's TargetMachine of this processor; code-generation level 0 to 3. Only with the `LOCK`."""
    llvm = library()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        reloc="pic",
        codemodel="small",
        jit=True,
    )


@functools.cache
def simd_width() -> int:
    """Doubles in the widest vector register of this machine."""
    with LOCK:
        features = library().get_host_cpu_features()
    return 8 if features.get("avx512f") else 4 if features.get("avx") else 2


def encoder(width: int) -> Encoder | None:
    """The encoder of instructions on `width` doubles; None where this processor has others, or calls differ.

    Only with the `LOCK`.
    """
    llvm = library()
    features, triple = llvm.get_host_cpu_features(), llvm.get_default_triple()
    known = triple.startswith("x86_64") and "linux" in triple and hasattr(llvm, "initialize_native_asmparser")
    if not (known and features.get("avx2") and features.get("fma")) or width not in (1, simd_width()):
        return None
    return Encoder(width, all(features.get(x) for x in ("avx512f", "avx512vl", "avx512dq")))


def registers() -> int:
    """Registers of a function that need not hold constants: a few less than there are of the widest kind.

    Only with the `LOCK`.
    """
    features = library().get_host_cpu_features()
    return REGISTERS if features.get("avx512f") or not features.get("sse2") else REGISTERS - 16
