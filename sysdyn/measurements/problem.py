"""A problem: a model with its known quantities, measurements and parameters, before any equation is written."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Self, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, PlausibilityWarning, ProblemError, SysdynError, UnknownName, check_among, warn
from sysdyn.files import html
from sysdyn.measurements.conditions import Condition
from sysdyn.measurements.input_names import switch_group, value_group, value_of
from sysdyn.measurements.known_quantities import RawMeasurement
from sysdyn.measurements.measurement import Constraint, Context, Measurement, Output, changed
from sysdyn.measurements.noise import ModelNoise, noise_of
from sysdyn.measurements.parameters import parameter
from sysdyn.measurements.registry import description, restored
from sysdyn.measurements.state_sensors import Stance
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.closures import CoupledJoint, impose
from sysdyn.model.quantities import QUANTITIES, QUANTITY, WRENCHES, Quantity, WrenchQuantity, user_defined
from sysdyn.program.arrays import batch_axes, broadcast_shapes, float_array
from sysdyn.program.groups import Group, Groups

CACHE_SIZE = 32  # Layouts, systems, modes and other results that a problem caches (16 modes with their systems).

T = TypeVar("T")


class Problem:
    """A model and its measurements: the unknowns d, and the equations D d + b = 0 and Y d + b_Y = y.

    ``problem + measurement`` adds a measurement; ``problem - measurement`` makes its scalar components unknown again.

    Parameters
    ----------
    model : Model
        The robot.
    measurements : sequence of Measurement
        Known quantities, sensors and constraints.
    parameters : sequence of str, optional
        Names of parameters of the model that are inputs, as in `sysdyn.compile(inputs=…)`.

    Raises
    ------
    ProblemError
        If a measurement states a scalar twice, or two have the same name.
    UnknownName
        If a measurement names a joint, body or component that the model does not have.
    """

    def __init__(self, model: Model, measurements: Sequence[Measurement], parameters: Sequence[str] = ()):
        if not isinstance(model, Model):
            raise InvalidInput(f"a Problem needs a Model first, got {type(model).__name__}; see sysdyn.load")
        self.model = model
        if isinstance(measurements, Measurement):
            raise InvalidInput(f"the measurements of a Problem are a list: [{type(measurements).__name__}(…), …]")
        self.measurements = tuple(measurements)
        self.parameters = tuple(parameter(model, name) for name in dict.fromkeys(parameters))
        self._check_names()
        self._check_scalars()
        for m in (*self.custom, *self.state_sensors):
            m.components(model)  # names that the model does not have are found here
        for words in filter(None, (m.implausible(model) for m in self.constraints)):
            warn(words, PlausibilityWarning)
        self._check_noise()
        self._check_state_sensors()

    def _check_names(self) -> None:
        """Raise InvalidInput if something is no measurement, ProblemError if two have the same name."""
        for m in self.measurements:
            if not isinstance(m, Measurement):
                raise InvalidInput(f"not a measurement: {m!r}; for example use JointTorque('all')")
        names = Counter(m.name for m in self.measurements)
        for name, count in names.items():
            if count > 1:
                raise ProblemError(f"two measurements are called {name!r}: give one of them another name=")

    def _check_scalars(self) -> None:
        """Raise ProblemError if a measurement states a scalar more than once."""
        for m in self._exact:
            for (body, k), count in Counter(m.pairs(self.model)).items():
                if count > 1:
                    scalar = Layout(self.model).scalar_names(m.quantity, body)[k]
                    raise ProblemError(f"{scalar} is stated twice by {m.name!r}: remove one of them")

    def _check_noise(self) -> None:
        """Raise InvalidInput if a noise is no covariance, ProblemError if an equation of motion has two."""
        softened: dict[str, str] = {}
        for m in self.noisy:
            noise_of(m, self.model)
            for component in m.components(self.model) if isinstance(m, ModelNoise) else ():
                if component in softened:
                    raise ProblemError(
                        f"equation {component} is made inexact twice, by {softened[component]!r} and {m.name!r}: "
                        "remove it from one of them"
                    )
                softened[component] = m.name

    def _check_state_sensors(self) -> None:
        """Raise ProblemError, InvalidInput or UnknownName for noise, conditions and biases that do not fit."""
        for m in self.state_sensors:
            if m.noise is None:
                raise ProblemError(
                    f"{m.name!r} has no noise, but what it measures is unknown and estimated: give it a standard "
                    "deviation, noise=…"
                )
            noise_of(m, self.model)
        for m in self.biased:
            assert m.drift is not None
            m.drift.check(m.name, len(m.components(self.model)))
        for name, condition in self.conditions.items():
            condition.check(name, [*self.values.values(), *self.state_values.values()])
        feet = {m.name: m for m in self.state_sensors if isinstance(m, Stance)}
        for name, foot in self.swing_measurements.items() if self.state_sensors else ():
            check_among(f"stance in unless= of {name!r}:", foot, feet)
            if feet[foot].proposed:
                raise ProblemError(
                    f"{name!r} is on unless {foot!r} stands, but that follows from its motion (when='kinematics'), and "
                    "a foot that moves may slip: give the stance a condition, or hand in when it stands"
                )

    # ---- cache -----------------------------------------------------------------------------------------------------

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """The cached result for this key, else that of `make()`. The least recently used results are dropped.

        A problem does not change, so its layouts, systems and modes can be reused. Copies and pickles omit them.
        """
        cache: OrderedDict[Hashable, T] = self._cache
        result = cache.get(key)
        if result is None:
            result = make()
        cache[key] = result  # also if another thread has dropped it
        cache.move_to_end(key)
        while len(cache) > CACHE_SIZE:
            cache.popitem(last=False)
        return result

    def layout(self, name: str = "paper") -> Layout:
        """Names and places of the unknowns: layout "paper" or "net_force". Raises UnknownName."""
        return self.cached(("layout", name), lambda: Layout(self.model, name, self.wrenches, further=self.further))

    @cached_property
    def _cache(self) -> OrderedDict:
        return OrderedDict()

    def __getstate__(self) -> dict:
        """Model, measurements and parameters alone: the rest follows from them."""
        own = self.__dict__.items()
        return {name: x for name, x in own if not isinstance(getattr(type(self), name, None), cached_property)}

    # ---- changes -----------------------------------------------------------------------------------------------

    def __add__(self, measurement: Measurement | Iterable[Measurement]) -> Self:
        new = [measurement] if isinstance(measurement, Measurement) else list(measurement)
        return self._with(*self.measurements, *new)

    def __sub__(self, measurement: Measurement) -> Self:
        """Remove the scalar components that `measurement` names.

        A measurement of a quantity, such as `JointTorque`, removes its scalars from all measurements of that quantity:
        from the exact ones if any state them, else from noisy ones. A sensor removes its components from the sensor of
        the same type and arguments, whatever the names and noise. Any other measurement is removed by its name.
        """
        if isinstance(measurement, RawMeasurement) and measurement.selectable:
            kept = self._without_scalars(measurement)
        else:
            kept = [m for m in self.measurements if m.name != measurement.name]
            if (place := self._same_sensor(measurement)) is not None:
                rest = without_components(self.measurements[place], measurement, self.model)
                kept = [*self.measurements[:place], *([rest] if rest else []), *self.measurements[place + 1 :]]
            elif len(kept) == len(self.measurements):
                raise UnknownName("measurement", measurement.name, [m.name for m in self.measurements])
        return self._with(*kept)

    def _with(self, *measurements: Measurement) -> Self:
        return type(self)(self.model, measurements, [p.name for p in self.parameters])

    def varying(self, *parameters: str) -> Self:
        """The problem with parameters of the model as inputs of its programs: see `sysdyn.compile`."""
        return type(self)(self.model, self.measurements, parameters)

    def _without_scalars(self, measurement: RawMeasurement) -> list[Measurement]:
        """The measurements without scalars of a quantity: without exact statements of each if any, else noisy ones."""
        gone = set(measurement.pairs(self.model))
        stated = [m for m in self.measurements if _states(m, measurement.quantity)]
        exact = {pair for m in stated if m.noise is None for pair in m.pairs(self.model)}
        noisy = {pair for m in stated if m.noise is not None for pair in m.pairs(self.model)}
        if missing := gone - exact - noisy:
            body, k = min(missing)
            scalar = Layout(self.model).scalar_names(measurement.quantity, body)[k]
            raise ProblemError(f"{scalar} cannot be removed: no measurement of the problem states it")
        kept: list[Measurement] = []
        for m in self.measurements:
            if not _states(m, measurement.quantity):
                kept.append(m)
                continue
            pairs = m.pairs(self.model)
            cut = gone if m.noise is None else gone - exact
            rest = [k for k, pair in enumerate(pairs) if pair not in cut]
            if len(rest) == len(pairs):
                kept.append(m)
            elif rest:
                kept.append(m.select(rest))
        return kept

    def _same_sensor(self, sensor: Measurement) -> int | None:
        """Number of the measurement that is this sensor, whatever its name, components and noise; None without one.

        If several are, the one of its name, else the first that has its components.
        """
        about = sensor.identity()
        same = [k for k, m in enumerate(self.measurements) if about is not None and m.identity() == about]
        has = [
            k for k in same if set(sensor.components(self.model)) <= set(self.measurements[k].components(self.model))
        ]
        named = [k for k in same if self.measurements[k].name == sensor.name]
        return next(iter([*named, *has, *same]), None)

    # ---- contents ----------------------------------------------------------------------------------------------

    @property
    def _exact(self) -> list[RawMeasurement]:
        return [m for m in self.measurements if isinstance(m, RawMeasurement) and m.noise is None]

    @cached_property
    def raw(self) -> tuple[RawMeasurement, ...]:
        """Exact raw measurements, each unless one before it states one of its scalars, too."""
        stated: set[tuple[str, int, int]] = set()
        found = []
        for m in self._exact:
            own = {(m.quantity, *pair) for pair in m.pairs(self.model)}
            if not own & stated:
                found.append(m)
                stated |= own
        return tuple(found)

    @cached_property
    def custom(self) -> tuple[Measurement, ...]:
        """Measurements with a value of their own: sensors, all noisy ones, and raw ones that state scalars again."""
        raw = {m.name for m in self.raw}
        return tuple(m for m in self.valued if m.name not in raw)

    @cached_property
    def valued(self) -> tuple[Measurement, ...]:
        """Measurements that have a value at a given state, in order; not the noise of the model."""
        stated = (m for m in self.measurements if not (isinstance(m, ModelNoise) or m.of_state))
        return tuple(stated)

    @cached_property
    def noisy(self) -> tuple[Measurement, ...]:
        """Measurements, priors and equations of motion with noise; solving is estimation if there are any."""
        return tuple(m for m in self.measurements if m.noise is not None and not m.of_state)

    @cached_property
    def switchable(self) -> tuple[Measurement, ...]:
        """Measurements with noise that can be switched off at a given state."""
        return tuple(m for m in self.noisy if m.switchable)

    @cached_property
    def switchable_constraints(self) -> tuple[Constraint, ...]:
        """Constraints that can be switched off, each combination of which has a problem of its own: `mode`."""
        return tuple(m for m in self.constraints if m.switchable and m.noise is None)

    def mode(self, active: Mapping[str, ArrayLike] | None = None) -> Self:
        """The problem of one combination of switches: with the constraints that are on, and without the others.

        active: {name: bool} of switchable constraints, which are on by default. The problem itself if it has none.
        Raises UnknownName, InvalidInput.
        """
        names = [m.name for m in self.switchable_constraints]
        on = dict.fromkeys(names, True)
        for name, value in switches(active):
            if name not in on:
                raise UnknownName("switchable constraint", name, names)
            x = np.asarray(value)
            if x.shape or x.dtype.kind not in "biuf" or x not in (0, 1):
                raise InvalidInput(f"active[{name!r}] of one mode is true or false, not {value!r}")
            on[name] = bool(x)
        if not names:
            return self
        kept = (changed(m, switchable=False) if m.name in on else m for m in self.measurements if on.get(m.name, True))
        return self.cached(("mode", *on.values()), lambda: self._with(*kept))

    @cached_property
    def state_sensors(self) -> tuple[Measurement, ...]:
        """Sensors of q and q̇: used by `smooth` and `filter`, ignored by solvers, which are given q and q̇."""
        return tuple(m for m in self.measurements if m.of_state)

    @cached_property
    def biased(self) -> tuple[Measurement, ...]:
        """Measurements with a bias that is unknown over a log."""
        return tuple(m for m in self.measurements if m.drift is not None)

    @cached_property
    def conditions(self) -> dict[str, Condition]:
        """{name of a stance: the condition under which it holds}; the others hold as a log or a run says."""
        stances = ((m.name, getattr(m, "when", None)) for m in self.state_sensors)
        return {name: when for name, when in stances if when is not None}

    @cached_property
    def swing_measurements(self) -> dict[str, str]:
        """{name of a measurement that is on where a foot does not stand: its stance}."""
        return {m.name: m.unless for m in self.switchable if m.unless is not None}

    @cached_property
    def instant(self) -> Self:
        """The problem of one given state, q and q̇ being known: without state sensors and biases of logs."""
        if not (self.state_sensors or self.biased):
            return self
        return self._with(*(changed(m, drift=None) if m.drift else m for m in self.measurements if not m.of_state))

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        return tuple(m for m in self.valued if isinstance(m, Constraint))

    @cached_property
    def couplings(self) -> tuple[CoupledJoint, ...]:
        """The couplings of the model that the problem states, leaders first."""
        stated = [getattr(m, "coupling", None) for m in self.constraints]
        return tuple(joint for joint in self.model.couplings if joint.coupling in stated)

    def imposed(self, q: np.ndarray, qd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(q (…, nq), q̇ (…, nv)) with followers computed from their leaders; entries of followers are ignored."""
        if not self.couplings:
            return q, qd
        lead = np.broadcast_shapes(q.shape[:-1], qd.shape[:-1])
        q, qd = (np.broadcast_to(x, (*lead, x.shape[-1])) for x in (q, qd))
        return impose(self.couplings, q, qd, qd)[:2]

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """Quantities of the unknowns: tau, qdd, fx, a, f, further ones, and w if there are constraints."""
        return (*QUANTITIES, *self.further, *((self.wrenches.name,) if self.constraints else ()))

    @cached_property
    def wrenches(self) -> WrenchQuantity:
        """The unknown wrenches of its constraints."""
        return replace(WRENCHES, constraints=tuple((m.name, m.wrench(self.model)) for m in self.constraints))

    def quantity(self, name: str) -> Quantity:
        """The quantity of this name."""
        return self.wrenches if name == self.wrenches.name else QUANTITY[name]

    @cached_property
    def further(self) -> tuple[str, ...]:
        """Further quantities that it states or measures; all others are zero."""
        names = user_defined()
        if not names:
            return ()
        context = Context.at(self.model, *(x.astype(object) for x in self.model.random_state(seed=0)[:2]))
        used = {x for m in self.valued for x, _ in m.rows(context)}
        return tuple(x for x in names if x in used)

    def knows(self, quantity: str) -> frozenset[tuple[int, int]]:
        """(body, component) pairs of `quantity` that are stated."""
        return self._pairs.get(quantity, frozenset())

    @cached_property
    def _pairs(self) -> dict[str, frozenset[tuple[int, int]]]:
        """{quantity: (body, component) of its scalars that raw measurements state exactly}."""
        found: dict[str, set[tuple[int, int]]] = {}
        for m in self.raw:
            found.setdefault(m.quantity, set()).update(m.pairs(self.model))
        return {quantity: frozenset(pairs) for quantity, pairs in found.items()}

    @cached_property
    def known_quantities(self) -> tuple[str, ...]:
        """Quantities among tau, qdd, fx, a, f and further ones that are stated at least in part."""
        return tuple(x for x in (*QUANTITIES, *self.further) if self.knows(x))

    @cached_property
    def inputs(self) -> Groups:
        """Groups of inputs of the problem's programs: all that a call takes, with shapes, labels, units and defaults.

        q, qd, exact quantities at full size, values of other measurements, numbers of each covariance, switches,
        and parameters.
        """
        model = self.model
        groups = [QUANTITY[x].group(model) for x in ("q", "qd")]
        groups += [
            replace(QUANTITY[x].group(model), argument_hint=self._argument_hint(x)) for x in self.known_quantities
        ]
        groups += [replace(value_of(m, model), name=value_group(m.name)) for m in self.custom]
        for m in self.noisy:
            noise = noise_of(m, model)
            groups.append(Group(noise.group, (noise.scalars,), default=noise.declared, label=f"noise[{m.name!r}]"))
        for m in self.switchable:
            size = len(m.components(model))
            groups.append(Group(switch_group(m.name), (size,), default=np.ones(size), label=f"active[{m.name!r}]"))
        return Groups([*groups, *self.parameters])

    def _argument_hint(self, quantity: str) -> str:
        """Arguments of a call that give a known quantity, whole or by its measurements; for messages."""
        shape, known = QUANTITY[quantity].shape(self.model), len(self.knows(quantity))
        count = "" if known == math.prod(shape) else f" of which the {known} known entries count"
        by = ", ".join(f"{m.name!r}: …" for m in self.raw if m.quantity == quantity)
        return f"{quantity}= with shape (…, {', '.join(map(str, shape))}){count}, or y={{{by}}}"

    @property
    def input_sizes(self) -> tuple[tuple[str, int], ...]:
        """(name, scalars) of each group of inputs."""
        return tuple(self.inputs.sizes.items())

    def outputs(self, outputs: Iterable[Output]) -> Groups:
        """Groups of outputs: quantities, w of the constraints, and values of measurements, as a solver gives them."""
        model = self.model
        made = (value_of(x, model) if isinstance(x, Measurement) else self.quantity(x).group(model) for x in outputs)
        return Groups(made)

    @cached_property
    def values(self) -> Groups:
        """Values of measurements by name, in the order of the packed y."""
        return Groups(value_of(m, self.model) for m in self.valued)

    @cached_property
    def state_values(self) -> Groups:
        """Values of the sensors of the state by name, as `values` are of the others."""
        return Groups(value_of(m, self.model) for m in self.state_sensors)

    @property
    def y_names(self) -> tuple[str, ...]:
        """Name of each entry of the packed value y."""
        return tuple(label for x in self.values.values() for label in x.labels)

    @property
    def ny(self) -> int:
        return sum(self.values.sizes.values())

    def pack(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Packed y (…, ny), in the order of `y_names`, of {measurement: (…, m)}; zero for optional ones left out.

        Raises UnknownName, InvalidInput for shapes that do not fit and values that are missing.
        """
        for name in values:
            check_among("measurement", name, self.values)
        parts, leads = [], {}
        for name, group in self.values.items():
            x = float_array(f"y[{name!r}]", values[name]) if name in values else group.require_default()
            parts.append(x)
            leads[f"y[{name!r}]"] = batch_axes(f"y[{name!r}]", x, group.shape)
        lead = broadcast_shapes(leads)
        return np.concatenate([np.zeros((*lead, 0)), *(np.broadcast_to(x, (*lead, x.shape[-1])) for x in parts)], -1)

    def unpack(self, y: np.ndarray) -> dict[str, np.ndarray]:
        """Values {measurement: (…, m)} of a packed y (…, ny), views of it. Raises InvalidInput."""
        y = np.asarray(y)
        batch_axes("y", y, (self.ny,))
        return {name: y[..., place] for name, place in self.values.slices.items()}

    def to_dict(self) -> dict:
        """Plain description (JSON). Raises ProblemError if a measurement has none."""
        described = [description(m, self.model) for m in self.measurements]
        if None in described:
            name = self.measurements[described.index(None)].name
            raise ProblemError(f"measurement {name!r} is custom and cannot be stored in a file")
        names = [p.name for p in self.parameters]
        return {"model": self.model.to_dict(), "measurements": described, "parameters": names}

    @classmethod
    def from_dict(cls, data: dict) -> Self:
        """Inverse of `to_dict`. Raises ProblemError if `data` is something else."""
        try:
            measurements = [restored(m) for m in data["measurements"]]
            return cls(Model.from_dict(data["model"]), measurements, data["parameters"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, SysdynError):
                raise
            raise ProblemError(f"this does not describe a problem: {type(error).__name__} {error}") from error

    @cached_property
    def digest(self) -> str | None:
        """sha256 of model and measurements; None if a measurement has no description."""
        about = [description(m, self.model, placed=True) for m in self.measurements]
        if None in about:
            return None
        names = [self.model.body_names, self.model.joint_names]
        terms = {x: [QUANTITY[x].checked_terms(self.model, i) for i in range(self.model.nb)] for x in self.further}
        loads = [[x, [{k: C.tolist() for k, C in y.items()} for y in bodies]] for x, bodies in terms.items()]
        described = [self.model.digest, names, about, *(p.name for p in self.parameters), *loads]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def tables(self) -> tuple[html.TextTable, html.TextTable]:
        """Tables of its equations with their noise, and of its unknowns."""
        from sysdyn.measurements.overview import equations, unknowns  # rarely needed

        return equations(self.model, self.measurements), unknowns(self.layout())

    def _repr_html_(self) -> str:
        return html.fragment(html.text(repr(self).splitlines()[0]), *map(html.table, self.tables()))

    def __repr__(self) -> str:
        lines = [f"Problem on {self.model.name!r} ({self.model.nb} bodies, {self.model.nv} degrees of freedom)"]
        for m in self.measurements:
            of_state = " of the state" if m.of_state else ""
            lines.append(f"  {m.name}: {len(m.components(self.model))} equations{of_state}")
        return "\n".join(lines)


def switches(active: Mapping[str, ArrayLike] | None) -> Iterable[tuple[str, ArrayLike]]:
    """(name, value) of each switch. Raises InvalidInput if they are not by name."""
    if active is not None and not isinstance(active, Mapping):
        raise InvalidInput(f"active is {{name: true or false}}, not {active!r}")
    return () if active is None else active.items()


def _states(m: Measurement, quantity: str) -> TypeGuard[RawMeasurement]:
    """True if the measurement states scalars of the quantity, and some of them can be removed."""
    return isinstance(m, RawMeasurement) and m.quantity == quantity and m.selectable


def without_components(m: Measurement, other: Measurement, model: Model) -> Measurement | None:
    """The measurement m without the components of `other`; None if nothing is left. Raises ProblemError."""
    names, gone = m.components(model), other.components(model)
    for component in gone:
        if component not in names:
            raise ProblemError(f"{component} cannot be removed from {m.name!r}, which has only {', '.join(names)}")
    kept = [k for k, component in enumerate(names) if component not in gone]
    return m.select(kept) if kept else None
