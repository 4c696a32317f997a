"""LLVM IR of the functions by which the interpreter calls a kernel; `entry` makes and describes them.

Each gets words in a bytes object, whose content begins at a fixed place, and some of them a tuple of arrays, which they
check by the fields of NumPy's array objects (numpy/ndarraytypes.h). They return True, False or None.
"""

from __future__ import annotations

from sysdyn.backends.llvm.types import double

# Workspaces begin at multiples of so many bytes, the size of a cache line and of the widest register.
ALIGN = 64
# The content of a bytes object begins so many bytes after its address.
CONTENT = bytes.__basicsize__ - 1
# Where a tuple has its length and its items.
LENGTH, ITEMS = 16, tuple.__basicsize__
# Where the fields of an array object begin, in bytes; the type is a field of every object.
TYPE, DATA, ND, DIMENSIONS, STRIDES, DESCR, FLAGS = 8, 16, 24, 32, 40, 56, 64
# The flags of an array that is C-contiguous, and of one that is aligned.
CONTIGUOUS, ALIGNED = 0x0001, 0x0100
# This stands for an array that does not fit.
_MISFIT = -(2**63)
# Squares of the norms of quaternions: those so near 1 are left, those nearer are normalised, others are for the caller.
_EXACT, _NEAR = 1.7e-15, 1.9e-6

# The words that the functions begin with, "#" before those that are no addresses; what follows them is told at each.
CALL = "args work none incref"
DIRECT = "args work none incref yes no type descr dict_next dict_size status row #length #arrays #quaternions"
BATCH = "none incref yes no type descr save restore #arrays #words #outputs #quaternions #most"
# An array is described by its number of axes at one state, the first and the last of them, its number of entries, and a
# word or two that depend on the function.
DIRECT_ARRAY, BATCH_ARRAY = 7, 5


def _field(name: str, of: str, offset: int, kind: str = "ptr") -> str:
    """%name, what is `offset` bytes after %of."""
    return f"  %at_{name} = getelementptr i8, ptr %{of}, i64 {offset}\n  %{name} = load {kind}, ptr %at_{name}, align 1"


def _entry(name: str, of: str, index: str, kind: str = "ptr") -> str:
    """%name, the word of that number after %of."""
    return f"  %at_{name} = getelementptr i64, ptr %{of}, i64 {index}\n  %{name} = load {kind}, ptr %at_{name}, align 1"


def _head(words: str) -> str:
    """%name for each of the words that a function begins with, and %rest, where they end."""
    names = words.split()
    loads = [_entry(x.lstrip("#"), "content", str(k), "i64" if x[0] == "#" else "ptr") for k, x in enumerate(names)]
    start = f"  %content = getelementptr i8, ptr %self, i64 {CONTENT}"
    return "\n".join([start, *loads, f"  %rest = getelementptr i64, ptr %content, i64 {len(names)}"])


def _loop(k: str, before: str, count: str, body: str, last: str, after: str) -> str:
    """Blocks that do `body`, which ends in block `last`, for %k = 0 … count − 1, from `before`; then `after`."""
    return f"""  br label %{k}_next
{k}_next:
  %{k} = phi i64 [ 0, %{before} ], [ %{k}_1, %{last} ]
  %{k}_more = icmp slt i64 %{k}, {count}
  br i1 %{k}_more, label %{k}_body, label %{after}
{k}_body:
  %{k}_1 = add i64 %{k}, 1
{body}
  br label %{k}_next"""


def _quit(said: str) -> str:
    return f"  call void %incref(ptr %{said})\n  ret ptr %{said}"


_ANSWER = f"""  %said = select i1 %solved, ptr %yes, ptr %no
{_quit("said")}
other:
{_quit("none")}"""

# @copied: n words. @fits: 0 for an array of float64 as a table describes it; for one with n of those, how many doubles
# each is from the next; _MISFIT for others, and where they are not C-contiguous.
_COPIED = f"""{_entry("word", "from", "%k", "i64")}
  %there = getelementptr i64, ptr %to, i64 %k
  store i64 %word, ptr %there, align 1"""
_EIGHT = f"""  %first = mul i64 %m, 8
{_entry("words", "from", "%first", "<8 x i64>")}
  %theres = getelementptr i64, ptr %to, i64 %first
  store <8 x i64> %words, ptr %theres, align 1"""
