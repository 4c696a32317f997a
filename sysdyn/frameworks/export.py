"""Export of compiled objects to C, CasADi, JAX and PyTorch.

A new target is a function of an `ExportedProgram` or a `FrameworkFunction`, and a method of `Exportable`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, ProblemError, check_among
from sysdyn.runtime.real import DOUBLE
from sysdyn.runtime.runner import Runner

if TYPE_CHECKING:  # each exporter is imported at its first use
    from sysdyn.codegen.c99 import Description
    from sysdyn.frameworks.traced import FrameworkFunction

ProductT = TypeVar("ProductT")

# Number of candidate states for test vectors: chosen, eight per test vector, since some may be singular.
SAMPLED_STATES = 64


class ExportedProgram(NamedTuple):
    """A program as it is exported.

    name: function name. executable: the program on a back end. description: texts of the header. states: function that
    returns sample inputs {group: (N, size)} for test vectors.
    """

    name: str
    executable: Runner
    description: Description
    states: Callable[[], Mapping[str, np.ndarray]]


class Exportable(ABC):
    """A compiled object whose program can be exported."""

    @abstractmethod
    def exported_program(self, name: str | None = None) -> ExportedProgram:
        """The program with its function name, header texts and sample inputs. name: None for the default name."""

    @abstractmethod
    def framework_function(self, on_singular: str) -> FrameworkFunction:
        """The program with its calling convention and error handling in JAX and PyTorch. on_singular: see `to_jax`."""

    def export_c(
        self, folder: str | os.PathLike, name: str | None = None, real: str = "float64",
        states: Mapping[str, ArrayLike] | None = None,
    ) -> Path:  # fmt: skip
        """Write a C99 project without dependencies: NAME.h, NAME.c, main.c, test_vectors.h and CMakeLists.txt.

        `NAME_run(in, out, work)` computes one state and returns the status bits of the kernel. The caller provides the
        workspace. The header documents the members of the structs `in` and `out`; blocks of derivatives are members
        such as `dqdd_dq`, in row-major order. `main` checks test vectors that are computed during the export. Files of
        an earlier export are replaced.

        Parameters
        ----------
        folder
            Output folder; created if it does not exist.
        name
            C identifier; keywords and names of C or POSIX headers and CMake targets are rejected. Default: the function
            name, or a name derived from robot and problem.
        real
            Floating-point type, "float64" or "float32". The header of a "float32" export reports the largest difference
            from float64.
        states : {input: (N, ...) array}, optional
            Candidate states for the test vectors. Default: random states.

        Returns
        -------
        Path
            The output folder.

        Raises
        ------
        InvalidInput
            For an invalid name, or if an input is missing in `states`.
        UnknownName
            For an unknown floating-point type.
        FileError
            If the folder cannot be written.
        SingularState
            If no state has finite results, or if rounding errors exceed 1e-7 ("float64") or 0.01 ("float32") relative
            to the largest entry of a result. The tolerance of the exported test is ten times the rounding error.
        """
        from sysdyn.codegen import c_project

        exported = self.exported_program(name)
        if states is None:
            samples = exported.states()
        else:
            groups = exported.executable.program.inputs.sizes.items()
            missing = [group for group, _ in groups if group not in states]
            if missing:
                raise InvalidInput(f"states has no values of {', '.join(missing)}: pass (N, …) arrays for all inputs")
            samples = {group: np.reshape(np.asarray(states[group], dtype=float), (-1, size)) for group, size in groups}
        return c_project.export(folder, exported.name, exported.executable, exported.description, samples, real)

    def to_casadi(self, name: str | None = None) -> Any:
        """Convert the program to a CasADi function.

        Parameters
        ----------
        name
            See `export_c`.

        Returns
        -------
        casadi.Function
            Function with named inputs and outputs. Each is a column with its entries in row-major order. There is no
            status: results at singular states are inf or NaN.

        Raises
        ------
        BackendUnavailable
            If CasADi is not installed.
        """
        from sysdyn.frameworks import casadi

        exported = self.exported_program(name)
        return casadi.function(exported.executable.program, exported.name)

    def to_jax(self, on_singular: str = "nan") -> Callable:
        """Convert the program to a JAX function on CPUs, for `jit`, `vmap`, `grad`, `jacfwd`, `scan` and others.

        The JAX function has the arguments of a call, concrete or traced; leading axes are batch axes. It returns the
        results by name, like a call. A solver with ``real="float32"`` computes in float32, including derivatives.

        Parameters
        ----------
        on_singular
            Treatment of states that cannot be solved: "nan" returns NaN, "raise" raises an error.

        Raises
        ------
        BackendUnavailable
            If JAX is not installed.
        InvalidInput
            During tracing, for wrong shapes, and for float32 arguments of a float64 program if `jax_enable_x64` is off.

        Notes
        -----
        Derivatives of any order are programs that are compiled at the first trace. Derivatives with respect to q are
        with respect to its entries, after normalisation of quaternions. States with failed pivots use the fallback of
        calls.
        """
        from sysdyn.frameworks import jax

        return jax.function(self.framework_function(_checked(on_singular)))

    def to_torch(self, on_singular: str = "nan") -> Callable:
        """Convert the program to a PyTorch function on CPUs, for autograd, `torch.func` and `torch.compile`.

        The PyTorch function has the arguments of a call, as tensors; leading axes are batch axes. It returns the
        results by name, like a call. float64 tensors are read in place, others are converted.

        Parameters
        ----------
        on_singular
            See `to_jax`. The notes on derivatives also apply.

        Raises
        ------
        BackendUnavailable
            If PyTorch is not installed.
        ProblemError
            For solvers with ``real="float32"``.
        InvalidInput
            In calls, for tensors of wrong shapes or types.
        """
        from sysdyn.frameworks import torch

        exported = self.framework_function(_checked(on_singular))
        if exported.real is not DOUBLE:
            raise ProblemError("functions of PyTorch compute in float64: compile without real='float32'")
        return torch.function(exported)


class Differentiable(Exportable, Generic[ProductT]):
    """A compiled function with compiled Jacobian-vector, vector-Jacobian and Hessian-vector products."""

    @abstractmethod
    def product(
        self, kind: str, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None
    ) -> ProductT:  # fmt: skip
        """Compile a derivative product. kind: "jvp", "vjp" or "hvp"."""

    def jvp(self, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None) -> ProductT:
        """Compile the Jacobian-vector product J v, with J = ∂(results)/∂(arguments) and tangents v of the arguments.

            push = sd.kinematics(model, ["com", "energy"]).jvp(wrt="q")
            push(q, qd, tangents=dq)["com"]                 # (…, 3); dq (…, nv)
            push = sd.compile(sd.forward_dynamics(model), outputs="qdd").jvp(wrt=("q", "qd"))
            push(q, qd, tau, tangents={"q": dq, "qd": dqd})["qdd"]      # (…, nv)

        Parameters
        ----------
        of
            Names of results. Default: all.
        wrt
            Names of arguments. Default: all; for a solver all except fx.

        Returns
        -------
        callable
            Function with the arguments and results of this function and the additional argument
            ``tangents={argument: (…, shape) array}``; a single argument also accepts one array. It needs about twice
            the operations of this function. Tangents of q are (…, nv), in the tangent space of `Model.integrate`.

        Raises
        ------
        UnknownName
            For unknown names.
        InvalidInput
            If this function is already a derivative product.
        """
        return self.product("jvp", of, wrt)

    def vjp(self, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None) -> ProductT:
        """Compile the vector-Jacobian product wᵀ J, with cotangents w of the results, for gradients of scalar costs.

            pull = sd.kinematics(model, ["com", "energy"]).vjp(wrt="q")
            pull(q, qd, cotangents={"com": w, "energy": 1.0})["q"]      # ∂(wᵀ com + energy)/∂q (…, nv)

        The compiled function has the additional argument ``cotangents={result: (…, shape) array}`` and returns
        {argument: array}. Parameters and errors as in `jvp`.
        """
        return self.product("vjp", of, wrt)

    def hvp(self, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None) -> ProductT:
        """Compile the Hessian-vector product of wᵀ f: the derivative of wᵀ J along tangents v of the arguments.

            bend = sd.kinematics(model, "potential_energy").hvp()
            bend(q, cotangents=1.0, tangents=dq)["q"]

        The compiled function has the additional arguments cotangents and tangents, and returns {argument: array}. For
        q, it is the derivative of the gradient in the tangent space of `Model.integrate`. Parameters and errors as in
        `jvp`.
        """
        return self.product("hvp", of, wrt)


def _checked(on_singular: str) -> str:
    check_among("on_singular", on_singular, ("nan", "raise"))
    return on_singular
