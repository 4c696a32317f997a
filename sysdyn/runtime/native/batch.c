#include "native.h"

/* Work-stealing queue of a batch. Each thread owns a region of states and takes chunks of it, so that their rows stay in
   the cache of its core from call to call. It then steals chunks from the other regions. */
typedef struct {
    int64_t begun, region, chunk; /* threads that have started; states per region; states per chunk */
    int64_t taken[];              /* by region: number of states taken */
} Queue;

typedef struct {
    Kernel kernel;
    int64_t *words, *doubles; /* kernel arguments for all states; by word, see run_kernel_on */
    int64_t n_words, n, chunk, regions;
    int64_t total;       /* rows of the arrays */
    const int64_t *rows; /* row of each of the n states; NULL: n = total, and state s has row s */
    Table quaternions;   /* of each quaternion: word of its array, first entry in a row */
    Queue *queue;
} Job;

/* ---- bind -------------------------------------------------------------------------------------------------------- */

/* Sets the words of an input; returns 0 unless the array has one row or `total`, and entries of `bytes` bytes. */
static int bind_input(Job *job, const Target *target, PyObject *object, int64_t bytes)
{
    PyArrayObject *x = (PyArrayObject *)object;
    npy_intp next = bytes;
    int type = bytes == sizeof(float) ? NPY_FLOAT : NPY_DOUBLE, many = !matches(object, type, target, 0);
    if (many && (!matches(object, type, target, 1) || PyArray_DIM(x, 0) != job->total || PyArray_STRIDE(x, 0) % next))
        return 0;
    for (int k = PyArray_NDIM(x) - 1; k >= many; k--) {
        if (PyArray_DIM(x, k) > 1 && PyArray_STRIDE(x, k) != next)
            return 0;
        next *= PyArray_DIM(x, k);
    }
    job->words[target->at] = (int64_t)(intptr_t)PyArray_DATA(x);
    job->words[target->at + 1] = many ? PyArray_STRIDE(x, 0) / bytes : 0;
    job->doubles[target->at] = bytes != job->kernel->bytes;
    return 1;
}

/* Sets the words of an output; returns 0 unless the array has the shape (total, entries), and contiguous rows. */
static int bind_output(Job *job, int64_t word, PyObject *object)
{
    PyArrayObject *x = (PyArrayObject *)object;
    int64_t bytes = job->kernel->bytes;
    Target target = {.axes = 1, .dims = {job->words[word + 1]}};
    if (!matches(object, bytes == sizeof(float) ? NPY_FLOAT : NPY_DOUBLE, &target, 1) || !PyArray_ISWRITEABLE(x) ||
        PyArray_DIM(x, 0) != job->total || PyArray_STRIDE(x, 0) % bytes ||
        (target.dims[0] > 1 && PyArray_STRIDE(x, 1) != bytes))
        return 0;
    job->words[word] = (int64_t)(intptr_t)PyArray_DATA(x);
    job->words[word + 1] = PyArray_STRIDE(x, 0) / bytes;
    return 1;
}

static int rows_exist(const Job *job)
{
    for (int64_t s = 0; job->rows && s < job->n; s++)
        if (job->rows[s] < 0 || job->rows[s] >= job->total)
            return 0;
    return 1;
}

static int bind(Job *job, Table targets, PyObject *inputs, PyObject *outputs)
{
    int64_t n_outputs = PyTuple_GET_SIZE(outputs), word = job->n_words - 2 * n_outputs;
    if (word < 2 || PyTuple_GET_SIZE(inputs) * (Py_ssize_t)sizeof(Target) / 8 != targets.size || !rows_exist(job))
        return 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(inputs); k++) {
        const Target *target = (const Target *)targets.data + k;
        PyObject *x = PyTuple_GET_ITEM(inputs, k);
        if (!bind_input(job, target, x, job->kernel->bytes) &&
            (job->kernel->bytes == sizeof(double) || !bind_input(job, target, x, sizeof(double))))
            return 0;
    }
    for (int64_t k = 0; k < n_outputs; k++, word += 2)
        if (!bind_output(job, word, PyTuple_GET_ITEM(outputs, k)))
            return 0;
    return 1;
}

/* ---- run --------------------------------------------------------------------------------------------------------- */

