"""Scalar expression graph with hash consing, constant folding and exact operation counts.

An algorithm written for floats runs unchanged on `Expr`, also inside NumPy object arrays. The `Graph` records its
operations. Operation counts, derivatives and programs are derived from the graph. The graph folds operations on
constants, operations with 0 or ±1, double negations and x − x. It moves sign changes to places where they cost nothing.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from sysdyn.errors import InvalidInput, check_among
from sysdyn.program.opcodes import (
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

# Prime p of the identity test. Floats are dyadic fractions, so the order of 2 modulo p must be large; here it is p − 1.
# Modulo the Mersenne prime 2^61 − 1, a rounding error of 2^-61 would equal 1.
_P = (1 << 61) - 2373
# Default of the option `sharing`, see `Graph`.
SHARING = "algebraic"


class Scalar(Protocol):
    """Protocol of scalars with + − × ÷, also mixed with floats: float, `Expr`, operation-counting numbers."""

    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...


class Expr:
    """A scalar of a `Graph` with the arithmetic of a number. Results that fold to constants are floats.

    Attributes
    ----------
    graph : Graph
    node : int
        Number of the node.
    negative : bool
        True if the scalar is the negated node.
    value : int
        Value at the random point of the finite field, for sharing="algebraic".
    """

    __slots__ = ("graph", "negative", "node", "value")

    def __init__(self, graph: Graph, node: int, negative: bool, value: int):
        self.graph = graph
        self.node = node
        self.negative = negative
        self.value = value

    @property
    def id(self) -> int:
        """Node number of the expression, sign included. A NEG node is created if necessary."""
        return self.graph.negation(self) if self.negative else self.node

    def __add__(self, other):
        if type(other) is Expr:
            return self.graph._sum(self, other)
        if type(other) is float:
            return self if other == 0.0 else self.graph._sum(self, self.graph._number(other))
        return _apply_coerced(operator.add, np.add, self, other)

    __radd__ = __add__

    def __sub__(self, other):
        if type(other) is Expr:
            return self.graph._sum(self, other, minus=True)
        if type(other) is float:
            return self if other == 0.0 else self.graph._sum(self, self.graph._number(-other))
        return _apply_coerced(operator.sub, np.subtract, self, other)

    def __rsub__(self, other):
        if type(other) is float:
            return -self if other == 0.0 else self.graph._sum(self.graph._number(other), self, minus=True)
        return _apply_coerced(operator.sub, np.subtract, other, self)

    def __mul__(self, other):
        if type(other) is Expr:
            return self.graph._product(self, other)
        if type(other) is float:
            return self.graph._scale(self, other)
        return _apply_coerced(operator.mul, np.multiply, self, other)

    __rmul__ = __mul__

    def __truediv__(self, other):
        if type(other) is Expr:
            return self.graph._quotient(self, other)
        if type(other) is float:
            return self.graph._divide(self, other)
        return _apply_coerced(operator.truediv, np.divide, self, other)

    def __rtruediv__(self, other):
        if type(other) is float:
            return 0.0 if other == 0.0 else self.graph._quotient(self.graph._number(other), self)
        return _apply_coerced(operator.truediv, np.divide, other, self)

    def __neg__(self):
        return Expr(self.graph, self.node, not self.negative, _P - self.value)

    def __pos__(self):
        return self

    def __pow__(self, exponent):
        if exponent == 2:
            return self * self
        raise InvalidInput(f"only the power 2 is defined for Expr, got {exponent!r}")

    # NumPy calls these methods for functions such as np.sin on object arrays.
    def sin(self):
        return self.graph.apply(SIN, self)

    def cos(self):
        return self.graph.apply(COS, self)

    def sqrt(self):
        return self.graph.apply(SQRT, self)

    def apply_operation(self, kind: int, *operands):
        """Apply the operation `kind` to `operands`, which include this expression."""
        return self.graph.apply(kind, *operands)

    def __bool__(self):
        raise InvalidInput(
            "an Expr has no value while the program is built: write the algorithm without branches on it"
        )

    def __float__(self):
        raise InvalidInput(f"{self!r} has no value; use sysdyn.program.autodiff.evaluate(outputs, inputs)")

    def __repr__(self) -> str:
        return self.graph.describe(self)


def _apply_coerced(operation, ufunc, left, right):
    """left ∘ right if one operand is an array or a number of another type."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return ufunc(_box(left), _box(right))
    if not all(isinstance(x, (Expr, int, float, np.floating, np.integer)) for x in (left, right)):
        return NotImplemented
    return operation(*(x if type(x) is Expr else float(x) for x in (left, right)))


