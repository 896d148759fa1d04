/*
 * kvscatter writes new keys and values into a KV cache, in place, exactly as ONNX TensorScatter,
 * TensorRT KVCacheUpdate and Ascend KVCacheOperation define it. It also reads a cache, as ONNX Attention does.
 *
 * Use
 *   1. Prepare once per shape: kvs_tensor_scatter_prepare, kvs_kv_cache_update_prepare or
 *      kvs_kv_cache_operation_prepare, or kvs_paged_write_prepare for a cache of blocks.
 *   2. Run at every step: kvs_write, kvs_write_many, kvs_write_present, or kvs_for_each_block for your own
 *      kernel. If the cache is a ring for a window, test each step with kvs_ring_takes before. For a cache of
 *      blocks, compute the slots with kvs_slot_mapping.
 *   3. Destroy with kvs_prepared_destroy.
 * Attention has the same steps: kvs_attention_prepare, kvs_attention_scratch_new, kvs_attention_run,
 * kvs_attention_scratch_destroy and kvs_attention_destroy.
 * The directory examples/c of the repository contains a first program (first.c) and the loop of a decoder.
 * docs/c.md explains both.
 *
 * Errors
 *   Every function that can fail returns a kvs_status, and kvs_last_error returns the reason. After an error
 *   no byte of any cache has changed, even if the call was about many caches, no output of attention has
 *   changed, and no output parameter was written. Any function may also return KVS_ERROR_PANIC or
 *   KVS_ERROR_INTERNAL, which report a bug in the library. After KVS_ERROR_PANIC, a write or an output may be
 *   partly done.
 *
 * Memory
 *   The library keeps no pointer after the call. It allocates only in the prepare functions, in
 *   kvs_attention_scratch_new, and for some paged writes, as kvs_write describes. It frees handles only in the
 *   functions whose names end in _destroy. A write in place moves only the bytes of the update.
 *
 * Threads
 *   Any thread may call any function. A kvs_prepared and a kvs_attention are immutable, so any number of
 *   threads may use one at the same time. Only one call at a time may use a kvs_attention_scratch. While a call
 *   writes memory, nothing else may read or write that memory.
 *
 * Structs with struct_size
 *   A struct that begins with struct_size must contain its sizeof there, which the ..._INIT macros set. Later
 *   versions add fields at the end. The library accepts the struct of any earlier version, and a struct that
 *   is larger than the library knows. For a smaller struct it returns KVS_ERROR_STRUCT_SIZE. kvs_tensor does
 *   not grow, because kvs_pair contains two of them.
 *
 * Callbacks
 *   Callbacks run inside these functions and must return. No C++ exception and no longjmp may leave one.
 *
 * The header needs C99 or C++11, or later.
 */

#if defined(__cplusplus) && __cplusplus < 201103L && !defined(_MSC_VER)
#error "kvscatter.h needs C++11 or later: compile with -std=c++11"
#endif
#if !defined(__cplusplus) && (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L) && !defined(_MSC_VER)
#error "kvscatter.h needs C99 or later: compile with -std=c99"
#endif


#ifndef KVSCATTER_H
#define KVSCATTER_H

#include <stddef.h>
#include <stdint.h>

/** Initialises an index argument that is not given. */
#define KVS_INDICES_NONE {NULL, 0, 0}

/** Initialises a tensor whose fields are then set. */
#define KVS_TENSOR_INIT {sizeof(kvs_tensor), NULL, 0, 0, NULL, NULL}

/** Initialises a call without any argument. */
#define KVS_CALL_INIT                                                                                  \
    {sizeof(kvs_call), KVS_INDICES_NONE, KVS_INDICES_NONE, KVS_INDICES_NONE, KVS_INDICES_NONE,         \
     KVS_INDICES_NONE, KVS_INDICES_NONE, KVS_INDICES_NONE, NULL}

/** Initialises options with the defaults. NULL options mean the defaults too. */
#define KVS_TENSOR_SCATTER_OPTIONS_INIT                                                                \
    {sizeof(kvs_tensor_scatter_options), -2, KVS_MODE_LINEAR, KVS_OUT_OF_RANGE_ERROR, KVS_NEGATIVE_INDEX_MODULO}

/** Initialises options with the defaults. NULL options mean the defaults too. */
#define KVS_KV_CACHE_UPDATE_OPTIONS_INIT                                                               \
    {sizeof(kvs_kv_cache_update_options), KVS_CACHE_MODE_LINEAR, KVS_UPDATE_FORM_PADDED, KVS_OUT_OF_RANGE_ERROR}

/** Initialises options with the defaults. NULL options mean the defaults too. */
#define KVS_KV_CACHE_OPERATION_OPTIONS_INIT {sizeof(kvs_kv_cache_operation_options), KVS_OUT_OF_RANGE_ERROR}

/** Initialises options with the defaults. NULL options mean the defaults too. */
#define KVS_PAGED_WRITE_OPTIONS_INIT {sizeof(kvs_paged_write_options), 1, 0}

/** Initialises block tables whose fields are then set. */
#define KVS_BLOCK_TABLES_INIT                                                                          \
    {sizeof(kvs_block_tables), KVS_INDICES_NONE, KVS_INDICES_NONE, KVS_INDICES_NONE, 0, 0, 0}

/** Initialises options of attention with the defaults. NULL options mean the defaults too. */
#define KVS_ATTENTION_OPTIONS_INIT                                                                     \
    {sizeof(kvs_attention_options), 0, KVS_MODE_LINEAR, 0, 0, 0, -1, -1, 0}

/** Initialises a call of attention without any argument. */
#define KVS_ATTENTION_CALL_INIT                                                                        \
    {sizeof(kvs_attention_call), KVS_INDICES_NONE, KVS_INDICES_NONE, KVS_INDICES_NONE, KVS_QUERIES_LAST,   \
     NULL, NULL, NULL, NULL, NULL}

/** Initialises the result of a run, which the run fills in. */
#define KVS_WRITTEN_INIT {sizeof(kvs_written), 0}

/** Initialises an error, which kvs_last_error fills in. */
#define KVS_ERROR_INIT {sizeof(kvs_error), KVS_OK, 0, NULL, 0, 0, 0, {0}}


/**
 * The version of this interface. The version increases when a program may need to test for an addition. From
 * version 1 on, nothing is removed.
 */
#define KVS_ABI_VERSION 1

/**
 * The largest number of dimensions that a tensor may have.
 */
#define KVS_MAX_RANK 16

/**
 * The values of a `kvs_status`. The comment of each error documents `index`, `value` and `limit` of the
 * `kvs_error`. If the comment does not mention a field, that field is not set. Unless the comment gives
 * another meaning, `limit` is the nearest value that would have been accepted.
 *
 * A "pair" is the index of a cache and its update in the array of `kvs_write_many`, and 0 in other writes. In
 * attention it is not set.
 */
