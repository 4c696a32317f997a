/* Calls of kernels by arrays of a caller, with NumPy's C API. They are for calls.py beside this file, and trust it.

   Called                   the base of classes with an `Entry` as their `__call__`
   Entry(general)           a method that tries the calls of one state in the list `_plain` of a `Called`, then goes the
                            general way
   Plain(…)                 such a call, by arguments of certain names and shapes
   Result                   the base of classes whose objects hold a row of results of a plain call, or what Python code
                            keeps in `_given`
   Quantity(name, general)  an attribute of results: a view of their row, or else what the general function gives
   prepared(kernel, words, n) → a function without arguments that runs the kernel, with the interpreter's lock held
   Chain(…)                 a call of two kernels of one state, of which the second reads what the first one writes
   batch(…) → whether every status of a batch is 0; None where it has to go another way. Its states are those of the
                            arrays, or some of their rows
   twice(…)                 runs a program in twice the precision
   again(…)                 the same for states whose results in double precision are doubtful, with a verdict on each

   From the moment at which a plain call lays out its inputs until the kernel has run no Python code can run, and the
   interpreter's lock is held: one workspace serves all calls of a kernel, also those within others. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <structmember.h>
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#ifndef SOURCE
#error "compile with -DSOURCE=, the checksum of the sources"
#endif

/* Arrays have up to this many axes, calls up to this many results. */
enum { AXES = 4, OUTPUTS = 64, SCATTERED = 1, FOR_ALL = 2 };
/* Bytes of a cache line; rows of up to LONGEST_KEPT numbers that a call keeps for its next results, ROWS at a time
   (chosen: 256 KiB at most; enough for a caller who holds three results). */
enum { LINE = 64, LONGEST_KEPT = 8192, ROWS = 4 };
/* States whose doubles are rounded before they are computed, while both are in the cache; numbers rounded at a time, a
   count that compilers make vectors of (chosen). */
enum { ROUNDED = 128, AT_A_TIME = 8 };
/* States ahead of the present one whose rows are fetched into the cache, which takes as long as some copies (measured:
   4 to 16 are alike). States whose outputs are copied together after they are computed: some 50 KB of a humanoid
   (chosen). */
enum { AHEAD = 8, COPIED = 128 };
/* The norm of a quaternion: within EXACT from 1 it is used as it is, beyond NEAR the general way raises an error. */
static const double EXACT = 4.0 * 2.220446049250313e-16, EXACT_FLOAT = 4.0 * 1.1920928955078125e-07, NEAR = 1e-6;

/* See sysdyn/runtime/kernel.py. */
typedef void (*Kernel)(int64_t *words, int64_t n);
typedef void (*ByNumber)(int64_t *words, int64_t n, const int64_t *rows, const int64_t *into);

/* An argument at one state. at: where its entries go among the inputs, one after the other, or, if they are scattered,
   where their places begin in a table; for a batch, the number of the word that has its pointer. how: SCATTERED, and
   FOR_ALL if a float may stand for all entries. */
typedef struct {
    int64_t axes, dims[AXES], size, at, how;
} Target;

/* An array of results. word: the number of that with its pointer; at: where it begins in a row of all results. */
typedef struct {
    int64_t axes, dims[AXES], word, at;
} Output;

typedef struct {
    PyTypeObject *called, *plain, *result, *row; /* which the module owns */
} State;

/* The content of a C-contiguous array of numbers of one size. */
typedef struct {
    void *data;
    Py_ssize_t size;
} Table;

static int table(PyObject *x, Table *found, char kind, int64_t bytes)
{
    PyArrayObject *array = (PyArrayObject *)x;
    if (!PyArray_Check(x) || PyArray_DESCR(array)->kind != kind || PyArray_ITEMSIZE(array) != bytes ||
        !PyArray_IS_C_CONTIGUOUS(array)) {
        PyErr_Format(PyExc_TypeError, "a C-contiguous array of %d-byte numbers of kind %c is needed", (int)bytes, kind);
        return 0;
    }
    *found = (Table){PyArray_DATA(array), PyArray_SIZE(array)};
    return 1;
}

static int integers(PyObject *x, void *found) { return table(x, found, 'i', 8); }
static int doubles(PyObject *x, void *found) { return table(x, found, 'f', 8); }
static int shorts(PyObject *x, void *found) { return table(x, found, 'i', 4); }
static int bytes_of(PyObject *x, void *found) { return table(x, found, 'i', 1); }

/* Whether x is an array of NPY_DOUBLE or NPY_FLOAT, no subclass, with the shape of the target after so many leading
   axes. */
static int suits(PyObject *object, int type, const Target *target, int leading)
{
    PyArrayObject *x = (PyArrayObject *)object;
    if (!PyArray_CheckExact(object) || PyArray_TYPE(x) != type || !PyArray_ISALIGNED(x) ||
        !PyArray_ISNOTSWAPPED(x) || PyArray_NDIM(x) != target->axes + leading)
        return 0;
    for (int k = 0; k < target->axes; k++)
        if (PyArray_DIM(x, leading + k) != target->dims[k])
            return 0;
    return 1;
}

/* 1 if the quaternion is normalised to the last bits, 0 if nearly, −1 if not. */
static int normal(const double *q, double *norm)
{
    *norm = sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
    double error = fabs(*norm - 1.0);
    return error <= EXACT ? 1 : error <= NEAR ? 0 : -1;
}

/* Whether the quaternion, of floats or doubles, is normalised to the last bits. */
static int exact(const char *at, int64_t bytes)
{
    double q[4], norm;
    if (bytes == sizeof(double))
        return normal((const double *)at, &norm) == 1;
    for (int k = 0; k < 4; k++)
        q[k] = ((const float *)at)[k];
    normal(q, &norm);
    return fabs(norm - 1.0) <= EXACT_FLOAT;
}

static void freed(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- results in a row -------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *about, *given, *row, *dict, *weak;
} Result;

/* The memory of results, an object of its own, as arrays that look into it keep it alive. numbers: ob_size of them, from
   the begin of a cache line on. */
