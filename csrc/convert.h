/* 16-bit floats to float32 and back, a vector at a time and without branches, with the baseline instruction set.  F16C
 * gives the same bits.  Included where the names of level.h are defined.
 *
 * A word of 32 bits holds two elements.  Those in the lower halves of a vector of words and those in the upper halves
 * become a vector of accumulators each: every lane stays where it is, so nothing is packed or shuffled. */

typedef float FLOATS __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t SIGNED __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t LOOSE_WORDS __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));

/* For each lane, x where the mask is all ones, and y where it is zero. */
INLINE WORDS choose(SIGNED mask, WORDS x, WORDS y)
{
    return ((WORDS)mask & x) | (~(WORDS)mask & y);
}

/* Exact.  A half has 5 exponent and 10 mantissa bits; a float has 8 (bias larger by 112) and 23 (longer by 13). */
INLINE FLOATS half_to_float(WORDS half)
{
    const WORDS sign = (half & 0x8000u) << 16;
    const WORDS magnitude = half & 0x7fffu;
    const WORDS normal = (magnitude << 13) + (112u << 23);
    const WORDS special = (magnitude << 13) + (224u << 23); /* infinity and NaN: the exponent is all ones */
    const WORDS subnormal = (WORDS)(__builtin_convertvector((SIGNED)magnitude, FLOATS) * 0x1p-24f);
    const WORDS finite = choose((SIGNED)magnitude < 0x0400, subnormal, normal);
    return (FLOATS)(sign | choose((SIGNED)magnitude < 0x7c00, finite, special));
}

/* Rounds to nearest even.  65520 and more become infinity; a NaN becomes the positive quiet one. */
INLINE WORDS float_to_half(FLOATS value)
{
    const WORDS bits = (WORDS)value;
    const WORDS sign = (bits >> 16) & 0x8000u;
    const WORDS magnitude = bits & 0x7fffffffu;
    /* Half of the 13 bits that go, less one if the last bit that stays is even; the carry may reach the exponent. */
    const WORDS rounded = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    const WORDS infinity = (WORDS){0} + 0x7c00u;
    const WORDS normal = choose((SIGNED)rounded < 0x7c00, rounded, infinity);
    /* One unit in the last place of 0.5f is the smallest half, so the addition does the rounding. */
    const WORDS subnormal = (WORDS)((FLOATS)magnitude + 0.5f) - 0x3f000000u;
    const WORDS finite = choose((SIGNED)magnitude < 0x38800000, subnormal, normal); /* 2^-14, the smallest normal half */
    return choose((SIGNED)magnitude <= 0x7f800000, sign | finite, (WORDS){0} + 0x7e00u);
}

/* The upper half of a float, rounded to nearest even, in place: the lower half is left as it comes.  The carry of the
 * largest values gives infinity.  The one NaN that sums leave carries nowhere. */
INLINE WORDS round_to_bfloat(FLOATS value)
{
    const WORDS bits = (WORDS)value;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
}

INLINE void widen_half(const char *from, FLOATS *a, FLOATS *b, FLOATS *c, FLOATS *d)
{
    const LOOSE_WORDS *words = (const LOOSE_WORDS *)from;
    const WORDS low = words[0], high = words[1];
    *a = half_to_float(low & 0xffffu);
    *b = half_to_float(low >> 16);
    *c = half_to_float(high & 0xffffu);
    *d = half_to_float(high >> 16);
}

INLINE void narrow_half(WORDS *low, WORDS *high, FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    *low = float_to_half(a) | float_to_half(b) << 16;
    *high = float_to_half(c) | float_to_half(d) << 16;
}

/* Exact: a bfloat16 is the upper half of a float. */
INLINE void widen_bfloat(const char *from, FLOATS *a, FLOATS *b, FLOATS *c, FLOATS *d)
{
    const LOOSE_WORDS *words = (const LOOSE_WORDS *)from;
    const WORDS low = words[0], high = words[1];
    *a = (FLOATS)(low << 16);
    *b = (FLOATS)(low & 0xffff0000u);
    *c = (FLOATS)(high << 16);
    *d = (FLOATS)(high & 0xffff0000u);
}

INLINE void narrow_bfloat(WORDS *low, WORDS *high, FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    *low = round_to_bfloat(a) >> 16 | (round_to_bfloat(b) & 0xffff0000u);
    *high = round_to_bfloat(c) >> 16 | (round_to_bfloat(d) & 0xffff0000u);
}

/* The elements of two vectors that hold them by turns, in order: those of the first vector, then those of the other. */
INLINE void join_pairs(FLOATS *a, FLOATS *b)
{
    enum { LANES = VECTOR_BYTES / sizeof(float) };
    float lower[LANES], upper[LANES], joined[2 * LANES];
    memcpy(lower, a, sizeof lower);
    memcpy(upper, b, sizeof upper);
    for (size_t i = 0; i < LANES; i++) {
        joined[2 * i] = lower[i];
        joined[2 * i + 1] = upper[i];
    }
    memcpy(a, joined, sizeof *a);
    memcpy(b, joined + LANES, sizeof *b);
}

/* The way back. */
INLINE void part_pairs(FLOATS *a, FLOATS *b)
{
    enum { LANES = VECTOR_BYTES / sizeof(float) };
    float lower[LANES], upper[LANES], joined[2 * LANES];
    memcpy(joined, a, sizeof *a);
    memcpy(joined + LANES, b, sizeof *b);
    for (size_t i = 0; i < LANES; i++) {
        lower[i] = joined[2 * i];
        upper[i] = joined[2 * i + 1];
    }
    memcpy(a, lower, sizeof lower);
    memcpy(b, upper, sizeof upper);
}
