"""Programs: straight-line scalar code with named inputs and outputs, exact operation counts and a digest.

A program is the result of the offline phase and the only input of the back ends. Value numbers run over the inputs
(group by group), then the constants, then the results of the operations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sysdyn.errors import FileError, InvalidInput
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.groups import Groups
from sysdyn.program.opcodes import ADD, ANGULAR, CONST, INPUT, NEG, OPAQUE, OPERATIONS, SUB, WRAP, Flops

PROGRAM_FORMAT = 2  # Format version of stored programs; increase it if the meaning of an array changes.
# {array of a program: dtype}
ARRAYS = {
    "constants": np.float64, "kind": np.int8, "lhs": np.int32, "rhs": np.int32, "output_values": np.int32,
    "cuts": np.int32,
}  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """Pivot check. |pivot| < `threshold`: the pivot counts as zero. |pivot| < `weak`: results may be inaccurate."""

    value: int
    threshold: float
    label: str
    weak: float = 0.0


@dataclass(frozen=True, eq=False)
class Program:
    """Straight-line program.

    Attributes
    ----------
    inputs, outputs : Groups
        Input and output arrays. A row concatenates the scalars of all groups.
    constants : (nc,) array of float64
        Distinct constants.
    kind : (no,) array of int8
        Kind of each operation, of `sysdyn.program.opcodes.OPERATIONS`.
    lhs, rhs : (no,) array of int32
        Value numbers of the operands; rhs is −1 for operations of one operand.
    output_values : (ny,) array of int32
        Value numbers of the outputs.
    cuts : (...,) array of int32
        Increasing operation numbers at which code segments begin; equal segments share machine code.
    guards : tuple of Guard
        Pivots to check.
    ranges : tuple of (int, float)
        (input number, largest absolute value for which the program was checked).
    """

    inputs: Groups
    outputs: Groups
    constants: np.ndarray
    kind: np.ndarray
    lhs: np.ndarray
    rhs: np.ndarray
    output_values: np.ndarray
    cuts: np.ndarray
    guards: tuple[Guard, ...] = ()
    ranges: tuple[tuple[int, float], ...] = ()

    @property
    def n_inputs(self) -> int:
        return self.inputs.size

    @property
    def n_outputs(self) -> int:
        return self.outputs.size

    @property
    def first_op(self) -> int:
        """Value number of the first operation."""
        return self.n_inputs + len(self.constants)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"Program({len(self)} operations, {self.flops}; {self.n_inputs} inputs, {self.n_outputs} outputs)"

    @cached_property
    def flops(self) -> Flops:
        """Exact operation counts."""
        return Flops.of(self.kind, self.lhs)

    @cached_property
    def used_inputs(self) -> np.ndarray:
        """(n_inputs,) bool: True for inputs that an operation, an output or a range reads."""
        used = np.zeros(self.first_op + len(self), dtype=bool)
        used[self.lhs] = True
        used[self.rhs[self.rhs >= 0]] = True
        used[self.output_values] = True
        used[[number for number, _ in self.ranges]] = True
        return used[: self.n_inputs]

    @cached_property
    def zero_outputs(self) -> np.ndarray:
        """(n_outputs,) bool: True for outputs that are the constant 0."""
        place = self.output_values.astype(np.int64) - self.n_inputs
        constant = (place >= 0) & (place < len(self.constants))
        zero = np.zeros(self.n_outputs, dtype=bool)
        zero[constant] = self.constants[place[constant]] == 0.0
        return zero

    @cached_property
    def digest(self) -> str:
        """sha256 of everything that affects the results."""
        groups = [list(x.sizes.items()) for x in (self.inputs, self.outputs)]
        h = hashlib.sha256(json.dumps([PROGRAM_FORMAT, *groups]).encode())
        for array in (getattr(self, name) for name in ARRAYS):
            h.update(str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
        h.update(repr([(g.value, g.threshold, g.weak) for g in self.guards] + list(self.ranges)).encode())
        return h.hexdigest()

    @staticmethod
    def from_graph(
        graph: Graph,
        inputs: Sequence[tuple[str, Sequence[Expr] | np.ndarray]],
        outputs: Sequence[tuple[str, Sequence]],
        guards: Sequence[tuple[object, float, str, float]] = (),
    ) -> Program:
        """Create a program from the nodes on which the outputs depend, in their order in the graph.

        Parameters
        ----------
        graph : Graph
        inputs, outputs : sequence of (str, sequence of Expr)
            Name and scalars of each group. Outputs may also be floats.
        guards : sequence of (Expr or float, float, str, float)
            Value, threshold, label and weak threshold. Guards of constants, and of values on which no output depends,
            are omitted.

        Returns
        -------
        Program

        Raises
        ------
        InvalidInput
            If an output depends on an input that is in no group.
        """
        flat_outputs = [x for _, group in outputs for x in group]
        live = graph.live(flat_outputs)
        kinds = np.asarray(graph.kind, dtype=np.int8)[live]
        number = np.full(len(graph), -1, dtype=np.int64)  # value number of each node
        n_in = 0
        for _, group in inputs:
            for x in group:
                number[x.id] = n_in
                n_in += 1
        stray = [i for i in live[kinds == INPUT].tolist() if number[i] < 0]
        if stray:
            name = graph.input_names[stray[0]]
            raise InvalidInput(f"the outputs depend on the input {name!r}, which is in no input group")
        const_ids = live[kinds == CONST]
        constants = [graph.constants[i] for i in const_ids.tolist()]
        number[const_ids] = n_in + np.arange(len(const_ids))
        float_numbers: dict[float, int] = {}  # value numbers of float outputs
        for x in flat_outputs:
            if type(x) is not Expr and float(x) not in float_numbers:
                float_numbers[float(x)] = n_in + len(constants)
                constants.append(float(x))
        left, right = (np.asarray(x, dtype=np.int64)[live] for x in (graph.lhs, graph.rhs))
        place = np.where(kinds == NEG, 2 * left + 1, 2 * live)  # a sign change follows its operand
        order = np.argsort(place)
        order = order[(kinds[order] > CONST) & (kinds[order] != OPAQUE)]
        first = n_in + len(constants)
        number[live[order]] = first + np.arange(len(order))
        for i in live[kinds == OPAQUE].tolist():
            number[i] = number[graph.lhs[i]]
        cuts = np.unique(np.searchsorted(place[order], 2 * np.asarray(graph.cuts, dtype=np.int64)))
        is_live = np.zeros(len(graph), dtype=bool)
        is_live[live] = True
        program = Program(
            Groups.of_sizes((name, len(group)) for name, group in inputs),
            Groups.of_sizes((name, len(group)) for name, group in outputs),
            constants=np.array(constants, dtype=float),
            kind=kinds[order],
            lhs=number[left[order]].astype(np.int32),
            rhs=np.where(right[order] >= 0, number[right[order]], -1).astype(np.int32),
            output_values=np.array(
                [number[x.id] if type(x) is Expr else float_numbers[float(x)] for x in flat_outputs], dtype=np.int32
            ),
            cuts=cuts[(cuts > 0) & (cuts < len(order))].astype(np.int32),
            guards=tuple(
                Guard(int(number[x.node]), float(threshold), label, float(weak))
                for x, threshold, label, weak in guards
                if type(x) is Expr and is_live[x.node] and number[x.node] >= first
            ),
        )
        return _wrap_angle_sums(program)

    # ---- storage ---------------------------------------------------------------------------------------------------

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The program as arrays without Python objects; inverse of `from_arrays`."""
        head = {
            "format": PROGRAM_FORMAT,
            "inputs": list(self.inputs.sizes.items()),
            "outputs": list(self.outputs.sizes.items()),
            "guards": [[g.value, g.threshold, g.label, g.weak] for g in self.guards],
            "ranges": self.ranges,
            "digest": self.digest,
        }
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return {"program": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8), **arrays}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> Program:
        """Restore a program from `to_arrays`. Raises FileError for foreign or damaged content and other formats."""
        try:
            head = json.loads(bytes(arrays["program"]).decode())
            if head["format"] != PROGRAM_FORMAT:
                found = f"the stored program has format {head['format']}"
                raise FileError(f"{found}, this version reads {PROGRAM_FORMAT}: compile it again")
            for groups in (head["inputs"], head["outputs"]):
                sizes_valid = all(type(size) is int and size >= 0 for _, size in groups)
                _require(sizes_valid and len({name for name, _ in groups}) == len(groups), f"its groups are {groups}")
            inputs, outputs = (
                Groups.of_sizes((str(name), size) for name, size in head[x]) for x in ("inputs", "outputs")
            )
            guards = tuple(Guard(v, float(t), str(label), float(w)) for v, t, label, w in head["guards"])
            ranges = tuple((k, float(largest)) for k, largest in head["ranges"])
            stored: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
            program = Program(inputs, outputs, **stored, guards=guards, ranges=ranges)
            program.check()
            _require(program.digest == head["digest"], "its content does not match its digest; compile it again")
        except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise FileError(f"not a stored program: {error!r}") from error
        return program

    def check(self) -> None:
        """Raise FileError if a kernel of this program would access memory out of bounds."""
        for name, dtype in ARRAYS.items():
            x = getattr(self, name)
            right = x.dtype == dtype and x.ndim == 1
            _require(right, f"{name} is {x.dtype} of shape {x.shape}, not {np.dtype(dtype)} (n,)")
        first, values = self.first_op, self.first_op + len(self)
        _require(values <= np.iinfo(np.int32).max, f"it has {values} values, more than int32 can number")
        counts = (len(self), len(self.lhs), len(self.rhs))
        _require(len(set(counts)) == 1, "it has {} operations, {} left and {} right operands".format(*counts))
        unary, binary = (
            np.isin(self.kind, [kind for kind, x in OPERATIONS.items() if x.executed and x.arity == arity])
            for arity in (1, 2)
        )
        unknown = sorted({*self.kind[~(unary | binary)].tolist()})
        _require(not unknown, f"its kinds of operations {unknown} are unknown")
        here = np.arange(first, values)
        for name, operands, exist in (("lhs", self.lhs, unary | binary), ("rhs", self.rhs, binary)):
            valid = np.where(exist, (operands >= 0) & (operands < here), operands == -1)
            wrong = np.flatnonzero(~valid)[:5].tolist()
            _require(not wrong, f"{name} of operations {wrong} is no earlier value")
        outputs, cuts = self.output_values, self.cuts
        _require(len(outputs) == self.n_outputs, f"it has {len(outputs)} values for {self.n_outputs} outputs")
        _require(np.all((outputs >= 0) & (outputs < values)), f"an output is none of its {values} values")
        _require(np.all((cuts > 0) & (cuts < len(self))), f"a cut is none of its {len(self)} operations")
        _require(np.all(cuts[1:] > cuts[:-1]), "its cuts do not increase")
        guards, ranges = [g.value for g in self.guards], [k for k, _ in self.ranges]
        _require(all(type(k) is int and 0 <= k < values for k in guards), f"a guard is none of its {values} values")
        _require(all(type(k) is int and 0 <= k < self.n_inputs for k in ranges), "a range is of none of its inputs")


