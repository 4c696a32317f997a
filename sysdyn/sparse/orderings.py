"""Elimination orders: functions from a sampled matrix to row and column permutations.

A `Sampled` matrix is the worst-case pattern with the values of its entries at several states. An entry can be a
static pivot only if it stays away from zero at all of them, so every order here chooses its rows with that in view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse import umfpack
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.markowitz import choose_pivots, markowitz
from sysdyn.sparse.quasidefinite import SYMMETRIC
from sysdyn.sparse.sampled import LEAST_VARIATION, LOOK_AHEAD, STEER, Order, Sampled
from sysdyn.sparse.superlu import factors
from sysdyn.sparse.tearing import FRONTS, TORN


def natural(a: Sampled) -> Pivots:
    """Columns as they come, rows by safe pivoting: LU with row pivoting only."""
    return choose_pivots(a, range(a.n))


def colamd(a: Sampled) -> Pivots:
    """COLAMD column order (Davis et al. 2004, through SuperLU), rows by safe pivoting."""
    lu = factors(a.generic(STEER[0]), permc_spec="COLAMD", diag_pivot_thresh=0.0)
    if lu is None:
        raise NoSafeOrdering("SuperLU: the matrix is exactly singular, whatever the state")
    return choose_pivots(a, np.argsort(lu.perm_c).tolist())


def unscaled(order: Order) -> Order:
    """The order that judges pivots by the values as they are: sometimes the luckier start of a greedy search."""
    return lambda a: order(replace(a, equilibrate=False))


def renumbered(order: Order, number: Callable[[int], np.ndarray]) -> Order:
    """The order of the matrix with its rows and columns numbered by permutations number(n): ties fall otherwise."""

    def other(a: Sampled) -> Pivots:
        r = number(len(a.rhs))
        c = r if a.tree else number(a.n)
        return _originally(order(_numbered(a, r, c)), r, c)

    return other


def _originally(order: Pivots, r: np.ndarray, c: np.ndarray) -> Pivots:
    """The order of the matrix of which row i is number r[i] and column j number c[j] in `order`."""
    row, column = np.argsort(r), np.argsort(c)
    joined = {k: tuple(row[list(rows)].tolist()) for k, rows in order.joined.items()}
    return Pivots(row[list(order.rows)].tolist(), column[list(order.columns)].tolist(), joined)


def _numbered(a: Sampled, r: np.ndarray, c: np.ndarray) -> Sampled:
    """The matrix in which row i is number r[i] and column j number c[j]; c is r if it has a tree."""
    old, tree = np.argsort(r), a.tree
    if tree:
        group, positive = (tuple(np.array(x)[old].tolist()) for x in (tree.group, tree.positive))
        tree = replace(tree, group=group, positive=positive, pairs=tuple((int(r[i]), int(r[j])) for i, j in tree.pairs))
    nodes = a.nodes and a.nodes._replace(of=tuple(np.array(a.nodes.of)[np.argsort(c)].tolist()))
    return replace(a, row=r[a.row], col=c[a.col], rhs=a.rhs[old], tree=tree, nodes=nodes)


def backwards(order: Order) -> Order:
    """The order of the matrix with rows and columns counted from the end."""
    return renumbered(order, lambda n: np.arange(n)[::-1])


def _judged(order: Order) -> Iterator[Order]:
    """The order with each measure of a safe pivot."""
    for least in LEAST_VARIATION:
        varying = partial(_varying, order, least)
        yield from (unscaled(varying), varying)


def _varying(order: Order, least: float, a: Sampled) -> Pivots:
    return order(replace(a, least_variation=least))


# Look-ahead with the wider choice of pivots: the better one on nearly all robots that were measured.
_foresight = partial(_varying, partial(markowitz, width=LOOK_AHEAD[0], depth=LOOK_AHEAD[1]), LEAST_VARIATION[-1])
# Starts of "markowitz" with look-ahead.
FORESIGHT: tuple[Order, ...] = (unscaled(backwards(_foresight)), unscaled(_foresight), _foresight)


def _umfpack_generic(steer: float) -> Order:
    return lambda a: Pivots(*umfpack.permutations(a.generic(steer)))


def _umfpack_true(steer: float) -> Order:
    """UMFPACK on the values at a state, at which entries that cancel at every state are zero."""
    return lambda a: Pivots(*umfpack.permutations(a.at_sample(0, steer)))


def _umfpack_shuffled(seed: int) -> Order:
    """UMFPACK on rows and columns in random order: it breaks ties by number."""

    def order(a: Sampled) -> Pivots:
        rng = np.random.default_rng(seed)
        r, c = rng.permutation(a.n), rng.permutation(a.n)
        P, Q = umfpack.permutations(a.generic(STEER[1])[r][:, c])
        return Pivots([int(r[i]) for i in P], [int(c[j]) for j in Q])

    return order


def _umfpack_columns(order: Order) -> Order:
    """UMFPACK's column order with rows by safe pivoting."""
    return lambda a: choose_pivots(a, order(a).columns)


# UMFPACK with its own pivots, at several weights of the state-dependent entries.
_UMFPACK = (*(_umfpack_generic(steer) for steer in STEER), *(_umfpack_true(steer) for steer in (STEER[1], 1.0)))
_SHUFFLED = tuple(_umfpack_shuffled(seed) for seed in range(4))  # UMFPACK on rows and columns in random orders.
_COLUMNS = tuple(_umfpack_columns(order) for order in (*_UMFPACK, *_SHUFFLED))  # UMFPACK's columns with safe rows.

# The general orders: name → starts, the cheapest safe one of which is used. "symmetric" is for symmetric systems.
ORDERINGS: dict[str, tuple[Order, ...]] = {
    "natural": tuple(_judged(natural)),
    "colamd": tuple(_judged(colamd)),
    "markowitz": (*_judged(backwards(markowitz)), *_judged(markowitz), *FORESIGHT),
    "umfpack": (unscaled(_COLUMNS[0]), _COLUMNS[0], *(unscaled(order) for order in _COLUMNS[1:]), *_COLUMNS[1:6]),
    "torn": TORN,
    "fronts": FRONTS,
    "symmetric": SYMMETRIC,
}
# Starts that take UMFPACK's rows, too (Nori, Remark 4), with values that steer its pivots. They do not depend on the
# sampled states: more states change nothing.
PLAIN: dict[str, tuple[Order, ...]] = {
    "umfpack": (*_UMFPACK, unscaled(_UMFPACK[1]), *(unscaled(order) for order in _SHUFFLED[:2])),
}
