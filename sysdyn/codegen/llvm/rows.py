"""LLVM IR of functions of rows of states: which ones a block has, and how they come to the cache."""

from __future__ import annotations

from sysdyn.codegen.llvm.types import Types

# Bytes of a line of the cache.
LINE = 64


def numbering(width: int) -> str:
    """A function of the numbers of the rows of a block, from its first one on, in a table; null for 0, 1, … width − 1.

    rows: numbers of the rows of all states, or null. Lanes behind the lane `last` have its row.
    """
    return f"""define internal ptr @numbered(ptr %rows, i64 %base, i64 %last, ptr %table) noinline {{
entry:
  %ordered = icmp eq ptr %rows, null
  %full = icmp sge i64 %last, {width - 1}
  %plain = and i1 %ordered, %full
  br i1 %plain, label %none, label %lane
lane:
  %k = phi i64 [ 0, %entry ], [ %k_1, %kept ]
  %own = call i64 @llvm.smin.i64(i64 %k, i64 %last)
  br i1 %ordered, label %kept, label %row
row:
  %state = add i64 %base, %own
  %at = getelementptr i64, ptr %rows, i64 %state
  %given = load i64, ptr %at
  %further = sub i64 %given, %base
  br label %kept
kept:
  %number = phi i64 [ %own, %lane ], [ %further, %row ]
  %to = getelementptr i64, ptr %table, i64 %k
  store i64 %number, ptr %to
  %k_1 = add i64 %k, 1
  %more = icmp slt i64 %k_1, {width}
  br i1 %more, label %lane, label %done
done:
  ret ptr %table
none:
  ret ptr null
}}"""


def fetching(types: Types, near: bool) -> str:
    """Functions that bring rows of states first + begin … first + end − 1 to the cache, to be read and written.

    fetch, own: rows that follow one another; those beyond the last state are asked for, too, which has no effect.
    fetch_rows, own_rows: rows by number, of which the last state has that at `nlast`; none if rows is null. near: rows
    that follow one another come to the first-level cache. Others come to the second level, to which more may be under
    way (measured: a tenth less time for humanoids, a tenth more for rows as short as an arm's, which fit in the first).
    """
    parameters = "ptr %pointer, i64 %stride, i64 %size, i64 %first, i64 %begin, i64 %end"
    by_number = {
        "end": """
  %none = icmp eq ptr %rows, null
  %states = add i64 %nlast, 1
  %most = select i1 %none, i64 0, i64 %states
  %to = call i64 @llvm.smin.i64(i64 %upto, i64 %most)""",
        "number": """
  %place = getelementptr i64, ptr %rows, i64 %s
  %number = load i64, ptr %place""",
    }
    in_order = {"end": "\n  %to = add i64 %upto, 0", "number": "\n  %number = add i64 %s, 0"}
    return "\n".join(
        f"""define internal void @{name}({parameters}{others}) noinline {{
entry:
  %from = add i64 %first, %begin
  %upto = add i64 %first, %end{lines["end"]}
  br label %next
next:
  %s = phi i64 [ %from, %entry ], [ %s_1, %fetched ]
  %more = icmp slt i64 %s, %to
  br i1 %more, label %state, label %done
state:{lines["number"]}
  %skipped = mul i64 %number, %stride
  %row = getelementptr {types.num}, ptr %pointer, i64 %skipped
  br label %line
line:
  %k = phi i64 [ 0, %state ], [ %k_1, %prefetch ]
  %lines = icmp slt i64 %k, %size
  br i1 %lines, label %prefetch, label %fetched
prefetch:
  %at = getelementptr {types.num}, ptr %row, i64 %k
  call void @llvm.prefetch.p0(ptr %at, i32 {written}, i32 {level}, i32 1)
  %k_1 = add i64 %k, {LINE // types.size}
  br label %line
fetched:
  %s_1 = add i64 %s, 1
  br label %next
done:
  ret void
}}"""
        for written, way in enumerate(("fetch", "own"))
        for name, lines, level, others in (
            (way, in_order, 3 if near else 2, ""), (f"{way}_rows", by_number, 2, ", ptr %rows, i64 %nlast"),
        )
    )  # fmt: skip
