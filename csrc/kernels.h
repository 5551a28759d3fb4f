/* Shared by the C files of the kernels. */

#ifndef BYTEPS_KERNELS_H
#define BYTEPS_KERNELS_H

#include <float.h>
#include <stddef.h>
#include <stdint.h>

#include "cdefs.h"

#if FLT_EVAL_METHOD != 0
#error "float arithmetic must round to float: on 32-bit x86 compile with -msse2 -mfpmath=sse"
#endif
#ifdef __FAST_MATH__
#error "the kernels promise exact bits: compile without -ffast-math and -Ofast"
#endif

/* Sums elements first .. last-1 of one dtype on one thread.  divisor >= 1; arguments were checked. */
typedef void (*byteps_sum_slice)(void *out, const void *const *sources, const size_t *groups, size_t n_groups,
                                 size_t first, size_t last, int32_t divisor);

/* Indexed by enum byteps_dtype; entry 0 is NULL. */
#define BYTEPS_DTYPES 9
extern const byteps_sum_slice byteps_slices_baseline[BYTEPS_DTYPES];
#if defined(__x86_64__)
extern const byteps_sum_slice byteps_slices_avx2[BYTEPS_DTYPES];
extern const byteps_sum_slice byteps_slices_avx512[BYTEPS_DTYPES];
#endif

/* Elements of one block of accumulators.  Three of them (the total, a group, a widened source) take 6 KiB for float32
 * and 12 KiB for float64, so that they stay in a first-level cache of 32 KiB while the sources stream by. */
#define BYTEPS_BLOCK 512

#endif