typedef enum kvs_status_code {
  /**
   * The function succeeded.
   */
  KVS_OK = 0,
  /**
   * A pointer is NULL, but must not be. If it is the `shape` of a tensor of a run, `index` is the pair.
   */
  KVS_ERROR_NULL_POINTER = 1,
  /**
   * An address is not a multiple of the alignment of its type. `limit` is that alignment in bytes. If the
   * address is the `shape`, `strides` or `data` of a tensor of a run, `index` is the
   * pair. Data need the alignment of their element type. Types of 4 and 8 bits need no alignment, and a
   * complex type needs the alignment of its parts.
   */
  KVS_ERROR_MISALIGNED = 2,
  /**
   * `struct_size` is smaller than the struct was in its first version. In an array of pairs, `struct_size`
   * must be exact, and `index` is the pair. `value` is the `struct_size`, and `limit` is the size that was
   * expected.
   */
  KVS_ERROR_STRUCT_SIZE = 3,
  /**
   * The element type does not exist. `value` is its number, and `limit` is the nearest number that exists.
   * For a DLPack type, `value` is its type code and `limit` is not set.
   */
  KVS_ERROR_UNKNOWN_ELEMENT_TYPE = 4,
  /**
   * A tensor has more than `KVS_MAX_RANK` dimensions, or a DLPack tensor has fewer than 0. `value` is its
   * rank, and `limit` is the nearest rank that is allowed.
   */
  KVS_ERROR_RANK_LIMIT = 5,
  /**
   * A dimension is negative. `index` is the dimension, `value` is its size, and `limit` is 0.
   */
  KVS_ERROR_NEGATIVE_DIMENSION = 6,
  /**
   * An option has a value without a meaning. `argument` names the option, `value` is its value, and
   * `limit` is the nearest value that has a meaning.
   */
  KVS_ERROR_UNKNOWN_OPTION = 7,
  /**
   * The call gives an argument that the operator does not have, or that was not prepared for attention.
   * `argument` is its name.
   */
  KVS_ERROR_UNEXPECTED_ARGUMENT = 8,
  /**
   * The width of an index argument is neither 32 nor 64 bits, or it is 64 bits for an argument that must
   * have 32. `value` is the width, and `limit` is the nearest width that is allowed.
   */
  KVS_ERROR_INDEX_WIDTH = 9,
  /**
   * The type, rank, a dimension or a stride of a tensor of a run differs from the tensor that was
   * prepared. The message names the property. `index` is the pair, `value` is the property of the tensor,
   * and `limit` is the prepared property.
   */
  KVS_ERROR_TENSOR_MISMATCH = 10,
  /**
   * A DLPack tensor is not in the memory of the CPU. `value` is its device type, and `limit` is 1
   * (kDLCPU).
   */
  KVS_ERROR_DEVICE = 11,
  /**
   * The `byte_offset` of a DLPack tensor leads out of the address space, or its data are NULL and
   * `byte_offset` is not 0. `value` is the offset.
   */
  KVS_ERROR_BYTE_OFFSET = 12,
  /**
   * The visitor of `kvs_for_each_block` stopped the visit. `value` is the number that it returned.
   */
  KVS_ERROR_STOPPED = 13,
  /**
   * The library panicked because of a bug in the library. A write may be partly done. Please report it.
   */
  KVS_ERROR_PANIC = 14,
  /**
   * The core returned an error that no call should cause, so the library has a bug. `index`, `value` and
   * `limit` may be set. Please report it with the message.
   */
  KVS_ERROR_INTERNAL = 15,
  /**
   * The operator does not accept this element type. `value` is the number of the type.
   */
  KVS_ERROR_ELEMENT_TYPE = 100,
  /**
   * Two tensors have different element types. `value` is the type of the update, and `limit` is the type of
   * the cache. In attention, `limit` is the type that the tensor must have.
   */
  KVS_ERROR_ELEMENT_TYPE_MISMATCH = 101,
  /**
   * A tensor has the wrong number of dimensions. `value` is its rank, and `limit` is the nearest rank that
   * is allowed.
   */
  KVS_ERROR_RANK = 102,
  /**
   * A cache has too few dimensions. `value` is its rank, and `limit` is the smallest rank that is allowed.
   */
  KVS_ERROR_RANK_TOO_LOW = 103,
  /**
   * The cache and the update have different ranks. `value` is the rank of the update, and `limit` is the
   * rank of the cache.
   */
  KVS_ERROR_RANK_MISMATCH = 104,
  /**
   * `axis` is not a dimension of the cache. `value` is the axis, and `limit` is the nearest axis that
   * exists.
   */
  KVS_ERROR_AXIS_OUT_OF_RANGE = 105,
  /**
   * `axis` is the batch dimension. `value` is the axis, and `limit` is the dimension after it.
   */
  KVS_ERROR_AXIS_IS_BATCH = 106,
  /**
   * A dimension differs from the dimension of the cache, or in attention, from the one that another tensor
   * requires. `index` is the dimension, `value` is its size, and `limit` is the size that it must have.
   */
  KVS_ERROR_DIMENSION_MISMATCH = 107,
  /**
   * The product of the head number and the head size of a 4-D newKv is not hiddenSize. `value` is the
   * product, and `limit` is hiddenSize.
   */
  KVS_ERROR_HIDDEN_SIZE = 108,
  /**
   * The update has more samples than the cache. For a packed update, a run returns this error, because the
   * indices determine the number of samples. `value` is the number in the update, and `limit` is the
   * number in the cache.
   */
  KVS_ERROR_BATCH_TOO_LARGE = 109,
  /**
   * The update has more rows than the cache. `value` is the number of rows of the update, and `limit` is
   * the capacity of the cache.
   */
  KVS_ERROR_UPDATE_LONGER_THAN_CACHE = 110,
  /**
   * A tensor, its strides or an array extend over more than PTRDIFF_MAX elements or bytes. `limit` is
   * PTRDIFF_MAX.
   */
  KVS_ERROR_TOO_LARGE = 111,
  /**
   * Two positions of the cache share memory, or its strides interleave in a way that the check cannot
   * prove to be free of overlap.
   */
  KVS_ERROR_CACHE_OVERLAPS_ITSELF = 112,
  /**
   * The strides of the two tensors need too many nested loops. `value` is the number of loops, and `limit`
   * is 3.
   */
  KVS_ERROR_TOO_MANY_LOOPS = 113,
  /**
   * An index argument, lengths or a block table have the wrong number of values. `value` is the number of
   * values, and `limit` is the number that there must be.
   */
  KVS_ERROR_LIST_LENGTH = 200,
  /**
   * A start is negative, in linear mode, with an option that rejects negative starts, or in attention. Or a slot
   * of a paged write is negative.
   * `index` is the sample or, for a slot, the token. `value` is the start or the slot, and `limit` is 0.
   */
  KVS_ERROR_NEGATIVE_START = 201,
  /**
   * A linear write would extend past the end of the cache. `index` is the sample, `value` is its start,
   * and `limit` is the last start at which its rows fit.
   */
  KVS_ERROR_START_OUT_OF_RANGE = 202,
  /**
   * A length after the write (tokenOffset) is smaller than the number of rows of the sample in newKv, or
   * its rows do not fit into the cache. `index` is the sample, `value` is the length, and `limit` is the
   * nearest length that fits. It is not set if no length fits.
   */
  KVS_ERROR_END_OUT_OF_RANGE = 203,
  /**
   * A length of a sample is too small or too large. `index` is the sample, `value` is the length, and
   * `limit` is the nearest length that is allowed. It is not set if no length is allowed.
   */
  KVS_ERROR_LENGTH_OUT_OF_RANGE = 204,
  /**
   * Cumulative lengths do not begin with 0. `index` is 0, `value` is the first number, and `limit` is 0.
   */
  KVS_ERROR_CUMULATIVE_START = 205,
  /**
   * Cumulative lengths decrease. `index` is the position of the smaller number in the list, `value` is
   * that number, and `limit` is the number before it.
   */
  KVS_ERROR_CUMULATIVE_ORDER = 206,
  /**
   * Cumulative lengths give a sample more rows than the cache has. `index` is the sample, `value` is its
   * number of rows, and `limit` is the capacity of the cache.
   */
  KVS_ERROR_CUMULATIVE_LENGTH = 207,
  /**
   * The lengths do not add up to the tokens of the update. `value` is their sum, and `limit` is the number
   * of tokens.
   */
  KVS_ERROR_TOKEN_SUM = 208,
  /**
   * The layer does not exist. `value` is the layer, and `limit` is the nearest layer. `limit` is not set
   * if the cache has no layers.
   */
  KVS_ERROR_LAYER_OUT_OF_RANGE = 209,
  /**
   * A slot of a paged cache is after its last block. `index` is the token, `value` is the slot, and `limit` is
   * the nearest slot. `limit` is not set if the cache has no slots.
   */
  KVS_ERROR_SLOT_OUT_OF_RANGE = 210,
  /**
   * Two tokens have the same slot of a paged cache. `index` is the later token, and `value` is the slot.
   */
  KVS_ERROR_DUPLICATE_SLOT = 211,
  /**
   * The data of a tensor that has elements are NULL. `index` is the pair, and `limit` is the number of
   * bytes that the buffer must have.
   */
  KVS_ERROR_NULL_BUFFER = 300,
  /**
   * Memory that the call would write overlaps another tensor, or indices or pairs that the call reads. One
   * shared byte is an overlap. A strided tensor counts as the range from its first to its last byte, but
   * two strided caches may interleave. `index` is the pair.
   */
  KVS_ERROR_OVERLAP = 301,
  /**
   * A run cannot copy strings, because they have no fixed size in C. Move them with `kvs_for_each_block`.
   * `value` is 8, the number of bits that sizes count for a string.
   */
  KVS_ERROR_ELEMENT_WIDTH = 302,
  /**
   * A tensor, array or struct begins or ends outside the address space. For a tensor, strides that lead to
   * lower addresses count too. `value` is the number of bytes that the memory must have. For a tensor of a
   * run, and for its `shape` and `strides`, `index` is the pair. For other memory, `index` is not set.
   */
  KVS_ERROR_ADDRESS_SPACE = 303,
  /**
   * A paged write has no functional form. Write in place.
   */
  KVS_ERROR_IN_PLACE_ONLY = 304,
  /**
   * Attention: a stride is negative, the elements of a row are not neighbours, or a tensor that must be
   * dense is not. `index` is the dimension, `value` is its stride, and `limit` is the nearest stride that is
   * allowed.
   */
  KVS_ERROR_STRIDE = 400,
  /**
   * Attention: an option that is a number is negative, infinite or not a number. `argument` names the
   * option.
   */
  KVS_ERROR_NUMBER_OPTION = 401,
  /**
   * Attention: the number of query heads is not a multiple of the number of heads of keys and values.
   * `value` is the number of query heads, and `limit` is the number of heads of keys.
   */
  KVS_ERROR_HEAD_GROUPS = 402,
  /**
   * Attention: the mask does not broadcast to [batch, query heads, queries, slots]. The message contains
   * both shapes.
   */
  KVS_ERROR_MASK_SHAPE = 403,
  /**
   * Attention: keys and values without elements have too many slots. `value` is their number, and `limit` is
   * the largest number.
   */
  KVS_ERROR_EMPTY_SLOTS = 404,
  /**
   * Attention: two rows of the output share elements.
   */
  KVS_ERROR_OUTPUT_OVERLAPS_ITSELF = 405,
  /**
   * Attention: a ring cannot consist of blocks.
   */
  KVS_ERROR_RING_OF_BLOCKS = 406,
  /**
   * Attention: the blocks of a cache have no slots.
   */
  KVS_ERROR_EMPTY_BLOCKS = 407,
  /**
   * Attention: the call lacks an argument that was prepared. `argument` is its name.
   */
  KVS_ERROR_MISSING_ARGUMENT = 408,
  /**
   * A query of attention sees a block that does not exist, or a new token of `kvs_slot_mapping` is in one.
   * `index` is the sample, `value` is the entry of the block table, and `limit` is the nearest block. `limit` is
   * not set if the cache has no blocks.
   */
  KVS_ERROR_BLOCK_OUT_OF_RANGE = 409,
  /**
   * Attention: the scratch was made for other shapes.
   */
  KVS_ERROR_SCRATCH = 410,
} kvs_status_code;

