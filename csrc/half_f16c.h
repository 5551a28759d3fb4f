/* float16 to float32 and back with F16C, for the levels that have it.  Included where TARGET is defined. */

#include <immintrin.h>

#include "kernels.h"

TARGET static void widen_half(float *wide, const void *source, size_t first, size_t n)
{
    const char *half = (const char *)source + 2 * first;
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + 2 * i))));
    for (; i < n; i++) {
        uint16_t one;
        __builtin_memcpy(&one, half + 2 * i, sizeof one);
        wide[i] = _cvtsh_ss(one);
    }
}

TARGET static void narrow_half(void *out, const float *wide, size_t first, size_t n)
{
    char *half = (char *)out + 2 * first;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 eight = _mm256_loadu_ps(wide + i);
        _mm_storeu_si128((__m128i *)(half + 2 * i), _mm256_cvtps_ph(eight, _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; i++) {
        const uint16_t one = _cvtss_sh(wide[i], _MM_FROUND_TO_NEAREST_INT);
        __builtin_memcpy(half + 2 * i, &one, sizeof one);
    }
}

#define WIDEN_HALF widen_half
#define NARROW_HALF narrow_half
