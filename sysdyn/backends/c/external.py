"""C for `casadi.external`: a program and its derivatives as the functions that CasADi looks for in a shared library.

They are f, jac_f (J by blocks), fwd1_f (J v), adj1_f (w^T J) and fwd1_adj1_f (the derivative of w^T J along a
direction), called as f(arg, res, iw, w, mem); their workspace is CasADi's. Inputs and outputs are columns, of
quaternions the entries.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sysdyn.backends.c.code import MARK, Code, Description, check_name, comment
from sysdyn.backends.c.project import library, write_folder
from sysdyn.backends.casadi import names
from sysdyn.backends.traced import Node, Traced
from sysdyn.program.products import Places, jacobian
from sysdyn.program.status import BAD_INPUT, BAD_OUTPUT, BAD_PIVOT

# Bits of the status for which a call fails, so that a solver takes a shorter step.
_FAILED = BAD_INPUT | BAD_PIVOT | BAD_OUTPUT

_HELPERS = """typedef long long int casadi_int;

/* Null pointers are zeros, and results that are not wanted. */
static void take(double *to, const double *from, int n)
{
    int k;
    for (k = 0; k < n; ++k) {
        to[k] = from ? from[k] : 0.0;
    }
}

static void give(double *to, const double *from, int n)
{
    int k;
    for (k = 0; to && k < n; ++k) {
        to[k] = from ? from[k] : 0.0;
    }
}"""


class Column(NamedTuple):
    """An input or output. group: of the program; None for what it does not depend on, or is zero.

    block: of a Jacobian, its shape and the places of its entries (row, column), by columns.
    """

    name: str
    size: int
    group: str | None
    block: tuple[int, int, Places] | None = None

    @property
    def sparsity(self) -> tuple[int, ...]:
        """As CasADi has it: rows, columns, where each column begins, and the row of each entry."""
        rows, columns, places = self.block or (self.size, 1, [(k, 0) for k in range(self.size)])
        begins = [sum(column < k for _, column in places) for k in range(columns + 1)]
        return (rows, columns, *begins, *(row for row, _ in places))


class Function(NamedTuple):
    """A function of the library: its name there, its program, and its columns in CasADi's order."""

    name: str
    node: Node
    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]

    def derived(self, kind: str) -> Function:
        """Its derivative by all inputs, "jvp" or "vjp"."""
        node, before = self.node.derived(kind, self.node.inputs), len(self.node.inputs)
        seeds, found = (self.inputs, self.outputs) if kind == "jvp" else (self.outputs, self.inputs)
        way = {"jvp": "fwd", "vjp": "adj"}[kind]
        vectors = _along(way, seeds, node.program.input_groups[before:])
        return Function(f"{way}1_{self.name}", node, self.inputs + self._nominal + vectors,
                        _along(way, found, node.program.output_groups))  # fmt: skip

    def jacobian(self) -> Function:
        """Its Jacobian, block by block: of each output by each input."""
        program = self.node.program
        kind = "vjp" if program.n_outputs <= program.n_inputs else "jvp"
        derived = self.node.derived(kind, self.node.inputs)
        whole, places = jacobian(program, derived.program, kind)
        blocks = []
        pairs = itertools.product(self.outputs, self.inputs)
        for (y, x), (group, size) in zip(pairs, whole.output_groups, strict=True):
            at = places[str(y.group), str(x.group)]
            blocks.append(Column(f"jac_{y.name}_{x.name}", size, group, (y.size, x.size, at)))
        node = Node(self.node.traced, whole, derived.settle)
        return Function(f"jac_{self.name}", node, self.inputs + self._nominal, tuple(blocks))

    @property
    def _nominal(self) -> tuple[Column, ...]:
        """Results of the function, which derivatives take in CasADi; these need none, so they have no entries."""
        return tuple(Column(f"out_{x.name}", x.size, None, (x.size, 1, [])) for x in self.outputs)


def _along(way: str, columns: Sequence[Column], groups: Sequence[tuple[str, int]]) -> tuple[Column, ...]:
    """Columns of vectors along these, which are the groups in their order."""
    rest = iter(groups)
    return tuple(Column(f"{way}_{x.name}", x.size, None if x.group is None else next(rest)[0]) for x in columns)


