/* Calls of kernels by arrays of a caller, with NumPy's C API. They are for native_calls.py, and trust it.

   prepared(kernel, words, n) → a function without arguments that runs the kernel, with the interpreter's lock held
   SingleStateCall(…)       a call at one state by the arguments of a Python call, if they match a pattern
   run_single_state(calls, arguments, named) → the results of the first of these calls that matches; None if none does
   RowResult                base of results of such calls, whose arrays are made when they are asked for
   output_getter(name, general) → the function solution → an output in its row, or general(solution)
   run(kernel, words, n, read, written)  runs a kernel without the interpreter's lock
   batch(…) → whether every status of a batch is 0; None where it has to go another way. Its states are those of the
                            arrays, or some of their rows
   twice(…)                 runs a program in twice the precision
   again(…)                 the same for states whose results in double precision are doubtful, with a verdict on each
   run_calls(…)             repeats a list of calls of kernels and of linear algebra, time step by time step
   run_time_loop(…)         repeats a kernel, as in the steps of a simulation
   register_xla(…)          adds a kernel to those that the handler XLA_HANDLER runs for JAX

   Bound calls and calls of one state hold the interpreter's lock while the kernel runs: one workspace serves all calls
   of a kernel, also those within others. */

#define IMPORTS_NUMPY
#include "native.h"

#ifndef SOURCE
#error "compile with -DSOURCE=, the checksum of the sources"
#endif

static PyMethodDef functions[] = {
    {"prepared", prepared, METH_VARARGS, NULL}, {"batch", batch, METH_VARARGS, NULL},
    {"run_single_state", (PyCFunction)(void (*)(void))run_single_state, METH_FASTCALL, NULL},
    {"output_getter", output_getter, METH_VARARGS, NULL},
    {"run", run_states, METH_VARARGS, NULL},
    {"twice", twice, METH_VARARGS, NULL}, {"again", again, METH_VARARGS, NULL},
    {"run_calls", run_calls, METH_VARARGS, NULL}, {"run_time_loop", run_time_loop, METH_VARARGS, NULL},
    {"register_xla", register_xla, METH_VARARGS, NULL}, {NULL},
};

static int filled(PyObject *module)
{
    prepare_double_double();
    if (PyArray_ImportNumPyAPI() < 0 || add_call_types(module) || add_routines(module) ||
        add_xla_handler(module))
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
    PyModuleDef_HEAD_INIT, .m_name = "extension", .m_size = 0, .m_methods = functions, .m_slots = slots,
};

PyMODINIT_FUNC PyInit_extension(void) { return PyModuleDef_Init(&definition); }
