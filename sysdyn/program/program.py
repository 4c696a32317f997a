"""Programs: a linear list of scalar operations with named inputs and outputs, exact counts and a hash.

A program is what the offline phase produces and all a backend needs. Values are numbered: first the inputs (groups one
after the other), then the constants, then one value for each operation in order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sysdyn.errors import FileError, InvalidInput
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.groups import Groups
from sysdyn.program.opcodes import ADD, ANGULAR, CONST, INPUT, NEG, OPAQUE, OPERATIONS, SUB, WRAP, Flops

PROGRAM_FORMAT = 2  # The version of the stored form of programs: it rises when the meaning of any array changes.

# The arrays of a program and their types.
ARRAYS = {
    "constants": np.float64, "kind": np.int8, "lhs": np.int32, "rhs": np.int32, "output_values": np.int32,
    "cuts": np.int32,
}  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """A value that must stay away from zero for the program to be valid at a state.

    Below `threshold` it counts as zero, below `weak` digits are lost.
    """

    value: int
    threshold: float
    label: str
    weak: float = 0.0


@dataclass(frozen=True, eq=False)
class Program:
    """Straight-line program.

    inputs, outputs               arrays that a run takes and gives, one after the other in rows of scalars
    constants (nc) float64        distinct constants
    kind (no) int8                those kinds of `sysdyn.program.opcodes` that are executed
    lhs, rhs (no) int32           value numbers of the operands; rhs is −1 for one operand
    output_values (ny) int32      value numbers of the outputs
    cuts (…) int32                operation numbers at which a new piece of work begins, increasing
    guards                        values that must not vanish
    ranges                        ((number of an input, greatest size at which the program was judged), …)
    """

    inputs: Groups
    outputs: Groups
    constants: np.ndarray
    kind: np.ndarray
    lhs: np.ndarray
    rhs: np.ndarray
    output_values: np.ndarray
    cuts: np.ndarray
    guards: tuple[Guard, ...] = field(default=())
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
        """Exact counts of the program as it is executed."""
        return Flops.of(self.kind, self.lhs)

    @cached_property
    def used_inputs(self) -> np.ndarray:
        """(n_inputs) bool: the program reads this input."""
        used = np.zeros(self.first_op + len(self), dtype=bool)
        used[self.lhs] = True
        used[self.rhs[self.rhs >= 0]] = True
        used[self.output_values] = True
        return used[: self.n_inputs]

    @cached_property
    def zero_outputs(self) -> np.ndarray:
        """(n_outputs) bool: the output is the constant 0."""
        place = self.output_values.astype(np.int64) - self.n_inputs
        constant = (place >= 0) & (place < len(self.constants))
        zero = np.zeros(self.n_outputs, dtype=bool)
        zero[constant] = self.constants[place[constant]] == 0.0
        return zero

    @cached_property
    def digest(self) -> str:
        """sha256 of everything that the results of the program depend on."""
        groups = [list(x.sizes.items()) for x in (self.inputs, self.outputs)]
        h = hashlib.sha256(json.dumps([PROGRAM_FORMAT, *groups]).encode())
        for array in (getattr(self, name) for name in ARRAYS):
            h.update(str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
        h.update(repr([(g.value, g.threshold, g.weak) for g in self.guards] + list(self.ranges)).encode())
        return h.hexdigest()

    # ---- making one --------------------------------------------------------------------------------------------

    @staticmethod
    def from_graph(
        graph: Graph,
        inputs: Sequence[tuple[str, Sequence[Expr] | np.ndarray]],
        outputs: Sequence[tuple[str, Sequence]],
        guards: Sequence[tuple[object, float, str, float]] = (),
    ) -> Program:
        """The operations of `graph` that are live from `outputs`, in the order in which they were built.

        inputs (name, Exprs) and outputs (name, Exprs or floats) are the named groups; a guard (value, threshold,
        label, weak) is kept where its value is the result of an operation that is live anyway.
        """
        flat_outputs = [x for _, group in outputs for x in group]
        live = graph.live(flat_outputs)
        kinds = np.asarray(graph.kind, dtype=np.int8)[live]
        number = np.full(len(graph), -1, dtype=np.int64)
        n_in = 0
        for _, group in inputs:
            for x in group:
                number[x.id] = n_in
                n_in += 1
        stray = [i for i in live[kinds == INPUT].tolist() if number[i] < 0]
        if stray:
            raise InvalidInput(
                f"the outputs need the input {graph.input_names[stray[0]]!r}, which is in no input group"
            )
        const_ids = live[kinds == CONST]
        constants = [graph.constants[i] for i in const_ids.tolist()]
        number[const_ids] = n_in + np.arange(len(const_ids))
        extra: dict[float, int] = {}  # outputs that are constants
        for x in flat_outputs:
            if type(x) is not Expr and float(x) not in extra:
                extra[float(x)] = n_in + len(constants)
                constants.append(float(x))
        left, right = (np.asarray(x, dtype=np.int64)[live] for x in (graph.lhs, graph.rhs))
        place = np.where(kinds == NEG, 2 * left + 1, 2 * live)  # changes of sign come next to what they change
        order = np.argsort(place)
        order = order[(kinds[order] > CONST) & (kinds[order] != OPAQUE)]
        ops = live[order]
        first = n_in + len(constants)
        number[ops] = first + np.arange(len(ops))
        for i in live[kinds == OPAQUE].tolist():
            number[i] = number[graph.lhs[i]]
        rhs = np.where(right[order] >= 0, number[right[order]], -1)
        cuts = np.unique(np.searchsorted(place[order], 2 * np.asarray(graph.cuts, dtype=np.int64)))
        is_live = np.zeros(len(graph), dtype=bool)
        is_live[live] = True
        kept = tuple(
            Guard(int(number[x.node]), float(limit), label, float(weak))
            for x, limit, label, weak in guards
            if type(x) is Expr and is_live[x.node] and number[x.node] >= first
        )
        return _wrapped(
            Program(
                Groups.of_sizes((name, len(group)) for name, group in inputs),
                Groups.of_sizes((name, len(group)) for name, group in outputs),
                np.array(constants, dtype=float),
                kinds[order],
                number[left[order]].astype(np.int32),
                rhs.astype(np.int32),
                np.array([number[x.id] if type(x) is Expr else extra[float(x)] for x in flat_outputs], dtype=np.int32),
                cuts[(cuts > 0) & (cuts < len(ops))].astype(np.int32),
                kept,
            )
        )

    # ---- storing it --------------------------------------------------------------------------------------------

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays (no objects) that `from_arrays` reads back."""
        guards = [[g.value, g.threshold, g.label, g.weak] for g in self.guards]
        inputs, outputs = (list(x.sizes.items()) for x in (self.inputs, self.outputs))
        head = {"format": PROGRAM_FORMAT, "inputs": inputs, "outputs": outputs,
                "guards": guards, "ranges": self.ranges, "digest": self.digest}  # fmt: skip
        return {
            "program": np.frombuffer(json.dumps(head).encode(), dtype=np.uint8),
            **{name: getattr(self, name) for name in ARRAYS},
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> Program:
        """Inverse of `to_arrays`. Raises FileError if the content is foreign, of another format or damaged."""
        try:
            head = json.loads(bytes(arrays["program"]).decode())
            if head["format"] != PROGRAM_FORMAT:
                found = f"the stored program has format {head['format']}"
                raise FileError(f"{found}, this version reads {PROGRAM_FORMAT}: compile it again")
            guards = [Guard(v, float(t), str(label), float(w)) for v, t, label, w in head["guards"]]
            ranges = tuple((k, float(most)) for k, most in head["ranges"])
            inputs, outputs = (_stored_groups(head[x]) for x in ("inputs", "outputs"))
            stored = {x: arrays[x] for x in ARRAYS}
            program = Program(inputs, outputs, **stored, guards=tuple(guards), ranges=ranges)
            program.check()
            if program.digest != head["digest"]:
                raise FileError(
                    "the stored program is damaged: its content does not match its digest; compile it again"
                )
        except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise FileError(f"not a stored program: {error!r}") from error
        return program

    def check(self) -> None:
        """Raise FileError unless kernels can run the program: no file must make them read beyond their arrays.

        Arrays are one-dimensional and of their types, kinds are known, every operand is computed before it is used,
        and outputs, cuts, guards and ranges speak of what there is.
        """
        for name, dtype in ARRAYS.items():
            x = getattr(self, name)
            if x.dtype != dtype or x.ndim != 1:
                raise FileError(
                    f"the stored program is damaged: {name} is {x.dtype} of shape {x.shape}, not {np.dtype(dtype)} (n,)"
                )
        values = self.first_op + len(self)
        numbers = [g.value for g in self.guards] + [k for k, _ in self.ranges]
        if values > np.iinfo(np.int32).max or not all(type(k) is int for k in numbers):
            raise FileError("the stored program is damaged: its values have no numbers")
        here = np.arange(self.first_op, values)
        one, two = (
            np.isin(self.kind, [kind for kind, x in OPERATIONS.items() if x.executed and x.arity == arity])
            for arity in (1, 2)
        )
        ok = (
            len(self.lhs) == len(self.rhs) == len(self)
            and np.all(one | two)
            and np.all((self.lhs >= 0) & (self.lhs < here))
            and np.all(np.where(one, self.rhs == -1, (self.rhs >= 0) & (self.rhs < here)))
            and len(self.output_values) == self.n_outputs
            and np.all((self.output_values >= 0) & (self.output_values < values))
            and np.all(self.cuts[1:] > self.cuts[:-1])
            and (len(self.cuts) == 0 or (self.cuts[0] > 0 and self.cuts[-1] < len(self)))
            and all(0 <= g.value < values for g in self.guards)
            and all(0 <= k < self.n_inputs for k, _ in self.ranges)
        )
        if not ok:
            raise FileError("the stored program is damaged: an operand is used before it is computed")


def _stored_groups(stored: list) -> Groups:
    """Groups of [name, size] pairs of a file. Raises FileError for a name given twice or a size that is none."""
    if len({name for name, _ in stored}) < len(stored) or not all(type(k) is int and k >= 0 for _, k in stored):
        raise FileError(f"the stored program is damaged: its groups are {stored}")
    return Groups.of_sizes((str(name), size) for name, size in stored)


def _wrapped(program: Program) -> Program:
    """The program with each input less its whole turns (WRAP) in sums that are angles and nothing else.

    A sum of an angle of 1e8 rad and a constant keeps 8 digits; that of the wrapped angle all of them. Sums are angles
    if they go into sines, cosines and further such sums alone.
    """
    first, n = program.first_op, len(program)
    kind, lhs, rhs = program.kind, program.lhs.astype(np.int64), program.rhs.astype(np.int64)
    angular, adding = np.isin(kind, ANGULAR), np.isin(kind, (ADD, SUB, NEG))
    angle = np.zeros(first + n, dtype=bool)  # goes into a sine or cosine, be it by sums
    found = lhs[angular]
    while len(found):
        angle[found] = True
        more = found[found >= first] - first
        more = more[adding[more]]
        found = np.unique(np.concatenate([lhs[more], rhs[more]]))
        found = found[(found >= 0) & ~angle[found]]
    inside = adding & angle[first:]
    if not inside.any():
        return program
    other = np.zeros(first + n, dtype=bool)  # used as more than an angle
    found = np.concatenate([program.output_values, [g.value for g in program.guards], lhs[~angular & ~inside],
                            rhs[~angular & ~inside]]).astype(np.int64)  # fmt: skip
    while not other[found[found >= 0]].all():
        other[found[found >= 0]] = True
        more = np.flatnonzero(inside & other[first:])
        found = np.concatenate([lhs[more], rhs[more]])
    sums = inside & ~other[first:]
    inputs = np.unique(np.concatenate([lhs[sums], rhs[sums]]))
    inputs = inputs[(inputs >= 0) & (inputs < program.n_inputs)]
    count = len(inputs)
    if not count:
        return program
    moved = np.arange(first + n)
    moved[first:] += count
    new = moved.copy()  # as an operand of a sum of angles
    new[inputs] = first + np.arange(count)
    left = np.where(sums, new[lhs], moved[lhs])
    right = np.where(rhs < 0, -1, np.where(sums, new[rhs], moved[rhs]))
    return replace(
        program,
        kind=np.concatenate([np.full(count, WRAP, dtype=kind.dtype), kind]),
        lhs=np.concatenate([inputs, left]).astype(np.int32),
        rhs=np.concatenate([np.full(count, -1), right]).astype(np.int32),
        output_values=moved[program.output_values].astype(np.int32),
        cuts=(program.cuts + count).astype(np.int32),
        guards=tuple(replace(g, value=int(moved[g.value])) for g in program.guards),
    )
