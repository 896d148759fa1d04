//! The result of writing cases.

/// How many cases were written, and how many of them must be refused.
#[derive(Clone, Copy, Default)]
pub(super) struct Written {
    pub(super) cases: usize,
    pub(super) refused: usize,
}
