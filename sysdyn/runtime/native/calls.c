#include "native.h"

#include <structmember.h>

/* ---- bound calls ------------------------------------------------------------------------------------------------- */

typedef struct {
    Kernel kernel;
    int64_t *words, n;
} BoundCall;

static PyObject *bound_call(PyObject *self, PyObject *unused)
{
    const BoundCall *call = (const BoundCall *)PyBytes_AsString(self);
    run_kernel(call->kernel, call->words, call->n);
    Py_RETURN_NONE;
}

static PyMethodDef bound_method = {"bound_call", bound_call, METH_NOARGS, NULL};

PyObject *prepared(PyObject *module, PyObject *arguments)
{
    unsigned long long kernel, words;
    long long n;
    if (!PyArg_ParseTuple(arguments, "KKL:prepared", &kernel, &words, &n))
        return NULL;
    BoundCall content = {(Kernel)(uintptr_t)kernel, (int64_t *)(uintptr_t)words, n};
    PyObject *self = PyBytes_FromStringAndSize((char *)&content, sizeof content);
    PyObject *call = self ? PyCFunction_New(&bound_method, self) : NULL;
    Py_XDECREF(self);
    return call;
}

/* ---- single-state calls ------------------------------------------------------------------------------------------ */

/* Shape of an output, and its offset `at` in the row of all outputs. */
typedef struct {
    int64_t axes, dims[AXES], at;
} Output;

/* A kernel call at one state whose arguments match a pattern. Its result is a row of all outputs followed by n_inputs
   inputs, or views of this row. The kernel reads the remaining inputs from `constants`. native_calls.py describes the
   fields. */
typedef struct {
    PyObject_HEAD
    Kernel kernel;
    Table words, pointers, arguments, places, constants, quaternions, nan_to_zero, squared, outputs;
    Py_ssize_t n_outputs, n_inputs, n_positional, n_attributes;
    int64_t status;
    PyObject *by_name, *defaults, *keys, *make, *about, *fields;
} SingleStateCall;

/* Base of results that create their arrays from a row on first access. row: NULL without a row; call: the call that
   computed the row. */
typedef struct {
    PyObject_HEAD
    PyObject *row, *about;
    SingleStateCall *call;
} RowResult;

static PyTypeObject *call_type, *result_type;

static PyObject *new_call(PyTypeObject *type, PyObject *unused, PyObject *fields)
{
    static char *names[] = {"kernel", "words", "pointers", "arguments", "places", "constants", "quaternions",
                            "nan_to_zero", "squared", "outputs", "n_outputs", "n_inputs", "n_positional",
                            "by_name", "defaults", "keys", "n_attributes", "make", "about", "owner", NULL};
    unsigned long long kernel;
    PyObject *owner;
    SingleStateCall *self = (SingleStateCall *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(
            unused, fields, "KO&O&O&O&O&O&O&O&O&nnnO!O!O!nOOO:SingleStateCall", names, &kernel, integers, &self->words,
            integers, &self->pointers, integers, &self->arguments, integers, &self->places, doubles, &self->constants,
            integers, &self->quaternions, integers, &self->nan_to_zero, doubles, &self->squared, integers,
            &self->outputs, &self->n_outputs, &self->n_inputs, &self->n_positional, &PyDict_Type,
            &self->by_name, &PyDict_Type, &self->defaults, &PyTuple_Type, &self->keys, &self->n_attributes, &self->make,
            &self->about, &owner)) {
        Py_DECREF(self);
        return NULL;
    }
    self->kernel = (Kernel)(uintptr_t)kernel;
    self->arguments.size /= sizeof(Target) / 8;
    self->outputs.size /= sizeof(Output) / 8;
    ((int64_t *)self->words.data)[1] = (int64_t)(intptr_t)&self->status;
    self->fields = Py_NewRef(fields);
    return (PyObject *)self;
}

static void delete_call(SingleStateCall *self)
{
    Py_XDECREF(self->fields);
    free_object((PyObject *)self);
}

/* Writes the numbers of nested lists and tuples of shape `dims` to the inputs with the next indices in `place`. */
static int gather_list(PyObject *x, const int64_t *dims, int64_t axes, double *inputs, const int64_t **place)
{
    if (!axes) {
        if (!PyFloat_Check(x) && !PyLong_CheckExact(x))
            return 0;
        double value = PyFloat_Check(x) ? PyFloat_AsDouble(x) : PyLong_AsDouble(x);
        inputs[*(*place)++] = value;
        return value != -1.0 || !PyErr_Occurred();
    }
    int is_list = PyList_CheckExact(x);
    if ((!is_list && !PyTuple_CheckExact(x)) || (is_list ? PyList_Size(x) : PyTuple_Size(x)) != dims[0])
        return 0;
    for (int64_t k = 0; k < dims[0]; k++)
        if (!gather_list(is_list ? PyList_GetItem(x, k) : PyTuple_GetItem(x, k), dims + 1, axes - 1, inputs, place))
            return 0;
    return 1;
}

