/* Tests paged caches: the slots of block tables, writes of keys and values, and attention over the blocks. */
#include <math.h>
#include <string.h>

#include <kvscatter.h>

#include "check.h"
#include "memory.h"

enum { BATCH = 2, HEADS = 2, SIZE = 4, BLOCK = 4, PER_SAMPLE = 3, BLOCKS = 7, SLOTS = BLOCK * PER_SAMPLE };
enum { ELEMENTS = BLOCKS * BLOCK * HEADS * SIZE, ROW = HEADS * SIZE, MOST_TOKENS = 7 };

/* Sample 0 has 5 tokens and grows to 11. Sample 1 has 2 and grows to 8, so its last entry stays unused. */
static const int32_t table[BATCH * PER_SAMPLE] = {5, 0, 3, 6, 2, -1};
static const int32_t prompt[BATCH] = {5, 2};
enum { STEPS = 6 };

/* A valid call for keys and values. It contains pointers to itself, so it must not move. */
typedef struct scene {
    guarded caches[2], updates[2];
    int64_t cache_shape[4], update_shape[3];
    int32_t table[BATCH * PER_SAMPLE], lens[BATCH], new_tokens[BATCH];
    int64_t slots[MOST_TOKENS], places[MOST_TOKENS]; /* places is for calls that fail */
    int32_t narrow[MOST_TOKENS];
    kvs_block_tables tables;
    kvs_paged_write_options options;
    kvs_pair both[2];
    kvs_call call;
    kvs_written written;
    kvs_prepared *prepared, *out;
} scene;

/* Returns the number of elements before a row of the cache. The blocks are [BLOCK, HEADS] or [HEADS, BLOCK].
 */
static size_t row(int64_t axis, int sample, int head, int token) {
    size_t block = (size_t)table[sample * PER_SAMPLE + token / BLOCK], slot = (size_t)(token % BLOCK);
    size_t of_head = (size_t)head;
    size_t inside = axis == 1 ? slot * HEADS + of_head : of_head * BLOCK + slot;
    return (block * BLOCK * HEADS + inside) * SIZE;
}

/* Returns an element of a key (0) or a value (1), which differs from all others. */
static float element(int which, int sample, int head, int token, int i) {
    return (float)(which * 7 + sample * 3 + head * 2 + token * 5 % 11 + i) / 16;
}

/* Describes updates of `tokens` tokens, with new memory. */
static void set_update(scene *s, int64_t tokens, bool guards) {
    s->update_shape[0] = tokens, s->update_shape[1] = HEADS, s->update_shape[2] = SIZE;
    for (int which = 0; which < 2; which++) {
        guarded_free(s->updates[which]);
        s->updates[which] = guarded_new((size_t)tokens * ROW * sizeof(float), guards);
        s->both[which].update = (kvs_tensor){
            sizeof(kvs_tensor), guarded_data(s->updates[which]), KVS_FLOAT32, 3, s->update_shape, NULL};
    }
    kvs_prepared_destroy(s->prepared);
    s->prepared = NULL;
    kvs_status status =
        kvs_paged_write_prepare(&s->options, &s->both[0].cache, &s->both[0].update, &s->prepared);
    REQUIRE(status == KVS_OK, "%s", kvs_status_name(status));
}

static void scene_set(scene *s, int64_t axis, bool guards) {
    memset(s, 0, sizeof *s);
    s->options = (kvs_paged_write_options)KVS_PAGED_WRITE_OPTIONS_INIT;
    s->options.axis = axis;
    s->cache_shape[0] = BLOCKS, s->cache_shape[3] = SIZE;
    s->cache_shape[1] = axis == 1 ? BLOCK : HEADS, s->cache_shape[2] = axis == 1 ? HEADS : BLOCK;
    for (int which = 0; which < 2; which++) {
        s->caches[which] = guarded_new(ELEMENTS * sizeof(float), guards);
        memset(guarded_data(s->caches[which]), 0, s->caches[which].size);
        s->both[which].cache = (kvs_tensor){
            sizeof(kvs_tensor), guarded_data(s->caches[which]), KVS_FLOAT32, 4, s->cache_shape, NULL};
    }
    memcpy(s->table, table, sizeof table);
    memcpy(s->lens, prompt, sizeof prompt);
    memcpy(s->new_tokens, prompt, sizeof prompt);
    s->tables = (kvs_block_tables)KVS_BLOCK_TABLES_INIT;
    s->tables.block_tables = (kvs_indices){s->table, BATCH * PER_SAMPLE, 32};
    s->tables.seq_lens = (kvs_indices){s->lens, BATCH, 32};
    s->tables.new_tokens = (kvs_indices){s->new_tokens, BATCH, 32};
    s->tables.max_blocks = PER_SAMPLE, s->tables.block_size = BLOCK, s->tables.num_blocks = BLOCKS;
    set_update(s, MOST_TOKENS, guards);
    s->call = (kvs_call)KVS_CALL_INIT;
    s->call.slot_mapping = (kvs_indices){s->slots, MOST_TOKENS, 64};
    s->written = (kvs_written)KVS_WRITTEN_INIT;
}

