#include "native.h"

/* States whose doubles are rounded before they are computed, while both are in the cache; numbers rounded at a time, a
   count that compilers make vectors of (chosen). */
enum { ROUNDED = 128, AT_A_TIME = 8 };
/* States ahead of the present one whose rows are fetched into the cache, which takes as long as some copies (measured:
   4 to 16 are alike). States whose outputs are copied together after they are computed: some 50 KB of a humanoid
   (chosen). */
enum { AHEAD = 8, COPIED = 128 };

/* ---- many states ------------------------------------------------------------------------------------------------- */

/* Rows of arrays that have more states than the call. rows: number of each state, n of them out of `whole`. widths: of
   rows of the arrays of outputs, 0 for one that is left out; columns: where in such a row each of its numbers goes,
   output by output. direct: columns of each output follow one another, so that the kernel writes to the arrays. */
typedef struct {
    Table rows, widths, columns;
    long long whole;
    int direct;
} Spread;

typedef struct {
    uintptr_t kernel; /* a Kernel, or ByNumber if rows of larger arrays are computed */
    const int64_t *words, *quaternions;
    int64_t n_words, n_quaternions, n, most, threads, region, bytes; /* the last one: of a number */
    int64_t *counter;
    const int64_t *doubles; /* by word: numbers of a state that are doubles, which a kernel of floats has rounded; or 0 */
    const Spread *spread;   /* NULL: the states of the arrays are those of the call */
} Shared;

/* Numbers of a state in the outputs of the kernel. */
static int64_t output_numbers(const Shared *all)
{
    int64_t found = 0;
    for (Py_ssize_t k = 0; k < all->spread->widths.size; k++)
        found += all->words[all->n_words - 2 * k - 1];
    return found;
}

/* Fetches a row of so many bytes into the cache, to be written. */
static inline void fetch(const char *row, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch(row + at, 1);
}

/* Have the outputs of so many states written to a workspace. */
static void put_aside(const Shared *all, int64_t *words, char *space, int64_t size)
{
    for (int64_t k = all->n_words - 2 * all->spread->widths.size; k < all->n_words; k += 2) {
        words[k] = (int64_t)(intptr_t)space;
        space += size * words[k + 1] * all->bytes;
    }
}

/* Whether the quaternions of the states are normalised to the last bits, in the type that they are handed in. */
static int turned(const Shared *all, const int64_t *words, const int64_t *rows, int64_t size)
{
    for (int64_t j = 0; j < all->n_quaternions; j++) {
        int64_t word = all->quaternions[2 * j], bytes = all->doubles[word] ? (int64_t)sizeof(double) : all->bytes;
        const char *q = (const char *)(intptr_t)words[word] + all->quaternions[2 * j + 1] * bytes;
        for (int64_t s = 0; s < size; s++) {
            if (rows && s + AHEAD < size)
                __builtin_prefetch(q + rows[s + AHEAD] * words[word + 1] * bytes);
            if (!is_unit_quaternion(q + (rows ? rows[s] : s) * words[word + 1] * bytes, bytes))
                return 0;
        }
    }
    return 1;
}

/* Round the inputs that are doubles to a workspace, which the words point to then. */
static void rounded(const Shared *all, int64_t *words, float *space, int64_t size)
{
    for (int64_t k = 2; k < all->n_words; k += 2) {
        int64_t count = all->doubles[k], next = words[k + 1];
        if (!count)
            continue;
        const double *x = (const double *)(intptr_t)words[k];
        words[k] = (int64_t)(intptr_t)space;
        words[k + 1] = next ? count : 0;
        for (int64_t s = 0; s < (next ? size : 1); s++, space += count, x += next) {
            int64_t j = 0;
            for (; j + AT_A_TIME <= count; j += AT_A_TIME)
                for (int i = 0; i < AT_A_TIME; i++)
                    space[j + i] = (float)x[j + i];
            for (; j < count; j++)
                space[j] = (float)x[j];
        }
    }
}

/* Whether numbers follow one another. */
static int follow(const int64_t *numbers, int64_t count)
{
    int run = 1;
    for (int64_t j = 1; j < count; j++)
        run &= numbers[j] == numbers[0] + j;
    return run;
}

