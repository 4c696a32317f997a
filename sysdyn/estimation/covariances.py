"""Covariances of the instants of a chain, in blocks of unknowns that are not coupled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class CovarianceBlock(NamedTuple):
    """Covariances P (N, chains, k, k) of uncoupled chains of k unknowns each, with indices columns (chains, k).

    adjoint (N − 1, chains, e): entries of the adjoint covariance Λ (see `kalman_smoother`) after each transition, at
    the places (e, 2), rows and columns.
    """

    columns: np.ndarray
    P: np.ndarray
    adjoint: np.ndarray
    places: np.ndarray


class Covariances:
    """Covariances of N instants with `size` unknowns, in blocks that are independent of each other."""

    def __init__(self, size: int, blocks: Sequence[CovarianceBlock]):
        self.size, self.blocks = size, tuple(blocks)

    @classmethod
    def of_one(cls, P: np.ndarray) -> Covariances:
        """Covariances of one instant, P (size, size)."""
        columns = np.arange(len(P))[None]
        return cls(len(P), [_block(columns, P[None, None])])

    def part(self, chosen: slice) -> Covariances:
        """The covariances of some of the instants."""
        return Covariances(self.size, [_block(x.columns, x.P[chosen]) for x in self.blocks])

    def dense(self) -> np.ndarray:
        """Dense covariances (N, size, size); the array of a block itself, not a copy, if it has all unknowns."""
        first, *others = self.blocks
        if not others and np.array_equal(first.columns, np.arange(self.size)[None]):
            return first.P[:, 0]
        found = np.zeros((len(first.P), self.size, self.size))
        for x in self.blocks:
            found[:, x.columns[:, :, None], x.columns[:, None, :]] = x.P
        return found

    def diagonal(self) -> np.ndarray:
        """Variances (N, size)."""
        found = np.zeros((len(self.blocks[0].P), self.size))
        for x in self.blocks:
            found[:, x.columns] = np.einsum("ncii->nci", x.P)
        return found

    def adjoint(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Entries (N − 1, …) of the adjoint covariance Λ after each step, for pairs of unknowns with joint noise."""
        wanted = (first * self.size + second).reshape(-1)
        found = np.zeros((len(self.blocks[0].adjoint), len(wanted)))
        for x in self.blocks:
            own = x.columns[:, x.places[:, 0]] * self.size + x.columns[:, x.places[:, 1]]
            _, here, place = np.intersect1d(wanted, own, return_indices=True)
            found[:, here] = x.adjoint.reshape(len(found), -1)[:, place]
        return found.reshape(len(found), *first.shape)

    def together(self, columns: np.ndarray) -> np.ndarray:
        """Sorted indices of all unknowns in the blocks that contain any of the unknowns `columns`."""
        found = [own for x in self.blocks for own in x.columns if np.isin(own, columns).any()]
        return np.sort(np.concatenate(found))

    def replaced(self, columns: np.ndarray, P: np.ndarray) -> Covariances:
        """The covariances with one block P (N, k, k) of these unknowns (k,) in place of the blocks that held them."""
        kept = []
        for x in self.blocks:
            own = ~np.isin(x.columns, columns).any(axis=1)
            kept.append(_block(x.columns[own], x.P[:, own]))
        return Covariances(self.size, [*kept, _block(columns[None], P[:, None])])


def _block(columns: np.ndarray, P: np.ndarray) -> CovarianceBlock:
    """A block without adjoint covariances."""
    return CovarianceBlock(columns, P, np.zeros((0, len(columns), 0)), np.zeros((0, 2), dtype=np.int64))
