/* Runs every kernel of every instruction set of this machine over odd lengths, unaligned starts, all groupings of a
 * few sources, in place, and on several threads, against sums taken one element at a time.  Built by scripts/sanitize,
 * with the address and undefined-behaviour sanitizers: each buffer is exactly as long as its elements. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* 16-bit floats to float32 and back, one element at a time. */

/* memcpy is how C reinterprets bits; it compiles to a register move. */
static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Exact.  A half has 5 exponent and 10 mantissa bits; a float has 8 (bias larger by 112) and 23 (longer by 13). */
static float half_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = (magnitude << 13) + (224u << 23); /* infinity and NaN: the exponent is all ones */
    const uint32_t subnormal = bits_of_float((float)(int32_t)magnitude * 0x1p-24f);
    const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
    return float_of_bits(sign | (magnitude < 0x7c00u ? finite : special));
}

/* Rounds to nearest even.  65520 and more become infinity; a NaN becomes the positive quiet one. */
static uint16_t float_to_half(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    /* Half of the 13 bits that go, less one if the last bit that stays is even; the carry may reach the exponent. */
    const uint32_t rounded = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    const uint32_t normal = rounded < 0x7c00u ? rounded : 0x7c00u;
    /* One unit in the last place of 0.5f is the smallest half, so the addition does the rounding. */
    const uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f);
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal; /* 2^-14, the smallest normal half */
    return (uint16_t)(magnitude <= 0x7f800000u ? sign | finite : 0x7e00u);
}

/* Exact: a bfloat16 is the upper half of a float. */
static float bfloat_to_float(uint16_t bfloat)
{
    return float_of_bits((uint32_t)bfloat << 16);
}

/* Rounds to nearest even; the carry of the largest values gives infinity, and that of a NaN must not wrap. */
static uint16_t float_to_bfloat(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) <= 0x7f800000u ? rounded : 0x7fc0u);
}

enum { MAX_SOURCES = 5, LARGE = 3 * 1024 * 1024 + 5 };

static const size_t ITEM_BYTES[] = {0, 4, 8, 2, 2, 1, 1, 4, 8};
static unsigned long passed, failed;

static void check(int ok, const char *what, int dtype, int level, size_t count)
{
    if (ok) {
        passed++;
        return;
    }
    failed++;
    fprintf(stderr, "FAILED: %s, dtype %d, level %d, %zu elements\n", what, dtype, level, count);
}

/* Some bytes that are the same on every run. */
static void scatter(unsigned char *bytes, size_t n, uint64_t seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (unsigned char)(state >> 56);
    }
}

/* A buffer whose last byte is the last of its allocation, at an address that is odd if offset is. */
struct buffer {
    unsigned char *memory, *start;
};

static struct buffer make_buffer(size_t n_bytes, size_t offset, uint64_t seed)
{
    struct buffer made;
    made.memory = calloc(n_bytes + offset + (n_bytes + offset == 0), 1);
    if (made.memory == NULL)
        abort();
    made.start = made.memory + offset;
    scatter(made.start, n_bytes, seed);
    return made;
}

/* One element of the sum: `acc` is the accumulator's type, `load` and `store` convert, `divide` is applied to the total
 * and the divisor. */
#define ONE_ELEMENT(element, acc, load, store, divide)                                                                 \
    do {                                                                                                               \
        acc total = 0, part = 0;                                                                                       \
        for (size_t g = 0, s = 0; g < n_groups; g++) {                                                                 \
            for (size_t k = 0; k < groups[g]; k++, s++) {                                                              \
                element x;                                                                                             \
                memcpy(&x, (const char *)sources[s] + i * sizeof x, sizeof x);                                         \
                part = k == 0 ? load(x) : (acc)(part + load(x));                                                       \
            }                                                                                                          \
            total = g == 0 ? part : (acc)(total + part);                                                               \
        }                                                                                                              \
        const element result = (element)store(divide(total, divisor));                                                 \
        memcpy(out + i * sizeof result, &result, sizeof result);                                                       \
    } while (0)