_SHARED = f"""define internal void @copied(ptr %from, ptr %to, i64 %n) {{
entry:
  %eights = udiv i64 %n, 8
{_loop("m", "entry", "%eights", _EIGHT, "m_body", "rest")}
rest:
  %done = mul i64 %eights, 8
  br label %next
next:
  %k = phi i64 [ %done, %rest ], [ %k_1, %body ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %body, label %end
body:
  %k_1 = add i64 %k, 1
{_COPIED}
  br label %next
end:
  ret void
}}
define internal i64 @fits(ptr %object, ptr %type, ptr %descr, ptr %table, i64 %n) {{
{_field("itstype", "object", TYPE)}
  %isarray = icmp eq ptr %itstype, %type
  br i1 %isarray, label %fields, label %other
fields:
{_field("itsdescr", "object", DESCR)}
{_field("flags", "object", FLAGS, "i32")}
{_field("axes32", "object", ND, "i32")}
  %axes = sext i32 %axes32 to i64
  %isfloat = icmp eq ptr %itsdescr, %descr
  %aligned = and i32 %flags, {ALIGNED}
  %isaligned = icmp ne i32 %aligned, 0
{_entry("nd", "table", "0", "i64")}
  %ndmany = add i64 %nd, 1
  %one = icmp eq i64 %axes, %nd
  %many = icmp eq i64 %axes, %ndmany
  %either = or i1 %one, %many
  %floats = and i1 %isfloat, %isaligned
  %right = and i1 %floats, %either
  br i1 %right, label %shape, label %other
shape:
{_field("dims", "object", DIMENSIONS)}
{_entry("first", "table", "1", "i64")}
{_entry("last", "table", "2", "i64")}
  %lead = zext i1 %many to i64
  %end = sub i64 %axes, 1
{_entry("dim0", "dims", "0", "i64")}
{_entry("dim1", "dims", "%lead", "i64")}
{_entry("dim2", "dims", "%end", "i64")}
  %wanted = select i1 %many, i64 %n, i64 %first
  %same0 = icmp eq i64 %dim0, %wanted
  %same1 = icmp eq i64 %dim1, %first
  %same2 = icmp eq i64 %dim2, %last
  %same01 = and i1 %same0, %same1
  %same = and i1 %same01, %same2
{_field("strides", "object", STRIDES)}
{_entry("size", "table", "3", "i64")}
{_entry("between", "strides", "0", "i64")}
{_entry("ofrow", "strides", "%lead", "i64")}
{_entry("ofentry", "strides", "%end", "i64")}
  %rowbytes = mul i64 %size, 8
  %bytes = mul i64 %ofrow, %first
  %dense0 = icmp eq i64 %bytes, %rowbytes
  %dense1 = icmp eq i64 %ofentry, 8
  %dense = and i1 %dense0, %dense1
  %contiguous = and i32 %flags, {CONTIGUOUS}
  %iscontiguous = icmp ne i32 %contiguous, 0
  %inrows = or i1 %dense, %iscontiguous
  %usable = and i1 %same, %inrows
  %next = select i1 %iscontiguous, i64 %rowbytes, i64 %between
  %doubles = sdiv i64 %next, 8
  %stride = select i1 %many, i64 %doubles, i64 0
  %found = select i1 %usable, i64 %stride, i64 {_MISFIT}
  ret i64 %found
other:
  ret i64 {_MISFIT}
}}"""

_CALL = f"""define ptr @call(ptr %self, ptr %unused) {{
{_head(CALL)}
  call void @run(ptr %args, ptr %work)
{_quit("none")}
}}"""

# Of the arguments (result, arrays, dict) of `direct` and (own arrays, arrays) of `batch`: %items, %number arrays.
_GIVEN = f"""{_entry("given", "objects", "1")}
  %items = getelementptr i8, ptr %given, i64 {ITEMS}
{_field("number", "given", LENGTH, "i64")}"""


def _table(words: int) -> str:
    """%table, which describes array number %k by so many words."""
    return f"""  %line = mul i64 %k, {words}
  %table = getelementptr i64, ptr %tables, i64 %line"""


# ---- one state ----------------------------------------------------------------------------------------------------

# From block %single: each of the doubles at %data to an address out of the table %to.
_SCATTER = f"""{_entry("value", "data", "%i", "double")}
{_entry("place", "to", "%i")}
  store double %value, ptr %place"""