/**
 * Flags for the fields of a `kvs_error` that are set.
 */
typedef enum kvs_error_field {
  /**
   * `index` is set.
   */
  KVS_ERROR_HAS_INDEX = 1,
  /**
   * `value` is set.
   */
  KVS_ERROR_HAS_VALUE = 2,
  /**
   * `limit` is set.
   */
  KVS_ERROR_HAS_LIMIT = 4,
} kvs_error_field;

/**
 * The element types, with their numbers in ONNX's TensorProto.DataType. 4-bit types are packed two to a byte
 * without gaps between rows. The first element is in the low nibble.
 */
typedef enum kvs_element_type_code {
  /**
   * 32-bit IEEE float.
   */
  KVS_FLOAT32 = 1,
  /**
   * 8-bit unsigned integer.
   */
  KVS_UINT8 = 2,
  /**
   * 8-bit signed integer.
   */
  KVS_INT8 = 3,
  /**
   * 16-bit unsigned integer.
   */
  KVS_UINT16 = 4,
  /**
   * 16-bit signed integer.
   */
  KVS_INT16 = 5,
  /**
   * 32-bit signed integer.
   */
  KVS_INT32 = 6,
  /**
   * 64-bit signed integer.
   */
  KVS_INT64 = 7,
  /**
   * Strings of any representation. They can be planned (`kvs_for_each_block`), but not run.
   */
  KVS_STRING = 8,
  /**
   * Boolean, one byte.
   */
  KVS_BOOL = 9,
  /**
   * 16-bit IEEE float.
   */
  KVS_FLOAT16 = 10,
  /**
   * 64-bit IEEE float.
   */
  KVS_FLOAT64 = 11,
  /**
   * 32-bit unsigned integer.
   */
  KVS_UINT32 = 12,
  /**
   * 64-bit unsigned integer.
   */
  KVS_UINT64 = 13,
  /**
   * Complex number of two 32-bit floats.
   */
  KVS_COMPLEX64 = 14,
  /**
   * Complex number of two 64-bit floats.
   */
  KVS_COMPLEX128 = 15,
  /**
   * 16-bit brain float.
   */
  KVS_BFLOAT16 = 16,
  /**
   * 8-bit float, finite values and NaN.
   */
  KVS_FLOAT8E4M3FN = 17,
  /**
   * 8-bit float, finite values and NaN, unsigned zero.
   */
  KVS_FLOAT8E4M3FNUZ = 18,
  /**
   * 8-bit float with infinities.
   */
  KVS_FLOAT8E5M2 = 19,
  /**
   * 8-bit float, finite values and NaN, unsigned zero.
   */
  KVS_FLOAT8E5M2FNUZ = 20,
  /**
   * 4-bit unsigned integer.
   */
  KVS_UINT4 = 21,
  /**
   * 4-bit signed integer.
   */
  KVS_INT4 = 22,
  /**
   * 4-bit float.
   */
  KVS_FLOAT4E2M1 = 23,
  /**
   * 8-bit exponent-only float.
   */
  KVS_FLOAT8E8M0 = 24,
} kvs_element_type_code;

/**
 * How positions beyond the capacity are treated (ONNX's `mode` attribute).
 */
typedef enum kvs_mode {
  /**
   * Every row must be inside the cache.
   */
  KVS_MODE_LINEAR = 0,
  /**
   * The cache is a ring, so positions are taken modulo the capacity.
   */
  KVS_MODE_CIRCULAR = 1,
} kvs_mode;

/**
 * What happens to a sample whose position does not fit. kvscatter extension; not part of the specification.
 */
typedef enum kvs_out_of_range {
  /**
   * The call returns an error and writes nothing.
   */
  KVS_OUT_OF_RANGE_ERROR = 0,
  /**
   * The sample is not written, the other samples are, and `kvs_written` counts the samples that were
   * skipped.
   */
  KVS_OUT_OF_RANGE_SKIP_SAMPLE = 1,
} kvs_out_of_range;

/**
 * How a negative index in a ring is treated. In linear mode, a negative index never fits.
 */
typedef enum kvs_negative_index {
  /**
   * The index is taken modulo the capacity, rounded down as in ONNX's reference implementation, so that -1
   * is the last slot.
   */
  KVS_NEGATIVE_INDEX_MODULO = 0,
  /**
   * The index does not fit, as in ONNX Runtime.
   */
  KVS_NEGATIVE_INDEX_REJECT = 1,
} kvs_negative_index;

/**
 * TensorRT's `cacheMode`.
 */
typedef enum kvs_cache_mode {
  /**
   * kLINEAR, the only mode.
   */
  KVS_CACHE_MODE_LINEAR = 0,
} kvs_cache_mode;

/**
 * TensorRT's `updateForm`.
 */
typedef enum kvs_update_form {
  /**
   * kPADDED_BHND: the update is [b, d, s, h].
   */
  KVS_UPDATE_FORM_PADDED = 0,
  /**
   * kPACKED_NHD: the update is [totalTokens, d, h], and calls give `update_lengths`.
   */
  KVS_UPDATE_FORM_PACKED_NHD = 1,
} kvs_update_form;

/**
 * What the steps of a sample contain besides its tokens.
 */
typedef enum kvs_feeding {
  /**
   * A step writes tokens only, or padding is not written, as with `lengths` in a `kvs_call`.
   */
  KVS_FEEDING_WITHOUT_PADDING = 0,
  /**
   * A step may be padded on the right, and has at least one token.
   */
  KVS_FEEDING_PADDED_ON_THE_RIGHT = 1,
  /**
   * A step may also consist of padding alone, for a sample that waits for others.
   */
  KVS_FEEDING_IDLE = 2,
} kvs_feeding;

/**
 * Which positions the queries of a sample have, if its call gives lengths.
 */
typedef enum kvs_query_positions {
  /**
   * The queries are the last tokens: query i of n has the position length - n + i.
   */
  KVS_QUERIES_LAST = 0,
  /**
   * The queries are the first tokens: query i has the position i. So the queries after the length are padding.
   */
  KVS_QUERIES_FIRST = 1,
} kvs_query_positions;

/**
 * Attention whose shapes have been checked. Create it once per set of shapes with `kvs_attention_prepare`, run it
 * at every step with `kvs_attention_run`, and destroy it with `kvs_attention_destroy`. It never changes, so any
 * number of threads may use one at the same time, each with its own scratch.
 */
typedef struct kvs_attention kvs_attention;

/**
 * The working memory of calls of attention. `kvs_attention_scratch_new` allocates it, so that a run allocates
 * nothing. Only one call at a time may use a scratch, so each thread that calls `kvs_attention_run` needs its own.
 */
typedef struct kvs_attention_scratch kvs_attention_scratch;

/**
 * A write whose shapes have been checked. Create it once per shape with a prepare function, run it at every
 * step, and destroy it with `kvs_prepared_destroy`. It never changes, so any number of threads may use one
 * at the same time.
 */
