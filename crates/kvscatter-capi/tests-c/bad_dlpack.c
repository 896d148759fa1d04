/* Tests DLPack tensors that this library must reject. */
#include "dlpack.h"
#include "spoilt.h"

#define COUNT(rows) (sizeof(rows) / sizeof *(rows))

static DLTensor cache_of(scene *s) {
    DLTensor made = {
        .data = s->cache.data,
        .device = {kDLCPU, 0},
        .ndim = 4,
        .dtype = {kDLFloat, 16, 1},
        .shape = s->cache_shape,
    };
    return made;
}

static kvs_status convert(const DLTensor *from) {
    kvs_tensor out = {.struct_size = sizeof out};
    return kvs_tensor_from_dlpack(from, &out);
}

static kvs_status null_tensor(scene *s) {
    (void)s;
    return convert(NULL);
}
static kvs_status null_out(scene *s) {
    DLTensor from = cache_of(s);
    return kvs_tensor_from_dlpack(&from, NULL);
}
static kvs_status out_size(scene *s) {
    DLTensor from = cache_of(s);
    kvs_tensor out = {.struct_size = 0};
    return kvs_tensor_from_dlpack(&from, &out);
}
static kvs_status misaligned(scene *s) {
    DLTensor from[2] = {cache_of(s), cache_of(s)};
    return convert((const DLTensor *)(const void *)((const char *)from + 4));
}
static kvs_status on_a_gpu(scene *s) {
    DLTensor from = cache_of(s);
    from.device.device_type = kDLCUDA;
    return convert(&from);
}
static kvs_status on_no_device(scene *s) {
    DLTensor from = cache_of(s);
    from.device.device_type = 0;
    return convert(&from);
}
static kvs_status type(scene *s, uint8_t code, uint8_t bits, uint16_t lanes) {
    DLTensor from = cache_of(s);
    from.dtype = (DLDataType){code, bits, lanes};
    return convert(&from);
}
static kvs_status handles(scene *s) { return type(s, kDLOpaqueHandle, 64, 1); }
static kvs_status float_of_24_bits(scene *s) { return type(s, kDLFloat, 24, 1); }
static kvs_status vectors(scene *s) { return type(s, kDLFloat, 16, 4); }
static kvs_status no_lane(scene *s) { return type(s, kDLFloat, 16, 0); }
static kvs_status code_255(scene *s) { return type(s, 255, 8, 1); }
static kvs_status negative_rank(scene *s) {
    DLTensor from = cache_of(s);
    from.ndim = -1;
    return convert(&from);
}
static kvs_status rank_17(scene *s) {
    DLTensor from = cache_of(s);
    from.ndim = 17;
    return convert(&from);
}
static kvs_status offset_of_null(scene *s) {
    DLTensor from = cache_of(s);
    from.data = NULL;
    from.byte_offset = 64;
    return convert(&from);
}
static kvs_status enormous_offset(scene *s) {
    DLTensor from = cache_of(s);
    from.byte_offset = UINT64_MAX;
    return convert(&from);
}

static const spoilt rows[] = {
    {"dl_tensor is NULL", KVS_ERROR_NULL_POINTER, "dl_tensor", null_tensor},
    {"out is NULL", KVS_ERROR_NULL_POINTER, "out", null_out},
    {"out without a struct_size", KVS_ERROR_STRUCT_SIZE, "out", out_size},
    {"a DLTensor at an odd address", KVS_ERROR_MISALIGNED, "dl_tensor", misaligned},
    {"a DLTensor on a GPU", KVS_ERROR_DEVICE, "device", on_a_gpu},
    {"a DLTensor on no device", KVS_ERROR_DEVICE, "device", on_no_device},
    {"opaque handles", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "dtype", handles},
    {"a float of 24 bits", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "dtype", float_of_24_bits},
    {"vectors of 4 lanes", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "dtype", vectors},
    {"vectors of no lane", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "dtype", no_lane},
    {"type code 255", KVS_ERROR_UNKNOWN_ELEMENT_TYPE, "dtype", code_255},
    {"-1 dimensions", KVS_ERROR_RANK_LIMIT, "dl_tensor", negative_rank},
    {"17 dimensions", KVS_ERROR_RANK_LIMIT, "dl_tensor", rank_17},
    {"an offset from NULL", KVS_ERROR_BYTE_OFFSET, "byte_offset", offset_of_null},
    {"an offset beyond memory", KVS_ERROR_BYTE_OFFSET, "byte_offset", enormous_offset},
};

size_t check_dlpack(void) { return check_spoilt(rows, COUNT(rows)); }