typedef struct {
    PyObject_VAR_HEAD
    double *numbers;
} Row;

static double *numbers(PyObject *row) { return ((Row *)row)->numbers; }

/* A row whose numbers are of any value. */
static PyObject *new_row(PyTypeObject *type, Py_ssize_t n)
{
    Row *row = PyObject_Malloc(sizeof(Row) + n * sizeof(double) + LINE);
    if (!row)
        return PyErr_NoMemory();
    PyObject_InitVar((PyVarObject *)row, type, n);
    row->numbers = (double *)(((uintptr_t)(row + 1) + LINE - 1) / LINE * LINE);
    return (PyObject *)row;
}

static void row_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Arrays can be made read-only and writeable again, as NumPy finds out here. */
static int row_buffer(PyObject *self, Py_buffer *found, int flags)
{
    return PyBuffer_FillInfo(found, self, numbers(self), Py_SIZE(self) * (Py_ssize_t)sizeof(double), 0, flags);
}

static PyType_Slot row_slots[] = {{Py_tp_dealloc, row_dealloc}, {Py_bf_getbuffer, row_buffer}, {0, NULL}};

static PyType_Spec row_spec = {
    "sysdyn.runtime.native.extension.Row", sizeof(Row), sizeof(double),
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, row_slots,
};

static PyObject *view(const Output *output, PyObject *row)
{
    double *data = numbers(row) + output->at;
    PyObject *x = PyArray_SimpleNewFromData((int)output->axes, (npy_intp *)output->dims, NPY_DOUBLE, data);
    if (x && PyArray_SetBaseObject((PyArrayObject *)x, Py_NewRef(row)) < 0)
        Py_CLEAR(x);
    return x;
}

static PyObject *result_row(Result *self, void *closure)
{
    if (!self->row)
        Py_RETURN_NONE;
    Output whole = {.axes = 1, .dims = {Py_SIZE(self->row)}};
    return view(&whole, self->row);
}

static int result_traverse(Result *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->about);
    Py_VISIT(self->given);
    Py_VISIT(self->dict);
    return 0;
}

static int result_clear(Result *self)
{
    Py_CLEAR(self->about);
    Py_CLEAR(self->given);
    Py_CLEAR(self->row);
    Py_CLEAR(self->dict);
    return 0;
}

static void result_dealloc(Result *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak)
        PyObject_ClearWeakRefs((PyObject *)self);
    result_clear(self);
    freed((PyObject *)self);
}

static PyMemberDef result_members[] = {
    {"_about", T_OBJECT_EX, offsetof(Result, about), 0, NULL},
    {"_given", T_OBJECT_EX, offsetof(Result, given), 0, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Result, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Result, weak), READONLY, NULL},
    {NULL},
};

static PyGetSetDef result_getters[] = {
    {"_row", (getter)result_row, NULL, NULL, NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyType_Slot result_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_dealloc, result_dealloc}, {Py_tp_traverse, result_traverse},
    {Py_tp_clear, result_clear}, {Py_tp_members, result_members}, {Py_tp_getset, result_getters}, {0, NULL},
};

static PyType_Spec result_spec = {
    "sysdyn.runtime.native.extension.Result", sizeof(Result), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, result_slots,
};

/* ---- plain calls of one state ------------------------------------------------------------------------------------ */

/* A row of results, the arrays that look into it, one for each output or NULL, and a dict of them of which callers get
   copies, or NULL: they serve again once nobody else holds any of them, as new ones take longer than a short kernel. */
typedef struct {
    PyObject *row, *arrays[OUTPUTS], *dict;
} Kept;

typedef struct {
    PyObject_HEAD
    Kernel kernel;
    Table words, inputs, targets, places, quaternions, muted, squared, outputs, zeros;
    Py_ssize_t n_outputs, n_inputs, positional;
    int64_t status;
    int in_row; /* whether `make` is a subclass of Result */
    PyObject *keywords, *keys, *make, *about, *layout, *keep; /* the last one owns the others */
    PyTypeObject *row;
    Kept kept[ROWS];
    int next; /* of these that takes the next row */
} Plain;

/* words: of the kernel, with the addresses of the groups in `inputs`, all of them, doubles. n_outputs, n_inputs:
   numbers in a row of results. quaternions: where they begin among the inputs; muted: inputs that are 0 unless finite;
   squared: (number, least, greatest) of inputs that are squares of what is given, which lies between these.
   keys: names of the outputs. keywords: ((name, what, number of its first array), …), `what` being Ellipsis for an
   array, or a dict of such, or the object that is given. make: a subclass of Result, which gets about, this call and a
   row; or dict, tuple or, for a single array, None. keep: objects that have to live as long. */
static PyObject *plain_new(PyTypeObject *type, PyObject *arguments, PyObject *others)
{
    Plain *self = (Plain *)type->tp_alloc(type, 0);
    unsigned long long kernel;
    PyObject *keep;
    if (!self)
        return NULL;
    if (!PyArg_ParseTuple(arguments, "KO&O&nnO&O&O&O&O&O&O&O!nO!OOOO:Plain", &kernel, integers, &self->words, doubles,
                          &self->inputs, &self->n_outputs, &self->n_inputs, integers, &self->targets, integers,
                          &self->places, integers, &self->quaternions, integers, &self->muted, doubles,
                          &self->squared, integers, &self->outputs, integers, &self->zeros,
                          &PyTuple_Type, &self->keys, &self->positional, &PyTuple_Type,
                          &self->keywords, &self->make, &self->about, &self->layout, &keep)) {
        Py_DECREF(self);
        return NULL;
    }
    self->kernel = (Kernel)(uintptr_t)kernel;
    self->targets.size /= sizeof(Target) / 8;
    self->outputs.size /= sizeof(Output) / 8;
    State *state = PyType_GetModuleState(type);
    self->row = state->row;
    self->in_row = PyType_Check(self->make) && PyType_IsSubtype((PyTypeObject *)self->make, state->result);
    if (self->words.size < 2 || self->n_inputs > self->inputs.size || self->outputs.size > OUTPUTS ||
        self->outputs.size != PyTuple_GET_SIZE(self->keys) || (!self->outputs.size && self->make == Py_None) ||
        !(self->in_row || self->make == Py_None || self->make == (PyObject *)&PyDict_Type ||
          self->make == (PyObject *)&PyTuple_Type)) {
        PyErr_SetString(PyExc_ValueError, "these do not describe a call");
        Py_DECREF(self);
        return NULL;
    }
    ((int64_t *)self->words.data)[1] = (int64_t)(intptr_t)&self->status;
    self->keep = Py_NewRef(arguments);
    return (PyObject *)self;
}