def _box(x):
    """Wrap an expression in a 0-d object array; return arrays and numbers unchanged."""
    if type(x) is not Expr:
        return x
    box = np.empty((), dtype=object)
    box[()] = x
    return box


class Graph:
    """A scalar expression graph over floats and named inputs.

    Parameters
    ----------
    sharing : {"none", "structural", "algebraic"}
        Which equal results share a node. "none": no sharing, as in a run with floats. "structural": the same operation
        on the same operands, up to commutation, and a − b with b − a. "algebraic": results that are the same rational
        function of the inputs.

    Notes
    -----
    Algebraic sharing is polynomial identity testing. Each node is evaluated at one random point of a finite field, with
    sin² + cos² = 1. The test detects that X^T I X is symmetric and that cancelled fill-in is zero. By the
    Schwartz-Zippel lemma, a graph of N nodes merges two different functions with probability ≤ N² d / p. There are N²
    pairs, since values are compared up to sign; d is the degree of a difference in the random numbers; p = 2^61 − 2373.
    A million nodes give 4e-7 d. All graphs use the same random numbers, so a wrong merge is reproducible.
    """

    def __init__(self, sharing: str = "structural"):
        check_among("sharing", sharing, ("none", "structural", "algebraic"))
        self.sharing = sharing
        self.kind: list[int] = []
        self.lhs: list[int] = []
        self.rhs: list[int] = []
        self.input_names: dict[int, str] = {}
        self.constants: dict[int, float] = {}
        self.cuts: list[int] = []  # node numbers at which code segments begin, see `cut`
        self._by_name: dict[str, Expr] = {}
        self._constants: dict[float, Expr] = {}
        self._negations: dict[int, int] = {}
        self._table: dict[tuple[int, int, int], Expr] = {}
        self._algebraic = sharing == "algebraic"
        self._field: list[int] = []
        self._by_field: dict[int, Expr | float] = {0: 0.0, 1: 1.0}
        self._random = np.random.default_rng(20170522)
        self._circle: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.kind)

    def copy(self) -> Graph:
        """An independent copy with the same nodes, node numbers and random state."""
        new = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(new, name, list(value))
            elif isinstance(value, dict):
                setattr(new, name, {k: new.rebind(x) for k, x in value.items()})
        new._random = copy.deepcopy(self._random)
        return new

    def rebind(self, x):
        """Convert an expression of the graph that this one is a copy of. Other objects are returned unchanged."""
        return Expr(self, x.node, x.negative, x.value) if type(x) is Expr else x

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the hash tables without waiting for garbage collection. No nodes can be added afterwards."""
        for table in (self._table, self._by_field, self._by_name, self._constants):
            table.clear()

    # ---- leaves ------------------------------------------------------------------------------------------------

    def input(self, name: str) -> Expr:
        """The input called `name`; repeated calls return the same Expr."""
        x = self._by_name.get(name)
        if x is None:
            x = self._by_name[name] = self._new(INPUT, -1, -1, self._random_field())
            self.input_names[x.node] = name
        return x

    def inputs(self, name: str, n: int) -> np.ndarray:
        """(n,) object array of the inputs name[0] … name[n−1]."""
        return np.array([self.input(f"{name}[{i}]") for i in range(n)] + [None], dtype=object)[:n]

    def cut(self) -> None:
        """Begin a new code segment here. Equal segments of a program share machine code."""
        if not self.cuts or self.cuts[-1] != len(self.kind):
            self.cuts.append(len(self.kind))

    def constant(self, x: float) -> Expr:
        """The constant node of x. Unlike in `_number`, −x has a node of its own."""
        node = self._constants.get(x)
        if node is None:
            if not math.isfinite(x):
                raise InvalidInput(f"a constant of an expression is {x}")
            value = _field_of(x) if self._algebraic else 0
            node = self._constants[x] = Expr(self, self._append(CONST, -1, -1, value), False, value)
            self.constants[node.node] = x
            if self._algebraic:
                self._by_field.setdefault(value, x)
        return node

    def _number(self, x: float) -> Expr:
        """The constant x as the node of |x|, with the sign of x."""
        return self.constant(x) if x >= 0.0 else -self.constant(-x)

    def exact_constant(self, x):
        """The float x as a constant node if sharing is algebraic. 0, ±1 and other objects are returned unchanged.

        Operations on constant nodes round like operations on floats. Algebraic sharing, however, compares exact values,
        so it detects identities between constants that rounding hides.
        """
        if not self._algebraic or type(x) is not float or x in (0.0, 1.0, -1.0):
            return x
        return self._fold(x, _field_of(x))

    def _fold(self, x: float, value: int):
        """The constant x, the result of a folded operation. value: field element of its exact value."""
        if not math.isfinite(x):
            raise InvalidInput(f"a constant of an expression is {x}")
        if x < 0.0:
            return -self._fold(-x, _P - value)
        shared = self._find_shared(value)
        if shared is None:
            shared = self._new(CONST, -1, -1, value)
            self.constants[shared.node] = x
        elif type(shared) is float and shared not in (0.0, 1.0, -1.0):
            shared = self._number(shared)
        return shared

    def decouple(self, x):
        """An opaque copy of x that algebraic sharing treats as an independent number.

        Without it, the residual of a solution would fold to 0, its value in exact arithmetic. The copy costs no
        operation.
        """
        return self._new(OPAQUE, x.id, -1, self._random_field()) if type(x) is Expr else x

    def alias(self, x):
        """A new node without sign for the value of x. It costs no operation.

        Unlike `decouple`, it keeps x and the alias equal in algebraic sharing. The sign of x and its node number, which
        orders the operands of sums and products, have no effect on operations with the alias. The same computation
        therefore has the same nodes in each segment. Constants and objects other than Expr are returned unchanged.
        """
        if type(x) is not Expr or self.kind[x.node] == CONST:
            return x
        return Expr(self, self._append(OPAQUE, x.id, -1, x.value), False, x.value)

    def _random_field(self) -> int:
        return int(self._random.integers(1, _P - 1)) if self._algebraic else 0

    def _append(self, kind: int, a: int, b: int, value: int) -> int:
        """Append a node and return its number."""
        self.kind.append(kind)
        self.lhs.append(a)
        self.rhs.append(b)
        if self._algebraic:
            self._field.append(value)
        return len(self.kind) - 1

    def _new(self, kind: int, a: int, b: int, value: int) -> Expr:
        x = Expr(self, self._append(kind, a, b, value), False, value)
        if self._algebraic:
            self._by_field[value] = x
        return x

    # ---- operations --------------------------------------------------------------------------------------------
    #
    # Operands of sums, products and quotients are unsigned nodes. Sums and products have the lower node number first.

    def _sum(self, x: Expr, y: Expr, minus: bool = False):
        """x + y, or x − y."""
        value = 0
        if self._algebraic:
            value = (x.value - y.value if minus else x.value + y.value) % _P
            shared = self._by_field.get(value)
            if shared is not None and type(shared) is Expr and y.graph is self:
                return shared
        a, b, first, second = x.node, y.node, x.negative, y.negative is not minus
        if a > b:
            a, b, first, second = b, a, second, first
        if first is second:
            return self._node(ADD, a, b, first, value, y)
        if a == b and y.graph is self:
            return 0.0
        return self._node(SUB, a, b, first, value, y)

    def _product(self, x: Expr, y: Expr):
        value = 0
        if self._algebraic:
            value = x.value * y.value % _P
            shared = self._by_field.get(value)
            if shared is not None and type(shared) is Expr and y.graph is self:
                return shared
        a, b, negative = x.node, y.node, x.negative is not y.negative
        return self._node(MUL, a, b, negative, value, y) if a < b else self._node(MUL, b, a, negative, value, y)

    def _scale(self, x: Expr, c: float):
        if c == 0.0:
            return 0.0
        if c == 1.0 or c == -1.0:
            return x if c > 0.0 else -x
        return self._product(x, self._number(c))

    def _quotient(self, x: Expr, y: Expr):
        negative = x.negative is not y.negative
        if x.node == y.node and y.graph is self:
            return -1.0 if negative else 1.0
        value = x.value * pow(y.value, -1, _P) % _P if self._algebraic and y.graph is self else 0
        return self._node(DIV, x.node, y.node, negative, value, y)

    def _divide(self, x: Expr, c: float):
        if c == 0.0:
            raise ZeroDivisionError("division of an expression by the constant 0")
        if c == 1.0 or c == -1.0:
            return x if c > 0.0 else -x
        return self._quotient(x, self._number(c))

    def _node(self, kind: int, a: int, b: int, negative: bool, value: int, other: Expr):
        """The node a ∘ b, or a shared equal result, negated if `negative`. Raises InvalidInput if graphs differ."""
        if other.graph is not self:
            raise InvalidInput("the operands belong to two different graphs")
        if self._algebraic:
            kinds, by_field = self.kind, self._by_field
            if kinds[a] == CONST and kinds[b] == CONST:
                folded = OPERATIONS[kind].number(self.constants[a], self.constants[b])
                return self._fold(-folded if negative else folded, value)
            # `_find_shared` and `_append` are inlined: the offline phase spends most of its time here
            shared = by_field.get(value)
            if shared is None:
                shared = by_field.get(_P - value)
                if shared is None:
                    shared = Expr(self, len(kinds), negative, value)
                    kinds.append(kind)
                    self.lhs.append(a)
                    self.rhs.append(b)
                    self._field.append(_P - value if negative else value)
                else:
                    shared = -shared
                by_field[value] = shared
            return shared
        if self.sharing == "none":
            return Expr(self, self._append(kind, a, b, 0), negative, 0)
        key = (kind, a, b)
        node = self._table.get(key)
        if node is None:
            node = self._table[key] = Expr(self, self._append(kind, a, b, 0), False, 0)
        return -node if negative else node

    def _find_shared(self, value: int):
        """The existing expression or float with field value `value`; None if there is none."""
        shared = self._by_field.get(value)
        if shared is None:
            shared = self._by_field.get(_P - value)
            if shared is not None:
                shared = self._by_field[value] = -shared
        return shared

    def negation(self, x: Expr) -> int:
        """Number of the NEG node of a negative expression; created on first use."""
        node = self._negations.get(x.node)
        if node is None:
            node = self._negations[x.node] = self._append(NEG, x.node, -1, x.value)
        return node

    def at(self, i: int) -> Expr:
        """The expression of node i."""
        value = self._field[i] if self._algebraic else 0
        return Expr(self, self.lhs[i], True, value) if self.kind[i] == NEG else Expr(self, i, False, value)

    def apply(self, kind: int, *operands):
        """Apply the operation `kind` of `OPERATIONS` to floats and expressions of this graph."""
        operation = OPERATIONS[kind]
        if operation.symbol or all(type(x) is not Expr for x in operands):
            return operation.number(*operands)
        *others, last = operands
        if operation.parity and type(last) is Expr and last.negative:
            mirrored = self.apply(kind, *others, -last)
            return mirrored if operation.parity > 0 else -mirrored
        first, second = (*(self._operand(x) for x in operands), -1)[:2]
        key = kind, first, second
        node = None if kind not in ANGULAR and self.sharing == "none" else self._table.get(key)
        if node is None:
            value = self._circle_point(first)[kind == COS] if kind in ANGULAR else self._random_field()
            node = self._table[key] = self._new(*key, value)
        return node

    def _operand(self, x) -> int:
        if type(x) is not Expr:
            return self.constant(x).node
        if x.graph is not self:
            raise InvalidInput("the operands belong to two different graphs")
        return x.id

    def _circle_point(self, angle: int) -> tuple[int, int]:
        """Field values (s, c) = (2t, 1−t²)/(1+t²) of the sine and cosine of an angle, with a random t; s² + c² = 1."""
        if not self._algebraic:
            return 0, 0
        point = self._circle.get(angle)
        if point is None:
            t = self._random_field()
            scale = pow(1 + t * t, -1, _P)
            point = self._circle[angle] = (2 * t * scale % _P, (1 - t * t) * scale % _P)
        return point

    # ---- queries -----------------------------------------------------------------------------------------------

    def live(self, outputs: Iterable) -> np.ndarray:
        """Sorted numbers of the nodes on which `outputs` depend, leaves included."""
        roots = [self._operand(x) for x in outputs if type(x) is Expr]
        kind, lhs, rhs = self.kind, self.lhs, self.rhs
        needed = bytearray(len(kind))
        for i in roots:
            needed[i] = 1
        for i in range(max(roots, default=-1), -1, -1):  # operands have lower node numbers than results
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
        """Exact operation counts of `outputs`."""
        live = self.live(outputs)
        return Flops.of(*(np.asarray(x, dtype=np.int64)[live] for x in (self.kind, self.lhs)))

    def describe(self, x, depth: int = 3) -> str:
        """Format x as a formula with up to `depth` levels of operations."""
        if type(x) is not Expr:
            return f"{x:.6g}"
        if x.negative:
            return f"-{self.describe(-x, depth)}"
        kind = self.kind[x.node]
        if kind == INPUT:
            return self.input_names[x.node]
        if kind == CONST:
            return f"{self.constants[x.node]:.6g}"
        if depth == 0:
            return "…"
        operation = OPERATIONS[kind]
        shown = [self.describe(self.at(k), depth - 1) for k in self.operands(x.node)]
        if not operation.symbol:
            return f"{operation.name}({', '.join(shown)})"
        return f"({f' {operation.symbol} '.join(shown)})" if operation.arity == 2 else f"{operation.symbol}{shown[0]}"


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Context that pauses cyclic garbage collection, which would scan millions of nodes; graphs have few cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _field_of(x: float) -> int:
    """Field element of the float x, a dyadic fraction."""
    numerator, denominator = x.as_integer_ratio()
    return numerator * pow(denominator, -1, _P) % _P


def is_zero(x) -> bool:
    """True for the float 0. The graph folds results that are 0 for all inputs to the float 0."""
    return type(x) is not Expr and x == 0.0


def is_constant(x) -> bool:
    """True for floats and constant nodes with either sign."""
    if type(x) is not Expr:
        return isinstance(x, (int, float, np.number))
    return x.graph.kind[x.node] == CONST


def constant_value(x) -> float:
    """Float value of a constant, see `is_constant`."""
    if type(x) is not Expr:
        return float(x)
    value = x.graph.constants[x.node]
    return -value if x.negative else value


def strip_sign(x):
    """x without sign changes (negation, NEG, COPYSIGN): a node with the absolute value of x."""
    if type(x) is Expr:
        x = -x if x.negative else x
        while x.graph.kind[x.node] in (NEG, COPYSIGN):
            x = strip_sign(x.graph.at(x.graph.lhs[x.node]))
    return x


# Elementary functions of floats, Expr and NumPy arrays (a batch).
sin, cos, sqrt, copysign = (OPERATIONS[kind].number for kind in (SIN, COS, SQRT, COPYSIGN))
