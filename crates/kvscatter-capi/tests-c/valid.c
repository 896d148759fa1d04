/* Tests unusual input that is valid. */
#include <string.h>

#include "check.h"
#include "dlpack.h"
#include "spoilt.h"

static kvs_status in_place(scene *s) {
    return kvs_write(s->prepared, &s->call, &s->cache, &s->update, &s->written);
}

static void check_versions(void) {
    CHECK(kvs_abi_version() == KVS_ABI_VERSION, "%u", kvs_abi_version());
    CHECK(strcmp(kvs_version(), KVS_TESTS_VERSION) == 0, "%s", kvs_version());
    CHECK(strcmp(kvs_status_name(KVS_OK), "KVS_OK") == 0, "%s", kvs_status_name(KVS_OK));
    CHECK(strcmp(kvs_status_name(-5), "unknown") == 0, "%s", kvs_status_name(-5));
}

/* Everything that is optional is left out. */
static void check_defaults(void) {
    scene run;
    scene_set(&run);
    kvs_prepared_destroy(NULL);
    kvs_status status = kvs_tensor_scatter_prepare(NULL, &run.cache, &run.update, &run.out);
    CHECK(status == KVS_OK, "%s", kvs_status_name(status));
    run.call.write_indices = (kvs_indices){NULL, 0, 0};
    CHECK(kvs_write(run.out, &run.call, &run.cache, &run.update, NULL) == KVS_OK,
          "no indices, no written");
    CHECK(memcmp(run.cache.data, run.update.data, 2 * 4 * 2) == 0, "two rows at slot 0");
    CHECK(kvs_write_many(run.prepared, &run.call, NULL, 0, &run.written) == KVS_OK, "no pairs");
    kvs_prepared_destroy(run.out);
    scene_clear(&run);
}

/* Structs of a later header are longer. Dense strides mean the same as NULL. */
static void check_longer_structs(void) {
    scene run;
    scene_set(&run);
    struct {
        kvs_call call;
        char added_later[64];
    } longer;
    memset(&longer, 0xFF, sizeof longer);
    longer.call = run.call;
    longer.call.struct_size = sizeof longer;
    run.cache.struct_size = run.update.struct_size = sizeof(kvs_tensor) + 8;
    const int64_t strides[] = {96, 32, 4, 1};
    run.cache.strides = strides;
    kvs_status status = kvs_write(run.prepared, &longer.call, &run.cache, &run.update, &run.written);
    CHECK(status == KVS_OK, "%s", kvs_status_name(status));
    CHECK(run.written.skipped == 0, "%zu", run.written.skipped);
    scene_clear(&run);
}

/* A tensor without elements has no address. */
static void check_empty(void) {
    scene run;
    scene_set(&run);
    kvs_prepared_destroy(run.prepared);
    run.update_shape[2] = 0;
    kvs_status status = kvs_tensor_scatter_prepare(&run.options, &run.cache, &run.update, &run.prepared);
    CHECK(status == KVS_OK, "%s", kvs_status_name(status));
    run.update.data = NULL;
    CHECK(in_place(&run) == KVS_OK, "an update without rows at NULL");
    kvs_prepared_destroy(run.prepared);

    run.cache_shape[0] = run.update_shape[0] = 0;
    status = kvs_tensor_scatter_prepare(&run.options, &run.cache, &run.update, &run.prepared);
    CHECK(status == KVS_OK, "%s", kvs_status_name(status));
    run.cache.data = run.present.data = NULL;
    run.call.write_indices = (kvs_indices){NULL, 0, 64};
    CHECK(in_place(&run) == KVS_OK, "a cache without samples at NULL");
    status = kvs_write_present(run.prepared, &run.call, &run.cache, &run.update, &run.present, NULL);
    CHECK(status == KVS_OK, "%s", kvs_status_name(status));
    scene_clear(&run);
}

/* The same tensor through DLPack, reversed along its last dimension and at an offset. */
static void check_dlpack_tensor(void) {
    uint16_t cache[8] = {0}, update[4] = {1, 2, 3, 4};
    int64_t cache_shape[] = {1, 4, 2}, update_shape[] = {1, 2, 2}, reversed[] = {4, 2, -1};
    DLTensor dl_cache = {cache, {kDLCPU, 0}, 3, {kDLFloat, 16, 1}, cache_shape, NULL, 0};
    DLTensor dl_update = {update, {kDLCPU, 0}, 3, {kDLFloat, 16, 1}, update_shape, reversed, sizeof *update};
    kvs_tensor to = {.struct_size = sizeof to}, from = {.struct_size = sizeof from};
    CHECK(kvs_tensor_from_dlpack(&dl_cache, &to) == KVS_OK, "cache");
    CHECK(kvs_tensor_from_dlpack(&dl_update, &from) == KVS_OK, "update");
    CHECK(from.rank == 3 && from.strides == reversed && to.strides == NULL, "rank and strides");
    DLTensor dl_empty = {NULL, {kDLCPU, 0}, 3, {kDLFloat, 16, 1}, cache_shape, NULL, 0};
    kvs_tensor empty = {.struct_size = sizeof empty};
    CHECK(kvs_tensor_from_dlpack(&dl_empty, &empty) == KVS_OK && empty.data == NULL, "no memory");
    kvs_prepared *prepared = NULL;
    REQUIRE(kvs_tensor_scatter_prepare(NULL, &to, &from, &prepared) == KVS_OK, "prepare");
    const int32_t start = 1;
    kvs_call call = {.struct_size = sizeof call, .write_indices = {&start, 1, 32}};
    CHECK(kvs_write(prepared, &call, &to, &from, NULL) == KVS_OK, "run");
    const uint16_t expected[8] = {0, 0, 2, 1, 4, 3, 0, 0};
    CHECK(memcmp(cache, expected, sizeof cache) == 0, "%d %d %d %d", cache[2], cache[3], cache[4], cache[5]);
    kvs_prepared_destroy(prepared);
}

/* A skipped sample is counted and does not change, in every way to run the call. */
static void check_skipped(void) {
    scene run;
    scene_set(&run);
    kvs_prepared_destroy(run.prepared);
    run.options.out_of_range = KVS_OUT_OF_RANGE_SKIP_SAMPLE;
    kvs_status status = kvs_tensor_scatter_prepare(&run.options, &run.cache, &run.update, &run.prepared);
    CHECK(status == KVS_OK, "%s", kvs_status_name(status));
    run.starts[1] = INT64_MIN;
    CHECK(run_everywhere(&run) == KVS_OK, "run");
    CHECK(run.written.skipped == 1, "%zu", run.written.skipped);
    scene_clear(&run);
}

int main(void) {
    void (*const checks[])(void) = {check_versions, check_defaults,      check_longer_structs,
                                    check_empty,    check_dlpack_tensor, check_skipped};
    size_t count = sizeof checks / sizeof *checks;
    for (size_t i = 0; i < count; i++)
        checks[i]();
    return verdict("kinds of odd input", count);
}