/* Has a row in place of the kept one, whose arrays may have callbacks that call this again when they go. */
static void keep(Kept *kept, PyObject *row)
{
    Kept old = *kept;
    *kept = (Kept){.row = Py_XNewRef(row)};
    Py_XDECREF(old.dict);
    for (int k = 0; k < OUTPUTS; k++)
        Py_XDECREF(old.arrays[k]);
    Py_XDECREF(old.row);
}

static void plain_dealloc(Plain *self)
{
    for (int k = 0; k < ROWS; k++)
        keep(self->kept + k, NULL);
    Py_XDECREF(self->keep);
    freed((PyObject *)self);
}

/* What `keywords` say of an argument: (name, what, number of its first array); NULL if they do not have it. */
static PyObject *described(Plain *self, PyObject *name)
{
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->keywords); k++) {
        PyObject *found = PyTuple_GET_ITEM(self->keywords, k);
        if (PyTuple_GET_ITEM(found, 0) == name)
            return found;
    }
    return NULL;
}

/* Whether the arguments have the names of this call, but for some with the values they have by default, and the first
   one is an array of one state. Names are compared as objects. */
static int named(Plain *self, PyObject *const *arguments, Py_ssize_t n, PyObject *names, PyObject *defaults)
{
    Py_ssize_t given = names ? PyTuple_GET_SIZE(names) : 0, matched = 0;
    if (n != self->positional || (n && self->targets.size && !suits(arguments[0], NPY_DOUBLE, self->targets.data, 0)))
        return 0;
    for (Py_ssize_t j = 0; j < given; j++)
        if (described(self, PyTuple_GET_ITEM(names, j)))
            matched++;
        else if (!defaults || PyDict_GetItem(defaults, PyTuple_GET_ITEM(names, j)) != arguments[n + j])
            return 0;
    return matched == PyTuple_GET_SIZE(self->keywords);
}

static int take(Plain *self, Py_ssize_t k, PyObject *x)
{
    const Target *target = (const Target *)self->targets.data + k;
    double *inputs = self->inputs.data;
    if (k >= self->targets.size)
        return 0;
    if ((target->how & FOR_ALL) && PyFloat_CheckExact(x)) {
        for (int64_t i = 0; i < target->size; i++)
            inputs[((const int64_t *)self->places.data)[target->at + i]] = PyFloat_AS_DOUBLE(x);
        return 1;
    }
    if (!suits(x, NPY_DOUBLE, target, 0) || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)x))
        return 0;
    const double *from = PyArray_DATA((PyArrayObject *)x);
    if (target->how & SCATTERED)
        for (int64_t i = 0; i < target->size; i++)
            inputs[((const int64_t *)self->places.data)[target->at + i]] = from[i];
    else
        memcpy(inputs + target->at, from, target->size * sizeof(double));
    return 1;
}

/* Whether two keys of dicts are one name; others than plain texts could run anything if they were compared. */
static int alike(PyObject *a, PyObject *b)
{
    return a == b || (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b) && PyUnicode_Compare(a, b) == 0);
}

/* Whether the value of a keyword fits: an array, a dict of these keys in this order, or the very object. */
static int fits(Plain *self, PyObject *what, Py_ssize_t k, PyObject *x)
{
    if (what == Py_Ellipsis)
        return take(self, k, x);
    if (!PyDict_CheckExact(what))
        return what == x;
    Py_ssize_t at = 0, here = 0;
    PyObject *key, *value, *own, *part;
    if (!PyDict_CheckExact(x) || PyDict_GET_SIZE(x) != PyDict_GET_SIZE(what))
        return 0;
    while (PyDict_Next(what, &at, &own, &part) && PyDict_Next(x, &here, &key, &value)) {
        if (!alike(key, own) || !fits(self, part, k, value))
            return 0;
        k += part == Py_Ellipsis;
    }
    return 1;
}

/* Whether all arguments fit, whose values are among the inputs then. */
static int laid_out(Plain *self, PyObject *const *arguments, PyObject *names)
{
    double *inputs = self->inputs.data, norm;
    for (Py_ssize_t k = 0; k < self->positional; k++)
        if (!take(self, k, arguments[k]))
            return 0;
    for (Py_ssize_t j = 0; names && j < PyTuple_GET_SIZE(names); j++) {
        PyObject *found = described(self, PyTuple_GET_ITEM(names, j)), *x = arguments[self->positional + j];
        if (found && !fits(self, PyTuple_GET_ITEM(found, 1), PyLong_AsSsize_t(PyTuple_GET_ITEM(found, 2)), x))
            return 0;
    }
    for (Py_ssize_t k = 0; k < self->muted.size; k++) {
        double *x = inputs + ((const int64_t *)self->muted.data)[k];
        *x = isfinite(*x) ? *x : 0.0;
    }
    for (const double *s = self->squared.data; s < (const double *)self->squared.data + self->squared.size; s += 3) {
        double *x = inputs + (Py_ssize_t)s[0];
        if (!(*x >= s[1] && *x <= s[2]))
            return 0;
        *x *= *x;
    }
    for (Py_ssize_t k = 0; k < self->quaternions.size; k++) {
        double *q = inputs + ((const int64_t *)self->quaternions.data)[k];
        int found = normal(q, &norm);
        if (found < 0)
            return 0;
        for (int i = 0; found == 0 && i < 4; i++)
            q[i] /= norm;
    }
    return 1;
}

