/* Tests attention: results in every layout, bad input, executors and threads.
 *
 * Each key is a unit vector of its slot, times 1000. So the first query of a sample, the unit vector of a slot,
 * gives the value of that slot. The second query is 0 and gives the mean of the values that it sees. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include <kvscatter.h>

#include "check.h"
#include "memory.h"

enum { BATCH = 2, HEADS = 2, QUERY_HEADS = 4, QUERIES = 2, SLOTS = 8, SIZE = 8, VALUE_SIZE = 6 };
/* In blocks, each sample has four of ten blocks. A ring has a window. */
enum { BLOCK = 2, PER_SAMPLE = SLOTS / BLOCK, BLOCKS = 10, WINDOW_LEFT = 5 };
enum { THREADS = 4, ROUNDS = 50, HELPERS = 3 };

typedef struct layout {
    const char *name;
    bool ring, blocks;
    bool by_token; /* [batch, length, heads, size] in memory */
} layout;

static const layout layouts[] = {
    {"dense", false, false, false},
    {"by token", false, false, true},
    {"a ring", true, false, false},
    {"a ring by token", true, false, true},
    {"blocks", false, true, false},
};

static const int32_t table[BATCH * PER_SAMPLE] = {7, 2, 9, 0, 4, 5, -1, INT32_MAX};

/* A valid call. It contains pointers to itself, so it must not move. */
typedef struct scene {
    layout layout;
    guarded memory[4];
    int64_t shapes[4][4], strides[4][4];
    kvs_tensor query, key, value, output, mask;
    int64_t mask_shape[1];
    uint8_t shown[SLOTS];
    int64_t lengths[BATCH];
    int64_t starts[BATCH]; /* 0 without padding on the left */
    int32_t narrow[BATCH], table[BATCH * PER_SAMPLE];
    kvs_attention_options options;
    kvs_attention_call call;
    kvs_attention *attention, *out;
    kvs_attention_scratch *scratch;
} scene;

/* Returns the number of elements before a row of a tensor [batch, heads, length, size]. */
static size_t row(const scene *s, int tensor, int sample, int head, int slot) {
    const int64_t *stride = s->strides[tensor];
    if (s->layout.blocks && (tensor == 1 || tensor == 2)) {
        sample = table[sample * PER_SAMPLE + slot / BLOCK];
        slot %= BLOCK;
    }
    return (size_t)(sample * stride[0] + head * stride[1] + slot * stride[2]);
}

static float *element(const scene *s, int tensor, int sample, int head, int slot) {
    return (float *)(void *)guarded_data(s->memory[tensor]) + row(s, tensor, sample, head, slot);
}

/* Returns whether a query sees a slot. */
static bool sees(const scene *s, int sample, int query, int slot) {
    int64_t length = s->lengths[sample], position = length - QUERIES + query;
    if (!s->layout.ring)
        return slot <= position && slot >= s->starts[sample];
    int64_t last = length - 1 - (length - 1 - slot) % SLOTS;
    return slot < length && last <= position && last >= position - WINDOW_LEFT && last >= s->starts[sample];
}

static float value_of(int sample, int head, int slot, int i) {
    return (float)(1000 * sample + 100 * head + 10 * slot + i);
}

/* Returns the slot that the first query of a sample asks for. */
static int target(const scene *s, int sample) { return (int)((s->lengths[sample] - QUERIES) % SLOTS); }

static void fill(scene *s) {
    for (int tensor = 0; tensor < 3; tensor++)
        for (size_t i = 0; i < s->memory[tensor].size / sizeof(float); i++)
            ((float *)(void *)guarded_data(s->memory[tensor]))[i] = NAN;
    for (int b = 0; b < BATCH; b++) {
        for (int h = 0; h < QUERY_HEADS; h++)
            for (int i = 0; i < SIZE; i++) {
                element(s, 0, b, h, 0)[i] = i == target(s, b) ? 1 : 0;
                element(s, 0, b, h, 1)[i] = 0;
            }
        for (int h = 0; h < HEADS; h++)
            for (int slot = 0; slot < SLOTS; slot++) {
                if (!sees(s, b, 0, slot) && !sees(s, b, 1, slot))
                    continue; /* Hidden slots contain NaN. */
                for (int i = 0; i < SIZE; i++)
                    element(s, 1, b, h, slot)[i] = i == slot ? 1000 : 0;
                for (int i = 0; i < VALUE_SIZE; i++)
                    element(s, 2, b, h, slot)[i] = value_of(b, h, slot, i);
            }
    }
}

