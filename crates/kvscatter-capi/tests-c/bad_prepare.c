/* Tests descriptions that the prepare functions must reject. `cases.c` tests those that break a rule of an
 * operator. */
#include <limits.h>

#include "spoilt.h"

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

static kvs_status prepare(scene *s) {
    return kvs_tensor_scatter_prepare(&s->options, &s->cache, &s->update, &s->out);
}

static kvs_status null_cache(scene *s) {
    return kvs_tensor_scatter_prepare(&s->options, NULL, &s->update, &s->out);
}
static kvs_status null_update(scene *s) {
    return kvs_tensor_scatter_prepare(&s->options, &s->cache, NULL, &s->out);
}
static kvs_status null_out(scene *s) {
    return kvs_tensor_scatter_prepare(&s->options, &s->cache, &s->update, NULL);
}

static kvs_status null_shape(scene *s) {
    s->cache.shape = NULL;
    return prepare(s);
}
static kvs_status misaligned_tensor(scene *s) {
    const kvs_tensor *cache = (const kvs_tensor *)(const void *)((const char *)&s->cache + 4);
    return kvs_tensor_scatter_prepare(&s->options, cache, &s->update, &s->out);
}
static kvs_status misaligned_shape(scene *s) {
    s->update.shape = (const int64_t *)(const void *)((const char *)s->update_shape + 2);
    return prepare(s);
}
static kvs_status misaligned_strides(scene *s) {
    s->cache.strides = (const int64_t *)(const void *)((const char *)s->strides + 1);
    return prepare(s);
}
static kvs_status no_cache_size(scene *s) {
    s->cache.struct_size = 0;
    return prepare(s);
}
static kvs_status small_update_size(scene *s) {
    s->update.struct_size = sizeof(kvs_tensor) - 1;
    return prepare(s);
}
static kvs_status small_options_size(scene *s) {
    s->options.struct_size = sizeof s->options - 8;
    return prepare(s);
}

static kvs_status type_0(scene *s) {
    s->cache.type = 0;
    return prepare(s);
}
static kvs_status type_25(scene *s) {
    s->update.type = 25;
    return prepare(s);
}
static kvs_status negative_type(scene *s) {
    s->cache.type = INT_MIN;
    return prepare(s);
}

static kvs_status rank_17(scene *s) {
    s->cache.rank = s->update.rank = 17;
    return prepare(s);
}
static kvs_status enormous_rank(scene *s) {
    s->update.rank = UINT32_MAX;
    return prepare(s);
}
static kvs_status rank_0(scene *s) {
    s->cache.rank = s->update.rank = 0;
    s->cache.shape = s->update.shape = NULL;
    return prepare(s);
}

static kvs_status negative_dimension(scene *s) {
    s->cache_shape[1] = -3;
    return prepare(s);
}
static kvs_status least_dimension(scene *s) {
    s->update_shape[3] = INT64_MIN;
    return prepare(s);
}
static kvs_status too_many_elements(scene *s) {
    s->cache_shape[0] = s->cache_shape[1] = INT64_MAX;
    return prepare(s);
}
static kvs_status too_many_bytes(scene *s) {
    s->cache_shape[0] = INT64_MAX / 64;
    return prepare(s);
}

