"""A handler of XLA's foreign function interface (API 0.1) for a kernel: JAX calls it without Python.

Offsets are those of xla/ffi/api/c_api.h, which comes with jaxlib: XLA_FFI_CallFrame, XLA_FFI_Buffer,
XLA_FFI_Metadata_Extension, XLA_FFI_Error_Create_Args.
"""

from __future__ import annotations

import ctypes

from sysdyn.codegen.llvm.target import LOCK, here, library
from sysdyn.program.program import Program
from sysdyn.runtime.kernel import ALIGN, Kernel

# States of a block, between two looks at the status, which takes 8 bytes of the stack for each (chosen).
AT_A_TIME = 512
# Most bytes of a workspace on the stack; XLA's threads have megabytes (chosen).
ON_STACK = 2**18
# Places [bytes] in a call frame: extension, functions of XLA, buffers of the arguments, buffers of the results.
EXTENSION, API, ARGUMENTS, RESULTS = 8, 16, 72, 112
# Places in a buffer: its numbers, number of axes, lengths of the axes.
DATA, RANK, LENGTHS = 24, 32, 40
# The type of an extension that asks for versions; places in it, of its type and of what it points to; places there.
METADATA, KIND, METADATA_AT, MAJOR, MINOR, TRAITS = 1, 8, 24, 24, 28, 32
# Place of the function that makes an error; size of its argument; and the code of a failed precondition.
MAKE_ERROR, ERROR_SIZE, REFUSED = 48, 32, 9

# Gets the address of the words of a block of states, see `sysdyn.runtime.kernel`, and the number of states, of which
# some have a status that is not 0. Returns the address of a message (ends with a zero byte) to fail with, or None.
RESCUE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def handler(program: Program, kernel: Kernel, rescue: ctypes._FuncPointer) -> tuple[int, object]:
    """(address of the handler, the objects that have to live as long).

    Arguments and results are the groups of the program, (size,) or (N, size), of the kernel's type. rescue: a
    `RESCUE`.
    """
    with LOCK:
        llvm = library()
        target = here().machine(1)
        address = ctypes.cast(rescue, ctypes.c_void_p).value
        module = llvm.parse_assembly(_module(program, kernel, address))
        module.verify()
        engine = llvm.create_mcjit_compiler(
            llvm.parse_assembly(f'target triple = "{target.triple}"'), target, use_lmm=True
        )
        engine.add_object_file(llvm.ObjectFileRef.from_data(target.emit_object(module)))
        engine.finalize_object()
        return engine.get_function_address("handler"), (engine, kernel, rescue)


class _Lines(list[str]):
    """Lines of a function, with names for what they compute."""

    def _named(self, text: str) -> str:
        name = f"%v{len(self)}"
        self.append(f"  {name} = {text}")
        return name

    def at(self, pointer: str, place: int) -> str:
        return self._named(f"getelementptr i8, ptr {pointer}, i64 {place}")

    def load(self, kind: str, pointer: str, place: int) -> str:
        return self._named(f"load {kind}, ptr {self.at(pointer, place)}")

    def store(self, value: str, pointer: str, place: int) -> None:
        self.append(f"  store {value}, ptr {self.at(pointer, place)}")

    def compute(self, operation: str, *operands: object) -> str:
        return self._named(f"{operation} {', '.join(map(str, operands))}")

    def label(self, name: str) -> None:
        self.append(f"{name}:")

    def branch(self, where: str, otherwise: str = "", unless: str = "") -> None:
        """Go on at `where`, or at `otherwise` if the bit `unless` is 0."""
        self.append(f"  br i1 {unless}, label %{where}, label %{otherwise}" if unless else f"  br label %{where}")