/* Whether nobody else holds the row or its arrays. */
static int unheld(const Kept *kept, Py_ssize_t n)
{
    Py_ssize_t holders = 1, own = kept->dict ? 2 : 1;
    for (Py_ssize_t k = 0; kept->row && k < n; k++)
        if (kept->arrays[k]) {
            if (Py_REFCNT(kept->arrays[k]) > own || ((PyArrayObject_fields *)kept->arrays[k])->weakreflist)
                return 0;
            holders++;
        }
    return kept->row && Py_REFCNT(kept->row) == holders;
}

/* A row for the results, with 0 where the kernel writes none. */
static PyObject *room(Plain *self)
{
    PyObject *row = NULL;
    for (Kept *kept = self->kept; kept < self->kept + ROWS && !row; kept++)
        if (unheld(kept, self->outputs.size))
            row = Py_NewRef(kept->row);
    if (!row) {
        row = new_row(self->row, self->n_outputs + (self->in_row ? self->n_inputs : 0));
        if (row && Py_SIZE(row) <= LONGEST_KEPT) {
            Kept *kept = self->kept + self->next;
            self->next = (self->next + 1) % ROWS;
            keep(kept, row);
        }
    }
    const int64_t *zero = self->zeros.data, *end = zero + self->zeros.size;
    for (; row && zero < end; zero += 2)
        memset(numbers(row) + zero[0], 0, zero[1] * sizeof(double));
    return row;
}

/* Whether the caller who held the array has left it as it was. */
static int intact(PyObject *object, const Output *output, PyObject *row)
{
    PyArrayObject *x = (PyArrayObject *)object;
    return PyArray_BASE(x) == row && PyArray_DATA(x) == (void *)(numbers(row) + output->at) &&
           PyArray_TYPE(x) == NPY_DOUBLE && PyArray_ISCARRAY(x) && PyArray_NDIM(x) == output->axes &&
           PyArray_CompareLists(PyArray_DIMS(x), (const npy_intp *)output->dims, (int)output->axes);
}

/* The place of a row that is kept, or NULL. */
static Kept *kept_with(Plain *self, PyObject *row)
{
    for (Kept *kept = self->kept; kept < self->kept + ROWS; kept++)
        if (kept->row == row)
            return kept;
    return NULL;
}

/* An array of a row: the kept one if the row is kept and the array is intact. */
static PyObject *array_of(Plain *self, Py_ssize_t k, PyObject *row)
{
    const Output *output = (const Output *)self->outputs.data + k;
    Kept *kept = kept_with(self, row);
    if (kept && kept->arrays[k] && intact(kept->arrays[k], output, row))
        return Py_NewRef(kept->arrays[k]);
    PyObject *x = view(output, row);
    if (x && kept && kept->row == row)
        Py_XSETREF(kept->arrays[k], Py_NewRef(x));
    return x;
}

/* A dict of the arrays of a row: a copy of the kept one, which takes no hashes of its keys, if all are intact. */
static PyObject *dict_of(Plain *self, PyObject *row)
{
    Kept *kept = kept_with(self, row);
    int whole = kept && kept->dict;
    for (Py_ssize_t k = 0; whole && k < self->outputs.size; k++)
        whole = intact(kept->arrays[k], (const Output *)self->outputs.data + k, row);
    if (kept && !whole)
        Py_CLEAR(kept->dict);
    PyObject *dict = whole ? Py_NewRef(kept->dict) : PyDict_New();
    for (Py_ssize_t k = 0; dict && !whole && k < self->outputs.size; k++) {
        PyObject *x = array_of(self, k, row);
        if (!x || PyDict_SetItem(dict, PyTuple_GET_ITEM(self->keys, k), x) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(x);
    }
    PyObject *copy = dict ? PyDict_Copy(dict) : NULL; /* which may run Python code that has other rows kept */
    if (!whole && dict && (kept = kept_with(self, row)))
        Py_XSETREF(kept->dict, Py_NewRef(dict));
    Py_XDECREF(dict);
    return copy;
}

/* The results in a row as the call gives them; the row is theirs then. */
static PyObject *shown(Plain *self, PyObject *row)
{
    if (self->in_row) {
        Result *result = (Result *)((PyTypeObject *)self->make)->tp_alloc((PyTypeObject *)self->make, 0);
        if (result) {
            result->about = Py_NewRef(self->about);
            result->given = Py_NewRef((PyObject *)self);
            result->row = Py_NewRef(row);
        }
        return (PyObject *)result;
    }
    if (self->make == Py_None)
        return array_of(self, 0, row);
    if (self->make == (PyObject *)&PyDict_Type)
        return dict_of(self, row);
    PyObject *arrays = PyTuple_New(self->outputs.size);
    for (Py_ssize_t k = 0; arrays && k < self->outputs.size; k++) {
        PyObject *x = array_of(self, k, row);
        if (x)
            PyTuple_SET_ITEM(arrays, k, x);
        else
            Py_CLEAR(arrays);
    }
    return arrays;
}

/* The results; NULL without an error where the call has to go the general way. */
static PyObject *attempt(Plain *self, PyObject *const *arguments, Py_ssize_t n, PyObject *names, PyObject *defaults)
{
    if (!named(self, arguments, n, names, defaults))
        return NULL;
    PyObject *row = room(self), *found = NULL;
    if (!row)
        return NULL;
    if (laid_out(self, arguments, names)) {
        int64_t *words = self->words.data;
        for (Py_ssize_t k = 0; k < self->outputs.size; k++) {
            const Output *output = (const Output *)self->outputs.data + k;
            words[output->word] = (int64_t)(intptr_t)(numbers(row) + output->at);
        }
        self->kernel(words, 1);
        if (self->in_row)
            memcpy(numbers(row) + self->n_outputs, self->inputs.data, self->n_inputs * sizeof(double));
        if (self->status == 0)
            found = shown(self, row);
    }
    Py_DECREF(row);
    return found;
}

static PyMemberDef plain_members[] = {
    {"layout", T_OBJECT_EX, offsetof(Plain, layout), READONLY, NULL},
    {NULL},
};

static PyType_Slot plain_slots[] = {
    {Py_tp_new, plain_new}, {Py_tp_dealloc, plain_dealloc}, {Py_tp_members, plain_members}, {0, NULL},
};

static PyType_Spec plain_spec = {
    "sysdyn.runtime.native.extension.Plain", sizeof(Plain), 0, Py_TPFLAGS_DEFAULT, plain_slots,
};

/* ---- objects that are called ------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *plain;
} Called;

static PyObject *call_name;

/* `__call__` of the type, called with the object and the arguments. */
static PyObject *called_call(PyObject *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    Py_ssize_t n = PyVectorcall_NARGS(flags), total = n + (names ? PyTuple_GET_SIZE(names) : 0);
    PyObject *few[16], **all = total < 16 ? few : PyMem_Malloc((total + 1) * sizeof(PyObject *)), *found = NULL;
    if (!all)
        return PyErr_NoMemory();
    all[0] = self;
    memcpy(all + 1, arguments, total * sizeof(PyObject *));
    PyObject *method = PyObject_GetAttr((PyObject *)Py_TYPE(self), call_name);
    if (method)
        found = PyObject_Vectorcall(method, all, n + 1, names);
    Py_XDECREF(method);
    if (all != few)
        PyMem_Free(all);
    return found;
}

static PyObject *called_new(PyTypeObject *type, PyObject *arguments, PyObject *others)
{
    PyObject *none = PyTuple_New(0);
    Called *self = none ? (Called *)PyBaseObject_Type.tp_new(type, none, NULL) : NULL;
    if (self)
        self->call = called_call;
    Py_XDECREF(none);
    return (PyObject *)self;
}

static int called_traverse(Called *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->plain);
    return 0;
}

