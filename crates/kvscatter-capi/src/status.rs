//! The numbers that functions return.

use std::ffi::{CStr, c_char};

use kvscatter::error::ErrorKind;

/// The result of a function: `KVS_OK` or one of the `KVS_ERROR_` numbers of `kvs_status_code`. A number keeps
/// its meaning in later versions. Later versions may return new numbers.
pub type kvs_status = i32;

/// The values of a `kvs_status`. The comment of each error documents `index`, `value` and `limit` of the
/// `kvs_error`. If the comment does not mention a field, that field is not set. Unless the comment gives
/// another meaning, `limit` is the nearest value that would have been accepted.
///
/// A "pair" is the index of a cache and its update in the array of `kvs_write_many`, and 0 in other writes. In
/// attention it is not set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_status_code {
    /// The function succeeded.
    KVS_OK = 0,

    /// A pointer is NULL, but must not be. If it is the `shape` of a tensor of a run, `index` is the pair.
    KVS_ERROR_NULL_POINTER = 1,
    /// An address is not a multiple of the alignment of its type. `limit` is that alignment in bytes. If the
    /// address is the `shape`, `strides` or `data` of a tensor of a run, `index` is the
    /// pair. Data need the alignment of their element type. Types of 4 and 8 bits need no alignment, and a
    /// complex type needs the alignment of its parts.
    KVS_ERROR_MISALIGNED = 2,
    /// `struct_size` is smaller than the struct was in its first version. In an array of pairs, `struct_size`
    /// must be exact, and `index` is the pair. `value` is the `struct_size`, and `limit` is the size that was
    /// expected.
    KVS_ERROR_STRUCT_SIZE = 3,
    /// The element type does not exist. `value` is its number, and `limit` is the nearest number that exists.
    /// For a DLPack type, `value` is its type code and `limit` is not set.
    KVS_ERROR_UNKNOWN_ELEMENT_TYPE = 4,
    /// A tensor has more than `KVS_MAX_RANK` dimensions, or a DLPack tensor has fewer than 0. `value` is its
    /// rank, and `limit` is the nearest rank that is allowed.
    KVS_ERROR_RANK_LIMIT = 5,
    /// A dimension is negative. `index` is the dimension, `value` is its size, and `limit` is 0.
    KVS_ERROR_NEGATIVE_DIMENSION = 6,
    /// An option has a value without a meaning. `argument` names the option, `value` is its value, and
    /// `limit` is the nearest value that has a meaning.
    KVS_ERROR_UNKNOWN_OPTION = 7,
    /// The call gives an argument that the operator does not have, or that was not prepared for attention.
    /// `argument` is its name.
    KVS_ERROR_UNEXPECTED_ARGUMENT = 8,
    /// The width of an index argument is neither 32 nor 64 bits, or it is 64 bits for an argument that must
    /// have 32. `value` is the width, and `limit` is the nearest width that is allowed.
    KVS_ERROR_INDEX_WIDTH = 9,
    /// The type, rank, a dimension or a stride of a tensor of a run differs from the tensor that was
    /// prepared. The message names the property. `index` is the pair, `value` is the property of the tensor,
    /// and `limit` is the prepared property.
    KVS_ERROR_TENSOR_MISMATCH = 10,
    /// A DLPack tensor is not in the memory of the CPU. `value` is its device type, and `limit` is 1
    /// (kDLCPU).
    KVS_ERROR_DEVICE = 11,
    /// The `byte_offset` of a DLPack tensor leads out of the address space, or its data are NULL and
    /// `byte_offset` is not 0. `value` is the offset.
    KVS_ERROR_BYTE_OFFSET = 12,
    /// The visitor of `kvs_for_each_block` stopped the visit. `value` is the number that it returned.
    KVS_ERROR_STOPPED = 13,
    /// The library panicked because of a bug in the library. A write may be partly done. Please report it.
    KVS_ERROR_PANIC = 14,
    /// The core returned an error that no call should cause, so the library has a bug. `index`, `value` and
    /// `limit` may be set. Please report it with the message.
    KVS_ERROR_INTERNAL = 15,

    /// The operator does not accept this element type. `value` is the number of the type.
    KVS_ERROR_ELEMENT_TYPE = 100,
    /// Two tensors have different element types. `value` is the type of the update, and `limit` is the type of
    /// the cache. In attention, `limit` is the type that the tensor must have.
    KVS_ERROR_ELEMENT_TYPE_MISMATCH = 101,
    /// A tensor has the wrong number of dimensions. `value` is its rank, and `limit` is the nearest rank that
    /// is allowed.
    KVS_ERROR_RANK = 102,
    /// A cache has too few dimensions. `value` is its rank, and `limit` is the smallest rank that is allowed.
    KVS_ERROR_RANK_TOO_LOW = 103,
    /// The cache and the update have different ranks. `value` is the rank of the update, and `limit` is the
    /// rank of the cache.
    KVS_ERROR_RANK_MISMATCH = 104,
    /// `axis` is not a dimension of the cache. `value` is the axis, and `limit` is the nearest axis that
    /// exists.
    KVS_ERROR_AXIS_OUT_OF_RANGE = 105,
    /// `axis` is the batch dimension. `value` is the axis, and `limit` is the dimension after it.
    KVS_ERROR_AXIS_IS_BATCH = 106,
    /// A dimension differs from the dimension of the cache, or in attention, from the one that another tensor
    /// requires. `index` is the dimension, `value` is its size, and `limit` is the size that it must have.
    KVS_ERROR_DIMENSION_MISMATCH = 107,
    /// The product of the head number and the head size of a 4-D newKv is not hiddenSize. `value` is the
    /// product, and `limit` is hiddenSize.
    KVS_ERROR_HIDDEN_SIZE = 108,
    /// The update has more samples than the cache. For a packed update, a run returns this error, because the
    /// indices determine the number of samples. `value` is the number in the update, and `limit` is the
    /// number in the cache.
    KVS_ERROR_BATCH_TOO_LARGE = 109,
    /// The update has more rows than the cache. `value` is the number of rows of the update, and `limit` is
    /// the capacity of the cache.
    KVS_ERROR_UPDATE_LONGER_THAN_CACHE = 110,
    /// A tensor, its strides or an array extend over more than PTRDIFF_MAX elements or bytes. `limit` is
    /// PTRDIFF_MAX.
    KVS_ERROR_TOO_LARGE = 111,
    /// Two positions of the cache share memory, or its strides interleave in a way that the check cannot
    /// prove to be free of overlap.
    KVS_ERROR_CACHE_OVERLAPS_ITSELF = 112,
    /// The strides of the two tensors need too many nested loops. `value` is the number of loops, and `limit`
    /// is 3.
    KVS_ERROR_TOO_MANY_LOOPS = 113,
    // 114 was for reserved bytes of KVCacheOperation's options. It stays unused so that no number has two
    // meanings.
    /// An index argument, lengths or a block table have the wrong number of values. `value` is the number of
    /// values, and `limit` is the number that there must be.
    KVS_ERROR_LIST_LENGTH = 200,
    /// A start is negative, in linear mode, with an option that rejects negative starts, or in attention. Or a slot
    /// of a paged write is negative.
    /// `index` is the sample or, for a slot, the token. `value` is the start or the slot, and `limit` is 0.
    KVS_ERROR_NEGATIVE_START = 201,
    /// A linear write would extend past the end of the cache. `index` is the sample, `value` is its start,
    /// and `limit` is the last start at which its rows fit.
    KVS_ERROR_START_OUT_OF_RANGE = 202,
    /// A length after the write (tokenOffset) is smaller than the number of rows of the sample in newKv, or
    /// its rows do not fit into the cache. `index` is the sample, `value` is the length, and `limit` is the
    /// nearest length that fits. It is not set if no length fits.
    KVS_ERROR_END_OUT_OF_RANGE = 203,
    /// A length of a sample is too small or too large. `index` is the sample, `value` is the length, and
    /// `limit` is the nearest length that is allowed. It is not set if no length is allowed.
    KVS_ERROR_LENGTH_OUT_OF_RANGE = 204,
    /// Cumulative lengths do not begin with 0. `index` is 0, `value` is the first number, and `limit` is 0.
    KVS_ERROR_CUMULATIVE_START = 205,
    /// Cumulative lengths decrease. `index` is the position of the smaller number in the list, `value` is
    /// that number, and `limit` is the number before it.
    KVS_ERROR_CUMULATIVE_ORDER = 206,
    /// Cumulative lengths give a sample more rows than the cache has. `index` is the sample, `value` is its
    /// number of rows, and `limit` is the capacity of the cache.
    KVS_ERROR_CUMULATIVE_LENGTH = 207,
    /// The lengths do not add up to the tokens of the update. `value` is their sum, and `limit` is the number
    /// of tokens.
    KVS_ERROR_TOKEN_SUM = 208,
    /// The layer does not exist. `value` is the layer, and `limit` is the nearest layer. `limit` is not set
    /// if the cache has no layers.
    KVS_ERROR_LAYER_OUT_OF_RANGE = 209,
    /// A slot of a paged cache is after its last block. `index` is the token, `value` is the slot, and `limit` is
    /// the nearest slot. `limit` is not set if the cache has no slots.
    KVS_ERROR_SLOT_OUT_OF_RANGE = 210,
    /// Two tokens have the same slot of a paged cache. `index` is the later token, and `value` is the slot.
    KVS_ERROR_DUPLICATE_SLOT = 211,

    /// The data of a tensor that has elements are NULL. `index` is the pair, and `limit` is the number of
    /// bytes that the buffer must have.
    KVS_ERROR_NULL_BUFFER = 300,
    /// Memory that the call would write overlaps another tensor, or indices or pairs that the call reads. One
    /// shared byte is an overlap. A strided tensor counts as the range from its first to its last byte, but
    /// two strided caches may interleave. `index` is the pair.
    KVS_ERROR_OVERLAP = 301,
    /// A run cannot copy strings, because they have no fixed size in C. Move them with `kvs_for_each_block`.
    /// `value` is 8, the number of bits that sizes count for a string.
    KVS_ERROR_ELEMENT_WIDTH = 302,
    /// A tensor, array or struct begins or ends outside the address space. For a tensor, strides that lead to
    /// lower addresses count too. `value` is the number of bytes that the memory must have. For a tensor of a
    /// run, and for its `shape` and `strides`, `index` is the pair. For other memory, `index` is not set.
    KVS_ERROR_ADDRESS_SPACE = 303,
    /// A paged write has no functional form. Write in place.
    KVS_ERROR_IN_PLACE_ONLY = 304,

    /// Attention: a stride is negative, the elements of a row are not neighbours, or a tensor that must be
    /// dense is not. `index` is the dimension, `value` is its stride, and `limit` is the nearest stride that is
    /// allowed.
    KVS_ERROR_STRIDE = 400,
    /// Attention: an option that is a number is negative, infinite or not a number. `argument` names the
    /// option.
    KVS_ERROR_NUMBER_OPTION = 401,
    /// Attention: the number of query heads is not a multiple of the number of heads of keys and values.
    /// `value` is the number of query heads, and `limit` is the number of heads of keys.
    KVS_ERROR_HEAD_GROUPS = 402,
    /// Attention: the mask does not broadcast to [batch, query heads, queries, slots]. The message contains
    /// both shapes.
    KVS_ERROR_MASK_SHAPE = 403,
    /// Attention: keys and values without elements have too many slots. `value` is their number, and `limit` is
    /// the largest number.
    KVS_ERROR_EMPTY_SLOTS = 404,
    /// Attention: two rows of the output share elements.
    KVS_ERROR_OUTPUT_OVERLAPS_ITSELF = 405,
    /// Attention: a ring cannot consist of blocks.
    KVS_ERROR_RING_OF_BLOCKS = 406,
    /// Attention: the blocks of a cache have no slots.
    KVS_ERROR_EMPTY_BLOCKS = 407,
    /// Attention: the call lacks an argument that was prepared. `argument` is its name.
    KVS_ERROR_MISSING_ARGUMENT = 408,
    /// A query of attention sees a block that does not exist, or a new token of `kvs_slot_mapping` is in one.
    /// `index` is the sample, `value` is the entry of the block table, and `limit` is the nearest block. `limit` is
    /// not set if the cache has no blocks.
    KVS_ERROR_BLOCK_OUT_OF_RANGE = 409,
    /// Attention: the scratch was made for other shapes.
    KVS_ERROR_SCRATCH = 410,
}

