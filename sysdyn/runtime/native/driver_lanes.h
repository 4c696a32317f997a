/* Template of the driver of kernels that compute LANES states at a time. driver.c includes this file once for each
   combination of LANES, NUMBER (double or float), INTEGER (same size) and TARGET (function attribute). NAME(x) adds the
   suffix of the combination; HALF(x) that of doubles in registers of the same size. driver.c defines LOAD_PART and
   STORE_PART. */

#define VECTOR NAME(Vector)
#if LANES == 1
typedef NUMBER VECTOR;
typedef INTEGER NAME(Bits);
#else
typedef NUMBER VECTOR __attribute__((vector_size(LANES * sizeof(NUMBER))));
typedef INTEGER NAME(Bits) __attribute__((vector_size(LANES * sizeof(NUMBER))));
#endif

#if LANES > 1

/* Loads min(count, LANES) numbers; the remaining lanes are 0. */
TARGET static inline VECTOR NAME(load)(const NUMBER *from, int64_t count)
{
    VECTOR x;
    if (count < LANES)
        return LOAD_PART(from, count);
    memcpy(&x, from, sizeof x);
    return x;
}

TARGET static inline void NAME(store)(NUMBER *to, VECTOR x, int64_t count)
{
    if (count < LANES)
        STORE_PART(to, x, count);
    else
        memcpy(to, &x, sizeof x);
}

/* Transposes LANES vectors by butterfly exchanges between vectors at distances 1, 2, 4, … */
TARGET static inline __attribute__((always_inline)) void NAME(transpose)(VECTOR *x)
{
#define EXCHANGE(STEP)                                                                                    \
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++)                                              \
    {                                                                                                     \
        if (STEP < LANES && !(k & STEP)) {                                                                \
            VECTOR a = x[k], b = x[(k + STEP) % LANES];                                                   \
            x[k] = __builtin_shufflevector(a, b, EACH_LANE(LOW, STEP));                                   \
            x[(k + STEP) % LANES] = __builtin_shufflevector(a, b, EACH_LANE(HIGH, STEP));                 \
        }                                                                                                 \
    }
    EXCHANGE(1)
    EXCHANGE(2)
    EXCHANGE(4)
    EXCHANGE(8)
#undef EXCHANGE
}

/* Copies `count` numbers of each row to the workspace. Returns the sum of 0 · number, see driver.c. */
TARGET static inline __attribute__((always_inline)) VECTOR
NAME(gather_chunk)(char *const *rows, int64_t j, int64_t count, NUMBER *cell, int doubles)
{
    VECTOR x[LANES], sum = {0};
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++)
    {
#ifdef HALF
        if (doubles) {
            const double *from = (const double *)rows[k] + j;
            HALF(Vector) low = HALF(load)(from, count < LANES / 2 ? count : LANES / 2), high = {0};
            if (count > LANES / 2)
                high = HALF(load)(from + LANES / 2, count - LANES / 2);
            x[k] = __builtin_shufflevector(__builtin_convertvector(low, NAME(Part)),
                                           __builtin_convertvector(high, NAME(Part)), EACH_LANE(SAME, 0));
            continue;
        }
#endif
        x[k] = NAME(load)((const NUMBER *)rows[k] + j, count);
        IN_REGISTER(x[k]);
    }
    NAME(transpose)(x);
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++)
    {
        if (k < count) {
            sum = ADD_ZERO(sum, x[k]);
            memcpy(cell + (j + k) * LANES, x + k, sizeof *x);
        }
    }
    return sum;
}

/* Copies a span of each row to the workspace. Not inlined, so that the row pointers stay in registers. */
TARGET static __attribute__((noinline)) VECTOR
NAME(gather)(char *first, int64_t distance, const int64_t *numbers, int64_t size, NUMBER *cell, int doubles)
{
    VECTOR sum = {0};
    int64_t j = 0;
    char *rows[LANES];
    find_rows(rows, first, distance, numbers, LANES);
#ifdef HALF
    for (; doubles && j < size; j += LANES)
        sum += NAME(gather_chunk)(rows, j, size - j < LANES ? size - j : LANES, cell, 1);
#endif
    for (; j + LANES <= size; j += LANES)
        sum += NAME(gather_chunk)(rows, j, LANES, cell, 0);
    if (j < size)
        sum += NAME(gather_chunk)(rows, j, size - j, cell, 0);
    return sum;
}

TARGET static inline __attribute__((always_inline)) VECTOR
NAME(scatter_chunk)(char *const *rows, int64_t j, int64_t count, const NUMBER *cell)
{
    VECTOR x[LANES], sum = {0};
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++)
    {
        x[k] = (VECTOR){0};
        if (k < count) {
            memcpy(x + k, cell + (j + k) * LANES, sizeof *x);
            IN_REGISTER(x[k]);
            sum = ADD_ZERO(sum, x[k]);
        }
    }
    NAME(transpose)(x);
    _Pragma("GCC unroll 16") for (int k = 0; k < LANES; k++) NAME(store)((NUMBER *)rows[k] + j, x[k], count);
    return sum;
}