/* Copy the outputs of these states to their rows. */
static void scattered(const Shared *all, const int64_t *words, int64_t begin, int64_t size)
{
    const int64_t *rows = (const int64_t *)all->spread->rows.data + begin, *columns = all->spread->columns.data;
    int64_t n_outputs = all->spread->widths.size, bytes = all->bytes;
    for (int64_t k = 0; k < n_outputs; k++) {
        int64_t word = all->n_words - 2 * (n_outputs - k), count = words[word + 1];
        int64_t width = ((const int64_t *)all->spread->widths.data)[k];
        const char *from = (const char *)(intptr_t)words[word];
        char *to = (char *)(intptr_t)all->words[word];
        int run = follow(columns, count);
        for (int64_t s = 0; width && s < size; s++) {
            char *row = to + rows[s] * width * bytes;
            if (s + AHEAD < size)
                fetch(to + rows[s + AHEAD] * width * bytes, width * bytes);
            if (run && count)
                memcpy(row + columns[0] * bytes, from + s * count * bytes, count * bytes);
            else if (bytes == sizeof(double))
                for (int64_t j = 0; j < count; j++)
                    ((double *)row)[columns[j]] = ((const double *)from)[s * count + j];
            else
                for (int64_t j = 0; j < count; j++)
                    ((float *)row)[columns[j]] = ((const float *)from)[s * count + j];
        }
        columns += count;
    }
}

/* Whether rows and columns are within the arrays; spread->direct is known then. */
static int within(Spread *spread, const int64_t *words, int64_t n_words, int64_t n)
{
    const int64_t *rows = spread->rows.data, *columns = spread->columns.data, *widths = spread->widths.data;
    int64_t n_outputs = spread->widths.size, left = spread->columns.size, wrong = spread->rows.size != n;
    wrong |= 2 + 2 * n_outputs > n_words;
    spread->direct = 1;
    for (int64_t s = 0; !wrong && s < n; s++)
        wrong = rows[s] < 0 || rows[s] >= spread->whole;
    for (int64_t k = 0; !wrong && k < n_outputs; k++) {
        int64_t count = words[n_words - 2 * (n_outputs - k) + 1];
        wrong = (left -= count) < 0;
        for (int64_t j = 0; !wrong && widths[k] && j < count; j++)
            wrong = columns[j] < 0 || columns[j] >= widths[k];
        spread->direct &= wrong || !widths[k] || follow(columns, count);
        columns += count;
    }
    return !wrong;
}

/* The bits of the status of all states that this thread takes; −1 if a quaternion is not normalised to the last bits.
   Threads that share a counter have as many regions of states. Each begins with one of its own, whose rows follow one
   another and stay in the cache of its core from call to call, and goes on with what is left of the others. */
static int64_t computed(const Shared *all, int64_t *words, char *space)
{
    int64_t first = __atomic_fetch_add(all->counter, 1, __ATOMIC_RELAXED), bits = 0;
    for (int64_t g = 0; g < all->threads; g++) {
        int64_t which = (first + g) % all->threads, start = which * all->region, stop = start + all->region;
        for (stop = stop < all->n ? stop : all->n;;) {
            int64_t begin = start + __atomic_fetch_add(all->counter + 3 + which, all->most, __ATOMIC_RELAXED);
            if (begin >= stop)
                break;
            int64_t size = stop - begin < all->most ? stop - begin : all->most;
            memcpy(words, all->words, all->n_words * sizeof(int64_t));
            words[1] += begin * (int64_t)sizeof(int64_t);
            const int64_t *rows = all->spread ? (const int64_t *)all->spread->rows.data + begin : NULL;
            for (int64_t k = 2; !rows && k < all->n_words; k += 2)
                words[k] += begin * words[k + 1] * (all->doubles[k] ? (int64_t)sizeof(double) : all->bytes);
            if (!turned(all, words, rows, size))
                return -1;
            if (space && !rows)
                rounded(all, words, (float *)space, size);
            if (space && rows)
                put_aside(all, words, space, size);
            if (rows)
                run_kernel_rows((ByNumber)all->kernel, words, size, rows, space ? NULL : rows);
            else
                run_kernel((Kernel)all->kernel, words, size);
            const int64_t *status = (const int64_t *)(intptr_t)words[1];
            for (int64_t s = 0; s < size; s++)
                bits |= status[s];
            if (space && rows)
                scattered(all, words, begin, size);
        }
    }
    return bits;
}

/* Whether the array is of one state or of n, and its numbers are of so many bytes; its pointer and the numbers from state
   to state are in the words then. */
static int shared(int64_t *words, const Target *target, PyObject *object, int64_t n, int64_t bytes)
{
    PyArrayObject *x = (PyArrayObject *)object;
    npy_intp next = bytes;
    int type = bytes == sizeof(float) ? NPY_FLOAT : NPY_DOUBLE, many = !matches(object, type, target, 0);
    if (many && (!matches(object, type, target, 1) || PyArray_DIM(x, 0) != n || PyArray_STRIDE(x, 0) % next))
        return 0;
    for (int k = PyArray_NDIM(x) - 1; k >= many; k--) {
        if (PyArray_DIM(x, k) > 1 && PyArray_STRIDE(x, k) != next)
            return 0;
        next *= PyArray_DIM(x, k);
    }
    words[target->at] = (int64_t)(intptr_t)PyArray_DATA(x);
    words[target->at + 1] = many ? PyArray_STRIDE(x, 0) / bytes : 0;
    return 1;
}

