//! Generates a decoder of any size, as exporters write it.
//!
//! Its caches grow by `Concat`, and its mask is computed from `attention_mask` and the length of the past. Or
//! `GroupQueryAttention` writes and reads its caches.

use kvscatter_onnx::{Dimension, Model};

use crate::graph::{BOOL, Builder, FLOAT, INT32, INT64, MICROSOFT, Versions, int, ints, value};

/// The sizes of a decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoder {
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// The number of heads of keys and values. With [`Style::Growing`], it equals `heads`.
    pub(super) kv_heads: usize,
    pub(super) head_size: usize,
    pub(super) hidden: usize,
    pub(super) vocabulary: usize,
    /// The number of tokens that a token sees in layers with a window. [`Style::Growing`] has no windows.
    pub(super) window: Option<usize>,
    /// Each layer whose number is a multiple of this has no window. Numbers count from 1.
    pub(super) global_every: Option<usize>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            layers: 4,
            heads: 8,
            kv_heads: 8,
            head_size: 128,
            hidden: 512,
            vocabulary: 256,
            window: None,
            global_every: None,
        }
    }
}

pub(super) const TOKENS: &str = "input_ids";
pub(super) const MASK: &str = "attention_mask";
pub(super) const POSITIONS: &str = "position_ids";
pub(super) const LOGITS: &str = "logits";
/// The inputs of `GroupQueryAttention`: the last valid slot of each sample, and the largest length.
const LAST: &str = "seqlens_k";
const TOTAL: &str = "total_sequence_length";

/// How a decoder attends to its caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `Concat`, and attention as single operators.
    Growing,
    /// ONNX Runtime's `GroupQueryAttention`, which also writes the caches.
    GroupQuery,
}

/// The versions that exporters declare. `convert` raises them.
const VERSIONS: Versions = Versions { ir: 8, opset: 18 };

impl Decoder {
    /// Returns the bytes of all caches at a length, for one sample.
    pub(super) fn cache_bytes(&self, length: usize) -> usize {
        2 * self.layers * self.kv_heads * length * self.head_size * size_of::<f32>()
    }

    /// Returns the number of heads of all caches, whose rows are each one run of memory.
    pub(super) fn runs(&self) -> usize {
        2 * self.layers * self.kv_heads
    }

    /// Returns the window of a layer, by its index.
    pub(super) fn window(&self, layer: usize) -> Option<usize> {
        self.window.filter(|_| self.global_every.is_none_or(|every| !(layer + 1).is_multiple_of(every)))
    }

    /// Returns the names of all pasts and presents, the keys and the values of one layer after the other.
    pub(super) fn caches(&self) -> Vec<(String, String)> {
        let names = (0..self.layers).flat_map(|layer| ["key", "value"].map(|part| format!("{layer}.{part}")));
        names.map(|name| (format!("past.{name}"), format!("present.{name}"))).collect()
    }

    /// Returns the model for at most `positions` positions. Models of both styles have the same weights.
    pub(super) fn model(&self, positions: usize, style: Style) -> Model {
        let mut builder = Builder::default();
        builder.inputs(self);
        match style {
            Style::Growing => builder.mask(self),
            Style::GroupQuery => builder.lengths(),
        }
        builder.weight("tokens", &[self.vocabulary, self.hidden]);
        builder.weight("positions", &[positions, self.hidden]);
        builder.node("Gather", &["tokens", TOKENS], "embedded", vec![]);
        builder.node("Gather", &["positions", POSITIONS], "placed", vec![]);
        builder.node("Add", &["embedded", "placed"], "x0", vec![]);
        for layer in 0..self.layers {
            builder.layer(self, layer, style);
        }
        builder.normalized(self, &format!("x{}", self.layers), "last");
        builder.weight("head", &[self.hidden, self.vocabulary]);
        builder.node("MatMul", &["last", "head"], LOGITS, vec![]);
        let [batch, tokens] = ["batch", "tokens"].map(Dimension::Symbolic);
        let dims = [batch, tokens, Dimension::Known(self.vocabulary)];
        builder.graph.output.insert(0, value(LOGITS, FLOAT, &dims));
        builder.finish("decoder", VERSIONS)
    }
}

