/* The template of the one kernel family: sums of one element type with one instruction set.
 *
 * Included once per type with these defined, and undefined at the end:
 *
 *   TYPE              suffix of the function names
 *   ACC               the accumulator's type; integers are unsigned, because signed overflow is undefined in C
 *   CLEAN(x)          what is done to a result before it is stored
 *   DIVIDE(x, n)      x divided by the int32_t n
 *   WIDEN, NARROW     only where elements differ from accumulators: (float *, const void *, size_t first, size_t n)
 *                     and (void *, const float *, size_t first, size_t n) convert n elements from element `first` on
 *
 * Theory of operation.  A block of BYTEPS_BLOCK elements goes through all sources before the next block begins, so
 * each source is read once and out is written once; accumulators stay in the first-level cache.  An addition is put
 * off until its result is needed: the last one is then done by the loop that stores, and two sources without a
 * division are one single loop.  Operands are read where they lie if they have the accumulator's type.
 *
 * All loops read and write the same index, so out may be a source; `ivdep` tells the compiler that nothing is carried
 * from one iteration to another, without which it would give exactly that case a scalar loop. */

#define CONCATENATE_(a, b, c) a##_##b##_##c
#define CONCATENATE(a, b, c) CONCATENATE_(a, b, c)
#define NAME(name) CONCATENATE(name, TYPE, LEVEL)
#define LOOSE NAME(loose)

/* An accumulator at any address: the attributes keep such an access defined. */
typedef ACC LOOSE __attribute__((aligned(1), may_alias));

TARGET static void NAME(add)(LOOSE *out, const LOOSE *left, const LOOSE *right, size_t n)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++)
        out[i] = (ACC)(left[i] + right[i]);
}

TARGET static void NAME(store)(LOOSE *out, const LOOSE *sum, size_t n)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++) {
        const ACC value = sum[i];
        out[i] = CLEAN(value);
    }
}

TARGET static void NAME(add_store)(LOOSE *out, const LOOSE *left, const LOOSE *right, size_t n)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++) {
        const ACC value = (ACC)(left[i] + right[i]);
        out[i] = CLEAN(value);
    }
}

TARGET static void NAME(divide_store)(LOOSE *out, const LOOSE *sum, size_t n, int32_t divisor)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++) {
        const ACC value = (ACC)DIVIDE(sum[i], divisor);
        out[i] = CLEAN(value);
    }
}

TARGET static void NAME(add_divide_store)(LOOSE *out, const LOOSE *left, const LOOSE *right, size_t n, int32_t divisor)
{
#pragma GCC ivdep
    for (size_t i = 0; i < n; i++) {
        const ACC sum = (ACC)(left[i] + right[i]);
        const ACC value = (ACC)DIVIDE(sum, divisor);
        out[i] = CLEAN(value);
    }
}

/* A block of a source as accumulators: in `room` if they must be widened, else where they lie. */
TARGET static const LOOSE *NAME(view)(ACC *room, const void *source, size_t first, size_t n)
{
#ifdef WIDEN
    WIDEN(room, source, first, n);
    return room;
#else
    (void)room;
    (void)n;
    return (const LOOSE *)source + first;
#endif
}

/* Left fold of one group, but for its last addition: that is left to do with *right, unless this is NULL.  The result
 * lies in `acc` or in a source, *right in `room` or in a source. */
TARGET static const LOOSE *NAME(fold)(ACC *acc, ACC *room, const void *const *sources, size_t n_sources, size_t first,
                                      size_t n, const LOOSE **right)
{
    const LOOSE *left = NAME(view)(acc, sources[0], first, n);
    *right = NULL;
    for (size_t s = 1; s < n_sources; s++) {
        if (*right != NULL) {
            NAME(add)(acc, left, *right, n);
            left = acc;
        }
        *right = NAME(view)(room, sources[s], first, n);
    }
    return left;
}

/* out = (left + right) / divisor; right may be NULL; acc may be left. */
TARGET static void NAME(finish)(void *out, ACC *acc, const LOOSE *left, const LOOSE *right, size_t first, size_t n,
                                int32_t divisor)
{
#ifdef NARROW
    LOOSE *target = acc;
#else
    LOOSE *target = (LOOSE *)out + first;
    (void)acc;
#endif
    if (divisor == 1 && right == NULL)
        NAME(store)(target, left, n);
    else if (divisor == 1)
        NAME(add_store)(target, left, right, n);
    else if (right == NULL)
        NAME(divide_store)(target, left, n, divisor);
    else
        NAME(add_divide_store)(target, left, right, n, divisor);
#ifdef NARROW
    NARROW(out, acc, first, n);
#endif
}

TARGET static void NAME(slice)(void *out, const void *const *sources, const size_t *groups, size_t n_groups,
                               size_t first, size_t last, int32_t divisor)
{
    ACC total[BYTEPS_BLOCK], part[BYTEPS_BLOCK], room[BYTEPS_BLOCK];
    for (size_t n; first < last; first += n) {
        n = last - first < BYTEPS_BLOCK ? last - first : BYTEPS_BLOCK;
        const void *const *group = sources;
        const LOOSE *right, *left = NAME(fold)(total, room, group, groups[0], first, n, &right);
        for (size_t g = 1; g < n_groups; g++) {
            if (right != NULL) {
                NAME(add)(total, left, right, n);
                left = total;
            }
            group += groups[g - 1];
            const LOOSE *last_of_group;
            right = NAME(fold)(part, room, group, groups[g], first, n, &last_of_group);
            if (last_of_group != NULL) {
                NAME(add)(part, right, last_of_group, n);
                right = part;
            }
        }
        NAME(finish)(out, total, left, right, first, n, divisor);
    }
}

#undef CONCATENATE_
#undef CONCATENATE
#undef NAME
#undef LOOSE
#undef TYPE
#undef ACC
#undef CLEAN
#undef DIVIDE
#undef WIDEN
#undef NARROW
