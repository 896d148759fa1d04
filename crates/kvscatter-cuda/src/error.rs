//! The errors of preparing and launching a write, and the bad indices that launches have counted.

use std::fmt::{self, Display};
use std::path::PathBuf;

use kvscatter::Argument;

use crate::images::MIN_CAPABILITY;
use crate::launch_argument::{FirstBad, LaunchArgument};

/// An error returned by preparing or launching a write, or by checking the indices that launches have used.
///
/// Every error of `prepare` and `launch` is returned before the device gets any work. The exception is a
/// [`Driver`](Self::Driver) error of a write that takes several launches, as
/// [`DeviceWrite::launch`](crate::DeviceWrite::launch) describes.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantNames))]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CudaError {
    /// The buffers, the lists, or an index that a launch has used violate a rule of the prepared operator.
    #[error(transparent)]
    Write(#[from] kvscatter::Error),
    /// The machine has no CUDA driver, or a driver that is too old.
    #[error(
        "cannot use the CUDA driver {}: {why}; install NVIDIA's driver for the GPU, or start the container with GPU access",
        .library.display()
    )]
    NoDriver { library: PathBuf, why: String },
    /// The driver returned an error.
    #[error("{call}: {name} ({code}): {text}{}", captured(call, *code))]
    Driver {
        call: &'static str,
        /// The number of the error, a `CUresult`.
        code: i32,
        name: String,
        text: String,
    },
    /// The device is too old for the kernels.
    #[error(
        "compute capability {}.{} or later is needed, this device has {major}.{minor}",
        MIN_CAPABILITY.0,
        MIN_CAPABILITY.1
    )]
    ComputeCapability { major: i32, minor: i32 },
    /// The driver rejects both forms of the kernels.
    #[error("this device or driver cannot run the kernels: machine code: {machine_code}; PTX: {ptx}")]
    Kernels { machine_code: Box<Self>, ptx: Box<Self> },
    /// No device has been chosen on this thread.
    #[error(
        "no CUDA context is current on this thread: choose a device here first, with Cuda::set_device or torch.cuda.set_device"
    )]
    NoContext,
    /// The layouts need more loops than the kernels have.
    #[error(
        "the strides need {loops} loops besides samples and rows, the kernels have {}: make one side contiguous",
        crate::abi::OTHER_LOOPS
    )]
    #[strum(serialize = "too_many_loops")]
    Loops { loops: usize },
    /// A number does not fit the kernels' 32-bit arithmetic.
    #[error("{what} = {got}: a launch takes at most {max}")]
    TooLarge { what: CountKind, got: usize, max: usize },
    /// A buffer is too small for its tensor, or null.
    #[error("{}", room(*tensor, *index, *address, *bytes, *needed))]
    #[strum(serialize = "buffer_length")]
    Buffer { tensor: TensorRole, index: usize, address: u64, bytes: usize, needed: usize },
    /// A cache of 4-bit rows that straddle bytes does not consist of whole words. A write in place changes
    /// such a cache word by word.
    #[error(
        "cache {pair} has {bytes} bytes at {address:#x}: 4-bit rows that straddle bytes need a buffer that begins on a word and has {needed} bytes"
    )]
    WholeWords { pair: usize, address: u64, bytes: usize, needed: usize },
    /// A present shares memory with another tensor of the call.
    #[error("present {triple} shares memory with a tensor of triple {with}: a present is written completely")]
    #[strum(serialize = "overlap")]
    Presents { triple: usize, with: usize },
    /// The samples of a `KVCacheOperation` update with four dimensions are not adjacent. Its tokens are read
    /// as one list.
    #[error("the samples of newKv are not adjacent: all its tokens must be evenly spaced")]
    SamplesNotAdjacent,
    /// The shapes do not fit a slot mapping.
    #[error("{0}")]
    SlotMapping(SlotMappingError),
    /// A call with a slot mapping has a list other than the slots, or no slots.
    #[error("{}", presence(.list, *.given))]
    List { list: LaunchArgument, given: bool },
    /// An address is null or not aligned.
    #[error("{}", misaligned(.list, *.address, *.alignment))]
    #[strum(serialize = "misaligned")]
    Address { list: LaunchArgument, address: u64, alignment: u64 },
    /// A list reaches past the end of the address space.
    #[error("{}", wraps(.list, *.address, *.bytes))]
    #[strum(serialize = "address_space")]
    ListWraps { list: LaunchArgument, address: u64, bytes: usize },
    /// A list, the layer or the status shares memory with a cache or a present of the launch.
    #[error("{}", overlap(.list, *.pair))]
    Overlap { list: LaunchArgument, pair: usize },
    /// The status shares memory with a list, an update or a past, which a launch reads while it writes the
    /// status.
    #[error(
        "the status shares memory with a list, an update or a past, which a launch reads while it writes the status"
    )]
    #[strum(serialize = "overlap")]
    StatusShared,
    /// Launches have counted bad indices, but the lists do not contain them. The lists have been overwritten
    /// since then or were not read, or another write uses the same status.
    #[error(
        "bad indices in {bad_samples} sample{} since the status was cleared, first {first}; the lists were not read, have changed since the launch, or belong to another write",
        if *bad_samples == 1 { "" } else { "s" }
    )]
    BadIndices { bad_samples: u32, first: FirstBad },
}

