/* The ledger of a server: open rounds of tensors that have one partition and are small, walked a table at a time.
 *
 * Theory of operation.  A row is one tensor, found by its id.  Its open round collects one share of each worker: the
 * place of its elements in a payload (a frame) that is left where it lies until the sum is taken.  The first share of a
 * round sets the terms; an entry that breaks a rule is irregular, changes nothing and is for others to judge.  The
 * share that completes a round proves that all workers have the last result, so its buffer is not needed for this row
 * any more.  Complete rows are summed together, one behind the other into one buffer, which is needed until each of
 * them has completed its next round.
 *
 * Tables come from other processes, and may lie in memory that those can write to while it is read here: each entry
 * is copied before it is looked at, and every number of it is checked before it is used. */

#include <fenv.h>
#include <string.h>

#include "kernels.h"

_Static_assert(sizeof(struct byteps_entry) == 40 && offsetof(struct byteps_entry, place) == 24 &&
                   offsetof(struct byteps_entry, root) == 32 && offsetof(struct byteps_entry, flags) == 36,
               "struct byteps_entry is what is sent");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "entries are read in the order in which they are sent");

static struct byteps_entry copy_entry(const void *table, size_t index)
{
    struct byteps_entry entry;
    memcpy(&entry, (const char *)table + index * sizeof entry, sizeof entry);
    __asm__ volatile("" ::: "memory"); /* from here on the compiler must not read it where it lay */
    return entry;
}

static uint32_t row_of(const struct byteps_entry *entry)
{
    return (uint32_t)(entry->key >> 32);
}

/* Of a checked dtype and count: fewer than BYTEPS_LIGHT_BYTES. */
static size_t bytes_of(int dtype, uint32_t count)
{
    return count * byteps_item_bytes[dtype];
}

/* Whether an entry could belong to a row at all. */
static int well_formed(const struct byteps_ledger *ledger, const struct byteps_entry *entry, size_t n_bytes)
{
    if ((uint32_t)entry->key != 0 || row_of(entry) >= ledger->limit)
        return 0;
    if (entry->dtype < BYTEPS_FLOAT32 || entry->dtype > BYTEPS_INT64)
        return 0;
    if (entry->operation != BYTEPS_SUM && entry->operation != BYTEPS_AVERAGE)
        return 0;
    if ((entry->flags & ~BYTEPS_ABSENT) != BYTEPS_WANT_RESULT || entry->root != 0)
        return 0;
    if (entry->padding[0] | entry->padding[1] | entry->padding[2])
        return 0;
    if (entry->count >= BYTEPS_LIGHT_BYTES || bytes_of(entry->dtype, entry->count) >= BYTEPS_LIGHT_BYTES)
        return 0;
    if (entry->flags & BYTEPS_ABSENT)
        return 1;
    return entry->place % BYTEPS_PLACE_ALIGNMENT == 0 && entry->place <= n_bytes &&
           bytes_of(entry->dtype, entry->count) <= n_bytes - entry->place;
}

static struct byteps_share *share_of(const struct byteps_ledger *ledger, uint32_t id, uint32_t rank)
{
    return &ledger->shares[(size_t)id * ledger->workers + rank];
}

/* Whether the open round of its row waits for this entry of this worker. */
static int awaited(const struct byteps_ledger *ledger, const struct byteps_entry *entry, uint32_t rank)
{
    const struct byteps_row *row = &ledger->rows[row_of(entry)];
    if (row->state == BYTEPS_ROW_NEW)
        return entry->round == 1;
    if (row->state != BYTEPS_ROW_KEPT || entry->round != row->round)
        return 0;
    if (share_of(ledger, row_of(entry), rank)->frame != BYTEPS_NO_FRAME)
        return 0;
    return row->arrived == 0 || (entry->step == row->step && entry->count == row->count &&
                                 entry->dtype == row->dtype && entry->operation == row->operation);
}

/* What the result of the open round, for which all are here, takes in a buffer. */
static size_t room_for(const struct byteps_row *row)
{
    const size_t n_bytes = row->present == 0 ? 0 : bytes_of(row->dtype, row->count);
    return (n_bytes + BYTEPS_PLACE_ALIGNMENT - 1) / BYTEPS_PLACE_ALIGNMENT * BYTEPS_PLACE_ALIGNMENT;
}

static void complete(struct byteps_ledger *ledger, uint32_t id)
{
    struct byteps_row *row = &ledger->rows[id];
    ledger->complete[ledger->n_complete++] = id;
    ledger->n_bytes += room_for(row);
    if (row->buffer != 0 && --ledger->buffers[row->buffer] == 0)
        ledger->released[ledger->n_released++] = row->buffer;
    row->buffer = 0;
    row->has_result = 0;
}

/* Takes an entry that is awaited. */
static void contribute(struct byteps_ledger *ledger, const struct byteps_entry *entry, uint32_t rank, uint32_t frame)
{
    struct byteps_row *row = &ledger->rows[row_of(entry)];
    if (row->arrived == 0) {
        row->state = BYTEPS_ROW_KEPT;
        row->round = entry->round;
        row->step = entry->step;
        row->count = entry->count;
        row->dtype = entry->dtype;
        row->operation = entry->operation;
    }
    struct byteps_share *share = share_of(ledger, row_of(entry), rank);
    if (entry->flags & BYTEPS_ABSENT) {
        *share = (struct byteps_share){BYTEPS_ABSENT_FRAME, 0};
    } else {
        *share = (struct byteps_share){frame, entry->place};
        ledger->frames[frame].uses++;
        row->present++;
    }
    row->arrived++;
    if (row->arrived == ledger->workers)
        complete(ledger, row_of(entry));
}