/* Writes an array of integers or floats to the inputs of an argument. */
static int gather_array(PyArrayObject *x, const Target *argument, double *inputs, const int64_t *places)
{
    int type = PyArray_TYPE(x), flat = argument->axes > 1 && PyArray_NDIM(x) == 1;
    PyArrayObject *converted = NULL;
    if (!(flat ? PyArray_DIM(x, 0) == argument->size : has_shape(x, argument, 0)))
        return 0;
    if (type != NPY_DOUBLE || !PyArray_ISCARRAY_RO(x)) {
        int flags = NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST;
        if (PyTypeNum_ISINTEGER(type) || PyTypeNum_ISFLOAT(type))
            converted = (PyArrayObject *)PyArray_FromArray(x, PyArray_DescrFromType(NPY_DOUBLE), flags);
        if (!converted)
            return 0;
        x = converted;
    }
    const double *from = PyArray_DATA(x);
    if (!(argument->how & INDEXED))
        memcpy(inputs + places[0], from, argument->size * sizeof(double));
    else
        for (int64_t i = 0; i < argument->size; i++)
            inputs[places[i]] = from[i];
    Py_XDECREF(converted);
    return 1;
}

static int gather_argument(SingleStateCall *self, Py_ssize_t k, PyObject *x, double *inputs)
{
    const Target *argument = (const Target *)self->arguments.data + k;
    const int64_t *places = (const int64_t *)self->places.data + argument->at;
    if (PyArray_CheckExact(x))
        return gather_array((PyArrayObject *)x, argument, inputs, places);
    if ((argument->how & BROADCAST_SCALAR) && PyFloat_CheckExact(x)) {
        for (int64_t i = 0; i < argument->size; i++)
            inputs[places[i]] = PyFloat_AsDouble(x);
        return 1;
    }
    return gather_list(x, argument->dims, argument->axes, inputs, &places);
}

/* Whether an object matches a pattern. Ellipsis matches the next array argument, which is copied to the inputs; dicts match
   entry by entry; other objects are compared. A conversion can run Python code that changes a dict, so its entries
   (borrowed references) are retained during the comparison. */
static int match(SingleStateCall *self, PyObject *pattern, PyObject *x, double *inputs, Py_ssize_t *next)
{
    if (pattern == Py_Ellipsis)
        return gather_argument(self, (*next)++, x, inputs);
    if (pattern == x)
        return 1;
    if (!PyDict_CheckExact(pattern))
        return PyUnicode_CheckExact(pattern) && PyUnicode_CheckExact(x) && PyUnicode_Compare(pattern, x) == 0;
    Py_ssize_t at = 0;
    PyObject *key, *part, *value;
    int same = PyDict_CheckExact(x) && (pattern == self->by_name || PyDict_Size(x) == PyDict_Size(pattern));
    while (same && PyDict_Next(pattern, &at, &key, &part)) {
        if ((same = (value = PyDict_GetItemWithError(x, key)) != NULL)) {
            Py_INCREF(value);
            same = match(self, part, value, inputs, next);
            Py_DECREF(value);
        }
    }
    return same;
}

/* Whether all keywords that the pattern does not name have their default values. */
static int rest_is_default(SingleStateCall *self, PyObject *named)
{
    Py_ssize_t at = 0;
    PyObject *key, *value;
    if (PyDict_Size(named) == PyDict_Size(self->by_name))
        return 1;
    while (PyDict_Next(named, &at, &key, &value))
        if (!PyDict_GetItemWithError(self->by_name, key) && PyDict_GetItemWithError(self->defaults, key) != value)
            return 0;
    return 1;
}

/* Whether the arguments of a call match its pattern, and their numbers were copied to the inputs. */
static int gather(SingleStateCall *self, PyObject *by_position, PyObject *by_name, double *inputs)
{
    Py_ssize_t next;
    for (next = 0; next < self->n_positional; next++)
        if (!gather_argument(self, next, PyTuple_GetItem(by_position, next), inputs))
            return 0;
    return match(self, self->by_name, by_name, inputs, &next) && rest_is_default(self, by_name);
}

