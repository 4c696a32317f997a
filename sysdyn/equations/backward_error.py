"""Residuals D d + b and backward errors: the least relative change of D and b that makes d exact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sysdyn.equations.system import System

# Residuals are computed in chunks of states with at most this many entries of D in total (40 MB an array).
RESIDUAL_ENTRIES = 5_000_000
# Terms of a row below this share of its natural terms are rounding errors (45,000 rounding units).
ROUNDING_SHARE = 1e-11


class Residual(NamedTuple):
    """Residual D d + b at N states, and its backward errors.

    rows (N, equations): D d + b
    backward_error (N,): componentwise backward error: the least relative change of each entry of D and b that makes d
        exact, max_i |D d + b|_i / (|D| s + |b|)_i (Oettli and Prager 1964). s_j is the greatest component of the
        3-vector that contains d_j, because rotated frames mix its components. If the terms of a row are below 1e-11 of
        its natural terms, they are rounding errors and the natural terms are the denominator: there s_j is the greatest
        unknown of the same kind (acceleration, force) at the same body, in the units that equilibrate D (Arioli, Demmel
        and Duff 1989 take the greatest of all unknowns)
    normwise (N,): |D d + b|∞ / (|D|∞ |d|∞ + |b|∞), which hides errors in small quantities (Rigal and Gaches 1967)
    """

    rows: np.ndarray
    backward_error: np.ndarray
    normwise: np.ndarray


def residual_at(system: System, inputs: Mapping[str, np.ndarray], d: np.ndarray) -> Residual:
    """Residual D d + b and backward errors of unknowns d (N, full layout); inputs as for `System.values`."""
    size = math.ceil(RESIDUAL_ENTRIES / system.nnz)
    if len(d) <= size:
        return residual_of(system, *system.values(inputs), d)
    chunks = []
    for chunk in (slice(k, k + size) for k in range(0, len(d), size)):
        some = {name: x[chunk] if np.shape(x)[:-1] == (len(d),) else x for name, x in inputs.items()}
        chunks.append(residual_of(system, *system.values(some), d[chunk]))
    return Residual(*(np.concatenate(x) for x in zip(*chunks, strict=True)))


def residual_of(system: System, entries: np.ndarray, b: np.ndarray, d: np.ndarray) -> Residual:
    """Residual D d + b and backward errors of unknowns d (N, full layout), for given D and b.

    entries (N or 1, nnz) of D and b (N or 1, equations): results of `System.values`.
    """
    entries, b = np.broadcast_to(entries, (len(d), entries.shape[1])), np.broadcast_to(b, (len(d), b.shape[1]))
    column, x = system.coordinates[1], d[:, system.columns]
    rows, size = system.row_sums(entries * x[:, column]) + b, np.abs(entries)
    normwise = system.row_sums(size).max(axis=1) * np.abs(x).max(axis=1) + np.abs(b).max(axis=1)
    vectors, kinds, units = *system.unknown_groups, system.scaling[1]
    terms = system.row_sums(size * _greatest(np.abs(x), vectors)[:, column]) + np.abs(b)
    natural = system.row_sums(size * (units * _greatest(np.abs(x) / units, kinds))[:, column]) + np.abs(b)
    scale = np.where(terms < ROUNDING_SHARE * natural, natural, terms)
    scale = system.residual_scale(scale, size)
    error = np.abs(rows) / np.where(scale > 0.0, scale, 1.0)
    return Residual(rows, error.max(axis=1), np.abs(rows).max(axis=1) / np.where(normwise > 0.0, normwise, 1.0))


def _greatest(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Replace each entry of x (N, n) by the greatest in its row of the same group; group (n,): numbers from 0."""
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(group.max() + 1))
    return np.maximum.reduceat(x[:, order], starts, axis=1)[:, group]
