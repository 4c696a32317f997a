#include "native.h"

/* Rows of up to LONGEST_KEPT numbers that a call keeps for its next results, ROWS at a time (chosen: 256 KiB at most;
   enough for a caller who holds three results). */
enum { LONGEST_KEPT = 8192, ROWS = 4 };

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
    free_object((PyObject *)self);
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
    free_object((PyObject *)self);
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
    if (n != self->positional || (n && self->targets.size && !matches(arguments[0], NPY_DOUBLE, self->targets.data, 0)))
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
    if (!matches(x, NPY_DOUBLE, target, 0) || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)x))
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
        int found = quaternion_norm_class(q, &norm);
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
        run_kernel(self->kernel, words, 1);
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
    free_object((PyObject *)self);
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
    free_object((PyObject *)self);
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
    run_kernel(call->kernel, call->words, call->n);
    Py_RETURN_NONE;
}

static PyMethodDef prepared_method = {"prepared", prepared_call, METH_NOARGS, NULL};

PyObject *prepared(PyObject *module, PyObject *arguments)
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
    free_object((PyObject *)self);
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
        run_kernel(self->first->kernel, self->first->words, 1);
        status[2] = status[0] == 0;
    }
    if (status[2])
        run_kernel(self->second->kernel, self->second->words, 1);
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

static int added(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = !*type || PyModule_AddType(module, *type) < 0;
    Py_XDECREF(*type);
    return failed;
}

int add_call_types(PyObject *module)
{
    State *state = PyModule_GetState(module);
    PyTypeObject *unused;
    return !(call_name = PyUnicode_InternFromString("__call__")) || added(module, &called_spec, &state->called) ||
           added(module, &result_spec, &state->result) || added(module, &row_spec, &state->row) ||
           added(module, &plain_spec, &state->plain) || added(module, &entry_spec, &unused) ||
           added(module, &quantity_spec, &unused) || added(module, &chain_spec, &unused);
}
