#include "spoilt.h"

#include <string.h>

#include "check.h"

enum { CACHE_BYTES = 2 * 3 * 8 * 4 * 2, UPDATE_BYTES = 2 * 3 * 2 * 4 * 2 };

static kvs_tensor float16(guarded buffer, const int64_t *shape) {
    kvs_tensor made = {.struct_size = sizeof made,
                       .data = guarded_data(buffer),
                       .type = KVS_FLOAT16,
                       .rank = 4,
                       .shape = shape};
    return made;
}

void scene_set(scene *empty) {
    static const int64_t cache_shape[17] = {2, 3, 8, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const size_t sizes[5] = {CACHE_BYTES, UPDATE_BYTES, CACHE_BYTES, CACHE_BYTES, UPDATE_BYTES};
    memset(empty, 0, sizeof *empty);
    for (size_t i = 0; i < 5; i++) {
        empty->memory[i] = guarded_new(sizes[i], true);
        for (size_t j = 0; j < sizes[i]; j++)
            guarded_data(empty->memory[i])[j] = (uint8_t)(j % 251 + i);
    }
    memcpy(empty->cache_shape, cache_shape, sizeof cache_shape);
    memcpy(empty->update_shape, cache_shape, sizeof cache_shape);
    empty->update_shape[2] = 2;
    empty->starts[0] = 1;
    empty->starts[1] = 6;
    empty->options = (kvs_tensor_scatter_options){.struct_size = sizeof empty->options, .axis = 2};
    empty->cache = float16(empty->memory[0], empty->cache_shape);
    empty->update = float16(empty->memory[1], empty->update_shape);
    empty->present = float16(empty->memory[2], empty->cache_shape);
    empty->other = (kvs_pair){float16(empty->memory[3], empty->cache_shape),
                              float16(empty->memory[4], empty->update_shape)};
    empty->call = (kvs_call){.struct_size = sizeof empty->call, .write_indices = {empty->starts, 2, 64}};
    empty->written = (kvs_written){.struct_size = sizeof empty->written, .skipped = 77};
    kvs_status status =
        kvs_tensor_scatter_prepare(&empty->options, &empty->cache, &empty->update, &empty->prepared);
    REQUIRE(status == KVS_OK, "%s", kvs_status_name(status));
}

void scene_clear(scene *set) {
    kvs_prepared_destroy(set->prepared);
    for (size_t i = 0; i < 5; i++)
        guarded_free(set->memory[i]);
}

static bool unchanged(const scene *run) {
    scene fresh;
    scene_set(&fresh);
    bool same = run->written.skipped == fresh.written.skipped && run->out == NULL;
    for (size_t i = 0; i < 5; i++)
        same = same && guarded_holds(run->memory[i], guarded_data(fresh.memory[i]));
    scene_clear(&fresh);
    return same;
}

kvs_status run_everywhere(scene *spoilt) {
    const kvs_pair pairs[] = {spoilt->other, {spoilt->cache, spoilt->update}};
    const kvs_prepared *prepared = spoilt->prepared;
    const kvs_call *call = &spoilt->call;
    kvs_status functional =
        kvs_write_present(prepared, call, &spoilt->cache, &spoilt->update, &spoilt->present, &spoilt->written);
    kvs_status of_many = kvs_write_many(prepared, call, pairs, 2, &spoilt->written);
    kvs_status in_place = kvs_write(prepared, call, &spoilt->cache, &spoilt->update, &spoilt->written);
    CHECK(functional == in_place, "%s, %s", kvs_status_name(functional), kvs_status_name(in_place));
    CHECK(of_many == in_place, "%s, %s", kvs_status_name(of_many), kvs_status_name(in_place));
    return in_place;
}

size_t check_spoilt(const spoilt *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const spoilt *row = &rows[i];
        scene run;
        scene_set(&run);
        kvs_status status = row->call(&run);
        CHECK(status == row->status, "%s: %s", row->name, kvs_status_name(status));
        kvs_error error = {.struct_size = sizeof error};
        CHECK(kvs_last_error(&error) == KVS_OK, "%s", row->name);
        CHECK(error.code == row->status, "%s: %s", row->name, kvs_status_name(error.code));
        CHECK(strlen(error.message) > 10, "%s: \"%s\"", row->name, error.message);
        if (row->argument == NULL)
            CHECK(error.argument == NULL, "%s: %s", row->name, error.argument);
        else
            CHECK(error.argument != NULL && strcmp(error.argument, row->argument) == 0, "%s: %s: %s",
                  row->name, error.argument != NULL ? error.argument : "no argument", error.message);
        CHECK(unchanged(&run), "%s: something was written", row->name);
        if (getenv("KVS_TESTS_PRINT") != NULL)
            printf("%-40s %-34s %s\n", row->name, kvs_status_name(status), error.message);
        scene_clear(&run);
    }
    return count;
}
