//! The numbers that functions return.

use std::ffi::{CStr, c_char};

use kvscatter::error::ErrorKind;

/// What a function returns: `KVS_OK`, or one of the `KVS_ERROR_` numbers of `kvs_status_code`. Numbers keep their
/// meaning from version to version, and later versions may return new ones.
pub type kvs_status = i32;

/// The values of a `kvs_status`. The text of each error has the meaning of `index`, `value` and `limit` in its
/// `kvs_error`; `argument` names what is wrong. The limit is the nearest value that would have been taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_status_code {
    /// Done.
    KVS_OK = 0,

    /// A pointer is NULL that must not be. In an array of pairs, index: the pair, as in every error about a tensor
    /// of a pair.
    KVS_ERROR_NULL_POINTER = 1,
    /// An address is not a multiple of the alignment of its type. Limit: the alignment, in bytes. Data need the
    /// alignment of their element's type; types of 4 and 8 bits need none, complex ones that of their parts.
    KVS_ERROR_MISALIGNED = 2,
    /// `struct_size` is smaller than the struct was in the first version (in an array: another than it is). Value:
    /// `struct_size`; limit: that size.
    KVS_ERROR_STRUCT_SIZE = 3,
    /// There is no such element type. Value: the number; limit. Of a DLPack type, value: its code, and no limit.
    KVS_ERROR_UNKNOWN_ELEMENT_TYPE = 4,
    /// A tensor has more than `KVS_MAX_RANK` dimensions (DLPack: or fewer than 0). Value: its rank; limit.
    KVS_ERROR_RANK_LIMIT = 5,
    /// A dimension is negative. Index: the dimension; value; limit: 0.
    KVS_ERROR_NEGATIVE_DIMENSION = 6,
    /// An option or constant has a value that names nothing. Argument: the option; value; limit: the nearest
    /// value that does.
    KVS_ERROR_UNKNOWN_OPTION = 7,
    /// The call gives an argument that the operator does not have. Argument: its name in `kvs_call`.
    KVS_ERROR_UNEXPECTED_ARGUMENT = 8,
    /// Indices have another width than 32 or 64 bits, or than the 32 that the argument must have. Value: the
    /// width; limit.
    KVS_ERROR_INDEX_WIDTH = 9,
    /// A tensor of a run is not the one that was prepared: another type, rank, dimension or stride, which the
    /// message names. Index: the pair; value: what it has; limit: what it must have.
    KVS_ERROR_TENSOR_MISMATCH = 10,
    /// A DLPack tensor does not lie in the memory of the CPU. Value: its device type; limit: kDLCPU, 1.
    KVS_ERROR_DEVICE = 11,
    /// The `byte_offset` of a DLPack tensor leads out of every address space, or away from NULL. Value: the offset.
    KVS_ERROR_BYTE_OFFSET = 12,
    /// The visitor of `kvs_for_each_block` has stopped it. Value: what it returned.
    KVS_ERROR_STOPPED = 13,
    /// A fault of this library, not of yours: please report it. Writes may be partly done.
    KVS_ERROR_PANIC = 14,
    /// A fault of this library, not of yours: it got an error from its core that no call should get. Please
    /// report it with the message.
    KVS_ERROR_INTERNAL = 15,

    /// Prepare: the operator does not take this element type. Value: the type.
    KVS_ERROR_ELEMENT_TYPE = 100,
    /// Prepare: cache and update have different element types. Value: the other tensor's; limit: the cache's.
    KVS_ERROR_ELEMENT_TYPE_MISMATCH = 101,
    /// Prepare: a tensor has the wrong number of dimensions. Value: its rank; limit: a rank it may have.
    KVS_ERROR_RANK = 102,
    /// Prepare: a cache has too few dimensions. Value: its rank; limit: the least.
    KVS_ERROR_RANK_TOO_LOW = 103,
    /// Prepare: cache and update have different ranks. Value: the update's; limit: the cache's.
    KVS_ERROR_RANK_MISMATCH = 104,
    /// Prepare: `axis` is no dimension of the cache. Value: the axis; limit: the nearest that is.
    KVS_ERROR_AXIS_OUT_OF_RANGE = 105,
    /// Prepare: `axis` is the batch dimension. Value: the axis; limit: the dimension after it.
    KVS_ERROR_AXIS_IS_BATCH = 106,
    /// Prepare: a dimension differs from the cache's. Index: the dimension; value; limit: the cache's.
    KVS_ERROR_DIMENSION_MISMATCH = 107,
    /// Prepare: heads times head size of a 4-D newKv are not hiddenSize. Value: the product; limit: hiddenSize.
    KVS_ERROR_HIDDEN_SIZE = 108,
    /// The update has more samples than the cache. Value: the update's; limit: the cache's.
    KVS_ERROR_BATCH_TOO_LARGE = 109,
    /// Prepare: the update has more rows than the cache. Value: its rows; limit: the cache's capacity.
    KVS_ERROR_UPDATE_LONGER_THAN_CACHE = 110,
    /// A tensor, its strides or an array reach farther than any buffer: beyond PTRDIFF_MAX elements or bytes. Limit:
    /// PTRDIFF_MAX.
    KVS_ERROR_TOO_LARGE = 111,
    /// Prepare: two positions of the cache share memory, or interleave so that sharing cannot be excluded.
    KVS_ERROR_CACHE_OVERLAPS_ITSELF = 112,
    /// Prepare: the strides of the two tensors need too many nested loops. Value: how many; limit: 3.
    KVS_ERROR_TOO_MANY_LOOPS = 113,
    // 114 was for reserved bytes of KVCacheOperation's options. It stays unused, so that no number has two meanings.
    /// An index argument has the wrong number of values. Value: how many; limit: how many it must have.
    KVS_ERROR_LIST_LENGTH = 200,
    /// A start is negative, in linear mode or where that is rejected. Index: the sample; value; limit: 0.
    KVS_ERROR_NEGATIVE_START = 201,
    /// A linear write would run past the end of the cache. Index: the sample; value: its start; limit: the last
    /// start at which its rows fit.
    KVS_ERROR_START_OUT_OF_RANGE = 202,
    /// A length after the write (tokenOffset) is below the rows of the sample in newKv, or its rows do not fit the
    /// cache. Index: the sample; value; limit.
    KVS_ERROR_END_OUT_OF_RANGE = 203,
    /// A length of a sample is too small or too large. Index: the sample; value; limit, if any value would do.
    KVS_ERROR_LENGTH_OUT_OF_RANGE = 204,
    /// Cumulative lengths do not begin with 0. Index: 0; value: the first; limit: 0.
    KVS_ERROR_CUMULATIVE_START = 205,
    /// Cumulative lengths decrease. Index: where; value; limit: the one before.
    KVS_ERROR_CUMULATIVE_ORDER = 206,
    /// Cumulative lengths give a sample more rows than the cache has. Index: the sample; value: its rows; limit.
    KVS_ERROR_CUMULATIVE_LENGTH = 207,
    /// Lengths do not add up to the tokens of the update. Value: their sum; limit: the tokens.
    KVS_ERROR_TOKEN_SUM = 208,
    /// The layer does not exist. Value; limit: the nearest layer, if there is any.
    KVS_ERROR_LAYER_OUT_OF_RANGE = 209,

    /// The data of a tensor that has elements are NULL. Index: the pair; limit: the bytes that must lie there.
    KVS_ERROR_NULL_BUFFER = 300,
    /// Memory that would be written is also that of another tensor, or of indices or pairs that are read meanwhile,
    /// down to a shared byte. Strided tensors count from their first to their last byte. Index: the pair.
    KVS_ERROR_OVERLAP = 301,
    /// Run: the tensors hold strings, which C has no bytes for. Move them by `kvs_for_each_block`.
    KVS_ERROR_ELEMENT_WIDTH = 302,
    /// Memory begins or ends outside of the address space: a tensor, with strides that lead to lower addresses too, an
    /// array, or a struct. Index: the pair; value: the bytes that must lie there.
    KVS_ERROR_ADDRESS_SPACE = 303,
}

/// The first number of an error of the core. Those below are of this interface alone.
const FIRST_OF_CORE: kvs_status = 100;

/// The number of an error of the core is that of the status with its name. A test lists the kinds that have none.
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

/// The name of a status, such as "KVS_ERROR_RANK"; "unknown" for a number that is none. Static.
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

/// Every status with its name. `tests/header.rs` compares the names with the header.
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
    KVS_ERROR_NULL_BUFFER KVS_ERROR_OVERLAP KVS_ERROR_ELEMENT_WIDTH KVS_ERROR_ADDRESS_SPACE
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::CStr;

    use kvscatter::error::ErrorKind;

    use super::{kvs_status, kvs_status_code, kvs_status_name};

    /// The kinds that no call of the interface can cause, and why.
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