impl Builder {
    fn inputs(&mut self, decoder: &Decoder) {
        let [batch, tokens, past, total] =
            ["batch", "tokens", "past", "past + tokens"].map(Dimension::Symbolic);
        self.graph.input.push(value(TOKENS, INT64, &[batch, tokens]));
        self.graph.input.push(value(POSITIONS, INT64, &[batch, tokens]));
        self.graph.input.push(value(MASK, INT64, &[batch, total]));
        // With past and present in one buffer, `GroupQueryAttention` has the full length as both.
        let dims =
            |length| [batch, Dimension::Known(decoder.kv_heads), length, Dimension::Known(decoder.head_size)];
        for (of_past, of_present) in decoder.caches() {
            self.graph.input.push(value(&of_past, FLOAT, &dims(past)));
            self.graph.output.push(value(&of_present, FLOAT, &dims(total)));
        }
    }

    /// Adds the mask. Key `j` is visible to query `i` if `j <= past + i` and `attention_mask[b, j]`.
    fn mask(&mut self, decoder: &Decoder) {
        for (name, value) in [("zero", 0), ("one", 1), ("two", 2)] {
            self.ints(name, &[], &[value]);
        }
        self.ints("axes_1", &[1], &[1]);
        self.ints("axes_1_2", &[2], &[1, 2]);
        self.node("Shape", &["past.0.key"], "past_shape", vec![]);
        self.node("Gather", &["past_shape", "two"], "past_length", vec![]);
        self.node("Shape", &[TOKENS], "tokens_shape", vec![]);
        self.node("Gather", &["tokens_shape", "one"], "token_count", vec![]);
        self.node("Add", &["past_length", "token_count"], "total_length", vec![]);
        self.node("Range", &["zero", "total_length", "one"], "keys", vec![]);
        self.node("Range", &["past_length", "total_length", "one"], "queries", vec![]);
        self.node("Unsqueeze", &["queries", "axes_1"], "query_column", vec![]);
        self.node("LessOrEqual", &["keys", "query_column"], "causal", vec![]);
        self.node("Cast", &[MASK], "real", vec![int("to", BOOL)]);
        self.node("Unsqueeze", &["real", "axes_1_2"], "real_keys", vec![]);
        self.node("And", &["causal", "real_keys"], "visible", vec![]);
        self.floats("hidden_score", &[], &[f32::MIN]);
        self.floats("no_score", &[], &[0.0]);
        self.node("Where", &["visible", "no_score", "hidden_score"], "mask", vec![]);
        self.ints("to_heads", &[4], &[0, 0, decoder.heads as i64, decoder.head_size as i64]);
        self.ints("from_heads", &[3], &[0, 0, (decoder.heads * decoder.head_size) as i64]);
        self.floats("scale", &[], &[1.0 / (decoder.head_size as f32).sqrt()]);
    }

    /// Adds the inputs of `GroupQueryAttention`, which ONNX Runtime GenAI computes from `attention_mask`.
    fn lengths(&mut self) {
        self.ints("one", &[], &[1]);
        self.ints("axes_1", &[1], &[1]);
        self.node("ReduceSum", &[MASK, "axes_1"], "real_tokens", vec![int("keepdims", 0)]);
        self.node("Sub", &["real_tokens", "one"], "last_token", vec![]);
        self.node("Cast", &["last_token"], LAST, vec![int("to", INT32.into())]);
        self.node("Shape", &[MASK], "mask_shape", vec![]);
        self.node("Gather", &["mask_shape", "one"], "total_length", vec![]);
        self.node("Cast", &["total_length"], TOTAL, vec![int("to", INT32.into())]);
    }

