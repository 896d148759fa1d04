//! The attributes of the operator.

/// `Attention` with the attributes as they appear in a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Whether a query sees no position after its own.
    pub is_causal: bool,
    /// The factor of the scores, or `None` for `1 / sqrt(D)`.
    pub scale: Option<f64>,
    /// The bound of the scores. 0 and negative numbers mean none.
    pub softcap: f64,
    /// The number of query heads. Inputs of rank 3 need it. For inputs of rank 4 it may repeat the dimension.
    pub q_num_heads: Option<i64>,
    /// The number of heads of keys and values. Inputs of rank 3 need it. For inputs of rank 4 it may repeat
    /// the dimension.
    pub kv_num_heads: Option<i64>,
    /// What the fourth output contains: the scores (0), the scores after the softcap (1), with the bias (2),
    /// or the softmax (3).
    pub qk_matmul_output_mode: i64,
    /// The number of the type that the softmax is computed in. It is checked, but has no effect.
    pub softmax_precision: Option<i64>,
    /// The number of positions before its own that a query sees, or -1 for all.
    pub left_window_size: i64,
    /// The number of positions after its own that a query sees, or -1 for all.
    pub right_window_size: i64,
}

impl Default for Attention {
    fn default() -> Self {
        Self {
            is_causal: false,
            scale: None,
            softcap: 0.0,
            q_num_heads: None,
            kv_num_heads: None,
            qk_matmul_output_mode: 0,
            softmax_precision: None,
            left_window_size: -1,
            right_window_size: -1,
        }
    }
}
