$banner
#include <math.h>
#include <stdio.h>

#include "$name.h"
#include "test_vectors.h"

$differs
int main(void)
{
    static ${name}_inputs in; /* static: they may be larger than the stack of a small machine */
    static ${name}_outputs out;
    static ${name}_work work;
    int k, status, failed = 0;

    in = test_inputs[0];
    status = ${name}_run(&in, &out, &work);
    if (status != 0) {
        printf("status %d: see the enumeration in $name.h\n", status);
    }
$prints

    for (k = 0; k < TEST_COUNT; ++k) {
        failed += ${name}_run(&test_inputs[k], &out, &work) != 0;
$checks
    }
$nan_checks
    if (failed) {
        printf("%d checks failed\n", failed);
    } else {
        printf("all checks passed\n");
    }
    return failed != 0;
}
