//! The options of a session.

/// The options of [`KvSession::open`](crate::KvSession::open).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// The number of samples that fit in the batch. If `None`, this is the model's batch, or 1 if the model
    /// does not fix it.
    pub batch: Option<usize>,
    /// The number of slots of each cache. It is required if the model leaves the capacity open.
    pub capacity: Option<usize>,
    /// The number of threads that compute one operator. If `None`, the engine chooses the number.
    pub threads: Option<usize>,
    /// The maximum number of bytes that the caches may take. The limit is needed because their size comes
    /// from the model's file, which may contain any number.
    pub memory: u64,
    /// Whether a step whose logits contain NaN fails with [`SessionError::NanLogits`](crate::SessionError::NanLogits).
    pub refuse_nan: bool,
}

impl Default for SessionOptions {
    /// Returns options for one sample, the capacity of the model, the threads that the engine chooses, caches of at
    /// most 16 GiB, and logits that are not checked.
    fn default() -> Self {
        Self { batch: None, capacity: None, threads: None, memory: 1 << 34, refuse_nan: false }
    }
}