#define SAME(x) (x)
#define TRUE_DIVIDE(x, n) ((x) / (n))
#define ONE_NAN(x) (isnan(x) ? NAN : (x))
#define WHOLE(type, x, n) ((type)(x) / (n) - ((type)(x) % (n) < 0))
#define WHOLE_8(x, n) WHOLE(int8_t, x, n)
#define WHOLE_32(x, n) WHOLE(int32_t, x, n)
#define WHOLE_64(x, n) WHOLE(int64_t, x, n)

static void expect(unsigned char *out, const void *const *sources, const size_t *groups, size_t n_groups, int dtype,
                   size_t i, int32_t divisor)
{
    switch (dtype) {
    case BYTEPS_FLOAT32: ONE_ELEMENT(float, float, SAME, ONE_NAN, TRUE_DIVIDE); break;
    case BYTEPS_FLOAT64: ONE_ELEMENT(double, double, SAME, ONE_NAN, TRUE_DIVIDE); break;
    case BYTEPS_FLOAT16: ONE_ELEMENT(uint16_t, float, half_to_float, float_to_half, TRUE_DIVIDE); break;
    case BYTEPS_BFLOAT16: ONE_ELEMENT(uint16_t, float, bfloat_to_float, float_to_bfloat, TRUE_DIVIDE); break;
    case BYTEPS_INT8: ONE_ELEMENT(uint8_t, uint8_t, SAME, SAME, WHOLE_8); break;
    case BYTEPS_UINT8: ONE_ELEMENT(uint8_t, uint8_t, SAME, SAME, TRUE_DIVIDE); break;
    case BYTEPS_INT32: ONE_ELEMENT(uint32_t, uint32_t, SAME, SAME, WHOLE_32); break;
    case BYTEPS_INT64: ONE_ELEMENT(uint64_t, uint64_t, SAME, SAME, WHOLE_64); break;
    default: abort();
    }
}

/* One call for each divisor, into a buffer of its own and in place. */
static void test_sum(int level, int dtype, size_t count, const size_t *groups, size_t n_groups, int threads)
{
    const size_t n_bytes = count * ITEM_BYTES[dtype];
    static const int32_t divisors[] = {1, 2, 3, 1000, BYTEPS_MAX_DIVISOR};
    struct buffer buffers[MAX_SOURCES];
    const void *sources[MAX_SOURCES];
    size_t n_sources = 0;
    for (size_t g = 0; g < n_groups; g++)
        for (size_t k = 0; k < groups[g]; k++, n_sources++) {
            buffers[n_sources] = make_buffer(n_bytes, n_sources, 17 * count + n_sources);
            sources[n_sources] = buffers[n_sources].start;
        }
    /* One is enough of what takes seconds. */
    const size_t n_divisors = n_bytes > LARGE ? 1 : sizeof divisors / sizeof *divisors;
    for (size_t d = 0; d < n_divisors; d++) {
        struct buffer expected = make_buffer(n_bytes, 0, 1), out = make_buffer(n_bytes, 3, 2);
        for (size_t i = 0; i < count; i++)
            expect(expected.start, sources, groups, n_groups, dtype, i, divisors[d]);
        int status = byteps_sum_groups(out.start, sources, n_sources, groups, n_groups, dtype, count, divisors[d],
                                       threads, level);
        check(status == BYTEPS_OK && memcmp(out.start, expected.start, n_bytes) == 0, "sum", dtype, level, count);

        memcpy(out.start, sources[0], n_bytes);
        const void *in_place[MAX_SOURCES];
        memcpy(in_place, sources, sizeof sources);
        in_place[0] = out.start;
        status = byteps_sum_groups(out.start, in_place, n_sources, groups, n_groups, dtype, count, divisors[d],
                                   threads, level);
        check(status == BYTEPS_OK && memcmp(out.start, expected.start, n_bytes) == 0, "in place", dtype, level, count);
        free(expected.memory);
        free(out.memory);
    }
    for (size_t s = 0; s < n_sources; s++)
        free(buffers[s].memory);
}