static void scene_clear(scene *s) {
    kvs_prepared_destroy(s->prepared);
    for (int which = 0; which < 2; which++)
        guarded_free(s->caches[which]), guarded_free(s->updates[which]);
}

static kvs_status find_slots(scene *s) {
    return kvs_slot_mapping(&s->tables, s->slots, s->call.slot_mapping.count);
}

static kvs_status write_both(scene *s) {
    return kvs_write_many(s->prepared, &s->call, s->both, 2, &s->written);
}

/* Writes the last `counts` tokens of each sample, and also stores them in `expected` by their block. */
static void write_tokens(scene *s, int64_t axis, const int32_t counts[BATCH], bool narrow,
                         float expected[2][ELEMENTS]) {
    size_t token = 0;
    for (int b = 0; b < BATCH; b++)
        for (int t = s->lens[b] - counts[b]; t < s->lens[b]; t++, token++)
            for (int which = 0; which < 2; which++)
                for (int h = 0; h < HEADS; h++)
                    for (int i = 0; i < SIZE; i++) {
                        float *update = (float *)(void *)guarded_data(s->updates[which]);
                        update[token * ROW + (size_t)(h * SIZE + i)] = element(which, b, h, t, i);
                        expected[which][row(axis, b, h, t) + (size_t)i] = element(which, b, h, t, i);
                    }
    s->call.slot_mapping = (kvs_indices){s->slots, token, 64};
    kvs_status status = find_slots(s);
    REQUIRE(status == KVS_OK, "%s", kvs_status_name(status));
    for (size_t i = 0; i < token; i++)
        s->narrow[i] = (int32_t)s->slots[i];
    if (narrow)
        s->call.slot_mapping = (kvs_indices){s->narrow, token, 32};
    status = write_both(s);
    CHECK(status == KVS_OK && s->written.skipped == 0, "%s", kvs_status_name(status));
    for (int which = 0; which < 2; which++)
        CHECK(guarded_holds(s->caches[which], (const uint8_t *)expected[which]), "axis %d, %d tokens",
              (int)axis, s->lens[0]);
}

/* Computes attention of one query for each head over keys and values. */
static void attend(const scene *s, kvs_tensor cache[2], bool blocks, float result[BATCH * ROW]) {
    static const int64_t query_shape[] = {BATCH, HEADS, 1, SIZE};
    float query[BATCH * ROW];
    for (size_t i = 0; i < BATCH * ROW; i++)
        query[i] = (float)(i % 5) - 2;
    kvs_tensor q = {sizeof q, query, KVS_FLOAT32, 4, query_shape, NULL}, y = q;
    y.data = result;
    kvs_attention_options options = KVS_ATTENTION_OPTIONS_INIT;
    options.is_causal = 1, options.blocks_per_sample = blocks ? PER_SAMPLE : 0;
    kvs_attention *attention = NULL;
    kvs_attention_scratch *scratch = NULL;
    kvs_status status = kvs_attention_prepare(&options, &q, &cache[0], &cache[1], NULL, &y, &attention);
    REQUIRE(status == KVS_OK, "%s", kvs_status_name(status));
    REQUIRE(kvs_attention_scratch_new(attention, 1, &scratch) == KVS_OK, "scratch");
    kvs_attention_call call = KVS_ATTENTION_CALL_INIT;
    call.lengths = s->tables.seq_lens;
    if (blocks)
        call.block_table = s->tables.block_tables;
    status = kvs_attention_run(attention, &call, &q, &cache[0], &cache[1], &y, scratch);
    CHECK(status == KVS_OK, "%s", kvs_status_name(status));
    kvs_attention_destroy(attention);
    kvs_attention_scratch_destroy(scratch);
}

