/* Kernel driver. For each block of states it gathers the inputs (transposing the rows of `width` states in registers), calls
   the machine code, and scatters outputs and status. No function here needs Python.

   Check for non-finite numbers: 0 · x is NaN if x is infinite or NaN, so the sum of 0 · x over a state is NaN if and only
   if the state has a non-finite number. */

#include "driver.h"

#include <string.h>
#if defined(__x86_64__)
#pragma GCC target("prfchw")
#include <immintrin.h>
#endif

/* Status bits, as in sysdyn/program/opcodes.py. */
enum { BAD_INPUT = 1, BAD_OUTPUT = 4 };
/* Largest number of outputs of one state that are copied as scalars: vector loads of values that were stored as scalars
   cause store-forwarding stalls (chosen). */
enum { ONE_BY_ONE = 16 };
/* CACHED: rows of larger batches, in bytes, are prefetched; about the size of the second-level cache. MOST_FETCHED: limit of
   the prefetched bytes of a block, so that they do not evict the workspace (chosen). */
enum { CACHED = 1 << 19, MOST_FETCHED = 64000 };
enum { CACHE_LINE = 64 };

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Row indices of a block, or NULL for base, base + 1, …; surplus lanes of an incomplete block repeat the last state. */
static inline const int64_t *
number_rows(int64_t *numbers, const int64_t *rows, int64_t base, int64_t n, int64_t lanes)
{
    if (base + lanes <= n)
        return rows ? rows + base : NULL;
    for (int64_t k = 0; k < lanes; k++) {
        int64_t state = base + k < n ? base + k : n - 1;
        numbers[k] = rows ? rows[state] : state;
    }
    return numbers;
}

/* Addresses of the rows of a block. first: address of its first row, or of row 0 with row indices. distance: row stride in
   bytes. */
static inline __attribute__((always_inline)) void
find_rows(char **rows, char *first, int64_t distance, const int64_t *numbers, int64_t lanes)
{
    if (numbers) {
        _Pragma("GCC unroll 16") for (int64_t k = 0; k < lanes; k++) rows[k] = first + numbers[k] * distance;
    } else {
        _Pragma("GCC unroll 16") for (int64_t k = 0; k < lanes; k++, first += distance) rows[k] = first;
    }
}

/* Address of an entry of the array at an address. bytes: size of an entry. */
static inline char *entry_address(int64_t array, int64_t entry, int64_t bytes)
{
    return (char *)(intptr_t)array + entry * bytes;
}

/* Rows to prefetch. first: address of the span in row 0; distance: row stride; size: length of the span, both in bytes. */
typedef struct {
    const char *first;
    int64_t distance, size;
} Stream;

/* Prefetches the inputs of the next block and the output rows of this block, a share at each pause of the body.
   read … written − 1: streams of inputs; written … end − 1: of outputs. share: states per pause, 0 without prefetching;
   begin: first state of the next share; block: end of this block; rows: row index of each state, or NULL. */
typedef struct {
    Stream *read, *written, *end;
    const int64_t *rows;
    int64_t n, width, share, begin, block;
} Fetch;

static Stream *add_streams(Stream *end, Kernel kernel, const Span *span, int64_t n, const int64_t *words)
{
    int64_t bytes = kernel->bytes;
    for (int64_t k = 0; k < n; k++, span++) {
        int64_t first = words[span->word], distance = words[span->word + 1];
        if (first && distance)
            *end++ = (Stream){entry_address(first, span->first, bytes), distance * bytes, span->size * bytes};
    }
    return end;
}

/* streams: space for all spans of the kernel. */
static Fetch
start_fetching(Stream *streams, Kernel kernel, const int64_t *words, int64_t n, const int64_t *rows)
{
    Fetch fetch = {streams, streams, streams, rows, n, kernel->width, 0, 0, 0};
    int large = rows || n * kernel->row_bytes > CACHED;
    if (kernel->n_pauses && large && kernel->row_bytes * kernel->width <= MOST_FETCHED) {
        fetch.share = (kernel->width + kernel->n_pauses - 1) / kernel->n_pauses;
        fetch.written = add_streams(streams, kernel, kernel->gathered, kernel->n_gathered, words);
        fetch.end = add_streams(fetch.written, kernel, kernel->scattered, kernel->n_scattered, words);
    }
    return fetch;
}

