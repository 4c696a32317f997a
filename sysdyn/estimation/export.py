"""Export of a filter as C99: one step in static memory, its programs and routines, and an example with a check."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sysdyn.codegen.c99 import GENERATED_BY, check_name, comment, identifier
from sysdyn.codegen.c_call_list import CallListSource
from sysdyn.codegen.c_project import cmake, differs, write_folder
from sysdyn.estimation.ekf import Filter, GaussianState
from sysdyn.estimation.ekf_step import FilterStep, Update
from sysdyn.estimation.process_model import BIASES, POSITION, RATES
from sysdyn.estimation.residuals import WEIGHT, DynamicsResiduals, MeasurementData, StateResiduals
from sysdyn.estimation.unwrapping import CERTAIN, TURN
from sysdyn.measurements.input_names import SWITCH, VALUE, group_of, value_group
from sysdyn.program.opcodes import BAD_INPUT, BAD_OUTPUT
from sysdyn.runtime.real import DOUBLE, SINGLE, Real, real_of

# Time steps of the test vectors, share of missing readings, and tolerance relative to the greatest entry of a member:
# covariances with standard deviations far apart have these digits.
TEST_ROWS, TEST_MISSING, TEST_ERROR = 5, 0.2, {DOUBLE: 1e-9, SINGLE: 1e-3}
# Bits of the status in addition to those of programs: time does not increase; a covariance is not positive definite.
NOT_LATER, NOT_POSITIVE = 256, 512


class Clock(NamedTuple):
    """Time in the code of a filter: the member of the readings, its meaning, and an argument of the start."""

    time: str
    when: str
    begin: str


# By number type. Times in single precision soon have larger steps than two readings.
_CLOCK = {
    DOUBLE: Clock("t", "at t [s]", "double t, "),
    SINGLE: Clock("dt", "dt [s] after the readings before", ""),
}


class Reading(NamedTuple):
    """A measurement as a member of the struct of readings."""

    name: str
    member: str
    labels: tuple[str, ...]


def export_filter(
    folder: str | os.PathLike,
    name: str,
    filter_: Filter,
    belief: GaussianState,
    last: MeasurementData,
    dt: float,
    numbers: str,
) -> Path:
    """Write the project of a filter that starts at a state. last: readings of which test vectors dt [s] apart follow.

    numbers: name of the number type. Raises InvalidInput for the name, UnknownName, FileError.
    """
    check_name(name)
    real = real_of(numbers)
    step = FilterStep(filter_.layout, filter_.sources, filter_.density, filter_.gate, real)
    step.load(belief.path, belief.P)
    readings = _readings(step)
    rows, expected = _vectors(filter_, belief, last, readings, dt)
    code = CallListSource(name, [step.P, *step.state.values(), *step.given.values(), *(
        x for update in step.updates if update.rows for x in update.given.values())], real)  # fmt: skip
    source = _source(name, code, step, readings, float(belief.path.t[0]), filter_)
    files = {f"{name}.h": _header(name, code, step, readings), f"{name}.c": source}
    for program in code.programs:
        files |= {f"{program.name}.h": program.header(), f"{program.name}.c": program.source()}
    files["test_vectors.h"] = _test_vectors(name, readings, rows, expected, real)
    files["main.c"] = _main(name, _members(step), real)
    files["CMakeLists.txt"] = cmake(name, "a filter", [f"{x}.c" for x in (name, *(p.name for p in code.programs))])
    return write_folder(folder, files)


def _readings(step: FilterStep) -> list[Reading]:
    """Measurements that a step reads."""
    names: dict[str, None] = {}
    for update in step.updates:
        if update.rows:
            names |= {group_of(x).name: None for x in update.given if group_of(x).role in (VALUE, SWITCH)}
            names |= {m: None for m, _, _, _ in _exact(update)}
    measurements = {m.name: m for update in step.updates for m in _measurements(update)}
    found: list[Reading] = []
    for name in names:
        member = identifier(name)
        while member in ("t", "dt") or any(member in (x.member, f"has_{x.member}") for x in found):
            member += "_"
        found.append(Reading(name, member, measurements[name].components(step.layout.model)))
    return found


def _measurements(update: Update) -> Sequence:
    source = update.source
    return source.sensors if isinstance(source, StateResiduals) else source.problem.measurements


def _exact(update: Update) -> list[tuple[str, str, list[int], int]]:
    """(measurement, quantity, places in it, size) of exactly known quantities that a program reads."""
    source, found = update.source, []
    if isinstance(source, DynamicsResiduals):
        program = source.runner.program
        for m in source.problem.raw:
            if m.quantity in update.given:
                places = m.places(source.problem.model)
                if program.used_inputs[program.inputs.slices[m.quantity]][places].any():
                    found.append((m.name, m.quantity, places, len(places)))
    return found


def _members(step: FilterStep) -> dict[str, int]:
    """Arrays of the struct of the state, with their sizes."""
    own, nv = step.layout, step.layout.model.nv
    rates = dict.fromkeys(("qd", "qdd", "qddd")[: own.motion.order - 1], nv)
    return {x: n for x, n in {"q": own.model.nq, **rates, "biases": own.n_biases, "std": own.size}.items() if n}


def _header(name: str, code: CallListSource, step: FilterStep, readings: Sequence[Reading]) -> str:
    own, model, guard, real = step.layout, step.layout.model, f"{name.upper()}_H", code.real.name
    members = []
    for x in readings:
        n, labels = len(x.labels), comment(f"{x.name}: {', '.join(x.labels)}")
        members += [f"    /* {labels} */", f"    {real} {x.member}[{n}];", f"    int has_{x.member}[{n}];"]
    biases = [f"{b}: {c}" for b, x in own.biases.items() for c in x.measurement.components(model)]
    texts = {
        "q": "positions of joints", "qd": ", ".join(model.dof_names), "qdd": "as qd", "qddd": "as qd",
        "biases": ", ".join(biases), "std": "standard deviations of q (in its tangent space), its rates, biases",
    }  # fmt: skip
    state = [f"    {real} {x}[{n}]; /* {comment(texts[x])} */" for x, n in _members(step).items()]
    rates, size = (own.motion.order - 1) * model.nv, own.size
    time, when, begin = _CLOCK[code.real]
    stamp, of_stamp = ("    double t;\n", " at t [s]") if begin else ("", "")
    return f"""/* {GENERATED_BY}: {comment(f"a filter of the motion of {model.name}")} */
