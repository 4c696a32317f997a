#include "native.h"

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

/* Number of states per pass: operations of different states are independent, which hides their latency. */
enum { LANES = 8 };
/* One number per state; the compiler splits it into vector registers. */
typedef double Lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double))));
/* Double-double numbers high + low, |low| ≤ ulp(high)/2. Dekker (1971); Joldes, Muller and Popescu (2017). */
typedef struct {
    Lanes high, low;
} Twice;

#define INLINE static inline __attribute__((always_inline))
/* Function multiversioning for the widest registers of the processor, if the loader supports it. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

/* Opcodes, as in sysdyn/program/opcodes.py. */
enum { ADD = 2, SUB, MUL, DIV, NEG, SIN, COS, SQRT, OPAQUE, COPYSIGN, WRAP };
/* Number of Taylor terms of sine and cosine up to π/4: the next term is below 1e-34. */
enum { TERMS = 15 };
/* Cody-Waite splitting of π/2; its remainder times 1e9/(π/2) is below 1e-40. */
static const double QUARTER[] = {1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33};
static Twice inverse_factorial[2 * TERMS];

/* Broadcasts a number to all states. */
INLINE Lanes all(double x)
{
    Lanes lanes;
    for (int k = 0; k < LANES; k++)
        lanes[k] = x;
    return lanes;
}

/* a + b exactly, |a| ≥ |b|. */
INLINE Twice ordered_sum(Lanes a, Lanes b)
{
    Lanes sum = a + b;
    return (Twice){sum, b - (sum - a)};
}

/* a + b exactly. Knuth (1969). */
INLINE Twice exact_sum(Lanes a, Lanes b)
{
    Lanes sum = a + b, part = sum - a;
    return (Twice){sum, (a - (sum - part)) + (b - part)};
}

