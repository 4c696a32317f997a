"""Covariances, residuals and likelihood of a solved problem with noise, on request.

All of it is in the inverse K⁻¹ of the augmented matrix (see `sysdyn.equations.augmented`), of which only the
requested entries are computed. With C = Cov(d) and μ = Σ⁻¹ (Y d + y₀ − y):

    K⁻¹ = [C …; … −M],   M = Cov(μ) = Σ⁻¹ − Σ⁻¹ Y C Y^T Σ⁻¹,   residuals y − Y d − y₀ = −Σ μ

`sysdyn.online.inverse_programs` computes them to full accuracy whatever the variances.
Teunissen (2000) for the tests, Dempster, Laird and Rubin (1977) for the learning of covariances.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.errors import UnknownName
from sysdyn.measurements.groups import switch_group
from sysdyn.measurements.noise import Noise
from sysdyn.offline.choice import Choice
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.options import Options
from sysdyn.online.inverse_programs import DIFFERENCE, Groups, InversePrograms, Outputs, Solved, same_covariances
from sysdyn.problem import Problem
from sysdyn.sparse.selected_inverse import Inverse

# Entries of Cov(μ) below this share of Σ⁻¹ are compared on the scale of this share of Σ⁻¹.
UNCHECKED = 1e-3
# A part of the results is an output, or (quantity, joint, body or constraint), or (measured output, component).
Part = str | tuple[str, str]
# A scalar is a sum of unknowns, {number of an unknown: coefficient}; that of a measured output depends on the state.
Terms = Mapping[int, Any]
# An elimination is of expressions or of numbers.
Either = Elimination | Solved


class Checked(NamedTuple):
    """Multipliers of the noisy equations at N states.

    multipliers    {name: μ (N, m)}
    covariances    {name: Cov(μ) (N, m, m)} of each measurement by itself
    log_determinant (N,) of |K|
    """

    multipliers: dict[str, np.ndarray]
    covariances: dict[str, np.ndarray]
    log_determinant: np.ndarray


class Posterior:
    """Entries of the posterior covariance and tests of the measurements. See `InversePrograms` for the arguments."""

    def __init__(self, problem: Problem, choice: Choice, options: Options, key: str | None = None):
        self.problem = problem
        self._programs = InversePrograms(problem, choice, options, key)
        self._components = {m.name: tuple(m.components(problem.model)) for m in options.measured}

    # ---- covariances --------------------------------------------------------------------------------------------

    def variances(self, quantity: str, inputs: dict[str, np.ndarray], n: int) -> np.ndarray:
        """(n, size) of every scalar of a quantity or measured output."""
        scalars = self._scalars(quantity)

        def groups(elimination: Either) -> Groups:
            return _covariances(elimination, {"variance": [(x, x) for x in scalars(elimination)]})

        return self._programs.run(f"variance {quantity}", groups, inputs, n, same_covariances)["variance"]

    def covariance(self, first: Part, second: Part, inputs: dict[str, np.ndarray], n: int) -> np.ndarray:
        """(n, size of first, size of second)."""
        rows_of, columns_of = self._scalars(first), self._scalars(second)

        def groups(elimination: Either) -> Groups:
            rows, columns = rows_of(elimination), columns_of(elimination)
            return _covariances(elimination, {
                "variance": [(x, x) for x in rows],
                "variance of second": [(x, x) for x in columns],
                "z": [(x, y) for x in rows for y in columns],
            })  # fmt: skip

        found = self._programs.run(f"covariance {first} {second}", groups, inputs, n, same_covariances)
        return found["z"].reshape(n, found["variance"].shape[1], found["variance of second"].shape[1])

    def _scalars(self, part: Part) -> Callable[[Either], Sequence[Terms]]:
        """Each scalar in terms of unknowns of the system; of none where it is an exactly known input."""
        quantity, name = part if isinstance(part, tuple) else (part, None)
        if quantity in self._components:
            components = self._components[quantity]
            if name is None:
                return lambda elimination: elimination.shown[quantity].rows
            if name not in components:
                raise UnknownName(f"component of {quantity!r}:", name, components)
            place = components.index(name)
            return lambda elimination: [elimination.shown[quantity].rows[place]]
        if quantity not in self.problem.quantities:
            raise UnknownName("quantity", quantity, (*self.problem.quantities, *self._components))
        system = self._programs.system
        scalars = system.reported(quantity)
        if name is not None:
            chosen = system.layout.columns(*system.layout.block(quantity, name))
            columns = system.layout.quantity_columns(quantity)
            scalars = [x for c, x in zip(columns, scalars, strict=True) if c in chosen]
        return lambda _: scalars

    # ---- tests --------------------------------------------------------------------------------------------------

    @property
    def noises(self) -> list[Noise]:
        return self._programs.system.noises

    def check(self, inputs: dict[str, np.ndarray], n: int) -> Checked:
        """Multipliers with their covariances, and the determinant."""

        def groups(elimination: Elimination | Solved) -> list:
            inverse = Inverse(elimination.factors)
            found = [("pivots", list(elimination.factors.pivots))]
            for noise, places in _places(self._programs.system):
                pairs = [(i, j) for a, i in enumerate(places) for j in (places[: a + 1] if noise.full else [i])]
                found.append((f"mu {noise.name}", [elimination.solution[i] for i in places]))
                found.append((f"M {noise.name}", [-inverse.entry(*pair) for pair in pairs]))
            return found

        out = self._programs.run("check", groups, inputs, n, functools.partial(self._same_checks, inputs))
        multipliers, covariances = {}, {}
        for noise in self.noises:
            multipliers[noise.name] = out[f"mu {noise.name}"]
            covariances[noise.name] = noise.matrix(out[f"M {noise.name}"])
        with np.errstate(divide="ignore"):
            return Checked(multipliers, covariances, np.log(np.abs(out["pivots"])).sum(axis=1))

    def _same_checks(self, inputs: dict[str, np.ndarray], found: Outputs, scaled: Outputs, c: float) -> np.ndarray:
        """(n,) whether the outputs of `check` for Σ and for c Σ agree, on the scale of Σ."""
        system = self._programs.system
        n = len(found["pivots"])
        same, rows = np.ones(n, dtype=bool), np.full(n, system.shape[0] - 2 * system.n_unknowns)
        for noise in self.noises:
            on = np.broadcast_to(inputs.get(switch_group(noise.name), 1.0), (n, noise.size)) != 0.0
            rows -= (~on).sum(axis=1)
            sigma = np.sqrt(np.einsum("...ii->...i", noise.matrix(inputs[noise.group])))
            mu, scaled_mu = (x[f"mu {noise.name}"] * sigma for x in (found, scaled))
            apart = np.abs(c * scaled_mu - mu) <= DIFFERENCE * np.maximum(np.abs(mu), 1.0)
            same &= (apart | ~on).all(axis=1)
            both = sigma[..., :, None] * sigma[..., None, :]
            M, scaled_M = (noise.matrix(x[f"M {noise.name}"]) * both for x in (found, scaled))
            share = np.sqrt(np.maximum(np.einsum("nii->ni", M), 0.0))
            size = np.maximum(share[:, :, None] * share[:, None, :], UNCHECKED)
            apart = np.abs(c * scaled_M - M) <= DIFFERENCE * size
            same &= (apart | ~(on[:, :, None] & on[:, None, :])).all(axis=(1, 2))
        log, scaled_log = (np.log(np.abs(x["pivots"])).sum(axis=1) for x in (found, scaled))
        return same & (np.abs(scaled_log - log - rows * np.log(c)) <= DIFFERENCE * np.maximum(np.abs(log), 1.0))


def _covariances(elimination: Either, chosen: Mapping[str, Sequence[tuple[Terms, Terms]]]) -> Groups:
    """Covariances Σ_ij x_i C_ij y_j of pairs of scalars x, y."""
    inverse = Inverse(elimination.factors)

    def covariance(x: Terms, y: Terms) -> Any:
        return _combined(y, lambda j: _combined(x, lambda i: inverse.entry(i, j)))

    return [(name, [covariance(*pair) for pair in pairs]) for name, pairs in chosen.items()]


def _combined(terms: Terms, value: Callable[[int], Any]) -> Any:
    """Σ x_i value(i) of scalars of any type."""
    total: Any = 0.0
    for i, x in terms.items():
        part = value(i)
        total = total + (part if x == 1.0 else x * part)
    return total


def _places(system: AugmentedSystem) -> Iterable[tuple[Noise, list[int]]]:
    """(covariance, numbers of its multipliers in the order of its components)."""
    members: dict[str, dict[int, int]] = {}
    for r, (noise, k) in system.plain.noise_by_row.items():
        members.setdefault(noise.name, {})[k] = system.n_unknowns + r
    for noise in system.noises:
        yield noise, [members[noise.name][k] for k in range(noise.size)]
