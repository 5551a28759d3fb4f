/* The entry points: checks, choice of the instruction set, and sharing among threads. */

#include <fenv.h>
#include <omp.h>
#include <string.h>

#include "kernels.h"

/* The least that a thread of a team should move through memory: 1 MiB takes 10 to 25 us, and waking a team that waits
 * passively takes 8 us where cores are free.  Smaller work opens no parallel region. */
#define BYTES_PER_THREAD ((size_t)1 << 20)

/* Threads take whole multiples of this many elements, so that no two write to one cache line. */
#define GRAIN ((size_t)1024)

const size_t byteps_item_bytes[BYTEPS_DTYPES] = {
    [BYTEPS_FLOAT32] = 4,  [BYTEPS_FLOAT64] = 8, [BYTEPS_FLOAT16] = 2, [BYTEPS_BFLOAT16] = 2,
    [BYTEPS_INT8] = 1,     [BYTEPS_UINT8] = 1,   [BYTEPS_INT32] = 4,   [BYTEPS_INT64] = 8,
};

int byteps_best_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2"))
        return BYTEPS_LEVEL_BASELINE;
#if __GNUC__ >= 11 /* older compilers do not know this name */
    if (!__builtin_cpu_supports("f16c"))
        return BYTEPS_LEVEL_BASELINE;
#endif
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return BYTEPS_LEVEL_AVX512;
    return BYTEPS_LEVEL_AVX2;
#else
    return BYTEPS_LEVEL_BASELINE;
#endif
}

int byteps_team_size(size_t n_bytes, int threads)
{
    const size_t useful = n_bytes / BYTES_PER_THREAD;
    if (useful <= 1)
        return 1;
    return useful < (size_t)threads ? (int)useful : threads;
}