typedef struct kvs_prepared kvs_prepared;

/**
 * The result of a function: `KVS_OK` or one of the `KVS_ERROR_` numbers of `kvs_status_code`. A number keeps
 * its meaning in later versions. Later versions may return new numbers.
 */
typedef int32_t kvs_status;

/**
 * An element type, one of `kvs_element_type_code`.
 */
typedef int32_t kvs_element_type;

/**
 * A tensor, with its address, element type, dimensions and strides. The library reads this struct only
 * during the call. The struct has the same size in every version, because `kvs_pair` contains two of them.
 */
typedef struct kvs_tensor {
  /**
   * `sizeof(kvs_tensor)`. The `KVS_TENSOR_INIT` macro sets it.
   */
  size_t struct_size;
  /**
   * The address of element [0, 0, ...], which begins at the start of a byte. One allocation contains this
   * address and every element that `shape` and `strides` reach, including elements at lower addresses. The
   * address may be NULL if the tensor has no elements, and the prepare functions ignore it. Elements are
   * little-endian.
   */
  void *data;
  /**
   * One of `kvs_element_type_code`.
   */
  kvs_element_type type;
  /**
   * The number of dimensions, at most `KVS_MAX_RANK`.
   */
  uint32_t rank;
  /**
   * The `rank` dimensions in elements, outermost first.
   */
  const int64_t *shape;
  /**
   * The `rank` strides in elements, or NULL for a dense row-major tensor. Strides of an update may be zero
   * or negative. Strides of a cache must not let its elements overlap. `kvs_attention_prepare` has its own
   * rules.
   */
  const int64_t *strides;
} kvs_tensor;

/**
 * The attributes of ONNX TensorScatter. `out_of_range` and `negative_index` are kvscatter extensions; they
 * are not part of the specification.
 */
typedef struct kvs_tensor_scatter_options {
  /**
   * `sizeof(kvs_tensor_scatter_options)`. The `KVS_TENSOR_SCATTER_OPTIONS_INIT` macro sets it and the
   * defaults.
   */
  size_t struct_size;
  /**
   * The sequence dimension, from 1 to rank - 1, or from 1 - rank to -1 if it is counted from the end. The
   * default is -2.
   */
  int64_t axis;
  /**
   * One of `kvs_mode`.
   */
  int32_t mode;
  /**
   * One of `kvs_out_of_range`.
   */
  int32_t out_of_range;
  /**
   * One of `kvs_negative_index`.
   */
  int32_t negative_index;
} kvs_tensor_scatter_options;

/**
 * The attributes of TensorRT KVCacheUpdate. `out_of_range` is a kvscatter extension; it is not part of the
 * specification.
 */
typedef struct kvs_kv_cache_update_options {
  /**
   * `sizeof(kvs_kv_cache_update_options)`. The `KVS_KV_CACHE_UPDATE_OPTIONS_INIT` macro sets it and the
   * defaults.
   */
  size_t struct_size;
  /**
   * One of `kvs_cache_mode`.
   */
  int32_t cache_mode;
  /**
   * One of `kvs_update_form`.
   */
  int32_t update_form;
  /**
   * One of `kvs_out_of_range`.
   */
  int32_t out_of_range;
} kvs_kv_cache_update_options;

/**
 * The options of Ascend KVCacheOperation, whose only attributes are reserved bytes. `out_of_range` is a
 * kvscatter extension; it is not part of the specification.
 */
typedef struct kvs_kv_cache_operation_options {
  /**
   * `sizeof(kvs_kv_cache_operation_options)`. The `KVS_KV_CACHE_OPERATION_OPTIONS_INIT` macro sets it and the
   * defaults.
   */
  size_t struct_size;
  /**
   * One of `kvs_out_of_range`.
   */
  int32_t out_of_range;
} kvs_kv_cache_operation_options;

/**
 * The options of writes into paged caches, which no specification defines.
 */
typedef struct kvs_paged_write_options {
  /**
   * `sizeof(kvs_paged_write_options)`. The `KVS_PAGED_WRITE_OPTIONS_INIT` macro sets it and the defaults.
   */
  size_t struct_size;
  /**
   * The dimension of the cache that counts the slots of a block, from 1 to rank - 1, or from 1 - rank to -1
   * if it is counted from the end. The default is 1, for [num_blocks, block_size, heads, size]. It is 2 for
   * [num_blocks, heads, block_size, size].
   */
  int64_t axis;
  /**
   * 1 if a token with a negative slot is not written, such as the padding of vLLM, and 0 if it is an error.
   * `kvs_written` counts the tokens that were skipped.
   */
  int32_t skip_negative;
} kvs_paged_write_options;

/**
 * An index argument: `count` numbers of 32 or 64 bits (`int32_t` or `int64_t`) with the alignment of their
 * type. An argument whose fields are all zero is not given.
 */
typedef struct kvs_indices {
  /**
   * The first number. It may be NULL if `count` is 0.
   */
  const void *values;
  /**
   * The number of values.
   */
  size_t count;
  /**
   * The width of each number, 32 or 64. It is 0 if the argument is not given.
   */
  int32_t bits;
} kvs_indices;

/**
 * Threads of your program that a call may use. Only large writes, of hundreds of kilobytes and more, and calls
 * of attention with a million multiplications and more use them.
 */
typedef struct kvs_executor {
  /**
   * Calls `work(context)` once or more on each thread that is to help. It returns when all of these calls
   * have returned and their stores are visible to the calling thread. Joining the threads makes the stores
   * visible, and so does any release and acquire. It must not call `work` after it has returned. Each call
   * of `work` takes parts of the call until none are left, and the calling thread does the parts that no call
   * took. An executor that never calls `work`, or calls it on one thread only, is slow but
   * correct.
   */
  void (*broadcast)(void *user, void (*work)(void *context), void *context);
  /**
   * The value that is passed to `broadcast` unchanged.
   */
  void *user;
} kvs_executor;

/**
 * The arguments of one call, and the executor that may help with it. A call must give only arguments of the
 * prepared operator.
 */
typedef struct kvs_call {
  /**
   * `sizeof(kvs_call)`. The `KVS_CALL_INIT` macro sets it.
   */
  size_t struct_size;
  /**
   * TensorScatter, KVCacheUpdate: the first slot that is written, one per sample of the update. In
   * TensorScatter this argument is optional, and without it every sample begins at slot 0.
   */
  struct kvs_indices write_indices;
  /**
   * Paged writes: the slot of each token of the update, block * block_size + offset. The slots of a call are
   * different, in any order.
   */
  struct kvs_indices slot_mapping;
  /**
   * All operators except paged writes: the number of real rows of each sample. The other rows are padding and
   * are not written. If this argument is not given, all rows are real. kvscatter extension; not part of the
   * specification.
   */
  struct kvs_indices lengths;
  /**
   * KVCacheUpdate with a packed update: the cumulative lengths, which begin with 0. Value i is the
   * position at which the rows of sample i begin. The last value is the number of all rows, so there is
   * one value more than samples. 32 bits.
   */
  struct kvs_indices update_lengths;
  /**
   * KVCacheOperation: the layer. One value of 32 bits.
   */
  struct kvs_indices layer_id;
  /**
   * KVCacheOperation: the length after the write, one per batch of past. 32 bits.
   */
  struct kvs_indices token_offset;
  /**
   * KVCacheOperation: the number of tokens of each batch. 32 bits.
   */
  struct kvs_indices seq_len;
  /**
   * Threads for writes that are large enough to be faster with them. If this is NULL, the whole write runs
   * on the calling thread.
   */
  const struct kvs_executor *executor;
} kvs_call;

/**
 * The result of a run.
 */
typedef struct kvs_written {
  /**
   * The caller sets this to `sizeof(kvs_written)`, as the `KVS_WRITTEN_INIT` macro does.
   */
  size_t struct_size;
  /**
   * The number of samples that `KVS_OUT_OF_RANGE_SKIP_SAMPLE` skipped, or of tokens that `skip_negative` of a
   * paged write skipped. It is the same in each cache.
   */
  size_t skipped;
} kvs_written;

/**
 * A cache and the update that is written into it, such as the keys or the values of a layer.
 */
typedef struct kvs_pair {
  /**
   * The cache, which KVCacheOperation calls past.
   */
  struct kvs_tensor cache;
  /**
   * The update, which KVCacheOperation calls newKv.
   */
  struct kvs_tensor update;
} kvs_pair;

/**
 * A strided loop that repeats the runs of a block. Strides are in elements.
 */
