/* Kernel calls on NumPy arrays. Only native_calls.py calls this module; most arguments are not validated.

   prepared(kernel, words, n) → a function without arguments that runs the kernel under the GIL
   SingleStateCall(…)       a kernel call at one state whose Python arguments match a pattern
   run_single_state(calls, arguments, named) → results of the first call whose pattern matches, or None
   RowResult                base class of results that create their arrays on first access
   run(kernel, words, n)                runs a kernel without the GIL
   batch(…) → True if every status of a batch is 0; None if the general path must handle it
   twice(…)                 evaluates a program in double-double arithmetic
   rerun(…)                 double-double rerun of flagged states with an acceptance test for each
   run_calls(…)             repeats a list of calls of kernels and of linear algebra for each time step
   run_time_loop(…)         repeats kernel calls, such as the steps of a simulation
   register_xla(…)          registers a kernel for XLA_HANDLER, which runs it for JAX

   Bound calls and single-state calls keep the GIL while the kernel runs, as all calls of a kernel share one workspace,
   nested calls included. */

#define IMPORTS_NUMPY
#include "native.h"

#ifndef SOURCE
#error "compile with -DSOURCE=, the checksum of the sources"
#endif

static PyMethodDef functions[] = {
    {"prepared", prepared, METH_VARARGS, NULL}, {"batch", batch, METH_VARARGS, NULL},
    {"run_single_state", (PyCFunction)(void (*)(void))run_single_state, METH_FASTCALL, NULL},
    {"run", run_states, METH_VARARGS, NULL},
    {"twice", twice, METH_VARARGS, NULL}, {"rerun", rerun, METH_VARARGS, NULL},
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

/* Calls that share a workspace need the GIL. A free-threaded Python therefore enables the GIL on import, with a warning;
   subinterpreters with their own GIL cannot import the module. */
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
