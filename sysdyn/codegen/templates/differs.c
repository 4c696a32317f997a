/* Whether found[n] differs from expected[n] by more than the tolerance. */
static int differs(const char *what, int $index, const $real *found, const $real *expected, int n)
{
    double size = 0.0, error = 0.0;
    int k;
    for (k = 0; k < n; ++k) {
        size = fmax(size, fabs(expected[k]));
        error = fmax(error, fabs(found[k] - expected[k]));
    }
    printf("$index %d: %s differs by %.1e; its greatest entry is %.3g\n", $index, what, error, size);
    return !(error <= TEST_TOLERANCE * size);
}
