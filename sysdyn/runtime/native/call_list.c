/* Call lists: repeats calls of kernels, BLAS, LAPACK and routines.h for each time step without Python. */

#include "native.h"

/* Function multiversioning for wider registers, if the loader supports it. */
#if defined(__GNUC__)
#pragma GCC optimize("O3", "fp-contract=fast")
#endif
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__)
#define ROUTINE __attribute__((target_clones("avx512f", "fma", "default"), unused)) static
#else
#define ROUTINE static inline
#endif
#define VECTOR_BYTES 64
#include "routines.h"

/* Largest number of arguments, that of dgemm. Every call passes so many; a routine ignores surplus arguments. */
enum { ARGUMENTS = 13 };
typedef void (*Routine)(
    char *, char *, char *, char *, char *, char *, char *, char *, char *, char *, char *, char *, char *);

/* A routine, its arguments at time step 0, and their strides in bytes from time step to time step. If routine is NULL, the
   call runs a kernel: arguments = {kernel, words, words at time step 0, strides of words}, strides = {number of states,
   number of words}. */
typedef struct {
    Routine routine;
    char *arguments[ARGUMENTS];
    int64_t strides[ARGUMENTS];
} Call;

static void run_program(const Call *call, int64_t step)
{
    int64_t *words = (int64_t *)call->arguments[1];
    const int64_t *first = (int64_t *)call->arguments[2], *strides = (int64_t *)call->arguments[3];
    for (int64_t k = 0; k < call->strides[1]; k++)
        words[k] = first[k] + step * strides[k];
    run_kernel((Kernel)call->arguments[0], words, call->strides[0]);
}

static void run_routine(const Call *call, int64_t step)
{
    char *x[ARGUMENTS];
    for (int k = 0; k < ARGUMENTS; k++)
        x[k] = call->arguments[k] + step * call->strides[k];
    call->routine(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11], x[12]);
}

/* run_calls(calls, first, last, increment): makes the calls of the time steps range(first, last, increment). */
PyObject *run_calls(PyObject *module, PyObject *arguments)
{
    Table calls;
    Py_ssize_t first, last, increment;
    if (!PyArg_ParseTuple(arguments, "O&nnn", integers, &calls, &first, &last, &increment))
        return NULL;
    const Call *begin = calls.data, *end = begin + calls.size * sizeof(int64_t) / sizeof(Call);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t step = first; step != last; step += increment)
        for (const Call *call = begin; call < end; call++)
            (call->routine ? run_routine : run_program)(call, step);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- wrappers of routines.h that take arguments by address ---- */

static void call_spmm(
    int *k, int *n, int *add, int *starts, int *columns, int *sources, double *A, double *x, double *y)
{
    spmm(*k, *n, *add, starts, columns, sources, A, x, y);
}
static void call_trsm(int *k, int *m, double *L, double *x) { trsm(*k, *m, L, x); }
static void call_syrk_sub(int *k, int *m, double *x, double *y, double *P) { syrk_sub(*k, *m, x, y, P); }
static void call_transpose(int *n, int *k, double *x, double *y) { transpose(*n, *k, x, y); }
static void call_symmetrise(int *k, double *x) { symmetrise(*k, x); }
static void call_scatter_add(int *n, int *indices, double *x, double *y) { scatter_add(*n, indices, x, y); }
static void call_gather(int *n, int *indices, double *x, double *y) { gather(*n, indices, x, y); }
static void call_flush_subnormals(int *n, double *least, double *x) { flush_subnormals(*n, *least, x); }

/* Adds {name: address} of the routines to the module. */
int add_routines(PyObject *module)
{
    const struct {
        const char *name;
        void *address;
    } routines[] = {
        {"spmm", call_spmm}, {"trsm", call_trsm}, {"syrk_sub", call_syrk_sub}, {"transpose", call_transpose},
        {"symmetrise", call_symmetrise}, {"scatter_add", call_scatter_add}, {"gather", call_gather},
        {"flush_subnormals", call_flush_subnormals},
    };
    PyObject *addresses = PyDict_New();
    for (size_t k = 0; addresses && k < sizeof routines / sizeof *routines; k++) {
        PyObject *address = PyLong_FromVoidPtr(routines[k].address);
        if (!address || PyDict_SetItemString(addresses, routines[k].name, address))
            Py_CLEAR(addresses);
        Py_XDECREF(address);
    }
    int failed = !addresses || PyModule_AddObjectRef(module, "ROUTINES", addresses);
    Py_XDECREF(addresses);
    return failed;
}
