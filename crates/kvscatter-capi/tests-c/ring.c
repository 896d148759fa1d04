/* Compares the rule for rings with writes: a step is exact if each of its queries finds its window. */
#include <stdbool.h>

#include <kvscatter.h>

#include "check.h"

enum { MOST_SLOTS = 9, MOST_ROWS = 4, MOST_POSITIONS = 256 };

/* A sample in a ring. Each row is a number that no other write has. */
typedef struct sample {
    kvs_ring ring;
    int64_t slots[MOST_SLOTS], rows[MOST_POSITIONS], next_row;
    size_t high;
} sample;

static size_t compared = 0;

/* Writes a step, if the library accepts its size. */
static bool write_rows(sample *of, size_t start, size_t rows) {
    const int64_t cache_shape[] = {1, (int64_t)of->ring.capacity, 1}, update_shape[] = {1, (int64_t)rows, 1};
    int64_t at = (int64_t)start;
    kvs_tensor cache = KVS_TENSOR_INIT, update = KVS_TENSOR_INIT;
    cache.type = update.type = KVS_INT64, cache.rank = update.rank = 3;
    cache.shape = cache_shape, cache.data = of->slots;
    update.shape = update_shape, update.data = of->rows + start;
    for (size_t i = 0; i < rows; i++)
        of->rows[start + i] = of->next_row++;
    kvs_tensor_scatter_options options = KVS_TENSOR_SCATTER_OPTIONS_INIT;
    options.mode = KVS_MODE_CIRCULAR;
    kvs_prepared *write = NULL;
    kvs_status status = kvs_tensor_scatter_prepare(&options, &cache, &update, &write);
    if (status == KVS_OK) {
        kvs_call call = KVS_CALL_INIT;
        call.write_indices = (kvs_indices){&at, 1, 64};
        status = kvs_write(write, &call, &cache, &update, NULL);
    }
    kvs_prepared_destroy(write);
    CHECK(status == KVS_OK || rows > of->ring.capacity, "%s", kvs_status_name(status));
    return status == KVS_OK;
}

/* Returns whether the slots contain the window of each query of a step. */
static bool windows_are_there(const sample *of, size_t start, size_t rows) {
    for (size_t query = start; query < start + rows; query++)
        for (size_t back = 0; back <= query && back < of->ring.window; back++) {
            size_t position = query - back;
            if (of->slots[position % of->ring.capacity] != of->rows[position])
                return false;
        }
    return true;
}

/* Makes a step and returns whether it was exact. The rule must have predicted that. */
static bool step(sample *of, size_t start, size_t rows) {
    bool takes = kvs_ring_takes(of->ring, of->high, start, rows);
    size_t most = kvs_ring_most_rows(of->ring, of->high, start);
    bool exact = write_rows(of, start, rows) && windows_are_there(of, start, rows);
    CHECK(exact == takes && takes == (rows <= most), "C %zu W %zu high %zu start %zu rows %zu: exact %d, takes %d",
          of->ring.capacity, of->ring.window, of->high, start, rows, exact, takes);
    if (start > 0 && of->ring.window > 1)
        CHECK((most > 0) == (start >= kvs_ring_least_start(of->ring, of->high)), "start %zu, high %zu", start,
              of->high);
    of->high = kvs_ring_high_after(of->high, start, rows);
    compared++;
    return exact;
}

/* Starts a sample with one token at a time until every slot has been written. */
static sample wrapped(kvs_ring ring) {
    sample made = {.ring = ring, .next_row = 1};
    for (size_t position = 0; position < 2 * MOST_SLOTS; position++)
        step(&made, position, 1);
    return made;
}

/* Three steps of every size after every rewind. A history ends at its first wrong step. */
static void every_history(const sample *before, size_t tokens, int depth) {
    for (size_t rewind = 0; rewind < 4 && rewind <= tokens; rewind++)
        for (size_t rows = 1; rows <= MOST_ROWS; rows++) {
            sample after = *before;
            size_t start = tokens - rewind;
            if (step(&after, start, rows) && depth > 1)
                every_history(&after, start + rows, depth - 1);
        }
}

static size_t least(size_t window, size_t rows, size_t rewind, kvs_feeding feeding) {
    size_t capacity = 0;
    kvs_status status = kvs_ring_least_capacity(window, rows, rewind, (int32_t)feeding, &capacity);
    CHECK(status == KVS_OK, "%s", kvs_status_name(status));
    return capacity;
}

/* With the least capacity, every step is exact. With one slot less, one step is not. */
static void check_least_capacity(size_t window, size_t rows, size_t rewind) {
    kvs_ring ring = {least(window, rows, rewind, KVS_FEEDING_WITHOUT_PADDING), window};
    for (int missing = 0; missing < 2; missing++, ring.capacity--) {
        bool exact = ring.capacity >= window;
        size_t high = 64, tokens = 64;
        exact = exact && kvs_ring_takes(ring, high, tokens, rows);
        for (size_t back = 1; back <= rewind; back++)
            exact = exact && kvs_ring_takes(ring, high, tokens - back, 1);
        CHECK(exact == !missing, "W %zu S %zu R %zu C %zu", window, rows, rewind, ring.capacity);
        compared++;
    }
}

int main(void) {
    for (size_t window = 1; window <= 4; window++) {
        for (size_t capacity = window; capacity <= MOST_SLOTS; capacity++) {
            kvs_ring ring = {capacity, window};
            sample first = wrapped(ring);
            every_history(&first, 2 * MOST_SLOTS, 3);
            /* The sample starts over. */
            step(&first, 0, 2);
            every_history(&first, 2, 2);
        }
        for (size_t rows = 1; rows <= MOST_ROWS; rows++)
            for (size_t rewind = 0; window > 1 && rewind < 4; rewind++)
                check_least_capacity(window, rows, rewind);
    }
    CHECK(least(8, 4, 2, KVS_FEEDING_IDLE) == 13, "samples that wait need most");
    return verdict("steps of rings", compared);
}