/* Each group into float32, then these sums into elements: the same as in one step. */
static void test_two_steps(int level, int dtype, size_t count, const size_t *groups, size_t n_groups, int threads)
{
    const size_t n_bytes = count * ITEM_BYTES[dtype];
    struct buffer buffers[MAX_SOURCES], sums[MAX_SOURCES];
    const void *sources[MAX_SOURCES], *wide[MAX_SOURCES];
    const size_t ones[MAX_SOURCES] = {1, 1, 1, 1, 1};
    size_t n_sources = 0;
    int status = BYTEPS_OK;
    for (size_t g = 0; g < n_groups; g++) {
        const size_t first = n_sources;
        for (size_t k = 0; k < groups[g]; k++, n_sources++) {
            buffers[n_sources] = make_buffer(n_bytes, n_sources, 17 * count + n_sources);
            sources[n_sources] = buffers[n_sources].start;
        }
        sums[g] = make_buffer(count * sizeof(float), g, 2);
        wide[g] = sums[g].start;
        status |= byteps_sum_converting(sums[g].start, sources + first, groups[g], groups + g, 1, dtype, 1, count, 1,
                                        threads, level);
    }
    for (int divisor = 1; divisor <= 3; divisor++) {
        struct buffer expected = make_buffer(n_bytes, 0, 1), out = make_buffer(n_bytes, 3, 2);
        status |= byteps_sum_groups(expected.start, sources, n_sources, groups, n_groups, dtype, count, divisor,
                                    threads, level);
        status |= byteps_sum_converting(out.start, wide, n_groups, ones, n_groups, dtype, 0, count, divisor, threads,
                                        level);
        check(status == BYTEPS_OK && memcmp(out.start, expected.start, n_bytes) == 0, "two steps", dtype, level, count);
        free(expected.memory);
        free(out.memory);
    }
    for (size_t s = 0; s < n_sources; s++)
        free(buffers[s].memory);
    for (size_t g = 0; g < n_groups; g++)
        free(sums[g].memory);
}

static void test_all_sums(int level, int dtype)
{
    static const size_t counts[] = {0, 1, 2, 7, 8, 9, 31, 63, 511, 512, 513, 1537};
    static const size_t groupings[][MAX_SOURCES] = {
        {1}, {2}, {3}, {5}, {1, 1}, {2, 2}, {1, 2}, {2, 1}, {1, 3, 1}, {2, 1, 2}, {1, 1, 1, 1, 1}};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t g = 0; g < sizeof groupings / sizeof *groupings; g++) {
            size_t n_groups = 0;
            while (n_groups < MAX_SOURCES && groupings[g][n_groups] != 0)
                n_groups++;
            test_sum(level, dtype, counts[c], groupings[g], n_groups, 2);
            if (dtype == BYTEPS_FLOAT16 || dtype == BYTEPS_BFLOAT16)
                test_two_steps(level, dtype, counts[c], groupings[g], n_groups, 2);
        }
    static const size_t pair[] = {2};
    test_sum(level, dtype, LARGE / ITEM_BYTES[dtype], pair, 1, 3);
}

/* What one level has. */
struct level {
    int number;
    const byteps_sum_slice *slices;
    byteps_copy_past_caches copy;
    byteps_plain_add add;
};

#define LEVEL(number, name)                                                                                            \
    {                                                                                                                  \
        number, byteps_slices_##name, byteps_copy_past_caches_##name, byteps_plain_add_##name                          \
    }
static const struct level LEVELS[] = {
    LEVEL(BYTEPS_LEVEL_BASELINE, baseline),
#if defined(__x86_64__)
    LEVEL(BYTEPS_LEVEL_AVX2, avx2),
    LEVEL(BYTEPS_LEVEL_AVX512, avx512),
#endif
};

/* Sums past the caches from every start within a cache line on, and of lengths around whole packs and lines: the same
 * bits as through the caches, and not a byte beside them (the sanitizer sees that). */
