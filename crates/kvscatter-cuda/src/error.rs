//! Why a write could not be prepared or launched, or what a launch has found.

use std::fmt::{self, Display};
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
        what: Counted,
        /// How many there are.
        got: usize,
        /// The most there may be.
        most: usize,
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

impl Error {
    /// The message, with a surface's own names for lists, such as those of its arguments.
    #[must_use]
    pub fn with_names<'a>(&self, name: impl Fn(List) -> &'a str) -> String {
        match *self {
            Self::List { list, given } => presence(name(list), given),
            Self::Address { list, address, alignment } => place(name(list), address, alignment),
            Self::Overlap { list, pair } => overlap(name(list), pair),
            _ => self.to_string(),
        }
    }
}

fn presence(list: impl Display, given: bool) -> String {
    let what = if given { "is given, and this write has no such list" } else { "is missing" };
    format!("{list} {what}")
}

fn place(list: impl Display, address: u64, alignment: u64) -> String {
    format!("{list} lies at {address:#x}: must be a multiple of {alignment}, and not null")
}

fn overlap(list: impl Display, pair: usize) -> String {
    format!("{list} lies in cache or present {pair}, which is written while it is read")
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

impl Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starts => "the list of starts",
            Self::Lengths => "the list of lengths",
            Self::Spans => "the list of rows for each sample",
            Self::Layer => "the layer",
            Self::Status => "the status",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, List};

    /// A surface's name stands where the crate's stands, and nothing else differs.
    #[test]
    fn messages_take_the_names_of_a_surface() {
        let list = List::Spans;
        let errors = [
            Error::List { list, given: true },
            Error::List { list, given: false },
            Error::Address { list, address: 12, alignment: 8 },
            Error::Overlap { list, pair: 3 },
        ];
        for error in errors {
            let named = error.with_names(|list| if list == List::Spans { "seqLen" } else { "another" });
            let rest = error.to_string().strip_prefix("the list of rows for each sample ").map(str::to_owned);
            assert_eq!(named.strip_prefix("seqLen ").map(str::to_owned), rest);
            assert!(rest.is_some(), "{error}");
        }
        assert_eq!(Error::NoContext.with_names(|_| "seqLen"), Error::NoContext.to_string());
    }
}
