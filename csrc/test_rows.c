/* Runs the kernels for rows with every instruction set of this machine, over rows of odd lengths at odd addresses, against
 * dense sums of the same; and over indices that keep no rule.  Built by scripts/sanitize, with the address and
 * undefined-behaviour sanitizers: each buffer is exactly as long as its elements. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { MOST = 4, ROWS = 23 };

static unsigned long passed, failed;

static void check(int ok, const char *what, int dtype, int level, size_t width)
{
    if (ok) {
        passed++;
        return;
    }
    failed++;
    fprintf(stderr, "FAILED: %s, dtype %d, level %d, rows of %zu\n", what, dtype, level, width);
}

static uint64_t state = 1;

static uint64_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

static void *room(size_t n_bytes)
{
    void *made = calloc(n_bytes + (n_bytes == 0), 1);
    if (made == NULL)
        abort();
    return made;
}

/* A source of some of ROWS rows, with any bits as values, and the same as a dense tensor. */
struct source {
    char *indices, *values, *dense, *memory[2];
    size_t count;
};

static struct source make_source(size_t row_bytes, unsigned percent)
{
    struct source made = {.count = 0};
    int64_t indices[ROWS];
    for (int64_t r = 0; r < ROWS; r++)
        if (draw() % 100 < percent)
            indices[made.count++] = r;
    made.memory[0] = room(made.count * sizeof *indices + 3);
    made.memory[1] = room(made.count * row_bytes + 1);
    made.indices = made.memory[0] + 3;
    made.values = made.memory[1] + 1;
    made.dense = room(ROWS * row_bytes);
    memcpy(made.indices, indices, made.count * sizeof *indices);
    for (size_t i = 0; i < made.count * row_bytes; i++)
        made.values[i] = (char)draw();
    for (size_t k = 0; k < made.count; k++)
        memcpy(made.dense + (size_t)indices[k] * row_bytes, made.values + k * row_bytes, row_bytes);
    return made;
}

static void drop(struct source *source)
{
    free(source->memory[0]);
    free(source->memory[1]);
    free(source->dense);
}

static void test_sum(int level, int dtype, int form, size_t width, const size_t *groups, size_t n_groups, unsigned percent)
{
    size_t n = 0;
    for (size_t g = 0; g < n_groups; g++)
        n += groups[g];
    const size_t from = form == BYTEPS_NARROW ? sizeof(float) : byteps_item_bytes[dtype];
    const size_t to = form == BYTEPS_WIDEN ? sizeof(float) : byteps_item_bytes[dtype];
    struct source sources[MOST];
    struct byteps_rows rows[MOST];
    const void *dense[MOST];
    const void *operands[MOST];
    size_t total = 0;
    for (size_t s = 0; s < n; s++) {
        sources[s] = make_source(width * from, percent);
        rows[s] = (struct byteps_rows){.indices = sources[s].indices, .values = sources[s].values, .count = sources[s].count};
        dense[s] = sources[s].dense;
        total += sources[s].count;
    }
    int64_t *merged = room(total * sizeof *merged);
    const size_t found = byteps_merge_rows(merged, rows, n);
    int wanted[ROWS] = {0};
    size_t n_wanted = 0;
    for (size_t s = 0; s < n; s++)
        for (size_t k = 0; k < sources[s].count; k++) {
            int64_t index;
            memcpy(&index, sources[s].indices + k * sizeof index, sizeof index);
            n_wanted += wanted[index] == 0;
            wanted[index] = 1;
        }
    int rising = found == n_wanted;
    for (size_t r = 0; rising && r < found; r++)
        rising = wanted[merged[r]] && (r == 0 || merged[r - 1] < merged[r]);
    check(rising, "merge", dtype, level, width);

    char *expected = room(ROWS * width * to), *out = room(found * width * to), *zeros = room(width * from);
    const int status =
        form == BYTEPS_PLAIN
            ? byteps_sum_groups(expected, dense, n, groups, n_groups, dtype, ROWS * width, 3, 1, level)
            : byteps_sum_converting(expected, dense, n, groups, n_groups, dtype, form == BYTEPS_WIDEN, ROWS * width, 3, 1,
                                    level);
    check(status == BYTEPS_OK, "dense sum", dtype, level, width);
    check(byteps_sum_rows(out, merged, found, rows, n, groups, n_groups, dtype, form, width, 3, zeros, operands, level) ==
              BYTEPS_OK,
          "sum of rows", dtype, level, width);
    int equal = 1;
    for (size_t r = 0; r < found; r++)
        equal = equal && memcmp(out + r * width * to, expected + (size_t)merged[r] * width * to, width * to) == 0;
    check(equal, "sum of rows against the dense sum", dtype, level, width);
    free(merged);
    free(expected);
    free(out);
    free(zeros);
    for (size_t s = 0; s < n; s++)
        drop(&sources[s]);
}