static int called_clear(Called *self)
{
    Py_CLEAR(self->plain);
    return 0;
}

static void called_dealloc(Called *self)
{
    PyObject_GC_UnTrack(self);
    called_clear(self);
    freed((PyObject *)self);
}

static PyMemberDef called_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Called, call), READONLY, NULL},
    {"_plain", T_OBJECT_EX, offsetof(Called, plain), 0, NULL},
    {NULL},
};

static PyType_Slot called_slots[] = {
    {Py_tp_new, called_new}, {Py_tp_dealloc, called_dealloc}, {Py_tp_traverse, called_traverse},
    {Py_tp_clear, called_clear}, {Py_tp_members, called_members}, {0, NULL},
};

static PyType_Spec called_spec = {
    "sysdyn.runtime.native.extension.Called", sizeof(Called), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, called_slots,
};

/* ---- methods and attributes -------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *name, *general, *defaults;
} Descriptor;

static PyObject *descriptor(PyTypeObject *type, vectorcallfunc call, PyObject *name, PyObject *general)
{
    Descriptor *self = (Descriptor *)type->tp_alloc(type, 0);
    if (self) {
        self->call = call;
        self->name = Py_XNewRef(name);
        self->general = Py_NewRef(general);
        self->defaults = Py_XNewRef(PyFunction_Check(general) ? PyFunction_GetKwDefaults(general) : NULL);
    }
    return (PyObject *)self;
}

static void descriptor_dealloc(Descriptor *self)
{
    Py_XDECREF(self->name);
    Py_XDECREF(self->general);
    Py_XDECREF(self->defaults);
    freed((PyObject *)self);
}

static PyObject *entry_call(Descriptor *self, PyObject *const *arguments, size_t flags, PyObject *names)
{
    State *state = PyType_GetModuleState(Py_TYPE(self));
    Py_ssize_t n = PyVectorcall_NARGS(flags);
    PyObject *found = NULL;
    PyObject *calls = n && PyObject_TypeCheck(arguments[0], state->called) ? ((Called *)arguments[0])->plain : NULL;
    Py_XINCREF(calls);
    for (Py_ssize_t k = 0; calls && PyList_CheckExact(calls) && k < PyList_GET_SIZE(calls); k++) {
        PyObject *plain = Py_NewRef(PyList_GET_ITEM(calls, k));
        if (Py_IS_TYPE(plain, state->plain))
            found = attempt((Plain *)plain, arguments + 1, n - 1, names, self->defaults);
        Py_DECREF(plain);
        if (found || PyErr_Occurred())
            break;
    }
    Py_XDECREF(calls);
    return found || PyErr_Occurred() ? found : PyObject_Vectorcall(self->general, arguments, flags, names);
}

static PyObject *entry_new(PyTypeObject *type, PyObject *arguments, PyObject *others)
{
    PyObject *general;
    return PyArg_ParseTuple(arguments, "O:Entry", &general)
               ? descriptor(type, (vectorcallfunc)entry_call, NULL, general) : NULL;
}

static PyObject *entry_get(PyObject *self, PyObject *object, PyObject *type)
{
    return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

/* The signature, the docstring and all else are those of the general method. */
static PyObject *entry_attribute(Descriptor *self, PyObject *name)
{
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0)
        return Py_NewRef(self->general);
    if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0)
        return PyObject_GenericGetAttr((PyObject *)self, name);
    return PyObject_GetAttr(self->general, name);
}

/* Objects of a class that has this as its `__call__` are called without a tuple and a dict of the arguments. Up to
   Python 3.11 they are by classes that say so themselves, from 3.12 on by those that inherit it, too. */
static PyObject *entry_set_name(PyObject *self, PyObject *arguments)
{
    State *state = PyType_GetModuleState(Py_TYPE(self));
    PyTypeObject *owner;
    PyObject *name;
    if (!PyArg_ParseTuple(arguments, "O!U:__set_name__", &PyType_Type, &owner, &name))
        return NULL;
    if (PyUnicode_Compare(name, call_name) == 0 && PyType_IsSubtype(owner, state->called)) {
        owner->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
        PyType_Modified(owner);
    }
    Py_RETURN_NONE;
}

static PyMethodDef entry_methods[] = {{"__set_name__", entry_set_name, METH_VARARGS, NULL}, {NULL}};

static PyMemberDef entry_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Descriptor, call), READONLY, NULL},
    {NULL},
};

