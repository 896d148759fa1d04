//! Errors for which a case cannot be measured.

use std::io;

/// An error for which a case cannot be measured. Its text is one line that names the argument, the value and
/// the limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The parameters are not a valid case.
    #[error("{}{reason}", prefix(.name))]
    Case {
        /// The name of the case, which may be empty.
        name: String,
        /// The parameter, its value and the limit, as text.
        reason: String,
    },
    /// The buffers do not fit into memory.
    #[error("{}needs {} MiB of memory, {} MiB are available", prefix(.name), .needed >> 20, .available >> 20)]
    Memory {
        /// The name of the case, which may be empty.
        name: String,
        /// The number of bytes of all buffers.
        needed: u64,
        /// The number of bytes that the system can provide.
        available: u64,
    },
    /// The system did not provide pages of the requested size.
    #[error("{}pages 2m: the system gave {} of {} MiB, see /sys/kernel/mm/transparent_hugepage; pages 4k are always available", prefix(.name), .given >> 20, .needed >> 20)]
    Pages {
        /// The name of the case, which may be empty.
        name: String,
        /// The number of bytes on large pages.
        given: u64,
        /// The number of bytes that were requested on large pages.
        needed: u64,
    },
    /// A cold case has too few layers for all engines.
    #[error("{}layers = {layers}: must be at least {needed}, {each} for each engine and {each} more for the engine that is timed twice", prefix(.name))]
    Layers {
        /// The name of the case, which may be empty.
        name: String,
        /// The number of layers that the case has.
        layers: usize,
        /// The number of layers that are needed: one turn for each measured engine, and a second turn for one
        /// of them.
        needed: usize,
        /// The number of layers of one turn. It is 2 if the previous layer is also written, to warm up.
        each: usize,
    },
    /// An engine that had passed its check failed while it was timed.
    #[error("{engine}: {cause}")]
    Engine {
        /// The name of the engine.
        engine: String,
        /// The message of the engine.
        cause: String,
    },
    /// A fact about the system could not be read.
    #[error("{what}: {cause}")]
    System {
        /// The fact that was to be read, or the request.
        what: &'static str,
        /// The error of the operating system.
        cause: io::Error,
    },
}

/// Returns the start of a message: the name of the case, unless it has none.
fn prefix(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!("case {name}: ") }
}
