/* Tests calls that the run functions must reject because of their arguments or of tensors that differ from
 * the prepared ones. `cases.c` tests calls that break a rule of an operator. */
#include "spoilt.h"

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

static kvs_status null_prepared(scene *s) {
    return kvs_write(NULL, &s->call, &s->cache, &s->update, &s->written);
}
static kvs_status null_call(scene *s) {
    return kvs_write(s->prepared, NULL, &s->cache, &s->update, &s->written);
}
static kvs_status null_cache(scene *s) {
    return kvs_write(s->prepared, &s->call, NULL, &s->update, &s->written);
}
static kvs_status null_update(scene *s) {
    return kvs_write_present(s->prepared, &s->call, &s->cache, NULL, &s->present, &s->written);
}
static kvs_status null_present(scene *s) {
    return kvs_write_present(s->prepared, &s->call, &s->cache, &s->update, NULL, &s->written);
}
static kvs_status null_pairs(scene *s) {
    return kvs_write_many(s->prepared, &s->call, NULL, 2, &s->written);
}
/* These are rejected without being read, because they would end outside the address space. */
static kvs_status call_beyond_memory(scene *s) {
    return kvs_write(s->prepared, (const kvs_call *)(UINTPTR_MAX - 7), &s->cache, &s->update, &s->written);
}
static kvs_status tensor_beyond_memory(scene *s) {
    return kvs_write(s->prepared, &s->call, (const kvs_tensor *)(UINTPTR_MAX - 7), &s->update, &s->written);
}
static kvs_status pairs_beyond_memory(scene *s) {
    return kvs_write_many(s->prepared, &s->call, (const kvs_pair *)(UINTPTR_MAX - 7), 1, &s->written);
}
static kvs_status null_visitor(scene *s) { return kvs_for_each_block(s->prepared, &s->call, NULL, NULL); }
static kvs_status null_indices(scene *s) {
    s->call.write_indices.values = NULL;
    return run_everywhere(s);
}
static kvs_status null_broadcast(scene *s) {
    const kvs_executor executor = {NULL, NULL};
    s->call.executor = &executor;
    return run_everywhere(s);
}

static kvs_status call_size(scene *s) {
    s->call.struct_size = 0;
    return run_everywhere(s);
}
static kvs_status tensor_size(scene *s) {
    s->cache.struct_size--;
    return run_everywhere(s);
}
/* In an array, a struct must not be larger than the library knows. */
static kvs_status larger_tensor_of_a_pair(scene *s) {
    const kvs_pair pair = {s->cache, s->update};
    kvs_pair pairs[] = {s->other, pair};
    pairs[1].update.struct_size++;
    return kvs_write_many(s->prepared, &s->call, pairs, 2, &s->written);
}
static kvs_status written_size(scene *s) {
    kvs_written written = {.struct_size = 8, .skipped = 0};
    return kvs_write(s->prepared, &s->call, &s->cache, &s->update, &written);
}
static kvs_status misaligned_call(scene *s) {
    const kvs_call *call = (const kvs_call *)(const void *)((const char *)&s->call + 1);
    return kvs_write(s->prepared, call, &s->cache, &s->update, &s->written);
}
static kvs_status misaligned_indices(scene *s) {
    s->call.write_indices.values = (const char *)s->starts + 4;
    return run_everywhere(s);
}
static kvs_status narrow_misaligned_indices(scene *s) {
    s->call.write_indices.values = (const char *)s->starts + 2;
    s->call.write_indices.bits = 32;
    return run_everywhere(s);
}
static kvs_status indices_of_16_bits(scene *s) {
    s->call.write_indices.bits = 16;
    return run_everywhere(s);
}
static kvs_status indices_without_width(scene *s) {
    s->call.write_indices.bits = 0;
    return run_everywhere(s);
}
static kvs_status enormous_count(scene *s) {
    s->call.write_indices.count = SIZE_MAX;
    return run_everywhere(s);
}
static kvs_status unexpected_argument(scene *s) {
    s->call.seq_len = s->call.write_indices;
    return run_everywhere(s);
}
static kvs_status unexpected_empty_argument(scene *s) {
    s->call.layer_id = (kvs_indices){s->starts, 0, 32};
    return run_everywhere(s);
}

