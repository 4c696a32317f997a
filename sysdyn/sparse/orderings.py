"""Named elimination orders of sampled matrices. Each has several variants (starts).

A `SampledMatrix` is the worst-case pattern with the values of its entries at several states. An entry can be a
static pivot only if it is far from zero at all of these states; every order chooses its rows accordingly.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from sysdyn.errors import NoSafeOrdering
from sysdyn.sparse import umfpack
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.markowitz import choose_rows, markowitz
from sysdyn.sparse.quasidefinite import SYMMETRIC
from sysdyn.sparse.sampled import PivotSearch, SampledMatrix
from sysdyn.sparse.superlu import factors
from sysdyn.sparse.tearing import tearing_order

# Factor of state-dependent entries in the matrix that UMFPACK orders, so that it prefers constant pivots (by trial:
# with 1e-3 a cosine becomes a pivot on a humanoid).
STEER = 1e-6
# Number of pivots that look-ahead compares (by trial on robots).
WIDTH = 6


def umfpack_pivots(a: SampledMatrix) -> Pivots:
    """UMFPACK's permutations (Nori, Remark 4) of the matrix at one state, weighted to prefer constant pivots."""
    return Pivots(*umfpack.permutations(a.weighted(STEER)))


def umfpack_columns(a: SampledMatrix) -> Pivots:
    """UMFPACK's column order; rows are safe pivots."""
    return choose_rows(a, umfpack_pivots(a).columns)


def colamd(a: SampledMatrix) -> Pivots:
    """COLAMD's column order (Davis et al. 2004) from SuperLU; rows are safe pivots. Good for long chains."""
    lu = factors(a.weighted(STEER), permc_spec="COLAMD", diag_pivot_thresh=0.0)
    if lu is None:
        raise NoSafeOrdering("SuperLU: the matrix is exactly singular, whatever the state")
    return choose_rows(a, np.argsort(lu.perm_c).tolist())


def unscaled(order: PivotSearch) -> PivotSearch:
    """The same order of the matrix without equilibration, a second start of a greedy search."""
    return lambda a: order(replace(a, units=(np.ones(len(a.rhs)), np.ones(a.n))))


look_ahead: PivotSearch = partial(markowitz, width=WIDTH)
# {name: starts}. The last start of "tearing" is safe at every regular state by its structure.
ORDERINGS: dict[str, tuple[PivotSearch, ...]] = {
    "tearing": (tearing_order, partial(tearing_order, tried=8), partial(tearing_order, certified=True)),
    "umfpack": (umfpack_pivots, umfpack_columns),
    "colamd": (colamd,),
    "markowitz": (unscaled(markowitz), markowitz, unscaled(look_ahead), look_ahead),
    "symmetric": SYMMETRIC,
}