/// The smallest number of an error of the core. Smaller numbers belong to errors of this interface.
const FIRST_OF_CORE: kvs_status = 100;

/// An error of the core has the number of the status with the same name. A test lists the kinds that have no
/// status.
impl From<ErrorKind> for kvs_status_code {
    fn from(kind: ErrorKind) -> Self {
        let is_named = |name: &CStr| {
            let name = name.to_bytes().strip_prefix(b"KVS_ERROR_");
            name.is_some_and(|name| name.eq_ignore_ascii_case(kind.name().as_bytes()))
        };
        let mut of_core = NAMES.iter().filter(|(code, _)| *code as kvs_status >= FIRST_OF_CORE);
        let named = of_core.find(|(_, name)| is_named(name));
        named.map_or(Self::KVS_ERROR_INTERNAL, |(code, _)| *code)
    }
}

/// Returns the name of a status, such as "KVS_ERROR_RANK", or "unknown" if the number is not a status. The
/// string is static.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_status_name(status: kvs_status) -> *const c_char {
    let named = NAMES.iter().find(|(code, _)| *code as kvs_status == status);
    named.map_or(c"unknown", |(_, name)| name).as_ptr()
}

/// Pairs each status with its name as a C string.
macro_rules! named {
    ($($code:ident)*) => {
        &[$((kvs_status_code::$code, c_name(concat!(stringify!($code), "\0")))),*]
    };
}

