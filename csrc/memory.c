/* The allocator's thresholds of a process that does little but receive large frames. */

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "cdefs.h"

void byteps_keep_freed_memory(size_t n_bytes)
{
#ifdef __GLIBC__
    const int bytes = n_bytes < INT_MAX ? (int)n_bytes : INT_MAX;
    /* The largest threshold that glibc takes: frames below it come from the heap, which is kept, and not from mmap. */
    mallopt(M_MMAP_THRESHOLD, 4 * 1024 * 1024 * (int)sizeof(long));
    mallopt(M_TRIM_THRESHOLD, bytes);
#else
    (void)n_bytes;
#endif
}
