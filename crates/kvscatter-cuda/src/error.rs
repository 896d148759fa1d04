//! Why a write could not be prepared or launched, or what a launch has found.

use std::path::PathBuf;

/// Why a write could not be prepared or launched, or what launches have found.
///
/// Every error of `prepare` and `launch` comes before anything is handed to the device, except [`Driver`](Self::Driver)
/// of a launch in several parts: see [`Write::launch`](crate::Write::launch).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rule of the operator that was prepared: buffers, lists, or an index that a launch has found.
    #[error(transparent)]
    Write(#[from] kvscatter::Error),
    /// This machine has no CUDA driver, or one that is too old.
    #[error("cannot use the CUDA driver {}: {why}", .library.display())]
    NoDriver {
        /// What was looked for.
        library: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The driver has refused a call.
    #[error("{call}: {name} ({code}): {text}")]
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
    /// The driver takes neither form of the kernels.
    #[error("this device or driver cannot run the kernels: machine code: {machine_code}; PTX: {ptx}")]
    Kernels {
        /// What it says to those that are compiled for devices.
        machine_code: Box<Self>,
        /// What it says to those that it would compile itself.
        ptx: Box<Self>,
    },
    /// No device has been chosen on this thread.
    #[error("no CUDA context is current on this thread: choose a device first")]
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
    #[error("{what} = {got}: a launch takes at most {most}")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        got: usize,
        /// The most there may be.
        most: usize,
    },
    /// A cache of 4-bit elements that do not come in whole bytes is written by words.
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
    /// The functional form moves whole bytes.
    #[error(
        "4-bit rows that straddle bytes have no functional form on a device: copy the cache and write in place"
    )]
    PresentNibbles,
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
    Apart,
    /// A slot mapping has no samples: every token goes to a slot of one cache.
    #[error(
        "a slot mapping takes starts alone, a linear cache and batch 1: these shapes have another list, a ring or {samples} samples"
    )]
    SlotMapping {
        /// Samples of the update.
        samples: usize,
    },
    /// A list that this operator does not have on a device, or lacks.
    #[error("{list} {}", if *.given { "is given, and this write has no such list" } else { "is missing" })]
    List {
        /// Which one.
        list: List,
        /// Whether it was given.
        given: bool,
    },
    /// An address that a device cannot read numbers from.
    #[error("{list} lies at {address:#x}: must be a multiple of {alignment}, and not null")]
    Address {
        /// Of what.
        list: List,
        /// Where it lies.
        address: u64,
        /// What the address must be a multiple of.
        alignment: u64,
    },
    /// What is read while a cache is written must not lie in it.
    #[error("{list} lies in cache or present {pair}, which is written while it is read")]
    Overlap {
        /// What lies there.
        list: List,
        /// The cache's place in the call.
        pair: usize,
    },
    /// What a launch reads must not change under it.
    #[error("the status shares memory with what is read while it is written: a list, an update or a past")]
    StatusShared,
    /// Bad indices that the lists do not hold: they have been overwritten since the launch, or were not read.
    #[error("{bad_samples} samples had bad indices; the first value was {first_value}, of {first_sample:#x}")]
    BadIndices {
        /// See [`StatusWords`](crate::StatusWords).
        bad_samples: u32,
        /// See [`StatusWords`](crate::StatusWords).
        first_sample: u32,
        /// See [`StatusWords`](crate::StatusWords).
        first_value: i64,
    },
}

/// What a launch reads on the device beside its updates, and where it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum List {
    /// Positions, or slots.
    Starts,
    /// Rows that are written.
    Lengths,
    /// Rows that samples bring: `updateLengths` or `seqLen`.
    Spans,
    /// The layer's number.
    Layer,
    /// The status.
    Status,
}

impl std::fmt::Display for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Starts => "the list of starts",
            Self::Lengths => "the list of lengths",
            Self::Spans => "the list of rows for each sample",
            Self::Layer => "the layer",
            Self::Status => "the status",
        })
    }
}