static void scene_set(scene *s, layout layout, bool guards) {
    static const int64_t outer[4][4] = {{BATCH, QUERY_HEADS, QUERIES, SIZE},
                                        {BATCH, HEADS, SLOTS, SIZE},
                                        {BATCH, HEADS, SLOTS, VALUE_SIZE},
                                        {BATCH, QUERY_HEADS, QUERIES, VALUE_SIZE}};
    memset(s, 0, sizeof *s);
    s->layout = layout;
    kvs_tensor *tensors[] = {&s->query, &s->key, &s->value, &s->output};
    for (int i = 0; i < 4; i++) {
        int64_t *shape = s->shapes[i], *strides = s->strides[i];
        memcpy(shape, outer[i], sizeof outer[i]);
        if (layout.blocks && (i == 1 || i == 2))
            shape[0] = BLOCKS, shape[2] = BLOCK;
        strides[0] = shape[1] * shape[2] * shape[3];
        strides[1] = layout.by_token ? shape[3] : shape[2] * shape[3];
        strides[2] = layout.by_token ? shape[1] * shape[3] : shape[3];
        strides[3] = 1;
        s->memory[i] = guarded_new((size_t)(shape[0] * strides[0]) * sizeof(float), guards);
        *tensors[i] = (kvs_tensor){.struct_size = sizeof(kvs_tensor),
                                   .data = guarded_data(s->memory[i]),
                                   .type = KVS_FLOAT32,
                                   .rank = 4,
                                   .shape = shape,
                                   .strides = strides};
    }
    s->lengths[0] = layout.ring ? 29 : 8;
    s->lengths[1] = 3;
    for (int b = 0; b < BATCH; b++)
        s->narrow[b] = (int32_t)s->lengths[b];
    memcpy(s->table, table, sizeof table);
    s->options = (kvs_attention_options)KVS_ATTENTION_OPTIONS_INIT;
    s->options.is_causal = 1;
    s->options.mode = layout.ring ? KVS_MODE_CIRCULAR : KVS_MODE_LINEAR;
    s->options.window_left = layout.ring ? WINDOW_LEFT : -1;
    s->options.blocks_per_sample = layout.blocks ? PER_SAMPLE : 0;
    s->call = (kvs_attention_call)KVS_ATTENTION_CALL_INIT;
    s->call.lengths = (kvs_indices){s->lengths, BATCH, 64};
    if (layout.blocks)
        s->call.block_table = (kvs_indices){s->table, BATCH * PER_SAMPLE, 32};
    /* The mask shows every slot. */
    s->mask_shape[0] = SLOTS;
    memset(s->shown, 1, sizeof s->shown);
    s->mask = (kvs_tensor){sizeof(kvs_tensor), s->shown, KVS_BOOL, 1, s->mask_shape, NULL};
    fill(s);
    kvs_status status =
        kvs_attention_prepare(&s->options, &s->query, &s->key, &s->value, NULL, &s->output, &s->attention);
    REQUIRE(status == KVS_OK, "%s: %s", layout.name, kvs_status_name(status));
    REQUIRE(kvs_attention_scratch_new(s->attention, 1, &s->scratch) == KVS_OK, "%s", layout.name);
}

static void scene_clear(scene *s) {
    kvs_attention_destroy(s->attention);
    kvs_attention_scratch_destroy(s->scratch);
    for (int i = 0; i < 4; i++)
        guarded_free(s->memory[i]);
}

static kvs_status run(scene *s) {
    return kvs_attention_run(s->attention, &s->call, &s->query, &s->key, &s->value, &s->output, s->scratch);
}

