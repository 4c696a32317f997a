"""Kernels as functions of the interpreter's own kind, which are called ten times faster than through ctypes.

A function gets what it needs in a bytes object: CPython hands it over as `self`, and its content begins at a fixed
place. There are three kinds: `prepared` ones take no arguments; `direct` and `batch` ones take a tuple of
the arrays of one state or of many, which they check by the fields of NumPy's array objects (numpy/ndarraytypes.h).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from sysdyn.backends.llvm.types import double

# Workspaces begin at multiples of so many bytes, the size of a cache line and of the widest register.
ALIGN = 64
# The content of a bytes object begins so many bytes after its address.
_CONTENT = bytes.__basicsize__ - 1
# Where a tuple has its length and its items.
_LENGTH, _ITEMS = 16, tuple.__basicsize__
# CPython names these flags METH_NOARGS and METH_FASTCALL.
_NO_ARGUMENTS, _FAST_CALL = 0x0004, 0x0080
# Where the fields of an array object begin, in bytes; the type is a field of every object.
_TYPE, _DATA, _ND, _DIMENSIONS, _DESCR, _FLAGS = 8, 16, 24, 32, 56, 64
# The flags of an array that is C-contiguous and aligned.
_PLAIN = 0x0001 | 0x0100
# Squares of the norms of quaternions: those so near 1 are left, those nearer are normalised, others are for the caller.
_EXACT, _NEAR = 1.7e-15, 1.9e-6


class Target(NamedTuple):
    """An array that a direct function takes: its shape, and the addresses of the doubles that it is copied to.

    first: of the first entry, the others following, where `scattered` is 0; else of a table of all addresses.
    """

    shape: tuple[int, ...]
    first: int
    scattered: bool


def _words(names: str) -> str:
    """%name for each word of the content, in turn."""
    return "\n".join(
        f"  %at_{name} = getelementptr i64, ptr %content, i64 {k}\n  %{name} = load {kind}, ptr %at_{name}, align 1"
        for k, (name, kind) in enumerate(
            (word, "ptr") if word[0] != "#" else (word[1:], "i64") for word in names.split()
        )
    )


_CONTENT_AT = f"  %content = getelementptr i8, ptr %self, i64 {_CONTENT}"
# The sum of the squares of the four entries at %q, in turn; and the entries over %root, in their places.
_SQUARE = "\n".join(
    f"""  %atv{k} = getelementptr double, ptr %q, i64 {k}
  %v{k} = load double, ptr %atv{k}
  %vv{k} = fmul double %v{k}, %v{k}
  %square{k} = fadd double {f"%square{k - 1}" if k else "0.0"}, %vv{k}"""
    for k in range(4)
)
_NORMALISED = "\n".join(f"  %n{k} = fdiv double %v{k}, %root\n  store double %n{k}, ptr %atv{k}" for k in range(4))
_HEAD = "args work none incref yes no type descr status row #length #arrays #quaternions"

# The number of axes of a plain array of float64, -1 of any other object.
_AXES = f"""define internal i64 @axes(ptr %object, ptr %type, ptr %descr) {{
entry:
  %attype = getelementptr i8, ptr %object, i64 {_TYPE}
  %itstype = load ptr, ptr %attype
  %isarray = icmp eq ptr %itstype, %type
  br i1 %isarray, label %fields, label %other
fields:
  %atdescr = getelementptr i8, ptr %object, i64 {_DESCR}
  %itsdescr = load ptr, ptr %atdescr
  %isfloat = icmp eq ptr %itsdescr, %descr
  %atflags = getelementptr i8, ptr %object, i64 {_FLAGS}
  %flags = load i32, ptr %atflags
  %both = and i32 %flags, {_PLAIN}
  %isplain = icmp eq i32 %both, {_PLAIN}
  %fits = and i1 %isfloat, %isplain
  %atnd = getelementptr i8, ptr %object, i64 {_ND}
  %nd32 = load i32, ptr %atnd
  %nd = sext i32 %nd32 to i64
  %axes = select i1 %fits, i64 %nd, i64 -1
  ret i64 %axes
other:
  ret i64 -1
}}"""

# Functions that run a kernel hold the interpreter's lock meanwhile: they are for calls that take microseconds.
IR = f"""define ptr @call(ptr %self, ptr %unused) {{
{_CONTENT_AT}
{_words("args work none incref")}
  call void @run(ptr %args, ptr %work)
  call void %incref(ptr %none)
  ret ptr %none
}}
define ptr @direct(ptr %self, ptr %objects, i64 %count) {{
entry:
{_CONTENT_AT}
{_words(_HEAD)}
  %tables = getelementptr i64, ptr %content, i64 {len(_HEAD.split())}
  %last = mul i64 %arrays, 5
  %norms = getelementptr i64, ptr %tables, i64 %last
  %atgiven = getelementptr ptr, ptr %objects, i64 1
  %given = load ptr, ptr %atgiven
  %items = getelementptr i8, ptr %given, i64 {_ITEMS}
  %atlength = getelementptr i8, ptr %given, i64 {_LENGTH}
  %number = load i64, ptr %atlength
  %complete = icmp eq i64 %number, %arrays
  br i1 %complete, label %next, label %other
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %taken ]
  %more = icmp slt i64 %k, %arrays
  br i1 %more, label %array, label %all
array:
  %k1 = add i64 %k, 1
  %atobject = getelementptr ptr, ptr %items, i64 %k
  %object = load ptr, ptr %atobject
  %line = mul i64 %k, 5
  %table = getelementptr i64, ptr %tables, i64 %line
  %nd = load i64, ptr %table, align 1
  %itsnd = call i64 @axes(ptr %object, ptr %type, ptr %descr)
  %samend = icmp eq i64 %nd, %itsnd
  br i1 %samend, label %shape, label %other
shape:
  %atdims = getelementptr i8, ptr %object, i64 {_DIMENSIONS}
  %dims = load ptr, ptr %atdims
  %dim0 = load i64, ptr %dims
  %lastdim = sub i64 %nd, 1
  %atdim1 = getelementptr i64, ptr %dims, i64 %lastdim
  %dim1 = load i64, ptr %atdim1
  %at1 = getelementptr i64, ptr %table, i64 1
  %first = load i64, ptr %at1, align 1
  %at2 = getelementptr i64, ptr %table, i64 2
  %second = load i64, ptr %at2, align 1
  %same0 = icmp eq i64 %dim0, %first
  %same1 = icmp eq i64 %dim1, %second
  %same = and i1 %same0, %same1
  br i1 %same, label %copy, label %other
copy:
  %atdata = getelementptr i8, ptr %object, i64 {_DATA}
  %data = load ptr, ptr %atdata
  %matrix = icmp eq i64 %nd, 2
  %columns = select i1 %matrix, i64 %second, i64 1
  %size = mul i64 %first, %columns
  %at3 = getelementptr i64, ptr %table, i64 3
  %to = load ptr, ptr %at3, align 1
  %at4 = getelementptr i64, ptr %table, i64 4
  %scattered = load i64, ptr %at4, align 1
  %whole = icmp eq i64 %scattered, 0
  br i1 %whole, label %block, label %one
block:
  %b = phi i64 [ 0, %copy ], [ %b1, %blockmoved ]
  %blockleft = icmp slt i64 %b, %size
  br i1 %blockleft, label %blockmoved, label %taken
blockmoved:
  %b1 = add i64 %b, 1
  %blockfrom = getelementptr double, ptr %data, i64 %b
  %blockvalue = load double, ptr %blockfrom
  %blockto = getelementptr double, ptr %to, i64 %b
  store double %blockvalue, ptr %blockto
  br label %block
one:
  %i = phi i64 [ 0, %copy ], [ %i1, %moved ]
  %left = icmp slt i64 %i, %size
  br i1 %left, label %moved, label %taken
moved:
  %i1 = add i64 %i, 1
  %from = getelementptr double, ptr %data, i64 %i
  %value = load double, ptr %from
  %atplace = getelementptr ptr, ptr %to, i64 %i
  %place = load ptr, ptr %atplace
  store double %value, ptr %place
  br label %one
taken:
  br label %next
all:
  br label %quaternion
quaternion:
  %j = phi i64 [ 0, %all ], [ %j1, %unit ]
  %another = icmp slt i64 %j, %quaternions
  br i1 %another, label %norm, label %compute
norm:
  %j1 = add i64 %j, 1
  %atq = getelementptr ptr, ptr %norms, i64 %j
  %q = load ptr, ptr %atq, align 1
{_SQUARE}
  %signed = fsub double %square3, 1.0
  %error = call double @llvm.fabs.f64(double %signed)
  %exact = fcmp ole double %error, {double(_EXACT)}
  br i1 %exact, label %unit, label %inexact
inexact:
  %near = fcmp ole double %error, {double(_NEAR)}
  br i1 %near, label %divide, label %other
divide:
  %root = call double @llvm.sqrt.f64(double %square3)
{_NORMALISED}
  br label %unit
unit:
  br label %quaternion
compute:
  call void @run(ptr %args, ptr %work)
  %atout = load ptr, ptr %objects
  %outdata = getelementptr i8, ptr %atout, i64 {_DATA}
  %out = load ptr, ptr %outdata
  br label %result
result:
  %r = phi i64 [ 0, %compute ], [ %r1, %resulted ]
  %resultleft = icmp slt i64 %r, %length
  br i1 %resultleft, label %resulted, label %answer
resulted:
  %r1 = add i64 %r, 1
  %resultfrom = getelementptr double, ptr %row, i64 %r
  %kept = load double, ptr %resultfrom
  %resultto = getelementptr double, ptr %out, i64 %r
  store double %kept, ptr %resultto
  br label %result
answer:
  %bits = load i64, ptr %status
  %solved = icmp eq i64 %bits, 0
  %said = select i1 %solved, ptr %yes, ptr %no
  call void %incref(ptr %said)
  ret ptr %said
other:
  call void %incref(ptr %none)
  ret ptr %none
}}"""


_BATCH_HEAD = "none incref yes no type descr save restore #arrays #words #outputs"

# A batch runs without the interpreter's lock, with arguments of the kernel on the stack of the call.
BATCH_IR = f"""{_AXES}
define ptr @batch(ptr %self, ptr %objects, i64 %count) {{
entry:
{_CONTENT_AT}
{_words(_BATCH_HEAD)}
  %template = getelementptr i64, ptr %content, i64 {len(_BATCH_HEAD.split())}
  %tables = getelementptr i64, ptr %template, i64 %words
  %args = alloca i64, i64 %words
  %own = load ptr, ptr %objects
  %owned = getelementptr i8, ptr %own, i64 {_ITEMS}
  %atgiven = getelementptr ptr, ptr %objects, i64 1
  %given = load ptr, ptr %atgiven
  %items = getelementptr i8, ptr %given, i64 {_ITEMS}
  %atlength = getelementptr i8, ptr %given, i64 {_LENGTH}
  %number = load i64, ptr %atlength
  %complete = icmp eq i64 %number, %arrays
  br i1 %complete, label %word, label %other
word:
  %w = phi i64 [ 0, %entry ], [ %w1, %copied ]
  %wordleft = icmp slt i64 %w, %words
  br i1 %wordleft, label %copied, label %owns
copied:
  %w1 = add i64 %w, 1
  %fromword = getelementptr i64, ptr %template, i64 %w
  %aword = load i64, ptr %fromword, align 1
  %toword = getelementptr i64, ptr %args, i64 %w
  store i64 %aword, ptr %toword
  br label %word
owns:
  %workobject = load ptr, ptr %owned
  %atworkdata = getelementptr i8, ptr %workobject, i64 {_DATA}
  %workdata = load i64, ptr %atworkdata
  %up = add i64 %workdata, {ALIGN - 1}
  %down = and i64 %up, -{ALIGN}
  %work = inttoptr i64 %down to ptr
  %atstatusobject = getelementptr ptr, ptr %owned, i64 1
  %statusobject = load ptr, ptr %atstatusobject
  %atstatusdata = getelementptr i8, ptr %statusobject, i64 {_DATA}
  %status = load ptr, ptr %atstatusdata
  %atstatusdims = getelementptr i8, ptr %statusobject, i64 {_DIMENSIONS}
  %statusdims = load ptr, ptr %atstatusdims
  %n = load i64, ptr %statusdims
  store i64 %n, ptr %args
  %atstatusword = getelementptr i64, ptr %args, i64 1
  store ptr %status, ptr %atstatusword
  br label %output
output:
  %o = phi i64 [ 0, %owns ], [ %o1, %placed ]
  %outputleft = icmp slt i64 %o, %outputs
  br i1 %outputleft, label %placed, label %next
placed:
  %o1 = add i64 %o, 1
  %owno = add i64 %o, 2
  %atoutputobject = getelementptr ptr, ptr %owned, i64 %owno
  %outputobject = load ptr, ptr %atoutputobject
  %atoutputdata = getelementptr i8, ptr %outputobject, i64 {_DATA}
  %outputdata = load ptr, ptr %atoutputdata
  %back = sub i64 %outputs, %o
  %backwords = mul i64 %back, 2
  %outputword = sub i64 %words, %backwords
  %atoutputword = getelementptr i64, ptr %args, i64 %outputword
  store ptr %outputdata, ptr %atoutputword
  br label %output
next:
  %k = phi i64 [ 0, %output ], [ %k1, %taken ]
  %more = icmp slt i64 %k, %arrays
  br i1 %more, label %array, label %compute
array:
  %k1 = add i64 %k, 1
  %atobject = getelementptr ptr, ptr %items, i64 %k
  %object = load ptr, ptr %atobject
  %line = mul i64 %k, 4
  %table = getelementptr i64, ptr %tables, i64 %line
  %nd = load i64, ptr %table, align 1
  %at1 = getelementptr i64, ptr %table, i64 1
  %first = load i64, ptr %at1, align 1
  %at2 = getelementptr i64, ptr %table, i64 2
  %second = load i64, ptr %at2, align 1
  %at3 = getelementptr i64, ptr %table, i64 3
  %place = load i64, ptr %at3, align 1
  %itsnd = call i64 @axes(ptr %object, ptr %type, ptr %descr)
  %ndmany = add i64 %nd, 1
  %many = icmp eq i64 %itsnd, %ndmany
  %one = icmp eq i64 %itsnd, %nd
  %either = or i1 %many, %one
  br i1 %either, label %shape, label %other
shape:
  %atdims = getelementptr i8, ptr %object, i64 {_DIMENSIONS}
  %dims = load ptr, ptr %atdims
  %dim = load i64, ptr %dims
  %wanted = select i1 %many, i64 %n, i64 %first
  %same0 = icmp eq i64 %dim, %wanted
  %lead = zext i1 %many to i64
  %atdim1 = getelementptr i64, ptr %dims, i64 %lead
  %dim1 = load i64, ptr %atdim1
  %same1 = icmp eq i64 %dim1, %first
  %lastdim = sub i64 %itsnd, 1
  %atdim2 = getelementptr i64, ptr %dims, i64 %lastdim
  %dim2 = load i64, ptr %atdim2
  %same2 = icmp eq i64 %dim2, %second
  %same01 = and i1 %same0, %same1
  %same = and i1 %same01, %same2
  br i1 %same, label %taken, label %other
taken:
  %atdata = getelementptr i8, ptr %object, i64 {_DATA}
  %data = load ptr, ptr %atdata
  %atplace = getelementptr i64, ptr %args, i64 %place
  store ptr %data, ptr %atplace
  %matrix = icmp eq i64 %nd, 2
  %columns = select i1 %matrix, i64 %second, i64 1
  %size = mul i64 %first, %columns
  %stride = select i1 %many, i64 %size, i64 0
  %atstride = getelementptr i64, ptr %atplace, i64 1
  store i64 %stride, ptr %atstride
  br label %next
compute:
  %state = call ptr %save()
  call void @run(ptr %args, ptr %work)
  call void %restore(ptr %state)
  br label %check
check:
  %c = phi i64 [ 0, %compute ], [ %c1, %checked ]
  %bits = phi i64 [ 0, %compute ], [ %allbits, %checked ]
  %checkleft = icmp slt i64 %c, %n
  br i1 %checkleft, label %checked, label %answer
checked:
  %c1 = add i64 %c, 1
  %atbits = getelementptr i64, ptr %status, i64 %c
  %itsbits = load i64, ptr %atbits
  %allbits = or i64 %bits, %itsbits
  br label %check
answer:
  %solved = icmp eq i64 %bits, 0
  %said = select i1 %solved, ptr %yes, ptr %no
  call void %incref(ptr %said)
  ret ptr %said
other:
  call void %incref(ptr %none)
  ret ptr %none
}}"""


class _Method(ctypes.Structure):
    """PyMethodDef"""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))  # fmt: skip


class Methods(NamedTuple):
    """What functions made by `batch` and, for kernels of one state, by `prepared` and `direct` are described by."""

    batch: ctypes.Structure
    prepared: ctypes.Structure | None = None
    direct: ctypes.Structure | None = None


_new = ctypes.pythonapi.PyCFunction_NewEx
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p)
# The address of Py_IncRef, which a function calls for the constant that it returns.
_INCREF = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value


# The addresses of the functions that let go of the interpreter's lock and take it again.
_SAVE, _RESTORE = (
    ctypes.cast(function, ctypes.c_void_p).value
    for function in (ctypes.pythonapi.PyEval_SaveThread, ctypes.pythonapi.PyEval_RestoreThread)
)

# Descriptions are kept for good, as a function that is freed looks at its own once more.
_methods: list[Methods] = []


def methods(batch: int, call: int = 0, direct: int = 0) -> Methods:
    """Of the addresses of `@batch`, and of `@call` and `@direct` in a kernel of one state."""
    made = Methods(
        _Method(b"batch", batch, _FAST_CALL, None),
        _Method(b"step", call, _NO_ARGUMENTS, None) if call else None,
        _Method(b"direct", direct, _FAST_CALL, None) if direct else None,
    )
    _methods.append(made)
    return made


def prepared(methods: Methods, args: int, work: int) -> Callable[[], None]:
    """A function without arguments that runs the kernel with these addresses."""
    assert methods.prepared, "the kernel is one of one state"
    return _new(ctypes.byref(methods.prepared), struct.pack("<4q", args, work, id(None), _INCREF), None)


def direct(
    methods: Methods, args: int, work: int, status: int, row: int, length: int, targets: Sequence[Target],
    quaternions: Sequence[int],
) -> Callable[..., bool | None]:  # fmt: skip
    """A function (result, tuple of arrays) of one state: copies the arrays to their targets, runs, copies the row.

    result: an array of float64 that receives the `length` doubles at `row`. True where the status is 0, False where it
    is not; None, with nothing run, unless the arrays are plain ones of float64 of the targets' shapes, and the
    quaternions at these addresses have norm 1 within 1e-6, to which they are normalised. Status and row are addresses.
    """
    assert methods.direct, "the kernel is one of one state"
    words = [args, work, id(None), _INCREF, id(True), id(False), id(np.ndarray), id(np.dtype(float)), status, row]
    words += [length, len(targets), len(quaternions)]
    for shape, first, scattered in targets:
        words += [len(shape), shape[0], shape[-1], first, int(scattered)]
    words += quaternions
    return _new(ctypes.byref(methods.direct), struct.pack(f"<{len(words)}q", *words), None)


def batch(
    methods: Methods, targets: Sequence[tuple[tuple[int, ...], int]], template: Sequence[int], outputs: int
) -> Callable[[tuple, tuple], bool | None]:
    """A function ((work, status, *outputs), arrays) of a batch of N states, which runs without the interpreter's lock.

    work: an array of float64 with room for the kernel; status (N,) of int64; outputs as the kernel has them.
    targets: for each array its shape at one state, and the place of its pointer among the arguments of the kernel,
    which are `template` where no array is. True where every status is 0, False where one is not; None, with nothing
    run, unless each array is a plain one of float64 of its shape, or of N times its shape.
    """
    words = [id(None), _INCREF, id(True), id(False), id(np.ndarray), id(np.dtype(float)), _SAVE, _RESTORE]
    words += [len(targets), len(template), outputs, *template]
    for shape, place in targets:
        words += [len(shape), shape[0], shape[-1], place]
    return _new(ctypes.byref(methods.batch), struct.pack(f"<{len(words)}q", *words), None)


@cache
def reads_arrays() -> bool:
    """Whether NumPy's array objects have their fields where `direct` functions look for them."""
    for x in (np.zeros((3, 7)), np.zeros((7, 3))[:, 1], np.arange(5)):
        at = id(x)
        shape = ctypes.cast(_field(at, _DIMENSIONS, ctypes.c_void_p), ctypes.POINTER(ctypes.c_ssize_t))
        fields = (
            _field(at, _TYPE, ctypes.c_void_p) == id(np.ndarray),
            _field(at, _DATA, ctypes.c_void_p) == x.ctypes.data,
            _field(at, _ND, ctypes.c_int) == x.ndim,
            tuple(shape[: x.ndim]) == x.shape,
            _field(at, _DESCR, ctypes.c_void_p) == id(x.dtype),
            (_field(at, _FLAGS, ctypes.c_int) & _PLAIN == _PLAIN) == x.flags.carray,
        )
        if not all(fields):
            return False
    return True


def _field(address: int, offset: int, kind: type[ctypes.c_void_p | ctypes.c_int]) -> int:
    return kind.from_address(address + offset).value or 0
