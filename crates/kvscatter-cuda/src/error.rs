//! Why a write could not be prepared or launched, or what a launch has found.

use std::fmt::{self, Display};
use std::path::PathBuf;

use crate::images::MIN_CAPABILITY;
use crate::list::{FirstBad, List};

/// Why a write could not be prepared or launched, or what launches have found.
///
/// Every error of `prepare` and `launch` comes before anything is handed to the device, except [`Driver`](Self::Driver)
/// of a launch in several parts: see [`DeviceWrite::launch`](crate::DeviceWrite::launch).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A rule of the operator that was prepared: buffers, lists, or an index that a launch has found.
    #[error(transparent)]
    Write(#[from] kvscatter::Error),
    /// This machine has no CUDA driver, or one that is too old.
    #[error(
        "cannot use the CUDA driver {}: {why}; it comes with NVIDIA's driver for the GPU, and into containers that are started with the GPU",
        .library.display()
    )]
    NoDriver {
        /// What was looked for.
        library: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The driver has refused a call.
    #[error("{call}: {name} ({code}): {text}{}", captured(call, *code))]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The result's name.
        name: String,
        /// What it means, in the driver's words.
        text: String,
    },
    /// A device that is too old for the kernels.
    #[error(
        "compute capability {}.{} or later is needed, this device has {major}.{minor}",
        MIN_CAPABILITY.0,
        MIN_CAPABILITY.1
    )]
    ComputeCapability {
        /// Of the device: the number before the point.
        major: i32,
        /// And behind it.
        minor: i32,
    },
    /// The driver takes neither form of the kernels.
    #[error("this device or driver cannot run the kernels: machine code: {machine_code}; PTX: {ptx}")]
    Kernels {
        /// What it says to those that are compiled for devices.
        machine_code: Box<Self>,
        /// What it says to those that it would compile itself.
        ptx: Box<Self>,
    },
    /// No device has been chosen on this thread.
    #[error(
        "no CUDA context is current on this thread: choose a device here first, with Cuda::set_device or torch.cuda.set_device"
    )]
    NoContext,
    /// More dimensions around the rows than the kernels have loops for.
    #[error(
        "the strides need {loops} loops around the rows, at most {} are possible on a device: make one side contiguous",
        crate::abi::AROUND
    )]
    Loops {
        /// Loops that would be needed.
        loops: usize,
    },
    /// A number that the kernels' 32-bit arithmetic does not hold.
    #[error("{what} = {got}: a launch takes at most {max}")]
    TooLarge {
        /// What is counted.
        what: Counted,
        /// How many there are.
        got: usize,
        /// The most there may be.
        max: usize,
    },
    /// A tensor whose buffer cannot hold it.
    #[error("{}", room(*tensor, *index, *address, *bytes, *needed))]
    Buffer {
        /// Which one of its pair or triple.
        tensor: TensorRole,
        /// The pair's or the triple's place in the call.
        index: usize,
        /// Where the buffer begins.
        address: u64,
        /// Bytes that it has.
        bytes: usize,
        /// Bytes of the tensor, its gaps included.
        needed: usize,
    },
    /// A cache of 4-bit elements that do not come in whole bytes is written by words, in place.
    #[error(
        "cache {pair} has {bytes} bytes at {address:#x}: 4-bit rows that straddle bytes need a buffer that begins on a word and has {needed} bytes"
    )]
    WholeWords {
        /// Its place in the call.
        pair: usize,
        /// Where it begins.
        address: u64,
        /// Bytes that it has.
        bytes: usize,
        /// Bytes that it needs: whole words.
        needed: usize,
    },
    /// A present that other tensors of a call lie in.
    #[error("present {triple} shares memory with a tensor of triple {with}: each is written whole")]
    Presents {
        /// The present's place in the call.
        triple: usize,
        /// The other tensor's.
        with: usize,
    },
    /// The update of `KVCacheOperation` with four dimensions, whose kernel reads tokens one behind the other.
    #[error("the samples of newKv do not lie one behind the other: its tokens are read as one list")]
    SamplesNotAdjacent,
    /// A slot mapping has no samples: every token goes to a slot of one cache.
    #[error("{0}")]
    SlotMapping(SlotMappingError),
    /// A list that this operator does not have on a device, or lacks.
    #[error("{}", presence(.list, *.given))]
    List {
        /// Which one.
        list: List,
        /// Whether it was given.
        given: bool,
    },
    /// An address that a device cannot read numbers from.
    #[error("{}", place(.list, *.address, *.alignment))]
    Address {
        /// Of what.
        list: List,
        /// Where it lies.
        address: u64,
        /// What the address must be a multiple of.
        alignment: u64,
    },
    /// A list that reaches past the end of the address space.
    #[error("{}", wraps(.list, *.address, *.bytes))]
    ListWraps {
        /// Which one.
        list: List,
        /// Where it lies.
        address: u64,
        /// How large it is said to be.
        bytes: usize,
    },
    /// What is read while a cache is written must not lie in it.
    #[error("{}", overlap(.list, *.pair))]
    Overlap {
        /// What lies there.
        list: List,
        /// The cache's place in the call.
        pair: usize,
    },
    /// What a launch reads must not change under it.
    #[error("the status shares memory with what is read while it is written: a list, an update or a past")]
    StatusShared,
    /// Bad indices that the lists do not hold: they have been overwritten since the launch, or were not read, or the
    /// launch was that of another write with the same status.
    #[error(
        "bad indices in {bad_samples} sample{} since the status was cleared, first {first}; its lists were not read, hold other values by now, or are another write's",
        if *bad_samples == 1 { "" } else { "s" }
    )]
    BadIndices {
        /// See [`StatusWords`](crate::StatusWords).
        bad_samples: u32,
        /// What the first of these launches found first.
        first: FirstBad,
    },
}