static kvs_status another_type(scene *s) {
    s->cache.type = KVS_BFLOAT16;
    return run_everywhere(s);
}
static kvs_status no_type(scene *s) {
    s->update.type = 99;
    return run_everywhere(s);
}
static kvs_status another_rank(scene *s) {
    s->update.rank = 3;
    return run_everywhere(s);
}
static kvs_status enormous_rank(scene *s) {
    s->cache.rank = UINT32_MAX;
    return run_everywhere(s);
}
static kvs_status another_dimension(scene *s) {
    s->update_shape[2] = 1;
    return kvs_write(s->prepared, &s->call, &s->cache, &s->update, &s->written);
}
static kvs_status negative_dimension(scene *s) {
    s->cache_shape[2] = -8;
    return kvs_write(s->prepared, &s->call, &s->cache, &s->update, &s->written);
}
static kvs_status null_shape(scene *s) {
    s->cache.shape = NULL;
    return run_everywhere(s);
}
static kvs_status another_stride(scene *s) {
    static const int64_t strides[] = {24, 8, 4, -1};
    s->update.strides = strides;
    return run_everywhere(s);
}
static kvs_status present_of_another_shape(scene *s) {
    static const int64_t shape[] = {2, 3, 8, 5};
    s->present.shape = shape;
    return kvs_write_present(s->prepared, &s->call, &s->cache, &s->update, &s->present, &s->written);
}
static kvs_status strided_present(scene *s) {
    static const int64_t strides[] = {96, 32, 1, 8};
    s->present.strides = strides;
    return kvs_write_present(s->prepared, &s->call, &s->cache, &s->update, &s->present, &s->written);
}

static int32_t stop(void *user, const kvs_block *block) {
    (void)user;
    return block->len > 0 ? 42 : 0;
}
static kvs_status stopped(scene *s) { return kvs_for_each_block(s->prepared, &s->call, stop, NULL); }

static const spoilt rows[] = {
    {"prepared is NULL", KVS_ERROR_NULL_POINTER, "prepared", null_prepared},
    {"call is NULL", KVS_ERROR_NULL_POINTER, "call", null_call},
    {"cache is NULL", KVS_ERROR_NULL_POINTER, "past_cache", null_cache},
    {"update is NULL", KVS_ERROR_NULL_POINTER, "update", null_update},
    {"present is NULL", KVS_ERROR_NULL_POINTER, "present_cache", null_present},
    {"pairs are NULL", KVS_ERROR_NULL_POINTER, "pairs", null_pairs},
    {"a call beyond all addresses", KVS_ERROR_ADDRESS_SPACE, "call", call_beyond_memory},
    {"a tensor beyond all addresses", KVS_ERROR_ADDRESS_SPACE, "past_cache", tensor_beyond_memory},
    {"pairs beyond all addresses", KVS_ERROR_ADDRESS_SPACE, "pairs", pairs_beyond_memory},
    {"visit is NULL", KVS_ERROR_NULL_POINTER, "visit", null_visitor},
    {"indices are NULL", KVS_ERROR_NULL_POINTER, "write_indices", null_indices},
    {"broadcast is NULL", KVS_ERROR_NULL_POINTER, "executor.broadcast", null_broadcast},
    {"a shape is NULL", KVS_ERROR_NULL_POINTER, "past_cache", null_shape},
    {"call without a struct_size", KVS_ERROR_STRUCT_SIZE, "call", call_size},
    {"struct_size one too small", KVS_ERROR_STRUCT_SIZE, "past_cache", tensor_size},
    {"a larger tensor in a pair", KVS_ERROR_STRUCT_SIZE, "update", larger_tensor_of_a_pair},
    {"written of 8 bytes", KVS_ERROR_STRUCT_SIZE, "written", written_size},
    {"a call at an odd address", KVS_ERROR_MISALIGNED, "call", misaligned_call},
    {"indices at 4 modulo 8", KVS_ERROR_MISALIGNED, "write_indices", misaligned_indices},
    {"indices at 2 modulo 4", KVS_ERROR_MISALIGNED, "write_indices", narrow_misaligned_indices},
    {"indices of 16 bits", KVS_ERROR_INDEX_WIDTH, "write_indices", indices_of_16_bits},
    {"indices of no width", KVS_ERROR_INDEX_WIDTH, "write_indices", indices_without_width},
    {"more indices than memory has", KVS_ERROR_TOO_LARGE, "write_indices", enormous_count},
    {"seq_len for ONNX", KVS_ERROR_UNEXPECTED_ARGUMENT, "seq_len", unexpected_argument},
    {"an empty layer_id for ONNX", KVS_ERROR_UNEXPECTED_ARGUMENT, "layer_id", unexpected_empty_argument},
    {"another type", KVS_ERROR_TENSOR_MISMATCH, "past_cache", another_type},
    {"a type that is none", KVS_ERROR_TENSOR_MISMATCH, "update", no_type},
    {"another rank", KVS_ERROR_TENSOR_MISMATCH, "update", another_rank},
    {"2^32 - 1 dimensions", KVS_ERROR_TENSOR_MISMATCH, "past_cache", enormous_rank},
    {"another dimension", KVS_ERROR_TENSOR_MISMATCH, "update", another_dimension},
    {"a negative dimension", KVS_ERROR_TENSOR_MISMATCH, "past_cache", negative_dimension},
    {"another stride", KVS_ERROR_TENSOR_MISMATCH, "update", another_stride},
    {"a present of another shape", KVS_ERROR_TENSOR_MISMATCH, "present_cache", present_of_another_shape},
    {"a strided present", KVS_ERROR_TENSOR_MISMATCH, "present_cache", strided_present},
    {"the visitor stops", KVS_ERROR_STOPPED, "visit", stopped},
};

size_t check_run(void) { return check_spoilt(rows, COUNT(rows)); }
