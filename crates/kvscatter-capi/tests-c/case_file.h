/* Reads the file that the case generator writes. `crates/kvscatter-oracle/examples/export-cases.rs` documents
 * its format. */
#ifndef KVS_TESTS_CASE_FILE_H
#define KVS_TESTS_CASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvscatter.h>

/* Bytes inside the loaded file. */
typedef struct bytes {
    const uint8_t *data;
    size_t size;
} bytes;

/* A tensor inside a buffer. */
typedef struct case_tensor {
    kvs_element_type type;
    size_t bits; /* of a stored element */
    uint32_t rank;
    int64_t shape[KVS_MAX_RANK];
    int64_t strides[KVS_MAX_RANK];
    bool dense;    /* without strides */
    size_t origin; /* of element [0, 0, ...] in the buffer, in elements */
    bytes buffer;
} case_tensor;

/* The error of a call. `rule` is empty if the call is valid. */
typedef struct case_refusal {
    char rule[32];
    char argument[32]; /* empty where the oracle does not know it */
    bool has_index, has_value;
    int64_t index, value;
} case_refusal;

typedef struct test_case {
    char name[96];
    char operator_name[24];
    int64_t axis;
    int32_t mode; /* 0 linear, 1 circular, 2 unknown */
    bool skip_sample, reject_negative, packed;
    kvs_call call; /* its indices belong to the case */
    case_tensor cache, update;
    case_refusal refusal;
    size_t skipped;
    bytes in_place; /* the cache's whole buffer afterwards */
    bytes present;  /* dense */
} test_case;

/* A file that is read from beginning to end. */
typedef struct case_file {
    uint8_t *content;
    size_t size, at, cases;
} case_file;

case_file case_file_open(const char *path);
void case_file_close(case_file *file);

/* Returns the next of `cases` cases, which the caller releases. */
test_case case_file_next(case_file *file);
void test_case_release(test_case *released);

#endif
