/* Tests descriptions that the prepare functions must reject. */
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
static kvs_status types_differ(scene *s) {
    s->update.type = KVS_BFLOAT16;
    return prepare(s);
}
static kvs_status type_of_another_operator(scene *s) {
    s->cache.type = s->update.type = KVS_INT8;
    return kvs_kv_cache_update_prepare(NULL, &s->cache, &s->update, &s->out);
}

static kvs_status rank_17(scene *s) {
    s->cache.rank = s->update.rank = 17;
    return prepare(s);
}
static kvs_status enormous_rank(scene *s) {
    s->update.rank = UINT32_MAX;
    return prepare(s);
}
static kvs_status rank_1(scene *s) {
    s->cache.rank = s->update.rank = 1;
    return prepare(s);
}
static kvs_status rank_0(scene *s) {
    s->cache.rank = s->update.rank = 0;
    s->cache.shape = s->update.shape = NULL;
    return prepare(s);
}
static kvs_status ranks_differ(scene *s) {
    s->update.rank = 3;
    return prepare(s);
}
static kvs_status rank_of_another_operator(scene *s) {
    s->cache.rank = 3;
    return kvs_kv_cache_update_prepare(NULL, &s->cache, &s->update, &s->out);
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
static kvs_status dimensions_differ(scene *s) {
    s->update_shape[1] = 4;
    return prepare(s);
}
static kvs_status long_update(scene *s) {
    s->update_shape[2] = 9;
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

static kvs_status axis_4(scene *s) {
    s->options.axis = 4;
    return prepare(s);
}
static kvs_status least_axis(scene *s) {
    s->options.axis = INT64_MIN;
    return prepare(s);
}
static kvs_status batch_axis(scene *s) {
    s->options.axis = -4;
    return prepare(s);
}
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
static kvs_status hidden_size(scene *s) {
    s->update_shape[0] = s->cache_shape[1];
    return kvs_kv_cache_operation_prepare(NULL, &s->cache, &s->update, &s->out);
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
    {"element types differ", KVS_ERROR_ELEMENT_TYPE_MISMATCH, "update", types_differ},
    {"int8 for TensorRT", KVS_ERROR_ELEMENT_TYPE, "cache", type_of_another_operator},
    {"17 dimensions", KVS_ERROR_RANK_LIMIT, "past_cache", rank_17},
    {"2^32 - 1 dimensions", KVS_ERROR_RANK_LIMIT, "update", enormous_rank},
    {"1 dimension", KVS_ERROR_RANK_TOO_LOW, "past_cache", rank_1},
    {"no dimension", KVS_ERROR_RANK_TOO_LOW, "past_cache", rank_0},
    {"ranks differ", KVS_ERROR_RANK_MISMATCH, "update", ranks_differ},
    {"3 dimensions for TensorRT", KVS_ERROR_RANK, "cache", rank_of_another_operator},
    {"a negative dimension", KVS_ERROR_NEGATIVE_DIMENSION, "past_cache", negative_dimension},
    {"dimension INT64_MIN", KVS_ERROR_NEGATIVE_DIMENSION, "update", least_dimension},
    {"more elements than memory has", KVS_ERROR_TOO_LARGE, "past_cache", too_many_elements},
    {"more bytes than memory has", KVS_ERROR_TOO_LARGE, "past_cache", too_many_bytes},
    {"dimensions differ", KVS_ERROR_DIMENSION_MISMATCH, "update", dimensions_differ},
    {"more rows than slots", KVS_ERROR_UPDATE_LONGER_THAN_CACHE, "update", long_update},
    {"a broadcast cache", KVS_ERROR_CACHE_OVERLAPS_ITSELF, "past_cache", broadcast_cache},
    {"a cache whose rows meet", KVS_ERROR_CACHE_OVERLAPS_ITSELF, "past_cache", sliding_cache},
    {"a stride of INT64_MAX", KVS_ERROR_TOO_LARGE, "past_cache", far_strides},
    {"a stride of INT64_MIN", KVS_ERROR_TOO_LARGE, "past_cache", far_back},
    {"axis 4 of 4", KVS_ERROR_AXIS_OUT_OF_RANGE, "axis", axis_4},
    {"axis INT64_MIN", KVS_ERROR_AXIS_OUT_OF_RANGE, "axis", least_axis},
    {"the axis is the batch", KVS_ERROR_AXIS_IS_BATCH, "axis", batch_axis},
    {"mode 2", KVS_ERROR_UNKNOWN_OPTION, "mode", unknown_mode},
    {"out_of_range -1", KVS_ERROR_UNKNOWN_OPTION, "out_of_range", unknown_out_of_range},
    {"negative_index INT_MAX", KVS_ERROR_UNKNOWN_OPTION, "negative_index", unknown_negative_index},
    {"cache_mode 1", KVS_ERROR_UNKNOWN_OPTION, "cache_mode", unknown_cache_mode},
    {"update_form 2", KVS_ERROR_UNKNOWN_OPTION, "update_form", unknown_update_form},
    {"heads and head size of another model", KVS_ERROR_HIDDEN_SIZE, "newKv", hidden_size},
};

size_t check_prepare(void) { return check_spoilt(rows, COUNT(rows)); }
