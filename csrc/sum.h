/* The template of the one kernel family: sums of one element type with one instruction set.
 *
 * Included once per type with these defined, and undefined at the end:
 *
 *   TYPE              suffix of the function names
 *   ACC               the accumulator's type; integers are unsigned, because signed overflow is undefined in C
 *   BITS, QUIET_NAN   only for floats: the unsigned integer as long as ACC, and the NaN that every NaN is written as
 *   DIVIDE(x, n)      only for integers: the ACC x divided by the int32_t n
 *   WIDEN, NARROW     only for elements of 16 bits, whose accumulators are float: see convert.h; one of them alone where
 *                     float goes in or comes out
 *   IN_PAIRS          whether these have the elements of a vector of words in two vectors by turns
 *
 * Theory of operation.  A pack, four vectors of accumulators, goes through all sources in registers before the next
 * one begins: each source is read once, out is written once, and nothing else touches memory.  What is left at the end,
 * or in front of an address from which non-temporal stores may begin, is copied into a pack of zeros first.
 *
 * All sources of a pack are read before it is written, so out may be a source. */

#define CONCATENATE_(a, b, c) a##_##b##_##c
#define CONCATENATE(a, b, c) CONCATENATE_(a, b, c)
#define NAME(name) CONCATENATE(name, TYPE, LEVEL)
#define VECTOR NAME(vector)
#define LOOSE NAME(loose)
#define PACK struct NAME(pack)

typedef ACC VECTOR __attribute__((vector_size(VECTOR_BYTES)));
/* A vector at any address: the attributes keep such an access defined. */
typedef ACC LOOSE __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));

PACK {
    VECTOR a, b, c, d;
};

#define PACK_ELEMENTS (4 * VECTOR_BYTES / sizeof(ACC))
#ifdef WIDEN
#define SOURCE_BYTES 2
#else
#define SOURCE_BYTES sizeof(ACC)
#endif
#ifdef NARROW
#define OUT_BYTES 2
#else
#define OUT_BYTES sizeof(ACC)
#endif
#define OUT_PACK_BYTES (PACK_ELEMENTS * OUT_BYTES)

/* Accumulators of the n elements of a source from `first` on, and zeros after them.  With `stream`, lines ahead are asked
 * for, to be used once: of many streams from memory the processor's own prefetching loses some at each page. */
INLINE void NAME(load)(PACK *pack, const void *source, size_t first, size_t n, int stream)
{
    const char *from = (const char *)source + first * SOURCE_BYTES;
    char room[PACK_ELEMENTS * SOURCE_BYTES];
    for (size_t line = 0; stream && line < PACK_ELEMENTS * SOURCE_BYTES; line += 64)
        __builtin_prefetch((const void *)((uintptr_t)from + BYTEPS_AHEAD + line), 0, 0);
    if (n < PACK_ELEMENTS) {
        memset(room, 0, sizeof room);
        memcpy(room, from, n * SOURCE_BYTES);
        from = room;
    }
#ifdef WIDEN
    WIDEN(from, &pack->a, &pack->b, &pack->c, &pack->d);
#else
    const LOOSE *vectors = (const LOOSE *)from;
    pack->a = vectors[0];
    pack->b = vectors[1];
    pack->c = vectors[2];
    pack->d = vectors[3];
#if defined(NARROW) && IN_PAIRS
    part_pairs(&pack->a, &pack->b);
    part_pairs(&pack->c, &pack->d);
#endif
#endif
}

INLINE void NAME(add)(PACK *total, const PACK *more)
{
    total->a += more->a;
    total->b += more->b;
    total->c += more->c;
    total->d += more->d;
}

INLINE void NAME(divide)(PACK *total, int32_t divisor)
{
#ifdef DIVIDE
    ACC each[PACK_ELEMENTS];
    memcpy(each, total, sizeof each);
    for (size_t i = 0; i < PACK_ELEMENTS; i++)
        each[i] = (ACC)DIVIDE(each[i], divisor);
    memcpy(total, each, sizeof each);
#else
    /* The reciprocal of a power of two is exact, and a product is rounded as the quotient is; it is faster. */
    if ((divisor & (divisor - 1)) == 0) {
        const ACC factor = (ACC)1 / (ACC)divisor;
        total->a *= factor;
        total->b *= factor;
        total->c *= factor;
        total->d *= factor;
    } else {
        total->a /= (ACC)divisor;
        total->b /= (ACC)divisor;
        total->c /= (ACC)divisor;
        total->d /= (ACC)divisor;
    }
#endif
}