/* Indices in any order and several times: results mean nothing, and nothing is read or written where it must not be. */
static void test_wrong_indices(int level)
{
    enum { WIDTH = 5 };
    for (int trial = 0; trial < 200; trial++) {
        struct source sources[MOST];
        struct byteps_rows rows[MOST];
        const void *operands[MOST];
        static const size_t groups[] = {MOST};
        size_t total = 0;
        for (size_t s = 0; s < MOST; s++) {
            sources[s] = make_source(WIDTH * sizeof(float), 70);
            for (size_t k = 0; k < sources[s].count; k++) {
                const int64_t index = (int64_t)draw() - (1 << 30);
                memcpy(sources[s].indices + k * sizeof index, &index, sizeof index);
            }
            rows[s] = (struct byteps_rows){
                .indices = sources[s].indices, .values = sources[s].values, .count = sources[s].count};
            total += sources[s].count;
        }
        int64_t *merged = room(total * sizeof *merged);
        const size_t found = byteps_merge_rows(merged, rows, MOST);
        check(found <= total, "merge of indices in any order", BYTEPS_FLOAT32, level, WIDTH);
        float *out = room(found * WIDTH * sizeof *out), *zeros = room(WIDTH * sizeof *zeros);
        for (size_t s = 0; s < MOST; s++) /* and they change before the sum */
            for (size_t k = 0; trial % 2 && k < sources[s].count; k++) {
                const int64_t index = (int64_t)draw();
                memcpy(sources[s].indices + k * sizeof index, &index, sizeof index);
            }
        check(byteps_sum_rows(out, merged, found, rows, MOST, groups, 1, BYTEPS_FLOAT32, BYTEPS_PLAIN, WIDTH, 1, zeros,
                              operands, level) == BYTEPS_OK,
              "sum of rows in any order", BYTEPS_FLOAT32, level, WIDTH);
        free(merged);
        free(out);
        free(zeros);
        for (size_t s = 0; s < MOST; s++)
            drop(&sources[s]);
    }
}

static void test_fold(int level, int dtype, size_t width)
{
    static const int64_t order[] = {2, 0, 3, 1, 4, 4};
    static const size_t sizes[] = {1, 3, 2}, one[] = {1}, three[] = {3}, two[] = {2};
    const size_t n_bytes = width * byteps_item_bytes[dtype];
    const void *operands[3];
    char *values = room(5 * n_bytes), *out = room(3 * n_bytes), *expected = room(3 * n_bytes);
    for (size_t i = 0; i < 5 * n_bytes; i++)
        values[i] = (char)draw();
    check(byteps_fold_rows(out, values, order, sizes, 3, dtype, width, operands, level) == BYTEPS_OK, "fold", dtype, level,
          width);
    memcpy(expected, values + 2 * n_bytes, n_bytes);
    const void *first[] = {values, values + 3 * n_bytes, values + n_bytes};
    const void *second[] = {values + 4 * n_bytes, values + 4 * n_bytes};
    byteps_sum_groups(expected + n_bytes, first, 3, three, 1, dtype, width, 1, 1, level);
    byteps_sum_groups(expected + 2 * n_bytes, second, 2, two, 1, dtype, width, 1, 1, level);
    check(memcmp(out, expected, 3 * n_bytes) == 0, "fold against sums", dtype, level, width);
    check(byteps_fold_rows(out, values, order, one, 1, 9, width, operands, level) == BYTEPS_BAD_DTYPE, "fold of no dtype", 9,
          level, width);
    check(byteps_fold_rows(out, values, order, one, 1, dtype, width, operands, -1) == BYTEPS_BAD_LEVEL, "fold at no level",
          dtype, -1, width);
    free(values);
    free(out);
    free(expected);
}

static void test_refusals(void)
{
    float a[2] = {0}, out[2], zeros[2] = {0};
    const int64_t index = 0;
    struct byteps_rows rows[] = {{.indices = &index, .values = a, .count = 1}};
    const void *operands[1];
    const size_t one[] = {1}, two[] = {2};
#define REFUSES(status, ...) check(byteps_sum_rows(out, &index, 1, rows, 1, __VA_ARGS__) == (status), #__VA_ARGS__, 0, 0, 2)
    REFUSES(BYTEPS_BAD_DTYPE, one, 1, 0, BYTEPS_PLAIN, 2, 1, zeros, operands, 0);
    REFUSES(BYTEPS_BAD_DTYPE, one, 1, BYTEPS_FLOAT32, BYTEPS_WIDEN, 2, 1, zeros, operands, 0);
    REFUSES(BYTEPS_BAD_DTYPE, one, 1, BYTEPS_FLOAT16, BYTEPS_NARROW + 1, 2, 1, zeros, operands, 0);
    REFUSES(BYTEPS_BAD_LEVEL, one, 1, BYTEPS_FLOAT32, BYTEPS_PLAIN, 2, 1, zeros, operands, -1);
    REFUSES(BYTEPS_BAD_GROUPS, two, 1, BYTEPS_FLOAT32, BYTEPS_PLAIN, 2, 1, zeros, operands, 0);
    REFUSES(BYTEPS_BAD_DIVISOR, one, 1, BYTEPS_FLOAT32, BYTEPS_PLAIN, 2, 0, zeros, operands, 0);
}

int main(void)
{
    static const size_t widths[] = {1, 2, 7, 33, 64}, single[] = {1}, pair[] = {2}, mixed[] = {1, 2}, each[] = {1, 1, 2};
    for (int level = 0; level <= byteps_best_level(); level++) {
        for (int dtype = BYTEPS_FLOAT32; dtype < BYTEPS_DTYPES; dtype++) {
            const int forms = dtype == BYTEPS_FLOAT16 || dtype == BYTEPS_BFLOAT16 ? 3 : 1;
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
                for (int form = 0; form < forms; form++)
                    for (unsigned percent = 0; percent <= 100; percent += 50) {
                        test_sum(level, dtype, form, widths[w], single, 1, percent);
                        test_sum(level, dtype, form, widths[w], pair, 1, percent);
                        test_sum(level, dtype, form, widths[w], mixed, 2, percent);
                        test_sum(level, dtype, form, widths[w], each, 3, percent);
                    }
                test_fold(level, dtype, widths[w]);
            }
        }
        test_wrong_indices(level);
    }
    test_refusals();
    printf("%lu passed, %lu failed\n", passed, failed);
    return failed != 0;
}
