"""Scalar expression graph: hash-consed, folded while it is built, counted exactly.

An algorithm written for floats runs unchanged on `Expr` (also inside NumPy object arrays); what it computed is then
in the `Graph`, from which counts, derivatives and programs are taken. Folding follows the counting rules of the
project: constants, 0 and ±1, double negation and x − x never become operations, and sign changes are moved to where
they cost nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.program.operations import (
    ADD,
    ANGULAR,
    CONST,
    COPYSIGN,
    COS,
    DIV,
    INPUT,
    MUL,
    NEG,
    OPAQUE,
    OPERATIONS,
    SIN,
    SQRT,
    SUB,
    Flops,
)

# Prime of the identity test. Floats are dyadic fractions, so that 2 has to be of great order, here p − 1: modulo the
# Mersenne prime 2^61 − 1 rounding errors of the size 2^-61 would be ones.
_P = (1 << 61) - 2373


class Expr:
    """A scalar of a `Graph`: an input or the result of an operation. Behaves as a number; folded results are floats."""

    __slots__ = ("graph", "id")

    def __init__(self, graph: Graph, id: int):
        self.graph = graph
        self.id = id

    def __add__(self, other):
        if type(other) is Expr:
            return self.graph._add(self, other)
        if type(other) is float:
            return self if other == 0.0 else self.graph._add(self, other)
        return _coerced(np.add, self, other, "_add")

    def __radd__(self, other):
        if type(other) is float:
            return self if other == 0.0 else self.graph._add(self, other)
        return _coerced(np.add, other, self, "_add")

    def __sub__(self, other):
        if type(other) is Expr:
            return self.graph._sub(self, other)
        if type(other) is float:
            return self if other == 0.0 else self.graph._sub(self, other)
        return _coerced(np.subtract, self, other, "_sub")

    def __rsub__(self, other):
        if type(other) is float:
            return self.graph._neg(self) if other == 0.0 else self.graph._sub(other, self)
        return _coerced(np.subtract, other, self, "_sub")

    def __mul__(self, other):
        if type(other) is Expr:
            return self.graph._mul(self, other)
        if type(other) is float:
            if other == 0.0:
                return 0.0
            return self.graph._mul(self, other)
        return _coerced(np.multiply, self, other, "_mul")

    def __rmul__(self, other):
        if type(other) is float:
            if other == 0.0:
                return 0.0
            return self.graph._mul(self, other)
        return _coerced(np.multiply, other, self, "_mul")

    def __truediv__(self, other):
        if type(other) in (Expr, float):
            return self.graph._div(self, other)
        return _coerced(np.divide, self, other, "_div")

    def __rtruediv__(self, other):
        if type(other) is float:
            return self.graph._div(other, self)
        return _coerced(np.divide, other, self, "_div")

    def __neg__(self):
        return self.graph._neg(self)

    def __pos__(self):
        return self

    def __pow__(self, exponent):
        if exponent == 2:
            return self * self
        raise InvalidInput(f"only the power 2 is defined for Expr, got {exponent!r}")

    # NumPy calls these methods for np.sin and friends on object arrays.
    def sin(self):
        return self.graph.apply(SIN, self)

    def cos(self):
        return self.graph.apply(COS, self)

    def sqrt(self):
        return self.graph.apply(SQRT, self)

    def applied(self, kind: int, *operands):
        """The operation `kind` of `OPERATIONS` on these operands, of which this is one."""
        return self.graph.apply(kind, *operands)

    def __bool__(self):
        raise InvalidInput(
            "the value of an Expr is not known when the program is built: write the algorithm without branching on it"
        )

    def __float__(self):
        raise InvalidInput(f"{self!r} has no value; use sysdyn.program.evaluate.evaluate(outputs, inputs)")

    def __repr__(self) -> str:
        return self.graph.describe(self)


def _coerced(ufunc, left, right, method):
    """left ∘ right where one operand is an array or another kind of number."""
    for operand in (left, right):
        if isinstance(operand, np.ndarray):
            wrapped = [_boxed(x) if type(x) is Expr else x for x in (left, right)]
            return ufunc(*wrapped)
    try:
        left, right = (x if type(x) is Expr else _as_float(x) for x in (left, right))
    except TypeError:
        return NotImplemented
    graph = left.graph if type(left) is Expr else right.graph
    return getattr(graph, method)(left, right)


def _boxed(x: Expr) -> np.ndarray:
    box = np.empty((), dtype=object)
    box[()] = x
    return box


def _as_float(x) -> float:
    if isinstance(x, (int, float, np.floating, np.integer)):
        return float(x)
    raise TypeError(type(x))


class Graph:
    """A scalar expression graph over floats and named inputs.

    sharing: which equal results become one node.
        "none"       every operation executed is a node (a float run that counts);
        "structural" same operation on same operands (commutative operands sorted, a − b and b − a share);
        "algebraic"  additionally, results that are the same rational function of the inputs: each node carries its
                     value at one random point of a finite field (sin² + cos² = 1 holds there), so X^T I X is found
                     symmetric and cancelled fill-in found zero. A wrong merge has probability below 1e-9 for a
                     graph of a million nodes (Schwartz-Zippel, field of 2^61 − 2373).
    """

    def __init__(self, sharing: str = "structural"):
        if sharing not in ("none", "structural", "algebraic"):
            raise UnknownName("sharing", sharing, ("none", "structural", "algebraic"))
        self.sharing = sharing
        self.kind: list[int] = []
        self.lhs: list[int] = []
        self.rhs: list[int] = []
        self.input_names: dict[int, str] = {}
        self.constants: dict[int, float] = {}
        self.marks: list[int] = []  # node numbers at which a new piece of work begins (see `mark`)
        self._by_name: dict[str, Expr] = {}
        self._const_id: dict[float, int] = {}
        self._table: dict = {}
        self._algebraic = sharing == "algebraic"
        self._field: list[int] = []
        self._by_field: dict[int, Expr | float] = {1: 1.0}
        self._random = np.random.default_rng(20170522)
        self._circle: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.kind)

    def copy(self) -> Graph:
        """A graph with the same nodes under the same numbers, which goes on as this one would."""
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(new, name, list(value))
            elif isinstance(value, dict):
                setattr(new, name, {k: Expr(new, x.id) if type(x) is Expr else x for k, x in value.items()})
        new._random = copy.deepcopy(self._random)
        return new

    def close(self) -> None:
        """No more nodes are made: the memory for finding equal ones is free at once, without garbage collection."""
        for table in (self._table, self._by_field, self._by_name):
            table.clear()

    # ---- leaves ------------------------------------------------------------------------------------------------

    def input(self, name: str) -> Expr:
        """The input called `name`; the same Expr each time."""
        known = self._by_name.get(name)
        if known is not None:
            return known
        node = self._new(INPUT, -1, -1, self._random_field())
        self.input_names[node.id] = name
        self._by_name[name] = node
        if self._algebraic:
            self._by_field[self._field[node.id]] = node
        return node

    def inputs(self, name: str, n: int) -> np.ndarray:
        """(n,) object array of the inputs name[0] … name[n−1]."""
        return np.array([self.input(f"{name}[{i}]") for i in range(n)] + [None], dtype=object)[:n]

    def mark(self) -> None:
        """Begin a new piece of work here: programs are cut at marks, and equal pieces share machine code."""
        if not self.marks or self.marks[-1] != len(self.kind):
            self.marks.append(len(self.kind))

    def _const(self, x: float) -> int:
        found = self._const_id.get(x)
        if found is None:
            if not math.isfinite(x):
                raise InvalidInput(f"a constant of an expression is {x}")
            found = self._new(CONST, -1, -1, _field_of(x) if self._algebraic else 0).id
            self.constants[found] = x
            self._const_id[x] = found
            if self._algebraic:
                self._by_field.setdefault(self._field[found], x)
        return found

    def constant(self, x: float) -> Expr:
        """The constant x, of either sign, as a node."""
        return Expr(self, self._const(x))

    def exact(self, x):
        """The float x as a constant node that keeps its exact value through folding.

        0, ±1 and whatever is no float are returned as they are.

        Folded floats are rounded, so that identities between rounded constants are lost; folded constant nodes are
        rounded too, but compared by their exact values. Only sharing="algebraic" makes the difference.
        """
        if not self._algebraic or type(x) is not float or x in (0.0, 1.0, -1.0):
            return x
        return self._constant_node(x, _field_of(x))

    def _constant_node(self, x: float, value: int):
        """The constant x ≥ 0 whose exact value is `value` (negative ones are the NEG of a positive one)."""
        if not math.isfinite(x):
            raise InvalidInput(f"a constant of an expression is {x}")
        if x < 0.0:
            return self._neg(self._constant_node(-x, (_P - value) % _P))
        found = self._lookup(value)
        if found is None:
            found = self._by_field[value] = self._new(CONST, -1, -1, value)
            self.constants[found.id] = x
        elif type(found) is float and found not in (0.0, 1.0, -1.0):
            found = Expr(self, self._const(found))
        return found

    def opaque(self, x):
        """x as a number of its own, rounding errors and all: nothing that is known of x is used of it. Costs nothing.

        Without it the residual of a solution would be found to be 0, as it is in exact arithmetic.
        """
        if type(x) is Expr:
            x = self._new(OPAQUE, x.id, -1, self._random_field())
            if self._algebraic:
                self._by_field[self._field[x.id]] = x
        return x

    def _random_field(self) -> int:
        return int(self._random.integers(1, _P - 1)) if self._algebraic else 0

    def _new(self, kind: int, a: int, b: int, value: int) -> Expr:
        id = len(self.kind)
        self.kind.append(kind)
        self.lhs.append(a)
        self.rhs.append(b)
        if self._algebraic:
            self._field.append(value)
        return Expr(self, id)

    # ---- operations --------------------------------------------------------------------------------------------

    def _operand(self, x) -> int:
        if type(x) is Expr:
            if x.graph is not self:
                raise InvalidInput("the operands belong to two different graphs")
            return x.id
        return self._const(x)

    def _op(self, kind: int, x, y):
        """x ∘ y as a node, or what is known to equal it."""
        a, b = self._operand(x), self._operand(y)
        if self.sharing == "none":
            return self._new(kind, a, b, 0)
        if (kind == ADD or kind == MUL) and a > b:
            a, b = b, a
        key = (kind, a, b)
        found = self._table.get(key)
        if found is not None:
            return found
        if not self._algebraic:
            node = self._new(kind, a, b, 0)
            self._table[key] = node
            return node
        va, vb = self._field[a], self._field[b]
        if kind == MUL:
            value = va * vb % _P
        elif kind == ADD:
            value = (va + vb) % _P
        elif kind == SUB:
            value = (va - vb) % _P
        elif kind == DIV and vb:
            value = va * pow(vb, -1, _P) % _P
        else:
            value = self._random_field()
        if self.kind[a] == CONST and self.kind[b] == CONST:
            found = self._constant_node(OPERATIONS[kind].number(self.constants[a], self.constants[b]), value)
        else:
            found = self._lookup(value)
            if found is None:
                found = self._by_field[value] = self._new(kind, a, b, value)
        self._table[key] = found
        return found

    def _lookup(self, value: int):
        if value == 0:
            return 0.0
        found = self._by_field.get(value)
        if found is None:
            found = self._by_field.get(_P - value)
            if found is not None:
                return -found
        return found

    def is_negative(self, x) -> bool:
        return type(x) is Expr and self.kind[x.id] == NEG

    def _neg(self, x):
        if type(x) is float:
            return -x
        if self.kind[x.id] == NEG:
            return Expr(self, self.lhs[x.id])
        key = (NEG, x.id, -1)
        found = self._table.get(key)
        if found is None:
            found = self._new(NEG, x.id, -1, (_P - self._field[x.id]) % _P if self._algebraic else 0)
            self._table[key] = found
        return found

    def _add(self, x, y):
        if type(x) is float and type(y) is float:
            return x + y
        if type(y) is float and y == 0.0:
            return x
        if type(x) is float and x == 0.0:
            return y
        if self.is_negative(y):
            return self._sub(x, self._neg(y))
        if self.is_negative(x):
            return self._sub(y, self._neg(x))
        if type(y) is float and y < 0.0:  # one form for x + (−c) and x − c
            return self._sub(x, -y)
        if type(x) is float and x < 0.0:
            return self._sub(y, -x)
        return self._op(ADD, x, y)

    def _sub(self, x, y):
        if type(x) is float and type(y) is float:
            return x - y
        if type(y) is float and y == 0.0:
            return x
        if type(x) is float and x == 0.0:
            return self._neg(y)
        if type(x) is Expr and type(y) is Expr and x.id == y.id and x.graph is y.graph:
            return 0.0
        if self.is_negative(y):
            return self._add(x, self._neg(y))
        if self.is_negative(x):
            return self._neg(self._add(self._neg(x), y))
        if type(y) is float and y < 0.0:
            return self._add(x, -y)
        if type(x) is float and x < 0.0:
            return self._neg(self._add(y, -x))
        # a − b and b − a are one node, the earlier operand first
        if self._operand(x) > self._operand(y):
            return self._neg(self._op(SUB, y, x))
        return self._op(SUB, x, y)

    def _mul(self, x, y):
        if type(x) is float:
            x, y = y, x
        if type(y) is float:
            if type(x) is float:
                return x * y
            if y == 0.0:
                return 0.0
            if y == 1.0:
                return x
            if y < 0.0:
                return self._neg(self._mul(x, -y))
        if self.is_negative(x):
            return self._neg(self._mul(self._neg(x), y))
        if self.is_negative(y):
            return self._neg(self._mul(x, self._neg(y)))
        return self._op(MUL, x, y)

    def _div(self, x, y):
        if type(y) is float:
            if y == 0.0:
                raise ZeroDivisionError("division of an expression by the constant 0")
            if type(x) is float:
                return x / y
            if y == 1.0:
                return x
            if y < 0.0:
                return self._neg(self._div(x, -y))
        if type(x) is float:
            if x == 0.0:
                return 0.0
            if x < 0.0:
                return self._neg(self._div(-x, y))
        if type(x) is Expr and type(y) is Expr and x.id == y.id and x.graph is y.graph:
            return 1.0
        if self.is_negative(x):
            return self._neg(self._div(self._neg(x), y))
        if self.is_negative(y):
            return self._neg(self._div(x, self._neg(y)))
        return self._op(DIV, x, y)

    def apply(self, kind: int, *operands):
        """The operation `kind` of `OPERATIONS` on Exprs of this graph and floats."""
        operation = OPERATIONS[kind]
        if operation.symbol or all(type(x) is not Expr for x in operands):
            return operation.number(*operands)
        *others, last = operands
        if operation.parity and self.is_negative(last):
            mirrored = self.apply(kind, *others, self._neg(last))
            return mirrored if operation.parity > 0 else -mirrored
        return self._op(kind, *operands) if operation.arity == 2 else self._unary(kind, last)

    def _unary(self, kind: int, x: Expr):
        key = (kind, x.id, -1)
        found = None if kind not in ANGULAR and self.sharing == "none" else self._table.get(key)
        if found is None:
            value = 0
            if self._algebraic:
                value = self._circle_point(x.id)[kind == COS] if kind in ANGULAR else self._random_field()
            found = self._new(kind, x.id, -1, value)
            if self._algebraic:
                self._by_field[value] = found
            self._table[key] = found
        return found

    def _circle_point(self, angle: int) -> tuple[int, int]:
        """(s, c) in the field with s² + c² = 1, one random point for each angle: s = 2t/(1+t²), c = (1−t²)/(1+t²)."""
        point = self._circle.get(angle)
        if point is None:
            t = self._random_field()
            scale = pow(1 + t * t, -1, _P)
            point = self._circle[angle] = (2 * t * scale % _P, (1 - t * t) * scale % _P)
        return point

    # ---- looking at it -----------------------------------------------------------------------------------------

    def live(self, outputs: Iterable) -> np.ndarray:
        """Sorted node numbers needed for `outputs` (leaves included)."""
        kind, lhs, rhs = self.kind, self.lhs, self.rhs
        needed = bytearray(len(kind))
        for x in outputs:
            if type(x) is Expr:
                needed[self._operand(x)] = 1
        for i in range(len(kind) - 1, -1, -1):
            if needed[i]:
                if lhs[i] >= 0:
                    needed[lhs[i]] = 1
                if rhs[i] >= 0:
                    needed[rhs[i]] = 1
        return np.flatnonzero(np.frombuffer(needed, dtype=np.uint8))

    def operands(self, i: int) -> tuple[int, ...]:
        """Node numbers of the operands of an operation."""
        return (self.lhs[i],) if self.rhs[i] < 0 else (self.lhs[i], self.rhs[i])

    def count(self, outputs: Iterable) -> Flops:
        """Exact operations live from `outputs`. Sin and cos of one angle count as one pair."""
        live = self.live(outputs)
        return Flops.of(*(np.asarray(x, dtype=np.int64)[live] for x in (self.kind, self.lhs)))

    def describe(self, x, depth: int = 3) -> str:
        if type(x) is not Expr:
            return f"{x:.6g}"
        kind = self.kind[x.id]
        if kind == INPUT:
            return self.input_names[x.id]
        if kind == CONST:
            return f"{self.constants[x.id]:.6g}"
        if depth == 0:
            return "…"
        operation = OPERATIONS[kind]
        shown = [self.describe(Expr(self, k), depth - 1) for k in self.operands(x.id)]
        if not operation.symbol:
            return f"{operation.name}({', '.join(shown)})"
        return f"({f' {operation.symbol} '.join(shown)})" if operation.arity == 2 else f"{operation.symbol}{shown[0]}"


def _field_of(x: float) -> int:
    """The float x, an exact dyadic rational, as an element of the field."""
    numerator, denominator = x.as_integer_ratio()
    return numerator * pow(denominator, -1, _P) % _P


def is_zero(x) -> bool:
    """Structurally zero: the float 0, whatever the inputs."""
    return type(x) is not Expr and x == 0.0


def is_constant(x) -> bool:
    """The same whatever the inputs: a float, or a constant node or its negative."""
    if type(x) is not Expr:
        return isinstance(x, (int, float, np.number))
    kind = x.graph.kind
    return kind[x.id] == CONST or (kind[x.id] == NEG and kind[x.graph.lhs[x.id]] == CONST)


def constant_value(x) -> float:
    """The float that a constant (see `is_constant`) is."""
    if type(x) is not Expr:
        return float(x)
    graph = x.graph
    return graph.constants[x.id] if graph.kind[x.id] == CONST else -graph.constants[graph.lhs[x.id]]


def unsigned(x):
    """x or −x, whichever is not a sign change of another node: the one that is computed."""
    if type(x) is Expr:
        graph = x.graph
        while graph.kind[x.id] in (NEG, COPYSIGN):
            x = Expr(graph, graph.lhs[x.id])
    return x


# ---- generic elementary functions: float, Expr, or NumPy array (a batch) -----------------------------------------


sin, cos, sqrt, copysign = (OPERATIONS[kind].number for kind in (SIN, COS, SQRT, COPYSIGN))
