#include "native.h"

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

/* ---- calls of one state ------------------------------------------------------------------------------------------ */

/* An array of results, which begins at `at` in a row of all of them. */
typedef struct {
    int64_t axes, dims[AXES], at;
} Output;

/* A call of a kernel at one state, by arguments that match a pattern. The row that it returns, or whose parts it returns,
   has all outputs and then all inputs. See native_calls.py for the fields. */
typedef struct {
    PyObject_HEAD
    Kernel kernel;
    Table words, pointers, arguments, places, constants, quaternions, nan_to_zero, squared, outputs;
    Py_ssize_t n_outputs;
    int64_t status;
    PyObject *by_position, *by_name, *defaults, *keys, *make, *about, *fields;
} SingleStateCall;

static PyObject *row_name, *about_name;

static PyObject *new_call(PyTypeObject *type, PyObject *unused, PyObject *fields)
{
    static char *names[] = {"kernel", "words", "pointers", "arguments", "places", "constants", "quaternions",
                            "nan_to_zero", "squared", "outputs", "n_outputs", "by_position", "by_name",
                            "defaults", "keys", "make", "about", "owner", NULL};
    unsigned long long kernel;
    PyObject *owner;
    SingleStateCall *self = (SingleStateCall *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(
            unused, fields, "KO&O&O&O&O&O&O&O&O&nO!O!O!O!OOO:SingleStateCall", names, &kernel, integers, &self->words,
            integers, &self->pointers, integers, &self->arguments, integers, &self->places, doubles, &self->constants,
            integers, &self->quaternions, integers, &self->nan_to_zero, doubles, &self->squared, integers,
            &self->outputs, &self->n_outputs, &PyTuple_Type, &self->by_position, &PyDict_Type,
            &self->by_name, &PyDict_Type, &self->defaults, &PyTuple_Type, &self->keys, &self->make, &self->about,
            &owner)) {
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

/* Writes the numbers of nested lists and tuples of these dimensions to the next places. */
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

/* Writes the numbers of an array of integers or floats to the places of an argument. */
static int gather_array(PyArrayObject *x, const Target *argument, double *inputs, const int64_t *places)
{
    int type = PyArray_TYPE(x), flat = argument->axes > 1 && PyArray_NDIM(x) == 1;
    if (!(PyTypeNum_ISINTEGER(type) || PyTypeNum_ISFLOAT(type)) ||
        !(flat ? PyArray_DIM(x, 0) == argument->size : has_shape(x, argument, 0)))
        return 0;
    if (type != NPY_DOUBLE || !PyArray_ISCARRAY_RO(x)) {
        int flags = NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST;
        PyObject *copy = PyArray_FromArray(x, PyArray_DescrFromType(NPY_DOUBLE), flags);
        int done = copy && gather_array((PyArrayObject *)copy, argument, inputs, places);
        Py_XDECREF(copy);
        return done;
    }
    const double *from = PyArray_DATA(x);
    if (!(argument->how & INDEXED))
        memcpy(inputs + places[0], from, argument->size * sizeof(double));
    else
        for (int64_t i = 0; i < argument->size; i++)
            inputs[places[i]] = from[i];
    return 1;
}

static int gather_argument(SingleStateCall *self, Py_ssize_t k, PyObject *x, double *inputs)
{
    const Target *argument = (const Target *)self->arguments.data + k;
    const int64_t *places = (const int64_t *)self->places.data + argument->at;
    if (k >= self->arguments.size)
        return 0;
    if (PyArray_CheckExact(x))
        return gather_array((PyArrayObject *)x, argument, inputs, places);
    if ((argument->how & BROADCAST_SCALAR) && PyFloat_CheckExact(x)) {
        for (int64_t i = 0; i < argument->size; i++)
            inputs[places[i]] = PyFloat_AsDouble(x);
        return 1;
    }
    return gather_list(x, argument->dims, argument->axes, inputs, &places);
}

/* Whether the keywords of a call that its pattern lacks have their default values. */
static int rest_is_default(SingleStateCall *self, PyObject *named)
{
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(named, &at, &key, &value))
        if (!PyDict_GetItemWithError(self->by_name, key) && PyDict_GetItemWithError(self->defaults, key) != value)
            return 0;
    return 1;
}

/* Whether an object matches a pattern: Ellipsis stands for the next argument, whose numbers are written to the inputs;
   tuples and dicts match entry by entry, all else is compared. Entries of dicts are borrowed, and conversions may let
   other threads change the dict: each is owned meanwhile. */
static int match(SingleStateCall *self, PyObject *pattern, PyObject *x, double *inputs, Py_ssize_t *next)
{
    if (pattern == x)
        return pattern != Py_Ellipsis;
    if (pattern == Py_Ellipsis) {
        Py_INCREF(x);
        int done = gather_argument(self, (*next)++, x, inputs);
        Py_DECREF(x);
        return done;
    }
    if (PyTuple_CheckExact(pattern)) {
        Py_ssize_t size = PyTuple_Size(pattern);
        int same = PyTuple_CheckExact(x) && PyTuple_Size(x) == size;
        for (Py_ssize_t k = 0; same && k < size; k++)
            same = match(self, PyTuple_GetItem(pattern, k), PyTuple_GetItem(x, k), inputs, next);
        return same;
    }
    if (PyDict_CheckExact(pattern)) {
        Py_ssize_t at = 0;
        PyObject *key, *part, *value;
        int same = PyDict_CheckExact(x) && PyDict_Size(x) >= PyDict_Size(pattern);
        while (same && PyDict_Next(pattern, &at, &key, &part))
            same = (value = PyDict_GetItemWithError(x, key)) && match(self, part, value, inputs, next);
        return same && (PyDict_Size(x) == PyDict_Size(pattern) || (pattern == self->by_name && rest_is_default(self, x)));
    }
    return PyUnicode_CheckExact(pattern) && PyUnicode_CheckExact(x) && PyUnicode_Compare(pattern, x) == 0;
}

/* Squares, quaternions and values that are switched off; 0 if the general way has to look at them. */
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

static PyObject *view(SingleStateCall *self, PyObject *row, Py_ssize_t k)
{
    const Output *output = (const Output *)self->outputs.data + k;
    double *data = (double *)PyArray_DATA((PyArrayObject *)row) + output->at;
    PyObject *x = PyArray_SimpleNewFromData((int)output->axes, (npy_intp *)output->dims, NPY_DOUBLE, data);
    if (x && PyArray_SetBaseObject((PyArrayObject *)x, Py_NewRef(row)) < 0)
        Py_CLEAR(x);
    return x;
}

/* `make` of the results: a dict or a tuple of arrays, the only one if it is `ndarray`, or an object with the row. */
static PyObject *build_result(SingleStateCall *self, PyObject *row)
{
    if (self->make == (PyObject *)&PyArray_Type)
        return view(self, row, 0);
    if (self->about != Py_None) {
        PyObject *solution = PyType_GenericAlloc((PyTypeObject *)self->make, 0);
        if (solution && (PyObject_SetAttr(solution, row_name, row) < 0 ||
                         PyObject_SetAttr(solution, about_name, self->about) < 0))
            Py_CLEAR(solution);
        return solution;
    }
    int is_tuple = self->make == (PyObject *)&PyTuple_Type;
    PyObject *found = is_tuple ? PyTuple_New(self->outputs.size) : PyDict_New();
    for (Py_ssize_t k = 0; found && k < self->outputs.size; k++) {
        PyObject *x = view(self, row, k);
        if (!x)
            Py_CLEAR(found);
        else if (is_tuple)
            PyTuple_SetItem(found, k, x);
        else {
            if (PyDict_SetItem(found, PyTuple_GetItem(self->keys, k), x) < 0)
                Py_CLEAR(found);
            Py_DECREF(x);
        }
    }
    return found;
}

/* (arguments, named) → the results, or None if these do not match or the status is not 0. Python code may run while arguments are
   converted, into a row that nobody else has; from then on until the kernel is done none can, as all calls of a kernel
   share its workspace and the words. */
static PyObject *run(SingleStateCall *self, PyObject *const *arguments, Py_ssize_t n)
{
    npy_intp size = self->n_outputs + self->constants.size;
    Py_ssize_t next = 0;
    PyObject *row = PyArray_SimpleNew(1, &size, NPY_DOUBLE), *found = NULL;
    if (!row)
        return NULL;
    double *outputs = PyArray_DATA((PyArrayObject *)row), *inputs = outputs + self->n_outputs;
    memcpy(inputs, self->constants.data, self->constants.size * sizeof(double));
    if (n == 2 && match(self, self->by_position, arguments[0], inputs, &next) &&
        match(self, self->by_name, arguments[1], inputs, &next) && next == self->arguments.size &&
        finish_inputs(self, inputs)) {
        int64_t *words = self->words.data;
        const int64_t *pointer = self->pointers.data, *end = pointer + self->pointers.size;
        for (; pointer < end; pointer += 2)
            words[pointer[0]] = (int64_t)(intptr_t)(outputs + pointer[1]);
        run_kernel(self->kernel, words, 1);
        found = self->status == 0 ? build_result(self, row) : Py_NewRef(Py_None);
    } else if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* the general way raises it in its own words */
        found = Py_NewRef(Py_None);
    }
    Py_DECREF(row);
    return found;
}

static PyMethodDef methods[] = {{"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, NULL}, {NULL}};

static PyType_Slot slots[] = {{Py_tp_new, new_call}, {Py_tp_dealloc, delete_call}, {Py_tp_methods, methods}, {0, NULL}};

static PyType_Spec spec = {
    "sysdyn.runtime.native.extension.SingleStateCall", sizeof(SingleStateCall), 0, Py_TPFLAGS_DEFAULT, slots,
};

int add_call_types(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    row_name = PyUnicode_InternFromString("_row");
    about_name = PyUnicode_InternFromString("_about");
    int failed = !type || !row_name || !about_name || PyModule_AddType(module, (PyTypeObject *)type) < 0;
    Py_XDECREF(type);
    return failed;
}