/* Prefetches the rows of the states begin … end − 1. Must be inlined: GCC drops calls of functions that only prefetch. */
static inline __attribute__((always_inline)) void
fetch_rows(const Stream *stream, const int64_t *rows, int64_t begin, int64_t end, int written)
{
    int64_t size = stream->size;
    if (!rows && size == stream->distance) { /* contiguous rows */
        size *= end - begin;
        end = begin + 1;
    }
    for (int64_t s = begin; s < end; s++) {
        const char *row = stream->first + (rows ? rows[s] : s) * stream->distance;
        for (int64_t at = 0; at < size; at += CACHE_LINE)
            if (written)
                __builtin_prefetch(row + at, 1);
            else
                __builtin_prefetch(row + at, 0);
    }
}

#if defined(__x86_64__)
__attribute__((target("prfchw"))) /* no operation on processors without it */
#endif
static void fetch_share(void *context)
{
    Fetch *fetch = context;
    int64_t begin = fetch->begin, end = begin + fetch->share < fetch->block ? begin + fetch->share : fetch->block;
    int64_t later = begin + fetch->width, last = end + fetch->width < fetch->n ? end + fetch->width : fetch->n;
    fetch->begin = end;
    if (later < last)
        for (const Stream *stream = fetch->read; stream < fetch->written; stream++)
            fetch_rows(stream, fetch->rows, later, last, 0);
    if (begin < end)
        for (const Stream *stream = fetch->written; stream < fetch->end; stream++)
            fetch_rows(stream, fetch->rows, begin, end, 1);
}

static void do_nothing(void *context) { (void)context; }

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Shuffle indices of a transposition. */
#define LOW(lane, step, lanes) ((lane) & (step) ? (lanes) + (lane) - (step) : (lane))
#define HIGH(lane, step, lanes) ((lane) & (step) ? (lanes) + (lane) : ((lane) + (step)) % (2 * (lanes)))
#define SAME(lane, step, lanes) (lane)
#define LANES_2(F, step, n) F(0, step, n), F(1, step, n)
#define LANES_4(F, step, n) LANES_2(F, step, n), F(2, step, n), F(3, step, n)
#define LANES_8(F, step, n) LANES_4(F, step, n), F(4, step, n), F(5, step, n), F(6, step, n), F(7, step, n)
#define LANES_16(F, step, n)                                                                              \
    LANES_8(F, step, n), F(8, step, n), F(9, step, n), F(10, step, n), F(11, step, n), F(12, step, n),    \
        F(13, step, n), F(14, step, n), F(15, step, n)

/* Copies the numbers of one state in CHUNKs, unrolled by four for independent sums. Returns the sum of 0 · number. */
#define COPY(NAME, CHUNK, NUMBER, TARGET)                                                                 \
    TARGET static inline NUMBER NAME(const NUMBER *restrict from, int64_t size, NUMBER *restrict to)             \
    {                                                                                                     \
        enum { WIDTH = sizeof(CHUNK) / sizeof(NUMBER) };                                                  \
        CHUNK a, b, c, d, p = {0}, q = {0}, r = {0}, s = {0};                                             \
        NUMBER sum = 0;                                                                                   \
        int64_t j = 0;                                                                                    \
        for (; j + 4 * WIDTH <= size; j += 4 * WIDTH) {                                                   \
            memcpy(&a, from + j, sizeof a);                                                               \
            memcpy(&b, from + j + WIDTH, sizeof b);                                                       \
            memcpy(&c, from + j + 2 * WIDTH, sizeof c);                                                   \
            memcpy(&d, from + j + 3 * WIDTH, sizeof d);                                                   \
            p += a * 0;                                                                                   \
            q += b * 0;                                                                                   \
            r += c * 0;                                                                                   \
            s += d * 0;                                                                                   \
            memcpy(to + j, &a, sizeof a);                                                                 \
            memcpy(to + j + WIDTH, &b, sizeof b);                                                         \
            memcpy(to + j + 2 * WIDTH, &c, sizeof c);                                                     \
            memcpy(to + j + 3 * WIDTH, &d, sizeof d);                                                     \
        }                                                                                                 \
        p += q + (r + s);                                                                                 \
        for (; WIDTH > 1 && j + WIDTH <= size; j += WIDTH) {                                              \
            memcpy(&a, from + j, sizeof a);                                                               \
            p += a * 0;                                                                                   \
            memcpy(to + j, &a, sizeof a);                                                                 \
        }                                                                                                 \
        for (int i = 0; i < WIDTH; i++)                                                                   \
            sum += ((const NUMBER *)&p)[i];                                                               \
        for (; j < size; j++) {                                                                           \
            to[j] = from[j];                                                                              \
            sum += from[j] * 0;                                                                           \
        }                                                                                                 \
        return sum;                                                                                       \
    }

