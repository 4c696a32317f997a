/* Running a kernel: machine code that computes `width` states in a workspace, with copies between it and arrays. */

#ifndef SYSDYN_DRIVER_H
#define SYSDYN_DRIVER_H

#include <stdint.h>

/* Neighbouring numbers of a row that the kernel reads or writes. Number j of lane k is at (slot + j) · width + k in the
   workspace. */
typedef struct {
    int64_t word, first, size, slot; /* word: of the pointer to the rows; first: the number's place in a row */
    int64_t zero;                    /* outputs that are the constant 0, and not in the workspace */
} Span;

/* sysdyn/runtime/kernel.py fills this struct. */
typedef struct {
    void (*body)(void *work, void (*between)(void *context), void *context); /* calls `between` n_pauses times */
    int64_t n_pauses, width, bytes, row_bytes, status_slot; /* bytes: of a number, 4 or 8; row_bytes: of all spans */
    int64_t n_gathered, n_scattered;
    const Span *gathered, *scattered;
} KernelData;

typedef const KernelData *Kernel;

/* Which rows and columns of larger arrays a call reads and writes. Each member may be null. */
typedef struct {
    const int64_t *read, *written; /* the row of each state, 0, 1, … if null */
    const int64_t **columns;       /* by word: the column of each number of a group of outputs, 0, 1, … if null */
    const int64_t *doubles;        /* by word: whether a kernel of floats reads doubles there, which it rounds */
} Places;

/* Computes n states. words: the workspace, aligned to 64 bytes; the status of each state; and for each group of inputs
   and of outputs its first row and the numbers from row to row. A distance of 0 repeats one row for all states;
   outputs whose row is null are left out. places: NULL, or see there. */
void run_kernel_at(Kernel kernel, const int64_t *words, int64_t n, const Places *places);

static inline void run_kernel(Kernel kernel, const int64_t *words, int64_t n)
{
    run_kernel_at(kernel, words, n, 0);
}

#endif