/* Attention over the blocks that were written agrees with attention over contiguous caches. */
static void check_attention(const scene *s, int64_t axis) {
    static const int64_t blocks_shape[] = {BLOCKS, HEADS, BLOCK, SIZE},
                         dense_shape[] = {BATCH, HEADS, SLOTS, SIZE};
    const int64_t strides[] = {BLOCK * ROW, axis == 1 ? SIZE : BLOCK * SIZE, axis == 1 ? ROW : SIZE, 1};
    float dense[2][BATCH][HEADS][SLOTS][SIZE] = {{{{{0}}}}}, expected[BATCH * ROW], result[BATCH * ROW];
    kvs_tensor contiguous[2], blocks[2];
    for (int which = 0; which < 2; which++) {
        for (int b = 0; b < BATCH; b++)
            for (int h = 0; h < HEADS; h++)
                for (int t = 0; t < s->lens[b]; t++)
                    for (int i = 0; i < SIZE; i++)
                        dense[which][b][h][t][i] = element(which, b, h, t, i);
        contiguous[which] = (kvs_tensor){sizeof(kvs_tensor), dense[which], KVS_FLOAT32, 4, dense_shape, NULL};
        void *data = guarded_data(s->caches[which]);
        blocks[which] = (kvs_tensor){sizeof(kvs_tensor), data, KVS_FLOAT32, 4, blocks_shape, strides};
    }
    attend(s, contiguous, false, expected);
    attend(s, blocks, true, result);
    for (int i = 0; i < BATCH * ROW; i++)
        CHECK(fabsf(result[i] - expected[i]) < 1e-5F, "%d: %g, not %g", i, (double)result[i],
              (double)expected[i]);
}

/* A prompt and some decode steps, in both layouts. */
static size_t check_decoder(void) {
    static const int32_t one[BATCH] = {1, 1};
    size_t count = 0;
    for (int way = 0; way < 8; way++) {
        int64_t axis = way % 2 + 1;
        bool guards = way / 2 % 2 == 0, narrow = way / 4 == 0;
        float expected[2][ELEMENTS] = {{0}};
        scene s;
        scene_set(&s, axis, guards);
        write_tokens(&s, axis, prompt, narrow, expected);
        check_attention(&s, axis);
        set_update(&s, BATCH, guards);
        s.tables.new_tokens = (kvs_indices)KVS_INDICES_NONE; /* one for each sample */
        for (int step = 0; step < STEPS; step++, count++) {
            s.lens[0]++, s.lens[1]++;
            write_tokens(&s, axis, one, narrow, expected);
            check_attention(&s, axis);
        }
        /* A padded token is skipped. */
        s.options.skip_negative = 1;
        set_update(&s, BATCH, guards);
        s.slots[0] = s.slots[1] = -1;
        s.call.slot_mapping = (kvs_indices){s.slots, BATCH, 64};
        CHECK(write_both(&s) == KVS_OK && s.written.skipped == BATCH, "%zu", s.written.skipped);
        CHECK(guarded_holds(s.caches[0], (const uint8_t *)expected[0]), "padding was written");
        scene_clear(&s);
    }
    return count;
}

