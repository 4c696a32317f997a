"""Kernels as functions of the interpreter's own kind, which are called ten times faster than through ctypes.

A function gets what it needs in a bytes object, which CPython hands it over as `self`. There are three kinds:
`prepared` ones take no arguments; `direct` and `batch` ones take a tuple of the arrays of one state or of many, which
they check. Their code is that of `entry_code`.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from sysdyn.backends.llvm.entry_code import (
    ALIGNED,
    CONTIGUOUS,
    DATA,
    DESCR,
    DIMENSIONS,
    FLAGS,
    ND,
    STRIDES,
    TYPE,
)

# CPython names these flags METH_NOARGS and METH_FASTCALL.
_NO_ARGUMENTS, _FAST_CALL = 0x0004, 0x0080


class Target(NamedTuple):
    """An array that a direct function takes: its shape, and the addresses of the doubles that it is copied to.

    first: of the first entry, the others following; where `scattered`, of a table of all addresses. key: of the array
    in a dict, which has to be this very object; None by position alone.
    """

    shape: tuple[int, ...]
    first: int
    scattered: bool
    key: str | None


class _Method(ctypes.Structure):
    """PyMethodDef"""

    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p))  # fmt: skip


class Methods(NamedTuple):
    """What functions made by `batch`, `prepared` and `direct` are described by, if the kernel has them."""

    batch: ctypes.Structure | None = None
    prepared: ctypes.Structure | None = None
    direct: ctypes.Structure | None = None


_new = ctypes.pythonapi.PyCFunction_NewEx
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p)
# The address of Py_IncRef, which a function calls for the constant that it returns.
_INCREF = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value
# The addresses of the functions that go through a dict, and that count its entries.
_NEXT, _SIZE = (
    ctypes.cast(function, ctypes.c_void_p).value
    for function in (ctypes.pythonapi.PyDict_Next, ctypes.pythonapi.PyDict_Size)
)
# The addresses of the functions that let go of the interpreter's lock and take it again.
_SAVE, _RESTORE = (
    ctypes.cast(function, ctypes.c_void_p).value
    for function in (ctypes.pythonapi.PyEval_SaveThread, ctypes.pythonapi.PyEval_RestoreThread)
)


# Descriptions are kept for good, as a function that is freed looks at its own once more.
_methods: list[Methods] = []


def methods(addresses: Mapping[str, int]) -> Methods:
    """Of the addresses of `@batch`, `@call` and `@direct`, those that there are."""

    def method(name: str, flags: int) -> ctypes.Structure | None:
        return _Method(name.encode(), addresses[name], flags, None) if name in addresses else None

    made = Methods(method("batch", _FAST_CALL), method("call", _NO_ARGUMENTS), method("direct", _FAST_CALL))
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
    """A function (result, tuple of arrays, dict or None) of one state: copies arrays to targets, runs, copies the row.

    The last arrays may be in the dict, if they have keys and are in the order of the targets.
    result: an array of float64 that receives the `length` doubles at `row`. True where the status is 0, False where it
    is not; None, with nothing run, unless the arrays are plain ones of float64 of the targets' shapes, and the
    quaternions at these addresses have norm 1 within 1e-6, to which they are normalised. Status and row are addresses.
    """
    assert methods.direct, "the kernel is one of one state"
    words = [args, work, id(None), _INCREF, id(True), id(False), id(np.ndarray), id(np.dtype(float)), _NEXT, _SIZE]
    words += [status, row, length, len(targets), len(quaternions)]
    for shape, first, scattered, key in targets:
        words += [*_described(shape), first, int(scattered), 0 if key is None else id(key)]
    words += quaternions
    return _new(ctypes.byref(methods.direct), struct.pack(f"<{len(words)}q", *words), None)


def batch(
    methods: Methods, targets: Sequence[tuple[tuple[int, ...], int]], template: Sequence[int], outputs: int,
    quaternions: Sequence[tuple[int, int]], most: int,
) -> Callable[[tuple, tuple], bool | None]:  # fmt: skip
    """A function ((work, counter, status, *outputs), arrays) of a batch of N states, without the interpreter's lock.

    work: an array of float64 with room for the kernel; counter: as of `sysdyn.backends.backend.Batch`, None for all
    states, `most` at a time; status (N,) of int64; outputs as the kernel has them.
    targets: for each array its shape at one state, and the place of its pointer among the arguments of the kernel,
    which are `template` where no array is. quaternions: the place of the pointer and the first entry in a row of each.
    True where every status is 0, False where one is not. None, with nothing run, unless each array is of float64 and of
    its shape, C-contiguous, or of N times that, with states that are; None, too, where a quaternion is not normalised.
    """
    assert methods.batch, "the kernel is not one of many states"
    words = [id(None), _INCREF, id(True), id(False), id(np.ndarray), id(np.dtype(float)), _SAVE, _RESTORE]
    words += [len(targets), len(template), outputs, len(quaternions), most, *template]
    for shape, place in targets:
        words += [*_described(shape), place]
    words += itertools.chain.from_iterable(quaternions)
    return _new(ctypes.byref(methods.batch), struct.pack(f"<{len(words)}q", *words), None)


def _described(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The words that say what an array has to be at one state."""
    return len(shape), shape[0], shape[-1], math.prod(shape)


@cache
def reads_arrays() -> bool:
    """Whether NumPy's array objects have their fields where `direct` functions look for them."""
    unaligned = np.frombuffer(bytes(17), dtype=np.uint8)[1:].view(float)
    for x in (np.zeros((3, 7)), np.zeros((7, 3))[:, 1], np.arange(5), unaligned):
        at = id(x)
        shape, strides = (
            ctypes.cast(_field(at, offset, ctypes.c_void_p), ctypes.POINTER(ctypes.c_ssize_t))
            for offset in (DIMENSIONS, STRIDES)
        )
        flags = _field(at, FLAGS, ctypes.c_int)
        fields = (
            _field(at, TYPE, ctypes.c_void_p) == id(np.ndarray),
            _field(at, DATA, ctypes.c_void_p) == x.ctypes.data,
            _field(at, ND, ctypes.c_int) == x.ndim,
            tuple(shape[: x.ndim]) == x.shape,
            tuple(strides[: x.ndim]) == x.strides,
            _field(at, DESCR, ctypes.c_void_p) == id(x.dtype),
            (flags & CONTIGUOUS != 0) == x.flags.c_contiguous,
            (flags & ALIGNED != 0) == x.flags.aligned,
        )
        if not all(fields):
            return False
    return True


def _field(address: int, offset: int, kind: type[ctypes.c_void_p | ctypes.c_int]) -> int:
    return kind.from_address(address + offset).value or 0
