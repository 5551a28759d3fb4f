/* AVX-512 with the extensions that came with the first server processors that had it (Skylake-SP, Zen 4). */

#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LEVEL avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")))

TARGET static void widen_half(float *wide, const void *source, size_t first, size_t n)
{
    const char *half = (const char *)source + 2 * first;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        const __m256i narrow = _mm256_maskz_loadu_epi16(lanes, half + 2 * i);
        _mm512_mask_storeu_ps(wide + i, lanes, _mm512_cvtph_ps(narrow));
    }
}

TARGET static void narrow_half(void *out, const float *wide, size_t first, size_t n)
{
    char *half = (char *)out + 2 * first;
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 lanes = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        const __m512 values = _mm512_maskz_loadu_ps(lanes, wide + i);
        _mm256_mask_storeu_epi16(half + 2 * i, lanes, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    }
}

#define WIDEN_HALF widen_half
#define NARROW_HALF narrow_half
#include "level.h"
#endif
