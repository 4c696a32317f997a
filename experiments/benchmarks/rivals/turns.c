// Functions of two pointers, called in turns; each turn is timed by the processor time of this thread.
#include <stdint.h>
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

// A kernel as a function of two pointers: to {address of run_kernel_on, kernel, states}, and to the words of its call.
void call_kernel(const int64_t* call, const int64_t* words) {
    ((void (*)(const void*, const int64_t*, int64_t, const int64_t*))call[0])((const void*)call[1], words, call[2], 0);
}