/* Squares standard deviations, normalises quaternions, and replaces non-finite values by 0 at the inputs of `nan_to_zero`.
   Returns 0 if the general path must handle the call. */
static int finish_inputs(SingleStateCall *self, double *inputs)
{
    double norm;
    for (Py_ssize_t k = 0; k < self->nan_to_zero.size; k++) {
        double *x = inputs + ((const int64_t *)self->nan_to_zero.data)[k];
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
        int norm_class = quaternion_norm_class(q, &norm);
        if (norm_class < 0)
            return 0;
        for (int i = 0; norm_class == 0 && i < 4; i++)
            q[i] /= norm;
    }
    return 1;
}

static Py_ssize_t row_bytes(const SingleStateCall *self)
{
    return (self->n_outputs + self->n_inputs) * (Py_ssize_t)sizeof(double);
}

/* Array view of an output in a row, a bytes object that the view keeps alive. */
static PyObject *view(const SingleStateCall *self, PyObject *row, Py_ssize_t k)
{
    const Output *output = (const Output *)self->outputs.data + k;
    double *data = (double *)PyBytes_AsString(row) + output->at;
    PyObject *x = PyArray_NewFromDescr(&PyArray_Type, PyArray_DescrFromType(NPY_DOUBLE), (int)output->axes,
                                       (npy_intp *)output->dims, NULL, data, NPY_ARRAY_CARRAY, NULL);
    if (x && PyArray_SetBaseObject((PyArrayObject *)x, Py_NewRef(row)) < 0)
        Py_CLEAR(x);
    return x;
}

/* Views of all outputs in a row, as a dict or a tuple. */
static PyObject *build_arrays(const SingleStateCall *self, PyObject *row, int is_tuple)
{
    PyObject *arrays = is_tuple ? PyTuple_New(self->outputs.size) : PyDict_New();
    for (Py_ssize_t k = 0; arrays && k < self->outputs.size; k++) {
        PyObject *x = view(self, row, k);
        if (!x)
            Py_CLEAR(arrays);
        else if (is_tuple)
            PyTuple_SetItem(arrays, k, x);
        else {
            if (PyDict_SetItem(arrays, PyTuple_GetItem(self->keys, k), x) < 0)
                Py_CLEAR(arrays);
            Py_DECREF(x);
        }
    }
    return arrays;
}

/* Result of the type `make`: a dict or tuple of arrays, a single array, or a RowResult. */
static PyObject *build_result(SingleStateCall *self, PyObject *row)
{
    if (self->make == (PyObject *)&PyArray_Type)
        return view(self, row, 0);
    if (self->about == Py_None)
        return build_arrays(self, row, self->make == (PyObject *)&PyTuple_Type);
    RowResult *result = (RowResult *)PyType_GenericAlloc((PyTypeObject *)self->make, 0);
    if (result) {
        result->row = Py_NewRef(row);
        result->about = Py_NewRef(self->about);
        result->call = (SingleStateCall *)Py_NewRef((PyObject *)self);
    }
    return (PyObject *)result;
}

/* Results of a call, or None if its arguments do not match or the status is not 0. The conversion of arguments can run
   Python code; it writes to a new row. Afterwards no Python code may run until the kernel has returned, as all calls of a
   kernel share its workspace and words. */
static PyObject *run(SingleStateCall *self, PyObject *by_position, PyObject *by_name)
{
    if (PyTuple_Size(by_position) != self->n_positional)
        return Py_NewRef(Py_None);
    PyObject *row = PyBytes_FromStringAndSize(NULL, row_bytes(self)), *found = NULL;
    if (!row)
        return NULL;
    double *outputs = (double *)PyBytes_AsString(row), *inputs = outputs + self->n_outputs;
    memcpy(inputs, self->constants.data, self->n_inputs * sizeof(double));
    if (gather(self, by_position, by_name, inputs) && finish_inputs(self, inputs)) {
        int64_t *words = self->words.data;
        const int64_t *pointer = self->pointers.data, *end = pointer + self->pointers.size;
        for (; pointer < end; pointer += 2)
            words[pointer[0]] = (int64_t)(intptr_t)(outputs + pointer[1]);
        run_kernel(self->kernel, words, 1);
        found = self->status == 0 ? build_result(self, row) : Py_NewRef(Py_None);
    } else if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* the general path raises its own error */
        found = Py_NewRef(Py_None);
    }
    Py_DECREF(row);
    return found;
}

