/* All element types for one instruction set.  Included once by each level_*.c with these defined:
 *
 *   LEVEL          suffix of the function names
 *   TARGET         the function attribute that selects the instruction set; per function, because cffi compiles all
 *                  files with the same flags
 *   VECTOR_BYTES   the length of its vectors
 *   HAVE_F16C      optional: float16 is converted by the processor */

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.h"

#define INLINE TARGET static inline __attribute__((always_inline))

typedef uint32_t WORDS __attribute__((vector_size(VECTOR_BYTES)));

/* A non-temporal store goes past the caches, and the line that it fills is not read first.  It wants whole vectors at
 * multiples of their length; where packs are shorter than a cache line, two fill one. */
#define STREAM_ALIGNMENT(pack_bytes) ((pack_bytes) < 64 ? (pack_bytes) : (size_t)64)
#if !defined(__x86_64__)
#define STREAM_FENCE() ((void)0)
#else
#define STREAM_FENCE() _mm_sfence() /* such stores are ordered with no others, and another thread reads the result */
#endif

INLINE void stream(char *to, WORDS vector)
{
#if !defined(__x86_64__)
    memcpy(to, &vector, sizeof vector);
#elif VECTOR_BYTES == 32
    _mm256_stream_si256((__m256i *)to, (__m256i)vector);
#else
    _mm_stream_si128((__m128i *)to, (__m128i)vector);
#endif
}

INLINE void put(char *to, WORDS vector, int past_caches)
{
    if (past_caches)
        stream(to, vector);
    else
        memcpy(to, &vector, sizeof vector);
}

#include "convert.h"
#ifdef HAVE_F16C
#include "half_f16c.h"
#define WIDEN_HALF widen_half_f16c
#define HALF_IN_PAIRS 0
#define NARROW_HALF narrow_half_f16c
#else
#define WIDEN_HALF widen_half
#define HALF_IN_PAIRS 1
#define NARROW_HALF narrow_half
#endif

#include "stream.h"

/* Which payload a NaN gets depends on the order of an addition's operands, which the compiler is free to choose: one
 * NaN for all keeps results equal between levels, thread counts and positions in a buffer. */
#define QUIET_FLOAT 0x7fc00000u
#define QUIET_DOUBLE 0x7ff8000000000000u

/* Division towards minus infinity; n > 0, so nothing overflows. */
static inline int64_t floor_divide(int64_t x, int64_t n)
{
    return x / n - (x % n < 0);
}

/* The same in double, which has vector instructions for it.  It is exact: unless n divides x, the true quotient is at
 * least 1/n away from every whole number, and rounding moves it by at most |x|/n * 2^-53, less than that. */
static inline int32_t floor_divide_32(int32_t x, int32_t n)
{
    const double quotient = (double)x / (double)n;
    const int32_t towards_zero = (int32_t)quotient;
    return towards_zero - ((double)towards_zero > quotient);
}

#define TYPE float32
#define ACC float
#define BITS uint32_t
#define QUIET_NAN QUIET_FLOAT
#include "sum.h"

#define TYPE float64
#define ACC double
#define BITS uint64_t
#define QUIET_NAN QUIET_DOUBLE
#include "sum.h"

#define TYPE float16
#define ACC float
#define BITS uint32_t
#define QUIET_NAN QUIET_FLOAT
#define WIDEN WIDEN_HALF
#define NARROW NARROW_HALF
#include "sum.h"

#define TYPE bfloat16
#define ACC float
#define BITS uint32_t
#define QUIET_NAN QUIET_FLOAT
#define WIDEN widen_bfloat
#define NARROW narrow_bfloat
#include "sum.h"

/* Sums of 16-bit floats that stay in float32, and sums of such sums. */
#define TYPE widened_float16
#define ACC float
#define BITS uint32_t
#define QUIET_NAN QUIET_FLOAT
#define WIDEN WIDEN_HALF
#define IN_PAIRS HALF_IN_PAIRS
#include "sum.h"

#define TYPE widened_bfloat16
#define ACC float
#define BITS uint32_t
#define QUIET_NAN QUIET_FLOAT
#define WIDEN widen_bfloat
#define IN_PAIRS 1
#include "sum.h"

#define TYPE narrowed_float16
#define ACC float
#define BITS uint32_t
#define QUIET_NAN QUIET_FLOAT
#define NARROW NARROW_HALF
#define IN_PAIRS HALF_IN_PAIRS
#include "sum.h"

#define TYPE narrowed_bfloat16
#define ACC float
#define BITS uint32_t
#define QUIET_NAN QUIET_FLOAT
#define NARROW narrow_bfloat
#define IN_PAIRS 1
#include "sum.h"

#define TYPE int8
#define ACC uint8_t
#define DIVIDE(x, n) floor_divide_32((int8_t)(x), n)
#include "sum.h"

#define TYPE uint8
#define ACC uint8_t
#define DIVIDE(x, n) floor_divide_32(x, n)
#include "sum.h"

#define TYPE int32
#define ACC uint32_t
#define DIVIDE(x, n) floor_divide_32((int32_t)(x), n)
#include "sum.h"

#define TYPE int64
#define ACC uint64_t
#define DIVIDE(x, n) floor_divide((int64_t)(x), n)
#include "sum.h"

#define TABLE__(level) byteps_slices_##level
#define TABLE_(level) TABLE__(level)
#define ENTRY__(type, level) slice_##type##_##level
#define ENTRY_(type, level) ENTRY__(type, level)
#define ENTRY(type) ENTRY_(type, LEVEL)

const byteps_sum_slice TABLE_(LEVEL)[BYTEPS_SLICES] = {
    [BYTEPS_FLOAT32] = ENTRY(float32),
    [BYTEPS_FLOAT64] = ENTRY(float64),
    [BYTEPS_FLOAT16] = ENTRY(float16),
    [BYTEPS_BFLOAT16] = ENTRY(bfloat16),
    [BYTEPS_INT8] = ENTRY(int8),
    [BYTEPS_UINT8] = ENTRY(uint8),
    [BYTEPS_INT32] = ENTRY(int32),
    [BYTEPS_INT64] = ENTRY(int64),
    [BYTEPS_WIDENED(BYTEPS_FLOAT16)] = ENTRY(widened_float16),
    [BYTEPS_WIDENED(BYTEPS_BFLOAT16)] = ENTRY(widened_bfloat16),
    [BYTEPS_NARROWED(BYTEPS_FLOAT16)] = ENTRY(narrowed_float16),
    [BYTEPS_NARROWED(BYTEPS_BFLOAT16)] = ENTRY(narrowed_bfloat16),
};