static void test_past_caches(const struct level *level, int dtype)
{
    enum { SOURCES = 3, FIRST = 5 };
    static const size_t counts[] = {0, 1, 15, 31, 32, 33, 64, 127, 128, 129, 200, 1025};
    static const size_t groups[] = {2, 1};
    const byteps_sum_slice slice = level->slices[dtype];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        const size_t n_bytes = (FIRST + counts[c]) * ITEM_BYTES[dtype];
        struct buffer buffers[SOURCES], expected = make_buffer(n_bytes, 0, 1);
        const void *sources[SOURCES];
        for (size_t s = 0; s < SOURCES; s++) {
            buffers[s] = make_buffer(n_bytes, s, 17 * counts[c] + s);
            sources[s] = buffers[s].start;
        }
        for (int32_t divisor = 1; divisor <= 3; divisor++) {
            slice(expected.start, sources, groups, 2, FIRST, FIRST + counts[c], divisor, 0);
            for (size_t offset = 0; offset < 64; offset++) {
                struct buffer out = make_buffer(n_bytes, offset, 1);
                slice(out.start, sources, groups, 2, FIRST, FIRST + counts[c], divisor, 1);
                check(memcmp(out.start, expected.start, n_bytes) == 0, "past caches", dtype, level->number, counts[c]);
                free(out.memory);
            }
        }
        for (size_t s = 0; s < SOURCES; s++)
            free(buffers[s].memory);
        free(expected.memory);
    }
}

static void test_copies_past_caches(const struct level *level)
{
    static const size_t lengths[] = {0, 1, 63, 64, 65, 127, 128, 191, 192, 1000};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (size_t offset = 0; offset < 64; offset++) {
            struct buffer source = make_buffer(lengths[k], offset % 7, 3), out = make_buffer(lengths[k], offset, 4);
            level->copy(out.start, source.start, lengths[k]);
            check(memcmp(out.start, source.start, lengths[k]) == 0, "copy past caches", 0, level->number, lengths[k]);
            free(source.memory);
            free(out.memory);
        }
}

/* The additions that sums are measured against. */
static void test_plain_add(const struct level *level, size_t count)
{
    for (int past_caches = 0; past_caches < 2; past_caches++)
        for (size_t offset = 0; offset < 64; offset += sizeof(float)) {
            float *left = malloc((count + 1) * sizeof(float)), *right = malloc((count + 1) * sizeof(float));
            struct buffer out = make_buffer(count * sizeof(float), offset, 1);
            if (left == NULL || right == NULL)
                abort();
            for (size_t i = 0; i < count; i++) {
                left[i] = (float)i;
                right[i] = 0.5f;
            }
            float *sums = (float *)(void *)out.start;
            level->add(sums, left, right, count, past_caches);
            size_t right_ones = 0;
            for (size_t i = 0; i < count; i++)
                right_ones += sums[i] == (float)i + 0.5f;
            check(right_ones == count, "plain add", BYTEPS_FLOAT32, level->number, count);
            free(left);
            free(right);
            free(out.memory);
        }
}

static void test_copy(size_t n_bytes)
{
    struct buffer source = make_buffer(n_bytes, 1, 3), out = make_buffer(n_bytes, 0, 4);
    for (int is_far = 0; is_far < 2; is_far++) {
        memset(out.start, 0, n_bytes);
        const int status = byteps_copy(out.start, source.start, n_bytes, 3, is_far);
        check(status == BYTEPS_OK && memcmp(out.start, source.start, n_bytes) == 0, "copy", 0, is_far, n_bytes);
    }
    free(source.memory);
    free(out.memory);
}