#ifdef BITS
/* One NaN instead of any other. */
INLINE VECTOR NAME(clean)(VECTOR x)
{
    typedef BITS MASK __attribute__((vector_size(VECTOR_BYTES)));
    const MASK wrong = (MASK)(x != x);
    return (VECTOR)(((MASK)x & ~wrong) | (wrong & (BITS)QUIET_NAN));
}
#endif

/* Writes n elements from `first` on; with `stream`, whole vectors past the caches. */
INLINE void NAME(store)(void *out, PACK *total, size_t first, size_t n, int stream)
{
    char room[OUT_PACK_BYTES], *to = (char *)out + first * OUT_BYTES, *at = n < PACK_ELEMENTS ? room : to;
#ifdef BITS
    total->a = NAME(clean)(total->a);
    total->b = NAME(clean)(total->b);
    total->c = NAME(clean)(total->c);
    total->d = NAME(clean)(total->d);
#endif
#ifdef NARROW
    WORDS low, high;
    NARROW(&low, &high, total->a, total->b, total->c, total->d);
    put(at, low, stream);
    put(at + VECTOR_BYTES, high, stream);
#else
#if defined(WIDEN) && IN_PAIRS
    join_pairs(&total->a, &total->b);
    join_pairs(&total->c, &total->d);
#endif
    put(at, (WORDS)total->a, stream);
    put(at + VECTOR_BYTES, (WORDS)total->b, stream);
    put(at + 2 * VECTOR_BYTES, (WORDS)total->c, stream);
    put(at + 3 * VECTOR_BYTES, (WORDS)total->d, stream);
#endif
    if (n < PACK_ELEMENTS)
        memcpy(to, room, n * OUT_BYTES);
}

/* n elements from `first` on, at most a pack: a left fold of each group, and of the groups. */
INLINE void NAME(sum)(void *out, const void *const *sources, const size_t *groups, size_t n_groups, size_t first,
                      size_t n, int32_t divisor, int stream)
{
    PACK total, part, next;
    NAME(load)(&total, *sources++, first, n, stream);
    for (size_t k = 1; k < groups[0]; k++) {
        NAME(load)(&next, *sources++, first, n, stream);
        NAME(add)(&total, &next);
    }
    for (size_t g = 1; g < n_groups; g++) {
        NAME(load)(&part, *sources++, first, n, stream);
        for (size_t k = 1; k < groups[g]; k++) {
            NAME(load)(&next, *sources++, first, n, stream);
            NAME(add)(&part, &next);
        }
        NAME(add)(&total, &part);
    }
    if (divisor != 1)
        NAME(divide)(&total, divisor);
    NAME(store)(out, &total, first, n, stream);
}

/* Whole packs while there are any; returns where it stopped. */
INLINE size_t NAME(packs)(void *out, const void *const *sources, const size_t *groups, size_t n_groups, size_t first,
                          size_t last, int32_t divisor, int stream)
{
    for (; last - first >= PACK_ELEMENTS; first += PACK_ELEMENTS)
        NAME(sum)(out, sources, groups, n_groups, first, PACK_ELEMENTS, divisor, stream);
    return first;
}

TARGET static void NAME(slice)(void *out, const void *const *sources, const size_t *groups, size_t n_groups,
                               size_t first, size_t last, int32_t divisor, int stream)
{
    const size_t astray = ((uintptr_t)out + first * OUT_BYTES) % STREAM_ALIGNMENT(OUT_PACK_BYTES);
    if (stream && astray % OUT_BYTES == 0) {
        size_t head = astray == 0 ? 0 : (STREAM_ALIGNMENT(OUT_PACK_BYTES) - astray) / OUT_BYTES;
        if (head > last - first)
            head = last - first;
        if (head > 0)
            NAME(sum)(out, sources, groups, n_groups, first, head, divisor, 0);
        first = NAME(packs)(out, sources, groups, n_groups, first + head, last, divisor, 1);
        STREAM_FENCE();
    } else {
        first = NAME(packs)(out, sources, groups, n_groups, first, last, divisor, 0);
    }
    if (first < last)
        NAME(sum)(out, sources, groups, n_groups, first, last - first, divisor, 0);
}

#undef CONCATENATE_
#undef CONCATENATE
#undef NAME
#undef VECTOR
#undef LOOSE
#undef PACK
#undef PACK_ELEMENTS
#undef OUT_PACK_BYTES
#undef SOURCE_BYTES
#undef OUT_BYTES
#undef TYPE
#undef ACC
#undef BITS
#undef QUIET_NAN
#undef DIVIDE
#undef WIDEN
#undef NARROW
#undef IN_PAIRS
