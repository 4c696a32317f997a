/* Repeated kernel calls, such as the steps of a simulation; see sysdyn/runtime/time_loop.py. */

#include "native.h"

/* Copy after a recorded call: `bytes` bytes from the address in `word` to `to`, which then advances by `stride`. */
typedef struct {
    int64_t word;
    char *to;
    int64_t bytes, stride;
} Record;

typedef struct {
    Kernel kernel;
    Table words, increments, status, mode_flags, records;
    Py_ssize_t width, substeps, record_every;
} Loop;

static int any(const int64_t *status, Py_ssize_t n)
{
    int64_t bits = 0;
    for (Py_ssize_t k = 0; k < n; k++)
        bits |= status[k];
    return bits != 0;
}

static Py_ssize_t run_loop(const Loop *loop, Py_ssize_t first, Py_ssize_t last, int resume)
{
    const Py_ssize_t width = loop->width, period = loop->words.size / width, half = loop->mode_flags.size / 2;
    const int64_t *flags = loop->mode_flags.data;
    for (Py_ssize_t k = first; k < last; k++) {
        int64_t *words = (int64_t *)loop->words.data + k % period * width;
        const int64_t *increments = (int64_t *)loop->increments.data + k % period * width;
        if (k > first || !resume) {
            run_kernel(loop->kernel, words, loop->status.size);
            if (any(loop->status.data, loop->status.size))
                return k;
            if (k % loop->substeps == 0 && memcmp(flags, flags + half, half * sizeof *flags))
                return k;
        }
        Record *record = loop->records.data, *end = (Record *)((int64_t *)record + loop->records.size);
        for (; k % loop->record_every == 0 && record < end; record++) {
            memcpy(record->to, (void *)words[record->word], record->bytes);
            record->to += record->stride;
        }
        for (Py_ssize_t i = 0; i < width; i++)
            words[i] += increments[i];
    }
    return last;
}

/* run_time_loop(kernel, words, width, increments, status, mode_flags, substeps, record_every, records, first, last,
   resume) → index of the call at which the loop ended. */
PyObject *run_time_loop(PyObject *module, PyObject *arguments)
{
    Loop loop;
    Py_ssize_t first, last;
    int resume;
    if (!PyArg_ParseTuple(
            arguments, "KO&nO&O&O&nnO&nnp", &loop.kernel, integers, &loop.words, &loop.width, integers,
            &loop.increments, integers, &loop.status, integers, &loop.mode_flags, &loop.substeps, &loop.record_every,
            integers, &loop.records, &first, &last, &resume))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    first = run_loop(&loop, first, last, resume);
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(first);
}
