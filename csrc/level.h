/* All element types for one instruction set.  Included once by each level_*.c with these defined:
 *
 *   LEVEL          suffix of the function names
 *   TARGET         the function attribute that selects the instruction set; per function, because cffi compiles all
 *                  files with the same flags
 *   WIDEN_HALF, NARROW_HALF    optional: hardware conversions of float16 (see WIDEN and NARROW in sum.h) */

#include <math.h>

#include "convert.h"
#include "kernels.h"

typedef uint16_t LOOSE_U16 __attribute__((aligned(1), may_alias));

#define DEFINE_WIDEN(name, convert)                                                                                    \
    TARGET static void name(float *wide, const void *source, size_t first, size_t n)                                   \
    {                                                                                                                  \
        const LOOSE_U16 *narrow = (const LOOSE_U16 *)source + first;                                                   \
        for (size_t i = 0; i < n; i++)                                                                                 \
            wide[i] = convert(narrow[i]);                                                                              \
    }
#define DEFINE_NARROW(name, convert)                                                                                   \
    TARGET static void name(void *out, const float *wide, size_t first, size_t n)                                      \
    {                                                                                                                  \
        LOOSE_U16 *narrow = (LOOSE_U16 *)out + first;                                                                  \
        for (size_t i = 0; i < n; i++)                                                                                 \
            narrow[i] = convert(wide[i]);                                                                              \
    }

#ifndef WIDEN_HALF
DEFINE_WIDEN(widen_half, half_to_float)
DEFINE_NARROW(narrow_half, float_to_half)
#define WIDEN_HALF widen_half
#define NARROW_HALF narrow_half
#endif
DEFINE_WIDEN(widen_bfloat, bfloat_to_float)
DEFINE_NARROW(narrow_bfloat, float_to_bfloat)

/* Which payload a NaN gets depends on the order of an addition's operands, which the compiler is free to choose: one
 * NaN for all keeps results equal between levels, thread counts and positions in a buffer. */
#define CLEAN_FLOAT(x) ((x) != (x) ? (float)NAN : (x))
#define CLEAN_DOUBLE(x) ((x) != (x) ? (double)NAN : (x))
#define KEEP(x) (x)

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
#define CLEAN CLEAN_FLOAT
#define DIVIDE(x, n) ((x) / (float)(n))
#include "sum.h"

#define TYPE float64
#define ACC double
#define CLEAN CLEAN_DOUBLE
#define DIVIDE(x, n) ((x) / (double)(n))
#include "sum.h"

#define TYPE float16
#define ACC float
#define CLEAN CLEAN_FLOAT
#define DIVIDE(x, n) ((x) / (float)(n))
#define WIDEN WIDEN_HALF
#define NARROW NARROW_HALF
#include "sum.h"

#define TYPE bfloat16
#define ACC float
#define CLEAN KEEP /* narrow_bfloat does it */
#define DIVIDE(x, n) ((x) / (float)(n))
#define WIDEN widen_bfloat
#define NARROW narrow_bfloat
#include "sum.h"

#define TYPE int8
#define ACC uint8_t
#define CLEAN KEEP
#define DIVIDE(x, n) floor_divide_32((int8_t)(x), n)
#include "sum.h"

#define TYPE uint8
#define ACC uint8_t
#define CLEAN KEEP
#define DIVIDE(x, n) floor_divide_32(x, n)
#include "sum.h"

#define TYPE int32
#define ACC uint32_t
#define CLEAN KEEP
#define DIVIDE(x, n) floor_divide_32((int32_t)(x), n)
#include "sum.h"

#define TYPE int64
#define ACC uint64_t
#define CLEAN KEEP
#define DIVIDE(x, n) floor_divide((int64_t)(x), n)
#include "sum.h"

#define TABLE__(level) byteps_slices_##level
#define TABLE_(level) TABLE__(level)
#define ENTRY__(type, level) slice_##type##_##level
#define ENTRY_(type, level) ENTRY__(type, level)
#define ENTRY(type) ENTRY_(type, LEVEL)

const byteps_sum_slice TABLE_(LEVEL)[BYTEPS_DTYPES] = {
    [BYTEPS_FLOAT32] = ENTRY(float32), [BYTEPS_FLOAT64] = ENTRY(float64),   [BYTEPS_FLOAT16] = ENTRY(float16),
    [BYTEPS_BFLOAT16] = ENTRY(bfloat16), [BYTEPS_INT8] = ENTRY(int8),       [BYTEPS_UINT8] = ENTRY(uint8),
    [BYTEPS_INT32] = ENTRY(int32),     [BYTEPS_INT64] = ENTRY(int64),
};
