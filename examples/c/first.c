/* Writes one token into a cache of four slots. */
#include <stdio.h>

#include <kvscatter.h>

/* Prints why the last function on this thread failed. */
static int failed(void) {
    kvs_error error = KVS_ERROR_INIT;
    kvs_last_error(&error);
    printf("refused: %s\n", error.message);
    return 1;
}

int main(void) {
    const int64_t cache_shape[] = {1, 4, 3};  /* batch, slots, features */
    const int64_t update_shape[] = {1, 1, 3}; /* one token */
    float data[12] = {0}, token[3] = {1, 2, 3};

    kvs_tensor cache = KVS_TENSOR_INIT, update = KVS_TENSOR_INIT;
    cache.type = KVS_FLOAT32, cache.rank = 3, cache.shape = cache_shape, cache.data = data;
    update.type = KVS_FLOAT32, update.rank = 3, update.shape = update_shape, update.data = token;

    kvs_prepared *write = NULL; /* Prepare once per shape. */
    if (kvs_tensor_scatter_prepare(NULL, &cache, &update, &write) != KVS_OK)
        return failed();

    int64_t position = 2; /* Run this part at every step. */
    kvs_call call = KVS_CALL_INIT;
    call.write_indices.values = &position;
    call.write_indices.count = 1;
    call.write_indices.bits = 64;
    if (kvs_write(write, &call, &cache, &update, NULL) != KVS_OK)
        return failed();
    for (int slot = 0; slot < 4; slot++)
        printf("slot %d: %g %g %g\n", slot, data[3 * slot], data[3 * slot + 1], data[3 * slot + 2]);

    position = 4; /* Slot 4 does not exist, so nothing is written. */
    if (kvs_write(write, &call, &cache, &update, NULL) != KVS_OK)
        failed();
    kvs_prepared_destroy(write);
    return 0;
}