# Array number %k to where it goes: one of the tuple, or the next value of the dict if its key is the one expected.
_TAKE = f"""{_table(DIRECT_ARRAY)}
  %placed = icmp slt i64 %k, %number
  br i1 %placed, label %listed, label %keyed
listed:
{_entry("itsitem", "items", "%k")}
  br label %array
keyed:
  %found = call i32 %dict_next(ptr %named, ptr %position, ptr %atkey, ptr %atvalue)
  %itskey = load ptr, ptr %atkey
  %itsvalue = load ptr, ptr %atvalue
{_entry("expected", "table", "6")}
  %some = icmp ne i32 %found, 0
  %thekey = icmp eq ptr %itskey, %expected
  %right = and i1 %some, %thekey
  br i1 %right, label %array, label %other
array:
  %object = phi ptr [ %itsitem, %listed ], [ %itsvalue, %keyed ]
  %fits = call i64 @fits(ptr %object, ptr %type, ptr %descr, ptr %table, i64 -1)
  %does = icmp eq i64 %fits, 0
  br i1 %does, label %copy, label %other
copy:
{_field("data", "object", DATA)}
{_entry("size", "table", "3", "i64")}
{_entry("to", "table", "4")}
{_entry("scattered", "table", "5", "i64")}
  %apart = icmp ne i64 %scattered, 0
  br i1 %apart, label %single, label %whole
whole:
  call void @copied(ptr %data, ptr %to, i64 %size)
  br label %taken
single:
{_loop("i", "single", "%size", _SCATTER, "i_body", "taken")}
taken:"""

# The four entries of a quaternion, the sum of their squares, and they over %root, in their places.
_SQUARES = "\n".join(
    f"""{_entry(f"v{k}", "q", str(k), "double")}
  %vv{k} = fmul double %v{k}, %v{k}
  %square{k} = fadd double {f"%square{k - 1}" if k else "0.0"}, %vv{k}"""
    for k in range(4)
)
_DIVIDED = "\n".join(f"  %n{k} = fdiv double %v{k}, %root\n  store double %n{k}, ptr %at_v{k}" for k in range(4))
# Quaternion number %j normalised where it nearly is.
_NORMALISE = f"""{_entry("q", "norms", "%j")}
{_SQUARES}
  %signed = fsub double %square3, 1.0
  %error = call double @llvm.fabs.f64(double %signed)
  %exact = fcmp ole double %error, {double(_EXACT)}
  br i1 %exact, label %unit, label %inexact
inexact:
  %near = fcmp ole double %error, {double(_NEAR)}
  br i1 %near, label %divide, label %other
divide:
  %root = call double @llvm.sqrt.f64(double %square3)
{_DIVIDED}
  br label %unit
unit:"""

# Each array follows the words as described, with the address of its first double and 0, or that of a table of the
# addresses of all and 1, and with its key; then come the addresses of quaternions. The objects are the result, a tuple
# of the first arrays, and a dict of the others or None. It holds the interpreter's lock.
_DIRECT = f"""define ptr @direct(ptr %self, ptr %objects, i64 %count) {{
entry:
{_head(DIRECT)}
  %tables = getelementptr i64, ptr %rest, i64 0
  %described = mul i64 %arrays, {DIRECT_ARRAY}
  %norms = getelementptr i64, ptr %rest, i64 %described
  %position = alloca i64
  %atkey = alloca ptr
  %atvalue = alloca ptr
  store i64 0, ptr %position
  store ptr null, ptr %atkey
  store ptr null, ptr %atvalue
{_GIVEN}
{_entry("named", "objects", "2")}
  %unnamed = icmp eq ptr %named, %none
  br i1 %unnamed, label %counted, label %mapped
mapped:
  %values = call i64 %dict_size(ptr %named)
  br label %counted
counted:
  %others = phi i64 [ 0, %entry ], [ %values, %mapped ]
  %all = add i64 %number, %others
  %complete = icmp eq i64 %all, %arrays
  br i1 %complete, label %take, label %other
take:
{_loop("k", "take", "%arrays", _TAKE, "taken", "turn")}
turn:
{_loop("j", "turn", "%quaternions", _NORMALISE, "unit", "compute")}
compute:
  call void @run(ptr %args, ptr %work)
{_entry("result", "objects", "0")}
{_field("out", "result", DATA)}
  call void @copied(ptr %row, ptr %out, i64 %length)
{_entry("bits", "status", "0", "i64")}
  %solved = icmp eq i64 %bits, 0
{_ANSWER}
}}"""

# ---- many states --------------------------------------------------------------------------------------------------

# The address of output number %o to its place, which is counted from the end.
_PLACE = f"""  %own_number = add i64 %o, 3
{_entry("outputobject", "owned", "%own_number")}
{_field("output", "outputobject", DATA)}
  %back = sub i64 %outputs, %o
  %backwords = mul i64 %back, 2
  %outputword = sub i64 %words, %backwords
  %there = getelementptr i64, ptr %args, i64 %outputword
  store ptr %output, ptr %there"""