static PyType_Slot entry_slots[] = {
    {Py_tp_new, entry_new}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, entry_get},
    {Py_tp_getattro, entry_attribute}, {Py_tp_members, entry_members}, {Py_tp_methods, entry_methods},
    {Py_tp_dealloc, descriptor_dealloc}, {0, NULL},
};

static PyType_Spec entry_spec = {
    "sysdyn.runtime.native.extension.Entry", sizeof(Descriptor), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, entry_slots,
};

static PyObject *quantity_new(PyTypeObject *type, PyObject *arguments, PyObject *others)
{
    PyObject *name, *general;
    return PyArg_ParseTuple(arguments, "UO:Quantity", &name, &general) ? descriptor(type, NULL, name, general) : NULL;
}

static PyObject *quantity_get(Descriptor *self, PyObject *object, PyObject *type)
{
    if (!object || object == Py_None)
        return Py_NewRef(self);
    Result *result = (Result *)object;
    State *state = PyType_GetModuleState(Py_TYPE(self));
    if (PyObject_TypeCheck(object, state->result) && result->row && result->given &&
        Py_IS_TYPE(result->given, state->plain)) {
        Plain *plain = (Plain *)result->given;
        for (Py_ssize_t k = 0; k < plain->outputs.size; k++)
            if (PyTuple_GET_ITEM(plain->keys, k) == self->name)
                return array_of(plain, k, result->row);
    }
    return PyObject_CallOneArg(self->general, object);
}

static PyType_Slot quantity_slots[] = {
    {Py_tp_new, quantity_new}, {Py_tp_descr_get, quantity_get}, {Py_tp_dealloc, descriptor_dealloc}, {0, NULL},
};

static PyType_Spec quantity_spec = {
    "sysdyn.runtime.native.extension.Quantity", sizeof(Descriptor), 0, Py_TPFLAGS_DEFAULT, quantity_slots,
};

/* ---- prepared calls ---------------------------------------------------------------------------------------------- */

typedef struct {
    Kernel kernel;
    int64_t *words, n;
} Prepared;

static PyObject *prepared_call(PyObject *self, PyObject *unused)
{
    const Prepared *call = (const Prepared *)PyBytes_AS_STRING(self);
    call->kernel(call->words, call->n);
    Py_RETURN_NONE;
}

static PyMethodDef prepared_method = {"prepared", prepared_call, METH_NOARGS, NULL};

static PyObject *prepared(PyObject *module, PyObject *arguments)
{
    unsigned long long kernel, words;
    long long n;
    if (!PyArg_ParseTuple(arguments, "KKL:prepared", &kernel, &words, &n))
        return NULL;
    Prepared content = {(Kernel)(uintptr_t)kernel, (int64_t *)(uintptr_t)words, n};
    PyObject *self = PyBytes_FromStringAndSize((char *)&content, sizeof content);
    PyObject *call = self ? PyCFunction_New(&prepared_method, self) : NULL;
    Py_XDECREF(self);
    return call;
}

/* ---- one kernel behind another ----------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    const Prepared *first, *second;
    Table inputs, limits, status, outputs; /* status: of both kernels, and whether the first has run for its inputs */
    PyObject *keep;                        /* which owns all of them */
} Chain;

static const Prepared *of_prepared(PyObject *call)
{
    if (PyCFunction_Check(call) && PyCFunction_GET_FUNCTION(call) == prepared_call)
        return (const Prepared *)PyBytes_AS_STRING(PyCFunction_GET_SELF(call));
    PyErr_SetString(PyExc_TypeError, "a prepared call is needed");
    return NULL;
}

/* first, second: prepared calls. inputs: of the first; limits: (number, least, greatest) of inputs beyond which the
   call goes the general way; outputs: of the second; keep: objects that have to live as long. */
static PyObject *chain_new(PyTypeObject *type, PyObject *arguments, PyObject *others)
{
    PyObject *first, *second, *keep;
    Chain *self = (Chain *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    if (!PyArg_ParseTuple(arguments, "OOO&O&O&O&O:Chain", &first, &second, doubles, &self->inputs, doubles,
                          &self->limits, integers, &self->status, doubles, &self->outputs, &keep) ||
        !(self->first = of_prepared(first)) || !(self->second = of_prepared(second))) {
        Py_DECREF(self);
        return NULL;
    }
    self->keep = Py_NewRef(arguments);
    return (PyObject *)self;
}

static void chain_dealloc(Chain *self)
{
    Py_XDECREF(self->keep);
    freed((PyObject *)self);
}

/* (values, begin, rest) → the outputs (1, n) for the inputs values[begin:] and then rest; None if they are beyond the
   limits, or a status is not zero. The first kernel is left out if it ran last for these inputs. */
static PyObject *chain_call(Chain *self, PyObject *arguments, PyObject *named)
{
    PyObject *given, *others;
    Py_ssize_t begin;
    Table values, rest;
    if (!PyArg_ParseTuple(arguments, "OnO:chain", &given, &begin, &others) || !doubles(given, &values) ||
        !doubles(others, &rest))
        return NULL;
    const double *from = (const double *)values.data + begin;
    double *inputs = self->inputs.data;
    int64_t *status = self->status.data;
    Py_ssize_t n = values.size - begin, m = rest.size, bytes = sizeof(double);
    if (begin < 0 || n < 0 || n + m != self->inputs.size) {
        PyErr_SetString(PyExc_ValueError, "these are not the inputs of the call");
        return NULL;
    }
    if (!status[2] || memcmp(inputs, from, n * bytes) || memcmp(inputs + n, rest.data, m * bytes)) {
        status[2] = 0;
        memcpy(inputs, from, n * bytes);
        memcpy(inputs + n, rest.data, m * bytes);
        for (const double *x = self->limits.data, *end = x + self->limits.size; x < end; x += 3)
            if (!(inputs[(Py_ssize_t)x[0]] >= x[1] && inputs[(Py_ssize_t)x[0]] <= x[2]))
                Py_RETURN_NONE;
        self->first->kernel(self->first->words, 1);
        status[2] = status[0] == 0;
    }
    if (status[2])
        self->second->kernel(self->second->words, 1);
    if (!status[2] || status[1])
        Py_RETURN_NONE;
    PyObject *found = PyArray_SimpleNew(2, ((npy_intp[]){1, self->outputs.size}), NPY_DOUBLE);
    if (found)
        memcpy(PyArray_DATA((PyArrayObject *)found), self->outputs.data, self->outputs.size * bytes);
    return found;
}

static PyType_Slot chain_slots[] = {
    {Py_tp_new, chain_new}, {Py_tp_dealloc, chain_dealloc}, {Py_tp_call, chain_call}, {0, NULL},
};

static PyType_Spec chain_spec = {
    "sysdyn.runtime.native.extension.Chain", sizeof(Chain), 0, Py_TPFLAGS_DEFAULT, chain_slots,
};

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
            if (!exact(q + (rows ? rows[s] : s) * words[word + 1] * bytes, bytes))
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
                ((ByNumber)all->kernel)(words, size, rows, space ? NULL : rows);
            else
                ((Kernel)all->kernel)(words, size);
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
    int type = bytes == sizeof(float) ? NPY_FLOAT : NPY_DOUBLE, many = !suits(object, type, target, 0);
    if (many && (!suits(object, type, target, 1) || PyArray_DIM(x, 0) != n || PyArray_STRIDE(x, 0) % next))
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

static PyObject *batch(PyObject *module, PyObject *arguments)
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

/* ---- twice the precision ------------------------------------------------------------------------------------------ */

/* A program runs at so many states at a time: operations wait for each other, but not for those of other states. */
enum { LANES = 8 };
/* A number of each state. Compilers make registers of it, and as many operations as these take. */
typedef double Lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double))));
/* Numbers high + low, |low| ≤ ulp(high)/2. Dekker (1971); Joldes, Muller and Popescu (2017). */
typedef struct {
    Lanes high, low;
} Twice;

