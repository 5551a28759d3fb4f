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

/* Sums elements first .. last-1 of one dtype on one thread; `past_caches` is for results that the caches cannot hold.
 * divisor >= 1; arguments were checked. */
typedef void (*byteps_sum_slice)(void *out, const void *const *sources, const size_t *groups, size_t n_groups,
                                 size_t first, size_t last, int32_t divisor, int past_caches);

/* One thread's part of a copy past the caches, and of the addition that sums are measured against. */
typedef void (*byteps_copy_past_caches)(void *out, const void *source, size_t n_bytes);
typedef void (*byteps_plain_add)(float *out, const float *left, const float *right, size_t n, int past_caches);

#define BYTEPS_DTYPES 9

/* Tables are indexed by enum byteps_dtype; those of sums by these, too, for sums of 16-bit floats that stay in float32,
 * and sums of such sums.  The other entries are NULL. */
#define BYTEPS_WIDENED(dtype) (BYTEPS_DTYPES + (dtype))
#define BYTEPS_NARROWED(dtype) (2 * BYTEPS_DTYPES + (dtype))
#define BYTEPS_SLICES (3 * BYTEPS_DTYPES)
#define BYTEPS_DECLARE_LEVEL(level)                                                                                    \
    extern const byteps_sum_slice byteps_slices_##level[BYTEPS_SLICES];                                                \
    void byteps_copy_past_caches_##level(void *out, const void *source, size_t n_bytes);                               \
    void byteps_plain_add_##level(float *out, const float *left, const float *right, size_t n, int past_caches);
BYTEPS_DECLARE_LEVEL(baseline)
#if defined(__x86_64__)
BYTEPS_DECLARE_LEVEL(avx2)
BYTEPS_DECLARE_LEVEL(avx512)
#endif

/* The size of an element, by enum byteps_dtype. */
extern const size_t byteps_item_bytes[BYTEPS_DTYPES];

/* The status of the arguments that all sums have in common. */
int byteps_check_sum(size_t n_sources, const size_t *groups, size_t n_groups, int32_t divisor, int threads, int level);

/* Of a place in the table and a level that were checked. */
byteps_sum_slice byteps_find_slice(int level, int index);

static inline int byteps_meet(const void *a, size_t n_a, const void *b, size_t n_b)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y ? y - x < n_a : x - y < n_b;
}

static inline int byteps_overlap(const void *a, const void *b, size_t n_bytes)
{
    return byteps_meet(a, n_bytes, b, n_bytes);
}

/* How many bytes ahead a source is prefetched by a sum past the caches: four cache lines or two packs of vectors; of 128
 * bytes to 16 KiB, those from 128 to 384 gave the most, and 2 KiB cost a fifth. */
#define BYTEPS_AHEAD 256

#endif
