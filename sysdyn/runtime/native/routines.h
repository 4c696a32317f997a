/* Routines of call lists on row-major matrices; and, for exported filters, the routines of BLAS and LAPACK that they need,
   on column-major matrices.

   codegen/c_call_list.py copies routines into exported C99. The text of a routine extends from the comment with its name
   to the next such comment. call_list.c compiles the same text with its own ROUTINE and VECTOR_BYTES. */

/* ROUTINE is not inlined: inlining loses the guarantee that its arrays do not overlap. With vector extensions,
   column tiles are up to five vectors wide, so that sums stay in registers. */
#ifndef ROUTINE
#define VECTOR_BYTES 32
#if defined(__GNUC__)
#define ROUTINE static __attribute__((noinline))
#else
#define ROUTINE static
#endif
#endif
#if defined(__GNUC__)
typedef double Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));
typedef double Half __attribute__((vector_size(VECTOR_BYTES / 2), aligned(sizeof(double)), may_alias));
typedef double Quarter __attribute__((vector_size(VECTOR_BYTES / 4), aligned(sizeof(double)), may_alias));
#else
typedef double Vector, Half, Quarter;
#endif
#define TILES(end, TILE) \
    TILES_OF(end, TILE, Vector, 5) TILES_OF(end, TILE, Vector, 4) TILES_OF(end, TILE, Vector, 3) \
    NARROW_TILES(end, TILE)
#define NARROW_TILES(end, TILE) \
    TILES_OF(end, TILE, Vector, 2) TILES_OF(end, TILE, Vector, 1) TILES_OF(end, TILE, Half, 1) \
    TILES_OF(end, TILE, Quarter, 1) TILES_OF(end, TILE, double, 1)
#define TILES_OF(end, TILE, Type, parts) \
    for (; c + parts * (int)(sizeof(Type) / sizeof(double)) <= end; c += parts * (int)(sizeof(Type) / sizeof(double))) { \
        TILE(Type, parts) \
    }

/* y = x^T for a block of BLOCK rows and columns; dx, dy: row strides. */
#define TRANSPOSE_BLOCK(x, dx, y, dy) *(y) = *(x)
#define BLOCK 1
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#undef TRANSPOSE_BLOCK
#undef BLOCK
#define BLOCK 4
typedef double Four __attribute__((vector_size(4 * sizeof(double)), aligned(sizeof(double)), may_alias));
#define TRANSPOSE_BLOCK(x, dx, y, dy) \
    { \
        const Four a = *(const Four *)(x), b = *(const Four *)((x) + dx); \
        const Four c = *(const Four *)((x) + 2 * dx), d = *(const Four *)((x) + 3 * dx); \
        const Four p = __builtin_shufflevector(a, b, 0, 4, 2, 6), q = __builtin_shufflevector(a, b, 1, 5, 3, 7); \
        const Four r = __builtin_shufflevector(c, d, 0, 4, 2, 6), s = __builtin_shufflevector(c, d, 1, 5, 3, 7); \
        *(Four *)(y) = __builtin_shufflevector(p, r, 0, 1, 4, 5); \
        *(Four *)((y) + dy) = __builtin_shufflevector(q, s, 0, 1, 4, 5); \
        *(Four *)((y) + 2 * dy) = __builtin_shufflevector(p, r, 2, 3, 6, 7); \
        *(Four *)((y) + 3 * dy) = __builtin_shufflevector(q, s, 2, 3, 6, 7); \
    }
#endif
#endif

/* spmm: y (n, k) = A x, or y + A x if add, A in CSR format: row i has the entries e = starts[i] ... starts[i + 1] - 1, in
   the columns columns[e] and with the values A[sources[e]]. */
