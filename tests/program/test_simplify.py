"""Simplification of expressions: operations and values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Graph
from sysdyn.program.simplify import simplify

# (case, expressions of inputs x[0], x[1], …; operations after simplification)
SIMPLIFIED = (
    ("a common factor", lambda a, b, c, d: [a * b + a * c - d * a], 3),
    ("common factors of what is left", lambda a, b, c, d: [a * b * c + a * b * d], 3),
    ("a pair of terms of two sums, up to its sign", lambda a, b, c, d: [(a + c) + b, (d - a) - b], 3),
    ("a factor of a shared pair", lambda a, b, c, *d: [(c * a + x) + c * b for x in d[:2]], 4),
    ("of equally common factors the first: 5 x + 2 y", lambda x, y: [y * 2.0 + x * 2.0 + x * 3.0], 3),
    ("constants are added up", lambda x, y: [y * 2.0 + y * x + y * 3.0], 2),
    ("constants are added up to 1", lambda x, y: [x * 3.0 - x * 2.0], 0),
    ("constants are added up to −1", lambda x, y: [x * 2.0 - x * 3.0], 0),
    ("constants are added up to 0", lambda x, y: [x * 3.0 - x * 2.5 - x * 0.5], 0),
    ("constants are added up to 0 beside another term", lambda x, y: [x * y + x * 3.0 - x * 2.5 - x * 0.5], 1),
    ("an added constant is a factor like others", lambda x, y: [x * 2.0 + x * 3.0 + y * 5.0], 2),
    ("an added constant is a term like others", lambda x, y, z: [y * x + (y * 2.0 + y * 3.0), (x + z) + 5.0], 3),
    ("its negative, too", lambda x, y, z: [y * x - (y * 2.0 + y * 3.0), (x + z) - 5.0], 3),
    ("a factor of an inner sum", lambda f, x, b, c, d, e, h: [f * (x * b + x * c + d) + f * x * e, b + c + e + h], 6),
    ("the pair of most sums first", lambda a, b, c, *d: [a + b + c + d[0], a + b + c + d[1], a + b + d[2]], 5),
    ("a shared sum stays whole", lambda d, a, b, c, x, y, z:
        [(c * (a + b) + y) + c * d, (c * (a + b) + z) + c * d, (a + x) + b], 6),
    ("a sum shared by a product stays whole", lambda d, a, b, c, x, y, z:
        [(c * (a + b) + y) + c * d, (c * (a + b) + z) + c * d, (a + x) + b, (a + b) * y], 7),
    ("sums that cancel", lambda x, y: [(x + y) - x - y, ((x - y) + y) * y], 3),
    ("signs inside operations stay", lambda x, y: [(x * x).sqrt(), (-(x * -y)).sqrt()], 4),
)  # fmt: skip


@pytest.mark.parametrize(("expressions", "operations"), [x[1:] for x in SIMPLIFIED], ids=[x[0] for x in SIMPLIFIED])
def test_simplification(expressions, operations):
    graph = Graph()
    names = expressions.__code__.co_varnames[: expressions.__code__.co_argcount]
    outputs = expressions(*graph.inputs("x", len(names) + 3 * bool(expressions.__code__.co_flags & 4)))
    new, simple = simplify(graph, outputs)
    values = {f"x[{k}]": float(p) for k, p in enumerate((2, 3, 5, 7, 11, 13, 17))}
    assert new.count(simple).total <= operations
    assert evaluate(np.array(simple, dtype=object), values) == pytest.approx(
        evaluate(np.array(outputs, dtype=object), values), abs=1e-12
    )


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(["structural", "algebraic"]))
def test_rewriting_keeps_the_values_of_random_graphs(seed, sharing):
    rng = np.random.default_rng(seed)
    graph = Graph(sharing)
    values = {f"x[{k}]": float(v) for k, v in enumerate(rng.uniform(0.5, 2.0, 5))}
    pool = [*graph.inputs("x", 5), 0.5, -3.0]
    for _ in range(40):
        a, b = (pool[int(k)] for k in rng.integers(0, len(pool), 2))
        pool.append([a + b, a - b, a * b, a * b, -a][int(rng.integers(5))])
    outputs = pool[-6:]
    new, out = simplify(graph, outputs)
    before, after = evaluate(outputs, values), evaluate(out, values)
    assert after == pytest.approx(before, rel=1e-9, abs=1e-9 * max(1.0, *np.abs(before)))
    assert set(new.input_names.values()) <= set(graph.input_names.values())
