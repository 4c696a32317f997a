"""A kernel called again and again by compiled code, such as the steps of a simulation.

A `Plan` has the words of a period of calls, such as two that read and write two sets of arrays in turns, and what is
added to them after each call. The loop ends early if a state has a status, or if marks, which calls write in turns,
are not those of the time before; it can be taken up again behind the call at which it ended.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.codegen.llvm import target
from sysdyn.runtime.kernel import address

# A loop over k = 0 … n − 1, whose body has %further, the result so far.
_COUNTED = """
define internal i64 @{name} {{
entry:
  br label %next
next:
  %k = phi i64 [ 0, %entry ], [ %k1, %body ]
  %result = phi i64 [ 0, %entry ], [ %further, %body ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %done
body:
{body}
  %k1 = add i64 %k, 1
  br label %next
done:
  ret i64 %result
}}
"""
# Loops over n words each: the bits in which a and b differ; copies; the sums of words and moves.
_SHORT = {
    "differ(ptr %a, ptr %b, i64 %n)": """
  %pa = getelementptr i64, ptr %a, i64 %k
  %pb = getelementptr i64, ptr %b, i64 %k
  %xa = load i64, ptr %pa
  %xb = load i64, ptr %pb
  %x = xor i64 %xa, %xb
  %further = or i64 %result, %x""",
    "copy(ptr %copies, i64 %n, ptr %words)": """
  %at = mul i64 %k, 4
  %row = getelementptr i64, ptr %copies, i64 %at
  %word = load i64, ptr %row
  %from = getelementptr i64, ptr %words, i64 %word
  %source = load ptr, ptr %from
  %to = getelementptr i64, ptr %row, i64 1
  %place = load ptr, ptr %to
  %pbytes = getelementptr i64, ptr %row, i64 2
  %bytes = load i64, ptr %pbytes
  call void @llvm.memcpy.p0.p0.i64(ptr %place, ptr %source, i64 %bytes, i1 false)
  %pdistance = getelementptr i64, ptr %row, i64 3
  %distance = load i64, ptr %pdistance
  %beyond = getelementptr i8, ptr %place, i64 %distance
  store ptr %beyond, ptr %to
  %further = add i64 %result, 0""",
    "move(ptr %words, ptr %moves, i64 %n)": """
  %pw = getelementptr i64, ptr %words, i64 %k
  %pm = getelementptr i64, ptr %moves, i64 %k
  %w = load i64, ptr %pw
  %m = load i64, ptr %pm
  %sum = add i64 %w, %m
  store i64 %sum, ptr %pw
  %further = add i64 %result, 0""",
}
# loop(plan, first, last, done) → the number of the call at which it ended, or last. done: 1 if the first call has been
# made, and what follows it is left to do. Numbers of the plan as in `Plan.numbers`; a copy is (word that has the
# address of what is copied, address of its place, bytes, distance to the next place).
_TEXT = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @loop(ptr %plan, i64 %first, i64 %last, i64 %made) {
entry:
LOADS
  %resumed = icmp ne i64 %made, 0
  br label %next
next:
  %k = phi i64 [ %first, %entry ], [ %k1, %after ]
  %more = icmp slt i64 %k, %last
  br i1 %more, label %turn, label %end
turn:
  %number = urem i64 %k, %period
  %at = mul i64 %number, %count
  %own = getelementptr i64, ptr %words, i64 %at
  %beginning = icmp eq i64 %k, %first
  %skipped = and i1 %beginning, %resumed
  %stage = urem i64 %k, %stages
  %looked = icmp eq i64 %stage, 0
  br i1 %skipped, label %behind, label %call
call:
  call void %kernel(ptr %own, i64 %n)
  %failed = call i64 @differ(ptr %status, ptr %fine, i64 %n)
  %ok = icmp eq i64 %failed, 0
  br i1 %ok, label %solved, label %end
solved:
  br i1 %looked, label %look, label %behind
look:
  %changed = call i64 @differ(ptr %marks, ptr %others, i64 %length)
  %same = icmp eq i64 %changed, 0
  br i1 %same, label %behind, label %end
behind:
  %since = urem i64 %k, %every
  %wanted = icmp eq i64 %since, 0
  br i1 %wanted, label %record, label %after
record:
  %copied = call i64 @copy(ptr %copies, i64 %kept, ptr %own)
  br label %after
after:
  %steps = getelementptr i64, ptr %moves, i64 %at
  %moved = call i64 @move(ptr %own, ptr %steps, i64 %count)
  %k1 = add i64 %k, 1
  br label %next
end:
  ret i64 %k
}
"""
# The numbers of a plan in memory, and their types.
_FIELDS = {
    "kernel": "ptr", "n": "i64", "period": "i64", "count": "i64", "words": "ptr", "moves": "ptr", "status": "ptr",
    "fine": "ptr", "marks": "ptr", "others": "ptr", "length": "i64", "stages": "i64", "every": "i64", "kept": "i64",
    "copies": "ptr",
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Calls of a kernel, one after the other; arrays of int64, which the loop changes in place.

    kernel    address of the code
    status    (n,) of the n states
    words     (period, count): call k has words[k % period]
    moves     (period, count): added to these after each call
    marks     (2, …) that are to be the same after each first call of `stages`
    stages    calls of a step
    every     calls from one record to the next; the first call is recorded
    copies    (kept, 4): word that has the address of what is recorded, address of its next place, bytes, and distance
              from place to place
    """

    kernel: int
    status: np.ndarray
    words: np.ndarray
    moves: np.ndarray
    marks: np.ndarray
    stages: int
    every: int
    copies: np.ndarray

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """The plan in memory."""
        (period, count), n = self.words.shape, len(self.status)
        marks, others = self.marks
        own = [
            self.kernel, n, period, count, address(self.words), address(self.moves), address(self.status),
            address(self._fine), address(marks), address(others), marks.size, self.stages, self.every,
            len(self.copies), address(self.copies),
        ]  # fmt: skip
        return np.array(own, dtype=np.int64)

    @functools.cached_property
    def _fine(self) -> np.ndarray:
        return np.zeros_like(self.status)

    def run(self, first: int, last: int, made: bool = False) -> int:
        """Make the calls first … last − 1: the number of the call at which the loop ended, `last` if it did all.

        made: the first one was made before, and what follows it is left to do. The interpreter's lock is released.
        """
        return _loop()[0](address(self.numbers), first, last, int(made))


@functools.cache
def _loop() -> tuple[Callable[[int, int, int, int], int], Any]:
    """(the loop as a function of ctypes, the owner of its code)."""
    loads = "".join(
        f"  %at_{name} = getelementptr i64, ptr %plan, i64 {k}\n  %{name} = load {kind}, ptr %at_{name}\n"
        for k, (name, kind) in enumerate(_FIELDS.items())
    )
    with target.LOCK:
        llvm = target.library()
        short = "".join(_COUNTED.format(name=name, body=body) for name, body in _SHORT.items())
        module = llvm.parse_assembly(_TEXT.replace("LOADS\n", loads) + short)
        engine = llvm.create_mcjit_compiler(module, target.here().machine(2))
        engine.finalize_object()
        place = engine.get_function_address("loop")
    kinds = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
    return ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(place), engine