/*
 * C99, no heap, no library but math.h; {code.bytes} bytes of static memory: one such filter is in a program.
 * It begins where the filter stood when it was exported. Do not compile with -ffast-math.
 */
#ifndef {guard}
#define {guard}

#ifdef __cplusplus
extern "C" {{
#endif

/* What is measured {when}; has_...: 1 where there is a value now (of a stance: where it stands), else 0. */
typedef struct {{
    {real} {time};
{chr(10).join(members)}
}} {name}_readings;

/* The estimate{of_stamp}. */
typedef struct {{
{stamp}{chr(10).join(state)}
}} {name}_state;

/* Bits of what {name}_step returns beside those of {name}_0.h; 0 where all went well. */
enum {{
    {name.upper()}_NOT_LATER = {NOT_LATER}, /* time does not go on: nothing has changed */
    {name.upper()}_NOT_POSITIVE = {NOT_POSITIVE} /* the covariance of the readings has no factor: start again */
}};

/*
 * Begins with q [{model.nq}], rates [{rates}] (first and further derivatives), biases [{own.n_biases}] and the
 * covariance P [{size}][{size}] of their errors, in the order of std.
 */
void {name}_start({begin}const {real} *q, const {real} *rates, const {real} *biases, const {real} *P);

/* Goes on to the time of these readings and takes them in. Returns 0, or bits of the enumeration above. */
int {name}_step(const {name}_readings *now);

/* The estimate after the last step. */
void {name}_now({name}_state *out);

#ifdef __cplusplus
}}
#endif

