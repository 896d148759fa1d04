/* Runs the cases of the generator through every function that executes them. It compares whole buffers bit
 * for bit, and errors exactly.
 *
 *     cases FILE [EVERY [exact]]
 *
 * runs every EVERY-th case. `exact` omits the guards around buffers, so that a tool that watches memory
 * detects accesses outside them. */
#include <string.h>

#include <kvscatter.h>

#include "blocks.h"
#include "case_file.h"
#include "check.h"
#include "memory.h"
#include "rules.h"

/* A case with its own copies of both buffers. */
typedef struct scene {
    const test_case *of;
    guarded cache, update;
    kvs_tensor cache_tensor, update_tensor;
} scene;

static kvs_tensor described(const case_tensor *tensor, guarded buffer) {
    kvs_tensor made = {
        .struct_size = sizeof made,
        .data = guarded_data(buffer) + tensor->origin * tensor->bits / 8,
        .type = tensor->type,
        .rank = tensor->rank,
        .shape = tensor->rank > 0 ? tensor->shape : NULL,
        .strides = tensor->dense ? NULL : tensor->strides,
    };
    return made;
}

static scene scene_of(const test_case *of, bool guards) {
    scene made = {.of = of};
    made.cache = guarded_copy(of->cache.buffer.data, of->cache.buffer.size, guards);
    made.update = guarded_copy(of->update.buffer.data, of->update.buffer.size, guards);
    made.cache_tensor = described(&of->cache, made.cache);
    made.update_tensor = described(&of->update, made.update);
    return made;
}

static void scene_free(scene *freed) {
    guarded_free(freed->cache);
    guarded_free(freed->update);
}

static kvs_status prepare(const test_case *of, const kvs_tensor *cache, const kvs_tensor *update,
                          kvs_prepared **out) {
    int32_t out_of_range = of->skip_sample ? KVS_OUT_OF_RANGE_SKIP_SAMPLE : KVS_OUT_OF_RANGE_ERROR;
    if (strcmp(of->operator_name, "TensorScatter") == 0) {
        kvs_tensor_scatter_options options = {
            .struct_size = sizeof options,
            .axis = of->axis,
            .mode = of->mode,
            .out_of_range = out_of_range,
            .negative_index = of->reject_negative ? KVS_NEGATIVE_INDEX_REJECT : KVS_NEGATIVE_INDEX_MODULO,
        };
        return kvs_tensor_scatter_prepare(&options, cache, update, out);
    }
    if (strcmp(of->operator_name, "KVCacheUpdate") == 0) {
        kvs_kv_cache_update_options options = {
            .struct_size = sizeof options,
            .cache_mode = KVS_CACHE_MODE_LINEAR,
            .update_form = of->packed ? KVS_UPDATE_FORM_PACKED_NHD : KVS_UPDATE_FORM_PADDED,
            .out_of_range = out_of_range,
        };
        return kvs_kv_cache_update_prepare(&options, cache, update, out);
    }
    kvs_kv_cache_operation_options options = {.struct_size = sizeof options, .out_of_range = out_of_range};
    return kvs_kv_cache_operation_prepare(&options, cache, update, out);
}

/* Compares the cache's buffer after a write with the oracle's. */
static void check_written(const scene *run, kvs_status status, const kvs_written *written, const char *how) {
    const test_case *of = run->of;
    CHECK(status == KVS_OK, "%s, %s: %s", of->name, how, kvs_status_name(status));
    CHECK(written->skipped == of->skipped, "%s, %s: %zu skipped", of->name, how, written->skipped);
    CHECK(guarded_holds(run->cache, of->in_place.data), "%s, %s", of->name, how);
    CHECK(guarded_holds(run->update, of->update.buffer.data), "%s, %s", of->name, how);
}

static void check_in_place(const test_case *of, const kvs_prepared *prepared, bool guards) {
    scene run = scene_of(of, guards);
    kvs_written written = {.struct_size = sizeof written};
    kvs_status status = kvs_write(prepared, &of->call, &run.cache_tensor, &run.update_tensor, &written);
    check_written(&run, status, &written, "in place");
    scene_free(&run);
}

/* Writes keys and values, which are two caches of one call. */
static void check_write_many(const test_case *of, const kvs_prepared *prepared, bool guards) {
    scene k = scene_of(of, guards), v = scene_of(of, guards);
    kvs_pair pairs[] = {{k.cache_tensor, k.update_tensor}, {v.cache_tensor, v.update_tensor}};
    kvs_written written = {.struct_size = sizeof written};
    kvs_status status = kvs_write_many(prepared, &of->call, pairs, 2, &written);
    check_written(&k, status, &written, "first of two");
    check_written(&v, status, &written, "second of two");
    scene_free(&k);
    scene_free(&v);
}

static void check_write_present(const test_case *of, const kvs_prepared *prepared, bool guards) {
    scene run = scene_of(of, guards);
    guarded present = guarded_new(of->present.size, guards);
    kvs_tensor tensor = run.cache_tensor;
    tensor.data = guarded_data(present);
    tensor.strides = NULL;
    kvs_written written = {.struct_size = sizeof written};
    kvs_status status =
        kvs_write_present(prepared, &of->call, &run.cache_tensor, &run.update_tensor, &tensor, &written);
    CHECK(status == KVS_OK, "%s: %s", of->name, kvs_status_name(status));
    CHECK(written.skipped == of->skipped, "%s: %zu skipped", of->name, written.skipped);
    CHECK(guarded_holds(present, of->present.data), "%s", of->name);
    CHECK(guarded_holds(run.cache, of->cache.buffer.data), "%s: the past changed", of->name);
    guarded_free(present);
    scene_free(&run);
}

