/* Shared declarations of the C files: checks of array arguments, and the functions that each file adds to the module. */

#ifndef SYSDYN_NATIVE_H
#define SYSDYN_NATIVE_H

/* Stable ABI: one binary for all versions from Python 3.11 on. It has functions in place of macros. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define PyTuple_GET_SIZE PyTuple_Size
#define PyTuple_GET_ITEM PyTuple_GetItem
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL sysdyn_array_api
#ifndef IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include "driver.h"

/* Largest number of axes of an array, and flags of Target.how. */
enum { AXES = 4, INDEXED = 1, BROADCAST_SCALAR = 2 };
/* Quaternions with |norm − 1| ≤ EXACT are used verbatim, those up to NEAR are normalised; beyond NEAR the general path raises
   an error. */
static const double EXACT = 4.0 * 2.220446049250313e-16, EXACT_FLOAT = 4.0 * 1.1920928955078125e-07, NEAR = 1e-6;

/* An argument at one state. at: offset of its input indices in the table `places`; for a batch, index of the word with its
   address. how: INDEXED if the input indices are not consecutive, BROADCAST_SCALAR if a float may stand for all entries. */
typedef struct {
    int64_t axes, dims[AXES], size, at, how;
} Target;

/* Data and size of a C-contiguous array. */
typedef struct {
    void *data;
    Py_ssize_t size;
} Table;

static inline int table(PyObject *x, Table *found, char kind, int64_t bytes)
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

static inline int integers(PyObject *x, void *found) { return table(x, found, 'i', 8); }
static inline int doubles(PyObject *x, void *found) { return table(x, found, 'f', 8); }
static inline int int32s(PyObject *x, void *found) { return table(x, found, 'i', 4); }
static inline int int8s(PyObject *x, void *found) { return table(x, found, 'i', 1); }

/* Whether x has the shape of the target after its first `leading` axes. */
static inline int has_shape(PyArrayObject *x, const Target *target, int leading)
{
    int same = PyArray_NDIM(x) == target->axes + leading;
    for (int k = 0; same && k < target->axes; k++)
        same = PyArray_DIM(x, leading + k) == target->dims[k];
    return same;
}

/* Whether an object is an array (no subclass) of this type, NPY_DOUBLE or NPY_FLOAT, for which has_shape is true. */
static inline int matches(PyObject *object, int type, const Target *target, int leading)
{
    PyArrayObject *x = (PyArrayObject *)object;
    return PyArray_CheckExact(object) && PyArray_TYPE(x) == type && PyArray_ISALIGNED(x) && PyArray_ISNOTSWAPPED(x) &&
           has_shape(x, target, leading);
}

/* 1 if the quaternion is normalised to machine precision, 0 if its norm is within NEAR of 1, −1 otherwise. */
static inline int quaternion_norm_class(const double *q, double *norm)
{
    *norm = sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
    double error = fabs(*norm - 1.0);
    return error <= EXACT ? 1 : error <= NEAR ? 0 : -1;
}

/* Whether a quaternion of floats or doubles is normalised to machine precision. */
static inline int is_unit_quaternion(const char *at, int64_t bytes)
{
    double q[4], norm;
    if (bytes == sizeof(double))
        return quaternion_norm_class((const double *)at, &norm) == 1;
    for (int k = 0; k < 4; k++)
        q[k] = ((const float *)at)[k];
    quaternion_norm_class(q, &norm);
    return fabs(norm - 1.0) <= EXACT_FLOAT;
}

static inline void free_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Functions and types of the module, by file. */
int add_call_types(PyObject *module);
PyObject *prepared(PyObject *module, PyObject *arguments);
PyObject *run_single_state(PyObject *module, PyObject *const *arguments, Py_ssize_t n);
PyObject *run_states(PyObject *module, PyObject *arguments);
PyObject *batch(PyObject *module, PyObject *arguments);
PyObject *twice(PyObject *module, PyObject *arguments);
PyObject *rerun(PyObject *module, PyObject *arguments);
PyObject *run_calls(PyObject *module, PyObject *arguments);
PyObject *run_time_loop(PyObject *module, PyObject *arguments);
PyObject *register_xla(PyObject *module, PyObject *arguments);
int add_routines(PyObject *module);
int add_xla_handler(PyObject *module);
void prepare_double_double(void);

#endif
