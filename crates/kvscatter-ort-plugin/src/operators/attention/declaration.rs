//! What a node declares, and which nodes the kernel supports.

use kvscatter::ElementType;
use kvscatter_attention::{Attention, Operand, Shapes};

use crate::node::Attributes;
use crate::status::CallError;
use crate::tensor_info::TensorInfo;

/// The element types of the queries, keys and values.
pub(crate) const FLOATS: [ElementType; 3] =
    [ElementType::Float32, ElementType::Float16, ElementType::BFloat16];

/// The attributes of a node, and the optional outputs that it has.
#[derive(Debug)]
pub(crate) struct Declaration {
    pub(crate) operator: Attention,
    pub(crate) has_present: bool,
}

impl Declaration {
    /// Reads a node. `outputs` contains whether the node has each output. Returns an error for a value that the kernel
    /// does not support, and for one of two presents alone.
    pub(crate) fn read(attributes: &impl Attributes, outputs: &[bool]) -> Result<Self, CallError> {
        let has = |index: usize| outputs.get(index).is_some_and(|is_present| *is_present);
        let (has_present, has_scores) = (has(1), has(3));
        if !has(0) {
            return Err(refused("Y is missing"));
        }
        together("present_key", has_present, "present_value", has(2))?;
        let operator = kvscatter_attention::Attributes {
            is_causal: attributes.integer(c"is_causal")?,
            kv_num_heads: attributes.integer(c"kv_num_heads")?,
            left_window_size: attributes.integer(c"left_window_size")?,
            q_num_heads: attributes.integer(c"q_num_heads")?,
            qk_matmul_output_mode: attributes.integer(c"qk_matmul_output_mode")?,
            right_window_size: attributes.integer(c"right_window_size")?,
            scale: attributes.float(c"scale")?,
            softcap: attributes.float(c"softcap")?,
            softmax_precision: attributes.integer(c"softmax_precision")?,
        }
        .operator(has_scores)?;
        Ok(Self { operator, has_present })
    }

    /// Checks the types, ranks and shapes of the inputs, as far as the model declares them. Returns an error for inputs
    /// that the kernel does not support, and for those that make every call fail.
    pub(crate) fn check_inputs(&self, inputs: &[TensorInfo]) -> Result<(), CallError> {
        let absent = TensorInfo::default();
        let [query, key, value, mask, past_key, past_value, lengths] =
            [0, 1, 2, 3, 4, 5, 6].map(|index| inputs.get(index).unwrap_or(&absent));
        let (has_past, has_mask) = (past_key.is_present(), mask.is_present());
        together("past_key", has_past, "past_value", past_value.is_present())?;
        if has_past && lengths.is_present() {
            return Err(kvscatter_attention::AttentionError::LengthsAndPast.into());
        }

        let element = query.element().filter(|element| FLOATS.contains(element));
        let Some(element) = element else { return Err(refused("the type of Q is not supported")) };
        let same = |tensor: &TensorInfo| tensor.element() == Some(element);
        let past = [past_key, past_value].into_iter().filter(|_| has_past);
        if ![key, value].into_iter().chain(past.clone()).all(same) {
            return Err(refused("the types of Q, K and V differ"));
        }
        if has_mask && mask.element() != Some(ElementType::Bool) && !same(mask) {
            return Err(refused("the type of attn_mask is neither bool nor that of Q"));
        }

        let mut ranks = [query, key, value].into_iter().filter_map(TensorInfo::rank);
        let rank = ranks.next().unwrap_or(4);
        if !matches!((rank, self.operator.head_counts().is_some()), (3, true) | (4, _))
            || ranks.any(|other| other != rank)
        {
            return Err(refused("the ranks of Q, K and V are not supported"));
        }
        let may_be = |tensor: &TensorInfo, accepted: core::ops::RangeInclusive<usize>| {
            tensor.rank().is_none_or(|rank| accepted.contains(&rank))
        };
        if !past.clone().all(|past| may_be(past, 4..=4)) || !may_be(mask, 1..=4) || !may_be(lengths, 1..=1) {
            return Err(refused("the rank of an input is not supported"));
        }

        let (Some(query), Some(key), Some(value)) = (query.sizes(), key.sizes(), value.sizes()) else {
            return Ok(());
        };
        let (mask, past) = (mask.sizes(), past_key.sizes().zip(past_value.sizes()));
        if has_mask != mask.is_some() || has_past != past.is_some() {
            return Ok(());
        }
        let shapes = Shapes {
            element,
            query: &query,
            key: &key,
            value: &value,
            mask: mask.as_deref(),
            past: past.as_ref().map(|(key, value)| [key.as_slice(), value]),
        };
        let batch = self.operator.prepare(&shapes)?.scores_shape()[0];
        match lengths.sizes().as_deref() {
            Some(&[got]) if got != batch => {
                let operand = Operand::Lengths;
                Err(kvscatter_attention::AttentionError::Length { operand, got, expected: batch }.into())
            }
            _ => Ok(()),
        }
    }
}

