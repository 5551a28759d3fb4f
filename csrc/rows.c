/* Sums of tensors of which only some rows are given: a list of indices in rising order, and the values of those rows.
 *
 * Theory of operation.  The rows of the sum are those that some source has; they are found first, so that the caller can
 * make exactly the room that their sums need.  Then each of them is summed as a row of a dense tensor would be, by the
 * very functions for those: a source that lacks the row takes part with a row of zeros.  So the bits are those of the
 * dense sum, -0.0 and the NaN included.
 *
 * Indices may lie in memory of another process, which can write to it while it is read here: each is read once for every
 * walk, and whatever it says, a walk ends after as many steps as the sources have rows, and reads nothing beyond them. */

#include <fenv.h>
#include <string.h>

#include "kernels.h"

static int64_t index_at(const struct byteps_rows *source)
{
    int64_t index;
    memcpy(&index, (const char *)source->indices + source->place * sizeof index, sizeof index);
    __asm__ volatile("" ::: "memory"); /* from here on the compiler must not read it where it lay */
    return index;
}

static void rewind_all(struct byteps_rows *sources, size_t n_sources)
{
    for (size_t s = 0; s < n_sources; s++) {
        sources[s].place = 0;
        if (sources[s].count > 0)
            sources[s].head = index_at(&sources[s]);
    }
}

static void advance(struct byteps_rows *source)
{
    source->place++;
    if (source->place < source->count)
        source->head = index_at(source);
}

size_t byteps_merge_rows(int64_t *out, struct byteps_rows *sources, size_t n_sources)
{
    size_t n_rows = 0;
    rewind_all(sources, n_sources);
    for (;;) {
        const struct byteps_rows *least = NULL;
        for (size_t s = 0; s < n_sources; s++)
            if (sources[s].place < sources[s].count && (least == NULL || sources[s].head < least->head))
                least = &sources[s];
        if (least == NULL)
            return n_rows;
        const int64_t row = least->head;
        out[n_rows++] = row;
        for (size_t s = 0; s < n_sources; s++)
            if (sources[s].place < sources[s].count && sources[s].head == row)
                advance(&sources[s]);
    }
}

static int slice_index(int dtype, int form)
{
    if (dtype < BYTEPS_FLOAT32 || dtype > BYTEPS_INT64)
        return -1;
    if (form == BYTEPS_PLAIN)
        return dtype;
    if (dtype != BYTEPS_FLOAT16 && dtype != BYTEPS_BFLOAT16)
        return -1;
    return form == BYTEPS_WIDEN ? BYTEPS_WIDENED(dtype) : form == BYTEPS_NARROW ? BYTEPS_NARROWED(dtype) : -1;
}

int byteps_sum_rows(void *out, const int64_t *rows, size_t n_rows, struct byteps_rows *sources, size_t n_sources,
                    const size_t *groups, size_t n_groups, int dtype, int form, size_t width, int32_t divisor,
                    const void *zeros, const void **operands, int level)
{
    const int index = slice_index(dtype, form);
    if (index < 0)
        return BYTEPS_BAD_DTYPE;
    const int status = byteps_check_sum(n_sources, groups, n_groups, divisor, 1, level);
    if (status != BYTEPS_OK)
        return status;
    const size_t from = width * (form == BYTEPS_NARROW ? sizeof(float) : byteps_item_bytes[dtype]);
    const size_t to = width * (form == BYTEPS_WIDEN ? sizeof(float) : byteps_item_bytes[dtype]);
    const byteps_sum_slice slice = byteps_find_slice(level, index);

    fenv_t callers; /* as for dense sums, see dispatch.c */
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    rewind_all(sources, n_sources);
    for (size_t r = 0; r < n_rows; r++) {
        for (size_t s = 0; s < n_sources; s++) {
            if (sources[s].place < sources[s].count && sources[s].head == rows[r]) {
                operands[s] = (const char *)sources[s].values + sources[s].place * from;
                advance(&sources[s]);
            } else {
                operands[s] = zeros;
            }
        }
        slice((char *)out + r * to, operands, groups, n_groups, 0, width, divisor, 0);
    }
    fesetenv(&callers);
    return BYTEPS_OK;
}

int byteps_fold_rows(void *out, const void *values, const int64_t *order, const size_t *sizes, size_t n_rows, int dtype,
                     size_t width, const void **operands, int level)
{
    if (dtype < BYTEPS_FLOAT32 || dtype > BYTEPS_INT64)
        return BYTEPS_BAD_DTYPE;
    if (level < BYTEPS_LEVEL_BASELINE || level > byteps_best_level())
        return BYTEPS_BAD_LEVEL;
    const size_t n_bytes = width * byteps_item_bytes[dtype];
    const byteps_sum_slice slice = byteps_find_slice(level, dtype);

    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    for (size_t r = 0; r < n_rows; r++) {
        char *to = (char *)out + r * n_bytes;
        for (size_t k = 0; k < sizes[r]; k++)
            operands[k] = (const char *)values + (size_t)order[k] * n_bytes;
        if (sizes[r] == 1)
            memcpy(to, operands[0], n_bytes); /* with all its bits, where a sum would change some NaNs */
        else
            slice(to, operands, &sizes[r], 1, 0, width, 1, 0);
        order += sizes[r];
    }
    fesetenv(&callers);
    return BYTEPS_OK;
}