def _module(program: Program, kernel: Kernel, rescue: int | None) -> str:
    """LLVM IR of the handler."""
    groups = (*program.inputs.values(), *program.outputs.values())
    given = len(program.inputs)
    size = (kernel.n_slots + 1) * kernel.width * kernel.real.size + ALIGN
    x = _Lines(["define ptr @handler(ptr %frame) {", "entry:"])
    words = x.compute("alloca i64,", f"i64 {2 + 2 * len(groups)}", "align 8")
    status = x.compute("alloca i64,", f"i64 {AT_A_TIME}", "align 8")
    extension = x.load("ptr", "%frame", EXTENSION)
    x.branch("ask", "begin", x.compute("icmp ne ptr", extension, "null"))
    x.label("ask")
    x.branch("answer", "begin", x.compute("icmp eq i32", x.load("i32", extension, KIND), METADATA))
    x.label("answer")
    about = x.load("ptr", extension, METADATA_AT)
    for value, place in ((0, MAJOR), (1, MINOR), (0, TRAITS)):
        x.store(f"i32 {value}", about, place)
    x.append("  ret ptr null")

    x.label("begin")
    stacked = size <= ON_STACK
    memory = (
        x.compute("alloca i8,", f"i64 {size}") if stacked else x.compute(f"call ptr {_symbol('malloc')}(i64 {size})")
    )
    up = x.compute("add i64", x.compute("ptrtoint ptr", f"{memory} to i64"), ALIGN - 1)
    x.store(f"i64 {x.compute('and i64', up, -ALIGN)}", words, 0)
    x.store(f"ptr {status}", words, 8)
    tables = [x.load("ptr", "%frame", place) for place in (ARGUMENTS, RESULTS)]
    strides = []
    for k, group in enumerate(groups):
        buffer = x.load("ptr", tables[k >= given], 8 * (k if k < given else k - given))
        many = x.compute("icmp sgt i64", x.load("i64", buffer, RANK), 1)
        strides.append(x.compute(f"select i1 {many},", f"i64 {group.size}", "i64 0"))
        x.store(f"i64 {x.load('i64', buffer, DATA)}", words, 16 + 16 * k)
        x.store(f"i64 {strides[k]}", words, 24 + 16 * k)
    x.branch("counted", "go", many)
    x.label("counted")
    length = x.load("i64", x.load("ptr", buffer, LENGTHS), 0)
    x.branch("go")

    x.label("go")
    n = x.compute("phi i64", "[ 1, %begin ]", f"[ {length}, %counted ]")
    x.branch("block")
    x.label("block")
    done = x.compute("phi i64", "[ 0, %go ]", "[ %next, %on ]")
    left = x.compute("sub i64", n, done)
    x.branch("run", "good", x.compute("icmp sgt i64", left, 0))
    x.label("run")
    few = x.compute("icmp slt i64", left, AT_A_TIME)
    m = x.compute(f"select i1 {few},", f"i64 {left}", f"i64 {AT_A_TIME}")
    x.append(f"  call void inttoptr (i64 {kernel.address} to ptr)(ptr {words}, i64 {m})")
    x.branch("look")
    x.label("look")
    state = x.compute("phi i64", "[ 0, %run ]", "[ %beyond, %look ]")
    bits = x.compute("phi i64", "[ 0, %run ]", "[ %all, %look ]")
    bit = x.compute("load i64,", f"ptr {x.compute('getelementptr i64,', f'ptr {status}', f'i64 {state}')}")
    x.append(f"  %all = or i64 {bits}, {bit}")
    x.append(f"  %beyond = add i64 {state}, 1")
    x.branch("look", "looked", x.compute("icmp slt i64", "%beyond", m))
    x.label("looked")
    x.branch("on", "failed", x.compute("icmp eq i64", "%all", 0))
    x.label("failed")
    message = x.compute(f"call ptr inttoptr (i64 {rescue} to ptr)(ptr {words}, i64 {m})")
    x.branch("on", "bad", x.compute("icmp eq ptr", message, "null"))
    x.label("on")
    x.append(f"  %next = add i64 {done}, {m}")
    for k, stride in enumerate(strides):
        step = x.compute("mul i64", x.compute("mul i64", stride, kernel.real.size), m)
        x.store(f"i64 {x.compute('add i64', x.load('i64', words, 16 + 16 * k), step)}", words, 16 + 16 * k)
    x.branch("block")

    freed = [] if stacked else [f"  call void {_symbol('free')}(ptr {memory})"]
    x.label("good")
    x += [*freed, "  ret ptr null"]
    x.label("bad")
    x += freed
    wrong = x.compute("alloca i8,", f"i64 {ERROR_SIZE}", "align 8")
    for what, place in ((f"i64 {ERROR_SIZE}", 0), ("ptr null", 8), (f"ptr {message}", 16), (f"i32 {REFUSED}", 24)):
        x.store(what, wrong, place)
    make = x.load("ptr", x.load("ptr", "%frame", API), MAKE_ERROR)
    x.append(f"  ret ptr {x.compute(f'call ptr {make}(ptr {wrong})')}")
    return "\n".join([*x, "}"])


def _symbol(name: str) -> str:
    """A function of the C library, by its address."""
    return f"inttoptr (i64 {ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value} to ptr)"