static kvs_status prepare(scene *s) {
    return kvs_paged_write_prepare(&s->options, &s->both[0].cache, &s->both[0].update, &s->out);
}
static kvs_status null_cache(scene *s) {
    return kvs_paged_write_prepare(NULL, NULL, &s->both[0].update, &s->out);
}
static kvs_status null_out(scene *s) {
    return kvs_paged_write_prepare(NULL, &s->both[0].cache, &s->both[0].update, NULL);
}
static kvs_status options_size(scene *s) {
    s->options.struct_size--;
    return prepare(s);
}
static kvs_status skip_2(scene *s) {
    s->options.skip_negative = 2;
    return prepare(s);
}
static kvs_status axis_0(scene *s) {
    s->options.axis = 0;
    return prepare(s);
}
static kvs_status axis_4(scene *s) {
    s->options.axis = 4;
    return prepare(s);
}
static kvs_status other_heads(scene *s) {
    s->update_shape[1]++;
    return prepare(s);
}
static kvs_status rank_2(scene *s) {
    s->both[0].update.rank = 2;
    return prepare(s);
}
static kvs_status no_slots(scene *s) {
    s->call.slot_mapping = (kvs_indices)KVS_INDICES_NONE;
    return write_both(s);
}
static kvs_status few_slots(scene *s) {
    s->call.slot_mapping.count--;
    return write_both(s);
}
static kvs_status null_slots(scene *s) {
    s->call.slot_mapping.values = NULL;
    return write_both(s);
}
static kvs_status late_slot(scene *s) {
    s->slots[6] = BLOCKS * BLOCK;
    return write_both(s);
}
static kvs_status huge_slot(scene *s) {
    s->slots[3] = INT64_MAX;
    return write_both(s);
}
static kvs_status negative_slot(scene *s) {
    s->slots[6] = -1;
    return write_both(s);
}
static kvs_status same_slot(scene *s) {
    s->slots[6] = s->slots[0];
    return write_both(s);
}
static kvs_status with_lengths(scene *s) {
    s->call.lengths = s->call.slot_mapping;
    return write_both(s);
}
static kvs_status with_write_indices(scene *s) {
    s->call.write_indices = s->call.slot_mapping;
    return write_both(s);
}
static kvs_status null_second(scene *s) {
    s->both[1].update.data = NULL;
    return write_both(s);
}
static kvs_status functional(scene *s) {
    return kvs_write_present(s->prepared, &s->call, &s->both[0].cache, &s->both[0].update, &s->both[1].cache,
                             &s->written);
}
static kvs_status bad_slots(scene *s) { return kvs_slot_mapping(&s->tables, s->places, MOST_TOKENS); }
static kvs_status null_tables(scene *s) { return kvs_slot_mapping(NULL, s->places, MOST_TOKENS); }
static kvs_status null_places(scene *s) { return kvs_slot_mapping(&s->tables, NULL, MOST_TOKENS); }
static kvs_status tables_size(scene *s) {
    s->tables.struct_size--;
    return bad_slots(s);
}
static kvs_status wide_lens(scene *s) {
    s->tables.seq_lens.bits = 64, s->tables.seq_lens.count = 1;
    return bad_slots(s);
}
static kvs_status few_entries(scene *s) {
    s->tables.block_tables.count--;
    return bad_slots(s);
}
static kvs_status few_places(scene *s) { return kvs_slot_mapping(&s->tables, s->places, MOST_TOKENS - 1); }
static kvs_status many_places(scene *s) { return kvs_slot_mapping(&s->tables, s->places, SIZE_MAX / 4); }
static kvs_status long_len(scene *s) {
    s->lens[1] = SLOTS + 1;
    return bad_slots(s);
}
static kvs_status negative_tokens(scene *s) {
    s->new_tokens[0] = -1;
    return bad_slots(s);
}
static kvs_status no_block(scene *s) {
    s->table[1] = -1;
    return bad_slots(s);
}
static kvs_status late_block(scene *s) {
    s->table[3] = BLOCKS;
    return bad_slots(s);
}
static kvs_status many_blocks(scene *s) {
    s->tables.num_blocks = SIZE_MAX;
    return bad_slots(s);
}
static kvs_status places_in_a_list(scene *s) {
    s->tables.seq_lens.values = s->places;
    return bad_slots(s);
}

