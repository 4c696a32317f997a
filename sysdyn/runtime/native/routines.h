/* Routines on matrices by rows that call lists use, and those of BLAS and LAPACK, on matrices by columns, that exported
   filters use in addition.

   C99, of which codegen/c_call_list.py pastes routines: each is the text from the comment with its name up to the next
   such comment. call_list.c compiles the same text, with a ROUTINE and a size of vectors of its own. */

/* ROUTINE is not inlined: compilers then know that its arrays do not overlap. Where compilers have vectors, tiles of
   columns are up to four of them wide, so that sums stay in registers. */
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
    TILES_OF(end, TILE, Vector, 4) TILES_OF(end, TILE, Vector, 3) TILES_OF(end, TILE, Vector, 2) \
    TILES_OF(end, TILE, Vector, 1) TILES_OF(end, TILE, Half, 1) TILES_OF(end, TILE, Quarter, 1) \
    TILES_OF(end, TILE, double, 1)
#define TILES_OF(end, TILE, Type, parts) \
    for (; c + parts * (int)(sizeof(Type) / sizeof(double)) <= end; c += parts * (int)(sizeof(Type) / sizeof(double))) { \
        TILE(Type, parts) \
    }

/* y (4, 4) = x^T, with rows dx and dy apart. */
static inline void transpose_block(const double *x, int dx, double *y, int dy)
{
    double block[16];
    int i;
    for (i = 0; i < 16; ++i) {
        block[i] = x[i % 4 * dx + i / 4];
    }
    for (i = 0; i < 16; ++i) {
        y[i / 4 * dy + i % 4] = block[i];
    }
}

/* spmm: y (n, k) = A x, or y + A x if add, of a sparse A: entry e of A is in columns[e], its value is A[sources[e]], and
   row i has the entries from starts[i] to before starts[i + 1]. */
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

/* trsm: x (m, k) = L^-1 x, L (m, m) lower by columns. */
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

/* syrk_sub: P (k, k) -= x^T y of x, y (m, k), on and below the diagonal; what is above it is undefined. */
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
        TILES(i + ROWS, SYRK_SUB)
    }
#undef ROWS
#define ROWS 1
    for (; i < k; ++i) {
        c = 0;
        TILES(i + 1, SYRK_SUB)
    }
#undef ROWS
}

/* transpose: y (k, n) = x^T. */
ROUTINE void transpose(int n, int k, const double *x, double *y)
{
    int i, j;
    for (i = 0; i + 4 <= k; i += 4) {
        for (j = 0; j + 4 <= n; j += 4) {
            transpose_block(x + j * k + i, k, y + i * n + j, n);
        }
    }
    for (i = 0; i < k; ++i) {
        for (j = i < k / 4 * 4 ? n / 4 * 4 : 0; j < n; ++j) {
            y[i * n + j] = x[j * k + i];
        }
    }
}

/* symmetrise: entries of x (k, k) above the diagonal become those below it. */
ROUTINE void symmetrise(int k, double *x)
{
    int i, j;
    for (i = 0; i < k; ++i) {
        for (j = i + 1; j < k; ++j) {
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

/* flush_subnormals: entries of x smaller than `least` become 0: processors take a hundred times as long for subnormals. */
ROUTINE void flush_subnormals(int n, double least, double *x)
{
    int i;
    for (i = 0; i < n; ++i) {
        x[i] = fabs(x[i]) < least ? 0.0 : x[i];
    }
}

/* dcopy: y = x of n numbers, dx and dy apart. */
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

/* dlaset_A: A (m, n) by columns has `on` on its diagonal and `off` elsewhere. */
ROUTINE void dlaset_A(int m, int n, double off, double on, double *A, int lda)
{
    int i, j;
    for (j = 0; j < n; ++j) {
        for (i = 0; i < m; ++i) {
            A[i + j * lda] = i == j ? on : off;
        }
    }
}

/* dgemv_N: y = a A x + b y, A (m, n) by columns. */
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

/* dpotrf_L: the lower triangle of A (n, n) by columns becomes its Cholesky factor; 1 if there is none. */
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

/* dlacpy_A: B = A of (m, n) by columns. */
ROUTINE void dlacpy_A(int m, int n, const double *A, int lda, double *B, int ldb)
{
    int i, j;
    for (j = 0; j < n; ++j) {
        for (i = 0; i < m; ++i) {
            B[i + j * ldb] = A[i + j * lda];
        }
    }
}
