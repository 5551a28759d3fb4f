/* What Python may call: read by the compiler (through kernels.h) and by cffi, so declarations only, no directives.
 *
 * Lengths are element counts unless a name says bytes.  Pointers may have any alignment.  Nothing here allocates or
 * reads the environment.  Kernels keep no state, so they may be called from any number of threads at once, and return a
 * status. */

enum byteps_status {
    BYTEPS_OK = 0,
    BYTEPS_BAD_DTYPE = 1,   /* no such element type */
    BYTEPS_BAD_LEVEL = 2,   /* no such instruction set, or not on this processor */
    BYTEPS_BAD_GROUPS = 3,  /* no source, an empty group, or sizes that do not add up to the number of sources */
    BYTEPS_BAD_DIVISOR = 4, /* not in 1 .. BYTEPS_MAX_DIVISOR */
    BYTEPS_BAD_THREADS = 5, /* fewer than 1 */
    BYTEPS_OVERLAP = 6      /* out shares memory with a source, other than being exactly the first one */
};

/* The numbers of byteps_py.types.DType. */
enum byteps_dtype {
    BYTEPS_FLOAT32 = 1,
    BYTEPS_FLOAT64 = 2,
    BYTEPS_FLOAT16 = 3,
    BYTEPS_BFLOAT16 = 4,
    BYTEPS_INT8 = 5,
    BYTEPS_UINT8 = 6,
    BYTEPS_INT32 = 7,
    BYTEPS_INT64 = 8
};

/* Instruction sets.  All give the same bits; a higher one is faster. */
enum byteps_level {
    BYTEPS_LEVEL_BASELINE = 0, /* what every processor of this architecture has */
    BYTEPS_LEVEL_AVX2 = 1,     /* with F16C */
    BYTEPS_LEVEL_AVX512 = 2    /* F, BW, DQ and VL */
};

/* The largest divisor: float32 holds every whole number up to it. */
enum { BYTEPS_MAX_DIVISOR = 16777216 };

/* The highest level that this processor and its operating system support. */
int byteps_best_level(void);

/* out[i] = (sum of sources[...][i]) / divisor, for count elements.
 *
 * The sum is a left fold within each group of consecutive sources, then a left fold over the groups.  float16 and
 * bfloat16 are accumulated in float32 all the way and rounded once, to nearest even.  Integers wrap, and divide by
 * floor.  Any NaN is written as the positive quiet NaN without payload.  out may be sources[0]. */
int byteps_sum_groups(void *out, const void *const *sources, size_t n_sources, const size_t *groups, size_t n_groups,
                      int dtype, size_t count, int32_t divisor, int threads, int level);

/* Copies bytes between buffers that do not overlap. */
int byteps_copy(void *out, const void *source, size_t n_bytes, int threads);

/* From now on SIGTERM, if it is at its default and this is no first process of a container, adds 1 to the eventfd `fd`,
 * and ends this process as ever at most `milliseconds` later.  Returns whether that is so.  Not for several threads at
 * once, and only after byteps_no_farewell once more. */
int byteps_farewell(int fd, int milliseconds);

/* Undoes that; a handler that was set up meanwhile stays.  A process that has been told to end ends all the same. */
void byteps_no_farewell(void);

/* How many threads would share work that moves n_bytes through memory, when `threads` are allowed. */
int byteps_team_size(size_t n_bytes, int threads);

/* How many threads a parallel region really gets that asks for `threads`: the runtime may give fewer.  The calling thread
 * keeps that team, waiting as the policy says, until it ends. */
int byteps_given_team(int threads);