PyObject *batch(PyObject *module, PyObject *arguments)
{
    unsigned long long kernel, work;
    long long most, bytes;
    Table template, targets, quaternions, status, counter;
    PyObject *outputs, *arrays, *given, *rows;
    Spread spread;
    if (!PyArg_ParseTuple(arguments, "KLO&O&O&LKO!O&O!OO:batch", &kernel, &bytes, integers, &template, integers, &targets,
                          integers, &quaternions, &most, &work, &PyTuple_Type, &outputs, integers, &status,
                          &PyTuple_Type, &arrays, &given, &rows))
        return NULL;
    if (rows != Py_None &&
        !PyArg_ParseTuple(rows, "LO&O&O&:batch", &spread.whole, integers, &spread.rows, integers, &spread.widths,
                          integers, &spread.columns))
        return NULL;
    int spreads = rows != Py_None;
    int64_t n = spreads ? spread.whole : status.size;
    int64_t alone[4] = {0, INT64_MAX / 2, most, 0};
    counter = (Table){alone, 4};
    if (given != Py_None && !integers(given, &counter))
        return NULL;
    Py_ssize_t n_outputs = PyTuple_GET_SIZE(outputs), n_words = template.size;
    if (n_words < 2 + 2 * n_outputs || counter.size < 4 || (bytes != sizeof(float) && bytes != sizeof(double)) ||
        PyTuple_GET_SIZE(arrays) * (Py_ssize_t)sizeof(Target) / 8 != targets.size)
        Py_RETURN_NONE;
    int64_t *words = PyMem_Calloc(3 * n_words, sizeof(int64_t)), found = -1, *limits = counter.data;
    if (!words)
        return PyErr_NoMemory();
    int64_t *rounding = words + 2 * n_words, numbers_rounded = 0;
    memcpy(words, template.data, n_words * sizeof(int64_t));
    words[0] = (int64_t)work;
    words[1] = (int64_t)(intptr_t)status.data;
    int fit = 1;
    for (Py_ssize_t k = 0; fit && k < PyTuple_GET_SIZE(arrays); k++) {
        const Target *target = (const Target *)targets.data + k;
        fit = shared(words, target, PyTuple_GET_ITEM(arrays, k), n, bytes);
        if (!fit && bytes == sizeof(float) && shared(words, target, PyTuple_GET_ITEM(arrays, k), n, sizeof(double))) {
            numbers_rounded += rounding[target->at] = target->size;
            fit = 1;
        }
    }
    if (spreads)
        fit = fit && !numbers_rounded && spread.widths.size == n_outputs && within(&spread, words, n_words, status.size);
    const int64_t *columns = spreads ? spread.columns.data : NULL;
    for (Py_ssize_t k = 0; fit && k < n_outputs; k++) {
        Table output;
        int64_t *own = words + n_words - 2 * (n_outputs - k), width = spreads ? ((int64_t *)spread.widths.data)[k] : 0;
        fit = table(PyTuple_GET_ITEM(outputs, k), &output, 'f', bytes) &&
              (!spreads || output.size >= n * width);
        own[0] = (int64_t)(intptr_t)output.data;
        if (!fit || !spreads)
            continue;
        int64_t count = own[1];
        if (spread.direct) {
            own[0] = width ? own[0] + (count ? columns[0] * bytes : 0) : 0;
            own[1] = width;
        }
        columns += count;
    }
    if (fit) {
        Shared all = {(uintptr_t)kernel, words, quaternions.data, n_words, quaternions.size / 2, status.size,
                      limits[2] < most ? limits[2] : most, counter.size - 3, limits[1], bytes,
                      limits, rounding, spreads ? &spread : NULL};
        if (numbers_rounded && all.most > ROUNDED)
            all.most = ROUNDED;
        int aside = spreads && !spread.direct;
        if (aside && all.most > COPIED)
            all.most = COPIED;
        int64_t copied = aside ? output_numbers(&all) : numbers_rounded;
        char *space = copied ? PyMem_Calloc(copied, all.most * bytes) : NULL;
        Py_BEGIN_ALLOW_THREADS
        if (space || !copied)
            found = computed(&all, words + n_words, space);
        Py_END_ALLOW_THREADS
        PyMem_Free(space);
    }
    PyMem_Free(words);
    if (PyErr_Occurred())
        return NULL;
    return found < 0 ? Py_NewRef(Py_None) : PyBool_FromLong(found == 0);
}

