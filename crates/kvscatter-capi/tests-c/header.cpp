// Tests the header in C++17. It compiles without a warning, its macros initialise, and its functions link.
#include <cstdio>
#include <type_traits>

#include <kvscatter.h>

static_assert(std::is_trivial_v<kvs_tensor> && std::is_standard_layout_v<kvs_tensor>);
static_assert(std::is_trivial_v<kvs_call> && std::is_standard_layout_v<kvs_call>);
static_assert(std::is_trivial_v<kvs_error> && std::is_standard_layout_v<kvs_error>);
static_assert(KVS_MAX_RANK >= 8);

namespace {

// Throwing a status away would be a mistake, so this prints it.
int wrong(kvs_status status) {
    if (status == KVS_OK)
        return 0;
    kvs_error error = KVS_ERROR_INIT;
    kvs_last_error(&error);
    std::fprintf(stderr, "%s: %s\n", kvs_status_name(status), error.message);
    return 1;
}

} // namespace

int main() {
    const int64_t cache_shape[] = {1, 4, 1}, update_shape[] = {1, 2, 1}, starts[] = {-1};
    float data[] = {0, 0, 0, 0}, rows[] = {1, 2};
    kvs_tensor cache = KVS_TENSOR_INIT, update = KVS_TENSOR_INIT;
    cache.type = update.type = KVS_FLOAT32;
    cache.rank = update.rank = 3;
    cache.shape = cache_shape, update.shape = update_shape;
    cache.data = data, update.data = rows;
    kvs_tensor_scatter_options ring = KVS_TENSOR_SCATTER_OPTIONS_INIT;
    ring.mode = KVS_MODE_CIRCULAR;
    kvs_prepared *prepared = nullptr;
    int failed = wrong(kvs_tensor_scatter_prepare(&ring, &cache, &update, &prepared));
    kvs_call call = KVS_CALL_INIT;
    call.write_indices = {starts, 1, 64};
    kvs_written written = KVS_WRITTEN_INIT;
    failed += wrong(kvs_write(prepared, &call, &cache, &update, &written));
    kvs_prepared_destroy(prepared);

    kvs_kv_cache_update_options of_tensorrt = KVS_KV_CACHE_UPDATE_OPTIONS_INIT;
    kvs_kv_cache_operation_options of_ascend = KVS_KV_CACHE_OPERATION_OPTIONS_INIT;
    const int64_t shape[] = {1, 1, 4, 1};
    cache.rank = update.rank = 4;
    cache.shape = update.shape = shape;
    failed += wrong(kvs_kv_cache_update_prepare(&of_tensorrt, &cache, &update, &prepared));
    kvs_prepared_destroy(prepared);
    cache.type = update.type = KVS_FLOAT16;
    const int64_t tokens[] = {4, 1};
    update.rank = 2;
    update.shape = tokens;
    failed += wrong(kvs_kv_cache_operation_prepare(&of_ascend, &cache, &update, &prepared));
    kvs_prepared_destroy(prepared);

    // The write filled the last slot of the ring and its first slot.
    if (data[3] != 1 || data[0] != 2 || data[1] != 0 || written.skipped != 0)
        failed++;
    std::printf("the header in C++: %d failed\n", failed);
    return failed;
}