impl CudaError {
    /// Returns the stable name of the error.
    ///
    /// If the core has an error for the same fact, such as `overlap`, the name is that of the core's
    /// [`ErrorKind`](kvscatter::error::ErrorKind).
    ///
    /// ```
    /// use kvscatter_cuda::CudaError;
    ///
    /// assert_eq!(CudaError::SamplesNotAdjacent.kind(), "samples_not_adjacent");
    /// ```
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Write(error) => error.kind().name(),
            _ => self.into(),
        }
    }

    /// Returns the message with other names for arguments.
    ///
    /// `launch_argument` names the arguments of a launch. `argument` names the core's arguments in
    /// [`Write`](Self::Write).
    ///
    /// ```
    /// use kvscatter::Argument;
    /// use kvscatter_cuda::{CudaError, LaunchArgument};
    ///
    /// let list = |_: LaunchArgument| "seqLen";
    /// let overlap = CudaError::Overlap { list: LaunchArgument::RowCounts, pair: 0 };
    /// let message = overlap.display_with(list, Argument::name).to_string();
    /// assert!(message.starts_with("seqLen overlaps cache or present 0"), "{message}");
    /// ```
    pub fn display_with<'n>(
        &self,
        launch_argument: impl Fn(LaunchArgument) -> &'n str,
        argument: impl Fn(Argument) -> &'n str,
    ) -> impl Display {
        Message { error: self, launch_argument, argument }
    }

    /// Returns `true` if the driver rejects the image itself, so that it may accept another image. Being out
    /// of memory, an earlier fault and a capture in progress are other errors.
    pub(crate) fn is_about_an_image(&self) -> bool {
        // CUDA_ERROR_INVALID_VALUE, which drivers may return for a container that they do not know,
        // INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION,
        // JIT_COMPILATION_DISABLED, INVALID_SOURCE.
        matches!(self, Self::Driver { code: 1 | 200 | 209 | 218 | 221..=223 | 300, .. })
    }
}

/// A message in which functions name the arguments.
struct Message<'e, L, A> {
    error: &'e CudaError,
    launch_argument: L,
    argument: A,
}

impl<'n, L, A> Display for Message<'_, L, A>
where
    L: Fn(LaunchArgument) -> &'n str,
    A: Fn(Argument) -> &'n str,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CudaError as E;
        let name = &self.launch_argument;
        match *self.error {
            E::Write(error) => error.display_with(&self.argument).fmt(f),
            E::List { list, given } => f.write_str(&presence(name(list), given)),
            E::Address { list, address, alignment } => {
                f.write_str(&misaligned(name(list), address, alignment))
            }
            E::ListWraps { list, address, bytes } => f.write_str(&wraps(name(list), address, bytes)),
            E::Overlap { list, pair } => f.write_str(&overlap(name(list), pair)),
            _ => self.error.fmt(f),
        }
    }
}

