/* Writes the cache of a decoder in place. The decoder has two layers of keys and values, and a ring that
 * overwrites the oldest token. The three sequences have different lengths. The example needs no model,
 * because a "key" here is the position of its token. */
#include <stdio.h>
#include <stdlib.h>

#include <kvscatter.h>

enum { LAYERS = 2, BATCH = 3, HEADS = 2, SLOTS = 8, SIZE = 4, PROMPT = 7, STEPS = 4 };

/* [batch, heads, slots, head_size], as attention reads it. */
static float keys[LAYERS][BATCH][HEADS][SLOTS][SIZE];
static float values[LAYERS][BATCH][HEADS][SLOTS][SIZE];

/* [batch, rows, heads, head_size], as a projection writes it. Decoding uses one row. */
static float new_keys[BATCH * PROMPT * HEADS * SIZE];
static float new_values[BATCH * PROMPT * HEADS * SIZE];

static const int64_t cache_shape[] = {BATCH, HEADS, SLOTS, SIZE};

static void check(kvs_status status) {
    if (status == KVS_OK)
        return;
    kvs_error error = KVS_ERROR_INIT;
    kvs_last_error(&error);
    fprintf(stderr, "%s: %s\n", kvs_status_name(status), error.message);
    exit(EXIT_FAILURE);
}

static kvs_tensor tensor(void *data, const int64_t *shape, const int64_t *strides) {
    kvs_tensor made = KVS_TENSOR_INIT;
    made.data = data;
    made.type = KVS_FLOAT32;
    made.rank = 4;
    made.shape = shape;
    made.strides = strides;
    return made;
}

/* Writes `rows` tokens per sequence. The update is [batch, rows, heads, head_size] in memory, and its strides
 * make the library read it as [batch, heads, rows, head_size]. So nothing is transposed. */
typedef struct writer {
    int64_t shape[4], strides[4];
    kvs_prepared *prepared;
} writer;

static void writer_prepare(writer *made, int64_t rows) {
    *made = (writer){{BATCH, HEADS, rows, SIZE}, {rows * HEADS * SIZE, SIZE, HEADS * SIZE, 1}, NULL};
    kvs_tensor cache = tensor(NULL, cache_shape, NULL), update = tensor(NULL, made->shape, made->strides);
    kvs_tensor_scatter_options ring = KVS_TENSOR_SCATTER_OPTIONS_INIT;
    ring.mode = KVS_MODE_CIRCULAR;
    check(kvs_tensor_scatter_prepare(&ring, &cache, &update, &made->prepared));
}

/* Replaces the projections of a layer. Row r of sequence b is the token at position first[b] + r. */
static void project(int layer, const int64_t *first, int rows) {
    for (int b = 0; b < BATCH; b++)
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < HEADS * SIZE; i++) {
                size_t at = (size_t)((b * rows + r) * HEADS * SIZE + i);
                new_keys[at] = (float)(first[b] + r);
                new_values[at] = (float)(100 * layer) + new_keys[at];
            }
}

/* Writes the keys and the values of one layer, or neither of them. */
static void write_layer(const writer *with, const kvs_call *call, int layer) {
    const kvs_pair both[] = {
        {tensor(keys[layer], cache_shape, NULL), tensor(new_keys, with->shape, with->strides)},
        {tensor(values[layer], cache_shape, NULL), tensor(new_values, with->shape, with->strides)},
    };
    check(kvs_write_many(with->prepared, call, both, 2, NULL));
}

/* Prints the positions that the ring of each sequence contains, according to the keys of the last layer. */
static void show(const char *when) {
    printf("%s\n", when);
    for (int b = 0; b < BATCH; b++) {
        printf("  sequence %d ", b);
        for (int s = 0; s < SLOTS; s++) {
            float position = keys[LAYERS - 1][b][HEADS - 1][s][SIZE - 1];
            if (position < 0)
                printf("   .");
            else
                printf("%4.0f", (double)position);
        }
        putchar('\n');
    }
}

int main(void) {
    printf("kvscatter %s: %d layers, a ring of %d slots\n", kvs_version(), LAYERS, SLOTS);
    float *empty = &keys[0][0][0][0][0];
    for (size_t i = 0; i < sizeof keys / sizeof *empty; i++)
        empty[i] = -1;

    /* Prepare once per shape. */
    writer prefill, decode;
    writer_prepare(&prefill, PROMPT);
    writer_prepare(&decode, 1);

    /* The prompts have 5, 2 and 7 tokens. They are padded to 7 tokens, and the padding is never written. */
    int64_t positions[BATCH] = {0, 0, 0};
    const int64_t lengths[BATCH] = {5, 2, 7};
    kvs_call prompts = KVS_CALL_INIT;
    prompts.write_indices = (kvs_indices){positions, BATCH, 64};
    prompts.lengths = (kvs_indices){lengths, BATCH, 64};
    for (int layer = 0; layer < LAYERS; layer++) {
        project(layer, positions, PROMPT);
        write_layer(&prefill, &prompts, layer);
    }
    for (int b = 0; b < BATCH; b++)
        positions[b] = lengths[b];
    show("after the prompts: the position in each slot");

    /* At every step the positions increase by one. The library wraps them around the ring. */
    kvs_call step = KVS_CALL_INIT;
    step.write_indices = (kvs_indices){positions, BATCH, 64};
    for (int token = 0; token < STEPS; token++) {
        for (int layer = 0; layer < LAYERS; layer++) {
            project(layer, positions, 1);
            write_layer(&decode, &step, layer);
        }
        for (int b = 0; b < BATCH; b++)
            positions[b]++;
    }
    show("after four more tokens: sequences 0 and 2 have wrapped");

    /* A mistake is refused before anything is written, and the message explains it. */
    const int64_t wrong[BATCH] = {1, 1, 2};
    step.lengths = (kvs_indices){wrong, BATCH, 64};
    kvs_tensor cache = tensor(keys[0], cache_shape, NULL);
    kvs_tensor update = tensor(new_keys, decode.shape, decode.strides);
    kvs_status status = kvs_write(decode.prepared, &step, &cache, &update, NULL);
    kvs_error error = KVS_ERROR_INIT;
    check(kvs_last_error(&error));
    printf("refused: %s\n  %s\n", kvs_status_name(status), error.message);

    kvs_prepared_destroy(prefill.prepared);
    kvs_prepared_destroy(decode.prepared);
    return status == KVS_ERROR_LENGTH_OUT_OF_RANGE ? EXIT_SUCCESS : EXIT_FAILURE;
}
