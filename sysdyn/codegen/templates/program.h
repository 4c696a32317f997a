$banner
/*
 * C99, no heap, no library but math.h. $n_operations operations: $flops.
 * Stack: a few kilobytes; workspace: $workspace_bytes bytes, provided by the caller.
 * Do not compile with -ffast-math: the checks for values that are not finite would be removed.
$remarks */
#ifndef ${upper}_H
#define ${upper}_H

#ifdef __cplusplus
extern "C" {
#endif

$inputs

$outputs

/* Workspace: needs no initialisation, keeps no state between calls. Each thread needs its own. */
typedef struct {
    $real w[$workspace_size];
} ${name}_work;

/* Status bits that ${name}_run returns; 0 for success. */
enum {
$status_bits
};

/*
 * Computes `out` from `in`. The three structs must not overlap. Returns 0 or status bits.
 */
int ${name}_run(const ${name}_inputs *in, ${name}_outputs *out, ${name}_work *work);

#ifdef __cplusplus
}
#endif

#endif