fn refused(message: impl Into<String>) -> CallError {
    CallError::invalid_argument(message)
}

fn together(one: &str, has_one: bool, other: &str, has_other: bool) -> Result<(), CallError> {
    if has_one == has_other {
        return Ok(());
    }
    Err(refused(format!("{one} and {other} must be used together")))
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use kvscatter::ElementType::{self, BFloat16, Bool, Float16, Float32, Float64, Int32, Int64};
    use kvscatter_attention::{Attention, Scores, Softmax};

    use super::Declaration;
    use crate::node::Attributes;
    use crate::status::CallError;
    use crate::tensor_info::TensorInfo;

    /// Attributes that a test sets.
    struct Set(&'static [(&'static CStr, f64)]);

    impl Set {
        fn value(&self, name: &CStr) -> Option<f64> {
            self.0.iter().find(|(set, _)| *set == name).map(|(_, value)| *value)
        }
    }

    impl Attributes for Set {
        fn integer(&self, name: &CStr) -> Result<Option<i64>, CallError> {
            Ok(self.value(name).map(|value| value as i64))
        }

        fn float(&self, name: &CStr) -> Result<Option<f32>, CallError> {
            Ok(self.value(name).map(|value| value as f32))
        }
    }

    const ALL: [bool; 4] = [true; 4];

    type Given = &'static [(&'static CStr, f64)];

    fn read(set: Given, outputs: &[bool]) -> Result<Declaration, String> {
        Declaration::read(&Set(set), outputs).map_err(|refused| refused.to_string())
    }

    #[test]
    fn attributes_are_those_of_the_operator() {
        let operator = |set, outputs: &[bool]| read(set, outputs).unwrap().operator;
        let with_defaults = operator(&[], &[true]);
        assert_eq!(with_defaults, Attention::new());
        assert_eq!(operator(&[(c"left_window_size", -1.0)], &[true]), with_defaults);
        assert_eq!(operator(&[], &ALL), Attention::new().scores(Scores::Products));
        let modes = [Scores::Products, Scores::Capped, Scores::Masked, Scores::Weights];
        let sets: [Given; 4] = [
            &[(c"qk_matmul_output_mode", 0.0)],
            &[(c"qk_matmul_output_mode", 1.0)],
            &[(c"qk_matmul_output_mode", 2.0)],
            &[(c"qk_matmul_output_mode", 3.0)],
        ];
        for (set, mode) in sets.into_iter().zip(modes) {
            assert_eq!(operator(set, &ALL), Attention::new().scores(mode));
            assert_eq!(operator(set, &[true, true, true]), with_defaults, "no output, no mode");
        }
        let all = operator(
            &[
                (c"is_causal", 1.0),
                (c"left_window_size", 0.0),
                (c"right_window_size", 3.0),
                (c"softcap", 2.0),
                (c"softmax_precision", 11.0),
                (c"scale", 0.5),
                (c"q_num_heads", 6.0),
                (c"kv_num_heads", 2.0),
            ],
            &[true],
        );
        let expected = Attention::new().causal(true).window(Some(0), Some(3)).softcap(2.0).scale(0.5);
        assert_eq!(all, expected.heads(6, 2).softmax(Softmax::Float64));
    }

    /// `kvscatter_attention` tests which values of integers are refused.
    #[test]
    fn other_values_and_outputs_are_refused() {
        const BOTH_PRESENTS: &str = "present_key and present_value must be used together";
        let sets: [(Given, &[bool], &str); 8] = [
            (&[(c"is_causal", 2.0)], &[true], "is_causal = 2 is not supported"),
            (&[(c"softcap", -1.0)], &[true], "softcap = -1: must be finite and at least 0"),
            (&[(c"softcap", f64::NAN)], &[true], "softcap = NaN: must be finite and at least 0"),
            (&[(c"scale", -0.5)], &[true], "scale = -0.5: must be finite and at least 0"),
            (&[(c"q_num_heads", 2.0)], &[true], "q_num_heads and kv_num_heads must be used together"),
            (&[], &[true, true, false], BOTH_PRESENTS),
            (&[], &[true, false, true], BOTH_PRESENTS),
            (&[], &[false], "Y is missing"),
        ];
        for (set, outputs, refused) in sets {
            assert_eq!(read(set, outputs).unwrap_err(), refused);
        }
    }

    const HEADS: Given = &[(c"q_num_heads", 4.0), (c"kv_num_heads", 2.0)];

    /// Returns a tensor whose dimensions are known, where they are not 0.
    fn tensor(element: ElementType, sizes: &[usize]) -> TensorInfo {
        let sizes: Vec<_> = sizes.iter().map(|&size| (size > 0).then_some(size)).collect();
        TensorInfo::with_shape(element, &sizes)
    }

    /// Returns inputs of rank 4 with a mask, and with the past or the lengths if there are more than four.
    fn inputs() -> [TensorInfo; 4] {
        [
            tensor(Float32, &[2, 4, 3, 8]),
            tensor(Float32, &[2, 2, 5, 8]),
            tensor(Float32, &[2, 2, 5, 6]),
            tensor(Bool, &[3, 5]),
        ]
    }

    type Change = fn(&mut Vec<TensorInfo>);

    fn check(change: Change) -> Result<(), String> {
        let mut inputs = Vec::from(inputs());
        change(&mut inputs);
        let declared = read(&[], &[true]).unwrap();
        declared.check_inputs(&inputs).map_err(|refused| refused.to_string())
    }

    /// Returns the fifth to the seventh input with lengths of this shape.
    fn with_lengths(sizes: &[usize]) -> [TensorInfo; 3] {
        [TensorInfo::default(), TensorInfo::default(), tensor(Int64, sizes)]
    }

    fn past() -> [TensorInfo; 2] {
        [tensor(Float32, &[2, 2, 7, 8]), tensor(Float32, &[2, 2, 7, 6])]
    }

    fn operands(element: ElementType) -> [TensorInfo; 3] {
        [[2, 4, 3, 8], [2, 2, 5, 8], [2, 2, 5, 6]].map(|sizes| tensor(element, &sizes))
    }

    #[test]
    fn supported_inputs_are_taken() {
        let changes: [Change; 10] = [
            |_| {},
            |inputs| inputs.truncate(3),
            |inputs| inputs[3] = tensor(Float32, &[2, 4, 3, 5]),
            |inputs| inputs[3] = tensor(Float32, &[5]),
            |inputs| inputs[3] = TensorInfo::default(),
            // One dimension is open.
            |inputs| inputs[0] = tensor(Float32, &[2, 4, 0, 8]),
            |inputs| drop(inputs.splice(..3, operands(Float16))),
            |inputs| drop(inputs.splice(..3, operands(BFloat16))),
            |inputs| inputs.extend(with_lengths(&[2])),
            |inputs| {
                inputs[3] = TensorInfo::default();
                inputs.extend(past());
            },
        ];
        for (index, change) in changes.into_iter().enumerate() {
            assert_eq!(check(change), Ok(()), "{index}");
        }
        let of_rank_3 = [[2, 3, 32], [2, 5, 16], [2, 5, 12]].map(|sizes| tensor(Float32, &sizes));
        assert!(read(HEADS, &[true]).unwrap().check_inputs(&of_rank_3).is_ok());
    }

    #[test]
    fn other_inputs_are_refused() {
        let of_mask = "the type of attn_mask is neither bool nor that of Q";
        let of_ranks = "the ranks of Q, K and V are not supported";
        let of_rank = "the rank of an input is not supported";
        let changes: [(&str, Change); 14] = [
            ("the type of Q is not supported", |inputs| inputs[0] = tensor(Float64, &[2, 4, 3, 8])),
            ("the types of Q, K and V differ", |inputs| inputs[2] = tensor(Float16, &[2, 2, 5, 6])),
            (of_mask, |inputs| inputs[3] = tensor(Int32, &[3, 5])),
            (of_mask, |inputs| inputs[3] = tensor(Float16, &[3, 5])),
            (of_ranks, |inputs| inputs[1] = tensor(Float32, &[2, 5, 16])),
            (of_ranks, |inputs| inputs[0] = tensor(Float32, &[2, 3])),
            // The numbers of heads are missing.
            (of_ranks, |inputs| *inputs = [(); 3].map(|()| tensor(Float32, &[0, 0, 0])).into()),
            (of_rank, |inputs| inputs[3] = tensor(Bool, &[1, 1, 1, 3, 5])),
            (of_rank, |inputs| inputs.extend(with_lengths(&[2, 1]))),
            ("past_key and past_value must be used together", |inputs| {
                inputs.extend([tensor(Float32, &[2, 2, 7, 8]), TensorInfo::default()]);
            }),
            ("nonpad_kv_seqlen cannot be used with past_key and past_value", |inputs| {
                inputs.extend(past());
                inputs.push(tensor(Int64, &[2]));
            }),
            ("nonpad_kv_seqlen has 3 elements, must have 2", |inputs| inputs.extend(with_lengths(&[3]))),
            ("K is [2, 2, 5, 7]", |inputs| inputs[1] = tensor(Float32, &[2, 2, 5, 7])),
            ("attn_mask has shape [2, 5]", |inputs| inputs[3] = tensor(Bool, &[2, 5])),
        ];
        for (expected, change) in changes {
            let refused = check(change).unwrap_err();
            // The last two messages have more words.
            let has_more = expected.ends_with(']');
            assert!(refused == expected || has_more && refused.starts_with(expected), "{refused}");
        }
    }
}
