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

/* Results of so many bytes or more are stored past the caches, unless they replace a source.  Such stores spare reading
 * the lines that they fill, but whoever reads the result then finds it in memory.  Half of a last-level cache of 32 MiB:
 * there a copy and reading what it wrote took less time so from 16 MiB on, and a tenth to a quarter more below 8.  A
 * constant, because what the system says of the cache is wrong in virtual machines (10 times too much in that one). */
enum { BYTEPS_PAST_CACHES = 16777216 };

/* The highest level that this processor and its operating system support. */
int byteps_best_level(void);

/* out[i] = (sum of sources[...][i]) / divisor, for count elements.
 *
 * The sum is a left fold within each group of consecutive sources, then a left fold over the groups.  float16 and
 * bfloat16 are accumulated in float32 all the way and rounded once, to nearest even.  Integers wrap, and divide by
 * floor.  Any NaN is written as the positive quiet NaN without payload.  out may be sources[0]. */
int byteps_sum_groups(void *out, const void *const *sources, size_t n_sources, const size_t *groups, size_t n_groups,
                      int dtype, size_t count, int32_t divisor, int threads, int level);

/* The same for float16 and bfloat16 in two steps, which give the same bits as one: with `widen` the sources are elements
 * of dtype and out is float32; else the sources are float32 and out is dtype.  out shares nothing with a source. */
int byteps_sum_converting(void *out, const void *const *sources, size_t n_sources, const size_t *groups,
                          size_t n_groups, int dtype, int widen, size_t count, int32_t divisor, int threads, int level);

/* The indices of the rows that one source has, int64 in rising order, and their values one behind the other.  What is
 * summed next is at `place`, and its index is `head`: those two belong to the functions below. */
struct byteps_rows {
    const void *indices, *values;
    size_t count, place;
    int64_t head;
};

/* What goes into a sum of rows and what comes out: dtype and dtype, dtype and float32, float32 and dtype. */
enum byteps_form { BYTEPS_PLAIN = 0, BYTEPS_WIDEN = 1, BYTEPS_NARROW = 2 };

/* Writes the indices that some source has to out, each once, in rising order; returns how many there are.  out has room
 * for as many as all sources have together, which are never exceeded, in whatever order the indices are. */
size_t byteps_merge_rows(int64_t *out, struct byteps_rows *sources, size_t n_sources);

/* out[r] = (sum of row rows[r] of the sources) / divisor, for n_rows rows of `width` elements: bit for bit the rows of
 * byteps_sum_groups, or byteps_sum_converting, where each source that lacks a row has zeros there.
 * `rows` are from byteps_merge_rows.  `zeros` is one row of a source; `operands` is room for n_sources pointers.  out
 * shares nothing with a source. */
int byteps_sum_rows(void *out, const int64_t *rows, size_t n_rows, struct byteps_rows *sources, size_t n_sources,
                    const size_t *groups, size_t n_groups, int dtype, int form, size_t width, int32_t divisor,
                    const void *zeros, const void **operands, int level);

/* out[r] = the left fold of the sizes[r] next rows of `values` that `order` names, for n_rows rows of `width` elements;
 * 16-bit floats are accumulated in float32.  One row alone is copied bit by bit.  sizes[r] is at least 1, and `operands`
 * is room for the largest of them. */
int byteps_fold_rows(void *out, const void *values, const int64_t *order, const size_t *sizes, size_t n_rows, int dtype,
                     size_t width, const void **operands, int level);

/* Copies bytes between buffers that do not overlap. */
int byteps_copy(void *out, const void *source, size_t n_bytes, int threads, int is_far);

/* What the sums and copies are measured against, on one thread: a copy, and out = left + right.  With `past_caches` the
 * result is stored past the caches. */
void byteps_stream_copy(void *out, const void *source, size_t n_bytes, int past_caches);
void byteps_stream_add(float *out, const float *left, const float *right, size_t count, int past_caches);

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

/* The ledger: the open rounds of light tensors of one server; see ledger.c.  Its memory is the caller's, who makes room
 * for more rows, frames and buffers there.  Only one thread at a time may use one. */

enum {
    BYTEPS_LIGHT_BYTES = 65536,  /* a contribution or result has fewer */
    BYTEPS_MAX_ENTRIES = 65536,  /* of one table, and rows that are complete at a time */
    BYTEPS_PLACE_ALIGNMENT = 8,  /* of elements in a payload */
    BYTEPS_MAX_WORKERS = 65535
};

/* The numbers of byteps_py.types.Operation and byteps_py.wire.header.Flag. */
enum byteps_operation { BYTEPS_SUM = 1, BYTEPS_AVERAGE = 2 };
enum byteps_flag { BYTEPS_ABSENT = 1, BYTEPS_WANT_RESULT = 2 };