typedef double Doubles __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));
COPY(copy_d1, Doubles, double, )
COPY(copy_f1, Floats, float, )
COPY(copy_singly_d1, double, double, )
COPY(copy_singly_f1, float, float, )

#define LANES 1
#define NUMBER double
#define INTEGER int64_t
#define TARGET
#define NAME(x) x##_d1
#define FLAG(sum, bit) ((sum) != (sum) ? (bit) : 0)
#include "driver_lanes.h"

#define LANES 1
#define NUMBER float
#define INTEGER int32_t
#define TARGET
#define NAME(x) x##_f1
#define FLAG(sum, bit) ((sum) != (sum) ? (bit) : 0)
#include "driver_lanes.h"

#if defined(__x86_64__)

/* One state, copied in registers of 32 bytes. */
typedef double WideDoubles __attribute__((vector_size(32)));
#define LANES 1
#define NUMBER double
#define INTEGER int64_t
#define TARGET __attribute__((target("avx,prfchw")))
#define NAME(x) x##_wide_d1
#define FLAG(sum, bit) ((sum) != (sum) ? (bit) : 0)
COPY(copy_wide_d1, WideDoubles, double, TARGET)
COPY(copy_singly_wide_d1, double, double, TARGET)
#include "driver_lanes.h"

#endif

#define ADD_PRODUCT(sum, x) ((sum) + (x) * 0)
/* Prevents compilers from reloading a vector as a memory operand of each instruction. */
#if defined(__x86_64__)
#define IN_REGISTER(x) __asm__("" : "+v"(x))
#else
#define IN_REGISTER(x) ((void)0)
#endif

#define FLAGS(sum, bit) (((sum) != (sum)) & (bit))

/* Partial loads and stores of 16-byte registers, number by number. */
#define LOAD_SINGLY(from, count)                                                                          \
    ({                                                                                                    \
        VECTOR part = {0};                                                                                \
        for (int i = 0; i < LANES - 1; i++)                                                               \
            if (i < (count))                                                                              \
                part[i] = (from)[i];                                                                      \
        part;                                                                                             \
    })
#define STORE_SINGLY(to, x, count)                                                                        \
    do                                                                                                    \
        for (int i = 0; i < LANES - 1; i++)                                                               \
            if (i < (count))                                                                              \
                (to)[i] = (x)[i];                                                                         \
    while (0)

#define LANES 2
#define NUMBER double
#define INTEGER int64_t
#define TARGET
#define NAME(x) x##_d2
#define LOAD_PART LOAD_SINGLY
#define STORE_PART STORE_SINGLY
#define EACH_LANE(F, step) LANES_2(F, step, 2)
#define FLAG FLAGS
#define ADD_ZERO ADD_PRODUCT
#include "driver_lanes.h"

#define LANES 4
#define NUMBER float
#define INTEGER int32_t
#define TARGET
#define NAME(x) x##_f4
#define HALF(x) x##_d2
typedef float NAME(Part) __attribute__((vector_size(8)));
#define LOAD_PART LOAD_SINGLY
#define STORE_PART STORE_SINGLY
#define EACH_LANE(F, step) LANES_4(F, step, 4)
#define FLAG FLAGS
#define ADD_ZERO ADD_PRODUCT
#include "driver_lanes.h"

#if defined(__x86_64__)

