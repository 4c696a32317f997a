/* The loop around the machine code of a kernel: gathers the inputs of a block of states, with rows of `width` states
   transposed in registers, calls the code, and scatters outputs and status.

   Zero times infinity or not-a-number is not-a-number, and so is a sum in which it occurs: such sums find the states
   with numbers that are not finite. No function here needs Python. */

#include "driver.h"

#include <string.h>
#if defined(__x86_64__)
#pragma GCC target("prfchw")
#include <immintrin.h>
#endif

/* Status bits, as in sysdyn/program/opcodes.py. */
enum { BAD_INPUT = 1, BAD_OUTPUT = 4 };
/* Most outputs of one state that are copied singly, as a wide load has to wait for narrow stores (chosen). */
enum { ONE_BY_ONE = 16 };
/* Bytes of a batch beyond which rows are prefetched, about the size of the second-level cache, unless those of a block
   would drive out the workspace (chosen). */
enum { CACHED = 1 << 19, MOST_FETCHED = 64000 };
/* Inputs are prefetched at most so many blocks ahead (measured: two and four take a tenth less time than one). */
enum { BLOCKS_AHEAD = 4 };
enum { CACHE_LINE = 64 };

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The numbers of the rows of a block, or NULL if they are base, base + 1, …; lanes behind the last state repeat it. */
static inline const int64_t *number_rows(int64_t *numbers, const int64_t *rows, int64_t base, int64_t n, int64_t lanes)
{
    if (!rows && base + lanes <= n)
        return NULL;
    for (int64_t k = 0; k < lanes; k++) {
        int64_t state = base + k < n ? base + k : n - 1;
        numbers[k] = rows ? rows[state] : state;
    }
    return numbers;
}

/* The rows of a block, of an array whose first row is at this address. */
static inline __attribute__((always_inline)) void
find_rows(char **rows, int64_t first, int64_t distance, int64_t base, const int64_t *numbers, int64_t lanes)
{
    char *row = (char *)(intptr_t)(first + base * distance);
    if (numbers)
        for (int64_t k = 0; k < lanes; k++)
            rows[k] = (char *)(intptr_t)(first + numbers[k] * distance);
    else {
        _Pragma("GCC unroll 16") for (int64_t k = 0; k < lanes; k++, row += distance) rows[k] = row;
    }
}

/* Prefetching the inputs of a later block, and the outputs of this one, in shares at the pauses of the body. */
typedef struct {
    Kernel kernel;
    const int64_t *words;
    const Places *places;
    int64_t n, calls, ahead, base, call; /* calls: of a body, 0 to fetch nothing; ahead: states */
} Fetch;

static Fetch start_fetching(Kernel kernel, const int64_t *words, int64_t n, const Places *places)
{
    Fetch fetch = {kernel, words, places, n, 0, 0, 0, 0};
    int64_t row = kernel->row_bytes;
    if (kernel->n_pauses && row && (places->read || places->written || n * row > CACHED)) {
        int64_t blocks = MOST_FETCHED / (row * kernel->width);
        fetch.ahead = (blocks < BLOCKS_AHEAD ? blocks : BLOCKS_AHEAD) * kernel->width;
        fetch.calls = blocks ? kernel->n_pauses : 0;
    }
    return fetch;
}

/* Prefetches numbers of the rows begin … end − 1. GCC drops calls of functions that do nothing else: it must be inlined. */
static inline __attribute__((always_inline)) void
fetch_rows(const Fetch *fetch, const Span *span, const int64_t *rows, int64_t begin, int64_t end, int written)
{
    int64_t bytes = fetch->kernel->bytes, distance = fetch->words[span->word + 1] * bytes, size = span->size * bytes;
    const char *first = (const char *)(intptr_t)fetch->words[span->word] + span->first * bytes;
    int64_t n = (end < fetch->n ? end : fetch->n) - begin;
    if (!distance || !fetch->words[span->word] || n <= 0)
        return;
    if (!rows && size == distance) { /* one after the other */
        size *= n;
        n = 1;
    }
    for (int64_t s = begin; s < begin + n; s++) {
        const char *row = first + (rows ? rows[s] : s) * distance;
        for (int64_t at = 0; at < size; at += CACHE_LINE)
            if (written)
                __builtin_prefetch(row + at, 1, 3);
            else
                __builtin_prefetch(row + at, 0, 2);
    }
}

#if defined(__x86_64__)
__attribute__((target("prfchw"))) /* no operation on processors without it */
#endif
static void fetch_share(void *context)
{
    Fetch *fetch = context;
    int64_t begin = fetch->kernel->width * fetch->call / fetch->calls;
    int64_t end = fetch->kernel->width * ++fetch->call / fetch->calls;
    Kernel kernel = fetch->kernel;
    int64_t later = fetch->base + fetch->ahead;
    for (int64_t k = 0; k < kernel->n_gathered; k++)
        fetch_rows(fetch, kernel->gathered + k, fetch->places->read, later + begin, later + end, 0);
    for (int64_t k = 0; k < kernel->n_scattered; k++)
        fetch_rows(fetch, kernel->scattered + k, fetch->places->written, fetch->base + begin, fetch->base + end, 1);
}

static void do_nothing(void *context) { (void)context; }

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Lanes of a transposition: which lane of two vectors comes to each place. */
#define LOW(lane, step, lanes) ((lane) & (step) ? (lanes) + (lane) - (step) : (lane))
#define HIGH(lane, step, lanes) ((lane) & (step) ? (lanes) + (lane) : ((lane) + (step)) % (2 * (lanes)))
#define SAME(lane, step, lanes) (lane)
#define LANES_2(F, step, n) F(0, step, n), F(1, step, n)
#define LANES_4(F, step, n) LANES_2(F, step, n), F(2, step, n), F(3, step, n)
#define LANES_8(F, step, n) LANES_4(F, step, n), F(4, step, n), F(5, step, n), F(6, step, n), F(7, step, n)
#define LANES_16(F, step, n)                                                                              \
    LANES_8(F, step, n), F(8, step, n), F(9, step, n), F(10, step, n), F(11, step, n), F(12, step, n),    \
        F(13, step, n), F(14, step, n), F(15, step, n)

/* Copies numbers of one state, each as a CHUNK, four at a time, so that four sums are added in parallel. Returns the sum of
   0 · number. */
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

/* Copies of one state in registers of 32 bytes. */
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
/* Keeps compilers from loading a vector repeatedly, as an operand of each instruction. */
#if defined(__x86_64__)
#define IN_REGISTER(x) __asm__("" : "+v"(x))
#else
#define IN_REGISTER(x) ((void)0)
#endif

#define FLAGS(sum, bit) (((sum) != (sum)) & (bit))

/* Registers of 16 bytes: one, or up to three numbers are moved singly. */
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

void run_kernel_at(Kernel kernel, const int64_t *words, int64_t n, const Places *places)
{
    static const Places all = {0};
    places = places ? places : &all;
    int single = kernel->bytes == sizeof(float);
    switch (kernel->width * (single ? -1 : 1)) {
    case 1:
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx")) {
            run_wide_d1(kernel, words, n, places);
            break;
        }
#endif
        run_d1(kernel, words, n, places);
        break;
    case -1: run_f1(kernel, words, n, places); break;
    case 2: run_d2(kernel, words, n, places); break;
    case -4: run_f4(kernel, words, n, places); break;
#if defined(__x86_64__)
    case 4: run_d4(kernel, words, n, places); break;
    case -8: run_f8(kernel, words, n, places); break;
    case 8: run_d8(kernel, words, n, places); break;
    case -16: run_f16(kernel, words, n, places); break;
#endif
    }
}
