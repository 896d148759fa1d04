//! Every error with its fields. An error leaves the outputs unchanged.
#![cfg(test)]

use half::f16;
use kvscatter::ElementType;
use kvscatter_attention::{
    Attention, AttentionError as Error, Float, Inputs, Mask, Operand, Outputs, Prepared, Scores, Shapes,
    Valid,
};

/// Shapes that fit each other.
const SHAPES: Shapes<'_> = Shapes {
    element: ElementType::Float32,
    query: &[2, 4, 3, 5],
    key: &[2, 2, 8, 5],
    value: &[2, 2, 8, 7],
    mask: None,
    past: None,
};

/// Shapes of past keys and values that fit [`SHAPES`].
const PAST: [&[usize]; 2] = [&[2, 2, 4, 5], &[2, 2, 4, 7]];

/// Shapes of rank 3 that fit each other, with 4 and 2 heads.
const FLAT: Shapes<'_> = Shapes { query: &[2, 3, 20], key: &[2, 8, 10], value: &[2, 8, 14], ..SHAPES };

#[track_caller]
fn refused(op: Attention, shapes: Shapes<'_>, expected: Error) {
    assert_eq!(op.prepare(&shapes).map(|prepared| prepared.output_shape()), Err(expected));
}

#[test]
fn an_operator_returns_what_decides_its_shapes() {
    let op = Attention::new();
    assert_eq!((op.head_counts(), op.has_scores()), (None, false));
    let op = op.heads(4, 2).scores(Scores::Weights);
    assert_eq!((op.head_counts(), op.has_scores()), (Some((4, 2)), true));
}

#[test]
fn element_types() {
    for element in [ElementType::Float64, ElementType::Int32, ElementType::Float8E4M3Fn, ElementType::String]
    {
        refused(Attention::new(), Shapes { element, ..SHAPES }, Error::ElementType { element });
    }
    let (got, expected) = (ElementType::Float16, ElementType::Float32);
    let other = |operand, got, expected| Error::OtherElementType { operand, got, expected };
    Values::<f16>::new().fails(&prepare(SHAPES), other(Operand::Query, got, expected));
    let narrow = Attention::new().cache_element(got);
    Values::<f32>::new().fails(&narrow.prepare(&SHAPES).unwrap(), other(Operand::Key, expected, got));
    let element = ElementType::UInt8;
    refused(Attention::new().cache_element(element), SHAPES, Error::ElementType { element });
    // Only a cache may have codes.
    let element = ElementType::Int8;
    refused(Attention::new(), Shapes { element, ..SHAPES }, Error::ElementType { element });
}

#[test]
fn ranks() {
    let op = Attention::new();
    for query in [&[][..], &[2, 3], &[1, 2, 4, 3, 5]] {
        let rank = query.len();
        let error = Error::Rank { operand: Operand::Query, rank, expected: "3 or 4" };
        refused(op, Shapes { query, ..SHAPES }, error);
    }
    let error = |operand, rank, expected| Error::Rank { operand, rank, expected };
    refused(op, Shapes { key: FLAT.key, ..SHAPES }, error(Operand::Key, 3, "4"));
    refused(op, Shapes { value: &[2], ..SHAPES }, error(Operand::Value, 1, "4"));
    let op = op.heads(4, 2);
    refused(op, Shapes { key: SHAPES.key, ..FLAT }, error(Operand::Key, 4, "3"));
    refused(op, Shapes { value: SHAPES.value, ..FLAT }, error(Operand::Value, 4, "3"));
    let past: [&[usize]; 2] = [&[2, 2, 4, 5], &[2, 4, 14]];
    refused(op, Shapes { past: Some(past), ..FLAT }, error(Operand::PastValue, 3, "4"));
    let past: [&[usize]; 2] = [&[2, 4, 10], &[2, 2, 4, 7]];
    refused(op, Shapes { past: Some(past), ..SHAPES }, error(Operand::PastKey, 3, "4"));
}