static const struct bad {
    const char *name;
    kvs_status status;
    const char *argument;
    kvs_status (*call)(scene *);
} rows[] = {
    {"cache is NULL", KVS_ERROR_NULL_POINTER, "cache", null_cache},
    {"out is NULL", KVS_ERROR_NULL_POINTER, "out", null_out},
    {"smaller options", KVS_ERROR_STRUCT_SIZE, "options", options_size},
    {"skip_negative is 2", KVS_ERROR_UNKNOWN_OPTION, "skip_negative", skip_2},
    {"the axis of the blocks", KVS_ERROR_AXIS_IS_BATCH, "axis", axis_0},
    {"an axis after the last", KVS_ERROR_AXIS_OUT_OF_RANGE, "axis", axis_4},
    {"another number of heads", KVS_ERROR_DIMENSION_MISMATCH, "update", other_heads},
    {"an update of rank 2", KVS_ERROR_RANK, "update", rank_2},
    {"no slot_mapping", KVS_ERROR_LIST_LENGTH, "slot_mapping", no_slots},
    {"a token without a slot", KVS_ERROR_LIST_LENGTH, "slot_mapping", few_slots},
    {"slot_mapping is NULL", KVS_ERROR_NULL_POINTER, "slot_mapping", null_slots},
    {"a slot after the last", KVS_ERROR_SLOT_OUT_OF_RANGE, "slot_mapping", late_slot},
    {"a slot far after the last", KVS_ERROR_SLOT_OUT_OF_RANGE, "slot_mapping", huge_slot},
    {"a negative slot", KVS_ERROR_NEGATIVE_START, "slot_mapping", negative_slot},
    {"a slot of two tokens", KVS_ERROR_DUPLICATE_SLOT, "slot_mapping", same_slot},
    {"lengths", KVS_ERROR_LIST_LENGTH, "lengths", with_lengths},
    {"write_indices", KVS_ERROR_UNEXPECTED_ARGUMENT, "write_indices", with_write_indices},
    {"the second update has no data", KVS_ERROR_NULL_BUFFER, "update", null_second},
    {"the functional form", KVS_ERROR_IN_PLACE_ONLY, "present_cache", functional},
    {"tables is NULL", KVS_ERROR_NULL_POINTER, "tables", null_tables},
    {"slots is NULL", KVS_ERROR_NULL_POINTER, "slot_mapping", null_places},
    {"smaller tables", KVS_ERROR_STRUCT_SIZE, "tables", tables_size},
    {"seq_lens of 64 bits", KVS_ERROR_INDEX_WIDTH, "seq_lens", wide_lens},
    {"an entry is missing", KVS_ERROR_LIST_LENGTH, "block_tables", few_entries},
    {"room for too few slots", KVS_ERROR_LIST_LENGTH, "slot_mapping", few_places},
    {"room for more slots than memory has", KVS_ERROR_TOO_LARGE, "slot_mapping", many_places},
    {"a length beyond the table", KVS_ERROR_LENGTH_OUT_OF_RANGE, "seq_lens", long_len},
    {"a negative number of new tokens", KVS_ERROR_LENGTH_OUT_OF_RANGE, "new_tokens", negative_tokens},
    {"a token without a block", KVS_ERROR_BLOCK_OUT_OF_RANGE, "block_tables", no_block},
    {"a block after the last", KVS_ERROR_BLOCK_OUT_OF_RANGE, "block_tables", late_block},
    {"more blocks than memory has", KVS_ERROR_TOO_LARGE, "cache", many_blocks},
    {"slots in seq_lens", KVS_ERROR_OVERLAP, "slot_mapping", places_in_a_list},
};

/* Each call must return the documented code and argument, and change nothing. */
static size_t check_bad_input(void) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scene s;
        scene_set(&s, 1, true);
        REQUIRE(find_slots(&s) == KVS_OK, "the scene is not valid");
        guarded fresh = guarded_copy(guarded_data(s.caches[0]), s.caches[0].size, false);
        s.written.skipped = 99;
        static const int64_t untouched[MOST_TOKENS];
        kvs_status status = rows[i].call(&s);
        kvs_error error = KVS_ERROR_INIT;
        kvs_last_error(&error);
        CHECK(status == rows[i].status && error.code == status, "%s: %s", rows[i].name, error.message);
        CHECK(error.argument != NULL && strcmp(error.argument, rows[i].argument) == 0, "%s: %s", rows[i].name,
              error.message);
        CHECK(s.out == NULL && s.written.skipped == 99, "%s", rows[i].name);
        CHECK(memcmp(s.places, untouched, sizeof untouched) == 0, "%s", rows[i].name);
        for (int which = 0; which < 2; which++)
            CHECK(guarded_holds(s.caches[which], guarded_data(fresh)), "%s: cache %d", rows[i].name, which);
        if (getenv("KVS_TESTS_PRINT") != NULL)
            printf("%-40s %-34s %s\n", rows[i].name, kvs_status_name(status), error.message);
        guarded_free(fresh);
        scene_clear(&s);
    }
    return sizeof rows / sizeof *rows;
}

int main(void) {
    size_t count = check_decoder() + check_bad_input();
    return verdict("calls of paged caches", count);
}