static kvs_status strided(scene *s, int64_t a, int64_t b, int64_t c, int64_t d) {
    const int64_t strides[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        s->strides[i] = strides[i];
    s->cache.strides = s->strides;
    return prepare(s);
}
static kvs_status broadcast_cache(scene *s) { return strided(s, 0, 32, 4, 1); }
static kvs_status sliding_cache(scene *s) { return strided(s, 96, 32, 2, 1); }
static kvs_status far_strides(scene *s) { return strided(s, INT64_MAX, 32, 4, 1); }
static kvs_status far_back(scene *s) { return strided(s, INT64_MIN, 32, 4, 1); }

static kvs_status unknown_mode(scene *s) {
    s->options.mode = 2;
    return prepare(s);
}
static kvs_status unknown_out_of_range(scene *s) {
    s->options.out_of_range = -1;
    return prepare(s);
}
static kvs_status unknown_negative_index(scene *s) {
    s->options.negative_index = INT_MAX;
    return prepare(s);
}
static kvs_status unknown_cache_mode(scene *s) {
    kvs_kv_cache_update_options options = {.struct_size = sizeof options, .cache_mode = 1};
    return kvs_kv_cache_update_prepare(&options, &s->cache, &s->update, &s->out);
}
static kvs_status unknown_update_form(scene *s) {
    kvs_kv_cache_update_options options = {.struct_size = sizeof options, .update_form = 2};
    return kvs_kv_cache_update_prepare(&options, &s->cache, &s->update, &s->out);
}

static const spoilt rows[] = {
    {"past_cache is NULL", KVS_ERROR_NULL_POINTER, "past_cache", null_cache},
    {"update is NULL", KVS_ERROR_NULL_POINTER, "update", null_update},
    {"out is NULL", KVS_ERROR_NULL_POINTER, "out", null_out},
    {"a shape is NULL", KVS_ERROR_NULL_POINTER, "past_cache", null_shape},
    {"a tensor at an odd address", KVS_ERROR_MISALIGNED, "past_cache", misaligned_tensor},
    {"a shape at an odd address", KVS_ERROR_MISALIGNED, "update", misaligned_shape},
    {"strides at an odd address", KVS_ERROR_MISALIGNED, "past_cache", misaligned_strides},
    {"struct_size not set", KVS_ERROR_STRUCT_SIZE, "past_cache", no_cache_size},
    {"struct_size one too small", KVS_ERROR_STRUCT_SIZE, "update", small_update_size},
    {"options of an older header", KVS_ERROR_STRUCT_SIZE, "options", small_options_size},
    {"element type 0", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "past_cache", type_0},
    {"element type 25", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "update", type_25},
    {"element type INT_MIN", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "past_cache", negative_type},
    {"17 dimensions", KVS_ERROR_RANK_LIMIT, "past_cache", rank_17},
    {"2^32 - 1 dimensions", KVS_ERROR_RANK_LIMIT, "update", enormous_rank},
    {"no dimension", KVS_ERROR_RANK_TOO_LOW, "past_cache", rank_0},
    {"a negative dimension", KVS_ERROR_NEGATIVE_DIMENSION, "past_cache", negative_dimension},
    {"dimension INT64_MIN", KVS_ERROR_NEGATIVE_DIMENSION, "update", least_dimension},
    {"more elements than memory has", KVS_ERROR_TOO_LARGE, "past_cache", too_many_elements},
    {"more bytes than memory has", KVS_ERROR_TOO_LARGE, "past_cache", too_many_bytes},
    {"a broadcast cache", KVS_ERROR_CACHE_OVERLAPS_ITSELF, "past_cache", broadcast_cache},
    {"a cache whose rows meet", KVS_ERROR_CACHE_OVERLAPS_ITSELF, "past_cache", sliding_cache},
    {"a stride of INT64_MAX", KVS_ERROR_TOO_LARGE, "past_cache", far_strides},
    {"a stride of INT64_MIN", KVS_ERROR_TOO_LARGE, "past_cache", far_back},
    {"mode 2", KVS_ERROR_UNKNOWN_OPTION, "mode", unknown_mode},
    {"out_of_range -1", KVS_ERROR_UNKNOWN_OPTION, "out_of_range", unknown_out_of_range},
    {"negative_index INT_MAX", KVS_ERROR_UNKNOWN_OPTION, "negative_index", unknown_negative_index},
    {"cache_mode 1", KVS_ERROR_UNKNOWN_OPTION, "cache_mode", unknown_cache_mode},
    {"update_form 2", KVS_ERROR_UNKNOWN_OPTION, "update_form", unknown_update_form},
};

size_t check_prepare(void) { return check_spoilt(rows, COUNT(rows)); }