impl CudaError {
    /// The message, with a surface's own names for lists, such as those of its arguments.
    #[must_use]
    pub fn with_names<'a>(&self, name: impl Fn(List) -> &'a str) -> String {
        match *self {
            Self::List { list, given } => presence(name(list), given),
            Self::Address { list, address, alignment } => place(name(list), address, alignment),
            Self::ListWraps { list, address, bytes } => wraps(name(list), address, bytes),
            Self::Overlap { list, pair } => overlap(name(list), pair),
            _ => self.to_string(),
        }
    }

    /// Whether the driver refuses an image for what it is, so that another one may serve. Out of memory, an earlier fault
    /// and a capture under way are nothing of the kind.
    pub(crate) fn is_about_an_image(&self) -> bool {
        // CUDA_ERROR_INVALID_VALUE, which drivers may say of a container that they do not know, INVALID_IMAGE,
        // NO_BINARY_FOR_GPU, INVALID_PTX, JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION, JIT_COMPILATION_DISABLED,
        // INVALID_SOURCE.
        matches!(self, Self::Driver { code: 1 | 200 | 209 | 218 | 221..=223 | 300, .. })
    }
}

/// What to do where a call is forbidden while a stream is captured: `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` and what
/// follows it.
fn captured(call: &str, code: i32) -> &'static str {
    match (call, code) {
        ("cuModuleLoadData" | "cuModuleGetFunction" | "cuFuncLoad", 900..=908) => {
            "; a stream is being captured: prepare one write in this context before, which loads the kernels"
        }
        ("cuMemcpyDtoH_v2", 900..=908) => "; a stream is being captured: look at the status behind that",
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
    let what = if given { "is given, and this write has no such list" } else { "is missing" };
    format!("{list} {what}")
}

fn place(list: impl Display, address: u64, alignment: u64) -> String {
    format!("{list} lies at {address:#x}: must be a multiple of {alignment}, and not null")
}

fn wraps(list: impl Display, address: u64, bytes: usize) -> String {
    format!("{list} at {address:#x} has {bytes} bytes, which reach beyond the address space")
}

fn overlap(list: impl Display, pair: usize) -> String {
    format!("{list} lies in cache or present {pair}, which is written while it is read")
}

/// A tensor of a [`Pair`](crate::Pair) or a [`PresentBuffers`](crate::PresentBuffers), by its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorRole {
    /// Written in place.
    Cache,
    /// New rows.
    Update,
    /// What a present is made from.
    Past,
    /// What the functional form writes.
    Present,
}

impl Display for TensorRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cache => "cache",
            Self::Update => "update",
            Self::Past => "past",
            Self::Present => "present",
        })
    }
}