/* Returns the number of wrong results. */
static size_t wrong_results(const scene *s) {
    size_t wrong = 0;
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < QUERY_HEADS; h++)
            for (int i = 0; i < VALUE_SIZE; i++) {
                int head = h / (QUERY_HEADS / HEADS), seen = 0;
                float found = value_of(b, head, target(s, b), i), sum = 0;
                for (int slot = 0; slot < SLOTS; slot++)
                    if (sees(s, b, 1, slot))
                        sum += value_of(b, head, slot, i), seen++;
                wrong += element(s, 3, b, h, 0)[i] != found;
                wrong += fabsf(element(s, 3, b, h, 1)[i] - sum / (float)seen) > 0.01F;
            }
    return wrong;
}

static bool guards_hold(const scene *s, int tensor) {
    return guarded_holds(s->memory[tensor], guarded_data(s->memory[tensor]));
}

static size_t check_layouts(void) {
    size_t count = 0;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int way = 0; way < 8; way++, count++) {
            scene s;
            scene_set(&s, layouts[i], way % 2 == 0);
            if (way / 2 % 2 == 1)
                s.call.lengths = (kvs_indices){s.narrow, BATCH, 32};
            if (way / 4 == 1) {
                s.starts[0] = s.lengths[0] - 4, s.starts[1] = 1;
                s.call.starts = (kvs_indices){s.starts, BATCH, 64};
                fill(&s); /* Slots before the starts contain NaN. */
            }
            kvs_status status = run(&s);
            CHECK(status == KVS_OK, "%s: %s", layouts[i].name, kvs_status_name(status));
            CHECK(wrong_results(&s) == 0, "%s: %zu results", layouts[i].name, wrong_results(&s));
            for (int tensor = 0; tensor < 4; tensor++)
                CHECK(guards_hold(&s, tensor), "%s, tensor %d", layouts[i].name, tensor);
            scene_clear(&s);
        }
    return count;
}

static kvs_status prepare(scene *s) {
    return kvs_attention_prepare(&s->options, &s->query, &s->key, &s->value, NULL, &s->output, &s->out);
}

