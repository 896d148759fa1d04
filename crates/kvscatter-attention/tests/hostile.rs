//! Tests A1 with shapes that are huge, or empty with huge dimensions. Calls allocate little, take no time, and do not
//! overflow.

use allocation_counter::measure;
use kvscatter::ElementType;
use kvscatter_attention::{Attention, AttentionError, Inputs, Mask, Outputs, Scores, Shapes, Softmax};

/// Some of the dimensions that the cases consist of.
const DIMS: [usize; 9] = [0, 1, 2, 1 << 20, 1 << 32, (1 << 32) + 1, 1 << 61, isize::MAX as usize, usize::MAX];

/// The largest number of bytes that a call with empty outputs may allocate.
const MOST: u64 = 1 << 20;

#[test]
fn shapes_that_agree() {
    let (mut refused, mut ran) = (0, 0);
    for [batch, queries, keys] in triples() {
        for [head_size, value_size, past] in triples() {
            let query = [batch, 2, queries, head_size];
            let (key, value) = ([batch, 2, keys, head_size], [batch, 2, keys, value_size]);
            let past = [[batch, 2, past, head_size], [batch, 2, past, value_size]];
            let past = (past[0][2] != 2).then_some([past[0].as_slice(), &past[1]]);
            let (element, mask) = (ElementType::Float32, None);
            let shapes = Shapes { element, query: &query, key: &key, value: &value, mask, past };
            for op in operators() {
                let allocated = measure(|| match run(op, &shapes) {
                    Some(Ok(())) => ran += 1,
                    Some(Err(error)) => {
                        assert!(matches!(error, AttentionError::TooLarge { .. }), "{error} {shapes:?}");
                        refused += 1;
                    }
                    None => {}
                });
                assert!(allocated.bytes_max < MOST, "{allocated:?} {op:?} {shapes:?}");
            }
        }
    }
    assert!(refused > 1000 && ran > 1000, "{refused} {ran}");
}

#[test]
fn shapes_of_rank_3_and_masks() {
    let mut ran = 0;
    for [batch, queries, hidden] in triples() {
        for [keys, heads, mask] in triples() {
            let query = [batch, queries, hidden];
            let (key, value) = ([batch, keys, hidden], [batch, keys, 0]);
            let mask = [batch, heads, mask, keys];
            let element = ElementType::Float32;
            let shapes =
                Shapes { element, query: &query, key: &key, value: &value, mask: Some(&mask), past: None };
            for op in operators() {
                let mut result = None;
                let allocated = measure(|| result = run(op.heads(heads, heads), &shapes));
                ran += usize::from(result == Some(Ok(())));
                assert!(allocated.bytes_max < MOST, "{allocated:?} {op:?} {shapes:?}");
            }
        }
    }
    assert!(ran > 1000, "{ran}");
}

#[test]
fn a_cache_without_elements_has_few_slots() {
    let prepare = |slots, value_size| {
        let (query, key, value) = ([1, 1, 1, 0], [1, 1, slots, 0], [1, 1, slots, value_size]);
        let element = ElementType::Float32;
        let shapes = Shapes { element, query: &query, key: &key, value: &value, mask: None, past: None };
        Attention::new().scores(Scores::Weights).prepare(&shapes).err()
    };
    assert_eq!(prepare(1 << 16, 0), None);
    let (slots, max) = ((1 << 16) + 1, 1 << 16);
    assert_eq!(prepare(slots, 0), Some(AttentionError::EmptySlots { slots, max }));
    assert_eq!(prepare(slots, 1), None);
}

fn operators() -> [Attention; 5] {
    let op = Attention::new();
    [
        op,
        op.causal(true).window(Some(usize::MAX), Some(usize::MAX)).ring(),
        op.softmax(Softmax::Float64),
        op.scores(Scores::Products),
        op.scores(Scores::Weights).causal(true),
    ]
}

/// Prepares a call, and runs it if all of its tensors are empty. Returns `None` for one that cannot be run.
fn run(op: Attention, shapes: &Shapes<'_>) -> Option<Result<(), AttentionError>> {
    let prepared = match op.prepare(shapes) {
        Ok(prepared) => prepared,
        // A ring refuses a past and scores, and heads may not divide a dimension.
        Err(error @ AttentionError::TooLarge { .. }) => return Some(Err(error)),
        Err(_) => return None,
    };
    let has_scores = op.has_scores();
    let is_empty = |shape: &[usize]| shape.contains(&0);
    let inputs = [shapes.query, shapes.key, shapes.value].into_iter();
    let inputs = inputs.chain(shapes.past.into_iter().flatten()).chain(shapes.mask);
    let outputs_are_empty =
        is_empty(&prepared.output_shape()) && prepared.present_shapes().iter().all(|shape| is_empty(shape));
    if !outputs_are_empty || !inputs.clone().all(is_empty) {
        return None;
    }
    // The scores of empty tensors may have elements.
    let mut scratch = prepared.scratch(8);
    if has_scores && !is_empty(&prepared.scores_shape()) {
        return None;
    }
    let empty: &[f32] = &[];
    let (mut y, mut key, mut value, mut scores) = ([], [], [], []);
    let mut outputs = Outputs::new(&mut y).present(&mut key, &mut value);
    if has_scores {
        outputs = outputs.scores(&mut scores);
    }
    let inputs = Inputs {
        mask: shapes.mask.map(|_| Mask::Bool(&[])),
        past: shapes.past.map(|_| [empty, empty]),
        ..Inputs::new(empty, empty, empty)
    };
    if shapes.element != ElementType::Float32 {
        return None;
    }
    Some(prepared.run(&inputs, &mut outputs, &mut scratch, None))
}

fn triples() -> impl Iterator<Item = [usize; 3]> {
    DIMS.into_iter()
        .flat_map(|a| DIMS.into_iter().flat_map(move |b| DIMS.into_iter().map(move |c| [a, b, c])))
}