/* Whether all quaternions of a chunk are normalised to the machine precision of their array. */
static int all_unit_quaternions(const Job *job, const int64_t *words, int64_t n, const int64_t *rows)
{
    const int64_t *quaternion = job->quaternions.data;
    for (const int64_t *end = quaternion + job->quaternions.size; quaternion < end; quaternion += 2) {
        int64_t word = quaternion[0], bytes = job->doubles[word] ? (int64_t)sizeof(double) : job->kernel->bytes;
        const char *first = (const char *)(intptr_t)words[word] + quaternion[1] * bytes;
        for (int64_t s = 0; s < n; s++)
            if (!is_unit_quaternion(first + (rows ? rows[s] : s) * words[word + 1] * bytes, bytes))
                return 0;
    }
    return 1;
}

/* Runs the states begin … begin + n − 1. Returns the union of their status bits, or −1 for unnormalised quaternions. */
static int64_t run_chunk(const Job *job, int64_t *words, int64_t begin, int64_t n)
{
    const int64_t *rows = job->rows ? job->rows + begin : NULL;
    memcpy(words, job->words, job->n_words * sizeof(int64_t));
    words[1] += begin * (int64_t)sizeof(int64_t);
    for (int64_t k = 2; !rows && k < job->n_words; k += 2)
        words[k] += begin * words[k + 1] * (job->doubles[k] ? (int64_t)sizeof(double) : job->kernel->bytes);
    if (!all_unit_quaternions(job, words, n, rows))
        return -1;
    run_kernel_on(job->kernel, words, n, job->doubles, rows);
    int64_t bits = 0;
    for (int64_t s = 0; s < n; s++)
        bits |= ((const int64_t *)(intptr_t)words[1])[s];
    return bits;
}

/* Runs chunks from the queue until it is empty. Returns the union of the status bits of these states, or −1 as above. */
static int64_t run_share(const Job *job, int64_t *words)
{
    int64_t first = __atomic_fetch_add(&job->queue->begun, 1, __ATOMIC_RELAXED), bits = 0;
    for (int64_t g = 0; g < job->regions && bits >= 0; g++) {
        int64_t region = (first + g) % job->regions, start = region * job->queue->region;
        int64_t stop = job->n < start + job->queue->region ? job->n : start + job->queue->region;
        while (bits >= 0) {
            int64_t begin = start + __atomic_fetch_add(job->queue->taken + region, job->chunk, __ATOMIC_RELAXED);
            if (begin >= stop)
                break;
            bits |= run_chunk(job, words, begin, stop - begin < job->chunk ? stop - begin : job->chunk);
        }
    }
    return bits;
}

PyObject *batch(PyObject *module, PyObject *arguments)
{
    unsigned long long kernel, work;
    long long most, total;
    Table template, targets, status, queue, rows = {0};
    PyObject *outputs, *inputs, *shared, *numbers;
    Job job = {0};
    if (!PyArg_ParseTuple(arguments, "KO&O&O&LKO!O&O!OLO:batch", &kernel, integers, &template, integers, &targets,
                          integers, &job.quaternions, &most, &work, &PyTuple_Type, &outputs, integers, &status,
                          &PyTuple_Type, &inputs, &shared, &total, &numbers))
        return NULL;
    int64_t alone[4] = {0, INT64_MAX / 2, most, 0};
    queue = (Table){alone, 4};
    if ((shared != Py_None && !integers(shared, &queue)) || (numbers != Py_None && !integers(numbers, &rows)))
        return NULL;
    if (template.size < 2 || queue.size < 4 || (numbers != Py_None ? rows.size : total) != status.size)
        Py_RETURN_NONE;
    int64_t *words = PyMem_Calloc(3 * template.size, sizeof(int64_t)), bits = -1;
    if (!words)
        return PyErr_NoMemory();
    job.kernel = (Kernel)(uintptr_t)kernel;
    job.n_words = template.size;
    job.n = status.size;
    job.total = total;
    job.rows = rows.data;
    job.queue = queue.data;
    job.regions = queue.size - 3;
    job.chunk = job.queue->chunk < most ? job.queue->chunk : most;
    job.words = words;
    job.doubles = words + 2 * job.n_words;
    memcpy(words, template.data, job.n_words * sizeof(int64_t));
    words[0] = (int64_t)work;
    words[1] = (int64_t)(intptr_t)status.data;
    if (bind(&job, targets, inputs, outputs)) {
        Py_BEGIN_ALLOW_THREADS
        bits = run_share(&job, words + job.n_words);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(words);
    if (PyErr_Occurred())
        return NULL;
    return bits < 0 ? Py_NewRef(Py_None) : PyBool_FromLong(bits == 0);
}

PyObject *run_states(PyObject *module, PyObject *arguments)
{
    unsigned long long kernel;
    long long n;
    Table words;
    if (!PyArg_ParseTuple(arguments, "KO&L:run", &kernel, integers, &words, &n))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    run_kernel((Kernel)(uintptr_t)kernel, words.data, n);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
