use super::attributes::Attention;
use super::inputs::{Array, Inputs, Positions};
use super::refusal::AttentionRefusal as Refusal;

/// The sizes of a call that breaks no rule.
pub(super) struct Shapes {
    pub(super) batch: usize,
    pub(super) q_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) queries: usize,
    /// The number of rows of the past. It is 0 without a past.
    pub(super) past: usize,
    /// The number of slots, with the past.
    pub(super) total: usize,
    pub(super) head_size: usize,
    pub(super) value_size: usize,
}

impl Shapes {
    pub(super) fn new(attention: &Attention, inputs: &Inputs) -> Result<Self, Refusal> {
        check_attributes(attention)?;
        let Inputs { q, k, v, .. } = inputs;
        let ranks = [q.shape.len(), k.shape.len(), v.shape.len()];
        if ranks != [3; 3] && ranks != [4; 3] {
            return Err(Refusal::Ranks { ranks });
        }
        let [batch, q_heads, queries, head_size] = dimensions("Q", q, "q_num_heads", attention.q_num_heads)?;
        let k_shape = dimensions("K", k, "kv_num_heads", attention.kv_num_heads)?;
        let v_shape = dimensions("V", v, "kv_num_heads", attention.kv_num_heads)?;
        let [_, kv_heads, keys, _] = k_shape;
        if kv_heads == 0 || q_heads % kv_heads != 0 {
            return Err(Refusal::Groups { q_heads, kv_heads });
        }
        let value_size = v_shape[3];
        expect("K", k_shape, [batch, kv_heads, keys, head_size])?;
        expect("V", v_shape, [batch, kv_heads, keys, value_size])?;
        let past = match (&inputs.past_key, &inputs.past_value) {
            (None, None) => 0,
            (Some(_), Some(_)) if inputs.positions != Positions::Full => {
                return Err(Refusal::PastWithLengths);
            }
            (Some(key), Some(value)) => {
                let (key, value) = (past_shape("past_key", key)?, past_shape("past_value", value)?);
                let past = key[2];
                expect("past_key", key, [batch, kv_heads, past, head_size])?;
                expect("past_value", value, [batch, kv_heads, past, value_size])?;
                past
            }
            _ => return Err(Refusal::PastAlone),
        };
        let total = past + keys;
        let shapes = Self { batch, q_heads, kv_heads, queries, past, total, head_size, value_size };
        shapes.check_mask(inputs)?;
        shapes.check_lengths(inputs)?;
        Ok(shapes)
    }

    fn check_mask(&self, inputs: &Inputs) -> Result<(), Refusal> {
        let Some(mask) = &inputs.mask else { return Ok(()) };
        let rank = mask.shape().len();
        let Some(missing) = 4usize.checked_sub(rank).filter(|_| rank > 0) else {
            return Err(Refusal::MaskRank { rank });
        };
        let needed = [self.batch, self.q_heads, self.queries, self.total];
        for (dimension, &given) in (missing..).zip(mask.shape()) {
            let needed = needed[dimension];
            let fits = if dimension == 3 { given <= needed } else { given == needed || given == 1 };
            if !fits {
                return Err(Refusal::MaskDimension { dimension, given, needed });
            }
        }
        Ok(())
    }

    fn check_lengths(&self, inputs: &Inputs) -> Result<(), Refusal> {
        let (lengths, ring) = match &inputs.positions {
            Positions::Full => return Ok(()),
            Positions::Lengths(lengths) => (lengths, false),
            Positions::Ring(tokens) => (tokens, true),
        };
        if lengths.len() != self.batch {
            return Err(Refusal::LengthCount { given: lengths.len(), batch: self.batch });
        }
        for (sample, &length) in lengths.iter().enumerate() {
            if length < 0 || !ring && length as u64 > self.total as u64 {
                return Err(Refusal::Length { sample, length, slots: self.total });
            }
        }
        Ok(())
    }
}

fn check_attributes(attention: &Attention) -> Result<(), Refusal> {
    let mode = attention.qk_matmul_output_mode;
    if !(0..=3).contains(&mode) {
        return Err(Refusal::Mode { mode });
    }
    // ONNX numbers float as 1, float16 as 10, double as 11 and bfloat16 as 16.
    if let Some(precision) =
        attention.softmax_precision.filter(|precision| ![1, 10, 11, 16].contains(precision))
    {
        return Err(Refusal::SoftmaxPrecision { precision });
    }
    let bounds = [
        ("left_window_size", attention.left_window_size),
        ("right_window_size", attention.right_window_size),
    ];
    for (attribute, bound) in bounds {
        if bound < -1 {
            return Err(Refusal::Window { attribute, bound });
        }
    }
    if attention.scale.is_some_and(|scale| scale.is_nan() || scale < 0.0) {
        return Err(Refusal::Scale);
    }
    Ok(())
}

/// Returns the dimensions of an input as `[B, heads, rows, size]`.
fn dimensions(
    input: &'static str,
    array: &Array<f64>,
    attribute: &'static str,
    heads: Option<i64>,
) -> Result<[usize; 4], Refusal> {
    match (array.shape.as_slice(), heads) {
        (&[batch, rows, hidden], Some(heads)) => match usize::try_from(heads) {
            Ok(count) if count > 0 && hidden % count == 0 => Ok([batch, count, rows, hidden / count]),
            _ => Err(Refusal::Heads { input, heads, dimension: hidden }),
        },
        (&[batch, count, rows, size], heads) => match heads {
            Some(heads) if usize::try_from(heads) != Ok(count) => {
                Err(Refusal::Heads { input, heads, dimension: count })
            }
            _ => Ok([batch, count, rows, size]),
        },
        _ => Err(Refusal::HeadsMissing { attribute }),
    }
}

fn past_shape(input: &'static str, past: &Array<f64>) -> Result<[usize; 4], Refusal> {
    let shape = <[usize; 4]>::try_from(past.shape.as_slice());
    shape.map_err(|_| Refusal::PastRank { input, rank: past.shape.len() })
}

fn expect(input: &'static str, given: [usize; 4], needed: [usize; 4]) -> Result<(), Refusal> {
    for (dimension, (given, needed)) in given.into_iter().zip(needed).enumerate() {
        if given != needed {
            return Err(Refusal::Dimension { input, dimension, given, needed });
        }
    }
    Ok(())
}