#[test]
fn heads_and_scales() {
    refused(Attention::new(), FLAT, Error::HeadsMissing);
    let hidden = |operand, hidden, heads| Error::HiddenSize { operand, hidden, heads };
    refused(Attention::new().heads(3, 2), FLAT, hidden(Operand::Query, 20, 3));
    refused(Attention::new().heads(0, 2), FLAT, hidden(Operand::Query, 20, 0));
    refused(Attention::new().heads(4, 3), FLAT, hidden(Operand::Key, 10, 3));
    refused(Attention::new().heads(4, 0), FLAT, hidden(Operand::Key, 10, 0));
    let op = Attention::new().heads(4, 2);
    refused(op, Shapes { value: &[2, 8, 13], ..FLAT }, hidden(Operand::Value, 13, 2));
    let heads = Error::Heads { got: (2, 2), expected: (4, 2) };
    refused(Attention::new().heads(2, 2), SHAPES, heads);
    let group = |query, key| Error::Group { query, key };
    refused(Attention::new(), Shapes { query: &[2, 3, 3, 5], ..SHAPES }, group(3, 2));
    let none = Shapes { key: &[2, 0, 8, 5], value: &[2, 0, 8, 7], ..SHAPES };
    refused(Attention::new(), none, group(4, 0));
    for number in [-0.5, f32::INFINITY, f32::NEG_INFINITY] {
        refused(Attention::new().scale(number), SHAPES, Error::Scale { scale: number });
        refused(Attention::new().softcap(number), SHAPES, Error::Softcap { softcap: number });
    }
    // NaN differs from itself.
    let result = Attention::new().scale(f32::NAN).prepare(&SHAPES);
    assert!(matches!(result, Err(Error::Scale { scale }) if scale.is_nan()));
    let result = Attention::new().softcap(f32::NAN).prepare(&SHAPES);
    assert!(matches!(result, Err(Error::Softcap { softcap }) if softcap.is_nan()));
}

#[test]
fn shapes() {
    let op = Attention::new();
    let shape = |operand, got, expected| Error::Shape { operand, got, expected };
    for key in [[3, 2, 8, 5], [2, 2, 8, 4]] {
        let error = shape(Operand::Key, key, [2, 2, 8, 5]);
        refused(op, Shapes { key: &key, ..SHAPES }, error);
    }
    for value in [[3, 2, 8, 7], [2, 1, 8, 7], [2, 2, 9, 7]] {
        let error = shape(Operand::Value, value, [2, 2, 8, 7]);
        refused(op, Shapes { value: &value, ..SHAPES }, error);
    }
    for key in [[3, 2, 4, 5], [2, 1, 4, 5], [2, 2, 4, 7]] {
        let error = shape(Operand::PastKey, key, [2, 2, 4, 5]);
        refused(op, Shapes { past: Some([&key, PAST[1]]), ..SHAPES }, error);
    }
    for value in [[3, 2, 4, 7], [2, 1, 4, 7], [2, 2, 5, 7], [2, 2, 4, 5]] {
        let error = shape(Operand::PastValue, value, [2, 2, 4, 7]);
        refused(op, Shapes { past: Some([PAST[0], &value]), ..SHAPES }, error);
    }
    let expected = [2, 4, 3, 8];
    for mask in
        [&[][..], &[9], &[2, 8], &[3, 3, 8], &[3, 4, 3, 8], &[2, 2, 3, 8], &[1, 2, 4, 3, 8], &[0, 1, 1, 8]]
    {
        let error = Error::MaskShape { got: mask.to_vec(), expected };
        refused(op, Shapes { mask: Some(mask), ..SHAPES }, error);
    }
}

#[test]
fn rings() {
    let ring = Attention::new().ring();
    refused(ring, Shapes { past: Some(PAST), ..SHAPES }, Error::Ring { operand: Operand::PastKey });
    refused(ring.scores(Scores::Weights), SHAPES, Error::Ring { operand: Operand::Scores });
}

