#include "case_file.h"

#include <string.h>

#include "check.h"

static bytes take(case_file *file, size_t size) {
    REQUIRE(size <= file->size - file->at, "the file ends at %zu", file->at);
    bytes taken = {file->content + file->at, size};
    file->at += size;
    return taken;
}

static int64_t number(case_file *file) {
    const uint8_t *data = take(file, 8).data;
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | data[i];
    return (int64_t)value;
}

static size_t size(case_file *file) {
    int64_t value = number(file);
    REQUIRE(value >= 0, "%lld at %zu", (long long)value, file->at);
    return (size_t)value;
}

static bytes run(case_file *file) { return take(file, size(file)); }

static void text(case_file *file, char *out, size_t room) {
    bytes read = run(file);
    REQUIRE(read.size < room, "a text of %zu bytes at %zu", read.size, file->at);
    if (read.size > 0)
        memcpy(out, read.data, read.size);
    out[read.size] = '\0';
}

/* Reads numbers into an array with room for KVS_MAX_RANK of them. */
static uint32_t dimensions(case_file *file, int64_t *out) {
    size_t rank = size(file);
    REQUIRE(rank <= KVS_MAX_RANK, "rank %zu at %zu", rank, file->at);
    for (size_t i = 0; i < rank; i++)
        out[i] = number(file);
    return (uint32_t)rank;
}

/* The memory has exactly the size of the indices, so that tools detect reads beyond its end. */
static kvs_indices indices(case_file *file) {
    int32_t bits = (int32_t)number(file);
    size_t count = size(file);
    kvs_indices read = {NULL, count, bits};
    if (bits == 0)
        return read;
    size_t width = (size_t)bits / 8;
    unsigned char *values = malloc(count > 0 ? count * width : 1);
    REQUIRE(values != NULL, "%zu indices", count);
    for (size_t i = 0; i < count; i++) {
        int64_t value = number(file);
        int32_t narrow = (int32_t)value;
        memcpy(values + i * width, bits == 32 ? (void *)&narrow : (void *)&value, width);
    }
    read.values = values;
    return read;
}

/* Maps the names inside ONNX's tensor(...) to the types of the header. */
static kvs_element_type element_type(const char *name) {
    static const struct {
        const char *name;
        kvs_element_type type;
    } types[] = {
        {"float", KVS_FLOAT32},
        {"uint8", KVS_UINT8},
        {"int8", KVS_INT8},
        {"uint16", KVS_UINT16},
        {"int16", KVS_INT16},
        {"int32", KVS_INT32},
        {"int64", KVS_INT64},
        {"string", KVS_STRING},
        {"bool", KVS_BOOL},
        {"float16", KVS_FLOAT16},
        {"double", KVS_FLOAT64},
        {"uint32", KVS_UINT32},
        {"uint64", KVS_UINT64},
        {"complex64", KVS_COMPLEX64},
        {"complex128", KVS_COMPLEX128},
        {"bfloat16", KVS_BFLOAT16},
        {"float8e4m3fn", KVS_FLOAT8E4M3FN},
        {"float8e4m3fnuz", KVS_FLOAT8E4M3FNUZ},
        {"float8e5m2", KVS_FLOAT8E5M2},
        {"float8e5m2fnuz", KVS_FLOAT8E5M2FNUZ},
        {"uint4", KVS_UINT4},
        {"int4", KVS_INT4},
        {"float4e2m1", KVS_FLOAT4E2M1},
        {"float8e8m0", KVS_FLOAT8E8M0},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].type;
    REQUIRE(false, "element type %s", name);
    return 0;
}

static case_tensor tensor(case_file *file) {
    case_tensor read;
    char type[24];
    text(file, type, sizeof type);
    read.type = element_type(type);
    read.bits = size(file);
    read.rank = dimensions(file, read.shape);
    read.dense = dimensions(file, read.strides) == 0;
    read.origin = size(file);
    read.buffer = run(file);
    return read;
}

static case_refusal refusal(case_file *file) {
    case_refusal read = {.rule = ""};
    text(file, read.rule, sizeof read.rule);
    if (read.rule[0] == '\0')
        return read;
    text(file, read.argument, sizeof read.argument);
    read.has_index = number(file) != 0;
    read.index = number(file);
    read.has_value = number(file) != 0;
    read.value = number(file);
    return read;
}

case_file case_file_open(const char *path) {
    FILE *stream = fopen(path, "rb");
    REQUIRE(stream != NULL, "%s", path);
    REQUIRE(fseek(stream, 0, SEEK_END) == 0, "%s", path);
    long end = ftell(stream);
    REQUIRE(end > 0, "%s is empty", path);
    rewind(stream);
    case_file file = {malloc((size_t)end), (size_t)end, 0, 0};
    REQUIRE(file.content != NULL && fread(file.content, 1, file.size, stream) == file.size, "%s", path);
    fclose(stream);
    REQUIRE(memcmp(take(&file, 8).data, "KVSCASE1", 8) == 0, "%s is no file of cases", path);
    file.cases = size(&file);
    return file;
}

void case_file_close(case_file *file) { free(file->content); }

test_case case_file_next(case_file *file) {
    test_case read = {.call = {.struct_size = sizeof(kvs_call)}};
    text(file, read.name, sizeof read.name);
    text(file, read.operator_name, sizeof read.operator_name);
    read.axis = number(file);
    read.mode = (int32_t)number(file);
    read.skip_sample = number(file) != 0;
    read.reject_negative = number(file) != 0;
    read.packed = number(file) != 0;
    read.call.write_indices = indices(file);
    read.call.lengths = indices(file);
    read.call.update_lengths = indices(file);
    read.call.layer_id = indices(file);
    read.call.token_offset = indices(file);
    read.call.seq_len = indices(file);
    read.cache = tensor(file);
    read.update = tensor(file);
    read.refusal = refusal(file);
    if (read.refusal.rule[0] == '\0') {
        read.skipped = size(file);
        read.in_place = run(file);
        read.present = run(file);
    }
    return read;
}

void test_case_release(test_case *released) {
    const kvs_indices all[] = {
        released->call.write_indices, released->call.lengths,      released->call.update_lengths,
        released->call.layer_id,      released->call.token_offset, released->call.seq_len,
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free((void *)all[i].values);
}