def _require(valid: object, problem: str) -> None:
    if not valid:
        raise FileError(f"the stored program is damaged: {problem}")


def _wrap_angle_sums(program: Program) -> Program:
    """Insert WRAP operations: reduce angle inputs by whole turns before they enter sums that are only used as angles.

    The sum of an angle of 1e8 rad and a constant has 8 correct digits; with the wrapped angle all digits are correct. A
    sum is only used as an angle if it enters only sines, cosines and other such sums.
    """
    first, n = program.first_op, len(program)
    kind, lhs, rhs = program.kind, program.lhs.astype(np.int64), program.rhs.astype(np.int64)
    angular, additive = np.isin(kind, ANGULAR), np.isin(kind, (ADD, SUB, NEG))
    is_angle = np.zeros(first + n, dtype=bool)  # enters a sine or cosine, directly or through sums
    values = lhs[angular]
    while len(values):
        is_angle[values] = True
        ops = values[values >= first] - first
        ops = ops[additive[ops]]
        values = np.unique(np.concatenate([lhs[ops], rhs[ops]]))
        values = values[(values >= 0) & ~is_angle[values]]
    angle_sums = additive & is_angle[first:]
    has_other_use = np.zeros(first + n, dtype=bool)
    others = ~angular & ~angle_sums
    guarded = np.array([g.value for g in program.guards], dtype=np.int64)
    values = np.concatenate([program.output_values, guarded, lhs[others], rhs[others]])
    while not has_other_use[values[values >= 0]].all():
        has_other_use[values[values >= 0]] = True
        ops = np.flatnonzero(angle_sums & has_other_use[first:])
        values = np.concatenate([lhs[ops], rhs[ops]])
    angle_sums &= ~has_other_use[first:]
    inputs = np.unique(np.concatenate([lhs[angle_sums], rhs[angle_sums]]))
    inputs = inputs[(inputs >= 0) & (inputs < program.n_inputs)]
    count = len(inputs)
    if not count:
        return program
    number = np.arange(first + n)  # new number of each value
    number[first:] += count
    wrapped = number.copy()  # new number as an operand of angle sums
    wrapped[inputs] = first + np.arange(count)
    left = np.where(angle_sums, wrapped[lhs], number[lhs])
    right = np.where(rhs < 0, -1, np.where(angle_sums, wrapped[rhs], number[rhs]))
    return replace(
        program,
        kind=np.concatenate([np.full(count, WRAP, dtype=kind.dtype), kind]),
        lhs=np.concatenate([inputs, left]).astype(np.int32),
        rhs=np.concatenate([np.full(count, -1), right]).astype(np.int32),
        output_values=number[program.output_values].astype(np.int32),
        cuts=(program.cuts + count).astype(np.int32),
        guards=tuple(replace(g, value=int(number[g.value])) for g in program.guards),
    )
