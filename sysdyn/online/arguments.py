"""Arguments of calls: collected by input group, checked, and laid out for a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, PlausibilityWarning, check_among, warn
from sysdyn.measurements.input_names import VALUE, group_of, switch_group, value_group
from sysdyn.measurements.known_quantities import RawMeasurement
from sysdyn.measurements.noise import FAR, noise_of
from sysdyn.measurements.problem import Problem
from sysdyn.model.positions import normalise_positions, reject_beyond_limits, scalar_first_joint
from sysdyn.model.quantities import KnownQuantities
from sysdyn.online.redundancy import Reduction
from sysdyn.program.arrays import DOUBLES, as_array, batch_axes, broadcast_shapes, float_array, is_masked, reject_masked
from sysdyn.program.autodiff import COTANGENTS, TANGENTS, split_vector_argument
from sysdyn.program.groups import Group, Groups, bind_arguments
from sysdyn.program.labels import array_by_label, as_frame, column_labels, frame_array, match_labels
from sysdyn.runtime.native_calls import Argument, CallPattern

# Values by the name of a measurement, quantity or parameter.
Named: TypeAlias = Mapping[str, ArrayLike]
# Keywords of a call with values {name: array}. `active` has switches; all other keywords are quantities.
_BY_NAME = ("y", "noise", "parameters", TANGENTS, COTANGENTS)
# An array argument: its field of `Arguments`, and its name or position in the field; None if the field is one array.
ArgPath: TypeAlias = tuple[str, Any]


class CallKeywords(KnownQuantities, total=False):
    """Keyword arguments of a call besides q and q̇: known quantities, and values by name; see `Solver.__call__`."""

    y: Named | ArrayLike | None
    noise: Named | None
    active: Named | None
    parameters: Named | None
    tangents: Named | ArrayLike | None
    cotangents: Named | ArrayLike | None


class Arguments(NamedTuple):
    """Arguments of a call as the caller passed them; see `Solver.__call__`.

    known: positional quantities; quantities: keyword quantities.
    """

    q: ArrayLike
    qd: ArrayLike
    known: tuple[ArrayLike, ...] = ()
    quantities: Named = MappingProxyType({})
    y: Named | ArrayLike | None = None
    noise: Named | None = None
    active: Named | None = None
    parameters: Named | None = None
    tangents: Named | ArrayLike | None = None
    cotangents: Named | ArrayLike | None = None

    @classmethod
    def of(cls, q: ArrayLike, qd: ArrayLike, known: tuple[ArrayLike, ...], keywords: Mapping[str, Any]) -> Self:
        """Arguments of a call from its positional and keyword arguments."""
        by_name = {name: keywords[name] for name in (*_BY_NAME, "active") if name in keywords}
        return cls(q, qd, known, {name: x for name, x in keywords.items() if name not in by_name}, **by_name)

    def arrays(self) -> dict[ArgPath, Any]:
        """{(field, name or position in it): array} of all arguments except `active`, in the order of the call."""
        arrays: dict[ArgPath, Any] = {("q", None): self.q, ("qd", None): self.qd}
        for k, x in enumerate(self.known):
            arrays["known", k] = x
        for name, x in self.quantities.items():
            arrays["quantities", name] = x
        for field in _BY_NAME:
            values = getattr(self, field)
            if type(values) is dict:
                for name, x in values.items():
                    arrays[field, name] = x
            elif values is not None:
                arrays[field, None] = values
        return arrays

    def with_arrays(self, arrays: Mapping[ArgPath, Any]) -> Self:
        """The same arguments with other arrays."""
        fields: dict[str, Any] = {"known": {}, "quantities": {}}
        for (field, name), x in arrays.items():
            if name is None:
                fields[field] = x
            else:
                fields.setdefault(field, {})[name] = x
        return self._replace(**fields | {"known": tuple(fields["known"].values())})

    def pattern(self, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> CallPattern:
        """Pattern of calls with the same argument names, `active` and options; defaults: those of the options."""
        by_name: dict[str, Any] = dict.fromkeys(self.quantities, ...)
        for field in _BY_NAME:
            values = getattr(self, field)
            if values is not None:
                by_name[field] = dict.fromkeys(values, ...) if type(values) is dict else ...
        if self.active is not None:
            by_name["active"] = dict(self.active)
        by_name |= {name: x for name, x in options.items() if x is not defaults[name]}
        return CallPattern(2 + len(self.known), by_name, {**dict.fromkeys((*_BY_NAME, "active")), **defaults})


class InputMap(NamedTuple):
    """Map from the array arguments of a call to a row (n_inputs,) of all inputs.

    arguments: shape of each array at one state, and the positions of its entries in the row. constants (n_inputs,):
    values of all other inputs. inactive: positions of the values of switched-off components.
    """

    arguments: list[Argument]
    constants: np.ndarray
    inactive: np.ndarray


class Inputs:
    """Input groups of a problem, and conversion of the arguments of a call to these groups.

    external_wrenches: if False, fx must be zero. check_limits: if True, joints must be within their limits. positional:
    the known quantity that can be a positional argument. vectors: {role: {name: group}} of tangents and cotangents,
    which are inputs, too. reduction: if set, calls take the values of its full problem, and `problem` is its reduced
    problem.
    """

    def __init__(
        self, problem: Problem, external_wrenches: bool = True, check_limits: bool = False,
        vectors: Mapping[str, Mapping[str, Group]] = MappingProxyType({}), reduction: Reduction | None = None,
    ):  # fmt: skip
        self.reduction = reduction
        self.full = Inputs(reduction.full, external_wrenches, check_limits, vectors) if reduction else self
        self.problem, self.external_wrenches, self.check_limits = problem, external_wrenches, check_limits
        self.model = model = problem.model
        self.vectors = {role: dict(vectors.get(role, {})) for role in (COTANGENTS, TANGENTS)}  # as in programs
        self.groups = Groups([*problem.inputs.values(), *(x for own in self.vectors.values() for x in own.values())])
        self.sizes = self.groups.sizes
        self.quaternions = tuple(part for _, part in model.quaternions)
        self.known = problem.known_quantities
        self.positional = _positional(problem)
        self.measurements = {m.name: (m, problem.values[m.name].size) for m in problem.valued}
        self.noises = {m.name: noise_of(m, model) for m in problem.noisy}
        self.switches = {m.name: len(m.components(model)) for m in problem.switchable}
        self._zero_while_on = {m.name for m in problem.switchable if m.zero_by_default}
        self.parameters = {p.name: p for p in problem.parameters}
        self._quaternion_warned, self._followers_warned = not self.quaternions, not problem.couplings

    # ---- checked arguments --------------------------------------------------------------------------------------

    def checked(self, arguments: Arguments) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        """({group: (size,) or (N, size) C-contiguous float64}, batch axes) of a call, with unit quaternions.

        Missing fx and optional measurements are zero; missing covariances and parameters are as declared. The value of
        a switchable measurement may be missing if `active` switches it off.

        Raises InvalidInput that names a missing, duplicate or unknown argument, or one of wrong type or shape.
        """
        if self.reduction:
            arrays, lead = self.full.checked(arguments)
            return self.reduction.reduce(arrays), lead
        arrays, lead = self.arranged(arguments)
        arrays["q"] = normalise_positions(self.model, arrays["q"])
        return arrays, lead

    def arranged(self, arguments: Arguments) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        """`checked` without normalisation of quaternions."""
        arrays, lead = self.groups.normalise_inputs(self.collected(arguments, zero_copy=False))
        self._reject_wrenches(arrays)
        self.warn_if_suspicious(arrays["q"], arrays["qd"])
        self.warn_of_followers(arrays["q"], arrays["qd"])
        for name in self.switches:  # switched-off measurements may be NaN
            off, value = arrays[switch_group(name)] == 0.0, arrays[value_group(name)]
            if off.any() and not np.isfinite(value).all():
                arrays[value_group(name)] = np.where(off & ~np.isfinite(value), 0.0, value)
        return arrays, lead

    def views(self, arguments: Arguments, dtype: np.dtype = DOUBLES) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        """`checked` for bound calls: arrays of this dtype are read in place, without conversions or copies."""
        if self.reduction:
            raise self.reduction.no_bound_calls()
        arrays, lead = self.groups.check_in_place(self.collected(arguments, zero_copy=True), dtype)
        self._reject_wrenches(arrays)
        self.warn_if_suspicious(arrays["q"], arrays["qd"])
        self.warn_of_followers(arrays["q"], arrays["qd"])
        for name in self.switches:  # bound calls do not read measurements that are off at all states
            if not arrays[switch_group(name)].any():
                arrays[value_group(name)] = np.zeros_like(arrays[value_group(name)])
        return arrays, lead

    # ---- map of arrays to inputs --------------------------------------------------------------------------------

    def input_map(self, arrays: Mapping[ArgPath, Any], active: Mapping[str, bool]) -> InputMap | None:
        """Input map of calls with these arrays and switches; None if `checked` must handle the call.

        `checked` handles errors, and arrays that need a conversion or broadcasting.
        """
        if self.reduction or self.check_limits or (not self.external_wrenches and ("quantities", "fx") in arrays):
            return None
        constants = np.zeros(self.groups.size)
        covered = np.zeros(self.groups.size, dtype=bool)
        arguments = []
        for path, x in arrays.items():
            place = self._place(path)
            shape = place and _shape_at_one_state(x, place.shape)
            if not place or shape is None or covered[place.inputs].any():
                return None
            covered[place.inputs] = True
            arguments.append(place._replace(shape=shape))
        measured = {*self.problem.values} if ("y", None) in arrays else {x for field, x in arrays if field == "y"}
        partial = [m for m in self.problem.raw if value_group(m.name) not in self.groups]
        scattered = {m.quantity for m in partial if m.name in measured}
        for name, group in self.groups.items():
            part = self.groups.slices[name]
            if name in scattered:  # unmeasured components are zero
                if group.default is None and any(m.quantity == name and m.name not in measured for m in partial):
                    return None
            elif not covered[part].all():
                if group.default is None and self._is_off(name, active):
                    continue
                if group.default is None or covered[part].any():
                    return None
                constants[part] = group.default
        inactive = np.zeros_like(covered)
        for name, on in active.items():
            if name not in self.switches:
                return None
            constants[self.groups.slices[switch_group(name)]] = on
            inactive[self.groups.slices[value_group(name)]] = not on
        return InputMap(arguments, constants, np.flatnonzero(inactive))

    def _place(self, path: ArgPath) -> Argument | None:
        """Shape of an array at one state, positions of its entries in the row; None if the problem lacks the array."""
        field, name = path
        columns, values = self.groups.columns, self.problem.values
        if field == "known":
            field, name = "quantities", dict(enumerate(self.positional)).get(name)
        if field == "noise":
            noise = self.noises.get(name)
            if noise is None or noise.full:
                return None
            bounds = np.sqrt(noise.declared / FAR), np.sqrt(noise.declared * FAR)
            return Argument((noise.size,), _indices(columns((noise.group,))), bounds)
        if field == "y":
            if name is not None and name not in values:
                return None
            names = (*values,) if name is None else (name,)
            indices = np.concatenate([np.zeros(0, dtype=np.int64), *map(self._value_inputs, names)])
            return Argument((len(indices),) if name is None else values[name].shape, indices)
        if field in self.vectors:
            vectors = self.vectors[field]
            group = next(iter(vectors.values())) if name is None and len(vectors) == 1 else vectors.get(name)
        else:
            known = {"quantities": self.known, "parameters": self.parameters}.get(field, (field,))
            name = field if name is None else name
            group = self.groups[name] if name in known else None
        return Argument(group.shape, _indices(columns((group.name,)))) if group else None

    def _value_inputs(self, name: str) -> np.ndarray:
        """Positions of the components of a measurement's value in the row of all inputs, see `InputMap`."""
        group, m = value_group(name), self.measurements[name][0]
        if group in self.groups or not isinstance(m, RawMeasurement):
            return _indices(self.groups.columns((group,)))
        return self.groups.slices[m.quantity].start + np.array(m.places(self.model), dtype=np.int64)

    def _is_off(self, group: str, active: Mapping[str, bool]) -> bool:
        """True if input `group` is the value of a measurement in `active` that is switched off or zero by default."""
        role, name = group_of(group)
        return role == VALUE and name in active and (not active[name] or name in self._zero_while_on)

    # ---- arguments by group -------------------------------------------------------------------------------------

    def collected(self, arguments: Arguments, zero_copy: bool) -> dict[str, ArrayLike]:
        """{group: value} of all arguments of a call. zero_copy: the arrays of the caller, unchecked and not copied."""
        q, qd, known, quantities, y, noise, active, parameters, *vectors = arguments
        by_group = bind_arguments("the problem", self.known, self.positional, known, quantities, ("q", "qd"))
        if noise is not None:
            self._add_noise(by_group, noise)
        if parameters is not None:
            self._add_parameters(by_group, parameters)
        if y is not None:
            self._add_measured(by_group, y, zero_copy)
        for role, values in zip((TANGENTS, COTANGENTS), vectors, strict=True):
            by_group.update(split_vector_argument(role, self.vectors[role], values))
        by_group |= {"q": q, "qd": qd}
        if active is not None:  # last: the batch axes of all other arguments decide its shape
            self._add_switches(by_group, active)
        self._add_switched(by_group)
        return by_group

    def _add_noise(self, by_group: dict[str, ArrayLike], noise: Named) -> None:
        """Add packed covariances from {measurement: standard deviations or covariance}."""
        for name, x in _by_name("noise", noise, "noisy measurement", self.noises):
            by_group[self.noises[name].group] = self.noises[name].numbers(reject_masked(f"noise[{name!r}]", x), 0.0)

    def _add_parameters(self, by_group: dict[str, ArrayLike], parameters: Named) -> None:
        """Add model parameters from {name: (…, size)}."""
        by_group.update(_by_name("parameters", parameters, "parameter that is an input", self.parameters))

    def _add_switches(self, by_group: dict[str, ArrayLike], active: Named) -> None:
        """Add switches, 1 or 0 per component, from {measurement: (…) or (…, m)}.

        by_group: all other arguments. Components that are masked in y stay switched off.
        """
        values = {}
        for name, value in _by_name("active", active, "switchable measurement", self.switches):
            values[name] = x = as_array(f"active[{name!r}]", value)
            if x.dtype.kind not in "biuf" or not np.isin(x, (0, 1)).all():
                raise InvalidInput(f"active[{name!r}] must be made of true and false (or 1 and 0)")
        # arrays that cannot have an axis of components come first: they may add batch axes
        for name in sorted(values, key=lambda name: values[name].shape[-1:] == (self.switches[name],)):
            x, size = values[name], self.switches[name]
            if x.shape[-1:] != (size,) or _by_state(f"active[{name!r}]", x.shape, size, self._lead(by_group)):
                x = np.repeat(x[..., None], size, axis=-1)
            try:
                by_group[switch_group(name)] = x * np.asarray(by_group.get(switch_group(name), 1.0))
            except ValueError:
                raise InvalidInput(
                    f"active[{name!r}] has shape {values[name].shape}, which does not fit the masked y[{name!r}] of "
                    f"shape {np.shape(by_group[switch_group(name)])}"
                ) from None

    def _lead(self, by_group: Mapping[str, ArrayLike]) -> tuple[int, ...]:
        """Batch axes to which the values of all groups broadcast. Raises InvalidInput."""
        leads = {}
        for name, value in by_group.items():
            try:
                shape, own = np.shape(value), self.groups[name].shape
            except ValueError:
                continue  # a ragged list: rejected later
            leads[self.groups[name].display_name] = shape[: -len(own)] if shape[-len(own) :] == own else shape[:-1]
        return broadcast_shapes(leads)

    def _add_switched(self, by_group: dict[str, ArrayLike]) -> None:
        """Add zeros for measurements that have a switch but no value in this call.

        Raises InvalidInput if such a measurement is on, unless its value is zero by default.
        """
        for name, size in self.switches.items():
            if value_group(name) in by_group or switch_group(name) not in by_group:
                continue
            if name not in self._zero_while_on and np.any(by_group[switch_group(name)]):
                how = self.problem.values[name].argument_hint
                raise InvalidInput(f"{name!r} is switched on, but no value was given for it: pass {how}")
            by_group[value_group(name)] = np.zeros(size)

    # ---- values of measurements ---------------------------------------------------------------------------------

    def _add_measured(self, by_group: dict[str, ArrayLike], y: Named | ArrayLike, zero_copy: bool) -> None:
        """Add values of measurements; those of exact quantities are scattered into full-size arrays."""
        parts: dict[str, list[tuple[RawMeasurement, np.ndarray]]] = {}
        for name, value in (y if isinstance(y, Mapping) else self._unpacked(y)).items():
            check_among("measurement", name, self.measurements)
            m = self.measurements[name][0]
            if not zero_copy and (frame := as_frame(value)) is not None:
                value = array_by_label(f"y[{name!r}]", frame, self.problem.values[name].labels)
            elif not zero_copy and name in self.switches and is_masked(value):
                value = self._switched_off(by_group, name, value)
            x = value if zero_copy else self._sized(name, value)
            if not isinstance(m, RawMeasurement) or value_group(name) in self.sizes:
                by_group[value_group(name)] = x
            elif zero_copy:
                raise InvalidInput(
                    f"bind reads arrays in place: instead of y[{name!r}] hand in {m.quantity}= at full size"
                )
            elif m.quantity in by_group:
                raise InvalidInput(f"{m.quantity} is given twice: as {m.quantity}= and in y[{name!r}]")
            else:
                parts.setdefault(m.quantity, []).append((m, np.asarray(x)))
        for quantity, values in parts.items():
            by_group[quantity] = self._scattered(quantity, values)

    def _unpacked(self, y: Any) -> dict[str, np.ndarray]:
        """Unpack y to {measurement: (…, m)}; masks are kept, and a DataFrame may lack measurements."""
        if is_masked(y):
            gone = self.problem.unpack(np.ma.getmaskarray(y))
            parts = self.problem.unpack(np.ma.getdata(y))
            return {name: np.ma.array(x, mask=gone[name]) for name, x in parts.items()}
        frame = as_frame(y)
        if frame is None:
            return self.problem.unpack(float_array("y", y))
        columns = {name: group.labels for name, group in self.problem.values.items()}
        places = match_labels("y", column_labels(frame), [c for names in columns.values() for c in names])
        begin, values, result = 0, frame_array("y", frame), {}
        for name, names in columns.items():
            at = range(begin, begin + len(names))
            begin += len(names)
            missing = [c for c, k in zip(names, at, strict=True) if k not in places]
            if not missing:
                result[name] = values[..., [places[k] for k in at]]
            elif len(missing) < len(names):
                raise InvalidInput(f"y lacks the columns {', '.join(missing)}")
        return result

    def _switched_off(self, by_group: dict[str, ArrayLike], name: str, value: Any) -> np.ndarray:
        """Convert the mask of a value to switches; return the value with zeros at masked components."""
        x: Any = np.ma.asarray(value)
        by_group[switch_group(name)] = np.where(np.ma.getmaskarray(x), 0.0, 1.0)
        return x.filled(0)

    def _scattered(self, quantity: str, values: list[tuple[RawMeasurement, np.ndarray]]) -> np.ndarray:
        """Assemble a quantity (…, size) from measurements of its components; unmeasured components are zero."""
        stated = [m for m, _ in values]
        absent = [m.name for m in self.problem.raw if m.quantity == quantity and all(m is not p for p in stated)]
        if absent and self.groups[quantity].default is None:
            raise InvalidInput(
                f"no value for measurement {', '.join(map(repr, absent))}: y needs all of those of {quantity}"
            )
        lead = broadcast_shapes({f"y[{m.name!r}]": v.shape[:-1] for m, v in values})
        array = np.zeros((*lead, self.sizes[quantity]))
        for m, value in values:
            array[..., m.places(self.model)] = value
        return array

    def _sized(self, name: str, value: ArrayLike) -> np.ndarray:
        """Value (…, size) of a measurement. Raises InvalidInput for another shape."""
        x = float_array(f"y[{name!r}]", value)
        batch_axes(f"y[{name!r}]", x, self.problem.values[name].shape)
        return x

    def warn_if_suspicious(self, q: np.ndarray, qd: np.ndarray) -> None:
        """Raise InvalidInput for joints beyond limits if `check_limits`; warn of scalar-first quaternions."""
        model = self.problem.model
        if self.check_limits:
            reject_beyond_limits(model, self.problem.imposed(q, np.zeros((*q.shape[:-1], model.nv)))[0])
        if not self._quaternion_warned and (joint := scalar_first_joint(model, q, qd)):
            self._quaternion_warned = True
            warn(
                f"the quaternion of joint {joint!r} is (1, 0, 0, 0) at rest: quaternions are x, y, z, w here, so that "
                "this is half a turn about x. No rotation is (0, 0, 0, 1); np.roll(quaternion, -1) turns w, x, y, z",
                PlausibilityWarning,
            )  # fmt: skip

    def warn_of_followers(self, q: np.ndarray, qd: np.ndarray) -> None:
        """Warn once if q or q̇ of a follower contradicts its leader."""
        if self.problem.couplings and not self._followers_warned:
            from sysdyn.online.constraint_errors import warn_of_followers

            self._followers_warned = warn_of_followers(self.problem, q, qd)

    def _reject_wrenches(self, arrays: dict[str, np.ndarray]) -> None:
        if not self.external_wrenches and "fx" in arrays and arrays["fx"].any():
            raise InvalidInput("fx is not zero, but the solver was compiled with external_wrenches=False")


