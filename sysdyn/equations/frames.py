"""Constant changes of frames between a, f and fx of bodies and the unknowns of the equations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.measurements.variables import Layout
from sysdyn.model.quantities import QUANTITY, is_spatial
from sysdyn.model.se3 import X_inverse


@dataclass(frozen=True, eq=False)
class Frames:
    """The frames in which a, f and fx are unknowns.

    X (nb, 6, 6): motion transforms from the frames of bodies to frames of their equations; None if these are the same.
    own_fx: bodies whose fx is in their own frame nevertheless.
    """

    X: np.ndarray | None = None
    own_fx: frozenset[int] = frozenset()

    def back(self, quantity: str, body: int) -> np.ndarray | None:
        """(6, 6) from the unknown of a body to the same quantity in the body's frame; None if these are the same."""
        if self.X is None or not is_spatial(quantity) or (quantity == "fx" and body in self.own_fx):
            return None
        X = self.X[body]
        return (X.T if QUANTITY[quantity].is_force else X_inverse(X)).astype(object)

    def forth(self, quantity: str, body: int) -> np.ndarray:
        """(6, 6) from a quantity in the frame of the body to the same quantity in another, that of its equations."""
        assert self.X is not None
        X = self.X[body]
        return (X_inverse(X).T if QUANTITY[quantity].is_force else X).astype(object)

    def stated(self, quantity: str, body: int, size: int, chosen: list[int], x: list) -> tuple[np.ndarray, list]:
        """(rows (m, size), values (m)) that state `chosen` components of a block of this size to be x."""
        back = self.back(quantity, body)
        unit = np.array([[1.0 if i == k else 0.0 for i in range(size)] for k in chosen], dtype=object)
        if back is None:
            return unit, x
        if chosen == list(range(6)):
            return unit, list(self.forth(quantity, body) @ np.array(x, dtype=object))
        return back[chosen], x

    def reported(
        self, quantity: str, layout: Layout, columns: Sequence[int], known: frozenset[tuple[int, int]]
    ) -> list[dict[int, float]]:
        """Each scalar of a quantity, in the frame of its body, as {number of an unknown: coefficient}.

        columns: of each unknown, its number in the layout. Empty for scalars without one, and for `known` ones that
        would have to be turned back.
        """
        known = known if self.X is not None else frozenset()
        number = {c: k for k, c in enumerate(columns)}
        found: list[dict[int, float]] = []
        for body in (i for x, i in layout.blocks if x == quantity):
            places, back = [number.get(c) for c in layout.columns(quantity, body)], self.back(quantity, body)
            for k, place in enumerate(places):
                if (body, k) in known:
                    terms = []
                elif back is None:
                    terms = [(place, 1.0)]
                else:
                    terms = list(zip(places, back[k], strict=True))
                found.append({c: x for c, x in terms if c is not None and x != 0.0})
        return found