static void test_refusals(void)
{
    float a[8] = {0}, b[8] = {0};
    const void *sources[] = {a, b};
    const size_t two[] = {2}, three[] = {3}, empty[] = {2, 0};
    const int best = byteps_best_level();
#define REFUSES(status, ...) check(byteps_sum_groups(__VA_ARGS__) == (status), #__VA_ARGS__, 0, 0, 0)
    REFUSES(BYTEPS_BAD_DTYPE, a, sources, 2, two, 1, 0, 4, 1, 1, 0);
    REFUSES(BYTEPS_BAD_DTYPE, a, sources, 2, two, 1, 9, 4, 1, 1, 0);
    REFUSES(BYTEPS_BAD_LEVEL, a, sources, 2, two, 1, 1, 4, 1, 1, -1);
    REFUSES(BYTEPS_BAD_LEVEL, a, sources, 2, two, 1, 1, 4, 1, 1, best + 1);
    REFUSES(BYTEPS_BAD_GROUPS, a, sources, 2, three, 1, 1, 4, 1, 1, 0);
    REFUSES(BYTEPS_BAD_GROUPS, a, sources, 2, empty, 2, 1, 4, 1, 1, 0);
    REFUSES(BYTEPS_BAD_GROUPS, a, sources, 2, two, 0, 1, 4, 1, 1, 0);
    REFUSES(BYTEPS_BAD_GROUPS, a, sources, 0, two, 0, 1, 4, 1, 1, 0);
    REFUSES(BYTEPS_BAD_DIVISOR, a, sources, 2, two, 1, 1, 4, 0, 1, 0);
    REFUSES(BYTEPS_BAD_DIVISOR, a, sources, 2, two, 1, 1, 4, BYTEPS_MAX_DIVISOR + 1, 1, 0);
    REFUSES(BYTEPS_BAD_THREADS, a, sources, 2, two, 1, 1, 4, 1, 0, 0);
    REFUSES(BYTEPS_OVERLAP, a + 1, sources, 2, two, 1, 1, 4, 1, 1, 0);
    REFUSES(BYTEPS_OVERLAP, b, sources, 2, two, 1, 1, 4, 1, 1, 0);
#define REFUSES_TO_CONVERT(status, ...)                                                                                \
    check(byteps_sum_converting(__VA_ARGS__) == (status), #__VA_ARGS__, 0, 0, 0)
    REFUSES_TO_CONVERT(BYTEPS_BAD_DTYPE, a, sources, 2, two, 1, BYTEPS_FLOAT32, 0, 4, 1, 1, 0);
    REFUSES_TO_CONVERT(BYTEPS_BAD_LEVEL, a, sources, 2, two, 1, BYTEPS_FLOAT16, 0, 4, 1, 1, best + 1);
    REFUSES_TO_CONVERT(BYTEPS_OVERLAP, a, sources, 2, two, 1, BYTEPS_FLOAT16, 0, 4, 1, 1, 0);
    REFUSES_TO_CONVERT(BYTEPS_OVERLAP, a + 1, sources, 2, two, 1, BYTEPS_BFLOAT16, 1, 4, 1, 1, 0);
    check(byteps_copy(a + 1, a, 8, 1, 0) == BYTEPS_OVERLAP, "copy of overlapping memory", 0, 0, 8);
    check(byteps_copy(a, b, 8, 0, 1) == BYTEPS_BAD_THREADS, "copy by no thread", 0, 0, 8);
}

int main(void)
{
    for (size_t k = 0; k < sizeof LEVELS / sizeof *LEVELS; k++) {
        const struct level *level = &LEVELS[k];
        if (level->number > byteps_best_level()) {
            printf("level %d skipped: not on this processor\n", level->number);
            continue;
        }
        for (int dtype = BYTEPS_FLOAT32; dtype < BYTEPS_DTYPES; dtype++) {
            test_all_sums(level->number, dtype);
            test_past_caches(level, dtype);
        }
        test_copies_past_caches(level);
        test_plain_add(level, 0);
        test_plain_add(level, 1);
        test_plain_add(level, 77);
        /* Large enough to be stored past the caches, by several threads. */
        static const size_t pair[] = {2};
        test_sum(level->number, BYTEPS_BFLOAT16, BYTEPS_PAST_CACHES / 2 + 3, pair, 1, 3);
    }
    test_copy(0);
    test_copy(1001);
    test_copy(LARGE);
    test_copy(BYTEPS_PAST_CACHES + 5);
    test_refusals();
    for (int threads = 1; threads <= 4; threads++) {
        const int given = byteps_given_team(threads);
        check(given >= 1 && given <= threads, "the team given", 0, 0, (size_t)threads);
    }
    printf("%lu passed, %lu failed\n", passed, failed);
    return failed != 0;
}
