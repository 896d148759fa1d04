/*
 * kvscatter: writes new keys and values into a KV cache, in place, exactly as ONNX TensorScatter,
 * TensorRT KVCacheUpdate and Ascend KVCacheOperation define it.
 *
 * Prepare once per shape (kvs_tensor_scatter_prepare, kvs_kv_cache_update_prepare or
 * kvs_kv_cache_operation_prepare), run at every step (kvs_write, kvs_write_many, kvs_write_present, or
 * kvs_for_each_block for a kernel of your own), destroy (kvs_prepared_destroy). The repository has a first
 * program in examples/c/first.c, a decoder's loop beside it, and docs/c.md about both.
 *
 * Errors. Every function that can fail returns a kvs_status. After any but KVS_OK and KVS_ERROR_PANIC no byte
 * of any cache has changed, over many caches too, and no output parameter was written; kvs_last_error has the reason.
 * (KVS_ERROR_PANIC is a fault of the library: a write may be partly done.)
 *
 * Memory. The library keeps no pointer that it is given beyond the call, allocates only in the prepare
 * functions, and frees only in kvs_prepared_destroy. A run moves the bytes of the update and no others.
 *
 * Threads. Everything may be called from any thread. A kvs_prepared is immutable: any number of threads may use
 * one at once. Memory that a call writes must not be read or written by anyone else meanwhile.
 *
 * Structs that begin with struct_size must have their sizeof there, which the ..._INIT macros set. Fields added by
 * later versions come at the end. A larger one than the library knows is taken, and so is that of any earlier
 * version; a smaller one is refused. kvs_tensor does not grow, since kvs_pair contains it.
 *
 * Callbacks run inside these functions and must return: no C++ exception and no longjmp may leave one.
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

/** An index argument that is not given. */
#define KVS_INDICES_NONE {NULL, 0, 0}

/** A tensor to be filled in. */
#define KVS_TENSOR_INIT {sizeof(kvs_tensor), NULL, 0, 0, NULL, NULL}

/** A call without any argument. */
#define KVS_CALL_INIT                                                                                  \
    {sizeof(kvs_call), KVS_INDICES_NONE, KVS_INDICES_NONE, KVS_INDICES_NONE, KVS_INDICES_NONE,         \
     KVS_INDICES_NONE, KVS_INDICES_NONE, NULL}

/** The defaults, which NULL means too. */
#define KVS_TENSOR_SCATTER_OPTIONS_INIT                                                                \
    {sizeof(kvs_tensor_scatter_options), -2, KVS_MODE_LINEAR, KVS_OUT_OF_RANGE_ERROR, KVS_NEGATIVE_INDEX_MODULO}

/** The defaults, which NULL means too. */
#define KVS_KV_CACHE_UPDATE_OPTIONS_INIT                                                               \
    {sizeof(kvs_kv_cache_update_options), KVS_CACHE_MODE_LINEAR, KVS_UPDATE_FORM_PADDED, KVS_OUT_OF_RANGE_ERROR}

/** The defaults, which NULL means too. */
#define KVS_KV_CACHE_OPERATION_OPTIONS_INIT {sizeof(kvs_kv_cache_operation_options), KVS_OUT_OF_RANGE_ERROR}

/** A result of a run, to be filled in. */
#define KVS_WRITTEN_INIT {sizeof(kvs_written), 0}

/** An error, to be filled in by kvs_last_error. */
#define KVS_ERROR_INIT {sizeof(kvs_error), KVS_OK, 0, NULL, 0, 0, 0, {0}}


/**
 * The version of this interface. It grows when something is added that a program may want to ask for. Nothing is
 * ever removed.
 */
#define KVS_ABI_VERSION 1

/**
 * The most dimensions that a tensor may have.
 */
#define KVS_MAX_RANK 16

/**
 * The values of a `kvs_status`. The text of each error has the meaning of `index`, `value` and `limit` in its
 * `kvs_error`; `argument` names what is wrong. The limit is the nearest value that would have been taken.
 */
