"""Calls of a compiled program: checked calls for single states and batches, and bound calls without checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from sysdyn.errors import InvalidInput, SingularState, UnknownName
from sysdyn.measurements.input_names import label_of
from sysdyn.model.positions import reject_large_angles
from sysdyn.online.arguments import ArgPath, Arguments, InputMap, Inputs
from sysdyn.online.redundancy import FullSystem
from sysdyn.online.states import StateInputs
from sysdyn.program.arrays import is_readable_in_place
from sysdyn.program.groups import Arrays, Groups
from sysdyn.program.opcodes import BAD_INPUT, BAD_PIVOT, WEAK_PIVOT
from sysdyn.runtime.native import extension
from sysdyn.runtime.native_calls import Batch, CallPattern, ResultLayout, batch, single_state_call
from sysdyn.runtime.runner import BoundCall, Runner, check_threads, require_disjoint

if TYPE_CHECKING:  # rarely needed
    from sysdyn.diagnosis.switches import Switches

# Most call signatures with a fast path (chosen).
MAX_SIGNATURES = 64

Key = TypeVar("Key", bound=Hashable)


class Result(StateInputs):
    """Outputs, status and inputs of a call at N states; inputs are converted at their first request.

    Attributes
    ----------
    inputs : dict of arrays
        {input name in programs: (size,) or (N, size)} in SI units, defaults included.
    lead : tuple of int
        Batch axes of the call; their product is N.
    outputs : dict of arrays
        {output name in programs: array of N states}.
    status : (N,) int64 array
        Bits of `sysdyn.program.opcodes`, zero for solved states.
    flagged : (N,) bool array or None
        True where the kernel reported a nonzero status, even if a fallback solved the state; None if nowhere.
    undetermined : tuple of str
        Names of constraint wrenches that are undetermined at some states and have minimum norm there.
    full_system : FullSystem or None
        The unreduced problem with its redundant equations, at these states.
    """

    undetermined: tuple[str, ...] = ()
    full_system: FullSystem | None = None

    def __init__(
        self, inputs: Arrays | Callable[[], Arrays], lead: tuple[int, ...], outputs: dict[str, np.ndarray],
        status: np.ndarray, flagged: np.ndarray | None = None,
    ):  # fmt: skip
        self._inputs, self.n = inputs, len(status)
        self.lead, self.outputs, self.status, self.flagged = lead, outputs, status, flagged

    @property
    def ok(self) -> np.ndarray:
        """(…) bool: the state was solved."""
        return (self.status == 0).reshape(self.lead)[()]


def copied(arrays: Mapping[Key, Any]) -> dict[Key, Any]:
    """Copy arrays for results, because callers may overwrite theirs."""
    return {name: np.array(x, order="C") for name, x in arrays.items()}


def unchanged(
    arrays: Mapping[Key, Any], outputs: Arrays, repeat: Callable[[Mapping[Key, Any]], Arrays | None]
) -> dict[Key, Any]:
    """Copies of the arguments of a call that did not copy them, for requests to its result.

    repeat: computes the outputs again. Raises InvalidInput if the copies do not give `outputs`: arrays have changed.
    """
    copies = copied(arrays)
    repeated = repeat(copies)
    if repeated is None or not all(np.array_equal(x, outputs[name]) for name, x in repeated.items()):
        raise InvalidInput(
            "arrays of this call, or of its results, have changed since, and this request needs both: make it before "
            "they change, or pass copies"
        )
    return copies


class BatchCall:
    """Batch calls of a program for one set of argument names; the kernel reads the arrays in place."""

    def __init__(self, runner: Runner, input_map: InputMap, quaternions: list[int]):
        self._runner, self._map, self._quaternions = runner, input_map, quaternions
        self._axes = [len(x.shape) for x in input_map.arguments]

    @cached_property
    def _native(self) -> Batch | None:
        real = self._runner.backend.real.dtype
        constants = self._map.constants.astype(real)
        return batch(self._runner.backend, self._map.arguments, constants, self._quaternions)

    def __call__(
        self,
        arrays: tuple,
        threads: int | None,
        outputs: dict[str, np.ndarray] | None = None,
        rows: np.ndarray | None = None,
    ) -> tuple[bool, dict[str, np.ndarray], np.ndarray] | None:
        """Run N states: (all statuses are 0, outputs, status (N,)), or None if an array needs a conversion or N = 1.

        threads: number of threads; None chooses it by the amount of work. outputs: arrays to write to; default: new
        ones. rows (k,): run only the states in these rows of the arrays and outputs; status is (k,).
        """
        axes = zip(arrays, self._axes, strict=True)
        n = next((len(x) for x, k in axes if type(x) is np.ndarray and x.ndim > k), 1)
        if n < 2 or self._native is None:
            return None
        n = n if rows is None else len(rows)
        if outputs is None:
            outputs, status = self._runner.backend.allocate_results(n)
        else:
            status = np.empty(n, dtype=np.int64)
        threads = self._runner.choose_threads(n, threads)
        call = partial(self._native, outputs, status, arrays, rows=rows)
        done = call() if threads == 1 else self._runner.run_work_stealing(n, threads, call)
        return None if done is None else (done, outputs, status)


class Calls(Generic[Key]):
    """Calls of a program with checked arguments.

    results: {output group: (key in results, shape at one state)}. result_type: type of single-state results, see
    `ResultLayout`. policy: default of `on_singular`.
    single_state: native single-state calls, one per set of argument names, added at the first such call.
    """

    def __init__(
        self, inputs: Inputs, runner: Runner, results: Mapping[str, tuple[Key, tuple[int, ...]]],
        result_type: type = dict, policy: str | None = None,
    ):  # fmt: skip
        self.inputs, self._runner, self._results = inputs, runner, dict(results)
        inputs.groups = Groups(inputs.groups[name] for name in runner.program.inputs)  # in the order of the program
        self._result_type, self._policy = result_type, policy
        self.groups = {key: (group, shape) for group, (key, shape) in self._results.items()}
        self._batches: dict[Hashable, BatchCall | None] = {}
        self.single_state: list[extension.SingleStateCall] = []

    # ---- calls with checks --------------------------------------------------------------------------------------

    def run(
        self, arguments: Arguments, threads: int | None = None, on_singular: str | None = None, context: object = None
    ) -> Result:
        """Run the program at the states of a call, and prepare a fast path for calls with the same argument names.

        Results answer for the arguments of their call. A batch whose arrays are read in place copies them only for the
        fallback of flagged states, or at the first request for its inputs, which checks that they are `unchanged`.

        context: stored in single-state results, see `ResultLayout`. Raises InvalidInput that names the argument.
        """
        if threads is not None:
            check_threads(threads)
        arrays = arguments.arrays()
        call = self.batch_call(arguments, arrays, threads, on_singular, context)
        batch_result = call(tuple(arrays.values()), threads) if call else None
        if call is None or batch_result is None:
            return self._run_checked(arguments, threads)
        solved, outputs, status = batch_result
        if not solved and (status & BAD_INPUT).any():  # perhaps of a switched-off component
            return self._run_checked(arguments, threads)
        if arguments.active:
            arguments = arguments._replace(active=dict(arguments.active))
        if solved:
            inputs = partial(self._unchanged_inputs, arguments, arrays, call, outputs)
        else:
            inputs = partial(self._inputs_of, arguments, copied(arrays))
        return Result(inputs, (len(status),), outputs, status, None if solved else status != 0)

    def _run_checked(self, arguments: Arguments, threads: int | None) -> Result:
        """`run` without the fast path, for arguments of any form."""
        full, lead = self.inputs.full.checked(arguments)
        arrays, reduction = full, self.inputs.reduction
        if reduction:
            self.inputs.full.groups.reject_not_finite(full)
            arrays = reduction.reduce(full)
        outputs, status = self._runner.results(arrays, math.prod(lead), threads)
        for name in arguments.noise or ():
            noise = self.inputs.noises[name]
            status[np.broadcast_to(noise.is_far(arrays[noise.group]), len(status))] |= WEAK_PIVOT
        if self.inputs.switches:
            status[self._switches.undetermined_mask(arrays, len(status))] |= BAD_PIVOT
        passed = [x for x in arguments.arrays().values() if isinstance(x, np.ndarray)]
        shared = {name: x for name, x in arrays.items() if any(np.may_share_memory(x, y) for y in passed)}
        flagged = status != 0 if np.count_nonzero(status) else None
        result = Result(arrays | copied(shared), lead, outputs, status, flagged)
        if reduction:
            result.full_system = FullSystem(reduction.full, copied(full), len(status))
        return result

    def batch_call(
        self, arguments: Arguments, arrays: Mapping[ArgPath, Any], threads: int | None, on_singular: str | None,
        context: object,
    ) -> BatchCall | None:  # fmt: skip
        """Batch call for arguments with these names; None if there is no fast path."""
        active = arguments.active or {}
        if type(active) is not dict or any(type(x) is not bool for x in active.values()):
            return None
        signature = threads, on_singular, tuple(arrays), tuple(active.items())
        if signature not in self._batches:
            if len(self._batches) >= MAX_SIGNATURES:
                return None
            input_map = self.inputs.input_map(arrays, active)
            if input_map is None:
                return None  # not stored: other arrays of these names may have a fast path
            if active and self._lacks_sensors(input_map.constants):
                return self._batches.setdefault(signature, None)
            state = np.asarray(arguments.q), np.asarray(arguments.qd)
            self.inputs.warn_if_suspicious(*state)
            self.inputs.warn_of_followers(*state)
            options = {"on_singular": on_singular, "threads": threads}
            pattern = arguments.pattern(options, {"on_singular": self._policy, "threads": None})
            self._batches[signature] = self._fast_paths(input_map, pattern, context)
        return self._batches[signature]

    def _fast_paths(self, input_map: InputMap, pattern: CallPattern, context: object) -> BatchCall | None:
        """Create the native calls for one form of arguments: add that for single states, return that for batches.

        pattern: the arguments that the single-state call accepts. context: see `run`. Returns None if a batch needs a
        conversion: the program reads variances, but the call passes standard deviations.
        """
        quaternions = [self.inputs.groups.slices["q"].start + x.start for x in self.inputs.quaternions]
        keys, shapes = zip(*(self._results[group] for group in self._runner.program.outputs), strict=True)
        n_attributes = sum(key in self.inputs.problem.quantities for key in keys)
        layout = ResultLayout(self._result_type, keys, shapes, context, n_attributes)
        call = single_state_call(
            self._runner.backend, input_map.arguments, input_map.constants, quaternions, pattern, layout,
            input_map.inactive.tolist(),
        )  # fmt: skip
        if call is not None:
            self.single_state.append(call)
        if any(x.std_bounds for x in input_map.arguments):  # variances of many states are converted
            return None
        return BatchCall(self._runner, input_map, quaternions)

    def _inputs_of(self, arguments: Arguments, arrays: Mapping[ArgPath, Any]) -> Arrays:
        return self.inputs.checked(arguments.with_arrays(arrays))[0]

    def _unchanged_inputs(
        self, arguments: Arguments, arrays: Mapping[ArgPath, Any], call: BatchCall, outputs: Arrays
    ) -> Arrays:
        def repeat(arrays: Mapping[ArgPath, Any]) -> Arrays | None:
            repeated = call(tuple(arrays.values()), 1)
            return repeated and repeated[1]

        return self._inputs_of(arguments, unchanged(arrays, outputs, repeat))

    @cached_property
    def _switches(self) -> Switches:
        from sysdyn.diagnosis.switches import Switches
        from sysdyn.equations.problem_system import assemble

        return Switches(assemble(self.inputs.problem))

    def _lacks_sensors(self, constants: np.ndarray) -> bool:
        """True if the sensors that are on in a row of inputs leave unknowns undetermined."""
        arrays = {name: constants[part] for name, part in self.inputs.groups.slices.items()}
        return bool(self._switches.undetermined_mask(arrays, 1).any())

    def reject_bad_inputs(self, result: Result) -> None:
        """Raise InvalidInput if states were not solved because of an input."""
        if (result.status & BAD_INPUT).any():
            self.inputs.groups.reject_not_finite(result.inputs)
        reject_large_angles(self.inputs.model, result.at(np.flatnonzero(result.status))["q"])

    def values(self, result: Result) -> dict[Key, np.ndarray]:
        """{key: array} with the batch axes of the call and the shape of the output."""
        return {key: result.outputs[group].reshape(result.lead + shape) for key, (group, shape) in self.groups.items()}

    # ---- bound calls --------------------------------------------------------------------------------------------

    def bind(self, arguments: Arguments, threads: int, out: object = None) -> BoundCall:
        """Prepare a call that reads the arguments in place and writes to `out`, or to new arrays."""
        self._runner.require_binding()
        check_threads(threads)
        arrays, lead = self.inputs.views(arguments, self._runner.backend.real.dtype)
        n = math.prod(lead)
        self._require_sensors(arrays, n)
        outputs = self._output_arrays(out, lead)
        require_disjoint({label_of(x): a for x, a in arrays.items()} | {f"out[{x!r}]": a for x, a in outputs.items()})
        flat = {group: outputs[key].reshape(n, math.prod(shape)) for group, (key, shape) in self._results.items()}
        return self._runner.bind(arrays, flat, np.zeros(n, dtype=np.int64), outputs, single=not lead, threads=threads)

    def _require_sensors(self, arrays: Arrays, n: int) -> None:
        """Raise SingularState if the sensors that are on leave unknowns undetermined."""
        if not self.inputs.switches:
            return
        deficient = np.flatnonzero(self._switches.undetermined_mask(arrays, n))
        if len(deficient):
            from sysdyn.diagnosis.diagnose import undetermined_at
            from sysdyn.equations.problem_system import assemble

            first = {name: np.broadcast_to(x, (n, x.shape[-1]))[deficient[:1]] for name, x in arrays.items()}
            free = undetermined_at(assemble(self.inputs.problem), first)
            raise SingularState(
                f"{free or 'too few sensors are on'}: switch some of them on", states=tuple(deficient.tolist())
            )

    def _output_arrays(self, out: object, lead: tuple[int, ...]) -> dict[Key, np.ndarray]:
        """{key: array} of all outputs: arrays from `out`, or else new arrays. Raises InvalidInput."""
        dtype = self._runner.backend.real.dtype
        shapes = {key: lead + shape for key, shape in self._results.values()}
        if out is not None and not isinstance(out, Mapping):
            if len(shapes) > 1:
                raise InvalidInput(f"out must be a dict with {', '.join(map(str, shapes))}: there are several outputs")
            out = {next(iter(shapes)): out}
        arrays: Mapping = out or {}
        for name, x in arrays.items():
            if name not in shapes:
                raise UnknownName("output", name, [str(key) for key in shapes])
            if not is_readable_in_place(x, dtype) or not x.flags.writeable or x.shape != shapes[name]:
                raise InvalidInput(
                    f"out[{name!r}] must be a writeable C-contiguous {dtype.name} array of shape {shapes[name]}, not "
                    "masked"
                )
        return {key: arrays[key] if key in arrays else np.zeros(shape, dtype) for key, shape in shapes.items()}
