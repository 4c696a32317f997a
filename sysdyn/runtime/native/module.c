/* Calls of kernels by arrays of a caller, with NumPy's C API. They are for native_calls.py, and trust it.

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

#define IMPORTS_NUMPY
#include "native.h"

#ifndef SOURCE
#error "compile with -DSOURCE=, the checksum of the sources"
#endif

static PyMethodDef functions[] = {
    {"prepared", prepared, METH_VARARGS, NULL}, {"batch", batch, METH_VARARGS, NULL},
    {"twice", twice, METH_VARARGS, NULL}, {"again", again, METH_VARARGS, NULL}, {NULL},
};

static int filled(PyObject *module)
{
    prepare_double_double();
    if (PyArray_ImportNumPyAPI() < 0 || add_call_types(module))
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