typedef enum kvs_status_code {
  /**
   * Done.
   */
  KVS_OK = 0,
  /**
   * A pointer is NULL that must not be. In an array of pairs, index: the pair, as in every error about a tensor
   * of a pair.
   */
  KVS_ERROR_NULL_POINTER = 1,
  /**
   * An address is not a multiple of the alignment of its type. Limit: the alignment, in bytes. Data need the
   * alignment of their element's type; types of 4 and 8 bits need none, complex ones that of their parts.
   */
  KVS_ERROR_MISALIGNED = 2,
  /**
   * `struct_size` is smaller than the struct was in the first version (in an array: another than it is). Value:
   * `struct_size`; limit: that size.
   */
  KVS_ERROR_STRUCT_SIZE = 3,
  /**
   * There is no such element type. Value: the number; limit. Of a DLPack type, value: its code, and no limit.
   */
  KVS_ERROR_UNKNOWN_ELEMENT_TYPE = 4,
  /**
   * A tensor has more than `KVS_MAX_RANK` dimensions (DLPack: or fewer than 0). Value: its rank; limit.
   */
  KVS_ERROR_RANK_LIMIT = 5,
  /**
   * A dimension is negative. Index: the dimension; value; limit: 0.
   */
  KVS_ERROR_NEGATIVE_DIMENSION = 6,
  /**
   * An option or constant has a value that names nothing. Argument: the option; value; limit: the nearest
   * value that does.
   */
  KVS_ERROR_UNKNOWN_OPTION = 7,
  /**
   * The call gives an argument that the operator does not have. Argument: its name in `kvs_call`.
   */
  KVS_ERROR_UNEXPECTED_ARGUMENT = 8,
  /**
   * Indices have another width than 32 or 64 bits, or than the 32 that the argument must have. Value: the
   * width; limit.
   */
  KVS_ERROR_INDEX_WIDTH = 9,
  /**
   * A tensor of a run is not the one that was prepared: another type, rank, dimension or stride, which the
   * message names. Index: the pair; value: what it has; limit: what it must have.
   */
  KVS_ERROR_TENSOR_MISMATCH = 10,
  /**
   * A DLPack tensor does not lie in the memory of the CPU. Value: its device type; limit: kDLCPU, 1.
   */
  KVS_ERROR_DEVICE = 11,
  /**
   * The `byte_offset` of a DLPack tensor leads out of every address space, or away from NULL. Value: the offset.
   */
  KVS_ERROR_BYTE_OFFSET = 12,
  /**
   * The visitor of `kvs_for_each_block` has stopped it. Value: what it returned.
   */
  KVS_ERROR_STOPPED = 13,
  /**
   * A fault of this library, not of yours: please report it. Writes may be partly done.
   */
  KVS_ERROR_PANIC = 14,
  /**
   * A fault of this library, not of yours: it got an error from its core that no call should get. Please
   * report it with the message.
   */
  KVS_ERROR_INTERNAL = 15,
  /**
   * Prepare: the operator does not take this element type. Value: the type.
   */
  KVS_ERROR_ELEMENT_TYPE = 100,
  /**
   * Prepare: cache and update have different element types. Value: the other tensor's; limit: the cache's.
   */
  KVS_ERROR_ELEMENT_TYPE_MISMATCH = 101,
  /**
   * Prepare: a tensor has the wrong number of dimensions. Value: its rank; limit: a rank it may have.
   */
  KVS_ERROR_RANK = 102,
  /**
   * Prepare: a cache has too few dimensions. Value: its rank; limit: the least.
   */
  KVS_ERROR_RANK_TOO_LOW = 103,
  /**
   * Prepare: cache and update have different ranks. Value: the update's; limit: the cache's.
   */
  KVS_ERROR_RANK_MISMATCH = 104,
  /**
   * Prepare: `axis` is no dimension of the cache. Value: the axis; limit: the nearest that is.
   */
  KVS_ERROR_AXIS_OUT_OF_RANGE = 105,
  /**
   * Prepare: `axis` is the batch dimension. Value: the axis; limit: the dimension after it.
   */
  KVS_ERROR_AXIS_IS_BATCH = 106,
  /**
   * Prepare: a dimension differs from the cache's. Index: the dimension; value; limit: the cache's.
   */
  KVS_ERROR_DIMENSION_MISMATCH = 107,
  /**
   * Prepare: heads times head size of a 4-D newKv are not hiddenSize. Value: the product; limit: hiddenSize.
   */
  KVS_ERROR_HIDDEN_SIZE = 108,
  /**
   * The update has more samples than the cache. Value: the update's; limit: the cache's.
   */
  KVS_ERROR_BATCH_TOO_LARGE = 109,
  /**
   * Prepare: the update has more rows than the cache. Value: its rows; limit: the cache's capacity.
   */
  KVS_ERROR_UPDATE_LONGER_THAN_CACHE = 110,
  /**
   * A tensor, its strides or an array reach farther than any buffer: beyond PTRDIFF_MAX elements or bytes. Limit:
   * PTRDIFF_MAX.
   */
  KVS_ERROR_TOO_LARGE = 111,
  /**
   * Prepare: two positions of the cache share memory, or interleave so that sharing cannot be excluded.
   */
  KVS_ERROR_CACHE_OVERLAPS_ITSELF = 112,
  /**
   * Prepare: the strides of the two tensors need too many nested loops. Value: how many; limit: 3.
   */
  KVS_ERROR_TOO_MANY_LOOPS = 113,
  /**
   * An index argument has the wrong number of values. Value: how many; limit: how many it must have.
   */
  KVS_ERROR_LIST_LENGTH = 200,
  /**
   * A start is negative, in linear mode or where that is rejected. Index: the sample; value; limit: 0.
   */
  KVS_ERROR_NEGATIVE_START = 201,
  /**
   * A linear write would run past the end of the cache. Index: the sample; value: its start; limit: the last
   * start at which its rows fit.
   */
  KVS_ERROR_START_OUT_OF_RANGE = 202,
  /**
   * A length after the write (tokenOffset) is below the rows of the sample in newKv, or its rows do not fit the
   * cache. Index: the sample; value; limit.
   */
  KVS_ERROR_END_OUT_OF_RANGE = 203,
  /**
   * A length of a sample is too small or too large. Index: the sample; value; limit, if any value would do.
   */
  KVS_ERROR_LENGTH_OUT_OF_RANGE = 204,
  /**
   * Cumulative lengths do not begin with 0. Index: 0; value: the first; limit: 0.
   */
  KVS_ERROR_CUMULATIVE_START = 205,
  /**
   * Cumulative lengths decrease. Index: where; value; limit: the one before.
   */
  KVS_ERROR_CUMULATIVE_ORDER = 206,
  /**
   * Cumulative lengths give a sample more rows than the cache has. Index: the sample; value: its rows; limit.
   */
  KVS_ERROR_CUMULATIVE_LENGTH = 207,
  /**
   * Lengths do not add up to the tokens of the update. Value: their sum; limit: the tokens.
   */
  KVS_ERROR_TOKEN_SUM = 208,
  /**
   * The layer does not exist. Value; limit: the nearest layer, if there is any.
   */
  KVS_ERROR_LAYER_OUT_OF_RANGE = 209,
  /**
   * The data of a tensor that has elements are NULL. Index: the pair; limit: the bytes that must lie there.
   */
  KVS_ERROR_NULL_BUFFER = 300,
  /**
   * Memory that would be written is also that of another tensor, or of indices or pairs that are read meanwhile,
   * down to a shared byte. Strided tensors count from their first to their last byte. Index: the pair.
   */
  KVS_ERROR_OVERLAP = 301,
  /**
   * Run: the tensors hold strings, which C has no bytes for. Move them by `kvs_for_each_block`.
   */
  KVS_ERROR_ELEMENT_WIDTH = 302,
  /**
   * Memory begins or ends outside of the address space: a tensor, with strides that lead to lower addresses too, an
   * array, or a struct. Index: the pair; value: the bytes that must lie there.
   */
  KVS_ERROR_ADDRESS_SPACE = 303,
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
 * The element types, by their numbers in ONNX's TensorProto.DataType. 4-bit types are packed two to a byte, the
 * first in the low nibble, without gaps between rows.
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
   * Strings of any representation: they can be planned (`kvs_for_each_block`), but not run.
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
   * Complex of two 32-bit floats.
   */
  KVS_COMPLEX64 = 14,
  /**
   * Complex of two 64-bit floats.
   */
  KVS_COMPLEX128 = 15,
  /**
   * 16-bit brain float.
   */
  KVS_BFLOAT16 = 16,
  /**
   * 8-bit float, finite only, NaN.
   */
  KVS_FLOAT8E4M3FN = 17,
  /**
   * 8-bit float, finite only, NaN, unsigned zero.
   */
  KVS_FLOAT8E4M3FNUZ = 18,
  /**
   * 8-bit float with infinities.
   */
  KVS_FLOAT8E5M2 = 19,
  /**
   * 8-bit float, finite only, NaN, unsigned zero.
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
 * How positions beyond the capacity are meant: ONNX's `mode`.
 */
typedef enum kvs_mode {
  /**
   * Every row lies inside the cache.
   */
  KVS_MODE_LINEAR = 0,
  /**
   * The cache is a ring: positions are taken modulo the capacity.
   */
  KVS_MODE_CIRCULAR = 1,
} kvs_mode;

/**
 * What happens to a sample whose position does not fit. An extension of this library to all three operators.
 */
typedef enum kvs_out_of_range {
  /**
   * The call is refused and nothing is written.
   */
  KVS_OUT_OF_RANGE_ERROR = 0,
  /**
   * The sample is left as it is, the others are written, and `kvs_written` counts it.
   */
  KVS_OUT_OF_RANGE_SKIP_SAMPLE = 1,
} kvs_out_of_range;

/**
 * What a negative index means in a ring. In linear mode it never fits.
 */
typedef enum kvs_negative_index {
  /**
   * Floor-modulo, as in ONNX's reference: -1 is the last slot.
   */
  KVS_NEGATIVE_INDEX_MODULO = 0,
  /**
   * It does not fit, as in ONNX Runtime.
   */
  KVS_NEGATIVE_INDEX_REJECT = 1,
} kvs_negative_index;

/**
 * TensorRT's `cacheMode`.
 */
typedef enum kvs_cache_mode {
  /**
   * kLINEAR, the only one there is.
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
   * kPACKED_NHD: the update is [totalTokens, d, h], and calls bring `update_lengths`.
   */
  KVS_UPDATE_FORM_PACKED_NHD = 1,
} kvs_update_form;

/**
 * A write whose shapes are checked: made once per shape by one of the prepare functions, run at every step,
 * destroyed by `kvs_prepared_destroy`. It never changes, so any number of threads may use one at once.
 */
typedef struct kvs_prepared kvs_prepared;

/**
 * What a function returns: `KVS_OK`, or one of the `KVS_ERROR_` numbers of `kvs_status_code`. Numbers keep their
 * meaning from version to version, and later versions may return new ones.
 */
typedef int32_t kvs_status;

/**
 * An element type: one of `kvs_element_type_code`.
 */
typedef int32_t kvs_element_type;

/**
 * A tensor: its address, element type, dimensions and strides. The library reads it during the call only. It has
 * the same size in every version, since `kvs_pair` contains two.
 */
typedef struct kvs_tensor {
  /**
   * `sizeof(kvs_tensor)`; the `KVS_TENSOR_INIT` macro sets it.
   */
  size_t struct_size;
  /**
   * The address of element [0, 0, ...], at which a byte begins. It points into one allocation, which contains every
   * element that `shape` and `strides` reach, at lower addresses too. Elements are little-endian. May be NULL if there
   * are no elements. The prepare functions ignore it.
   */
  void *data;
  /**
   * One of `kvs_element_type_code`.
   */
  kvs_element_type type;
  /**
   * How many dimensions: at most `KVS_MAX_RANK`.
   */
  uint32_t rank;
  /**
   * `rank` dimensions, in elements, outermost first.
   */
  const int64_t *shape;
  /**
   * `rank` strides, in elements; NULL for a dense row-major tensor. Those of an update may be zero or negative,
   * those of a cache must not let its elements overlap.
   */
  const int64_t *strides;
} kvs_tensor;

/**
 * Attributes of ONNX TensorScatter, and two extensions.
 */
typedef struct kvs_tensor_scatter_options {
  /**
   * `sizeof(kvs_tensor_scatter_options)`; the `KVS_TENSOR_SCATTER_OPTIONS_INIT` macro sets it and the defaults.
   */
  size_t struct_size;
  /**
   * The sequence dimension: 1 to rank - 1, or counted from the end, 1 - rank to -1. Default: -2.
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
 * Attributes of TensorRT KVCacheUpdate, and an extension.
 */
typedef struct kvs_kv_cache_update_options {
  /**
   * `sizeof(kvs_kv_cache_update_options)`; the `KVS_KV_CACHE_UPDATE_OPTIONS_INIT` macro sets it.
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
 * An extension to Ascend KVCacheOperation, which has no attributes but reserved bytes.
 */
typedef struct kvs_kv_cache_operation_options {
  /**
   * `sizeof(kvs_kv_cache_operation_options)`; the `KVS_KV_CACHE_OPERATION_OPTIONS_INIT` macro sets it.
   */
  size_t struct_size;
  /**
   * One of `kvs_out_of_range`.
   */
  int32_t out_of_range;
} kvs_kv_cache_operation_options;

/**
 * An index argument: `count` numbers of 32 or 64 bits (`int32_t`, `int64_t`), aligned as such. All zero, it is not
 * given.
 */
typedef struct kvs_indices {
  /**
   * The first of them. May be NULL if there are none.
   */
  const void *values;
  /**
   * How many there are.
   */
  size_t count;
  /**
   * The width of each: 32 or 64; 0 if the argument is not given.
   */
  int32_t bits;
} kvs_indices;

/**
 * Threads of your program that a call may use. Only large writes, of hundreds of kilobytes and more, use them.
 */
typedef struct kvs_executor {
  /**
   * Calls `work(context)` on each thread that is to help, once or more often, and returns when all of these calls
   * have returned and what they stored can be seen (joining or any release and acquire does). `work` must not be
   * called after that. Each call takes parts of the write until none are left, and the calling thread writes the
   * parts that no call took. So calling `work` never, or on one thread only, is slow but not wrong.
   */
  void (*broadcast)(void *user, void (*work)(void *context), void *context);
  /**
   * Given to `broadcast` as it is.
   */
  void *user;
} kvs_executor;

/**
 * The arguments of one call, and who is to help with it. Those of another operator than the prepared one must not be
 * given. Beside the operators' own there is `lengths`, an extension of this library to all of them.
 */
typedef struct kvs_call {
  /**
   * `sizeof(kvs_call)`; the `KVS_CALL_INIT` macro sets it.
   */
  size_t struct_size;
  /**
   * TensorScatter, KVCacheUpdate: the first slot written, one per sample of the update. TensorScatter may do
   * without: then every sample begins at slot 0.
   */
  struct kvs_indices write_indices;
  /**
   * How many rows of each sample are real: the rest is padding and not written. If not given, all are.
   */
  struct kvs_indices lengths;
  /**
   * KVCacheUpdate with a packed update: where each sample's rows begin, cumulative from 0, one more than samples;
   * 32 bits.
   */
  struct kvs_indices update_lengths;
  /**
   * KVCacheOperation: the layer; one value of 32 bits.
   */
  struct kvs_indices layer_id;
  /**
   * KVCacheOperation: the length after the write, one per batch of past; 32 bits.
   */
  struct kvs_indices token_offset;
  /**
   * KVCacheOperation: the tokens of each batch; 32 bits.
   */
  struct kvs_indices seq_len;
  /**
   * Threads for writes that are large enough to gain by them. NULL: everything runs on the calling thread.
   */
  const struct kvs_executor *executor;
} kvs_call;

/**
 * What a run did.
 */
typedef struct kvs_written {
  /**
   * In: `sizeof(kvs_written)`; the `KVS_WRITTEN_INIT` macro sets it.
   */
  size_t struct_size;
  /**
   * Samples that `KVS_OUT_OF_RANGE_SKIP_SAMPLE` has left as they were, in each cache alike.
   */
  size_t skipped;
} kvs_written;

/**
 * A cache and the update that is to be written into it: keys, values, or those of a layer.
 */
typedef struct kvs_pair {
  /**
   * The cache (for KVCacheOperation: past).
   */
  struct kvs_tensor cache;
  /**
   * The update (for KVCacheOperation: newKv).
   */
  struct kvs_tensor update;
} kvs_pair;

/**
 * A strided loop, which repeats the runs of a block. Strides are in elements.
 */
typedef struct kvs_loop {
  /**
   * Iterations: 1 for a loop that is not needed.
   */
  size_t count;
  /**
   * How far each iteration moves in the cache.
   */
  ptrdiff_t dst_stride;
  /**
   * How far each iteration moves in the update.
   */
  ptrdiff_t src_stride;
} kvs_loop;

/**
 * One strided copy of a write: a contiguous run of elements inside three loops, outermost first. In the cache, the
 * run at iterations i, j, k begins at the offset
 * `dst_offset + i * loops[0].dst_stride + j * loops[1].dst_stride + k * loops[2].dst_stride`, and in the update at
 * the same sum of `src_offset` and `src_stride`. Offsets are in elements and count from the address of the tensor's
 * element [0, 0, ...], which is its `data`. They are negative where strides lead to lower addresses.
 */
typedef struct kvs_block {
  /**
   * Offset of the first run in the cache.
   */
  ptrdiff_t dst_offset;
  /**
   * Offset of the first run in the update.
   */
  ptrdiff_t src_offset;
  /**
   * Elements of one run.
   */
  size_t len;
  /**
   * The loops that repeat it.
   */
  struct kvs_loop loops[3];
} kvs_block;

/**
 * An error in parts, for programs, and in words, for people.
 */
typedef struct kvs_error {
  /**
   * In: `sizeof(kvs_error)`.
   */
  size_t struct_size;
  /**
   * What the function returned; `KVS_OK` if none has failed on this thread.
   */
  kvs_status code;
  /**
   * Which of `index`, `value` and `limit` are set, as a sum of `kvs_error_field`. The others are 0.
   */
  uint32_t fields;
  /**
   * What is wrong. A tensor has the name that the specification of the prepared operator gives it: `past_cache`,
   * `update`, `present_cache` (ONNX); `cache`, `update`, `output` (TensorRT); `past`, `newKv`, `present` (Ascend).
   * Indices have theirs, such as `writeIndices`, if their values or their number are wrong. Errors about a
   * pointer, struct or option have this header's names. Static; NULL if nothing with a name is wrong.
   */
  const char *argument;
  /**
   * Which sample, dimension, byte or pair: see `kvs_status_code`.
   */
  int64_t index;
  /**
   * The value that was refused.
   */
  int64_t value;
  /**
   * The nearest value that would have been taken.
   */
  int64_t limit;
  /**
   * One line in English, in lower case, without a full stop; what does not fit is cut off.
   */
  char message[256];
} kvs_error;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * `KVS_ABI_VERSION` of the library that is running. A program compiled with a larger one than this must not use
 * what was added since.
 */
uint32_t kvs_abi_version(void);

/**
 * The version of the library that is running, such as "0.1.0". Static.
 */
const char *kvs_version(void);

/**
 * The name of a status, such as "KVS_ERROR_RANK"; "unknown" for a number that is none. Static.
 */
const char *kvs_status_name(kvs_status status);

/**
 * Describes a DLPack tensor. `dl_tensor` points to a `DLTensor` of dlpack.h: `&managed->dl_tensor` of a
 * `DLManagedTensor` or a `DLManagedTensorVersioned`. (It is no `DLTensor` here, so that this header does not need
 * that one.) `out` then points to the same data, shape and strides, and is valid as long as they are.
 *
 * Shape and strides are checked by the function that `out` is given to. The flags of a `DLManagedTensorVersioned` are
 * not, since a `DLTensor` has none: look at them first. One that is read-only must not become a cache, and 4-bit
 * elements must not be padded to bytes.
 *
 * Errors: `KVS_ERROR_DEVICE` unless it is in the memory of the CPU; `KVS_ERROR_UNKNOWN_ELEMENT_TYPE` for types
 * that ONNX does not have, and for more than one lane, so also for 4-bit floats as pairs (float4_e2m1fn_x2); `KVS_ERROR_RANK_LIMIT`; `KVS_ERROR_BYTE_OFFSET`; and those of
 * the two pointers.
 *
 * # Safety
 * - `dl_tensor` is either NULL or points to a `DLTensor`, which nothing writes before this returns.
 * - `out` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this returns.
 */
kvs_status kvs_tensor_from_dlpack(const void *dl_tensor,
                                  struct kvs_tensor *out);

/**
 * Frees a prepared write. NULL is allowed. No other thread may still be using it.
 *
 * # Safety
 * `prepared` is either NULL or comes from a prepare function and is not destroyed yet. No other function uses it during
 * this call or later.
 */
void kvs_prepared_destroy(struct kvs_prepared *prepared);

/**
 * Prepares ONNX TensorScatter-24. `past_cache` is [batch, D1, ..., capacity, ..., Dn], and `update` differs from it
 * in the sequence dimension (`axis`) alone, where it is no longer. All element types.
 *
 * Errors: those of pointers, structs and tensors; `KVS_ERROR_UNKNOWN_OPTION`; `KVS_ERROR_ELEMENT_TYPE_MISMATCH`;
 * `KVS_ERROR_RANK_TOO_LOW`, `_AXIS_OUT_OF_RANGE`, `_AXIS_IS_BATCH`, `_RANK_MISMATCH`; `_TOO_LARGE`;
 * `_DIMENSION_MISMATCH`, `_UPDATE_LONGER_THAN_CACHE`; `_CACHE_OVERLAPS_ITSELF`, `_TOO_MANY_LOOPS`.
 *
 * # Safety
 * - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
 * - `past_cache` and `update` are either NULL or each point to a struct of `struct_size` bytes. Their
 *   `shape` and `strides` are either NULL or point to `rank` numbers.
 * - Nothing writes these structs and numbers before this returns.
 * - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this returns.
 */
kvs_status kvs_tensor_scatter_prepare(const struct kvs_tensor_scatter_options *options,
                                      const struct kvs_tensor *past_cache,
                                      const struct kvs_tensor *update,
                                      struct kvs_prepared **out);

/**
 * Prepares TensorRT KVCacheUpdate. `cache` is [b, d, s_max, h]; `update` is [b, d, s, h], with as many samples as
 * the cache or fewer, or packed, [totalTokens, d, h]. float32, float16 and bfloat16.
 *
 * Errors: those of pointers, structs and tensors; `KVS_ERROR_UNKNOWN_OPTION`; `KVS_ERROR_ELEMENT_TYPE_MISMATCH`;
 * `KVS_ERROR_ELEMENT_TYPE`, `_RANK`; `_TOO_LARGE`; `_DIMENSION_MISMATCH`; `_UPDATE_LONGER_THAN_CACHE`,
 * `_BATCH_TOO_LARGE`; `_CACHE_OVERLAPS_ITSELF`, `_TOO_MANY_LOOPS`.
 *
 * # Safety
 * - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
 * - `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes. Their
 *   `shape` and `strides` are either NULL or point to `rank` numbers.
 * - Nothing writes these structs and numbers before this returns.
 * - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this returns.
 */
kvs_status kvs_kv_cache_update_prepare(const struct kvs_kv_cache_update_options *options,
                                       const struct kvs_tensor *cache,
                                       const struct kvs_tensor *update,
                                       struct kvs_prepared **out);

/**
 * Prepares Ascend ATB KVCacheOperation. `past` is [layer, batch, maxSeqLen, hiddenSize], `new_kv` is
 * [nTokens, hiddenSize] or [batch, seq_len, head_num, head_size]. float16, bfloat16 and int8.
 *
 * The cache comes first, as for all operators; Ascend's document lists newKv first.
 *
 * Errors: those of pointers, structs and tensors; `KVS_ERROR_UNKNOWN_OPTION`; `KVS_ERROR_ELEMENT_TYPE_MISMATCH`;
 * `KVS_ERROR_ELEMENT_TYPE`, `_RANK`; `_TOO_LARGE`; `_DIMENSION_MISMATCH`, `_HIDDEN_SIZE`;
 * `_UPDATE_LONGER_THAN_CACHE`; `_CACHE_OVERLAPS_ITSELF`, `_TOO_MANY_LOOPS`.
 *
 * # Safety
 * - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
 * - `past` and `new_kv` are either NULL or each point to a struct of `struct_size` bytes. Their
 *   `shape` and `strides` are either NULL or point to `rank` numbers.
 * - Nothing writes these structs and numbers before this returns.
 * - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this returns.
 */
kvs_status kvs_kv_cache_operation_prepare(const struct kvs_kv_cache_operation_options *options,
                                          const struct kvs_tensor *past,
                                          const struct kvs_tensor *new_kv,
                                          struct kvs_prepared **out);

/**
 * Writes the update into the cache. The tensors are those that were prepared, in type, rank, shape and strides (a
 * dense one may give its strides or not); their data may lie elsewhere in each call. Allocates nothing.
 *
 * Errors: those of pointers and structs; `KVS_ERROR_INDEX_WIDTH`, `_UNEXPECTED_ARGUMENT`; `_TENSOR_MISMATCH`; for
 * the indices, `_LIST_LENGTH`, `_NEGATIVE_START`, `_START_OUT_OF_RANGE`, `_LENGTH_OUT_OF_RANGE`, and with a packed update
 * `_BATCH_TOO_LARGE` and `_CUMULATIVE_...`, `_TOKEN_SUM`, and in KVCacheOperation `_LAYER_OUT_OF_RANGE`,
 * `_END_OUT_OF_RANGE`, `_TOKEN_SUM`; for the data, `_MISALIGNED`, `_NULL_BUFFER`, `_ADDRESS_SPACE`, `_OVERLAP`, `_ELEMENT_WIDTH`.
 *
 * # Safety
 * - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
 * - `call`, `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes.
 * - Each pointer in these structs is either NULL or points to as many values as the number beside it gives. Nothing
 *   writes the structs and these values before this returns.
 * - The elements of each tensor lie in one allocation, at the addresses that `data`, `shape` and `strides` give them.
 *   Nothing else writes them before this returns, and nothing else reads those that this writes, which are in the cache.
 * - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls `work` with
 *   its `context` only, and not after it has returned.
 * - `written` is either NULL, which is allowed, or points to memory of `struct_size` bytes, which
 *   nothing else uses before this returns.
 */
kvs_status kvs_write(const struct kvs_prepared *prepared,
                     const struct kvs_call *call,
                     const struct kvs_tensor *cache,
                     const struct kvs_tensor *update,
                     struct kvs_written *written);

/**
 * Writes many updates into as many caches at the same positions: keys and values, or all layers that share them. All
 * of them or, after an error, none. With each other, caches may share memory only where their strides interleave
 * without meeting.
 *
 * Overlaps are checked before anything moves. If updates are between caches in memory, each cache is compared with
 * each update, and the time for that grows with the square of the number of pairs. If there are hundreds, keep the
 * updates away from the caches.
 *
 * `struct_size` of every tensor must be exactly `sizeof(kvs_tensor)`, since an array has no room for larger ones.
 *
 * Errors: as for `kvs_write`; `index` is the pair.
 *
 * # Safety
 * - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
 * - `call` is either NULL or points to a struct of `struct_size` bytes. `pairs` is either NULL or
 *   points to `count` pairs.
 * - Each pointer in these structs is either NULL or points to as many values as the number beside it gives. Nothing
 *   writes the structs and these values before this returns.
 * - The elements of each tensor lie in one allocation, at the addresses that `data`, `shape` and `strides` give them.
 *   Nothing else writes them before this returns, and nothing else reads those that this writes, which are in the caches.
 * - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls `work` with
 *   its `context` only, and not after it has returned.
 * - `written` is either NULL, which is allowed, or points to memory of `struct_size` bytes, which
 *   nothing else uses before this returns.
 */
kvs_status kvs_write_many(const struct kvs_prepared *prepared,
                          const struct kvs_call *call,
                          const struct kvs_pair *pairs,
                          size_t count,
                          struct kvs_written *written);

/**
 * The functional form: `present` becomes `past` with the update written into it, in one pass over memory. `present`
 * has the type and shape of `past`, is dense, need not be initialised, and shares no memory with the others. Where
 * the result may take the place of the past, write in place instead. Allocates nothing.
 *
 * Errors: as for `kvs_write`.
 *
 * # Safety
 * - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
 * - `call`, `past`, `update` and `present` are either NULL or each point to a struct of `struct_size` bytes.
 * - Each pointer in these structs is either NULL or points to as many values as the number beside it gives. Nothing
 *   writes the structs and these values before this returns.
 * - The elements of each tensor lie in one allocation, at the addresses that `data`, `shape` and `strides` give them.
 *   Nothing else writes them before this returns, and nothing else reads those that this writes, which are in `present`.
 * - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls `work` with
 *   its `context` only, and not after it has returned.
 * - `written` is either NULL, which is allowed, or points to memory of `struct_size` bytes, which
 *   nothing else uses before this returns.
 */
kvs_status kvs_write_present(const struct kvs_prepared *prepared,
                             const struct kvs_call *call,
                             const struct kvs_tensor *past,
                             const struct kvs_tensor *update,
                             const struct kvs_tensor *present,
                             struct kvs_written *written);

/**
 * Checks the call's indices, and visits the blocks of the write in place: what to move, for a kernel of your own.
 * Blocks are disjoint in the cache and may be executed in any order. Nothing is moved, the call's `executor` is not
 * used, and `visit` runs on the calling thread.
 *
 * A visitor that does not return 0 stops it: `KVS_ERROR_STOPPED`, with what it returned as the error's value. The
 * block is valid until the visitor returns; the visitor may call other functions of this library.
 *
 * Errors: as for `kvs_write`, but for those of tensors and data.
 *
 * # Safety
 * - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
 * - `call` is either NULL or points to a struct of `struct_size` bytes. Each pointer in it is either
 *   NULL or points to as many values as the number beside it gives. Nothing writes the call and these values before this
 *   returns.
 * - `visit` is either NULL or may be called with `user` and a block, and it returns.
 */
kvs_status kvs_for_each_block(const struct kvs_prepared *prepared,
                              const struct kvs_call *call,
                              int32_t (*visit)(void *user, const struct kvs_block *block),
                              void *user);

/**
 * Returns the error of the last function that failed on this thread. As with errno, success does not change it, so
 * call this after a status that is not `KVS_OK`. Calling it does not change the error either.
 *
 * Returns `KVS_OK`; `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED` or `KVS_ERROR_STRUCT_SIZE` if `out` cannot
 * take the error, which does not change then.
 *
 * # Safety
 * `out` is either NULL or points to a `kvs_error` whose `struct_size` is set and that nothing else uses meanwhile.
 */
kvs_status kvs_last_error(struct kvs_error *out);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVSCATTER_H */
