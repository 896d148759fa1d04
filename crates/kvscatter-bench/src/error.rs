//! Why a case cannot be measured.

use std::io;

/// Why a case cannot be measured, as one line that names the argument, the value and the limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Parameters that make no sense.
    #[error("{}{reason}", prefix(.name))]
    Case {
        /// The case.
        name: String,
        /// The parameter, its value and its limit.
        reason: String,
    },
    /// The buffers do not fit.
    #[error("{}needs {} MiB of memory, {} MiB are available", prefix(.name), .needed >> 20, .available >> 20)]
    Memory {
        /// The case.
        name: String,
        /// Bytes of all buffers.
        needed: u64,
        /// Bytes that the system can give.
        available: u64,
    },
    /// The system did not back the buffers with the pages asked for.
    #[error("{}pages 2m: the system gave {} of {} MiB, see /sys/kernel/mm/transparent_hugepage; pages 4k always come", prefix(.name), .given >> 20, .needed >> 20)]
    Pages {
        /// The case.
        name: String,
        /// Bytes on large pages.
        given: u64,
        /// Bytes asked for.
        needed: u64,
    },
    /// A cold case has fewer layers than turns.
    #[error("{}layers = {layers}: must be at least {needed}, {each} for each engine and for one of them again", prefix(.name))]
    Layers {
        /// The case.
        name: String,
        /// Its layers.
        layers: usize,
        /// Those of all turns: the engines that were measured, and one of them again.
        needed: usize,
        /// Layers of a turn: 2 where the one before is written to warm up.
        each: usize,
    },
    /// An engine that had passed its check gave up while it was timed.
    #[error("{engine}: {cause}")]
    Engine {
        /// The engine.
        engine: String,
        /// Its message.
        cause: String,
    },
    /// A fact about the system could not be read.
    #[error("{what}: {cause}")]
    System {
        /// What was read or asked for.
        what: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

/// Cases that a command line describes have no name.
fn prefix(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("case {name}: ") }
}