PyObject *run_single_state(PyObject *module, PyObject *const *arguments, Py_ssize_t n)
{
    if (n != 3 || !PyList_CheckExact(arguments[0]) || !PyTuple_CheckExact(arguments[1]) ||
        !PyDict_CheckExact(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "run_single_state(calls, arguments, named)");
        return NULL;
    }
    for (Py_ssize_t k = 0; k < PyList_Size(arguments[0]); k++) {
        PyObject *call = PyList_GetItem(arguments[0], k);
        if (Py_TYPE(call) != call_type)
            continue;
        Py_INCREF(call);
        PyObject *found = run((SingleStateCall *)call, arguments[1], arguments[2]);
        Py_DECREF(call);
        if (found != Py_None)
            return found;
        Py_DECREF(found);
    }
    Py_RETURN_NONE;
}

/* ---- row results ------------------------------------------------------------------------------------------------- */

static int has_row(const RowResult *self)
{
    return self->call && self->row && PyBytes_CheckExact(self->row) && PyBytes_Size(self->row) == row_bytes(self->call);
}

static PyObject *row_output(RowResult *self, PyObject *name)
{
    Py_ssize_t n = has_row(self) ? self->call->outputs.size : 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *key = PyTuple_GetItem(self->call->keys, k);
        if (key == name || (PyUnicode_CheckExact(name) && PyUnicode_Compare(key, name) == 0))
            return view(self->call, self->row, k);
    }
    PyErr_SetObject(PyExc_KeyError, name);
    return NULL;
}

/* (outputs by name, a new array of all inputs). */
static PyObject *row_arrays(RowResult *self, PyObject *unused)
{
    if (!has_row(self)) {
        PyErr_SetString(PyExc_ValueError, "this result has no row");
        return NULL;
    }
    npy_intp size = self->call->constants.size;
    PyObject *outputs = build_arrays(self->call, self->row, 0);
    PyObject *inputs = outputs ? PyArray_SimpleNew(1, &size, NPY_DOUBLE) : NULL;
    if (inputs) {
        double *to = PyArray_DATA((PyArrayObject *)inputs);
        const double *row = (const double *)PyBytes_AsString(self->row);
        memcpy(to, self->call->constants.data, size * sizeof(double));
        memcpy(to, row + self->call->n_outputs, self->call->n_inputs * sizeof(double));
    }
    PyObject *arrays = inputs ? PyTuple_Pack(2, outputs, inputs) : NULL;
    Py_XDECREF(outputs);
    Py_XDECREF(inputs);
    return arrays;
}

/* Attribute of a result: an output of its row, before the properties of its class are looked up, or any other one. */
static PyObject *attribute(RowResult *self, PyObject *name)
{
    Py_ssize_t n = has_row(self) ? self->call->n_attributes : 0;
    for (Py_ssize_t k = 0; k < n; k++)
        if (PyTuple_GetItem(self->call->keys, k) == name)
            return view(self->call, self->row, k);
    return PyObject_GenericGetAttr((PyObject *)self, name);
}

static int visit_result(RowResult *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->about);
    return 0;
}

static int clear_result(RowResult *self)
{
    Py_CLEAR(self->row);
    Py_CLEAR(self->about);
    Py_CLEAR(self->call);
    return 0;
}

static void delete_result(RowResult *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_result(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMemberDef result_members[] = {
    {"_row", T_OBJECT, offsetof(RowResult, row), 0, NULL},
    {"_about", T_OBJECT, offsetof(RowResult, about), 0, NULL},
    {NULL},
};

static PyMethodDef result_methods[] = {
    {"_row_output", (PyCFunction)row_output, METH_O, NULL},
    {"_row_arrays", (PyCFunction)row_arrays, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot result_slots[] = {
    {Py_tp_traverse, visit_result},
    {Py_tp_clear, clear_result},
    {Py_tp_dealloc, delete_result},
    {Py_tp_getattro, attribute},
    {Py_tp_members, result_members},
    {Py_tp_methods, result_methods},
    {0, NULL},
};

static PyType_Spec result_spec = {
    "sysdyn.runtime.native.extension.RowResult", sizeof(RowResult), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, result_slots,
};

/* ---- registration ------------------------------------------------------------------------------------------------ */

static PyType_Slot slots[] = {{Py_tp_new, new_call}, {Py_tp_dealloc, delete_call}, {0, NULL}};

static PyType_Spec spec = {
    "sysdyn.runtime.native.extension.SingleStateCall", sizeof(SingleStateCall), 0, Py_TPFLAGS_DEFAULT, slots,
};

int add_call_types(PyObject *module)
{
    call_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    result_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &result_spec, NULL);
    return !call_type || !result_type || PyModule_AddType(module, call_type) < 0 ||
           PyModule_AddType(module, result_type) < 0;
}
