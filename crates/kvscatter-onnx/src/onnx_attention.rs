//! The inputs and outputs of ONNX's operator `Attention`.

/// The indices of the inputs.
pub(crate) const QUERIES: usize = 0;
pub(crate) const KEYS: usize = 1;
pub(crate) const VALUES: usize = 2;
pub(crate) const MASK: usize = 3;
pub(crate) const PAST_KEYS: usize = 4;
pub(crate) const PAST_VALUES: usize = 5;
pub(crate) const NONPAD_KV_SEQLEN: usize = 6;

/// The indices of the outputs after the result.
pub(crate) const PRESENT_KEYS: usize = 1;
pub(crate) const PRESENT_VALUES: usize = 2;
pub(crate) const SCORES: usize = 3;

/// The value of `qk_matmul_output_mode` for scores after the mask. Before ONNX Runtime 1.27, it meant scores after
/// mask and cap, which are the same without a cap.
pub(crate) const MASKED_SCORES: i64 = 2;