/* The function of a level; `name` may have brackets behind it. */
#if defined(__x86_64__)
#define OF_LEVEL(level, name, ...)                                                                                     \
    ((level) == BYTEPS_LEVEL_AVX512 ? name##_avx512 __VA_ARGS__                                                        \
     : (level) == BYTEPS_LEVEL_AVX2 ? name##_avx2 __VA_ARGS__                                                          \
                                    : name##_baseline __VA_ARGS__)
#else
#define OF_LEVEL(level, name, ...) ((void)(level), name##_baseline __VA_ARGS__)
#endif

byteps_sum_slice byteps_find_slice(int level, int index)
{
    return OF_LEVEL(level, byteps_slices, [index]);
}

static int groups_fit(const size_t *groups, size_t n_groups, size_t n_sources)
{
    size_t left = n_sources;
    for (size_t g = 0; g < n_groups; g++) {
        if (groups[g] == 0 || groups[g] > left)
            return 0;
        left -= groups[g];
    }
    return n_sources > 0 && left == 0;
}

static int may_write(const void *out, const void *const *sources, size_t n_sources, size_t n_bytes)
{
    if (out != sources[0] && byteps_overlap(out, sources[0], n_bytes))
        return 0;
    for (size_t s = 1; s < n_sources; s++)
        if (byteps_overlap(out, sources[s], n_bytes))
            return 0;
    return 1;
}

/* Where the share of thread `index` of `team` begins among `total` items, and that of the one before it ends. */
static size_t share_begin(size_t total, int index, int team)
{
    return index == team ? total : total / GRAIN * (size_t)index / (size_t)team * GRAIN;
}

struct work {
    byteps_sum_slice slice;
    void *out;
    const void *const *sources;
    const size_t *groups;
    size_t n_groups;
    int32_t divisor;
    int past_caches;
};

/* Sums in the default floating-point environment.  The calling thread may flush subnormals or round otherwise; the
 * other threads of a team would not know, and the result would depend on their number. */
static void sum_share(const struct work *work, size_t first, size_t last)
{
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    work->slice(work->out, work->sources, work->groups, work->n_groups, first, last, work->divisor, work->past_caches);
    fesetenv(&callers);
}

static int sum_all(const struct work *work, size_t count, size_t n_bytes, int threads)
{
    const int team = byteps_team_size(n_bytes, threads);
    if (team == 1) {
        sum_share(work, 0, count);
        return BYTEPS_OK;
    }
#pragma omp parallel num_threads(team)
    {
        /* The runtime may give fewer threads than were asked for. */
        const int index = omp_get_thread_num(), given = omp_get_num_threads();
        sum_share(work, share_begin(count, index, given), share_begin(count, index + 1, given));
    }
    return BYTEPS_OK;
}

int byteps_check_sum(size_t n_sources, const size_t *groups, size_t n_groups, int32_t divisor, int threads, int level)
{
    if (level < BYTEPS_LEVEL_BASELINE || level > byteps_best_level())
        return BYTEPS_BAD_LEVEL;
    if (!groups_fit(groups, n_groups, n_sources))
        return BYTEPS_BAD_GROUPS;
    if (divisor < 1 || divisor > BYTEPS_MAX_DIVISOR)
        return BYTEPS_BAD_DIVISOR;
    if (threads < 1)
        return BYTEPS_BAD_THREADS;
    return BYTEPS_OK;
}

int byteps_sum_groups(void *out, const void *const *sources, size_t n_sources, const size_t *groups, size_t n_groups,
                      int dtype, size_t count, int32_t divisor, int threads, int level)
{
    if (dtype < BYTEPS_FLOAT32 || dtype > BYTEPS_INT64)
        return BYTEPS_BAD_DTYPE;
    const int status = byteps_check_sum(n_sources, groups, n_groups, divisor, threads, level);
    if (status != BYTEPS_OK)
        return status;
    const size_t n_bytes = count * byteps_item_bytes[dtype];
    if (!may_write(out, sources, n_sources, n_bytes))
        return BYTEPS_OVERLAP;

    /* In place, the lines that are written have just been read. */
    const int past_caches = out != sources[0] && n_bytes >= BYTEPS_PAST_CACHES;
    const struct work work = {byteps_find_slice(level, dtype), out, sources, groups, n_groups, divisor, past_caches};
    return sum_all(&work, count, n_bytes * (n_sources + 1), threads);
}

int byteps_sum_converting(void *out, const void *const *sources, size_t n_sources, const size_t *groups,
                          size_t n_groups, int dtype, int widen, size_t count, int32_t divisor, int threads, int level)
{
    if (dtype != BYTEPS_FLOAT16 && dtype != BYTEPS_BFLOAT16)
        return BYTEPS_BAD_DTYPE;
    const int status = byteps_check_sum(n_sources, groups, n_groups, divisor, threads, level);
    if (status != BYTEPS_OK)
        return status;
    const size_t n_narrow = count * byteps_item_bytes[dtype], n_wide = count * sizeof(float);
    const size_t n_out = widen ? n_wide : n_narrow, n_source = widen ? n_narrow : n_wide;
    for (size_t s = 0; s < n_sources; s++)
        if (byteps_meet(out, n_out, sources[s], n_source))
            return BYTEPS_OVERLAP;

    const int index = widen ? BYTEPS_WIDENED(dtype) : BYTEPS_NARROWED(dtype), past_caches = n_out >= BYTEPS_PAST_CACHES;
    const struct work work = {byteps_find_slice(level, index), out, sources, groups, n_groups, divisor, past_caches};
    return sum_all(&work, count, n_out + n_source * n_sources, threads);
}

static void copy_share(void *out, const void *source, size_t n_bytes, int past_caches)
{
    if (past_caches)
        OF_LEVEL(byteps_best_level(), byteps_copy_past_caches, )(out, source, n_bytes);
    else if (n_bytes > 0)
        memcpy(out, source, n_bytes);
}

int byteps_copy(void *out, const void *source, size_t n_bytes, int threads, int is_far)
{
    if (threads < 1)
        return BYTEPS_BAD_THREADS;
    if (byteps_overlap(out, source, n_bytes))
        return BYTEPS_OVERLAP;
    const int past_caches = is_far || n_bytes >= BYTEPS_PAST_CACHES, team = byteps_team_size(2 * n_bytes, threads);
    if (team == 1) {
        copy_share(out, source, n_bytes, past_caches);
        return BYTEPS_OK;
    }
#pragma omp parallel num_threads(team)
    {
        const int index = omp_get_thread_num(), given = omp_get_num_threads();
        const size_t first = share_begin(n_bytes, index, given), last = share_begin(n_bytes, index + 1, given);
        copy_share((char *)out + first, (const char *)source + first, last - first, past_caches);
    }
    return BYTEPS_OK;
}

void byteps_stream_copy(void *out, const void *source, size_t n_bytes, int past_caches)
{
    copy_share(out, source, n_bytes, past_caches);
}

void byteps_stream_add(float *out, const float *left, const float *right, size_t count, int past_caches)
{
    OF_LEVEL(byteps_best_level(), byteps_plain_add, )(out, left, right, count, past_caches);
}

int byteps_given_team(int threads)
{
    int given = 1;
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
#pragma omp single
            given = omp_get_num_threads();
        }
    }
    return given;
}