#[test]
fn operands_that_were_not_prepared() {
    let values = Values::<f32>::new();
    let presence = |operand, is_expected| Error::Presence { operand, is_expected };
    let masked = prepare(Shapes { mask: Some(&[3, 8]), ..SHAPES });
    values.fails(&masked, presence(Operand::Mask, true));
    let with_mask = Values { mask: Some(vec![1; 24]), ..values.clone() };
    with_mask.fails(&prepare(SHAPES), presence(Operand::Mask, false));
    let with_past = Values { past: Some([vec![0.0; 80], vec![0.0; 112]]), ..values.clone() };
    with_past.fails(&prepare(SHAPES), presence(Operand::PastKey, false));
    let of_past = prepare(Shapes { past: Some(PAST), ..SHAPES });
    values.fails(&of_past, presence(Operand::PastKey, true));
    let with_lengths = Values { lengths: Some(vec![1, 1]), ..with_past };
    with_lengths.fails(&of_past, Error::LengthsAndPast);
    let scored = Attention::new().scores(Scores::Products).prepare(&SHAPES).unwrap();
    values.fails(&scored, presence(Operand::Scores, true));
    let with_scores = Values { scores: Some(2 * 4 * 3 * 8), ..values };
    with_scores.fails(&prepare(SHAPES), presence(Operand::Scores, false));
}

#[test]
fn lengths_of_buffers() {
    let fails = |prepared: &Prepared, operand, expected, set: &dyn Fn(&mut Values<f32>, usize)| {
        for got in [0, expected - 1, expected + 1] {
            let mut values = Values::new();
            set(&mut values, got);
            values.fails(prepared, Error::Length { operand, got, expected });
        }
    };
    let plain = &prepare(SHAPES);
    fails(plain, Operand::Query, 120, &|values, got| values.query = vec![0.0; got]);
    fails(plain, Operand::Key, 160, &|values, got| values.key = vec![0.0; got]);
    fails(plain, Operand::Value, 224, &|values, got| values.value = vec![0.0; got]);
    fails(plain, Operand::Output, 168, &|values, got| values.output = got);
    fails(plain, Operand::PresentKey, 160, &|values, got| values.present = Some([got, 224]));
    fails(plain, Operand::PresentValue, 224, &|values, got| values.present = Some([160, got]));
    fails(plain, Operand::Lengths, 2, &|values, got| values.lengths = Some(vec![1; got]));
    let masked = prepare(Shapes { mask: Some(&[3, 8]), ..SHAPES });
    fails(&masked, Operand::Mask, 24, &|values, got| values.mask = Some(vec![1; got]));
    let of_past = &prepare(Shapes { past: Some(PAST), ..SHAPES });
    let past = |key, value| Some([vec![0.0; key], vec![0.0; value]]);
    fails(of_past, Operand::PastKey, 80, &|values, got| values.past = past(got, 112));
    fails(of_past, Operand::PastValue, 112, &|values, got| values.past = past(80, got));
    let scored = Attention::new().scores(Scores::Products).prepare(&SHAPES).unwrap();
    fails(&scored, Operand::Scores, 192, &|values, got| values.scores = Some(got));
}

#[test]
fn lengths_of_samples() {
    let values = Values::<f32>::new();
    let (linear, ring) = (prepare(SHAPES), Attention::new().ring().prepare(&SHAPES).unwrap());
    for value in [-1, 9, i64::MIN, i64::MAX] {
        for index in [0, 1] {
            let mut lengths = vec![8; 2];
            lengths[index] = value;
            let values = Values { lengths: Some(lengths), ..values.clone() };
            values.fails(&linear, Error::LengthOutOfRange { index, value, max: 8 });
            if value < 0 {
                values.fails(&ring, Error::LengthOutOfRange { index, value, max: i64::MAX });
            } else {
                assert_eq!(values.run(&ring), Ok(()));
            }
        }
    }
}

