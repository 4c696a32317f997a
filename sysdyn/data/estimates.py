"""Estimates of a whole log, computed here or by the workers of a Dask cluster, and written to a file.

A worker reads and solves one file of the log at a time, in the same chunks as this process would. Work of a worker that
dies is redone by the others.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.data.columns import OK, TIME
from sysdyn.data.sensor_log import Estimates, Log, Summary, in_order
from sysdyn.errors import LogWarning, SysdynError, optional, warn
from sysdyn.files.table_writers import write_table
from sysdyn.online.constraint_errors import warn_of_gaps
from sysdyn.online.solver import Solver

# Files submitted in advance, for each thread of the cluster (chosen).
PREFETCH = 2
# Seconds after which a scheduler that does not answer is an error (chosen).
CONNECT_TIMEOUT = 10.0


def estimate_log(
    log: Log, solver: Solver, out: str | Path | None = None, seen: Callable[[Estimates], None] | None = None,
    scheduler: str | None = None,
) -> Summary:  # fmt: skip
    """Estimate every state of a log, and write the estimates to `out` (.csv, .npz, .parquet, .h5) chunk by chunk.

    Columns of the file: t, q:l_knee …, tau:l_knee …, std:tau:l_knee … if the problem has noise, and ok if states may
    stay unsolved; a .npz file has arrays t, q, tau (N, nv), std:tau …. seen: called with the estimates of each chunk.
    scheduler: address of a Dask scheduler whose workers can read the files of the log; each file is a task.
    Memory does not grow with the log. Raises as `Log` does.
    """
    names = {x: group.labels for x, group in solver.problem.outputs(solver.options.outputs).items()}
    std = {f"std:{x}": [f"std:{c}" for c in columns] for x, columns in names.items()} if log.problem.noisy else {}
    status = {} if solver.on_singular == "raise" else {OK: [OK]}
    with _written(out, {TIME: [TIME], "q": solver.problem.inputs["q"].labels, **names, **std, **status}) as write:
        open_before = False
        for x in log.estimates(solver) if scheduler is None else _distributed(log, solver, scheduler):
            open_before = open_before or bool(warn_of_gaps(solver.whole, x.q, f"{x.where} row", x.rows))
            more = {f"std:{name}": s for name, s in x.std.items()}
            write({TIME: x.t[:, None], "q": x.q, **x.values, **more, OK: x.ok[:, None].astype(float)})
            if seen is not None:
                seen(x)
    return log.summary


@contextmanager
def _written(
    out: str | Path | None, columns: Mapping[str, Sequence[str]]
) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """A call that writes rows {array: (n, columns)}; the file is whole at the end and, after an error, not there."""
    if out is None:
        yield lambda arrays: None
        return
    writer = write_table(out, columns)
    try:
        yield writer.write
    except BaseException:
        writer.abort()
        raise
    writer.close()


# ---- on a cluster --------------------------------------------------------------------------------------------------


def _distributed(log: Log, solver: Solver, scheduler: str) -> Iterator[Estimates]:
    """`log.estimates` by the workers of a cluster. Raises SysdynError if the cluster fails."""
    missing = "a scheduler needs Dask, which is not installed: pip install dask distributed"
    dask = optional("dask.distributed", missing)
    try:
        with dask.Client(scheduler, set_as_default=False, timeout=CONNECT_TIMEOUT) as client:
            yield from _gathered(log, solver, client)
    except SysdynError:
        raise
    except Exception as error:  # of Dask, of its network and of moved objects
        raise SysdynError(f"the cluster at {scheduler} failed: {type(error).__name__}: {error}") from error


def _gathered(log: Log, solver: Solver, client: Any) -> Iterator[Estimates]:
    files, waiting, last = deque(log.files), deque[Any](), -np.inf
    # as a task it can be done again by others; data handed to workers would be lost with them
    shared = client.submit(_same, solver, pure=False)
    while files or waiting:
        while files and len(waiting) < PREFETCH * max(1, sum(client.nthreads().values())):
            file = files.popleft()
            file = file.absolute() if isinstance(file, Path) else file
            waiting.append(client.submit(_part, shared, file, log.options, set(log.warned), pure=False))
        found, summary, warned, messages = waiting.popleft().result()
        if warned - log.warned:
            log.warned |= warned
            for message in messages:
                warn(message, LogWarning)
        for name, count in vars(summary).items():
            setattr(log.summary, name, getattr(log.summary, name) + count)
        if found:
            in_order(found[0].where, found[0].rows, found[0].t, last)
            last = found[-1].t[-1]
        yield from found


def _same(x: Solver) -> Solver:
    return x


def _part(
    solver: Solver, file: Any, options: Mapping[str, Any], warned: set[str]
) -> tuple[list[Estimates], Summary, set[str], list[str]]:
    """(estimates of a file of a log, their tally, warnings given now or before, messages of warnings)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LogWarning)
        log = Log(file, solver, **options, warned=warned)
        found = list(log.estimates(solver))
    return found, log.summary, log.warned, [str(x.message) for x in caught]
