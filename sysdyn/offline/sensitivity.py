"""Derivatives of solved quantities as expressions.

{(quantity, input): entries}, a row for each scalar of the quantity and a column for each scalar of the input; positions
are differentiated in the tangent space.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.program.graph import Graph

# {(quantity, input): derivative (scalars of the quantity, directions of the input)}.
Blocks = dict[tuple[str, str], np.ndarray]


@dataclass(frozen=True)
class Expressions:
    """Derivatives in a graph: their method, the input groups, the blocks, and guards as of a Program.

    pivots: (value, number as of `recursion.pivot_labels`) of pivots still to be judged; qdd, w: the accelerations and
    forces of constraints that they are judged by.
    """

    method: str
    graph: Graph
    inputs: tuple[tuple[str, np.ndarray], ...]
    blocks: Blocks
    guards: tuple = ()
    pivots: tuple = ()
    qdd: tuple = ()
    w: tuple = ()

    @property
    def operations(self) -> int:
        """Exact count of a program that computes all blocks."""
        return self.graph.count(x for block in self.blocks.values() for x in block.flat).total