static kvs_status null_query(scene *s) {
    return kvs_attention_prepare(NULL, NULL, &s->key, &s->value, NULL, &s->output, &s->out);
}
static kvs_status null_out(scene *s) {
    return kvs_attention_prepare(NULL, &s->query, &s->key, &s->value, NULL, &s->output, NULL);
}
static kvs_status options_size(scene *s) {
    s->options.struct_size--;
    return prepare(s);
}
static kvs_status no_type(scene *s) {
    s->key.type = 99;
    return prepare(s);
}
static kvs_status rank_3(scene *s) {
    s->value.rank = 3;
    return prepare(s);
}
static kvs_status other_heads(scene *s) {
    s->shapes[2][1] = 1;
    return prepare(s);
}
static kvs_status negative_stride(scene *s) {
    s->strides[1][2] = -SIZE;
    return prepare(s);
}
static kvs_status far_stride(scene *s) {
    s->strides[0][0] = INT64_MAX;
    return prepare(s);
}
static kvs_status rows_apart(scene *s) {
    s->strides[2][3] = 2;
    return prepare(s);
}
static kvs_status output_rows_meet(scene *s) {
    s->strides[3][2] = 0;
    return prepare(s);
}
static kvs_status strided_mask(scene *s) {
    const int64_t stride = 2;
    s->mask.strides = &stride;
    return kvs_attention_prepare(NULL, &s->query, &s->key, &s->value, &s->mask, &s->output, &s->out);
}
static kvs_status null_scratch_out(scene *s) { return kvs_attention_scratch_new(s->attention, 1, NULL); }
static kvs_status null_attention(scene *s) {
    return kvs_attention_run(NULL, &s->call, &s->query, &s->key, &s->value, &s->output, s->scratch);
}
static kvs_status null_call(scene *s) {
    return kvs_attention_run(s->attention, NULL, &s->query, &s->key, &s->value, &s->output, s->scratch);
}
static kvs_status null_key(scene *s) {
    return kvs_attention_run(s->attention, &s->call, &s->query, NULL, &s->value, &s->output, s->scratch);
}
static kvs_status null_scratch(scene *s) {
    return kvs_attention_run(s->attention, &s->call, &s->query, &s->key, &s->value, &s->output, NULL);
}
static kvs_status call_size(scene *s) {
    s->call.struct_size = 0;
    return run(s);
}
static kvs_status tensor_size(scene *s) {
    s->output.struct_size--;
    return run(s);
}
static kvs_status odd_value(scene *s) {
    s->value.data = (char *)s->value.data + 1;
    return run(s);
}
static kvs_status null_data(scene *s) {
    s->key.data = NULL;
    return run(s);
}
static kvs_status beyond_memory(scene *s) {
    s->query.data = (void *)(UINTPTR_MAX - 7);
    return run(s);
}
static kvs_status other_stride(scene *s) {
    s->strides[1][1]++;
    return run(s);
}
static kvs_status output_is_the_value(scene *s) {
    s->output.data = s->value.data;
    return run(s);
}
static kvs_status lengths_in_the_output(scene *s) {
    s->call.lengths.values = s->output.data;
    return run(s);
}
static kvs_status long_length(scene *s) {
    s->lengths[1] = SLOTS + 1;
    return run(s);
}
static kvs_status negative_length(scene *s) {
    s->narrow[0] = -1;
    s->call.lengths = (kvs_indices){s->narrow, BATCH, 32};
    return run(s);
}
static kvs_status one_length(scene *s) {
    s->call.lengths.count = 1;
    return run(s);
}
static kvs_status many_lengths(scene *s) {
    s->call.lengths.count = SIZE_MAX;
    return run(s);
}
static kvs_status negative_start(scene *s) {
    static const int64_t starts[BATCH] = {0, -1};
    s->call.starts = (kvs_indices){starts, BATCH, 64};
    return run(s);
}
static kvs_status one_start(scene *s) {
    static const int32_t start = 0;
    s->call.starts = (kvs_indices){&start, 1, 32};
    return run(s);
}
static kvs_status starts_in_the_output(scene *s) {
    s->call.starts = (kvs_indices){s->output.data, BATCH, 32};
    return run(s);
}
static kvs_status a_mask(scene *s) {
    s->call.mask = &s->mask;
    return run(s);
}
static kvs_status a_table(scene *s) {
    s->call.block_table = (kvs_indices){s->table, BATCH * PER_SAMPLE, 32};
    return run(s);
}
static kvs_status null_broadcast(scene *s) {
    const kvs_executor executor = {NULL, NULL};
    s->call.executor = &executor;
    return run(s);
}