def _positional(problem: Problem) -> tuple[str, ...]:
    """Known quantity that calls take by position: the only one, or the only one without a default; else ()."""
    known = problem.known_quantities
    needed = tuple(x for x in known if problem.inputs[x].default is None)
    return needed if len(needed) == 1 else known if len(known) == 1 else ()


def _indices(columns: slice | np.ndarray) -> np.ndarray:
    return np.arange(columns.start, columns.stop) if isinstance(columns, slice) else columns


def _shape_at_one_state(x: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """`shape`, or its flattened form, if x has it at one state; None if x has another shape or needs a conversion."""
    if type(x) is float:  # a standard deviation
        return shape
    if type(x) in (list, tuple):
        return shape if _lengths(x) == shape else None
    if type(x) is not np.ndarray or not x.size:
        return None
    flat = (math.prod(shape),)
    return next((own for own in (shape, flat) if own in (x.shape, x.shape[1:])), None)


def _lengths(x: Any) -> tuple[int, ...]:
    """Lengths of nested lists and tuples along their first entries."""
    return (len(x), *_lengths(x[0])) if type(x) in (list, tuple) and len(x) else ()


def _by_state(name: str, shape: tuple[int, ...], size: int, lead: tuple[int, ...]) -> bool:
    """True if the last axis of an array (…, size) is a batch axis; False if it is the axis of components.

    lead: the batch axes of all other arguments. Raises InvalidInput if both interpretations fit them.
    """
    states, components = (
        len(x) <= len(lead) and all(a in (1, b) for a, b in zip(x[::-1], lead[::-1], strict=False))
        for x in (shape, shape[:-1])
    )
    same = shape == lead and (len(lead) > 1 or size == 1)
    if states and components and not same:
        raise InvalidInput(
            f"{name} has shape {shape}, whose last axis may mean {size} states or {size} components: pass an array of "
            f"shape {(*lead, size)}, states by components"
        )
    return states and (same or not components)


def _by_name(argument: str, values: Named, kind: str, valid: Mapping) -> Iterable[tuple[str, ArrayLike]]:
    """Pairs (name, value) of a {name: value} argument. Raises InvalidInput, UnknownName."""
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{argument} is {{name: value}}, not {values!r}")
    for name in values:
        check_among(kind, name, valid)
    return values.items()
