//! The reasons why a case cannot be measured.

use std::io;

/// The reason why a case cannot be measured, as one line that names the argument, the value and the limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The parameters are not a valid case.
    #[error("{}{reason}", prefix(.name))]
    Case {
        /// The case.
        name: String,
        /// The parameter, its value and its limit.
        reason: String,
    },
    /// The buffers do not fit into memory.
    #[error("{}needs {} MiB of memory, {} MiB are available", prefix(.name), .needed >> 20, .available >> 20)]
    Memory {
        /// The case.
        name: String,
        /// The bytes of all buffers.
        needed: u64,
        /// The bytes that the system can provide.
        available: u64,
    },
    /// The system did not provide pages of the requested size.
    #[error("{}pages 2m: the system gave {} of {} MiB, see /sys/kernel/mm/transparent_hugepage; pages 4k always come", prefix(.name), .given >> 20, .needed >> 20)]
    Pages {
        /// The case.
        name: String,
        /// The bytes on large pages.
        given: u64,
        /// The bytes that were requested.
        needed: u64,
    },
    /// A cold case has too few layers for all engines.
    #[error("{}layers = {layers}: must be at least {needed}, {each} for each engine and for one of them again", prefix(.name))]
    Layers {
        /// The case.
        name: String,
        /// The number of layers of the case.
        layers: usize,
        /// The number of layers that are needed: one turn for each engine that was measured, and a second one
        /// for one of them.
        needed: usize,
        /// The number of layers of one turn. It is 2 if the previous layer is written to warm up.
        each: usize,
    },
    /// An engine that had passed its check failed while it was timed.
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
        /// The fact or the request.
        what: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

/// Returns the start of a message. A case from a command line has no name.
fn prefix(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("case {name}: ") }
}