typedef struct kvs_loop {
  /**
   * The number of iterations. A loop that is not needed has 1.
   */
  size_t count;
  /**
   * The distance that each iteration moves in the cache.
   */
  ptrdiff_t dst_stride;
  /**
   * The distance that each iteration moves in the update.
   */
  ptrdiff_t src_stride;
} kvs_loop;

/**
 * One strided copy of a write: a contiguous run of elements inside three loops, outermost first. In the
 * cache, the run at iterations i, j, k begins at the offset `dst_offset + i * loops[0].dst_stride + j *
 * loops[1].dst_stride + k * loops[2].dst_stride`. In the update, it begins at the same sum of `src_offset`
 * and the `src_stride` of each loop. Offsets are in elements and count from the `data` of the tensor, the
 * address of element [0, 0, ...]. An offset is negative if strides lead to lower addresses.
 */
typedef struct kvs_block {
  /**
   * The offset of the first run in the cache.
   */
  ptrdiff_t dst_offset;
  /**
   * The offset of the first run in the update.
   */
  ptrdiff_t src_offset;
  /**
   * The number of elements in one run.
   */
  size_t len;
  /**
   * The loops that repeat the run.
   */
  struct kvs_loop loops[3];
} kvs_block;

/**
 * The blocks of each sample of a paged cache. Token t of a sample is in block t / block_size of its table, at
 * slot t % block_size of the block.
 */
typedef struct kvs_block_tables {
  /**
   * `sizeof(kvs_block_tables)`. The `KVS_BLOCK_TABLES_INIT` macro sets it.
   */
  size_t struct_size;
  /**
   * The blocks of each sample in the order of its tokens, [batch, max_blocks], 32 bits. Entries for tokens
   * that are not new may have any value.
   */
  struct kvs_indices block_tables;
  /**
   * The number of tokens of each sample, new tokens included. 32 bits.
   */
  struct kvs_indices seq_lens;
  /**
   * The number of new tokens of each sample, which are its last tokens. 32 bits. If this argument is not
   * given, each sample has one new token, as in a decode step.
   */
  struct kvs_indices new_tokens;
  /**
   * The number of entries of each sample in `block_tables`.
   */
  size_t max_blocks;
  /**
   * The number of slots of a block.
   */
  size_t block_size;
  /**
   * The number of blocks of the cache.
   */
  size_t num_blocks;
} kvs_block_tables;

/**
 * A ring of a layer whose queries see their own position and the `window - 1` positions before it. Position
 * `p` is in slot `p` modulo `capacity`. Functions take the struct by value, and it does not grow.
 */
typedef struct kvs_ring {
  /**
   * The number of slots. A number above PTRDIFF_MAX is like 0, because no tensor has that many slots. A
   * negative number is such a number after its conversion.
   */
  size_t capacity;
  /**
   * The number of positions that a query sees. 0 is like 1.
   */
  size_t window;
} kvs_ring;

/**
 * The attributes of ONNX Attention. `mode`, `has_sinks` and `blocks_per_sample` are kvscatter extensions; they
 * are not part of the specification.
 */
typedef struct kvs_attention_options {
  /**
   * `sizeof(kvs_attention_options)`. The `KVS_ATTENTION_OPTIONS_INIT` macro sets it and the defaults.
   */
  size_t struct_size;
  /**
   * 1 if a query sees no position after its own, and 0 otherwise.
   */
  int32_t is_causal;
  /**
   * One of `kvs_mode`. In a ring, position p is in slot p modulo the capacity, and lengths count all tokens so
   * far.
   */
  int32_t mode;
  /**
   * 1 if a call gives the score of a sink for each query head, and 0 otherwise. A sink takes a part of the
   * weights of its head, which goes to no value.
   */
  int32_t has_sinks;
  /**
   * The factor of the scores, finite and at least 0. 0 means the default, 1 / sqrt(head size).
   */
  float scale;
  /**
   * A score s becomes softcap * tanh(s / softcap). 0 means no cap. It is finite and at least 0.
   */
  float softcap;
  /**
   * The number of positions before its own that a query sees, or -1 for all, which is the default.
   */
  int64_t window_left;
  /**
   * The number of positions after its own that a query sees, or -1 for all, which is the default.
   */
  int64_t window_right;
  /**
   * 0 for keys and values [batch, heads, slots, size]. Otherwise samples share blocks [blocks, heads, slots of a
   * block, size], and this is the number of entries that each sample has in the `block_table` of a call.
   */
  size_t blocks_per_sample;
} kvs_attention_options;

/**
 * The arguments of one call of attention besides queries, keys, values and the output. A tensor that is not given
 * is NULL.
 */
typedef struct kvs_attention_call {
  /**
   * `sizeof(kvs_attention_call)`. The `KVS_ATTENTION_CALL_INIT` macro sets it.
   */
  size_t struct_size;
  /**
   * The number of tokens of each sample, including those of this step, which are the slots that contain tokens.
   * In a ring it may exceed the capacity. If this argument is not given, all slots contain tokens, and query i
   * has the position i.
   */
  struct kvs_indices lengths;
  /**
   * The position of the first token of each sample that is not padding on the left. No query sees a position
   * before it. If this argument is not given, it is 0 for every sample.
   */
  struct kvs_indices starts;
  /**
   * The blocks of each sample, [batch, blocks per sample], 32 bits, if `blocks_per_sample` was prepared. Entries
   * for positions that no query sees may have any value.
   */
  struct kvs_indices block_table;
  /**
   * One of `kvs_query_positions`.
   */
  int32_t query_positions;
  /**
   * The mask, if it was prepared.
   */
  const struct kvs_tensor *mask;
  /**
   * The score of the sink of each query head, [query heads] of the type of `query`, if `has_sinks` was prepared.
   */
  const struct kvs_tensor *sinks;
  /**
   * The scales of keys of int8, float32 and dense: one for each row, [batch or blocks, heads, slots], or one for
   * each element of a head, [heads, head size].
   */
  const struct kvs_tensor *key_scales;
  /**
   * The scales of values of int8, of the same rank: [batch or blocks, heads, slots] or [heads, value size].
   */
  const struct kvs_tensor *value_scales;
  /**
   * Threads for long calls. If this is NULL, the whole call runs on the calling thread. At most as many threads
   * are used as the scratch was made for.
   */
  const struct kvs_executor *executor;
} kvs_attention_call;

/**
 * An error as fields for programs and as a message for people.
 */
typedef struct kvs_error {
  /**
   * The caller sets this to `sizeof(kvs_error)`.
   */
  size_t struct_size;
  /**
   * The status that the function returned. It is `KVS_OK` if no function has failed on this thread.
   */
  kvs_status code;
  /**
   * The sum of the flags of the fields that are set (`kvs_error_field`). A field that is not set is 0.
   */
  uint32_t fields;
  /**
   * The name of the argument that is wrong, as a static string. It is NULL if the error is not about an
   * argument. A tensor has the name that the specification of the prepared operator uses: `past_cache`,
   * `update`, `present_cache` (ONNX); `cache`, `update`, `output` (TensorRT); `past`, `newKv`, `present`
   * (Ascend); `Q`, `K`, `V`, `attn_mask`, `head_sink`, `Y` (attention). An index argument has the
   * specification's name too, such as `writeIndices`, if its values or their number are wrong. Errors about a
   * pointer, struct or option use the names of this header.
   */
  const char *argument;
  /**
   * The sample, dimension, pair or position in a list that is wrong. `kvs_status_code` documents which of
   * them it is for each error.
   */
  int64_t index;
  /**
   * The value that is wrong, as `kvs_status_code` documents for each error.
   */
  int64_t value;
  /**
   * The nearest value that would have been accepted, unless `kvs_status_code` documents another meaning.
   */
  int64_t limit;
  /**
   * One line in English, in lower case and without a full stop. A text that does not fit is cut off.
   */
  char message[256];
} kvs_error;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the `KVS_ABI_VERSION` of the library that is running. A program that was compiled with a larger
 * version must not use anything that was added after the returned version.
 */
uint32_t kvs_abi_version(void);

/**
 * Returns the version of the library that is running, such as "0.1.0". The string is static.
 */
const char *kvs_version(void);

/**
 * Returns the name of a status, such as "KVS_ERROR_RANK", or "unknown" if the number is not a status. The
 * string is static.
 */
const char *kvs_status_name(kvs_status status);

