/* Subset of XLA's foreign-function ABI, version 0.1 and later, that xla.c uses. Names and order of the fields are those of
   xla/ffi/api/c_api.h. A test compares the layout with the header that jaxlib ships. */

#ifndef SYSDYN_XLA_H
#define SYSDYN_XLA_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_FFI_Extension_Metadata = 1, XLA_FFI_Error_Code_FAILED_PRECONDITION = 9 };

typedef struct XLA_FFI_Error XLA_FFI_Error;

typedef struct XLA_FFI_Extension_Base {
    size_t struct_size;
    int type;
    struct XLA_FFI_Extension_Base *next;
} XLA_FFI_Extension_Base;

typedef struct {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    int major_version, minor_version;
} XLA_FFI_Api_Version;

typedef struct {
    size_t struct_size;
    XLA_FFI_Api_Version api_version;
    uint32_t traits;
} XLA_FFI_Metadata;

typedef struct {
    XLA_FFI_Extension_Base extension_base;
    XLA_FFI_Metadata *metadata;
} XLA_FFI_Metadata_Extension;

typedef struct {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    const char *message;
    int errc;
} XLA_FFI_Error_Create_Args;

typedef struct {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    XLA_FFI_Api_Version api_version;
    const void *internal_api;
    XLA_FFI_Error *(*XLA_FFI_Error_Create)(XLA_FFI_Error_Create_Args *args);
} XLA_FFI_Api;

typedef struct {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} XLA_FFI_Buffer;

typedef struct {
    int dtype;
    void *value;
} XLA_FFI_Scalar;

typedef struct {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    int64_t size;
    int *types;
    void **args;
} XLA_FFI_Args;

typedef struct {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    int64_t size;
    int *types;
    void **rets;
} XLA_FFI_Rets;

typedef struct {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    int64_t size;
    int *types;
    void **names, **attrs;
} XLA_FFI_Attrs;

typedef struct {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    const XLA_FFI_Api *api;
    void *ctx;
    int stage;
    XLA_FFI_Args args;
    XLA_FFI_Rets rets;
    XLA_FFI_Attrs attrs;
} XLA_FFI_CallFrame;

#endif