# The address of array number %k, and its stride, which is 0 where all states share it.
_READ = f"""{_table(BATCH_ARRAY)}
{_entry("object", "items", "%k")}
  %fits = call i64 @fits(ptr %object, ptr %type, ptr %descr, ptr %table, i64 %n)
  %does = icmp ne i64 %fits, {_MISFIT}
  br i1 %does, label %taken, label %other
taken:
{_field("data", "object", DATA)}
{_entry("place", "table", "4", "i64")}
  %pointer = getelementptr i64, ptr %args, i64 %place
  store ptr %data, ptr %pointer
  %atstride = getelementptr i64, ptr %pointer, i64 1
  store i64 %fits, ptr %atstride"""

# Where the pointer and the stride number %p are, and the pointer %begin states on.
_MOVE = f"""  %twice = mul i64 %p, 2
  %word = add i64 %twice, 2
{_entry("from", "args", "%word")}
  %strideword = add i64 %twice, 3
{_entry("stride", "args", "%strideword", "i64")}
  %skipped = mul i64 %begin, %stride
  %to = getelementptr double, ptr %from, i64 %skipped
  %place = getelementptr i64, ptr %part, i64 %word
  store ptr %to, ptr %place"""
# Whether the quaternion at %q, of state number %s, has norm 1.
_UNIT = f"""  %before = mul i64 %s, %qstride
  %q = getelementptr double, ptr %qfirst, i64 %before
{_SQUARES}
  %signed = fsub double %square3, 1.0
  %error = call double @llvm.fabs.f64(double %signed)
  %exact = fcmp ole double %error, {double(_EXACT)}
  br i1 %exact, label %unit, label %other
unit:"""
# Quaternion number %j at all states of the part.
_UNITS = f"""  %pair = mul i64 %j, 2
{_entry("qword", "turning", "%pair", "i64")}
{_entry("qarray", "part", "%qword")}
  %after_qword = add i64 %qword, 1
{_entry("qstride", "part", "%after_qword", "i64")}
  %after_pair = add i64 %pair, 1
{_entry("qoffset", "turning", "%after_pair", "i64")}
  %qfirst = getelementptr double, ptr %qarray, i64 %qoffset
{_loop("s", "j_body", "%size", _UNIT, "unit", "units")}
units:"""
# The bits of the status at %own of all states of the part, from block %compute on.
_SEE = f"""  %before_part = load i64, ptr %all
  br label %c_next
c_next:
  %c = phi i64 [ 0, %compute ], [ %c_1, %c_body ]
  %seen = phi i64 [ %before_part, %compute ], [ %either, %c_body ]
  %c_more = icmp slt i64 %c, %size
  br i1 %c_more, label %c_body, label %c_end
c_body:
  %c_1 = add i64 %c, 1
{_entry("bits", "own", "%c", "i64")}
  %either = or i64 %seen, %bits
  br label %c_next
c_end:
  store i64 %seen, ptr %all
  br label %next"""

# What is left of region number %first_region + %g, part after part.
_REGION = f"""  %number = add i64 %first_region, %g
  %which = urem i64 %number, %threads
  %start = mul i64 %which, %region
  %whole = add i64 %start, %region
  %beyond = icmp sgt i64 %whole, %n
  %stop = select i1 %beyond, i64 %n, i64 %whole
  %counted = add i64 %which, 3
  %taken = getelementptr i64, ptr %counter, i64 %counted
  br label %next
next:
  %gone = atomicrmw add ptr %taken, i64 %most monotonic
  %begin = add i64 %start, %gone
  %more = icmp slt i64 %begin, %stop
  br i1 %more, label %begun, label %exhausted
begun:
  %left = sub i64 %stop, %begin
  %few = icmp slt i64 %left, %most
  %size = select i1 %few, i64 %left, i64 %most
  store i64 %size, ptr %part
  %own = getelementptr i64, ptr %status, i64 %begin
  %second = getelementptr i64, ptr %part, i64 1
  store ptr %own, ptr %second
{_loop("p", "begun", "%arrays", _MOVE, "p_body", "turn")}
turn:
{_loop("j", "turn", "%quaternions", _UNITS, "units", "compute")}
compute:
  call void @run(ptr %part, ptr %work)
{_SEE}
exhausted:"""