def export(folder: str | os.PathLike, name: str, traced: Traced) -> Path:
    """Write the project. Raises InvalidInput for the name, FileError."""
    check_name(name)
    program = traced.program
    inputs, outputs = (
        tuple(Column(short, size, group) for short, (group, size) in zip(x, groups, strict=True))
        for x, groups in zip(names(program), (program.input_groups, program.output_groups), strict=True)
    )
    value = Function(name, Node(traced, program, traced.settle), inputs, outputs)
    adjoint = value.derived("vjp")
    functions = [value, value.jacobian(), value.derived("jvp"), adjoint, adjoint.derived("jvp")]
    files, parts = dict[str, str](), []
    for f in functions:
        code = Code(f"{f.name}_program", f.node.program, Description(f"program of {f.name}"))
        files |= {f"{code.name}.h": code.header(), f"{code.name}.c": code.source()}
        parts.append(_function(f, code))
    title = f"{name} for casadi.external, with derivatives"
    includes = "\n".join(f'#include "{f.name}_program.h"' for f in functions)
    files[f"{name}.c"] = "\n\n".join([f"/* {MARK}: {comment(title)} */\n{includes}", _HELPERS, *parts]) + "\n"
    files["CMakeLists.txt"] = library(name, title, [x for x in files if x.endswith(".c")], shared=True)
    return write_folder(folder, files)


def _function(f: Function, code: Code) -> str:
    """The function and what CasADi asks about it."""
    members = {m.group: m.name for m in (*code.inputs, *code.outputs)}
    n_in, n_out = code.program.n_inputs, code.program.n_outputs
    taken = [
        f"    take(in->{members[x.group]}, arg[{k}], {x.size});" for k, x in enumerate(f.inputs) if x.group in members
    ]
    given = [f"    give(res[{k}], {f'out->{members[x.group]}' if x.group in members else '0'}, {x.size});"
             for k, x in enumerate(f.outputs)]  # fmt: skip
    heads = {
        "run": f"int {f.name}(const double **arg, double **res, casadi_int *iw, double *w, int mem)",
        "n_in": f"casadi_int {f.name}_n_in(void)",
        "n_out": f"casadi_int {f.name}_n_out(void)",
        "work": f"int {f.name}_work(casadi_int *n_arg, casadi_int *n_res, casadi_int *n_iw, casadi_int *n_w)",
    }
    bodies = {
        "run": [
            f"    {code.name}_inputs *in = ({code.name}_inputs *)w;",
            f"    {code.name}_outputs *out = ({code.name}_outputs *)(w + {n_in});",
            f"    {code.name}_work *work = ({code.name}_work *)(w + {n_in + n_out});",
            "    int status;",
            "    (void)iw;",
            "    (void)mem;",
            *taken,
            f"    status = {code.name}_run(in, out, work);",
            *given,
            f"    return (status & {_FAILED}) != 0;",
        ],
        "n_in": [f"    return {len(f.inputs)};"],
        "n_out": [f"    return {len(f.outputs)};"],
        "work": [
            f"    *n_arg = {len(f.inputs)};",
            f"    *n_res = {len(f.outputs)};",
            "    *n_iw = 0;",
            f"    *n_w = {n_in + n_out + max(1, code.n_work)};",
            "    return 0;",
        ],
    }
    for way, columns in (("in", f.inputs), ("out", f.outputs)):
        texts = ", ".join(f'"{x.name}"' for x in columns)
        heads[f"name_{way}"] = f"const char *{f.name}_name_{way}(casadi_int k)"
        bodies[f"name_{way}"] = [f"    static const char *const names[] = {{{texts}}};", "    return names[k];"]
        numbers = {x: n for n, x in enumerate(dict.fromkeys(column.sparsity for column in columns))}
        patterns = ", ".join(f"s{numbers[x.sparsity]}" for x in columns)
        heads[f"sparsity_{way}"] = f"const casadi_int *{f.name}_sparsity_{way}(casadi_int k)"
        bodies[f"sparsity_{way}"] = [
            *(f"    static const casadi_int s{n}[] = {{{', '.join(map(str, x))}}};" for x, n in numbers.items()),
            f"    static const casadi_int *const patterns[] = {{{patterns}}};",
            "    return patterns[k];",
        ]
    return "\n\n".join("\n".join([f"{head};", head, "{", *bodies[x], "}"]) for x, head in heads.items())
