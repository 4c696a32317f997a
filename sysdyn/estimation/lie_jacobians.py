"""Steps of joints that move in a group, and turns of their errors: exponentials of ad x, and their means along x."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sysdyn.codegen.registry import backend_named
from sysdyn.model.joints import Joint
from sysdyn.model.se3 import smooth_trig
from sysdyn.online.posterior import CODE_LEVEL
from sysdyn.program.autodiff import derivative, to_graph
from sysdyn.program.graph import SHARING, Graph
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner


def machine_code(program: Program) -> Runner:
    return Runner(backend_named("llvm")(program, CODE_LEVEL))


def evaluated(executable: Runner, n: int, **given: np.ndarray) -> dict[str, np.ndarray]:
    """Outputs (n, size) of a program that has a result at every state."""
    return executable.results({name: np.ascontiguousarray(x, dtype=float) for name, x in given.items()}, n)[0]


def turned(joint: Joint, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two matrices (N, nv, nv) of `turns` of twists x (N, nv)."""
    outputs = evaluated(_executable(joint.kind, joint.nv), len(x), x=x)
    return tuple(outputs[name].reshape(len(x), joint.nv, joint.nv) for name in ("adjoint", "along"))  # type: ignore[return-value]


@functools.cache
def _executable(kind: str, nv: int) -> Runner:
    return machine_code(turns(kind, nv))


def stepped(joint: Joint, q: np.ndarray, x: np.ndarray) -> np.ndarray:
    """q ⊕ x (N, nq)."""
    return evaluated(_stepped(joint), len(x), q=q, x=x)["q"]


def apart(joint: Joint, q: np.ndarray, x: np.ndarray, after: np.ndarray) -> np.ndarray:
    """after ⊖ (q ⊕ x) (N, nv)."""
    return evaluated(_apart(joint), len(x), q=q, x=x, after=after)["e"]


def carried(joint: Joint, e: np.ndarray, x: np.ndarray, squares: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of Φ and Q of a joint, for steps x (N, nv) with errors e (N, nv) behind them.

    "turn", "along" (N, nv nv) carry errors of the position and of the step ahead; "c" (N, nv) = −B e, "back" = B S and
    "spread" = B S B^T (N, nv nv) of variances S (nv,), where B carries errors behind the step.
    """
    return evaluated(_carried(joint), len(x), e=e, x=x, squares=squares)


@functools.cache
def _stepped(joint: Joint) -> Runner:
    graph = Graph(SHARING)
    x = {"q": graph.inputs("q", joint.nq), "x": graph.inputs("x", joint.nv)}
    return machine_code(Program.from_graph(graph, tuple(x.items()), [("q", list(joint.integrate(x["q"], x["x"])))]))


@functools.cache
def _apart(joint: Joint) -> Runner:
    graph = Graph(SHARING)
    x = {name: graph.inputs(name, size) for name, size in (("q", joint.nq), ("x", joint.nv), ("after", joint.nq))}
    e = joint.difference(joint.integrate(x["q"], x["x"]), x["after"])
    return machine_code(Program.from_graph(graph, tuple(x.items()), [("e", list(e))]))


@functools.cache
def _carried(joint: Joint) -> Runner:
    graph = Graph(SHARING)
    x = {name: graph.inputs(name, joint.nv) for name in ("e", "x", "squares")}
    turn, back = replayed_turns(graph, joint, list(-x["e"]))
    adjoint, along = replayed_turns(graph, joint, list(-x["x"]))
    spreads = back * x["squares"]
    found = {"turn": turn @ adjoint, "along": turn @ along, "c": -(back @ x["e"]), "back": spreads,
             "spread": spreads @ back.T}  # fmt: skip
    outputs = [(name, list(y.reshape(-1))) for name, y in found.items()]
    return machine_code(Program.from_graph(graph, tuple(x.items()), outputs))


def turns(kind: str, nv: int) -> Program:
    """The program of exp(ad x) and Σ ad(x)^n/(n + 1)! (nv, nv), of a twist x in the group of joints of a kind.

    By ω alone 1 + s ω× + b ω×² and 1 + b ω× + e ω×², with `smooth` of |ω|²; shifts come in as the derivative of these
    along v (free joints), or by one division less (planar ones).
    """
    graph = Graph(SHARING)
    x = graph.inputs("x", nv)
    if kind == "planar":
        w = x[2]
        s, c, e, b = smooth_trig(w * w)
        found = [_planar(x, *y) for y in ((c, s, s, b), (s, b, b, e))]
    else:
        w = x[:3]
        s, _, e, b = smooth_trig(w @ w)
        W = np.array([[0.0, -w[2], w[1]], [w[2], 0.0, -w[0]], [-w[1], w[0], 0.0]], dtype=object)
        square = np.array(
            [[w[i] * w[j] - (w @ w if i == j else 0.0) for j in range(3)] for i in range(3)], dtype=object
        )
        found = []
        for one, two in ((s, b), (b, e)):
            turn = np.eye(3) + one * W + two * square
            if nv == 6:
                along = derivative(list(turn.reshape(-1)), {f"x[{k}]": x[3 + k] for k in range(3)})
                below = np.array(along, dtype=object).reshape(3, 3)
                turn = np.block([[turn, np.zeros((3, 3), dtype=object)], [below, turn]])
            found.append(turn)
    outputs = [(name, list(np.asarray(y).reshape(-1))) for name, y in zip(("adjoint", "along"), found, strict=True)]
    return Program.from_graph(graph, (("x", x),), outputs)


def _planar(x: np.ndarray, even: Any, odd: Any, even_of_shift: Any, odd_of_shift: Any) -> np.ndarray:
    """f(ad x) of a planar joint with f(ω×) = even + odd ω×, and (f(ω×) − 1)/ω× the same of the shift."""
    w, u = x[2], (x[1], -x[0])
    a, b = even_of_shift, odd_of_shift * w
    return np.array([
        [even, -(odd * w), a * u[0] - b * u[1]], [odd * w, even, b * u[0] + a * u[1]], [0.0, 0.0, 1.0],
    ], dtype=object)  # fmt: skip


def replayed_turns(graph: Graph, joint: Joint, x: list) -> tuple[np.ndarray, np.ndarray]:
    """The two matrices of `turns` of expressions x (nv,)."""
    found = to_graph(turns(joint.kind, joint.nv), graph, {"x": x}).outputs
    adjoint, along = (np.array(found[name], dtype=object).reshape(joint.nv, -1) for name in ("adjoint", "along"))
    return adjoint, along