/**
 * Describes a DLPack tensor as a `kvs_tensor`. `dl_tensor` points to a `DLTensor` of dlpack.h, such as the
 * field `dl_tensor` of a `DLManagedTensor` or `DLManagedTensorVersioned`. (Its type here is `void`, so that
 * this header does not need dlpack.h.) `out` then points to the same data, shape and strides, and is valid
 * as long as they are.
 *
 * The function that takes `out` checks its shape and strides. Nothing checks the flags of a
 * `DLManagedTensorVersioned`, because a `DLTensor` does not contain them. Check them yourself first. A
 * read-only tensor must not become a cache, and 4-bit elements must not be padded to bytes.
 *
 * Besides `KVS_OK`, returns one of these errors:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
 *   if a pointer or a `struct_size` is not valid.
 * - `KVS_ERROR_DEVICE` if the tensor is not in the memory of the CPU.
 * - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE` if ONNX does not have the type, or if the type has more than one lane,
 *   as pairs of 4-bit floats (float4_e2m1fn_x2) have.
 * - `KVS_ERROR_RANK_LIMIT` if the tensor has more than `KVS_MAX_RANK` dimensions, or fewer than 0.
 * - `KVS_ERROR_BYTE_OFFSET` if `byte_offset` leads out of the address space.
 *
 * # Safety
 * - `dl_tensor` is either NULL or points to a `DLTensor`, which nothing writes before this returns.
 * - `out` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_tensor_from_dlpack(const void *dl_tensor, struct kvs_tensor *out);

/**
 * Frees a prepared write. NULL is allowed. No other thread may still use the prepared write.
 *
 * # Safety
 * `prepared` is either NULL or comes from a prepare function and has not been destroyed. No other function
 * uses it during this call or later.
 */
void kvs_prepared_destroy(struct kvs_prepared *prepared);

/**
 * Prepares ONNX TensorScatter-24. `past_cache` is [batch, D1, ..., capacity, ..., Dn]. `update` has the same
 * shape except for the sequence dimension (`axis`), where it is at most as long as `past_cache`. All element
 * types are accepted.
 *
 * Besides `KVS_OK`, returns one of these errors:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
 *   if a pointer or a `struct_size` is not valid.
 * - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
 *   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
 * - `KVS_ERROR_UNKNOWN_OPTION` if an option has a value without a meaning.
 * - `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_RANK_TOO_LOW`, `KVS_ERROR_AXIS_OUT_OF_RANGE`,
 *   `KVS_ERROR_AXIS_IS_BATCH`, `KVS_ERROR_RANK_MISMATCH`, `KVS_ERROR_DIMENSION_MISMATCH` or
 *   `KVS_ERROR_UPDATE_LONGER_THAN_CACHE` if the tensors do not fit the operator or each other.
 * - `KVS_ERROR_CACHE_OVERLAPS_ITSELF` or `KVS_ERROR_TOO_MANY_LOOPS` if strides are not supported.
 *
 * # Safety
 * - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
 * - `past_cache` and `update` are either NULL or each point to a struct of `struct_size` bytes. Their
 *   `shape` and `strides` are either NULL or point to `rank` numbers.
 * - Nothing writes these structs and numbers before this returns.
 * - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_tensor_scatter_prepare(const struct kvs_tensor_scatter_options *options,
                                      const struct kvs_tensor *past_cache,
                                      const struct kvs_tensor *update,
                                      struct kvs_prepared **out);

/**
 * Prepares TensorRT KVCacheUpdate. `cache` is [b, d, s_max, h]. A padded `update` is [b, d, s, h] and has no
 * more samples than the cache. A packed `update` is [totalTokens, d, h]. The element types are float32,
 * float16 and bfloat16.
 *
 * Besides `KVS_OK`, returns one of these errors:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
 *   if a pointer or a `struct_size` is not valid.
 * - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
 *   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
 * - `KVS_ERROR_UNKNOWN_OPTION` if an option has a value without a meaning.
 * - `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_ELEMENT_TYPE`, `KVS_ERROR_RANK`,
 *   `KVS_ERROR_DIMENSION_MISMATCH`, `KVS_ERROR_UPDATE_LONGER_THAN_CACHE` or `KVS_ERROR_BATCH_TOO_LARGE` if
 *   the tensors do not fit the operator or each other.
 * - `KVS_ERROR_CACHE_OVERLAPS_ITSELF` or `KVS_ERROR_TOO_MANY_LOOPS` if strides are not supported.
 *
 * # Safety
 * - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
 * - `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes. Their `shape` and
 *   `strides` are either NULL or point to `rank` numbers.
 * - Nothing writes these structs and numbers before this returns.
 * - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_kv_cache_update_prepare(const struct kvs_kv_cache_update_options *options,
                                       const struct kvs_tensor *cache,
                                       const struct kvs_tensor *update,
                                       struct kvs_prepared **out);

/**
 * Prepares Ascend ATB KVCacheOperation. `past` is [layer, batch, maxSeqLen, hiddenSize]. `new_kv` is
 * [nTokens, hiddenSize] or [batch, seq_len, head_num, head_size]. The element types are float16, bfloat16
 * and int8.
 *
 * The cache is the first tensor, as in the other prepare functions, although Ascend's document lists newKv
 * first.
 *
 * Besides `KVS_OK`, returns one of these errors:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
 *   if a pointer or a `struct_size` is not valid.
 * - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
 *   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
 * - `KVS_ERROR_UNKNOWN_OPTION` if an option has a value without a meaning.
 * - `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_ELEMENT_TYPE`, `KVS_ERROR_RANK`,
 *   `KVS_ERROR_DIMENSION_MISMATCH`, `KVS_ERROR_HIDDEN_SIZE` or `KVS_ERROR_UPDATE_LONGER_THAN_CACHE` if the
 *   tensors do not fit the operator or each other.
 * - `KVS_ERROR_CACHE_OVERLAPS_ITSELF` or `KVS_ERROR_TOO_MANY_LOOPS` if strides are not supported.
 *
 * # Safety
 * - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
 * - `past` and `new_kv` are either NULL or each point to a struct of `struct_size` bytes. Their `shape` and
 *   `strides` are either NULL or point to `rank` numbers.
 * - Nothing writes these structs and numbers before this returns.
 * - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_kv_cache_operation_prepare(const struct kvs_kv_cache_operation_options *options,
                                          const struct kvs_tensor *past,
                                          const struct kvs_tensor *new_kv,
                                          struct kvs_prepared **out);

/**
 * Prepares writes into a paged cache, one slot for each token, with the terms of vLLM and FlashInfer. `cache` is
 * [num_blocks, block_size, ...], or its slots are another dimension (`axis`). `update` is [tokens, ...], where
 * the other dimensions are those of `cache` without the blocks and the slots. All element types are accepted.
 *
 * A call gives the `slot_mapping`, as `kvs_slot_mapping` computes it. `lengths` do not apply, and there is no
 * functional form, so `kvs_write_present` returns `KVS_ERROR_IN_PLACE_ONLY`.
 *
 * Besides `KVS_OK`, returns one of these errors:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
 *   if a pointer or a `struct_size` is not valid.
 * - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
 *   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
 * - `KVS_ERROR_UNKNOWN_OPTION` if an option has a value without a meaning.
 * - `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_RANK`, `KVS_ERROR_AXIS_OUT_OF_RANGE`,
 *   `KVS_ERROR_AXIS_IS_BATCH` or `KVS_ERROR_DIMENSION_MISMATCH` if the tensors do not fit the write or each
 *   other. A cache has 2 to 8 dimensions.
 * - `KVS_ERROR_CACHE_OVERLAPS_ITSELF` or `KVS_ERROR_TOO_MANY_LOOPS` if strides are not supported.
 *
 * # Safety
 * - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
 * - `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes. Their `shape` and
 *   `strides` are either NULL or point to `rank` numbers.
 * - Nothing writes these structs and numbers before this returns.
 * - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_paged_write_prepare(const struct kvs_paged_write_options *options,
                                   const struct kvs_tensor *cache,
                                   const struct kvs_tensor *update,
                                   struct kvs_prepared **out);

/**
 * Writes the update into the cache. The tensors must have the type, rank, shape and strides that were
 * prepared, but their data may be at other addresses in each call. A dense tensor may give its strides or
 * omit them. Allocates nothing, unless a paged write has more than 128 runs of consecutive slots that are not in
 * ascending order, or a slot that occurs twice. It frees this memory before it returns.
 *
 * Besides `KVS_OK`, returns one of these errors:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE`, `KVS_ERROR_TOO_LARGE` or
 *   `KVS_ERROR_STRUCT_SIZE` if a pointer, an array or a `struct_size` is not valid.
 * - `KVS_ERROR_INDEX_WIDTH`, `KVS_ERROR_UNEXPECTED_ARGUMENT` or `KVS_ERROR_TENSOR_MISMATCH` if an argument
 *   differs from what was prepared.
 * - `KVS_ERROR_LIST_LENGTH`, `KVS_ERROR_NEGATIVE_START`, `KVS_ERROR_START_OUT_OF_RANGE` or
 *   `KVS_ERROR_LENGTH_OUT_OF_RANGE` if an index is not valid.
 * - For a packed update, also `KVS_ERROR_BATCH_TOO_LARGE`, `KVS_ERROR_CUMULATIVE_START`,
 *   `KVS_ERROR_CUMULATIVE_ORDER`, `KVS_ERROR_CUMULATIVE_LENGTH` or `KVS_ERROR_TOKEN_SUM`.
 * - For KVCacheOperation, also `KVS_ERROR_LAYER_OUT_OF_RANGE`, `KVS_ERROR_END_OUT_OF_RANGE` or
 *   `KVS_ERROR_TOKEN_SUM`.
 * - For a paged write, also `KVS_ERROR_SLOT_OUT_OF_RANGE` or `KVS_ERROR_DUPLICATE_SLOT`.
 * - `KVS_ERROR_NULL_BUFFER`, `KVS_ERROR_OVERLAP` or `KVS_ERROR_ELEMENT_WIDTH` if the data of the tensors
 *   cannot be written.
 *
 * # Safety
 * - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
 * - `call`, `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes.
 * - Each pointer in these structs is either NULL or points to the number of values that the field beside it
 *   gives. Nothing writes the structs and these values before this returns.
 * - The elements of each tensor are in one allocation, at the addresses that `data`, `shape` and `strides`
 *   give them. Elements of 4 bits are initialised in the cache and the update.
 *   Before this returns, nothing else writes the elements, and nothing else reads the elements of
 *   the cache that this writes.
 * - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls
 *   `work` with its `context` only, and does not call it after it has returned.
 * - `written` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_write(const struct kvs_prepared *prepared,
                     const struct kvs_call *call,
                     const struct kvs_tensor *cache,
                     const struct kvs_tensor *update,
                     struct kvs_written *written);

/**
 * Writes many updates, each into its own cache, at the same positions, such as the keys and values of a
 * layer, or all layers that share their positions. After an error, none of the updates is written. Two
 * caches may share a range of memory only if their strides interleave without sharing a byte.
 *
 * Overlaps are checked before anything moves. If updates are between caches in memory, the check compares
 * each cache with each update, so its time grows with the square of the number of pairs. If there are
 * hundreds of pairs, keep the updates away from the caches.
 *
 * The `struct_size` of every tensor must be exactly `sizeof(kvs_tensor)`, because an array has no room for
 * larger structs.
 *
 * Returns the same errors as `kvs_write`.
 *
 * # Safety
 * - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
 * - `call` is either NULL or points to a struct of `struct_size` bytes. `pairs` is either NULL or points to
 *   `count` pairs.
 * - Each pointer in these structs is either NULL or points to the number of values that the field beside it
 *   gives. Nothing writes the structs and these values before this returns.
 * - The elements of each tensor are in one allocation, at the addresses that `data`, `shape` and `strides`
 *   give them. Elements of 4 bits are initialised in the caches and the updates.
 *   Before this returns, nothing else writes the elements, and nothing else reads the elements of
 *   the caches that this writes.
 * - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls
 *   `work` with its `context` only, and does not call it after it has returned.
 * - `written` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_write_many(const struct kvs_prepared *prepared,
                          const struct kvs_call *call,
                          const struct kvs_pair *pairs,
                          size_t count,
                          struct kvs_written *written);

/**
 * Writes a copy of `past` that contains the update to `present`, in one pass over memory. This is the
 * functional form. `present` has the type and shape of `past` and must be dense. It need not be initialised,
 * and it must not share memory with the other tensors. If the result may replace `past`, write in place with
 * `kvs_write` instead. Allocates nothing.
 *
 * Returns the same errors as `kvs_write`, and `KVS_ERROR_IN_PLACE_ONLY` for a paged write.
 *
 * # Safety
 * - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
 * - `call`, `past`, `update` and `present` are either NULL or each point to a struct of `struct_size` bytes.
 * - Each pointer in these structs is either NULL or points to the number of values that the field beside it
 *   gives. Nothing writes the structs and these values before this returns.
 * - The elements of each tensor are in one allocation, at the addresses that `data`, `shape` and `strides`
 *   give them. Elements of 4 bits are initialised in `past` and `update`.
 *   Before this returns, nothing else writes the elements, and nothing else reads the elements of
 *   `present`, which this writes.
 * - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls
 *   `work` with its `context` only, and does not call it after it has returned.
 * - `written` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_write_present(const struct kvs_prepared *prepared,
                             const struct kvs_call *call,
                             const struct kvs_tensor *past,
                             const struct kvs_tensor *update,
                             const struct kvs_tensor *present,
                             struct kvs_written *written);

/**
 * Checks the indices of a call and visits the blocks of its write in place, so that your own kernel can
 * execute them. The blocks are disjoint in the cache, so they may be executed in any order. This function
 * moves no data and does not use the call's `executor`. `visit` runs on the calling thread.
 *
 * If `visit` returns a value other than 0, the visit stops and this function returns `KVS_ERROR_STOPPED`.
 * The error's `value` is the value that `visit` returned. The block is valid until `visit` returns. `visit`
 * may call other functions of this library.
 *
 * Also returns the errors of `kvs_write`, except `KVS_ERROR_TENSOR_MISMATCH`, `KVS_ERROR_NULL_BUFFER`,
 * `KVS_ERROR_OVERLAP` and `KVS_ERROR_ELEMENT_WIDTH`.
 *
 * # Safety
 * - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
 * - `call` is either NULL or points to a struct of `struct_size` bytes. Each pointer in it is either NULL or
 *   points to the number of values that the field beside it gives. Nothing writes the call and these values
 *   before this returns.
 * - The executor of the call, if it has one, satisfies the condition that `kvs_write` states for it.
 * - `visit` is either NULL or may be called with `user` and a block, and it returns.
 */
