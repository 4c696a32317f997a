"""Operation counts of a task: of its orders, of the cheaper forms of its equations, and of algorithms by the book."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from sysdyn.app.tasks import ALL_ORDERINGS, REFERENCES, Task, compile_task
from sysdyn.app.terminal import count_cells
from sysdyn.errors import SysdynError, check_among
from sysdyn.passes import PAPER
from sysdyn.reference.flops import count_flops

# {scope: rows of a table}; a row is the name of a program, its counts, its fill-in and a remark.
Counted = dict[str, list[tuple[str, ...]]]


def chosen_orders(task: Task, orders: str | None) -> list[str]:
    """The orders to count. Raises UnknownName."""
    if orders is None:  # "mixed" takes minutes, as the others do to fail on noise
        return ["symmetric"] if task.problem.noisy else [name for name in ALL_ORDERINGS if name != "mixed"]
    names = orders.replace(" ", "").split(",")
    for name in names:
        check_among("ordering", name, ALL_ORDERINGS)
    return names


def count_orders(task: Task, names: Sequence[str], seconds: float | None) -> tuple[Counted, dict[str, str]]:
    """(counts of these orders, {order that does not apply: why})."""
    counted: Counted = {"solve": [], "end to end": []}
    refused = {}
    for name in names:
        try:
            solver = compile_task(replace(task, ordering=name), backend="python", seconds=seconds)
        except SysdynError as error:
            refused[name] = _first_reason(error)
            continue
        mark = "triangular" if solver.triangular else ""
        for scope, counts in (("solve", solver.flops.solve), ("end to end", solver.flops.end_to_end)):
            if counts is not None:
                counted[scope].append((name, *count_cells(counts), f"{solver.fill_in:,}", mark))
    return counted, refused


def _first_reason(error: SysdynError) -> str:
    """The first line of a message, with the next one if it only leads to that."""
    lines = str(error).splitlines()
    return " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")])


def count_forms(task: Task, seconds: float | None) -> list[tuple[str, ...]]:
    """Counts end to end of the elimination with passes, of the recursion, and of the algorithm by the book."""
    rows = []
    for formulation, label in (("elimination", "with passes"), ("recursive", "recursive")):
        with contextlib.suppress(SysdynError):
            solver = compile_task(
                replace(task, ordering="auto"), backend="python", formulation=formulation, seconds=seconds
            )
            if solver.passes != PAPER:
                fill = f"{solver.fill_in:,}" if solver.fill_in else ""
                rows.append((f"{label}, {solver.ordering}", *count_cells(solver.flops.end_to_end), fill, ""))
    if task.kind in REFERENCES and not task.problem.model.couplings:
        algorithm = REFERENCES[task.kind]
        by_the_book = count_flops(algorithm, task.problem.model, fx=True)
        rows.append((f"{algorithm.__name__.upper()}, reference", *count_cells(by_the_book), "", ""))
    return rows
