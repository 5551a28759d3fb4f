/* Copies past the caches, and the reference that sums are measured against.  Included by level.h. */

#define STREAM__(name, level) byteps_##name##_##level
#define STREAM_(name, level) STREAM__(name, level)

typedef uint32_t ANY_WORDS __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));
typedef float ANY_FLOATS __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));

/* How many bytes lie between an address and the next cache line, n at most. */
static inline size_t bytes_to_line(const void *address, size_t n)
{
    const size_t head = -(uintptr_t)address % 64;
    return head < n ? head : n;
}

TARGET void STREAM_(copy_past_caches, LEVEL)(void *out, const void *source, size_t n_bytes)
{
    char *to = out;
    const char *from = source;
    const size_t head = bytes_to_line(to, n_bytes);
    memcpy(to, from, head);
    size_t i = head;
    for (; i + 4 * VECTOR_BYTES <= n_bytes; i += 4 * VECTOR_BYTES) {
        const ANY_WORDS *vectors = (const ANY_WORDS *)(from + i);
        const WORDS a = vectors[0], b = vectors[1], c = vectors[2], d = vectors[3];
        stream(to + i, a);
        stream(to + i + VECTOR_BYTES, b);
        stream(to + i + 2 * VECTOR_BYTES, c);
        stream(to + i + 3 * VECTOR_BYTES, d);
    }
    STREAM_FENCE();
    memcpy(to + i, from + i, n_bytes - i);
}

/* As plain as can be: nothing but additions. */
INLINE size_t add_vectors(float *out, const float *left, const float *right, size_t i, size_t n, int past_caches)
{
    const size_t lanes = VECTOR_BYTES / sizeof(float);
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
        const FLOATS a = *(const ANY_FLOATS *)(left + i) + *(const ANY_FLOATS *)(right + i);
        const FLOATS b = *(const ANY_FLOATS *)(left + i + lanes) + *(const ANY_FLOATS *)(right + i + lanes);
        put((char *)(out + i), (WORDS)a, past_caches);
        put((char *)(out + i + lanes), (WORDS)b, past_caches);
    }
    return i;
}

TARGET void STREAM_(plain_add, LEVEL)(float *out, const float *left, const float *right, size_t n, int past_caches)
{
    size_t i = 0;
    if (past_caches) {
        for (; i < bytes_to_line(out, n * sizeof(float)) / sizeof(float); i++)
            out[i] = left[i] + right[i];
        i = add_vectors(out, left, right, i, n, 1);
        STREAM_FENCE();
    } else {
        i = add_vectors(out, left, right, i, n, 0);
    }
    for (; i < n; i++)
        out[i] = left[i] + right[i];
}

#undef STREAM__
#undef STREAM_