kvs_status kvs_for_each_block(const struct kvs_prepared *prepared,
                              const struct kvs_call *call,
                              int32_t (*visit)(void *user, const struct kvs_block *block),
                              void *user);

/**
 * Computes the slots of the new tokens of each sample, one sample after the other, for the `slot_mapping` of a
 * `kvs_call`. `slots` has room for `count` numbers, one for each new token of all samples. Allocates nothing.
 *
 * Besides `KVS_OK`, returns one of these errors, after which `slots` has not changed:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE`, `KVS_ERROR_TOO_LARGE` or
 *   `KVS_ERROR_STRUCT_SIZE` if a pointer, an array or a `struct_size` is not valid. `KVS_ERROR_TOO_LARGE` also
 *   means that the cache has more than PTRDIFF_MAX slots.
 * - `KVS_ERROR_INDEX_WIDTH` if a list does not have 32 bits, or `KVS_ERROR_OVERLAP` if `slots` overlaps one.
 * - `KVS_ERROR_LIST_LENGTH`, `KVS_ERROR_LENGTH_OUT_OF_RANGE` or `KVS_ERROR_BLOCK_OUT_OF_RANGE` if a list, a
 *   number of tokens or a block is not valid.
 *
 * # Safety
 * - `tables` is either NULL or points to a struct of `struct_size` bytes. Each pointer in it is either NULL or
 *   points to the number of values that the field beside it gives. Nothing writes the struct and these values
 *   before this returns.
 * - `slots` is either NULL or points to `count` initialised numbers, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_slot_mapping(const struct kvs_block_tables *tables,
                            int64_t *slots,
                            size_t count);

/**
 * Returns 1 if each query of a step sees its window and nothing else, and 0 if the step overwrites a row that
 * one of its queries still needs. Test a step before you write it, because a write into a ring cannot notice
 * that. The write succeeds, and attention then reads wrong rows.
 *
 * The step writes `rows` rows, including padding, from position `start` on. `high` is one more than the
 * furthest position that was written before, as `kvs_ring_high_after` computes it. It does not matter if
 * `start` is 0, because the sample then starts over. All earlier steps must have been exact. The result may be
 * 0 for an exact step if the sample has padding on the left. It is 0 if `start` is above PTRDIFF_MAX, as a
 * negative number is after its conversion.
 */
int32_t kvs_ring_takes(struct kvs_ring ring,
                       size_t high,
                       size_t start,
                       size_t rows);

/**
 * Returns the largest number of rows that an exact step can write from position `start` on, or 0 if there is
 * no such step. The arguments are those of `kvs_ring_takes`.
 */
size_t kvs_ring_most_rows(struct kvs_ring ring, size_t high, size_t start);

/**
 * Returns the lowest position above 0 from which an exact step can still start, or 0 if every position is
 * possible. A sample that is taken back further must start over at 0. The capacity must be at least the
 * window. `high` is that of `kvs_ring_takes`.
 */
