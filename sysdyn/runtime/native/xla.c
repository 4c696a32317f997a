/* XLA foreign-function handler: JAX runs the kernels of all programs through it without Python. */

#include "native.h"
#include "xla.h"

#if defined(__GNUC__)
#pragma GCC optimize("O3")
#endif

/* BLOCK: states per check of the status, 8 bytes of stack each. MAX_STACK: largest workspace in bytes on the stack
   (XLA's threads have megabytes of stack). ALIGN: alignment of workspaces. */
enum { BLOCK = 512, MAX_STACK = 1 << 18, ALIGN = 64, BUCKETS = 256 };

/* A registered kernel. Its key is the same in every process, as JAX caches compiled functions on disk.
   on_failure(words, n): Python function for a block of n states with a nonzero status; words: address of the kernel
   arguments. It returns None if it has solved them, or an error message. */
typedef struct Registered {
    int64_t key, item_bytes, workspace_bytes;
    Kernel kernel;
    PyObject *on_failure;
    struct Registered *next;
} Registered;

/* Hash table by key. Handlers read it without a lock: entries are never changed or freed. */
static Registered *registry[BUCKETS];

static const Registered *find(int64_t key)
{
    const Registered *entry = __atomic_load_n(&registry[(uint64_t)key % BUCKETS], __ATOMIC_ACQUIRE);
    while (entry && entry->key != key)
        entry = entry->next;
    return entry;
}

/* register_xla(key, kernel, item_bytes, workspace_bytes, on_failure) */
PyObject *register_xla(PyObject *module, PyObject *arguments)
{
    Registered *entry = malloc(sizeof *entry);
    if (!entry)
        return PyErr_NoMemory();
    long long key, kernel, item_bytes, workspace_bytes;
    if (!PyArg_ParseTuple(
            arguments, "LLLLO", &key, &kernel, &item_bytes, &workspace_bytes, &entry->on_failure)) {
        free(entry);
        return NULL;
    }
    Registered **head = &registry[(uint64_t)key % BUCKETS];
    *entry = (Registered){key, item_bytes, workspace_bytes, (Kernel)kernel, Py_NewRef(entry->on_failure), *head};
    __atomic_store_n(head, entry, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

static XLA_FFI_Error *failure(const XLA_FFI_CallFrame *frame, const char *message)
{
    XLA_FFI_Error_Create_Args args = {sizeof args, NULL, message, XLA_FFI_Error_Code_FAILED_PRECONDITION};
    return frame->api->XLA_FFI_Error_Create(&args);
}

/* Calls on_failure for a block with failed states. */
static XLA_FFI_Error *recover(const XLA_FFI_CallFrame *frame, const Registered *entry, int64_t *words, int64_t n)
{
    XLA_FFI_Error *error = NULL;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *message = PyObject_CallFunction(entry->on_failure, "LL", (long long)(intptr_t)words, (long long)n);
    if (message != Py_None) {
        const char *text = message ? PyUnicode_AsUTF8AndSize(message, NULL) : NULL;
        error = failure(frame, text ? text : "states failed, and so did what is called then");
        PyErr_Clear();
    }
    Py_XDECREF(message);
    PyGILState_Release(state);
    return error;
}

static XLA_FFI_Error *run_blocks(
    const XLA_FFI_CallFrame *frame, const Registered *entry, char *workspace, int64_t n, int64_t *words)
{
    int64_t status[BLOCK], n_buffers = frame->args.size + frame->rets.size;
    words[0] = ((intptr_t)workspace + ALIGN - 1) & -ALIGN;
    words[1] = (intptr_t)status;
    for (int64_t done = 0; done < n; done += BLOCK) {
        int64_t size = n - done < BLOCK ? n - done : BLOCK, bits = 0;
        run_kernel(entry->kernel, words, size);
        for (int64_t k = 0; k < size; k++)
            bits |= status[k];
        XLA_FFI_Error *error = bits ? recover(frame, entry, words, size) : NULL;
        if (error)
            return error;
        for (int64_t k = 0; k < n_buffers; k++)
            words[2 + 2 * k] += words[3 + 2 * k] * entry->item_bytes * size;
    }
    return NULL;
}

/* Entry point. Buffers: groups of a program, (size,) or (N, size); its only attribute is the key of the kernel. */
static XLA_FFI_Error *handle(XLA_FFI_CallFrame *frame)
{
    if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
        XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
        metadata->api_version.major_version = 0;
        metadata->api_version.minor_version = 1;
        metadata->traits = 0;
        return NULL;
    }
    const Registered *entry = find(*(int64_t *)((XLA_FFI_Scalar *)frame->attrs.attrs[0])->value);
    if (!entry)
        return failure(frame, "this process has no kernel for a function of sysdyn: call to_jax and trace it here");
    int64_t n_inputs = frame->args.size, n_buffers = n_inputs + frame->rets.size, n = 1;
    int64_t words[2 + 2 * n_buffers];
    for (int64_t k = 0; k < n_buffers; k++) {
        const XLA_FFI_Buffer *buffer = k < n_inputs ? frame->args.args[k] : frame->rets.rets[k - n_inputs];
        words[2 + 2 * k] = (intptr_t)buffer->data;
        words[3 + 2 * k] = buffer->rank > 1 ? buffer->dims[1] : 0;
        if (buffer->rank > 1)
            n = buffer->dims[0];
    }
    int64_t bytes = entry->workspace_bytes;
    char stack[bytes <= MAX_STACK ? bytes : 1], *heap = bytes <= MAX_STACK ? NULL : malloc(bytes);
    if (bytes > MAX_STACK && !heap)
        return failure(frame, "no memory for a workspace");
    XLA_FFI_Error *error = run_blocks(frame, entry, heap ? heap : stack, n, words);
    free(heap);
    return error;
}

/* Adds the handler to the module, as jax.ffi.register_ffi_target takes it. */
int add_xla_handler(PyObject *module)
{
    PyObject *handler = PyCapsule_New((void *)handle, "xla._CUSTOM_CALL_TARGET", NULL);
    int failed = !handler || PyModule_AddObjectRef(module, "XLA_HANDLER", handler);
    Py_XDECREF(handler);
    return failed;
}