/// Returns advice if the call is forbidden while a stream is captured, and otherwise an empty text. The codes
/// are `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` and those after it.
fn captured(call: &str, code: i32) -> &'static str {
    match (call, code) {
        ("cuModuleLoadData" | "cuModuleGetFunction" | "cuFuncLoad", 900..=908) => {
            "; a stream is being captured: prepare one write in this context before the capture, which loads the kernels"
        }
        ("cuMemcpyDtoH_v2", 900..=908) => "; a stream is being captured: check the status after the capture",
        _ => "",
    }
}

fn room(tensor: TensorRole, index: usize, address: u64, bytes: usize, needed: usize) -> String {
    if address == 0 {
        return format!("{tensor} {index} is null, must have {needed} bytes");
    }
    format!("{tensor} {index} has {bytes} bytes, must have {needed}")
}

fn presence(list: impl Display, given: bool) -> String {
    let what = if given { "is given, and a slot mapping has no such list" } else { "is missing" };
    format!("{list} {what}")
}

fn misaligned(list: impl Display, address: u64, alignment: u64) -> String {
    format!("{list} is at {address:#x}, must be a multiple of {alignment} and not null")
}

fn wraps(list: impl Display, address: u64, bytes: usize) -> String {
    format!("{list} at {address:#x} has {bytes} bytes, which reach beyond the address space")
}

fn overlap(list: impl Display, pair: usize) -> String {
    format!("{list} overlaps cache or present {pair}, which the launch writes")
}

/// A tensor of a [`BufferPair`](crate::BufferPair) or a [`PresentBuffers`](crate::PresentBuffers), named
/// after its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum TensorRole {
    /// The cache that is written in place.
    Cache,
    /// The new rows.
    Update,
    /// The cache before the write, in functional form.
    Past,
    /// The cache after the write, in functional form.
    Present,
}

/// A property that shapes of a slot mapping cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[non_exhaustive]
pub enum SlotMappingError {
    /// The write was prepared for blocks of slots.
    #[strum(
        to_string = "no kernel takes a cache of blocks: prepare a TensorScatter of [1, slots, ...] for its slots"
    )]
    Blocks,
    /// The operator has lists besides its positions.
    #[strum(to_string = "a slot mapping has only positions, and this operator has another list")]
    Lists,
    /// The cache is a ring.
    #[strum(to_string = "a slot mapping takes a linear cache, and this one is a ring")]
    Ring,
    /// The update does not have exactly one sample.
    #[strum(
        to_string = "the update has {0} samples: a slot mapping takes a cache of [1, slots, ...] and an update of [1, tokens, ...]"
    )]
    Samples(usize),
}

/// A quantity that must fit the kernels' 32-bit arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum CountKind {
    /// The number of samples of the update, or of tokens of a slot mapping.
    Samples,
    /// The number of slots of the cache.
    Capacity,
    /// The number of layers of the cache.
    Layers,
    /// The number of elements of any other dimension, after merging.
    #[strum(to_string = "elements of a dimension")]
    Elements,
    /// The number of moves of at most 16 bytes that one contiguous run takes, or of its 4-bit elements.
    #[strum(to_string = "units of a run")]
    Units,
    /// The number of contiguous runs that are written in one cache.
    #[strum(to_string = "runs of a cache in one launch")]
    Runs,
    /// The number of groups of 32 words in a present whose 4-bit rows straddle bytes.
    #[strum(to_string = "groups of 32 words of a present")]
    Words,
}

#[cfg(test)]
mod tests {
    use kvscatter::{Argument, Error as CoreError};
    use strum::VariantNames;

    use super::CudaError;
    use crate::launch_argument::{FirstBad, LaunchArgument};