TARGET static __attribute__((noinline)) VECTOR
NAME(scatter)(char *first, int64_t distance, const int64_t *numbers, int64_t size, const NUMBER *cell)
{
    VECTOR sum = {0};
    int64_t j = 0;
    char *rows[LANES];
    find_rows(rows, first, distance, numbers, LANES);
    for (; j + LANES <= size; j += LANES)
        sum += NAME(scatter_chunk)(rows, j, LANES, cell);
    if (j < size)
        sum += NAME(scatter_chunk)(rows, j, size - j, cell);
    return sum;
}

/* Stores the status of min(count, LANES) states. A whole block is one vector: scalar copies would wait for the block. */
TARGET static inline __attribute__((always_inline)) void
NAME(store_status)(int64_t *status, NAME(Bits) bits, int64_t count)
{
    typedef int64_t Status __attribute__((vector_size(LANES * sizeof(int64_t))));
    Status each = __builtin_convertvector(bits, Status);
    if (count >= LANES)
        memcpy(status, &each, sizeof each);
    else
        for (int64_t k = 0; k < count; k++)
            status[k] = each[k];
}

#else

TARGET static inline VECTOR
NAME(gather)(char *first, int64_t distance, const int64_t *numbers, int64_t size, NUMBER *cell, int doubles)
{
    char *row;
    find_rows(&row, first, distance, numbers, LANES);
    if (!doubles)
        return NAME(copy)((const NUMBER *)row, size, cell);
    NUMBER sum = 0;
    for (int64_t j = 0; j < size; j++) {
        cell[j] = (NUMBER)((const double *)row)[j];
        sum += cell[j] * 0;
    }
    return sum;
}

TARGET static inline VECTOR
NAME(scatter)(char *first, int64_t distance, const int64_t *numbers, int64_t size, const NUMBER *cell)
{
    char *row;
    find_rows(&row, first, distance, numbers, LANES);
    return size > ONE_BY_ONE ? NAME(copy)(cell, size, (NUMBER *)row) : NAME(copy_singly)(cell, size, (NUMBER *)row);
}

TARGET static inline void NAME(store_status)(int64_t *status, NAME(Bits) bits, int64_t count)
{
    (void)count;
    *status = bits;
}

#endif

TARGET static __attribute__((noinline)) void
NAME(clear)(char *first, int64_t distance, const int64_t *numbers, int64_t size)
{
    char *rows[LANES];
    find_rows(rows, first, distance, numbers, LANES);
    for (int k = 0; k < LANES; k++)
        memset(rows[k], 0, size * sizeof(NUMBER));
}

TARGET static void
NAME(run)(Kernel kernel, const int64_t *words, int64_t n, const int64_t *mixed, const int64_t *rows)
{
    NUMBER *work = (NUMBER *)(intptr_t)words[0], *flags = work + kernel->status_slot * LANES;
    int64_t *status = (int64_t *)(intptr_t)words[1], table[LANES];
    VECTOR shared = {0};
    Stream streams[kernel->n_gathered + kernel->n_scattered + 1];
    Fetch fetch = start_fetching(streams, kernel, words, n, rows);
    for (int64_t base = 0; base < n; base += LANES) {
        VECTOR sum = shared;
        const int64_t *numbers = number_rows(table, rows, base, n, LANES), start = numbers ? 0 : base;
        for (const Span *span = kernel->gathered, *end = span + kernel->n_gathered; span < end; span++) {
            int64_t distance = words[span->word + 1];
            if (!distance && base)
                continue; /* the first block has copied the row that all states share */
            int doubles = sizeof(NUMBER) < sizeof(double) && mixed && mixed[span->word];
            int64_t bytes = doubles ? (int64_t)sizeof(double) : (int64_t)sizeof(NUMBER);
            char *row = entry_address(words[span->word], span->first + start * distance, bytes);
            VECTOR found = NAME(gather)(row, distance * bytes, numbers, span->size, work + span->slot * LANES, doubles);
            sum += found;
            if (!distance)
                shared += found;
        }
        NAME(Bits) bits = FLAG(sum, BAD_INPUT);
        memcpy(flags, &bits, sizeof bits);
        fetch.begin = base;
        fetch.block = base + LANES < n ? base + LANES : n;
        kernel->body(work, fetch.share ? fetch_share : do_nothing, &fetch);
        sum = (VECTOR){0};
        for (const Span *span = kernel->scattered, *end = span + kernel->n_scattered; span < end; span++) {
            if (!words[span->word])
                continue;
            int64_t distance = words[span->word + 1];
            char *row = entry_address(words[span->word], span->first + start * distance, sizeof(NUMBER));
            const NUMBER *cell = work + span->slot * LANES;
            distance *= (int64_t)sizeof(NUMBER);
            if (span->zero)
                NAME(clear)(row, distance, numbers, span->size);
            else
                sum += NAME(scatter)(row, distance, numbers, span->size, cell);
        }
        memcpy(&bits, flags, sizeof bits);
        NAME(store_status)(status + base, bits | FLAG(sum, BAD_OUTPUT), n - base);
    }
}

#undef VECTOR
#undef LANES
#undef NUMBER
#undef INTEGER
#undef TARGET
#undef NAME
#undef HALF
#undef LOAD_PART
#undef STORE_PART
#undef EACH_LANE
#undef FLAG
#undef ADD_ZERO
