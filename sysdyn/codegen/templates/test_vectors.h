$banner
#ifndef ${upper}_TEST_VECTORS_H
#define ${upper}_TEST_VECTORS_H

#include "$name.h"

#define TEST_COUNT $count
#define TEST_TOLERANCE $tolerance /* relative to the largest expected entry */

$arrays

#endif