    fn layer(&mut self, decoder: &Decoder, layer: usize, style: Style) {
        let width = decoder.heads * decoder.head_size;
        let kv_width = decoder.kv_heads * decoder.head_size;
        let n = |name: &str| format!("{name}{layer}");
        self.normalized(decoder, &n("x"), &n("normal"));
        for (part, width) in [("query", width), ("key", kv_width), ("value", kv_width)] {
            let (weight, flat) = (n(&format!("{part}_weight")), n(&format!("{part}_flat")));
            self.weight(&weight, &[decoder.hidden, width]);
            self.node("MatMul", &[&n("normal"), &weight], &flat, vec![]);
        }
        match style {
            Style::Growing => self.spelt_out(layer),
            Style::GroupQuery => self.group_query(decoder, layer),
        }
        self.weight(&n("out_weight"), &[width, decoder.hidden]);
        self.node("MatMul", &[&n("mixed_flat"), &n("out_weight")], &n("out"), vec![]);
        self.node("Add", &[&n("x"), &n("out")], &format!("x{}", layer + 1), vec![]);
    }

    /// Adds attention as single operators.
    fn spelt_out(&mut self, layer: usize) {
        let n = |name: &str| format!("{name}{layer}");
        for part in ["query", "key", "value"] {
            let (flat, split) = (n(&format!("{part}_flat")), n(&format!("{part}_split")));
            self.node("Reshape", &[&flat, "to_heads"], &split, vec![]);
            self.node("Transpose", &[&split], &n(part), vec![ints("perm", &[0, 2, 1, 3])]);
        }
        let (keys, values) = (format!("present.{layer}.key"), format!("present.{layer}.value"));
        self.node("Concat", &[&format!("past.{layer}.key"), &n("key")], &keys, vec![int("axis", 2)]);
        self.node("Concat", &[&format!("past.{layer}.value"), &n("value")], &values, vec![int("axis", 2)]);
        self.node("Transpose", &[&keys], &n("keys_turned"), vec![ints("perm", &[0, 1, 3, 2])]);
        self.node("Mul", &[&n("query"), "scale"], &n("scaled"), vec![]);
        self.node("MatMul", &[&n("scaled"), &n("keys_turned")], &n("scores"), vec![]);
        self.node("Add", &[&n("scores"), "mask"], &n("masked"), vec![]);
        self.node("Softmax", &[&n("masked")], &n("weights"), vec![int("axis", -1)]);
        self.node("MatMul", &[&n("weights"), &values], &n("mixed"), vec![]);
        self.node("Transpose", &[&n("mixed")], &n("mixed_split"), vec![ints("perm", &[0, 2, 1, 3])]);
        self.node("Reshape", &[&n("mixed_split"), "from_heads"], &n("mixed_flat"), vec![]);
    }

    /// Adds `GroupQueryAttention`.
    fn group_query(&mut self, decoder: &Decoder, layer: usize) {
        let n = |name: &str| format!("{name}{layer}");
        let cache = |time: &str, part: &str| format!("{time}.{layer}.{part}");
        let sizes = [("num_heads", decoder.heads), ("kv_num_heads", decoder.kv_heads)];
        let window = decoder.window(layer).map(|window| ("local_window_size", window));
        self.node_of(
            MICROSOFT,
            "GroupQueryAttention",
            &[
                &n("query_flat"),
                &n("key_flat"),
                &n("value_flat"),
                &cache("past", "key"),
                &cache("past", "value"),
                LAST,
                TOTAL,
            ],
            &[&n("mixed_flat"), &cache("present", "key"), &cache("present", "value")],
            sizes.into_iter().chain(window).map(|(name, size)| int(name, size as i64)).collect(),
        );
    }

    fn normalized(&mut self, decoder: &Decoder, input: &str, output: &str) {
        let scale = format!("{output}_scale");
        self.floats(&scale, &[decoder.hidden], &vec![1.0; decoder.hidden]);
        self.node("LayerNormalization", &[input, &scale], output, vec![int("axis", -1)]);
    }
}
