"""Export of compiled objects: their programs as C, and as functions of CasADi, JAX and PyTorch.

A translator is a function of an `ExportedProgram`, or of a `FrameworkFunction`, and a method of `Exportable`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.codegen import c_project
from sysdyn.codegen.c99 import Description
from sysdyn.errors import InvalidInput, ProblemError, check_among
from sysdyn.frameworks import casadi, jax, torch
from sysdyn.frameworks.traced import FrameworkFunction
from sysdyn.runtime.real import DOUBLE
from sysdyn.runtime.runner import Runner

Product = TypeVar("Product")

# Candidates for test vectors, some of which may be singular: eight for each (chosen).
SAMPLED_STATES = 64


class ExportedProgram(NamedTuple):
    """A program as translators read it.

    description: comments of its groups. states: samples {group: (N, size)} for test vectors.
    """

    name: str
    executable: Runner
    description: Description
    states: Callable[[], Mapping[str, np.ndarray]]


class Exportable(ABC):
    """A compiled object whose program can be exported."""

    @abstractmethod
    def exported_program(self, name: str | None = None) -> ExportedProgram:
        """The program for translators, under this name or a default one."""

    @abstractmethod
    def framework_function(self, on_singular: str) -> FrameworkFunction:
        """The program for frameworks that trace functions. on_singular: "nan" or "raise"."""

    def export_c(
        self, folder: str | os.PathLike, name: str | None = None, real: str = "float64",
        states: Mapping[str, ArrayLike] | None = None,
    ) -> Path:  # fmt: skip
        """Write a C99 project without dependencies: NAME.h, NAME.c, main.c, test_vectors.h and CMakeLists.txt.

        `NAME_run(in, out, work)` computes one state and returns the status bits of the kernel. The header names the
        entries of the structs `in` and `out`; blocks of derivatives are members such as `dqdd_dq`, row by row.
        The caller provides the workspace. `main` checks test vectors computed here. Files of an earlier export are
        replaced.

        Parameters
        ----------
        folder
            Where to write; created if it does not exist.
        name
            A C identifier, but no keyword, header of C or POSIX, or CMake target. By default the name of the function,
            or one made from the robot and the problem.
        real
            Floating-point type, "float64" or "float32". The header of a "float32" export reports the greatest
            difference from float64.
        states : {input: (N, ...) array}, optional
            Candidates for the test vectors, by default random.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        InvalidInput
            For the name, or if `states` lacks an input.
        UnknownName
            For the type.
        FileError
            If the folder cannot be written.
        SingularState
            If no state has finite results, or rounding errors exceed 1e-7 ("float64") or 0.01 ("float32") of the
            greatest entry of a result. The tolerance of the exported test is ten times the rounding error.
        """
        exported = self.exported_program(name)
        if states is None:
            samples = exported.states()
        else:
            groups = exported.executable.program.inputs.sizes.items()
            missing = [group for group, _ in groups if group not in states]
            if missing:
                raise InvalidInput(f"states has no values of {', '.join(missing)}: give (N, …) arrays for all inputs")
            samples = {group: np.reshape(np.asarray(states[group], dtype=float), (-1, size)) for group, size in groups}
        return c_project.export(folder, exported.name, exported.executable, exported.description, samples, real)

    def to_casadi(self, name: str | None = None) -> Any:
        """The program as a CasADi function.

        Parameters
        ----------
        name
            As for `export_c`.

        Returns
        -------
        casadi.Function
            Inputs and results by name, each a column of its entries, row by row. It has no status: results at singular
            states are inf or NaN.

        Raises
        ------
        BackendUnavailable
            If CasADi is not installed.
        """
        exported = self.exported_program(name)
        return casadi.function(exported.executable.program, exported.name)

    def to_jax(self, on_singular: str = "nan") -> Callable:
        """The program as a JAX function for `jit`, `vmap`, `grad`, `jacfwd`, `scan` and others, on CPUs.

        The function takes the arguments of a call, concrete or traced; leading axes are batch axes. It returns the
        results by name, as a call does. A solver with ``real="float32"`` computes in float32, derivatives included.

        Parameters
        ----------
        on_singular
            States that cannot be solved: "nan" gives NaN, "raise" makes the call fail.

        Raises
        ------
        BackendUnavailable
            If JAX is not installed.
        InvalidInput
            During tracing, for wrong shapes, and for float32 arguments of a float64 program unless JAX has
            `jax_enable_x64`.

        Notes
        -----
        Derivatives of any order are programs, compiled when they are first traced. Derivatives by q are by its entries,
        with quaternions divided by their norms. States whose pivots fail are solved again as in calls.
        """
        return jax.function(self.framework_function(_checked(on_singular)))

    def to_torch(self, on_singular: str = "nan") -> Callable:
        """The program as a PyTorch function for autograd, `torch.func` and `torch.compile`, on CPUs.

        The function takes the arguments of a call as tensors; leading axes are batch axes. It returns the results by
        name, as a call does. Tensors of float64 are read in place, others are converted.

        Parameters
        ----------
        on_singular
            As for `to_jax`, whose notes on derivatives apply, too.

        Raises
        ------
        BackendUnavailable
            If PyTorch is not installed.
        ProblemError
            For solvers with ``real="float32"``.
        InvalidInput
            In calls, for tensors of wrong shapes or types.
        """
        exported = self.framework_function(_checked(on_singular))
        if exported.real is not DOUBLE:
            raise ProblemError("functions of PyTorch compute in float64: compile without real='float32'")
        return torch.function(exported)


class Differentiable(Exportable, Generic[Product]):
    """A compiled function whose products of derivatives with vectors can be compiled."""

    @abstractmethod
    def product(
        self, kind: str, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None
    ) -> Product:  # fmt: skip
        """Compile a product. kind: "jvp", "vjp" or "hvp"."""

    def jvp(self, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None) -> Product:
        """Compile the product J v of the derivatives J of results by arguments with tangents v of the arguments.

            push = sd.kinematics(model, ["com", "energy"]).jvp(wrt="q")
            push(q, qd, tangents=dq)["com"]                 # (…, 3); dq (…, nv)
            push = sd.compile(sd.forward_dynamics(model), outputs="qdd").jvp(wrt=("q", "qd"))
            push(q, qd, tau, tangents={"q": dq, "qd": dqd})["qdd"]      # (…, nv)

        Parameters
        ----------
        of
            Names of results, by default all.
        wrt
            Names of arguments, by default all; of a solver all but fx.

        Returns
        -------
        callable
            It takes the arguments of the function and ``tangents={argument: (…, shape) array}``, or one array for a
            single argument, and returns results as the function does. It needs about twice the operations of the
            function. Tangents of q are (…, nv), in the tangent space of `Model.integrate`.

        Raises
        ------
        UnknownName
            For the names.
        InvalidInput
            If the function is a product itself.
        """
        return self.product("jvp", of, wrt)

    def vjp(self, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None) -> Product:
        """Compile the product wᵀ J of cotangents w of the results with the derivatives J: gradients of any cost.

            pull = sd.kinematics(model, ["com", "energy"]).vjp(wrt="q")
            pull(q, qd, cotangents={"com": w, "energy": 1.0})["q"]      # ∂(wᵀ com + energy)/∂q (…, nv)

        A call takes the arguments of the function and ``cotangents={result: (…, shape) array}``, and returns
        {argument: array}. Parameters and errors are those of `jvp`.
        """
        return self.product("vjp", of, wrt)

    def hvp(self, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None) -> Product:
        """Compile the derivative of wᵀ J along tangents v of the arguments: products with the Hessian of wᵀ f.

            bend = sd.kinematics(model, "potential_energy").hvp()
            bend(q, cotangents=1.0, tangents=dq)["q"]

        A call takes cotangents and tangents, and returns {argument: array}. By q it is the derivative of the gradient
        in the tangent space as q moves by `Model.integrate`. Parameters and errors are those of `jvp`.
        """
        return self.product("hvp", of, wrt)


def _checked(on_singular: str) -> str:
    check_among("on_singular", on_singular, ("nan", "raise"))
    return on_singular