/* Masks of the first `count` lanes. */
static const int64_t FIRST_64[8] = {-1, -1, -1, -1, 0, 0, 0, 0};
static const int32_t FIRST_32[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
#define MASK_64(count) _mm256_loadu_si256((const __m256i *)(FIRST_64 + 4 - (count)))
#define MASK_32(count) _mm256_loadu_si256((const __m256i *)(FIRST_32 + 8 - (count)))

#define LANES 4
#define NUMBER double
#define INTEGER int64_t
#define TARGET __attribute__((target("avx,prfchw")))
#define NAME(x) x##_d4
#define LOAD_PART(from, count) (VECTOR) _mm256_maskload_pd(from, MASK_64(count))
#define STORE_PART(to, x, count) _mm256_maskstore_pd(to, MASK_64(count), (__m256d)(x))
#define EACH_LANE(F, step) LANES_4(F, step, 4)
#define FLAG FLAGS
#define ADD_ZERO ADD_PRODUCT
#include "driver_lanes.h"

#define LANES 8
#define NUMBER float
#define INTEGER int32_t
#define TARGET __attribute__((target("avx,prfchw")))
#define NAME(x) x##_f8
#define HALF(x) x##_d4
typedef float NAME(Part) __attribute__((vector_size(16)));
#define LOAD_PART(from, count) (VECTOR) _mm256_maskload_ps(from, MASK_32(count))
#define STORE_PART(to, x, count) _mm256_maskstore_ps(to, MASK_32(count), (__m256)(x))
#define EACH_LANE(F, step) LANES_8(F, step, 8)
#define FLAG FLAGS
#define ADD_ZERO ADD_PRODUCT
#include "driver_lanes.h"

#define LANES 8
#define NUMBER double
#define INTEGER int64_t
#define TARGET __attribute__((target("avx512f,prfchw")))
#define NAME(x) x##_d8
#define LOAD_PART(from, count) (VECTOR) _mm512_maskz_loadu_pd((__mmask8)((1 << (count)) - 1), from)
#define STORE_PART(to, x, count) _mm512_mask_storeu_pd(to, (__mmask8)((1 << (count)) - 1), (__m512d)(x))
#define EACH_LANE(F, step) LANES_8(F, step, 8)
#define FLAG FLAGS
#define ADD_ZERO(sum, x) (VECTOR) _mm512_fmadd_pd((__m512d)(x), _mm512_setzero_pd(), (__m512d)(sum))
#include "driver_lanes.h"

#define LANES 16
#define NUMBER float
#define INTEGER int32_t
#define TARGET __attribute__((target("avx512f,prfchw")))
#define NAME(x) x##_f16
#define HALF(x) x##_d8
typedef float NAME(Part) __attribute__((vector_size(32)));
#define LOAD_PART(from, count) (VECTOR) _mm512_maskz_loadu_ps((__mmask16)((1 << (count)) - 1), from)
#define STORE_PART(to, x, count) _mm512_mask_storeu_ps(to, (__mmask16)((1 << (count)) - 1), (__m512)(x))
#define EACH_LANE(F, step) LANES_16(F, step, 16)
#define FLAG FLAGS
#define ADD_ZERO(sum, x) (VECTOR) _mm512_fmadd_ps((__m512)(x), _mm512_setzero_ps(), (__m512)(sum))
#include "driver_lanes.h"

#endif

void run_kernel_on(Kernel kernel, const int64_t *words, int64_t n, const int64_t *doubles, const int64_t *rows)
{
    int single = kernel->bytes == sizeof(float);
    switch (kernel->width * (single ? -1 : 1)) {
    case 1:
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx")) {
            run_wide_d1(kernel, words, n, doubles, rows);
            break;
        }
#endif
        run_d1(kernel, words, n, doubles, rows);
        break;
    case -1: run_f1(kernel, words, n, doubles, rows); break;
    case 2: run_d2(kernel, words, n, doubles, rows); break;
    case -4: run_f4(kernel, words, n, doubles, rows); break;
#if defined(__x86_64__)
    case 4: run_d4(kernel, words, n, doubles, rows); break;
    case -8: run_f8(kernel, words, n, doubles, rows); break;
    case 8: run_d8(kernel, words, n, doubles, rows); break;
    case -16: run_f16(kernel, words, n, doubles, rows); break;
#endif
    }
}