#endif
"""


def _source(
    name: str, code: CallListSource, step: FilterStep, readings: Sequence[Reading], t: float, filter_: Filter
) -> str:  # fmt: skip
    own, upper, real = step.layout, name.upper(), code.real
    timed = real is DOUBLE  # else readings tell how long after each other they are
    failed, parts, body = f"{upper}_NOT_POSITIVE", [], []
    parts.append(code.function("static int predict(void)", step.prediction, failed))
    largest = max([1, *(len(x.labels) for x in readings)])
    tables: list[str] = []
    for k, update in enumerate(step.updates):
        if not update.rows:
            continue
        parts.append(code.function(f"static int read_{k}(void)", update.reading, failed))
        parts.append(code.function(f"static int update_{k}(void)", update.solution, failed))
        body += _written(code, step, update, readings, tables, filter_)
        both, size = code.place(update.both), update.both.size
        body += [
            f"if (read_{k}() & {BAD_INPUT | BAD_OUTPUT}) {{", f"    memset({both}, 0, {size} * sizeof(double));", "}",
            f"status |= update_{k}();",
        ]  # fmt: skip
    density, time = own.bias_walk
    places = {x: code.place(y) for x, y in (step.state | step.given).items() if y.size}
    members, nv = _members(step), own.model.nv
    nb, size, nq, rates = own.n_biases, own.size, own.model.nq, (own.motion.order - 1) * own.model.nv
    out = [f"memcpy(out->q, {places[POSITION]}, {nq} * sizeof(double));"]
    for j, x in enumerate([x for x in members if x.startswith("qd")]):
        out.append(f"memcpy(out->{x}, {places[RATES]} + {j * nv}, {nv} * sizeof(double));")
    if nb:
        out.append(f"memcpy(out->biases, {places[BIASES]}, {nb} * sizeof(double));")
    P = code.place(step.P)
    walk = f"""
    for (k = 0; k < {nb}; ++k) {{
        const double over = isinf(times[k]) ? 0.0 : dt / times[k];
        ({places["left"]})[k] = exp(-over);
        ({places["walk"]})[k] = densities[k] * densities[k]
            * (isinf(times[k]) ? dt : -0.5 * expm1(-2.0 * over) * times[k]);
    }}""" if nb else ""  # fmt: skip
    text = "\n".join(f"    {line}" for line in body)
    includes = "\n".join(f'#include "{x.name}.h"' for x in code.programs)
    if nb:
        tables += [f"static const double {x}[{nb}] = {{{real.literals(y)}}};"
                   for x, y in (("densities", density), ("times", time))]  # fmt: skip
    functions = "\n\n".join(parts)
    turns = [x.split()[2].partition("[")[0] for x in tables if x.startswith("static double turns")]
    reset = "".join(f"\n    memset({x}, 0, sizeof {x});" for x in turns)
    banner = f"/* {GENERATED_BY}: {comment(f'a filter of the motion of {own.model.name}')} */\n"
    return banner + real.specialise_c_source(f"""#include "{name}.h"

#include <math.h>
#include <string.h>

{includes}

{code.memory()}
{chr(10).join(tables)}
static int there[{largest}];
{f"static double before = {real.literal(t)};" if timed else ""}

{code.routines()}

static void take(int n, const double *x, const int *has, double *y)
{{
    int k;
    for (k = 0; k < n; ++k) {{
        there[k] = has[k] != 0 && isfinite(x[k]);
        y[k] = there[k] ? x[k] : 0.0;
    }}
}}

{functions}

void {name}_start({_CLOCK[real].begin}const double *q, const double *rates, const double *biases, const double *P)
{{
    {"before = t;" if timed else ""}
    memcpy({places[POSITION]}, q, {nq} * sizeof(double));
    memcpy({places[RATES]}, rates, {rates} * sizeof(double));
    {f"memcpy({places[BIASES]}, biases, {nb} * sizeof(double));" if nb else "(void)biases;"}
    memcpy({P}, P, {size * size} * sizeof(double));{reset}
}}

int {name}_step(const {name}_readings *now)
{{
    const double dt = {"now->t - before" if timed else "now->dt"};
    int k, status;
    (void)k;
    if (!(dt > 0.0)) {{
        return {upper}_NOT_LATER;
    }}
    {"before = now->t;" if timed else ""}
    ({places["dt"]})[0] = dt;{walk}
    status = predict();
{text}
    return status;
}}

