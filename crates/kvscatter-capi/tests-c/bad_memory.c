/* Tests data at addresses that must be rejected. */
#include "check.h"
#include "spoilt.h"

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

static kvs_status in_place(scene *s) {
    return kvs_write(s->prepared, &s->call, &s->cache, &s->update, &s->written);
}
static kvs_status write_present(scene *s) {
    return kvs_write_present(s->prepared, &s->call, &s->cache, &s->update, &s->present, &s->written);
}
/* The invalid pair is the last one, and the pair before it must not change. */
static kvs_status many(scene *s) {
    const kvs_pair pairs[] = {s->other, {s->cache, s->update}};
    return kvs_write_many(s->prepared, &s->call, pairs, 2, &s->written);
}

static void *offset_by(const kvs_tensor *tensor, ptrdiff_t bytes) { return (char *)tensor->data + bytes; }

static kvs_status null_cache(scene *s) {
    s->cache.data = NULL;
    return run_everywhere(s);
}
static kvs_status null_update(scene *s) {
    s->update.data = NULL;
    return run_everywhere(s);
}
static kvs_status null_present(scene *s) {
    s->present.data = NULL;
    return write_present(s);
}
static kvs_status wrapped_cache(scene *s) {
    s->cache.data = (void *)(UINTPTR_MAX - 7);
    return run_everywhere(s);
}
static kvs_status wrapped_update(scene *s) {
    s->update.data = (void *)(UINTPTR_MAX - 7);
    return run_everywhere(s);
}
static kvs_status wrapped_present(scene *s) {
    s->present.data = (void *)(UINTPTR_MAX - 7);
    return write_present(s);
}
static kvs_status odd_cache(scene *s) {
    s->cache.data = offset_by(&s->cache, 1);
    return run_everywhere(s);
}
static kvs_status odd_update(scene *s) {
    s->update.data = offset_by(&s->update, 1);
    return run_everywhere(s);
}
static kvs_status odd_present(scene *s) {
    s->present.data = offset_by(&s->present, 1);
    return write_present(s);
}

static kvs_status update_is_the_cache(scene *s) {
    s->update.data = s->cache.data;
    return in_place(s);
}
static kvs_status update_begins_in_the_cache(scene *s) {
    s->update.data = offset_by(&s->cache, 2 * 3 * 8 * 4 * 2 - 2);
    return in_place(s);
}
static kvs_status update_ends_in_the_cache(scene *s) {
    s->update.data = offset_by(&s->cache, -(2 * 3 * 2 * 4 * 2) + 2);
    return in_place(s);
}
static kvs_status one_cache_twice(scene *s) {
    s->cache.data = s->other.cache.data;
    return many(s);
}
static kvs_status update_of_another_pair(scene *s) {
    s->update.data = s->other.cache.data;
    return many(s);
}
static kvs_status cache_is_an_update(scene *s) {
    s->cache.data = offset_by(&s->other.update, -8);
    return many(s);
}
static kvs_status present_is_past(scene *s) {
    s->present.data = s->cache.data;
    return write_present(s);
}
static kvs_status present_is_update(scene *s) {
    s->present.data = offset_by(&s->update, -16);
    return write_present(s);
}
static kvs_status indices_in_the_cache(scene *s) {
    int64_t *inside = offset_by(&s->cache, 8);
    s->call.write_indices.values = inside;
    inside[0] = inside[1] = 0;
    kvs_status status = in_place(s);
    CHECK(inside[0] == 0 && inside[1] == 0, "the indices were overwritten");
    /* As the scene was before. */
    for (int i = 8; i < 24; i++)
        *(uint8_t *)offset_by(&s->cache, i) = (uint8_t)(i % 251);
    return status;
}

static const spoilt rows[] = {
    {"the cache's data are NULL", KVS_ERROR_NULL_BUFFER, "past_cache", null_cache},
    {"the update's data are NULL", KVS_ERROR_NULL_BUFFER, "update", null_update},
    {"the present's data are NULL", KVS_ERROR_NULL_BUFFER, "present_cache", null_present},
    {"the cache ends beyond all addresses", KVS_ERROR_ADDRESS_SPACE, "past_cache", wrapped_cache},
    {"the update ends beyond all addresses", KVS_ERROR_ADDRESS_SPACE, "update", wrapped_update},
    {"the present ends beyond all addresses", KVS_ERROR_ADDRESS_SPACE, "present_cache", wrapped_present},
    {"float16 at an odd address, cache", KVS_ERROR_MISALIGNED, "past_cache", odd_cache},
    {"float16 at an odd address, update", KVS_ERROR_MISALIGNED, "update", odd_update},
    {"float16 at an odd address, present", KVS_ERROR_MISALIGNED, "present_cache", odd_present},
    {"the update is the cache", KVS_ERROR_OVERLAP, "past_cache", update_is_the_cache},
    {"the update begins in the cache", KVS_ERROR_OVERLAP, "past_cache", update_begins_in_the_cache},
    {"the update ends in the cache", KVS_ERROR_OVERLAP, "past_cache", update_ends_in_the_cache},
    {"one cache in two pairs", KVS_ERROR_OVERLAP, "past_cache", one_cache_twice},
    {"an update that another pair writes", KVS_ERROR_OVERLAP, "past_cache", update_of_another_pair},
    {"a cache that is another pair's update", KVS_ERROR_OVERLAP, "past_cache", cache_is_an_update},
    {"the present is the past", KVS_ERROR_OVERLAP, "present_cache", present_is_past},
    {"the present begins before the update", KVS_ERROR_OVERLAP, "present_cache", present_is_update},
    {"the indices are in the cache", KVS_ERROR_OVERLAP, "past_cache", indices_in_the_cache},
};

size_t check_memory(void) { return check_spoilt(rows, COUNT(rows)); }