/* a b exactly, by Dekker splitting into 26 bits: not every processor has fused multiply-add. */
INLINE Twice exact_product(Lanes a, Lanes b)
{
    Lanes p = a * b, c = all(134217729.0) * a, d = all(134217729.0) * b; /* 2²⁷ + 1 */
    Lanes a_high = c - (c - a), b_high = d - (d - b), a_low = a - a_high, b_low = b - b_high;
    return (Twice){p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

INLINE Twice negative(Twice a) { return (Twice){-a.high, -a.low}; }

INLINE Twice sum(Twice a, Twice b)
{
    Twice s = exact_sum(a.high, b.high), t = exact_sum(a.low, b.low);
    s = ordered_sum(s.high, s.low + t.high);
    return ordered_sum(s.high, s.low + t.low);
}

INLINE Twice times(Twice a, Twice b)
{
    Twice p = exact_product(a.high, b.high);
    return ordered_sum(p.high, p.low + (a.high * b.low + a.low * b.high));
}

INLINE Twice quotient(Twice a, Twice b)
{
    Twice q = {a.high / b.high, all(0.0)};
    for (int k = 0; k < 2; k++) {
        Twice rest = sum(a, negative(times(q, b)));
        q = sum(q, (Twice){rest.high / b.high, all(0.0)});
    }
    return q;
}

INLINE Twice root(Twice a)
{
    Lanes about;
    for (int k = 0; k < LANES; k++)
        about[k] = sqrt(a.high[k]);
    Twice rest = sum(a, negative(exact_product(about, about)));
    Twice x = ordered_sum(about, rest.high / (all(2.0) * about));
    rest = sum(a, negative(times(x, x)));
    x = sum(x, (Twice){rest.high / (all(2.0) * about), all(0.0)});
    for (int k = 0; k < LANES; k++)
        if (a.high[k] == 0.0)
            x.high[k] = a.high[k], x.low[k] = a.low[k];
    return x;
}

/* |a| with the sign of b. */
INLINE Twice with_sign(Twice a, Twice b)
{
    for (int k = 0; k < LANES; k++)
        if (!signbit(a.high[k]) != !signbit(b.high[k]))
            a.high[k] = -a.high[k], a.low[k] = -a.low[k];
    return a;
}

/* Sine and cosine by Taylor series after reduction modulo π/2. */
INLINE void sine_cosine(Twice x, Twice found[2])
{
    Lanes turns;
    for (int k = 0; k < LANES; k++)
        turns[k] = nearbyint(x.high[k] / QUARTER[0]);
    for (int k = 0; k < 3; k++)
        x = sum(x, exact_product(-turns, all(QUARTER[k])));
    Twice square = times(x, x), s = inverse_factorial[2 * TERMS - 1], c = inverse_factorial[2 * TERMS - 2];
    for (int k = TERMS - 2; k >= 0; k--) {
        s = sum(inverse_factorial[2 * k + 1], negative(times(s, square)));
        c = sum(inverse_factorial[2 * k], negative(times(c, square)));
    }
    s = times(s, x);
    for (int k = 0; k < LANES; k++) {
        int quarter = (int)((int64_t)turns[k] & 3);
        const double both[][2] = {
            {s.high[k], s.low[k]}, {c.high[k], c.low[k]}, {-s.high[k], -s.low[k]}, {-c.high[k], -c.low[k]}};
        for (int j = 0; j < 2; j++) {
            found[j].high[k] = both[(quarter + j) & 3][0];
            found[j].low[k] = both[(quarter + j) & 3][1];
        }
    }
}

/* A program of n operations; see sysdyn/program/program.py. */
typedef struct {
    const int8_t *kinds;
    const int32_t *lhs, *rhs;
    int64_t n, n_inputs, n_constants;
} Program;

/* Inputs and constants of a lane. */
typedef struct {
    const double *inputs, *constants;
} Given;

/* Computes the values of all inputs, constants and operations. */
WIDEST static void run_twice(const Program *program, const Given given[LANES], Twice *values)
{
    int64_t first = program->n_inputs + program->n_constants, angle = -1; /* its sine and cosine are in `trigonometric` */
    Twice trigonometric[2];
    for (int64_t k = 0; k < first; k++) {
        int64_t constant = k - program->n_inputs;
        for (int64_t s = 0; s < LANES; s++)
            values[k].high[s] = constant < 0 ? given[s].inputs[k] : given[s].constants[constant];
        values[k].low = all(0.0);
    }
    for (int64_t k = 0; k < program->n; k++) {
        const Twice *a = values + program->lhs[k], *b = program->rhs[k] < 0 ? a : values + program->rhs[k];
        Twice *y = values + first + k;
        switch (program->kinds[k]) {
        case ADD: *y = sum(*a, *b); break;
        case SUB: *y = sum(*a, negative(*b)); break;
        case MUL: *y = times(*a, *b); break;
        case DIV: *y = quotient(*a, *b); break;
        case NEG: *y = negative(*a); break;
        case SQRT: *y = root(*a); break;
        case COPYSIGN: *y = with_sign(*a, *b); break;
        case WRAP: *y = *a; break; /* sine and cosine need no angle modulo 2π */
        case SIN: case COS:
            if (program->lhs[k] != angle)
                sine_cosine(*a, trigonometric);
            angle = program->lhs[k];
            *y = trigonometric[program->kinds[k] == COS];
            break;
        default: *y = (Twice){all(NAN), all(NAN)};
        }
    }
}

/* Evaluates a program at n states, inputs (n, n_inputs). Writes the values `wanted` to high, low (n, wanted). */
PyObject *twice(PyObject *module, PyObject *arguments)
{
    Table kinds, lhs, rhs, constants, wanted, inputs, high, low;
    long long n;
    if (!PyArg_ParseTuple(arguments, "O&O&O&O&O&LO&O&O&:twice", int8s, &kinds, int32s, &lhs, int32s, &rhs, doubles,
                          &constants, int32s, &wanted, &n, doubles, &inputs, doubles, &high, doubles, &low))
        return NULL;
    if (n < 1 || high.size != n * wanted.size || low.size != high.size || inputs.size % n || lhs.size != kinds.size ||
        rhs.size != kinds.size)
        return PyErr_Format(PyExc_ValueError, "the sizes of the arrays do not fit");
    Program program = {kinds.data, lhs.data, rhs.data, kinds.size, inputs.size / n, constants.size};
    Twice *values = malloc((program.n_inputs + program.n_constants + program.n) * sizeof(Twice) + 1);
    if (!values)
        return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS
    for (int64_t first = 0; first < n; first += LANES) {
        int64_t count = n - first < LANES ? n - first : LANES;
        Given given[LANES];
        for (int64_t s = 0; s < LANES; s++) {
            int64_t state = first + (s < count ? s : 0);
            given[s] = (Given){(const double *)inputs.data + state * program.n_inputs, constants.data};
        }
        run_twice(&program, given, values);
        for (int64_t s = 0; s < count; s++)
            for (Py_ssize_t k = 0; k < wanted.size; k++) {
                const Twice *x = values + ((const int32_t *)wanted.data)[k];
                ((double *)high.data)[(first + s) * wanted.size + k] = x->high[s];
                ((double *)low.data)[(first + s) * wanted.size + k] = x->low[s];
            }
    }
    Py_END_ALLOW_THREADS
    free(values);
    Py_RETURN_NONE;
}

/* Whether |x − y| ≤ share · scale, where scale is the largest |x| of the group of an entry, but at least `least` times the
   largest |x| of all. units: group of each of the n entries, below n. room: workspace for 2 n numbers. */
static int agree(const double *x, const double *y, const Table *units, double least, double share, double *room)
{
    const int64_t *group = units->data, n = units->size;
    double *size = room, *off = room + n, greatest = 0.0;
    memset(room, 0, 2 * n * sizeof(double));
    for (int64_t k = 0; k < n; k++) {
        double own = fabs(x[k]), apart = fabs(x[k] - y[k]);
        if (!isfinite(own) || !isfinite(apart))
            return 0;
        size[group[k]] = fmax(size[group[k]], own);
        off[group[k]] = fmax(off[group[k]], apart);
        greatest = fmax(greatest, own);
    }
    for (int64_t k = 0; k < n; k++)
        if (off[k] > share * fmax(size[k], least * greatest))
            return 0;
    return 1;
}

/* Whether `units` has n group indices, each from 0 to n − 1. */
static int are_groups(const Table *units, int64_t n)
{
    const int64_t *group = units->data;
    int fit = units->size == n;
    for (int64_t k = 0; fit && k < n; k++)
        fit = group[k] >= 0 && group[k] < n;
    return fit;
}

/* Whether `outputs` has a C-contiguous array of doubles or floats for N states for each output. */
static int are_outputs(PyObject *outputs, const Table *ends, int64_t N)
{
    const int64_t *end = ends->data;
    Table found;
    int fit = PyTuple_GET_SIZE(outputs) == ends->size;
    for (Py_ssize_t k = 0, begin = 0; fit && k < ends->size; begin = end[k++]) {
        PyObject *x = PyTuple_GET_ITEM(outputs, k);
        int single = PyArray_Check(x) && PyArray_ITEMSIZE((PyArrayObject *)x) == sizeof(float);
        fit = table(x, &found, 'f', single ? sizeof(float) : sizeof(double)) && found.size == N * (end[k] - begin);
    }
    return fit;
}

/* Copies a row of outputs to the arrays of a state. */
static void write_outputs(PyObject *outputs, const Table *ends, int64_t state, const double *row)
{
    const int64_t *end = ends->data;
    for (Py_ssize_t k = 0, begin = 0; k < ends->size; begin = end[k++]) {
        PyArrayObject *x = (PyArrayObject *)PyTuple_GET_ITEM(outputs, k);
        int64_t first = state * (end[k] - begin) - begin;
        int single = PyArray_ITEMSIZE(x) == sizeof(float);
        for (int64_t i = begin; i < end[k]; i++)
            if (single)
                ((float *)PyArray_DATA(x))[first + i] = (float)row[i];
            else
                ((double *)PyArray_DATA(x))[first + i] = row[i];
    }
}

/* Double-double rerun of states, see online/double_double.py. Returns the number of accepted states; writes their outputs
   and sets their status to 0. inputs (states, n_inputs); states: their indices.

   Each state runs twice, the second time with the perturbed inputs and constants. It is accepted if no guarded pivot
   changes by more than `tolerance`, relative to itself, or is below its entry of `zeros`, and no output by more than that, see `agree`. ends: end of each
   output in the row of all outputs. units: groups of its entries. recoverable: status bits of states that may be rerun. */
PyObject *rerun(PyObject *module, PyObject *arguments)
{
    Table kinds, lhs, rhs, constants, perturbed_constants, wanted, guards, zeros, ends, units, inputs, perturbed, states;
    Table status;
    PyObject *outputs;
    double tolerance, least;
    long long recoverable;
    if (!PyArg_ParseTuple(arguments, "O&O&O&O&O&O&O&O&O&O&ddO&O&O&O!O&L:rerun", int8s, &kinds, int32s, &lhs, int32s, &rhs,
                          doubles, &constants, doubles, &perturbed_constants, int32s, &wanted, int32s, &guards,
                          doubles, &zeros, integers, &ends, integers, &units, &tolerance, &least, doubles, &inputs, doubles, &perturbed,
                          integers, &states, &PyTuple_Type, &outputs, integers, &status, &recoverable))
        return NULL;
    int64_t n_outputs = ends.size ? ((const int64_t *)ends.data)[ends.size - 1] : 0;
    if (!are_outputs(outputs, &ends, status.size) || wanted.size != n_outputs || !are_groups(&units, n_outputs) ||
        !states.size || inputs.size % states.size || perturbed.size != inputs.size || lhs.size != kinds.size ||
        rhs.size != kinds.size || perturbed_constants.size != constants.size || zeros.size != guards.size)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "the sizes of the arrays do not fit");
    Program program = {kinds.data, lhs.data, rhs.data, kinds.size, inputs.size / states.size, constants.size};
    int64_t n_values = program.n_inputs + program.n_constants + program.n, solved = 0;
    Twice *values = malloc(n_values * sizeof(Twice) + 4 * n_outputs * sizeof(double) + 1);
    if (!values)
        return PyErr_NoMemory();
    double *row = (double *)(values + n_values), *other = row + n_outputs, *room = other + n_outputs;
    const int64_t *numbers = states.data;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t next = 0; next < states.size;) {
        Given given[LANES]; /* first half: as given; second half: perturbed */
        int64_t chosen[LANES / 2], count = 0;
        for (; next < states.size && count < LANES / 2; next++)
            if (!(((const int64_t *)status.data)[numbers[next]] & ~recoverable))
                chosen[count++] = next;
        if (!count)
            break;
        for (int64_t s = 0; s < LANES / 2; s++) {
            int64_t first = chosen[s < count ? s : 0] * program.n_inputs;
            given[s] = (Given){(const double *)inputs.data + first, constants.data};
            given[s + LANES / 2] = (Given){(const double *)perturbed.data + first, perturbed_constants.data};
        }
        run_twice(&program, given, values);
        for (int64_t s = 0; s < count; s++) {
            int accepted = 1;
            for (Py_ssize_t k = 0; k < guards.size; k++) {
                const Lanes *pivot = &values[((const int32_t *)guards.data)[k]].high;
                double x = (*pivot)[s], y = (*pivot)[s + LANES / 2];
                accepted &= fabs(x - y) < tolerance * fabs(x) && fabs(x) >= ((const double *)zeros.data)[k];
            }
            for (Py_ssize_t k = 0; k < n_outputs; k++) {
                const Lanes *x = &values[((const int32_t *)wanted.data)[k]].high;
                row[k] = (*x)[s];
                other[k] = (*x)[s + LANES / 2];
            }
            if (!accepted || !agree(row, other, &units, least, tolerance, room))
                continue;
            write_outputs(outputs, &ends, numbers[chosen[s]], row);
            ((int64_t *)status.data)[numbers[chosen[s]]] = 0;
            solved++;
        }
    }
    Py_END_ALLOW_THREADS
    free(values);
    return PyLong_FromLongLong(solved);
}

/* Computes the Taylor coefficients of sine and cosine, once. */
void prepare_double_double(void)
{
    inverse_factorial[0] = (Twice){all(1.0), all(0.0)};
    for (int k = 1; k < 2 * TERMS; k++)
        inverse_factorial[k] = quotient(inverse_factorial[k - 1], (Twice){all(k), all(0.0)});
}
