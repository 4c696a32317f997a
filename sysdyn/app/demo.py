"""Demonstration: inverse and forward dynamics of a humanoid, compared with Pinocchio."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from rich.console import Console

from sysdyn.app.jobs import Job, make_problem
from sysdyn.app.report import ReferenceAlgorithm, accuracy, call_times, differences, fastest, operations, times
from sysdyn.app.terminal import print_table
from sysdyn.errors import FileError, SysdynError
from sysdyn.model import Model
from sysdyn.online.solver import Solver

# {kind of problem: name in text}
_NAMES = {"inverse": "inverse dynamics", "forward": "forward dynamics"}
# Number of Pinocchio calls in a timed loop: tuned to seconds.
_CALLS = 2000


class Pinocchio(ReferenceAlgorithm):
    """Reference algorithms rnea and aba of Pinocchio (package pin) on the same URDF. Raises ImportError.

    Joints are matched by name.
    """

    def __init__(self, model: Model, kind: str, urdf: str):
        import pinocchio as pin

        super().__init__(model, kind)
        self.pin, self.pin_model = pin, pin.buildModelFromUrdf(urdf)
        self.data, self.call = self.pin_model.createData(), pin.rnea if kind == "inverse" else pin.aba
        self.order = [model.v_slice(model.joint_index(name)).start for name in list(self.pin_model.names)[1:]]
        self.name = f"pin {pin.__version__}"

    def solve(self, q: np.ndarray, qd: np.ndarray, x: np.ndarray, fx: np.ndarray) -> np.ndarray:
        result, states = np.empty_like(x), (np.ascontiguousarray(y[:, self.order]) for y in (q, qd, x))
        for k, state in enumerate(zip(*states, fx, strict=True)):
            result[k, self.order] = self.call(self.pin_model, self.data, *state[:3], self._forces(state[3]))
        return result

    def _forces(self, fx: np.ndarray) -> list:
        """Convert external wrenches (nb, 6) on bodies to Pinocchio's joint forces, linear part first."""
        forces = [self.pin.Force(np.zeros(6))] * self.pin_model.njoints
        for k, i in enumerate(self.order, start=1):
            forces[k] = self.pin.Force(fx[i, 3:], fx[i, :3])
        return forces

    def seconds(self) -> float:
        """Time [s] per call in a Python loop."""
        states = [x[:, self.order] for x in self.model.random_state(seed=2, batch=_CALLS)]
        rows, call, model, data = list(zip(*states, strict=True)), self.call, self.pin_model, self.data

        def loop() -> None:
            for q, qd, x in rows:
                call(model, data, q, qd, x)

        return fastest(loop, 1) / _CALLS


def pictures(model: Model, folder: Path) -> dict[str, Path]:
    """{kind of problem: path of its picture}."""
    return {kind: folder / f"{model.name.lower()}_{kind}.png" for kind in _NAMES}


def run(console: Console, model: Model, urdf: str, folder: Path) -> None:
    """Print the demonstration on `console` and write two pictures to `folder`. Raises SysdynError.

    urdf: path of the model file for Pinocchio; "" if the model has no file.
    """
    begin = time.perf_counter()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"the folder {folder} cannot be made: {error.strerror or error}") from error
    console.print(
        f"{model.name}{', read from its URDF' if urdf else ''}: {model.nb} moving bodies, {model.nv} joints, "
        f"{model.mass:.1f} kg, {model.base} base. Each body has a spatial acceleration a, a wrench f through its "
        "joint, an external wrench fx, a joint torque τ and a joint acceleration q̈. The Newton-Euler equations are "
        "linear in all of these: D(q) d + b(q, q̇) = 0 with a sparse matrix D. Some are known; elimination computes "
        "the others, or a recursion if only τ or q̈ is requested."
    )
    for kind in _NAMES:
        _report(console, Job(make_problem(model, kind), kind), urdf, pictures(model, folder)[kind])
    console.print(
        "\nTextbook RNEA and ABA are implementations in sysdyn, counted by the same rules: products with 0 and ±1, "
        "sign changes, argument reduction of angles and pivot checks are not counted. "
        f"\nDone in {time.perf_counter() - begin:.0f} s. Next: README.md, and sysdyn --help."
    )


def _report(console: Console, job: Job, urdf: str, picture: Path) -> None:
    """Compile a problem by elimination and by recursion. Print counts, errors and times; draw the matrix."""
    from sysdyn.app.matrix_plot import plot_matrix, save_figure  # matplotlib takes half a second to import

    console.print(f"\n{_NAMES[job.kind]}".upper(), style="bold")
    solvers: dict[str, Solver] = {}
    for label, formulation in (("elimination", "paper"), ("recursion", "auto")):
        begin = time.perf_counter()
        solvers[label] = job.compile(formulation=formulation)
        console.print(f"{label}, {time.perf_counter() - begin:.2f} s: {solvers[label]!r}", soft_wrap=True)
    console.print(f"elimination orders compared: {', '.join(_order_families(solvers['elimination']))}")
    print_table(operations(job, solvers))
    reference: ReferenceAlgorithm = ReferenceAlgorithm(job.problem.model, job.kind)
    try:
        reference = Pinocchio(job.problem.model, job.kind, urdf) if urdf else reference
    except ImportError:
        console.print("pin, an independent implementation, is not installed: pip install pin")
    errors = differences(job, solvers, reference)
    print_table(accuracy(reference.name, errors))
    if not (worst := max(x.max() for x in errors.values())) < 1e-9:
        raise SysdynError(f"the results differ by {worst:.1e}, more than 1e-9: please report this")
    seconds = call_times(job, solvers["recursion"])
    if isinstance(reference, Pinocchio):
        seconds[f"{reference.name}, called in a Python loop"] = reference.seconds()
    print_table(times(seconds))
    console.print(f"\nmatrix before and after permutation: {save_figure(plot_matrix(solvers['elimination']), picture)}",
                  soft_wrap=True)  # fmt: skip


def _order_families(solver: Solver) -> list[str]:
    """Families of elimination orders in the search, with the number of starts if there are several."""
    count: dict[str, int] = {}
    for name, result in solver.compiled.considered:
        if "not available" not in result:
            count[name.split(" ")[0]] = count.get(name.split(" ")[0], 0) + 1
    return [name if n == 1 else f"{name} ({n} starts)" for name, n in count.items()]
