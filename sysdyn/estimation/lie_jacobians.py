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
    """f(ad x) (3, 3) for a twist x = (v_x, v_y, ω) of a planar joint, with f(ω×) = even + odd ω×.

    The translation column is (f(ω×) − 1)/ω× = even_of_shift + odd_of_shift ω×, applied to (v_y, −v_x).
    """
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