size_t byteps_ledger_take(struct byteps_ledger *ledger, uint32_t rank, const void *table, size_t first, size_t last,
                          uint32_t frame, const void *payload, size_t n_bytes)
{
    if (first == 0) {
        ledger->n_irregular = ledger->n_released = 0;
        ledger->frames[frame].start = payload;
        ledger->frames[frame].uses = 0;
    }
    for (size_t i = first; i < last; i++) {
        const struct byteps_entry entry = copy_entry(table, i);
        const int fine = well_formed(ledger, &entry, n_bytes);
        if (fine && row_of(&entry) >= ledger->capacity)
            return i;
        if (fine && awaited(ledger, &entry, rank))
            contribute(ledger, &entry, rank, frame);
        else
            ledger->irregular[ledger->n_irregular++] = (uint32_t)i;
    }
    return last;
}

/* Lists the payloads of a row in the order of summation, without the absent ones: an absent contribution is left out
 * instead of being added as zero, which would turn -0.0 into 0.0.  Returns how many there are. */
static size_t gather(struct byteps_ledger *ledger, uint32_t id, size_t *n_groups)
{
    const struct byteps_share *share = share_of(ledger, id, 0);
    size_t n_sources = 0;
    *n_groups = 0;
    for (uint32_t g = 0; g < ledger->n_groups; g++) {
        const size_t before = n_sources;
        for (size_t k = 0; k < ledger->groups[g]; k++, share++)
            if (share->frame >= BYTEPS_FIRST_FRAME)
                ledger->sources[n_sources++] = (const char *)ledger->frames[share->frame].start + share->place;
        if (n_sources > before)
            ledger->sizes[(*n_groups)++] = n_sources - before;
    }
    return n_sources;
}

static int sum_row(struct byteps_ledger *ledger, uint32_t id, char *out)
{
    const struct byteps_row *row = &ledger->rows[id];
    const int32_t divisor = row->operation == BYTEPS_AVERAGE ? (int32_t)ledger->workers : 1;
    const size_t n_bytes = bytes_of(row->dtype, row->count);
    size_t n_groups;
    const size_t n_sources = gather(ledger, id, &n_groups);
    for (size_t s = 0; s < n_sources; s++)
        if (byteps_overlap(out, ledger->sources[s], n_bytes))
            return BYTEPS_OVERLAP;
    if (n_sources == 0 || n_bytes == 0)
        return BYTEPS_OK;
    if (n_sources == 1 && divisor == 1) /* as it is, NaN and all */
        memcpy(out, ledger->sources[0], n_bytes);
    else
        byteps_find_slice(ledger->level, row->dtype)(out, ledger->sources, ledger->sizes, n_groups, 0, row->count,
                                                     divisor, 0);
    return BYTEPS_OK;
}

/* In the default floating-point environment, as byteps_sum_groups does, but set once: that takes longer than to sum a
 * small tensor. */
static int sum_rows(struct byteps_ledger *ledger, char *out)
{
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    int status = BYTEPS_OK;
    for (uint32_t i = 0; i < ledger->n_complete && status == BYTEPS_OK; i++) {
        status = sum_row(ledger, ledger->complete[i], out);
        out += room_for(&ledger->rows[ledger->complete[i]]);
    }
    fesetenv(&callers);
    return status;
}

/* Lets go of the shares of a row and lists their frames as read. */
static void clear_shares(struct byteps_ledger *ledger, uint32_t id)
{
    struct byteps_share *shares = share_of(ledger, id, 0);
    for (uint32_t rank = 0; rank < ledger->workers; rank++) {
        if (shares[rank].frame >= BYTEPS_FIRST_FRAME) {
            struct byteps_frame *frame = &ledger->frames[shares[rank].frame];
            frame->uses--;
            if (frame->mark != ledger->mark) {
                frame->mark = ledger->mark;
                ledger->read[ledger->n_read++] = shares[rank].frame;
            }
        }
        shares[rank] = (struct byteps_share){BYTEPS_NO_FRAME, 0};
    }
}

/* Makes the open round the last result, which lies at `place` if it has bytes, and opens the next one. */
static void close_round(struct byteps_ledger *ledger, uint32_t id, uint32_t buffer, size_t place)
{
    struct byteps_row *row = &ledger->rows[id];
    clear_shares(ledger, id);
    row->result = (struct byteps_entry){
        .key = (uint64_t)id << 32,
        .round = row->round,
        .step = row->step,
        .place = row->present == 0 ? 0 : (uint32_t)place,
        .count = row->count,
        .root = (uint16_t)row->present,
        .dtype = row->dtype,
        .operation = row->operation,
        .flags = row->present == 0 ? BYTEPS_ABSENT : 0,
    };
    row->has_result = 1;
    if (room_for(row) > 0) {
        row->buffer = buffer;
        ledger->buffers[buffer]++;
    }
    row->round++;
    row->arrived = row->present = 0;
}

int byteps_ledger_finish(struct byteps_ledger *ledger, void *out, uint32_t buffer, void *table)
{
    if (ledger->level < BYTEPS_LEVEL_BASELINE || ledger->level > byteps_best_level())
        return BYTEPS_BAD_LEVEL;
    const int status = sum_rows(ledger, out);
    if (status != BYTEPS_OK)
        return status;
    size_t place = 0;
    ledger->mark++;
    ledger->n_read = 0;
    ledger->buffers[buffer] = 0;
    for (uint32_t i = 0; i < ledger->n_complete; i++) {
        const struct byteps_row *row = &ledger->rows[ledger->complete[i]];
        const size_t room = room_for(row);
        close_round(ledger, ledger->complete[i], buffer, place);
        memcpy((char *)table + i * sizeof row->result, &row->result, sizeof row->result);
        place += room;
    }
    ledger->n_complete = 0;
    ledger->n_bytes = 0;
    return BYTEPS_OK;
}