/// The kernels write to the scratch, so one for smaller shapes must be refused.
#[test]
fn a_scratch_for_other_shapes() {
    let (values, prepared) = (Values::<f32>::new(), prepare(SHAPES));
    let others = [
        Shapes { query: &[2, 4, 1, 5], ..SHAPES },
        Shapes { query: &[0, 4, 3, 5], key: &[0, 2, 8, 5], value: &[0, 2, 8, 7], ..SHAPES },
        Shapes { value: &[2, 2, 8, 1], ..SHAPES },
        Shapes { mask: Some(&[8]), ..SHAPES },
    ];
    for other in others {
        let mut scratch = prepare(other).scratch(2);
        let mut y = [7.0; 168];
        let result = prepared.run(&values.inputs(), &mut Outputs::new(&mut y), &mut scratch, None);
        assert_eq!((result, y), (Err(Error::Scratch), [7.0; 168]));
    }
    // A clone has the same shapes.
    let mut scratch = prepared.clone().scratch(1);
    let mut y = [7.0; 168];
    assert_eq!(prepared.run(&values.inputs(), &mut Outputs::new(&mut y), &mut scratch, None), Ok(()));
    assert_ne!(y, [7.0; 168]);
}

#[track_caller]
fn prepare(shapes: Shapes<'_>) -> Prepared {
    Attention::new().prepare(&shapes).unwrap()
}

/// The operands of a call with [`SHAPES`], and the sizes of its outputs.
#[derive(Clone)]
struct Values<T> {
    query: Vec<T>,
    key: Vec<T>,
    value: Vec<T>,
    mask: Option<Vec<u8>>,
    past: Option<[Vec<T>; 2]>,
    lengths: Option<Vec<i64>>,
    output: usize,
    present: Option<[usize; 2]>,
    scores: Option<usize>,
}

impl<T: Float> Values<T> {
    fn new() -> Self {
        let numbers = |count: u8| (0..count).map(|n| T::of_f32(f32::from(n) / 64.0)).collect();
        Self {
            query: numbers(120),
            key: numbers(160),
            value: numbers(224),
            mask: None,
            past: None,
            lengths: None,
            output: 168,
            present: None,
            scores: None,
        }
    }

    fn inputs(&self) -> Inputs<'_, T> {
        Inputs {
            mask: self.mask.as_deref().map(Mask::Bool),
            past: self.past.as_ref().map(|[key, value]| [key.as_slice(), value]),
            valid: self.lengths.as_deref().map_or(Valid::All, Valid::Lengths),
            ..Inputs::new(&self.query, &self.key, &self.value)
        }
    }

    fn run(&self, prepared: &Prepared) -> Result<(), Error> {
        self.run_into(prepared).0
    }

    /// Runs a call and returns its outputs.
    fn run_into(&self, prepared: &Prepared) -> (Result<(), Error>, Vec<T>) {
        let garbage = |count| vec![T::of_f32(-777.0); count];
        let mut y = garbage(self.output);
        let [mut key, mut value] = self.present.unwrap_or_default().map(garbage);
        let mut scores = garbage(self.scores.unwrap_or_default());
        let mut outputs = Outputs::new(&mut y);
        if self.present.is_some() {
            outputs = outputs.present(&mut key, &mut value);
        }
        if self.scores.is_some() {
            outputs = outputs.scores(&mut scores);
        }
        let result = prepared.run(&self.inputs(), &mut outputs, &mut prepared.scratch(2), None);
        (result, [y, key, value, scores].concat())
    }

    /// Checks that a call fails with this error and changes nothing.
    #[track_caller]
    fn fails(&self, prepared: &Prepared, expected: Error) {
        let (result, outputs) = self.run_into(prepared);
        assert_eq!(result, Err(expected));
        assert!(outputs.iter().all(|element| element.to_f32() == -777.0));
    }
}

#[test]
fn operands_have_the_names_of_onnx() {
    use Operand::{
        Key, Lengths, Mask, Output, PastKey, PastValue, PresentKey, PresentValue, Query, Scores, Value,
    };
    let inputs = [Query, Key, Value, Mask, PastKey, PastValue, Lengths].map(|operand| operand.to_string());
    assert_eq!(inputs.join(" "), "Q K V attn_mask past_key past_value nonpad_kv_seqlen");
    let outputs = [Output, PresentKey, PresentValue, Scores].map(|operand| operand.to_string());
    assert_eq!(outputs.join(" "), "Y present_key present_value qk_matmul_output");
}