const fn c_name(name: &str) -> &CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"unknown", // every name ends in its only NUL
    }
}

/// All statuses with their names. `tests/header.rs` compares the names with the header.
const NAMES: &[(kvs_status_code, &CStr)] = named! {
    KVS_OK KVS_ERROR_NULL_POINTER KVS_ERROR_MISALIGNED KVS_ERROR_STRUCT_SIZE KVS_ERROR_UNKNOWN_ELEMENT_TYPE
    KVS_ERROR_RANK_LIMIT KVS_ERROR_NEGATIVE_DIMENSION KVS_ERROR_UNKNOWN_OPTION KVS_ERROR_UNEXPECTED_ARGUMENT
    KVS_ERROR_INDEX_WIDTH KVS_ERROR_TENSOR_MISMATCH KVS_ERROR_DEVICE KVS_ERROR_BYTE_OFFSET KVS_ERROR_STOPPED
    KVS_ERROR_PANIC KVS_ERROR_INTERNAL KVS_ERROR_ELEMENT_TYPE KVS_ERROR_ELEMENT_TYPE_MISMATCH KVS_ERROR_RANK
    KVS_ERROR_RANK_TOO_LOW KVS_ERROR_RANK_MISMATCH KVS_ERROR_AXIS_OUT_OF_RANGE KVS_ERROR_AXIS_IS_BATCH
    KVS_ERROR_DIMENSION_MISMATCH KVS_ERROR_HIDDEN_SIZE KVS_ERROR_BATCH_TOO_LARGE
    KVS_ERROR_UPDATE_LONGER_THAN_CACHE KVS_ERROR_TOO_LARGE KVS_ERROR_CACHE_OVERLAPS_ITSELF
    KVS_ERROR_TOO_MANY_LOOPS KVS_ERROR_LIST_LENGTH KVS_ERROR_NEGATIVE_START KVS_ERROR_START_OUT_OF_RANGE
    KVS_ERROR_END_OUT_OF_RANGE KVS_ERROR_LENGTH_OUT_OF_RANGE KVS_ERROR_CUMULATIVE_START
    KVS_ERROR_CUMULATIVE_ORDER KVS_ERROR_CUMULATIVE_LENGTH KVS_ERROR_TOKEN_SUM KVS_ERROR_LAYER_OUT_OF_RANGE
    KVS_ERROR_SLOT_OUT_OF_RANGE KVS_ERROR_DUPLICATE_SLOT KVS_ERROR_NULL_BUFFER KVS_ERROR_OVERLAP
    KVS_ERROR_ELEMENT_WIDTH KVS_ERROR_ADDRESS_SPACE KVS_ERROR_IN_PLACE_ONLY KVS_ERROR_STRIDE
    KVS_ERROR_NUMBER_OPTION KVS_ERROR_HEAD_GROUPS KVS_ERROR_MASK_SHAPE KVS_ERROR_EMPTY_SLOTS
    KVS_ERROR_OUTPUT_OVERLAPS_ITSELF KVS_ERROR_RING_OF_BLOCKS KVS_ERROR_EMPTY_BLOCKS
    KVS_ERROR_MISSING_ARGUMENT KVS_ERROR_BLOCK_OUT_OF_RANGE KVS_ERROR_SCRATCH
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::CStr;

    use kvscatter::error::ErrorKind;

    use super::{kvs_status, kvs_status_code, kvs_status_name};

    /// The kinds of error that no call of the interface can cause, and the reason.
    const IMPOSSIBLE: [(ErrorKind, &str); 6] = [
        (ErrorKind::UnknownMode, "modes are numbers here, and `options.rs` refuses others"),
        (ErrorKind::StrideCount, "`kvs_tensor` has one rank, with which both arrays are read"),
        (ErrorKind::BeforeBuffer, "`Description::layout` leaves the room that the strides need"),
        (ErrorKind::BufferLength, "`Operand` asks the core for the length of the buffers that it gives it"),
        (ErrorKind::IndexTooLarge, "lists have signed numbers here"),
        (ErrorKind::InvalidPosition, "no function here takes positions without a call"),
    ];

    fn name(code: kvs_status_code) -> &'static str {
        // SAFETY: `kvs_status_name` returns a static string.
        unsafe { CStr::from_ptr(kvs_status_name(code as kvs_status)) }.to_str().unwrap()
    }

    #[test]
    fn every_error_of_the_core_has_a_number_of_its_own() {
        let mut numbers = BTreeSet::new();
        for &kind in ErrorKind::ALL {
            let code = kvs_status_code::from(kind);
            if let Some((_, why)) = IMPOSSIBLE.iter().find(|(impossible, _)| *impossible == kind) {
                assert_eq!(
                    code,
                    kvs_status_code::KVS_ERROR_INTERNAL,
                    "{kind:?} has a number, although {why}"
                );
                continue;
            }
            assert_eq!(name(code), format!("KVS_ERROR_{}", kind.name().to_uppercase()));
            assert!(numbers.insert(code as kvs_status), "{kind:?} shares its number");
        }
    }
}