#define INLINE static inline __attribute__((always_inline))
/* The widest registers of the processor, where the loader can choose among functions. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

/* Kinds of operations, with the numbers of sysdyn/program/opcodes.py. */
enum { ADD = 2, SUB, MUL, DIV, NEG, SIN, COS, SQRT, OPAQUE, COPYSIGN, WRAP };
/* Terms of the series of sines and cosines up to π/4: the next one is below 1e-34. */
enum { TERMS = 15 };
/* π/2 in parts; what is left of it times 1e9/(π/2) is below 1e-40. */
static const double QUARTER[] = {1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33};
static Twice inverse_factorial[2 * TERMS];

/* One number for all states. */
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

/* a b exactly, by halves of 26 bits, without a fused multiplication, which not every processor has. */
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

/* The size of a with the sign of b. */
INLINE Twice with_sign(Twice a, Twice b)
{
    for (int k = 0; k < LANES; k++)
        if (!signbit(a.high[k]) != !signbit(b.high[k]))
            a.high[k] = -a.high[k], a.low[k] = -a.low[k];
    return a;
}

/* Sine and cosine by their series, after whole quarters of a turn. */
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

/* What a lane computes with: a row of inputs, and the constants. */
typedef struct {
    const double *inputs, *constants;
} Given;

/* The values of all inputs, constants and operations. */
WIDEST static void run_twice(const Program *program, const Given given[LANES], Twice *values)
{
    int64_t first = program->n_inputs + program->n_constants, angle = -1; /* whose sine and cosine are known */
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
        case OPAQUE: case WRAP: *y = *a; break; /* less whole turns the angle has the same sine */
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

/* Values of a program at n states, those of the numbers `wanted`, into high and low (n, wanted); inputs (n, n_inputs). */
static PyObject *twice(PyObject *module, PyObject *arguments)
{
    Table kinds, lhs, rhs, constants, wanted, inputs, high, low;
    long long n;
    if (!PyArg_ParseTuple(arguments, "O&O&O&O&O&LO&O&O&:twice", bytes_of, &kinds, shorts, &lhs, shorts, &rhs, doubles,
                          &constants, shorts, &wanted, &n, doubles, &inputs, doubles, &high, doubles, &low))
        return NULL;
    if (n < 1 || high.size != n * wanted.size || low.size != high.size || inputs.size % n || lhs.size != kinds.size ||
        rhs.size != kinds.size)
        return PyErr_Format(PyExc_ValueError, "the sizes of the arrays do not fit");
    Program program = {kinds.data, lhs.data, rhs.data, kinds.size, inputs.size / n, constants.size};
    Twice *values = PyMem_RawMalloc((program.n_inputs + program.n_constants + program.n) * sizeof(Twice) + 1);
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
    PyMem_RawFree(values);
    Py_RETURN_NONE;
}

/* Whether y is x but for a share of the greatest number of each group of units; groups below the share `least` of the
   greatest of all count as much as that. units: the group of each number, below the number of these. room: for twice as
   many numbers. */
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

/* Whether these are groups of n numbers, each below n. */
static int are_groups(const Table *units, int64_t n)
{
    const int64_t *group = units->data;
    int fit = units->size == n;
    for (int64_t k = 0; fit && k < n; k++)
        fit = group[k] >= 0 && group[k] < n;
    return fit;
}

/* Whether these are C-contiguous arrays of doubles or floats of N states, one for each output. */
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

/* Copies the outputs of a state to a row, or from it. */
static void exchange(PyObject *outputs, const Table *ends, int64_t state, double *row, int write)
{
    const int64_t *end = ends->data;
    for (Py_ssize_t k = 0, begin = 0; k < ends->size; begin = end[k++]) {
        PyArrayObject *x = (PyArrayObject *)PyTuple_GET_ITEM(outputs, k);
        int64_t first = state * (end[k] - begin) - begin;
        double *doubles = (double *)PyArray_DATA(x) + first;
        float *floats = (float *)PyArray_DATA(x) + first;
        int single = PyArray_ITEMSIZE(x) == sizeof(float);
        for (int64_t i = begin; i < end[k]; i++)
            if (!write)
                row[i] = single ? floats[i] : doubles[i];
            else if (single)
                floats[i] = (float)row[i];
            else
                doubles[i] = row[i];
    }
}

/* Solves states again and returns how many count, whose outputs are written and whose status is 0 then: see
   online/again.py. others: constants for the second run, or none. ends: of the outputs in a row of all; units: of
   the numbers in it, see `agree`. settings: inputs that have to be the `declared` ones. limits: share of the greatest
   size below which sizes count as that, greatest differences to the result in double precision and to that of the other
   constants, and the least logarithm of the product of the guarded values. inputs: of the states of these numbers; able: bits
   that their status may have. */
static PyObject *again(PyObject *module, PyObject *arguments)
{
    Table kinds, lhs, rhs, constants, others, wanted, guards, ends, units, settings, declared, limits, inputs, states,
        status;
    PyObject *outputs;
    long long able;
    if (!PyArg_ParseTuple(arguments, "O&O&O&O&O&O&O&O&O&O&O&O&O&O&O!O&L:again", bytes_of, &kinds, shorts, &lhs, shorts,
                          &rhs, doubles, &constants, doubles, &others, shorts, &wanted, shorts, &guards, integers,
                          &ends, integers, &units, integers, &settings, doubles, &declared, doubles, &limits, doubles,
                          &inputs, integers, &states, &PyTuple_Type, &outputs, integers, &status, &able))
        return NULL;
    int64_t n_outputs = ends.size ? ((const int64_t *)ends.data)[ends.size - 1] : 0;
    if (!are_outputs(outputs, &ends, status.size) || wanted.size != n_outputs || !are_groups(&units, n_outputs) ||
        !states.size || inputs.size % states.size || limits.size != 4 || lhs.size != kinds.size ||
        rhs.size != kinds.size || (others.size && others.size != constants.size) || settings.size != declared.size)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "the sizes of the arrays do not fit");
    Program program = {kinds.data, lhs.data, rhs.data, kinds.size, inputs.size / states.size, constants.size};
    int64_t n_values = program.n_inputs + program.n_constants + program.n, solved = 0;
    Twice *values = PyMem_RawMalloc(n_values * sizeof(Twice) + 5 * n_outputs * sizeof(double) + 1);
    if (!values)
        return PyErr_NoMemory();
    double *found = (double *)(values + n_values), *other = found + n_outputs, *before = other + n_outputs,
           *room = before + n_outputs;
    const double *limit = limits.data;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t next = 0; next < states.size;) {
        Given given[LANES]; /* as declared in the first half, with the other constants in the second one */
        int64_t numbers[LANES / 2], count = 0;
        for (; next < states.size && count < LANES / 2; next++) {
            const double *row = (const double *)inputs.data + next * program.n_inputs;
            int as_declared = 1;
            for (Py_ssize_t k = 0; k < settings.size; k++)
                as_declared &= row[((const int64_t *)settings.data)[k]] == ((const double *)declared.data)[k];
            given[count] = (Given){row, constants.data};
            numbers[count] = ((const int64_t *)states.data)[next];
            count += as_declared && !(((const int64_t *)status.data)[numbers[count]] & ~able);
        }
        if (!count)
            break;
        for (int64_t s = 0; s < LANES; s++)
            given[s] = (Given){given[s % (LANES / 2) < count ? s % (LANES / 2) : 0].inputs,
                               s >= LANES / 2 && others.size ? others.data : constants.data};
        run_twice(&program, given, values);
        for (int64_t s = 0; s < count; s++) {
            double logarithm = 0.0;
            for (Py_ssize_t k = 0; k < guards.size; k++)
                logarithm += log(fabs(values[((const int32_t *)guards.data)[k]].high[s]));
            for (Py_ssize_t k = 0; k < n_outputs; k++) {
                found[k] = values[((const int32_t *)wanted.data)[k]].high[s];
                other[k] = values[((const int32_t *)wanted.data)[k]].high[s + LANES / 2];
            }
            exchange(outputs, &ends, numbers[s], before, 0);
            if (!(logarithm > limit[3] && agree(found, before, &units, limit[0], limit[1], room) &&
                  agree(found, other, &units, limit[0], limit[2], room)))
                continue;
            exchange(outputs, &ends, numbers[s], found, 1);
            ((int64_t *)status.data)[numbers[s]] = 0;
            solved++;
        }
    }
    Py_END_ALLOW_THREADS
    PyMem_RawFree(values);
    return PyLong_FromLongLong(solved);
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"prepared", prepared, METH_VARARGS, NULL}, {"batch", batch, METH_VARARGS, NULL},
    {"twice", twice, METH_VARARGS, NULL}, {"again", again, METH_VARARGS, NULL}, {NULL},
};