/* byteps_py.wire.bundle.ENTRY */
struct byteps_entry {
    uint64_t key, round, step;
    uint32_t place, count;
    uint16_t root;
    uint8_t dtype, operation, flags, padding[3];
};

/* A new row is all zero. */
enum byteps_row_state { BYTEPS_ROW_NEW = 0, BYTEPS_ROW_KEPT = 1, BYTEPS_ROW_EVICTED = 2 };

struct byteps_row {
    uint64_t round, step;       /* the open round; step, count, dtype and operation of its first contribution */
    uint32_t count;
    uint8_t dtype, operation, state, has_result;
    uint32_t arrived, present;  /* how many contributed, and how many of them elements */
    uint32_t buffer;            /* where the bytes of the last result lie; 0: it has none */
    struct byteps_entry result; /* the last one, if has_result */
};

/* What one worker contributed to the open round of a row: `frame` 0: nothing yet, 1: an absent contribution. */
enum { BYTEPS_NO_FRAME = 0, BYTEPS_ABSENT_FRAME = 1, BYTEPS_FIRST_FRAME = 2 };
struct byteps_share { uint32_t frame, place; };

/* A payload, and how many shares refer to it. */
struct byteps_frame {
    const void *start;
    uint64_t mark;
    uint32_t uses;
};

struct byteps_ledger {
    uint32_t workers, n_groups, limit, capacity; /* tensor ids from `limit` on have no row; rows there are */
    int32_t level;
    const size_t *groups;         /* sizes of consecutive groups of workers */
    struct byteps_row *rows;      /* by tensor id */
    struct byteps_share *shares;  /* `workers` of row 0, of row 1 ... */
    struct byteps_frame *frames;  /* by number, from BYTEPS_FIRST_FRAME */
    uint32_t *buffers;            /* how many rows have their last result in each; by number, from 1 */
    const void **sources;         /* room for `workers` */
    size_t *sizes;                /* room for `n_groups` */
    uint32_t *complete, n_complete;   /* tensor ids; the other lists have room for BYTEPS_MAX_ENTRIES, too ... */
    uint32_t *irregular, n_irregular; /* places in the table of the last take */
    uint32_t *released, n_released;   /* buffers that no row needs since the last take */
    uint32_t *read, n_read;           /* ... but this one for all frames: those that the last finish read */
    uint64_t mark, n_bytes;           /* n_bytes: what the results of all complete rows need */
};

/* Takes the regular ones of the entries first .. last-1 of a table, for worker `rank`.  Returns `last`, or the place of
 * an entry for which `capacity` must grow first: then go on from there.  The lists begin anew where first is 0.
 * rank < workers, last <= BYTEPS_MAX_ENTRIES - n_complete, and the frame is not in use, at `first` = 0. */
size_t byteps_ledger_take(struct byteps_ledger *ledger, uint32_t rank, const void *table, size_t first, size_t last,
                          uint32_t frame, const void *payload, size_t n_bytes);

/* Sums the complete rows into out, writes their entries to table (n_complete of them) and opens their next rounds.
 * `buffer`, a number that is not in use, stands for out.  Returns a status; unless it is BYTEPS_OK, nothing but out has
 * changed. */
int byteps_ledger_finish(struct byteps_ledger *ledger, void *out, uint32_t buffer, void *table);

/* How many pieces of memory may be lent to libzmq at the same time. */
enum { BYTEPS_MAX_LOANS = 1024 };

/* Functions of libzmq: zmq_msg_init_data, zmq_msg_send, zmq_msg_close. */
struct byteps_libzmq {
    int (*init_data)(void *message, void *data, size_t n_bytes, void (*give_back)(void *data, void *hint), void *hint);
    int (*send)(void *message, void *socket, int flags);
    int (*close)(void *message);
};

/* Sends `data` as one frame of a message without copying it, as the loan of this number (0 .. BYTEPS_MAX_LOANS - 1),
 * which must not be out.  The memory must stay as it is until byteps_is_lent says 0.  Returns 0, or the errno of libzmq:
 * then nothing is lent.  The socket belongs to the calling thread. */
int byteps_lend(const struct byteps_libzmq *libzmq, void *socket, void *data, size_t n_bytes, int flags, int loan);

/* Whether libzmq still has the memory of this loan.  Any thread. */
int byteps_is_lent(int loan);

/* From now on the memory of freed frames is kept for the next ones, up to n_bytes, instead of being returned to the
 * system and faulted in anew.  For a process that is the caller's own: it concerns every allocation in it. */
void byteps_keep_freed_memory(size_t n_bytes);
