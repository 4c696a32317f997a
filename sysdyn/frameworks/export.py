"""Programs in other languages: the contract of translators, and the methods of everything that they take.

A translator is a function of a `Source`, in a module of its own, and a method of `Translated`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sysdyn.codegen import c_project
from sysdyn.codegen.c99 import Description
from sysdyn.errors import ProblemError, check_among
from sysdyn.frameworks import casadi, jax, torch
from sysdyn.frameworks.traced import Traced
from sysdyn.runtime.real import DOUBLE
from sysdyn.runtime.runner import Runner


class Source(NamedTuple):
    """A program as translators take it.

    name: of what is written. description: texts for comments. states: {group: (N, size)}, made if they are asked for,
    at some of which the program has results, for tests of what is written.
    """

    name: str
    executable: Runner
    description: Description
    states: Callable[[], Mapping[str, np.ndarray]]


class Translated(ABC):
    """An object with a program that can be written in other languages."""

    @abstractmethod
    def source(self, name: str | None = None) -> Source:
        """The program under this name, or under one of its own."""

    def export_c(self, folder: str | os.PathLike, name: str | None = None, real: str = "float64") -> Path:
        """Write a C99 project that needs nothing but math.h: NAME.h, NAME.c, main.c, test vectors and CMakeLists.txt.

        NAME_run(in, out, work) computes the same program on one state, with structs for inputs and outputs (their
        entries are named in the header; blocks of derivatives are members such as dqdd_dq, row by row) and a workspace
        of the caller, and returns the status bits of the kernel. main checks it against results computed here, to a
        tolerance of at most 1e-6 ("float64") or 0.1 ("float32") of the greatest entry of each. name: a C identifier,
        but no keyword, header of C or POSIX, or target of CMake; by default made from the robot and the problem, or
        the name of the function. real: number type, "float64" or "float32"; the header of a "float32" export reports
        the greatest difference to double. Files of an earlier export are replaced.

        Raises InvalidInput for the name, UnknownName for the type, FileError if the folder cannot be written,
        SingularState if no test vector has a finite result, or rounding errors exceed a tenth of that tolerance.
        """
        source = self.source(name)
        return c_project.export(folder, source.name, source.executable, source.description, source.states(), real)

    def to_casadi(self, name: str | None = None) -> Any:
        """The program as a casadi.Function: inputs and results by name, each a column of its entries, row by row.

        name: as for `export_c`. Raises BackendUnavailable if CasADi is not installed.
        """
        source = self.source(name)
        return casadi.function(source.executable.program, source.name)

    @abstractmethod
    def traced(self, on_singular: str) -> Traced:
        """The program for frameworks that trace functions. on_singular: "nan" or "raise"."""

    def to_jax(self, on_singular: str = "nan") -> Callable:
        """The program as a function of JAX, for jit, vmap, grad, jacfwd, scan and so on, of any order, on CPUs.

        It takes the arguments of a call, arrays of JAX with numbers or without, and gives the results by name, as a
        call does; leading axes are batch axes. Derivatives are programs of their own, compiled when they are first
        traced; by q they are those of its entries, with quaternions divided by their norms. States whose pivots fail
        are solved again as in calls. on_singular: what cannot be solved is "nan", or the call raises with "raise".

        Of a solver with real="float32" it computes in that, derivatives too, and JAX needs no float64.

        Raises BackendUnavailable if JAX is not installed; while it is traced InvalidInput for arrays of other shapes,
        and for float32 if JAX was not told to compute in float64, unless the solver is of float32.
        """
        return jax.function(self.traced(_checked(on_singular)))

    def to_torch(self, on_singular: str = "nan") -> Callable:
        """The program as a function of PyTorch, for autograd, torch.func and torch.compile, of any order, on CPUs.

        It takes the arguments of a call as tensors and gives the results by name, as a call does; leading axes are
        batch axes. Tensors of float64 are read where they are, others are converted. Derivatives and on_singular: as
        for `to_jax`.

        Raises BackendUnavailable if PyTorch is not installed, ProblemError for solvers of float32; in calls it raises
        InvalidInput for tensors of other shapes or types.
        """
        traced = self.traced(_checked(on_singular))
        if traced.real is not DOUBLE:
            raise ProblemError("functions of PyTorch compute in float64: compile without real='float32'")
        return torch.function(traced)


def _checked(on_singular: str) -> str:
    check_among("on_singular", on_singular, ("nan", "raise"))
    return on_singular