static void check_blocks(const test_case *of, const kvs_prepared *prepared, bool guards) {
    scene run = scene_of(of, guards);
    block_copier copier = {
        .cache = guarded_data(run.cache),
        .update = guarded_data(run.update),
        .cache_origin = (ptrdiff_t)of->cache.origin,
        .update_origin = (ptrdiff_t)of->update.origin,
        .bits = of->cache.bits,
    };
    kvs_status status = kvs_for_each_block(prepared, &of->call, copy_block, &copier);
    CHECK(status == KVS_OK, "%s: %s", of->name, kvs_status_name(status));
    CHECK(guarded_holds(run.cache, of->in_place.data), "%s", of->name);
    scene_free(&run);
}

/* Checks the code and the thread's last error. */
static void check_error(const test_case *of, kvs_status status, const char *how) {
    const case_refusal *refusal = &of->refusal;
    kvs_status expected = status_of_rule(of);
    CHECK(status == expected, "%s, %s: %s, not %s", of->name, how, kvs_status_name(status),
          kvs_status_name(expected));
    kvs_error error = {.struct_size = sizeof error};
    CHECK(kvs_last_error(&error) == KVS_OK, "%s", of->name);
    CHECK(error.code == status, "%s: %s", of->name, kvs_status_name(error.code));
    CHECK(strlen(error.message) > 10, "%s: %s", of->name, error.message);
    if (refusal->argument[0] != '\0')
        CHECK(error.argument != NULL && strcmp(error.argument, refusal->argument) == 0, "%s: %s", of->name,
              error.message);
    if (refusal->has_index)
        CHECK((error.fields & KVS_ERROR_HAS_INDEX) != 0 && error.index == refusal->index, "%s: %s", of->name,
              error.message);
    if (refusal->has_value)
        CHECK((error.fields & KVS_ERROR_HAS_VALUE) != 0 && error.value == refusal->value, "%s: %s", of->name,
              error.message);
}

/* Checks that every way to execute the call returns the same error and changes nothing. */
static void check_refused(const test_case *of, const kvs_prepared *prepared, bool guards) {
    scene run = scene_of(of, guards);
    kvs_tensor *cache = &run.cache_tensor, *update = &run.update_tensor;
    guarded present = guarded_new(of->cache.buffer.size, guards),
            untouched = guarded_new(of->cache.buffer.size, guards);
    kvs_tensor tensor = *cache;
    tensor.data = guarded_data(present);
    tensor.strides = NULL;
    kvs_pair pair = {*cache, *update};
    block_copier copier = {.cache = guarded_data(run.cache), .update = guarded_data(run.update)};

    check_error(of, kvs_write(prepared, &of->call, cache, update, NULL), "in place");
    check_error(of, kvs_write_many(prepared, &of->call, &pair, 1, NULL), "many");
    check_error(of, kvs_write_present(prepared, &of->call, cache, update, &tensor, NULL), "functional");
    check_error(of, kvs_for_each_block(prepared, &of->call, copy_block, &copier), "blocks");
    CHECK(copier.blocks == 0, "%s: %zu blocks", of->name, copier.blocks);
    CHECK(guarded_holds(run.cache, of->cache.buffer.data), "%s: the cache changed", of->name);
    CHECK(guarded_holds(present, guarded_data(untouched)), "%s: the present changed", of->name);
    guarded_free(present);
    guarded_free(untouched);
    scene_free(&run);
}

/* Returns whether the case could be run. A few layouts of the generator need more loops than a block has. */
static bool check_case(const test_case *of, bool guards) {
    scene shapes = scene_of(of, guards);
    kvs_prepared *prepared = NULL;
    kvs_status status = prepare(of, &shapes.cache_tensor, &shapes.update_tensor, &prepared);
    bool strings = of->cache.type == KVS_STRING;
    bool too_many_loops = status == KVS_ERROR_TOO_MANY_LOOPS && !of->cache.dense && of->cache.rank > 4;
    if (too_many_loops) {
        CHECK(prepared == NULL, "%s", of->name);
    } else if (status != KVS_OK) {
        CHECK(prepared == NULL, "%s", of->name);
        check_error(of, status, "prepare");
        CHECK(guarded_holds(shapes.cache, of->cache.buffer.data), "%s", of->name);
    } else if (of->refusal.rule[0] != '\0') {
        check_refused(of, prepared, guards);
    } else {
        check_blocks(of, prepared, guards);
        if (!strings) {
            check_in_place(of, prepared, guards);
            check_write_many(of, prepared, guards);
            check_write_present(of, prepared, guards);
        }
    }
    kvs_prepared_destroy(prepared);
    scene_free(&shapes);
    return !too_many_loops;
}

int main(int argc, char **argv) {
    REQUIRE(argc >= 2 && argc <= 4, "usage: %s FILE [EVERY [exact]]", argv[0]);
    unsigned long every = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    bool guards = argc < 4;
    REQUIRE(every > 0, "EVERY = %s", argv[2]);
    case_file file = case_file_open(argv[1]);
    size_t tried = 0, checked = 0;
    for (size_t n = 0; n < file.cases; n++) {
        test_case next = case_file_next(&file);
        if (n % every == 0) {
            checked += check_case(&next, guards);
            tried++;
        }
        test_case_release(&next);
    }
    REQUIRE(file.at == file.size, "%zu bytes after the last case", file.size - file.at);
    case_file_close(&file);
    REQUIRE(20 * checked >= 19 * tried, "only %zu of %zu cases could be run", checked, tried);
    return verdict("cases", checked);
}
