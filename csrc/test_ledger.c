/* Walks tables of right, almost right and random entries, with payloads and rows that end where their allocations end,
 * so that a number that is used without a check is seen by the sanitizers; and checks what regular entries add up to.
 * Built by scripts/sanitize. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { WORKERS = 3, ROWS = 8, ENTRIES = 24, FRAMES = 64, LIMIT = 12, PAYLOAD = 400 };

static unsigned long passed, failed;
static uint64_t state = 1;

static void check(int ok, const char *what, int round)
{
    if (ok) {
        passed++;
        return;
    }
    failed++;
    fprintf(stderr, "FAILED: %s, in round %d\n", what, round);
}

/* The same on every run. */
static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static void *room(size_t n_bytes)
{
    void *made = calloc(1, n_bytes + (n_bytes == 0));
    if (made == NULL)
        abort();
    return made;
}

static struct byteps_ledger make_ledger(const size_t *groups, uint32_t n_groups, uint32_t capacity)
{
    return (struct byteps_ledger){
        .workers = WORKERS,
        .n_groups = n_groups,
        .limit = LIMIT,
        .capacity = capacity,
        .level = byteps_best_level(),
        .groups = groups,
        .rows = room(capacity * sizeof(struct byteps_row)),
        .shares = room(capacity * WORKERS * sizeof(struct byteps_share)),
        .frames = room(FRAMES * sizeof(struct byteps_frame)),
        .buffers = room(FRAMES * sizeof(uint32_t)),
        .sources = room(WORKERS * sizeof(void *)),
        .sizes = room(n_groups * sizeof(size_t)),
        .complete = room(ROWS * sizeof(uint32_t)),
        .irregular = room(ENTRIES * sizeof(uint32_t)),
        .released = room(ENTRIES * sizeof(uint32_t)),
        .read = room(FRAMES * sizeof(uint32_t)),
    };
}

static void free_ledger(struct byteps_ledger *ledger)
{
    void *all[] = {ledger->rows,  ledger->shares,   ledger->frames,    ledger->buffers,  ledger->sources,
                   ledger->sizes, ledger->complete, ledger->irregular, ledger->released, ledger->read};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* A row's worth of int32 in round `round`. */
static struct byteps_entry entry_of(uint32_t id, uint64_t round, uint32_t place, uint32_t count)
{
    return (struct byteps_entry){.key = (uint64_t)id << 32,
                                 .round = round,
                                 .step = round,
                                 .place = place,
                                 .count = count,
                                 .dtype = BYTEPS_INT32,
                                 .operation = BYTEPS_SUM,
                                 .flags = BYTEPS_WANT_RESULT};
}

/* Tables at odd addresses, rows of different lengths, in another order for each worker. */
static void test_sums(void)
{
    static const size_t groups[] = {2, 1};
    struct byteps_ledger ledger = make_ledger(groups, 2, ROWS);
    for (int round = 1; round <= 5; round++) {
        int32_t *payloads[WORKERS];
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            char *table = room(ROWS * sizeof(struct byteps_entry) + 1);
            payloads[rank] = room(ROWS * 16);
            for (uint32_t i = 0; i < ROWS; i++) {
                const uint32_t id = (i + rank) % ROWS;
                const struct byteps_entry entry = entry_of(id, (uint64_t)round, i * 16, id % 4);
                memcpy(table + 1 + i * sizeof entry, &entry, sizeof entry);
                for (uint32_t k = 0; k < 4; k++)
                    payloads[rank][4 * i + k] = (int32_t)(id + 10 * rank + 100 * k);
            }
            const uint32_t frame = BYTEPS_FIRST_FRAME + rank;
            check(byteps_ledger_take(&ledger, rank, table + 1, 0, ROWS, frame, payloads[rank], ROWS * 16) == ROWS,
                  "all entries are walked", round);
            check(ledger.n_irregular == 0 && ledger.frames[frame].uses == ROWS, "all are taken", round);
            free(table);
        }
        check(ledger.n_complete == ROWS && ledger.n_bytes == 64, "all rows are complete", round);
        check(ledger.n_released == (round > 1), "the last buffer is released", round);
        int32_t *out = room(ledger.n_bytes);
        char *results = room(ROWS * sizeof(struct byteps_entry));
        check(byteps_ledger_finish(&ledger, out, 1, results) == BYTEPS_OK, "sums", round);
        check(ledger.n_read == WORKERS && ledger.buffers[1] == ROWS - 2, "frames are read", round);
        for (uint32_t i = 0; i < ROWS; i++) {
            struct byteps_entry entry;
            memcpy(&entry, results + i * sizeof entry, sizeof entry);
            const int32_t id = (int32_t)(entry.key >> 32);
            for (uint32_t k = 0; k < entry.count; k++)
                check(out[entry.place / 4 + k] == 3 * id + 30 + 300 * (int32_t)k, "a sum", round);
            check(entry.root == WORKERS && entry.flags == 0 && entry.round == (uint64_t)round, "an entry", round);
        }
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            check(ledger.frames[BYTEPS_FIRST_FRAME + rank].uses == 0, "frames are free", round);
            free(payloads[rank]);
        }
        free(out);
        free(results);
    }
    free_ledger(&ledger);
}