static const struct bad {
    const char *name;
    kvs_status status;
    const char *argument;
    kvs_status (*call)(scene *);
} rows[] = {
    {"query is NULL", KVS_ERROR_NULL_POINTER, "Q", null_query},
    {"out is NULL", KVS_ERROR_NULL_POINTER, "out", null_out},
    {"smaller options", KVS_ERROR_STRUCT_SIZE, "options", options_size},
    {"a type that is none", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "K", no_type},
    {"values of rank 3", KVS_ERROR_RANK, "V", rank_3},
    {"values of one head", KVS_ERROR_DIMENSION_MISMATCH, "V", other_heads},
    {"a negative stride", KVS_ERROR_STRIDE, "K", negative_stride},
    {"a stride beyond memory", KVS_ERROR_TOO_LARGE, "Q", far_stride},
    {"elements that are no neighbours", KVS_ERROR_STRIDE, "V", rows_apart},
    {"rows of the output that meet", KVS_ERROR_OUTPUT_OVERLAPS_ITSELF, "Y", output_rows_meet},
    {"a mask with strides", KVS_ERROR_STRIDE, "attn_mask", strided_mask},
    {"no place for the scratch", KVS_ERROR_NULL_POINTER, "out", null_scratch_out},
    {"attention is NULL", KVS_ERROR_NULL_POINTER, "attention", null_attention},
    {"call is NULL", KVS_ERROR_NULL_POINTER, "call", null_call},
    {"key is NULL", KVS_ERROR_NULL_POINTER, "K", null_key},
    {"scratch is NULL", KVS_ERROR_NULL_POINTER, "scratch", null_scratch},
    {"call without a struct_size", KVS_ERROR_STRUCT_SIZE, "call", call_size},
    {"a smaller tensor", KVS_ERROR_STRUCT_SIZE, "Y", tensor_size},
    {"float32 at an odd address", KVS_ERROR_MISALIGNED, "V", odd_value},
    {"keys without data", KVS_ERROR_NULL_BUFFER, "K", null_data},
    {"queries beyond all addresses", KVS_ERROR_ADDRESS_SPACE, "Q", beyond_memory},
    {"another stride", KVS_ERROR_TENSOR_MISMATCH, "K", other_stride},
    {"the output is the value", KVS_ERROR_OVERLAP, "Y", output_is_the_value},
    {"the lengths are in the output", KVS_ERROR_OVERLAP, "Y", lengths_in_the_output},
    {"a length above the capacity", KVS_ERROR_LENGTH_OUT_OF_RANGE, "nonpad_kv_seqlen", long_length},
    {"a negative length", KVS_ERROR_LENGTH_OUT_OF_RANGE, "nonpad_kv_seqlen", negative_length},
    {"one length for two samples", KVS_ERROR_LIST_LENGTH, "nonpad_kv_seqlen", one_length},
    {"more lengths than memory has", KVS_ERROR_TOO_LARGE, "lengths", many_lengths},
    {"a negative start", KVS_ERROR_NEGATIVE_START, "starts", negative_start},
    {"one start for two samples", KVS_ERROR_LIST_LENGTH, "starts", one_start},
    {"the starts are in the output", KVS_ERROR_OVERLAP, "Y", starts_in_the_output},
    {"a mask that was not prepared", KVS_ERROR_UNEXPECTED_ARGUMENT, "attn_mask", a_mask},
    {"a table that was not prepared", KVS_ERROR_UNEXPECTED_ARGUMENT, "block_table", a_table},
    {"broadcast is NULL", KVS_ERROR_NULL_POINTER, "executor.broadcast", null_broadcast},
};

/* Each call must return the documented code and argument, and change nothing. */
static size_t check_bad_input(void) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scene s, fresh;
        scene_set(&s, layouts[0], true);
        scene_set(&fresh, layouts[0], true);
        /* Lengths in the output would be read as zeros. */
        memset(guarded_data(s.memory[3]), 0, s.memory[3].size);
        memset(guarded_data(fresh.memory[3]), 0, fresh.memory[3].size);
        kvs_status status = rows[i].call(&s);
        kvs_error error = KVS_ERROR_INIT;
        kvs_last_error(&error);
        CHECK(status == rows[i].status && error.code == status, "%s: %s", rows[i].name, error.message);
        CHECK(error.argument != NULL && strcmp(error.argument, rows[i].argument) == 0, "%s: %s", rows[i].name,
              error.message);
        CHECK(s.out == NULL, "%s", rows[i].name);
        for (int tensor = 0; tensor < 4; tensor++)
            CHECK(guarded_holds(s.memory[tensor], guarded_data(fresh.memory[tensor])), "%s: tensor %d",
                  rows[i].name, tensor);
        if (getenv("KVS_TESTS_PRINT") != NULL)
            printf("%-40s %-34s %s\n", rows[i].name, kvs_status_name(status), error.message);
        scene_clear(&s);
        scene_clear(&fresh);
    }
    kvs_attention_destroy(NULL);
    kvs_attention_scratch_destroy(NULL);
    return sizeof rows / sizeof *rows;
}

