"""Compiled functions of the robot's state: kinematics, inertia matrix, bias forces, momentum, energy in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, SingularState, UnknownName, check_among
from sysdyn.frameworks.export import SAMPLED_STATES, Differentiable, ExportedProgram
from sysdyn.frameworks.function import Function, compile_function
from sysdyn.frameworks.traced import FrameworkFunction
from sysdyn.model import Model
from sysdyn.model.kinematics import REFERENCES, frame_jacobian, frame_pose, frame_quaternion
from sysdyn.model.normal_form import normal_form, weld_fixed_joints
from sysdyn.model.positions import normalise_positions, reject_large_angles
from sysdyn.model.quantities import QUANTITY, tangents
from sysdyn.model.se3 import with_normalised_quaternions
from sysdyn.program.arrays import batch_axes, float_array
from sysdyn.program.groups import bind_arguments
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program
from sysdyn.recursions.crba import mass_matrix
from sysdyn.recursions.formulations import Plan
from sysdyn.recursions.transforms import LinkTree
from sysdyn.reference import centroidal
from sysdyn.reference.frame_motion import bias_acceleration, frame_velocity, jacobian_rate
from sysdyn.reference.rnea import rnea
from sysdyn.runtime.native_calls import fast_call
from sysdyn.runtime.runner import BoundCall


@dataclass(frozen=True)
class ResultDescription:
    """One result of a `Kinematics`.

    description: text with unit and axes. inputs: names of the arguments, in the order of `QUANTITY`. shape: at one
    state, with "nv" for the nv of the model.
    """

    description: str
    inputs: tuple[str, ...]
    shape: tuple[int | str, ...]

    def sizes(self, model: Model) -> tuple[int, ...]:
        """The shape of the result for a model."""
        return tuple(getattr(model, n) if isinstance(n, str) else n for n in self.shape)


@dataclass(frozen=True)
class RobotFunction(ResultDescription):
    """A function of a robot's state that `kinematics` compiles.

    compute: (model, *arguments) → array, for floats and Expr. A function of a frame takes the frame, too, and a
    reference if it has `references`.
    """

    compute: Callable[..., np.ndarray]
    of_frame: bool = False
    references: tuple[str, ...] = ()


# ---- implementations without a public function -----------------------------------------------------------------------


def _mass_matrix(model: Model, q: np.ndarray) -> np.ndarray:
    """H (nv, nv) by the composite-rigid-body algorithm, in canonical frames with base inertial parameters."""
    tree, _ = normal_form(weld_fixed_joints(model.replace(closures=())))
    links = LinkTree(tree, list(q), Plan().choose, lambda: None, absorb=False, double_angle=True)
    H = np.full((model.nv, model.nv), 0.0, dtype=q.dtype)
    for (r, c), entry in mass_matrix(links).items():
        H[r, c] = H[c, r] = entry
    return H


def _bias(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    return rnea(model, q, qd, np.zeros(model.nv))


def _coriolis(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    return _bias(model.replace(gravity=np.zeros(3)), q, qd)


def _gravity(model: Model, q: np.ndarray) -> np.ndarray:
    return _bias(model, q, np.zeros(model.nv))


def _external(model: Model, q: np.ndarray, fx: np.ndarray) -> np.ndarray:
    still = np.zeros(model.nv)
    return -rnea(model.replace(gravity=np.zeros(3)), q, still, still, fx)


def _com_jacobian(model: Model, q: np.ndarray) -> np.ndarray:
    return centroidal.centre_of_mass_jacobian(model, q, mass_matrix=_mass_matrix)


def _momentum_matrix(model: Model, q: np.ndarray) -> np.ndarray:
    return centroidal.momentum_matrix(model, q, mass_matrix=_mass_matrix)


def _integrated(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    steps = [x.integrate(q[model.q_slice(i)], qd[model.v_slice(i)]) for i, x in enumerate(model.joints)]
    return np.concatenate([np.zeros(0), *steps])


def _difference(model: Model, q: np.ndarray, q1: np.ndarray) -> np.ndarray:
    steps = [x.difference(q[model.q_slice(i)], q1[model.q_slice(i)]) for i, x in enumerate(model.joints)]
    return np.concatenate([np.zeros(0), *steps])


_STATE = ("q", "qd")
# Descriptions of derivative products, by kind.
PRODUCTS = {"jvp": "J v", "vjp": "w^T J", "hvp": "the derivative of w^T J along v"}

# Functions of `kinematics` by name.
ROBOT_FUNCTIONS: dict[str, RobotFunction] = {
    "mass_matrix": RobotFunction("H of H q̈ + C = τ, armature included", ("q",), ("nv", "nv"), _mass_matrix),
    "bias": RobotFunction("C(q, q̇) of H q̈ + C = τ, gravity included", _STATE, ("nv",), _bias),
    "coriolis": RobotFunction("C(q, q̇) without gravity", _STATE, ("nv",), _coriolis),
    "gravity": RobotFunction("C(q, 0): joint forces of gravity at rest", ("q",), ("nv",), _gravity),
    "external": RobotFunction("Σ J_i^T fx_i of H q̈ + C = τ + Σ J_i^T fx_i", ("q", "fx"), ("nv",), _external),
    "pose": RobotFunction("T = [R p; 0 1] of a frame in the world [m]", ("q",), (4, 4), frame_pose, True),
    "quaternion": RobotFunction("attitude of a frame, (x, y, z, w)", ("q",), (4,), frame_quaternion, True),
    "jacobian": RobotFunction("J of the twist J q̇ = [ω; v]", ("q",), (6, "nv"), frame_jacobian, True, REFERENCES),
    "jacobian_rate": RobotFunction("J̇ of a frame, entry by entry", _STATE, (6, "nv"), jacobian_rate, True, REFERENCES),
    "velocity": RobotFunction("twist J q̇ = [ω; v] [rad/s, m/s]", _STATE, (6,), frame_velocity, True, REFERENCES),
    "bias_acceleration": RobotFunction(
        "J̇ q̇, the rate of the twist for q̈ = 0 [rad/s², m/s²]", _STATE, (6,), bias_acceleration, True, REFERENCES
    ),
    "integrate": RobotFunction("q ⊕ q̇: q after one second at q̇, up to 10 rad", _STATE, ("nq",), _integrated),
    "difference": RobotFunction(
        "q̇ with q ⊕ q̇ = q1; quaternions by the shortest rotation", ("q", "q1"), ("nv",), _difference
    ),
    "com": RobotFunction("centre of mass in the world [m]", ("q",), (3,), centroidal.centre_of_mass),
    "com_velocity": RobotFunction(
        "velocity of the centre of mass, world axes [m/s]", _STATE, (3,), centroidal.centre_of_mass_velocity
    ),
    "com_jacobian": RobotFunction("J_c of the velocity J_c q̇ of the centre of mass", ("q",), (3, "nv"), _com_jacobian),
    "momentum": RobotFunction(
        "momentum [k; p] about the centre of mass, world axes [N m s, N s]", _STATE, (6,), centroidal.momentum
    ),
    "momentum_matrix": RobotFunction("A of the momentum A q̇", ("q",), (6, "nv"), _momentum_matrix),
    "momentum_bias": RobotFunction("Ȧ q̇: its rate for q̈ = 0 [N m, N]", _STATE, (6,), centroidal.momentum_bias),
    "kinetic_energy": RobotFunction("½ q̇^T H q̇ [J]", _STATE, (), centroidal.kinetic_energy),
    "potential_energy": RobotFunction(
        "−g^T Σ m_i c_i, zero at the world's origin [J]", ("q",), (), centroidal.potential_energy
    ),
    "energy": RobotFunction("kinetic and potential energy [J]", _STATE, (), centroidal.energy),
}


def kinematics(
    model: Model,
    outputs: str | Sequence[str] | Mapping[str, str],
    *,
    reference: str = "local",
    level: int = 2,
    backend: str = "llvm",
) -> Kinematics:
    """Compile functions of the robot's state into one program: one call evaluates all of them.

        kin = sd.kinematics(model, ["pose:l_hand", "jacobian:l_hand", "mass_matrix", "bias", "com"])
        now = kin(q, qd)                                # {"pose:l_hand": (4, 4), …}; leading axes are batch axes
        H = sd.kinematics(model, "mass_matrix")(q)      # a single name: its array alone

    Parameters
    ----------
    model : Model
    outputs : str, sequence of str, or dict
        Names of functions, or {custom name: name}: mass_matrix, bias, coriolis, gravity, external; pose:FRAME,
        quaternion:FRAME, jacobian:FRAME, jacobian_rate:FRAME, velocity:FRAME, bias_acceleration:FRAME; integrate,
        difference; com, com_velocity, com_jacobian, momentum, momentum_matrix, momentum_bias, kinetic_energy,
        potential_energy, energy. `Kinematics.report` describes them. FRAME is a frame or a body of the model.
    reference : {"local", "world", "space"}
        Reference of twists, unless the name has one, as in "jacobian:l_hand:world". "local": at the origin of the
        frame, in its axes; "world": at the origin of the frame, in world axes (Pinocchio's LOCAL_WORLD_ALIGNED);
        "space": of the point at the world's origin, in world axes (Pinocchio's WORLD).
    level, backend
        See `compile_function`.

    Returns
    -------
    Kinematics
        Function of the arguments that the results depend on, such as q (…, nq), q̇ (…, nv), fx (…, nb, 6).

    Raises
    ------
    UnknownName
        For unknown functions, frames and references.
    InvalidInput
        For other mistakes.

    Notes
    -----
    H q̈ + C = τ + Σ J_i^T fx_i. Twists are angular first. The rate of a twist is J q̈ + J̇ q̇; with "world", its linear
    part is the acceleration of the origin of the frame as a point.
    """
    check_among("reference", reference, REFERENCES)
    by_name = dict(outputs) if isinstance(outputs, Mapping) else _named_after_functions(outputs)
    if not by_name:
        raise InvalidInput(f"outputs is empty: name some of {', '.join(_function_names())}")
    functions = {name: _robot_function(model, text, reference) for name, text in by_name.items()}
    needed = {x for function, _ in functions.values() for x in function.inputs}
    inputs = {name: replace(x.group(model), default=None) for name, x in QUANTITY.items() if name in needed}

    def results(*arrays: np.ndarray) -> Any:
        arguments, values = dict(zip(inputs, arrays, strict=True)), {}
        for name, (function, options) in functions.items():
            values[name] = function.compute(model, *(arguments[x] for x in function.inputs), *options)
        return next(iter(values.values())) if isinstance(outputs, str) else values

    results.__name__ = "kinematics"
    compiled = compile_function(results, inputs, level=level, backend=backend)
    return Kinematics(model, compiled, {name: (by_name[name], function) for name, (function, _) in functions.items()})


class Kinematics(Differentiable["Kinematics"]):
    """Compiled functions of the robot's state; `kinematics(q, qd)` gives them by name. Calls are thread-safe.

    names: names of the results. flops: exact operation counts of the program.
    """

    def __init__(self, model: Model, function: Function, results: Mapping[str, tuple[str, ResultDescription]]):
        self.model, self.names, self.function, self._results = model, tuple(results), function, results
        first = [x for x, y in zip(function.inputs, ("q", "qd", "fx"), strict=False) if x == y]
        quaternions = [part.start for _, part in model.quaternions]
        self.fast_calls = function.single_state(first, {"qd": None, "fx": None}, quaternions)

    @property
    def flops(self) -> Flops:
        return self.function.flops

    @property
    def program(self) -> Program:
        return self.function.program

    def __repr__(self) -> str:
        takes = ", ".join(group.display_name for group in self.function.groups.values())
        return f"Kinematics of {self.model.name!r}: {', '.join(self.names)} from {takes}; {self.flops}"

    def __reduce__(self):
        return Kinematics, (self.model, self.function, self._results)

    def report(self) -> str:
        """Names, shapes and descriptions of the results, as text."""
        rows = [
            (name, str(result.sizes(self.model)), ("" if what == name else f"{what}: ") + result.description)
            for name, (what, result) in self._results.items()
        ]
        name, shape = (max(len(row[k]) for row in rows) for k in (0, 1))
        return "\n".join([repr(self), *(f"  {a:<{name}}  {b:<{shape}}  {c}" for a, b, c in rows)])

    @fast_call
    def __call__(
        self, q: ArrayLike, qd: ArrayLike | None = None, fx: ArrayLike | None = None, *, threads: int | None = None,
        **others: ArrayLike,
    ) -> Any:  # fmt: skip
        """Evaluate the functions: {name: (…, shape)}, or the array alone if a single name was requested.

        Exactly the arguments that the results depend on are needed: q (…, nq), qd (…, nv), fx (…, nb, 6) [N m, N] in
        body axes, q1 (…, nq) of "difference"; tangents and cotangents of derivative products. Leading axes are batch
        axes and broadcast. Quaternions are normalised. Every call returns new arrays. threads: number of threads; None
        chooses it by the size of the batch.

        Raises InvalidInput for missing or unneeded arguments, wrong shapes, values that are not finite, quaternions
        whose norm differs from 1 by more than 1e-6, and angles too large for sines and cosines.
        """
        arguments = self._arguments(q, qd, fx, others)
        if self.model.quaternions:
            arguments["q"] = self._normalised(q)
        try:
            return self.function(**arguments, threads=threads)
        except SingularState:
            reject_large_angles(self.model, np.asarray(q, dtype=float))
            raise

    def bind(
        self, q: np.ndarray, qd: np.ndarray | None = None, fx: np.ndarray | None = None, **others: np.ndarray
    ) -> BoundCall:
        """Prepare a call: `step()` reads the current arrays and writes `step.out`, in the form of a call's result.

        Arrays are C-contiguous float64, of one state, and are read in place. Quaternions must be normalised.
        `step.status` is nonzero if a value was not finite.
        """
        return self.function.bind(**self._arguments(q, qd, fx, others))

    def exported_program(self, name: str | None = None) -> ExportedProgram:

        def states() -> dict[str, np.ndarray]:
            shapes = {name: group.shape for name, group in self.function.groups.items()}
            q, qd, _ = self.model.random_state(seed=2, batch=SAMPLED_STATES)
            rng = np.random.default_rng(2)
            others = {x: rng.standard_normal((SAMPLED_STATES, math.prod(shape))) for x, shape in shapes.items()}
            return {x: y for x, y in (others | {"q": q, "qd": qd}).items() if x in shapes}

        return self.function.exported_program("kinematics" if name is None else name)._replace(states=states)

    def product(
        self, kind: str, of: str | Sequence[str] | None = None, wrt: str | Sequence[str] | None = None
    ) -> Kinematics:  # fmt: skip
        outputs = dict(zip(self.names, self.program.outputs, strict=True))
        product = self.function.product(kind, of, wrt, outputs, partial(tangents, self.model))
        names = {group: name for name, group in outputs.items()} if kind == "jvp" else {}
        text, arguments = PRODUCTS[kind], tuple(product.inputs)
        results = {names.get(x, x): ResultDescription(text, arguments, shape) for x, shape in product.shapes.items()}
        return Kinematics(self.model, product, {name: (name, x) for name, x in results.items()})

    def framework_function(self, on_singular: str) -> FrameworkFunction:
        def bind_arguments(q: Any, qd: Any = None, fx: Any = None, **others: Any) -> dict[str, Any]:
            return self.function.bind_arguments(**self._arguments(q, qd, fx, others))

        program = with_normalised_quaternions(self.program, [part for _, part in self.model.quaternions])
        function = self.function.framework_function(on_singular)
        return function._replace(name="kinematics", program=program, bind_arguments=bind_arguments, eager_call=self)

    def _arguments(self, q: Any, qd: Any, fx: Any, others: dict[str, Any]) -> dict[str, Any]:
        """{name: value} of the arguments that are not None. Raises InvalidInput if one is missing or not needed."""
        needed, arguments = (*self.function.inputs, *self.function.vectors), {"q": q, "qd": qd, "fx": fx}
        arguments = {name: x for name, x in arguments.items() if x is not None} | others
        if arguments.keys() != {*needed}:
            bind_arguments(", ".join(self.names), needed, (), (), arguments)
            self.function.groups.normalise_inputs(self.function.bind_arguments(**arguments))
        return arguments

    def _normalised(self, q: Any) -> np.ndarray:
        """q with unit quaternions."""
        if type(q) is not np.ndarray or q.dtype != np.float64 or q.ndim != 1:
            q = float_array("q", q)
        if q.shape != (self.model.nq,):
            batch_axes("q", q, (self.model.nq,))
        return normalise_positions(self.model, q)


# ---- names ---------------------------------------------------------------------------------------------------------


def _function_names() -> list[str]:
    return [f"{name}:FRAME" if function.of_frame else name for name, function in ROBOT_FUNCTIONS.items()]


def _named_after_functions(outputs: str | Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in [outputs] if isinstance(outputs, str) else outputs:
        if name in names:
            raise InvalidInput(f"{name!r} is asked for twice: give the results names of your own, {{name: {name!r}}}")
        names[name] = name
    return names


def _robot_function(model: Model, what: str, reference: str) -> tuple[RobotFunction, tuple[str, ...]]:
    """Function of an output name such as "jacobian:l_hand:world", and its frame and reference if it has them."""
    name, colon, place = what.partition(":")
    if name not in ROBOT_FUNCTIONS:
        raise UnknownName("function of the robot", what, _function_names())
    function = ROBOT_FUNCTIONS[name]
    if not function.of_frame:
        if colon:
            raise InvalidInput(f"{name} is of the whole robot: ask for {name!r}, not for {what!r}")
        return function, ()
    if not place:
        raise InvalidInput(f"{name} is of a frame: ask for '{name}:FRAME', such as '{name}:{[*model.frames][-1]}'")
    frame, _, asked = place.rpartition(":")
    if place in model.frames or not (frame in model.frames or asked in REFERENCES):
        frame, asked = place, reference
    elif asked not in function.references:
        if not function.references:
            raise InvalidInput(f"{name} has no reference: ask for '{name}:{frame}', not for {what!r}")
        raise UnknownName("reference", asked, function.references)
    frame = model.frame(frame).name
    return function, (frame, asked) if function.references else (frame,)