void {name}_now({name}_state *out)
{{
    int k;
    {"out->t = before;" if timed else ""}
    {(chr(10) + "    ").join(out)}
    for (k = 0; k < {size}; ++k) {{
        out->std[k] = sqrt(fmax(0.0, ({P})[k * {size + 1}]));
    }}
}}
""")


def _written(
    code: CallListSource, step: FilterStep, update: Update, readings: Sequence[Reading], tables: list[str],
    filter_: Filter,
) -> list[str]:  # fmt: skip
    """Statements that write readings into the inputs of the rows of a source; tables: declarations that are added."""
    members, lines, source = {x.name: x for x in readings}, [], update.source
    given = update.given
    for name in dict.fromkeys(group_of(x).name for x in given if group_of(x).role in (VALUE, SWITCH)):
        x, n = members[name].member, len(members[name].labels)
        value, switch = given.get(value_group(name)), given.get(f"{SWITCH}:{name}")
        spare = "spare"
        if value is None and not any(spare in y for y in tables):
            tables.append(f"static double {spare}[{max(len(y.labels) for y in readings)}];")
        lines.append(f"take({n}, now->{x}, now->has_{x}, {spare if value is None else code.place(value)});")
        if switch is not None:
            lines += [f"for (k = 0; k < {n}; ++k) {{", f"    ({code.place(switch)})[k] = (double)there[k];", "}"]
        if isinstance(source, StateResiduals):
            lines += _unwrapped(code, step, name, code.place(given[value_group(name)]), tables, filter_)
            whole, one, rows = source.noise[name].full, source.std[name], source.rows[name]
            weight = f"{code.place(given[WEIGHT])} + {int(rows[0])}"
            k = len(tables)
            if not whole:
                values = code.real.literals(np.broadcast_to(one, n))
                tables.append(f"static const double noise_{k}[{n}] = {{{values}}};")
            else:
                lines += [f"for (k = 1; k < {n}; ++k) {{", "    there[0] &= there[k];", "}"]
            share = "(double)there[0]" if whole else f"(double)there[k] / noise_{k}[k]"
            lines += [f"for (k = 0; k < {n}; ++k) {{", f"    ({weight})[k] = {share};", "}"]
    for name, quantity, places, n in _exact(update):
        x, k = members[name].member, len(tables)
        tables.append(f"static const int places_{k}[{n}] = {{{', '.join(map(str, places))}}};")
        lines += [f"for (k = 0; k < {n}; ++k) {{",
                  f"    ({code.place(given[quantity])})[places_{k}[k]] = now->{x}[k];", "}"]  # fmt: skip
    return lines


def _unwrapped(
    code: CallListSource, step: FilterStep, name: str, value: str, tables: list[str], filter_: Filter
) -> list[str]:  # fmt: skip
    """C statements that shift the angles of a sensor by whole turns, nearest to the state; see `Filter`."""
    angles = [(i, x) for i, x in enumerate(filter_.angles) if x.name == name]
    if not angles:
        return []
    number, count, bias = len(tables), len(angles), step.layout.biases.get(name)
    turns, places = f"turns_{number}", f"angles_{number}"
    entries = ", ".join(f"{{{x.component}, {x.q}, {x.v}}}" for _, x in angles)
    before = np.nan_to_num(filter_.turns[[i for i, _ in angles]])
    tables += [f"static const int {places}[{count}][3] = {{{entries}}};",
               f"static double {turns}[{count}] = {{{code.real.literals(before)}}};"]  # fmt: skip
    less = "" if bias is None else f" - ({code.place(step.state[BIASES])})[{bias.place.start} + i]"
    turn, certain = code.real.literal(TURN), code.real.literal(CERTAIN**2)
    return [
        f"for (k = 0; k < {count}; ++k) {{", f"    const int i = {places}[k][0];", "    if (there[i]) {",
        f"        const double away = ({value})[i]{less} - ({code.place(step.state[POSITION])})[{places}[k][1]];",
        f"        if (({code.place(step.P)})[{places}[k][2] * {step.layout.size + 1}] <= {certain}) {{",
        f"            {turns}[k] = -rint(away / {turn});", "        }",
        f"        ({value})[i] += {turn} * {turns}[k];", "    }", "}",
    ]  # fmt: skip


# ---- test vectors ----------------------------------------------------------------------------------------------------


def _vectors(
    filter_: Filter, belief: GaussianState, last: MeasurementData, readings: Sequence[Reading], dt: float
) -> tuple[list[dict[str, np.ndarray]], list[GaussianState]]:
    """Test vectors: ([inputs {member: values, has_member: switches, t, dt}], [filtered states]) of TEST_ROWS samples.

    Each sample repeats the last one `last`, dt later, with random dropouts and wrapped angles.
    """
    own, rng = replace(filter_, turns=filter_.turns.copy(), events=[], _current=None), np.random.default_rng(0)
    rows, found = [], []
    for row_number in range(TEST_ROWS):
        t = float(belief.path.t[0]) + dt
        active = {name: x[:1] & (rng.random(x[:1].shape) >= TEST_MISSING) for name, x in last.active.items()}
        now = MeasurementData(np.array([t]), {name: x[:1].copy() for name, x in last.y.items()}, active, last.known)
        for angle in filter_.angles:  # wraps, too
            now.y[angle.name][0, angle.component] += TURN * (row_number % 2)
        belief = own.update(own.predict(belief, t), now)
        row: dict[str, np.ndarray] = {"t": np.array(t), "dt": np.array(dt)}
        for x in readings:
            row[x.member] = now.y[x.name][0] if x.name in now.y else _known(filter_, now, x.name)
            on = now.active[x.name][0] if x.name in now.active else np.ones(len(x.labels))
            row[f"has_{x.member}"] = on.astype(int)
        rows.append(row)
        found.append(belief)
    return rows, found


def _known(filter_: Filter, now: MeasurementData, name: str) -> np.ndarray:
    """Value of an exactly known quantity."""
    for source in filter_.sources:
        if isinstance(source, DynamicsResiduals):
            for m in source.problem.raw:
                if m.name == name:
                    return np.asarray(now.known[m.quantity][0][m.places(source.problem.model)])
    raise KeyError(name)


def _test_vectors(
    name: str, readings: Sequence[Reading], rows: Sequence[Mapping[str, np.ndarray]], found: Sequence[GaussianState],
    real: Real,
) -> str:  # fmt: skip
    guard, given, expected = f"{name.upper()}_TEST_VECTORS_H", [], []
    for row, belief in zip(rows, found, strict=True):
        parts = [real.literals(row[_CLOCK[real].time])]
        for x in readings:
            switches = ", ".join(map(str, row[f"has_{x.member}"].tolist()))
            parts += [f"{{{real.literals(row[x.member])}}}", f"{{{switches}}}"]
        given.append("    {" + ",\n     ".join(parts) + "}")
        path = belief.path
        arrays = [path.q[0], *path.rates[0], path.biases[0], np.sqrt(np.diagonal(belief.P))]
        time = [real.literals(path.t)] if real is DOUBLE else []
        columns = [*time, *(f"{{{real.literals(x)}}}" for x in arrays if x.size)]
        expected.append("    {" + ",\n     ".join(columns) + "}")
    return f"""/* {GENERATED_BY}: rows of readings, and the estimates of the filter after them */
