/* float16 to float32 and back with F16C, for the levels that have it: vectors are of 32 bytes.  Included by level.h. */

INLINE FLOATS widen_eight(const char *from)
{
    return (FLOATS)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

INLINE void widen_half_f16c(const char *from, FLOATS *a, FLOATS *b, FLOATS *c, FLOATS *d)
{
    *a = widen_eight(from);
    *b = widen_eight(from + 16);
    *c = widen_eight(from + 32);
    *d = widen_eight(from + 48);
}

INLINE WORDS narrow_sixteen(FLOATS left, FLOATS right)
{
    return (WORDS)_mm256_set_m128i(_mm256_cvtps_ph((__m256)right, _MM_FROUND_TO_NEAREST_INT),
                                   _mm256_cvtps_ph((__m256)left, _MM_FROUND_TO_NEAREST_INT));
}

INLINE void narrow_half_f16c(WORDS *low, WORDS *high, FLOATS a, FLOATS b, FLOATS c, FLOATS d)
{
    *low = narrow_sixteen(a, b);
    *high = narrow_sixteen(c, d);
}