# @parts: the kernel at up to `most` states at a time; the bits of all status, −1 where a quaternion is not normalised.
# Threads that share the counter have as many regions of states. Each begins with one of its own, whose rows follow one
# another and stay in the cache of its core from call to call, and goes on with what is left of the others.
_PARTS = f"""define internal i64 @parts(
  ptr %args, i64 %words, ptr %work, ptr %counter, i64 %threads, i64 %region, i64 %most, ptr %turning, i64 %quaternions
) {{
entry:
  %part = alloca i64, i64 %words
  %all = alloca i64
  store i64 0, ptr %all
  call void @copied(ptr %args, ptr %part, i64 %words)
{_entry("n", "args", "0", "i64")}
{_entry("status", "args", "1")}
  %arrays2 = sub i64 %words, 2
  %arrays = udiv i64 %arrays2, 2
  %first_region = atomicrmw add ptr %counter, i64 1 monotonic
{_loop("g", "entry", "%threads", _REGION, "exhausted", "end")}
other:
  ret i64 -1
end:
  %found = load i64, ptr %all
  ret i64 %found
}}"""

# The arguments of the kernel follow the words, with addresses of what no array gives; they are completed on the stack
# of the call. Then come the arrays, each as described, with the place of its pointer among these arguments, and for
# each quaternion the place of its pointer and where it begins in a row. The first object is (work, counter, status,
# *outputs); the counter is None, or an array (threads that have begun, states of a region, states at a time, then the
# states of each region that are taken). It runs without the interpreter's lock.
_BATCH = f"""define ptr @batch(ptr %self, ptr %objects, i64 %count) {{
{_head(BATCH)}
  %tables = getelementptr i64, ptr %rest, i64 %words
  %described = mul i64 %arrays, {BATCH_ARRAY}
  %turning = getelementptr i64, ptr %tables, i64 %described
  %args = alloca i64, i64 %words
  %alone = alloca [4 x i64]
  store [4 x i64] zeroinitializer, ptr %alone
  %alone_region = getelementptr i64, ptr %alone, i64 1
  store i64 {2**62}, ptr %alone_region
  %alone_most = getelementptr i64, ptr %alone, i64 2
  store i64 %most, ptr %alone_most
{_entry("own", "objects", "0")}
  %owned = getelementptr i8, ptr %own, i64 {ITEMS}
{_GIVEN}
  %complete = icmp eq i64 %number, %arrays
  br i1 %complete, label %take, label %other
take:
  call void @copied(ptr %rest, ptr %args, i64 %words)
{_entry("workobject", "owned", "0")}
{_field("workdata", "workobject", DATA, "i64")}
  %up = add i64 %workdata, {ALIGN - 1}
  %down = and i64 %up, -{ALIGN}
  %work = inttoptr i64 %down to ptr
{_entry("counterobject", "owned", "1")}
  %single = icmp eq ptr %counterobject, %none
  %anyobject = select i1 %single, ptr %workobject, ptr %counterobject
{_field("shared", "anyobject", DATA)}
  %counter = select i1 %single, ptr %alone, ptr %shared
{_entry("region", "counter", "1", "i64")}
{_entry("share", "counter", "2", "i64")}
{_field("anydims", "anyobject", DIMENSIONS)}
{_entry("anylength", "anydims", "0", "i64")}
  %regions = sub i64 %anylength, 3
  %threads = select i1 %single, i64 1, i64 %regions
  %little = icmp slt i64 %share, %most
  %portion = select i1 %little, i64 %share, i64 %most
{_entry("statusobject", "owned", "2")}
{_field("status", "statusobject", DATA)}
{_field("statusdims", "statusobject", DIMENSIONS)}
{_entry("n", "statusdims", "0", "i64")}
  store i64 %n, ptr %args
  %second = getelementptr i64, ptr %args, i64 1
  store ptr %status, ptr %second
{_loop("o", "take", "%outputs", _PLACE, "o_body", "read")}
read:
{_loop("k", "read", "%arrays", _READ, "taken", "compute")}
compute:
  %state = call ptr %save()
  %bits = call i64 @parts(
    ptr %args, i64 %words, ptr %work, ptr %counter, i64 %threads, i64 %region, i64 %portion, ptr %turning,
    i64 %quaternions)
  call void %restore(ptr %state)
  %solved = icmp eq i64 %bits, 0
  %turned = icmp eq i64 %bits, -1
  br i1 %turned, label %other, label %answer
answer:
{_ANSWER}
}}"""


# The functions of a kernel of one state, and of one of many.
OF_ONE, OF_MANY = ("call", "direct"), ("batch",)


def entry_code(width: int) -> str:
    """The functions of a kernel of so many states, beside `@run` and the intrinsics that they use."""
    parts = (_CALL, _DIRECT) if width == 1 else ("declare double @llvm.fabs.f64(double)", _PARTS, _BATCH)
    return "\n".join([_SHARED, *parts])
