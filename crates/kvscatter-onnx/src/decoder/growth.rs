//! How a cache that is not static grows.

use std::fmt;

/// How a cache grows, which determines what a user can do about it. `Display` writes that advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Growth {
    /// The graph concatenates the past and the new rows.
    Joined,
    /// `GroupQueryAttention` copies the past and the new rows to the present.
    ByOperator,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Joined => "kvscatter inspect shows whether it can be made static",
            Self::ByOperator => {
                "GroupQueryAttention writes the cache itself, and kvscatter inspect shows whether it can be made static. \
                 As it is, ONNX Runtime writes only the new rows if past and present are bound to one buffer, as \
                 kvscatter generate --engine ort does"
            }
        })
    }
}