/* Each thread has a scratch and an output, and shares everything else. */
static void *attend(void *argument) {
    const scene *shared = argument;
    scene s = *shared;
    size_t wrong = 0;
    s.memory[3] = guarded_new(shared->memory[3].size, true);
    s.output.data = guarded_data(s.memory[3]);
    wrong += kvs_attention_scratch_new(s.attention, 1, &s.scratch) != KVS_OK;
    for (int round = 0; round < ROUNDS; round++) {
        wrong += run(&s) != KVS_OK;
        wrong += wrong_results(&s);
    }
    kvs_attention_scratch_destroy(s.scratch);
    guarded_free(s.memory[3]);
    return wrong == 0 ? NULL : argument;
}

static void check_threads(void) {
    scene s;
    scene_set(&s, layouts[3], false);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&threads[i], NULL, attend, &s) == 0, "thread %d", i);
    for (int i = 0; i < THREADS; i++) {
        void *wrong = NULL;
        pthread_join(threads[i], &wrong);
        CHECK(wrong == NULL, "thread %d", i);
    }
    scene_clear(&s);
}

typedef struct work {
    void (*run)(void *context);
    void *context;
} work;

static void *help(void *argument) {
    work *given = argument;
    given->run(given->context);
    return NULL;
}

static void on_threads(void *user, void (*run_part)(void *context), void *context) {
    pthread_t helpers[HELPERS];
    work given = {run_part, context};
    ++*(size_t *)user;
    for (int i = 0; i < HELPERS; i++)
        REQUIRE(pthread_create(&helpers[i], NULL, help, &given) == 0, "thread %d", i);
    for (int i = 0; i < HELPERS; i++)
        pthread_join(helpers[i], NULL);
}

/* The call is long enough to use the executor. The results must have the same bits. */
static void check_executor(void) {
    static const int64_t query_shape[] = {1, 8, 1, 64}, cache_shape[] = {1, 2, 3000, 64};
    const size_t query_size = 8 * 64, cache_size = 2 * 3000 * 64;
    guarded query = guarded_new(query_size * sizeof(float), false);
    guarded cache = guarded_new(cache_size * sizeof(float), false);
    for (size_t i = 0; i < query_size; i++)
        ((float *)(void *)guarded_data(query))[i] = (float)(i % 13) / 13;
    for (size_t i = 0; i < cache_size; i++)
        ((float *)(void *)guarded_data(cache))[i] = (float)(i % 251) / 251;
    kvs_tensor q = {sizeof q, guarded_data(query), KVS_FLOAT32, 4, query_shape, NULL};
    kvs_tensor kv = {sizeof kv, guarded_data(cache), KVS_FLOAT32, 4, cache_shape, NULL};
    kvs_tensor y = q;
    kvs_attention *attention = NULL;
    REQUIRE(kvs_attention_prepare(NULL, &q, &kv, &kv, NULL, &y, &attention) == KVS_OK, "prepare");
    guarded outputs[2];
    for (size_t threads = 1; threads <= 2; threads++) {
        guarded *output = &outputs[threads - 1];
        *output = guarded_new(query_size * sizeof(float), true);
        size_t calls = 0;
        kvs_executor executor = {on_threads, &calls};
        kvs_attention_call call = KVS_ATTENTION_CALL_INIT;
        call.executor = &executor;
        y.data = guarded_data(*output);
        kvs_attention_scratch *scratch = NULL;
        REQUIRE(kvs_attention_scratch_new(attention, threads * 2 - 1, &scratch) == KVS_OK, "scratch");
        CHECK(kvs_attention_run(attention, &call, &q, &kv, &kv, &y, scratch) == KVS_OK, "%zu", threads);
        CHECK(calls == threads - 1, "the executor was called %zu times", calls);
        kvs_attention_scratch_destroy(scratch);
    }
    CHECK(guarded_holds(outputs[1], guarded_data(outputs[0])), "the results differ");
    kvs_attention_destroy(attention);
    guarded_free(outputs[0]);
    guarded_free(outputs[1]);
    guarded_free(query);
    guarded_free(cache);
}

int main(void) {
    size_t count = check_layouts() + check_bad_input();
    check_threads();
    check_executor();
    return verdict("calls of attention", count);
}