/// Why shapes are not those of a slot mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlotMappingError {
    /// The operator has lists besides its starts.
    Lists,
    /// The cache is a ring.
    Ring,
    /// The update has another number of samples than one.
    Samples(usize),
}

impl Display for SlotMappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lists => f.write_str("a slot mapping has starts alone, and this operator another list"),
            Self::Ring => f.write_str("a slot mapping takes a linear cache, and this one is a ring"),
            Self::Samples(samples) => write!(
                f,
                "the update has {samples} samples: a slot mapping takes a cache of [1, slots, ...] and an update of [1, tokens, ...]"
            ),
        }
    }
}

/// What the kernels count with 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counted {
    /// Samples of the update, or tokens of a slot mapping.
    Samples,
    /// Rows of the cache along the sequence.
    Capacity,
    /// Layers of the cache.
    Layers,
    /// Elements of any other dimension, after merging.
    Elements,
    /// Moves of 16 bytes or less that one contiguous run takes, or its 4-bit elements.
    Units,
    /// Contiguous runs that are written in one cache.
    Runs,
    /// Words of a present whose 4-bit rows straddle bytes, in groups of 32.
    Words,
}

impl Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Samples => "samples",
            Self::Capacity => "capacity",
            Self::Layers => "layers",
            Self::Elements => "elements of a dimension",
            Self::Units => "units of a run",
            Self::Runs => "runs of a cache in one launch",
            Self::Words => "groups of 32 words of a present",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::CudaError;
    use crate::list::{FirstBad, List};

    /// A surface's name stands where the crate's stands, and nothing else differs.
    #[test]
    fn messages_take_the_names_of_a_surface() {
        let list = List::RowCounts;
        let errors = [
            CudaError::List { list, given: true },
            CudaError::List { list, given: false },
            CudaError::Address { list, address: 12, alignment: 8 },
            CudaError::ListWraps { list, address: 0xffff, bytes: 16 },
            CudaError::Overlap { list, pair: 3 },
        ];
        for error in errors {
            let named = error.with_names(|list| if list == List::RowCounts { "seqLen" } else { "another" });
            let rest = error.to_string().strip_prefix("the list of rows for each sample ").map(str::to_owned);
            assert_eq!(named.strip_prefix("seqLen ").map(str::to_owned), rest);
            assert!(rest.is_some(), "{error}");
        }
        assert_eq!(CudaError::NoContext.with_names(|_| "seqLen"), CudaError::NoContext.to_string());
    }

    #[test]
    fn bad_indices_are_described() {
        let message_of = |bad_samples, list, sample| {
            let first = FirstBad { list, sample, value: -3 };
            let message = CudaError::BadIndices { bad_samples, first }.to_string();
            message.split("; ").next().unwrap().to_owned()
        };
        for (message, expected) in [
            (
                message_of(3, List::Positions, Some(0)),
                "bad indices in 3 samples since the status was cleared, first the position of sample 0: -3",
            ),
            (
                message_of(1, List::Lengths, Some(7)),
                "bad indices in 1 sample since the status was cleared, first the length of sample 7: -3",
            ),
            (
                message_of(2, List::RowCounts, Some(1)),
                "bad indices in 2 samples since the status was cleared, first the rows of sample 1: -3",
            ),
            (
                message_of(2, List::Layer, None),
                "bad indices in 2 samples since the status was cleared, first the layer: -3",
            ),
        ] {
            assert_eq!(message, expected);
        }
    }

    /// Only where the call was refused for it.
    #[test]
    fn a_capture_under_way_has_advice() {
        let message_of = |call, code| {
            CudaError::Driver { call, code, name: "NAME".to_owned(), text: "text".to_owned() }.to_string()
        };
        for (call, code, advice) in [
            ("cuModuleLoadData", 900, "prepare one write in this context before"),
            ("cuFuncLoad", 906, "prepare one write in this context before"),
            ("cuMemcpyDtoH_v2", 900, "look at the status behind that"),
        ] {
            assert!(message_of(call, code).contains(advice), "{}", message_of(call, code));
        }
        for (call, code) in [("cuModuleLoadData", 2), ("cuModuleLoadData", 909), ("cuLaunchKernel", 906)] {
            assert_eq!(message_of(call, code), format!("{call}: NAME ({code}): text"));
        }
    }
}
