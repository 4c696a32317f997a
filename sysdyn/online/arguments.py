"""Values handed to a compiled problem: collected by group, checked, and laid out for a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.backends.executable import is_plain
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.columns import column_names, measured_columns
from sysdyn.measurements.groups import label_of, switch_group, value_group
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.raw import RawMeasurement
from sysdyn.measurements.variables import QUANTITIES, WRENCHES, flat_place
from sysdyn.online.labels import by_label, frame_of, labels_of, numbers, places
from sysdyn.problem import Problem

# Values are given by the name of a measurement, quantity or parameter.
Named: TypeAlias = Mapping[str, ArrayLike]
# Arrays go by the name of a group of inputs or outputs.
Arrays: TypeAlias = dict[str, np.ndarray]


class Arguments(NamedTuple):
    """What a call is given, by kind, as it was handed in; see `Solver.__call__`.

    known: quantities by position; quantities: the same by keyword.
    """

    q: ArrayLike
    qd: ArrayLike
    known: tuple[ArrayLike, ...]
    quantities: Named
    y: Named | ArrayLike | None = None
    noise: Named | None = None
    active: Named | None = None
    parameters: Named | None = None


class Inputs:
    """The input groups of a problem: q, q̇, each known quantity at full size, each custom measurement.

    wrenches: False where external ones have to be zero.
    """

    def __init__(self, problem: Problem, wrenches: bool = True):
        self.problem, self.wrenches = problem, wrenches
        self.model = model = problem.model
        self.sizes = dict(problem.input_sizes)
        self.quaternions = tuple(
            slice(model.q_slice(i).start + joint.quaternion.start, model.q_slice(i).start + joint.quaternion.stop)
            for i, joint in enumerate(model.joints)
            if joint.quaternion is not None
        )
        optional = (m.name for m in problem.custom if m.has_default)
        self.optional = {"fx", *map(value_group, optional)}
        self.positional = tuple(x for x in QUANTITIES if x in problem.known_quantities)
        self.measurements = {m.name: (m, len(m.components(model))) for m in problem.valued}
        self.noises = {m.name: noise_of(m, model) for m in problem.noisy}
        self.switches = {m.name: len(m.components(model)) for m in problem.switchable}
        self.declared = {p.name: p.declared for p in problem.parameters}

    def shape(self, name: str, size: int) -> tuple[int, ...]:
        """Shape of the group `name` of `size` scalars at one state."""
        return (self.model.nb, 6) if name in WRENCHES else (size,)

    # ---- of a call ----------------------------------------------------------------------------------------------

    def checked(self, arguments: Arguments) -> tuple[Arrays, tuple[int, ...]]:
        """({group: (size,) or (N, size) C-contiguous float64}, leading axes), with unit quaternions.

        fx and optional measurements are zero where they are missing, covariances and parameters as declared.

        Raises InvalidInput naming a value that is missing, double, not known, or of another type or shape.
        """
        arrays, lead = self.arranged(arguments)
        if self.quaternions:
            arrays["q"] = self._normalised(arrays["q"])
        return arrays, lead

    def arranged(self, arguments: Arguments) -> tuple[Arrays, tuple[int, ...]]:
        """As `checked`, with quaternions as they are."""
        given = self._collected(arguments, keep=False)
        for name in ("q", "qd", *self.positional):
            if (frame := frame_of(given[name])) is not None:
                given[name] = by_label(name, frame, column_names(self.model, name))
        arrays, lead = self._broadcast(given)
        for name in self.switches:  # what is off may be anything
            off, value = arrays[switch_group(name)] == 0.0, arrays[value_group(name)]
            if off.any() and not np.isfinite(value).all():
                arrays[value_group(name)] = np.where(off & ~np.isfinite(value), 0.0, value)
        return arrays, lead

    def in_place(self, arguments: Arguments) -> tuple[Arrays, tuple[int, ...]]:
        """As `checked`, but for arrays that are kept and read in place: nothing is converted or copied."""
        arrays: Arrays = {}
        numbers = set()
        for name, x in self._collected(arguments, keep=True).items():
            size = self.sizes[name]
            shape = self.shape(name, size)
            if not is_plain(x):
                raise InvalidInput(
                    f"bind keeps {label_of(name)} and reads it in place: it must be a C-contiguous float64 array, not "
                    "masked"
                )
            self._reject_wrenches(name, x)
            single = x.shape in ((size,), shape)
            if not single and x.shape[1:] not in ((size,), shape):
                raise InvalidInput(f"{name} has shape {x.shape}, but {shape} or (N, …) is needed")
            arrays[name] = x.reshape(size) if single else x.reshape(len(x), size)
            if not single:
                numbers.add(len(x))
        if len(numbers) > 1:
            raise InvalidInput(f"the arrays hold different numbers of states: {sorted(numbers)}")
        for name in self.switches:  # what is off for good is not read
            if not arrays[switch_group(name)].any():
                arrays[value_group(name)] = np.zeros_like(arrays[value_group(name)])
        return arrays, tuple(numbers)

    # ---- by name ------------------------------------------------------------------------------------------------

    def _collected(self, arguments: Arguments, keep: bool) -> dict[str, ArrayLike]:
        """The value of every group. keep: arrays stay the ones they are."""
        q, qd, known, quantities, y, noise, active, parameters = arguments
        given = self._quantities(known, quantities)
        if self.noises or noise is not None:
            self._add_noise(given, {} if noise is None else noise)
        if self.switches or active is not None:
            self._add_switches(given, {} if active is None else active)
        if self.declared or parameters is not None:
            self._add_parameters(given, {} if parameters is None else parameters)
        if y is not None:
            self._add_measured(given, y, keep)
        given["q"], given["qd"] = q, qd
        return {name: given[name] if name in given else self._default(name) for name in self.sizes}

    def _quantities(self, known: tuple[ArrayLike, ...], quantities: Named) -> dict[str, ArrayLike]:
        """Known quantities, by position and by keyword."""
        given = dict(quantities)
        if len(known) > len(self.positional):
            raise InvalidInput(
                f"{len(known)} known quantities were given by position, but the problem knows only "
                f"{', '.join(self.positional) or 'none'}"
            )
        for name, value in zip(self.positional, known, strict=False):
            if name in given:
                raise InvalidInput(f"{name} is given twice: by position and by keyword")
            given[name] = value
        for name in given:
            if name not in self.positional:
                raise UnknownName("known quantity", name, self.positional)
        return given

    def _default(self, name: str) -> np.ndarray:
        """The value of a group that was not given."""
        if name not in self.optional:
            what = f"{name}=" if label_of(name) == name else f"y={{{label_of(name)!r}: …}}"
            raise InvalidInput(f"the problem knows {label_of(name)!r}, but no value was given: pass {what}")
        return np.zeros(self.sizes[name])

    def _add_noise(self, given: dict[str, ArrayLike], noise: Named) -> None:
        """The numbers of each covariance, as declared or as in {measurement: standard deviations or covariance}."""
        if not isinstance(noise, Mapping):
            raise InvalidInput(f"noise is {{measurement name: standard deviation or covariance}}, not {noise!r}")
        for name in noise:
            if name not in self.noises:
                raise UnknownName("noisy measurement", name, self.noises)
        for name, x in self.noises.items():
            given[x.group] = x.numbers(unmasked(f"noise[{name!r}]", noise[name])) if name in noise else x.declared

    def _add_parameters(self, given: dict[str, ArrayLike], parameters: Named) -> None:
        """Parameters of the model that are inputs: as the model has them, or as in {name: (…, size)}."""
        if not isinstance(parameters, Mapping):
            raise InvalidInput(f"parameters is {{name: value}}, not {parameters!r}")
        for name in parameters:
            if name not in self.declared:
                raise UnknownName("parameter that is an input", name, self.declared)
        given |= {**self.declared, **parameters}

    def _add_switches(self, given: dict[str, ArrayLike], active: Named) -> None:
        """1 or 0 for each component that can be switched off, as in {measurement: (…) or (…, m)}; 1 by default."""
        sizes = self.switches
        if not isinstance(active, Mapping):
            raise InvalidInput(f"active is {{measurement name: true or false}}, not {active!r}")
        for name in active:
            if name not in sizes:
                raise UnknownName("switchable measurement", name, sizes)
        for name, size in sizes.items():
            x = np.asarray(unmasked(f"active[{name!r}]", active.get(name, True)))
            if x.dtype.kind not in "biuf" or not np.isin(x, (0, 1)).all():
                raise InvalidInput(f"active[{name!r}] must be made of true and false (or 1 and 0)")
            whole = x.ndim == 0 or x.shape[-1] != size
            given[switch_group(name)] = (
                np.repeat(x[..., None], size, axis=-1).astype(float) if whole else x.astype(float)
            )

    # ---- values of measurements ---------------------------------------------------------------------------------

    def _add_measured(self, given: dict[str, ArrayLike], y: Named | ArrayLike, keep: bool) -> None:
        """Values by measurement; those of exact quantities are scattered into groups of full size."""
        parts: dict[str, list[tuple[RawMeasurement, np.ndarray]]] = {}
        for name, value in (y if isinstance(y, Mapping) else self._unpacked(y)).items():
            if name not in self.measurements:
                raise UnknownName("measurement", name, self.measurements)
            m, size = self.measurements[name]
            if not keep and (frame := frame_of(value)) is not None:
                value = by_label(f"y[{name!r}]", frame, measured_columns([m], self.model)[name])
            elif not keep and name in self.switches and np.ma.is_masked(value):
                value = self._switched_off(given, name, value)
            x = value if keep else _sized(name, value, size)
            if not isinstance(m, RawMeasurement) or value_group(name) in self.sizes:
                given[value_group(name)] = x
            elif keep:
                raise InvalidInput(
                    f"bind reads arrays in place: instead of y[{name!r}] hand in {m.quantity}= at full size"
                )
            elif m.quantity in given:
                raise InvalidInput(f"{m.quantity} is given twice: as {m.quantity}= and in y[{name!r}]")
            else:
                parts.setdefault(m.quantity, []).append((m, np.asarray(x)))
        for quantity, values in parts.items():
            given[quantity] = self._scattered(quantity, values)

    def _unpacked(self, y: Any) -> dict[str, np.ndarray]:
        """{measurement: (…, m)} of a packed y, of a masked one with its masks, or of a DataFrame of some or all."""
        if np.ma.is_masked(y):
            gone = self.problem.unpack(np.ma.getmaskarray(y))
            parts = self.problem.unpack(np.ma.getdata(y))
            return {name: np.ma.array(x, mask=gone[name]) for name, x in parts.items()}
        frame = frame_of(y)
        if frame is None:
            return self.problem.unpack(real("y", y))
        columns = {name: measured_columns([m], self.model)[name] for name, (m, _) in self.measurements.items()}
        found = places("y", labels_of(frame), [c for names in columns.values() for c in names])
        begin, values, result = 0, numbers("y", frame), {}
        for name, names in columns.items():
            at = range(begin, begin + len(names))
            begin += len(names)
            missing = [c for c, k in zip(names, at, strict=True) if k not in found]
            if not missing:
                result[name] = values[..., [found[k] for k in at]]
            elif len(missing) < len(names):
                raise InvalidInput(f"y lacks the columns {', '.join(missing)}")
        return result

    def _switched_off(self, given: dict[str, ArrayLike], name: str, value: Any) -> np.ndarray:
        """The value without its mask, which switches components off."""
        x: Any = np.ma.asarray(value)
        try:
            given[switch_group(name)] = np.where(np.ma.getmaskarray(x), 0.0, given[switch_group(name)])
        except ValueError:
            raise InvalidInput(f"y[{name!r}] has shape {x.shape}, which does not fit active[{name!r}]") from None
        return x.filled(0)

    def _scattered(self, quantity: str, values: list[tuple[RawMeasurement, np.ndarray]]) -> np.ndarray:
        """(…, size) of a quantity whose components several measurements state; fx is zero where none does."""
        given = [m for m, _ in values]
        absent = [m.name for m in self.problem.raw if m.quantity == quantity and all(m is not p for p in given)]
        if absent and quantity != "fx":
            raise InvalidInput(
                f"no value for measurement {', '.join(map(repr, absent))}: y needs all of those of {quantity}"
            )
        try:
            lead = np.broadcast_shapes(*(v.shape[:-1] for _, v in values))
        except ValueError:
            raise InvalidInput(
                f"the leading (batch) axes of the values of {quantity} in y do not fit together"
            ) from None
        array = np.zeros((*lead, self.sizes[quantity]))
        for m, value in values:
            array[..., [flat_place(self.model, quantity, i, k) for i, k in m.pairs(self.model)]] = value
        return array

    # ---- by shape -----------------------------------------------------------------------------------------------

    def _broadcast(self, given: Mapping[str, ArrayLike]) -> tuple[Arrays, tuple[int, ...]]:
        """({group: (size,) or (N, size) C-contiguous float64}, leading axes)."""
        arrays: Arrays = {}
        leads: list[tuple[str, tuple[int, ...]]] = []
        for name, value in given.items():
            if type(value) is np.ndarray and value.dtype == np.float64:
                x = value
            else:
                x = real(label_of(name), value)
            self._reject_wrenches(name, x)
            if x.shape == (self.sizes[name],):
                arrays[name] = x if x.flags.c_contiguous else np.ascontiguousarray(x)
            else:
                arrays[name] = x
                leads.append((name, self._leading(name, x)))
        if not leads:
            return arrays, ()
        try:
            lead = np.broadcast_shapes(*(shape for _, shape in leads))
        except ValueError:
            shown = ", ".join(f"{name} {shape}" for name, shape in leads)
            raise InvalidInput(f"the leading (batch) axes do not fit together: {shown}") from None
        for name, own in leads:
            x, size = arrays[name], self.sizes[name]
            if all(k == 1 for k in own):
                arrays[name] = np.ascontiguousarray(x.reshape(size))
                continue
            if own != lead:
                x = np.broadcast_to(x, lead + x.shape[len(own) :])
            arrays[name] = np.ascontiguousarray(x.reshape(math.prod(lead), size))  # size may be 0
        return arrays, lead

    def _leading(self, name: str, x: np.ndarray) -> tuple[int, ...]:
        """The batch axes of the value of a group."""
        shape = self.shape(name, self.sizes[name])
        lead = x.shape[: -len(shape)]
        if lead + shape == x.shape:
            return lead
        if x.shape[-1:] == (self.sizes[name],) and name in WRENCHES:  # wrenches may be flat
            return x.shape[:-1]
        wanted = "(…, " + ", ".join(map(str, shape)) + ")"
        raise InvalidInput(f"{label_of(name)} has shape {x.shape}, but {wanted} is needed")

    def _reject_wrenches(self, name: str, x: np.ndarray) -> None:
        if name == "fx" and not self.wrenches and x.any():
            raise InvalidInput("fx is not zero, but the solver was compiled with wrenches=False: compile it without")

    def _normalised(self, q: np.ndarray) -> np.ndarray:
        """q with unit quaternions; values that are not finite stay, for the kernel to find."""
        if q.ndim == 1:  # one state: plain floats are several times faster than array operations
            norms = (sum(x * x for x in q[s].tolist()) for s in self.quaternions)
            if all(abs(norm - 1.0) < 1e-15 or norm != norm for norm in norms):
                return q
        elif not np.isfinite(q).all():
            return q
        return self.model.normalise(q)

    # ---- errors for bad values ----------------------------------------------------------------------------------

    def reject_not_finite(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raise InvalidInput naming the first entry that is infinite or not a number."""
        for name, x in arrays.items():
            finite = np.isfinite(x)
            if not finite.all():
                where = tuple(int(k) for k in np.argwhere(~finite)[0])
                at = f"state {where[0]}, entry {where[1]}" if len(where) == 2 else f"entry {where[0]}"
                raise InvalidInput(f"{label_of(name)} is {x[where]} at {at}: every input must be finite")

    def reject_large_angles(self, q: np.ndarray, largest: float) -> None:
        """Raise InvalidInput naming a joint whose angle is beyond `largest` [rad]."""
        q = np.atleast_2d(q)
        for i, joint in enumerate(self.model.joints):
            block = np.abs(q[:, self.model.q_slice(i)])
            for k in joint.angles:
                if (block[:, k] > largest).any():
                    raise InvalidInput(
                        f"the angle of joint {self.model.joint_names[i]!r} is {block[:, k].max():.3g} rad: "
                        f"beyond {largest:.0e} its sine has no meaning; reduce it modulo 2π"
                    )


