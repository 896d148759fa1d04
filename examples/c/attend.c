/* One layer of a decoder. Each step writes the key and the value of a token into the cache of each sequence, and
 * then reads the cache. The sequences have different lengths. */
#include <stdio.h>
#include <stdlib.h>

#include <kvscatter.h>

enum { BATCH = 2, QUERY_HEADS = 4, HEADS = 2, SLOTS = 8, SIZE = 4, STEPS = 3 };

/* [batch, heads, slots, head_size] */
static float keys[BATCH][HEADS][SLOTS][SIZE], values[BATCH][HEADS][SLOTS][SIZE];

/* A step has one token, so [batch, heads, 1, head_size] and [batch, 1, heads, head_size] are the same memory. */
static float query[BATCH][QUERY_HEADS][1][SIZE], output[BATCH][QUERY_HEADS][1][SIZE];
static float new_key[BATCH][HEADS][1][SIZE], new_value[BATCH][HEADS][1][SIZE];

/* The prepared calls of the layer and its tensors. Other layers of the same shapes can use the same calls. */
typedef struct layer {
    kvs_prepared *write;
    kvs_attention *attention;
    kvs_attention_scratch *scratch;
    kvs_tensor query, key, value, output, new_key, new_value;
} layer;

static void check(kvs_status status) {
    if (status == KVS_OK)
        return;
    kvs_error error = KVS_ERROR_INIT;
    kvs_last_error(&error);
    fprintf(stderr, "%s: %s\n", kvs_status_name(status), error.message);
    exit(EXIT_FAILURE);
}

static kvs_tensor tensor(void *data, const int64_t *shape) {
    kvs_tensor made = KVS_TENSOR_INIT;
    made.data = data, made.type = KVS_FLOAT32, made.rank = 4, made.shape = shape;
    return made;
}

/* Call this once. */
static layer prepare(void) {
    static const int64_t of_query[] = {BATCH, QUERY_HEADS, 1, SIZE}, of_token[] = {BATCH, HEADS, 1, SIZE};
    static const int64_t of_cache[] = {BATCH, HEADS, SLOTS, SIZE};
    layer made = {NULL,
                  NULL,
                  NULL,
                  tensor(query, of_query),
                  tensor(keys, of_cache),
                  tensor(values, of_cache),
                  tensor(output, of_query),
                  tensor(new_key, of_token),
                  tensor(new_value, of_token)};
    check(kvs_tensor_scatter_prepare(NULL, &made.key, &made.new_key, &made.write));
    kvs_attention_options options = KVS_ATTENTION_OPTIONS_INIT;
    options.is_causal = 1;
    check(kvs_attention_prepare(&options, &made.query, &made.key, &made.value, NULL, &made.output,
                                &made.attention));
    check(kvs_attention_scratch_new(made.attention, 1, &made.scratch));
    return made;
}

/* Writes the token of each sequence at its position, and reads the tokens so far. */
static kvs_status step(const layer *l, const int64_t positions[BATCH], const int64_t lengths[BATCH]) {
    kvs_call write = KVS_CALL_INIT;
    write.write_indices = (kvs_indices){positions, BATCH, 64};
    const kvs_pair both[] = {{l->key, l->new_key}, {l->value, l->new_value}};
    kvs_status status = kvs_write_many(l->write, &write, both, 2, NULL);
    if (status != KVS_OK)
        return status;
    kvs_attention_call read = KVS_ATTENTION_CALL_INIT;
    read.lengths = (kvs_indices){lengths, BATCH, 64}; /* with the token of this step */
    return kvs_attention_run(l->attention, &read, &l->query, &l->key, &l->value, &l->output, l->scratch);
}

int main(void) {
    layer l = prepare();
    int64_t positions[BATCH] = {0, 0}, lengths[BATCH];
    /* The queries and keys are 0, so each result is the mean of the values so far: 10, 20, ... for sequence 0. */
    for (int token = 0; token < STEPS; token++) {
        for (int b = 0; b < BATCH; b++) {
            lengths[b] = positions[b] + 1;
            for (int i = 0; i < HEADS * SIZE; i++)
                new_value[b][i / SIZE][0][i % SIZE] = (float)(10 * (b + 1) * (token + 1));
        }
        check(step(&l, positions, lengths));
        printf("step %d: the mean of %d values is %g and %g\n", token, token + 1, (double)output[0][0][0][0],
               (double)output[1][QUERY_HEADS - 1][0][SIZE - 1]);
        for (int b = 0; b < BATCH; b++)
            positions[b]++;
    }
    int is_mean = output[0][0][0][0] == 20 && output[1][QUERY_HEADS - 1][0][SIZE - 1] == 40;

    /* A length beyond the cache is refused, and the output does not change. */
    lengths[1] = SLOTS + 1;
    kvs_status status = step(&l, positions, lengths);
    kvs_error error = KVS_ERROR_INIT;
    check(kvs_last_error(&error));
    printf("refused: %s\n  %s\n", kvs_status_name(status), error.message);

    kvs_attention_scratch_destroy(l.scratch);
    kvs_attention_destroy(l.attention);
    kvs_prepared_destroy(l.write);
    return is_mean && status == KVS_ERROR_LENGTH_OUT_OF_RANGE ? EXIT_SUCCESS : EXIT_FAILURE;
}