#ifndef {guard}
#define {guard}

#include "{name}.h"

#define TEST_COUNT {len(rows)}
#define TEST_TOLERANCE {TEST_ERROR[real]!r} /* relative to the greatest expected entry */

static const {name}_readings test_readings[TEST_COUNT] = {{
{("," + chr(10)).join(given)}
}};

static const {name}_state test_states[TEST_COUNT] = {{
{("," + chr(10)).join(expected)}
}};

#endif
"""


def _main(name: str, members: Mapping[str, int], real: Real) -> str:
    checks = "\n".join(
        f'        failed += differs("{x}", k, found.{x}, test_states[k].{x}, {n});' for x, n in members.items()
    )
    return f"""/* {GENERATED_BY}: an example of use, and the check of the test vectors */
#include <math.h>
#include <stdio.h>

#include "{name}.h"
#include "test_vectors.h"

{differs("row", real)}
int main(void)
{{
    static {name}_readings again;
    static {name}_state found;
    int k, failed = 0;

    for (k = 0; k < TEST_COUNT; ++k) {{
        failed += {name}_step(&test_readings[k]) != 0;
        {name}_now(&found);
{checks}
    }}
    again = test_readings[0];{chr(10) + "    again.dt = 0;" if real is SINGLE else ""}
    if ({name}_step(&again) != {name.upper()}_NOT_LATER) {{
        printf("a time that does not go on is not reported\\n");
        ++failed;
    }}
    printf(failed ? "%d checks failed\\n" : "all checks passed\\n", failed);
    return failed != 0;
}}
"""