    /// Checks that only the name differs.
    #[test]
    fn messages_take_the_names_of_a_surface() {
        let list = LaunchArgument::RowCounts;
        let errors = [
            CudaError::List { list, given: true },
            CudaError::List { list, given: false },
            CudaError::Address { list, address: 12, alignment: 8 },
            CudaError::ListWraps { list, address: 0xffff, bytes: 16 },
            CudaError::Overlap { list, pair: 3 },
        ];
        let name_of = |list| if list == LaunchArgument::RowCounts { "seqLen" } else { "another" };
        for error in errors {
            let named = error.display_with(name_of, Argument::name).to_string();
            let rest = error.to_string().strip_prefix("the list of row counts ").map(str::to_owned);
            assert_eq!(named.strip_prefix("seqLen ").map(str::to_owned), rest);
            assert!(rest.is_some(), "{error}");
        }
        let without = CudaError::NoContext;
        assert_eq!(without.display_with(|_| "seqLen", |_| "lengths").to_string(), without.to_string());
    }

    /// Checks that a surface that renames `write_indices` renames it in an error of the core too.
    #[test]
    fn messages_of_the_core_take_names_too() {
        let argument = Argument::TensorRtWriteIndices;
        let error = CudaError::Write(CoreError::NegativeStart { argument, index: 1, value: -1 });
        assert_eq!(error.to_string(), "writeIndices[1] = -1: must not be negative");
        let named = error
            .display_with(|_| "another", |found| if found == argument { "write_indices" } else { "another" });
        assert_eq!(named.to_string(), "write_indices[1] = -1: must not be negative");
    }

    #[test]
    fn kinds_are_named_after_variants_or_the_fact_that_other_surfaces_name() {
        let kinds = "write no_driver driver compute_capability kernels no_context too_many_loops too_large \
            buffer_length whole_words overlap samples_not_adjacent slot_mapping list misaligned address_space \
            overlap overlap bad_indices";
        assert_eq!(CudaError::VARIANTS.join(" "), kinds);
        assert_eq!(CudaError::Loops { loops: 5 }.kind(), "too_many_loops");
        let of_core = CoreError::LayerOutOfRange { argument: Argument::LayerId, value: 9, layers: 1 };
        assert_eq!(CudaError::Write(of_core).kind(), "layer_out_of_range");
    }

    #[test]
    fn bad_indices_are_described() {
        for (bad_samples, list, sample, samples, first_bad) in [
            (3, LaunchArgument::Positions, Some(0), "3 samples", "the position of sample 0: -3"),
            (1, LaunchArgument::Lengths, Some(7), "1 sample", "the length of sample 7: -3"),
            (2, LaunchArgument::RowCounts, Some(1), "2 samples", "the row count of sample 1: -3"),
            (2, LaunchArgument::Layer, None, "2 samples", "the layer: -3"),
        ] {
            let first = FirstBad { list, sample, value: -3 };
            let message = CudaError::BadIndices { bad_samples, first }.to_string();
            let expected =
                format!("bad indices in {samples} since the status was cleared, first {first_bad}; ");
            assert!(message.starts_with(&expected), "{message}");
        }
    }

    /// Checks that there is advice only if the capture causes the error.
    #[test]
    fn a_capture_under_way_has_advice() {
        let message_of = |call, code| {
            CudaError::Driver { call, code, name: "NAME".to_owned(), text: "text".to_owned() }.to_string()
        };
        for (call, code, advice) in [
            ("cuModuleLoadData", 900, "prepare one write in this context before"),
            ("cuFuncLoad", 906, "prepare one write in this context before"),
            ("cuMemcpyDtoH_v2", 900, "check the status after the capture"),
        ] {
            assert!(message_of(call, code).contains(advice), "{}", message_of(call, code));
        }
        for (call, code) in [("cuModuleLoadData", 2), ("cuModuleLoadData", 909), ("cuLaunchKernel", 906)] {
            assert_eq!(message_of(call, code), format!("{call}: NAME ({code}): text"));
        }
    }
}