def _sized(name: str, value: ArrayLike, size: int) -> np.ndarray:
    """The value (…, size) of a measurement."""
    x = real(f"y[{name!r}]", value)
    if x.shape[-1:] != (size,):
        raise InvalidInput(f"y[{name!r}] has shape {x.shape}, but its last axis must be {size}")
    return x


def real(name: str, x: ArrayLike | None) -> np.ndarray:
    """x as float64. Raises InvalidInput where it is not an array of real numbers."""
    if x is None:
        raise InvalidInput(f"{name} is None: an array is needed")
    try:
        array = np.asarray(unmasked(name, x))
    except ValueError as error:
        raise InvalidInput(f"{name} is not a regular array of numbers: {error}") from error
    except Exception as error:  # each library raises its own where a symbol or tracer has no value
        raise InvalidInput(
            f"{name} is a {type(x).__module__}.{type(x).__name__} without numbers of its own: a solver takes values. "
            "Inside jax.jit and the like call it through jax.pure_callback, with solver.derivatives() for its "
            f"derivatives; solver.to_casadi() is for symbols ({type(error).__name__})"
        ) from error
    if array.dtype.kind not in "fiu":
        raise InvalidInput(f"{name} has type {array.dtype}, but real numbers are needed")
    return array.astype(np.float64)


def unmasked(name: str, x: Any) -> Any:
    """x itself. Raises InvalidInput where entries are masked."""
    if np.ma.is_masked(x):
        raise InvalidInput(
            f"{name} has masked entries, which are missing: only values of Switchable measurements may be, by name in y"
        )
    return x
