/* Runs every kernel of every instruction set of this machine over odd lengths, unaligned starts, all groupings of a
 * few sources, in place, and on several threads, against sums taken one element at a time.  Built by scripts/sanitize,
 * with the address and undefined-behaviour sanitizers: each buffer is exactly as long as its elements. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "kernels.h"

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
    made.memory = malloc(n_bytes + offset + (n_bytes + offset == 0));
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
    for (size_t d = 0; d < sizeof divisors / sizeof *divisors; d++) {
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
        }
    static const size_t pair[] = {2};
    test_sum(level, dtype, LARGE / ITEM_BYTES[dtype], pair, 1, 3);
}

static void test_copy(size_t n_bytes)
{
    struct buffer source = make_buffer(n_bytes, 1, 3), out = make_buffer(n_bytes, 0, 4);
    const int status = byteps_copy(out.start, source.start, n_bytes, 3);
    check(status == BYTEPS_OK && memcmp(out.start, source.start, n_bytes) == 0, "copy", 0, 0, n_bytes);
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
    check(byteps_copy(a + 1, a, 8, 1) == BYTEPS_OVERLAP, "copy of overlapping memory", 0, 0, 8);
    check(byteps_copy(a, b, 8, 0) == BYTEPS_BAD_THREADS, "copy by no thread", 0, 0, 8);
}

int main(void)
{
    for (int level = BYTEPS_LEVEL_BASELINE; level <= byteps_best_level(); level++)
        for (int dtype = BYTEPS_FLOAT32; dtype < BYTEPS_DTYPES; dtype++)
            test_all_sums(level, dtype);
    test_copy(0);
    test_copy(1001);
    test_copy(LARGE);
    test_refusals();
    for (int threads = 1; threads <= 4; threads++) {
        const int given = byteps_given_team(threads);
        check(given >= 1 && given <= threads, "the team given", 0, 0, (size_t)threads);
    }
    printf("%lu passed, %lu failed\n", passed, failed);
    return failed != 0;
}