#define SPMM(Type, parts) \
    for (i = 0; i < n; ++i) { \
        Type sum[parts], *to = (Type *)(y + i * k + c); \
        for (p = 0; p < parts; ++p) { \
            sum[p] = (Type){0}; \
        } \
        for (p = 0; p < parts && add; ++p) { \
            sum[p] += to[p]; \
        } \
        for (e = starts[i]; e < starts[i + 1]; ++e) { \
            const Type *from = (const Type *)(x + columns[e] * k + c); \
            for (p = 0; p < parts; ++p) { \
                sum[p] += A[sources[e]] * from[p]; \
            } \
        } \
        for (p = 0; p < parts; ++p) { \
            to[p] = sum[p]; \
        } \
    }
ROUTINE void spmm(
    int k, int n, int add, const int *starts, const int *columns, const int *sources, const double *A,
    const double *x, double *y)
{
    int c = 0, e, i, p;
    TILES(k, SPMM)
}

/* trsm: x (m, k) = L^-1 x, L (m, m) lower triangular, column-major. */
#define TRSM(Type, parts) \
    for (i = 0; i < m; ++i) { \
        const double inverse = 1.0 / L[i + i * m]; \
        Type sum[parts], *to = (Type *)(x + i * k + c); \
        for (p = 0; p < parts; ++p) { \
            sum[p] = to[p]; \
        } \
        for (j = 0; j < i; ++j) { \
            const Type *from = (const Type *)(x + j * k + c); \
            for (p = 0; p < parts; ++p) { \
                sum[p] -= L[i + j * m] * from[p]; \
            } \
        } \
        for (p = 0; p < parts; ++p) { \
            to[p] = sum[p] * inverse; \
        } \
    }
ROUTINE void trsm(int k, int m, const double *L, double *x)
{
    int c = 0, i, j, p;
    TILES(k, TRSM)
}

/* syrk_sub: P (k, k) -= x^T y, x, y (m, k), in the lower triangle; the upper triangle is undefined afterwards. */
#define SYRK_SUB(Type, parts) \
    { \
        Type sum[ROWS * parts]; \
        for (p = 0; p < ROWS * parts; ++p) { \
            sum[p] = (Type){0}; \
        } \
        for (l = 0; l < m; ++l) { \
            const double *a = x + l * k + i; \
            const Type *from = (const Type *)(y + l * k + c); \
            for (p = 0; p < ROWS * parts; ++p) { \
                sum[p] += a[p / parts] * from[p % parts]; \
            } \
        } \
        for (p = 0; p < ROWS * parts; ++p) { \
            ((Type *)(P + (i + p / parts) * k + c))[p % parts] -= sum[p]; \
        } \
    }
ROUTINE void syrk_sub(int k, int m, const double *x, const double *y, double *P)
{
    int c, i = 0, l, p;
#define ROWS 4
    for (; i + ROWS <= k; i += ROWS) {
        c = 0;
        NARROW_TILES(i + ROWS, SYRK_SUB)
    }
#undef ROWS
#define ROWS 1
    for (; i < k; ++i) {
        c = 0;
        NARROW_TILES(i + 1, SYRK_SUB)
    }
#undef ROWS
}

/* transpose: y (k, n) = x^T, by blocks, then the remaining rows and columns. */
ROUTINE void transpose(int n, int k, const double *x, double *y)
{
    int i, j;
    for (i = 0; i + BLOCK <= k; i += BLOCK) {
        for (j = 0; j + BLOCK <= n; j += BLOCK) {
            TRANSPOSE_BLOCK(x + j * k + i, k, y + i * n + j, n);
        }
    }
    for (i = 0; i < k; ++i) {
        for (j = i < k / BLOCK * BLOCK ? n / BLOCK * BLOCK : 0; j < n; ++j) {
            y[i * n + j] = x[j * k + i];
        }
    }
}