static struct byteps_entry hostile_entry(const struct byteps_ledger *ledger)
{
    const uint32_t id = (uint32_t)draw(LIMIT + 2);
    const uint64_t round = id < ledger->capacity && ledger->rows[id].round != 0 ? ledger->rows[id].round : 1;
    struct byteps_entry entry = entry_of(id, round, (uint32_t)draw(PAYLOAD / 8 + 2) * 8, id);
    entry.step = 0;
    switch (draw(40)) {
    case 0: entry.key = draw(1u << 31) * draw(1u << 31); break;
    case 1: entry.key |= 1; break;
    case 2: entry.place = 0xfffffff8u; break;
    case 3: entry.place |= 4; break;
    case 4: entry.count = (uint32_t)draw(1u << 31) * 2; break;
    case 5: entry.count = 0xffffffffu; break;
    case 6: entry.count = 0x40000000u; break; /* times 4 it is 0 in 32 bits */
    case 7: entry.operation = (uint8_t)draw(256); break;
    case 8: entry.flags = (uint8_t)draw(256); break;
    case 9: entry.flags |= BYTEPS_ABSENT; entry.place = 0xffffffffu; break;
    case 10: entry.round += draw(3) - 1; break;
    case 11: entry.root = 1; break;
    case 12: entry.step = 1; break;
    case 13: entry.count = (uint32_t)draw(PAYLOAD / 4); break;
    case 14: entry.dtype = (uint8_t)draw(11); break;
    case 15: entry.padding[draw(3)] = 1; break;
    default: break;
    }
    return entry;
}

/* Some tables in a row, each with an own payload, which stays while a share is in it.  Returns how many rows were
 * complete: one whose first share has odd terms waits for ever. */
static unsigned long test_hostile_tables(int run)
{
    static const size_t groups[] = {1, 2};
    struct byteps_ledger ledger = make_ledger(groups, 2, ROWS);
    void *payloads[FRAMES] = {NULL};
    unsigned long completed = 0;
    for (uint32_t frame = BYTEPS_FIRST_FRAME; frame < FRAMES; frame++) {
        const size_t n = draw(ROWS + 1), n_bytes = draw(PAYLOAD);
        struct byteps_entry *table = room(n * sizeof *table);
        for (size_t i = 0; i < n; i++)
            table[i] = hostile_entry(&ledger);
        payloads[frame] = room(n_bytes);
        const size_t end = byteps_ledger_take(&ledger, frame % WORKERS, table, 0, n, frame, payloads[frame], n_bytes);
        check(end == n || table[end].key >> 32 >= ROWS, "a table ends early only for want of rows", run);
        check(ledger.n_irregular <= end && ledger.n_complete <= end, "lists are no longer than the table", run);
        completed += ledger.n_complete;
        void *out = room(ledger.n_bytes);
        struct byteps_entry *results = room(ledger.n_complete * sizeof *results);
        check(byteps_ledger_finish(&ledger, out, frame, results) == BYTEPS_OK, "sums", run);
        for (uint32_t i = 0; i < ledger.n_read; i++)
            if (ledger.frames[ledger.read[i]].uses == 0) {
                free(payloads[ledger.read[i]]);
                payloads[ledger.read[i]] = NULL;
            }
        free(out);
        free(results);
        free(table);
    }
    for (uint32_t frame = 0; frame < FRAMES; frame++)
        free(payloads[frame]);
    free_ledger(&ledger);
    return completed;
}

static void test_refusals(void)
{
    static const size_t groups[] = {3};
    struct byteps_ledger ledger = make_ledger(groups, 1, ROWS);
    const struct byteps_entry entry = entry_of(2, 1, 8, 2);
    struct byteps_entry result;
    int32_t payload[4] = {0, 0, 3, -4}, out[2];
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        byteps_ledger_take(&ledger, rank, &entry, 0, 1, BYTEPS_FIRST_FRAME + rank, payload, sizeof payload);
    check(byteps_ledger_finish(&ledger, payload + 1, 1, &result) == BYTEPS_OVERLAP, "out within a payload", 1);
    ledger.level = 77;
    check(byteps_ledger_finish(&ledger, out, 1, &result) == BYTEPS_BAD_LEVEL, "no such level", 1);
    ledger.level = 0;
    check(ledger.n_complete == 1 && byteps_ledger_finish(&ledger, out, 1, &result) == BYTEPS_OK, "once more", 1);
    check(out[0] == 9 && out[1] == -12 && result.key == entry.key, "what was refused is still there", 1);
    free_ledger(&ledger);
}

int main(void)
{
    test_sums();
    unsigned long completed = 0;
    for (int run = 0; run < 500; run++)
        completed += test_hostile_tables(run);
    check(completed > 1000, "many rows were complete", 0);
    test_refusals();
    printf("%lu passed, %lu failed\n", passed, failed);
    return failed != 0;
}
