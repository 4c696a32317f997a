// Functions of two pointers, called in turns; each turn is timed by the processor time of this thread.
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// times (turns, n): seconds of a call
void in_turns(long n, void (**function)(void*, void*), void** first, void** second, const long* calls, long turns,
              double* times) {
    for (long t = 0; t < turns; ++t)
        for (long k = 0; k < n; ++k) {
            const double began = now();
            for (long c = 0; c < calls[k]; ++c) function[k](first[k], second[k]);
            times[t * n + k] = (now() - began) / calls[k];
        }
}
