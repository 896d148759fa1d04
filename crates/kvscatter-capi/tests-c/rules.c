#include "rules.h"

#include <string.h>

#include "check.h"

/* A rule with its name in the oracle. It is a rule of this operator, or of every operator if the name is
 * NULL. The first row that fits is used. */
typedef struct row {
    const char *rule, *operator_name;
    kvs_status status;
} row;

static const row rows[] = {
    {"TypesDiffer", NULL, KVS_ERROR_ELEMENT_TYPE_MISMATCH},
    {"UnsupportedType", NULL, KVS_ERROR_ELEMENT_TYPE},
    {"Mode", NULL, KVS_ERROR_UNKNOWN_OPTION},
    {"CacheRank", "TensorScatter", KVS_ERROR_RANK_TOO_LOW},
    {"CacheRank", NULL, KVS_ERROR_RANK},
    {"UpdateRank", "TensorScatter", KVS_ERROR_RANK_MISMATCH},
    {"UpdateRank", NULL, KVS_ERROR_RANK},
    {"Axis", NULL, KVS_ERROR_AXIS_OUT_OF_RANGE},
    {"Dimension", NULL, KVS_ERROR_DIMENSION_MISMATCH},
    {"UpdateBatch", NULL, KVS_ERROR_BATCH_TOO_LARGE},
    {"UpdateTooLong", NULL, KVS_ERROR_UPDATE_LONGER_THAN_CACHE},
    {"IndexCount", NULL, KVS_ERROR_LIST_LENGTH},
    {"Length", NULL, KVS_ERROR_LENGTH_OUT_OF_RANGE},
    /* ATB's position is the length after the write. */
    {"NegativeStart", "KVCacheOperation", KVS_ERROR_END_OUT_OF_RANGE},
    {"NegativeStart", NULL, KVS_ERROR_NEGATIVE_START},
    {"OutOfRange", "KVCacheOperation", KVS_ERROR_END_OUT_OF_RANGE},
    {"OutOfRange", NULL, KVS_ERROR_START_OUT_OF_RANGE},
    {"UpdateLengthsMissing", NULL, KVS_ERROR_LIST_LENGTH},
    {"UpdateLengthsUnexpected", NULL, KVS_ERROR_UNEXPECTED_ARGUMENT},
    {"UpdateLengthsFirst", NULL, KVS_ERROR_CUMULATIVE_START},
    {"UpdateLengthsDecrease", NULL, KVS_ERROR_CUMULATIVE_ORDER},
    {"UpdateLengthsTooLong", NULL, KVS_ERROR_CUMULATIVE_LENGTH},
    {"UpdateLengthsTotal", NULL, KVS_ERROR_TOKEN_SUM},
    {"LayerId", NULL, KVS_ERROR_LAYER_OUT_OF_RANGE},
    {"SeqLen", NULL, KVS_ERROR_LENGTH_OUT_OF_RANGE},
    {"SeqLenTotal", NULL, KVS_ERROR_TOKEN_SUM},
};

kvs_status status_of_rule(const test_case *of) {
    const case_refusal *refusal = &of->refusal;
    /* The axis is a dimension, but it is the batch dimension. */
    if (strcmp(refusal->rule, "Axis") == 0 &&
        (refusal->value == 0 || refusal->value == -(int64_t)of->cache.rank))
        return KVS_ERROR_AXIS_IS_BATCH;
    /* Two dimensions of the update together correspond to one dimension of the cache. */
    if (strcmp(refusal->rule, "Dimension") == 0 && !refusal->has_index)
        return KVS_ERROR_HIDDEN_SIZE;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool same_operator =
            rows[i].operator_name == NULL || strcmp(rows[i].operator_name, of->operator_name) == 0;
        if (same_operator && strcmp(rows[i].rule, refusal->rule) == 0)
            return rows[i].status;
    }
    REQUIRE(refusal->rule[0] == '\0', "%s: no row for %s", of->name, refusal->rule);
    return KVS_OK;
}