size_t kvs_ring_least_start(struct kvs_ring ring, size_t high);

/**
 * Returns one more than the furthest position written, after a step of `rows` rows from position `start` on.
 * `high` is the number before the step, which is 0 for a new sample. A sample that starts over at 0 reads
 * nothing that was written before, so `high` starts over too.
 */
size_t kvs_ring_high_after(size_t high, size_t start, size_t rows);

/**
 * Computes the least capacity with which every step of up to `rows` rows is exact, if a sample is never taken
 * back by more than `rewind` tokens below its furthest one. `feeding` is one of `kvs_feeding`.
 *
 * Rewinds add up until the furthest token is passed: back 5, forward 1 and back 5 is a rewind of 9. A
 * capacity that does not fit `size_t` becomes SIZE_MAX, which no tensor has.
 *
 * Besides `KVS_OK`, returns `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED` or `KVS_ERROR_ADDRESS_SPACE` if
 * `out` is not valid, and `KVS_ERROR_UNKNOWN_OPTION` if `feeding` has no meaning.
 *
 * # Safety
 * `out` is either NULL or points to a `size_t` that nothing else uses before this returns.
 */
kvs_status kvs_ring_least_capacity(size_t window, size_t rows, size_t rewind, int32_t feeding, size_t *out);

/**
 * Prepares ONNX Attention over a cache. `query` is [batch, query heads, queries, head size]. `key` is [batch,
 * heads, slots, head size] and `value` is [batch, heads, slots, value size], or both consist of blocks
 * (`blocks_per_sample`). `output` is [batch, query heads, queries, value size]. The number of query heads is a
 * multiple of the number of heads.
 *
 * These four tensors may have strides, for example those of [batch, slots, heads, size]. The elements of a row,
 * which is the last dimension, are neighbours, and no stride is negative. Rows of `output` share no element.
 *
 * `query` and `output` have the same type, float32, float16 or bfloat16. `key` and `value` have the same type,
 * one of these three, or int8. Elements of int8 are codes, and a call gives their scales.
 *
 * `mask` is NULL if calls have no mask. Otherwise it is dense, and its dimensions broadcast to [batch, query
 * heads, queries, slots], aligned on the right. The last dimension does not broadcast. If it is shorter, the mask
 * hides the slots after it. Its elements are KVS_BOOL, where 0 hides a slot, or numbers of the type of `query`,
 * which are added to the scores.
 *
 * Besides `KVS_OK`, returns one of these errors:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
 *   if a pointer or a `struct_size` is not valid.
 * - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
 *   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
 * - `KVS_ERROR_UNKNOWN_OPTION` or `KVS_ERROR_NUMBER_OPTION` if an option has a value without a meaning.
 * - `KVS_ERROR_ELEMENT_TYPE`, `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_RANK`,
 *   `KVS_ERROR_DIMENSION_MISMATCH`, `KVS_ERROR_HEAD_GROUPS`, `KVS_ERROR_MASK_SHAPE`, `KVS_ERROR_EMPTY_SLOTS`,
 *   `KVS_ERROR_EMPTY_BLOCKS` or `KVS_ERROR_RING_OF_BLOCKS` if the tensors and options do not fit each other.
 * - `KVS_ERROR_STRIDE` or `KVS_ERROR_OUTPUT_OVERLAPS_ITSELF` if strides are not supported.
 *
 * # Safety
 * - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
 * - `query`, `key`, `value`, `mask` and `output` are either NULL or each point to a struct of `struct_size`
 *   bytes. Their `shape` and `strides` are either NULL or point to `rank` numbers.
 * - Nothing writes these structs and numbers before this returns.
 * - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_attention_prepare(const struct kvs_attention_options *options,
                                 const struct kvs_tensor *query,
                                 const struct kvs_tensor *key,
                                 const struct kvs_tensor *value,
                                 const struct kvs_tensor *mask,
                                 const struct kvs_tensor *output,
                                 struct kvs_attention **out);

/**
 * Frees prepared attention. NULL is allowed. No other thread may still use it. A scratch that was made for it
 * stays valid.
 *
 * # Safety
 * `attention` is either NULL or comes from `kvs_attention_prepare` and has not been destroyed. No other function
 * uses it during this call or later.
 */
void kvs_attention_destroy(struct kvs_attention *attention);

/**
 * Allocates the working memory for runs of `attention` that use at most `threads` threads, including the calling
 * thread. 0 is like 1, and more than 1024 is like 1024. It also fits any other `kvs_attention` that was prepared
 * with the same types, shapes, strides and options, such as those of other layers.
 *
 * Besides `KVS_OK`, returns `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED` or `KVS_ERROR_ADDRESS_SPACE` if a
 * pointer is not valid, and `KVS_ERROR_TOO_LARGE` if memory has no room for a length and a start of each sample,
 * which can happen if the tensors have no elements.
 *
 * # Safety
 * - `attention` is either NULL or comes from `kvs_attention_prepare`, and nothing destroys it before this returns.
 * - `out` is either NULL or points to memory for the address of the scratch, which nothing else uses before this
 *   returns.
 */
kvs_status kvs_attention_scratch_new(const struct kvs_attention *attention,
                                     size_t threads,
                                     struct kvs_attention_scratch **out);

/**
 * Frees the working memory of attention. NULL is allowed. No other thread may still use it.
 *
 * # Safety
 * `scratch` is either NULL or comes from `kvs_attention_scratch_new` and has not been destroyed. No other function
 * uses it during this call or later.
 */
void kvs_attention_scratch_destroy(struct kvs_attention_scratch *scratch);

/**
 * Computes attention of `query` over a cache, `key` and `value`, and writes it to `output`. The tensors must have
 * the type, rank, shape and strides that were prepared, but their data may be at other addresses in each call.
 * Slots that no query sees are not read. A query that sees nothing gives zeros. Allocates nothing.
 *
 * Besides `KVS_OK`, returns one of these errors, after which `output` has not changed:
 * - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE`, `KVS_ERROR_TOO_LARGE` or
 *   `KVS_ERROR_STRUCT_SIZE` if a pointer, an array or a `struct_size` is not valid.
 * - `KVS_ERROR_INDEX_WIDTH`, `KVS_ERROR_UNKNOWN_OPTION`, `KVS_ERROR_UNEXPECTED_ARGUMENT`,
 *   `KVS_ERROR_MISSING_ARGUMENT` or `KVS_ERROR_TENSOR_MISMATCH` if an argument differs from what was prepared.
 * - `KVS_ERROR_LIST_LENGTH`, `KVS_ERROR_LENGTH_OUT_OF_RANGE`, `KVS_ERROR_NEGATIVE_START` or
 *   `KVS_ERROR_BLOCK_OUT_OF_RANGE` if a length, a start or an entry of the block table is not valid.
 * - `KVS_ERROR_NULL_BUFFER` or `KVS_ERROR_OVERLAP` if the data of a tensor are NULL, or if `output` overlaps
 *   memory that the call reads.
 * - `KVS_ERROR_SCRATCH` if `scratch` was made for other shapes.
 *
 * # Safety
 * - `attention` is either NULL or comes from `kvs_attention_prepare`, and nothing destroys it before this returns.
 * - `call` and the tensors are either NULL or each point to a struct of `struct_size` bytes.
 * - Each pointer in these structs is either NULL or points to the number of values that the field beside it
 *   gives. Nothing writes the structs and these values before this returns.
 * - The memory of each tensor, from its first to its last element, is in one allocation. It is initialised, except
 *   that of `output`. Before this returns, nothing else writes it, and nothing else reads that of `output`.
 * - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls
 *   `work` with its `context` only, and does not call it after it has returned.
 * - `scratch` is either NULL or comes from `kvs_attention_scratch_new`. Nothing else uses or destroys it before
 *   this returns.
 */
kvs_status kvs_attention_run(const struct kvs_attention *attention,
                             const struct kvs_attention_call *call,
                             const struct kvs_tensor *query,
                             const struct kvs_tensor *key,
                             const struct kvs_tensor *value,
                             const struct kvs_tensor *output,
                             struct kvs_attention_scratch *scratch);

/**
 * Returns the error of the last function that failed on this thread. As with errno, success does not change
 * the error, so call this after a status that is not `KVS_OK`. This function does not change the error
 * either.
 *
 * Returns `KVS_OK`, or one of these errors if `out` cannot take the error: `KVS_ERROR_NULL_POINTER`,
 * `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`. In these cases `out` does
 * not change.
 *
 * # Safety
 * `out` is either NULL or points to a `kvs_error` whose `struct_size` is set and that nothing else uses
 * before this returns.
 */
kvs_status kvs_last_error(struct kvs_error *out);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVSCATTER_H */
