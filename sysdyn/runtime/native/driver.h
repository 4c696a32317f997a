/* Kernel driver: runs machine code that computes `width` states in a workspace, and copies inputs and outputs. */

#ifndef SYSDYN_DRIVER_H
#define SYSDYN_DRIVER_H

#include <stdint.h>

/* Contiguous range of a row that the kernel reads or writes. Entry j of lane k is at (slot + j) · width + k in the
   workspace. */
typedef struct {
    int64_t word, first, size, slot; /* word: index of the row pointer; first: offset in a row */
    int64_t zero;                    /* true for outputs that are constant 0 and not in the workspace */
} Span;

/* sysdyn/runtime/kernel.py fills this struct. */
typedef struct {
    void (*body)(void *work, void (*between)(void *context), void *context); /* calls `between` n_pauses times */
    int64_t n_pauses, width, bytes, row_bytes, status_slot; /* bytes: per number, 4 or 8; row_bytes: bytes of all spans */
    int64_t n_gathered, n_scattered;
    const Span *gathered, *scattered;
} KernelData;

typedef const KernelData *Kernel;

/* Computes n states. words: address of the workspace, aligned to 64 bytes; address of the status of the states; then address
   of the first row and row stride (in numbers) of each input group and of each output group. With stride 0 all states share
   one row; outputs with a NULL row are not written. doubles: by word, 1 if a float kernel reads and rounds doubles; may be
   NULL. rows: index of the row of each state in all groups; NULL for 0, 1, … */
void run_kernel_on(Kernel kernel, const int64_t *words, int64_t n, const int64_t *doubles, const int64_t *rows);

static inline void run_kernel(Kernel kernel, const int64_t *words, int64_t n)
{
    run_kernel_on(kernel, words, n, 0, 0);
}

#endif
