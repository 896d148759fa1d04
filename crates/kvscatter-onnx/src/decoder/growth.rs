//! How a cache that is not static grows.

use std::fmt;

/// How a cache that is not static grows, which determines what a user can do about it. `Display` writes this
/// advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Growth {
    /// The graph concatenates the past and the new rows.
    Joined,
    /// `GroupQueryAttention` writes the past and the new rows to its present.
    ByOperator,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Joined => "kvscatter inspect shows whether it can be made static",
            Self::ByOperator => {
                "GroupQueryAttention writes it itself, and kvscatter cannot make it static yet; ONNX Runtime writes the \
                 new rows alone where past and present are bound to one buffer (past_present_share_buffer in ONNX \
                 Runtime GenAI), which kvscatter does not do yet"
            }
        })
    }
}