static int added(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = !*type || PyModule_AddType(module, *type) < 0;
    Py_XDECREF(*type);
    return failed;
}

static int filled(PyObject *module)
{
    State *state = PyModule_GetState(module);
    PyTypeObject *unused;
    inverse_factorial[0] = (Twice){all(1.0), all(0.0)};
    for (int k = 1; k < 2 * TERMS; k++)
        inverse_factorial[k] = quotient(inverse_factorial[k - 1], (Twice){all(k), all(0.0)});
    if (PyArray_ImportNumPyAPI() < 0 || !(call_name = PyUnicode_InternFromString("__call__")) ||
        added(module, &called_spec, &state->called) ||
        added(module, &result_spec, &state->result) || added(module, &row_spec, &state->row) ||
        added(module, &plain_spec, &state->plain) || added(module, &entry_spec, &unused) ||
        added(module, &quantity_spec, &unused) || added(module, &chain_spec, &unused))
        return -1;
    return PyModule_AddIntConstant(module, "SOURCE", SOURCE);
}

/* The lock is needed, as plain calls share a workspace: a build of Python without it takes it again on import, and says
   so; interpreters with locks of their own are refused. */
static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, filled},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "extension", .m_size = sizeof(State), .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit_extension(void) { return PyModuleDef_Init(&definition); }