/* symmetrise: copies the lower triangle of x (k, k) to the upper one, by blocks, then the remaining entries. */
ROUTINE void symmetrise(int k, double *x)
{
    int i, j, end;
    for (i = 0; i + BLOCK <= k; i += BLOCK) {
        for (j = i + BLOCK; j + BLOCK <= k; j += BLOCK) {
            TRANSPOSE_BLOCK(x + j * k + i, k, x + i * k + j, k);
        }
    }
    for (i = 0; i < k; ++i) {
        end = i / BLOCK * BLOCK + BLOCK;
        for (j = i + 1; j < end && j < k; ++j) {
            x[i * k + j] = x[j * k + i];
        }
        for (j = k / BLOCK * BLOCK > end ? k / BLOCK * BLOCK : end; j < k; ++j) {
            x[i * k + j] = x[j * k + i];
        }
    }
}

/* scatter_add: y[indices[i]] += x[i]. */
ROUTINE void scatter_add(int n, const int *indices, const double *x, double *y)
{
    int i;
    for (i = 0; i < n; ++i) {
        y[indices[i]] += x[i];
    }
}

/* gather: y[i] = x[indices[i]]. */
ROUTINE void gather(int n, const int *indices, const double *x, double *y)
{
    int i;
    for (i = 0; i < n; ++i) {
        y[i] = x[indices[i]];
    }
}

/* flush_subnormals: x[i] = 0 if |x[i]| < least; operations on subnormals take a hundred times as long. */
ROUTINE void flush_subnormals(int n, double least, double *x)
{
    int i;
    for (i = 0; i < n; ++i) {
        x[i] = fabs(x[i]) < least ? 0.0 : x[i];
    }
}

/* dcopy: y = x, n numbers with strides dx and dy. */
ROUTINE void dcopy(int n, const double *x, int dx, double *y, int dy)
{
    int i;
    for (i = 0; i < n; ++i) {
        y[i * dy] = x[i * dx];
    }
}

/* daxpy: y += a x. */
ROUTINE void daxpy(int n, double a, const double *x, int dx, double *y, int dy)
{
    int i;
    for (i = 0; i < n; ++i) {
        y[i * dy] += a * x[i * dx];
    }
}

/* dlaset_A: sets the diagonal of A (m, n), column-major, to `on` and all other entries to `off`. */
ROUTINE void dlaset_A(int m, int n, double off, double on, double *A, int lda)
{
    int i, j;
    for (j = 0; j < n; ++j) {
        for (i = 0; i < m; ++i) {
            A[i + j * lda] = i == j ? on : off;
        }
    }
}

/* dgemv_N: y = a A x + b y, A (m, n) column-major. */
ROUTINE void dgemv_N(
    int m, int n, double a, const double *A, int lda, const double *x, int dx, double b, double *y, int dy)
{
    int i, j;
    for (i = 0; i < m; ++i) {
        y[i * dy] = b == 0.0 ? 0.0 : b * y[i * dy];
    }
    for (j = 0; j < n; ++j) {
        for (i = 0; i < m; ++i) {
            y[i * dy] += a * x[j * dx] * A[i + j * lda];
        }
    }
}

/* dpotrf_L: Cholesky factor of A (n, n), column-major, in place in its lower triangle; returns 1 if A has none. */
ROUTINE int dpotrf_L(int n, double *A, int lda)
{
    int i, j, l, good = 1;
    for (j = 0; j < n; ++j) {
        double *restrict x = A + j * lda;
        const double root = sqrt(x[j]), inverse = 1.0 / root;
        good &= x[j] > 0.0;
        x[j] = root;
        for (i = j + 1; i < n; ++i) {
            x[i] *= inverse;
        }
        for (l = j + 1; l < n; ++l) {
            double *restrict y = A + l * lda;
            const double a = x[l];
            for (i = l; i < n; ++i) {
                y[i] -= a * x[i];
            }
        }
    }
    return !good;
}

/* dlacpy_A: B = A, (m, n), column-major. */
ROUTINE void dlacpy_A(int m, int n, const double *A, int lda, double *B, int ldb)
{
    int i, j;
    for (j = 0; j < n; ++j) {
        for (i = 0; i < m; ++i) {
            B[i + j * ldb] = A[i + j * lda];
        }
    }
}
